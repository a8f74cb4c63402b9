//! A path between a UDP client and a UDP server, on one machine and without privileges.
//!
//! ```text
//! client ──▶ [relay's address] ── Path (a thread) ── [another port] ──▶ server
//! ```
//!
//! One client at a time: whoever sent last gets the answers. A datagram costs two system calls, so this is for paths up to
//! some 100 Mbit/s.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use culvert_os::ready::{self, Wish};

use crate::path::Path;
use crate::shape::Shape;

/// How long the thread sleeps at most before it looks whether it is to end.
const NAP: Duration = Duration::from_millis(20);
/// Datagrams taken from a socket before the other one and the clock get their turn.
const TURN: usize = 64;
/// Bytes of IP and UDP heads, which a path counts too.
const HEADS: usize = 28;

/// A running relay; it ends when this is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Opens a relay in front of `server`. The client's direction has the first shape.
    ///
    /// # Errors
    /// The system's.
    pub fn open(server: SocketAddr, shapes: [Shape; 2], seed: u64) -> io::Result<Self> {
        let front = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let back = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        back.connect(server)?;
        for socket in [&front, &back] {
            socket.set_nonblocking(true)?;
        }
        let address = front.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let thread = thread::Builder::new().name("path".into()).spawn(move || {
            let mut carrier = Carrier { front, back, client: None, path: Path::new(shapes, seed) };
            while !end.load(Ordering::Relaxed) {
                carrier.turn();
            }
        })?;
        Ok(Self { address, ended, thread: Some(thread) })
    }

    /// Where the client finds the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Its panic has been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Carrier {
    front: UdpSocket,
    back: UdpSocket,
    client: Option<SocketAddr>,
    path: Path<Vec<u8>>,
}

impl Carrier {
    fn turn(&mut self) {
        let mut buffer = [0; 1 << 16];
        // Errors other than "nothing there" report unreachable peers: those datagrams are lost.
        for _ in 0..TURN {
            let Ok((len, client)) = self.front.recv_from(&mut buffer) else { break };
            self.client = Some(client);
            self.path.offer(0, buffer[..len].to_vec(), len + HEADS, Instant::now());
        }
        for _ in 0..TURN {
            let Ok(len) = self.back.recv(&mut buffer) else { break };
            self.path.offer(1, buffer[..len].to_vec(), len + HEADS, Instant::now());
        }
        let now = Instant::now();
        while let Some(datagram) = self.path.take(1, now) {
            let _ = self.back.send(&datagram);
        }
        while let Some(datagram) = self.path.take(0, now) {
            let _ = self.client.map(|client| self.front.send_to(&datagram, client));
        }
        let nap = self.path.next_arrival().map_or(NAP, |at| at.saturating_duration_since(now)).min(NAP);
        let wish = |socket| Wish { socket: AsFd::as_fd(socket), read: true, write: false };
        let _ = ready::wait([wish(&self.front), wish(&self.back)], nap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Loss;

    #[test]
    fn datagrams_come_late_and_some_not_at_all() {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let shape = Shape { delay: Duration::from_millis(20), ..Shape::default() };
        let shapes = [shape.clone().losing(Loss::Random(0.5)), shape];
        let relay = Relay::open(server.local_addr().unwrap(), shapes, 1).unwrap();
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let start = Instant::now();
        for number in 0..100u8 {
            client.send_to(&[number], relay.address()).unwrap();
        }
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        }
        let mut buffer = [0; 16];
        let mut arrived = 0;
        while let Ok((len, from)) = server.recv_from(&mut buffer) {
            assert!(start.elapsed() >= Duration::from_millis(20));
            server.send_to(&buffer[..len], from).unwrap();
            arrived += 1;
        }
        assert!((30..70).contains(&arrived), "{arrived} of 100");
        let mut answers = 0;
        while client.recv_from(&mut buffer).is_ok() {
            answers += 1;
        }
        assert_eq!(answers, arrived, "the way back loses none");
    }
}
