//! A path between two network namespaces, through two TUN devices.
//!
//! ```text
//! namespace A                                   namespace B
//!   programs ─ TUN 10.9.0.1 ── Path (a thread) ── TUN 10.9.0.2 ─ programs
//! ```
//!
//! A device belongs to the namespace of the thread that opens it ([`End::open`]); the thread of the link may be anywhere.
//! Packets that arrive within a fifth of a millisecond are delivered together, so that trains stay trains: the thread
//! then carries several Gbit/s, and a path is late by at most that.

use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use culvert_os::netlink::{self, Prefix};
use culvert_os::ready::{self, Wish};
use culvert_os::tun::Tun;
use culvert_os::{iface, netns};

use crate::path::Path;
use crate::shape::Shape;
use crate::train::Piece;
use crate::way::Counts;

/// So far apart are deliveries.
const GRAIN: Duration = Duration::from_micros(200);
/// How long the thread sleeps at most before it looks whether it is to end.
const NAP: Duration = Duration::from_millis(20);
/// Packets taken from a device before the other one and the clock get their turn.
const TURN: usize = 64;

/// One end of a link: a device, up, with its addresses.
#[derive(Debug)]
pub struct End {
    tun: Tun,
}

impl End {
    /// Opens a device in the namespace of the calling thread and gives it these addresses.
    ///
    /// # Errors
    /// The system's: mostly that this is not permitted.
    pub fn open(mtu: u32, addresses: &[Prefix]) -> io::Result<Self> {
        let tun = Tun::open(None)?;
        let link = iface::index(tun.name())?;
        netlink::bring_up(link, mtu)?;
        addresses.iter().try_for_each(|address| netlink::add_address(link, *address))?;
        Ok(Self { tun })
    }

    /// The name of its interface.
    #[must_use]
    pub fn name(&self) -> &str {
        self.tun.name()
    }
}

/// Makes two network namespaces, each with an end of a link, and stays in the second one: the calling thread, and all
/// threads and programs it starts from then on, are there. What `near` starts is in the first one.
///
/// # Errors
/// The system's: mostly that this is not permitted.
pub fn between_two_networks<T: Send>(
    mtu: u32,
    addresses: [&[Prefix]; 2],
    near: impl FnOnce() -> T + Send,
) -> io::Result<([End; 2], T)> {
    let open = |addresses| {
        netns::isolate_thread()?;
        End::open(mtu, addresses)
    };
    let first = thread::scope(|scope| {
        let first = scope.spawn(|| open(addresses[0]).map(|end| (end, near())));
        first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let (first, near) = first?;
    Ok(([first, open(addresses[1])?], near))
}

/// A running link; it ends when this is dropped.
#[derive(Debug)]
pub struct Link {
    shapes: Option<Sender<[Shape; 2]>>,
    counts: Arc<Mutex<[Counts; 2]>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Link {
    /// Joins two ends by a path of these shapes, each by the end that sends.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn join(ends: [End; 2], shapes: [Shape; 2], seed: u64) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let counts = Arc::new(Mutex::default());
        let told = Arc::clone(&counts);
        let thread = thread::Builder::new().name("path".into()).spawn(move || {
            let mut carrier = Carrier { tuns: ends.map(|end| end.tun), path: Path::new(shapes, seed) };
            let mut buffer = vec![0; 1 << 16];
            loop {
                match receiver.try_recv() {
                    Ok(shapes) => carrier.path.reshape(shapes),
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
                carrier.turn(&mut buffer)?;
                *told.lock().unwrap_or_else(PoisonError::into_inner) = carrier.path.counts();
            }
        })?;
        Ok(Self { shapes: Some(sender), counts, thread: Some(thread) })
    }

    /// Gives both directions other shapes, within a few milliseconds.
    pub fn reshape(&self, shapes: [Shape; 2]) {
        if let Some(sender) = &self.shapes {
            // A link that has ended says why when it is dropped.
            drop(sender.send(shapes));
        }
    }

    /// What has happened to the packets of each end.
    #[must_use]
    pub fn counts(&self) -> [Counts; 2] {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Link {
    /// # Panics
    /// The link broke before: what was measured over it means nothing.
    fn drop(&mut self) {
        self.shapes = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Ok(Err(error))) = ended
            && !thread::panicking()
        {
            panic!("the link between the namespaces broke: {error}");
        }
    }
}

struct Carrier {
    tuns: [Tun; 2],
    path: Path<Piece>,
}

impl Carrier {
    /// Takes what the devices have, delivers what has arrived, waits for either.
    fn turn(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        for from in 0..2 {
            self.collect(from, buffer)?;
        }
        let now = Instant::now();
        for to in 0..2 {
            self.deliver(to, now)?;
        }
        let until_next = |at: Instant| at.saturating_duration_since(Instant::now()).max(GRAIN);
        let nap = self.path.next_arrival().map_or(NAP, until_next).min(NAP);
        let wish = |tun| Wish { socket: AsFd::as_fd(tun), read: true, write: false };
        ready::wait([wish(&self.tuns[0]), wish(&self.tuns[1])], nap).map(drop)
    }

    fn collect(&mut self, from: usize, buffer: &mut [u8]) -> io::Result<()> {
        for _ in 0..TURN {
            let what = match self.tuns[from].recv(buffer) {
                Ok(what) => what,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            let now = Instant::now();
            for (piece, len) in Piece::cut(&buffer[..what.len], what) {
                self.path.offer(from, piece, len, now);
            }
        }
        Ok(())
    }

    fn deliver(&mut self, to: usize, now: Instant) -> io::Result<()> {
        let mut run: Option<(Piece, u32)> = None;
        while let Some(piece) = self.path.take(to, now) {
            match &mut run {
                Some((first, count)) if first.goes_on(*count, &piece) => *count += 1,
                _ => {
                    if let Some((first, count)) = run.replace((piece, 1)) {
                        give(&first, count, &self.tuns[to])?;
                    }
                }
            }
        }
        run.map_or(Ok(()), |(first, count)| give(&first, count, &self.tuns[to]))
    }
}

/// What a device does not take is lost, as on any wire; one that is gone is an error.
fn give(first: &Piece, count: u32, tun: &Tun) -> io::Result<()> {
    match first.send(count, tun) {
        Err(error)
            if error.kind() != io::ErrorKind::WouldBlock && error.kind() != io::ErrorKind::InvalidInput =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}
