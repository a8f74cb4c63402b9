//! TLS 1.2 behind the server's hello: ECDHE with an AEAD.
//!
//! ```text
//! Certificate | [CertificateStatus] | ServerKeyExchange | [CertificateRequest] | ServerHelloDone
//!       ours: [Certificate] | ClientKeyExchange | [CertificateVerify] | change | Finished
//! [NewSessionTicket] | change | Finished
//! ```

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::tls_prf::{self, P_SHA256, P_SHA384};
use culvert_wire::Reader;
use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use super::messages::{self, ServerHello};
use super::{Done, Flow, Refusal, Verdict, alert};
use crate::browser::{
    ClientHello, EXTENDED_MASTER_SECRET, NEXT_PROTOCOL, PROTOCOLS, RECORD_SIZE_LIMIT, RENEGOTIATION_INFO,
    SERVER_NAME, SESSION_TICKET, STATUS_REQUEST, Shares,
};
use crate::engine::Facts;
use crate::record::{Cipher, Opener, Sealer, Secret};
use crate::schedule::Transcript;
use crate::settings::Version;

const NEW_SESSION_TICKET: u8 = 4;
const CERTIFICATE: u8 = 11;
const SERVER_KEY_EXCHANGE: u8 = 12;
const CERTIFICATE_REQUEST: u8 = 13;
const SERVER_HELLO_DONE: u8 = 14;
const CERTIFICATE_VERIFY: u8 = 15;
const CLIENT_KEY_EXCHANGE: u8 = 16;
const FINISHED: u8 = 20;
const CERTIFICATE_STATUS: u8 = 22;

pub(super) struct Handshake {
    suite: Suite,
    randoms: [u8; 64],
    extended: bool,
    protocol: Option<Vec<u8>>,
    limit: usize,
    /// Every message so far, which a signature of ours covers.
    messages: Vec<u8>,
    transcript: Transcript,
    expected: Expected,
    server_hello: Vec<u8>,
    chain: Vec<CertificateDer<'static>>,
    verdict: Verdict,
    /// Our key and the secret that it makes with the server's.
    exchange: Option<(Vec<u8>, Zeroizing<Vec<u8>>)>,
    /// Schemes of a certificate that the server wants.
    request: Option<Vec<u16>>,
    master: Zeroizing<Vec<u8>>,
    opener: Option<Opener>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Expected {
    Certificate,
    /// A status may come in front of it.
    Key,
    Done,
    Change,
    Finished,
}

/// What a suite of TLS 1.2 means.
#[derive(Clone, Copy)]
struct Suite {
    number: u16,
    cipher: Cipher,
}

impl Suite {
    fn known(number: u16) -> Option<Self> {
        let cipher = match number {
            0xc02b | 0xc02f => Cipher::Aes128Gcm,
            0xc02c | 0xc030 => Cipher::Aes256Gcm,
            0xcca8 | 0xcca9 => Cipher::ChaCha20Poly1305,
            _ => return None,
        };
        Some(Self { number, cipher })
    }

    fn name(self) -> String {
        crate::provider::iana_name(rustls::CipherSuite::from(self.number))
    }

    fn prf(self, secret: &[u8], label: &str, seed: &[u8], len: usize) -> Result<Zeroizing<Vec<u8>>, Refusal> {
        let algorithm = match self.cipher {
            Cipher::Aes256Gcm => &P_SHA384,
            Cipher::Aes128Gcm | Cipher::ChaCha20Poly1305 => &P_SHA256,
        };
        let derived = tls_prf::Secret::new(algorithm, secret)
            .and_then(|secret| secret.derive(label.as_bytes(), seed, len))
            .map_err(|_| Refusal::internal())?;
        Ok(Zeroizing::new(derived.as_ref().to_vec()))
    }

    /// What opens and what seals.
    fn halves(self, block: &[u8]) -> Result<(Opener, Sealer), Refusal> {
        let (key_len, iv_len) = self.lengths();
        let (client_key, rest) = block.split_at(key_len);
        let (server_key, rest) = rest.split_at(key_len);
        let (client_iv, server_iv) = rest.split_at(iv_len);
        let secret = |key: &[u8], fixed: &[u8]| -> Result<Secret, Refusal> {
            let mut iv = [0; 12];
            // Where a part of the nonce is sent along, it begins anywhere.
            SystemRandom::new().fill(&mut iv).map_err(|_| Refusal::internal())?;
            iv[..iv_len].copy_from_slice(fixed);
            Ok(Secret::Tls12 { cipher: self.cipher, key: Zeroizing::new(key.to_vec()), iv })
        };
        let opener = Opener::new(secret(server_key, server_iv)?, 0).ok_or_else(Refusal::internal)?;
        let sealer = Sealer::new(secret(client_key, client_iv)?, 0).ok_or_else(Refusal::internal)?;
        Ok((opener, sealer))
    }

