//! Moving bytes between sockets inside the kernel: splice(2) through pooled pipes.
//!
//! ```text
//! socket ──splice_in──▶ Pipe (up to `capacity` bytes) ──splice_out──▶ socket
//! ```
//!
//! A direction of a relay takes a [`Pipe`] when its source is readable, moves what it can, and drops the pipe once it is
//! empty: the pool of the thread keeps it for the next direction, so an idle connection holds none. A pipe dropped with
//! bytes inside is closed, and the bytes are lost with it.
//!
//! Both sockets must be non-blocking. The calls move pages without copying where the driver allows, and cost no memory but
//! the pipe's slots (40 bytes per page of capacity) and the pages inside.
//!
//! # How large a pipe
//! Measured over loopback, Linux 6.18 on two virtual Xeon cores that were busy with other work besides (load 5 to 11): each
//! connection has a sender that writes 256 KiB at a time and a receiver that reads 64 KiB at a time, and one thread relays
//! all. Medians of 9 rounds of 2 GiB, in CPU seconds of the relaying thread per GiB, with the span of all rounds; system
//! calls per GiB are of the same thread.
//!
//! | pipe | 1 connection | 8 connections | 64 connections | calls at 8 |
//! |---|---|---|---|---|
//! | 64 KiB | 0.163 (0.111-0.256) | 0.161 (0.138-0.201) | 0.173 (0.145-0.199) | 33,100 |
//! | 256 KiB | 0.131 (0.102-0.202) | 0.134 (0.107-0.180) | 0.114 (0.100-0.152) | 8,700 |
//! | 512 KiB | 0.130 (0.084-0.173) | 0.091 (0.073-0.128) | 0.102 (0.091-0.127) | 4,600 |
//! | 1 MiB | 0.122 (0.090-0.142) | 0.071 (0.059-0.087) | 0.072 (0.065-0.092) | 2,600 |
//! | copied, 256 KiB | 0.271 (0.123-0.351) | 0.263 (0.217-0.352) | 0.293 (0.220-0.317) | 8,300 |
//!
//! Throughput stood between 2.4 and 3.9 GiB/s and differed by less than it swung between rounds, since senders and
//! receivers shared the two cores; on the same machine at load 50 to 90, where all of it is noisier still, 32 and 64
//! connections got 0.9 GiB/s through 256 KiB pipes and 0.6 through 1 MiB ones. CPU time of the whole process, 0.47 to 0.62
//! per GiB, did not separate the sizes. So a larger pipe saves the relay's own CPU time, with few connections at no loss;
//! more was not shown. A pipe of 8 KiB costs 0.324 (0.226-0.869), more than copying.
//!
//! Hence 1 MiB for the first thirty-two pipes of a process, and 256 KiB for those beyond. This bounds what stalled receivers
//! can pin, and shares out the 64 MiB that a user without privilege may hold (`fs.pipe-user-pages-soft`): 32 large and 128
//! small pipes. Past those the kernel makes pipes of two pages; [`Pipe::take`] then fails, so that its caller copies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys;

/// Size asked for while all pipes together hold less than [`LARGE_TOTAL`].
const LARGE: usize = 1024 * 1024;

/// Size asked for beyond.
const SMALL: usize = 256 * 1024;

/// Capacity of all pipes together from which further ones are small.
const LARGE_TOTAL: usize = 32 * LARGE;

/// What a pipe must hold to be better than copying; each fresh one does while the user's quota lasts.
const WORTH_IT: usize = 64 * 1024;

/// Capacity of all open pipes of this process, pooled ones included.
static TOTAL: AtomicUsize = AtomicUsize::new(0);

/// Open pipes of this process, pooled ones included, and most of them; see [`limit`].
static OPEN: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Lets this process have at most so many pipes, of two descriptors each: where descriptors are few, connections need
/// them more.
pub fn limit(pipes: usize) {
    LIMIT.store(pipes, Relaxed);
}

/// Empty pipes that a thread keeps, at most.
const POOL: usize = 16;

/// One thread's empty pipes. Only that thread takes and gives; the lock is there for [`trim`], which must reach the pools
/// of threads that have nothing to do, and is otherwise never waited for.
type Pool = Mutex<Vec<Ends>>;

/// The pools of all threads, for [`trim`].
static POOLS: Mutex<Vec<Arc<Pool>>> = Mutex::new(Vec::new());

/// A thread's entry in [`POOLS`], taken out when the thread ends.
struct Mine(Arc<Pool>);

impl Mine {
    fn enter() -> Self {
        let pool = Arc::<Pool>::default();
        lock(&POOLS).push(Arc::clone(&pool));
        Self(pool)
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        lock(&POOLS).retain(|pool| !Arc::ptr_eq(pool, &self.0));
    }
}

