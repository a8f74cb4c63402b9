//! The name in an encrypted hello: a hello of the same browser for the server's real name, sealed inside one for a name that
//! everybody may see.
//!
//! ```text
//! configuration   fe0d | length 2 | id 1 | KEM 2 | key 2+ | (KDF 2 | AEAD 2) 2+ | longest name 1 | public name 1+ | extensions 2+
//! inner hello     no session id | name | ECH: 1 | versions | the types of what is as in the outer one | zeros
//! outer hello     ECH: 0 | KDF 2 | AEAD 2 | id 1 | key 2+ | sealed inner hello 2+
//! ```
//!
//! A server that has opened it says so in the last eight bytes of its random number, which nobody else can make or tell
//! from others. One that has not answers the outer hello.
//!
//! Source: RFC 9849. Left out on purpose: a request for another hello, which servers with ECH do not make of browsers that
//! show a key of X25519.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hkdf;
use culvert_wire::{DecodeError, Reader};
use rustls::crypto::aws_lc_rs::hpke::ALL_SUPPORTED_SUITES;
use rustls::crypto::hpke::{Hpke, HpkePublicKey};

use super::message::{encode, name_list, with_len, with_short_len};
use super::profiles::{ECH, SERVER_NAME, SUPPORTED_VERSIONS};
use super::{ClientHello, dice};
use crate::record::{Cipher, expand_label};
use crate::schedule::Transcript;

const VERSION: u16 = 0xfe0d;
const X25519_HKDF_SHA256: u16 = 0x0020;
const OUTER_EXTENSIONS: u16 = 0xfd00;
const TLS_13: u16 = 0x0304;
/// The outer hello's ECH says so by this byte, the inner one's by the other.
const OUTER: u8 = 0;
const INNER: u8 = 1;
/// What every AEAD of HPKE adds.
const TAG: usize = 16;
/// Lengths of inner hellos are multiples of this.
const STEP: usize = 32;
/// Where the random number of a server's hello ends in the message.
const RANDOM_END: usize = 4 + 2 + 32;
const CONFIRMATION: usize = 8;

/// A configuration that can be used.
pub(crate) struct Config {
    /// All of it, as it came.
    whole: Vec<u8>,
    id: u8,
    key: Vec<u8>,
    suite: &'static dyn Hpke,
    longest_name: usize,
    /// The name that everybody may see.
    pub(crate) public_name: String,
}

impl Config {
    /// The first one in a list whose algorithms are known and that asks for nothing else.
    pub(crate) fn choose(list: &[u8]) -> Result<Option<Self>, DecodeError> {
        let mut r = Reader::new(list);
        let len = r.u16()?;
        let mut configs = Reader::new(r.take(len.into())?);
        let mut chosen = None;
        while !configs.rest().is_empty() {
            let start = configs.rest();
            let version = configs.u16()?;
            let len = configs.u16()?;
            let body = configs.take(len.into())?;
            if version == VERSION && chosen.is_none() {
                chosen = Self::parse(&start[..4 + body.len()], body)?;
            }
        }
        Ok(chosen)
    }

    fn parse(whole: &[u8], body: &[u8]) -> Result<Option<Self>, DecodeError> {
        let mut r = Reader::new(body);
        let (id, kem) = (r.u8()?, r.u16()?);
        let len = r.u16()?;
        let key = r.take(len.into())?.to_vec();
        let len = r.u16()?;
        let mut offered = Reader::new(r.take(len.into())?);
        let mut suites = Vec::new();
        while !offered.rest().is_empty() {
            suites.push((offered.u16()?, offered.u16()?));
        }
        let longest_name = r.u8()?.into();
        let len = r.u8()?;
        let public_name = String::from_utf8(r.take(len.into())?.to_vec());
        let len = r.u16()?;
        let mut extensions = Reader::new(r.take(len.into())?);
        while !extensions.rest().is_empty() {
            const MANDATORY: u16 = 0x8000;
            let kind = extensions.u16()?;
            let len = extensions.u16()?;
            extensions.take(len.into())?;
            if kind & MANDATORY != 0 {
                return Ok(None);
            }
        }
        // Those that browsers seem to use too come first.
        let known = |(kdf, aead): (u16, u16)| {
            ALL_SUPPORTED_SUITES.iter().copied().find(|suite| {
                let suite = suite.suite();
                (u16::from(suite.kem), u16::from(suite.sym.kdf_id), u16::from(suite.sym.aead_id))
                    == (X25519_HKDF_SHA256, kdf, aead)
            })
        };
        suites.sort_unstable();
        let suite = suites.into_iter().find_map(known).filter(|_| kem == X25519_HKDF_SHA256);
        Ok(match (suite, public_name) {
            (Some(suite), Ok(public_name)) if !public_name.is_empty() => {
                Some(Self { whole: whole.to_vec(), id, key, suite, longest_name, public_name })
            }
            _ => None,
        })
    }
}

