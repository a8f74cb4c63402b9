//! The Internet checksum (RFC 1071): the ones' complement sum of 16-bit words.

use std::net::IpAddr;

/// A sum under way. Parts may be added in any order as long as each begins at an even offset of the whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes; an odd one at the end counts as if a zero followed.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // Eight bytes at a time: a sum of big-endian words is the byte-swapped sum of little-endian ones, and 32-bit
        // halves leave room for 2^32 additions before the 64 bits overflow.
        let mut sum = 0u64;
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let word = u64::from_be_bytes([
                chunk[0], chunk[1], chunk[2], chunk[3], chunk[4], chunk[5], chunk[6], chunk[7],
            ]);
            sum += (word >> 32) + (word & 0xffff_ffff);
        }
        let mut pairs = chunks.remainder().chunks_exact(2);
        for pair in &mut pairs {
            sum += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
        if let [last] = pairs.remainder() {
            sum += u64::from(*last) << 8;
        }
        Self(self.0 + u64::from(fold(sum)))
    }

    /// Adds one word.
    #[must_use]
    pub fn word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word))
    }

    /// The sum, not complemented: what a device that completes checksums expects in the field.
    #[must_use]
    pub fn partial(self) -> u16 {
        fold(self.0)
    }

    /// The checksum.
    #[must_use]
    pub fn finish(self) -> u16 {
        !fold(self.0)
    }
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum of the pseudo header that TCP, UDP and ICMPv6 put before their own bytes.
#[must_use]
pub fn pseudo(source: IpAddr, target: IpAddr, protocol: u8, len: usize) -> Sum {
    let sum = match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            Sum::default().bytes(&source.octets()).bytes(&target.octets())
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            Sum::default().bytes(&source.octets()).bytes(&target.octets())
        }
        // The two ends of a packet are of one family.
        _ => Sum::default(),
    };
    sum.word(u16::from(protocol)).word((len >> 16) as u16).word(len as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn by_the_book(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let sum = Sum::default().bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.partial(), 0xddf2);
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_even_parts(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..100) {
            let cut = (cut * 2).min(bytes.len() / 2 * 2);
            let whole = Sum::default().bytes(&bytes).finish();
            prop_assert_eq!(whole, by_the_book(&bytes));
            prop_assert_eq!(Sum::default().bytes(&bytes[cut..]).bytes(&bytes[..cut]).finish(), whole);
        }
    }
}
