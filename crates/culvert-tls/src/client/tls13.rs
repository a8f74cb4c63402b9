//! TLS 1.3 behind the server's hello.
//!
//! ```text
//! EncryptedExtensions | [CertificateRequest] | Certificate or CompressedCertificate | CertificateVerify | Finished
//!                  ours: [EncryptedExtensions (ALPS)] | [Certificate | [CertificateVerify]] | Finished
//! ```

use culvert_wire::Reader;
use rustls::pki_types::{CertificateDer, ServerName};

use super::messages::{self, ServerHello};
use super::{Done, Flow, Refusal, Retried, Verdict, alert, compressed, tls13_cipher};
use crate::browser::{
    ALPS, ALPS_OLD, COMPRESS_CERTIFICATE, ClientHello, ECH, InnerHello, KEY_SHARE, PROTOCOLS,
    RECORD_SIZE_LIMIT, SERVER_NAME, SUPPORTED_GROUPS, SUPPORTED_VERSIONS,
};
use crate::engine::Facts;
use crate::error::TlsFault;
use crate::record::{Cipher, MAX_DATA, Opener, Sealer, Secret, TrafficSecret};
use crate::schedule::{Schedule, Transcript, finished, is_finished, signed_content};
use crate::settings::Version;

const ENCRYPTED_EXTENSIONS: u8 = 8;
const CERTIFICATE: u8 = 11;
const CERTIFICATE_REQUEST: u8 = 13;
const CERTIFICATE_VERIFY: u8 = 15;
const FINISHED: u8 = 20;
const COMPRESSED_CERTIFICATE: u8 = 25;

pub(super) struct Handshake {
    suite: u16,
    schedule: Schedule,
    client: TrafficSecret,
    server: TrafficSecret,
    transcript: Transcript,
    expected: Expected,
    /// The server's hello, which its proof of identity may cover.
    server_hello: Vec<u8>,
    chain: Vec<CertificateDer<'static>>,
    verdict: Verdict,
    protocol: Option<Vec<u8>>,
    /// The number under which the server wants our settings for its protocol.
    settings: Option<u16>,
    /// Context and schemes of a certificate that the server wants.
    request: Option<(Vec<u8>, Vec<u16>)>,
    limit: usize,
    /// The server has not opened the hello that is encrypted in ours.
    rejected: bool,
    /// Configurations with which it would have.
    better: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Expected {
    Extensions,
    Certificate,
    Signature,
    Finished,
}

/// Sees that what the server chose was offered.
pub(super) fn check_hello(hello: &ClientHello, answer: &ServerHello<'_>) -> Result<Cipher, Refusal> {
    if answer.selected_version() != Some(&[3, 4]) || !hello.offers_version(0x0304) {
        return Err(Refusal::illegal("the server chose a version that was not offered"));
    }
    if answer.session_id != hello.session_id() {
        return Err(Refusal::illegal("the server answers another hello"));
    }
    tls13_cipher(answer.suite)
        .filter(|_| hello.offers_suite(answer.suite))
        .ok_or_else(|| Refusal::illegal("the server chose a suite that was not offered"))
}

impl Handshake {
    pub(super) fn start(
        hello: &ClientHello,
        flow: &mut Flow,
        message: &[u8],
        answer: &ServerHello<'_>,
        retried: Option<Retried>,
    ) -> Result<Self, Refusal> {
        let cipher = check_hello(hello, answer)?;
        if answer.extensions.iter().any(|(kind, _)| !matches!(*kind, SUPPORTED_VERSIONS | KEY_SHARE)) {
            return Err(Refusal::new(
                alert::UNSUPPORTED_EXTENSION,
                "an extension that cannot come in the open",
            ));
        }
        let (group, share) = answer.key_share()?;
        let accepted = hello.inner().filter(|inner| inner.is_accepted(cipher, message));
        let rejected = hello.inner().filter(|_| accepted.is_none());
        if let Some(inner) = rejected {
            // Only the site of that name may say that there are other configurations.
            let name = ServerName::try_from(inner.public_name.clone());
            flow.judge.name = name.map_err(|_| Refusal::illegal("a public name that is none"))?;
        }
        let mut transcript = match retried {
            None => {
                let mut transcript = Transcript::new(cipher);
                transcript.add(accepted.map_or(hello.message(), InnerHello::message));
                transcript
            }
            Some(retried) => {
                let same =
                    retried.suite == answer.suite && retried.group.is_none_or(|wanted| wanted == group);
                if !same {
                    return Err(Refusal::illegal("the server changed its choice between two hellos"));
                }
                retried.transcript
            }
        };
        transcript.add(message);
        let shared = hello
            .shares()
            .agree(group, share)
            .ok_or_else(|| Refusal::illegal("the server's key does not fit ours"))?;
        let schedule = Schedule::handshake(cipher, &shared);
        let hash = transcript.hash();
        let client = schedule.traffic("c hs traffic", hash.as_ref());
        let server = schedule.traffic("s hs traffic", hash.as_ref());
        flow.opener = Some(opener(&server)?);
        flow.change_cipher_spec();
        flow.sealer = Some(sealer(&client)?);
        Ok(Self {
            suite: answer.suite,
            schedule,
            client,
            server,
            transcript,
            expected: Expected::Extensions,
            server_hello: message.to_vec(),
            chain: Vec::new(),
            verdict: Verdict::Accepted,
            protocol: None,
            settings: None,
            request: None,
            limit: MAX_DATA,
            rejected: rejected.is_some(),
            better: None,
        })
    }

