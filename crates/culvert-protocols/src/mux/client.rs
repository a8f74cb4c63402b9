//! The client: which session a stream goes to.
//!
//! As in sing-box the session with the fewest streams is looked at, and used if it has none or if the options allow it one
//! more; else a connection is opened. One that is being opened counts with the streams that wait for it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Waker};

use async_trait::async_trait;
use culvert_config::options::mux::{MuxProtocol, OutboundMux};
use culvert_core::timeouts::{MUX_DIAL, MUX_IDLE_CLIENT, MUX_PATIENCE};
use culvert_core::{
    BoxPackets, BoxStream, Chain, DialError, Network, Outbound, Session as Facts, StreamConn, Tag,
};
use culvert_wire::{AddressCodec, Buf, BufChain};
use tokio::sync::watch;

use super::brutal::{self, Speeds};
use super::codec::{Kind, Request, Start};
use super::conn::Asking;
use super::frame::Wire;
use super::padding::{Padded, amount};
use super::session::Driver;
use super::stream::Link;
use super::{Event, h2, sign};
use crate::repeated::{Again, Repeated};
use crate::uot::UotConn;

/// How often a stream is tried.
const ATTEMPTS: usize = 2;
/// Most bytes that leave together with a stream's request.
const EARLY: usize = 15 << 10;

/// An outbound whose connections are multiplexed.
pub(super) struct Client {
    outbound: Arc<dyn Outbound>,
    protocol: MuxProtocol,
    padded: bool,
    brutal: Option<Speeds>,
    rule: Rule,
    pool: Mutex<Pool>,
    me: Weak<Self>,
}

/// When a session takes one more stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) max_connections: usize,
    pub(super) min_streams: usize,
    pub(super) max_streams: usize,
    /// All streams go to one session.
    pub(super) single: bool,
}

impl Rule {
    /// Whether the session with the fewest streams, `streams`, of `sessions` ones takes one more.
    pub(super) fn reuses(self, streams: usize, sessions: usize) -> bool {
        if self.single || streams == 0 {
            return true;
        }
        if self.max_connections > 0 {
            return sessions >= self.max_connections || streams < self.min_streams;
        }
        self.max_streams > 0 && streams < self.max_streams
    }
}

#[derive(Default)]
struct Pool {
    slots: Vec<Slot>,
    next: u64,
}

/// A session, or one to be.
struct Slot {
    number: u64,
    /// `None` while it is being opened.
    session: Option<Session>,
    /// Streams that wait for it.
    awaited: usize,
    /// Changes when it is open, and is gone when it could not be opened.
    opened: watch::Receiver<bool>,
}

impl Slot {
    fn streams(&self) -> usize {
        self.awaited + self.session.as_ref().map_or(0, Session::streams)
    }
}

enum Session {
    Frames(Arc<Link>),
    H2(h2::Client),
}

impl Session {
    fn open(&self) -> Option<BoxStream> {
        match self {
            Self::Frames(link) => Some(Box::new(link.open()?)),
            Self::H2(client) => Some(Box::new(client.open()?)),
        }
    }

    fn streams(&self) -> usize {
        match self {
            Self::Frames(link) => link.live(),
            Self::H2(client) => client.live(),
        }
    }

    fn can_open(&self) -> bool {
        match self {
            // smux has no word that must be answered: only the targets' silence can be told, and that may be their way.
            Self::Frames(link) if link.wire == Wire::Smux => link.can_open(2 * MUX_PATIENCE),
            Self::Frames(link) => link.can_open(MUX_PATIENCE),
            Self::H2(client) => client.can_open(MUX_PATIENCE),
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::Frames(link) => link.is_closed(),
            Self::H2(client) => client.is_closed(),
        }
    }
}

/// Streams that it has go on.
impl Drop for Session {
    fn drop(&mut self) {
        if let Self::Frames(link) = self {
            link.close_when_idle();
        }
    }
}

/// Runs a session until its end.
type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A stream, and what is to be started once its first bytes are written, so that they leave with the session's own.
struct Opened {
    conn: BoxStream,
    run: Option<Run>,
}

/// What is to be done for a stream.
enum Choice<'a> {
    Use(BoxStream),
    Await(Awaited<'a>, watch::Receiver<bool>),
    Dial(Awaited<'a>, watch::Sender<bool>),
}

/// Counts for a session until it is dropped.
struct Awaited<'a> {
    client: &'a Client,
    number: u64,
    /// Whoever waits is also the one who opens it.
    dials: bool,
}

