//! A client's handshake of our own, for hellos that the TLS library would not send. Sans-I/O.
//!
//! ```text
//! ClientHello ─▶ [HelloRetryRequest ─▶ ClientHello] ─▶ ServerHello ─┬─▶ tls13 ─▶ Done
//!                                                                  └─▶ tls12 ─▶ Done
//! ```
//!
//! A [`Client`] is given whole records and leaves bytes to be sent in [`Client::take_outgoing`]; `drive` connects it to a
//! stream. It does what a browser's first message promises: groups and suites as offered, compressed certificates,
//! application settings (ALPS), limits of records, TLS 1.2 with ECDHE and AEADs. Once [`Done`], the record layer goes on
//! as after the library's handshake.
//!
//! Whom to trust is asked of a [`Judge`], which uses the same verifier as the library does.
//!
//! Sources: RFC 8446, RFC 5246, RFC 7627 (extended master secret), RFC 8879, RFC 8449 (record size limit),
//! draft-vvv-tls-alps. Left out on purpose: resumption and 0-RTT, delegated credentials (refused), suites without AEAD or
//! ECDHE, which browsers offer and hardly a server takes: a server that takes one is refused by name.

mod compressed;
mod drive;
mod judge;
mod messages;
#[cfg(test)]
mod tests;
mod tls12;
mod tls13;

use std::fmt;

use culvert_wire::DecodeError;

use crate::browser::ClientHello;
use crate::engine::Facts;
use crate::error::TlsFault;
use crate::record::{Cipher, HEADER, MAX_DATA, Opener, RecordError, Sealer};
use crate::schedule::Transcript;

pub(crate) use drive::connect;
pub(crate) use judge::{Judge, Verdict};
use messages::{HelloRetry, ServerHello};

/// The longest handshake message of a server: a long chain of certificates.
const MAX_MESSAGE: usize = 128 << 10;
/// `ChangeCipherSpec` records that mean nothing, as many as Go lets pass.
const MAX_CHANGES: u8 = 32;

const SERVER_HELLO: u8 = 2;
/// Only for TLS 1.2, where a server may ask at any time whether we would begin anew.
const HELLO_REQUEST: u8 = 0;

/// Alerts of ours (RFC 8446 section 6.2).
pub(crate) mod alert {
    pub(crate) const UNEXPECTED_MESSAGE: u8 = 10;
    pub(crate) const HANDSHAKE_FAILURE: u8 = 40;
    pub(crate) const BAD_CERTIFICATE: u8 = 42;
    pub(crate) const ILLEGAL_PARAMETER: u8 = 47;
    pub(crate) const DECODE_ERROR: u8 = 50;
    pub(crate) const DECRYPT_ERROR: u8 = 51;
    pub(crate) const PROTOCOL_VERSION: u8 = 70;
    pub(crate) const INTERNAL_ERROR: u8 = 80;
    pub(crate) const UNSUPPORTED_EXTENSION: u8 = 110;
    pub(crate) const NO_PROTOCOL: u8 = 120;
    pub(crate) const ECH_REQUIRED: u8 = 121;
}

/// Why a handshake cannot go on, and what the server is told.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) alert: Option<u8>,
    pub(crate) fault: TlsFault,
}

impl Refusal {
    pub(crate) fn new(alert: u8, reason: impl Into<String>) -> Self {
        Self { alert: Some(alert), fault: TlsFault::Protocol(reason.into()) }
    }

    fn unexpected(message: u8) -> Self {
        Self::new(alert::UNEXPECTED_MESSAGE, format!("handshake message {message} at a wrong time"))
    }

    fn illegal(reason: impl Into<String>) -> Self {
        Self::new(alert::ILLEGAL_PARAMETER, reason)
    }

    fn internal() -> Self {
        Self::new(alert::INTERNAL_ERROR, "the cryptography library failed")
    }
}

impl From<DecodeError> for Refusal {
    fn from(_: DecodeError) -> Self {
        Self::new(alert::DECODE_ERROR, "a handshake message is damaged")
    }
}

impl From<RecordError> for Refusal {
    fn from(error: RecordError) -> Self {
        Self::new(error.alert(), error.to_string())
    }
}

/// A finished handshake.
pub(crate) struct Done {
    pub(crate) opener: Opener,
    pub(crate) sealer: Sealer,
    pub(crate) facts: Facts,
    pub(crate) verdict: Verdict,
}

