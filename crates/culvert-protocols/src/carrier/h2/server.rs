//! The server: lets requests in, each of which is a stream for the server inside.

use std::sync::Arc;
use std::time::Duration;

use culvert_core::{BoxStream, Dispatch, Handshake, ServeError, Session, SessionId, StreamServer};
use culvert_wire::BufChain;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use tokio::time::{Instant, sleep_until};

use super::io::Io;
use super::stream::{Format, H2Stream, Payload, broken};
use super::traffic::{KNOWN_AFTER, Traffic};
use super::{MAX_FRAME, MAX_HEADERS, SEND_BUFFER};
use crate::carrier::date;
use crate::carrier::head::{Refusal, forwarded};

/// What a client may send of one stream before it is taken.
const STREAM_WINDOW: u32 = 1 << 20;
/// The same of all streams: at first, and once the client is known.
const FIRST_WINDOW: u32 = 256 << 10;
const KNOWN_WINDOW: u32 = 16 << 20;
const _: () = assert!(KNOWN_AFTER < FIRST_WINDOW as u64, "what is taken must be let in first");

/// As many streams as Go's server takes.
const MOST_STREAMS: u32 = 250;

/// Streams that a client may open and give up without an answer: at once, and for each second that passes
/// (CVE-2023-44487). The library looks only at those that were given up before they were seen here.
const ABANDONED_AT_ONCE: f64 = 200.0;
const ABANDONED_PER_SECOND: f64 = 20.0;

/// Who decides about requests.
pub(in crate::carrier) trait Door: Send + Sync {
    /// Says how the stream of a request is carried, if the request is one for the server inside.
    fn judge(&self, request: &Parts) -> Result<Entry, Refusal>;

    /// Time without a stream after which a connection is closed.
    fn idle_timeout(&self) -> Option<Duration>;
}

/// How the stream of a request is carried.
pub(in crate::carrier) struct Entry {
    /// Headers of the response.
    pub(in crate::carrier) headers: HeaderMap,
    /// The response goes before there is data.
    pub(in crate::carrier) at_once: bool,
    pub(in crate::carrier) format: Format,
}

/// Serves a connection; `early` was read from it.
pub(in crate::carrier) async fn serve(
    conn: BoxStream,
    early: BufChain,
    session: Session,
    handshake: Handshake,
    dispatch: &Dispatch,
    door: &dyn Door,
    inside: &Arc<dyn StreamServer>,
) -> Result<(), ServeError> {
    let _counts = culvert_core::crowd::Member::default();
    let traffic = Traffic::new();
    let shaken = Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(FIRST_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADERS)
        .max_concurrent_streams(MOST_STREAMS)
        .max_send_buffer_size(SEND_BUFFER)
        .handshake(Io::new(conn, early, Arc::clone(&traffic)))
        .await;
    let connection = shaken.map_err(failed)?;
    let budget = Budget { left: ABANDONED_AT_ONCE, since: Instant::now() };
    let handshake = Some(handshake);
    let mut serving =
        Serving { connection, traffic, session, handshake, dispatch, door, inside, budget, refused: None };
    let outcome = serving.run().await;
    match (outcome, serving.refused) {
        (Ok(()) | Err(ServeError::Left | ServeError::Io(_)), Some(what)) => Err(ServeError::Invalid(what)),
        (outcome, _) => outcome,
    }
}

struct Serving<'a> {
    connection: Connection<Io, Payload>,
    traffic: Arc<Traffic>,
    session: Session,
    /// Held until there was a request that is one for the server inside; each stream has its own then.
    handshake: Option<Handshake>,
    dispatch: &'a Dispatch,
    door: &'a dyn Door,
    inside: &'a Arc<dyn StreamServer>,
    budget: Budget,
    /// Why the last request was refused, while none was let in.
    refused: Option<&'static str>,
}

