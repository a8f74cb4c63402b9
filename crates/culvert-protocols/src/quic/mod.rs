//! What protocols over QUIC share: the `tls` and `quic` options, sockets, ports to hop between, the inbound around a server, and the one connection
//! of an outbound.

mod current;
mod hops;
mod link;
mod listener;
mod tls;

pub(crate) use current::{Attempt, Carrying, Current, attempts};
pub(crate) use hops::Hops;
pub(crate) use link::{client_dialer, client_link, is_alive, transport};
pub(crate) use listener::{Listener, Service};
pub(crate) use tls::{client, inbound, lasting_secret, server};