impl Awaited<'_> {
    /// The session is open.
    fn fill(&self, session: Session) {
        let mut pool = self.client.pool();
        if let Some(slot) = pool.slots.iter_mut().find(|slot| slot.number == self.number) {
            slot.session = Some(session);
        }
    }

    /// Opens a stream, where the session could be opened.
    fn take(self) -> Option<BoxStream> {
        let pool = self.client.pool();
        pool.slots.iter().find(|slot| slot.number == self.number)?.session.as_ref()?.open()
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let mut pool = self.client.pool();
        let Some(index) = pool.slots.iter().position(|slot| slot.number == self.number) else { return };
        pool.slots[index].awaited -= 1;
        if self.dials && pool.slots[index].session.is_none() {
            pool.slots.remove(index);
        }
    }
}

impl Client {
    pub(super) fn new(
        outbound: Arc<dyn Outbound>,
        protocol: MuxProtocol,
        options: &OutboundMux,
    ) -> Arc<Self> {
        let count = |number: i64| usize::try_from(number).unwrap_or(0);
        let brutal = Speeds::new(options.brutal.as_ref());
        let rule = Rule {
            max_connections: count(options.max_connections),
            min_streams: count(options.min_streams),
            max_streams: count(options.max_streams),
            single: brutal.is_some(),
        };
        let padded = options.padding;
        Arc::new_cyclic(|me| {
            let (pool, me) = (Mutex::default(), Weak::clone(me));
            Self { outbound, protocol, padded, brutal, rule, pool, me }
        })
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choose(&self) -> Choice<'_> {
        let mut pool = self.pool();
        pool.slots.retain(|slot| !slot.session.as_ref().is_some_and(Session::is_closed));
        loop {
            let sessions = pool.slots.len();
            let best = pool.slots.iter_mut().enumerate();
            let best = best.filter(|(_, slot)| slot.session.as_ref().is_none_or(Session::can_open));
            let best = best.min_by_key(|(_, slot)| slot.streams());
            let Some((index, slot)) = best.filter(|(_, slot)| self.rule.reuses(slot.streams(), sessions))
            else {
                break;
            };
            let Some(session) = &slot.session else {
                slot.awaited += 1;
                let awaited = Awaited { client: self, number: slot.number, dials: false };
                return Choice::Await(awaited, slot.opened.clone());
            };
            if let Some(conn) = session.open() {
                return Choice::Use(conn);
            }
            pool.slots.remove(index); // it has ended this very moment
        }
        let (sender, opened) = watch::channel(false);
        let number = pool.next;
        pool.next += 1;
        pool.slots.push(Slot { number, session: None, awaited: 1, opened });
        Choice::Dial(Awaited { client: self, number, dials: true }, sender)
    }

    /// A stream of some session, tried twice.
    async fn open(&self, facts: &Facts) -> Result<Opened, DialError> {
        let mut last = None;
        let mut attempts = 0;
        while attempts < ATTEMPTS {
            attempts += 1;
            match self.choose() {
                Choice::Use(conn) => return Ok(Opened { conn, run: None }),
                Choice::Await(awaited, mut opened) => {
                    if opened.changed().await.is_err() {
                        // Whoever was opening it does not want it any more.
                        attempts -= 1;
                    } else if let Some(conn) = awaited.take() {
                        return Ok(Opened { conn, run: None });
                    }
                }
                Choice::Dial(awaited, opened) => match self.connect(facts).await {
                    Ok((session, run)) => {
                        awaited.fill(session);
                        let conn = awaited.take();
                        let _ = opened.send(true);
                        match conn {
                            Some(conn) => return Ok(Opened { conn, run }),
                            None => drop(run.map(tokio::spawn)),
                        }
                    }
                    Err(error) => {
                        drop(awaited);
                        let _ = opened.send(false);
                        tracing::debug!(
                            conn = facts.id.get(),
                            "outbound/{}: multiplexed connection failed: {}",
                            self.outbound.tag(),
                            Chain(&error)
                        );
                        last = Some(error);
                    }
                },
            }
        }
        Err(last.unwrap_or_else(|| DialError::Handshake {
            phase: "multiplexed stream",
            source: io::ErrorKind::ConnectionReset.into(),
        }))
    }

