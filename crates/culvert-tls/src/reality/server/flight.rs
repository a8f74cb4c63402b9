//! Our own flight, in the shape of the target's.
//!
//! ```text
//! certificate (178 bytes)   Ed25519 key of this process; where a signature belongs: HMAC-SHA512(auth key, that key)
//! ```
//!
//! Nothing else in it means anything, and clients look at nothing else.

use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey};
use aws_lc_rs::kem::{EncapsulationKey, ML_KEM_768};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use culvert_wire::BufChain;
use zeroize::Zeroizing;

use super::hello::{CIPHERTEXT, ClientHello, ENCAPSULATION_KEY, Group};
use super::mirror::{Lengths, Plan};
use crate::reality::AuthKey;
use crate::record::{Cipher, ContentType, HEADER, Opener, Sealer, Secret, TrafficSecret};
use crate::schedule::{Schedule, Transcript, finished, is_finished, signed_content};

const CHANGE_CIPHER_SPEC: [u8; 6] = [20, 3, 3, 0, 1, 1];
const ENCRYPTED_EXTENSIONS: [u8; 6] = [8, 0, 0, 2, 0, 0];
const CERTIFICATE: u8 = 11;
const CERTIFICATE_VERIFY: u8 = 15;
const FINISHED: u8 = 20;
const ED25519: [u8; 2] = [8, 7];

/// The certificate in DER before its public key: no names, a moment in the first year, Ed25519.
const BEFORE_KEY: [u8; 72] = *b"\x30\x81\xaf\x30\x63\xa0\x03\x02\x01\x02\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x30\x00\
    \x30\x22\x18\x0f00010101000000Z\x18\x0f00010101000000Z\x30\x00\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
/// Between the key and the signature.
const BEFORE_SIGNATURE: [u8; 10] = *b"\x30\x05\x06\x03\x2b\x65\x70\x03\x41\x00";

/// Bytes of the certificate, and of the signature behind it.
const CERTIFICATE_LEN: usize = 178;
const SIGNATURE: usize = 64;

/// Bytes of our four messages.
pub(super) fn shortest(cipher: Cipher) -> usize {
    ENCRYPTED_EXTENSIONS.len()
        + (4 + 1 + 3 + 3 + CERTIFICATE_LEN + 2)
        + (4 + 2 + 2 + SIGNATURE)
        + (4 + cipher.hash_len())
}

/// What is sent, and what the rest of the connection needs.
pub(super) struct Flight {
    pub(super) bytes: BufChain,
    /// Opens what the client sends of its handshake.
    pub(super) handshake_opener: Opener,
    /// Tells it what is wrong with that.
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    /// Of the client's handshake.
    traffic: TrafficSecret,
    /// Behind our flight.
    transcript: Transcript,
}

/// The certificate with which this process answers a client.
pub(super) fn certificate(pair: &Ed25519KeyPair, key: &AuthKey) -> Vec<u8> {
    let public = pair.public_key().as_ref();
    [&BEFORE_KEY, public, &BEFORE_SIGNATURE, &key.sign(public)].concat()
}

/// A client's hello, and what went before where the target asked for another one.
pub(super) struct Hellos {
    pub(super) last: ClientHello,
    /// The first hello and the target's request, both as messages.
    pub(super) before: Option<(Vec<u8>, Vec<u8>)>,
}

