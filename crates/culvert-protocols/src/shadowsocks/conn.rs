//! A byte stream inside Shadowsocks, for either end.
//!
//! What begins a direction is made when there is something to put along: a client's address leaves together with the first
//! payload, in one write, or alone once a moment has passed in which none came; a server's first bytes never leave
//! without payload.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{SystemTime, UNIX_EPOCH};

use culvert_core::{BoxStream, StreamConn, timeouts};
use culvert_wire::{BufChain, DecodeError, Room, Target};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::cipher::{Cipher, Key, LENGTH, MAX_CHUNK, MAX_CHUNK_2022, Opener, Sealer, Stream, TAG};
use super::codec::{
    MAX_PADDING, Request, Salt, decode_response_head, random_padding, response_head_len, seal_first,
    seal_response,
};
use super::key::Secret;
use crate::chunks::{Fault, Reading, Writing};

/// Seconds since 1970.
pub(super) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What a client's stream begins with.
pub(super) enum Hello {
    /// The first AEAD edition.
    Aead(Secret),
    /// The 2022 edition: the chain of keys.
    Edition2022(Arc<[Secret]>),
}

/// What a server's stream begins with.
pub(super) enum Answer {
    /// The first AEAD edition.
    Aead(Secret),
    /// The 2022 edition: the user's key, and the salt of the request.
    Edition2022(Secret, Salt),
}

/// A byte stream inside Shadowsocks.
pub(super) struct ShadowConn {
    lower: BoxStream,
    reading: ReadHalf,
    writing: WriteHalf,
    /// The holder has read before it wrote, so reading writes the first bytes too.
    awaited: bool,
    /// The task that writes waits for the lower stream. Its place there must not be taken by a task that reads.
    blocked: bool,
}

#[expect(clippy::large_enum_variant, reason = "it is the large one for all but a moment")]
enum ReadHalf {
    /// Nothing of the server has been opened yet.
    Greeting(Box<Greeting>),
    Open(Reading<Opener>),
}

enum WriteHalf {
    /// Nothing has been sent yet.
    Lead(Box<Lead>),
    Open(Writing<Sealer>),
}

impl ShadowConn {
    /// A client's end of `lower`, through which `target` is reached.
    pub(super) fn client(lower: BoxStream, cipher: Cipher, hello: Hello, target: Target) -> Self {
        let (opening, greeting) = match hello {
            Hello::Aead(key) => (Opening::Hello(key.clone(), target), Expected::Salt(key)),
            Hello::Edition2022(keys) => {
                let salt = Salt::random(cipher.key_len());
                let own = keys.last().expect("a client has a key").clone();
                (Opening::Request(keys, salt, target), Expected::Response(own, salt))
            }
        };
        let greeting = Greeting { cipher, raw: BufChain::new(), expected: greeting };
        Self::new(lower, ReadHalf::Greeting(Box::new(greeting)), cipher, opening)
    }

    /// A server's end of `lower`, of which the client's first bytes have been opened.
    pub(super) fn server(lower: BoxStream, cipher: Cipher, reading: Reading<Opener>, answer: Answer) -> Self {
        let opening = match answer {
            Answer::Aead(key) => Opening::Salt(key),
            Answer::Edition2022(key, salt) => Opening::Response(key, salt),
        };
        Self::new(lower, ReadHalf::Open(reading), cipher, opening)
    }

    fn new(lower: BoxStream, reading: ReadHalf, cipher: Cipher, opening: Opening) -> Self {
        let writing = WriteHalf::Lead(Box::new(Lead { cipher, opening, moment: None }));
        Self { lower, reading, writing, awaited: false, blocked: false }
    }

    /// The half that writes, opened if it was not yet; what begins it takes along what it can of `data`.
    fn begin(&mut self, data: &mut BufChain) -> &mut Writing<Sealer> {
        if let WriteHalf::Lead(lead) = &self.writing {
            self.writing = WriteHalf::Open(lead.seal(data, self.lower.room()));
        }
        match &mut self.writing {
            WriteHalf::Open(writing) => writing,
            WriteHalf::Lead(_) => unreachable!("it has just been opened"),
        }
    }

