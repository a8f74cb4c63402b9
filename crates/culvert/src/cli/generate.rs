//! `culvert generate`: keys, certificates and random values, in the forms sing-box prints.

use std::fmt::Write as _;

use aws_lc_rs::agreement::{self, PrivateKey};
use aws_lc_rs::encoding::{AsBigEndian, Curve25519SeedBin, EcPrivateKeyBin};
use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use clap::Subcommand;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, PKCS_RSA_SHA256, RsaKeySize};

use super::{Failure, print};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// A random UUID.
    Uuid,
    /// Random bytes.
    Rand {
        /// How many bytes.
        #[arg(value_name = "N")]
        length: usize,
        /// Print them in base64.
        #[arg(long, conflicts_with = "hex")]
        base64: bool,
        /// Print them in hexadecimal.
        #[arg(long)]
        hex: bool,
    },
    /// A key pair for REALITY.
    RealityKeypair,
    /// A key pair for WireGuard.
    WgKeypair,
    /// A key pair for VAPID.
    VapidKeypair,
    /// A private key and a self-signed certificate.
    TlsKeypair {
        /// The name the certificate is for.
        #[arg(value_name = "NAME")]
        name: String,
        /// How long it is valid, in months.
        #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1200))]
        months: u32,
    },
    /// A key pair for Encrypted Client Hello.
    EchKeypair {
        /// The name that everybody may see.
        #[arg(value_name = "PUBLIC_NAME")]
        public_name: String,
    },
}

/// Random bytes are made a piece at a time, so that any number can be asked for.
const PIECE: usize = 64 << 10;

pub(super) fn execute(command: &Command) -> Result<(), Failure> {
    let text = match command {
        Command::Uuid => uuid()?,
        Command::Rand { length, base64: true, .. } => STANDARD.encode(random(*length)?) + "\n",
        Command::Rand { length, hex: true, .. } => hex(&random(*length)?) + "\n",
        Command::Rand { length, .. } => return raw(*length),
        Command::RealityKeypair => {
            let (private, public) = x25519()?;
            pair(&URL_SAFE_NO_PAD.encode(private), &URL_SAFE_NO_PAD.encode(public))
        }
        Command::WgKeypair => {
            let (mut private, public) = x25519()?;
            // The clamped form of RFC 7748 section 5, which WireGuard's tools print.
            private[0] &= 248;
            private[31] = (private[31] & 127) | 64;
            pair(&STANDARD.encode(private), &STANDARD.encode(public))
        }
        Command::VapidKeypair => {
            let key = PrivateKey::generate(&agreement::ECDH_P256).map_err(crypto)?;
            let private: EcPrivateKeyBin<'_> = key.as_be_bytes().map_err(crypto)?;
            let public = key.compute_public_key().map_err(crypto)?;
            pair(&URL_SAFE_NO_PAD.encode(private.as_ref()), &URL_SAFE_NO_PAD.encode(public.as_ref()))
        }
        Command::TlsKeypair { name, months } => tls(name, *months)?,
        Command::EchKeypair { public_name } => ech(public_name)?,
    };
    print(text.as_bytes())
}

fn crypto(_: aws_lc_rs::error::Unspecified) -> Failure {
    Failure("the cryptography library failed".to_owned())
}

fn random(length: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; length];
    rand::fill(&mut bytes).map_err(crypto)?;
    Ok(bytes)
}

fn raw(mut length: usize) -> Result<(), Failure> {
    while length > 0 {
        let now = length.min(PIECE);
        print(&random(now)?)?;
        length -= now;
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a string cannot fail
        text
    })
}

/// Version 4, variant 1 (RFC 9562 section 5.4).
fn uuid() -> Result<String, Failure> {
    let mut bytes = random(16)?;
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let digits = hex(&bytes);
    Ok(format!(
        "{}-{}-{}-{}-{}\n",
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..]
    ))
}

fn x25519() -> Result<([u8; 32], [u8; 32]), Failure> {
    let key = PrivateKey::generate(&agreement::X25519).map_err(crypto)?;
    let private: Curve25519SeedBin<'_> = key.as_be_bytes().map_err(crypto)?;
    let public = key.compute_public_key().map_err(crypto)?;
    let both = (private.as_ref().try_into(), public.as_ref().try_into());
    let (Ok(private), Ok(public)) = both else { return Err(crypto(aws_lc_rs::error::Unspecified)) };
    Ok((private, public))
}

