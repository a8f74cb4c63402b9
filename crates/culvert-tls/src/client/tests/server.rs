//! The server of these tests: X25519 and Ed25519 only, and one lie at a time.

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use culvert_wire::Room;

use crate::browser::tests::Read;
use crate::reality::AuthKey;
use crate::record::{Cipher, ContentType, Opener, Sealer, Secret, TrafficSecret};
use crate::schedule::{Schedule, Transcript, finished, signed_content};

/// What this server does otherwise than others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    None,
    Brotli,
    Zstd,
    LongUnpacked,
    WrongUnpacked,
    Protocol,
    OtherProtocol,
    Settings,
    SettingsAlone,
    OneRecord,
    Padded,
    /// So many records to change keys.
    Changes(u8),
    TwoForOne,
    Extension(u16),
    OtherSession,
    Suite(u16),
    Version(u16),
    Share(u16),
    ZeroShare,
    Retry(u16),
    NoCertificate,
    Delegated,
    OtherSignature,
    WeakScheme,
    BadFinished,
    Behind,
    Swapped,
    BadTag,
    PlainExtensions,
}

pub(super) struct Server {
    pub(super) flight: Vec<u8>,
    /// Where the record stands that changes the keys.
    pub(super) change_at: usize,
    change: Change,
    certificate: Vec<u8>,
    first: Option<Vec<u8>>,
    /// What the client seals its part of the handshake with.
    client: Option<TrafficSecret>,
    transcript: Option<Transcript>,
    sealer: Option<Sealer>,
}

impl Server {
    pub(super) fn new(hello: &[u8], change: Change) -> Self {
        let public = pair().public_key().as_ref().to_vec();
        let key = AuthKey::new(&[1; 32], &[2; 32]);
        Self::with(hello, change, crate::reality::tests::certificate(&key, &public).to_vec())
    }

    pub(super) fn with(hello: &[u8], change: Change, certificate: Vec<u8>) -> Self {
        let mut server = Self {
            flight: Vec::new(),
            change_at: 0,
            change,
            certificate,
            first: None,
            client: None,
            transcript: None,
            sealer: None,
        };
        match change {
            Change::Retry(group) => server.ask_again(hello, group),
            _ => server.answer(hello),
        }
        server
    }

    fn ask_again(&mut self, hello: &[u8], group: u16) {
        let random = hex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c");
        let mut extensions = vec![0, 43, 0, 2, 3, 4];
        if group != 0 {
            extensions.extend([0, 51, 0, 2]);
            extensions.extend(group.to_be_bytes());
            extensions.extend([0, 44, 0, 5, 0, 3, 1, 2, 3]);
        }
        let message = server_hello(&random, &hello[39..71], 0x1301, &extensions);
        record(&mut self.flight, 22, &message);
        self.first = Some([hello, &message].concat());
    }

    /// Answers the second hello.
    pub(super) fn answer_again(&mut self, hello: &[u8]) {
        let read = Read::new(hello);
        assert_eq!(read.extension(44), Some(&[0, 3, 1, 2, 3][..]));
        self.flight.clear();
        self.answer(hello);
    }

