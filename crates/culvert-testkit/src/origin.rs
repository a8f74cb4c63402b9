//! The servers that a client wants to reach through the proxy, all in one: TCP services chosen by a first line,
//! a server that speaks first, and UDP echo, each on `127.0.0.1` and `::1`.
//!
//! ```text
//! client > send 7 1000\n                 one line names the service, its seed and its length
//! origin < 1000 bytes of pattern 7       then both follow the service's script, see `Service`
//! ```
//!
//! What the origin saw of a request is kept under the request's seed, so a test can ask whether the other end
//! received everything and how its connection ended.

use crate::pattern::{self, Verifier};
use crate::ports::Port;
use crate::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// What the server that speaks first says.
pub const BANNER: &[u8] = b"220 origin speaks first\r\n";

/// A datagram that begins so is answered from another port than the one it was sent to.
pub const ELSEWHERE: &[u8] = b"elsewhere ";

/// Bytes moved at a time.
const BLOCK: usize = 64 * 1024;

/// How long a test waits for what the origin should see.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a TCP client asks of the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Sends back whatever comes, until end of stream.
    Echo,
    /// Sends `length` bytes of the pattern, then closes its direction.
    Send {
        /// Of the pattern, and the name of the record.
        seed: u64,
        /// In bytes.
        length: u64,
    },
    /// Verifies `length` bytes from the client, then answers a verdict line.
    Take {
        /// Of the pattern, and the name of the record.
        seed: u64,
        /// In bytes.
        length: u64,
    },
    /// [`Send`](Self::Send) and [`Take`](Self::Take) at once, the client's bytes with seed + 1; the verdict comes last.
    Both {
        /// Of the pattern, and the name of the record.
        seed: u64,
        /// In bytes, each way.
        length: u64,
    },
    /// The client ends its direction first: verifies to the end of stream, then answers a verdict line.
    Digest {
        /// Of the pattern, and the name of the record.
        seed: u64,
    },
    /// The origin ends its direction first: sends `length` bytes, closes, then verifies what the client still sends
    /// (with seed + 1).
    Farewell {
        /// Of the pattern, and the name of the record.
        seed: u64,
        /// In bytes.
        length: u64,
    },
    /// Reads nothing until [`Origin::release`], then is [`Take`](Self::Take).
    Stall {
        /// Of the pattern, and the name of the record.
        seed: u64,
        /// In bytes.
        length: u64,
    },
    /// Sends `length` bytes, waits for one byte, then resets the connection.
    Reset {
        /// Of the pattern, and the name of the record.
        seed: u64,
        /// In bytes.
        length: u64,
    },
    /// Says `ready`, then reads until the connection ends and records how.
    Watch {
        /// The name of the record.
        seed: u64,
    },
}

impl Service {
    /// The line that asks for it.
    #[must_use]
    pub fn line(self) -> String {
        match self {
            Self::Echo => "echo\n".into(),
            Self::Send { seed, length } => format!("send {seed} {length}\n"),
            Self::Take { seed, length } => format!("take {seed} {length}\n"),
            Self::Both { seed, length } => format!("both {seed} {length}\n"),
            Self::Digest { seed } => format!("digest {seed}\n"),
            Self::Farewell { seed, length } => format!("farewell {seed} {length}\n"),
            Self::Stall { seed, length } => format!("stall {seed} {length}\n"),
            Self::Reset { seed, length } => format!("reset {seed} {length}\n"),
            Self::Watch { seed } => format!("watch {seed}\n"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let seed = words.next().map_or(Some(0), |word| word.parse().ok())?;
        let length = words.next().map_or(Some(0), |word| word.parse().ok())?;
        Some(match name {
            "echo" => Self::Echo,
            "send" => Self::Send { seed, length },
            "take" => Self::Take { seed, length },
            "both" => Self::Both { seed, length },
            "digest" => Self::Digest { seed },
            "farewell" => Self::Farewell { seed, length },
            "stall" => Self::Stall { seed, length },
            "reset" => Self::Reset { seed, length },
            "watch" => Self::Watch { seed },
            _ => return None,
        })
    }

    fn seed(self) -> u64 {
        match self {
            Self::Echo => 0,
            Self::Send { seed, .. }
            | Self::Take { seed, .. }
            | Self::Both { seed, .. }
            | Self::Digest { seed }
            | Self::Farewell { seed, .. }
            | Self::Stall { seed, .. }
            | Self::Reset { seed, .. }
            | Self::Watch { seed } => seed,
        }
    }
}

/// A seed that no other request of this process has.
pub fn fresh_seed() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(2, Ordering::Relaxed)
}

/// What the origin saw of one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// Payload bytes read and found right.
    pub received: u64,
    /// Payload bytes that the kernel accepted.
    pub sent: u64,
    /// How it ended; `None` while it lasts.
    pub end: Option<End>,
}

