//! Whether a private key belongs to a certificate.
//!
//! The public key that a private key gives stands in its certificate byte for byte (RFC 5280, section 4.1), so there is
//! no need to read the certificate.

use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING,
    EcdsaKeyPair, Ed25519KeyPair, KeyPair,
};

/// Whether a certificate and a private key, both in DER, belong together; `None` if the key is of an unknown kind.
pub(super) fn belong_together(certificate: &[u8], private_key: &[u8]) -> Option<bool> {
    let public_key = public_key(private_key)?;
    Some(memchr::memmem::find(certificate, &public_key).is_some())
}

/// The public key in the form that stands in certificates, from a private key in PKCS #8, SEC 1 or PKCS #1.
fn public_key(private_key: &[u8]) -> Option<Vec<u8>> {
    for curve in
        [&ECDSA_P256_SHA256_ASN1_SIGNING, &ECDSA_P384_SHA384_ASN1_SIGNING, &ECDSA_P521_SHA512_ASN1_SIGNING]
    {
        let pair = EcdsaKeyPair::from_pkcs8(curve, private_key)
            .or_else(|_| EcdsaKeyPair::from_private_key_der(curve, private_key));
        if let Ok(pair) = pair {
            return Some(pair.public_key().as_ref().to_vec());
        }
    }
    if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(private_key) {
        return Some(pair.public_key().as_ref().to_vec());
    }
    let pair = rsa::KeyPair::from_pkcs8(private_key).or_else(|_| rsa::KeyPair::from_der(private_key)).ok()?;
    Some(pair.public_key().as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::PemSection;

    macro_rules! asset {
        ($name:literal) => {
            PemSection::all(include_str!(concat!("../../../corpus/assets/", $name))).remove(0).content
        };
    }

    #[test]
    fn keys_of_every_kind_are_told_from_those_of_others() {
        let pairs = [
            ("P-256", asset!("server.crt"), asset!("server.key")),
            ("P-256 again", asset!("client.crt"), asset!("client.key")),
            ("SEC 1", asset!("p384.crt"), asset!("p384.key")),
            ("Ed25519", asset!("ed25519.crt"), asset!("ed25519.key")),
            ("RSA", asset!("rsa.crt"), asset!("rsa.key")),
            ("PKCS #1", asset!("rsa.crt"), asset!("rsa.pkcs1.key")),
        ];
        for (kind, certificate, _) in &pairs {
            for (other_kind, other_certificate, key) in &pairs {
                let expected = Some(certificate == other_certificate);
                assert_eq!(belong_together(certificate, key), expected, "{kind}, {other_kind}");
            }
        }
        assert_eq!(belong_together(&pairs[0].1, b"0"), None);
    }
}
