//! Vectors, cuts, and both ends over streams in memory.

use culvert_core::conn::read_chain;
use culvert_core::duplex::duplex;
use culvert_core::{DialOutcome, Incoming, Io, Network, Packet, PacketBatch, PacketConn};
use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::codec::{Request, decode_head, encode_head};
use super::*;
use crate::testing::{World, recv_packet, send_packets, session, target, write_in_pieces};

#[test]
fn names_are_signs_whatever_the_port() {
    assert_eq!(Version::of(&target("sp.udp-over-tcp.arpa:0")), Some(Version::V1));
    assert_eq!(Version::of(&target("SP.v2.udp-over-tcp.arpa.:443")), Some(Version::V2));
    assert_eq!(Version::of(&target("udp-over-tcp.arpa:0")), None);
    assert_eq!(Version::of(&target("192.0.2.1:0")), None);
    for version in [Version::V1, Version::V2] {
        assert_eq!(Version::of(&version.magic_target()), Some(version));
    }
}

#[test]
fn requests_and_heads() {
    let bytes = b"\x01\x03\x06a.test\x00\x35";
    let request = Request::decode(&mut Reader::new(bytes)).unwrap();
    assert_eq!(request, Request { connect: true, target: target("a.test:53") });
    let mut out = Vec::new();
    request.encode(&mut out);
    assert_eq!(out, bytes);
    for cut in 0..bytes.len() {
        assert_eq!(Request::decode(&mut Reader::new(&bytes[..cut])), Err(DecodeError::Incomplete));
    }
    let cases: [(&[u8], Option<&str>); 4] = [
        (&[0, 1, 2, 3, 4, 0, 53, 0, 3], Some("1.2.3.4:53")),
        (&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 53, 0, 3], Some("[::1]:53")),
        (b"\x02\x06a.test\x00\x35\x00\x03", Some("a.test:53")),
        (&[0, 3], None),
    ];
    for (bytes, peer) in cases {
        let peer = peer.map(target);
        assert_eq!(decode_head(&mut Reader::new(bytes), peer.is_none()), Ok((peer.clone(), 3)));
        let mut out = Vec::new();
        encode_head(peer.as_ref(), 3, &mut out);
        assert_eq!(out, bytes);
    }
    assert!(matches!(decode_head(&mut Reader::new(&[3, 1]), false), Err(DecodeError::Invalid(_))));
}

#[tokio::test]
async fn request_and_first_packet_leave_together_and_in_place() {
    let (near, mut far) = duplex(1 << 16);
    let mut client = UotConn::client(Version::V2, Box::new(near), &target("1.2.3.4:53"));
    let room = client.room();
    let mut data = Buf::new(3, room.head, room.tail);
    data.append(b"dns");
    let place = data.as_ptr() as usize;
    let mut batch = PacketBatch::new();
    batch.push(Packet::new(data, target("1.2.3.4:53")));
    std::future::poll_fn(|cx| client.poll_send(cx, &mut batch)).await.unwrap();
    assert!(batch.is_empty());
    let sent = read_chain(&mut far, Room::NONE).await.unwrap();
    assert_eq!(sent.to_vec(), b"\0\x01\x01\x02\x03\x04\0\x35\0\x01\x02\x03\x04\0\x35\0\x03dns");
    let payload = sent.iter().last().unwrap();
    assert_eq!(payload.as_ptr() as usize + payload.len() - 3, place, "the payload was copied");
}

#[tokio::test]
async fn a_batch_that_does_not_fit_is_offered_again_without_loss() {
    let (near, far) = duplex(1000);
    let mut client = UotConn::client(Version::V1, Box::new(near), &target("1.2.3.4:53"));
    let mut server = UotConn::server(Box::new(far), BufChain::new(), None);
    let sending = tokio::spawn(async move {
        for round in 0..50u8 {
            let payloads: Vec<Vec<u8>> = (0..20).map(|number| vec![round ^ number; 100]).collect();
            let packets: Vec<(&str, &[u8])> = payloads.iter().map(|data| ("1.2.3.4:53", &data[..])).collect();
            send_packets(&mut client, &packets).await;
        }
        client
    });
    let mut waiting = PacketBatch::new();
    for round in 0..50u8 {
        for number in 0..20 {
            let (peer, data) = recv_packet(&mut server, &mut waiting).await;
            assert_eq!((peer.as_str(), data), ("1.2.3.4:53", vec![round ^ number; 100]));
        }
    }
    sending.await.unwrap();
}

