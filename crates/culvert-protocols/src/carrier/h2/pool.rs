//! The client: streams on connections that are opened when there is none with a place, shared, watched and replaced.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use culvert_core::{BoxStream, Chain, DialError, Session};
use culvert_wire::BufChain;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use http::Request;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep_until, timeout};

use super::io::Io;
use super::stream::{Format, H2Stream, Payload, broken};
use super::traffic::{Place, Traffic};
use super::{MAX_FRAME, MAX_HEADERS, SEND_BUFFER};
use crate::carrier::Lower;
use crate::handshake::within_limit;
use crate::repeated::{Opening, Repeated};

const PHASE: &str = "HTTP/2 request";

/// What a server may send of one stream, and of all, before it is taken. The first is Go's number; with the second some
/// streams that are not read do not hold up the others.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// Most streams of one connection, if its server lets there be so many.
const MOST_STREAMS: usize = 1000;
/// How often another connection is tried when one has no place after all.
const TRIES: usize = 8;

/// A connection without streams is closed after this time: whatever is between here and the server forgets it anyway.
const UNUSED: Duration = Duration::from_secs(300);
/// A connection silent for so long is asked whether it lives when it gets a stream.
const SILENCE: Duration = Duration::from_secs(15);
/// How long the answer to that may take, where no option says.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// How a connection is watched.
#[derive(Clone, Copy, Debug)]
pub(in crate::carrier) struct Health {
    /// A ping follows this time without anything from the server.
    pub(in crate::carrier) idle: Option<Duration>,
    /// How long the answer may take.
    pub(in crate::carrier) timeout: Option<Duration>,
    /// Also while there is no stream.
    pub(in crate::carrier) without_streams: bool,
}

/// The connections to one server.
pub(in crate::carrier) struct Pool {
    state: Mutex<State>,
    health: Health,
}

#[derive(Default)]
struct State {
    open: Vec<Open>,
    /// One that is being opened, for all who wait for it.
    attempt: Option<Arc<OnceCell<Result<(), Failure>>>>,
}

struct Open {
    send: SendRequest<Payload>,
    traffic: Arc<Traffic>,
}

/// Why a connection could not be opened, for those who waited for somebody else to do it.
struct Failure {
    kind: io::ErrorKind,
    text: String,
}

impl Pool {
    pub(in crate::carrier) fn new(health: Health) -> Self {
        Self { state: Mutex::default(), health }
    }

    /// Opens a stream with the head of a request. Where a server refuses it, it is opened again on another connection.
    pub(in crate::carrier) async fn open(
        self: &Arc<Self>,
        lower: &Arc<Lower>,
        session: &Session,
        request: Request<()>,
        format: fn() -> Format,
    ) -> Result<BoxStream, DialError> {
        let conn = self.open_once(lower, session, &request, format()).await?;
        let (pool, lower, session) = (Arc::clone(self), Arc::clone(lower), session.clone());
        let kept = Arc::new((pool, lower, session, request));
        let again = Box::new(move || -> Opening {
            let kept = Arc::clone(&kept);
            Box::pin(async move {
                let (pool, lower, session, request) = &*kept;
                let conn = pool.open_once(lower, session, request, format()).await?;
                Ok(Box::new(conn) as BoxStream)
            })
        });
        Ok(Box::new(Repeated::new(Box::new(conn), again)))
    }

    async fn open_once(
        &self,
        lower: &Lower,
        session: &Session,
        request: &Request<()>,
        format: Format,
    ) -> Result<H2Stream, DialError> {
        for _ in 0..TRIES {
            let Some((mut send, place)) = self.place() else {
                self.connect(lower, session).await?;
                continue;
            };
            let ready = std::future::poll_fn(|cx| send.poll_ready(cx)).await;
            match ready.and_then(|()| send.send_request(request.clone(), false)) {
                Ok((response, send)) => {
                    place.traffic().doubt_after(SILENCE);
                    return Ok(H2Stream::client(response, send, format, place));
                }
                Err(error) if error.is_io() || error.is_go_away() || error.is_reset() => {
                    place.traffic().end();
                }
                Err(error) => {
                    place.traffic().end();
                    tracing::debug!("HTTP/2 connection takes no request: {error}");
                }
            }
        }
        let source = io::Error::other("no connection takes it");
        Err(DialError::Handshake { phase: PHASE, source })
    }

    /// A place on a connection that has one.
    fn place(&self) -> Option<(SendRequest<Payload>, Place)> {
        let mut state = self.lock();
        state.open.retain(|open| !open.traffic.is_over());
        state.open.iter().find_map(|open| {
            let most = open.send.current_max_send_streams().min(MOST_STREAMS);
            open.traffic.enter(most).map(|place| (open.send.clone(), place))
        })
    }

