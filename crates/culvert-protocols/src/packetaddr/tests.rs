//! Vectors, cuts, and both ends over packets in memory.

use culvert_core::{Packet, PacketBatch};
use culvert_wire::{Buf, DecodeError, Reader};
use proptest::prelude::*;

use super::codec::{decode, encode};
use super::*;
use crate::testing::{memory_packets, recv_packet, send_packets, target};

#[test]
fn the_name_is_the_sign_whatever_the_port() {
    assert!(is_sign(&magic_target()));
    assert!(is_sign(&target("SP.packet-addr.v2fly.arpa.:53")));
    assert!(!is_sign(&target("packet-addr.v2fly.arpa:0")) && !is_sign(&target("192.0.2.1:0")));
}

#[test]
fn addresses_before_datagrams() {
    let cases: [(&[u8], &str); 2] = [
        (&[1, 1, 2, 3, 4, 0, 53], "1.2.3.4:53"),
        (&[2, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0xbb], "[2001:db8::1]:443"),
    ];
    for (bytes, shown) in cases {
        let peer = decode(&mut Reader::new(bytes)).unwrap();
        assert_eq!(peer.to_string(), shown);
        let mut out = Vec::new();
        encode(peer, &mut out);
        assert_eq!(out, bytes);
        for cut in 0..bytes.len() {
            assert_eq!(decode(&mut Reader::new(&bytes[..cut])), Err(DecodeError::Incomplete));
        }
    }
    for family in [0, 3, 255] {
        assert!(matches!(decode(&mut Reader::new(&[family, 1])), Err(DecodeError::Invalid(_))));
    }
}

#[tokio::test]
async fn each_datagram_carries_its_peer_and_names_are_left_out() {
    let (near, mut far) = memory_packets();
    let mut conn = PacketAddrConn::new(Box::new(near));
    let packets: [(&str, &[u8]); 3] = [("1.2.3.4:53", b"dns"), ("a.test:53", b"lost"), ("[::1]:9", b"")];
    send_packets(&mut conn, &packets).await;
    let mut waiting = PacketBatch::new();
    assert_eq!(recv_packet(&mut far, &mut waiting).await.1, b"\x01\x01\x02\x03\x04\0\x35dns");
    let mut local = vec![2; 1];
    local.extend([0; 15]);
    local.extend([1, 0, 9]);
    assert_eq!(recv_packet(&mut far, &mut waiting).await.1, local);
    send_packets(&mut far, &[("x:1", b"\x01\x05\x06\x07\x08\0\x07back")]).await;
    let got = recv_packet(&mut conn, &mut waiting).await;
    assert_eq!(got, ("5.6.7.8:7".to_owned(), b"back".to_vec()));
}

#[tokio::test]
async fn trains_are_sent_as_their_datagrams() {
    let (near, far) = memory_packets();
    let (mut one, mut other) = (PacketAddrConn::new(Box::new(near)), far);
    let mut batch = PacketBatch::new();
    batch.push(Packet { data: Buf::copied(b"aabbc"), segment: 2, peer: target("1.2.3.4:5") });
    std::future::poll_fn(|cx| culvert_core::PacketConn::poll_send(&mut one, cx, &mut batch)).await.unwrap();
    std::future::poll_fn(|cx| {
        culvert_core::PacketConn::poll_recv(&mut other, cx, culvert_wire::Room::NONE, &mut batch)
    })
    .await
    .unwrap();
    let train = batch.pop().unwrap();
    let head = [1, 1, 2, 3, 4, 0, 5];
    let wanted = [&b"aa"[..], b"bb", b"c"].map(|payload| [&head[..], payload].concat());
    assert_eq!(train.payloads().map(<[u8]>::to_vec).collect::<Vec<_>>(), wanted);
}

#[tokio::test]
async fn an_unknown_family_ends_the_association() {
    let (near, mut far) = memory_packets();
    let mut conn = PacketAddrConn::new(Box::new(near));
    send_packets(&mut far, &[("x:1", b"\x03\x01\x02\x03\x04\0\x35dns")]).await;
    let mut batch = PacketBatch::new();
    let end = std::future::poll_fn(|cx| {
        culvert_core::PacketConn::poll_recv(&mut conn, cx, culvert_wire::Room::NONE, &mut batch)
    });
    assert_eq!(end.await.unwrap_err().kind(), std::io::ErrorKind::InvalidData);
}

#[tokio::test]
async fn the_first_packet_tells_the_target_and_is_not_lost() {
    let (near, mut far) = memory_packets();
    send_packets(&mut far, &[("x:1", b"\x01\x05\x06\x07\x08\0\x07hello")]).await;
    let (target, mut conn) = first(Box::new(PacketAddrConn::new(Box::new(near)))).await.unwrap();
    assert_eq!(target.to_string(), "5.6.7.8:7");
    let got = recv_packet(&mut conn, &mut PacketBatch::new()).await;
    assert_eq!(got, ("5.6.7.8:7".to_owned(), b"hello".to_vec()));
}

proptest! {
    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
    }
}