/// How a request ended at the origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The service ran to its end.
    Clean,
    /// The connection was reset under it.
    Reset,
    /// Wrong bytes or another failure, in words.
    Failed(String),
}

/// A running origin; its tasks end when it is dropped.
#[derive(Debug)]
pub struct Origin {
    services: Port,
    banner: Port,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

impl Origin {
    /// Binds all sockets and serves.
    ///
    /// # Errors
    /// When a socket cannot be bound.
    pub async fn start() -> Result<Self> {
        let (services, banner) = (Port::reserve()?, Port::reserve()?);
        let state = Arc::new(State::default());
        let mut tasks = JoinSet::new();
        for address in [services.v4(), services.v6()] {
            let state = Arc::clone(&state);
            tasks.spawn(accept(TcpListener::bind(address).await?, move |stream| {
                serve(stream, Arc::clone(&state))
            }));
            let elsewhere = UdpSocket::bind((address.ip(), 0)).await?;
            tasks.spawn(echo_datagrams(UdpSocket::bind(address).await?, elsewhere));
        }
        for address in [banner.v4(), banner.v6()] {
            tasks.spawn(accept(TcpListener::bind(address).await?, speak_first));
        }
        Ok(Self { services, banner, state, _tasks: tasks })
    }

    /// Port of the TCP services and of UDP echo.
    #[must_use]
    pub fn port(&self) -> &Port {
        &self.services
    }

    /// Port of the server that speaks first, then echoes.
    #[must_use]
    pub fn banner_port(&self) -> &Port {
        &self.banner
    }

    /// What is known of the request with this seed.
    #[must_use]
    pub fn record(&self, seed: u64) -> Record {
        self.state.lock().records.get(&seed).cloned().unwrap_or_default()
    }

    /// Waits until the request with this seed has ended.
    ///
    /// # Errors
    /// When it has not after half a minute.
    pub async fn ended(&self, seed: u64) -> Result<Record> {
        self.state
            .until(|inner| inner.records.get(&seed).filter(|record| record.end.is_some()).cloned())
            .await
    }

    /// Lets the [`Service::Stall`] with this seed begin to read.
    pub fn release(&self, seed: u64) {
        self.state.lock().released.insert(seed);
        self.state.changed.notify_waiters();
    }
}

#[derive(Debug, Default)]
struct State {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<u64, Record>,
    released: HashSet<u64>,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, seed: u64, change: impl FnOnce(&mut Record)) {
        change(self.lock().records.entry(seed).or_default());
        self.changed.notify_waiters();
    }

    async fn until<T>(&self, mut found: impl FnMut(&Inner) -> Option<T>) -> Result<T> {
        let search = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // Registered before looking, so that a change between the two is not missed.
                changed.as_mut().enable();
                if let Some(value) = found(&self.lock()) {
                    return value;
                }
                changed.await;
            }
        };
        tokio::time::timeout(PATIENCE, search).await.map_err(|_| "the origin did not see it in time".into())
    }
}

/// Accepts until dropped; the connections' tasks end with it.
async fn accept<S, F>(listener: TcpListener, serve: S)
where
    S: Fn(TcpStream) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(stream));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn speak_first(mut stream: TcpStream) {
    if stream.write_all(BANNER).await.is_ok() {
        let (mut reader, mut writer) = stream.split();
        drop(tokio::io::copy(&mut reader, &mut writer).await);
    }
}

async fn echo_datagrams(socket: UdpSocket, elsewhere: UdpSocket) {
    let mut buffer = vec![0; 65_536];
    loop {
        // Errors here are ICMP answers to earlier datagrams.
        let Ok((length, peer)) = socket.recv_from(&mut buffer).await else { continue };
        let datagram = &buffer[..length];
        let from = if datagram.starts_with(ELSEWHERE) { &elsewhere } else { &socket };
        drop(from.send_to(datagram, peer).await);
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    // A client that leaves without a request is no event for any record.
    let Ok(Some(service)) = stream.read_line(&mut line).await.map(|_| Service::parse(&line)) else { return };
    let seed = service.seed();
    let end = match run(service, stream, &state).await {
        Ok(()) => End::Clean,
        Err(error) => match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => End::Reset,
            _ => End::Failed(error.to_string()),
        },
    };
    state.update(seed, |record| record.end = Some(end));
}

