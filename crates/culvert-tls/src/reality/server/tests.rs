//! The sheet's vectors, whole handshakes with a client of the test's own, and what strangers see.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::agreement::{self, PrivateKey};
use aws_lc_rs::signature::Ed25519KeyPair;
use culvert_core::TcpConn;
use culvert_core::conn::Prefixed;
use culvert_wire::{DecodeError, Host};
use proptest::prelude::*;
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256, RsaKeySize};
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::kx_group;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ServerConfig, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::hello::{self, ClientHello, Group, Offer, SESSION_ID};
use super::mirror::{self, Lengths, Plan};
use super::{Outcome, Policy, RealityAcceptor, flight, tail};
use crate::browser::{ClientHello as Hello, Fingerprint};
use crate::reality::tests::hex;
use crate::reality::{AuthKey, RealityClient, SessionId};
use crate::record::{Cipher, HEADER};
use crate::{ClientSettings, Connector, Store, StoreSettings};

const NAME: &str = "example.com";
const SHORT_ID: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn run<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|at| first + at as u8)
}

/// The sheet's hello without its session id.
fn sheet_message() -> Vec<u8> {
    hex("010000be0303000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20
        0000000000000000000000000000000000000000000000000000000000000000 00061301130213030100
        006f00000010000e00000b6578616d706c652e636f6d000a00060004001d0017000d0016001404030804
        04010503080505010806060108070201002b0003020304002d00020101003300260024001d0020
        358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254")
}

fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1][..], &(body.len() as u16).to_be_bytes(), body].concat()
}

#[test]
fn who_is_a_client_and_who_is_not() {
    let mut message = sheet_message();
    message[SESSION_ID]
        .copy_from_slice(&hex("41ccd8dcfb63c2ad7cfd6829e200b2bdfca2d052a9a1c4187eb88fc5792bbf6c"));
    let short_id = hex("0123456789abcdef").try_into().unwrap();
    let policy = |name: &str, id, apart| {
        Policy::new(&run::<32>(0x40), name.to_owned(), vec![[9; 8], id], apart).unwrap()
    };
    let hello = ClientHello::decode(&record(22, &message)).unwrap();
    let time = 0x6a00_0000;
    let apart = Some(Duration::from_secs(60));
    for now in [time, time - 60, time + 60] {
        assert!(policy(NAME, short_id, apart).admit(&hello, now).is_some());
    }
    assert!(policy(NAME, short_id, None).admit(&hello, 0).is_some(), "clocks do not matter");
    for (policy, now) in [
        (policy(NAME, short_id, apart), time + 61),
        (policy(NAME, short_id, apart), time - 61),
        (policy("example.org", short_id, apart), time),
        (policy("", short_id, apart), time),
        (policy(NAME, [8; 8], apart), time),
        (Policy::new(&run::<32>(0x41), NAME.to_owned(), vec![short_id], apart).unwrap(), time),
    ] {
        assert!(policy.admit(&hello, now).is_none(), "{policy:?} at {now}");
    }
    for at in 6..message.len() {
        let mut other = hello.clone();
        other.message[at] ^= 1;
        if (6..38).contains(&at) {
            other.random[at - 6] ^= 1;
        }
        assert!(policy(NAME, short_id, None).admit(&other, time).is_none(), "byte {at}");
    }
    let policy = policy(NAME, short_id, apart);
    assert!(policy.admit(&hello, time).is_some());
    assert!(policy.admit(&hello, time).is_none(), "it has been seen before");
}

#[test]
fn certificate_of_the_sheet() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[1; 32]).unwrap();
    let shared = hex("04c304fb1ca83cee75e206344231f33797e07d9929db670994b7c6fbeb1dc255");
    let key = AuthKey::new(&shared.try_into().unwrap(), &run(0));
    let certificate = flight::certificate(&pair, &key);
    let expected = hex("3081af 3063 a003020102 020100 300506032b6570 3000
        3022 180f 30303031303130313030303030305a 180f 30303031303130313030303030305a 3000
        302a 300506032b6570 032100 8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c
        300506032b6570 034100 1f549cfe4c9814f897ae70717bc4643b31cac698d4d54d8bf19d1cb934d36133
        2c35d223a0eccfaadca6207c45ee7ca63e2dd7f3b079793d93d4386a72d8571c");
    assert_eq!((certificate.len(), certificate), (178, expected));
}

