//! The sheet's vectors, and records however they are cut.

use culvert_core::StreamConn;
use culvert_core::conn::{read_chain, write_chain};
use culvert_core::duplex::duplex;
use culvert_wire::{BufChain, DecodeError, Room};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::codec::{
    HEADER, Password, apply, chooses_tls13, disguise, fuzz_records, record_len, server_random,
};
use super::conn::{Records, Tags};
use super::inbound::{Client, End, Middle};
use super::server::{Plain, Second, Step, Third};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// The sheet's hello, with a session id of a0..bb and four zeros.
fn message() -> Vec<u8> {
    hex("010000be0303000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20
        a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babb00000000 00061301130213030100
        006f00000010000e00000b6578616d706c652e636f6d000a00060004001d0017000d0016001404030804
        04010503080505010806060108070201002b0003020304002d00020101003300260024001d0020
        358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254")
}

fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 3, 3][..], &(body.len() as u16).to_be_bytes(), body].concat()
}

fn random() -> [u8; 32] {
    std::array::from_fn(|at| 0x60 + at as u8)
}

fn password() -> Password {
    Password::new("password")
}

/// A ServerHello with that random, and with TLS 1.3 or without.
fn server_hello(tls13: bool) -> Vec<u8> {
    let mut hello = hex("02000000 0303");
    hello.extend(random());
    hello.extend(hex("00 1301 00"));
    hello.extend(if tls13 { hex("000c 002b00020304 0017 0002 0000") } else { hex("0006 0017 0002 0000") });
    record(22, &hello)
}

#[test]
fn hellos_are_signed_as_in_the_sheet() {
    let mut signed = message();
    password().sign(&mut signed);
    assert_eq!(&signed[67..71], hex("68d0031a"));
    let whole = record(22, &signed);
    assert!(password().signed(&whole));
    assert!(!Password::new("another").signed(&whole));
    for at in HEADER..whole.len() {
        let mut other = whole.clone();
        other[at] ^= 1;
        assert!(!password().signed(&other), "byte {at}");
    }
    for cut in 0..whole.len() {
        assert!(!password().signed(&whole[..cut]), "cut at {cut}");
    }
    assert_eq!(format!("{:?}", password()), "Password(***)");
}

#[test]
fn records_of_the_handshake_are_changed_as_in_the_sheet() {
    let mask = password().mask(&random());
    assert_eq!(mask[..], hex("66fd6ef88b07381805ba1d4bbd9c6fb07630f52406f5bcd3417c96524e6fe72a"));
    let mut tag = password().tag(&[&random()]);
    let first = disguise(&mask, &mut tag, &record(23, &hex("00112233445566778899")));
    assert_eq!(first, hex("170303000e 8058dc63 66ec4ccbcf525e6f8d23"));
    let second = disguise(&mask, &mut tag, &record(23, &hex("cafebabe")));
    assert_eq!(second, hex("1703030008 3e102baf ac03d446"));
    let mut body = second[HEADER + 4..].to_vec();
    apply(&mask, &mut body);
    assert_eq!(body, hex("cafebabe"));
}

#[test]
fn tags_of_version_2_are_those_of_the_sheet() {
    let mut tag = password().tag(&[]);
    tag.take(b"server-bytes-1");
    tag.take(b"server-bytes-2");
    assert_eq!(tag.now::<8>()[..], hex("2b16b4a71331816c"));
}

/// Client and server behind a handshake of version 3.
fn ends() -> (Records, Records) {
    let (near, far) = duplex(1 << 20);
    let tag = |side: &[u8]| password().tag(&[&random(), side]);
    let tags = |read, written| Tags::Each { read: tag(read), written: tag(written) };
    let none = BufChain::new;
    (
        Records::new(Box::new(near), tags(b"S", b"C"), none(), none()),
        Records::new(Box::new(far), tags(b"C", b"S"), none(), none()),
    )
}

