//! Field sections of HTTP/3 (RFC 9204), without the dynamic table: neither end uses one that was not allowed to.
//!
//! ```text
//! section  required insert count (0)  base (0)  then field lines
//! line     1 T index(6)                          a line of the static table (T set)
//!          0 1 N T index(4)  value               a name of the static table
//!          0 0 1 N H length(3)  name  value      a name of its own
//! value    H length(7)  bytes                    H: in Huffman code
//! ```

use super::huffman;

/// A field: name and value.
pub type Field = (Vec<u8>, Vec<u8>);

/// Bytes of all fields together, 32 for each field added (RFC 9114 section 4.2.2).
pub const MAX_SECTION: usize = 64 << 10;

#[rustfmt::skip]
const STATIC: [(&str, &str); 99] = [
    (":authority", ""), (":path", "/"), ("age", "0"), ("content-disposition", ""), ("content-length", "0"),
    ("cookie", ""), ("date", ""), ("etag", ""), ("if-modified-since", ""), ("if-none-match", ""),
    ("last-modified", ""), ("link", ""), ("location", ""), ("referer", ""), ("set-cookie", ""),
    (":method", "CONNECT"), (":method", "DELETE"), (":method", "GET"), (":method", "HEAD"), (":method", "OPTIONS"),
    (":method", "POST"), (":method", "PUT"), (":scheme", "http"), (":scheme", "https"), (":status", "103"),
    (":status", "200"), (":status", "304"), (":status", "404"), (":status", "503"), ("accept", "*/*"),
    ("accept", "application/dns-message"), ("accept-encoding", "gzip, deflate, br"), ("accept-ranges", "bytes"),
    ("access-control-allow-headers", "cache-control"), ("access-control-allow-headers", "content-type"),
    ("access-control-allow-origin", "*"), ("cache-control", "max-age=0"), ("cache-control", "max-age=2592000"),
    ("cache-control", "max-age=604800"), ("cache-control", "no-cache"), ("cache-control", "no-store"),
    ("cache-control", "public, max-age=31536000"), ("content-encoding", "br"), ("content-encoding", "gzip"),
    ("content-type", "application/dns-message"), ("content-type", "application/javascript"),
    ("content-type", "application/json"), ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "image/gif"), ("content-type", "image/jpeg"), ("content-type", "image/png"),
    ("content-type", "text/css"), ("content-type", "text/html; charset=utf-8"), ("content-type", "text/plain"),
    ("content-type", "text/plain;charset=utf-8"), ("range", "bytes=0-"),
    ("strict-transport-security", "max-age=31536000"),
    ("strict-transport-security", "max-age=31536000; includesubdomains"),
    ("strict-transport-security", "max-age=31536000; includesubdomains; preload"), ("vary", "accept-encoding"),
    ("vary", "origin"), ("x-content-type-options", "nosniff"), ("x-xss-protection", "1; mode=block"),
    (":status", "100"), (":status", "204"), (":status", "206"), (":status", "302"), (":status", "400"),
    (":status", "403"), (":status", "421"), (":status", "425"), (":status", "500"), ("accept-language", ""),
    ("access-control-allow-credentials", "FALSE"), ("access-control-allow-credentials", "TRUE"),
    ("access-control-allow-headers", "*"), ("access-control-allow-methods", "get"),
    ("access-control-allow-methods", "get, post, options"), ("access-control-allow-methods", "options"),
    ("access-control-expose-headers", "content-length"), ("access-control-request-headers", "content-type"),
    ("access-control-request-method", "get"), ("access-control-request-method", "post"), ("alt-svc", "clear"),
    ("authorization", ""), ("content-security-policy", "script-src 'none'; object-src 'none'; base-uri 'none'"),
    ("early-data", "1"), ("expect-ct", ""), ("forwarded", ""), ("if-range", ""), ("origin", ""),
    ("purpose", "prefetch"), ("server", ""), ("timing-allow-origin", "*"), ("upgrade-insecure-requests", "1"),
    ("user-agent", ""), ("x-forwarded-for", ""), ("x-frame-options", "deny"), ("x-frame-options", "sameorigin"),
];

/// Encodes fields as one section.
pub fn encode<'a>(fields: impl IntoIterator<Item = (&'a str, &'a [u8])>, to: &mut Vec<u8>) {
    to.extend([0, 0]);
    for (name, value) in fields {
        let same = |(known, _): &(&str, &str)| *known == name;
        if let Some(index) = STATIC.iter().position(|line| same(line) && line.1.as_bytes() == value) {
            put_int(0xc0, 6, index as u64, to);
            continue;
        }
        match STATIC.iter().position(same) {
            Some(index) => put_int(0x50, 4, index as u64, to),
            None => {
                put_int(0x20, 3, name.len() as u64, to);
                to.extend(name.as_bytes());
            }
        }
        put_int(0, 7, value.len() as u64, to);
        to.extend(value);
    }
}