#[test]
fn a_hello_is_read_however_it_is_cut() {
    let message = sheet_message();
    let whole = record(22, &message);
    let expected = ClientHello::decode(&whole).unwrap();
    assert_eq!(
        (expected.server_name.as_deref(), expected.offers_tls13, expected.end),
        (Some(NAME), true, whole.len())
    );
    assert!(matches!(expected.shares[..], [(Group::X25519, _)]));
    for cut in 0..whole.len() {
        assert_eq!(ClientHello::decode(&whole[..cut]), Err(DecodeError::Incomplete));
    }
    for len in 1..message.len() {
        let records: Vec<u8> = message.chunks(len).flat_map(|part| record(22, part)).collect();
        let mut hello = ClientHello::decode(&[&records[..], b"behind"].concat()).unwrap();
        assert_eq!(hello.end, records.len());
        hello.end = whole.len();
        assert_eq!(hello, expected);
    }
}

#[test]
fn what_is_no_hello_is_found_at_once() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\x00",
        b"\x16\x02",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x01",
        b"\x16\x03\x01\x00\x01\x02",
        b"\x16\x03\x01\x00\x04\x01\x00\x80\x00",
        &record(22, &[&sheet_message()[..], &[1]].concat()),
    ] {
        assert!(matches!(ClientHello::decode(bytes), Err(DecodeError::Invalid(_))), "{bytes:?}");
    }
}

proptest! {
    #[test]
    fn random_bytes_keep_the_promises(at in 0usize..194, byte: u8, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        hello::fuzz_client_hello(&bytes);
        mirror::fuzz_plan(&bytes);
        let mut message = sheet_message();
        message[at] = byte;
        hello::fuzz_client_hello(&record(22, &message));
    }
}

/// A site with a certificate of its own.
async fn site(versions: &[&'static SupportedProtocolVersion]) -> SocketAddr {
    // Signatures of RSA are all of one length, so that flights can be compared.
    let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    site_with(versions, &key, 1, &[]).await
}

/// The same with this key, so many copies of the certificate, and these groups if there are any.
async fn site_with(
    versions: &[&'static SupportedProtocolVersion],
    key: &KeyPair,
    copies: usize,
    groups: &[&'static dyn SupportedKxGroup],
) -> SocketAddr {
    let certificate = CertificateParams::new([NAME.to_owned()]).unwrap().self_signed(key).unwrap();
    let chain = vec![certificate.der().clone(); copies];
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    if !groups.is_empty() {
        provider.kx_groups = groups.to_vec();
    }
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await?;
                let mut bytes = [0; 4096];
                loop {
                    let count = stream.read(&mut bytes).await?;
                    if count == 0 {
                        return stream.shutdown().await;
                    }
                    stream.write_all(&bytes[..count]).await?;
                }
            });
        }
    });
    address
}

/// A server of REALITY that imitates `target`; its clients are echoed, strangers relayed.
async fn server(target: SocketAddr) -> SocketAddr {
    let policy =
        Policy::new(&run::<32>(0x40), NAME.to_owned(), vec![SHORT_ID], Some(Duration::from_secs(60)));
    let acceptor = RealityAcceptor::new(policy.unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let target = TcpConn::new(TcpStream::connect(target).await.unwrap());
                match acceptor.accept(Box::new(TcpConn::new(stream)), Box::new(target)).await {
                    Ok(Outcome::Client(mut conn, facts)) => {
                        assert_eq!(facts.server_name.as_deref(), Some(NAME));
                        let mut bytes = vec![0; 100_000];
                        conn.read_exact(&mut bytes).await.unwrap();
                        conn.write_all(&bytes).await.unwrap();
                        conn.shutdown().await.unwrap();
                    }
                    Ok(Outcome::Stranger(pair)) => {
                        let early = pair.early;
                        let mut target = Prefixed::new(pair.answer, pair.target);
                        let mut conn = Prefixed::new(early, pair.conn);
                        let _ = tokio::io::copy_bidirectional(&mut conn, &mut target).await;
                    }
                    Err(error) => tracing::debug!("{error}"),
                }
            });
        }
    });
    address
}