/// One side of a handshake, the one that began it.
pub(crate) struct Client {
    hello: ClientHello,
    state: State,
    flow: Flow,
}

/// What both versions work on.
struct Flow {
    judge: Judge,
    /// The beginning of a message that goes on in another record.
    partial: Vec<u8>,
    /// What is to be sent, in records.
    outgoing: Vec<u8>,
    /// What opens the records of the server, once they are sealed.
    opener: Option<Opener>,
    /// What seals ours.
    sealer: Option<Sealer>,
    /// Records to change keys that have come.
    changes: u8,
    /// The same of ours went out already.
    changed: bool,
}

enum State {
    /// Waits for the answer to a hello.
    Hello(Option<Retried>),
    Tls13(Box<tls13::Handshake>),
    Tls12(Box<tls12::Handshake>),
    Done(Box<Done>),
    Failed,
}

/// What the server said when it asked for another hello.
struct Retried {
    suite: u16,
    group: Option<u16>,
    transcript: Transcript,
}

impl Client {
    /// Begins with this hello, which is not changed any more but where the server asks for that.
    pub(crate) fn new(hello: ClientHello, judge: Judge) -> Self {
        let mut flow = Flow {
            judge,
            partial: Vec::new(),
            outgoing: Vec::new(),
            opener: None,
            sealer: None,
            changes: 0,
            changed: false,
        };
        flow.plain_record(&[22, 3, 1], hello.message());
        Self { hello, state: State::Hello(None), flow }
    }

