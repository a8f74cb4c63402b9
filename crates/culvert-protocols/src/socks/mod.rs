//! SOCKS 4, 4a and 5: the example among the protocols. Start here, then read [`codec`], `inbound.rs`, `outbound.rs`.
//!
//! ```text
//! SOCKS 5   client: 05 n methods[n]              server: 05 method
//!           client: 01 len user len password     server: 01 status                  (method 2 only)
//!           client: 05 command 00 address        server: 05 reply 00 address
//!           then the bytes of the connection, or for UDP, on a socket of their own:
//!           both:   0000 fragment address data
//! SOCKS 4   client: 04 command port ip user 00 [name 00]      server: 00 reply port ip
//! ```
//!
//! Addresses are `AddressCodec::SOCKS` of the wire crate. Sources: RFC 1928, RFC 1929, and for the versions before the
//! memos that NEC and Ying-Da Lee distributed ("SOCKS: A protocol for TCP proxy across firewalls", "SOCKS 4A: A simple
//! extension").
//!
//! Left out on purpose: BIND (answered with "command not supported"), GSSAPI, fragments of datagrams (dropped, as the
//! RFC says for those who do not reassemble).

pub mod codec;
mod inbound;
mod outbound;
mod udp;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::mixed::SocksInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::socks::{SocksOutbound, SocksVersion};
use culvert_core::listener::StreamInbound;
use culvert_core::{Inbound, Outbound};

pub use self::inbound::SocksServer;
use self::outbound::{Client, Version};
use crate::fields::listen::listen;
use crate::fields::server::server;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::users::Users;
use crate::{BuildError, InboundCx, OutboundCx, Protocol};

/// The table's line: all that the rest of the program knows of this folder.
pub const PROTOCOL: Protocol = Protocol {
    name: "socks",
    inbound: inbound::<SocksInbound>(),
    outbound: outbound::<SocksOutbound>(),
    fuzz: &[codec::fuzz_client_messages, codec::fuzz_server_messages, codec::fuzz_datagram],
};

// From options, which mirror the config, to running objects, which never look at them again.

impl BuildInbound for SocksInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let listen = listen(&self.listen, true)?;
        let server = SocksServer::new(Arc::new(Users::new(&self.users)), listen.udp, listen.udp_timeout);
        Ok(Arc::new(StreamInbound::new(cx.tag, listen.address, listen.tcp, Arc::new(server))))
    }
}

impl BuildOutbound for SocksOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        let server = server(&self.server)?;
        let version = match self.version {
            SocksVersion::V4 => Version::V4,
            SocksVersion::V4a => Version::V4a,
            SocksVersion::V5 | SocksVersion::Unset => Version::V5,
        };
        if self.username.len() > 255 || self.password.len() > 255 {
            let reason = "user name and password have at most 255 bytes each".to_owned();
            return Err(BuildError::Invalid { option: "username", reason });
        }
        let udp_over_tcp = match self.udp_over_tcp.as_ref().and_then(|option| option.version()) {
            None => None,
            Some(1) => Some(crate::uot::Version::V1),
            Some(2) => Some(crate::uot::Version::V2),
            Some(other) => {
                let reason = format!("there is no version {other}");
                return Err(BuildError::Invalid { option: "udp_over_tcp", reason });
            }
        };
        Ok(Arc::new(Client {
            tag: cx.tag,
            dialer: cx.dialer,
            server,
            version,
            user: self.username.as_bytes().into(),
            password: self.password.as_bytes().into(),
            tcp: self.network.tcp(),
            udp: self.network.udp(),
            udp_over_tcp,
        }))
    }
}
