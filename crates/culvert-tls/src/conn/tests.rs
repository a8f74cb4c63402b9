//! A conn against a peer that makes and opens records by hand, without a handshake.

use std::io;
use std::time::Duration;

use culvert_core::conn::{read_chain, write_chain};
use culvert_core::{BoxStream, Half, StreamConn};
use culvert_testkit::conn::{Faulty, Script, Step, pair};
use culvert_wire::{Buf, BufChain, Room};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zeroize::Zeroizing;

use super::reading::MAX_USELESS;
use super::*;
use crate::record::{Cipher, ContentType, MAX_DATA, Secret, TrafficSecret};
use crate::testing::{Conn, pattern, transfer};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Tls13,
    Tls12,
}

/// The secret of one direction.
fn secret(kind: Kind, cipher: Cipher, direction: u8) -> Secret {
    let len = if cipher == Cipher::Aes256Gcm { 48 } else { 32 };
    match kind {
        Kind::Tls13 => Secret::Tls13(TrafficSecret::new(cipher, &[direction; 48][..len]).unwrap()),
        Kind::Tls12 => {
            let len = if cipher == Cipher::Aes128Gcm { 16 } else { 32 };
            Secret::Tls12 { cipher, key: Zeroizing::new(vec![direction; len]), iv: [3; 12] }
        }
    }
}

fn halves(kind: Kind, cipher: Cipher, writes: u8, reads: u8, sequence: u64) -> (Sealer, Opener) {
    let sealer = Sealer::new(secret(kind, cipher, writes), sequence).unwrap();
    (sealer, Opener::new(secret(kind, cipher, reads), sequence).unwrap())
}

/// A conn over `lower` and what its peer seals and opens with.
fn conn_over(lower: impl StreamConn + 'static, kind: Kind) -> (TlsConn, Sealer, Opener) {
    let (sealer, opener) = halves(kind, Cipher::Aes128Gcm, 1, 2, 0);
    let (peer_sealer, peer_opener) = halves(kind, Cipher::Aes128Gcm, 2, 1, 0);
    let handover = handover(sealer, opener);
    (TlsConn::new(Box::new(lower), handover), peer_sealer, peer_opener)
}

fn handover(sealer: Sealer, opener: Opener) -> Handover {
    let (raw, last_flight) = (BufChain::new(), BufChain::new());
    Handover { opener, sealer, raw, last_flight, awaited: false, tickets: None }
}

/// Two conns at the ends of `near` and `far`.
fn ends(kind: Kind, cipher: Cipher, near: BoxStream, far: BoxStream) -> (TlsConn, TlsConn) {
    let (sealer, opener) = halves(kind, cipher, 1, 2, 0);
    let near = TlsConn::new(near, handover(sealer, opener));
    let (sealer, opener) = halves(kind, cipher, 2, 1, 0);
    (near, TlsConn::new(far, handover(sealer, opener)))
}

fn record(sealer: &mut Sealer, kind: ContentType, data: &[u8]) -> Vec<u8> {
    sealer.seal_copy(kind, data, Room::NONE).unwrap().to_vec()
}

fn data(sealer: &mut Sealer, data: &[u8]) -> Vec<u8> {
    record(sealer, ContentType::Data, data)
}

/// What the records in `bytes` hold.
fn opened(opener: &mut Opener, mut bytes: &[u8]) -> Vec<(ContentType, Vec<u8>)> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let len = opener.record_len(bytes).unwrap().unwrap();
        let mut record = bytes[..len].to_vec();
        let (kind, range) = opener.open(&mut record).unwrap();
        if kind == ContentType::Handshake && record[range.start] == 24 {
            opener.update_keys();
        }
        records.push((kind, record[range].to_vec()));
        bytes = &bytes[len..];
    }
    records
}

async fn read(conn: &mut TlsConn) -> io::Result<Vec<u8>> {
    read_chain(conn, Room::NONE).await.map(|chain| chain.to_vec())
}

/// A peer that sends `bytes` and then falls silent.
fn sends(bytes: Vec<u8>) -> Script {
    Script::new([Step::Send(bytes), Step::Silence])
}

