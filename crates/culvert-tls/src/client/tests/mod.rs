//! A client against a server of these tests, which can do what no well-behaved one does.

mod server;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use culvert_testkit::conn::pair;
use proptest::prelude::*;
use tokio::io::AsyncReadExt;

use super::drive::digest;
use super::{Client, Judge, Refusal, Verdict, alert, compressed};
use crate::browser::{ClientHello, Fingerprint};
use crate::error::TlsFault;
use crate::reality::tests::hex;
use crate::reality::{AuthKey, Proof};
use crate::settings::Fragment;
use crate::testing::pattern;
use server::{Change, Server, finish_client};

fn judge(reality: Option<Proof>) -> Judge {
    Judge { reality, ..Judge::of_anyone() }
}

fn chrome() -> Client {
    let hello = ClientHello::new(Fingerprint::Chrome, Some("a.test"), &[]).unwrap();
    Client::new(hello, judge(None))
}

/// The hello in what a client sends first.
fn hello_of(client: &mut Client) -> Vec<u8> {
    client.take_outgoing()[5..].to_vec()
}

/// Lets a client digest what a server sends that was changed in this way.
fn answered(change: Change) -> Result<Client, Refusal> {
    let mut client = chrome();
    let server = Server::new(&hello_of(&mut client), change);
    let mut bytes = server.flight;
    digest(&mut client, &mut bytes).map(|()| client)
}

#[test]
fn a_server_may_say_all_that_was_offered() {
    for change in [
        Change::None,
        Change::Brotli,
        Change::Protocol,
        Change::Settings,
        Change::OneRecord,
        Change::Padded,
        Change::Changes(30),
        Change::Retry(0x17),
    ] {
        let mut client = chrome();
        let mut server = Server::new(&hello_of(&mut client), change);
        let mut bytes = std::mem::take(&mut server.flight);
        digest(&mut client, &mut bytes).unwrap();
        if let Change::Retry(_) = change {
            let sent = client.take_outgoing();
            assert_eq!(sent[..6], [20, 3, 3, 0, 1, 1]);
            assert_eq!(sent[6..9], [22, 3, 3]);
            server.answer_again(&sent[11..]);
            digest(&mut client, &mut server.flight.clone()).unwrap();
        }
        assert!(client.is_done(), "{change:?}");
        let sent = client.take_outgoing();
        finish_client(&server, &sent, change);
        let facts = client.finish().unwrap().facts;
        let protocol = matches!(change, Change::Protocol | Change::Settings).then_some("h2");
        assert_eq!(facts.alpn.as_deref(), protocol);
    }
}

#[test]
fn what_no_server_may_say_is_refused_with_the_right_alert() {
    for (change, wanted) in [
        (Change::Changes(40), alert::UNEXPECTED_MESSAGE),
        (Change::TwoForOne, alert::UNEXPECTED_MESSAGE),
        (Change::OtherProtocol, alert::ILLEGAL_PARAMETER),
        (Change::Extension(0x5555), alert::UNSUPPORTED_EXTENSION),
        (Change::Extension(43), alert::ILLEGAL_PARAMETER),
        (Change::SettingsAlone, alert::ILLEGAL_PARAMETER),
        (Change::OtherSession, alert::ILLEGAL_PARAMETER),
        (Change::Suite(0x1304), alert::ILLEGAL_PARAMETER),
        (Change::Suite(0xc02b), alert::ILLEGAL_PARAMETER),
        (Change::Version(0x0302), alert::ILLEGAL_PARAMETER),
        (Change::Share(0x18), alert::ILLEGAL_PARAMETER),
        (Change::ZeroShare, alert::ILLEGAL_PARAMETER),
        (Change::Retry(0x1d), alert::ILLEGAL_PARAMETER),
        (Change::Retry(0x19), alert::ILLEGAL_PARAMETER),
        (Change::Retry(0), alert::ILLEGAL_PARAMETER),
        (Change::Zstd, alert::ILLEGAL_PARAMETER),
        (Change::LongUnpacked, alert::BAD_CERTIFICATE),
        (Change::WrongUnpacked, alert::BAD_CERTIFICATE),
        (Change::NoCertificate, alert::DECODE_ERROR),
        (Change::Delegated, alert::ILLEGAL_PARAMETER),
        (Change::OtherSignature, alert::DECRYPT_ERROR),
        (Change::WeakScheme, alert::ILLEGAL_PARAMETER),
        (Change::BadFinished, alert::DECRYPT_ERROR),
        (Change::Behind, alert::UNEXPECTED_MESSAGE),
        (Change::Swapped, alert::UNEXPECTED_MESSAGE),
        (Change::BadTag, 20),
        (Change::PlainExtensions, alert::UNEXPECTED_MESSAGE),
    ] {
        let refusal = answered(change).map(|client| client.is_done()).unwrap_err();
        assert_eq!(refusal.alert, Some(wanted), "{change:?}: {}", refusal.fault);
    }
}

