//! The hand-over from inbound to outbound.
//!
//! An inbound that knows who the client is and where it wants to go calls [`Dispatch::submit`] with the connection
//! itself. From there on the connection belongs to a task of its own: the router decides, the outbound dials, the
//! client is answered, the relay runs. What the inbound needed for its handshake is freed by then.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use culvert_wire::BufChain;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use crate::answers::Answers;
use crate::conn::{Prefixed, finish, write_chain};
use crate::flow::Way;
use crate::handshake::{Handshake, Handshakes, Limits};
use crate::inbound::{ServeError, StreamServer};
use crate::serving::Serving;
use crate::sockets::Sockets;
use crate::throttle::Throttle;
use crate::waiting::{self, Waiting};
use crate::{
    BoxPackets, BoxStream, Chain, DialError, EndReason, Flow, Flows, Network, Outbound, Session, SessionId,
    Tag, relay, timeouts,
};

/// What carries the payload of a session.
pub enum Io {
    /// A byte stream.
    Stream(BoxStream),
    /// Datagrams.
    Packets(BoxPackets),
}

/// How a dial ended, for the reply to the client.
pub enum DialOutcome<'a> {
    /// It is connected; this is our address towards the next hop, where there is one.
    Connected(Option<SocketAddr>),
    /// It is not.
    Failed(&'a DialError),
}

