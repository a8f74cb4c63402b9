//! Shadowsocks: the first AEAD edition, the 2022 edition, and `none`; for streams and datagrams.
//!
//! ```text
//! streams
//!   none    address | bytes                                                     and bytes back
//!   AEAD    salt | chunks of: address, bytes                                    salt | chunks
//!   2022    salt | identities | head | head, address, padding, bytes | chunks   salt | head | bytes | chunks
//!   chunk   length 2, tag 16 | data, tag 16
//! datagrams
//!   none    address | data
//!   AEAD    salt | address, data, tag 16
//!   2022    AES(session 8, number 8) | identities | type 1, time 8, [client's session 8], padding, address, data, tag 16
//!           nonce 24 | session 8, number 8, type 1, ..., data, tag 16                                     with ChaCha20
//! ```
//!
//! A key per stream or session follows from the password's key and the salt or the session's id ([`key`]). Who the client is
//! follows, where there are several, from which key opens its first bytes (AEAD), or from its identity, which is the hash of
//! its key sealed under the server's (2022). A relay opens no more than that.
//!
//! Addresses are `AddressCodec::SOCKS` of the wire crate. Sources: the white paper and SIP004 of shadowsocks.org, SIP022
//! and SIP023 (`Shadowsocks-NET/shadowsocks-specs`, 2022-1 and 2022-2), SIP003 for plugins; sing-box 1.14.4 where these leave
//! something open.
//!
//! | module | holds |
//! |---|---|
//! | `cipher`, `key` | the AEADs and their nonces; keys from passwords and from one another |
//! | `codec`, `packet` | first bytes of streams, and datagrams, in both directions |
//! | `replay` | salts and numbers that were seen before |
//! | `conn` | a byte stream, either end |
//! | `server`, `server_packets`, `relay` | the inbound's parts; what strangers see stands in `server` |
//! | `outbound`, `client_packets`, `plugin` | the outbound's |
//! | `users` | who may use an inbound; may change while it runs |
//!
//! Differences from sing-box 1.14.4, none of them on the wire: salts are remembered once they have proved genuine, so that a
//! damaged copy does not burn the real stream; so they are in the first AEAD edition, the last ones; answers follow a client
//! whose address changes; a bad datagram ends no association.
//!
//! Left out on purpose: the stream ciphers of old, which prove nothing about who sends.

mod cipher;
mod client_packets;
mod codec;
mod conn;
mod inbound;
mod key;
mod outbound;
mod packet;
mod plugin;
mod relay;
mod replay;
mod server;
mod server_packets;
mod users;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::shadowsocks::ShadowsocksInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::shadowsocks::ShadowsocksOutbound;
use culvert_config::options::shadowsocks::ShadowsocksMethod;
use culvert_core::listener::StreamInbound;
use culvert_core::{Inbound, Outbound, StreamServer};

use self::cipher::Cipher;
use self::inbound::Listener;
use self::key::Secret;
use self::outbound::{Client, Proof};
use self::plugin::Plugin;
use self::relay::{Destinations, Relay};
use self::server::{Access, Server};
use self::server_packets::{PacketListener, Service};
use self::users::Users;
use crate::fields::listen::listen;
use crate::fields::server::server;
use crate::onward::Onward;
use crate::table::{BuildInbound, BuildOutbound, inbound, outbound};
use crate::{BuildError, InboundCx, OutboundCx, Protocol, mux, uot};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "shadowsocks",
    inbound: inbound::<ShadowsocksInbound>(),
    outbound: outbound::<ShadowsocksOutbound>(),
    fuzz: &[codec::fuzz_request, packet::fuzz_packet],
};

/// What a method is made of.
#[derive(Clone, Copy)]
enum Scheme {
    None,
    Aead(Cipher),
    Edition2022(Cipher),
    /// One of the stream ciphers of old.
    Old,
}