/// Makes the flight. `None` if the target's records are too short for it, or its group was not the client's.
pub(super) fn make(hellos: &Hellos, key: &AuthKey, plan: &Plan, pair: &Ed25519KeyPair) -> Option<Flight> {
    let (share, shared) = exchange(&hellos.last, plan.group)?;
    let mut server_hello = plan.server_hello.clone();
    server_hello[plan.share..plan.share + share.len()].copy_from_slice(&share);

    let mut transcript = match &hellos.before {
        None => Transcript::new(plan.cipher),
        Some((first, request)) => {
            let mut transcript = Transcript::after_retry(plan.cipher, first);
            transcript.add(request);
            transcript
        }
    };
    transcript.add(&hellos.last.message);
    transcript.add(&server_hello[HEADER..]);
    let schedule = Schedule::handshake(plan.cipher, &shared);
    let hash = transcript.hash();
    let [traffic, ours] =
        ["c hs traffic", "s hs traffic"].map(|label| schedule.traffic(label, hash.as_ref()));
    let mut sealer = Sealer::new(Secret::Tls13(ours.clone()), 0)?;

    let messages = messages(&mut transcript, &ours, &certificate(pair, key), pair);
    let mut bytes = BufChain::copied(&server_hello);
    if plan.changes {
        bytes.append_copy(&CHANGE_CIPHER_SPEC);
    }
    let mut seal = |mut content: &[u8], row: &[usize]| {
        for (at, len) in row.iter().enumerate() {
            // All is in the first record but for a byte in each of the others, as none may be empty.
            let behind = row.len() - 1 - at;
            let (part, rest) = content.split_at(content.len().checked_sub(behind)?);
            content = rest;
            bytes.push_back(sealer.seal_padded(ContentType::Handshake, part, *len).ok()?);
        }
        Some(())
    };
    match &plan.lengths {
        Lengths::Merged(row) => seal(&messages.concat(), row)?,
        Lengths::Separate(rows) => {
            messages.iter().zip(rows).try_for_each(|(message, row)| seal(message, row))?;
        }
    }

    let (schedule, hash) = (schedule.master(), transcript.hash());
    let [theirs, ours] =
        ["c ap traffic", "s ap traffic"].map(|label| Secret::Tls13(schedule.traffic(label, hash.as_ref())));
    let mut sealer = Sealer::new(ours, 0)?;
    if let Some(len) = plan.extra {
        bytes.push_back(sealer.seal_padded(ContentType::Data, &[], len).ok()?);
    }
    let opener = Opener::new(theirs, 0)?;
    let handshake_opener = Opener::new(Secret::Tls13(traffic.clone()), 0)?;
    Some(Flight { bytes, handshake_opener, sealer, opener, traffic, transcript })
}

impl Flight {
    /// Whether this is the client's last message.
    pub(super) fn is_finished(&self, message: &[u8]) -> bool {
        let [FINISHED, 0, 0, _, content @ ..] = message else { return false };
        usize::from(message[3]) == content.len()
            && is_finished(&self.traffic, self.transcript.hash().as_ref(), content)
    }
}

/// The four messages, each in the transcript before the next is made.
fn messages(
    transcript: &mut Transcript,
    traffic: &TrafficSecret,
    certificate: &[u8],
    pair: &Ed25519KeyPair,
) -> [Vec<u8>; 4] {
    let extensions = ENCRYPTED_EXTENSIONS.to_vec();
    transcript.add(&extensions);

    let entry = certificate.len() + 3 + 2;
    let mut body = vec![0];
    body.extend(&(entry as u32).to_be_bytes()[1..]);
    body.extend(&(certificate.len() as u32).to_be_bytes()[1..]);
    body.extend(certificate);
    body.extend([0, 0]);
    let certificate = message(CERTIFICATE, &body);
    transcript.add(&certificate);

    let signature = pair.sign(&signed_content(true, transcript.hash().as_ref()));
    let signature = signature.as_ref();
    let len = (signature.len() as u16).to_be_bytes();
    let verify = message(CERTIFICATE_VERIFY, &[&ED25519, &len[..], signature].concat());
    transcript.add(&verify);

    let finished = message(FINISHED, finished(traffic, transcript.hash().as_ref()).as_ref());
    transcript.add(&finished);
    [extensions, certificate, verify, finished]
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind];
    message.extend(&(body.len() as u32).to_be_bytes()[1..]);
    message.extend(body);
    message
}

/// Our share of the exchange, and what is shared.
fn exchange(hello: &ClientHello, group: Group) -> Option<(Vec<u8>, Zeroizing<Vec<u8>>)> {
    let algorithm = match group {
        Group::X25519 | Group::X25519MlKem768 => &agreement::X25519,
        Group::P256 => &agreement::ECDH_P256,
        Group::P384 => &agreement::ECDH_P384,
    };
    let ours = PrivateKey::generate(algorithm).ok()?;
    let public = ours.compute_public_key().ok()?;
    let agree = |theirs: &[u8], before: &[u8]| {
        let theirs = UnparsedPublicKey::new(algorithm, theirs);
        agreement::agree(&ours, theirs, (), |shared| Ok(Zeroizing::new([before, shared].concat()))).ok()
    };
    let theirs = hello.share(group)?;
    if group != Group::X25519MlKem768 {
        return Some((public.as_ref().to_vec(), agree(theirs, &[])?));
    }
    let (encapsulation, theirs) = theirs.split_at(ENCAPSULATION_KEY);
    let (ciphertext, secret) = EncapsulationKey::new(&ML_KEM_768, encapsulation).ok()?.encapsulate().ok()?;
    debug_assert_eq!(ciphertext.as_ref().len(), CIPHERTEXT);
    let shared = agree(theirs, secret.as_ref())?;
    Some(([ciphertext.as_ref(), public.as_ref()].concat(), shared))
}