/// Writes the bytes that tell a client how its dial ended.
pub type Reply = fn(&DialOutcome<'_>, &mut Vec<u8>);

/// A session with its payload, on its way from an inbound to the router.
pub struct Incoming {
    /// The facts.
    pub session: Session,
    /// The payload's carrier.
    pub io: Io,
    /// Read from the client and not yet delivered.
    pub early: BufChain,
    /// The answer the client waits for, if it does.
    pub reply: Option<Reply>,
    /// Of an association: the idle limit that the inbound's `udp_timeout` sets.
    pub udp_timeout: Option<Duration>,
}

impl Incoming {
    /// Tells the client that it is connected although it is not yet, so that it sends its first bytes. Sniffing calls
    /// this; a dial that fails afterwards can only reset the stream.
    ///
    /// # Errors
    /// Those of the stream.
    pub async fn answer_early(&mut self) -> io::Result<()> {
        self.answer(&DialOutcome::Connected(None)).await
    }

    async fn answer(&mut self, outcome: &DialOutcome<'_>) -> io::Result<()> {
        let Io::Stream(conn) = &mut self.io else { return Ok(()) };
        conn.answer(outcome);
        let Some(reply) = self.reply.take() else { return Ok(()) };
        let mut bytes = Vec::new();
        reply(outcome, &mut bytes);
        write_chain(conn, &mut BufChain::copied(&bytes)).await
    }
}

/// What the router decided.
pub enum Decision {
    /// Let this outbound carry it.
    Dial {
        /// The outbound that dials.
        outbound: Arc<dyn Outbound>,
        /// How it was found, for logs and the API.
        way: Way,
        /// Idle limit of a UDP association, where a rule sets one.
        udp_idle: Option<Duration>,
    },
    /// End it.
    Refuse {
        /// Why, for the client's reply.
        error: DialError,
        /// How it was found.
        way: Way,
    },
    /// It goes nowhere: it is served here, as a DNS server does.
    Serve {
        /// Who serves it.
        handler: Arc<dyn Handler>,
        /// How it was found.
        way: Way,
    },
}

/// Serves sessions in place of an outbound.
#[async_trait]
pub trait Handler: Send + Sync {
    /// What it is, for logs.
    fn name(&self) -> &'static str;

    /// Serves one session until its end. What was read early stands in front of `io` again, and the client has been told
    /// that it is connected.
    async fn serve(&self, session: Session, io: Io) -> EndReason;
}

/// Decides where sessions go.
#[async_trait]
pub trait Router: Send + Sync {
    /// Decides for one session. May read from the client into `incoming.early`, and change the target.
    async fn decide(&self, incoming: &mut Incoming) -> Decision;
}

/// Lines per second about failed connections; a flood of them says no more than its first ones.
const FAILURE_LINES: u64 = 20;

struct Shared {
    router: OnceLock<Arc<dyn Router>>,
    flows: Arc<Flows>,
    handshakes: Arc<Handshakes>,
    /// Strangers that are with a site which is imitated.
    strangers: Arc<Handshakes>,
    waiting: Arc<Waiting>,
    serving: Arc<Serving>,
    /// Clients that could not be served.
    unserved: Throttle,
    /// Most flows at once; a client that is served before it has one counts half, as it takes half the descriptors.
    limit: usize,
    failures: Throttle,
    answers: OnceLock<Arc<Answers>>,
    sockets: Arc<Sockets>,
}

/// Where inbounds hand their sessions over. Cheap to clone.
#[derive(Clone)]
pub struct Dispatch {
    shared: Arc<Shared>,
    /// Sessions of this inbound go to another inbound (`detour` of the listen fields) instead of the router.
    inject: Option<Arc<dyn StreamServer>>,
}

impl Dispatch {
    /// A dispatch that admits at most `limit` connections at once. The router is set later, since it needs outbounds
    /// that may need the dispatch.
    #[must_use]
    pub fn new(flows: Arc<Flows>, handshakes: Arc<Handshakes>, limit: usize) -> Self {
        let failures = Throttle::bursts(FAILURE_LINES, Duration::from_secs(1));
        let waiting = Waiting::new(waiting::Limits::among(limit));
        let shared = Shared {
            router: OnceLock::new(),
            flows,
            handshakes,
            strangers: Handshakes::new(Limits::STRANGERS),
            waiting,
            serving: Arc::default(),
            unserved: Throttle::new(Duration::from_secs(1)),
            limit,
            failures,
            answers: OnceLock::new(),
            sockets: Arc::default(),
        };
        Self { shared: Arc::new(shared), inject: None }
    }

    /// Sets the router; only the first call counts.
    pub fn set_router(&self, router: Arc<dyn Router>) {
        let _ = self.shared.router.set(router);
    }

    /// Names the outbounds that have a server, each with the server's address: where it ends connections before it has said
    /// a word, that is told. Only the first call counts.
    pub fn watch_servers(&self, servers: impl IntoIterator<Item = (Tag, String)>) {
        let _ = self.shared.answers.set(Arc::new(Answers::new(servers, Arc::clone(&self.shared.flows))));
    }

    /// The sockets that inbounds listen with.
    #[must_use]
    pub fn sockets(&self) -> &Arc<Sockets> {
        &self.shared.sockets
    }

    /// The same dispatch, but streams go to `server` first.
    #[must_use]
    pub fn injecting(&self, server: Arc<dyn StreamServer>) -> Self {
        Self { shared: Arc::clone(&self.shared), inject: Some(server) }
    }

    /// The table of flows.
    #[must_use]
    pub fn flows(&self) -> &Arc<Flows> {
        &self.shared.flows
    }

    /// The table of handshakes under way.
    #[must_use]
    pub fn handshakes(&self) -> &Arc<Handshakes> {
        &self.shared.handshakes
    }

    /// The table of clients that have nothing going on.
    #[must_use]
    pub fn waiting(&self) -> &Arc<Waiting> {
        &self.shared.waiting
    }

    /// Most connections at once.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.shared.limit
    }

    /// Whether as many connections are open as may be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let Shared { flows, serving, limit, .. } = &*self.shared;
        flows.len() + serving.len() / 2 >= *limit
    }

    /// Lets go of a client that has said nothing for a while, or where all have said who they are, of the connection on
    /// which nothing has moved for longest. Whether there was one.
    pub fn make_room(&self) -> bool {
        let Shared { handshakes, waiting, flows, .. } = &*self.shared;
        handshakes.make_room() || waiting.make_room() || flows.make_room()
    }

    /// Starts the task that routes, dials and relays. Returns at once.
    pub fn submit(&self, incoming: Incoming) {
        if self.shared.flows.is_closing() {
            return;
        }
        if let (Some(server), Io::Stream(_)) = (&self.inject, &incoming.io) {
            return self.pass_on(Arc::clone(server), incoming);
        }
        let ticket = self.shared.flows.open(incoming.session.clone());
        let flow = Arc::clone(ticket.flow());
        let shared = Arc::clone(&self.shared);
        let task = tokio::spawn(async move {
            let Some(connected) = Box::pin(connect(&shared, incoming, ticket.flow())).await else { return };
            let answers = shared.answers.get().cloned();
            drop(shared);
            let end = match connected {
                Connected::Stream { client, upstream, early } => {
                    let mut relay = relay::stream::Relay::new(client, upstream, early, ticket.flow());
                    let end = (&mut relay).await;
                    if let Some(answers) = answers {
                        answers.note(ticket.flow(), relay.silence());
                    }
                    end
                }
                Connected::Packets { client, upstream } => {
                    relay::packet::Relay::new(client, upstream, ticket.flow()).await
                }
                Connected::Served { handler, session, io } => handler.serve(session, io).await,
            };
            ticket.flow().note_end(end);
        });
        flow.set_task(task.abort_handle());
    }

    /// Relays a client with a stream that is there already, whatever the rules say; `why` stands in their place. There are
    /// [limits](Limits::STRANGERS) of how many of these there may be: the oldest makes room. Returns at once.
    pub fn join(&self, session: Session, why: &str, client: BoxStream, upstream: BoxStream, early: BufChain) {
        if self.shared.flows.is_closing() {
            return;
        }
        debug!(
            conn = session.id.get(),
            "inbound/{}: {} is with {}: {why}", session.inbound, session.source, session.target
        );
        let ticket = self.shared.flows.open(session);
        let flow = Arc::clone(ticket.flow());
        flow.set_way(Way { rule: why.into(), chain: Vec::new() });
        flow.set_idle_limit(timeouts::STREAM_IDLE);
        let place = self.shared.strangers.enter(flow.session().source.ip());
        let slot = place.slot();
        let task = tokio::spawn(async move {
            let end = relay::stream::Relay::new(client, upstream, early, ticket.flow()).await;
            ticket.flow().note_end(end);
            drop(place);
        });
        flow.set_task(task.abort_handle());
        slot.attach(task.abort_handle());
    }

    /// Runs `server` for one client, in a task of its own and with a place in the table of handshakes. Returns at once.
    ///
    /// A server may serve for as long as the connection lasts, where that carries many; it gives the place up before.
    pub fn serve(&self, server: Arc<dyn StreamServer>, conn: BoxStream, session: Session) {
        let handshake = self.handshakes().enter_client(session.source, &session.inbound);
        let slot = handshake.slot();
        let dispatch = self.clone();
        let task = self.shared.serving.spawn(async move {
            let (id, inbound, source) = (session.id, session.inbound.clone(), session.source);
            let since = Instant::now();
            if let Err(error) = server.serve(conn, session, handshake, &dispatch).await {
                dispatch.log_unserved(&inbound, (id, Some(since)), source, &error);
            }
        });
        if let Some(task) = task {
            slot.attach(task);
        }
    }

    /// Runs `serve` for one client whose connection is no stream, likewise. It gives the place up by dropping it.
    pub fn serve_many<F>(&self, inbound: &Tag, source: SocketAddr, serve: impl FnOnce(Handshake) -> F)
    where
        F: Future<Output = Result<(), ServeError>> + Send + 'static,
    {
        let handshake = self.handshakes().enter_client(source, inbound);
        let slot = handshake.slot();
        let (dispatch, inbound, serving) = (self.clone(), inbound.clone(), serve(handshake));
        let task = self.shared.serving.spawn(async move {
            let since = Instant::now();
            if let Err(error) = serving.await {
                dispatch.log_unserved(&inbound, (SessionId::next(), Some(since)), source, &error);
            }
        });
        if let Some(task) = task {
            slot.attach(task);
        }
    }

    /// Logs that a client was not served: one line per second for those that an operator may want to know of, the rest only
    /// for those who debug.
    pub fn report_unserved(&self, inbound: &Tag, id: SessionId, source: SocketAddr, error: &ServeError) {
        self.log_unserved(inbound, (id, None), source, error);
    }

    fn log_unserved(
        &self,
        inbound: &Tag,
        (id, since): (SessionId, Option<Instant>),
        source: SocketAddr,
        error: &ServeError,
    ) {
        let (conn, age_ms) = (id.get(), since.map(|since| since.elapsed().as_millis() as u64));
        let text = format!("inbound/{inbound}: client {source} not served: {}", Chain(error));
        match error.is_notable().then(|| self.shared.unserved.allow()).flatten() {
            Some(0) => warn!(conn, age_ms, "{text}"),
            Some(more) => warn!(conn, age_ms, "{text} ({more} more not shown)"),
            None => debug!(conn, age_ms, "{text}"),
        }
    }

    /// Admits nothing more, lets what runs go on for `grace`, then ends it.
    pub async fn shut_down(&self, grace: Duration) {
        self.shared.flows.shut_down(grace).await;
        self.shared.serving.close();
    }

    /// Gives a stream to another inbound, as if it had been accepted there.
    fn pass_on(&self, server: Arc<dyn StreamServer>, mut incoming: Incoming) {
        let plain = Self { shared: Arc::clone(&self.shared), inject: None };
        self.shared.serving.spawn(async move {
            // A client that never reads what it is told must not hold on to the task.
            let answered = tokio::time::timeout(timeouts::HANDSHAKE, incoming.answer_early());
            if !answered.await.is_ok_and(|sent| sent.is_ok()) {
                return;
            }
            let Incoming { session, io: Io::Stream(conn), early, .. } = incoming else { return };
            plain.serve(server, Prefixed::wrap(early, conn), session);
        });
    }
}

