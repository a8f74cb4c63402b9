//! The ClientHello that a server of REALITY reads by itself.

use culvert_wire::{DecodeError, Reader};

use crate::record::HEADER;

/// Longest message that is waited for; browsers stay below 2 KiB.
const MAX_MESSAGE: usize = 16 << 10;
/// Most bytes in which it may come: records can be as short as one byte.
pub const MAX_BYTES: usize = MAX_MESSAGE + MAX_MESSAGE / 8 * HEADER;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;
const TLS_13: u16 = 0x0304;

/// Bytes of an X25519 key.
pub const KEY: usize = 32;
/// Bytes of an ML-KEM-768 encapsulation key.
pub const ENCAPSULATION_KEY: usize = 1184;
/// Bytes of an ML-KEM-768 ciphertext.
pub const CIPHERTEXT: usize = 1088;

/// Where the session id stands in the message, which has 32 bytes.
pub const SESSION_ID: std::ops::Range<usize> = 39..71;

/// What a client offers by ALPN: as much as a site's behaviour behind its handshake may depend on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Offer {
    /// Nothing.
    None,
    /// Something else than HTTP/2 first.
    Http1,
    /// HTTP/2 first.
    Http2,
}

/// The groups that can be answered in the target's place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Group {
    /// X25519.
    X25519,
    /// X25519 behind ML-KEM-768.
    X25519MlKem768,
    /// The curve P-256.
    P256,
    /// The curve P-384.
    P384,
}

impl Group {
    /// The group of this number in TLS.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0x001d => Self::X25519,
            0x11ec => Self::X25519MlKem768,
            0x0017 => Self::P256,
            0x0018 => Self::P384,
            _ => return None,
        })
    }

    /// Bytes of a server's share.
    #[must_use]
    pub fn server_share(self) -> usize {
        match self {
            Self::X25519MlKem768 => CIPHERTEXT + KEY,
            _ => self.client_share(),
        }
    }

    /// Bytes of a client's share.
    #[must_use]
    pub fn client_share(self) -> usize {
        match self {
            Self::X25519 => KEY,
            Self::X25519MlKem768 => ENCAPSULATION_KEY + KEY,
            // Points as they are, behind a byte that says so.
            Self::P256 => 1 + 2 * 32,
            Self::P384 => 1 + 2 * 48,
        }
    }
}

/// What a hello says, as far as it matters here.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClientHello {
    /// The message with its head, as it goes into the transcript.
    pub message: Vec<u8>,
    /// Bytes of the stream behind which it ends.
    pub end: usize,
    /// The random.
    pub random: [u8; 32],
    /// Whether TLS 1.3 is among the versions.
    pub offers_tls13: bool,
    /// The name that is asked for.
    pub server_name: Option<String>,
    /// What it offers by ALPN.
    pub offer: Offer,
    /// The keys it shows, one for each group; of X25519MLKEM768 the encapsulation key, then the X25519 key.
    pub shares: Vec<(Group, Vec<u8>)>,
}

impl ClientHello {
    /// Reads the hello at the front of a stream. It may go over several records, but nothing may be behind it in the last one.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`], or it is none that a browser sends.
    pub fn decode(stream: &[u8]) -> Result<Self, DecodeError> {
        let mut message = Vec::new();
        let mut r = Reader::new(stream);
        loop {
            let kind = r.u8()?;
            if kind != HANDSHAKE {
                return Err(DecodeError::Invalid("record type"));
            }
            r.expect(&[3], "record version")?;
            r.u8()?;
            let len = usize::from(r.u16()?);
            if len == 0 || len > (1 << 14) {
                return Err(DecodeError::Invalid("record length"));
            }
            let (part, cut) = match r.take(len) {
                Ok(part) => (part, false),
                Err(_) => (r.rest(), true),
            };
            message.extend_from_slice(part);
            match *message {
                [kind, ..] if kind != CLIENT_HELLO => return Err(DecodeError::Invalid("message type")),
                [_, high, middle, low, ..] => {
                    let len = 4 + u32::from_be_bytes([0, high, middle, low]) as usize;
                    if len > MAX_MESSAGE || message.len() > len {
                        return Err(DecodeError::Invalid("message length"));
                    }
                    if message.len() == len && !cut {
                        return Self::parse(message, r.position()).map_err(|error| match error {
                            DecodeError::Incomplete => DecodeError::Invalid("message"),
                            other @ DecodeError::Invalid(_) => other,
                        });
                    }
                }
                _ => {}
            }
            if cut {
                return Err(DecodeError::Incomplete);
            }
        }
    }

