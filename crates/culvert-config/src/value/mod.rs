//! The forms a value can take in a configuration, each a type with its decoding, canonical output and schema.
//!
//! As in sing-box a zero value means "absent": an empty string, a zero number, `false`, an empty list. An option
//! for which absence and zero differ is an `Option`.

mod choice;
mod collections;
mod key;
mod network;
mod pem;
mod quantity;
mod scalar;
mod tag;
mod text;
mod typed;
mod uuid;

pub use choice::{Choice, Word};
pub(crate) use choice::{choices, unknown_word};
pub use collections::{Headers, List, Map, SortedMap};
pub use key::{MlDsa65Key, RealityKey, ShortId, WireGuardKey};
pub use network::{Address, Cidr, Network, Networks, PortRange, Prefix, Subnet};
pub use pem::{Pem, PemSection};
pub use quantity::{Bandwidth, Dur, DurOrSeconds, Mark, MemorySize};
pub use tag::{
    CertificateProviderTag, DnsServerTag, EndpointTag, HttpClientTag, InboundTag, LooseDnsServerTag,
    LooseEndpointTag, LooseInboundTag, LooseOutboundTag, NamespaceTag, OutboundTag, RuleSetTag, ServiceTag,
};
pub(crate) use text::decode_base64;
pub use text::{Base64, Pattern, Secret};
pub use typed::Typed;
pub use uuid::{UserId, Uuid};

use crate::cx::Cx;
use crate::json::Node;
use crate::schema::Schema;

/// A value that an option can have.
///
/// Decoding works in place, on a default value, so that tables can be walked without knowing the types in them. What
/// cannot be decoded is reported to `cx` and leaves the value as it was; a load with errors gives no options at all.
pub(crate) trait OptionValue {
    /// Reads the value from `node`, which is not `null`.
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>);

    /// Reads the value as item number `index` of a list. Only texts and tables take `null` there, for an empty one.
    fn decode_item(&mut self, node: &Node, _index: Option<usize>, cx: &mut Cx<'_>) {
        self.decode(node, cx);
    }

    /// Takes note of a `null`, which for most values means "absent".
    fn decode_null(&mut self, _node: &Node, _cx: &mut Cx<'_>) {}

    /// The canonical form.
    fn encode(&self) -> Node;

    /// Whether the canonical form of an object leaves this value out.
    fn is_zero(&self) -> bool;

    /// What a schema says about the value. Called on a default value.
    fn schema(&self, schema: &mut Schema) -> Node;
}