    /// Opens a connection, or waits until somebody else has who began before.
    async fn connect(&self, lower: &Lower, session: &Session) -> Result<(), DialError> {
        let attempt = Arc::clone(self.lock().attempt.get_or_insert_default());
        let mut own = None;
        let slot = &mut own;
        let outcome = attempt
            .get_or_init(|| async {
                let opened = self.connection(lower, session).await;
                let mut state = self.lock();
                state.attempt.take_if(|current| Arc::ptr_eq(current, &attempt));
                match opened {
                    Ok(open) => {
                        state.open.push(open);
                        Ok(())
                    }
                    Err(error) => {
                        let failure = Failure { kind: error.kind(), text: Chain(&error).to_string() };
                        *slot = Some(error);
                        Err(failure)
                    }
                }
            })
            .await;
        match (own, outcome) {
            (Some(error), _) => Err(error),
            (None, Err(Failure { kind, text })) => {
                let source = io::Error::new(*kind, text.clone());
                Err(DialError::Handshake { phase: "open the connection that is shared", source })
            }
            (None, Ok(())) => Ok(()),
        }
    }

    async fn connection(&self, lower: &Lower, session: &Session) -> Result<Open, DialError> {
        let (conn, facts) = lower.connect(session).await?;
        if let Some(alpn) = facts.and_then(|facts| facts.alpn).filter(|alpn| alpn != "h2") {
            let source =
                io::Error::new(io::ErrorKind::InvalidData, format!("server speaks {alpn:?}, not h2"));
            return Err(DialError::Handshake { phase: "HTTP/2 handshake", source });
        }
        let traffic = Traffic::new();
        let io = Io::new(conn, BufChain::new(), Arc::clone(&traffic));
        let (send, connection) = within_limit("HTTP/2 handshake", async {
            let shaken = Builder::new()
                .enable_push(false)
                .initial_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_frame_size(MAX_FRAME)
                .max_header_list_size(MAX_HEADERS)
                .max_send_buffer_size(SEND_BUFFER)
                .handshake(io)
                .await;
            shaken.map_err(|error| DialError::Handshake { phase: "HTTP/2 handshake", source: broken(error) })
        })
        .await?;
        tokio::spawn(drive(connection, Arc::clone(&traffic), self.health));
        Ok(Open { send, traffic })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Moves the frames of a connection until it ends: by the server, by silence, or because nobody needs it.
async fn drive(mut connection: Connection<Io, Payload>, traffic: Arc<Traffic>, health: Health) {
    let _counts = culvert_core::crowd::Member::default();
    let pings = connection.ping_pong();
    tokio::select! {
        ended = &mut connection => {
            if let Err(error) = ended {
                tracing::debug!("HTTP/2 connection ended: {error}");
            }
        }
        () = watch(pings, &traffic, health) => {}
    }
    traffic.end();
}

/// Returns when a connection is not needed any more, or does not live.
async fn watch(pings: Option<PingPong>, traffic: &Traffic, health: Health) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        let unused_at = traffic.unused().map(|since| since + UNUSED);
        let idle = health.idle.filter(|_| health.without_streams || unused_at.is_none());
        let silent_at = idle.map(|idle| traffic.heard() + idle);
        let doubted = tokio::select! {
            () = traffic.rings() => traffic.take_doubt(),
            () = passed(silent_at) => silent_at.is_some_and(|_| is_silent(traffic, idle)),
            () = passed(unused_at) => {
                // Nobody enters while this is so: the task that would is not this one, so the flag comes first.
                traffic.end();
                if traffic.streams() == 0 {
                    return;
                }
                return std::future::pending().await;
            }
        };
        if doubted && !answers(&mut pings, traffic, health.timeout.unwrap_or(PING_TIMEOUT)).await {
            tracing::debug!("HTTP/2 connection is dead: no answer to a ping");
            return;
        }
    }
}

async fn passed(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn is_silent(traffic: &Traffic, idle: Option<Duration>) -> bool {
    idle.is_some_and(|idle| traffic.heard().elapsed() >= idle)
}

/// Whether anything comes from the server within `limit` after it was sent a ping.
async fn answers(pings: &mut PingPong, traffic: &Traffic, limit: Duration) -> bool {
    let asked = Instant::now();
    // One that is still under way will do as well.
    let _ = pings.send_ping(Ping::opaque());
    match timeout(limit, std::future::poll_fn(|cx| pings.poll_pong(cx))).await {
        Ok(answer) => answer.is_ok(),
        Err(_) => traffic.heard() > asked,
    }
}