/// Both ends, ready to be relayed, or one and who serves it.
enum Connected {
    Stream { client: BoxStream, upstream: BoxStream, early: BufChain },
    Packets { client: BoxPackets, upstream: BoxPackets },
    Served { handler: Arc<dyn Handler>, session: Session, io: Io },
}

/// Routes, dials and answers. `None` if there is nothing to relay: the client has been told and the reason logged.
async fn connect(shared: &Shared, mut incoming: Incoming, flow: &Flow) -> Option<Connected> {
    // Set before any inbound starts; without it the program has no business accepting.
    let router = shared.router.get()?;
    let decision = router.decide(&mut incoming).await;
    let (outbound, way, udp_idle) = match decision {
        Decision::Dial { outbound, way, udp_idle } => (outbound, way, udp_idle),
        Decision::Refuse { error, way } => {
            flow.set_way(way);
            fail(shared, incoming, flow, &error).await;
            return None;
        }
        Decision::Serve { handler, way } => {
            flow.set_way(way);
            return serve(handler, incoming, flow).await;
        }
    };
    flow.set_way(way);
    let session = &incoming.session;
    info!(
        conn = session.id.get(),
        age_ms = flow.age().as_millis() as u64,
        "inbound/{}: {}{} connection from {} to {} by outbound/{}",
        session.inbound,
        bracketed(session),
        session.network,
        session.source,
        session.target,
        outbound.tag(),
    );
    match connect_by(&*outbound, incoming, flow, udp_idle).await {
        Ok(connected) => connected,
        Err((incoming, error)) => {
            let error = DialError::Outbound { tag: outbound.tag().clone(), source: Box::new(error) };
            fail(shared, *incoming, flow, &error).await;
            None
        }
    }
}

