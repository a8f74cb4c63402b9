//! Inbound `anytls`.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::listen::ListenOptions;
use crate::options::tls::{InboundTls, Need};
use crate::options::users::PasswordUser;
use crate::table::options;
use crate::value::List;

options! {
    /// Options of an AnyTLS inbound.
    pub struct AnyTlsInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// TLS towards the clients.
        tls: Option<Box<InboundTls>>,
        /// Who may use it.
        users: Vec<PasswordUser>,
        /// How clients pad their first packets: lines such as `stop=8` and `0=30-30`.
        padding_scheme: List<String>,
    }
    check = AnyTlsInbound::check_values;
}

impl AnyTlsInbound {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        InboundTls::check(self.tls.as_deref(), Need::Optional, node, cx);
        if self.padding_scheme.is_empty() {
            return;
        }
        let lines = self.padding_scheme.iter().flat_map(|lines| lines.lines());
        let stop = lines.filter_map(|line| line.strip_prefix("stop=")).next_back();
        if stop.is_none_or(|stop| stop.trim().parse::<i32>().is_err()) {
            let message = "the padding scheme has no line `stop=N`, which says how many packets are padded";
            cx.error(node.place_of("padding_scheme"), message);
        }
    }
}
