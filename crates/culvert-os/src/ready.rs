//! Waiting for sockets on a thread that has nothing else to do: ppoll(2).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::sys;

/// A socket and what is to be done with it once it is ready. One that asks for neither only reports that it broke.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The socket.
    pub socket: BorrowedFd<'a>,
    /// It is to be read.
    pub read: bool,
    /// It is to be written.
    pub write: bool,
}

/// Blocks until one of two sockets is ready for what is wished, or broken, but not longer than `limit`. Whether one was; a
/// signal too ends the wait, with `false`.
///
/// # Errors
/// The kernel has no memory for it.
pub fn wait(wishes: [Wish<'_>; 2], limit: Duration) -> io::Result<bool> {
    sys::wait_any(wishes.map(|wish| (wish.socket, wish.read, wish.write)), limit)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    fn wish(socket: &UnixStream, read: bool, write: bool) -> Wish<'_> {
        Wish { socket: socket.as_fd(), read, write }
    }

    #[test]
    fn either_socket_ends_the_wait_and_none_lets_it_run_out() {
        let (mut left, right) = UnixStream::pair().unwrap();
        let (quiet, _other) = UnixStream::pair().unwrap();
        assert!(!wait([wish(&right, true, false), wish(&quiet, true, false)], SHORT).unwrap());
        left.write_all(b"x").unwrap();
        let long = Duration::from_secs(60);
        assert!(wait([wish(&right, true, false), wish(&quiet, true, false)], long).unwrap());
        assert!(wait([wish(&quiet, true, false), wish(&right, true, false)], long).unwrap());
        assert!(wait([wish(&quiet, false, true), wish(&quiet, true, false)], long).unwrap());
        assert!(!wait([wish(&right, false, false), wish(&quiet, true, false)], SHORT).unwrap());
        drop(left);
        assert!(
            wait([wish(&right, false, false), wish(&quiet, true, false)], long).unwrap(),
            "a break shows"
        );
    }
}
