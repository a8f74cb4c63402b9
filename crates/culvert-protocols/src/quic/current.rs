//! The connection of an outbound, made when it is first needed and again when it has ended.
//!
//! It is one, but for two reasons: the server allows no more streams in it, or its driver keeps a core busy while others are
//! free (not where Brutal sends at an agreed rate). Then further streams get a connection of their own, which goes when
//! nobody uses it any more.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use culvert_core::{DialError, timeouts};
use culvert_quic::{Connection, QuicStream};
use tokio::sync::Mutex;

use super::is_alive;

/// How long one attempt to connect is alone. A server that comes back is found by the next one: the waits within an
/// attempt grow.
const ALONE: Duration = Duration::from_millis(900);

/// Connections at most, where a server allows few streams in each.
const MOST: usize = 8;
/// Connections at most to spread work over cores.
const SPREAD: usize = 4;
/// A driver that works so many hundredths of its time keeps a core busy.
const BUSY: u32 = 90;

/// An attempt to connect.
pub(crate) type Attempt<'a, T> = Pin<Box<dyn Future<Output = Result<T, DialError>> + Send + 'a>>;

/// Attempts, each with a socket of its own and its number, until one succeeds or the server says no. The caller limits
/// the time.
pub(crate) async fn attempts<'a, T>(begin: impl Fn(usize) -> Attempt<'a, T>) -> Result<T, DialError> {
    let mut running = Vec::new();
    loop {
        running.push(begin(running.len()));
        let first = std::future::poll_fn(|cx| {
            let done = running.iter_mut().find_map(|attempt| match attempt.as_mut().poll(cx) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            });
            done.map_or(Poll::Pending, Poll::Ready)
        });
        if let Ok(done) = tokio::time::timeout(ALONE, first).await {
            return done;
        }
    }
}

/// What a protocol keeps with a connection.
pub(crate) trait Carrying {
    fn connection(&self) -> &Connection;

    /// Whether streams may be spread over several connections. Not where each would send at the rate that was agreed on.
    fn is_divisible(&self) -> bool {
        true
    }
}

/// See the module. What was begun over the connections ends with this.
pub(crate) struct Current<H: Carrying>(Mutex<Vec<Arc<H>>>);

impl<H: Carrying> Default for Current<H> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<H: Carrying> Current<H> {
    /// The connection there is, or what `connect` makes.
    pub(crate) async fn get(
        &self,
        connect: impl Future<Output = Result<Arc<H>, DialError>>,
    ) -> Result<Arc<H>, DialError> {
        within(async {
            let mut current = self.0.lock().await;
            let silent = tidy(&mut current);
            if let Some(hub) = current.first() {
                return Ok(Arc::clone(hub));
            }
            let hub = connect.await?;
            silent.into_iter().for_each(give_up);
            current.push(Arc::clone(&hub));
            Ok(hub)
        })
        .await
    }

    /// A stream over one of them.
    pub(crate) async fn stream<F: Future<Output = Result<Arc<H>, DialError>>>(
        &self,
        connect: impl Fn() -> F,
    ) -> Result<(Arc<H>, QuicStream), DialError> {
        let hub = within(async {
            let mut current = self.0.lock().await;
            let silent = tidy(&mut current);
            let mut hubs: Vec<_> = current.iter().collect();
            hubs.sort_by_key(|hub| hub.connection().streams());
            if !wants_another(&hubs) {
                for hub in hubs {
                    // A connection may end between the look at it and its use.
                    if let Ok(Some(stream)) = hub.connection().try_open_bi() {
                        return Ok((Arc::clone(hub), Some(stream)));
                    }
                }
            }
            if current.len() >= MOST {
                return Ok((Arc::clone(&current[0]), None));
            }
            let hub = connect().await?;
            silent.into_iter().for_each(give_up);
            // Before others see the connection without a stream.
            let stream = hub.connection().try_open_bi().ok().flatten();
            current.push(Arc::clone(&hub));
            Ok((hub, stream))
        });
        let (hub, stream) = hub.await?;
        let stream = match stream {
            Some(stream) => stream,
            None => {
                within(async {
                    let failed = |error: culvert_quic::ConnectionError| DialError::Handshake {
                        phase: "open a stream",
                        source: error.into(),
                    };
                    hub.connection().open_bi().await.map_err(failed)
                })
                .await?
            }
        };
        Ok((hub, stream))
    }

    /// The network is another one: the connections go on from other sockets.
    pub(crate) fn network_moved(&self) {
        // While one is being made there is nothing to be moved: the attempts to come see the new network.
        if let Ok(current) = self.0.try_lock() {
            current.iter().for_each(|hub| hub.connection().rebind());
        }
    }
}

/// Forgets connections that may not be used for more, and those beside the first that nobody uses. Returns those that have
/// not ended, but whose server is silent.
fn tidy<H: Carrying>(current: &mut Vec<Arc<H>>) -> Vec<Connection> {
    let mut silent = Vec::new();
    current.retain(|hub| {
        let alive = is_alive(hub.connection());
        if !alive && hub.connection().error().is_none() {
            silent.push(hub.connection().clone());
        }
        alive
    });
    let mut first = true;
    current.retain(|hub| {
        let kept = std::mem::take(&mut first) || hub.connection().streams() > 0;
        if !kept {
            hub.connection().close(0, b"");
        }
        kept
    });
    silent
}

/// Ends a connection whose server is silent in it but answers in another one, as one does that was started anew: whoever
/// waits on a stream of it is told. First it gets the time in which the next of its own attempts is due; the waits between
/// those double.
fn give_up(connection: Connection) {
    const LEAST: Duration = Duration::from_secs(1);
    const MOST: Duration = Duration::from_secs(10);
    tokio::spawn(async move {
        let silence = connection.silence().unwrap_or_default().clamp(LEAST, MOST);
        tokio::time::sleep(silence).await;
        if connection.silence().is_some_and(|now| now > silence) {
            connection.close(0, b"");
        }
    });
}

/// Whether each of the connections keeps a core busy, and there are cores that none does.
fn wants_another<H: Carrying>(hubs: &[&Arc<H>]) -> bool {
    // The other half is for those who read and write.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = (cores / 2).min(SPREAD);
    !hubs.is_empty()
        && hubs.len() < most
        && hubs.iter().all(|hub| hub.is_divisible() && hub.connection().load() >= BUSY)
}

async fn within<T>(work: impl Future<Output = Result<T, DialError>>) -> Result<T, DialError> {
    let limit = timeouts::OUTBOUND_HANDSHAKE;
    let done = tokio::time::timeout(limit, work).await;
    done.unwrap_or(Err(DialError::Timeout { phase: "connect to the server", limit }))
}

impl<H: Carrying> Drop for Current<H> {
    fn drop(&mut self) {
        for hub in self.0.get_mut().drain(..) {
            hub.connection().close(0, b"");
        }
    }
}