thread_local! {
    static MINE: Mine = Mine::enter();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel pipe and the count of bytes inside it.
#[derive(Debug)]
pub struct Pipe {
    /// `None` only while the pipe is being dropped.
    ends: Option<Ends>,
    inside: usize,
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
}

impl Pipe {
    /// Takes an empty pipe from the pool of this thread, or makes one (two system calls).
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`] when the kernel grants less than 64 KiB or there are as many as may be ([`limit`]),
    /// and the system's when no descriptors are left: copy instead.
    pub fn take() -> io::Result<Self> {
        let pooled = MINE.try_with(|mine| lock(&mine.0).pop()).ok().flatten();
        let ends = pooled.map_or_else(Ends::new, Ok)?;
        Ok(Self { ends: Some(ends), inside: 0 })
    }

    /// Bytes inside: read from one socket and not yet written to the other.
    pub fn len(&self) -> usize {
        self.inside
    }

    /// Whether everything that went in has come out.
    pub fn is_empty(&self) -> bool {
        self.inside == 0
    }

    /// Bytes the pipe takes at best. Small segments fill its page-sized slots earlier.
    pub fn capacity(&self) -> usize {
        self.ends().capacity
    }

    fn ends(&self) -> &Ends {
        self.ends.as_ref().expect("only drop takes the ends")
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if let (Some(ends), true) = (self.ends.take(), self.is_empty()) {
            // A thread that is ending has no pool any more: the pipe is closed like one too many.
            let _ = MINE.try_with(|mine| {
                let mut pool = lock(&mine.0);
                if pool.len() < POOL {
                    pool.push(ends);
                }
            });
        }
    }
}

impl Ends {
    fn new() -> io::Result<Self> {
        if OPEN.load(Relaxed) >= LIMIT.load(Relaxed) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let (read, write) = sys::pipe()?;
        let sizes = if TOTAL.load(Relaxed) < LARGE_TOTAL { &[LARGE, SMALL][..] } else { &[SMALL] };
        let granted = sizes.iter().find_map(|size| sys::set_pipe_size(write.as_fd(), *size).ok());
        let capacity = match granted {
            Some(capacity) => capacity,
            None => sys::pipe_size(write.as_fd())?,
        };
        if capacity < WORTH_IT {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        TOTAL.fetch_add(capacity, Relaxed);
        OPEN.fetch_add(1, Relaxed);
        Ok(Self { read, write, capacity })
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        TOTAL.fetch_sub(self.capacity, Relaxed);
        OPEN.fetch_sub(1, Relaxed);
    }
}

/// Moves up to `max` bytes, at least one, from a socket into the pipe. Returns how many; 0 means that the peer has ended
/// its side.
///
/// # Errors
/// - [`io::ErrorKind::WouldBlock`]: the socket has nothing to read. Wait for readiness.
/// - [`io::ErrorKind::StorageFull`]: the pipe has no room left; empty it first. Never from an empty pipe. The socket may
///   well be readable, so its readiness must not be forgotten, and a loop around `try_io` does not forget it.
/// - others from the connection, such as [`io::ErrorKind::ConnectionReset`]. Bytes inside the pipe stay good.
pub fn splice_in(from: BorrowedFd<'_>, pipe: &mut Pipe, max: usize) -> io::Result<usize> {
    debug_assert!(max > 0, "asking for nothing would look like the end of the stream");
    let room = pipe.capacity().saturating_sub(pipe.inside);
    if room == 0 {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let write = pipe.ends().write.as_fd();
    match sys::splice(from, write, max.min(room), false) {
        Ok(moved) => {
            pipe.inside += moved;
            Ok(moved)
        }
        // The kernel gives one answer for an idle socket and for a pipe whose slots are taken.
        Err(error)
            if error.kind() == io::ErrorKind::WouldBlock && !pipe.is_empty() && !sys::writable(write)? =>
        {
            Err(io::ErrorKind::StorageFull.into())
        }
        Err(error) => Err(error),
    }
}

/// Moves what it can from the pipe into a socket. Returns how many bytes; 0 only from an empty pipe.
///
/// `more` promises that more bytes follow at once (SPLICE_F_MORE): the kernel then holds an unfilled last segment back, for
/// up to 200 ms. Say it only with the next bytes at hand.
///
/// # Errors
/// - [`io::ErrorKind::WouldBlock`]: the socket's buffer is full. Wait for readiness.
/// - others from the connection, such as [`io::ErrorKind::BrokenPipe`] (the process must ignore SIGPIPE, as Rust programs
///   do). The bytes stay in the pipe.
pub fn splice_out(pipe: &mut Pipe, to: BorrowedFd<'_>, more: bool) -> io::Result<usize> {
    if pipe.is_empty() {
        return Ok(0);
    }
    let moved = sys::splice(pipe.ends().read.as_fd(), to, pipe.inside, more)?;
    pipe.inside -= moved;
    Ok(moved)
}

/// Closes the pooled pipes of all threads.
pub fn trim() {
    for pool in lock(&POOLS).iter() {
        // Closed after the lock is released: the owner may want it.
        let pipes = std::mem::take(&mut *lock(pool));
        drop(pipes);
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
