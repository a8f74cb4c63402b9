//! What protocols over QUIC share: the `tls` and `quic` options, sockets, the inbound around a server, and the one connection
//! of an outbound.

mod current;
mod link;
mod listener;
mod tls;

pub(crate) use current::{Carrying, Current};
pub(crate) use link::{client_dialer, client_link, is_alive, transport};
pub(crate) use listener::{Listener, Service};
pub(crate) use tls::{client, inbound, server};