/// What is inside, as a message.
pub(crate) struct InnerHello {
    message: Vec<u8>,
    random: [u8; 32],
    /// Whose certificate a server shows that has not opened it.
    pub(crate) public_name: String,
}

impl InnerHello {
    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }

    /// Whether the server's hello says that this was opened.
    pub(crate) fn is_accepted(&self, cipher: Cipher, server_hello: &[u8]) -> bool {
        let Some((head, tail)) = server_hello.split_at_checked(RANDOM_END) else { return false };
        let (head, confirmation) = head.split_at(RANDOM_END - CONFIRMATION);
        let mut transcript = Transcript::new(cipher);
        for part in [&self.message[..], head, &[0; CONFIRMATION], tail] {
            transcript.add(part);
        }
        let secret = hkdf::Salt::new(cipher.hash(), &[]).extract(&self.random);
        let mut expected = [0; CONFIRMATION];
        expand_label(&secret, "ech accept confirmation", transcript.hash().as_ref(), &mut expected);
        verify_slices_are_equal(&expected, confirmation).is_ok()
    }
}

impl ClientHello {
    /// Puts a hello for `server_name` into this one, which was made for the configuration's public name. `None` if this browser
    /// has no ECH, or the cryptography library fails.
    #[must_use]
    pub(crate) fn encrypt(&mut self, config: &Config, server_name: Option<&str>) -> Option<()> {
        let random: [u8; 32] = dice::bytes();
        let is_own = |kind: u16| matches!(kind, SERVER_NAME | ECH | SUPPORTED_VERSIONS);
        let mut own = Vec::new();
        if let Some(name) = server_name {
            own.push((SERVER_NAME, name_list(name)));
        }
        own.push((ECH, vec![INNER]));
        own.push((SUPPORTED_VERSIONS, with_short_len(&TLS_13.to_be_bytes())));
        let as_outer = || self.extensions.iter().filter(|(kind, _)| !is_own(*kind));
        let types: Vec<u8> = as_outer().flat_map(|(kind, _)| kind.to_be_bytes()).collect();
        let mut short = own.clone();
        short.push((OUTER_EXTENSIONS, with_short_len(&types)));
        let mut whole = own;
        whole.extend(as_outer().cloned());
        let message = encode(&random, &self.session_id, &self.suites, &mut whole);
        // Behind the head of a message, and without the session id.
        let mut inner = encode(&random, &[], &self.suites, &mut short).split_off(4);
        let name = server_name
            .map_or(config.longest_name + 9, |name| config.longest_name.saturating_sub(name.len()));
        let len = (inner.len() + name).next_multiple_of(STEP);
        inner.resize(len, 0);

        let info = [b"tls ech\0", &config.whole[..]].concat();
        let key = HpkePublicKey(config.key.clone());
        let (encapsulated, mut sealer) = config.suite.setup_sealer(&info, &key).ok()?;
        let suite = config.suite.suite().sym;
        let mut head = vec![OUTER];
        head.extend(u16::from(suite.kdf_id).to_be_bytes());
        head.extend(u16::from(suite.aead_id).to_be_bytes());
        head.push(config.id);
        head.extend(with_len(&encapsulated.0));
        self.set_ech([&head[..], &with_len(&vec![0; len + TAG])].concat())?;
        let sealed = sealer.seal(&self.message[4..], &inner).ok()?;
        self.set_ech([&head[..], &with_len(&sealed)].concat())?;
        let public_name = config.public_name.clone();
        self.inner = Some(InnerHello { message, random, public_name });
        Some(())
    }

