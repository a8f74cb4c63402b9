//! Outbounds `vmess`, `vless` and `trojan`, which share TLS, transports and multiplexing.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::mux::OutboundMux;
use crate::options::tls::{Need, OutboundTls};
use crate::options::transport::Transport;
use crate::options::users::VlessFlow;
use crate::table::options;
use crate::value::{Networks, Secret, UserId, Word, choices};

options! {
    /// Options of a VMess outbound.
    pub struct VmessOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
        /// Id of the user.
        uuid: Secret<UserId> [keep],
        /// How to encrypt; `auto` when absent.
        security: Word<VmessSecurity>,
        /// Above 0 the old way to log in is used.
        alter_id: i64,
        /// Pads every record.
        global_padding: bool,
        /// Encrypts the lengths of records as well.
        authenticated_length: bool,
        /// What to send there; both when absent.
        network: Networks,
        /// TLS towards the server.
        tls: Option<Box<OutboundTls>>,
        /// How datagrams carry their addresses; not at all when absent.
        packet_encoding: Word<PacketEncoding>,
        /// Multiplexing.
        multiplex: Option<OutboundMux>,
        /// What carries the connections.
        transport: Transport,
    }
    check = VmessOutbound::check_values;

    /// Options of a VLESS outbound.
    pub struct VlessOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
        /// Id of the user.
        uuid: Secret<UserId> [keep],
        /// What is done with connections inside TLS.
        flow: Word<VlessFlow>,
        /// What to send there; both when absent.
        network: Networks,
        /// TLS towards the server.
        tls: Option<Box<OutboundTls>>,
        /// Multiplexing.
        multiplex: Option<OutboundMux>,
        /// What carries the connections.
        transport: Transport,
        /// How datagrams carry their addresses; `xudp` when absent, not at all when empty.
        packet_encoding: Option<Word<PacketEncoding>>,
    }
    check = VlessOutbound::check_values;

    /// Options of a Trojan outbound.
    pub struct TrojanOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
        /// Password.
        password: Secret<String> [keep],
        /// What to send there; both when absent.
        network: Networks,
        /// TLS towards the server.
        tls: Option<Box<OutboundTls>>,
        /// Multiplexing.
        multiplex: Option<OutboundMux>,
        /// What carries the connections.
        transport: Transport,
    }
    check = TrojanOutbound::check_carrier;
}

choices! {
    /// How VMess encrypts.
    pub enum VmessSecurity: "security" {
        /// As suits the processor.
        Auto = "auto",
        /// Not at all.
        None = "none",
        /// Not at all, without records.
        Zero = "zero",
        /// AES in GCM.
        Aes128Gcm = "aes-128-gcm",
        /// `ChaCha20-Poly1305`.
        ChaCha20Poly1305 = "chacha20-poly1305",
        /// AES in CFB, as long ago.
        Aes128Cfb = "aes-128-cfb",
    }

    /// How datagrams carry their addresses.
    pub enum PacketEncoding: "packet encoding" {
        /// As Xray does it.
        Xudp = "xudp",
        /// As v2ray does it.
        PacketAddr = "packetaddr",
    }
}

impl VmessOutbound {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        check_carrier(self.tls.as_deref(), &self.transport, &self.server, node, cx);
        self.uuid.check("uuid", node, cx);
        self.security.check("security", node, cx);
        self.packet_encoding.check("packet_encoding", node, cx);
    }
}

impl VlessOutbound {
    /// How datagrams carry their addresses.
    #[must_use]
    pub fn packet_encoding(&self) -> Option<PacketEncoding> {
        self.packet_encoding.as_ref().map_or(Some(PacketEncoding::Xudp), Word::get)
    }

    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        check_carrier(self.tls.as_deref(), &self.transport, &self.server, node, cx);
        self.uuid.check("uuid", node, cx);
        self.flow.check("flow", node, cx);
        if let Some(flow) = self.flow.get() {
            let has_tls = self.tls.as_ref().is_some_and(|tls| tls.enabled);
            flow.check_place(has_tls, self.transport.0.is_some(), node, cx);
        }
        if let Some(encoding) = &self.packet_encoding {
            encoding.check("packet_encoding", node, cx);
        }
    }
}

impl TrojanOutbound {
    fn check_carrier(&self, node: &Node, cx: &mut Cx<'_>) {
        check_carrier(self.tls.as_deref(), &self.transport, &self.server, node, cx);
    }
}

fn check_carrier(
    tls: Option<&OutboundTls>,
    transport: &Transport,
    server: &ServerOptions,
    node: &Node,
    cx: &mut Cx<'_>,
) {
    OutboundTls::check(tls, Need::Optional, &server.server, node, cx);
    transport.check_client(tls.is_some_and(|tls| tls.enabled), node, cx);
}
