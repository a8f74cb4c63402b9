//! The stack with its link: who may touch it, who waits for what.
//!
//! One lock guards a stack. The receiving task takes it once per batch of packets; a connection's task takes it to read or
//! write, and sends what that made due, so that no byte waits for another task to run. A device with several queues has a
//! stack, a lock and a task for each, and a flow belongs to one of them.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use culvert_core::udp::Associations;
use culvert_stack::{ConnId, Outgoing, Stack};
use tokio::sync::Notify;

/// Most associations that are opened from here.
const ASSOCIATIONS: usize = 16 << 10;
/// Associations at which ended ones are first looked for.
const TIDY_AT: usize = 64;

/// What takes the packets of a stack.
pub(crate) trait Link: Send + Sync + 'static {
    /// Takes one packet, or a train. `false` if it takes none now; what it will never take is dropped, as by a network. The
    /// stack is locked meanwhile.
    fn send(&self, out: &Outgoing<'_>, udp: bool) -> bool;

    /// After a batch of them. The stack is not locked any more.
    fn flush(&self) {}
}

/// What connections and the receiving task share.
pub(crate) struct Engine {
    link: Box<dyn Link>,
    inner: Mutex<Inner>,
    /// The link took no more; the receiving task is to go on when it does.
    pub(crate) blocked: Notify,
    /// A timer is due earlier than the receiving task knows.
    pub(crate) sooner: Notify,
}

/// What the lock guards.
pub(crate) struct Inner {
    pub(crate) stack: Stack,
    /// Who waits for which connection, by its place in the stack.
    waiting: Vec<Wakers>,
    /// Those whose wait is over. They are woken once the lock is free, since it is what they ask for first.
    woken: Vec<Waker>,
    /// When the receiving task will look at the timers.
    pub(super) armed: Option<Instant>,
    /// Associations that were opened from here, by their own address.
    pub(super) opened: Associations<SocketAddr>,
    tidy_at: usize,
}

#[derive(Default)]
struct Wakers {
    /// Whose they are: a place may have changed hands before the last holder is gone.
    id: Option<ConnId>,
    read: Option<Waker>,
    write: Option<Waker>,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wait {
    Read,
    Write,
}

impl Inner {
    /// Wakes `waker` when `wait` is over for a connection.
    pub(crate) fn wait(&mut self, id: ConnId, wait: Wait, waker: &Waker) {
        if self.waiting.len() <= id.place() {
            self.waiting.resize_with(id.place() + 1, Wakers::default);
        }
        let wakers = &mut self.waiting[id.place()];
        if wakers.id != Some(id) {
            *wakers = Wakers { id: Some(id), ..Wakers::default() };
        }
        let place = match wait {
            Wait::Read => &mut wakers.read,
            Wait::Write => &mut wakers.write,
        };
        match place {
            Some(old) if old.will_wake(waker) => {}
            place => *place = Some(waker.clone()),
        }
    }

    /// Forgets who waited for a connection that is about to be released.
    pub(crate) fn forget(&mut self, id: ConnId) {
        if let Some(wakers) = self.waiting.get_mut(id.place()).filter(|wakers| wakers.id == Some(id)) {
            *wakers = Wakers::default();
        }
        while self.waiting.pop_if(|wakers| wakers.id.is_none()).is_some() {}
        if self.waiting.is_empty() {
            self.waiting = Vec::new(); // gives its memory back
        }
    }

    /// Forgets associations that have ended, now and then.
    pub(super) fn tidy(&mut self) {
        if self.opened.len() >= self.tidy_at {
            self.opened.forget_ended();
            self.tidy_at = TIDY_AT.max(self.opened.len() * 2);
        }
    }

    pub(super) fn wake(&mut self, id: ConnId, read: bool, write: bool) {
        let Some(wakers) = self.waiting.get_mut(id.place()).filter(|wakers| wakers.id == Some(id)) else {
            return;
        };
        let read = if read { wakers.read.take() } else { None };
        let write = if write { wakers.write.take() } else { None };
        // Both directions of a connection are one task's.
        let twice = read.as_ref().zip(write.as_ref()).is_some_and(|(read, write)| read.will_wake(write));
        self.woken.extend(read);
        self.woken.extend(write.filter(|_| !twice));
    }
}

impl Engine {
    /// The stack on a link.
    pub(crate) fn new(link: Box<dyn Link>, stack: Stack) -> Arc<Self> {
        let opened = Associations::new(ASSOCIATIONS);
        let inner =
            Inner { stack, waiting: Vec::new(), woken: Vec::new(), armed: None, opened, tidy_at: TIDY_AT };
        let (blocked, sooner) = (Notify::new(), Notify::new());
        Arc::new(Self { link, inner: Mutex::new(inner), blocked, sooner })
    }

    /// When the receiving task is to look at the timers.
    pub(crate) fn armed(&self) -> Option<Instant> {
        self.lock().armed
    }

    /// Runs `change` on the stack, then sends what that made due.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Inner, Instant) -> T) -> T {
        let now = Instant::now();
        let mut inner = self.lock();
        let result = change(&mut inner, now);
        self.transmit(&mut inner, now);
        let woken = std::mem::take(&mut inner.woken);
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
        self.link.flush();
        result
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what is due, as far as the link takes it, and sees that the timers are looked at in time.
    fn transmit(&self, inner: &mut Inner, now: Instant) {
        if !inner.stack.transmit(now, &mut |out| self.link.send(&out, false)) {
            self.blocked.notify_one();
        }
        if let Some(next) = inner.stack.next_timeout()
            && inner.armed.is_none_or(|armed| next < armed)
        {
            inner.armed = Some(next);
            self.sooner.notify_one();
        }
    }

    /// Sends datagrams of one length, the last of which may be shorter, from the first of two ends to the other, as far as the
    /// link takes them.
    pub(crate) fn send_datagrams(
        &self,
        inner: &mut Inner,
        ends: (SocketAddr, SocketAddr),
        datagrams: &[IoSlice<'_>],
        now: Instant,
    ) {
        inner.stack.send_datagrams(ends, datagrams, now, &mut |out| self.link.send(&out, true));
    }

    /// Sends a datagram, or a train of them, from the first of two ends to the other, if the link takes it.
    pub(crate) fn send_datagram(
        &self,
        inner: &mut Inner,
        ends: (SocketAddr, SocketAddr),
        data: &[u8],
        segment: u16,
        now: Instant,
    ) {
        inner.stack.send_datagram(ends, data, segment, now, &mut |out| self.link.send(&out, true));
    }
}
