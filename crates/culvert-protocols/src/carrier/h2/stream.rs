//! One stream of a connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use culvert_core::StreamConn;
use culvert_core::conn::copy_in;
use culvert_wire::{Buf, BufChain, Room};
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::MAX_FRAME;
use super::traffic::Place;
use crate::carrier::grpc::{self, Deframer};
use crate::repeated::is_refusal;

/// Most bytes gathered by one read.
const READ_MOST: usize = 256 << 10;
/// Why a stream is reset that breaks off.
const BROKEN: Reason = Reason::INTERNAL_ERROR;
/// Most bytes given to the connection at once.
const SEND_MOST: usize = MAX_FRAME as usize;

/// What is sent: pieces as they are.
pub(in crate::carrier) struct Payload(BufChain);

impl bytes::Buf for Payload {
    fn remaining(&self) -> usize {
        self.0.len()
    }

    fn chunk(&self) -> &[u8] {
        self.0.front()
    }

    fn chunks_vectored<'a>(&'a self, to: &mut [io::IoSlice<'a>]) -> usize {
        self.0.io_slices(to)
    }

    fn advance(&mut self, count: usize) {
        self.0.advance(count);
    }
}

/// What the bodies are made of.
pub(in crate::carrier) enum Format {
    /// The stream's bytes.
    Plain,
    /// Messages of gRPC with the stream's bytes in them.
    Messages(Deframer),
}

impl Format {
    fn head(&self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Messages(_) => grpc::MAX_HEAD,
        }
    }

    fn frame(&self, data: &mut BufChain) {
        if let Self::Messages(_) = self {
            grpc::frame(data);
        }
    }

    fn take(&mut self, chunk: Bytes, to: &mut Gathered) -> io::Result<()> {
        match self {
            Self::Plain => to.put(&chunk),
            Self::Messages(deframer) => {
                let mut rest = &chunk[..];
                while let Some(payload) = deframer.next(&mut rest).map_err(invalid)? {
                    to.put(payload);
                }
            }
        }
        Ok(())
    }

    /// Whether a body may end here.
    fn may_end(&self) -> bool {
        match self {
            Self::Plain => true,
            Self::Messages(deframer) => deframer.is_between(),
        }
    }
}

enum Sending {
    /// A server's response has not been sent.
    Owed(Box<(SendResponse<Payload>, Response<()>)>),
    Open(SendStream<Payload>),
    /// Its end has been sent.
    Ended(SendStream<Payload>),
    /// It could not be answered.
    Failed,
}

enum Receiving {
    /// A client's request has not been answered.
    Response(ResponseFuture),
    Open(RecvStream),
    Ended,
}

/// One stream of a connection of HTTP/2.
///
/// What is read was copied out of the connection's buffers into pooled pieces, and only then is the peer told that it may
/// send more; what is written is handed over as it is.
pub(in crate::carrier) struct H2Stream {
    sending: Sending,
    receiving: Receiving,
    format: Format,
    /// Data that has not been taken.
    plain: BufChain,
    /// What will be told once the data in front of it is taken.
    later: Option<io::Error>,
    /// Something was sent besides headers.
    has_sent: bool,
    /// A server's stream that the client has given up.
    is_abandoned: bool,
    place: Place,
}

impl H2Stream {
    pub(super) fn client(
        response: ResponseFuture,
        send: SendStream<Payload>,
        format: Format,
        place: Place,
    ) -> Self {
        Self::new(Sending::Open(send), Receiving::Response(response), format, place)
    }

    /// The response goes at once, or else with the first data.
    pub(super) fn server(
        body: RecvStream,
        respond: SendResponse<Payload>,
        response: Response<()>,
        at_once: bool,
        format: Format,
        place: Place,
    ) -> io::Result<Self> {
        let sending = Sending::Owed(Box::new((respond, response)));
        let mut stream = Self::new(sending, Receiving::Open(body), format, place);
        if at_once {
            stream.respond(false)?;
        }
        Ok(stream)
    }

    fn new(sending: Sending, receiving: Receiving, format: Format, place: Place) -> Self {
        Self {
            sending,
            receiving,
            format,
            plain: BufChain::new(),
            later: None,
            has_sent: false,
            is_abandoned: false,
            place,
        }
    }

    /// Sends the response if that has not been done.
    fn respond(&mut self, ends: bool) -> io::Result<()> {
        let Sending::Owed(owed) = &mut self.sending else { return Ok(()) };
        let (respond, response) = &mut **owed;
        let sent = respond.send_response(std::mem::take(response), ends);
        self.sending = Sending::Failed;
        let send = sent.map_err(broken)?;
        self.sending = if ends { Sending::Ended(send) } else { Sending::Open(send) };
        Ok(())
    }

