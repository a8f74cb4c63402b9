//! Clients with the hello of a browser against servers of the stock library.

use rcgen::KeyPair;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{acceptor, client_of, connector, server_with};
use crate::browser::Fingerprint;
use crate::error::TlsFault;
use crate::fault::CertificateFault;
use crate::settings::{
    ClientAuthentication, ClientSettings, Curve, Parameters, ServerSettings, Source, Trust, Version,
};
use crate::testing::{Ca, pattern, shake, transfer};
use crate::{Acceptor, Connector};

const ALL: [Fingerprint; 17] = [
    Fingerprint::Chrome,
    Fingerprint::Firefox,
    Fingerprint::Safari,
    Fingerprint::Ios,
    Fingerprint::Edge,
    Fingerprint::Android,
    Fingerprint::Qq,
    Fingerprint::Random,
    Fingerprint::Randomized,
    Fingerprint::Chrome120,
    Fingerprint::Chrome131,
    Fingerprint::Chrome133,
    Fingerprint::Firefox120,
    Fingerprint::Firefox148,
    Fingerprint::Safari16,
    Fingerprint::Ios14,
    Fingerprint::Edge85,
];

fn imitating(ca: &Ca, fingerprint: Fingerprint) -> ClientSettings {
    ClientSettings { fingerprint: Some(fingerprint), ..client_of(ca) }
}

/// Shakes hands and sends data both ways, with a key update by the record layer's own means left out.
async fn works(connector: &Connector, acceptor: &Acceptor) -> (crate::Facts, crate::Facts) {
    let (near, far) = shake(connector, acceptor).await;
    let ((mut near, client), (mut far, server)) = (near.unwrap(), far.unwrap());
    let data = pattern(100_000);
    transfer(&mut near, &mut far, &data).await;
    transfer(&mut far, &mut near, &data).await;
    near.shutdown().await.unwrap();
    assert_eq!(far.read(&mut [0; 16]).await.unwrap(), 0);
    assert_eq!(client.cipher_suite, server.cipher_suite);
    assert_eq!(client.version, server.version);
    assert_eq!(client.alpn, server.alpn);
    (client, server)
}

#[tokio::test]
async fn every_browser_reaches_a_server() {
    let ca = Ca::new("ca");
    let settings = server_with(ca.issue("a.test").source());
    let parameters = Parameters { alpn: vec!["h2".into()], ..Parameters::default() };
    let acceptor = Acceptor::new(&ServerSettings { parameters, ..settings }).unwrap();
    for fingerprint in ALL {
        let (facts, server) = works(&connector(imitating(&ca, fingerprint), "a.test"), &acceptor).await;
        let version = if fingerprint.has_tls13() { Version::Tls13 } else { Version::Tls12 };
        assert_eq!(facts.version, version, "{fingerprint:?}");
        assert_eq!(server.server_name.as_deref(), Some("a.test"));
        if fingerprint != Fingerprint::Android && fingerprint != Fingerprint::Randomized {
            assert_eq!(facts.alpn.as_deref(), Some("h2"), "{fingerprint:?}");
        }
    }
}

