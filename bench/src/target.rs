//! The load generator's server end: what connections lead to after the programs under test.
//!
//! A pool of threads shares one listener, each serving one connection at a time, so that a connection costs no thread
//! start. Received bulk is discarded in the kernel (`MSG_TRUNC`), never copied; sent bulk comes from one small buffer
//! that stays in the processor's cache.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use socket2::{SockRef, Socket};

use crate::datagrams::Echo;
use crate::failure::Failure;
use crate::identity::OwnTls;
use crate::verify;
use crate::wire::{self, HEADER, Header, Op, READY, REQUEST, SocksCommand};
use crate::{inner, objects};

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
    /// Connections that last until their client has enough. Where a device goes away, nobody else would end them.
    lasting: Mutex<BTreeMap<u64, TcpStream>>,
    next_lasting: AtomicU64,
    /// What each [`Op::Verify`] found at this end.
    verdicts: Mutex<Vec<Result<(), String>>>,
    payload: Arc<[u8]>,
    /// For objects over HTTPS, and for streams that carry TLS.
    tls: OwnTls,
    /// Whether connections come from a SOCKS client, and where its datagrams are to go.
    socks: Option<Echo>,
}

impl Target {
    /// Listens on a port of its own, for up to `streams` connections at once.
    pub(crate) fn start(streams: usize) -> Result<Self, Failure> {
        Self::launch(Ipv4Addr::LOCALHOST, streams, None)
    }

    /// As [`Target::start`], on all of the host's addresses.
    pub(crate) fn start_everywhere(streams: usize) -> Result<Self, Failure> {
        let mut target = Self::launch(Ipv4Addr::UNSPECIFIED, streams, None)?;
        target.address.set_ip(Ipv4Addr::LOCALHOST.into());
        Ok(target)
    }

    /// As a SOCKS5 server which is itself whatever it is asked for: each connection becomes one to the target, each
    /// datagram comes back. So the server costs nothing beside the target.
    pub(crate) fn start_socks(address: Ipv4Addr, streams: usize) -> Result<Self, Failure> {
        let echo = Echo::start(address).map_err(Failure::io("cannot start the echo of datagrams"))?;
        Self::launch(address, streams, Some(echo))
    }

    fn launch(address: Ipv4Addr, streams: usize, socks: Option<Echo>) -> Result<Self, Failure> {
        let doing = "cannot start the load generator's target";
        let (listener, address) = listen(address).map_err(Failure::io(doing))?;
        let shared = Arc::new(Shared {
            listener,
            closing: AtomicBool::new(false),
            received: (0..streams).map(|_| AtomicU64::new(0)).collect(),
            held: Mutex::default(),
            lasting: Mutex::default(),
            next_lasting: AtomicU64::new(0),
            verdicts: Mutex::default(),
            payload: verify::noise(WRITE),
            tls: OwnTls::create()?,
            socks,
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

    /// What clients need for HTTPS.
    pub(crate) fn client_tls(&self) -> &Arc<ClientConfig> {
        &self.shared.tls.client
    }

    /// What clients need for streams that carry TLS.
    pub(crate) fn inner_tls(&self) -> &Arc<ClientConfig> {
        &self.shared.tls.inner
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
        for stream in lock(&self.shared.lasting).values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
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
        if let Some(echo) = &self.socks
            && wire::socks_accept(&mut stream, echo.address())? == SocksCommand::Associate
        {
            // Its datagrams come by another way.
            lock(&self.held).push(stream);
            return Ok(());
        }
        let mut header = [0; HEADER];
        stream.read_exact(&mut header)?;
        let Some(header) = Header::decode(&header) else {
            if header[0] != TLS_HANDSHAKE {
                return objects::serve(&mut stream, &header, &self.payload);
            }
            let mut session = objects::accept_tls(&mut stream, &header, &self.tls.server)?;
            if session.conn.alpn_protocol() == Some(inner::ALPN) {
                drop(session);
                return self.serve_records(&mut stream);
            }
            return objects::serve(&mut session, &[], &self.payload);
        };
        match header.op {
            Op::Ping => stream.write_all(&[READY]),
            Op::Down => self.lasting(&mut stream, |stream| send_endlessly(stream, &self.payload)),
            Op::Up => {
                let Some(counter) = self.received.get(header.stream as usize) else { return Ok(()) };
                stream.write_all(&[READY])?;
                self.lasting(&mut stream, |stream| discard(stream, counter))
            }
            Op::Echo => self.lasting(&mut stream, |stream| {
                let mut bytes = vec![0; (header.length as usize).clamp(1, WRITE)];
                while stream.read_exact(&mut bytes).is_ok() {
                    stream.write_all(&bytes)?;
                }
                Ok(())
            }),
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

    /// Serves a connection for as long as its client, or this target, lasts.
    fn lasting(
        &self,
        stream: &mut TcpStream,
        serve: impl FnOnce(&mut TcpStream) -> io::Result<()>,
    ) -> io::Result<()> {
        stream.set_read_timeout(None)?;
        let number = self.next_lasting.fetch_add(1, Ordering::Relaxed);
        lock(&self.lasting).insert(number, stream.try_clone()?);
        // It may have been too late to be shut down.
        let outcome = if self.closing.load(Ordering::Relaxed) { Ok(()) } else { serve(stream) };
        lock(&self.lasting).remove(&number);
        outcome
    }

    /// A stream whose TLS handshake is over: what looks like records of it from here on.
    fn serve_records(&self, stream: &mut TcpStream) -> io::Result<()> {
        inner::say(stream, &[READY])?;
        let header: [u8; HEADER] = inner::hear(stream)?;
        let header = Header::decode(&header).ok_or(io::ErrorKind::InvalidData)?;
        match header.op {
            Op::Down => self.lasting(stream, |stream| send_endlessly(stream, &inner::records())),
            Op::Up => {
                let Some(counter) = self.received.get(header.stream as usize) else { return Ok(()) };
                inner::say(stream, &[READY])?;
                self.lasting(stream, |stream| discard(stream, counter))
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
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

fn listen(address: Ipv4Addr) -> io::Result<(Socket, SocketAddr)> {
    let listener = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    listener.bind(&SocketAddr::from((address, 0)).into())?;
    listener.listen(BACKLOG)?;
    let address = listener.local_addr()?.as_socket().ok_or_else(|| io::Error::other("no address"))?;
    Ok((listener, address))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_ends_although_a_client_stays() {
        let target = Target::start(2).unwrap();
        let clients: Vec<_> = [Op::Up, Op::Echo]
            .into_iter()
            .map(|op| {
                let mut client = TcpStream::connect(target.address()).unwrap();
                client.write_all(&Header { op, stream: 0, length: 1 }.encode()).unwrap();
                if op == Op::Echo {
                    client.write_all(b"x").unwrap();
                }
                client.read_exact(&mut [0]).unwrap();
                client
            })
            .collect();
        drop(target);
        drop(clients);
    }
}
