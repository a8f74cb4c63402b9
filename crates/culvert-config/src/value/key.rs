//! Keys written as text: of WireGuard, of REALITY.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::OptionValue;
use super::text::decode_base64;
use super::uuid::decode_hex;
use crate::cx::Cx;
use crate::json::Node;
use crate::schema::Schema;

/// A key of 32 bytes in standard base64 with padding; output keeps the text of the file.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct WireGuardKey {
    /// The key.
    pub bytes: [u8; 32],
    text: String,
}

/// An X25519 key in URL-safe base64 without padding. It is only looked at where REALITY is switched on, so it is kept
/// as text.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct RealityKey(String);

/// A REALITY short id: up to 16 hexadecimal digits. Like the key it is kept as text.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct ShortId(String);

/// A public key of ML-DSA-65 in URL-safe base64 without padding. Like the others it is kept as text.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct MlDsa65Key(String);

impl MlDsa65Key {
    /// The key, if the text is one.
    #[must_use]
    pub fn bytes(&self) -> Option<Vec<u8>> {
        const LEN: usize = 1952;
        URL_SAFE_NO_PAD.decode(&self.0).ok().filter(|key| key.len() == LEN)
    }
}

impl RealityKey {
    /// The key, if the text is one.
    #[must_use]
    pub fn bytes(&self) -> Option<[u8; 32]> {
        URL_SAFE_NO_PAD.decode(&self.0).ok()?.try_into().ok()
    }
}

impl ShortId {
    /// The id as it is sent, filled up with zeros; `None` if the text is no short id.
    #[must_use]
    pub fn bytes(&self) -> Option<[u8; 8]> {
        let padded = format!("{:0<16}", self.0);
        decode_hex(&padded).filter(|_| self.0.len().is_multiple_of(2))
    }
}

impl OptionValue for WireGuardKey {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("a key in base64", node);
            return;
        };
        if text.is_empty() {
            return;
        }
        match decode_base64(text).map(<[u8; 32]>::try_from) {
            Ok(Ok(bytes)) => *self = Self { bytes, text: text.to_owned() },
            Ok(Err(bytes)) => {
                cx.error(node.place, format!("a key has 32 bytes, this one has {}", bytes.len()));
            }
            Err(error) => cx.error(node.place, format!("not standard base64 with padding: {error}")),
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

macro_rules! texts {
    ($($name:ident),*) => {$(
        impl OptionValue for $name {
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
    )*};
}

texts!(MlDsa65Key, RealityKey, ShortId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reality_keys_are_32_bytes_without_padding() {
        let key = |text: &str| RealityKey(text.to_owned()).bytes();
        assert_eq!(key("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE"), Some([1; 32]));
        assert_eq!(key("AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="), None);
        assert_eq!(key("AQEB"), None);
        assert_eq!(key(""), None);
    }

    #[test]
    fn short_ids_are_filled_up_with_zeros() {
        let id = |text: &str| ShortId(text.to_owned()).bytes();
        assert_eq!(id(""), Some([0; 8]));
        assert_eq!(id("0aFF"), Some([0x0a, 0xff, 0, 0, 0, 0, 0, 0]));
        assert_eq!(id("0123456789abcdef"), Some([0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]));
        assert_eq!(id("abc"), None);
        assert_eq!(id("xy"), None);
        assert_eq!(id("0123456789abcdef00"), None);
    }
}
