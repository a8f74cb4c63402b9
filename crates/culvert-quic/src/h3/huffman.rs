//! The Huffman code of HPACK and QPACK (RFC 7541, appendix B). It is canonical: the lengths of the codes say all.

/// Bits of each byte's code.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// Bits of the longest code.
const LONGEST: usize = 30;

/// The bytes in the order of their codes, and where each length begins among them and among the codes.
struct Codes {
    symbols: [u8; 256],
    /// For each length: its first code, and the place of that in `symbols`.
    first: [(u32, usize); LONGEST + 2],
}

const CODES: Codes = codes();

const fn codes() -> Codes {
    let mut symbols = [0; 256];
    let mut first = [(0, 0); LONGEST + 2];
    let (mut count, mut code, mut length) = (0, 0u32, 1);
    while length <= LONGEST + 1 {
        first[length] = (code, count);
        let mut symbol = 0;
        while symbol < 256 {
            if LENGTHS[symbol] as usize == length {
                symbols[count] = symbol as u8;
                count += 1;
                code += 1;
            }
            symbol += 1;
        }
        code <<= 1;
        length += 1;
    }
    Codes { symbols, first }
}

/// Decodes `bytes` to the end of `to`, at most `max` bytes. `None` for what no encoder makes.
pub(crate) fn decode(bytes: &[u8], max: usize, to: &mut Vec<u8>) -> Option<()> {
    let start = to.len();
    let (mut code, mut length) = (0u32, 0usize);
    for byte in bytes {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            if length > LONGEST {
                return None; // the end mark, which is never sent, or nothing
            }
            let (first, place) = CODES.first[length];
            let next = CODES.first[length + 1].1;
            let at = place + (code.wrapping_sub(first)) as usize;
            if code >= first && at < next {
                if to.len() - start == max {
                    return None;
                }
                to.push(CODES.symbols[at]);
                (code, length) = (0, 0);
            }
        }
    }
    // What is left over is less than a byte, all ones.
    (length < 8 && code == (1 << length) - 1).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(hex: &str) -> Option<String> {
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let mut to = Vec::new();
        decode(&bytes, 1000, &mut to)?;
        Some(String::from_utf8(to).unwrap())
    }

    #[test]
    fn the_examples_of_the_rfc() {
        assert_eq!(text("f1e3c2e5f23a6ba0ab90f4ff").as_deref(), Some("www.example.com"));
        assert_eq!(text("a8eb10649cbf").as_deref(), Some("no-cache"));
        assert_eq!(text("25a849e95bb8e8b4bf").as_deref(), Some("custom-value"));
        assert_eq!(
            text("d07abe941054d444a8200595040b8166e082a62d1bff").as_deref(),
            Some("Mon, 21 Oct 2013 20:13:21 GMT")
        );
        assert_eq!(text("").as_deref(), Some(""));
    }

    #[test]
    fn padding_must_be_short_and_of_ones() {
        assert_eq!(text("a8eb10649cbfff"), None);
        assert_eq!(text("a8eb10649cb0"), None);
        assert_eq!(text("ffffffff"), None);
        let mut to = Vec::new();
        assert!(decode(&[0; 10], 15, &mut to).is_none(), "sixteen zeros are too many");
    }
}
