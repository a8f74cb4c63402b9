//! v2ray-plugin: streams in WebSocket, with or without TLS, each, unless told not to, as the one session of a mux.cool
//! connection.
//!
//! Source: sing-box 1.14.4 `transport/v2ray` and `transport/sip003`. Left out on purpose: mode `quic`, until there is such a
//! transport.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_config::options::dial::ServerOptions;
use culvert_config::options::outbound::shadowsocks::PluginOptions;
use culvert_config::options::tls::OutboundTls;
use culvert_config::options::transport::{TransportKind, WsTransport};
use culvert_config::value::{List, Pem, Typed};
use culvert_core::{BoxStream, Network, StreamConn};
use culvert_wire::{Buf, BufChain, DecodeError, Domain, Host, Reader, Room, Target};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::carrier::Carrier;
use crate::chunks::{Fault, Seal, Writing};
use crate::mux_cool::codec::{Head, MAX_DATA, MAX_HEAD, STREAM_HEAD, Status};
use crate::{BuildError, OutboundCx};

/// The way to the server that the options describe, and whether mux.cool is spoken on it.
pub(super) fn carrier(
    options: &PluginOptions,
    server: &ServerOptions,
    cx: &OutboundCx,
) -> Result<(Carrier, bool), BuildError> {
    if options.get("mode") == Some("quic") {
        return Err(cx.not_built("plugin `v2ray-plugin` with mode `quic`"));
    }
    let host = options.get("host").filter(|host| !host.is_empty());
    let mut ws =
        WsTransport { path: options.get("path").unwrap_or("/").to_owned(), ..WsTransport::default() };
    let name = host.unwrap_or("cloudfront.com").to_owned();
    ws.headers.0.0.push(("Host".to_owned(), List(vec![name])));
    let transport = Typed(Some(TransportKind::Ws(Box::new(ws))));
    let tls = options.get("tls").map(|_| tls(options, host));
    let carrier = Carrier::new(cx.dialer.clone(), &cx.store, server, tls.as_ref(), &transport)?;
    let mux = options.get("mux").and_then(|mux| mux.parse::<i64>().ok()).unwrap_or(1);
    Ok((carrier, mux > 0))
}

fn tls(options: &PluginOptions, host: Option<&str>) -> OutboundTls {
    let mut tls = OutboundTls {
        enabled: true,
        server_name: host.unwrap_or_default().to_owned(),
        alpn: List(vec!["http/1.1".to_owned()]),
        ..OutboundTls::default()
    };
    if let Some(raw) = options.get("certRaw").filter(|raw| !raw.is_empty()) {
        let text = format!("-----BEGIN CERTIFICATE-----\n{raw}\n-----END CERTIFICATE-----\n");
        tls.certificate = Pem::from(text);
    } else if let Some(path) = options.get("cert") {
        tls.certificate_path = path.to_owned();
    }
    tls
}

/// A stream that is the one session of a mux.cool connection.
pub(super) struct OneSession {
    lower: BoxStream,
    writing: Writing<Frames>,
    /// Read and not taken.
    raw: BufChain,
    /// Bytes of the frame at hand that are data and still to come.
    left: usize,
    ended: bool,
}

impl OneSession {
    pub(super) fn new(lower: BoxStream) -> Self {
        let writing = Writing::new(Frames { is_first: true }, BufChain::new());
        Self { lower, writing, raw: BufChain::new(), left: 0, ended: false }
    }

    /// Takes the data that is at hand. An empty chain means that more must come, or that it has ended.
    fn take(&mut self) -> io::Result<BufChain> {
        while !self.ended {
            if self.left > 0 {
                let count = self.left.min(self.raw.len());
                self.left -= count;
                return Ok(self.raw.take_front(count));
            }
            let mut window = [0; MAX_HEAD];
            let seen = self.raw.peek(&mut window);
            let mut r = Reader::new(&window[..seen]);
            let head = match Head::decode(&mut r) {
                Ok(head) => head,
                Err(DecodeError::Incomplete) => return Ok(BufChain::new()),
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            };
            self.raw.advance(r.position());
            self.left = head.data.unwrap_or(0).into();
            self.ended = head.status == Status::End;
        }
        self.raw = BufChain::new();
        Ok(BufChain::new())
    }

    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<BufChain>> {
        loop {
            let data = self.take()?;
            if !data.is_empty() || self.ended {
                return Poll::Ready(Ok(data));
            }
            let mut more = ready!(self.lower.poll_read_chain(cx, Room::NONE))?;
            if more.is_empty() {
                if self.left > 0 || !self.raw.is_empty() {
                    return Poll::Ready(Err(Fault::Cut.into()));
                }
                self.ended = true;
            }
            self.raw.append(&mut more);
        }
    }
}

/// Puts frames around data; the first one opens the session.
struct Frames {
    is_first: bool,
}

impl Frames {
    fn head(&self, data: usize) -> Head {
        let data = data as u16; // no more than `MAX_DATA`
        if !self.is_first {
            return Head::keep(0, data);
        }
        let host = Host::Domain(Domain::new("v1.mux.cool").expect("a constant that is a name"));
        let peer = Some((Network::Tcp, Target { host, port: 666 }));
        Head { id: 0, status: Status::New, error: false, peer, data: Some(data) }
    }
}

impl Seal for Frames {
    fn room(&self) -> Room {
        let opening = if self.is_first { 1 + 2 + 1 + 1 + "v1.mux.cool".len() } else { 0 };
        Room { head: STREAM_HEAD + opening, tail: 0, max: MAX_DATA }
    }

    fn seal(&mut self, piece: &mut Buf) {
        let mut head = Vec::with_capacity(STREAM_HEAD);
        self.head(piece.len()).encode(&mut head);
        piece.prepend(&head);
        self.is_first = false;
    }
}

impl StreamConn for OneSession {
    fn room(&self) -> Room {
        self.writing.room(self.lower.room())
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if !room.is_none() {
            return culvert_core::conn::copy_in(self, cx, room);
        }
        self.poll_take(cx)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        self.writing.poll_write_chain(cx, &mut self.lower, data)
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

impl AsyncRead for OneSession {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut data = ready!(this.poll_take(cx))?;
        let count = data.len().min(to.remaining());
        let filled = data.peek(to.initialize_unfilled_to(count));
        to.advance(filled);
        data.advance(filled);
        // What there was no space for goes back to the front, as data that is still to come.
        this.left += data.len();
        data.append(&mut this.raw);
        this.raw = data;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for OneSession {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.writing.poll_write(cx, &mut this.lower, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.writing.poll_drain(cx, &mut this.lower))?;
        Pin::new(&mut this.lower).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.writing.poll_drain(cx, &mut this.lower))?;
        Pin::new(&mut this.lower).poll_shutdown(cx)
    }
}
