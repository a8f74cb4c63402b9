//! Datagrams: a paced load that counts what comes back, and the echo at its other end.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::num::NonZeroU16;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use culvert_os::ready::{self, Wish};
use culvert_os::udp::{self, GRO_BUFFER, MAX_BATCH, RecvSlot, SendSlot};
use socket2::SockRef;

/// Messages of one system call where each may be a joined train.
const TRAINS: usize = 16;
/// What sockets may hold, so that a moment without the processor loses nothing.
const SOCKET_BUFFER: usize = 16 << 20;
const NAP: Duration = Duration::from_millis(20);
/// How long the last answers may take.
const STRAGGLERS: Duration = Duration::from_millis(300);
/// How often a sender looks at the clock.
const TICK: Duration = Duration::from_micros(500);

/// Sends every datagram back to where it came from, as it is. The head of a SOCKS5 client's datagram names its target, and
/// that of an answer its source: the same bytes.
pub(crate) struct Echo {
    address: SocketAddr,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub(crate) fn start(address: Ipv4Addr) -> io::Result<Self> {
        let socket = open(address)?;
        let address = socket.local_addr()?;
        let closing = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&closing);
        let work = move || {
            let mut buffers = vec![vec![0; GRO_BUFFER]; TRAINS];
            while !closed.load(Ordering::Relaxed) {
                // One that cannot be sent is lost, as in any network.
                let _ = echo(&socket, &mut buffers);
            }
        };
        let thread = thread::Builder::new().name("echo".into()).spawn(work)?;
        Ok(Self { address, closing, thread: Some(thread) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn echo(socket: &UdpSocket, buffers: &mut [Vec<u8>]) -> io::Result<()> {
    wait(socket, true)?;
    let mut slots: Vec<_> = buffers.iter_mut().map(|buffer| RecvSlot::new(buffer)).collect();
    let count = udp::recv_batch(socket.as_fd(), &mut slots)?;
    let pieces: Vec<_> = slots[..count].iter().map(|slot| IoSlice::new(slot.data())).collect();
    let answers = slots[..count].iter().zip(&pieces).map(|(slot, piece)| SendSlot {
        segment_size: slot.meta.segment_size.filter(|size| usize::from(size.get()) < slot.meta.len),
        ..SendSlot::single(piece, Some(slot.meta.source))
    });
    let answers: Vec<_> = answers.collect();
    send_all(socket, &answers)
}

/// Sends what can be sent; a full buffer gets one moment.
fn send_all(socket: &UdpSocket, mut slots: &[SendSlot<'_>]) -> io::Result<()> {
    while !slots.is_empty() {
        match udp::send_batch(socket.as_fd(), slots) {
            Ok(count) => slots = &slots[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(socket, false)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait(socket: &UdpSocket, read: bool) -> io::Result<()> {
    let wish = Wish { socket: socket.as_fd(), read, write: !read };
    ready::wait([wish, wish], NAP).map(drop)
}

fn open(address: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, 0))?;
    socket.set_nonblocking(true)?;
    let reference = SockRef::from(&socket);
    let _ = reference.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = reference.set_send_buffer_size(SOCKET_BUFFER);
    // Trains stay trains where the kernel knows how.
    let _ = udp::enable_gro(socket.as_fd());
    Ok(socket)
}

/// A load of datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Datagrams a second.
    pub(crate) rate: u64,
    /// Bytes of each.
    pub(crate) size: u16,
    /// Datagrams that are handed to the kernel as one train; 1 is no train.
    pub(crate) train: usize,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) sent: u64,
    pub(crate) echoed: u64,
    pub(crate) time: Duration,
}

impl Load {
    /// One flow to `target` for `time`, at even intervals.
    pub(crate) fn run(self, target: SocketAddr, time: Duration) -> io::Result<Outcome> {
        let socket = open(Ipv4Addr::UNSPECIFIED)?;
        socket.connect(target)?;
        let (echoed, done) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| count(&socket, &echoed, &done));
            let outcome = self.send(&socket, time);
            let last = Instant::now();
            let mut seen = 0;
            while last.elapsed() < STRAGGLERS {
                let now = echoed.load(Ordering::Relaxed);
                if now == seen && last.elapsed() > STRAGGLERS / 3 {
                    break;
                }
                seen = now;
                thread::sleep(NAP);
            }
            done.store(true, Ordering::Relaxed);
            let (sent, took) = outcome?;
            Ok(Outcome { sent, echoed: echoed.load(Ordering::Relaxed).min(sent), time: took })
        })
    }

    fn send(self, socket: &UdpSocket, time: Duration) -> io::Result<(u64, Duration)> {
        let payload = vec![0x5a; usize::from(self.size) * self.train];
        let piece = IoSlice::new(&payload);
        let segment_size = NonZeroU16::new(self.size).filter(|_| self.train > 1);
        let slot = SendSlot { segment_size, ..SendSlot::single(&piece, None) };
        let slots = vec![slot; MAX_BATCH];
        let (began, mut sent) = (Instant::now(), 0u64);
        loop {
            let elapsed = began.elapsed();
            if elapsed >= time {
                return Ok((sent, elapsed));
            }
            let due = (elapsed.as_secs_f64() * self.rate as f64) as u64;
            let trains = due.saturating_sub(sent) as usize / self.train;
            if trains == 0 {
                thread::sleep(TICK);
                continue;
            }
            let trains = trains.min(slots.len());
            match send_all(socket, &slots[..trains]) {
                Ok(()) => sent += (trains * self.train) as u64,
                // An answer of the network that nobody listens yet.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Counts what arrives until `done`.
fn count(socket: &UdpSocket, counter: &AtomicU64, done: &AtomicBool) {
    let mut buffers = vec![vec![0; GRO_BUFFER]; TRAINS];
    while !done.load(Ordering::Relaxed) {
        if wait(socket, true).is_err() {
            continue;
        }
        let mut slots: Vec<_> = buffers.iter_mut().map(|buffer| RecvSlot::new(buffer)).collect();
        let Ok(count) = udp::recv_batch(socket.as_fd(), &mut slots) else { continue };
        let datagrams: usize = slots[..count].iter().map(|slot| slot.datagrams().count()).sum();
        counter.fetch_add(datagrams as u64, Ordering::Relaxed);
    }
}

/// Flows that have each had one answer, and stand open: as many as got one within `patience`.
pub(crate) fn open_flows(target: SocketAddr, count: usize, patience: Duration) -> io::Result<Vec<UdpSocket>> {
    let mut waiting: Vec<UdpSocket> = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(target)?;
        socket.set_nonblocking(true)?;
        waiting.push(socket);
    }
    let (mut open, began) = (Vec::with_capacity(count), Instant::now());
    while !waiting.is_empty() && began.elapsed() < patience {
        // In small groups: what is measured is what flows hold, not how many can begin at once.
        for group in waiting.chunks(50) {
            for socket in group {
                let _ = socket.send(b"hello");
            }
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(50));
        let answered = |socket: &UdpSocket| socket.recv(&mut [0; 64]).is_ok();
        let (done, still): (Vec<_>, Vec<_>) = waiting.into_iter().partition(answered);
        open.extend(done);
        waiting = still;
    }
    Ok(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_datagrams_come_back_alone_and_in_trains() {
        let echo = Echo::start(Ipv4Addr::LOCALHOST).unwrap();
        for train in [1, 8] {
            let load = Load { rate: 8000, size: 1200, train };
            let outcome = load.run(echo.address(), Duration::from_millis(100)).unwrap();
            assert!(outcome.sent > 100 && outcome.echoed > 100, "{outcome:?}");
        }
        let flows = open_flows(echo.address(), 20, Duration::from_secs(5)).unwrap();
        assert_eq!(flows.len(), 20);
    }
}