#[tokio::test]
async fn data_has_the_tags_of_the_sheet() {
    for (side, expected) in [
        (b"C", "1703030009 463b2361 68656c6c6f 1703030009 4f08558d 776f726c64"),
        (b"S", "1703030009 9516e166 68656c6c6f 1703030009 aa082196 776f726c64"),
    ] {
        let (near, mut far) = duplex(1 << 16);
        let tag = || password().tag(&[&random(), side]);
        let tags = Tags::Each { read: tag(), written: tag() };
        let mut conn = Records::new(Box::new(near), tags, BufChain::new(), BufChain::new());
        for word in [&b"hello"[..], b"world"] {
            write_chain(&mut conn, &mut BufChain::copied(word)).await.unwrap();
        }
        conn.shutdown().await.unwrap();
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, hex(expected));
    }
}

#[tokio::test]
async fn a_lot_goes_through_in_both_directions() {
    let (mut client, mut server) = ends();
    let bytes: Vec<u8> = (0..700_000u32).map(|at| (at % 251) as u8).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        let [from, to] = if from < to { [&mut client, &mut server] } else { [&mut server, &mut client] };
        let mut got = vec![0; 2 * bytes.len()];
        let writing = async {
            write_chain(from, &mut BufChain::copied(&bytes)).await?;
            from.write_all(&bytes).await?;
            from.flush().await
        };
        let (written, read) = tokio::join!(writing, to.read_exact(&mut got));
        written.unwrap();
        read.unwrap();
        assert!(got == [&bytes[..], &bytes].concat());
    }
    client.shutdown().await.unwrap();
    assert!(read_chain(&mut server, Room::NONE).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_record_that_was_changed_is_answered_like_one_of_tls_and_ends_all() {
    for at in 0..18 {
        let (near, mut far) = duplex(1 << 16);
        let tag = |side: &[u8]| password().tag(&[&random(), side]);
        let tags = Tags::Each { read: tag(b"C"), written: tag(b"S") };
        let mut conn = Records::new(Box::new(near), tags, BufChain::new(), BufChain::new());
        let mut bytes = hex("1703030009 463b2361 68656c6c6f");
        bytes.extend([23, 3, 3, 0]);
        bytes[at] ^= if at == 3 || at == 4 { 2 } else { 4 };
        far.write_all(&bytes).await.unwrap();
        far.shutdown().await.unwrap();
        let error = loop {
            match read_chain(&mut conn, Room::NONE).await {
                Ok(data) if !data.is_empty() => {}
                Ok(_) => panic!("byte {at}: an end"),
                Err(error) => break error,
            }
        };
        let mut alert = Vec::new();
        if error.kind() == std::io::ErrorKind::InvalidData {
            drop(conn);
            far.read_to_end(&mut alert).await.unwrap();
            assert_eq!((&alert[..5], alert.len()), (&[23, 3, 3, 0, 19][..], 24), "byte {at}");
        }
    }
}

#[test]
fn a_server_of_version_3_sees_who_is_its_client() {
    let mut third = Third::new(password(), true);
    assert!(
        matches!(third.server_says(server_hello(true)), Step::Forward(hello) if hello == server_hello(true))
    );
    let sealed = record(23, &[9; 40]);
    assert!(
        matches!(third.server_says(sealed.clone()), Step::Forward(other) if other.len() == sealed.len() + 4)
    );
    let change = record(20, &[1]);
    assert!(matches!(third.server_says(change.clone()), Step::Forward(same) if same == change));
    for own in [sealed, change, record(23, b"abcd")] {
        assert!(matches!(third.client_says(own.clone()), Step::Forward(same) if same == own));
    }
    let first = hex("1703030009 463b2361 68656c6c6f");
    let Step::Switch(payload, Tags::Each { mut read, .. }) = third.client_says(first) else {
        panic!("missed")
    };
    assert_eq!(payload, b"hello");
    assert!(read.open(&hex("4f08558d 776f726c64")));

    let step = Third::new(password(), true).server_says(server_hello(false));
    assert!(matches!(step, Step::Relay(_)), "strict");
    let step = Third::new(password(), false).server_says(server_hello(false));
    assert!(matches!(step, Step::Forward(_)));
    let step = Third::new(password(), false).server_says(record(21, &[2, 40]));
    assert!(matches!(step, Step::Relay(_)), "an alert in place of a hello");
}

/// Its own time is over while the client has nothing to say yet; or the network broke behind the last flight.
#[tokio::test]
async fn a_handshake_server_that_is_gone_does_not_take_a_client_of_ours_along() {
    for breaks in [false, true] {
        let (near, mut client) = duplex(1 << 16);
        let (mut site, far) = duplex(1 << 16);
        let mut middle = Middle::new(Client { conn: Box::new(near), read: BufChain::new() }, Box::new(far));
        site.write_all(&server_hello(true)).await.unwrap();
        site.write_all(&record(23, &[9; 40])).await.unwrap();
        if breaks {
            site.abort();
        }
        drop(site);
        let talk = async {
            let mut flight = vec![0; server_hello(true).len() + HEADER + 44];
            client.read_exact(&mut flight).await.unwrap();
            // The last word of its handshake finds nobody.
            client.write_all(&record(23, &[7; 53])).await.unwrap();
            client.write_all(&hex("1703030009 463b2361 68656c6c6f")).await.unwrap();
        };
        let (end, ()) = tokio::join!(middle.third(password(), true), talk);
        assert!(matches!(end, Ok(End::Switch(payload, _)) if payload == b"hello"), "breaks: {breaks}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_show_who_it_is_learns_of_the_end_of_the_handshake_server() {
    let (near, mut client) = duplex(1 << 16);
    let (mut site, far) = duplex(1 << 16);
    let mut middle = Middle::new(Client { conn: Box::new(near), read: BufChain::new() }, Box::new(far));
    site.write_all(&server_hello(true)).await.unwrap();
    drop(site);
    client.write_all(&record(23, &[7; 53])).await.unwrap();
    assert!(matches!(middle.third(password(), true).await, Ok(End::Relay)));
}

#[test]
fn a_server_of_version_2_knows_where_a_client_may_have_stopped_reading() {
    let tagged = |seen: &[&[u8]]| {
        let mut tag = password().tag(&[]);
        seen.iter().for_each(|bytes| tag.take(bytes));
        record(23, &[&tag.now::<8>()[..], b"payload"].concat())
    };
    let mut second = Second::new(&password());
    assert!(matches!(second.client_says(tagged(&[])), Step::Forward(_)), "the server has said nothing");
    let [one, two, three] = [record(22, &[1; 50]), record(23, &[2; 60]), record(23, &[3; 70])];
    // In pieces that end elsewhere than the records.
    let all = [&one[..], &two, &three].concat();
    for piece in [&all[..40], &all[40..110], &all[110..]] {
        second.server_says(&BufChain::copied(piece));
    }
    assert!(matches!(second.client_says(tagged(&[&all[..41]])), Step::Forward(_)));
    for seen in [&[&all[..40]][..], &[&one], &[&one, &two], &[&all[..110]], &[&one, &two, &three]] {
        let Step::Switch(payload, Tags::First(None)) = second.client_says(tagged(seen)) else {
            panic!("missed")
        };
        assert_eq!(payload, b"payload");
    }
    assert!(matches!(second.client_says(record(22, b"finished")), Step::Forward(_)));
    assert!(matches!(second.client_says(record(23, b"nothing of ours")), Step::Relay(_)), "the third");
}

#[test]
fn a_handshake_of_version_1_ends_behind_the_change_of_ciphers() {
    let mut plain = Plain::default();
    for (kind, done) in [(22, false), (22, false), (20, false), (22, true)] {
        assert!(plain.passes(&record(kind, b"x")));
        assert_eq!(plain.done, done);
    }
    assert!(!Plain::default().passes(&record(23, b"x")));
    assert!(!Plain::default().passes(b"GET / HTTP"));
}

#[test]
fn server_hellos_are_read() {
    assert_eq!(server_random(&server_hello(true)), Some(random()));
    assert_eq!(server_random(&record(22, &message())), None);
    assert!(chooses_tls13(&server_hello(true)) && !chooses_tls13(&server_hello(false)));
    assert_eq!(record_len(&[23, 3, 3, 0]), Err(DecodeError::Incomplete));
    assert_eq!(record_len(&[23, 3, 3, 1, 2]), Ok(5 + 258));
    assert!(matches!(record_len(b"GET /"), Ok(_) | Err(DecodeError::Invalid(_))));
    assert!(matches!(record_len(&[22, 3, 1, 0xff, 0xff]), Err(DecodeError::Invalid(_))));
}

proptest! {
    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 20u8..24) {
        fuzz_records(&bytes);
        fuzz_records(&record(kind, &bytes));
    }
}