    /// Bytes of a key, and of the part of a nonce that is not sent.
    fn lengths(self) -> (usize, usize) {
        match self.cipher {
            Cipher::Aes128Gcm => (16, 4),
            Cipher::Aes256Gcm => (32, 4),
            Cipher::ChaCha20Poly1305 => (32, 12),
        }
    }
}

impl Handshake {
    pub(super) fn start(
        hello: &ClientHello,
        message: &[u8],
        answer: &ServerHello<'_>,
    ) -> Result<Self, Refusal> {
        if !hello.offers_version(0x0303) {
            return Err(Refusal::new(alert::PROTOCOL_VERSION, "the server speaks no TLS 1.3"));
        }
        // Somebody on the way may want it to look so; the server says in secret what it would have spoken.
        if hello.offers_version(0x0304)
            && matches!(answer.random[24..], [b'D', b'O', b'W', b'N', b'G', b'R', b'D', 0..=1])
        {
            return Err(Refusal::illegal("somebody on the way has lowered the version"));
        }
        if !hello.offers_suite(answer.suite) {
            return Err(Refusal::illegal("the server chose a suite that was not offered"));
        }
        let suite = Suite::known(answer.suite).ok_or_else(|| {
            let reason = format!("the server chose suite {:#06x}, without ECDHE or an AEAD", answer.suite);
            Refusal::new(alert::HANDSHAKE_FAILURE, reason)
        })?;
        let mut randoms = [0; 64];
        randoms[..32].copy_from_slice(hello.random());
        randoms[32..].copy_from_slice(&answer.random);
        let mut messages = hello.message().to_vec();
        messages.extend(message);
        let mut transcript = Transcript::new(suite.cipher);
        transcript.add(&messages);
        let mut handshake = Self {
            suite,
            randoms,
            extended: false,
            protocol: None,
            limit: crate::record::MAX_DATA,
            messages,
            transcript,
            expected: Expected::Certificate,
            server_hello: message.to_vec(),
            chain: Vec::new(),
            verdict: Verdict::Accepted,
            exchange: None,
            request: None,
            master: Zeroizing::default(),
            opener: None,
        };
        handshake.extensions(hello, answer)?;
        Ok(handshake)
    }

    fn extensions(&mut self, hello: &ClientHello, answer: &ServerHello<'_>) -> Result<(), Refusal> {
        for (kind, body) in &answer.extensions {
            if !hello.has_extension(*kind) {
                return Err(Refusal::new(
                    alert::UNSUPPORTED_EXTENSION,
                    "an extension that was not asked for",
                ));
            }
            match *kind {
                EXTENDED_MASTER_SECRET => self.extended = true,
                RENEGOTIATION_INFO if **body != [0] => {
                    return Err(Refusal::new(
                        alert::HANDSHAKE_FAILURE,
                        "the server answers an older handshake",
                    ));
                }
                PROTOCOLS => {
                    let protocol = messages::protocol(body)?;
                    if !hello.offers_protocol(protocol) {
                        return Err(Refusal::illegal("an application protocol that was not offered"));
                    }
                    self.protocol = Some(protocol.to_vec());
                }
                RECORD_SIZE_LIMIT => {
                    let limit = Reader::new(body).u16()?;
                    if limit < 64 {
                        return Err(Refusal::illegal("a limit of records that is too low"));
                    }
                    self.limit = limit.into();
                }
                NEXT_PROTOCOL => {
                    let reason =
                        "the server wants a protocol chosen as before ALPN, which is not spoken here";
                    return Err(Refusal::new(alert::HANDSHAKE_FAILURE, reason));
                }
                SERVER_NAME | STATUS_REQUEST | SESSION_TICKET => {}
                // Formats of points, signed timestamps: nothing follows from them.
                _ => {}
            }
        }
        Ok(())
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
            (Expected::Certificate, CERTIFICATE) => {
                self.chain = messages::certificates12(body)?;
                self.verdict = flow.judge.certificates(&self.chain, [hello.message(), &self.server_hello])?;
                self.expected = Expected::Key;
            }
            (Expected::Key, CERTIFICATE_STATUS) if hello.has_extension(STATUS_REQUEST) => {}
            (Expected::Key, SERVER_KEY_EXCHANGE) => {
                self.key_exchange(hello, flow, body)?;
                self.expected = Expected::Done;
            }
            (Expected::Done, CERTIFICATE_REQUEST) if self.request.is_none() => {
                let mut r = Reader::new(body);
                messages::short(&mut r)?;
                self.request = Some(messages::numbers(messages::long(&mut r)?)?);
                messages::long(&mut r)?;
                messages::end(&r)?;
            }
            (Expected::Done, SERVER_HELLO_DONE) => {
                messages::end(&Reader::new(body))?;
                if !flow.partial.is_empty() {
                    return Err(Refusal::new(alert::UNEXPECTED_MESSAGE, "bytes behind the server's flight"));
                }
                self.add(message);
                self.answer(flow)?;
                self.expected = Expected::Change;
                return Ok(None);
            }
            (Expected::Change, NEW_SESSION_TICKET) if hello.has_extension(SESSION_TICKET) => {}
            (Expected::Finished, FINISHED) => {
                let expected = self.finished("server finished")?;
                if verify_slices_are_equal(&expected, body).is_err() {
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
                return self.done(flow).map(Some);
            }
            _ => return Err(Refusal::unexpected(kind)),
        }
        self.add(message);
        Ok(None)
    }

