//! How connections begin.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;

use tokio::task::JoinHandle;

use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::{hkdf, hmac};
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig, ServerConfig};

use crate::congestion::Choice;
use crate::connection::Connection;
use crate::driver::{Driver, Mailbox};
use crate::ids::Ids;
use crate::link::Link;
use crate::settings::{ClientTls, LARGEST_PACKET, ServerSettings, Transport, largest_packet};

/// Clients in the handshake at once; more are not heard.
const HANDSHAKES: usize = 1024;
/// Beyond so many in the handshake, clients first have to show that their address is theirs.
const UNASKED: usize = 64;
/// Connections that wait to be accepted; more are closed.
const BACKLOG: usize = 1024;
/// Bytes of one stranger's packets, and of all strangers', that are kept until they are decided about: nothing is kept
/// long, as that happens at once.
const INCOMING_BYTES: [u64; 2] = [64 << 10, 4 << 20];

/// Derives keys from a secret, one per purpose.
fn derive(secret: &[u8], purpose: &[u8]) -> [u8; 32] {
    struct Len;
    impl hkdf::KeyType for Len {
        fn len(&self) -> usize {
            32
        }
    }
    let mut key = [0; 32];
    let info = [purpose];
    let done = Salt::new(HKDF_SHA256, b"culvert quic")
        .extract(secret)
        .expand(&info, Len)
        .map(|okm| okm.fill(&mut key));
    debug_assert!(matches!(done, Ok(Ok(()))), "32 bytes are never too many");
    key
}

/// The key of the connection ids.
fn id_key(secret: &[u8]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = derive(secret, b"connection ids");
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

fn endpoint_config(secret: &[u8], ids: Ids) -> EndpointConfig {
    let mut config =
        EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &derive(secret, b"reset"))));
    config.cid_generator(move || Box::new(ids));
    config.max_udp_payload_size(LARGEST_PACKET).expect("it is more than the least that there may be");
    config
}

fn random() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| io::Error::other("no random numbers"))?;
    Ok(bytes)
}

/// Begins a connection to `server` over a link of its own. It returns at once; see [`Connection::established`].
///
/// Called in a runtime of tokio: the driver is a task, which ends after the connection has.
///
/// # Errors
/// The address or the name cannot be connected to.
pub fn connect(
    link: Link,
    tls: &ClientTls,
    transport: &Transport,
    server: SocketAddr,
) -> io::Result<Connection> {
    let choice = Choice::new(transport.congestion);
    let mut config = ClientConfig::new(Arc::clone(&tls.config) as _);
    let largest = largest_packet(server);
    config.transport_config(Arc::new(transport.build(Arc::clone(&choice), link.overhead(), largest)));
    let secret = random()?;
    let own = endpoint_config(&secret, Ids::new(id_key(&secret), 0));
    let endpoint = Endpoint::new(Arc::new(own), None, true, None);
    let mut driver = Driver::new(link, endpoint, Arc::<Mailbox>::default(), None);
    let now = Instant::now();
    let (handle, proto) = driver
        .endpoint()
        .connect(now, config, server, &tls.name)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let connection = driver.adopt(handle, proto, choice, transport.connection_window, now);
    tokio::spawn(driver);
    Ok(connection)
}

/// What is admitted.
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) handshakes: usize,
    pub(crate) unasked: usize,
}

/// What the drivers of a server share: limits, ids, and the connections on their way to those who accept them.
pub(crate) struct Accepting {
    pub(crate) limits: Limits,
    ids: Ids,
    /// Of each driver, in order.
    mailboxes: Vec<Arc<Mailbox>>,
    connections: AtomicUsize,
    handshaking: AtomicUsize,
    /// Drivers that run.
    running: AtomicUsize,
    base: ServerConfig,
    transport: Transport,
    overhead: usize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    connections: VecDeque<Connection>,
    wakers: Vec<Waker>,
    ended: bool,
}

impl Accepting {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration of one connection: its congestion control is its own.
    pub(crate) fn config(&self, client: SocketAddr) -> (Arc<ServerConfig>, Arc<Choice>) {
        let choice = Choice::new(self.transport.congestion);
        let mut config = self.base.clone();
        let largest = largest_packet(client);
        let transport = self.transport.build(Arc::clone(&choice), self.overhead, largest);
        config.transport_config(Arc::new(transport));
        (Arc::new(config), choice)
    }

