//! One request passed on and its response passed back, between a client's connection and a stream to the origin.
//!
//! Both directions are polled by one task, as in the relay: an origin may answer before it has read the whole request,
//! and a client may wait for an interim response before it sends its body.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use culvert_core::duplex::Duplex;
use culvert_core::{BoxStream, StreamConn, timeouts};
use culvert_wire::{BufChain, DecodeError, Reader, Room};
use tokio::io::AsyncWrite;
use tokio::time::{Instant, Sleep, sleep};

use super::body::{Body, Framer};
use super::failure;
use super::head::{EndOfHead, MAX_HEAD, Response, Version};

/// How an exchange has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// The next request may follow.
    KeptAlive,
    /// The client has all it will get, and its connection ends.
    Closed,
    /// The response was cut off, which the client must be able to tell.
    Broken,
}

/// What the request was.
pub(super) struct Asked {
    pub(super) head: Vec<u8>,
    pub(super) body: Body,
    pub(super) is_head: bool,
    pub(super) upgrade: bool,
    pub(super) keep_alive: bool,
}

/// Passes one request on and its response back.
pub(super) struct Exchange<'a> {
    client: &'a mut BoxStream,
    /// Read from the client and not part of what has been sent on; begins with the body.
    early: &'a mut BufChain,
    origin: Duplex,
    asked: Asked,
    up: Up,
    down: Down,
    stall: Option<Stall>,
    /// The client has ended its side.
    client_ended: bool,
}

/// Watches a client that does not take the response. While the session lives it is the session that is limited; what
/// is left in memory when that has ended is limited by this.
struct Stall {
    timer: Pin<Box<Sleep>>,
    /// What had been written when the timer was set.
    written: u64,
}

struct Up {
    framer: Framer,
    out: BufChain,
    done: bool,
}

/// How far the head of a response has been looked at, which may come a byte at a time.
#[derive(Default)]
struct Head {
    end: EndOfHead,
    tried: bool,
}

struct Down {
    stage: Stage,
    head: Head,
    read: BufChain,
    out: BufChain,
    unflushed: bool,
    /// Bytes for the client so far.
    written: u64,
    keep_alive: bool,
}

impl Down {
    /// Answers in the place of an origin that has not.
    fn fail(&mut self) {
        let answer = failure(Version::V11, "502 Bad Gateway", "the destination ended before it had answered");
        self.out = BufChain::copied(answer.as_bytes());
        self.stage = Stage::Body(Framer::new(Body::Empty));
        self.keep_alive = false;
    }
}

enum Stage {
    /// Before the final response.
    Head,
    Body(Framer),
    /// The protocol was changed: bytes both ways until both have ended.
    Tunnel,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(
        client: &'a mut BoxStream,
        early: &'a mut BufChain,
        origin: Duplex,
        asked: Asked,
    ) -> Self {
        let up = Up { framer: Framer::new(asked.body), out: BufChain::copied(&asked.head), done: false };
        let keep_alive = asked.keep_alive;
        let down = Down {
            stage: Stage::Head,
            head: Head::default(),
            read: BufChain::new(),
            out: BufChain::new(),
            unflushed: false,
            written: 0,
            keep_alive,
        };
        Self { client, early, origin, asked, up, down, stall: None, client_ended: false }
    }