    /// What the server sends from here on is sealed.
    pub(super) fn change_keys(&mut self, flow: &mut Flow) -> Result<(), Refusal> {
        match self.opener.take() {
            Some(opener) if self.expected == Expected::Change => {
                flow.opener = Some(opener);
                self.expected = Expected::Finished;
                Ok(())
            }
            _ => Err(Refusal::new(alert::UNEXPECTED_MESSAGE, "a change of keys at a wrong time")),
        }
    }

    fn add(&mut self, message: &[u8]) {
        self.transcript.add(message);
        if self.expected != Expected::Change {
            self.messages.extend(message);
        }
    }

    fn key_exchange(&mut self, hello: &ClientHello, flow: &Flow, body: &[u8]) -> Result<(), Refusal> {
        const NAMED_CURVE: u8 = 3;
        let mut r = Reader::new(body);
        let kind = r.u8()?;
        let group = r.u16()?;
        let point = messages::short(&mut r)?;
        let parameters = &body[..r.position()];
        let (scheme, signature) = messages::signature(r.rest())?;
        if kind != NAMED_CURVE || !hello.offers_group(group) {
            return Err(Refusal::illegal("the server chose a curve that was not offered"));
        }
        let signed = [&self.randoms, parameters].concat();
        flow.judge.signature(&self.chain[0], scheme, &signed, signature, false)?;
        let shares = Shares::new([group], false).ok_or_else(Refusal::internal)?;
        let failed = || Refusal::illegal("the server's key does not fit ours");
        let secret = shares.agree(group, point).ok_or_else(failed)?;
        let public = shares.public(group).ok_or_else(failed)?;
        self.exchange = Some((public.to_vec(), secret));
        Ok(())
    }

    /// Our flight, with which our keys change.
    fn answer(&mut self, flow: &mut Flow) -> Result<(), Refusal> {
        let request = self.request.take();
        let signs = match &request {
            Some(schemes) => flow.judge.sign(schemes, &[])?.is_some(),
            None => false,
        };
        if request.is_some() {
            let mut list = Vec::new();
            for der in flow.judge.own_chain().iter().filter(|_| signs) {
                list.extend(&(der.len() as u32).to_be_bytes()[1..]);
                list.extend_from_slice(der);
            }
            let body = [&(list.len() as u32).to_be_bytes()[1..], &list].concat();
            self.send(flow, CERTIFICATE, &body)?;
        }
        let (public, shared) = self.exchange.take().ok_or_else(Refusal::internal)?;
        self.send(flow, CLIENT_KEY_EXCHANGE, &[&[public.len() as u8][..], &public].concat())?;
        self.master = match self.extended {
            true => self.suite.prf(&shared, "extended master secret", self.transcript.hash().as_ref(), 48)?,
            false => self.suite.prf(&shared, "master secret", &self.randoms, 48)?,
        };
        if let Some(schemes) = request.filter(|_| signs)
            && let Some((scheme, signature)) = flow.judge.sign(&schemes, &self.messages)?
        {
            let len = (signature.len() as u16).to_be_bytes();
            self.send(flow, CERTIFICATE_VERIFY, &[&scheme.to_be_bytes()[..], &len, &signature].concat())?;
        }
        self.messages = Vec::new();
        flow.change_cipher_spec();
        let (key_len, iv_len) = self.suite.lengths();
        let seed = [&self.randoms[32..], &self.randoms[..32]].concat();
        let block = self.suite.prf(&self.master, "key expansion", &seed, 2 * (key_len + iv_len))?;
        let (opener, sealer) = self.suite.halves(&block)?;
        self.opener = Some(opener);
        flow.sealer = Some(sealer);
        let finished = self.finished("client finished")?;
        self.expected = Expected::Change;
        self.send(flow, FINISHED, &finished)
    }

    fn finished(&self, label: &str) -> Result<Zeroizing<Vec<u8>>, Refusal> {
        self.suite.prf(&self.master, label, self.transcript.hash().as_ref(), 12)
    }

    fn send(&mut self, flow: &mut Flow, kind: u8, body: &[u8]) -> Result<(), Refusal> {
        let mut message = (body.len() as u32).to_be_bytes().to_vec();
        message[0] = kind;
        message.extend(body);
        self.add(&message);
        flow.send(&message)
    }

    fn done(&mut self, flow: &mut Flow) -> Result<Done, Refusal> {
        let opener = flow.opener.take().ok_or_else(Refusal::internal)?;
        let mut sealer = flow.sealer.take().ok_or_else(Refusal::internal)?;
        sealer.limit(self.limit);
        let facts = Facts {
            version: Version::Tls12,
            cipher_suite: self.suite.name(),
            alpn: self.protocol.as_deref().map(|name| String::from_utf8_lossy(name).into_owned()),
            server_name: None,
            resumed: false,
        };
        Ok(Done { opener, sealer, facts, verdict: self.verdict })
    }
}