async fn run(service: Service, mut stream: BufReader<TcpStream>, state: &State) -> Result {
    match service {
        Service::Echo => {
            let (mut reader, mut writer) = tokio::io::split(stream);
            tokio::io::copy_buf(&mut BufReader::with_capacity(BLOCK, &mut reader), &mut writer).await?;
            writer.shutdown().await?;
        }
        Service::Send { seed, length } => {
            send(&mut stream, seed, length, |sent| state.update(seed, |r| r.sent = sent)).await?;
            stream.shutdown().await?;
            until_end(&mut stream).await?;
        }
        Service::Take { seed, length } => {
            let outcome =
                take(&mut stream, seed, Some(length), |got| state.update(seed, |r| r.received = got)).await;
            verdict(&mut stream, outcome).await?;
        }
        Service::Both { seed, length } => {
            let (mut reader, mut writer) = tokio::io::split(stream);
            let (outcome, sent) = tokio::join!(
                take(&mut reader, seed + 1, Some(length), |got| state.update(seed, |r| r.received = got)),
                send(&mut writer, seed, length, |sent| state.update(seed, |r| r.sent = sent)),
            );
            sent?;
            verdict(&mut writer, outcome).await?;
        }
        Service::Digest { seed } => {
            let outcome = take(&mut stream, seed, None, |got| state.update(seed, |r| r.received = got)).await;
            verdict(&mut stream, outcome).await?;
        }
        Service::Farewell { seed, length } => {
            send(&mut stream, seed, length, |sent| state.update(seed, |r| r.sent = sent)).await?;
            stream.shutdown().await?;
            take(&mut stream, seed + 1, None, |got| state.update(seed, |r| r.received = got)).await?;
        }
        Service::Stall { seed, length } => {
            // Marks the record as begun, so that a test knows the request has arrived.
            state.update(seed, |_| ());
            state.until(|inner| inner.released.contains(&seed).then_some(())).await?;
            let outcome =
                take(&mut stream, seed, Some(length), |got| state.update(seed, |r| r.received = got)).await;
            verdict(&mut stream, outcome).await?;
        }
        Service::Reset { seed, length } => {
            send(&mut stream, seed, length, |sent| state.update(seed, |r| r.sent = sent)).await?;
            stream.read_u8().await?;
            reset(stream.into_inner())?;
        }
        Service::Watch { seed } => {
            stream.write_all(b"ready\n").await?;
            let mut count = 0;
            let mut block = [0; 4096];
            loop {
                match stream.read(&mut block).await? {
                    0 => break,
                    length => count += length as u64,
                }
                state.update(seed, |record| record.received = count);
            }
        }
    }
    Ok(())
}

/// Closes a connection with a reset in place of a FIN.
///
/// # Errors
/// What the socket says.
pub fn reset(stream: TcpStream) -> io::Result<()> {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))
}

/// Writes `length` bytes of the pattern, telling the total after each block.
///
/// # Errors
/// What the stream says.
pub async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    seed: u64,
    length: u64,
    mut progress: impl FnMut(u64),
) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    let mut position = 0;
    while position < length {
        let size = BLOCK.min(usize::try_from(length - position).unwrap_or(BLOCK));
        pattern::fill(seed, position, &mut block[..size]);
        stream.write_all(&block[..size]).await?;
        position += size as u64;
        progress(position);
    }
    stream.flush().await
}

/// Reads and verifies the pattern: `length` bytes, or to the end of stream. Tells the total after each read.
///
/// # Errors
/// A wrong byte, an early end, or what the stream says.
pub async fn take(
    stream: &mut (impl AsyncRead + Unpin),
    seed: u64,
    length: Option<u64>,
    mut progress: impl FnMut(u64),
) -> Result<u64> {
    let mut block = vec![0; BLOCK];
    let mut verifier = Verifier::new(seed);
    loop {
        let missing = length.map_or(u64::MAX, |length| length - verifier.position());
        if missing == 0 {
            break;
        }
        let size = BLOCK.min(usize::try_from(missing).unwrap_or(BLOCK));
        let got = stream.read(&mut block[..size]).await?;
        if got == 0 {
            break;
        }
        verifier.feed(&block[..got])?;
        progress(verifier.position());
    }
    match length {
        Some(length) if verifier.position() < length => {
            Err(format!("stream ended after {} of {length} bytes", verifier.position()).into())
        }
        _ => Ok(verifier.position()),
    }
}