    fn parse(message: Vec<u8>, end: usize) -> Result<Self, DecodeError> {
        let mut r = Reader::new(&message);
        r.take(4)?;
        r.expect(&[3, 3], "legacy version")?;
        let random = r.array()?;
        let session_id = usize::from(r.u8()?);
        if session_id != SESSION_ID.len() {
            return Err(DecodeError::Invalid("session id that no browser sends"));
        }
        r.take(session_id)?;
        let suites = r.u16()?;
        r.take(suites.into())?;
        let compression = r.u8()?;
        r.take(compression.into())?;
        let len = r.u16()?;
        let mut extensions = Reader::new(r.take(len.into())?);
        if !r.rest().is_empty() {
            return Err(DecodeError::Invalid("bytes behind the extensions"));
        }
        let mut hello = Self {
            message: Vec::new(),
            end,
            random,
            offers_tls13: false,
            server_name: None,
            offer: Offer::None,
            shares: Vec::new(),
        };
        while !extensions.rest().is_empty() {
            let kind = extensions.u16()?;
            let len = extensions.u16()?;
            let mut body = Reader::new(extensions.take(len.into())?);
            match kind {
                SERVER_NAME => hello.server_name = server_name(&mut body)?,
                SUPPORTED_VERSIONS => hello.offers_tls13 = offers_tls13(&mut body)?,
                ALPN => hello.offer = offer(&mut body)?,
                KEY_SHARE => hello.key_shares(&mut body)?,
                _ => {}
            }
        }
        hello.message = message;
        Ok(hello)
    }

    /// Of shares of one group the first that is well-formed counts.
    fn key_shares(&mut self, body: &mut Reader<'_>) -> Result<(), DecodeError> {
        let len = body.u16()?;
        let mut shares = Reader::new(body.take(len.into())?);
        while !shares.rest().is_empty() {
            let group = Group::from_number(shares.u16()?);
            let len = shares.u16()?;
            let share = shares.take(len.into())?;
            if let Some(group) = group
                && share.len() == group.client_share()
                && self.share(group).is_none()
            {
                self.shares.push((group, share.to_vec()));
            }
        }
        Ok(())
    }

    /// The key of this group.
    #[must_use]
    pub fn share(&self, group: Group) -> Option<&[u8]> {
        self.shares.iter().find(|(other, _)| *other == group).map(|(_, share)| &**share)
    }

    /// The key with which the client has made its proof.
    #[must_use]
    pub fn proof_key(&self) -> Option<&[u8]> {
        let half = || self.share(Group::X25519MlKem768).map(|share| &share[ENCAPSULATION_KEY..]);
        self.share(Group::X25519).or_else(half)
    }

    /// Whether this is what a client sends that was asked for another hello than `first`.
    #[must_use]
    pub fn follows(&self, first: &Self) -> bool {
        self.random == first.random
            && self.message[SESSION_ID] == first.message[SESSION_ID]
            && self.server_name == first.server_name
            && self.offers_tls13
    }
}

fn server_name(body: &mut Reader<'_>) -> Result<Option<String>, DecodeError> {
    let len = body.u16()?;
    let mut list = Reader::new(body.take(len.into())?);
    list.expect(&[0], "name type")?;
    let len = list.u16()?;
    Ok(String::from_utf8(list.take(len.into())?.to_vec()).ok())
}

fn offer(body: &mut Reader<'_>) -> Result<Offer, DecodeError> {
    body.u16()?;
    let len = body.u8()?;
    Ok(if body.take(len.into())? == b"h2" { Offer::Http2 } else { Offer::Http1 })
}

fn offers_tls13(body: &mut Reader<'_>) -> Result<bool, DecodeError> {
    let len = body.u8()?;
    let list = body.take(len.into())?;
    Ok(list.chunks_exact(2).any(|version| version == TLS_13.to_be_bytes()))
}

/// Fed with random bytes: a hello that is found is found again in its own record, and no beginning of it is one.
///
/// # Panics
/// If not.
pub fn fuzz_client_hello(bytes: &[u8]) {
    if let Ok(hello) = ClientHello::decode(bytes) {
        assert!(hello.end <= bytes.len());
        assert_eq!(ClientHello::decode(&bytes[..hello.end - 1]), Err(DecodeError::Incomplete));
    }
}