    fn set_ech(&mut self, body: Vec<u8>) -> Option<()> {
        self.extensions.iter_mut().find(|(kind, _)| *kind == ECH)?.1 = body;
        self.rewrite();
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::hpke::{EncapsulatedSecret, HpkePrivateKey};

    use super::*;
    use crate::browser::Fingerprint;
    use crate::browser::tests::Read;

    /// Of the sheet: a list with one configuration, and its private key.
    const LIST: &str =
        "004dfe0d0049000020 0020e71005922e7a0c986d20aa0b2ffab97b4bad9a4940f8ca81551f4318bc135351
                        000c000100010001000200010003 00127075626c69632e6578616d706c652e636f6d0000";
    const KEY: &str = "fede35a3ecf5ccd4f4664fbddcfa311899de6f7f68a6a7c74af63287bbc3c4e1";

    fn hex(text: &str) -> Vec<u8> {
        crate::reality::tests::hex(text)
    }

    #[test]
    fn configurations_are_read_and_others_passed_over() {
        let config = Config::choose(&hex(LIST)).unwrap().unwrap();
        assert_eq!((&*config.public_name, config.id), ("public.example.com", 0));
        assert_eq!(config.whole, hex(LIST)[2..]);
        let list = hex(LIST);
        for cut in 0..list.len() {
            assert!(Config::choose(&list[..cut]).is_err(), "cut at {cut}");
        }
        let mut other = list.clone();
        other[7] = 0x10;
        assert!(Config::choose(&other).unwrap().is_none(), "another KEM");
        let both = [&[0, 0x9a][..], &other[2..], &list[2..]].concat();
        assert_eq!(Config::choose(&both).unwrap().unwrap().whole, list[2..]);
    }

    #[test]
    fn an_inner_hello_is_opened_as_the_one_that_was_meant() {
        for fingerprint in [Fingerprint::Chrome, Fingerprint::Chrome120, Fingerprint::Firefox] {
            let config = Config::choose(&hex(LIST)).unwrap().unwrap();
            let mut hello = ClientHello::new(fingerprint, Some(&config.public_name), &[]).unwrap();
            hello.encrypt(&config, Some("secret.example.com")).unwrap();
            let outer = Read::new(hello.message());
            let body = outer.extension(ECH).unwrap();
            assert_eq!(body[..6], [0, 0, 1, 0, 1, 0]);
            let (key, sealed) = (&body[8..40], &body[42..]);
            assert_eq!(sealed.len() % STEP, TAG);
            // The sealed part counts as zeros where it is told what surrounds it.
            let at = hello.message().windows(sealed.len()).position(|window| window == sealed).unwrap();
            let mut around = hello.message()[4..].to_vec();
            around[at - 4..at - 4 + sealed.len()].fill(0);
            let info = [b"tls ech\0", &config.whole[..]].concat();
            let mut opener = config
                .suite
                .setup_opener(&EncapsulatedSecret(key.to_vec()), &info, &HpkePrivateKey::from(hex(KEY)))
                .unwrap();
            let opened = opener.open(&around, sealed).unwrap();
            let mut r = Reader::new(&opened);
            r.expect(&[3, 3], "version").unwrap();
            assert_eq!(r.take(32).unwrap(), hello.inner.as_ref().unwrap().random);
            assert_ne!(hello.inner.as_ref().unwrap().random, *hello.random());
            r.expect(&[0], "session id").unwrap();
            let inner = Read::new(hello.inner.as_ref().unwrap().message());
            assert_eq!(inner.extension(SERVER_NAME), Some(&name_list("secret.example.com")[..]));
            assert_eq!(inner.extension(ECH), Some(&[1][..]));
            assert_eq!(inner.extension(SUPPORTED_VERSIONS), Some(&[2, 3, 4][..]));
            assert_eq!(outer.extension(SERVER_NAME), Some(&name_list("public.example.com")[..]));
            assert_eq!(inner.extensions.len(), outer.extensions.len());
            assert_eq!((inner.shares(), &inner.suites), (outer.shares(), &outer.suites));
            assert!(!hello.message().windows(6).any(|window| window == b"secret"));
        }
        let config = Config::choose(&hex(LIST)).unwrap().unwrap();
        let mut hello = ClientHello::new(Fingerprint::Qq, Some(&config.public_name), &[]).unwrap();
        assert!(hello.encrypt(&config, None).is_none(), "this browser has no ECH");
    }
}
