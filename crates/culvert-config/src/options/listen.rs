//! Options shared by all that listens.

use crate::cx::Cx;
use crate::json::Node;
use crate::table::{Field, FieldMut, Table, options};
use crate::value::{Address, Dur, DurOrSeconds, LooseInboundTag, Mark, NamespaceTag};

options! {
    /// How to listen.
    pub struct ListenOptions {
        /// Address to listen on; 127.0.0.1 when absent.
        listen: Option<Address>,
        /// Port to listen on; a free one when absent.
        listen_port: u16,
        /// Network interface to listen on.
        bind_interface: String,
        /// Firewall mark of the sockets (Linux).
        routing_mark: Mark,
        /// Lets several sockets share the port.
        reuse_addr: bool,
        /// Network namespace to listen in: a tag, a name or a path (Linux).
        netns: NamespaceTag,
        /// Switches off TCP keep-alive.
        disable_tcp_keep_alive: bool,
        /// Idle time before the first keep-alive probe; 5m when absent.
        tcp_keep_alive: Dur,
        /// Time between keep-alive probes; 75s when absent.
        tcp_keep_alive_interval: Dur,
        /// Accepts data in the opening packet (TCP Fast Open).
        tcp_fast_open: bool,
        /// Accepts Multipath TCP.
        tcp_multi_path: bool,
        /// Lets datagrams be fragmented; the protocol decides when absent.
        udp_fragment: Option<bool>,
        /// Idle time after which a UDP session ends; 5m when absent.
        udp_timeout: DurOrSeconds,
        /// Ignored, kept for old files.
        proxy_protocol: bool [hidden],
        /// Ignored, kept for old files.
        proxy_protocol_accept_no_header: bool [hidden],
        /// Inbound to which accepted TCP connections are handed.
        detour: LooseInboundTag,
    }
}

/// [`ListenOptions`] for an object whose own `detour` means something else.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListenWithoutDetour(pub ListenOptions);

impl Table for ListenWithoutDetour {
    fn name(&self) -> &'static str {
        "ListenWithoutDetour"
    }

    fn doc(&self) -> &'static str {
        self.0.doc()
    }

    fn fields<'a>(&'a self, out: &mut Vec<Field<'a>>) {
        let first = out.len();
        self.0.fields(out);
        let own = out.split_off(first).into_iter();
        out.extend(own.filter(|field| field.key != "detour"));
    }

    fn fields_mut<'a>(&'a mut self, out: &mut Vec<FieldMut<'a>>) {
        let first = out.len();
        self.0.fields_mut(out);
        let own = out.split_off(first).into_iter();
        out.extend(own.filter(|field| field.key != "detour"));
    }

    fn check(&self, node: &Node, cx: &mut Cx<'_>) {
        self.0.check(node, cx);
    }
}
