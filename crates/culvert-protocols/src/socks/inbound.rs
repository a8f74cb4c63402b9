//! The server: reads who the client is and what it wants, then gives the connection away whole.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::conn::finish;
use culvert_core::handshake::read_message;
use culvert_core::{
    BoxStream, DialError, DialOutcome, Dispatch, Handshake, Incoming, Io, Network, PacketBatch, PacketConn,
    ServeError, Session, StreamServer, UdpConn, timeouts,
};
use culvert_os::socket::{UdpOptions, udp_socket};
use culvert_wire::{BufChain, DecodeError, Room, Target};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::UdpSocket;

use super::codec::{
    Command, Greeting, Login, MAX_MESSAGE, Method, Reply, ReplyCode, Request, Request4, VERSION_4, VERSION_5,
    encode_login_status, encode_method, encode_reply4,
};
use super::udp::{decapsulate, encapsulate, room};
use crate::handshake::send;
use crate::onward::Onward;
use crate::users::Users;

/// Serves SOCKS 4, 4a and 5.
pub struct SocksServer {
    users: Arc<Users>,
    udp: UdpOptions,
    udp_timeout: Option<Duration>,
}

impl SocksServer {
    /// A server for these users. Datagrams go through sockets made as `udp` says; an association that is idle for
    /// `udp_timeout` ends.
    #[must_use]
    pub fn new(users: Arc<Users>, udp: UdpOptions, udp_timeout: Option<Duration>) -> Self {
        Self { users, udp, udp_timeout }
    }

    /// Serves a conn from which `early` has been read already.
    ///
    /// # Errors
    /// As [`StreamServer::serve`].
    pub async fn serve_early(
        &self,
        mut conn: BoxStream,
        mut early: BufChain,
        session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let first =
            |r: &mut culvert_wire::Reader<'_>| r.rest().first().copied().ok_or(DecodeError::Incomplete);
        let version = read_message(&mut conn, &mut early, MAX_MESSAGE, first).await?;
        match version {
            VERSION_5 => self.serve_5(conn, early, session, handshake, dispatch).await,
            VERSION_4 => self.serve_4(conn, early, session, dispatch).await,
            _ => Err(ServeError::Invalid("SOCKS version")),
        }
    }

    async fn serve_5(
        &self,
        mut conn: BoxStream,
        mut early: BufChain,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        self.authenticate(&mut conn, &mut early, &mut session).await?;
        let request = match read_message(&mut conn, &mut early, MAX_MESSAGE, Request::decode).await {
            // Of the parts of a request, only the address can be of a kind that we do not know.
            Err(error @ ServeError::Invalid(_)) if early.front().first() == Some(&VERSION_5) => {
                return refuse_5(conn, ReplyCode::ADDRESS_TYPE, error).await;
            }
            other => other?,
        };
        match request {
            Request { command: Command::Connect, target: Some(target) } => {
                session.target = target;
                let io = Io::Stream(conn);
                let udp_timeout = self.udp_timeout;
                let incoming = Incoming { session, io, early, reply: Some(reply_5), udp_timeout };
                ONWARD.submit(incoming, dispatch).await
            }
            Request { command: Command::UdpAssociate, .. } => {
                self.associate(conn, session, handshake, dispatch).await
            }
            Request { .. } => {
                refuse_5(conn, ReplyCode::COMMAND, ServeError::Unsupported("SOCKS command")).await
            }
        }
    }

    /// From the greeting to the verdict. `Ok` means that the client may use the inbound; nothing of what follows is
    /// reached without.
    async fn authenticate(
        &self,
        conn: &mut BoxStream,
        early: &mut BufChain,
        session: &mut Session,
    ) -> Result<(), ServeError> {
        let greeting = read_message(conn, early, MAX_MESSAGE, Greeting::decode).await?;
        if self.users.is_empty() {
            // Whatever was offered: there are clients that offer only what they prefer, or nothing at all.
            return Ok(send(conn, &encode_method(Method::None)).await?);
        }
        if !greeting.password {
            send(conn, &encode_method(Method::Unacceptable)).await?;
            finish(conn).await;
            return Err(ServeError::Denied("client does not offer to log in"));
        }
        send(conn, &encode_method(Method::Password)).await?;
        let login = read_message(conn, early, MAX_MESSAGE, Login::decode).await?;
        session.user = self.users.check(&login.user, &login.password);
        let accepted = session.user.is_some();
        send(conn, &encode_login_status(accepted)).await?;
        if !accepted {
            finish(conn).await;
            return Err(ServeError::Denied("wrong user name or password"));
        }
        Ok(())
    }

