//! What a server says in its handshake.
//!
//! ```text
//! ServerHello          2 | length 3 | 3 3 | random 32 | session id 1+ | suite 2 | 0 | extensions 2+
//! EncryptedExtensions  8 | length 3 | extensions 2+
//! Certificate         11 | length 3 | context 1+ | list 3+ of (certificate 3+ | extensions 2+)
//! CertificateVerify   15 | length 3 | scheme 2 | signature 2+
//! CertificateRequest  13 | length 3 | context 1+ | extensions 2+
//! ```

use culvert_wire::{DecodeError, Reader};
use rustls::pki_types::CertificateDer;

use super::{Refusal, alert};
use crate::browser::{
    COOKIE, DELEGATED_CREDENTIALS, KEY_SHARE, SCT, SIGNATURE_ALGORITHMS, STATUS_REQUEST, SUPPORTED_VERSIONS,
};

/// The random number of a server hello that is a request for another hello.
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Certificates in a chain: more than any server has.
const MAX_CERTIFICATES: usize = 32;

/// A `ServerHello`, or a request for another hello.
pub(super) struct ServerHello<'a> {
    pub(super) random: [u8; 32],
    pub(super) session_id: &'a [u8],
    pub(super) suite: u16,
    pub(super) extensions: Vec<(u16, &'a [u8])>,
}

/// What a server wants changed in the next hello.
pub(super) struct HelloRetry<'a> {
    pub(super) group: Option<u16>,
    pub(super) cookie: Option<&'a [u8]>,
}

impl<'a> ServerHello<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<Self, Refusal> {
        let mut r = Reader::new(body);
        let version = r.u16()?;
        if version != 0x0303 {
            return Err(Refusal::new(alert::PROTOCOL_VERSION, "the server speaks a version that is too old"));
        }
        let random = r.array()?;
        let session_id = short(&mut r)?;
        let suite = r.u16()?;
        if r.u8()? != 0 {
            return Err(Refusal::illegal("the server wants to compress"));
        }
        // In TLS 1.2 the list may be missing altogether.
        let extensions = if r.rest().is_empty() { Vec::new() } else { extensions(&mut r)? };
        end(&r)?;
        Ok(Self { random, session_id, suite, extensions })
    }

    pub(super) fn is_retry(&self) -> bool {
        self.random == RETRY
    }

    pub(super) fn extension(&self, wanted: u16) -> Option<&'a [u8]> {
        self.extensions.iter().find(|(kind, _)| *kind == wanted).map(|(_, body)| *body)
    }

    /// The version in its extension: TLS 1.3, or nonsense.
    pub(super) fn selected_version(&self) -> Option<&'a [u8]> {
        self.extension(SUPPORTED_VERSIONS)
    }

    /// The group and the key of the server.
    pub(super) fn key_share(&self) -> Result<(u16, &'a [u8]), Refusal> {
        const MISSING: u8 = 109;
        let body =
            self.extension(KEY_SHARE).ok_or_else(|| Refusal::new(MISSING, "the server shows no key"))?;
        let mut r = Reader::new(body);
        let share = (r.u16()?, long(&mut r)?);
        end(&r)?;
        Ok(share)
    }

    /// What is to change in the next hello.
    pub(super) fn retry(&self) -> Result<HelloRetry<'a>, Refusal> {
        let mut retry = HelloRetry { group: None, cookie: None };
        for (kind, body) in &self.extensions {
            let mut r = Reader::new(body);
            match *kind {
                KEY_SHARE => retry.group = Some(r.u16()?),
                COOKIE => retry.cookie = Some(long(&mut r)?),
                SUPPORTED_VERSIONS => {
                    r.u16()?;
                }
                _ => {
                    return Err(Refusal::new(
                        alert::UNSUPPORTED_EXTENSION,
                        "an extension that was not asked for",
                    ));
                }
            }
            end(&r)?;
        }
        Ok(retry)
    }
}

/// The certificates of a `Certificate` message of TLS 1.3, the server's own first.
pub(super) fn certificates(body: &[u8]) -> Result<Vec<CertificateDer<'static>>, Refusal> {
    let mut r = Reader::new(body);
    if !short(&mut r)?.is_empty() {
        return Err(Refusal::illegal("a certificate for another question"));
    }
    let list = very_long(&mut r)?;
    end(&r)?;
    let mut r = Reader::new(list);
    let mut chain = Vec::new();
    while !r.rest().is_empty() {
        let der = very_long(&mut r)?;
        for (kind, _) in extensions(&mut r)? {
            match kind {
                STATUS_REQUEST | SCT => {}
                DELEGATED_CREDENTIALS => {
                    return Err(Refusal::illegal("delegated credentials are not accepted here"));
                }
                _ => {
                    let reason = "an extension of a certificate that was not asked for";
                    return Err(Refusal::new(alert::UNSUPPORTED_EXTENSION, reason));
                }
            }
        }
        push(&mut chain, der)?;
    }
    Ok(chain)
}