#[tokio::test]
async fn trains_are_sent_as_their_datagrams() {
    for connected in [None, Some(target("[2001:db8::9]:9"))] {
        let (near, far) = duplex(1 << 20);
        let mut one = UotConn::server(Box::new(near), BufChain::new(), connected.clone());
        let mut other = UotConn::server(Box::new(far), BufChain::new(), connected);
        let bytes: Vec<u8> = (0..64_400u32).map(|at| at as u8).collect();
        let mut batch = PacketBatch::new();
        batch.push(Packet { data: Buf::copied(&bytes), segment: 1200, peer: target("[2001:db8::9]:9") });
        batch.push(Packet { data: Buf::copied(&bytes[..40]), segment: 1, peer: target("[2001:db8::9]:9") });
        std::future::poll_fn(|cx| one.poll_send(cx, &mut batch)).await.unwrap();
        let mut waiting = PacketBatch::new();
        for payload in bytes.chunks(1200).chain(bytes[..40].chunks(1)) {
            assert_eq!(
                recv_packet(&mut other, &mut waiting).await,
                ("[2001:db8::9]:9".into(), payload.to_vec())
            );
        }
    }
}

#[tokio::test]
async fn an_end_within_a_packet_ends_the_association() {
    let (mut near, far) = duplex(1 << 16);
    let mut server = UotConn::server(Box::new(far), BufChain::new(), None);
    near.write_all(b"\0\x01\x02\x03\x04\0\x35\0\x05dns").await.unwrap();
    drop(near);
    let mut batch = PacketBatch::new();
    let end = std::future::poll_fn(|cx| server.poll_recv(cx, Room::NONE, &mut batch)).await;
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    let (mut near, far) = duplex(1 << 16);
    let mut server = UotConn::server(Box::new(far), BufChain::new(), None);
    near.write_all(b"\x09nonsense").await.unwrap();
    let end = std::future::poll_fn(|cx| server.poll_recv(cx, Room::NONE, &mut batch)).await;
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::InvalidData);
}

fn answer(outcome: &DialOutcome<'_>, out: &mut Vec<u8>) {
    out.extend(if matches!(outcome, DialOutcome::Connected(_)) { b"yes" } else { &b"no!"[..] });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_cut_gives_the_same_packets(version in 0usize..3, cuts in prop::collection::vec(1usize..12, 1..5)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            let (mut near, far) = duplex(1 << 16);
            let sign = if version == 0 { Version::V1 } else { Version::V2 };
            let incoming = Incoming {
                session: session("x:1"), io: Io::Stream(Box::new(far)), early: BufChain::new(), reply: Some(answer), udp_timeout: None,
            };
            let dispatch = world.dispatch.clone();
            let serving = tokio::spawn(async move { serve(sign, incoming, &dispatch).await });
            let mut said = [0; 3];
            near.read_exact(&mut said).await.unwrap();
            assert_eq!(&said, b"yes");
            let mut bytes = Vec::new();
            let first = target("1.2.3.4:53");
            if version > 0 {
                Request { connect: version == 2, target: first.clone() }.encode(&mut bytes);
            }
            for (peer, data) in [("1.2.3.4:53", &b"one"[..]), ("a.test:9", b""), ("[::1]:1", &[7; 300])] {
                let peer = target(peer);
                encode_head((version < 2).then_some(&peer), data.len() as u16, &mut bytes);
                bytes.extend(data);
            }
            write_in_pieces(&mut near, &bytes, &cuts).await.unwrap();
            serving.await.unwrap().unwrap();
            let arrived = world.next().await;
            assert_eq!((arrived.session.network, &arrived.session.target), (Network::Udp, &first));
            let mut far = arrived.packets();
            let mut waiting = PacketBatch::new();
            let peers = if version < 2 { ["1.2.3.4:53", "a.test:9", "[::1]:1"] } else { ["1.2.3.4:53"; 3] };
            for (peer, data) in peers.into_iter().zip([&b"one"[..], b"", &[7; 300]]) {
                assert_eq!(recv_packet(&mut far, &mut waiting).await, (peer.to_owned(), data.to_vec()));
            }
            send_packets(&mut far, &[("1.2.3.4:53", b"back")]).await;
            let mut head = vec![0; if version < 2 { 9 } else { 2 }];
            near.read_exact(&mut head).await.unwrap();
            assert_eq!(decode_head(&mut Reader::new(&head), version == 2), Ok(((version < 2).then_some(first), 4)));
        });
    }

    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
    }
}