    async fn serve_4(
        &self,
        mut conn: BoxStream,
        mut early: BufChain,
        mut session: Session,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let request = read_message(&mut conn, &mut early, MAX_MESSAGE, Request4::decode).await?;
        if !self.users.is_empty() {
            // The version knows names only, so only a user without a password has proved anything by one.
            session.user = self.users.check(&request.user, b"");
            if session.user.is_none() {
                return refuse_4(conn, ServeError::Denied("unknown user id, or one with a password")).await;
            }
        }
        if request.command != Command::Connect {
            return refuse_4(conn, ServeError::Unsupported("SOCKS command")).await;
        }
        session.target = request.target;
        let io = Io::Stream(conn);
        let incoming = Incoming { session, io, early, reply: Some(reply_4), udp_timeout: self.udp_timeout };
        ONWARD.submit(incoming, dispatch).await
    }

    /// Opens a socket for the client's datagrams, waits for the first, and gives both away.
    async fn associate(
        &self,
        mut conn: BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let Some(local) = conn.local_addr() else {
            let error = ServeError::Unsupported("UDP ASSOCIATE without a socket below");
            return refuse_5(conn, ReplyCode::FAILURE, error).await;
        };
        let socket = match self.open_socket(local) {
            Ok(socket) => socket,
            Err(error) => return refuse_5(conn, ReplyCode::FAILURE, error.into()).await,
        };
        let mut reply = Vec::new();
        Reply::encode(ReplyCode::SUCCEEDED, socket.local_addr().ok(), &mut reply);
        send(&mut conn, &reply).await?;
        // The client has proved itself as far as it must; how long it may wait is a matter of the association.
        drop(handshake);
        let mut place = dispatch.waiting().enter(session.source.ip());
        let mut association = Association::new(conn, UdpConn::framed(socket), session.source.ip());
        let limit = self.udp_timeout.unwrap_or(timeouts::UDP_IDLE);
        let first = tokio::select! {
            first = tokio::time::timeout(limit, association.first_target()) => first,
            () = place.evicted() => {
                return Err(ServeError::Denied("too many associations wait for their first datagram"));
            }
        };
        drop(place);
        match first {
            Ok(Ok(target)) => session.target = target,
            // It left, or never sent anything; the control connection closes.
            Ok(Err(_)) | Err(_) => return Ok(()),
        }
        session.network = Network::Udp;
        let io = Io::Packets(Box::new(association));
        dispatch.submit(Incoming {
            session,
            io,
            early: BufChain::new(),
            reply: None,
            udp_timeout: self.udp_timeout,
        });
        Ok(())
    }

    /// On the address that the client has reached us by, since that is the one it can reach.
    fn open_socket(&self, mut local: SocketAddr) -> io::Result<UdpSocket> {
        local.set_port(0);
        local.set_ip(local.ip().to_canonical());
        let socket = udp_socket(&self.udp, local).map_err(|error| io::Error::other(error.to_string()))?;
        UdpSocket::from_std(socket)
    }
}

#[async_trait]
impl StreamServer for SocksServer {
    async fn serve(
        &self,
        conn: BoxStream,
        session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        self.serve_early(conn, BufChain::new(), session, handshake, dispatch).await
    }
}

/// Besides plain connections, UDP over TCP.
const ONWARD: Onward = Onward { mux: None, uot: true };

async fn refuse_5(mut conn: BoxStream, code: ReplyCode, error: ServeError) -> Result<(), ServeError> {
    let mut reply = Vec::new();
    Reply::encode(code, None, &mut reply);
    send(&mut conn, &reply).await?;
    finish(&mut conn).await;
    Err(error)
}