impl Serving<'_> {
    async fn run(&mut self) -> Result<(), ServeError> {
        let mut is_known = false;
        loop {
            let unused = self.traffic.unused().filter(|_| self.handshake.is_none());
            let mut place = unused.map(|_| self.dispatch.waiting().enter(self.session.source.ip()));
            let idle_at = unused.zip(self.door.idle_timeout()).map(|(since, limit)| since + limit);
            tokio::select! {
                request = self.connection.accept() => match request {
                    None => return Ok(()),
                    Some(Err(error)) => return Err(failed(error)),
                    Some(Ok((request, respond))) => self.answer(request, respond),
                },
                () = self.traffic.rings() => {
                    if !is_known && self.traffic.is_known() {
                        is_known = true;
                        self.connection.set_target_window_size(KNOWN_WINDOW);
                    }
                    if !self.budget.spend(self.traffic.take_abandoned()) {
                        self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                        self.close().await;
                        return Err(ServeError::Invalid("HTTP/2: too many streams given up"));
                    }
                }
                () = async {
                    match &mut place {
                        Some(place) => place.evicted().await,
                        None => std::future::pending().await,
                    }
                } => {
                    self.connection.abrupt_shutdown(Reason::NO_ERROR);
                    self.close().await;
                    return Ok(());
                }
                () = async {
                    match idle_at {
                        Some(at) => sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                } => {
                    self.connection.graceful_shutdown();
                    self.close().await;
                    return Ok(());
                }
            }
        }
    }

    /// Lets the last frames leave, for a moment. Requests that come meanwhile are not answered.
    async fn close(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(1);
        let _ = tokio::time::timeout(PATIENCE, async {
            while let Some(Ok((_, mut respond))) = self.connection.accept().await {
                respond.send_reset(Reason::REFUSED_STREAM);
            }
        })
        .await;
    }

    fn answer(&mut self, request: Request<RecvStream>, mut respond: SendResponse<Payload>) {
        let (parts, body) = request.into_parts();
        let entry = match self.door.judge(&parts) {
            Ok(entry) => entry,
            Err(refusal) => {
                if self.handshake.is_some() {
                    self.refused = Some(refusal.what);
                }
                let _ = respond.send_response(refused(&refusal), true);
                return;
            }
        };
        if self.dispatch.is_full() && !self.dispatch.make_room() {
            return respond.send_reset(Reason::REFUSED_STREAM);
        }
        let Some(place) = self.traffic.enter(usize::MAX) else { return };
        let Entry { headers, at_once, format } = entry;
        let mut response = Response::new(());
        *response.headers_mut() = headers;
        add_date(response.headers_mut());
        let Ok(stream) = H2Stream::server(body, respond, response, at_once, format, place) else { return };
        self.handshake = None;
        self.refused = None;
        let header = parts.headers.get("x-forwarded-for").map(HeaderValue::as_bytes).unwrap_or_default();
        let source = forwarded(header, self.session.source);
        let session = Session { id: SessionId::next(), source, ..self.session.clone() };
        self.dispatch.serve(Arc::clone(self.inside), Box::new(stream), session);
    }
}

fn refused(refusal: &Refusal) -> Response<()> {
    let mut response = Response::new(());
    // Statuses are three digits and a text.
    let code = refusal.status.split(' ').next().and_then(|code| code.parse().ok());
    *response.status_mut() = code.unwrap_or(http::StatusCode::NOT_FOUND);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    add_date(response.headers_mut());
    response
}

fn add_date(headers: &mut HeaderMap) {
    if let Ok(date) = HeaderValue::from_str(&date::now()) {
        headers.insert(header::DATE, date);
    }
}

fn failed(error: h2::Error) -> ServeError {
    if error.is_io() || error.is_go_away() && error.is_remote() {
        return ServeError::Io(broken(error));
    }
    tracing::debug!("HTTP/2 connection of a client: {error}");
    ServeError::Invalid("HTTP/2 connection")
}

/// What a client may still give up.
struct Budget {
    left: f64,
    since: Instant,
}

impl Budget {
    /// Whether there was enough.
    fn spend(&mut self, count: usize) -> bool {
        let gained = self.since.elapsed().as_secs_f64() * ABANDONED_PER_SECOND;
        self.since = Instant::now();
        self.left = (self.left + gained).min(ABANDONED_AT_ONCE) - count as f64;
        self.left >= 0.0
    }
}