    pub(crate) fn put(&self, connection: Connection) {
        let mut queue = self.lock();
        if queue.connections.len() >= BACKLOG {
            drop(queue);
            return; // dropped, which closes it
        }
        queue.connections.push_back(connection);
        let wakers = std::mem::take(&mut queue.wakers);
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Bytes that a client may send ahead at most.
    pub(crate) fn receive_window(&self) -> u64 {
        self.transport.connection_window
    }

    /// Whether there are several drivers.
    pub(crate) fn is_shared(&self) -> bool {
        self.mailboxes.len() > 1
    }

    /// The mailbox of the driver that a packet is for, if that is another one.
    pub(crate) fn other(&self, shard: u8, packet: &[u8]) -> Option<&Mailbox> {
        let whose = self.ids.shard(packet).filter(|whose| *whose != shard)?;
        self.mailboxes.get(usize::from(whose)).map(|mailbox| &**mailbox)
    }

    /// Counts connections, and handshakes, that begin or end.
    pub(crate) fn count(&self, connections: isize, handshakes: isize) {
        self.connections.fetch_add(connections as usize, Ordering::Relaxed);
        self.handshaking.fetch_add(handshakes as usize, Ordering::Relaxed);
    }

    /// Connections that there are, and handshakes among them.
    pub(crate) fn counted(&self) -> (usize, usize) {
        (self.connections.load(Ordering::Relaxed), self.handshaking.load(Ordering::Relaxed))
    }

    /// A driver has ended.
    pub(crate) fn end(&self) {
        if self.running.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let mut queue = self.lock();
        queue.ended = true;
        let connections = std::mem::take(&mut queue.connections);
        let wakers = std::mem::take(&mut queue.wakers);
        drop(queue);
        drop(connections);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A server: sockets at which connections begin. Dropping it accepts no more; those that there are go on.
pub struct Server {
    accepting: Arc<Accepting>,
    local: Option<SocketAddr>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Serves over `link`. The driver is a task of the runtime this is called in.
    #[must_use]
    pub fn new(link: Link, settings: &ServerSettings) -> Self {
        Self::spread([link], settings)
    }

    /// Serves over `links`, at most 256 sockets that share a port. Each has a driver of its own, so that clients are spread
    /// over the processor's cores.
    #[must_use]
    pub fn spread(links: impl IntoIterator<Item = Link>, settings: &ServerSettings) -> Self {
        let links: Vec<_> = links.into_iter().collect();
        let token_key = Salt::new(HKDF_SHA256, b"culvert quic tokens").extract(&settings.secret);
        let mut base = ServerConfig::new(Arc::clone(&settings.tls.0) as _, Arc::new(token_key));
        let [one, all] = INCOMING_BYTES;
        base.incoming_buffer_size(one).incoming_buffer_size_total(all);
        let key = id_key(&settings.secret);
        let accepting = Arc::new(Accepting {
            limits: Limits { connections: settings.connections, handshakes: HANDSHAKES, unasked: UNASKED },
            ids: Ids::new(key, 0),
            mailboxes: links.iter().map(|_| Arc::default()).collect(),
            connections: AtomicUsize::new(0),
            handshaking: AtomicUsize::new(0),
            running: AtomicUsize::new(links.len()),
            base: base.clone(),
            transport: settings.transport.clone(),
            overhead: links.first().map_or(0, Link::overhead),
            queue: Mutex::default(),
        });
        let local = links.first().and_then(Link::local_addr);
        let base = Arc::new(base);
        let tasks = links.into_iter().zip(0..=u8::MAX).map(|(link, shard)| {
            let config = endpoint_config(&settings.secret, Ids::new(key, shard));
            let endpoint = Endpoint::new(Arc::new(config), Some(Arc::clone(&base)), true, None);
            let mailbox = Arc::clone(&accepting.mailboxes[usize::from(shard)]);
            tokio::spawn(Driver::new(link, endpoint, mailbox, Some((Arc::clone(&accepting), shard))))
        });
        let tasks = Mutex::new(tasks.collect());
        Self { accepting, local, tasks }
    }

    /// The next client, at the beginning of its handshake; see [`Connection::established`]. `None` at the end.
    pub async fn accept(&self) -> Option<Connection> {
        poll_fn(|cx| {
            let mut queue = self.accepting.lock();
            if let Some(connection) = queue.connections.pop_front() {
                return Poll::Ready(Some(connection));
            }
            if queue.ended {
                return Poll::Ready(None);
            }
            queue.wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The address of its sockets.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Ends all connections, and waits until the sockets are closed.
    pub async fn close(&self) {
        self.accepting.mailboxes.iter().for_each(|mailbox| mailbox.close(true));
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            let _ = task.await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.mailboxes.iter().for_each(|mailbox| mailbox.close(false));
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "quic::Server({:?})", self.local)
    }
}
