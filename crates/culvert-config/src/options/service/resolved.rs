//! Service `resolved`: what programs ask systemd-resolved for, over D-Bus and DNS.

use std::net::{IpAddr, Ipv4Addr};

use crate::cx::Cx;
use crate::json::Node;
use crate::options::listen::ListenOptions;
use crate::table::{Field, FieldMut, Table, options};
use crate::value::Address;

options! {
    /// Options of the stand-in for systemd-resolved (Linux).
    pub struct ResolvedService {
        /// How to listen; on 127.0.0.53, port 53, when absent.
        listen: ResolvedListen = ..,
    }
}

/// [`ListenOptions`] with the defaults of systemd-resolved, which are filled in and not written out.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedListen(pub ListenOptions);

impl ResolvedListen {
    const PORT: u16 = 53;

    fn address() -> Address {
        IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)).into()
    }
}

impl Default for ResolvedListen {
    fn default() -> Self {
        let listen = Some(Self::address());
        Self(ListenOptions { listen, listen_port: Self::PORT, ..ListenOptions::default() })
    }
}

impl Table for ResolvedListen {
    fn name(&self) -> &'static str {
        "ResolvedListen"
    }

    fn doc(&self) -> &'static str {
        self.0.doc()
    }

    fn fields<'a>(&'a self, out: &mut Vec<Field<'a>>) {
        static NO_ADDRESS: Option<Address> = None;
        static NO_PORT: u16 = 0;
        let first = out.len();
        self.0.fields(out);
        for field in &mut out[first..] {
            match field.key {
                "listen" if self.0.listen == Some(Self::address()) => field.value = &NO_ADDRESS,
                "listen_port" if self.0.listen_port == Self::PORT => field.value = &NO_PORT,
                _ => {}
            }
        }
    }

    fn fields_mut<'a>(&'a mut self, out: &mut Vec<FieldMut<'a>>) {
        self.0.fields_mut(out);
    }

    fn check(&self, node: &Node, cx: &mut Cx<'_>) {
        self.0.check(node, cx);
    }
}
