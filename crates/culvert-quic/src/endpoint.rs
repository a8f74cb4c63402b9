//! How connections begin.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;

use tokio::task::JoinHandle;

use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use aws_lc_rs::{hkdf, hmac};
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig, HashedConnectionIdGenerator, ServerConfig};

use crate::congestion::Choice;
use crate::connection::Connection;
use crate::driver::{Driver, Mailbox};
use crate::link::Link;
use crate::settings::{ClientTls, ServerSettings, Transport};

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

fn endpoint_config(secret: &[u8]) -> EndpointConfig {
    let mut config =
        EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &derive(secret, b"reset"))));
    let [a, b, c, d, e, f, g, h, ..] = derive(secret, b"connection ids");
    let key = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(key)));
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
    config.transport_config(Arc::new(transport.build(Arc::clone(&choice), link.overhead())));
    let endpoint = Endpoint::new(Arc::new(endpoint_config(&random()?)), None, true, None);
    let mut driver = Driver::new(link, endpoint, Arc::<Mailbox>::default(), None);
    let now = Instant::now();
    let (handle, proto) = driver
        .endpoint()
        .connect(now, config, server, &tls.name)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let connection = driver.adopt(handle, proto, choice, now);
    tokio::spawn(driver);
    Ok(connection)
}

/// What is admitted.
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) handshakes: usize,
    pub(crate) unasked: usize,
}

/// Connections on their way from the driver to those who accept them.
pub(crate) struct Accepting {
    pub(crate) limits: Limits,
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
    pub(crate) fn config(&self) -> (Arc<ServerConfig>, Arc<Choice>) {
        let choice = Choice::new(self.transport.congestion);
        let mut config = self.base.clone();
        config.transport_config(Arc::new(self.transport.build(Arc::clone(&choice), self.overhead)));
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

    pub(crate) fn end(&self) {
        let mut queue = self.lock();
        queue.ended = true;
        let connections = std::mem::take(&mut queue.connections);
        let wakers = std::mem::take(&mut queue.wakers);
        drop(queue);
        drop(connections);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A server: a socket at which connections begin. Dropping it accepts no more; those that there are go on.
pub struct Server {
    accepting: Arc<Accepting>,
    mailbox: Arc<Mailbox>,
    local: Option<SocketAddr>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Serves over `link`. The driver is a task of the runtime this is called in.
    #[must_use]
    pub fn new(link: Link, settings: &ServerSettings) -> Self {
        let config = endpoint_config(&settings.secret);
        let token_key = Salt::new(HKDF_SHA256, b"culvert quic tokens").extract(&settings.secret);
        let mut base = ServerConfig::new(Arc::clone(&settings.tls.0) as _, Arc::new(token_key));
        let [one, all] = INCOMING_BYTES;
        base.incoming_buffer_size(one).incoming_buffer_size_total(all);
        let accepting = Arc::new(Accepting {
            limits: Limits { connections: settings.connections, handshakes: HANDSHAKES, unasked: UNASKED },
            base: base.clone(),
            transport: settings.transport.clone(),
            overhead: link.overhead(),
            queue: Mutex::default(),
        });
        let mailbox = Arc::<Mailbox>::default();
        let local = link.local_addr();
        let endpoint = Endpoint::new(Arc::new(config), Some(Arc::new(base)), true, None);
        let driver = Driver::new(link, endpoint, Arc::clone(&mailbox), Some(Arc::clone(&accepting)));
        let task = Mutex::new(Some(tokio::spawn(driver)));
        Self { accepting, mailbox, local, task }
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

    /// The address of its socket.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Ends all connections, and waits until the socket is closed.
    pub async fn close(&self) {
        self.mailbox.close(true);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            let _ = task.await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.mailbox.close(false);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "quic::Server({:?})", self.local)
    }
}