    /// The bytes to be sent.
    pub(crate) fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.flow.outgoing)
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, State::Done(_))
    }

    /// The end of it, if it has come to an end.
    pub(crate) fn finish(self) -> Option<Box<Done>> {
        match self.state {
            State::Done(done) => Some(done),
            _ => None,
        }
    }

    /// Digests one whole record.
    ///
    /// # Errors
    /// The server is not to be talked to. What it is told is in the outgoing bytes.
    pub(crate) fn record(&mut self, record: &mut [u8]) -> Result<(), Refusal> {
        let outcome = self.digest(record);
        if let Err(refusal) = &outcome {
            self.state = State::Failed;
            self.flow.refuse(refusal.alert);
        }
        outcome
    }

    /// How long the record is that begins with `bytes`; `None` while the header is not whole. Nothing is kept for a
    /// record that is longer than any may be.
    pub(crate) fn record_len(bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        const MOST: usize = MAX_DATA + 2048;
        let Some(&[kind, version, _, high, low]) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if !(20..=23).contains(&kind) || version != 3 {
            return Err(RecordError::Unexpected.into());
        }
        if len > MOST {
            return Err(RecordError::TooLong.into());
        }
        Ok(Some(HEADER + len))
    }

    fn digest(&mut self, record: &mut [u8]) -> Result<(), Refusal> {
        const CHANGE: u8 = 20;
        const ALERT: u8 = 21;
        const HANDSHAKE: u8 = 22;
        let (kind, body) = match record[0] {
            CHANGE => return self.change(&record[HEADER..]),
            outer => self.flow.open(outer, record)?,
        };
        match kind {
            HANDSHAKE => self.messages(body),
            ALERT => Err(Refusal { alert: None, fault: alert_fault(body) }),
            _ => Err(RecordError::Unexpected.into()),
        }
    }

    /// In TLS 1.2 keys change here; in TLS 1.3 it is a word to please boxes on the way.
    fn change(&mut self, body: &[u8]) -> Result<(), Refusal> {
        self.flow.changes += 1;
        if body != [1] || self.flow.changes > MAX_CHANGES || !self.flow.partial.is_empty() {
            return Err(Refusal::new(alert::UNEXPECTED_MESSAGE, "a change of keys at a wrong time"));
        }
        match &mut self.state {
            State::Tls12(handshake) => handshake.change_keys(&mut self.flow),
            // A hello may be answered by one after a request for another hello only.
            State::Hello(None) => {
                Err(Refusal::new(alert::UNEXPECTED_MESSAGE, "a change of keys before the server's hello"))
            }
            _ => Ok(()),
        }
    }

    fn messages(&mut self, body: &[u8]) -> Result<(), Refusal> {
        if body.is_empty() {
            return Err(Refusal::new(alert::UNEXPECTED_MESSAGE, "an empty record in the handshake"));
        }
        self.flow.partial.extend_from_slice(body);
        while let Some(&[kind, high, middle, low]) = self.flow.partial.first_chunk::<4>() {
            let len = u32::from_be_bytes([0, high, middle, low]) as usize;
            if len > MAX_MESSAGE {
                return Err(Refusal::new(alert::ILLEGAL_PARAMETER, "a handshake message is too long"));
            }
            if self.flow.partial.len() < 4 + len {
                return Ok(());
            }
            let rest = self.flow.partial.split_off(4 + len);
            let message = std::mem::replace(&mut self.flow.partial, rest);
            self.message(kind, &message)?;
        }
        Ok(())
    }

    fn message(&mut self, kind: u8, message: &[u8]) -> Result<(), Refusal> {
        let flow = &mut self.flow;
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Hello(retried) if kind == SERVER_HELLO => {
                self.state = self.server_hello(message, retried)?;
            }
            State::Tls13(mut handshake) => {
                let done = handshake.message(&self.hello, flow, kind, message)?;
                self.state = done.map_or(State::Tls13(handshake), |done| State::Done(Box::new(done)));
            }
            State::Tls12(handshake) if kind == HELLO_REQUEST && message.len() == 4 => {
                self.state = State::Tls12(handshake);
            }
            State::Tls12(mut handshake) => {
                let done = handshake.message(&self.hello, flow, kind, message)?;
                self.state = done.map_or(State::Tls12(handshake), |done| State::Done(Box::new(done)));
            }
            State::Hello(_) | State::Done(_) | State::Failed => return Err(Refusal::unexpected(kind)),
        }
        Ok(())
    }

    fn server_hello(&mut self, message: &[u8], retried: Option<Retried>) -> Result<State, Refusal> {
        let hello = ServerHello::read(&message[4..])?;
        if hello.is_retry() {
            if retried.is_some() {
                return Err(Refusal::new(alert::UNEXPECTED_MESSAGE, "a second request for another hello"));
            }
            if self.hello.inner().is_some() {
                let reason = "the server asks for another hello, which is not built for encrypted ones";
                return Err(Refusal::new(alert::HANDSHAKE_FAILURE, reason));
            }
            return self.retry(message, &hello);
        }
        if !self.flow.partial.is_empty() && hello.selected_version().is_some() {
            return Err(Refusal::new(alert::UNEXPECTED_MESSAGE, "plain bytes behind the server's hello"));
        }
        if hello.selected_version().is_some() {
            let handshake = tls13::Handshake::start(&self.hello, &mut self.flow, message, &hello, retried)?;
            return Ok(State::Tls13(Box::new(handshake)));
        }
        if retried.is_some() {
            return Err(Refusal::illegal("the server changed the version between two hellos"));
        }
        if self.hello.inner().is_some() {
            let reason = "the server speaks TLS 1.2, which has no encrypted hellos";
            return Err(Refusal::new(alert::PROTOCOL_VERSION, reason));
        }
        let handshake = tls12::Handshake::start(&self.hello, message, &hello)?;
        Ok(State::Tls12(Box::new(handshake)))
    }

    fn retry(&mut self, message: &[u8], hello: &ServerHello<'_>) -> Result<State, Refusal> {
        let cipher = tls13::check_hello(&self.hello, hello)?;
        let HelloRetry { group, cookie } = hello.retry()?;
        if let Some(group) = group
            && (!self.hello.offers_group(group) || self.hello.shares().has(group))
        {
            return Err(Refusal::illegal("the server asks for a key that was not offered or is there"));
        }
        if group.is_none() && cookie.is_none() {
            return Err(Refusal::illegal("the server asks for the same hello again"));
        }
        let mut transcript = Transcript::after_retry(cipher, self.hello.message());
        transcript.add(message);
        self.hello.retry(group, cookie).ok_or_else(|| {
            Refusal::new(alert::HANDSHAKE_FAILURE, "the server wants a key of an unknown group")
        })?;
        transcript.add(self.hello.message());
        self.flow.change_cipher_spec();
        self.flow.plain_record(&[22, 3, 3], self.hello.message());
        Ok(State::Hello(Some(Retried { suite: hello.suite, group, transcript })))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.hello)
    }
}

