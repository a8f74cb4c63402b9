//! The ClientHello of TLS 1.0 to 1.3, as far as sniffing and guessing the client need it.
//!
//! ```text
//! 1  length:3  version:2  random:32  session_id<0..32>  cipher_suites<2..2^16-2>  compression<1..255>  extensions<0..2^16-1>
//! ```
//!
//! RFC 8446 section 4.1.2; server_name is RFC 6066 section 3, ALPN RFC 7301. Values of GREASE (RFC 8701) stay in the
//! lists, where fingerprints count them.

use culvert_wire::{DecodeError, Domain, Reader};

use super::domain;

const CLIENT_HELLO: u8 = 1;
/// Go's limit too. A hello with post-quantum shares has two kilobytes, one with padding rarely four.
const MAX_LENGTH: usize = 64 << 10;

/// A parsed hello; the parts borrow from the message.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ClientHello<'a> {
    /// `legacy_version`.
    pub version: u16,
    /// Session id, or what stands in its place.
    pub session_id: &'a [u8],
    /// Cipher suites in order.
    pub cipher_suites: Vec<u16>,
    /// Extension types in order.
    pub extensions: Vec<u16>,
    /// Host name of the server_name extension, as it stands.
    pub server_name: Option<&'a [u8]>,
    /// Protocols of the ALPN extension in order.
    pub alpn: Vec<&'a [u8]>,
    /// `supported_groups` in order.
    pub groups: Vec<u16>,
    /// `supported_versions` in order.
    pub versions: Vec<u16>,
    /// `signature_algorithms` in order.
    pub signature_algorithms: Vec<u16>,
}

impl<'a> ClientHello<'a> {
    /// Reads the message at the start of `bytes`, handshake header included.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`] while bytes are missing, [`DecodeError::Invalid`] as soon as it can be no hello.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        r.expect(&[CLIENT_HELLO], "handshake type")?;
        let [high, middle, low] = r.array()?;
        let len = u32::from_be_bytes([0, high, middle, low]) as usize;
        if len > MAX_LENGTH {
            return Err(DecodeError::Invalid("client hello length"));
        }
        // The version comes first and tells soonest that this is something else.
        if let Some(major) = r.rest().first()
            && *major != 3
        {
            return Err(DecodeError::Invalid("client hello version"));
        }
        Self::decode_body(r.take(len)?).map_err(|error| match error {
            // The message is all there: what is missing never comes.
            DecodeError::Incomplete => DecodeError::Invalid("client hello"),
            invalid => invalid,
        })
    }

    /// The server name as a host name, if it is one.
    pub fn domain(&self) -> Option<Domain> {
        domain(self.server_name?)
    }

    fn decode_body(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(body);
        let mut hello = Self { version: r.u16()?, ..Self::default() };
        r.take(32)?;
        let session_id = r.u8()?;
        if session_id > 32 {
            return Err(DecodeError::Invalid("session id"));
        }
        hello.session_id = r.take(session_id.into())?;
        let suites = r.u16()?;
        hello.cipher_suites = numbers(r.take(suites.into())?)?;
        let compression = r.u8()?;
        r.take(compression.into())?;
        if hello.cipher_suites.is_empty() || compression == 0 {
            return Err(DecodeError::Invalid("client hello without suites"));
        }
        if r.rest().is_empty() {
            return Ok(hello);
        }
        let extensions = r.u16()?;
        let mut extensions = Reader::new(r.take(extensions.into())?);
        if !r.rest().is_empty() {
            return Err(DecodeError::Invalid("bytes behind the extensions"));
        }
        while !extensions.rest().is_empty() {
            let (kind, len) = (extensions.u16()?, extensions.u16()?);
            hello.extension(kind, extensions.take(len.into())?)?;
        }
        Ok(hello)
    }

    fn extension(&mut self, kind: u16, body: &'a [u8]) -> Result<(), DecodeError> {
        self.extensions.push(kind);
        let mut r = Reader::new(body);
        match kind {
            0 => self.server_name = server_name(body)?,
            10 => self.groups = counted_numbers(body)?,
            13 => self.signature_algorithms = counted_numbers(body)?,
            16 => {
                let len = r.u16()?;
                let mut names = Reader::new(r.take(len.into())?);
                while !names.rest().is_empty() {
                    let len = names.u8()?;
                    self.alpn.push(names.take(len.into())?);
                }
            }
            43 => {
                let len = r.u8()?;
                self.versions = numbers(r.take(len.into())?)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// The first entry of type host_name.
fn server_name(body: &[u8]) -> Result<Option<&[u8]>, DecodeError> {
    let mut r = Reader::new(body);
    let len = r.u16()?;
    let mut names = Reader::new(r.take(len.into())?);
    while !names.rest().is_empty() {
        let (kind, len) = (names.u8()?, names.u16()?);
        let name = names.take(len.into())?;
        if kind == 0 {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn counted_numbers(body: &[u8]) -> Result<Vec<u16>, DecodeError> {
    let mut r = Reader::new(body);
    let len = r.u16()?;
    numbers(r.take(len.into())?)
}

fn numbers(bytes: &[u8]) -> Result<Vec<u16>, DecodeError> {
    let (pairs, rest) = bytes.as_chunks();
    match rest {
        [] => Ok(pairs.iter().map(|pair| u16::from_be_bytes(*pair)).collect()),
        _ => Err(DecodeError::Invalid("list of numbers")),
    }
}

/// Every cut of a hello is incomplete, and bytes behind it do not count.
#[doc(hidden)]
pub fn fuzz_client_hello(data: &[u8]) {
    let Ok(hello) = ClientHello::decode(data) else { return };
    let len = 4 + u32::from_be_bytes([0, data[1], data[2], data[3]]) as usize;
    assert_eq!(ClientHello::decode(&data[..len]), Ok(hello));
    for cut in (0..len).step_by(len / 16 + 1) {
        assert_eq!(ClientHello::decode(&data[..cut]), Err(DecodeError::Incomplete));
    }
}
