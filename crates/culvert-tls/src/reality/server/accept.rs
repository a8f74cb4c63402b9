//! One connection: hello, proof, and then either our own handshake or the target's word.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::Ed25519KeyPair;
use culvert_core::conn::write_chain;
use culvert_core::{BoxStream, StreamConn, timeouts};
use culvert_wire::{BufChain, DecodeError, Room};
use tokio::io::AsyncWriteExt;

use super::auth::Policy;
use super::flight::{self, Flight, Hellos};
use super::hello::{ClientHello, MAX_BYTES, Offer};
use super::mirror::{self, MAX_FLIGHT, Plan};
use super::tail::Tails;
use crate::conn::{Handover, TlsConn};
use crate::engine::Facts;
use crate::error::{SettingsError, Side, TlsError, TlsFault};
use crate::reality::AuthKey;
use crate::record::{Cipher, ContentType, HEADER, Opener};
use crate::settings::Version;

/// How long a client may leave open whether it is one, and a target what it answers. After that they have each other.
const PATIENCE: Duration = timeouts::STRANGER;
/// Records in a row that bring a handshake no further.
const MAX_USELESS: usize = 32;
const CHANGE_CIPHER_SPEC: [u8; 6] = [20, 3, 3, 0, 1, 1];
const BAD_RECORD_MAC: u8 = 20;
const DECRYPT_ERROR: u8 = 51;

/// Tells clients from strangers. One object serves all connections.
#[derive(Clone)]
pub struct RealityAcceptor {
    policy: Arc<Policy>,
    pair: Arc<Ed25519KeyPair>,
    tails: Arc<Tails>,
}

/// What a connection became.
#[derive(Debug)]
pub enum Outcome {
    /// A client's stream.
    Client(Box<TlsConn>, Facts),
    /// Somebody who is to have the target.
    Stranger(Stranger),
}

/// A connection that is none of ours, and the target's.
pub struct Stranger {
    /// Its own end.
    pub conn: BoxStream,
    /// The target's.
    pub target: BoxStream,
    /// Read from it and not given to the target.
    pub early: BufChain,
    /// Read from the target and not given to it.
    pub answer: BufChain,
}

impl fmt::Debug for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stranger")
    }
}

impl fmt::Debug for RealityAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RealityAcceptor")
    }
}

