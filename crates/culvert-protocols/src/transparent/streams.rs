//! Streams: where they were to go.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use async_trait::async_trait;
use culvert_core::conn::Half;
use culvert_core::{BoxStream, Dispatch, Handshake, Incoming, Io, ServeError, Session, StreamServer};
use culvert_os::socket::original_destination;
use culvert_wire::{BufChain, Target};

/// Where the kernel keeps the address that a client has dialled.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    /// In its table of rewritten connections.
    BeforeRewriting,
    /// Nothing was rewritten.
    AsLocalAddress,
}

pub(crate) struct Server {
    found: Found,
}

impl Server {
    pub(crate) fn new(found: Found) -> Self {
        Self { found }
    }

    fn target(&self, conn: &BoxStream) -> Result<SocketAddr, ServeError> {
        let Some(socket) = conn.kernel_socket(Half::Read) else {
            return Err(ServeError::Unsupported("a stream that is no connection of the kernel"));
        };
        let local = plain(socket.local_addr()?);
        match self.found {
            Found::AsLocalAddress => Ok(local),
            Found::BeforeRewriting => {
                let original = original_destination(socket.as_fd(), plain(socket.peer_addr()?).is_ipv6());
                match original.map(plain) {
                    Ok(original) if original != local => Ok(original),
                    _ => Err(ServeError::Denied("connection was not redirected")),
                }
            }
        }
    }
}

/// IPv4 on a socket of both families as what it is.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[async_trait]
impl StreamServer for Server {
    async fn serve(
        &self,
        conn: BoxStream,
        session: Session,
        _handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let target = Target::from(self.target(&conn)?);
        dispatch.submit(Incoming {
            session: Session { target, ..session },
            io: Io::Stream(conn),
            early: BufChain::new(),
            reply: None,
            udp_timeout: None,
        });
        Ok(())
    }
}
