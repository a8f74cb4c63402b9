//! A client's connection: request after request, until one of them asks for a tunnel.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::conn::finish;
use culvert_core::duplex::duplex;
use culvert_core::handshake::read_message;
use culvert_core::{
    BoxStream, DialError, DialOutcome, Dispatch, Handshake, Incoming, Io, ServeError, Session, SessionId,
    StreamConn, StreamServer, timeouts,
};
use culvert_wire::{BufChain, DecodeError, Reader};

use super::body::Body;
use super::exchange::{Asked, Exchange, Outcome};
use super::head::{Ask, EndOfHead, MAX_HEAD, Request, Version};
use super::{failure, status_only};
use crate::handshake;
use crate::onward::Onward;
use crate::users::Users;

/// Besides plain connections, UDP over TCP.
const ONWARD: Onward = Onward { mux: None, uot: true };

/// Bytes of a plain request or response that wait in memory, each way.
const PIPE: usize = 64 << 10;

/// Serves an HTTP proxy's clients.
pub struct HttpServer {
    users: Arc<Users>,
    udp_timeout: Option<Duration>,
}

impl HttpServer {
    /// A server for these users. UDP over TCP through a tunnel has `udp_timeout`.
    #[must_use]
    pub fn new(users: Arc<Users>, udp_timeout: Option<Duration>) -> Self {
        Self { users, udp_timeout }
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
        let mut handshake = Some(handshake);
        loop {
            let reading = read_request(&mut conn, &mut early, handshake.is_some());
            let read = if handshake.is_some() {
                reading.await
            } else {
                let mut place = dispatch.waiting().enter(session.source.ip());
                tokio::select! {
                    read = reading => read,
                    () = place.evicted() => Err(ServeError::Left),
                }
            };
            let request = match read {
                // Between two requests a client may leave, or be silent for too long.
                Err(_) if handshake.is_none() && early.is_empty() => return Ok(()),
                Err(error @ ServeError::Invalid(_)) => {
                    return refuse(conn, Version::V11, "400 Bad Request", error).await;
                }
                other => other?,
            };
            let mut session = Session { id: SessionId::next(), ..session.clone() };
            if !self.users.is_empty() {
                let credentials = request.credentials.as_ref();
                session.user = credentials.and_then(|given| self.users.check(&given.user, &given.password));
                if session.user.is_none() {
                    if ask_for_credentials(&mut conn, &request).await? {
                        continue;
                    }
                    return Err(ServeError::Denied("wrong or missing credentials"));
                }
            }
            if let Some(ip) = request.forwarded_for
                && session.source.ip().is_loopback()
            {
                // Only from a proxy on this machine: anybody else could make up an address that rules trust.
                session.source = SocketAddr::new(ip, session.source.port());
            }
            match request.ask {
                Ask::Connect(target) => {
                    session.target = target;
                    return self.tunnel(request.version, conn, early, session, dispatch).await;
                }
                Ask::Forward { target, head, is_head, upgrade } => {
                    handshake = None;
                    session.target = target;
                    let Request { body, keep_alive, .. } = request;
                    let asked = Asked { head, body, is_head, upgrade, keep_alive };
                    match self.forward(&mut conn, &mut early, asked, session, dispatch).await {
                        Outcome::KeptAlive => {}
                        Outcome::Closed => {
                            finish(&mut conn).await;
                            return Ok(());
                        }
                        Outcome::Broken => {
                            conn.abort();
                            return Ok(());
                        }
                    }
                }
                Ask::Nothing(what) => {
                    let kept = request.keep_alive && request.body == Body::Empty;
                    if !kept {
                        return refuse(conn, request.version, "400 Bad Request", ServeError::Invalid(what))
                            .await;
                    }
                    send(&mut conn, status_only(request.version, "400 Bad Request", true).as_bytes()).await?;
                }
            }
        }
    }

    /// Gives the connection away; the client is answered once the dial has ended.
    async fn tunnel(
        &self,
        version: Version,
        conn: BoxStream,
        early: BufChain,
        session: Session,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let reply = match version {
            Version::V10 => reply_10,
            Version::V11 => reply_11,
        };
        let udp_timeout = self.udp_timeout;
        let incoming = Incoming { session, io: Io::Stream(conn), early, reply: Some(reply), udp_timeout };
        ONWARD.submit(incoming, dispatch).await
    }