/// `[name] ` of the user, as sing-box writes it, if there is one.
fn bracketed(session: &Session) -> String {
    session.user.as_deref().map(|user| format!("[{user}] ")).unwrap_or_default()
}

/// Gets a session ready to be served here. `None` if the client has left.
async fn serve(handler: Arc<dyn Handler>, mut incoming: Incoming, flow: &Flow) -> Option<Connected> {
    let session = &incoming.session;
    info!(
        conn = session.id.get(),
        age_ms = flow.age().as_millis() as u64,
        "inbound/{}: {}{} connection from {} to {} served by {}",
        session.inbound,
        bracketed(session),
        session.network,
        session.source,
        session.target,
        handler.name(),
    );
    if incoming.answer_early().await.is_err() {
        flow.note_end(EndReason::Reset);
        return None;
    }
    let Incoming { session, io, early, .. } = incoming;
    let io = match io {
        Io::Stream(conn) => Io::Stream(Prefixed::wrap(early, conn)),
        packets @ Io::Packets(_) => packets,
    };
    Some(Connected::Served { handler, session, io })
}

/// The dial and the answer. `Ok(None)` if the client left meanwhile.
async fn connect_by(
    outbound: &dyn Outbound,
    mut incoming: Incoming,
    flow: &Flow,
    udp_idle: Option<Duration>,
) -> Result<Option<Connected>, (Box<Incoming>, DialError)> {
    let network = incoming.session.network;
    if !outbound.carries(network) {
        return Err((Box::new(incoming), DialError::Network(network)));
    }
    if network != Network::Tcp {
        let upstream = match outbound.listen_packet(&incoming.session).await {
            Ok(upstream) => upstream,
            Err(error) => return Err((Box::new(incoming), error)),
        };
        let port = incoming.session.target.port;
        let inbound = incoming.udp_timeout.unwrap_or(timeouts::UDP_IDLE);
        let protocol = incoming.session.sniffed.as_ref().map(|sniffed| sniffed.protocol);
        let by_port = || match network {
            Network::Icmp => timeouts::PING_IDLE,
            Network::Tcp | Network::Udp => timeouts::udp_idle(protocol, port, inbound).min(inbound),
        };
        flow.set_idle_limit(udp_idle.unwrap_or_else(by_port));
        let Io::Packets(client) = incoming.io else { return Ok(None) };
        return Ok(Some(Connected::Packets { client, upstream }));
    }
    let mut early = std::mem::take(&mut incoming.early);
    let offered = early.len();
    let upstream = match outbound.dial(&incoming.session, &mut early).await {
        Ok(upstream) => upstream,
        Err(error) => return Err((Box::new(incoming), error)),
    };
    flow.count_up((offered - early.len()) as u64);
    flow.set_idle_limit(timeouts::STREAM_IDLE);
    if incoming.answer(&DialOutcome::Connected(upstream.local_addr())).await.is_err() {
        flow.note_end(EndReason::Reset);
        return Ok(None);
    }
    let Io::Stream(client) = incoming.io else { return Ok(None) };
    Ok(Some(Connected::Stream { client, upstream, early }))
}

