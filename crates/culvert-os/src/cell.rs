//! A process in namespaces of its own: network, mounts and, for who is not root, users. For `culvert exec`.
//!
//! In a user namespace of its own a process may do to its own network and its own view of the file system what else only
//! root may (user_namespaces(7)); its user and group stay the ones that they were, and are the only ones there are.
//!
//! Also what a process needs to stand for another one: descriptors passed on, signals handed through, an end like the
//! other's.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::sys;

/// Moves the calling process to a network and a mount namespace of its own, in a user namespace of its own where it may not
/// do that otherwise. Its loopback interface is up then. To be called while there is one thread.
///
/// # Errors
/// Namespaces are not permitted here: EPERM, or ENOSPC where their number is limited to none.
pub fn enter() -> io::Result<()> {
    let own = fs::metadata("/proc/self")?;
    let plain =
        if own.uid() == 0 { sys::new_namespaces(false) } else { Err(io::ErrorKind::PermissionDenied.into()) };
    if plain.is_err() {
        sys::new_namespaces(true)?;
        // Groups may only be mapped by who cannot drop any (CVE-2014-8989).
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{0} {0} 1", own.uid()))?;
        fs::write("/proc/self/gid_map", format!("{0} {0} 1", own.gid()))?;
    }
    sys::make_mounts_private()?;
    let any = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    sys::set_up(any.as_fd(), c"lo")
}

/// Puts the file `cover` in the place of the file `path`, for this mount namespace (mount(2), MS_BIND).
///
/// # Errors
/// The kernel's.
pub fn cover(path: &Path, cover: &Path) -> io::Result<()> {
    sys::bind_mount(cover, path)
}

/// Lets programs that are started keep a descriptor, under the number that is returned.
///
/// # Errors
/// The kernel's.
pub fn pass_on(fd: BorrowedFd<'_>) -> io::Result<RawFd> {
    sys::keep_on_exec(fd)
}

/// Takes over a descriptor that was passed on to this program; programs that it starts do not get it.
///
/// # Errors
/// EBADF if there is none of this number.
pub fn take_over(number: RawFd) -> io::Result<OwnedFd> {
    sys::take_over(number)
}

/// Sends bytes, at least one, and a descriptor over a local stream (unix(7), SCM_RIGHTS).
///
/// # Errors
/// The kernel's.
pub fn send_descriptor(stream: BorrowedFd<'_>, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    sys::send_descriptor(stream, bytes, fd)
}

/// Receives what [`send_descriptor`] sent, or bytes alone. No bytes: the other end is closed.
///
/// # Errors
/// The kernel's.
pub fn receive_descriptor(stream: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    sys::receive_descriptor(stream, bytes)
}

/// The signals that are handed through to a program.
const HANDED: [i32; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// Signals that are held back until they are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Signals(());

impl Signals {
    /// Holds back what is to be handed through, for this thread and those that it starts.
    ///
    /// # Errors
    /// The kernel's.
    pub fn hold() -> io::Result<Self> {
        sys::block_signals(&HANDED).map(Self)
    }

    /// Lets them through again: programs inherit from who starts them what is held back.
    ///
    /// # Errors
    /// The kernel's.
    pub fn release() -> io::Result<()> {
        sys::unblock_signals(&HANDED)
    }

    /// Waits for the next one that was sent by a program. Those of a terminal go to all its programs by themselves.
    ///
    /// # Errors
    /// The kernel's.
    pub fn next(self) -> io::Result<i32> {
        loop {
            let (signal, by_program) = sys::wait_for_signal(&HANDED)?;
            if by_program {
                return Ok(signal);
            }
        }
    }
}

/// Sends a signal to a process.
///
/// # Errors
/// ESRCH if there is none.
pub fn send_signal(process: u32, signal: i32) -> io::Result<()> {
    sys::kill(process, signal)
}

/// Ends this process as one that a signal ended, and without a dump of its memory. Returns only for signals that end nothing.
pub fn end_by(signal: i32) {
    sys::end_by(signal);
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_goes_along_with_bytes() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut writer, reader) = UnixStream::pair().unwrap();
        send_descriptor(near.as_fd(), b"here", reader.as_fd()).unwrap();
        drop(reader);
        let mut bytes = [0; 16];
        let (length, fd) = receive_descriptor(far.as_fd(), &mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"here");
        writer.write_all(b"x").unwrap();
        let mut read = UnixStream::from(fd.unwrap());
        let mut byte = [0];
        io::Read::read_exact(&mut read, &mut byte).unwrap();
        (&near).write_all(b"alone").unwrap();
        let (length, fd) = receive_descriptor(far.as_fd(), &mut bytes).unwrap();
        assert!(length == 5 && fd.is_none());
        drop(near);
        assert_eq!(receive_descriptor(far.as_fd(), &mut bytes).unwrap().0, 0);
    }

    #[test]
    fn a_number_without_a_descriptor_is_refused() {
        assert_eq!(take_over(1 << 20).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn a_signal_from_a_program_is_handed_through() {
        std::thread::spawn(|| {
            let signals = Signals::hold().unwrap();
            sys::signal_own_thread(libc::SIGUSR2).unwrap();
            assert_eq!(signals.next().unwrap(), libc::SIGUSR2);
        })
        .join()
        .unwrap();
    }
}