    fn answer(&mut self, hello: &[u8]) {
        let change = self.change;
        let read = Read::new(hello);
        let (group, public, shared) = exchange(&read, change);
        let suite = if let Change::Suite(suite) = change { suite } else { 0x1301 };
        let version = if let Change::Version(version) = change { version } else { 0x0304 };
        let mut extensions = vec![0, 43, 0, 2];
        extensions.extend(version.to_be_bytes());
        extensions.extend([0, 51]);
        extensions.extend((public.len() as u16 + 4).to_be_bytes());
        extensions.extend(group.to_be_bytes());
        extensions.extend((public.len() as u16).to_be_bytes());
        extensions.extend(public);
        let mut session = hello[39..71].to_vec();
        if change == Change::OtherSession {
            session[0] ^= 1;
        }
        let message = server_hello(&[5; 32], &session, suite, &extensions);
        let mut transcript = match &self.first {
            None => Transcript::new(Cipher::Aes128Gcm),
            Some(first) => {
                let end = 4 + usize::from(u16::from_be_bytes([first[2], first[3]]));
                let mut transcript = Transcript::after_retry(Cipher::Aes128Gcm, &first[..end]);
                transcript.add(&first[end..]);
                transcript
            }
        };
        transcript.add(hello);
        transcript.add(&message);
        let schedule = Schedule::handshake(Cipher::Aes128Gcm, &shared);
        let server = schedule.traffic("s hs traffic", transcript.hash().as_ref());
        self.client = Some(schedule.traffic("c hs traffic", transcript.hash().as_ref()));

        record(&mut self.flight, 22, &message);
        self.change_at = self.flight.len();
        let count = if let Change::Changes(count) = change { count } else { 1 };
        for _ in 0..count {
            record(&mut self.flight, 20, &[if change == Change::TwoForOne { 2 } else { 1 }]);
        }
        let mut messages = vec![self.extensions(), self.certificates()];
        if change == Change::Swapped {
            messages.swap(0, 1);
        }
        messages.iter().for_each(|message| transcript.add(message));
        messages.push(self.signature(&transcript));
        transcript.add(&messages[2]);
        let mut tag = finished(&server, transcript.hash().as_ref()).as_ref().to_vec();
        if change == Change::BadFinished {
            tag[31] ^= 1;
        }
        messages.push(message_of(20, &tag));
        transcript.add(&messages[3]);
        if change == Change::Behind {
            messages[3].push(4);
        }
        let mut sealer = Sealer::new(Secret::Tls13(server), 0).unwrap();
        if matches!(change, Change::OneRecord | Change::Behind) {
            messages = vec![messages.concat()];
        }
        for (number, message) in messages.iter().enumerate() {
            if change == Change::PlainExtensions && number == 0 {
                record(&mut self.flight, 22, message);
                continue;
            }
            let sealed = match change {
                Change::Padded => sealer.seal_padded(ContentType::Handshake, message, 1000).unwrap(),
                _ => sealer.seal_copy(ContentType::Handshake, message, Room::NONE).unwrap(),
            };
            self.flight.extend_from_slice(&sealed);
        }
        if change == Change::BadTag {
            *self.flight.last_mut().unwrap() ^= 1;
        }
        let secret = schedule.master().traffic("s ap traffic", transcript.hash().as_ref());
        self.sealer = Sealer::new(Secret::Tls13(secret), 0);
        self.transcript = Some(transcript);
    }

    fn extensions(&self) -> Vec<u8> {
        let protocol = |name: &[u8]| {
            let len = name.len() as u8;
            [&[0, 16, 0, len + 3, 0, len + 1, len][..], name].concat()
        };
        let settings = [0x44, 0xcd, 0, 0];
        let list = match self.change {
            Change::Protocol => protocol(b"h2"),
            Change::OtherProtocol => protocol(b"h9"),
            Change::Settings => [&protocol(b"h2")[..], &settings].concat(),
            Change::SettingsAlone => settings.to_vec(),
            Change::Extension(kind) => [&kind.to_be_bytes()[..], &[0, 0]].concat(),
            _ => Vec::new(),
        };
        message_of(8, &[&(list.len() as u16).to_be_bytes()[..], &list].concat())
    }

    fn certificates(&self) -> Vec<u8> {
        let extension: &[u8] = if self.change == Change::Delegated { &[0, 4, 0, 34, 0, 0] } else { &[0, 0] };
        let mut list = u24(self.certificate.len());
        list.extend(&self.certificate);
        list.extend(extension);
        if self.change == Change::NoCertificate {
            list.clear();
        }
        let body = [&[0][..], &u24(list.len()), &list].concat();
        let (algorithm, packed, len) = match self.change {
            Change::Brotli => (2, stored_brotli(&body), body.len()),
            Change::Zstd => (3, body.clone(), body.len()),
            Change::LongUnpacked => (2, stored_brotli(&body), 1 << 20),
            Change::WrongUnpacked => (2, stored_brotli(&body), body.len() - 1),
            _ => return message_of(11, &body),
        };
        compressed(algorithm, &packed, len)
    }

    fn signature(&self, transcript: &Transcript) -> Vec<u8> {
        let mut content = signed_content(true, transcript.hash().as_ref());
        if self.change == Change::OtherSignature {
            content.push(0);
        }
        let scheme = if self.change == Change::WeakScheme { 0x0401_u16 } else { 0x0807 };
        let signature = pair().sign(&content);
        let body = [&scheme.to_be_bytes()[..], &[0, 64], signature.as_ref()].concat();
        message_of(15, &body)
    }

    /// What the first record carries that the client seals.
    pub(super) fn open_client(&self, bytes: &[u8]) -> (u8, Vec<u8>) {
        let mut opener = Opener::new(Secret::Tls13(self.client.clone().unwrap()), 0).unwrap();
        let len = opener.record_len(bytes).unwrap().unwrap();
        let mut record = bytes[..len].to_vec();
        let (kind, range) = opener.open(&mut record).unwrap();
        (kind.byte(), record[range].to_vec())
    }

