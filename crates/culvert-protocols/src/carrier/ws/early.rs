//! A client's stream that is not connected before there is something to send, which then goes with the request.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use culvert_core::{DialError, Session, StreamConn};
use culvert_wire::{BufChain, Room};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::client::Upgrade;
use super::conn::WsConn;
use crate::carrier::Lower;

/// The stream. Its first write, or whatever else is done first, opens the connection.
pub(super) struct EarlyConn {
    state: State,
}

enum State {
    Waiting(Box<Opener>),
    Opening(Pin<Box<dyn Future<Output = Result<WsConn, DialError>> + Send>>),
    Open(Box<WsConn>),
    /// It could not be opened, which has been told.
    Failed,
}

struct Opener {
    upgrade: Arc<Upgrade>,
    lower: Arc<Lower>,
    session: Session,
}

impl EarlyConn {
    pub(super) fn new(upgrade: Arc<Upgrade>, lower: Arc<Lower>, session: Session) -> Self {
        Self { state: State::Waiting(Box::new(Opener { upgrade, lower, session })) }
    }

    /// How many bytes can go with the request, as long as that has not been sent.
    fn wants(&self) -> usize {
        match &self.state {
            State::Waiting(opener) => opener.upgrade.max_early,
            State::Opening(_) | State::Open(_) | State::Failed => 0,
        }
    }

    /// Begins to open the connection, if that has not begun.
    fn start(&mut self, early: Vec<u8>) {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Waiting(opener) => {
                let opening = async move {
                    let Opener { upgrade, lower, session } = *opener;
                    upgrade.connect(&lower, &session, &early).await
                };
                self.state = State::Opening(Box::pin(opening));
            }
            other => self.state = other,
        }
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut WsConn>> {
        self.start(Vec::new());
        if let State::Opening(opening) = &mut self.state {
            self.state = match ready!(opening.as_mut().poll(cx)) {
                Ok(conn) => State::Open(Box::new(conn)),
                Err(error) => {
                    self.state = State::Failed;
                    return Poll::Ready(Err(io::Error::new(error.kind(), error)));
                }
            };
        }
        match &mut self.state {
            State::Open(conn) => Poll::Ready(Ok(conn)),
            State::Waiting(_) | State::Opening(_) | State::Failed => {
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }
}

impl StreamConn for EarlyConn {
    fn room(&self) -> Room {
        match &self.state {
            State::Open(conn) => conn.room(),
            State::Waiting(_) | State::Opening(_) | State::Failed => Room::NONE,
        }
    }

    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        ready!(self.poll_open(cx))?.poll_read_chain(cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        let early = self.wants().min(data.len());
        if early > 0 {
            self.start(data.take_front(early).to_vec());
        }
        ready!(self.poll_open(cx))?.poll_write_chain(cx, data)
    }

    fn abort(&mut self) {
        match &mut self.state {
            State::Open(conn) => conn.abort(),
            State::Waiting(_) | State::Opening(_) | State::Failed => self.state = State::Failed,
        }
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        match &self.state {
            State::Open(conn) => conn.local_addr(),
            State::Waiting(_) | State::Opening(_) | State::Failed => None,
        }
    }

    fn outermost_socket(&self) -> Option<&tokio::net::TcpStream> {
        match &self.state {
            State::Open(conn) => conn.outermost_socket(),
            State::Waiting(_) | State::Opening(_) | State::Failed => None,
        }
    }
}

impl AsyncRead for EarlyConn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *ready!(self.poll_open(cx))?).poll_read(cx, to)
    }
}

impl AsyncWrite for EarlyConn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let early = self.wants().min(from.len());
        if early > 0 {
            self.start(from[..early].to_vec());
            // The bytes are taken whatever comes of this; an error comes back with the next call.
            if let Poll::Ready(Err(error)) = self.poll_open(cx) {
                return Poll::Ready(Err(error));
            }
            return Poll::Ready(Ok(early));
        }
        Pin::new(&mut *ready!(self.poll_open(cx))?).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *ready!(self.poll_open(cx))?).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *ready!(self.poll_open(cx))?).poll_shutdown(cx)
    }
}