impl Flow {
    /// What a record carries, and the kind of it.
    fn open<'a>(&mut self, outer: u8, record: &'a mut [u8]) -> Result<(u8, &'a [u8]), Refusal> {
        const DATA: u8 = 23;
        match &mut self.opener {
            // A server that cannot read what we send says so in the open.
            None if outer != DATA => Ok((outer, &record[HEADER..])),
            Some(opener) if opener.is_tls13() && outer == 21 => Ok((outer, &record[HEADER..])),
            Some(opener) => {
                opener.record_len(record)?;
                let (kind, range) = opener.open(record)?;
                Ok((kind.byte(), &record[range]))
            }
            None => Err(RecordError::Unexpected.into()),
        }
    }

    fn plain_record(&mut self, head: &[u8; 3], body: &[u8]) {
        for part in body.chunks(MAX_DATA) {
            self.outgoing.extend(head);
            self.outgoing.extend((part.len() as u16).to_be_bytes());
            self.outgoing.extend(part);
        }
    }

    /// The same that browsers send for the sake of boxes on the way, once.
    fn change_cipher_spec(&mut self) {
        if !std::mem::replace(&mut self.changed, true) {
            self.plain_record(&[20, 3, 3], &[1]);
        }
    }

    /// Sends a handshake message, sealed if there is a key for it.
    fn send(&mut self, message: &[u8]) -> Result<(), Refusal> {
        use crate::record::ContentType::Handshake;
        let Some(sealer) = &mut self.sealer else {
            self.plain_record(&[22, 3, 3], message);
            return Ok(());
        };
        for part in message.chunks(sealer.room().max) {
            let record = sealer.seal_copy(Handshake, part, culvert_wire::Room::NONE)?;
            self.outgoing.extend_from_slice(&record);
        }
        Ok(())
    }

    /// Tells the server why.
    fn refuse(&mut self, alert: Option<u8>) {
        const FATAL: u8 = 2;
        let Some(alert) = alert else { return };
        match &mut self.sealer {
            Some(sealer) => {
                let content = [FATAL, alert];
                let record =
                    sealer.seal_copy(crate::record::ContentType::Alert, &content, culvert_wire::Room::NONE);
                if let Ok(record) = record {
                    self.outgoing.extend_from_slice(&record);
                }
            }
            None => self.plain_record(&[21, 3, 3], &[FATAL, alert]),
        }
    }
}

/// For fuzzing: whatever bytes a server sends, a client neither is done with it nor keeps or answers more than it may.
///
/// # Panics
/// If that does not hold.
pub fn fuzz_client(bytes: &[u8]) {
    use crate::browser::Fingerprint;
    let kinds = [Fingerprint::Chrome, Fingerprint::Firefox, Fingerprint::Android];
    let kind = kinds[usize::from(bytes.first().copied().unwrap_or_default()) % kinds.len()];
    let Some(hello) = ClientHello::new(kind, Some("a.test"), &[]) else { return };
    let session_id = *hello.session_id();
    let mut client = Client::new(hello, Judge::of_anyone());
    client.take_outgoing();
    // As they are, and as the rest of a server's hello that answers this one.
    let answers = [&[3, 3][..], &[7; 32], &[32], &session_id, bytes].concat();
    let mut message = (answers.len() as u32).to_be_bytes().to_vec();
    message[0] = SERVER_HELLO;
    message.extend(answers);
    for content in [&message[..], bytes] {
        let mut record = vec![22, 3, 3];
        record.extend((content.len() as u16).to_be_bytes());
        record.extend(content);
        let _ = client.record(&mut record);
        assert!(!client.is_done(), "no server without a key is one");
        assert!(client.flow.partial.len() <= bytes.len() + message.len(), "more is kept than came");
        assert!(client.flow.outgoing.len() < 4096, "more is said than one hello and one alert");
    }
}

fn alert_fault(body: &[u8]) -> TlsFault {
    match *body {
        [_, 0] => TlsFault::Closed,
        [_, alert::NO_PROTOCOL] => TlsFault::Alpn,
        [_, description] => TlsFault::Alert(description),
        _ => TlsFault::Protocol("a damaged alert".to_owned()),
    }
}

/// The AEAD of a suite of TLS 1.3.
fn tls13_cipher(suite: u16) -> Option<Cipher> {
    Some(match suite {
        0x1301 => Cipher::Aes128Gcm,
        0x1302 => Cipher::Aes256Gcm,
        0x1303 => Cipher::ChaCha20Poly1305,
        _ => return None,
    })
}