fn server_key() -> [u8; 32] {
    let private = PrivateKey::from_private_key(&agreement::X25519, &run::<32>(0x40)).unwrap();
    private.compute_public_key().unwrap().as_ref().try_into().unwrap()
}

/// A browser's hello for this name with a session id of ours, as a record.
fn sealed_hello(name: &str, id: SessionId) -> Vec<u8> {
    let mut hello = Hello::new(Fingerprint::Chrome133, Some(name), &[]).unwrap();
    let shared = hello.agree_x25519(&server_key()).unwrap();
    AuthKey::new(&shared, hello.random()).seal(&mut hello, id).unwrap();
    record(22, hello.message())
}

/// A client with this browser's hello sends a lot to the server and has it back.
async fn is_served(server: SocketAddr, fingerprint: Fingerprint) {
    let reality = RealityClient { public_key: server_key(), short_id: SHORT_ID, mldsa65: None };
    let settings = ClientSettings {
        server_name: Some(NAME.to_owned()),
        fingerprint: Some(fingerprint),
        reality: Some(reality),
        ..ClientSettings::default()
    };
    let store = Store::new(StoreSettings::default());
    let connector = Connector::new(settings, &Host::parse("127.0.0.1").unwrap(), &store).unwrap();
    let stream = TcpStream::connect(server).await.unwrap();
    let (mut conn, _) = connector.connect(Box::new(TcpConn::new(stream))).await.unwrap();
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
    let mut got = Vec::new();
    conn.write_all(&bytes).await.unwrap();
    conn.flush().await.unwrap();
    conn.read_to_end(&mut got).await.unwrap();
    assert!(got == bytes, "{fingerprint:?}");
}

#[tokio::test]
async fn clients_are_served_whatever_browser_they_imitate() {
    let target = site(&[&rustls::version::TLS13]).await;
    let server = server(target).await;
    for fingerprint in [
        Fingerprint::Chrome,
        Fingerprint::Chrome133,
        Fingerprint::Chrome120,
        Fingerprint::Firefox120,
        Fingerprint::Firefox,
        Fingerprint::Safari16,
        Fingerprint::Safari,
        Fingerprint::Edge85,
        Fingerprint::Qq,
        Fingerprint::Ios14,
    ] {
        is_served(server, fingerprint).await;
    }
}

/// The flight of a site with a short certificate is about as long as many programs allow for its first message alone, and
/// signatures differ in length.
#[tokio::test]
async fn clients_are_served_however_short_the_targets_certificate_is() {
    let key = KeyPair::generate().unwrap();
    let target = site_with(&[&rustls::version::TLS13], &key, 1, &[]).await;
    let server = server(target).await;
    for _ in 0..100 {
        is_served(server, Fingerprint::Chrome).await;
    }
}

#[tokio::test]
async fn clients_are_served_however_long_the_targets_chain_is() {
    let key = KeyPair::generate().unwrap();
    for copies in [10, 44, 60, 110] {
        let target = site_with(&[&rustls::version::TLS13], &key, copies, &[]).await;
        let server = server(target).await;
        is_served(server, Fingerprint::Chrome).await;
        let (ours, theirs) =
            (sealed_hello(NAME, SessionId::now(SHORT_ID)), sealed_hello(NAME, SessionId::now([9; 8])));
        let (ours, theirs) = tokio::join!(seen(server, &ours, false), seen(target, &theirs, false));
        let lengths = [&ours, &theirs].map(|seen| shape(&seen.0));
        assert_eq!(lengths[0].len(), lengths[1].len(), "{copies} copies");
        for (ours, theirs) in lengths[0].iter().zip(&lengths[1]) {
            // A signature may be shorter by some bytes.
            assert!(ours.0 == theirs.0 && ours.1.abs_diff(theirs.1) < 8, "{copies} copies: {lengths:?}");
        }
    }
}

