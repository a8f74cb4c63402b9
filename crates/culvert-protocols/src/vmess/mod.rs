//! VMess, with the AEAD header; and the legacy one, where `alterId` asks for it.
//!
//! ```text
//! request    auth id 16  GCM( length 2 )  nonce 8  GCM( header )  body
//! response               GCM( length 2 )           GCM( header )  body
//!
//! auth id    AES( time 8  random 4  CRC-32 )              under a key of the user
//! header     01  IV 16  key 16  check  options  padding-length and security, 4 bits each  00  command
//!            [port  type  address]  padding  FNV-1a 4     the address is `AddressCodec::VLESS`
//!            of the response: check  options  00  00
//! body       chunks, see `chunk`; or the bytes as they are
//! ```
//!
//! The keys of headers are derived from the user's id, the auth id and the nonce (`keys`); those of the body stand in the
//! header. What is sent to the server leaves in one segment with the header, and the response comes with the first bytes
//! of the target.
//!
//! A server finds the user by trying each one's key on the auth id, which is why their ciphers are kept ready. An auth id is
//! good for two minutes around its time, and once. Whoever does not get in learns nothing: the server reads on to a place
//! that only its own keys determine, and breaks off.
//!
//! Sources: the VMess pages of the v2fly documentation and its AEAD draft, sing-vmess as sing-box 1.14.4 uses it, Xray
//! `proxy/vmess` for what is said of Xray. Left out on purpose: commands to the client in responses (read over), and the
//! rule of sing-box that a request's first segment must have 100 bytes.

mod cfb;
mod chunk;
mod codec;
mod conn;
mod inbound;
mod keys;
mod legacy;
mod outbound;
mod packets;
mod replays;
mod users;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::vmess::VmessInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::vmess::{VmessOutbound, VmessSecurity};
use culvert_core::{Inbound, Outbound};

use self::codec::{Options, Security, auth_id_sealer};
use self::inbound::VmessServer;
use self::keys::command_key;
use self::legacy::next_id;
use self::outbound::Client;
use self::users::Users;
use crate::carrier::{self, Carrier};
use crate::fields::listen::listen;
use crate::onward::Onward;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::{BuildError, InboundCx, OutboundCx, Protocol, mux};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "vmess",
    inbound: inbound::<VmessInbound>(),
    outbound: outbound::<VmessOutbound>(),
    fuzz: &[codec::fuzz_request, codec::fuzz_sealed_headers],
};

impl BuildInbound for VmessInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let listen = listen(&self.listen, false)?;
        let onward = Onward { mux: mux::Server::new(self.multiplex.as_ref())?, uot: true };
        let server = VmessServer::new(Users::new(&self.users)?, onward, listen.udp_timeout);
        carrier::inbound(cx, listen, self.tls.as_deref(), &self.transport, Arc::new(server))
    }
}

impl BuildOutbound for VmessOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        let uuid = self.uuid.uuid();
        let command_key = command_key(uuid);
        let tls = self.tls.as_deref();
        let mut options = Options::MASKED;
        if self.global_padding {
            options = options.with(Options::PADDED);
        }
        if self.authenticated_length {
            options = options.with(Options::SEALED_LENGTHS);
        }
        let client = Client {
            tag: cx.tag,
            carrier: Carrier::new(cx.dialer, &cx.store, &self.server, tls, &self.transport)?,
            command_key,
            auth_ids: auth_id_sealer(&command_key),
            alter_id: (self.alter_id > 0).then(|| next_id(&uuid)),
            security: security(self.security.get(), tls.is_some_and(|tls| tls.enabled)),
            options,
            tcp: self.network.tcp(),
            udp: self.network.udp(),
            packet_encoding: self.packet_encoding.get(),
        };
        mux::client(Arc::new(client), self.multiplex.as_ref())
    }
}

/// What an option means on the wire, as in sing-box: inside TLS nothing more is encrypted unless it is asked for.
fn security(option: Option<VmessSecurity>, in_tls: bool) -> Security {
    match option.unwrap_or(VmessSecurity::Auto) {
        VmessSecurity::Auto if in_tls => Security::None,
        VmessSecurity::Auto if HAS_FAST_AES => Security::Aes128Gcm,
        VmessSecurity::Auto | VmessSecurity::ChaCha20Poly1305 => Security::ChaCha20Poly1305,
        VmessSecurity::None | VmessSecurity::Zero => Security::None,
        VmessSecurity::Aes128Gcm => Security::Aes128Gcm,
        VmessSecurity::Aes128Cfb => Security::Aes128Cfb,
    }
}

const HAS_FAST_AES: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "s390x"));

/// Seconds since 1970.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