#[test]
fn the_server_is_told_why() {
    let mut client = chrome();
    let mut server = Server::new(&hello_of(&mut client), Change::BadFinished);
    assert!(digest(&mut client, &mut server.flight).is_err());
    let sent = client.take_outgoing();
    // Sealed, behind what changes the keys.
    assert_eq!(sent[..6], [20, 3, 3, 0, 1, 1]);
    assert_eq!(server.open_client(&sent[6..]), (21, vec![2, alert::DECRYPT_ERROR]));
    let mut client = chrome();
    let server = Server::new(&hello_of(&mut client), Change::OtherSession);
    assert!(digest(&mut client, &mut server.flight.clone()).is_err());
    assert_eq!(client.take_outgoing(), [21, 3, 3, 0, 2, 2, alert::ILLEGAL_PARAMETER]);
    // It is over.
    assert!(digest(&mut client, &mut { server.flight }).is_err());
}

#[test]
fn no_cut_of_what_a_server_sends_is_a_handshake() {
    let mut client = chrome();
    let hello = hello_of(&mut client);
    let server = Server::new(&hello, Change::Settings);
    let mut incoming = Vec::new();
    for (at, byte) in server.flight.iter().enumerate() {
        assert!(!client.is_done(), "done after {at} bytes");
        incoming.push(*byte);
        digest(&mut client, &mut incoming).unwrap();
    }
    assert!(client.is_done());
    for end in (0..server.flight.len()).step_by(7) {
        let mut client = chrome();
        let server = Server::new(&hello_of(&mut client), Change::Settings);
        let mut bytes = server.flight[..end].to_vec();
        digest(&mut client, &mut bytes).unwrap();
        assert!(!client.is_done(), "cut at {end}");
    }
}

#[test]
fn a_server_that_lowers_the_version_by_force_is_found_out() {
    let mut random = [7; 32];
    for sentinel in [0, 1] {
        random[24..].copy_from_slice(b"DOWNGRD\0");
        random[31] = sentinel;
        let mut client = chrome();
        client.take_outgoing();
        let hello = [&[2, 0, 0, 38, 3, 3][..], &random, &[0, 0xc0, 0x2b, 0]].concat();
        let mut record = [&[22, 3, 3, 0, 42][..], &hello].concat();
        let refusal = digest(&mut client, &mut record).unwrap_err();
        assert_eq!(refusal.alert, Some(alert::ILLEGAL_PARAMETER));
    }
    // A suite that is offered for show only is named.
    random[31] = 9;
    let mut client = chrome();
    client.take_outgoing();
    let hello = [&[2, 0, 0, 38, 3, 3][..], &random, &[0, 0x00, 0x2f, 0]].concat();
    let refusal = digest(&mut client, &mut [&[22, 3, 3, 0, 42][..], &hello].concat()).unwrap_err();
    assert_eq!(refusal.alert, Some(alert::HANDSHAKE_FAILURE));
    assert!(refusal.fault.to_string().contains("0x002f"), "{}", refusal.fault);
}

/// Twenty times `certificate `, by Python's zlib, andybalholm's brotli and the program `zstd`.
const PACKED: [(u16, &str); 3] = [
    (1, "78da4b4e2d2ac94ccb4c4e2c4955481e016c00ca7d5cbd"),
    (2, "1bef000024400a98c56ae12ce801"),
    (3, "28b52ffd00589d0000606365727469666963617465200100e1532509"),
];

#[test]
fn packed_certificates_come_out_as_they_were() {
    let plain: Vec<u8> = b"certificate ".repeat(20);
    let firefox = ClientHello::new(Fingerprint::Firefox, None, &[]).unwrap();
    for (algorithm, packed) in PACKED {
        let packed = hex(packed);
        let body = |len: usize| {
            let mut body = algorithm.to_be_bytes().to_vec();
            body.extend(&(len as u32).to_be_bytes()[1..]);
            body.extend(&(packed.len() as u32).to_be_bytes()[1..]);
            [&body[..], &packed].concat()
        };
        assert_eq!(compressed::unpack(&firefox, &body(plain.len())).unwrap(), plain, "{algorithm}");
        for len in [0, 1, plain.len() - 1, plain.len() + 1, 1 << 20] {
            let refusal = compressed::unpack(&firefox, &body(len)).unwrap_err();
            assert_eq!(refusal.alert, Some(alert::BAD_CERTIFICATE));
        }
        let whole = body(plain.len());
        for end in 0..whole.len() {
            assert!(compressed::unpack(&firefox, &whole[..end]).is_err());
        }
        for at in 5..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x41;
            if let Ok(unpacked) = compressed::unpack(&firefox, &changed) {
                assert_eq!(unpacked.len(), plain.len());
            }
        }
    }
}