#[tokio::test]
async fn every_suite_carries_data_both_ways_whatever_the_lower_stream_does() {
    let payload = pattern(100_000);
    for kind in [Kind::Tls13, Kind::Tls12] {
        for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            for most in [1, 7, 1000, 16_384, usize::MAX] {
                let (near, far) = pair(1 << 20);
                let near = Faulty::new(near).reads_at_most(most).writes_at_most(most);
                let (mut near, mut far) = ends(kind, cipher, Box::new(Conn(near)), Box::new(far));
                let payload = if most == 1 { &payload[..3000] } else { &payload[..] };
                transfer(&mut near, &mut far, payload).await;
                transfer(&mut far, &mut near, payload).await;
            }
        }
    }
}

#[tokio::test]
async fn chains_come_with_the_room_that_is_asked_for() {
    let payload = pattern(300_000);
    for kind in [Kind::Tls13, Kind::Tls12] {
        for room in
            [Room::NONE, Room { head: 5, tail: 17, max: MAX_DATA }, Room { head: 100, tail: 50, max: 20_000 }]
        {
            let (near, far) = pair(1 << 20);
            let (mut near, mut far) = ends(kind, Cipher::Aes128Gcm, Box::new(near), Box::new(far));
            let mut chain = BufChain::new();
            for part in payload.chunks(9000) {
                chain.push_back(Buf::copied(part));
            }
            write_chain(&mut near, &mut chain).await.unwrap();
            near.shutdown().await.unwrap();
            let mut got = Vec::new();
            loop {
                let chain = read_chain(&mut far, room).await.unwrap();
                if chain.is_empty() {
                    break;
                }
                for piece in chain.iter() {
                    assert!(
                        piece.head() >= room.head && piece.spare() >= room.tail && piece.len() <= room.max
                    );
                }
                got.extend(chain.to_vec());
            }
            assert!(got == payload);
        }
    }
}

#[tokio::test]
async fn several_records_of_one_read_come_as_one_piece() {
    let (mut sealer, _) = halves(Kind::Tls13, Cipher::Aes128Gcm, 2, 1, 0);
    let bytes = (0..10u8).flat_map(|i| data(&mut sealer, &[i; 100])).collect();
    let (mut conn, ..) = conn_over(Conn(sends(bytes)), Kind::Tls13);
    let chain = read_chain(&mut conn, Room::NONE).await.unwrap();
    assert_eq!((chain.len(), chain.pieces()), (1000, 1));
}

#[tokio::test]
async fn a_piece_with_room_is_sealed_in_its_own_memory_and_small_ones_are_joined() {
    let script = Script::new([Step::Silence]);
    let heard = script.heard();
    let (mut conn, _, mut opener) = conn_over(Conn(script), Kind::Tls13);
    let room = conn.room();
    assert_eq!((room.head, room.tail, room.max), (5, 17, MAX_DATA));
    let mut payload = Buf::new(2000, room.head + 10, room.tail);
    payload.append(&[2; 2000]);
    let mut chain = BufChain::from(Buf::copied(b"header"));
    chain.push_back(payload);
    write_chain(&mut conn, &mut chain).await.unwrap();
    let records = opened(&mut opener, &heard().bytes);
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].1[..8], *b"header\x02\x02");
}