    /// Sees to what a peer waits for before it answers, from a call to read.
    fn drain_awaited(&mut self, cx: &mut Context<'_>) {
        if let WriteHalf::Lead(lead) = &self.writing
            && lead.is_owed()
            && lead.moment.is_none()
        {
            // Nobody has written or flushed: the holder waits for the other end to speak.
            self.awaited = true;
            self.begin(&mut BufChain::new());
        }
        if self.awaited
            && !self.blocked
            && let WriteHalf::Open(writing) = &mut self.writing
            // An error comes back with the next write, and what the peer has sent is still worth reading.
            && let Poll::Ready(Ok(())) = writing.poll_drain(cx, &mut self.lower)
            && Pin::new(&mut self.lower).poll_flush(cx).is_ready()
        {
            self.awaited = false;
        }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let WriteHalf::Open(writing) = &mut self.writing else { return Poll::Ready(Ok(())) };
        let drained = writing.poll_drain(cx, &mut self.lower);
        self.blocked = drained.is_pending();
        drained
    }

    /// Reads what the server's stream begins with. `Ready` with an empty chain is the end of one without a byte.
    fn poll_greeting(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while let ReadHalf::Greeting(greeting) = &mut self.reading {
            if let Some(reading) = greeting.open(unix_now())? {
                self.reading = ReadHalf::Open(reading);
                break;
            }
            let mut raw = ready!(self.lower.poll_read_chain(cx, Room::NONE))?;
            if raw.is_empty() {
                let none = greeting.raw.is_empty();
                return Poll::Ready(if none { Ok(false) } else { Err(Fault::Cut.into()) });
            }
            greeting.raw.append(&mut raw);
        }
        Poll::Ready(Ok(true))
    }
}

impl StreamConn for ShadowConn {
    fn room(&self) -> Room {
        match &self.writing {
            WriteHalf::Lead(lead) => self.lower.room().around(lead.room()),
            WriteHalf::Open(writing) => writing.room(self.lower.room()),
        }
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        self.drain_awaited(cx);
        if !ready!(self.poll_greeting(cx))? {
            return Poll::Ready(Ok(BufChain::new()));
        }
        match &mut self.reading {
            ReadHalf::Open(reading) => reading.poll_read_chain(cx, &mut self.lower, room),
            ReadHalf::Greeting(_) => Poll::Ready(Ok(BufChain::new())),
        }
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        if data.is_empty() {
            return self.poll_drain(cx);
        }
        self.begin(data);
        let WriteHalf::Open(writing) = &mut self.writing else { return Poll::Ready(Ok(())) };
        let written = writing.poll_write_chain(cx, &mut self.lower, data);
        self.blocked = written.is_pending();
        written
    }

    fn abort(&mut self) {
        self.lower.abort();
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.lower.local_addr()
    }

    fn outermost_socket(&self) -> Option<&tokio::net::TcpStream> {
        self.lower.outermost_socket()
    }
}

impl AsyncRead for ShadowConn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.drain_awaited(cx);
        if !ready!(this.poll_greeting(cx))? {
            return Poll::Ready(Ok(()));
        }
        match &mut this.reading {
            ReadHalf::Open(reading) => reading.poll_read(cx, &mut this.lower, to),
            ReadHalf::Greeting(_) => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for ShadowConn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if let WriteHalf::Lead(_) = this.writing {
            let mut data = BufChain::copied(&from[..from.len().min(MAX_CHUNK / 2)]);
            let offered = data.len();
            this.begin(&mut data);
            let taken = offered - data.len();
            // The bytes are taken whatever comes of this; an error comes back with the next call.
            let _ = this.poll_drain(cx);
            return Poll::Ready(Ok(taken));
        }
        let WriteHalf::Open(writing) = &mut this.writing else { return Poll::Ready(Ok(0)) };
        let written = writing.poll_write(cx, &mut this.lower, from);
        this.blocked = written.is_pending();
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let WriteHalf::Lead(lead) = &mut this.writing
            && lead.is_owed()
        {
            ready!(lead.poll_moment(cx));
            this.begin(&mut BufChain::new());
        }
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.lower).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let WriteHalf::Lead(lead) = &this.writing
            && lead.is_owed()
        {
            this.begin(&mut BufChain::new());
        }
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.lower).poll_shutdown(cx)
    }
}