impl RealityAcceptor {
    /// An acceptor of those whom `policy` admits.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(policy: Policy) -> Result<Self, SettingsError> {
        let pair = Ed25519KeyPair::generate().map_err(|error| SettingsError::invalid("reality", error))?;
        Ok(Self { policy: Arc::new(policy), pair: Arc::new(pair), tails: Arc::default() })
    }

    /// What the target sends behind its handshakes.
    #[must_use]
    pub fn tails(&self) -> &Tails {
        &self.tails
    }

    /// Serves one connection. `target` leads to the site that is imitated.
    ///
    /// # Errors
    /// The stream broke, or a client that has proved itself does not finish its handshake.
    pub async fn accept(&self, conn: BoxStream, target: BoxStream) -> Result<Outcome, TlsError> {
        let mut pair = Stranger { conn, target, early: BufChain::new(), answer: BufChain::new() };
        let found = match tokio::time::timeout(PATIENCE, self.find_client(&mut pair)).await {
            Ok(found) => found.map_err(|error| failed(None, error.into()))?,
            Err(_) => None,
        };
        let Some((hello, flight, cipher)) = found else { return Ok(Outcome::Stranger(pair)) };
        let Stranger { mut conn, early, .. } = pair;
        let name = hello.server_name.clone();
        let finished = self.finish(&mut conn, early, flight, hello.offer).await;
        let handover = finished.map_err(|fault| failed(name.clone(), fault))?;
        let suite = match cipher {
            Cipher::Aes128Gcm => "TLS_AES_128_GCM_SHA256",
            Cipher::Aes256Gcm => "TLS_AES_256_GCM_SHA384",
            Cipher::ChaCha20Poly1305 => "TLS_CHACHA20_POLY1305_SHA256",
        };
        let facts = Facts {
            version: Version::Tls13,
            cipher_suite: suite.to_owned(),
            alpn: None,
            server_name: name,
            resumed: false,
        };
        Ok(Outcome::Client(Box::new(TlsConn::new(conn, handover)), facts))
    }

    /// Reads the hello and, if it proves itself, the target's answer. `None` as soon as that cannot become a client's
    /// handshake: what was read and not given on is in `pair` then.
    async fn find_client(&self, pair: &mut Stranger) -> io::Result<Option<(ClientHello, Flight, Cipher)>> {
        let mut seen = Vec::new();
        let (hello, key) = loop {
            match next(pair).await? {
                Some(Event::Client(data)) => pair.early = data,
                Some(Event::Target(data)) => {
                    pair.answer = data;
                    return Ok(None);
                }
                None => return Ok(None),
            }
            seen.extend(pair.early.to_vec());
            match ClientHello::decode(&seen) {
                Ok(hello) => match self.admit(&hello) {
                    Some(key) => break (hello, key),
                    None => return Ok(None),
                },
                Err(DecodeError::Incomplete) if seen.len() <= MAX_BYTES => {}
                Err(_) => return Ok(None),
            }
            forward(&mut pair.early, &mut pair.target, usize::MAX).await?;
        };
        // What a client sends behind its hello is for us, or else for the target.
        let behind = seen.len() - hello.end;
        let count = pair.early.len() - behind;
        forward(&mut pair.early, &mut pair.target, count).await?;
        let mut hellos = Hellos { last: hello, before: None };
        loop {
            match next(pair).await? {
                Some(Event::Target(mut data)) => pair.answer.append(&mut data),
                Some(Event::Client(mut data)) if pair.early.len() + data.len() <= MAX_FLIGHT => {
                    pair.early.append(&mut data);
                    continue;
                }
                Some(Event::Client(mut data)) => {
                    pair.early.append(&mut data);
                    return Ok(None);
                }
                None => return Ok(None),
            }
            if hellos.before.is_some() {
                // The word to please boxes on the way may come behind the request by itself.
                let answer = pair.answer.contiguous();
                if answer.starts_with(&CHANGE_CIPHER_SPEC) {
                    forward(&mut pair.answer, &mut pair.conn, CHANGE_CIPHER_SPEC.len()).await?;
                } else if CHANGE_CIPHER_SPEC.starts_with(answer) {
                    continue;
                }
            }
            let answer = pair.answer.contiguous();
            if hellos.before.is_none()
                && let Some(len) = mirror::retry(answer)
            {
                let request = answer[HEADER..len].to_vec();
                let Some(second) = second_hello(pair, &hellos.last, len).await? else { return Ok(None) };
                let first = std::mem::replace(&mut hellos.last, second);
                hellos.before = Some((first.message, request));
                continue;
            }
            match Plan::decode(answer, hellos.before.is_some()) {
                Ok(plan) => {
                    let flight = flight::make(&hellos, &key, &plan, &self.pair);
                    return Ok(flight.map(|flight| (hellos.last, flight, plan.cipher)));
                }
                Err(DecodeError::Incomplete) if pair.answer.len() <= MAX_FLIGHT => {}
                Err(_) => return Ok(None),
            }
        }
    }

    fn admit(&self, hello: &ClientHello) -> Option<AuthKey> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.policy.admit(hello, now)
    }

    /// Sends the flight and reads the client's `Finished`.
    async fn finish(
        &self,
        conn: &mut BoxStream,
        mut raw: BufChain,
        mut flight: Flight,
        offer: Offer,
    ) -> Result<Handover, TlsFault> {
        write_chain(conn, &mut flight.bytes).await?;
        for _ in 0..MAX_USELESS {
            let record = read_record(conn, &mut raw).await?;
            match record[0] {
                20 if record[HEADER..] == [1] => continue,
                23 => {}
                _ => return Err(self.refuse(conn, flight, 10).await),
            }
            let Some((kind, content)) = open(&mut flight.handshake_opener, record) else {
                return Err(self.refuse(conn, flight, BAD_RECORD_MAC).await);
            };
            if kind == ContentType::Alert {
                return Err(content.last().copied().map_or(TlsFault::Closed, TlsFault::Alert));
            }
            if kind != ContentType::Handshake || !flight.is_finished(&content) {
                return Err(self.refuse(conn, flight, DECRYPT_ERROR).await);
            }
            let Flight { opener, mut sealer, .. } = flight;
            let mut last_flight = BufChain::new();
            for len in self.tails.of(offer) {
                last_flight.extend(sealer.seal_padded(ContentType::Data, &[], len));
            }
            write_chain(conn, &mut last_flight).await?;
            return Ok(Handover { opener, sealer, raw, last_flight, awaited: false, tickets: None });
        }
        Err(self.refuse(conn, flight, 10).await)
    }

    /// Says no as a site does.
    async fn refuse(&self, conn: &mut BoxStream, mut flight: Flight, alert: u8) -> TlsFault {
        if let Ok(record) = flight.sealer.seal_copy(ContentType::Alert, &[2, alert], Room::NONE) {
            let goodbye = async {
                write_chain(conn, &mut record.into()).await?;
                conn.shutdown().await
            };
            let _ = tokio::time::timeout(timeouts::GOODBYE, goodbye).await;
        }
        TlsFault::Protocol("the client does not finish its handshake".to_owned())
    }
}

