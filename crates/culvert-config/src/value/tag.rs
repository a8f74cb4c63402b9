//! References to tagged objects. Decoding one notes it, so that all of them can be resolved once everything is read.

use super::OptionValue;
use crate::cx::{Cx, Missing, Space};
use crate::json::Node;
use crate::schema::Schema;

macro_rules! tags {
    ($( $(#[doc = $doc:literal])* $name:ident: $space:ident, $missing:ident; )*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
        pub struct $name(pub String);

        impl $name {
            /// The tag, empty if none is given.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The tag, if one is given.
            #[must_use]
            pub fn get(&self) -> Option<&str> {
                Some(self.as_str()).filter(|tag| !tag.is_empty())
            }
        }

        impl OptionValue for $name {
            fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
                self.0.decode(node, cx);
                if let Some(tag) = node.as_str().filter(|tag| !tag.is_empty()) {
                    cx.refer(Space::$space, tag, node.place, Missing::$missing);
                }
            }

            fn encode(&self) -> Node {
                self.0.encode()
            }

            fn is_zero(&self) -> bool {
                self.0.is_empty()
            }

            fn schema(&self, _schema: &mut Schema) -> Node {
                Schema::tag(Space::$space)
            }
        }
    )*};
}

tags! {
    /// Tag of an outbound or endpoint.
    OutboundTag: Outbound, Error;
    /// Tag of an outbound or endpoint whose absence shows only when it is used.
    LooseOutboundTag: Outbound, Warning;
    /// Tag of an inbound.
    InboundTag: Inbound, Error;
    /// Tag of an inbound that may be absent.
    LooseInboundTag: Inbound, Warning;
    /// Tag of an endpoint.
    EndpointTag: Endpoint, Error;
    /// Tag of an endpoint whose absence shows only when it is used.
    LooseEndpointTag: Endpoint, Warning;
    /// Tag of a DNS server.
    DnsServerTag: DnsServer, Error;
    /// Tag of a DNS server whose absence shows only when it is used.
    LooseDnsServerTag: DnsServer, Warning;
    /// Tag of a rule-set.
    RuleSetTag: RuleSet, Error;
    /// Tag of an HTTP client.
    HttpClientTag: HttpClient, Error;
    /// Tag of a certificate provider.
    CertificateProviderTag: CertificateProvider, Error;
    /// Tag of a network namespace, or its name or path.
    NamespaceTag: Namespace, Fine;
    /// Tag of a service.
    ServiceTag: Service, Error;
}