/// What begins the direction that is written.
struct Lead {
    cipher: Cipher,
    opening: Opening,
    /// Runs while a flush waits for payload to come.
    moment: Option<Pin<Box<Sleep>>>,
}

enum Opening {
    /// A client of the first AEAD edition.
    Hello(Secret, Target),
    /// A client of the 2022 edition.
    Request(Arc<[Secret]>, Salt, Target),
    /// A server of the first AEAD edition.
    Salt(Secret),
    /// A server of the 2022 edition.
    Response(Secret, Salt),
}

impl Lead {
    /// Whether it must leave though there may be no payload.
    fn is_owed(&self) -> bool {
        matches!(self.opening, Opening::Hello(..) | Opening::Request(..))
    }

    /// As it will be for the chunks that follow.
    fn room(&self) -> Room {
        Room { head: LENGTH, tail: TAG, max: self.max() }
    }

    fn max(&self) -> usize {
        match self.opening {
            Opening::Hello(..) | Opening::Salt(_) => MAX_CHUNK,
            Opening::Request(..) | Opening::Response(..) => MAX_CHUNK_2022,
        }
    }

    fn poll_moment(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let moment = || Box::pin(tokio::time::sleep(timeouts::FIRST_PAYLOAD));
        self.moment.get_or_insert_with(moment).as_mut().poll(cx)
    }

    fn seal(&self, data: &mut BufChain, around: Room) -> Writing<Sealer> {
        let cipher = self.cipher;
        let (lead, stream) = match &self.opening {
            Opening::Hello(key, target) => {
                let salt = Salt::random(cipher.key_len());
                seal_first(cipher, key, &salt, Some(target), data, around)
            }
            Opening::Salt(key) => {
                seal_first(cipher, key, &Salt::random(cipher.key_len()), None, data, around)
            }
            Opening::Request(keys, salt, target) => {
                let (now, padding) = (unix_now(), random_padding(MAX_PADDING));
                Request { cipher, keys, salt, target, now, padding }.seal(data, around)
            }
            Opening::Response(key, salt) => seal_response(cipher, key, salt, unix_now(), data, around),
        };
        Writing::new(Sealer::new(stream, self.max()), lead.into())
    }
}

/// What begins the direction that a client reads.
struct Greeting {
    cipher: Cipher,
    raw: BufChain,
    expected: Expected,
}

enum Expected {
    /// The first AEAD edition.
    Salt(Secret),
    /// The 2022 edition.
    Response(Secret, Salt),
}

impl Greeting {
    /// Opens what was read. `None` means that more must come.
    fn open(&mut self, now: u64) -> io::Result<Option<Reading<Opener>>> {
        let salt_len = self.cipher.key_len();
        let need = match self.expected {
            Expected::Salt(_) => salt_len,
            Expected::Response(..) => salt_len + response_head_len(salt_len),
        };
        if self.raw.len() < need {
            return Ok(None);
        }
        self.raw.contiguous();
        let Some(mut piece) = self.raw.pop_front() else { return Ok(None) };
        let salt = Salt::received(&piece[..salt_len]);
        piece.advance(salt_len);
        let reading = match &self.expected {
            Expected::Salt(key) => {
                let stream = Stream::new(Key::new(self.cipher, key.subkey(salt.bytes()).bytes()));
                Reading::new(Opener::new(stream, MAX_CHUNK), piece.into())
            }
            Expected::Response(key, request_salt) => {
                let subkey = key.session_subkey(salt.bytes());
                let mut stream = Stream::new(Key::new(self.cipher, subkey.bytes()));
                let head = &mut piece[..need - salt_len];
                stream.open_region(head)?;
                let len = decode_response_head(head, request_salt, now).map_err(invalid)?;
                piece.advance(need - salt_len);
                Reading::within(Opener::new(stream, MAX_CHUNK_2022), piece.into(), len + TAG)
            }
        };
        Ok(Some(reading))
    }
}

fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
