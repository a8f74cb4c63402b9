//! What the tests of transports share: a client and a server of one with a protocol in them that hands its streams to the
//! test, and the checks that all of them pass.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::options::dial::ServerOptions;
use culvert_config::options::transport::TransportKind;
use culvert_config::value::Typed;
use culvert_core::conn::{read_chain, write_chain};
use culvert_core::{
    BoxStream, DialError, Dispatch, Handshake, ServeError, Session, StreamConn, StreamServer,
};
use culvert_wire::{Buf, BufChain, Room};
use tokio::io::{AsyncReadExt, AsyncWrite as _, AsyncWriteExt};
use tokio::sync::mpsc;

use super::{Carrier, serve};
use crate::testing::{World, dialer, session, store};

/// A protocol that hands over what it is to serve.
struct Catcher(mpsc::UnboundedSender<Caught>);

/// A stream that has reached the protocol.
pub(super) struct Caught {
    pub(super) conn: BoxStream,
    pub(super) session: Session,
}

#[async_trait]
impl StreamServer for Catcher {
    async fn serve(
        &self,
        conn: BoxStream,
        session: Session,
        _handshake: Handshake,
        _dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let _ = self.0.send(Caught { conn, session });
        Ok(())
    }
}

/// A server of a transport, and what comes through it.
pub(super) fn server(kind: TransportKind) -> (Arc<dyn StreamServer>, mpsc::UnboundedReceiver<Caught>) {
    let (sender, caught) = mpsc::unbounded_channel();
    (serve(&crate::testing::no_dialer, None, &Typed(Some(kind)), Arc::new(Catcher(sender))).unwrap(), caught)
}

/// A client of a transport whose connections go to `server`.
pub(super) fn client(world: &World, kind: TransportKind, server: &Arc<dyn StreamServer>) -> Carrier {
    let dialer = dialer(world.upstream(server));
    let address = ServerOptions { server: "server.test".into(), server_port: 443 };
    Carrier::new(dialer, &store(), &address, None, &Typed(Some(kind))).unwrap()
}

/// Both, with their connections in memory.
pub(super) struct Pair {
    /// Kept, as all else is in it.
    pub(super) _world: World,
    pub(super) carrier: Carrier,
    pub(super) caught: mpsc::UnboundedReceiver<Caught>,
}

impl Pair {
    pub(super) fn new(make: impl Fn() -> TransportKind) -> Self {
        let world = World::new();
        let (server, caught) = server(make());
        let carrier = client(&world, make(), &server);
        Self { _world: world, carrier, caught }
    }

    /// Opens a stream and says hello on it.
    pub(super) async fn open(&mut self) -> (BoxStream, BoxStream) {
        let mut client = self.connect().await.unwrap();
        client.write_all(b"hello").await.unwrap();
        client.flush().await.unwrap();
        let mut server = self.caught.recv().await.unwrap().conn;
        let mut hello = [0; 5];
        server.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
        (client, server)
    }

    pub(super) async fn connect(&self) -> Result<BoxStream, DialError> {
        self.carrier.connect(&session("target.test:80")).await
    }
}

/// A run of bytes in which loss and repetition show.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u8).collect()
}

async fn send(conn: &mut BoxStream, bytes: &[u8]) -> io::Result<()> {
    for (number, part) in bytes.chunks(50_000).enumerate() {
        let room = conn.room();
        let mut chain = BufChain::new();
        for part in part.chunks(room.max.min(7000 + number)) {
            // With the room that is wanted, and without.
            let head = if number % 3 == 0 { 0 } else { room.head };
            let mut piece = Buf::new(part.len(), head, room.tail);
            piece.append(part);
            chain.push_back(piece);
        }
        write_chain(conn, &mut chain).await?;
    }
    std::future::poll_fn(|cx| std::pin::Pin::new(&mut *conn).poll_shutdown(cx)).await
}

async fn receive(conn: &mut BoxStream) -> io::Result<Vec<u8>> {
    let room = Room { head: 9, tail: 3, max: 5000 };
    let mut all = Vec::new();
    for number in 0.. {
        let room = if number % 2 == 0 { room } else { Room::NONE };
        let chain = read_chain(conn, room).await?;
        if chain.is_empty() {
            break;
        }
        assert!(chain.iter().all(|piece| piece.head() >= room.head && piece.spare() >= room.tail));
        all.extend(chain.to_vec());
    }
    Ok(all)
}