#[tokio::test]
async fn goodbye_ends_the_stream_for_good() {
    for kind in [Kind::Tls13, Kind::Tls12] {
        let (mut sealer, _) = halves(kind, Cipher::Aes128Gcm, 2, 1, 0);
        let mut bytes = data(&mut sealer, b"last words");
        bytes.extend(record(&mut sealer, ContentType::Alert, &[1, 0]));
        bytes.extend(data(&mut sealer, b"ghost"));
        bytes.extend(b"junk");
        let (mut conn, ..) = conn_over(Conn(sends(bytes)), kind);
        assert_eq!(read(&mut conn).await.unwrap(), b"last words");
        for _ in 0..3 {
            assert_eq!(read(&mut conn).await.unwrap(), b"");
        }
        assert_eq!(conn.read(&mut [0; 10]).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn the_end_of_the_lower_stream_is_an_end_between_records_and_an_error_within_one() {
    let (mut sealer, _) = halves(Kind::Tls13, Cipher::Aes128Gcm, 2, 1, 0);
    let bytes = data(&mut sealer, b"data");
    for end in 0..=bytes.len() {
        let (mut conn, ..) = conn_over(Conn(Script::new([Step::Send(bytes[..end].to_vec())])), Kind::Tls13);
        if end == bytes.len() {
            assert_eq!(read(&mut conn).await.unwrap(), b"data");
        }
        let outcome = read(&mut conn).await;
        if end == 0 || end == bytes.len() {
            assert_eq!(outcome.unwrap(), b"");
        } else {
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "cut at {end}");
        }
    }
}

#[tokio::test]
async fn data_before_a_fault_comes_first_and_the_peer_is_told() {
    for kind in [Kind::Tls13, Kind::Tls12] {
        let (mut sealer, _) = halves(kind, Cipher::Aes128Gcm, 2, 1, 0);
        let mut bytes = data(&mut sealer, b"good");
        let mut bad = data(&mut sealer, b"bad!");
        *bad.last_mut().unwrap() ^= 1;
        bytes.extend(bad);
        let script = sends(bytes);
        let heard = script.heard();
        let (mut conn, _, mut opener) = conn_over(Conn(script), kind);
        assert_eq!(read(&mut conn).await.unwrap(), b"good");
        let error = read(&mut conn).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("does not match its tag"), "{error}");
        assert_eq!(opened(&mut opener, &heard().bytes), [(ContentType::Alert, vec![2, 20])]);
        assert_eq!(read(&mut conn).await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(conn.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(conn.bypass(Half::Read).is_err());
    }
}

#[tokio::test]
async fn an_alert_is_an_error_with_its_name_even_behind_data() {
    let (mut sealer, _) = halves(Kind::Tls13, Cipher::Aes128Gcm, 2, 1, 0);
    let mut bytes = data(&mut sealer, b"good");
    bytes.extend(record(&mut sealer, ContentType::Alert, &[2, 116]));
    let (mut conn, ..) = conn_over(Conn(sends(bytes)), Kind::Tls13);
    assert_eq!(read(&mut conn).await.unwrap(), b"good");
    let error = read(&mut conn).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    assert!(error.to_string().contains("certificate required"), "{error}");
}

#[tokio::test]
async fn a_record_too_long_is_refused_by_its_header() {
    let script = sends(vec![23, 3, 3, 0x7f, 0xff]);
    let heard = script.heard();
    let (mut conn, _, mut opener) = conn_over(Conn(script), Kind::Tls13);
    let error = tokio::time::timeout(Duration::from_secs(5), read(&mut conn)).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    assert_eq!(opened(&mut opener, &heard().bytes), [(ContentType::Alert, vec![2, 22])]);
}

#[tokio::test]
async fn floods_of_records_without_data_are_bounded() {
    type Flood = (Kind, ContentType, &'static [u8]);
    let floods: [Flood; 5] = [
        (Kind::Tls13, ContentType::Data, b""),
        (Kind::Tls12, ContentType::Data, b""),
        (Kind::Tls12, ContentType::Alert, &[1, 100]),
        (Kind::Tls13, ContentType::Alert, &[1, 90]),
        (Kind::Tls13, ContentType::Handshake, &[4, 0, 0, 1, 0]),
    ];
    for (kind, content, bytes) in floods {
        for count in [MAX_USELESS, MAX_USELESS + 1] {
            let (mut sealer, _) = halves(kind, Cipher::Aes128Gcm, 2, 1, 0);
            let mut flood = Vec::new();
            for _ in 0..count {
                flood.extend(record(&mut sealer, content, bytes));
            }
            flood.extend(data(&mut sealer, b"data"));
            let (mut conn, ..) = conn_over(Conn(sends(flood)), kind);
            let outcome = read(&mut conn).await;
            if count == MAX_USELESS {
                assert_eq!(outcome.unwrap(), b"data", "{kind:?} {content:?}");
            } else {
                assert!(outcome.unwrap_err().to_string().contains("without data"), "{kind:?} {content:?}");
            }
        }
    }
}

#[tokio::test]
async fn new_keys_are_taken_and_given_when_asked_for() {
    let (near, mut far) = pair(1 << 16);
    let (mut conn, mut sealer, mut opener) = conn_over(near, Kind::Tls13);
    for (round, request) in [0u8, 1, 1, 0].into_iter().enumerate() {
        far.write_all(&record(&mut sealer, ContentType::Handshake, &[24, 0, 0, 1, request])).await.unwrap();
        sealer.update_keys();
        far.write_all(&data(&mut sealer, &[round as u8])).await.unwrap();
        assert_eq!(read(&mut conn).await.unwrap(), [round as u8]);
        conn.write_all(b"answer").await.unwrap();
        conn.flush().await.unwrap();
        let mut bytes = vec![0; 1000];
        let count = far.read(&mut bytes).await.unwrap();
        let records = opened(&mut opener, &bytes[..count]);
        let update = (ContentType::Handshake, vec![24, 0, 0, 1, 0]);
        let answer = (ContentType::Data, b"answer".to_vec());
        // The new key may have left by itself already, while reading.
        let expected = if request == 1 { vec![update, answer] } else { vec![answer] };
        assert_eq!(records, expected, "round {round}");
    }
}

#[tokio::test]
async fn a_conn_that_only_reads_gives_new_keys_too() {
    let (near, mut far) = pair(1 << 16);
    let (mut conn, mut sealer, mut opener) = conn_over(near, Kind::Tls13);
    far.write_all(&record(&mut sealer, ContentType::Handshake, &[24, 0, 0, 1, 1])).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), read(&mut conn)).await.is_err());
    let mut bytes = vec![0; 1000];
    let count = far.read(&mut bytes).await.unwrap();
    assert_eq!(opened(&mut opener, &bytes[..count]), [(ContentType::Handshake, vec![24, 0, 0, 1, 0])]);
}

#[tokio::test]
async fn worn_keys_are_replaced_before_the_next_record() {
    const LIMIT: u64 = 1 << 24;
    let (near, far) = pair(1 << 20);
    let (sealer, opener) = halves(Kind::Tls13, Cipher::Aes256Gcm, 1, 2, LIMIT - 2);
    let mut near = TlsConn::new(Box::new(near), handover(sealer, opener));
    let (sealer, opener) = halves(Kind::Tls13, Cipher::Aes256Gcm, 2, 1, LIMIT - 2);
    let mut far = TlsConn::new(Box::new(far), handover(sealer, opener));
    for _ in 0..5 {
        transfer(&mut near, &mut far, b"data").await;
        transfer(&mut far, &mut near, b"data").await;
    }
    assert!(!near.writing.is_worn());
}

#[tokio::test]
async fn handshake_messages_may_be_cut_and_joined_but_not_mixed_with_data() {
    let ticket = [&[4, 0, 1, 0][..], &[0; 256]].concat();
    let twice = [&ticket[..], &ticket[..]].concat();
    let mut sealer = halves(Kind::Tls13, Cipher::Aes128Gcm, 2, 1, 0).0;
    let mut bytes: Vec<u8> =
        twice.chunks(100).flat_map(|part| record(&mut sealer, ContentType::Handshake, part)).collect();
    bytes.extend(data(&mut sealer, b"data"));
    let (mut conn, ..) = conn_over(Conn(sends(bytes)), Kind::Tls13);
    assert_eq!(read(&mut conn).await.unwrap(), b"data");

    let mut sealer = halves(Kind::Tls13, Cipher::Aes128Gcm, 2, 1, 0).0;
    let mut bytes = record(&mut sealer, ContentType::Handshake, &ticket[..50]);
    bytes.extend(data(&mut sealer, b"data"));
    let (mut conn, ..) = conn_over(Conn(sends(bytes)), Kind::Tls13);
    assert_eq!(read(&mut conn).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[tokio::test]
async fn messages_that_cannot_come_are_refused() {
    let wrong: [(Kind, ContentType, &[u8]); 8] = [
        (Kind::Tls13, ContentType::Handshake, &[24, 0, 0, 1, 2]), // a key update that asks for nonsense
        (Kind::Tls13, ContentType::Handshake, &[24, 0, 0, 1, 0, 4, 0]), // something behind a key update
        (Kind::Tls13, ContentType::Handshake, &[13, 0, 0, 1, 0]), // a request for a certificate
        (Kind::Tls13, ContentType::Handshake, &[4, 2, 0, 0]),     // a ticket of 128 KiB
        (Kind::Tls13, ContentType::Handshake, &[]),
        (Kind::Tls13, ContentType::Alert, &[2]),
        (Kind::Tls12, ContentType::Handshake, &[0, 0, 0, 0]), // the wish to renegotiate
        (Kind::Tls12, ContentType::ChangeCipherSpec, &[1]),
    ];
    for (kind, content, bytes) in wrong {
        let mut sealer = halves(kind, Cipher::Aes128Gcm, 2, 1, 0).0;
        let mut bytes = record(&mut sealer, content, bytes);
        bytes.extend(data(&mut sealer, b"data"));
        let script = sends(bytes);
        let heard = script.heard();
        let (mut conn, _, mut opener) = conn_over(Conn(script), kind);
        assert_eq!(
            read(&mut conn).await.unwrap_err().kind(),
            io::ErrorKind::InvalidData,
            "{kind:?} {content:?}"
        );
        assert_eq!(opened(&mut opener, &heard().bytes), [(ContentType::Alert, vec![2, 10])]);
    }
}

#[tokio::test]
async fn the_last_flight_leaves_with_the_first_data_or_when_reading() {
    for (awaited, reads) in [(true, false), (true, true), (false, true)] {
        let script = Script::new([Step::Silence]);
        let heard = script.heard();
        let (sealer, opener) = halves(Kind::Tls13, Cipher::Aes128Gcm, 1, 2, 0);
        let last_flight = BufChain::copied(b"last flight");
        let handover = Handover { last_flight, awaited, ..handover(sealer, opener) };
        let mut conn = TlsConn::new(Box::new(Conn(script)), handover);
        if reads {
            let reading = tokio::time::timeout(Duration::from_millis(20), read(&mut conn));
            assert!(reading.await.is_err());
            let sent = if awaited { &b"last flight"[..] } else { b"" };
            assert_eq!(heard().bytes, sent, "awaited: {awaited}");
        } else {
            conn.write_all(b"data").await.unwrap();
            conn.flush().await.unwrap();
            assert!(heard().bytes.starts_with(b"last flight"));
            assert!(heard().bytes.len() > 20);
        }
    }
}

#[tokio::test]
async fn closing_says_goodbye_once_and_reading_goes_on() {
    let (near, mut far) = pair(1 << 16);
    let (mut conn, mut sealer, mut opener) = conn_over(near, Kind::Tls13);
    conn.write_all(b"data").await.unwrap();
    conn.shutdown().await.unwrap();
    conn.shutdown().await.unwrap();
    let mut bytes = Vec::new();
    far.read_to_end(&mut bytes).await.unwrap();
    let records = opened(&mut opener, &bytes);
    assert_eq!(records, [(ContentType::Data, b"data".to_vec()), (ContentType::Alert, vec![1, 0])]);
    assert_eq!(conn.write(b"more").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    far.write_all(&data(&mut sealer, b"late")).await.unwrap();
    assert_eq!(read(&mut conn).await.unwrap(), b"late");
}

#[tokio::test]
async fn a_bypassed_half_is_the_lower_stream() {
    let (near, mut far) = pair(1 << 16);
    let (mut conn, mut sealer, mut opener) = conn_over(near, Kind::Tls13);
    far.write_all(&data(&mut sealer, b"sealed")).await.unwrap();
    far.write_all(b"raw").await.unwrap();
    assert_eq!(read(&mut conn).await.unwrap(), b"sealed");
    conn.bypass(Half::Read).unwrap();
    let mut got = [0; 3];
    conn.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"raw");
    far.write_all(b"more").await.unwrap();
    assert_eq!(read(&mut conn).await.unwrap(), b"more");

    conn.write_all(b"sealed").await.unwrap();
    conn.bypass(Half::Write).unwrap();
    assert_eq!(conn.room(), Room::NONE);
    conn.write_all(b"raw").await.unwrap();
    conn.shutdown().await.unwrap();
    let mut bytes = Vec::new();
    far.read_to_end(&mut bytes).await.unwrap();
    let (sealed, raw) = bytes.split_at(bytes.len() - 3);
    assert_eq!(opened(&mut opener, sealed), [(ContentType::Data, b"sealed".to_vec())]);
    assert_eq!(raw, b"raw");
}

#[tokio::test]
async fn a_half_is_a_kernel_socket_once_it_is_bypassed_and_empty() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut far, _) = listener.accept().await.unwrap();
    let (mut conn, mut sealer, _) = conn_over(culvert_core::TcpConn::new(near), Kind::Tls13);
    let bytes = [data(&mut sealer, b"sealed"), b"raw".to_vec()].concat();
    far.write_all(&bytes).await.unwrap();
    assert_eq!(read(&mut conn).await.unwrap(), b"sealed");
    assert!(conn.kernel_socket(Half::Read).is_none() && conn.kernel_socket(Half::Write).is_none());
    conn.bypass(Half::Read).unwrap();
    conn.bypass(Half::Write).unwrap();
    assert!(conn.kernel_socket(Half::Write).is_some());
    let mut got = [0; 3];
    conn.read_exact(&mut got).await.unwrap();
    assert!(conn.kernel_socket(Half::Read).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Vision: records, then raw bytes that look like records, cut by reads at any place.
    #[test]
    fn whatever_the_cuts_the_same_bytes_come_out(
        parts in prop::collection::vec(0usize..3000, 1..6),
        raw_len in 0usize..200,
        most in 1usize..5000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut sealer = halves(Kind::Tls13, Cipher::Aes128Gcm, 2, 1, 0).0;
            let parts: Vec<Vec<u8>> = parts.into_iter().map(|len| pattern(len + 1)).collect();
            let mut bytes: Vec<u8> = parts.iter().flat_map(|part| data(&mut sealer, part)).collect();
            let mut raw = vec![23, 3, 3, 0, raw_len as u8];
            raw.extend(pattern(raw_len));
            bytes.extend(&raw);
            let lower = Faulty::new(Script::new([Step::Send(bytes)])).reads_at_most(most);
            let (mut conn, ..) = conn_over(Conn(lower), Kind::Tls13);
            let whole: usize = parts.iter().map(Vec::len).sum();
            let mut got = Vec::new();
            while got.len() < whole {
                let room = Room { head: got.len() % 40, tail: 17, max: MAX_DATA };
                got.extend(read_chain(&mut conn, room).await.unwrap().to_vec());
            }
            assert_eq!(got, parts.concat());
            conn.bypass(Half::Read).unwrap();
            let mut rest = Vec::new();
            conn.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest, raw);
        });
    }
}

