//! How peers are verified.
//!
//! | setting | authority | name | date | key |
//! |---|---|---|---|---|
//! | store, own authorities | must have signed, or the certificate itself is named | must match | must fit | |
//! | pins | | | | must be one of them |
//! | `insecure` | | | | |
//!
//! In every row the handshake's signature must fit the key of the certificate. Pins stand alone because that is what
//! sing-box does, and so that a self-signed certificate can be pinned; with pins no authority can vouch for another key.
//! Where nothing is asked of the certificate it need not even be well-formed beyond its key.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::authorities::{Authorities, Store, sha256};
use crate::der::Certificate;
use crate::fault::CertificateFault;
use crate::notes;
use crate::watch::Watched;

/// What a client believes of its server.
#[derive(Debug)]
pub(crate) enum Belief {
    Store(Arc<Store>),
    Authorities(Authorities),
    Pins(Vec<Vec<u8>>),
    Anyone,
}

/// Verifies servers.
pub(crate) struct ServerVerifier {
    pub(crate) belief: Belief,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl ServerVerifier {
    fn by_authorities(
        &self,
        authorities: &Authorities,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        if authorities.names(certificate) {
            in_time(certificate, now)?;
        } else {
            let (roots, algorithms) = (&authorities.roots, self.algorithms.all);
            verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)?;
        }
        verify_server_name(&parsed, name)
    }

