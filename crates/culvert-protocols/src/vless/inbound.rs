//! The server: reads who the client is and what it wants, then gives the connection away whole.
//!
//! A client that does not get through learns nothing: no byte is sent, and the connection is reset; inside TLS it is
//! closed as TLS closes, since there a reset would be an answer of its own. Those that send too little are closed likewise when
//! the table of handshakes ends them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::handshake::read_message;
use culvert_core::{
    BoxPackets, BoxStream, Dispatch, Half, Handshake, Incoming, Io, Network, ServeError, Session,
    StreamServer, timeouts,
};
use culvert_wire::{BufChain, Target};
use tokio::io::AsyncWriteExt;

use super::codec::{Command, MAX_REQUEST, RESPONSE, Request};
use super::users::{User, Users};
use super::vision::VisionConn;
use crate::handshake::foreign_or;
use crate::headed::Headed;
use crate::mux_cool;
use crate::onward::Onward;
use crate::packetaddr::{self, PacketAddrConn};
use crate::stranger::Stranger;
use crate::uot::UotConn;

pub(super) struct VlessServer {
    users: Users,
    onward: Onward,
    udp_timeout: Option<Duration>,
}

impl VlessServer {
    /// A server for these users, whose associations end when they are idle for `udp_timeout`.
    pub(super) fn new(users: Users, onward: Onward, udp_timeout: Option<Duration>) -> Self {
        Self { users, onward, udp_timeout }
    }

    /// What the client wants, and who it is. What follows the request is in `early`.
    async fn accept(
        &self,
        conn: &mut BoxStream,
        early: &mut BufChain,
    ) -> Result<(Command, &User), ServeError> {
        let request = read_message(conn, early, MAX_REQUEST, Request::decode).await?;
        let user = self.users.find(&request.id).ok_or(ServeError::Denied("unknown user"))?;
        if !user.has_flow(&request.flow) {
            return Err(ServeError::Denied("flow is not the user's"));
        }
        if user.has_vision() && matches!(request.command, Command::Udp(_)) {
            return Err(ServeError::Denied("datagrams by a flow that has none"));
        }
        Ok((request.command, user))
    }

    async fn associate(
        &self,
        mut packets: BoxPackets,
        target: Target,
        mut session: Session,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        session.network = Network::Udp;
        session.target = target;
        if packetaddr::is_sign(&session.target) {
            let first = packetaddr::first(Box::new(PacketAddrConn::new(packets))).await;
            (session.target, packets) = first.map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => ServeError::Left,
                _ => error.into(),
            })?;
        }
        let (io, udp_timeout) = (Io::Packets(packets), self.udp_timeout);
        dispatch.submit(Incoming { session, io, early: BufChain::new(), reply: None, udp_timeout });
        Ok(())
    }
}

#[async_trait]
impl StreamServer for VlessServer {
    async fn serve(
        &self,
        conn: BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        let mut stranger = Stranger::outside_tls(conn);
        let conn = stranger.conn()?;
        let (command, user) = match self.accept(conn, &mut early).await {
            Ok(accepted) => accepted,
            Err(error) => {
                refuse(conn).await;
                return Err(foreign_or(&early, error));
            }
        };
        let conn = stranger.known()?;
        session.user = Some(Arc::clone(&user.name));
        let mut conn: BoxStream = Box::new(Headed::answering(RESPONSE.to_vec(), conn));
        if user.has_vision() {
            let mut inner = VisionConn::server(conn, user.id);
            early = inner.take_in(early)?;
            conn = Box::new(inner);
        }
        match command {
            Command::Tcp(target) => {
                session.target = target;
                drop(handshake);
                let (io, udp_timeout) = (Io::Stream(conn), self.udp_timeout);
                let incoming = Incoming { session, io, early, reply: None, udp_timeout };
                self.onward.submit(incoming, dispatch).await
            }
            Command::Udp(target) => {
                let packets = Box::new(UotConn::server(conn, early, Some(target.clone())));
                self.associate(packets, target, session, dispatch).await
            }
            Command::Mux => {
                mux_cool::serve(conn, early, session, self.udp_timeout, handshake, dispatch).await
            }
        }
    }
}

/// Closes the connection of a client that is not served.
async fn refuse(conn: &mut BoxStream) {
    if conn.kernel_socket(Half::Write).is_some() {
        conn.abort();
    } else {
        let _ = tokio::time::timeout(timeouts::SHUTDOWN, conn.shutdown()).await;
    }
}
