use std::sync::Arc;
use std::time::Duration;

use culvert_core::conn::read_chain;
use culvert_core::{BoxStream, DialError};
use culvert_testkit::conn::{Faulty, Script, Step, pair};
use culvert_testkit::temp::TempDir;
use culvert_wire::Room;
use rcgen::KeyPair;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{acceptor, client_of, connector, host, nobody, server_with};
use crate::settings::{
    ClientSettings, Curve, Ech, Fragment, Identity, KeyPairSource, Parameters, ServerSettings, Source, Trust,
    Version,
};
use crate::testing::{Ca, Conn, Issued, pattern, shake, shake_over, transfer};
use crate::{Acceptor, Connector, TlsFault};

const TLS12_SUITES: [&str; 3] = ["AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256"];
const TLS13_SUITES: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

fn version(version: Version) -> Parameters {
    Parameters { min_version: version, max_version: version, ..Parameters::default() }
}

fn rsa() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap()
}

/// A provider of the stock library with one suite only.
fn stock_provider(suite: Option<&str>) -> Arc<rustls::crypto::CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    if let Some(name) = suite {
        provider.cipher_suites.retain(|suite| crate::provider::iana_name(suite.suite()) == name);
        assert_eq!(provider.cipher_suites.len(), 1);
    }
    Arc::new(provider)
}