/// Decodes a section. `None` for what is no section, has too much in it, or needs a dynamic table.
pub fn decode(mut bytes: &[u8]) -> Option<Vec<Field>> {
    let from = &mut bytes;
    if take_int(from, 8)?.1 != 0 {
        return None; // inserts that were not allowed
    }
    take_int(from, 7)?;
    let mut fields = Vec::new();
    let mut room = MAX_SECTION;
    while let Some(&kind) = from.first() {
        let (name, value) = if kind & 0x80 != 0 {
            let (flags, index) = take_int(from, 6)?;
            let (name, value) = known(flags & 0x40 != 0, index)?;
            (name.into(), value.into())
        } else if kind & 0x40 != 0 {
            let (flags, index) = take_int(from, 4)?;
            let (name, _) = known(flags & 0x10 != 0, index)?;
            (name.into(), take_text(from, 7, room)?)
        } else if kind & 0x20 != 0 {
            let name = take_text(from, 3, room)?;
            let value = take_text(from, 7, room.checked_sub(name.len())?)?;
            (name, value)
        } else {
            return None; // past the base of a dynamic table
        };
        let field: Field = (name, value);
        room = room.checked_sub(field.0.len() + field.1.len() + 32)?;
        fields.push(field);
    }
    Some(fields)
}

fn known(is_static: bool, index: u64) -> Option<(&'static [u8], &'static [u8])> {
    let (name, value) = STATIC.get(usize::try_from(index).ok()?).filter(|_| is_static)?;
    Some((name.as_bytes(), value.as_bytes()))
}

/// An integer behind the flags of its first byte (RFC 7541 section 5.1): `bits` of that byte are its own.
fn put_int(flags: u8, bits: u8, mut number: u64, to: &mut Vec<u8>) {
    let most = (1u64 << bits) - 1;
    if number < most {
        to.push(flags | number as u8);
        return;
    }
    to.push(flags | most as u8);
    number -= most;
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// The flags and the integer.
fn take_int(from: &mut &[u8], bits: u8) -> Option<(u8, u64)> {
    let (&first, mut rest) = from.split_first()?;
    let most = ((1u16 << bits) - 1) as u8;
    let (flags, mut number) = (first & !most, u64::from(first & most));
    if first & most == most {
        let mut shift = 0;
        loop {
            let (&byte, tail) = rest.split_first()?;
            rest = tail;
            if shift > 28 {
                return None; // nothing here is that large
            }
            number += u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *from = rest;
    Some((flags, number))
}

fn take_text(from: &mut &[u8], bits: u8, max: usize) -> Option<Vec<u8>> {
    let is_huffman = from.first()? & (1 << bits) != 0;
    let (_, len) = take_int(from, bits)?;
    let bytes = from.get(..usize::try_from(len).ok()?)?;
    *from = &from[bytes.len()..];
    let mut text = Vec::new();
    if is_huffman {
        huffman::decode(bytes, max, &mut text)?;
    } else if bytes.len() <= max {
        text.extend(bytes);
    } else {
        return None;
    }
    Some(text)
}

/// Fields that were decoded are the same after encoding and decoding.
pub fn fuzz_section(bytes: &[u8]) {
    let Some(fields) = decode(bytes) else { return };
    let names = fields.iter().map(|(name, value)| (std::str::from_utf8(name), value));
    if names.clone().any(|(name, _)| name.is_err()) {
        return;
    }
    let mut encoded = Vec::new();
    encode(names.filter_map(|(name, value)| Some((name.ok()?, &value[..]))), &mut encoded);
    assert_eq!(decode(&encoded), Some(fields));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(list: &[(&str, &str)]) -> Vec<Field> {
        list.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn every_form_of_a_line_is_read() {
        let list = [
            (":method", "POST"),
            (":path", "/auth"),
            (":authority", "hysteria"),
            ("hysteria-padding", &"x".repeat(2000)),
            ("hysteria-auth", ""),
        ];
        let mut encoded = Vec::new();
        encode(list.iter().map(|(name, value)| (*name, value.as_bytes())), &mut encoded);
        assert_eq!(decode(&encoded), Some(fields(&list)));
        // Appendix B.1 of RFC 9204.
        let section = [&[0, 0, 0x51, 0x0b][..], b"/index.html"].concat();
        assert_eq!(decode(&section), Some(fields(&[(":path", "/index.html")])));
        // A name and a value in Huffman code.
        let section = [
            0, 0, 0x2f, 0x01, 0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xa9, 0x7d, 0x7f, 0x86, 0xa8, 0xeb, 0x10, 0x64,
            0x9c, 0xbf,
        ];
        assert_eq!(decode(&section), Some(fields(&[("custom-key", "no-cache")])));
    }

    #[test]
    fn what_needs_a_dynamic_table_or_too_much_memory_is_refused() {
        for section in [
            &[][..],
            &[0],
            &[1, 0],
            &[0, 0, 0x80],
            &[0, 0, 0x40],
            &[0, 0, 0x10],
            &[0, 0, 0x00],
            &[0, 0, 0xff, 0x24],
        ] {
            assert_eq!(decode(section), None, "{section:?}");
        }
        assert_eq!(decode(&[0, 0]), Some(vec![]));
        let mut long = Vec::new();
        encode([("a", &vec![b'x'; MAX_SECTION][..])], &mut long);
        assert_eq!(decode(&long), None);
        let many: Vec<u8> = [0, 0].into_iter().chain(std::iter::repeat_n(0xd1, 3000)).collect();
        assert_eq!(decode(&many), None, "each line counts 32 bytes more");
        assert_eq!(decode(&[0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), None);
    }
}