/// The client of REALITY with an X25519 key of its server.
fn reality(fingerprint: Fingerprint) -> (Client, AuthKey) {
    let server = [9; 32];
    let hello = ClientHello::new(fingerprint, Some("a.test"), &[]).unwrap();
    let shared = hello.agree_x25519(&server).unwrap();
    let [ours, theirs] = [(); 2].map(|()| AuthKey::new(&shared, hello.random()));
    (Client::new(hello, judge(Some(Proof { key: ours, mldsa65: None }))), theirs)
}

#[test]
fn a_server_of_reality_is_known_by_its_certificate() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[1; 32]).unwrap();
    for fingerprint in
        [Fingerprint::Chrome, Fingerprint::Chrome120, Fingerprint::Firefox, Fingerprint::Safari]
    {
        let (mut client, key) = reality(fingerprint);
        let certificate = crate::reality::tests::certificate(&key, pair.public_key().as_ref());
        let server = Server::with(&hello_of(&mut client), Change::None, certificate.to_vec());
        digest(&mut client, &mut server.flight.clone()).unwrap();
        assert_eq!(client.finish().unwrap().verdict, Verdict::Accepted);
        // The test's judge believes in every certificate: so this one is a site of that name.
        let (mut client, _) = reality(fingerprint);
        let server = Server::with(&hello_of(&mut client), Change::None, certificate.to_vec());
        digest(&mut client, &mut server.flight.clone()).unwrap();
        assert_eq!(client.finish().unwrap().verdict, Verdict::RealSite);
        // With the right certificate, but not its key.
        let (mut client, key) = reality(fingerprint);
        let certificate = crate::reality::tests::certificate(&key, pair.public_key().as_ref());
        let change = Change::OtherSignature;
        let server = Server::with(&hello_of(&mut client), change, certificate.to_vec());
        let refusal = digest(&mut client, &mut server.flight.clone()).unwrap_err();
        assert_eq!(refusal.alert, Some(alert::DECRYPT_ERROR));
    }
}

#[tokio::test]
async fn what_comes_right_behind_the_handshake_is_not_lost() {
    let (near, mut far) = pair(1 << 20);
    let client = chrome();
    let serve = async {
        let mut hello = vec![0; 5];
        far.read_exact(&mut hello).await.unwrap();
        let mut message = vec![0; usize::from(u16::from_be_bytes([hello[3], hello[4]]))];
        far.read_exact(&mut message).await.unwrap();
        let mut server = Server::new(&message, Change::None);
        let data = pattern(50_000);
        let mut bytes = std::mem::take(&mut server.flight);
        // A ticket, an empty record, and data, in the same breath.
        bytes.extend(server.seal(22, &[4, 0, 0, 13, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        bytes.extend(server.seal(23, &[]));
        data.chunks(16_000).for_each(|part| bytes.extend(server.seal(23, part)));
        tokio::io::AsyncWriteExt::write_all(&mut far, &bytes).await.unwrap();
        (far, data)
    };
    let (done, (_far, data)) =
        tokio::join!(super::connect(Box::new(near), client, Fragment::default()), serve);
    let (mut conn, _, verdict) = done.unwrap();
    assert_eq!(verdict, Verdict::Accepted);
    let mut got = vec![0; data.len()];
    conn.read_exact(&mut got).await.unwrap();
    assert_eq!(got, data);
}

#[tokio::test]
async fn who_speaks_no_tls_is_quoted() {
    let (near, mut far) = pair(1 << 16);
    let serve = tokio::io::AsyncWriteExt::write_all(&mut far, b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let (fault, _) = tokio::join!(super::connect(Box::new(near), chrome(), Fragment::default()), serve);
    assert!(matches!(fault.unwrap_err(), TlsFault::NotTls(text) if text.starts_with("HTTP/1.1 400")));
}

proptest! {
    #[test]
    fn random_records_are_no_handshake(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        super::fuzz_client(&bytes);
    }

    #[test]
    fn a_changed_byte_never_makes_a_handshake(at in 0usize..4000, bit in 0u8..8) {
        let mut client = chrome();
        let server = Server::new(&hello_of(&mut client), Change::Settings);
        let mut bytes = server.flight.clone();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        // The version in the head of a record is not looked at beyond its first byte, and not covered where it is plain.
        let is_minor = [2, server.change_at + 2].contains(&at);
        let _ = digest(&mut client, &mut bytes);
        prop_assert!(is_minor || !client.is_done(), "changed at {at}");
    }
}