fn pair(private: &str, public: &str) -> String {
    format!("PrivateKey: {private}\nPublicKey: {public}\n")
}

/// RSA-2048, since old clients take nothing else; valid from an hour ago, for clocks that are late.
fn tls(name: &str, months: u32) -> Result<String, Failure> {
    let failed = |error: rcgen::Error| Failure(format!("generate certificate for {name}: {error}"));
    let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).map_err(failed)?;
    let mut params = CertificateParams::new([name.to_owned()]).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = time::OffsetDateTime::now_utc();
    params.not_before = now - time::Duration::hours(1);
    params.not_after = add_months(now, months);
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok(format!("{}\n{}\n", key.serialize_pem(), certificate.pem()))
}

/// The same day of a later month, or the month's last where it has no such day.
fn add_months(from: time::OffsetDateTime, months: u32) -> time::OffsetDateTime {
    let index = from.year() * 12 + i32::from(u8::from(from.month())) - 1 + months as i32;
    let (year, month) = (index.div_euclid(12), index.rem_euclid(12) as u8 + 1);
    let Ok(month) = time::Month::try_from(month) else { return from };
    let day = from.day().min(month.length(year));
    time::Date::from_calendar_date(year, month, day).map_or(from, |date| from.replace_date(date))
}

/// One ECHConfig (RFC 9849 section 4): X25519, HKDF-SHA256, the three AEADs; and the key list that servers read, the
/// private key and the config each with a length before it.
fn ech(public_name: &str) -> Result<String, Failure> {
    if public_name.is_empty() || public_name.len() > 255 {
        return Err(Failure("the public name must have 1 to 255 bytes".to_owned()));
    }
    let (private, public) = x25519()?;
    let mut contents = random(1)?; // config_id
    contents.extend(0x0020u16.to_be_bytes()); // kem_id: DHKEM(X25519, HKDF-SHA256)
    contents.extend(with_length(&public));
    let suites = [1u16, 2, 3].map(|aead| [0, 1, 0, aead as u8]).concat(); // HKDF-SHA256 with each AEAD
    contents.extend(with_length(&suites));
    contents.push(0); // maximum_name_length: no promise
    contents.push(public_name.len() as u8);
    contents.extend(public_name.as_bytes());
    contents.extend([0, 0]); // no extensions
    let mut config = 0xfe0du16.to_be_bytes().to_vec();
    config.extend(with_length(&contents));
    let mut keys = with_length(&private);
    keys.extend(with_length(&config));
    Ok(pem("ECH CONFIGS", &with_length(&config)) + &pem("ECH KEYS", &keys))
}

fn with_length(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u16).to_be_bytes().to_vec();
    out.extend(bytes);
    out
}

fn pem(label: &str, bytes: &[u8]) -> String {
    let text = STANDARD.encode(bytes);
    let lines: Vec<_> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_of_version_4() {
        let id = uuid().unwrap();
        assert_eq!(id.len(), 37);
        assert_eq!(id.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&id.as_bytes()[19]));
        assert_ne!(id, uuid().unwrap());
    }

    #[test]
    fn a_month_later_is_never_past_its_end() {
        let day = |year, month, day| {
            let month = time::Month::try_from(month).unwrap();
            time::Date::from_calendar_date(year, month, day).unwrap().midnight().assume_utc()
        };
        assert_eq!(add_months(day(2024, 1, 31), 1), day(2024, 2, 29));
        assert_eq!(add_months(day(2026, 12, 15), 1), day(2027, 1, 15));
        assert_eq!(add_months(day(2026, 11, 30), 27), day(2029, 2, 28));
    }

    #[test]
    fn ech_lists_carry_their_lengths() {
        let text = ech("cover.test").unwrap();
        let block = |label: &str| {
            let begin = format!("-----BEGIN {label}-----\n");
            let body = text.split(&begin).nth(1).unwrap().split("-----END").next().unwrap();
            STANDARD.decode(body.replace('\n', "")).unwrap()
        };
        let configs = block("ECH CONFIGS");
        assert_eq!(usize::from(u16::from_be_bytes([configs[0], configs[1]])), configs.len() - 2);
        assert_eq!(&configs[2..4], [0xfe, 0x0d]);
        let keys = block("ECH KEYS");
        assert_eq!(&keys[..2], [0, 32]);
        assert_eq!(&keys[36..], &configs[2..]);
    }
}
