//! Outbound `socks`, and UDP over TCP, which other outbounds use as well.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::schema::Schema;
use crate::table::{self, options};
use crate::value::{Networks, OptionValue, Secret, choices};

options! {
    /// Options of a SOCKS outbound.
    pub struct SocksOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The proxy.
        server: ServerOptions = ..,
        /// Version of the protocol; 5 when absent.
        version: SocksVersion,
        /// Name to log in with.
        username: String,
        /// Password.
        password: Secret<String>,
        /// What to send there; both when absent.
        network: Networks,
        /// Sends datagrams over streams.
        udp_over_tcp: Option<UdpOverTcp>,
    }
}

choices! {
    /// Version of the SOCKS protocol.
    pub enum SocksVersion: "SOCKS version" {
        /// Not set, which means 5.
        Unset = "",
        /// SOCKS 4: IPv4 addresses, no password.
        V4 = "4",
        /// SOCKS 4a: domain names as well.
        V4a = "4a",
        /// SOCKS 5.
        V5 = "5",
    }
}

/// UDP over TCP: `true`, or an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UdpOverTcp(pub UdpOverTcpOptions);

options! {
    /// Options of UDP over TCP.
    pub struct UdpOverTcpOptions {
        /// Whether datagrams go over streams.
        enabled: bool,
        /// Version of the protocol; 2 when absent.
        version: u8,
    }
}

impl UdpOverTcp {
    const DEFAULT_VERSION: u8 = 2;

    /// The version to speak, if it is switched on.
    #[must_use]
    pub const fn version(&self) -> Option<u8> {
        match (self.0.enabled, self.0.version) {
            (false, _) => None,
            (true, 0) => Some(Self::DEFAULT_VERSION),
            (true, version) => Some(version),
        }
    }
}

impl OptionValue for UdpOverTcp {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        match node.as_bool() {
            Some(enabled) => self.0 = UdpOverTcpOptions { enabled, version: 0 },
            None if node.as_object().is_some() => table::decode(&mut self.0, node, cx),
            None => cx.expected("true, false or an object", node),
        }
        if self.0.version == Self::DEFAULT_VERSION {
            self.0.version = 0;
        }
    }

    fn encode(&self) -> Node {
        if self.0.version == 0 { self.0.enabled.encode() } else { self.0.encode() }
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let forms = [Schema::typed("boolean"), self.0.schema(schema)];
        Schema::any_of(forms)
    }
}
