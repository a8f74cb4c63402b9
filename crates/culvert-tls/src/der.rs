//! The few fields of an X.509 certificate that messages and pins are about.
//!
//! ```text
//! Certificate { TBSCertificate { [0] version, serial, algorithm, issuer, validity, subject, public key, … }, … }
//! ```
//!
//! Source: RFC 5280 section 4.1, X.690. Whether to trust a certificate is decided elsewhere, by a library; nothing here
//! checks a signature.

use time::{Date, Month};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;

/// What a certificate says about itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Certificate<'a> {
    /// `SubjectPublicKeyInfo`, whole: what a public key pin is the hash of.
    pub(crate) public_key: &'a [u8],
    /// Seconds since 1970.
    pub(crate) not_before: i64,
    /// Seconds since 1970.
    pub(crate) not_after: i64,
    issuer: &'a [u8],
    subject: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Reads them; `None` if it is no certificate.
    pub(crate) fn parse(der: &'a [u8]) -> Option<Self> {
        let mut certificate = Der(Der(der).take(SEQUENCE)?);
        let mut fields = Der(certificate.take(SEQUENCE)?);
        fields.skip_if(VERSION);
        fields.next()?; // serial number
        fields.next()?; // algorithm
        let issuer = fields.take(SEQUENCE)?;
        let mut validity = Der(fields.take(SEQUENCE)?);
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        let subject = fields.take(SEQUENCE)?;
        let public_key = fields.whole(SEQUENCE)?;
        Some(Self { public_key, not_before, not_after, issuer, subject })
    }

    /// Whether it names itself as its issuer.
    pub(crate) fn is_self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    /// Who signed it: common name, else organisation.
    pub(crate) fn issuer(&self) -> Option<String> {
        name(self.issuer)
    }

    /// Whom it is for, likewise.
    pub(crate) fn subject(&self) -> Option<String> {
        name(self.subject)
    }
}

fn name(rdns: &[u8]) -> Option<String> {
    const COMMON_NAME: &[u8] = &[0x55, 4, 3];
    const ORGANISATION: &[u8] = &[0x55, 4, 10];
    [COMMON_NAME, ORGANISATION].into_iter().find_map(|wanted| attribute(rdns, wanted))
}

fn attribute(rdns: &[u8], wanted: &[u8]) -> Option<String> {
    let mut rdns = Der(rdns);
    while let Some(set) = rdns.take(SET) {
        let mut set = Der(set);
        while let Some(pair) = set.take(SEQUENCE) {
            let mut pair = Der(pair);
            if pair.take(OID)? == wanted {
                let (_, _, value) = pair.next()?;
                return Some(String::from_utf8_lossy(value).chars().filter(|c| !c.is_control()).collect());
            }
        }
    }
    None
}

/// A cursor over elements of DER.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next element: tag, whole, content.
    fn next(&mut self) -> Option<(u8, &'a [u8], &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk::<2>()?;
        let (len_bytes, len) = match first {
            0..=0x7f => (0, usize::from(first)),
            0x81..=0x83 => {
                let count = usize::from(first & 0x7f);
                let bytes = rest.get(..count)?;
                (count, bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)))
            }
            _ => return None,
        };
        let content = rest.get(len_bytes..len_bytes.checked_add(len)?)?;
        let (whole, after) = self.0.split_at(2 + len_bytes + len);
        self.0 = after;
        Some((tag, whole, content))
    }

    /// The content of the next element, which has this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, ..)| *found == tag).map(|(_, _, content)| content)
    }

    /// The next element with tag and length, which has this tag.
    fn whole(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, ..)| *found == tag).map(|(_, whole, _)| whole)
    }

    fn skip_if(&mut self, tag: u8) {
        if self.0.first() == Some(&tag) {
            self.next();
        }
    }

    /// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`, as seconds since 1970.
    fn time(&mut self) -> Option<i64> {
        let (tag, _, text) = self.next()?;
        let digits = text.strip_suffix(b"Z")?;
        let number = |digits: &[u8]| -> Option<u16> {
            digits.iter().try_fold(0, |number, digit| {
                digit.is_ascii_digit().then(|| number * 10 + u16::from(digit - b'0'))
            })
        };
        let (year, rest) = match tag {
            UTC_TIME => {
                let year = number(digits.get(..2)?)?;
                (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
            }
            GENERALIZED_TIME => (number(digits.get(..4)?)?, &digits[4..]),
            _ => return None,
        };
        if rest.len() != 10 {
            return None;
        }
        let mut parts = rest.chunks(2).map(|pair| number(pair).map(|number| number as u8));
        let mut part = || parts.next().flatten();
        let month = Month::try_from(part()?).ok()?;
        let date = Date::from_calendar_date(i32::from(year), month, part()?).ok()?;
        let time = date.with_hms(part()?, part()?, part()?).ok()?;
        Some(time.assume_utc().unix_timestamp())
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
    use rustls::pki_types::CertificateDer;

    use super::*;

    #[test]
    fn the_fields_of_a_made_certificate_are_found() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["a.test".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "the name");
        params.not_before = date_time_ymd(2025, 2, 3);
        params.not_after = date_time_ymd(2061, 1, 1);
        let made = params.self_signed(&key).unwrap();
        let read = Certificate::parse(made.der()).unwrap();
        assert_eq!(read.not_before, date_time_ymd(2025, 2, 3).unix_timestamp());
        assert_eq!(read.not_after, date_time_ymd(2061, 1, 1).unix_timestamp());
        assert!(read.is_self_issued());
        assert_eq!(read.issuer().as_deref(), Some("the name"));
        assert_eq!(read.subject(), read.issuer());
        let der = CertificateDer::from(made.der().to_vec());
        let other = webpki::EndEntityCert::try_from(&der).unwrap();
        assert_eq!(read.public_key, other.subject_public_key_info().as_ref());
    }

    #[test]
    fn no_cut_of_a_certificate_reads_beyond_its_end() {
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::new(["a.test".to_owned()]).unwrap().self_signed(&key).unwrap();
        for end in 0..made.der().len() {
            assert_eq!(Certificate::parse(&made.der()[..end]), None);
        }
        for position in 0..made.der().len() {
            let mut broken = made.der().to_vec();
            broken[position] ^= 0x55;
            let _ = Certificate::parse(&broken);
        }
    }
}