fn stock_server(identity: &Issued, suite: Option<&str>) -> TlsAcceptor {
    let key = rustls::pki_types::pem::PemObject::from_pem_slice(identity.key.as_bytes());
    let key: PrivateKeyDer<'static> = key.unwrap();
    let versions = rustls::DEFAULT_VERSIONS.iter().filter(|version| {
        suite.is_none_or(|suite| TLS13_SUITES.contains(&suite) == (**version == &rustls::version::TLS13))
    });
    let config = rustls::ServerConfig::builder_with_provider(stock_provider(suite))
        .with_protocol_versions(&versions.copied().collect::<Vec<_>>())
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![identity.der.clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

fn stock_client(ca: &Ca, suite: Option<&str>) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let versions = rustls::DEFAULT_VERSIONS.iter().filter(|version| {
        suite.is_none_or(|suite| TLS13_SUITES.contains(&suite) == (**version == &rustls::version::TLS13))
    });
    let config = rustls::ClientConfig::builder_with_provider(stock_provider(suite))
        .with_protocol_versions(&versions.copied().collect::<Vec<_>>())
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// Every suite, with a server identity that it can be used with.
fn suites(ca: &Ca) -> Vec<(String, Issued)> {
    let mut suites: Vec<_> =
        TLS13_SUITES.iter().map(|suite| (suite.to_string(), ca.issue("a.test"))).collect();
    for rest in TLS12_SUITES {
        suites.push((format!("TLS_ECDHE_ECDSA_WITH_{rest}"), ca.issue("a.test")));
        suites.push((format!("TLS_ECDHE_RSA_WITH_{rest}"), ca.issue_with("a.test", &rsa(), |_| {})));
    }
    suites
}

#[tokio::test]
async fn every_suite_against_the_stock_library_as_server() {
    let ca = Ca::new("ca");
    for (suite, identity) in suites(&ca) {
        let connector = connector(client_of(&ca), "a.test");
        let server = stock_server(&identity, Some(&suite));
        for most in [3, usize::MAX] {
            let (near, far) = pair(1 << 20);
            let near = Faulty::new(near).reads_at_most(most).writes_at_most(most);
            let serve = async {
                let mut conn = server.accept(far).await.unwrap();
                let mut got = vec![0; 60_000];
                conn.read_exact(&mut got).await.unwrap();
                conn.write_all(&got).await.unwrap();
                conn.shutdown().await.unwrap();
            };
            let dial = async {
                let (mut conn, facts) = connector.connect(Box::new(Conn(near))).await.unwrap();
                assert_eq!(facts.cipher_suite, suite);
                conn.write_all(&pattern(60_000)).await.unwrap();
                conn.flush().await.unwrap();
                let mut got = Vec::new();
                conn.read_to_end(&mut got).await.unwrap();
                assert!(got == pattern(60_000));
            };
            tokio::join!(serve, dial);
        }
    }
}

#[tokio::test]
async fn first_data_may_come_with_the_last_flight_of_a_client_that_gets_no_ticket() {
    let ca = Ca::new("ca");
    let (connector, acceptor) = (connector(client_of(&ca), "a.test"), acceptor(&ca.issue("a.test")));
    for at_once in [usize::MAX, 1000, 7] {
        let (near, far) = pair(1 << 20);
        let far = Faulty::new(far).reads_at_most(at_once);
        let acceptor = acceptor.clone().without_tickets();
        let serve = async {
            let (mut conn, _) = acceptor.accept(Box::new(Conn(far))).await.unwrap();
            let mut got = vec![0; 60_000];
            conn.read_exact(&mut got).await.unwrap();
            assert!(got == pattern(60_000));
        };
        let dial = async {
            // Nothing of the flight has left yet.
            let (mut conn, _) = connector.connect(Box::new(Conn(near))).await.unwrap();
            conn.write_all(&pattern(60_000)).await.unwrap();
            conn.flush().await.unwrap();
            conn
        };
        tokio::join!(serve, dial);
    }
}

#[tokio::test]
async fn every_suite_against_the_stock_library_as_client() {
    let ca = Ca::new("ca");
    for (suite, identity) in suites(&ca) {
        let (client, acceptor) = (stock_client(&ca, Some(&suite)), acceptor(&identity));
        let (near, far) = pair(1 << 20);
        let serve = async {
            let (mut conn, facts) = acceptor.accept(Box::new(far)).await.unwrap();
            assert_eq!((facts.cipher_suite, facts.server_name.as_deref()), (suite.clone(), Some("a.test")));
            let mut got = vec![0; 60_000];
            conn.read_exact(&mut got).await.unwrap();
            conn.write_all(&got).await.unwrap();
            conn.shutdown().await.unwrap();
        };
        let dial = async {
            let name = ServerName::try_from("a.test").unwrap();
            let mut conn = client.connect(name, near).await.unwrap();
            conn.write_all(&pattern(60_000)).await.unwrap();
            let mut got = Vec::new();
            conn.read_to_end(&mut got).await.unwrap();
            assert!(got == pattern(60_000));
        };
        tokio::join!(serve, dial);
    }
}

#[tokio::test]
async fn key_updates_of_the_stock_library_are_followed() {
    let ca = Ca::new("ca");
    let (client, acceptor) = (stock_client(&ca, None), acceptor(&ca.issue("a.test")));
    let (near, far) = pair(1 << 20);
    let name = ServerName::try_from("a.test").unwrap();
    let (client, server) = tokio::join!(client.connect(name, near), acceptor.accept(Box::new(far)));
    let (mut client, (mut server, _)) = (client.unwrap(), server.unwrap());
    for _ in 0..5 {
        client.get_mut().1.refresh_traffic_keys().unwrap();
        transfer(&mut client, &mut server, &pattern(5000)).await;
        transfer(&mut server, &mut client, &pattern(5000)).await;
    }
}

#[tokio::test]
async fn both_sides_shake_hands_over_single_bytes() {
    let ca = Ca::new("ca");
    let identity = ca.issue("a.test");
    for version_ in [Version::Tls12, Version::Tls13] {
        let settings = ClientSettings { parameters: version(version_), ..client_of(&ca) };
        let (near, far) = pair(1 << 20);
        let (near, far): (BoxStream, BoxStream) =
            (Box::new(Conn(Faulty::trickling(near))), Box::new(Conn(Faulty::trickling(far))));
        let outcome = shake_over(&connector(settings, "a.test"), &acceptor(&identity), near, far).await;
        let ((mut client, facts), (mut server, _)) = (outcome.0.unwrap(), outcome.1.unwrap());
        assert_eq!(facts.version, version_);
        transfer(&mut client, &mut server, b"question").await;
        transfer(&mut server, &mut client, b"answer").await;
    }
}

#[tokio::test]
async fn versions_meet_or_say_so() {
    let ca = Ca::new("ca");
    let identity = ca.issue("a.test");
    for (client, server, agreed) in [
        (Version::Tls12, Version::Tls12, true),
        (Version::Tls13, Version::Tls13, true),
        (Version::Tls12, Version::Tls13, false),
        (Version::Tls13, Version::Tls12, false),
    ] {
        let settings = ClientSettings { parameters: version(client), ..client_of(&ca) };
        let server = ServerSettings { parameters: version(server), ..server_with(identity.source()) };
        let (near, _) = shake(&connector(settings, "a.test"), &Acceptor::new(&server).unwrap()).await;
        match near {
            Ok((_, facts)) => assert!(agreed && facts.version == client),
            Err(error) => {
                assert!(!agreed && error.to_string().contains("protocol version"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn every_curve_is_spoken() {
    let ca = Ca::new("ca");
    let identity = ca.issue("a.test");
    for curve in [Curve::P256, Curve::P384, Curve::P521, Curve::X25519, Curve::X25519MlKem768] {
        for version_ in [Version::Tls12, Version::Tls13] {
            if curve == Curve::X25519MlKem768 && version_ == Version::Tls12 {
                continue; // defined for TLS 1.3 only
            }
            let parameters = Parameters { curves: vec![curve], ..version(version_) };
            let settings = ClientSettings { parameters: parameters.clone(), ..client_of(&ca) };
            let server = ServerSettings { parameters, ..server_with(identity.source()) };
            let outcome = shake(&connector(settings, "a.test"), &Acceptor::new(&server).unwrap()).await;
            assert!(outcome.0.is_ok() && outcome.1.is_ok(), "{curve:?} {version_:?}");
        }
    }
    // A client that guesses wrong is asked again.
    let parameters = Parameters { curves: vec![Curve::P384], ..Parameters::default() };
    let server = ServerSettings { parameters, ..server_with(identity.source()) };
    let outcome = shake(&connector(client_of(&ca), "a.test"), &Acceptor::new(&server).unwrap()).await;
    assert!(outcome.0.is_ok() && outcome.1.is_ok());
}

#[tokio::test]
async fn application_protocols_are_agreed_on() {
    let ca = Ca::new("ca");
    let identity = ca.issue("a.test");
    let with = |alpn: &[&str]| Parameters {
        alpn: alpn.iter().map(ToString::to_string).collect(),
        ..Parameters::default()
    };
    /// Offered, known, agreed on; `None` where they cannot agree.
    type Row<'a> = (&'a [&'a str], &'a [&'a str], Option<Option<&'a str>>);
    let table: [Row<'_>; 6] = [
        (&["h2", "http/1.1"], &["h2", "http/1.1"], Some(Some("h2"))),
        (&["http/1.1"], &["h2", "http/1.1"], Some(Some("http/1.1"))),
        (&[], &["h2"], Some(None)),
        (&["h2"], &[], Some(None)),
        (&["http/1.1"], &["h2"], Some(None)),
        (&["http/1.1"], &["imap"], None),
    ];
    for (offered, known, agreed) in table {
        let settings = ClientSettings { parameters: with(offered), ..client_of(&ca) };
        let server = ServerSettings { parameters: with(known), ..server_with(identity.source()) };
        let (near, far) = shake(&connector(settings, "a.test"), &Acceptor::new(&server).unwrap()).await;
        match agreed {
            Some(agreed) => assert_eq!(far.unwrap().1.alpn.as_deref(), agreed, "{offered:?} {known:?}"),
            None => {
                assert!(matches!(near.unwrap_err().fault, TlsFault::Alpn));
                assert!(matches!(far.unwrap_err().fault, TlsFault::Alpn));
            }
        }
    }
}

#[tokio::test]
async fn the_name_is_sent_unless_it_is_not_to_be() {
    let ca = Ca::new("ca");
    let acceptor = acceptor(&ca.issue("a.test"));
    for (disable_sni, server_name, dialled, seen) in [
        (false, None, "a.test", Some("a.test")),
        (false, Some("a.test."), "203.0.113.7", Some("a.test")),
        (true, None, "a.test", None),
    ] {
        let server_name = server_name.map(str::to_owned);
        let settings = ClientSettings { disable_sni, server_name, ..client_of(&ca) };
        let (near, far) = shake(&connector(settings, dialled), &acceptor).await;
        assert!(near.is_ok());
        assert_eq!(far.unwrap().1.server_name.as_deref(), seen);
    }
    // Addresses are verified, and never sent.
    let by_address = self::acceptor(&ca.issue("203.0.113.7"));
    let (near, far) = shake(&connector(client_of(&ca), "203.0.113.7"), &by_address).await;
    assert!(near.is_ok());
    assert_eq!(far.unwrap().1.server_name, None);
    let settings = ClientSettings { server_name: Some("not a name".into()), ..client_of(&ca) };
    let error = Connector::new(settings, &host("a.test"), &nobody()).unwrap_err();
    assert!(error.to_string().starts_with("server_name"), "{error}");
}

#[tokio::test]
async fn sessions_are_taken_up_again() {
    let ca = Ca::new("ca");
    let acceptor = acceptor(&ca.issue("a.test"));
    for version_ in [Version::Tls12, Version::Tls13] {
        let settings = ClientSettings { parameters: version(version_), ..client_of(&ca) };
        let connector = connector(settings, "a.test");
        for round in 0..4 {
            let (near, far) = shake(&connector, &acceptor).await;
            let ((mut client, facts), (mut server, _)) = (near.unwrap(), far.unwrap());
            assert_eq!(facts.resumed, round > 0, "{version_:?}, round {round}");
            // A ticket of TLS 1.3 leaves with the first data.
            transfer(&mut client, &mut server, b"question").await;
            transfer(&mut server, &mut client, b"answer").await;
        }
    }
}

#[tokio::test]
async fn the_first_flights_are_one_write_each() {
    let ca = Ca::new("ca");
    let (near, far) = pair(1 << 16);
    let acceptor = acceptor(&ca.issue("a.test"));
    let serve = tokio::spawn(async move { acceptor.accept(Box::new(far)).await });
    let (mut client, _) = connector(client_of(&ca), "a.test").connect(Box::new(near)).await.unwrap();
    tokio::task::yield_now().await;
    assert!(!serve.is_finished(), "the last flight of the client is still to come");
    client.write_all(b"data").await.unwrap();
    let (mut server, _) = serve.await.unwrap().unwrap();
    assert_eq!(read_chain(&mut server, Room::NONE).await.unwrap().to_vec(), b"data");
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_not_waited_for_longer_than_asked() {
    let ca = Ca::new("ca");
    let silent = || Box::new(Conn(Script::new([Step::Silence])));
    let limit = Duration::from_secs(3);
    let settings = ClientSettings { handshake_timeout: Some(limit), ..client_of(&ca) };
    let error = connector(settings, "a.test").connect(silent()).await.unwrap_err();
    assert_eq!(error.to_string(), "TLS handshake with a.test: took longer than 3s");
    assert!(matches!(DialError::from(error), DialError::Timeout { limit: named, .. } if named == limit));
    let server =
        ServerSettings { handshake_timeout: Some(limit), ..server_with(ca.issue("a.test").source()) };
    let error = Acceptor::new(&server).unwrap().accept(silent()).await.unwrap_err();
    assert!(matches!(error.fault, TlsFault::Timeout(_)));
}

#[tokio::test]
async fn what_is_no_tls_is_called_so() {
    let ca = Ca::new("ca");
    let reply = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    let script = Script::new([Step::Expect(1), Step::Send(reply), Step::Silence]);
    let error = connector(client_of(&ca), "a.test").connect(Box::new(Conn(script))).await.unwrap_err();
    let expected = "the peer does not speak TLS: it begins with \"HTTP/1.1 400 Bad Request\"";
    assert_eq!(error.to_string(), format!("TLS handshake with a.test: {expected}"));
    let script = Script::new([Step::Send(b"GET / HTTP/1.1\r\n\r\n".to_vec()), Step::Silence]);
    let error = acceptor(&ca.issue("a.test")).accept(Box::new(Conn(script))).await.unwrap_err();
    assert!(error.to_string().contains("GET / HTTP/1.1"), "{error}");
}

#[tokio::test]
async fn no_cut_of_a_hello_and_no_broken_one_hangs_or_breaks_a_server() {
    let ca = Ca::new("ca");
    let acceptor = acceptor(&ca.issue("a.test"));
    let script = Script::new([Step::Expect(1), Step::Pause(Duration::from_millis(10))]);
    let heard = script.heard();
    let outcome = connector(client_of(&ca), "a.test").connect(Box::new(Conn(script))).await;
    assert!(matches!(outcome.unwrap_err().fault, TlsFault::Closed));
    let hello = heard().bytes;
    for end in (0..hello.len()).step_by(7) {
        let script = Script::new([Step::Send(hello[..end].to_vec())]);
        let error = acceptor.accept(Box::new(Conn(script))).await.unwrap_err();
        assert!(matches!(error.fault, TlsFault::Closed), "cut at {end}: {error}");
    }
    for position in (0..hello.len()).step_by(3) {
        let mut broken = hello.clone();
        broken[position] ^= 0xff;
        let script = Script::new([Step::Send(broken)]);
        let accepting = acceptor.accept(Box::new(Conn(script)));
        assert!(tokio::time::timeout(Duration::from_secs(5), accepting).await.unwrap().is_err());
    }
    // A hello and then goodbye (RUSTSEC-2024-0336).
    let script = Script::new([Step::Send([&hello[..], &[21, 3, 3, 0, 2, 1, 0]].concat()), Step::Silence]);
    let accepting = acceptor.accept(Box::new(Conn(script)));
    assert!(tokio::time::timeout(Duration::from_secs(1), accepting).await.unwrap().is_err());
}

#[tokio::test]
async fn a_hello_in_pieces_is_understood() {
    let ca = Ca::new("www.a.test");
    let acceptor = acceptor(&ca.issue("www.a.test"));
    for (segments, records) in [(false, true), (true, false), (true, true)] {
        let fragment = Fragment { segments, records, fallback_delay: Some(Duration::from_millis(1)) };
        let settings = ClientSettings { fragment, ..client_of(&ca) };
        let (near, far) = shake(&connector(settings, "www.a.test"), &acceptor).await;
        assert!(near.is_ok());
        assert_eq!(far.unwrap().1.server_name.as_deref(), Some("www.a.test"));
    }
}

#[tokio::test]
async fn a_self_signed_server_makes_a_certificate_for_each_name() {
    let server =
        ServerSettings { identity: Identity::SelfSigned, ..server_with(Ca::new("ca").issue("x").source()) };
    let acceptor = Acceptor::new(&server).unwrap();
    let settings = ClientSettings { trust: Trust::Anyone, ..ClientSettings::default() };
    for name in ["a.test", "b.test", "203.0.113.7"] {
        let (near, far) = shake(&connector(settings.clone(), name), &acceptor).await;
        assert!(near.is_ok() && far.is_ok(), "{name}");
    }
    let strict = connector(client_of(&Ca::new("ca")), "a.test");
    let error = shake(&strict, &acceptor).await.0.unwrap_err().to_string();
    assert_eq!(error, "TLS handshake with a.test: certificate for a.test is self-signed and not trusted");
}

#[tokio::test(start_paused = true)]
async fn a_renewed_certificate_is_used_by_the_next_handshake() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let (before, after) = (old.issue("a.test"), new.issue("a.test"));
    let folder = TempDir::new().unwrap();
    let certificate = folder.write("certificate.pem", &before.chain).unwrap();
    let key = folder.write("key.pem", &before.key).unwrap();
    let source = KeyPairSource { certificate: Source::File(certificate), key: Source::File(key) };
    let acceptor = Acceptor::new(&server_with(source)).unwrap();
    let trusts = async |ca: &Ca| {
        tokio::time::advance(Duration::from_secs(1)).await;
        shake(&connector(client_of(ca), "a.test"), &acceptor).await.0.is_ok()
    };
    assert!(trusts(&old).await);
    // The key first: until the certificate follows they are no pair, and the old pair stays.
    folder.write("key.pem", &after.key).unwrap();
    assert!(trusts(&old).await);
    folder.write("certificate.pem", &after.chain).unwrap();
    assert!(trusts(&new).await && !trusts(&old).await);
    folder.write("certificate.pem", "broken").unwrap();
    assert!(trusts(&new).await);
}

/// An `ECHConfigList` for `public_name` with a made-up key (RFC 9849 section 4).
fn ech_configs(public_name: &str) -> Vec<u8> {
    let mut contents = vec![7, 0, 0x20, 0, 32];
    contents.extend([9; 32]);
    contents.extend([0, 4, 0, 1, 0, 1, 0, public_name.len() as u8]);
    contents.extend(public_name.bytes());
    contents.extend([0, 0]);
    let mut config = vec![0xfe, 0x0d];
    config.extend((contents.len() as u16).to_be_bytes());
    config.extend(contents);
    [&(config.len() as u16).to_be_bytes()[..], &config].concat()
}

#[tokio::test]
async fn ech_hides_the_name_and_a_server_without_it_is_an_error() {
    let ca = Ca::new("ca");
    let settings = ClientSettings { ech: Some(Ech::FromDns { name: None }), ..client_of(&ca) };
    let waiting = connector(settings, "secret.test");
    assert_eq!(waiting.ech_query().as_deref(), Some("secret.test"));
    let acceptor = acceptor(&ca.issue("public.test"));
    let (near, _) = tokio::join!(waiting.connect(Box::new(pair(10).0)), async {});
    assert!(matches!(near.unwrap_err().fault, TlsFault::EchMissing));

    let ready = waiting.with_ech(ech_configs("public.test")).unwrap();
    assert_eq!(ready.ech_query(), None);
    let (near, far) = shake(&ready, &acceptor).await;
    assert!(matches!(near.unwrap_err().fault, TlsFault::EchRejected { retry: None }));
    // A client says so once the server has proved that it speaks for the public name.
    let (mut server, facts) = far.unwrap();
    assert_eq!(facts.server_name.as_deref(), Some("public.test"));
    let error = server.read(&mut [0]).await.unwrap_err();
    assert!(error.to_string().contains("ECH required"), "{error}");
    assert!(waiting.with_ech(vec![1, 2, 3]).is_err());
}
