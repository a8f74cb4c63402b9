//! Questions under way on one connection to a server, told apart by their ids.
//!
//! Whoever asks registers a question under a fresh random id, sends it, and waits; whoever reads from the connection
//! delivers each message to the question it answers. A question leaves the table when its asker does, answered or not.
//! The link knows no time: the servers decide how long to wait and when to ask again elsewhere.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::UdpSocket;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::DnsError;
use crate::message::{NoReply, Query, Reply, random_id};

/// Most questions under way on one link. Ids stay hard to guess, and a server that keeps silent holds no more.
const MOST_WAITING: usize = 8192;
/// Messages that answer nothing, after which the link counts as under attack.
const MOST_FOREIGN: u32 = 256;
/// Questions given up of which the link remembers the id: an answer that comes late is no attack.
const MOST_GIVEN_UP: usize = 1024;

/// Most questions that wait for a task to send them; beyond that the connection does not take any.
pub(super) const QUEUE: usize = 1024;

/// How messages leave.
#[derive(Debug)]
pub(super) enum Out {
    /// By a socket, at once.
    Socket(Arc<UdpSocket>),
    /// By a task that owns the connection.
    Queue(mpsc::Sender<Vec<u8>>),
}

/// One connection's questions.
#[derive(Debug)]
pub(super) struct Link {
    server: Arc<str>,
    state: Mutex<State>,
    foreign: AtomicU32,
}

#[derive(Debug)]
struct State {
    /// `None` once the link has ended; then nothing waits.
    out: Option<Out>,
    waiting: HashMap<u16, Waiting>,
    /// Ids of questions whose askers left without an answer, the latest last.
    given_up: VecDeque<u16>,
    /// When something was last heard.
    heard: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    query: Query,
    reply: oneshot::Sender<Result<Reply, DnsError>>,
}

impl Link {
    pub(super) fn new(server: Arc<str>, out: Out) -> Self {
        let state = State { out: Some(out), waiting: HashMap::new(), given_up: VecDeque::new(), heard: None };
        Self { server, state: Mutex::new(state), foreign: AtomicU32::new(0) }
    }

    /// Asks and waits, for ever if need be.
    pub(super) async fn ask(&self, query: &Query) -> Result<Reply, DnsError> {
        let (registered, socket) = self.register(query)?;
        let id = registered.id;
        if let Some(socket) = socket {
            let sent = socket.send(&query.encode(id)).await;
            sent.map_err(|source| DnsError::network(&self.server, source))?;
        }
        registered.wait().await
    }

    /// Delivers a received message. False if the link is of no use any more.
    pub(super) fn deliver(&self, message: &[u8]) -> bool {
        let Some(id) = message.first_chunk().map(|id| u16::from_be_bytes(*id)) else { return self.foreign() };
        let mut state = self.lock();
        state.heard = Some(Instant::now());
        let Some(waiting) = state.waiting.get(&id) else {
            let late = state.given_up.contains(&id);
            drop(state);
            return late || self.foreign();
        };
        match Reply::parse(message, &waiting.query, id) {
            Ok(reply) => {
                let waiting = state.waiting.remove(&id);
                drop(state);
                if let Some(waiting) = waiting {
                    // An asker that has just left does not care.
                    let _ = waiting.reply.send(Ok(reply));
                }
                true
            }
            Err(no) => {
                drop(state);
                if let NoReply::Malformed(why) = no {
                    tracing::debug!(server = %self.server, %why, "passing over a message");
                }
                self.foreign()
            }
        }
    }

    /// Ends the link and fails what waits on it.
    pub(super) fn end(&self, error: &DnsError) {
        let mut state = self.lock();
        state.out = None;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waiting in waiting.into_values() {
            let _ = waiting.reply.send(Err(error.clone()));
        }
    }

    /// Ends the link if nothing waits on it, and tells whether it has ended.
    pub(super) fn end_if_idle(&self) -> bool {
        let mut state = self.lock();
        if state.waiting.is_empty() {
            state.out = None;
        }
        state.out.is_none()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().out.is_none()
    }

    /// Whether anything was heard at or after `since`.
    pub(super) fn heard_since(&self, since: Instant) -> bool {
        self.lock().heard.is_some_and(|heard| heard >= since)
    }

    /// How many questions wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    fn register(&self, query: &Query) -> Result<(Registered<'_>, Option<Arc<UdpSocket>>), DnsError> {
        let mut state = self.lock();
        if state.waiting.len() >= MOST_WAITING {
            return Err(self.busy());
        }
        let id =
            std::iter::repeat_with(random_id).find(|id| !state.waiting.contains_key(id)).unwrap_or_default();
        let socket = match &state.out {
            Some(Out::Socket(socket)) => Some(Arc::clone(socket)),
            Some(Out::Queue(queue)) => match queue.try_send(query.encode(id)) {
                Ok(()) => None,
                Err(TrySendError::Full(_)) => return Err(self.busy()),
                Err(TrySendError::Closed(_)) => return Err(self.broken()),
            },
            None => return Err(self.broken()),
        };
        let (reply, answered) = oneshot::channel();
        state.waiting.insert(id, Waiting { query: query.clone(), reply });
        Ok((Registered { link: self, id, answered }, socket))
    }

    /// Counts a message that answers nothing; false if there were too many.
    fn foreign(&self) -> bool {
        self.foreign.fetch_add(1, Ordering::Relaxed) < MOST_FOREIGN
    }

    fn busy(&self) -> DnsError {
        let source = io::Error::new(io::ErrorKind::ResourceBusy, "too many questions under way");
        DnsError::network(&self.server, source)
    }

    fn broken(&self) -> DnsError {
        DnsError::network(&self.server, io::ErrorKind::BrokenPipe.into())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question in the table, for as long as somebody waits.
struct Registered<'a> {
    link: &'a Link,
    id: u16,
    answered: oneshot::Receiver<Result<Reply, DnsError>>,
}

impl Registered<'_> {
    async fn wait(mut self) -> Result<Reply, DnsError> {
        (&mut self.answered).await.unwrap_or_else(|_| Err(self.link.broken()))
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.answered.close();
        let mut state = self.link.lock();
        // The id may be another's by now, whose sender is not ours and still open.
        if state.waiting.get(&self.id).is_some_and(|waiting| waiting.reply.is_closed()) {
            state.waiting.remove(&self.id);
            if state.given_up.len() == MOST_GIVEN_UP {
                state.given_up.pop_front();
            }
            state.given_up.push_back(self.id);
        }
    }
}