    pub(super) fn message(
        &mut self,
        hello: &ClientHello,
        flow: &mut Flow,
        kind: u8,
        message: &[u8],
    ) -> Result<Option<Done>, Refusal> {
        let body = &message[4..];
        match (self.expected, kind) {
            (Expected::Extensions, ENCRYPTED_EXTENSIONS) => {
                self.extensions(hello, body)?;
                self.expected = Expected::Certificate;
            }
            (Expected::Certificate, CERTIFICATE_REQUEST) if self.request.is_none() => {
                let request = messages::certificate_request(body)?;
                if !request.0.is_empty() {
                    return Err(Refusal::illegal("a request for a certificate at a wrong time"));
                }
                self.request = Some(request);
            }
            (Expected::Certificate, CERTIFICATE) => self.certificates(hello, flow, body)?,
            (Expected::Certificate, COMPRESSED_CERTIFICATE) if hello.has_extension(COMPRESS_CERTIFICATE) => {
                let body = compressed::unpack(hello, body)?;
                self.certificates(hello, flow, &body)?;
            }
            (Expected::Signature, CERTIFICATE_VERIFY) => {
                let (scheme, signature) = messages::signature(body)?;
                let content = signed_content(true, self.transcript.hash().as_ref());
                flow.judge.signature(&self.chain[0], scheme, &content, signature, true)?;
                self.expected = Expected::Finished;
            }
            (Expected::Finished, FINISHED) => {
                if !is_finished(&self.server, self.transcript.hash().as_ref(), body) {
                    return Err(Refusal::new(
                        alert::DECRYPT_ERROR,
                        "the server saw other messages than we did",
                    ));
                }
                if !flow.partial.is_empty() {
                    return Err(Refusal::new(
                        alert::UNEXPECTED_MESSAGE,
                        "bytes behind the end of the handshake",
                    ));
                }
                self.transcript.add(message);
                return self.finish(flow).map(Some);
            }
            _ => return Err(Refusal::unexpected(kind)),
        }
        self.transcript.add(message);
        Ok(None)
    }

    fn extensions(&mut self, hello: &ClientHello, body: &[u8]) -> Result<(), Refusal> {
        let mut r = Reader::new(body);
        let extensions = messages::extensions(&mut r)?;
        messages::end(&r)?;
        for (kind, body) in extensions {
            if !hello.has_extension(kind) {
                return Err(Refusal::new(
                    alert::UNSUPPORTED_EXTENSION,
                    "an extension that was not asked for",
                ));
            }
            match kind {
                PROTOCOLS => {
                    let protocol = messages::protocol(body)?;
                    if !hello.offers_protocol(protocol) {
                        return Err(Refusal::illegal("an application protocol that was not offered"));
                    }
                    self.protocol = Some(protocol.to_vec());
                }
                ALPS | ALPS_OLD => self.settings = Some(kind),
                RECORD_SIZE_LIMIT => self.limit = record_limit(body)?,
                // Mostly what our hello shows of ECH is for show only.
                ECH if self.rejected => self.better = Some(body.to_vec()),
                SERVER_NAME | SUPPORTED_GROUPS | ECH => {}
                _ => return Err(Refusal::illegal("an extension at a wrong place")),
            }
        }
        if self.settings.is_some() && self.protocol.is_none() {
            return Err(Refusal::illegal("settings for no protocol"));
        }
        Ok(())
    }