/// The same of TLS 1.2.
pub(super) fn certificates12(body: &[u8]) -> Result<Vec<CertificateDer<'static>>, Refusal> {
    let mut r = Reader::new(body);
    let list = very_long(&mut r)?;
    end(&r)?;
    let mut r = Reader::new(list);
    let mut chain = Vec::new();
    while !r.rest().is_empty() {
        push(&mut chain, very_long(&mut r)?)?;
    }
    Ok(chain)
}

fn push(chain: &mut Vec<CertificateDer<'static>>, der: &[u8]) -> Result<(), Refusal> {
    if der.is_empty() || chain.len() == MAX_CERTIFICATES {
        return Err(Refusal::new(alert::BAD_CERTIFICATE, "a chain of certificates that is none"));
    }
    chain.push(CertificateDer::from(der.to_vec()));
    Ok(())
}

/// A signature with its scheme.
pub(super) fn signature(body: &[u8]) -> Result<(u16, &[u8]), Refusal> {
    let mut r = Reader::new(body);
    let signature = (r.u16()?, long(&mut r)?);
    end(&r)?;
    Ok(signature)
}

/// The context and the signature schemes of a request for our certificate in TLS 1.3.
pub(super) fn certificate_request(body: &[u8]) -> Result<(Vec<u8>, Vec<u16>), Refusal> {
    const MISSING: u8 = 109;
    let mut r = Reader::new(body);
    let context = short(&mut r)?.to_vec();
    let extensions = extensions(&mut r)?;
    end(&r)?;
    let schemes = extensions.iter().find(|(kind, _)| *kind == SIGNATURE_ALGORITHMS);
    let (_, body) =
        schemes.ok_or_else(|| Refusal::new(MISSING, "a request for a certificate of any kind"))?;
    let mut r = Reader::new(body);
    let schemes = numbers(long(&mut r)?)?;
    Ok((context, schemes))
}

/// A list of numbers of two bytes.
pub(super) fn numbers(bytes: &[u8]) -> Result<Vec<u16>, DecodeError> {
    let mut r = Reader::new(bytes);
    let mut items = Vec::with_capacity(bytes.len() / 2);
    while !r.rest().is_empty() {
        items.push(r.u16()?);
    }
    Ok(items)
}

/// A list of extensions, none of which may come twice.
pub(super) fn extensions<'a>(r: &mut Reader<'a>) -> Result<Vec<(u16, &'a [u8])>, Refusal> {
    /// No server has as many, and they are looked through again and again.
    const MOST: usize = 64;
    let mut r = Reader::new(long(r)?);
    let mut extensions: Vec<(u16, &[u8])> = Vec::new();
    while !r.rest().is_empty() {
        let kind = r.u16()?;
        let body = long(&mut r)?;
        if extensions.len() == MOST || extensions.iter().any(|(other, _)| *other == kind) {
            return Err(Refusal::illegal("an extension comes twice"));
        }
        extensions.push((kind, body));
    }
    Ok(extensions)
}

/// The one protocol that a server chose.
pub(super) fn protocol(body: &[u8]) -> Result<&[u8], Refusal> {
    let mut r = Reader::new(body);
    let list = long(&mut r)?;
    end(&r)?;
    let mut r = Reader::new(list);
    let protocol = short(&mut r)?;
    end(&r)?;
    if protocol.is_empty() {
        return Err(Refusal::illegal("an application protocol without a name"));
    }
    Ok(protocol)
}

pub(super) fn short<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let len = r.u8()?;
    r.take(len.into())
}

pub(super) fn long<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let len = r.u16()?;
    r.take(len.into())
}

pub(super) fn very_long<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let len = u24(r)?;
    r.take(len)
}

pub(super) fn u24(r: &mut Reader<'_>) -> Result<usize, DecodeError> {
    let [high, middle, low] = r.array()?;
    Ok(u32::from_be_bytes([0, high, middle, low]) as usize)
}

/// Nothing may stand behind what was read.
pub(super) fn end(r: &Reader<'_>) -> Result<(), Refusal> {
    if r.rest().is_empty() { Ok(()) } else { Err(DecodeError::Invalid("length").into()) }
}