fn scheme(method: ShadowsocksMethod) -> Scheme {
    use ShadowsocksMethod as Method;
    match method {
        Method::None => Scheme::None,
        Method::Aes128Gcm => Scheme::Aead(Cipher::Aes128Gcm),
        Method::Aes192Gcm => Scheme::Aead(Cipher::Aes192Gcm),
        Method::Aes256Gcm => Scheme::Aead(Cipher::Aes256Gcm),
        Method::ChaCha20Poly1305 => Scheme::Aead(Cipher::ChaCha20Poly1305),
        Method::XChaCha20Poly1305 => Scheme::Aead(Cipher::XChaCha20Poly1305),
        Method::Blake3Aes128Gcm => Scheme::Edition2022(Cipher::Aes128Gcm),
        Method::Blake3Aes256Gcm => Scheme::Edition2022(Cipher::Aes256Gcm),
        Method::Blake3ChaCha20Poly1305 => Scheme::Edition2022(Cipher::ChaCha20Poly1305),
        Method::Aes128Ctr
        | Method::Aes192Ctr
        | Method::Aes256Ctr
        | Method::Aes128Cfb
        | Method::Aes192Cfb
        | Method::Aes256Cfb
        | Method::Rc4Md5
        | Method::ChaCha20
        | Method::XChaCha20 => Scheme::Old,
    }
}

fn no_key(option: &'static str) -> BuildError {
    BuildError::Invalid { option, reason: "is no key of this method".to_owned() }
}

fn no_method() -> BuildError {
    BuildError::Invalid { option: "method", reason: "is missing".to_owned() }
}

/// A user's name, or the place in the list.
fn name_or_place(name: &str, place: usize) -> String {
    if name.is_empty() { place.to_string() } else { name.to_owned() }
}

/// The users of an inbound, if it has any.
fn users(
    options: &ShadowsocksInbound,
    parse: fn(&str, usize) -> Option<Secret>,
    key_len: usize,
) -> Result<Option<Arc<Users>>, BuildError> {
    if options.users.is_empty() && !options.managed {
        return Ok(None);
    }
    let users = Users::new(parse, key_len);
    let names: Vec<_> =
        options.users.iter().enumerate().map(|(at, user)| name_or_place(&user.name, at)).collect();
    let passwords = options.users.iter().map(|user| user.password.as_str());
    users.replace(names.iter().map(String::as_str).zip(passwords)).map_err(|_| no_key("users.password"))?;
    Ok(Some(Arc::new(users)))
}

fn access(options: &ShadowsocksInbound, scheme: Scheme) -> Result<Access, BuildError> {
    Ok(match scheme {
        Scheme::None => Access::None,
        Scheme::Old => return Err(no_method()),
        Scheme::Aead(cipher) => {
            let parse = |password: &str, len| Some(Secret::of_password(password, len));
            let users = users(options, parse, cipher.key_len())?;
            let one = || Arc::new(Users::one(Secret::of_password(&options.password, cipher.key_len())));
            Access::Aead { cipher, users: users.unwrap_or_else(one) }
        }
        Scheme::Edition2022(cipher) => {
            let key = Secret::of_base64_or_longer(&options.password, cipher.key_len());
            let key = Arc::new(key.ok_or_else(|| no_key("password"))?);
            Access::Edition2022 {
                cipher,
                key,
                users: users(options, Secret::of_base64_or_longer, cipher.key_len())?,
            }
        }
    })
}

fn destinations(options: &ShadowsocksInbound, key_len: usize) -> Result<Destinations, BuildError> {
    let mut destinations = Destinations::default();
    for (at, destination) in options.destinations.iter().enumerate() {
        let key = Secret::of_base64_or_longer(&destination.password, key_len);
        let name = name_or_place(&destination.name, at).into();
        let added = key.is_some_and(|key| {
            server(&destination.server).is_ok_and(|server| destinations.add(name, server, &key))
        });
        if !added {
            return Err(no_key("destinations.password"));
        }
    }
    Ok(destinations)
}