/// The bytes of both directions arrive, at the same time, and their ends do.
pub(super) async fn carries(mut pair: Pair) {
    let (mut client, mut server) = pair.open().await;
    let (up, down) = (pattern(1 << 20), pattern((3 << 20) + 1));
    let (mut client_read, mut server_read) = (Vec::new(), Vec::new());
    let client_side = async {
        // One task polls both directions, as the relay does.
        both(&mut client, &up, &mut client_read).await
    };
    let server_side = async { both(&mut server, &down, &mut server_read).await };
    let (one, other) = tokio::join!(client_side, server_side);
    one.unwrap();
    other.unwrap();
    assert!(client_read == down && server_read == up);
}

/// Writes and reads at once until both directions have ended.
async fn both(conn: &mut BoxStream, out: &[u8], read: &mut Vec<u8>) -> io::Result<()> {
    use std::pin::Pin;
    use std::task::Poll;
    let mut rest = out;
    let mut held = BufChain::new();
    let (mut written, mut ended) = (false, false);
    std::future::poll_fn(|cx| {
        while !ended {
            match conn.poll_read_chain(cx, Room::NONE)? {
                Poll::Ready(chain) if chain.is_empty() => ended = true,
                Poll::Ready(chain) => read.extend(chain.to_vec()),
                Poll::Pending => break,
            }
        }
        while !written {
            if held.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(100_000));
                held.append_copy(now);
                rest = later;
            }
            if held.is_empty() {
                match Pin::new(&mut *conn).poll_shutdown(cx)? {
                    Poll::Ready(()) => written = true,
                    Poll::Pending => break,
                }
            } else if conn.poll_write_chain(cx, &mut held)?.is_pending() {
                let _ = Pin::new(&mut *conn).poll_flush(cx);
                break;
            }
        }
        if written && ended { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// One direction ends while the other goes on, whichever is first.
pub(super) async fn half_closes(mut pair: Pair) {
    for client_first in [true, false] {
        let (mut client, mut server) = pair.open().await;
        let (first, last) =
            if client_first { (&mut client, &mut server) } else { (&mut server, &mut client) };
        send(first, b"question").await.unwrap();
        assert_eq!(receive(last).await.unwrap(), b"question");
        let answer = pattern(200_000);
        let (sent, received) = tokio::join!(send(last, &answer), receive(first));
        sent.unwrap();
        assert!(received.unwrap() == answer);
    }
}

/// A stream that breaks off is read as an error at the other end, from either end, and after what came before.
pub(super) async fn resets(mut pair: Pair) {
    for client_breaks in [true, false] {
        let (mut client, mut server) = pair.open().await;
        let (breaks, sees) =
            if client_breaks { (&mut client, &mut server) } else { (&mut server, &mut client) };
        breaks.write_all(b"some").await.unwrap();
        breaks.flush().await.unwrap();
        let mut some = [0; 4];
        sees.read_exact(&mut some).await.unwrap();
        breaks.abort();
        if client_breaks {
            drop(client);
            assert!(receive(&mut server).await.is_err());
        } else {
            drop(server);
            assert!(receive(&mut client).await.is_err());
        }
    }
}

/// Who does not read holds up who writes.
pub(super) async fn holds_back(mut pair: Pair) {
    let (mut client, mut server) = pair.open().await;
    let flood = pattern(64 << 10);
    let mut sent = 0;
    let blocked = async {
        loop {
            write_chain(&mut server, &mut BufChain::copied(&flood)).await.unwrap();
            sent += flood.len();
        }
    };
    let quiet = tokio::time::timeout(std::time::Duration::from_secs(3), blocked);
    assert!(quiet.await.is_err());
    assert!(sent < 8 << 20, "{sent} bytes were taken");
    let mut got = 0;
    while got < sent {
        got += read_chain(&mut client, Room::NONE).await.unwrap().len();
    }
    drop(server);
}