    /// How many bytes of payload may be sent, up to `wanted`.
    fn poll_capacity(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        self.respond(false)?;
        let head = self.format.head();
        let Sending::Open(send) = &mut self.sending else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let wanted = wanted.min(SEND_MOST - head);
        loop {
            if let Some(capacity @ 1..) = send.capacity().checked_sub(head) {
                return Poll::Ready(Ok(capacity.min(wanted)));
            }
            send.reserve_capacity(wanted + head);
            match ready!(send.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
    }

    fn send(&mut self, mut data: BufChain) -> io::Result<()> {
        self.format.frame(&mut data);
        self.has_sent = true;
        match &mut self.sending {
            Sending::Open(send) => send.send_data(Payload(data), false).map_err(broken),
            Sending::Owed(_) | Sending::Ended(_) | Sending::Failed => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// The next piece of the body; `None` at its end.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            match &mut self.receiving {
                Receiving::Response(response) => {
                    let response = ready!(Pin::new(response).poll(cx)).map_err(|error| {
                        if is_refusal(&error) {
                            // Whoever is opened in its place goes elsewhere.
                            self.place.traffic().end();
                        }
                        broken(error)
                    })?;
                    if response.status() != StatusCode::OK {
                        let error = format!("server answered with status {}", response.status().as_u16());
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionRefused, error)));
                    }
                    check_grpc(response.headers())?;
                    self.receiving = Receiving::Open(response.into_body());
                }
                Receiving::Open(body) => match ready!(body.poll_data(cx)) {
                    Some(Ok(chunk)) => {
                        // All of it is about to be copied; a fault shows with the next read.
                        let _ = body.flow_control().release_capacity(chunk.len());
                        self.place.take(chunk.len());
                        return Poll::Ready(Ok(Some(chunk)));
                    }
                    Some(Err(error)) if is_farewell(&error, &self.sending) && self.format.may_end() => {
                        self.receiving = Receiving::Ended;
                    }
                    Some(Err(error)) => {
                        self.is_abandoned = error.is_reset() && error.is_remote();
                        return Poll::Ready(Err(broken(error)));
                    }
                    None => {
                        if let Some(trailers) = ready!(body.poll_trailers(cx)).map_err(broken)? {
                            check_grpc(&trailers)?;
                        }
                        if !self.format.may_end() {
                            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                        }
                        self.receiving = Receiving::Ended;
                    }
                },
                Receiving::Ended => return Poll::Ready(Ok(None)),
            }
        }
    }

    /// Gathers what is there. An empty chain is the end.
    fn poll_gather(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if let Some(error) = self.later.take() {
            return Poll::Ready(Err(error));
        }
        let mut gathered = Gathered::new(room);
        while gathered.len() < READ_MOST {
            let taken = match self.poll_body(cx) {
                Poll::Ready(Ok(Some(chunk))) => self.format.take(chunk, &mut gathered),
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok(gathered.finish())),
                Poll::Ready(Err(error)) => Err(error),
                Poll::Pending if gathered.len() == 0 => return Poll::Pending,
                Poll::Pending => break,
            };
            if let Err(error) = taken {
                if gathered.len() == 0 {
                    return Poll::Ready(Err(error));
                }
                self.later = Some(error);
                break;
            }
        }
        Poll::Ready(Ok(gathered.finish()))
    }
}

/// Whether a reset is no more than the way in which a peer ends a stream whose other direction we have ended: Go's client
/// cannot do it otherwise. Ours says [`BROKEN`] where a stream breaks off.
fn is_farewell(error: &h2::Error, sending: &Sending) -> bool {
    let is_meant = matches!(error.reason(), Some(Reason::CANCEL | Reason::NO_ERROR));
    is_meant && error.is_reset() && error.is_remote() && matches!(sending, Sending::Ended(_))
}

/// What a server of gRPC says at the end, or in place of all: 0 is no fault.
fn check_grpc(headers: &HeaderMap) -> io::Result<()> {
    match headers.get("grpc-status").map(|status| status.as_bytes()) {
        None | Some(b"0") => Ok(()),
        Some(status) => {
            let error = format!("server ended with gRPC status {}", String::from_utf8_lossy(status));
            Err(io::Error::new(io::ErrorKind::ConnectionReset, error))
        }
    }
}

