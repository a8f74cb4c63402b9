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
//! the pipe's slots.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::c_int;

use crate::sys;

/// Sizes asked for, best first. Without privilege a user may hold 64 MiB in pipes (`fs.pipe-user-pages-soft`), and the
/// kernel then refuses to enlarge further ones: what pipe2(2) gave is used as it is.
const SIZES: [c_int; 2] = [1024 * 1024, 256 * 1024];

/// Empty pipes that a thread keeps, at most.
const POOL: usize = 16;

thread_local! {
    static EMPTY: RefCell<Vec<Ends>> = const { RefCell::new(Vec::new()) };
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
    /// Takes an empty pipe from the pool of this thread, or makes one (three system calls).
    ///
    /// # Errors
    /// The system's, when no descriptors are left.
    pub fn take() -> io::Result<Self> {
        let pooled = EMPTY.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
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
            let _ = EMPTY.try_with(|pool| {
                let mut pool = pool.borrow_mut();
                if pool.len() < POOL {
                    pool.push(ends);
                }
            });
        }
    }
}

impl Ends {
    fn new() -> io::Result<Self> {
        let (read, write) = sys::pipe()?;
        let granted = SIZES.into_iter().find_map(|size| sys::set_pipe_size(write.as_fd(), size).ok());
        let capacity = match granted {
            Some(capacity) => capacity,
            None => sys::pipe_size(write.as_fd())?,
        };
        Ok(Self { read, write, capacity })
    }
}

/// Moves up to `max` bytes from a socket into the pipe. Returns how many; 0 means that the peer has ended its side.
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

/// Closes the pooled pipes of this thread.
pub fn trim() {
    let _ = EMPTY.try_with(|pool| pool.take());
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