#[tokio::test]
async fn clients_are_served_whatever_key_the_target_wants() {
    let key = KeyPair::generate().unwrap();
    for group in [kx_group::X25519, kx_group::X25519MLKEM768, kx_group::SECP256R1, kx_group::SECP384R1] {
        let target = site_with(&[&rustls::version::TLS13], &key, 1, &[group]).await;
        let server = server(target).await;
        // Chrome shows no key of a NIST curve, Firefox one of P-256.
        for fingerprint in [Fingerprint::Chrome, Fingerprint::Firefox, Fingerprint::Safari] {
            is_served(server, fingerprint).await;
        }
    }
}

/// `target` behind a line that lets a piece through now and then.
async fn slowed(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = TcpStream::connect(target).await.unwrap().into_split();
                let (mut reading, mut writing) = stream.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut reading, &mut to).await });
                let mut bytes = [0; 97];
                while let Ok(count @ 1..) = from.read(&mut bytes).await {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    if writing.write_all(&bytes[..count]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn clients_are_served_however_slow_the_target_is() {
    let key = KeyPair::generate().unwrap();
    for group in [kx_group::X25519, kx_group::SECP256R1] {
        let target = site_with(&[&rustls::version::TLS13], &key, 3, &[group]).await;
        is_served(server(slowed(target).await).await, Fingerprint::Chrome).await;
    }
}

#[tokio::test]
async fn records_behind_the_handshake_are_those_of_the_target() {
    let target = site(&[&rustls::version::TLS13]).await;
    let host = Host::parse("127.0.0.1").unwrap();
    let visitor = tail::visitor(NAME, &host, Offer::Http2).unwrap();
    let listen = async |address: SocketAddr| {
        let stream = TcpStream::connect(address).await.unwrap();
        tail::listen(&visitor, Box::new(TcpConn::new(stream))).await.unwrap().unwrap()
    };
    let lengths = listen(target).await;
    assert!(!lengths.is_empty(), "the library sends tickets");
    let policy = Policy::new(&run::<32>(0x40), NAME.to_owned(), vec![SHORT_ID], None).unwrap();
    let acceptor = RealityAcceptor::new(policy).unwrap();
    acceptor.tails().set(Offer::Http2, lengths.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let stream = TcpConn::new(listener.accept().await.unwrap().0);
        let target = TcpConn::new(TcpStream::connect(target).await.unwrap());
        let Outcome::Client(conn, _) = acceptor.accept(Box::new(stream), Box::new(target)).await.unwrap()
        else {
            panic!("a stranger");
        };
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(conn);
    });
    let reality = RealityClient { public_key: server_key(), short_id: SHORT_ID, mldsa65: None };
    let settings = ClientSettings {
        server_name: Some(NAME.to_owned()),
        fingerprint: Some(Fingerprint::Chrome),
        reality: Some(reality),
        ..ClientSettings::default()
    };
    let client = Connector::new(settings, &host, &Store::new(StoreSettings::default())).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let ours = tail::listen(&client, Box::new(TcpConn::new(stream))).await.unwrap().unwrap();
    assert_eq!(ours, lengths);
    serving.abort();
}

/// What somebody sees who sends this: all bytes until the end or until nothing comes, and how it ends.
async fn seen(address: SocketAddr, probe: &[u8], then_ends: bool) -> (Vec<u8>, &'static str) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(probe).await.unwrap();
    if then_ends {
        stream.shutdown().await.unwrap();
    }
    let mut all = Vec::new();
    loop {
        let mut bytes = [0; 4096];
        match tokio::time::timeout(Duration::from_millis(700), stream.read(&mut bytes)).await {
            Err(_) => return (all, "silence"),
            Ok(Err(_)) => return (all, "reset"),
            Ok(Ok(0)) => return (all, "end"),
            Ok(Ok(count)) => all.extend(&bytes[..count]),
        }
    }
}

/// The records in `bytes`, by type and length; what a site draws at random is not compared.
fn shape(bytes: &[u8]) -> Vec<(u8, usize)> {
    let mut records = Vec::new();
    let mut rest = bytes;
    while let [kind, _, _, high, low, ..] = *rest {
        let len = (HEADER + usize::from(u16::from_be_bytes([high, low]))).min(rest.len());
        records.push((kind, len));
        rest = &rest[len..];
    }
    records
}

#[tokio::test]
async fn strangers_see_the_target_and_nothing_else() {
    let target = site(rustls::ALL_VERSIONS).await;
    let server = server(target).await;
    let good = sealed_hello(NAME, SessionId::now(SHORT_ID));
    // Somebody has seen it go by; the server has, too.
    seen(server, &good, true).await;
    let wrong_id = sealed_hello(NAME, SessionId::now([9; 8]));
    let late = SessionId { time: 1_000_000_000, ..SessionId::now(SHORT_ID) };
    let mut tls12 = wrong_id.clone();
    // Chrome's versions: GREASE, 1.3, 1.2.
    let at = tls12.windows(4).position(|window| window == [3, 4, 3, 3]).unwrap();
    tls12[at + 1] = 3;
    let two_hellos = [&wrong_id[..], &wrong_id].concat();
    for (name, probe) in [
        ("nothing", &b""[..]),
        ("garbage", b"\x00\x01\x02\x03\xff\xfe\xfd and so on and on and on"),
        ("plain HTTP", b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"),
        ("a truncated hello", &wrong_id[..300]),
        ("a record header", &wrong_id[..5]),
        ("a wrong short id", &wrong_id),
        ("a replayed hello", &good),
        ("an old hello", &sealed_hello(NAME, late)),
        ("another name", &sealed_hello("example.net", SessionId::now(SHORT_ID))),
        ("TLS 1.2 only", &tls12),
        ("two hellos", &two_hellos),
        ("junk behind a hello", &[&wrong_id[..], &[23, 3, 3, 0, 20], &[7; 20]].concat()),
        ("an alert", b"\x15\x03\x03\x00\x02\x02\x28"),
        ("a record that is too long", b"\x16\x03\x01\xff\xff\x01\x00\x00\x00"),
    ] {
        for ends in [false, true] {
            let (ours, theirs) = tokio::join!(seen(server, probe, ends), seen(target, probe, ends));
            assert_eq!(shape(&ours.0), shape(&theirs.0), "{name}, then ends: {ends}");
            assert_eq!(ours.1, theirs.1, "{name}, then ends: {ends}");
        }
    }
}

#[tokio::test]
async fn a_proven_client_that_sends_junk_is_told_so_as_by_a_site() {
    let target = site(&[&rustls::version::TLS13]).await;
    let server = server(target).await;
    let junk = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
    let ours = sealed_hello(NAME, SessionId::now(SHORT_ID));
    let theirs = sealed_hello(NAME, SessionId::now([9; 8]));
    let ours = seen(server, &[&ours[..], &junk].concat(), false).await;
    let theirs = seen(target, &[&theirs[..], &junk].concat(), false).await;
    assert_eq!((shape(&ours.0), ours.1), (shape(&theirs.0), theirs.1));
}

#[tokio::test]
async fn a_target_without_tls_1_3_is_seen_as_it_is_by_clients_too() {
    let target = site(&[&rustls::version::TLS12]).await;
    let server = server(target).await;
    let hello = sealed_hello(NAME, SessionId::now(SHORT_ID));
    let (ours, theirs) = tokio::join!(seen(server, &hello, false), seen(target, &hello, false));
    assert_eq!((shape(&ours.0), ours.1), (shape(&theirs.0), theirs.1));
}

#[test]
fn flights_are_measured() {
    let mut server_hello = hex("160303005a 02000056 0303");
    server_hello.extend([5; 32]);
    server_hello.push(32);
    server_hello.extend([6; 32]);
    server_hello.extend(hex("1302 00 002e 002b 0002 0304 0033 0024 001d 0020"));
    server_hello.extend([8; 32]);
    let len = server_hello.len() - HEADER;
    server_hello[3..5].copy_from_slice(&(len as u16).to_be_bytes());
    server_hello[8] = (len - 4) as u8;
    server_hello[7] = 0;
    let data = |len: usize| {
        [&[23, 3, 3][..], &((len - HEADER) as u16).to_be_bytes(), &vec![0; len - HEADER]].concat()
    };
    let change = [20, 3, 3, 0, 1, 1];
    let merged = [&server_hello[..], &change, &data(1500)].concat();
    let plan = Plan::decode(&merged, false).unwrap();
    assert_eq!(
        (plan.lengths, plan.extra, plan.cipher, plan.group, plan.changes),
        (Lengths::Merged(vec![1500]), None, Cipher::Aes256Gcm, Group::X25519, true)
    );
    assert_eq!(&merged[plan.share..plan.share + 32], [8; 32]);
    for cut in 0..merged.len() {
        assert_eq!(Plan::decode(&merged[..cut], false), Err(DecodeError::Incomplete));
    }
    let lengths = |records: &[usize]| {
        let records: Vec<u8> = records.iter().flat_map(|len| data(*len)).collect();
        let plan = Plan::decode(&[&server_hello[..], &change, &records].concat(), false);
        plan.map(|plan| (plan.lengths, plan.extra))
    };
    let full = 16_406;
    assert_eq!(
        lengths(&[40, 900, 100, 74, 200]),
        Ok((Lengths::Separate([vec![40], vec![900], vec![100], vec![74]]), Some(200)))
    );
    assert_eq!(lengths(&[40, 900, 100]), Err(DecodeError::Incomplete));
    assert_eq!(
        lengths(&[40, full, full, 900, 100, 74]),
        Ok((Lengths::Separate([vec![40], vec![full, full, 900], vec![100], vec![74]]), None))
    );
    // The first message of one flight, and all of another, may be equally long.
    assert_eq!(
        lengths(&[400, 900, 100, 74]),
        Ok((Lengths::Separate([vec![400], vec![900], vec![100], vec![74]]), None))
    );
    for behind in [&[][..], &[200], &[200, 200, 200], &[200, 200, 200, 200]] {
        let all = [&[400][..], behind].concat();
        assert_eq!(lengths(&all), Ok((Lengths::Merged(vec![400]), None)));
    }
    assert_eq!(lengths(&[full, 500, 60]), Ok((Lengths::Merged(vec![full, 500]), None)));
    assert_eq!(lengths(&[full]), Err(DecodeError::Incomplete));
    let without = [&server_hello[..], &data(1500)].concat();
    assert!(!Plan::decode(&without, true).unwrap().changes);
    assert!(Plan::decode(&merged, true).unwrap().changes);
    let mut retry = merged.clone();
    retry[11..43].copy_from_slice(&hex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c"));
    assert_eq!(mirror::retry(&retry), Some(server_hello.len()));
    assert_eq!(mirror::retry(&retry[..server_hello.len() - 1]), None);
    assert_eq!(mirror::retry(&merged), None);
    let alert = [21, 3, 3, 0, 2, 2, 40];
    for other in [&retry[..], &alert, &without, b"HTTP/1.1 400"] {
        assert!(matches!(Plan::decode(other, false), Err(DecodeError::Invalid(_))), "{other:?}");
    }
}