    /// A record of the stream.
    pub(super) fn seal(&mut self, kind: u8, data: &[u8]) -> Vec<u8> {
        let kind = ContentType::from_byte(kind).unwrap();
        self.sealer.as_mut().unwrap().seal_copy(kind, data, Room::NONE).unwrap().to_vec()
    }
}

/// Sees that the client's last flight is what it should be.
pub(super) fn finish_client(server: &Server, sent: &[u8], change: Change) {
    let mut transcript = server.transcript.clone().unwrap();
    let secret = server.client.clone().unwrap();
    let sent = sent.strip_prefix(&[20, 3, 3, 0, 1, 1]).unwrap_or_else(|| {
        assert!(matches!(change, Change::Retry(_)), "{change:?}");
        sent
    });
    let mut opener = Opener::new(Secret::Tls13(secret.clone()), 0).unwrap();
    let mut rest = sent.to_vec();
    let mut next = || {
        let len = opener.record_len(&rest).unwrap().unwrap();
        let mut record: Vec<u8> = rest.drain(..len).collect();
        let (kind, range) = opener.open(&mut record).unwrap();
        assert_eq!(kind, ContentType::Handshake);
        (record[range].to_vec(), rest.is_empty())
    };
    if change == Change::Settings {
        let (settings, _) = next();
        assert_eq!(settings, [8, 0, 0, 6, 0, 4, 0x44, 0xcd, 0, 0]);
        transcript.add(&settings);
    }
    let (message, is_last) = next();
    assert!(is_last);
    assert_eq!(message, message_of(20, finished(&secret, transcript.hash().as_ref()).as_ref()));
}

fn exchange(hello: &Read, change: Change) -> (u16, Vec<u8>, Vec<u8>) {
    let shares = hello.shares();
    let ours = PrivateKey::generate(&X25519).unwrap();
    let Some((_, theirs)) = shares.iter().find(|(group, _)| *group == 0x1d) else {
        // The second hello has a key of another kind, of P-256.
        let (group, theirs) = &shares[0];
        let ours = PrivateKey::generate(&aws_lc_rs::agreement::ECDH_P256).unwrap();
        let peer = UnparsedPublicKey::new(&aws_lc_rs::agreement::ECDH_P256, theirs);
        let shared = agree(&ours, peer, (), |secret| Ok(secret.to_vec())).unwrap();
        return (*group, ours.compute_public_key().unwrap().as_ref().to_vec(), shared);
    };
    let peer = UnparsedPublicKey::new(&X25519, theirs);
    let shared = agree(&ours, peer, (), |secret| Ok(secret.to_vec())).unwrap();
    let mut public = ours.compute_public_key().unwrap().as_ref().to_vec();
    if change == Change::ZeroShare {
        public.fill(0);
    }
    let group = if let Change::Share(group) = change { group } else { 0x1d };
    (group, public, shared)
}

fn pair() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[1; 32]).unwrap()
}

fn server_hello(random: &[u8], session: &[u8], suite: u16, extensions: &[u8]) -> Vec<u8> {
    let len = extensions.len() as u16;
    let body =
        [&[3, 3][..], random, &[32], session, &suite.to_be_bytes(), &[0], &len.to_be_bytes(), extensions];
    message_of(2, &body.concat())
}

fn compressed(algorithm: u8, packed: &[u8], len: usize) -> Vec<u8> {
    message_of(25, &[&[0, algorithm][..], &u24(len), &u24(packed.len()), packed].concat())
}

fn message_of(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &u24(body.len()), body].concat()
}

fn u24(len: usize) -> Vec<u8> {
    (len as u32).to_be_bytes()[1..].to_vec()
}

fn record(flight: &mut Vec<u8>, kind: u8, body: &[u8]) {
    flight.extend([kind, 3, 3]);
    flight.extend((body.len() as u16).to_be_bytes());
    flight.extend(body);
}

fn hex(text: &str) -> Vec<u8> {
    crate::reality::tests::hex(text)
}

/// Brotli of bytes as they are (RFC 7932 section 9.2): a window of 16 bits, one block that is not compressed, one that
/// is the last and empty.
fn stored_brotli(bytes: &[u8]) -> Vec<u8> {
    // 1 bit of window, then not the last, two bits for four nibbles of length - 1, and a bit for not compressed.
    let head = (bytes.len() as u32 - 1) << 4 | 1 << 20;
    [&head.to_le_bytes()[..3], bytes, &[3]].concat()
}