    /// Opens a session. What it returns to be run has not begun, unless it had to.
    async fn connect(&self, facts: &Facts) -> Result<(Session, Option<Run>), DialError> {
        let facts = Facts { network: Network::Tcp, target: sign(), sniffed: None, ..facts.clone() };
        let mut early = BufChain::new();
        let dial = tokio::time::timeout(MUX_DIAL, self.outbound.dial(&facts, &mut early));
        let timeout = Err(DialError::Timeout { phase: "multiplexed connection", limit: MUX_DIAL });
        let mut conn = dial.await.unwrap_or(timeout)?;
        let socket = brutal::Socket::of(&*conn);

        let mut start = Vec::new();
        Start { protocol: self.protocol, padded: self.padded }.encode(amount(), &mut start);
        if self.padded {
            conn = Box::new(Padded::new(conn, BufChain::new(), &start));
            start.clear();
        }
        let tag = self.outbound.tag().clone();
        let (session, mut run): (_, Option<Run>) = match self.protocol {
            MuxProtocol::Smux | MuxProtocol::Yamux => {
                let wire = if self.protocol == MuxProtocol::Smux { Wire::Smux } else { Wire::Yamux };
                let link = Link::new(wire, true);
                let driver =
                    Driver::new(Arc::clone(&link), conn, &start, BufChain::new(), 0, MUX_IDLE_CLIENT);
                (Session::Frames(link), Some(Box::pin(run_frames(driver, tag))))
            }
            MuxProtocol::H2Mux => {
                let failed = |source| DialError::Handshake { phase: "multiplexed connection", source };
                let (client, driver) = h2::Client::new(conn, &start).await.map_err(failed)?;
                (Session::H2(client), Some(Box::pin(run_h2(driver, tag))))
            }
        };
        if let Some(speeds) = self.brutal {
            drop(run.take().map(tokio::spawn));
            let gone = || DialError::Handshake {
                phase: "agreement on speeds",
                source: io::ErrorKind::BrokenPipe.into(),
            };
            brutal::agree(session.open().ok_or_else(gone)?, speeds, &socket).await?;
        }
        Ok((session, run))
    }

    /// Opens another stream in place of one that the server has refused.
    fn again(&self, facts: &Facts) -> Again {
        let (client, facts) = (Weak::clone(&self.me), facts.clone());
        Box::new(move || {
            let (client, facts) = (client.upgrade(), facts.clone());
            Box::pin(async move {
                let client = client.ok_or(DialError::Rejected("the outbound is gone"))?;
                let Opened { conn, run } = client.open(&facts).await?;
                drop(run.map(tokio::spawn));
                Ok(conn)
            })
        })
    }

    /// A stream for `kind`, whose request leaves with as much of `early` as fits with it.
    async fn ask(&self, facts: &Facts, kind: Kind, early: &mut BufChain) -> Result<BoxStream, DialError> {
        let Opened { mut conn, run } = self.open(facts).await?;
        if self.protocol == MuxProtocol::H2Mux {
            conn = Box::new(Repeated::new(conn, self.again(facts)));
        }
        let mut request = Vec::new();
        Request { kind, target: facts.target.clone() }.encode(&mut request);
        let mut conn = Asking::new(conn, &request);
        if !early.is_empty() {
            let room = conn.room();
            let mut first = Buf::new(early.len().min(EARLY), room.head, room.tail);
            while first.len() < EARLY && !early.is_empty() {
                let count = early.front().len().min(EARLY - first.len());
                first.append(&early.front()[..count]);
                early.advance(count);
            }
            let mut first = BufChain::from(first);
            // A fresh stream takes this at once. What it does not, the relay will offer again.
            let _ = conn.poll_write_chain(&mut Context::from_waker(Waker::noop()), &mut first);
            first.append(early);
            *early = first;
        }
        drop(run.map(tokio::spawn));
        Ok(Box::new(conn))
    }
}

async fn run_frames(mut driver: Driver, tag: Tag) {
    let _counts = culvert_core::crowd::Member::default();
    loop {
        match driver.next().await {
            Event::Opened(_) | Event::Idle => {}
            Event::Unused => return driver.close().await,
            Event::Ended(error) => return log_end(&tag, &error),
        }
    }
}

async fn run_h2(driver: h2::ClientDriver, tag: Tag) {
    let _counts = culvert_core::crowd::Member::default();
    if let Event::Ended(error) = driver.run(MUX_IDLE_CLIENT).await {
        log_end(&tag, &error);
    }
}

fn log_end(tag: &Tag, error: &io::Error) {
    tracing::debug!("outbound/{tag}: multiplexed connection ended: {error}");
}

#[async_trait]
impl Outbound for Client {
    fn tag(&self) -> &Tag {
        self.outbound.tag()
    }

    fn carries(&self, network: Network) -> bool {
        self.outbound.carries(network) && self.outbound.carries(Network::Tcp)
    }

    async fn dial(&self, facts: &Facts, early: &mut BufChain) -> Result<BoxStream, DialError> {
        self.ask(facts, Kind::Tcp, early).await
    }

    async fn listen_packet(&self, facts: &Facts) -> Result<BoxPackets, DialError> {
        let conn = self.ask(facts, Kind::Packets, &mut BufChain::new()).await?;
        Ok(Box::new(UotConn::server(conn, BufChain::new(), None).with_addresses(AddressCodec::SOCKS)))
    }
}