#[tokio::test]
async fn a_server_may_ask_for_another_key_or_an_older_version() {
    let ca = Ca::new("ca");
    let identity = ca.issue("a.test");
    for curve in [Curve::X25519MlKem768, Curve::X25519, Curve::P256, Curve::P384, Curve::P521] {
        for version in [Version::Tls12, Version::Tls13] {
            let parameters =
                Parameters { curves: vec![curve], max_version: version, ..Parameters::default() };
            let acceptor = ServerSettings { parameters, ..server_with(identity.source()) };
            let acceptor = Acceptor::new(&acceptor).unwrap();
            for fingerprint in ALL {
                let profile = imitating(&ca, fingerprint);
                let offered = crate::ClientHello::new(fingerprint, None, &[]).unwrap();
                let group = match curve {
                    Curve::X25519MlKem768 => 0x11ec,
                    Curve::X25519 => 0x1d,
                    Curve::P256 => 0x17,
                    Curve::P384 => 0x18,
                    Curve::P521 => 0x19,
                };
                let hybrid_in_12 =
                    curve == Curve::X25519MlKem768 && (version == Version::Tls12 || !fingerprint.has_tls13());
                if offered.offers_group(group) && !hybrid_in_12 {
                    works(&connector(profile, "a.test"), &acceptor).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn every_suite_is_spoken_in_both_versions() {
    let ca = Ca::new("ca");
    let rsa = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256);
    let keys = [Some(KeyPair::generate().unwrap()), rsa.ok()];
    for key in keys.into_iter().flatten() {
        let kind = if key.algorithm() == &rcgen::PKCS_RSA_SHA256 { "RSA" } else { "ECDSA" };
        let identity = ca.issue_with("a.test", &key, |_| {});
        for cipher in ["AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256"] {
            let suite = format!("TLS_ECDHE_{kind}_WITH_{cipher}");
            let parameters = Parameters {
                cipher_suites: vec![suite.clone()],
                max_version: Version::Tls12,
                ..Parameters::default()
            };
            let acceptor = ServerSettings { parameters, ..server_with(identity.source()) };
            let acceptor = Acceptor::new(&acceptor).unwrap();
            for fingerprint in [Fingerprint::Chrome, Fingerprint::Firefox, Fingerprint::Android] {
                let (facts, _) = works(&connector(imitating(&ca, fingerprint), "a.test"), &acceptor).await;
                assert_eq!(facts.cipher_suite, suite);
            }
        }
    }
}

#[tokio::test]
async fn certificates_are_verified_as_ever() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let identity = ca.issue("a.test");
    let parsed = crate::der::Certificate::parse(&identity.der).unwrap();
    let pin = crate::authorities::sha256(parsed.public_key).to_vec();
    for version in [Version::Tls12, Version::Tls13] {
        let parameters = Parameters { max_version: version, ..Parameters::default() };
        let acceptor = ServerSettings { parameters, ..server_with(identity.source()) };
        let acceptor = Acceptor::new(&acceptor).unwrap();
        let outcome = async |trust: Trust, name: &str| {
            let settings = ClientSettings {
                fingerprint: Some(Fingerprint::Chrome),
                trust,
                server_name: Some(name.to_owned()),
                ..ClientSettings::default()
            };
            let (near, far) = shake(&connector(settings, "a.test"), &acceptor).await;
            let near = near.map(drop).map_err(|error| error.fault);
            // The server is told.
            assert!(near.is_ok() || far.is_err());
            near
        };
        let of = |ca: &Ca| Trust::Authorities(Source::Inline(ca.pem()));
        assert!(outcome(of(&ca), "a.test").await.is_ok());
        assert!(outcome(Trust::Anyone, "b.test").await.is_ok());
        assert!(outcome(Trust::Pins(vec![pin.clone()]), "b.test").await.is_ok());
        let fault = outcome(Trust::Pins(vec![vec![1; 32]]), "a.test").await.unwrap_err();
        assert!(matches!(fault, TlsFault::Certificate(CertificateFault::NotPinned { .. })), "{fault}");
        let fault = outcome(of(&other), "a.test").await.unwrap_err();
        assert!(matches!(fault, TlsFault::Certificate(CertificateFault::UnknownIssuer { .. })), "{fault}");
        let fault = outcome(of(&ca), "b.test").await.unwrap_err();
        assert!(matches!(fault, TlsFault::Certificate(CertificateFault::WrongName { .. })), "{fault}");
    }
}

#[tokio::test]
async fn a_client_shows_its_certificate_where_it_is_asked_for() {
    let ca = Ca::new("ca");
    for version in [Version::Tls12, Version::Tls13] {
        let acceptor = Acceptor::new(&ServerSettings {
            parameters: Parameters { max_version: version, ..Parameters::default() },
            clients: ClientAuthentication::Authorities {
                optional: false,
                authorities: vec![Source::Inline(ca.pem())],
            },
            ..server_with(ca.issue("a.test").source())
        })
        .unwrap();
        let with = ClientSettings {
            certificate: Some(ca.issue("client").source()),
            ..imitating(&ca, Fingerprint::Chrome)
        };
        works(&connector(with, "a.test"), &acceptor).await;
        let (near, far) = shake(&connector(imitating(&ca, Fingerprint::Chrome), "a.test"), &acceptor).await;
        assert!(far.is_err());
        // In TLS 1.3 a client is through before the server has seen its certificate.
        assert_eq!(near.is_ok(), version == Version::Tls13);
    }
}

#[tokio::test]
async fn a_sign_in_the_session_id_comes_through() {
    let ca = Ca::new("ca");
    let acceptor = acceptor(&ca.issue("a.test"));
    let connector = connector(client_of(&ca), "a.test");
    let (near, far) = culvert_testkit::conn::pair(64 << 10);
    let connect = async {
        let change = |hello: &mut crate::ClientHello| {
            hello.set_session_id([7; 32]);
            assert_eq!(hello.message()[crate::ClientHello::session_id_at()], [7; 32]);
            Ok(())
        };
        let (mut conn, _) = connector.connect_changed(Box::new(near), change).await.unwrap();
        conn.flush().await.unwrap();
        conn
    };
    let (mut near, far) = tokio::join!(connect, acceptor.accept(Box::new(far)));
    transfer(&mut near, &mut far.unwrap().0, b"hello").await;
}
