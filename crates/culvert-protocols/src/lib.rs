//! One folder per protocol, all listed in one table.
//!
//! | module | holds |
//! |---|---|
//! | [`table`] | [`TABLE`]: every protocol with the functions that build its inbound and its outbound |
//! | [`fields`] | the listen and dial fields of the config, made ready; shared by all protocols |
//! | `carrier` | what is below a protocol: TLS and transports |
//! | `chunks` | the record layer of protocols that bring their own ciphers |
//! | `onward`, `mux` | what may be inside one: many connections, datagrams |
//! | [`framed`] | datagrams on a stream; shared by all protocols that put some there |
//! | `headed` | a stream whose header leaves with the first payload, likewise |
//! | [`users`] | names and passwords, compared in constant time |
//! | [`socks`] | SOCKS 4, 4a and 5; the one to read first |
//! | [`http`] | HTTP proxy: CONNECT and plain requests |
//! | [`mixed`] | SOCKS and HTTP on one port |
//! | [`trojan`] | Trojan |
//! | [`anytls`] | AnyTLS |
//! | [`vless`] | VLESS |
//! | [`shadowsocks`] | Shadowsocks |
//! | [`vmess`] | VMess |
//! | `netstack` | the userspace TCP/IP stack among tasks, for TUN and WireGuard |
//! | [`wireguard`] | WireGuard |
//! | [`hysteria2`] | Hysteria 2 |
//! | [`hysteria`] | Hysteria 1 |
//! | [`tuic`] | TUIC |
//! | `quic`, `h3`, `fragments`, `replied` | what protocols over QUIC share: options, sockets, inbound and connection; HTTP/3; datagrams in parts; a reply before the first bytes |
//! | [`shadowtls`] | ShadowTLS |
//! | [`tun`] | a TUN device |
//! | [`transparent`] | connections and datagrams that the system diverts: `redirect`, `tproxy` |
//! | `running` | what an inbound with a socket of its own keeps while it runs |
//! | [`direct`] | straight to the target |
//! | [`block`] | nowhere |
//! | [`uot`] | UDP over TCP, which several protocols carry |
//! | [`mux_cool`], [`packetaddr`] | many connections in one, and datagrams with addresses, as VLESS and VMess carry them |
//!
//! A protocol's folder has the parts that it needs of these: `codec.rs` (bytes to values and back, without I/O),
//! `inbound.rs`, `outbound.rs`, `tests.rs`. Protocols do not import each other; `mixed` is the one that is made of two.

#![forbid(unsafe_code)]

pub mod anytls;
pub mod block;
mod carrier;
mod chunks;
pub mod direct;
pub mod fields;
mod fragments;
pub mod framed;
#[cfg(test)]
mod fuzzing;
mod handshake;
mod headed;
pub mod http;
pub mod hysteria;
pub mod hysteria2;
pub mod mixed;
mod mux;
pub mod mux_cool;
mod nat;
#[cfg(target_os = "linux")]
mod netstack;
mod onward;
pub mod packetaddr;
mod quic;
mod random;
mod repeated;
mod replied;
mod running;
pub mod shadowsocks;
pub mod shadowtls;
pub mod socks;
mod stranger;
mod system_proxy;
pub mod table;
#[cfg(test)]
mod testing;
#[cfg(target_os = "linux")]
pub mod transparent;
pub mod trojan;
pub mod tuic;
#[cfg(target_os = "linux")]
pub mod tun;
pub mod uot;
pub mod users;
pub mod vless;
pub mod vmess;
#[cfg(target_os = "linux")]
pub mod wireguard;

pub use table::{BuildError, InboundCx, OutboundCx, Protocol, TABLE};