fn failed(name: Option<String>, fault: TlsFault) -> TlsError {
    TlsError { side: Side::Server, name, peer: None, fault }
}

/// Who has said something.
enum Event {
    Client(BufChain),
    Target(BufChain),
}

/// What comes next from either. `None` if that is an end.
async fn next(pair: &mut Stranger) -> io::Result<Option<Event>> {
    let Stranger { conn, target, .. } = pair;
    let event = std::future::poll_fn(|cx| {
        // Where the target was first, the client shall not hide it.
        if let Poll::Ready(data) = target.poll_read_chain(cx, Room::NONE) {
            return Poll::Ready(data.map(Event::Target).inspect_err(|_| conn.abort()));
        }
        let data = conn.poll_read_chain(cx, Room::NONE);
        data.map(|data| data.map(Event::Client).inspect_err(|_| target.abort()))
    });
    Ok(match event.await? {
        Event::Client(data) | Event::Target(data) if data.is_empty() => None,
        event => Some(event),
    })
}

/// Gives the client the record of `len` bytes in which the target asks for another hello, and the target that one. `None` if
/// it is not the client's second one, or something is behind it.
async fn second_hello(
    pair: &mut Stranger,
    first: &ClientHello,
    len: usize,
) -> io::Result<Option<ClientHello>> {
    let (mut seen, mut due) = (Vec::new(), len);
    loop {
        // Behind its request a target sends a word to please boxes on the way, and so does the client before its hello.
        if pair.answer.contiguous()[due..].starts_with(&CHANGE_CIPHER_SPEC) {
            due += CHANGE_CIPHER_SPEC.len();
        }
        forward(&mut pair.answer, &mut pair.conn, due).await?;
        due = 0;
        seen.extend(pair.early.to_vec());
        forward(&mut pair.early, &mut pair.target, usize::MAX).await?;
        let hello = seen.strip_prefix(&CHANGE_CIPHER_SPEC).unwrap_or(&seen);
        match ClientHello::decode(hello) {
            Ok(second) if second.end == hello.len() && second.follows(first) => return Ok(Some(second)),
            Err(DecodeError::Incomplete) if seen.len() <= MAX_BYTES => {}
            Err(_) if CHANGE_CIPHER_SPEC.starts_with(&seen) => {}
            _ => return Ok(None),
        }
        match next(pair).await? {
            Some(Event::Client(data)) => pair.early = data,
            Some(Event::Target(mut data)) => {
                pair.answer.append(&mut data);
                if pair.answer.len() > MAX_FLIGHT {
                    return Ok(None);
                }
            }
            None => return Ok(None),
        }
    }
}

/// Gives so many bytes on, or all. Those that are not taken stay where they are.
async fn forward(from: &mut BufChain, to: &mut BoxStream, most: usize) -> io::Result<()> {
    let mut count = most.min(from.len());
    while count > 0 {
        let front = from.front();
        let written = to.write(&front[..front.len().min(count)]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        from.advance(written);
        count -= written;
    }
    to.flush().await
}

/// The next whole record.
async fn read_record(conn: &mut BoxStream, raw: &mut BufChain) -> Result<Vec<u8>, TlsFault> {
    loop {
        let mut header = [0; HEADER];
        if raw.peek(&mut header) == HEADER {
            let len = HEADER + usize::from(u16::from_be_bytes([header[3], header[4]]));
            if len > MAX_FLIGHT {
                return Err(TlsFault::Protocol("a record of the client is too long".to_owned()));
            }
            if raw.len() >= len {
                return Ok(raw.take_front(len).to_vec());
            }
        }
        let mut more = std::future::poll_fn(|cx| conn.poll_read_chain(cx, Room::NONE)).await?;
        if more.is_empty() {
            return Err(TlsFault::Closed);
        }
        raw.append(&mut more);
    }
}

fn open(opener: &mut Opener, mut record: Vec<u8>) -> Option<(ContentType, Vec<u8>)> {
    if opener.record_len(&record) != Ok(Some(record.len())) {
        return None;
    }
    let (kind, data) = opener.open(&mut record).ok()?;
    Some((kind, record[data].to_vec()))
}
