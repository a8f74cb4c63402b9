//! The published vectors.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair, ML_DSA_65_SIGNING, PqdsaKeyPair};
use rustls::pki_types::CertificateDer;

use super::auth::SessionId;
use super::proof::Proof;
use super::{AuthKey, RealityClient};
use crate::browser::{ClientHello, Fingerprint};
use crate::record::{Cipher, ContentType, Sealer, Secret};
use crate::schedule::{Schedule, Transcript};

pub(crate) fn hex(text: &str) -> Vec<u8> {
    let text: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

const SHARED: &str = "04c304fb1ca83cee75e206344231f33797e07d9929db670994b7c6fbeb1dc255";
const SEALED: &str = "41ccd8dcfb63c2ad7cfd6829e200b2bdfca2d052a9a1c4187eb88fc5792bbf6c";

/// The hello of the vectors, with zeros for its session id.
fn message() -> Vec<u8> {
    hex("010000be0303000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20
         0000000000000000000000000000000000000000000000000000000000000000 00061301130213030100
         006f00000010000e00000b6578616d706c652e636f6d000a00060004001d0017000d0016001404030804
         04010503080505010806060108070201002b0003020304002d00020101003300260024001d0020
         358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254")
}

fn auth_key() -> AuthKey {
    let random: Vec<u8> = (0..32).collect();
    AuthKey::new(&hex(SHARED).try_into().unwrap(), &random.try_into().unwrap())
}

#[test]
fn a_session_id_is_sealed_and_opened_as_published() {
    let id = SessionId {
        version: [26, 9, 9],
        time: 0x6a00_0000,
        short_id: [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef],
    };
    let private: Vec<u8> = (0x20..0x40).collect();
    let mut hello = ClientHello::fixed(message(), &private.try_into().unwrap());
    let server = hex("79a631eede1bf9c98f12032cdeadd0e7a079398fc786b88cc846ec89af85a51a").try_into().unwrap();
    let shared = hello.agree_x25519(&server).unwrap();
    assert_eq!(shared[..], hex(SHARED));
    let key = AuthKey::new(&shared, hello.random());
    key.seal(&mut hello, id).unwrap();
    let mut sealed = message();
    sealed[39..71].copy_from_slice(&hex(SEALED));
    assert_eq!(hello.message(), sealed);
    assert_eq!(key.open(&sealed), Some(id));
    assert_eq!(auth_key().open(&sealed), Some(id));
    for at in 0..sealed.len() {
        let mut other = sealed.clone();
        other[at] ^= 1;
        assert_eq!(key.open(&other), None, "changed at {at}");
        assert_eq!(key.open(&sealed[..at]), None, "cut at {at}");
    }
}

/// A key that is a point of low order makes the same secret with every key.
#[test]
fn keys_that_are_none_are_refused() {
    let mut hello = ClientHello::new(Fingerprint::Chrome, None, &[]).unwrap();
    let client = |public_key| RealityClient { public_key, short_id: [0; 8], mldsa65: None };
    assert!(client([0; 32]).sign(&mut hello).is_none());
    assert!(client([9; 32]).sign(&mut hello).is_some());
    let mut hello = ClientHello::new(Fingerprint::Android, None, &[]).unwrap();
    assert!(client([9; 32]).sign(&mut hello).is_none());
}

/// The certificate of REALITY without ML-DSA.
pub(crate) fn certificate(key: &AuthKey, public_key: &[u8]) -> CertificateDer<'static> {
    let head = hex("3081af3063a003020102020100300506032b65703000
                    3022180f30303031303130313030303030305a180f30303031303130313030303030305a3000
                    302a300506032b6570032100");
    let der = [&head[..], public_key, &hex("300506032b6570034100"), &key.sign(public_key)].concat();
    assert_eq!(der.len(), 178);
    CertificateDer::from(der)
}

#[test]
fn a_certificate_is_bound_to_its_connection() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[1; 32]).unwrap();
    let public = pair.public_key().as_ref();
    assert_eq!(public, hex("8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"));
    let expected = "1f549cfe4c9814f897ae70717bc4643b31cac698d4d54d8bf19d1cb934d36133
                    2c35d223a0eccfaadca6207c45ee7ca63e2dd7f3b079793d93d4386a72d8571c";
    assert_eq!(auth_key().sign(public)[..], hex(expected));
    let made = certificate(&auth_key(), public);
    let proof = Proof { key: auth_key(), mldsa65: None };
    assert!(proof.is_given(&made, [b"", b""]));
    let other = Proof { key: AuthKey::new(&[7; 32], &[8; 32]), mldsa65: None };
    assert!(!other.is_given(&made, [b"", b""]));
    for at in 0..made.len() {
        assert!(!proof.is_given(&CertificateDer::from(made[..at].to_vec()), [b"", b""]), "cut at {at}");
    }
    for at in made.len() - 64..made.len() {
        let mut changed = made.to_vec();
        changed[at] ^= 1;
        assert!(!proof.is_given(&changed.into(), [b"", b""]), "changed at {at}");
    }
}