    fn certificates(&mut self, hello: &ClientHello, flow: &Flow, body: &[u8]) -> Result<(), Refusal> {
        self.chain = messages::certificates(body)?;
        self.verdict = flow.judge.certificates(&self.chain, [hello.message(), &self.server_hello])?;
        self.expected = Expected::Signature;
        Ok(())
    }

    /// Sends our part and goes over to the keys of the stream.
    fn finish(&mut self, flow: &mut Flow) -> Result<Done, Refusal> {
        if self.rejected {
            let fault = TlsFault::EchRejected { retry: self.better.take() };
            return Err(Refusal { alert: Some(alert::ECH_REQUIRED), fault });
        }
        let hash = self.transcript.hash();
        if let Some(kind) = self.settings {
            let [high, low] = kind.to_be_bytes();
            self.send(flow, ENCRYPTED_EXTENSIONS, &[0, 4, high, low, 0, 0])?;
        }
        if let Some((context, schemes)) = self.request.take() {
            self.certify(flow, &context, &schemes)?;
        }
        let tag = finished(&self.client, self.transcript.hash().as_ref());
        self.send(flow, FINISHED, tag.as_ref())?;
        let empty = Schedule::handshake(self.client.cipher(), &[]);
        let master = std::mem::replace(&mut self.schedule, empty).master();
        let opener = opener(&master.traffic("s ap traffic", hash.as_ref()))?;
        let mut sealer = sealer(&master.traffic("c ap traffic", hash.as_ref()))?;
        sealer.limit(self.limit);
        let facts = Facts {
            version: Version::Tls13,
            cipher_suite: crate::provider::iana_name(rustls::CipherSuite::from(self.suite)),
            alpn: self.protocol.as_deref().map(|name| String::from_utf8_lossy(name).into_owned()),
            server_name: None,
            resumed: false,
        };
        Ok(Done { opener, sealer, facts, verdict: self.verdict })
    }

    fn certify(&mut self, flow: &mut Flow, context: &[u8], schemes: &[u16]) -> Result<(), Refusal> {
        // Whether we can sign is known only by trying, and the certificate is sent before the signature.
        let signs = flow.judge.sign(schemes, &[])?.is_some();
        let mut list = Vec::new();
        for der in flow.judge.own_chain().iter().filter(|_| signs) {
            list.extend(&(der.len() as u32).to_be_bytes()[1..]);
            list.extend_from_slice(der);
            list.extend([0, 0]);
        }
        let mut body = vec![context.len() as u8];
        body.extend(context);
        body.extend(&(list.len() as u32).to_be_bytes()[1..]);
        body.extend(list);
        self.send(flow, CERTIFICATE, &body)?;
        if signs {
            let content = signed_content(false, self.transcript.hash().as_ref());
            if let Some((scheme, signature)) = flow.judge.sign(schemes, &content)? {
                let mut body = scheme.to_be_bytes().to_vec();
                body.extend((signature.len() as u16).to_be_bytes());
                body.extend(signature);
                self.send(flow, CERTIFICATE_VERIFY, &body)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, flow: &mut Flow, kind: u8, body: &[u8]) -> Result<(), Refusal> {
        let mut message = (body.len() as u32).to_be_bytes().to_vec();
        message[0] = kind;
        message.extend(body);
        self.transcript.add(&message);
        flow.send(&message)
    }
}

/// How many bytes of data a record may have: the limit counts the byte that tells its kind (RFC 8449 section 4).
fn record_limit(body: &[u8]) -> Result<usize, Refusal> {
    const LEAST: u16 = 64;
    let mut r = Reader::new(body);
    let limit = r.u16()?;
    messages::end(&r)?;
    if limit < LEAST {
        return Err(Refusal::illegal("a limit of records that is too low"));
    }
    Ok(usize::from(limit - 1).min(MAX_DATA))
}

fn opener(secret: &TrafficSecret) -> Result<Opener, Refusal> {
    Opener::new(Secret::Tls13(secret.clone()), 0).ok_or_else(Refusal::internal)
}

fn sealer(secret: &TrafficSecret) -> Result<Sealer, Refusal> {
    Sealer::new(Secret::Tls13(secret.clone()), 0).ok_or_else(Refusal::internal)
}