    /// Sends what there is of the request. Ready when nothing more will be sent.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { client, early, origin, up, .. } = self;
        while !up.done {
            if !up.out.is_empty() && ready!(origin.poll_write_chain(cx, &mut up.out)).is_err() {
                // The origin takes no more, but it may have said why.
                up.done = true;
                break;
            }
            if up.framer.is_done() {
                up.done = true;
                break;
            }
            if early.is_empty() {
                let mut more = ready!(client.poll_read_chain(cx, origin.room()))?;
                if more.is_empty() {
                    if !up.framer.ends_with_connection() {
                        origin.abort();
                        return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                    }
                    ready!(Pin::new(&mut *origin).poll_shutdown(cx))?;
                    up.done = true;
                    break;
                }
                early.append(&mut more);
            }
            up.out = up.framer.take(early).map_err(|error| invalid(&error))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Passes on what there is of the response.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Outcome>> {
        loop {
            let Self { client, origin, down, up, asked, .. } = &mut *self;
            if !down.out.is_empty() {
                let waiting = down.out.len();
                let written = client.poll_write_chain(cx, &mut down.out);
                down.written += (waiting - down.out.len()) as u64;
                ready!(written)?;
                down.unflushed = true;
            }
            match &mut down.stage {
                Stage::Head => {
                    let mut r = Reader::new(down.read.contiguous());
                    // Once at the beginning, so that what is no HTTP at all is told at once; then when it is all there.
                    let whole = down.head.end.is_in(r.rest());
                    let first = !std::mem::replace(&mut down.head.tried, !r.rest().is_empty())
                        && !r.rest().is_empty();
                    let decoded = if whole || first || r.rest().len() >= MAX_HEAD {
                        Response::decode(&mut r, asked.is_head, down.keep_alive)
                    } else {
                        Err(DecodeError::Incomplete)
                    };
                    match decoded {
                        Ok(response) => {
                            let used = r.position();
                            down.read.advance(used);
                            down.head = Head::default();
                            down.keep_alive = response.keep_alive;
                            down.out = BufChain::copied(&response.head);
                            if response.status == 101 {
                                if !asked.upgrade {
                                    down.fail();
                                    continue;
                                }
                                down.keep_alive = false;
                                down.stage = Stage::Tunnel;
                                up.framer = Framer::new(Body::UntilClose);
                                up.done = false;
                                cx.waker().wake_by_ref(); // the other direction goes on
                            } else if !response.is_interim() {
                                down.stage = Stage::Body(Framer::new(response.body));
                            }
                            continue;
                        }
                        Err(DecodeError::Incomplete) if down.read.len() < MAX_HEAD => {}
                        Err(_) => {
                            down.fail();
                            continue;
                        }
                    }
                }
                Stage::Body(framer) => {
                    if framer.is_done() {
                        ready!(poll_flush(cx, client, &mut down.unflushed))?;
                        // A request that has not been read to its end cannot be followed by another.
                        let kept = down.keep_alive && up.done && up.framer.is_done();
                        return Poll::Ready(Ok(if kept { Outcome::KeptAlive } else { Outcome::Closed }));
                    }
                    if !down.read.is_empty() {
                        down.out = framer.take(&mut down.read).map_err(|error| invalid(&error))?;
                        continue;
                    }
                }
                Stage::Tunnel => {
                    if !down.read.is_empty() {
                        down.out = std::mem::take(&mut down.read);
                        continue;
                    }
                }
            }
            let room = if matches!(down.stage, Stage::Head) { Room::NONE } else { client.room() };
            let mut more = match origin.poll_read_chain(cx, room) {
                Poll::Ready(Ok(more)) => more,
                Poll::Ready(Err(_)) if matches!(down.stage, Stage::Head) => BufChain::new(),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    ready!(poll_flush(cx, client, &mut down.unflushed))?;
                    return Poll::Pending;
                }
            };
            if !more.is_empty() {
                down.read.append(&mut more);
                continue;
            }
            match &down.stage {
                Stage::Head => down.fail(),
                Stage::Body(framer) if !framer.ends_with_connection() => {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                Stage::Body(_) => {
                    ready!(poll_flush(cx, client, &mut down.unflushed))?;
                    return Poll::Ready(Ok(Outcome::Closed));
                }
                Stage::Tunnel => {
                    ready!(Pin::new(&mut **client).poll_shutdown(cx))?;
                    return if up.done { Poll::Ready(Ok(Outcome::Closed)) } else { Poll::Pending };
                }
            }
        }
    }
}

impl Exchange<'_> {
    /// Looks after a client that has sent its request and waits: ready when it is gone. An origin may be silent for
    /// hours, and without this the session would be kept for a client that is not there.
    ///
    /// What the client sends on is the beginning of its next request. Its end of stream is passed on as a tunnel would:
    /// it may be gone or may have ended its side only, which the origin judges as if asked directly; and the session
    /// has the shorter idle limit of a half-closed one from then on.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let waits = self.up.done && !self.client_ended && !matches!(self.down.stage, Stage::Tunnel);
        while waits && self.early.len() < MAX_HEAD {
            match self.client.poll_read_chain(cx, Room::NONE) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(mut more)) if !more.is_empty() => self.early.append(&mut more),
                Poll::Ready(Ok(_)) => {
                    self.client_ended = true;
                    let _ = Pin::new(&mut self.origin).poll_shutdown(cx);
                    return Poll::Pending;
                }
            }
        }
        Poll::Pending
    }

    /// Ready when the client has taken nothing for too long of a response that is all here.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        const LIMIT: Duration = timeouts::HALF_CLOSED_IDLE;
        let written = self.down.written;
        let stall = self.stall.get_or_insert_with(|| Stall { timer: Box::pin(sleep(LIMIT)), written });
        loop {
            ready!(stall.timer.as_mut().poll(cx));
            if stall.written == written && self.origin.has_ended() {
                return Poll::Ready(());
            }
            stall.written = written;
            stall.timer.as_mut().reset(Instant::now() + LIMIT);
        }
    }
}

fn poll_flush(cx: &mut Context<'_>, client: &mut BoxStream, unflushed: &mut bool) -> Poll<io::Result<()>> {
    if *unflushed {
        ready!(Pin::new(client).poll_flush(cx))?;
        *unflushed = false;
    }
    Poll::Ready(Ok(()))
}

fn invalid(error: &DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl Future for Exchange<'_> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let up = self.poll_up(cx);
        if let Poll::Ready(Err(_)) = up {
            self.origin.abort();
            return Poll::Ready(Outcome::Broken);
        }
        match self.poll_down(cx) {
            Poll::Ready(outcome) => Poll::Ready(outcome.unwrap_or(Outcome::Broken)),
            Poll::Pending if self.poll_gone(cx).is_ready() => {
                self.origin.abort();
                Poll::Ready(Outcome::Broken)
            }
            Poll::Pending if self.down.out.is_empty() => Poll::Pending,
            Poll::Pending => {
                ready!(self.poll_stall(cx));
                Poll::Ready(Outcome::Broken)
            }
        }
    }
}
