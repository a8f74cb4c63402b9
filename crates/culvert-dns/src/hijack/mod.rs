//! Serves DNS on connections that were bound for some DNS server (`hijack-dns`), over streams and datagrams.
//!
//! Each question is answered as soon as its answer is there, in whatever order. An answer that is ready at once, as from
//! a cache, is given without starting a task. A question that fails is answered with SERVFAIL: a client that is told
//! asks elsewhere at once, where sing-box's silence costs it seconds.
//!
//! Sources: RFC 1035 section 4.2, RFC 7766 section 6.2 (pipelining, answers out of order, idle connections).

#[cfg(test)]
mod tests;

use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use culvert_core::{BoxPackets, BoxStream, Packet, PacketBatch, PacketConn, Session};
use culvert_wire::{Buf, Room, Target};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::DnsError;
use crate::message::{Carrier, Rcode, Refusal, Request};
use crate::plain::{push_framed, read_message};
use crate::router::Exchange;

/// How long a client may keep still while nothing is owed to it (sing-box 1.14.4: 10 s).
const IDLE: Duration = Duration::from_secs(10);
/// Most questions of one connection under way. A stream is not read on beyond that; datagrams are dropped.
const MOST_UNDER_WAY: usize = 256;
/// Answers of one connection that wait to be written.
const MOST_WAITING: usize = 64;

/// Serves a stream until the client ends it or keeps still. Questions that are under way when the client ends its half
/// are still answered.
///
/// # Errors
/// Those of the stream, except its end.
pub async fn serve_stream(
    conn: BoxStream,
    exchange: Arc<dyn Exchange>,
    session: Arc<Session>,
) -> io::Result<()> {
    let (reader, writer) = tokio::io::split(conn);
    let (answers, answered) = mpsc::channel(MOST_WAITING);
    let read = async {
        let ended = read_questions(reader, answers, exchange, session).await;
        // The writer ends when the last answer is written.
        match ended {
            Ok(()) => pending().await,
            Err(error) => error,
        }
    };
    tokio::select! {
        written = write_answers(writer, answered) => written,
        error = read => Err(error),
    }
}

async fn read_questions(
    mut reader: impl AsyncRead + Unpin,
    answers: mpsc::Sender<Vec<u8>>,
    exchange: Arc<dyn Exchange>,
    session: Arc<Session>,
) -> io::Result<()> {
    let mut under_way = JoinSet::new();
    loop {
        while under_way.len() >= MOST_UNDER_WAY {
            under_way.join_next().await;
        }
        let mut message = pin!(read_message(&mut reader));
        let message = loop {
            match timeout(IDLE, &mut message).await {
                Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    while under_way.join_next().await.is_some() {}
                    return Ok(());
                }
                Ok(message) => break message?,
                Err(_) => {
                    while under_way.try_join_next().is_some() {}
                    if under_way.is_empty() {
                        return Ok(());
                    }
                }
            }
        };
        match begin(&message, &exchange, &session, Carrier::Stream).await {
            Begun::Answered(Some(answer)) => {
                if answers.send(answer).await.is_err() {
                    return Ok(());
                }
            }
            Begun::Answered(None) => {}
            Begun::UnderWay(answer) => {
                let answers = answers.clone();
                under_way.spawn(async move {
                    if let Some(answer) = answer.await {
                        let _ = answers.send(answer).await;
                    }
                });
            }
        }
    }
}

async fn write_answers(
    mut writer: impl AsyncWrite + Unpin,
    mut answers: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    let mut ready = Vec::new();
    while answers.recv_many(&mut ready, MOST_WAITING).await > 0 {
        let mut framed = Vec::new();
        for answer in ready.drain(..) {
            push_framed(&mut framed, &answer)?;
        }
        let write = async {
            writer.write_all(&framed).await?;
            writer.flush().await
        };
        // A client that asks and does not read holds questions, answers and a socket.
        timeout(IDLE, write).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    }
    writer.shutdown().await
}

/// Serves an association until the client keeps still.
///
/// # Errors
/// Those of the conn, except its end.
pub async fn serve_packets(
    mut conn: BoxPackets,
    exchange: Arc<dyn Exchange>,
    session: Arc<Session>,
) -> io::Result<()> {
    let room = conn.room();
    let (answers, mut answered) = mpsc::unbounded_channel::<(Target, Vec<u8>)>(); // at most as many as are under way
    let mut under_way = JoinSet::new();
    let (mut incoming, mut outgoing) = (PacketBatch::new(), PacketBatch::new());
    loop {
        let turn = poll_fn(|cx| {
            while let Poll::Ready(Some((peer, answer))) = answered.poll_recv(cx) {
                outgoing.push(packet(&answer, peer, room));
            }
            if !outgoing.is_empty() && conn.poll_send(cx, &mut outgoing)?.is_pending() {
                // What cannot be sent must not pile up behind what is received.
                return Poll::Pending;
            }
            conn.poll_recv(cx, Room::NONE, &mut incoming)
        });
        match timeout(IDLE, turn).await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Ok(received) => received?,
            Err(_) => {
                while under_way.try_join_next().is_some() {}
                if under_way.is_empty() {
                    return Ok(());
                }
            }
        }
        while let Some(received) = incoming.pop() {
            for question in received.payloads() {
                let peer = received.peer.clone();
                match begin(question, &exchange, &session, Carrier::Datagram).await {
                    Begun::Answered(Some(answer)) => outgoing.push(packet(&answer, peer, room)),
                    Begun::Answered(None) => {}
                    Begun::UnderWay(answer) => {
                        while under_way.try_join_next().is_some() {}
                        if under_way.len() >= MOST_UNDER_WAY {
                            continue;
                        }
                        let answers = answers.clone();
                        under_way.spawn(async move {
                            if let Some(answer) = answer.await {
                                let _ = answers.send((peer, answer));
                            }
                        });
                    }
                }
            }
        }
    }
}

/// An answer comes from the very address that was asked, which the packet names.
fn packet(answer: &[u8], peer: Target, room: Room) -> Packet {
    let mut data = Buf::new(answer.len(), room.head, room.tail);
    data.append(answer);
    Packet::new(data, peer)
}

type Answering = Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send>>;

/// What became of a question at first look.
enum Begun {
    /// This is the answer; `None` is silence.
    Answered(Option<Vec<u8>>),
    /// The answer takes its time.
    UnderWay(Answering),
}

async fn begin(
    message: &[u8],
    exchange: &Arc<dyn Exchange>,
    session: &Arc<Session>,
    carrier: Carrier,
) -> Begun {
    let request = match Request::parse(message) {
        Ok(request) => request,
        Err(Refusal::Reply(reply)) => return Begun::Answered(Some(reply)),
        Err(Refusal::Silence) => return Begun::Answered(None),
    };
    let mut answering: Answering =
        Box::pin(answer(request, Arc::clone(exchange), Arc::clone(session), carrier));
    match poll_fn(|cx| Poll::Ready(answering.as_mut().poll(cx))).await {
        Poll::Ready(answer) => Begun::Answered(answer),
        Poll::Pending => Begun::UnderWay(answering),
    }
}

async fn answer(
    request: Request,
    exchange: Arc<dyn Exchange>,
    session: Arc<Session>,
    carrier: Carrier,
) -> Option<Vec<u8>> {
    match exchange.exchange(&request, &session).await {
        Ok(answer) => Some(request.answer(&answer, carrier)),
        Err(DnsError::Dropped) => None,
        Err(error) => {
            tracing::debug!(session = %session.id, query = %request.query, %error, "query failed");
            Some(request.fail(Rcode::SERVFAIL))
        }
    }
}