/// What the crate says, as an error of a stream.
pub(super) fn broken(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
    }
    let kind = if error.is_reset() {
        io::ErrorKind::ConnectionReset
    } else if error.is_go_away() {
        io::ErrorKind::ConnectionAborted
    } else {
        io::ErrorKind::BrokenPipe
    };
    io::Error::new(kind, error)
}

fn invalid(error: culvert_wire::DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Data copied into pieces with the room that a reader asks for.
struct Gathered {
    room: Room,
    chain: BufChain,
    filling: Option<Buf>,
}

impl Gathered {
    fn new(room: Room) -> Self {
        Self { room, chain: BufChain::new(), filling: None }
    }

    fn len(&self) -> usize {
        self.chain.len() + self.filling.as_ref().map_or(0, |piece| piece.len())
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // Where something has come already, more is likely to.
            let size = if self.chain.is_empty() && bytes.len() <= 1400 { 1400 } else { 16 << 10 };
            let Room { head, tail, max } = self.room;
            let piece = self.filling.get_or_insert_with(|| Buf::new(size.min(max), head, tail));
            let space = (piece.spare() - tail).min(max - piece.len());
            let (now, later) = bytes.split_at(space.min(bytes.len()));
            piece.append(now);
            bytes = later;
            if !bytes.is_empty() {
                self.chain.extend(self.filling.take());
            }
        }
    }

    fn finish(mut self) -> BufChain {
        self.chain.extend(self.filling.take());
        self.chain
    }
}

/// Takes up to `most` bytes from the front, whole pieces if one fits.
fn take_pieces(data: &mut BufChain, most: usize) -> BufChain {
    let mut whole = 0;
    for piece in data.iter() {
        if whole + piece.len() > most {
            break;
        }
        whole += piece.len();
    }
    data.take_front(if whole == 0 { most.min(data.len()) } else { whole })
}

impl StreamConn for H2Stream {
    fn room(&self) -> Room {
        // A piece with its head is a frame that every peer takes.
        let head = self.format.head();
        Room { head, tail: 0, max: (16 << 10) - head }
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        if self.plain.is_empty() {
            return self.poll_gather(cx, room);
        }
        if room.is_none() {
            return Poll::Ready(Ok(std::mem::take(&mut self.plain)));
        }
        copy_in(self, cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        while !data.is_empty() {
            let capacity = ready!(self.poll_capacity(cx, data.len()))?;
            self.send(take_pieces(data, capacity))?;
        }
        Poll::Ready(Ok(()))
    }

    fn abort(&mut self) {
        match &mut self.sending {
            Sending::Owed(owed) => owed.0.send_reset(BROKEN),
            Sending::Open(send) | Sending::Ended(send) => send.send_reset(BROKEN),
            Sending::Failed => {}
        }
        self.sending = Sending::Failed;
    }
}

impl AsyncRead for H2Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.plain.is_empty() {
            self.plain = ready!(self.poll_gather(cx, Room::NONE))?;
        }
        while to.remaining() > 0 && !self.plain.is_empty() {
            let count = self.plain.front().len().min(to.remaining());
            to.put_slice(&self.plain.front()[..count]);
            self.plain.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for H2Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        if from.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let capacity = ready!(self.poll_capacity(cx, from.len()))?;
        let mut piece = Buf::new(capacity, self.format.head(), 0);
        piece.append(&from[..capacity]);
        self.send(piece.into())?;
        Poll::Ready(Ok(capacity))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What was sent leaves by itself.
        Poll::Ready(self.respond(false))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Sending::Owed(_) = self.sending {
            return Poll::Ready(self.respond(true));
        }
        match std::mem::replace(&mut self.sending, Sending::Failed) {
            Sending::Open(mut send) => {
                let ended = send.send_data(Payload(BufChain::new()), true);
                self.sending = Sending::Ended(send);
                // A peer that has said all it has to say may have stopped listening.
                match ended {
                    Err(error) if !matches!(self.receiving, Receiving::Ended) => {
                        Poll::Ready(Err(broken(error)))
                    }
                    Ok(()) | Err(_) => Poll::Ready(Ok(())),
                }
            }
            other => {
                self.sending = other;
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl Drop for H2Stream {
    fn drop(&mut self) {
        if let Sending::Owed(_) = self.sending {
            // Whoever is refused inside sees what sing-box shows: an answer without anything in it.
            let _ = self.respond(true);
        }
        let is_over = matches!(self.sending, Sending::Ended(_)) && matches!(self.receiving, Receiving::Ended);
        if !is_over && self.has_sent {
            self.abort();
        }
        if self.is_abandoned && !self.has_sent {
            self.place.abandon();
        }
    }
}
