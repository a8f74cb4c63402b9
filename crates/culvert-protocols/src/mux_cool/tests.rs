//! Vectors, cuts, and carriers in memory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::conn::read_chain;
use culvert_core::duplex::{Duplex, duplex};
use culvert_core::{
    BoxStream, DialError, Dispatch, Handshake, Network, Packet, PacketBatch, PacketConn, ServeError, Session,
    StreamServer,
};
use culvert_wire::{AddressCodec, Buf, BufChain, DecodeError, Reader, Room, Target};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::codec::{Head, MAX_DATA, Status};
use super::session::{Channel, Queue};
use super::*;
use crate::testing::{World, recv_packet, send_packets, target, write_in_pieces};

/// A server of nothing but the frames.
struct Bare;

#[async_trait]
impl StreamServer for Bare {
    async fn serve(
        &self,
        conn: BoxStream,
        session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        serve(conn, BufChain::new(), session, None, handshake, dispatch).await
    }
}

fn server() -> Arc<dyn StreamServer> {
    Arc::new(Bare)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn frame(id: u16, status: Status, peer: Option<(Network, &str)>, data: Option<&[u8]>) -> Vec<u8> {
    let peer = peer.map(|(network, peer)| (network, target(peer)));
    let len = data.map(|data| u16::try_from(data.len()).unwrap());
    let mut out = Vec::new();
    Head { id, status, error: false, peer, data: len }.encode(&mut out);
    out.extend(data.unwrap_or_default());
    out
}

fn new_stream(id: u16, data: &[u8]) -> Vec<u8> {
    frame(id, Status::New, Some((Network::Tcp, "a.test:80")), Some(data))
}

fn keep(id: u16, data: &[u8]) -> Vec<u8> {
    frame(id, Status::Keep, None, Some(data))
}

/// Reads one frame.
async fn read_frame(conn: &mut Duplex) -> (Head, Vec<u8>) {
    let mut bytes = Vec::new();
    loop {
        let mut r = Reader::new(&bytes);
        match Head::decode(&mut r) {
            Ok(head) => {
                let mut data = vec![0; head.data.unwrap_or(0).into()];
                conn.read_exact(&mut data).await.unwrap();
                return (head, data);
            }
            Err(DecodeError::Incomplete) => bytes.push(conn.read_u8().await.unwrap()),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn vectors_of_the_sheet() {
    let stream = |name: &str| Some((Network::Tcp, target(name)));
    let packet = |name: &str| Some((Network::Udp, target(name)));
    let cases = [
        (
            "001400010101010050020b6578616d706c652e636f6d0002",
            1,
            Status::New,
            stream("example.com:80"),
            Some(2),
        ),
        ("0004000102010004", 1, Status::Keep, None, Some(4)),
        ("000400010300", 1, Status::End, None, None),
        ("000400000400", 0, Status::KeepAlive, None, None),
        ("000c000001010200350101020304 0003", 0, Status::New, packet("1.2.3.4:53"), Some(3)),
        (
            "0018000002010201bb0320010db8000000000000000000000001 0002",
            0,
            Status::Keep,
            packet("[2001:db8::1]:443"),
            Some(2),
        ),
    ];
    for (bytes, id, status, peer, data) in cases {
        let bytes = hex(bytes);
        let head = Head { id, status, error: false, peer, data };
        assert_eq!(Head::decode(&mut Reader::new(&bytes)), Ok(head.clone()));
        let mut out = Vec::new();
        head.encode(&mut out);
        assert_eq!(out, bytes);
        for cut in 0..bytes.len() {
            assert_eq!(Head::decode(&mut Reader::new(&bytes[..cut])), Err(DecodeError::Incomplete));
        }
    }
    let mut out = Vec::new();
    Head::end(0x63, true).encode(&mut out);
    assert_eq!(out, hex("000400630302"));
}

#[test]
fn what_nobody_knows_in_a_frame_is_read_over() {
    // The global id of Xray behind the address.
    let bytes = hex("00140000010102003501080808083efdb9126ee624840005 7175657279");
    let mut r = Reader::new(&bytes);
    let head = Head::decode(&mut r).unwrap();
    assert_eq!((head.peer, head.data), (Some((Network::Udp, target("8.8.8.8:53"))), Some(5)));
    assert_eq!(r.rest(), b"query");
    // Padding behind the meta part of a stream's data.
    let head = Head::decode(&mut Reader::new(&hex("0007 0001 02 01 ffffff 0001"))).unwrap();
    assert_eq!((head.peer, head.data), (None, Some(1)));
    // A target that is none leaves the frame's length known.
    let head = Head::decode(&mut Reader::new(&hex("0008 0001 01 01 01 0050 09 0001"))).unwrap();
    assert_eq!((head.peer, head.data), (None, Some(1)));
}

#[test]
fn lengths_and_states_that_nobody_sends_are_refused() {
    for bytes in ["0003 0001 01", "0201", "0000", "0004 0001 05 00", "0004 0001 00 00"] {
        let bytes = hex(bytes);
        let whole = bytes.len() > 2 || bytes[0] == 2 || bytes == [0, 0];
        assert!(
            whole && matches!(Head::decode(&mut Reader::new(&bytes)), Err(DecodeError::Invalid(_))),
            "{bytes:?}"
        );
    }
}

#[tokio::test]
async fn streams_go_both_ways_and_end() {
    let mut world = World::new();
    let (mut near, _serving) = world.serve(&server());
    near.write_all(&hex("001400010101010050020b6578616d706c652e636f6d00026869")).await.unwrap();
    let arrived = world.next().await;
    assert_eq!(
        (arrived.session.network, arrived.session.target.to_string().as_str()),
        (Network::Tcp, "example.com:80")
    );
    let mut one = arrived.stream();
    let mut said = [0; 6];
    one.read_exact(&mut said[..2]).await.unwrap();
    near.write_all(&hex("00040001020100046d6f7265")).await.unwrap();
    one.read_exact(&mut said[2..]).await.unwrap();
    assert_eq!(&said, b"himore");
    one.write_all(b"mux1").await.unwrap();
    let mut answer = [0; 12];
    near.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[..], hex("0004 0001 02 01 0004 6d757831"));

    // A second one; the first one's end does not touch it.
    near.write_all(&new_stream(2, b"two")).await.unwrap();
    let mut two = world.next().await.stream();
    near.write_all(&keep(1, b"last")).await.unwrap();
    near.write_all(&frame(1, Status::End, None, None)).await.unwrap();
    let mut rest = Vec::new();
    one.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"last");
    drop(one);
    two.write_all(b"still here").await.unwrap();
    two.shutdown().await.unwrap();
    assert_eq!(read_frame(&mut near).await, (Head::keep(2, 10), b"still here".to_vec()));
    assert_eq!(read_frame(&mut near).await, (Head::end(2, false), vec![]));
    // After that its data is nobody's, and that is said.
    near.write_all(&keep(2, b"too late")).await.unwrap();
    assert_eq!(read_frame(&mut near).await.0, Head::end(2, true));
}

#[tokio::test]
async fn data_of_nobody_is_answered_and_read_over() {
    let mut world = World::new();
    let (mut near, serving) = world.serve(&server());
    near.write_all(&keep(0x63, b"lost")).await.unwrap();
    near.write_all(&frame(0x64, Status::End, None, Some(b"data"))).await.unwrap();
    near.write_all(&frame(0, Status::KeepAlive, None, Some(b"noise"))).await.unwrap();
    near.write_all(&new_stream(1, b"hi")).await.unwrap();
    let mut answer = [0; 6];
    near.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[..], hex("0004 0063 03 02"));
    let mut one = world.next().await.stream();
    assert_eq!(read_chain(&mut one, Room::NONE).await.unwrap().to_vec(), b"hi");
    // A carrier that ends cuts its sessions off.
    drop(near);
    serving.await.unwrap().unwrap();
    let broken = one.read_u8().await.unwrap_err();
    assert_eq!(broken.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_failed_dial_ends_its_session_only() {
    let mut world = World::deciding(|session| match session.target.port {
        81 => Err(DialError::Rejected("test")),
        _ => Ok(()),
    });
    let (mut near, _serving) = world.serve(&server());
    near.write_all(&frame(1, Status::New, Some((Network::Tcp, "a.test:81")), Some(b"x"))).await.unwrap();
    assert_eq!(read_frame(&mut near).await.0, Head::end(1, true));
    // The same for a target that makes no sense.
    near.write_all(&hex("0008 0002 01 01 01 0050 09 0001 78")).await.unwrap();
    assert_eq!(read_frame(&mut near).await.0, Head::end(2, true));
    near.write_all(&new_stream(3, b"hi")).await.unwrap();
    let mut three = world.next().await.stream();
    assert_eq!(read_chain(&mut three, Room::NONE).await.unwrap().to_vec(), b"hi");
}

#[tokio::test]
async fn associations_keep_their_packets_apart() {
    let mut world = World::new();
    let (mut near, _serving) = world.serve(&server());
    near.write_all(&frame(7, Status::New, Some((Network::Udp, "a.test:53")), Some(b"one"))).await.unwrap();
    let arrived = world.next().await;
    assert_eq!(
        (arrived.session.network, arrived.session.target.to_string().as_str()),
        (Network::Udp, "a.test:53")
    );
    let mut far = arrived.packets();
    near.write_all(&keep(7, b"two")).await.unwrap();
    near.write_all(&frame(7, Status::Keep, Some((Network::Udp, "1.2.3.4:9")), Some(b""))).await.unwrap();
    let mut waiting = PacketBatch::new();
    for (peer, data) in [("a.test:53", &b"one"[..]), ("a.test:53", b"two"), ("1.2.3.4:9", b"")] {
        assert_eq!(recv_packet(&mut far, &mut waiting).await, (peer.to_owned(), data.to_vec()));
    }
    send_packets(&mut far, &[("5.6.7.8:9", b"back"), ("[::1]:1", b"")]).await;
    let (head, data) = read_frame(&mut near).await;
    assert_eq!((head.peer, data), (Some((Network::Udp, target("5.6.7.8:9"))), b"back".to_vec()));
    let (head, data) = read_frame(&mut near).await;
    assert_eq!((head.peer, head.data, data), (Some((Network::Udp, target("[::1]:1"))), Some(0), vec![]));
    let mut batch = PacketBatch::new();
    batch.push(Packet { data: Buf::copied(b"aabbc"), segment: 2, peer: target("5.6.7.8:9") });
    std::future::poll_fn(|cx| far.poll_send(cx, &mut batch)).await.unwrap();
    for part in [&b"aa"[..], b"bb", b"c"] {
        assert_eq!(read_frame(&mut near).await.1, part);
    }
    drop(far);
    assert_eq!(read_frame(&mut near).await.0, Head::end(7, false));
}

#[tokio::test]
async fn an_id_in_use_and_a_broken_frame_end_the_carrier() {
    for last in [new_stream(1, b""), hex("0004 0001 09 00"), hex("ffff")] {
        let mut world = World::new();
        let (mut near, serving) = world.serve(&server());
        near.write_all(&new_stream(1, b"hi")).await.unwrap();
        let mut one = world.next().await.stream();
        near.write_all(&last).await.unwrap();
        assert!(matches!(serving.await.unwrap(), Err(ServeError::Invalid(_))));
        one.read_exact(&mut [0; 2]).await.unwrap();
        assert!(one.read_u8().await.is_err(), "the session was not cut off");
    }
}

#[tokio::test]
async fn sessions_beyond_the_limit_are_refused_alone() {
    let mut world = World::new();
    let (mut near, _serving) = world.serve(&server());
    let mut kept = Vec::new();
    for id in 1..=256 {
        near.write_all(&new_stream(id, b"")).await.unwrap();
        kept.push(world.next().await);
    }
    near.write_all(&new_stream(300, b"data")).await.unwrap();
    assert_eq!(read_frame(&mut near).await.0, Head::end(300, true));
    kept.pop();
    assert_eq!(read_frame(&mut near).await.0.status, Status::End);
    near.write_all(&new_stream(301, b"data")).await.unwrap();
    assert_eq!(read_chain(&mut world.next().await.stream(), Room::NONE).await.unwrap().to_vec(), b"data");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_takes_nothing_does_not_keep_others_waiting_for_ever() {
    let mut world = World::new();
    let (near, _serving) = world.serve(&server());
    let (mut read, mut write) = tokio::io::split(near);
    write.write_all(&new_stream(1, b"")).await.unwrap();
    let stuck = world.next().await.stream();
    write.write_all(&new_stream(2, b"")).await.unwrap();
    let mut two = world.next().await.stream();
    // What goes to clients does not depend on what comes from them.
    let flooding = tokio::spawn(async move {
        for _ in 0..100 {
            write.write_all(&keep(1, &[1; MAX_DATA])).await.unwrap();
        }
        write.write_all(&keep(2, b"through")).await.unwrap();
        write
    });
    two.write_all(b"down").await.unwrap();
    let mut answer = [0; 12];
    read.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer[8..], b"down");
    let mut through = [0; 7];
    let since = tokio::time::Instant::now();
    two.read_exact(&mut through).await.unwrap();
    assert_eq!(since.elapsed().as_secs(), 10);
    let mut end = [0; 6];
    read.read_exact(&mut end).await.unwrap();
    assert_eq!(end[..], hex("0004 0001 03 02"));
    drop((stuck, flooding.await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_slow_stream_alone_is_waited_for() {
    let mut world = World::new();
    let (mut near, _serving) = world.serve(&server());
    near.write_all(&new_stream(1, b"")).await.unwrap();
    let mut slow = world.next().await.stream();
    let writing = tokio::spawn(async move {
        for _ in 0..100 {
            near.write_all(&keep(1, &[1; MAX_DATA])).await.unwrap();
        }
        near
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut all = vec![0; 100 * MAX_DATA];
    slow.read_exact(&mut all).await.unwrap();
    drop(writing.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_carrier_without_sessions_is_closed_after_a_while() {
    let mut world = World::new();
    let (mut near, serving) = world.serve(&server());
    near.write_all(&new_stream(1, b"")).await.unwrap();
    let mut one = world.next().await.stream();
    tokio::time::sleep(Duration::from_secs(300)).await;
    one.shutdown().await.unwrap();
    drop(one);
    assert_eq!(read_frame(&mut near).await.0, Head::end(1, false));
    let since = tokio::time::Instant::now();
    assert_eq!(near.read(&mut [0; 1]).await.unwrap(), 0);
    assert_eq!(since.elapsed().as_secs(), 60);
    serving.await.unwrap().unwrap();
}

/// A session's bytes reach that session, whatever the others do; some are broken off midway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_get_their_own_bytes() {
    const CARRIERS: u16 = 5;
    const STREAMS: u16 = 200;
    const SIZE: usize = 20_000;
    let is_cancelled = |id: u16| id % 7 == 3;
    let end_of = |id: u16| {
        let mut frame = Vec::new();
        Head::end(id, true).encode(&mut frame);
        frame
    };
    let mut world = World::new();
    let echoing = tokio::spawn({
        let mut arrivals = std::mem::replace(&mut world.arrivals, tokio::sync::mpsc::unbounded_channel().1);
        async move {
            while let Some(arrived) = arrivals.recv().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = tokio::io::split(arrived.stream());
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        }
    });
    let carriers: Vec<_> = (0..CARRIERS)
        .map(|carrier| {
            let (near, serving) = world.serve(&server());
            tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(near);
                let byte =
                    move |id: u16, at: usize| (usize::from(id * CARRIERS + carrier) * 31 + at * 7) as u8;
                let sending = tokio::spawn(async move {
                    for id in 1..=STREAMS {
                        write.write_all(&new_stream(id, b"")).await.unwrap();
                    }
                    for from in (0..SIZE).step_by(2000) {
                        for id in 1..=STREAMS {
                            if is_cancelled(id) && from >= SIZE / 2 {
                                if from == SIZE / 2 {
                                    write.write_all(&end_of(id)).await.unwrap();
                                }
                                continue;
                            }
                            let data: Vec<u8> = (from..from + 2000).map(|at| byte(id, at)).collect();
                            write.write_all(&keep(id, &data)).await.unwrap();
                        }
                    }
                    write
                });
                let mut seen = vec![0; usize::from(STREAMS) + 1];
                let is_whole = |(id, seen): (usize, &usize)| is_cancelled(id as u16) || *seen == SIZE;
                while !seen.iter().enumerate().skip(1).all(is_whole) {
                    let mut head = [0; 8];
                    read.read_exact(&mut head).await.unwrap();
                    let head = Head::decode(&mut Reader::new(&head)).unwrap();
                    assert_eq!(head.status, Status::Keep, "stream {} of {carrier}", head.id);
                    let mut data = vec![0; head.data.unwrap().into()];
                    read.read_exact(&mut data).await.unwrap();
                    let at = &mut seen[usize::from(head.id)];
                    for (offset, found) in data.iter().enumerate() {
                        assert_eq!(*found, byte(head.id, *at + offset), "stream {} at {at}", head.id);
                    }
                    *at += data.len();
                }
                drop((sending.await.unwrap(), read));
                serving.await.unwrap().unwrap();
            })
        })
        .collect();
    for carrier in carriers {
        carrier.await.unwrap();
    }
    echoing.abort();
}

/// One carrier, many sessions one after the other: nothing of them stays.
#[tokio::test]
async fn sessions_leave_nothing_behind() {
    let mut world = World::new();
    let (mut near, _serving) = world.serve(&server());
    for round in 0..20_000u32 {
        let id = round as u16;
        if id == 0 {
            continue; // as the first id it would be XUDP's, if it were of UDP
        }
        near.write_all(&new_stream(id, b"ask")).await.unwrap();
        let mut far = world.next().await.stream();
        far.read_exact(&mut [0; 3]).await.unwrap();
        far.write_all(b"answer").await.unwrap();
        drop(far);
        let mut answer = [0; 20];
        near.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer[8..14], b"answer");
    }
    tokio::time::timeout(Duration::from_secs(5), async {
        while !world.dispatch.flows().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("flows are left");
}

#[test]
fn frames_that_no_carrier_takes_are_freed() {
    let queue = Queue::new(Room::NONE);
    let (early, late) = (Channel::new(1, &queue), Channel::new(2, &queue));
    early.end(false);
    queue.close();
    late.end(false);
    let left = [Arc::downgrade(&early), Arc::downgrade(&late)];
    drop((queue, early, late));
    assert!(left.iter().all(|channel| channel.upgrade().is_none()));
}

#[tokio::test]
async fn xudp_opens_with_the_first_packet_and_in_place() {
    let (near, mut far) = duplex(1 << 16);
    let mut client = XudpConn::client(Box::new(near), target("1.2.3.4:53"));
    let room = client.room();
    let mut data = Buf::new(3, room.head, room.tail);
    data.append(b"dns");
    let place = data.as_ptr() as usize;
    let mut batch = PacketBatch::new();
    batch.push(Packet::new(data, target("1.2.3.4:53")));
    std::future::poll_fn(|cx| client.poll_send(cx, &mut batch)).await.unwrap();
    let sent = read_chain(&mut far, Room::NONE).await.unwrap();
    assert_eq!(sent.to_vec(), hex("000c00000101020035010102030400 03646e73"));
    assert_eq!(sent.front().as_ptr() as usize + sent.len() - 3, place, "the payload was copied");
    send_packets(&mut client, &[("[2001:db8::1]:443", b"hi"), ("a.test:9", b"")]).await;
    let sent = read_chain(&mut far, Room::NONE).await.unwrap().to_vec();
    let name = hex("000f0000020102 0009 02 06612e74657374 0000");
    assert_eq!(sent, [hex("0018000002010201bb0320010db800000000000000000000000100026869"), name].concat());
}

#[tokio::test]
async fn xudp_is_one_association_at_the_server() {
    let mut world = World::new();
    let (near, serving) = world.serve(&server());
    let mut client = XudpConn::client(Box::new(near), target("a.test:53"));
    send_packets(&mut client, &[("a.test:53", b"one"), ("5.6.7.8:9", b"two")]).await;
    let arrived = world.next().await;
    serving.await.unwrap().unwrap();
    assert_eq!(
        (arrived.session.network, arrived.session.target.to_string().as_str()),
        (Network::Udp, "a.test:53")
    );
    let (mut far, mut waiting) = (arrived.packets(), PacketBatch::new());
    for (peer, data) in [("a.test:53", b"one"), ("5.6.7.8:9", b"two")] {
        assert_eq!(recv_packet(&mut far, &mut waiting).await, (peer.to_owned(), data.to_vec()));
    }
    send_packets(&mut far, &[("[::1]:7", b"back"), ("9.9.9.9:9", b"")]).await;
    assert_eq!(recv_packet(&mut client, &mut waiting).await, ("[::1]:7".to_owned(), b"back".to_vec()));
    assert_eq!(recv_packet(&mut client, &mut waiting).await, ("9.9.9.9:9".to_owned(), vec![]));
    drop(far);
    let end = std::future::poll_fn(|cx| client.poll_recv(cx, Room::NONE, &mut waiting)).await;
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn xudp_ends_as_it_is_told() {
    use std::io::ErrorKind::{ConnectionReset, InvalidData, UnexpectedEof};
    let packet = frame(0, Status::New, Some((Network::Udp, "1.2.3.4:5")), Some(b"x"));
    let cases = [
        (frame(0, Status::End, None, None), UnexpectedEof),
        (hex("0004 0000 03 02"), ConnectionReset),
        (packet.clone(), InvalidData),
        (keep(1, b"x"), InvalidData),
        (hex("0004 0000 07 00"), InvalidData),
        (hex("0004 00"), UnexpectedEof),
    ];
    for (bytes, kind) in cases {
        let (mut near, far) = duplex(1 << 16);
        let mut client = XudpConn::client(Box::new(far), target("1.2.3.4:5"));
        near.write_all(&frame(0, Status::KeepAlive, None, Some(b"noise"))).await.unwrap();
        // Without an address a packet is from the session's peer.
        near.write_all(&keep(0, b"data")).await.unwrap();
        near.write_all(&bytes).await.unwrap();
        drop(near);
        let mut waiting = PacketBatch::new();
        assert_eq!(recv_packet(&mut client, &mut waiting).await, ("1.2.3.4:5".to_owned(), b"data".to_vec()));
        let end = std::future::poll_fn(|cx| client.poll_recv(cx, Room::NONE, &mut waiting)).await;
        assert_eq!(end.unwrap_err().kind(), kind, "{bytes:?}");
    }
}

#[tokio::test]
async fn xudp_sends_trains_as_their_datagrams() {
    let (near, far) = duplex(1 << 20);
    let mut client = XudpConn::client(Box::new(near), target("[2001:db8::9]:9"));
    let mut server = XudpConn::server(Box::new(far), BufChain::new(), target("[2001:db8::9]:9"));
    let bytes: Vec<u8> = (0..64_400u32).map(|at| at as u8).collect();
    let mut batch = PacketBatch::new();
    batch.push(Packet { data: Buf::copied(&bytes), segment: 1200, peer: target("[2001:db8::9]:9") });
    std::future::poll_fn(|cx| client.poll_send(cx, &mut batch)).await.unwrap();
    let mut waiting = PacketBatch::new();
    for payload in bytes.chunks(1200) {
        assert_eq!(
            recv_packet(&mut server, &mut waiting).await,
            ("[2001:db8::9]:9".into(), payload.to_vec())
        );
    }
}

#[test]
fn lengths_are_those_of_the_sheet() {
    let len = |peer: Target| 5 + AddressCodec::VLESS.encoded_len(&peer);
    assert_eq!(
        (len(target("1.2.3.4:5")), len(target("[::1]:5")), len(target("a.test:5"))),
        (0xc, 0x18, 9 + 6)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_cut_gives_the_same_sessions(cuts in prop::collection::vec(1usize..20, 1..5)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            let (mut near, _serving) = world.serve(&server());
            let bytes = [
                new_stream(1, b"he"),
                frame(2, Status::New, Some((Network::Udp, "1.2.3.4:5")), None),
                frame(0, Status::KeepAlive, None, Some(b"noise")),
                keep(1, b"llo"),
                keep(2, b"datagram"),
                frame(2, Status::Keep, Some((Network::Udp, "[::1]:5")), Some(b"other")),
                keep(1, &[7; 300]),
                frame(1, Status::End, None, None),
            ]
            .concat();
            write_in_pieces(&mut near, &bytes, &cuts).await.unwrap();
            let mut one = world.next().await.stream();
            let mut all = Vec::new();
            one.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, [&b"hello"[..], &[7; 300]].concat());
            let (mut two, mut waiting) = (world.next().await.packets(), PacketBatch::new());
            assert_eq!(recv_packet(&mut two, &mut waiting).await, ("1.2.3.4:5".to_owned(), b"datagram".to_vec()));
            assert_eq!(recv_packet(&mut two, &mut waiting).await, ("[::1]:5".to_owned(), b"other".to_vec()));
        });
    }

    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
    }

    #[test]
    fn random_frames_do_not_upset_a_carrier(bytes in prop::collection::vec(0u8..6, 0..400)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new();
            let (mut near, serving) = world.serve(&server());
            let _ = near.write_all(&new_stream(1, b"")).await;
            let _ = near.write_all(&bytes).await;
            drop(near);
            let _ = serving.await.unwrap();
        });
    }
}