/// Reads to the end of stream, which must hold nothing more.
///
/// # Errors
/// A byte too many, or what the stream says.
pub async fn until_end(stream: &mut (impl AsyncRead + Unpin)) -> Result {
    let mut block = [0; 64];
    match stream.read(&mut block).await? {
        0 => Ok(()),
        length => Err(format!("{length} bytes where the stream should end: {:?}", &block[..length]).into()),
    }
}

/// The line by which the origin confirms `length` bytes.
#[must_use]
pub fn confirmation(length: u64) -> String {
    format!("ok {length}\n")
}

async fn verdict(stream: &mut (impl AsyncWrite + Unpin), outcome: Result<u64>) -> Result {
    let (line, failure): (String, Option<Error>) = match outcome {
        Ok(length) => (confirmation(length), None),
        Err(error) => (format!("bad {error}\n"), Some(error)),
    };
    stream.write_all(line.as_bytes()).await?;
    stream.shutdown().await?;
    failure.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    async fn ask(origin: &Origin, service: Service) -> TcpStream {
        let mut stream = TcpStream::connect(origin.port().v4()).await.unwrap();
        stream.write_all(service.line().as_bytes()).await.unwrap();
        stream
    }

    async fn rest(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[test]
    fn lines_name_their_services() {
        let (seed, length) = (3, 4);
        for service in [
            Service::Echo,
            Service::Send { seed, length },
            Service::Take { seed, length },
            Service::Both { seed, length },
            Service::Digest { seed },
            Service::Farewell { seed, length },
            Service::Stall { seed, length },
            Service::Reset { seed, length },
            Service::Watch { seed },
        ] {
            assert_eq!(Service::parse(&service.line()), Some(service));
        }
    }

    #[tokio::test]
    async fn right_upload_is_confirmed_and_a_wrong_one_is_not() {
        let origin = Origin::start().await.unwrap();
        let seed = fresh_seed();
        let mut stream = ask(&origin, Service::Take { seed, length: 100 }).await;
        stream.write_all(&pattern::bytes(seed, 100)).await.unwrap();
        assert_eq!(rest(stream).await, "ok 100\n");
        assert_eq!(origin.ended(seed).await.unwrap().end, Some(End::Clean));

        let seed = fresh_seed();
        let mut stream = ask(&origin, Service::Digest { seed }).await;
        let mut wrong = pattern::bytes(seed, 100);
        wrong[60] ^= 1;
        stream.write_all(&wrong).await.unwrap();
        stream.shutdown().await.unwrap();
        assert!(rest(stream).await.starts_with("bad stream differs at byte 60"));
        assert!(matches!(origin.ended(seed).await.unwrap().end, Some(End::Failed(_))));
    }

    #[tokio::test]
    async fn download_is_the_pattern() {
        let origin = Origin::start().await.unwrap();
        let seed = fresh_seed();
        let mut stream = ask(&origin, Service::Send { seed, length: 200_000 }).await;
        assert_eq!(take(&mut stream, seed, None, |_| ()).await.unwrap(), 200_000);
    }

    #[tokio::test]
    async fn reset_is_a_reset_on_both_ends() {
        let origin = Origin::start().await.unwrap();
        let mut stream = ask(&origin, Service::Reset { seed: fresh_seed(), length: 0 }).await;
        stream.write_all(b"!").await.unwrap();
        let error = until_end(&mut stream).await.unwrap_err();
        assert_eq!(error.downcast_ref::<io::Error>().unwrap().kind(), io::ErrorKind::ConnectionReset);

        let seed = fresh_seed();
        let mut stream = ask(&origin, Service::Watch { seed }).await;
        let mut ready = [0; 6];
        stream.read_exact(&mut ready).await.unwrap();
        reset(stream).unwrap();
        assert_eq!(origin.ended(seed).await.unwrap().end, Some(End::Reset));
    }

    #[tokio::test]
    async fn datagram_is_answered_from_elsewhere_on_request() {
        let origin = Origin::start().await.unwrap();
        let socket = UdpSocket::bind("[::1]:0").await.unwrap();
        let mut buffer = [0; 64];
        socket.send_to(b"hello", origin.port().v6()).await.unwrap();
        assert_eq!(socket.recv_from(&mut buffer).await.unwrap(), (5, origin.port().v6()));
        socket.send_to(ELSEWHERE, origin.port().v6()).await.unwrap();
        let (length, from): (usize, SocketAddr) = socket.recv_from(&mut buffer).await.unwrap();
        assert_eq!(length, ELSEWHERE.len());
        assert_ne!(from, origin.port().v6());
    }
}