    /// Submits the request as a session of its own and passes it through that.
    async fn forward(
        &self,
        conn: &mut BoxStream,
        early: &mut BufChain,
        asked: Asked,
        session: Session,
        dispatch: &Dispatch,
    ) -> Outcome {
        let (near, far) = duplex(PIPE);
        dispatch.submit(Incoming {
            session,
            io: Io::Stream(Box::new(far)),
            early: BufChain::new(),
            reply: Some(reply_forwarded),
            udp_timeout: None,
        });
        Exchange::new(conn, early, near, asked).await
    }
}

#[async_trait]
impl StreamServer for HttpServer {
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

/// Reads one head. The first is limited by the handshake, the others by the time a kept connection may be idle.
async fn read_request(
    conn: &mut BoxStream,
    early: &mut BufChain,
    first: bool,
) -> Result<Request, ServeError> {
    let mut end = EndOfHead::default();
    let mut tried = false;
    let decode = |r: &mut Reader<'_>| {
        // Once at the beginning, so that what is no HTTP at all is told at once; then when it is all there.
        if !end.is_in(r.rest()) && std::mem::replace(&mut tried, !r.rest().is_empty()) {
            return Err(DecodeError::Incomplete);
        }
        Request::decode(r)
    };
    let reading = read_message(conn, early, MAX_HEAD, decode);
    if first {
        return reading.await;
    }
    let limit = timeouts::HTTP_KEEP_ALIVE_IDLE;
    tokio::time::timeout(limit, reading).await.unwrap_or(Err(ServeError::Left))
}

/// Writes a whole answer of our own. Also where the handshake's time no longer runs, a client that asks and asks and
/// never reads the answers is let go.
async fn send(conn: &mut BoxStream, answer: &[u8]) -> io::Result<()> {
    let sending = handshake::send(conn, answer);
    tokio::time::timeout(timeouts::HANDSHAKE, sending).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
}

/// Tells the client to log in. True if it may do so on the same connection.
async fn ask_for_credentials(conn: &mut BoxStream, request: &Request) -> io::Result<bool> {
    let kept = request.keep_alive && request.body == Body::Empty;
    let close = if kept { "" } else { "Connection: close\r\n" };
    let answer = format!(
        "{} 407 Proxy Authentication Required\r\n\
         Proxy-Authenticate: Basic realm=\"culvert\" charset=\"UTF-8\"\r\n\
         Content-Length: 0\r\n{close}\r\n",
        request.version,
    );
    send(conn, answer.as_bytes()).await?;
    if !kept {
        finish(conn).await;
    }
    Ok(kept)
}

async fn refuse(
    mut conn: BoxStream,
    version: Version,
    status: &str,
    error: ServeError,
) -> Result<(), ServeError> {
    send(&mut conn, status_only(version, status, false).as_bytes()).await?;
    finish(&mut conn).await;
    Err(error)
}

fn reply_10(outcome: &DialOutcome<'_>, out: &mut Vec<u8>) {
    reply(Version::V10, outcome, out);
}

fn reply_11(outcome: &DialOutcome<'_>, out: &mut Vec<u8>) {
    reply(Version::V11, outcome, out);
}

fn reply(version: Version, outcome: &DialOutcome<'_>, out: &mut Vec<u8>) {
    match outcome {
        DialOutcome::Connected(_) => {
            out.extend(format!("{version} 200 Connection established\r\n\r\n").bytes());
        }
        DialOutcome::Failed(error) => {
            out.extend(failure(version, failure_status(error), failure_reason(error)).bytes());
        }
    }
}

/// To the near end of the pipe, which takes it for an origin's response.
fn reply_forwarded(outcome: &DialOutcome<'_>, out: &mut Vec<u8>) {
    if let DialOutcome::Failed(error) = outcome {
        let status = match error.kind() {
            io::ErrorKind::TimedOut => "504 Gateway Timeout",
            _ => "502 Bad Gateway",
        };
        out.extend(failure(Version::V11, status, failure_reason(error)).bytes());
    }
}

/// In words that tell nothing of the way on.
fn failure_reason(error: &DialError) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "a rule of this proxy refuses the destination",
        io::ErrorKind::TimedOut => "the destination did not answer in time",
        io::ErrorKind::ConnectionRefused => "the destination refuses connections",
        io::ErrorKind::NotFound => "the destination's name has no address",
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "there is no way to the destination"
        }
        _ => "this proxy could not connect to the destination",
    }
}

fn failure_status(error: &DialError) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "403 Forbidden",
        io::ErrorKind::TimedOut => "504 Gateway Timeout",
        _ => "502 Bad Gateway",
    }
}