impl BuildInbound for ShadowsocksInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let scheme = scheme(self.method.get().ok_or_else(no_method)?);
        let listen = listen(&self.listen, false)?;
        let access = Arc::new(access(self, scheme)?);
        let managed = match &*access {
            Access::Aead { users, .. } | Access::Edition2022 { users: Some(users), .. } if self.managed => {
                Some(Arc::clone(users))
            }
            _ => None,
        };
        let (service, server): (Service, Arc<dyn StreamServer>) = match &*access {
            Access::Edition2022 { cipher, key, .. } if !self.destinations.is_empty() => {
                let destinations = Arc::new(destinations(self, cipher.key_len())?);
                let key = Arc::clone(key);
                let relay = Relay { key: Arc::clone(&key), destinations: Arc::clone(&destinations) };
                (Service::Relay(key, destinations), Arc::new(relay))
            }
            _ => {
                let onward = Onward { mux: mux::Server::new(self.multiplex.as_ref())?, uot: true };
                let server = Server::new(Arc::clone(&access), onward, listen.udp_timeout);
                (Service::Open(access), Arc::new(server))
            }
        };
        let streams = self
            .network
            .tcp()
            .then(|| StreamInbound::new(cx.tag.clone(), listen.address, listen.tcp, server));
        let packets = self.network.udp().then(|| PacketListener {
            tag: cx.tag.clone(),
            address: listen.address,
            options: listen.udp,
            udp_timeout: listen.udp_timeout,
            service,
            running: crate::running::Running::default(),
        });
        Ok(Arc::new(Listener { tag: cx.tag, streams, packets, managed }))
    }
}

fn proof(options: &ShadowsocksOutbound, scheme: Scheme) -> Option<Proof> {
    Some(match scheme {
        Scheme::None => Proof::None,
        Scheme::Old => return None,
        Scheme::Aead(cipher) => Proof::Aead(cipher, Secret::of_password(&options.password, cipher.key_len())),
        Scheme::Edition2022(cipher) => {
            let keys = options.password.split(':').map(|key| Secret::of_base64(key, cipher.key_len()));
            let keys: Arc<[Secret]> = keys.collect::<Option<_>>()?;
            if keys.len() > 1 && cipher == Cipher::ChaCha20Poly1305 {
                return None;
            }
            Proof::Edition2022(cipher, keys)
        }
    })
}

impl BuildOutbound for ShadowsocksOutbound {
    fn dial(&self) -> Option<&DialOptions> {
        Some(&self.dial)
    }

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError> {
        let method = self.method.get().ok_or_else(no_method)?;
        let scheme = scheme(method);
        if let Scheme::Old = scheme {
            return Err(cx.not_built(&format!("method `{}`", method.name())));
        }
        let proof = proof(self, scheme).ok_or_else(|| no_key("password"))?;
        let plugin = self
            .plugin
            .get()
            .map(|plugin| Plugin::new(plugin, &self.plugin_opts, &self.server, &cx))
            .transpose()?;
        let udp_over_tcp = match self.udp_over_tcp.as_ref().and_then(|option| option.version()) {
            None => None,
            Some(1) => Some(uot::Version::V1),
            Some(2) => Some(uot::Version::V2),
            Some(other) => {
                let reason = format!("there is no version {other}");
                return Err(BuildError::Invalid { option: "udp_over_tcp", reason });
            }
        };
        let server = server(&self.server)?;
        let (tcp, udp) = (self.network.tcp(), self.network.udp());
        let client = Arc::new(Client {
            tag: cx.tag,
            dialer: cx.dialer,
            server,
            proof,
            plugin,
            tcp,
            udp,
            udp_over_tcp,
        });
        if udp_over_tcp.is_some() {
            return Ok(client);
        }
        mux::client(client, self.multiplex.as_ref())
    }
}