#[test]
fn a_second_signature_is_over_both_hellos() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[1; 32]).unwrap();
    let public = pair.public_key().as_ref();
    let mut sealed = message();
    sealed[39..71].copy_from_slice(&hex(SEALED));
    let content = auth_key().mldsa65_content(public, [&sealed, b"SERVERHELLO"]);
    let expected = "8d2a022ec2fb20d6086e067056ddcb8ba2ad956b104d09e42f7ea0de05a0fb05
                    ce1db8f6340202085ae2300478a9d38de8bf432b6abe89e4afb3ecab56a95f4a";
    assert_eq!(content[..], hex(expected));

    let signer = PqdsaKeyPair::from_seed(&ML_DSA_65_SIGNING, &[5; 32]).unwrap();
    let mut signature = vec![0; 3309];
    signer.sign(&content, &mut signature).unwrap();
    let short = certificate(&auth_key(), public);
    // What counts is where the signature stands, and the two ends.
    let mut long = hex("30820db130820d63a003020102020100300506032b65703000
                        3022180f30303031303130313030303030305a180f30303031303130313030303030305a3000");
    long.extend(hex("302a300506032b6570032100"));
    long.extend(public);
    long.extend(hex("a3820cfc30820cf830820cf40601000482 0ced"));
    assert_eq!(long.len(), 126);
    long.extend(&signature);
    long.extend(hex("300506032b6570034100"));
    long.extend(auth_key().sign(public));
    assert_eq!(long.len(), 3509);
    let long = CertificateDer::from(long);
    let wanted = Some(signer.public_key().as_ref().to_vec());
    let proof = Proof { key: auth_key(), mldsa65: wanted };
    assert!(proof.is_given(&long, [&sealed, b"SERVERHELLO"]));
    assert!(!proof.is_given(&long, [&sealed, b"SERVERHELL0"]));
    assert!(!proof.is_given(&short, [&sealed, b"SERVERHELLO"]));
    assert!(Proof { key: auth_key(), mldsa65: None }.is_given(&long, [b"", b""]));
}

#[test]
fn the_secrets_of_a_handshake_are_the_published_ones() {
    let schedule = Schedule::handshake(Cipher::Aes128Gcm, &hex(SHARED));
    let mut transcript = Transcript::new(Cipher::Aes128Gcm);
    transcript.add(b"ClientHelloServerHello");
    let server = schedule.traffic("s hs traffic", transcript.hash().as_ref());
    let mut sealer = Sealer::new(Secret::Tls13(server), 0).unwrap();
    let record = sealer.seal_padded(ContentType::Handshake, &[8, 0, 0, 2, 0, 0], 64).unwrap();
    assert_eq!(
        record[..],
        hex("170303003b99fb2c9c20a19dd61976363a883a16df8e67ede2ca0127188e2f341f1cfc1463f9ac7ac59c5eef3c32c19d29
             80382703fbe6acf9a0859013fa9988")
    );
}