async fn refuse_4(mut conn: BoxStream, error: ServeError) -> Result<(), ServeError> {
    let mut reply = Vec::new();
    encode_reply4(false, None, &mut reply);
    send(&mut conn, &reply).await?;
    finish(&mut conn).await;
    Err(error)
}

fn reply_5(outcome: &DialOutcome<'_>, out: &mut Vec<u8>) {
    match outcome {
        DialOutcome::Connected(bound) => Reply::encode(ReplyCode::SUCCEEDED, *bound, out),
        DialOutcome::Failed(error) => Reply::encode(reply_code(error), None, out),
    }
}

fn reply_4(outcome: &DialOutcome<'_>, out: &mut Vec<u8>) {
    match outcome {
        DialOutcome::Connected(bound) => encode_reply4(true, *bound, out),
        DialOutcome::Failed(_) => encode_reply4(false, None, out),
    }
}

/// The codes of sing-box 1.14.4, in which a rule's refusal does not show as one.
fn reply_code(error: &DialError) -> ReplyCode {
    match error {
        DialError::Outbound { source, .. } => reply_code(source),
        DialError::Rejected(_) | DialError::Dropped(_) => ReplyCode::FAILURE,
        other => match other.kind() {
            io::ErrorKind::PermissionDenied => ReplyCode::NOT_ALLOWED,
            io::ErrorKind::NetworkUnreachable => ReplyCode::NETWORK_UNREACHABLE,
            io::ErrorKind::HostUnreachable => ReplyCode::HOST_UNREACHABLE,
            io::ErrorKind::ConnectionRefused => ReplyCode::REFUSED,
            _ => ReplyCode::FAILURE,
        },
    }
}

/// A client's datagrams, and the connection that they live and end with.
///
/// The client may send from any port of the address that its connection comes from, and gets its answers where it
/// sent from last. From other addresses nothing is taken: whoever guesses the port could read along otherwise.
struct Association {
    control: BoxStream,
    conn: UdpConn,
    client_ip: IpAddr,
    client: Option<Target>,
    /// Received before the association was submitted.
    first: PacketBatch,
    /// Packets at the front of the batch being sent that have their heads.
    framed: usize,
}

impl Association {
    fn new(control: BoxStream, conn: UdpConn, client_ip: IpAddr) -> Self {
        Self {
            control,
            conn,
            client_ip: client_ip.to_canonical(),
            client: None,
            first: PacketBatch::new(),
            framed: 0,
        }
    }

    /// Waits for the first datagram and says where it goes.
    async fn first_target(&mut self) -> io::Result<Target> {
        // Nobody knows yet where it leaves; this much space does for most.
        const ROOM: Room = Room { head: 128, tail: 64, max: usize::MAX };
        let mut batch = PacketBatch::new();
        std::future::poll_fn(|cx| self.poll_recv(cx, ROOM, &mut batch)).await?;
        let target = batch.front().map(|packet| packet.peer.clone());
        self.first = batch;
        target.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Ready when the client has closed the control connection. What it sends there has no meaning.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut bytes = [0; 64];
            let mut read = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut self.control).poll_read(cx, &mut read)) {
                Ok(()) if !read.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(()),
            }
        }
    }
}

impl PacketConn for Association {
    fn room(&self) -> Room {
        room(None, self.conn.room())
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            while let Some(packet) = self.first.pop() {
                batch.push(packet);
            }
            self.first = PacketBatch::new();
            return Poll::Ready(Ok(()));
        }
        if self.poll_closed(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        loop {
            let old = batch.len();
            ready!(self.conn.poll_recv(cx, room, batch))?;
            let (client_ip, client) = (self.client_ip, &mut self.client);
            decapsulate(batch, old, room, |source| {
                let accepted = source.host.ip() == Some(client_ip);
                if accepted && client.as_ref() != Some(source) {
                    *client = Some(source.clone());
                }
                accepted
            });
            if batch.len() > old {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        let Some(client) = &self.client else {
            batch.advance(batch.len()); // nobody to send to; an association begins with a datagram of the client's
            return Poll::Ready(Ok(()));
        };
        encapsulate(batch, self.framed, client);
        let sent = self.conn.poll_send(cx, batch);
        self.framed = batch.len();
        sent
    }
}
