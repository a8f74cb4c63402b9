//! simple-obfs as HTTP: the first write goes behind a request to open a WebSocket, what comes behind the first answer is
//! the server's; everything else goes as it is.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use culvert_core::{BoxStream, Half, NoBypass, StreamConn};
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::shadowsocks::codec::{fill_random, random_padding};

/// Longest head of an answer.
const MAX_HEAD: usize = 8 << 10;

/// A stream behind a request.
pub(super) struct ObfsHttp {
    lower: BoxStream,
    /// The host that is asked for, until it was.
    host: Option<String>,
    /// To be written before anything else.
    out: BufChain,
    /// What was read of the answer.
    reading: Answer,
}

enum Answer {
    /// Its head is not whole.
    Head(BufChain),
    /// What was read behind it.
    Behind(BufChain),
}

impl ObfsHttp {
    pub(super) fn new(lower: BoxStream, host: &str, port: u16) -> Self {
        let host = if port == 80 { host.to_owned() } else { format!("{host}:{port}") };
        Self { lower, host: Some(host), out: BufChain::new(), reading: Answer::Head(BufChain::new()) }
    }

    /// The request, if it is still to be sent, before `len` bytes.
    fn request(&mut self, len: usize) -> Option<Buf> {
        let host = self.host.take()?;
        let mut key = [0; 16];
        fill_random(&mut key);
        let (minor, patch) = (random_padding(54) - 1, random_padding(2) - 1);
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: curl/7.{minor}.{patch}\r\nContent-Length: {len}\r\n\
             Connection: Upgrade\r\nSec-Websocket-Key: {}\r\nUpgrade: websocket\r\n\r\n",
            URL_SAFE.encode(key)
        );
        let room = self.lower.room();
        let mut buf = Buf::new(request.len(), room.head, room.tail);
        buf.append(request.as_bytes());
        Some(buf)
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() { Poll::Ready(Ok(())) } else { self.lower.poll_write_chain(cx, &mut self.out) }
    }

    /// Reads the head of the answer. `Ready(false)` is the end of the stream before a byte of it.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while let Answer::Head(head) = &mut self.reading {
            let found = head.contiguous().windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(at) = found {
                head.advance(at + 4);
                self.reading = Answer::Behind(std::mem::take(head));
                break;
            }
            if head.len() > MAX_HEAD {
                let error =
                    io::Error::new(io::ErrorKind::InvalidData, "obfs: the server's answer has no end");
                return Poll::Ready(Err(error));
            }
            let mut more = ready!(self.lower.poll_read_chain(cx, Room::NONE))?;
            if more.is_empty() {
                let none = head.is_empty();
                return Poll::Ready(if none { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) });
            }
            head.append(&mut more);
        }
        Poll::Ready(Ok(true))
    }
}

impl StreamConn for ObfsHttp {
    fn room(&self) -> Room {
        self.lower.room()
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if !ready!(self.poll_answer(cx))? {
            return Poll::Ready(Ok(BufChain::new()));
        }
        match &mut self.reading {
            Answer::Behind(held) if !held.is_empty() && room.is_none() => {
                Poll::Ready(Ok(std::mem::take(held)))
            }
            Answer::Behind(held) if !held.is_empty() => culvert_core::conn::copy_in(self, cx, room),
            _ => self.lower.poll_read_chain(cx, room),
        }
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        if !data.is_empty()
            && let Some(request) = self.request(data.len())
        {
            data.push_front(request);
        }
        self.lower.poll_write_chain(cx, data)
    }

    fn kernel_socket(&self, half: Half) -> Option<&TcpStream> {
        let is_plain = match half {
            Half::Read => matches!(&self.reading, Answer::Behind(held) if held.is_empty()),
            Half::Write => self.host.is_none() && self.out.is_empty(),
        };
        if is_plain { self.lower.kernel_socket(half) } else { None }
    }

    fn bypass(&mut self, _half: Half) -> Result<(), NoBypass> {
        Err(NoBypass)
    }

    fn abort(&mut self) {
        self.lower.abort();
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.lower.local_addr()
    }

    fn outermost_socket(&self) -> Option<&TcpStream> {
        self.lower.outermost_socket()
    }
}

impl AsyncRead for ObfsHttp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !ready!(this.poll_answer(cx))? {
            return Poll::Ready(Ok(()));
        }
        match &mut this.reading {
            Answer::Behind(held) if !held.is_empty() => {
                let count = held.front().len().min(to.remaining());
                to.put_slice(&held.front()[..count]);
                held.advance(count);
                Poll::Ready(Ok(()))
            }
            _ => Pin::new(&mut this.lower).poll_read(cx, to),
        }
    }
}

impl AsyncWrite for ObfsHttp {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_drain(cx))?;
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        match this.request(from.len()) {
            None => Pin::new(&mut this.lower).poll_write(cx, from),
            Some(request) => {
                this.out.push_back(request);
                this.out.append_copy(from);
                // The bytes are taken whatever comes of this; an error comes back with the next call.
                let _ = this.poll_drain(cx);
                Poll::Ready(Ok(from.len()))
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.lower).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.lower).poll_shutdown(cx)
    }
}
