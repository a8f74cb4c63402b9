//! The load generator's server end: what connections lead to after the programs under test.
//!
//! A pool of threads shares one listener, each serving one connection at a time, so that a connection costs no thread
//! start. Received bulk is discarded in the kernel (`MSG_TRUNC`), never copied; sent bulk comes from one small buffer
//! that stays in the processor's cache.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use socket2::{SockRef, Socket};

use crate::failure::Failure;
use crate::identity::OwnTls;
use crate::objects;
use crate::verify;
use crate::wire::{HEADER, Header, Op, READY, REQUEST};

/// How much one bulk write hands over.
pub(crate) const WRITE: usize = 256 * 1024;
/// How much one discarding read asks for.
const READ: usize = 1024 * 1024;
/// Connections that the kernel keeps for the threads.
const BACKLOG: i32 = 4096;
/// The threads hold no buffers on their stacks.
const STACK: usize = 128 * 1024;
/// The first byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 22;
/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running target; dropping it closes everything.
pub(crate) struct Target {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    listener: Socket,
    closing: AtomicBool,
    /// Bytes received by stream number, for [`Op::Up`].
    received: Vec<AtomicU64>,
    /// Idle connections of [`Op::Hold`].
    held: Mutex<Vec<TcpStream>>,
    /// What each [`Op::Verify`] found at this end.
    verdicts: Mutex<Vec<Result<(), String>>>,
    payload: Arc<[u8]>,
    /// For objects over HTTPS.
    tls: Option<OwnTls>,
}

impl Target {
    /// Listens on a port of its own, for up to `streams` connections at once.
    pub(crate) fn start(streams: usize) -> Result<Self, Failure> {
        Self::launch(streams, None)
    }

    /// As [`Target::start`], and serves HTTPS as well.
    pub(crate) fn start_with_tls(streams: usize) -> Result<Self, Failure> {
        Self::launch(streams, Some(OwnTls::create()?))
    }

    fn launch(streams: usize, tls: Option<OwnTls>) -> Result<Self, Failure> {
        let doing = "cannot start the load generator's target";
        let (listener, address) = listen().map_err(Failure::io(doing))?;
        let shared = Arc::new(Shared {
            listener,
            closing: AtomicBool::new(false),
            received: (0..streams).map(|_| AtomicU64::new(0)).collect(),
            held: Mutex::default(),
            verdicts: Mutex::default(),
            payload: verify::noise(WRITE),
            tls,
        });
        // Some more than needed: a thread is still busy for a moment after its client has gone.
        let threads = (0..streams + streams.min(16)).map(|_| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("target".into()).stack_size(STACK).spawn(move || shared.accept())
        });
        let threads = threads.collect::<io::Result<_>>().map_err(Failure::io(doing))?;
        Ok(Self { address, shared, threads })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What clients need for HTTPS, where it is served.
    pub(crate) fn client_tls(&self) -> Option<&Arc<ClientConfig>> {
        self.shared.tls.as_ref().map(|tls| &tls.client)
    }

    /// Bytes that have arrived on an [`Op::Up`] stream since the target began.
    pub(crate) fn received(&self, stream: usize) -> u64 {
        self.shared.received[stream].load(Ordering::Relaxed)
    }

    /// Closes the idle connections.
    pub(crate) fn release_held(&self) {
        lock(&self.shared.held).clear();
    }

    /// Takes what `count` integrity checks found wrong at this end, waiting a moment for the last of them.
    pub(crate) fn take_faults(&self, count: usize) -> Vec<String> {
        let begun = Instant::now();
        while lock(&self.shared.verdicts).len() < count && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        let verdicts = std::mem::take(&mut *lock(&self.shared.verdicts));
        let missing = count.saturating_sub(verdicts.len());
        let mut faults: Vec<String> = verdicts.into_iter().filter_map(Result::err).collect();
        if missing > 0 {
            faults.push(format!("{missing} of {count} streams did not finish at the target"));
        }
        faults
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        // Ends every `accept` that is waiting.
        let _ = self.shared.listener.shutdown(Shutdown::Both);
        self.release_held();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn accept(&self) {
        while !self.closing.load(Ordering::Relaxed) {
            let Ok((socket, _)) = self.listener.accept() else { continue };
            // A client that breaks off is noticed and told about at the client's own end.
            let _ = self.serve(socket.into());
        }
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut header = [0; HEADER];
        stream.read_exact(&mut header)?;
        let Some(header) = Header::decode(&header) else {
            return match &self.tls {
                Some(tls) if header[0] == TLS_HANDSHAKE => {
                    objects::serve_tls(&mut stream, &header, &tls.server, &self.payload)
                }
                _ => objects::serve(&mut stream, &header, &self.payload),
            };
        };
        match header.op {
            Op::Ping => stream.write_all(&[READY]),
            Op::Down => send_endlessly(&mut stream, &self.payload),
            Op::Up => {
                stream.set_read_timeout(None)?;
                let Some(counter) = self.received.get(header.stream as usize) else { return Ok(()) };
                stream.write_all(&[READY])?;
                discard(&stream, counter)
            }
            Op::Request => {
                let mut rest = [0; REQUEST - HEADER];
                stream.read_exact(&mut rest)?;
                let length = (header.length as usize).min(self.payload.len());
                stream.write_all(&self.payload[..length])?;
                // The client closes first, as browsers do.
                stream.read(&mut rest).map(|_| ())
            }
            Op::Hold => {
                stream.write_all(&[READY])?;
                lock(&self.held).push(stream);
                Ok(())
            }
            Op::Verify => {
                let seeds = verify::Seeds::of_target(header.stream);
                let verdict = verify::exchange(&stream, seeds, header.length);
                let verdict =
                    verdict.map_err(|fault| format!("stream {} at the target: {fault}", header.stream));
                lock(&self.verdicts).push(verdict);
                Ok(())
            }
        }
    }
}

/// Writes `payload` again and again until the other end or a stop closes the connection.
pub(crate) fn send_endlessly(stream: &mut TcpStream, payload: &[u8]) -> io::Result<()> {
    loop {
        stream.write_all(payload)?;
    }
}

/// Receives until the end without copying: the kernel drops the bytes and tells how many they were.
pub(crate) fn discard(stream: &TcpStream, counter: &AtomicU64) -> io::Result<()> {
    let socket = SockRef::from(stream);
    // The kernel writes nothing here, so the memory is never touched and costs nothing.
    let mut space: Vec<u8> = Vec::with_capacity(READ);
    loop {
        match socket.recv_with_flags(space.spare_capacity_mut(), libc::MSG_TRUNC) {
            Ok(0) => return Ok(()),
            Ok(count) => _ = counter.fetch_add(count as u64, Ordering::Relaxed),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn listen() -> io::Result<(Socket, SocketAddr)> {
    let listener = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    listener.listen(BACKLOG)?;
    let address = listener.local_addr()?.as_socket().ok_or_else(|| io::Error::other("no address"))?;
    Ok((listener, address))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
