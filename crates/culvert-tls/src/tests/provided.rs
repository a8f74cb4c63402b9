//! Certificates that come from somewhere else, and proofs for authorities.

use super::*;
use crate::error::TlsFault;
use crate::identity::{CertificateSource, OwnCertificate};
use crate::testing::{shake, shake_over};

/// A source with what it is given.
#[derive(Debug, Default)]
pub(crate) struct Given {
    certificate: Option<OwnCertificate>,
    proof: Option<OwnCertificate>,
}

impl CertificateSource for Given {
    fn certificate(&self, name: Option<&str>) -> Result<OwnCertificate, String> {
        let refusal = || format!("no certificate for {}", name.unwrap_or("clients that name nobody"));
        self.certificate.clone().filter(|_| name == Some("a.test")).ok_or_else(refusal)
    }

    fn is_proving(&self) -> bool {
        self.proof.is_some()
    }

    fn proof(&self, name: &str) -> Option<OwnCertificate> {
        self.proof.clone().filter(|_| name == "a.test")
    }
}

fn own(issued: &Issued) -> OwnCertificate {
    OwnCertificate::from_pem(&issued.chain, &issued.key).unwrap()
}

fn server(source: Given) -> Acceptor {
    let parameters = crate::settings::Parameters { alpn: vec!["h2".to_owned()], ..Default::default() };
    Acceptor::new(&ServerSettings {
        parameters,
        identity: Identity::Provided(Arc::new(source)),
        clients: ClientAuthentication::None,
        handshake_timeout: None,
    })
    .unwrap()
}

/// A client that believes in `ca` only and offers `alpn`.
fn asking(ca: &Ca, alpn: &[&str]) -> Connector {
    let mut settings = client_of(ca);
    settings.parameters.alpn = alpn.iter().map(|&name| name.to_owned()).collect();
    connector(settings, "a.test")
}

#[tokio::test]
async fn what_is_not_there_is_said_with_its_reason() {
    let ca = Ca::new("ca");
    let acceptor = server(Given { certificate: Some(own(&ca.issue("a.test"))), proof: None });
    let (client, served) = shake(&asking(&ca, &[]), &acceptor).await;
    assert!(client.is_ok() && served.is_ok());
    let (client, served) = shake(&connector(client_of(&ca), "b.test"), &acceptor).await;
    assert!(client.is_err());
    assert_eq!(
        served.map(drop).unwrap_err().to_string(),
        "TLS handshake of a client that asked for b.test: no certificate for b.test"
    );
}

#[tokio::test]
async fn an_authority_gets_its_proof_and_everybody_else_the_certificate() {
    let (ours, theirs) = (Ca::new("ours"), Ca::new("theirs"));
    let (certificate, proof) = (own(&ours.issue("a.test")), own(&theirs.issue("a.test")));
    let acceptor = server(Given { certificate: Some(certificate.clone()), proof: Some(proof) });
    let (client, served) = shake(&asking(&theirs, &["acme-tls/1"]), &acceptor).await;
    assert_eq!(client.map(|(_, facts)| facts.alpn).unwrap().as_deref(), Some("acme-tls/1"));
    assert!(matches!(served.map(drop).unwrap_err().fault, TlsFault::Proved));
    for alpn in [&["h2", "acme-tls/1"][..], &["h2"], &[]] {
        let (client, served) = shake(&asking(&ours, alpn), &acceptor).await;
        assert!(client.is_ok() && served.is_ok(), "{alpn:?}");
    }
    // Without an open question there is no proof.
    let acceptor = server(Given { certificate: Some(certificate), proof: None });
    let (client, _) = shake(&asking(&theirs, &["acme-tls/1"]), &acceptor).await;
    assert!(client.is_err());
}

#[tokio::test]
async fn a_hello_in_pieces_is_waited_for() {
    let theirs = Ca::new("theirs");
    let acceptor = server(Given { certificate: None, proof: Some(own(&theirs.issue("a.test"))) });
    let (near, far) = tokio::io::duplex(64);
    let (client, served) =
        shake_over(&asking(&theirs, &["acme-tls/1"]), &acceptor, Box::new(near), Box::new(far)).await;
    let client = client.map(drop);
    let served = served.map(drop);
    assert!(client.is_ok(), "{client:?} {served:?}");
    assert!(matches!(served.unwrap_err().fault, TlsFault::Proved));
}

#[tokio::test]
async fn what_is_no_tls_is_said_to_be_none_while_proving() {
    let acceptor = server(Given { certificate: None, proof: Some(own(&Ca::new("x").issue("a.test"))) });
    let (mut near, far) = tokio::io::duplex(1 << 10);
    tokio::io::AsyncWriteExt::write_all(&mut near, b"GET / HTTP/1.1\r\n").await.unwrap();
    let fault = acceptor.accept(Box::new(far)).await.map(drop).unwrap_err().fault;
    assert!(matches!(fault, TlsFault::NotTls(_)), "{fault:?}");
}
