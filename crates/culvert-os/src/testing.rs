//! What the tests of several modules share.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::resume_unwind;
use std::thread;

/// Loopback of both families, port 0.
pub(crate) const LOOPBACKS: [SocketAddr; 2] = [
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
    SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST), 0),
];

/// Two non-blocking ends of a TCP connection over loopback.
pub(crate) fn tcp_pair(loopback: SocketAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(loopback).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    for stream in [&near, &far] {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    (near, far)
}

/// Waits until the socket can be read, or until ten seconds prove the test wrong.
pub(crate) fn wait_readable(socket: &impl AsFd) {
    wait(socket, libc::POLLIN);
}

/// Waits until the socket can be written, as above.
pub(crate) fn wait_writable(socket: &impl AsFd) {
    wait(socket, libc::POLLOUT);
}

fn wait(socket: &impl AsFd, events: libc::c_short) {
    let mut poll = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events, revents: 0 };
    // SAFETY: one valid pollfd, as the count says.
    let ready = unsafe { libc::poll(&mut poll, 1, 10_000) };
    assert_eq!(ready, 1, "the socket never became ready");
}

/// Calls until the answer is something else than "would block", waiting for the socket to be readable in between.
pub(crate) fn when_readable<T>(socket: &impl AsFd, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_readable(socket),
            other => return other,
        }
    }
}

/// Runs `test` on a thread with a network namespace of its own, where only loopback exists and is up. Says so and does not
/// run it where namespaces are not permitted.
pub(crate) fn in_fresh_network(name: &str, test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let run = || {
            if let Err(error) = crate::netns::isolate_thread() {
                eprintln!("SKIPPED {name}: no network namespaces here: {error}");
                return;
            }
            test();
        };
        scope.spawn(run).join().unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// The network namespace of the calling thread, such as `net:[4026531840]`.
pub(crate) fn current_network() -> std::path::PathBuf {
    std::fs::read_link("/proc/thread-self/ns/net").unwrap()
}

/// Numbers that look random and are the same in every run (xorshift).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// A number from 1 to `limit`.
    pub(crate) fn up_to(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize + 1
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.up_to(256) as u8).collect()
    }
}