/// Tells the client and the log.
async fn fail(shared: &Shared, mut incoming: Incoming, flow: &Flow, error: &DialError) {
    flow.note_end(EndReason::Failed);
    log_failure(shared, &incoming.session, flow, error);
    let outcome = DialOutcome::Failed(error);
    if is_dropped(error) {
        if let Io::Stream(conn) = &mut incoming.io {
            conn.answer(&outcome);
        }
        // The client is to learn nothing: it sees silence until it gives up or the handshake's time is over.
        let _ = tokio::time::timeout(timeouts::HANDSHAKE, drain(&mut incoming)).await;
        return;
    }
    if let Io::Packets(conn) = &mut incoming.io {
        conn.answer(&outcome);
    }
    let waits = incoming.reply.is_some();
    // A client that never reads what it is told must not hold on to the flow, which has no idle limit yet.
    let answer = tokio::time::timeout(timeouts::HANDSHAKE, incoming.answer(&outcome));
    let answered = answer.await.is_ok_and(|sent| sent.is_ok());
    if let Io::Stream(conn) = &mut incoming.io {
        if waits && answered {
            finish(conn).await;
        } else {
            conn.abort();
        }
    }
}

/// Whether the client is to learn nothing.
fn is_dropped(error: &DialError) -> bool {
    match error {
        DialError::Dropped(_) => true,
        DialError::Outbound { source, .. } => is_dropped(source),
        _ => false,
    }
}

/// One line: what was refused by a rule for those who follow connections, what failed for those who look for trouble.
/// A flood of them is cut short.
fn log_failure(shared: &Shared, session: &Session, flow: &Flow, error: &DialError) {
    let (conn, age_ms) = (session.id.get(), flow.age().as_millis() as u64);
    let rejected = matches!(error, DialError::Rejected(_) | DialError::Dropped(_));
    let rule = flow.way().filter(|_| rejected).map(|way| format!(" ({})", way.rule)).unwrap_or_default();
    let text = format!(
        "inbound/{}: {}{} connection from {} to {}: {}{rule}",
        session.inbound,
        bracketed(session),
        session.network,
        session.source,
        session.target,
        Chain(error)
    );
    match (shared.failures.allow(), rejected) {
        (None, _) => debug!(conn, age_ms, "{text}"),
        (Some(0), true) => info!(conn, age_ms, "{text}"),
        (Some(0), false) => error!(conn, age_ms, "{text}"),
        (Some(more), true) => info!(conn, age_ms, "{text} ({more} more not shown)"),
        (Some(more), false) => error!(conn, age_ms, "{text} ({more} more not shown)"),
    }
}

/// Reads and forgets until the client ends.
async fn drain(incoming: &mut Incoming) {
    let Io::Stream(conn) = &mut incoming.io else { return };
    while let Ok(bytes) = crate::conn::read_chain(conn, culvert_wire::Room::NONE).await {
        if bytes.is_empty() {
            return;
        }
    }
}
