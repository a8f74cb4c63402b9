//! UUIDs, and the ids of VMess and VLESS users that need not be UUIDs.
//!
//! Source: RFC 9562, sections 4 and 5.5.

use aws_lc_rs::digest;

use super::OptionValue;
use crate::cx::Cx;
use crate::json::Node;
use crate::schema::Schema;

/// A UUID; output keeps the text of the file. Written with or without dashes, in braces, or behind `urn:uuid:`.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Uuid {
    /// Its bytes, as they are sent.
    pub bytes: [u8; 16],
    text: String,
}

/// The id of a VMess or VLESS user: a UUID, or any other text, which then stands for a UUID made from it.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct UserId(String);

impl Uuid {
    /// Reads any of the written forms.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let inner = match text.len() {
            41 | 45 => text.strip_prefix("urn:uuid:")?,
            34 | 38 => text.strip_prefix('{')?.strip_suffix('}')?,
            32 | 36 => text,
            _ => return None,
        };
        let digits = match inner.len() {
            32 => inner.to_owned(),
            _ => {
                let dashed = [8, 13, 18, 23].iter().all(|&at| inner.as_bytes()[at] == b'-');
                dashed.then(|| inner.replace('-', ""))?
            }
        };
        Some(Self { bytes: decode_hex(&digits)?, text: text.to_owned() })
    }
}

impl UserId {
    /// The UUID that is sent: the one written, or version 5 of the text in the nil name space.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        Uuid::parse(&self.0).map_or_else(|| version_5(&self.0), |uuid| uuid.bytes)
    }

    /// Reports an id that lets everybody in who tries the obvious: none, or nothing but zeros. `node` is the object that
    /// has the option `key`.
    pub(crate) fn check(&self, key: &str, node: &Node, cx: &mut Cx<'_>) {
        if self.0.is_empty() {
            cx.error(node.place_of(key), format!("`{key}` is missing; `culvert generate uuid` makes one"));
        } else if self.uuid() == [0; 16] {
            cx.error(
                node.place_of(key),
                format!("`{key}` of zeros is no secret; `culvert generate uuid` makes one"),
            );
        }
    }
}

/// Exactly `N` bytes in hexadecimal digits.
pub(crate) fn decode_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).map(|digit| digit as u8);
        *byte = digit(0)? << 4 | digit(1)?;
    }
    Some(bytes)
}

fn version_5(name: &str) -> [u8; 16] {
    const NIL: [u8; 16] = [0; 16];
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(&NIL);
    context.update(name.as_bytes());
    let hash = context.finish();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_ref()[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x50;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

impl OptionValue for Uuid {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("a UUID", node);
            return;
        };
        match Self::parse(text) {
            Some(uuid) => *self = uuid,
            None => cx.error(
                node.place,
                "not a UUID; it has 32 hexadecimal digits, such as 2dd61d93-75d8-4da4-ac0e-6aece7eac365",
            ),
        }
    }

    fn encode(&self) -> Node {
        self.text.encode()
    }

    fn is_zero(&self) -> bool {
        self.text.is_empty()
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::typed("string")
    }
}

impl OptionValue for UserId {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        self.0.decode(node, cx);
    }

    fn encode(&self) -> Node {
        self.0.encode()
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::typed("string")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 16] =
        [0x2d, 0xd6, 0x1d, 0x93, 0x75, 0xd8, 0x4d, 0xa4, 0xac, 0x0e, 0x6a, 0xec, 0xe7, 0xea, 0xc3, 0x65];

    #[test]
    fn all_written_forms_of_a_uuid_are_read() {
        for text in [
            "2dd61d93-75d8-4da4-ac0e-6aece7eac365",
            "2DD61D9375D84DA4AC0E6AECE7EAC365",
            "{2dd61d93-75d8-4da4-ac0e-6aece7eac365}",
            "{2dd61d9375d84da4ac0e6aece7eac365}",
            "urn:uuid:2dd61d93-75d8-4da4-ac0e-6aece7eac365",
        ] {
            assert_eq!(Uuid::parse(text).map(|uuid| uuid.bytes), Some(BYTES), "{text}");
        }
        for text in [
            "",
            "alice",
            "2dd61d93-75d8-4da4-ac0e6-aece7eac365",
            "2dd61d93-75d8-4da4-ac0e-6aece7eac36z",
            "é2dd61d9-75d8-4da4-ac0e-6aece7eac36",
        ] {
            assert_eq!(Uuid::parse(text), None, "{text}");
        }
    }

    /// Expected bytes: `uuid.uuid5(uuid.UUID(int=0), "example")` of Python 3.11.
    #[test]
    fn other_texts_become_uuids_of_version_5() {
        let id = |text: &str| UserId(text.to_owned()).uuid();
        assert_eq!(id("2dd61d93-75d8-4da4-ac0e-6aece7eac365"), BYTES);
        assert_eq!(
            id("example"),
            decode_hex("feb54431301b52bba6dde1e93e81bb9e").expect("hexadecimal digits")
        );
    }
}