#[tokio::test]
async fn an_idle_conn_holds_no_buffer() {
    let (near, far) = pair(1 << 20);
    let (mut near, mut far) = ends(Kind::Tls13, Cipher::Aes128Gcm, Box::new(near), Box::new(far));
    transfer(&mut near, &mut far, &pattern(500_000)).await;
    for conn in [&near, &far] {
        assert!(conn.reading.is_empty() && conn.writing.is_empty());
    }
    // What README and docs say of an idle conn.
    assert!(size_of::<TlsConn>() <= 640, "{}", size_of::<TlsConn>());
}

/// A lower stream that wants room and says so when it does not get it.
struct Roomy(tokio::io::DuplexStream);

impl StreamConn for Roomy {
    fn room(&self) -> Room {
        Room { head: 7, tail: 3, max: 10_000 }
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        for piece in data.iter() {
            assert!(piece.head() >= 7 && piece.spare() >= 3 && piece.len() <= 10_000);
        }
        culvert_core::conn::copy_out(self, cx, data)
    }
}

impl AsyncRead for Roomy {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, to)
    }
}

impl AsyncWrite for Roomy {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_layer_below_gets_its_room_too() {
    let (near, mut far) = pair(1 << 20);
    let (mut conn, _, mut opener) = conn_over(Roomy(near), Kind::Tls13);
    let room = conn.room();
    assert_eq!(room, Room { head: 12, tail: 20, max: 10_000 - 22 });
    conn.write_all(&pattern(50_000)).await.unwrap();
    let mut piece = Buf::new(5000, room.head, room.tail);
    piece.append(&[1; 5000]);
    write_chain(&mut conn, &mut piece.into()).await.unwrap();
    conn.shutdown().await.unwrap();
    let mut bytes = Vec::new();
    far.read_to_end(&mut bytes).await.unwrap();
    let got: usize = opened(&mut opener, &bytes).iter().map(|(_, data)| data.len()).sum();
    assert_eq!(got, 55_000 + 2);
}