    /// Whether the key of the certificate made this signature. TLS 1.3 leaves each scheme one algorithm, TLS 1.2 says
    /// less of the key, so all are tried that the scheme may mean.
    pub(crate) fn signature_fits(
        &self,
        certificate: &CertificateDer<'_>,
        scheme: SignatureScheme,
        message: &[u8],
        signature: &[u8],
        is_tls13: bool,
    ) -> bool {
        let count = if is_tls13 { 1 } else { usize::MAX };
        signature_fits(&self.algorithms, message, certificate, scheme, signature, count).unwrap_or(false)
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let by = |authorities: &Authorities| {
            let verified = self.by_authorities(authorities, certificate, intermediates, name, now);
            verified.map_err(|error| explained(error, certificate, Some(name)))
        };
        match &self.belief {
            Belief::Store(store) => match store.authorities() {
                Ok(authorities) => by(&authorities),
                Err(reason) => Err(Error::General(format!("certificate store: {reason}"))),
            },
            Belief::Authorities(authorities) => by(authorities),
            Belief::Pins(pins) => pinned(pins, certificate, &name.to_str(), "certificate_public_key_sha256"),
            Belief::Anyone => Ok(()),
        }
        .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls12_signature(&self.algorithms, message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls13_signature(&self.algorithms, message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// What a server believes of its clients.
#[derive(Debug)]
pub(crate) enum ClientBelief {
    Authorities(Watched<Authorities>),
    Pins(Vec<Vec<u8>>),
    Anyone,
}

/// Verifies clients.
pub(crate) struct ClientVerifier {
    pub(crate) belief: ClientBelief,
    /// Whether they may do without a certificate.
    pub(crate) optional: bool,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        !self.optional
    }

    /// None: a client that has several certificates must choose by itself. Naming the authorities would tell anybody
    /// who asks, before they have shown who they are.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match &self.belief {
            ClientBelief::Authorities(authorities) => {
                let (authorities, _) = authorities.current();
                let verified = if authorities.names(certificate) {
                    in_time(certificate, now)
                } else {
                    signed_for_clients(&authorities, certificate, intermediates, now, &self.algorithms)
                };
                verified.map_err(|error| explained(error, certificate, None))
            }
            ClientBelief::Pins(pins) => {
                pinned(pins, certificate, "the client", "client_certificate_public_key_sha256")
            }
            ClientBelief::Anyone => Ok(()),
        }
        .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls12_signature(&self.algorithms, message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        tls13_signature(&self.algorithms, message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn signed_for_clients(
    authorities: &Authorities,
    certificate: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<(), Error> {
    use webpki::Error as Pki;
    let verify = |parsed: webpki::EndEntityCert<'_>| {
        let usage = webpki::KeyUsage::client_auth();
        let (all, roots) = (algorithms.all, &authorities.roots.roots);
        parsed.verify_for_usage(all, roots, intermediates, now, usage, None, None).map(drop)
    };
    webpki::EndEntityCert::try_from(certificate).and_then(verify).map_err(|error| {
        Error::InvalidCertificate(match error {
            Pki::UnknownIssuer => CertificateError::UnknownIssuer,
            Pki::CertExpired { time, not_after } => CertificateError::ExpiredContext { time, not_after },
            Pki::CertNotValidYet { time, not_before } => {
                CertificateError::NotValidYetContext { time, not_before }
            }
            other => CertificateError::Other(rustls::OtherError(Arc::new(other))),
        })
    })
}

/// Whether a certificate that is trusted as it is may be used now.
fn in_time(certificate: &CertificateDer<'_>, time: UnixTime) -> Result<(), Error> {
    let parsed = Certificate::parse(certificate).ok_or(CertificateError::BadEncoding)?;
    let at = |seconds: i64| {
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds.max(0).unsigned_abs()))
    };
    let (not_before, not_after) = (at(parsed.not_before), at(parsed.not_after));
    if time < not_before {
        return Err(CertificateError::NotValidYetContext { time, not_before }.into());
    }
    if time > not_after {
        return Err(CertificateError::ExpiredContext { time, not_after }.into());
    }
    Ok(())
}

fn pinned(
    pins: &[Vec<u8>],
    certificate: &CertificateDer<'_>,
    name: &str,
    option: &'static str,
) -> Result<(), Error> {
    let parsed = Certificate::parse(certificate).ok_or(CertificateError::BadEncoding)?;
    let sha256 = sha256(parsed.public_key);
    if pins.iter().any(|pin| *pin == sha256) {
        return Ok(());
    }
    notes::fault(CertificateFault::NotPinned { name: name.to_owned(), sha256, option });
    Err(CertificateError::ApplicationVerificationFailure.into())
}

/// Leaves our words for what the library says, which goes on to the peer as an alert.
fn explained(error: Error, certificate: &CertificateDer<'_>, name: Option<&ServerName<'_>>) -> Error {
    if let Error::InvalidCertificate(error) = &error {
        notes::fault(CertificateFault::explain(error, certificate, name));
    }
    error
}

/// The signature is checked with the bare key, so that certificates of version 1 and odd ones pass where they are not
/// looked at.
fn tls13_signature(
    algorithms: &WebPkiSupportedAlgorithms,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let parsed = Certificate::parse(certificate).ok_or(CertificateError::BadEncoding)?;
    let key = SubjectPublicKeyInfoDer::from(parsed.public_key);
    verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
}

/// TLS 1.2 says less of the key, so all algorithms are tried that the scheme may mean.
fn tls12_signature(
    algorithms: &WebPkiSupportedAlgorithms,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let (scheme, signature) = (signed.scheme, signed.signature());
    if signature_fits(algorithms, message, certificate, scheme, signature, usize::MAX)? {
        return Ok(HandshakeSignatureValid::assertion());
    }
    Err(CertificateError::BadSignature.into())
}

/// Whether the bare key of the certificate made the signature by one of the first `count` algorithms of the scheme.
fn signature_fits(
    algorithms: &WebPkiSupportedAlgorithms,
    message: &[u8],
    certificate: &CertificateDer<'_>,
    scheme: SignatureScheme,
    signature: &[u8],
    count: usize,
) -> Result<bool, Error> {
    let parsed = Certificate::parse(certificate).ok_or(CertificateError::BadEncoding)?;
    let key = SubjectPublicKeyInfoDer::from(parsed.public_key);
    let key = webpki::RawPublicKeyEntity::try_from(&key).map_err(|_| CertificateError::BadEncoding)?;
    let candidates = algorithms.mapping.iter().find(|(known, _)| *known == scheme);
    let candidates = candidates.map(|(_, candidates)| *candidates).unwrap_or_default();
    let mut candidates = candidates.iter().take(count);
    Ok(candidates.any(|algorithm| key.verify_signature(*algorithm, message, signature).is_ok()))
}

impl fmt::Debug for ServerVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerVerifier({:?})", self.belief)
    }
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientVerifier({:?}, optional: {})", self.belief, self.optional)
    }
}
