//! Each hello against what is published of the browser, and the spread of what is random in it.

use std::collections::HashMap;

use aws_lc_rs::digest::{SHA256, digest};
use culvert_wire::Reader;
use md5::{Digest, Md5};

use super::message::is_grease;
use super::{ClientHello, Fingerprint};

/// A hello taken apart.
pub(crate) struct Read {
    pub(crate) suites: Vec<u16>,
    pub(crate) extensions: Vec<(u16, Vec<u8>)>,
}

impl Read {
    pub(crate) fn new(message: &[u8]) -> Self {
        let mut r = Reader::new(message);
        r.expect(&[1, 0], "type").unwrap();
        assert_eq!(usize::from(r.u16().unwrap()), message.len() - 4);
        r.expect(&[3, 3], "version").unwrap();
        r.take(32).unwrap();
        r.expect(&[32], "session id").unwrap();
        r.take(32).unwrap();
        let suites = list(&mut r);
        r.expect(&[1, 0], "compression").unwrap();
        assert_eq!(usize::from(r.u16().unwrap()), r.rest().len());
        let mut extensions = Vec::new();
        while !r.rest().is_empty() {
            let kind = r.u16().unwrap();
            let len = r.u16().unwrap();
            extensions.push((kind, r.take(len.into()).unwrap().to_vec()));
        }
        Self { suites, extensions }
    }

    pub(crate) fn extension(&self, kind: u16) -> Option<&[u8]> {
        self.extensions.iter().find(|(other, _)| *other == kind).map(|(_, body)| &**body)
    }

    fn kinds(&self) -> Vec<u16> {
        self.extensions.iter().map(|(kind, _)| *kind).collect()
    }

    fn list(&self, kind: u16) -> Vec<u16> {
        self.extension(kind).map(|body| list(&mut Reader::new(body))).unwrap_or_default()
    }

    fn versions(&self) -> Vec<u16> {
        let Some(body) = self.extension(43) else { return Vec::new() };
        body[1..].chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect()
    }

    /// Groups and keys.
    pub(crate) fn shares(&self) -> Vec<(u16, Vec<u8>)> {
        let Some(body) = self.extension(51) else { return Vec::new() };
        let mut r = Reader::new(body);
        assert_eq!(usize::from(r.u16().unwrap()), r.rest().len());
        let mut shares = Vec::new();
        while !r.rest().is_empty() {
            let group = r.u16().unwrap();
            let len = r.u16().unwrap();
            shares.push((group, r.take(len.into()).unwrap().to_vec()));
        }
        shares
    }

    fn ja3_text(&self, sorted: bool) -> String {
        let join = |items: Vec<u16>| {
            let items = items.into_iter().filter(|item| !is_grease(*item));
            items.map(|item| item.to_string()).collect::<Vec<_>>().join("-")
        };
        let mut kinds = self.kinds();
        if sorted {
            kinds.sort_unstable();
        }
        let points = self.extension(11).map(|body| body[1].to_string()).unwrap_or_default();
        format!("771,{},{},{},{points}", join(self.suites.clone()), join(kinds), join(self.list(10)))
    }

    fn ja3(&self, sorted: bool) -> String {
        Md5::digest(self.ja3_text(sorted)).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn ja4(&self) -> String {
        let real = |items: Vec<u16>| items.into_iter().filter(|item| !is_grease(*item)).collect::<Vec<_>>();
        let (mut suites, kinds) = (real(self.suites.clone()), real(self.kinds()));
        let version = match real(self.versions()).iter().max() {
            Some(0x0304) => "13",
            _ => "12",
        };
        let protocol = match self.extension(16) {
            Some(body) => {
                let first = &body[3..3 + usize::from(body[2])];
                format!("{}{}", char::from(first[0]), char::from(first[first.len() - 1]))
            }
            None => "00".to_owned(),
        };
        let named = if self.extension(0).is_some() { 'd' } else { 'i' };
        let a = format!("t{version}{named}{:02}{:02}{protocol}", suites.len(), kinds.len());
        suites.sort_unstable();
        let hex =
            |items: &[u16]| items.iter().map(|item| format!("{item:04x}")).collect::<Vec<_>>().join(",");
        let mut rest: Vec<u16> = kinds.into_iter().filter(|kind| !matches!(kind, 0 | 16)).collect();
        rest.sort_unstable();
        let schemes = hex(&real(self.list(13)));
        format!("{a}_{}_{}", short_hash(&hex(&suites)), short_hash(&format!("{}_{schemes}", hex(&rest))))
    }
}

fn list(r: &mut Reader<'_>) -> Vec<u16> {
    let len = r.u16().unwrap();
    let bytes = r.take(len.into()).unwrap();
    bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect()
}

fn short_hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref()[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(fingerprint: Fingerprint) -> Read {
    Read::new(ClientHello::new(fingerprint, Some("www.example.com"), &[]).unwrap().message())
}

/// Name, JA4, JA3 if the order is fixed, extensions in order without reserved values.
const PUBLISHED: &[(Fingerprint, &str, Option<&str>, &[u16])] = &[
    (
        Fingerprint::Chrome,
        "t13d1516h2_8daaf6152771_806a8c22fdea",
        None,
        &[0, 23, 65281, 10, 11, 35, 16, 5, 13, 18, 51, 45, 43, 27, 17613, 65037],
    ),
    (
        Fingerprint::Chrome133,
        "t13d1516h2_8daaf6152771_d8a2da3f94cd",
        None,
        &[0, 23, 65281, 10, 11, 35, 16, 5, 13, 18, 51, 45, 43, 27, 17613, 65037],
    ),
    (
        Fingerprint::Edge,
        "t13d1516h2_8daaf6152771_806a8c22fdea",
        None,
        &[0, 23, 65281, 10, 11, 35, 16, 5, 13, 18, 51, 45, 43, 27, 17613, 65037],
    ),
    (
        Fingerprint::Chrome131,
        "t13d1516h2_8daaf6152771_02713d6af862",
        None,
        &[0, 23, 65281, 10, 11, 35, 16, 5, 13, 18, 51, 45, 43, 27, 17513, 65037],
    ),
    (
        Fingerprint::Chrome120,
        "t13d1516h2_8daaf6152771_02713d6af862",
        None,
        &[0, 23, 65281, 10, 11, 35, 16, 5, 13, 18, 51, 45, 43, 27, 17513, 65037],
    ),
    (
        Fingerprint::Firefox,
        "t13d1517h2_8daaf6152771_3cbfd9057e0d",
        Some("424f6d9c8b8928c0a0489a4f1a0f3e89"),
        &[0, 23, 65281, 10, 11, 35, 16, 5, 34, 18, 51, 43, 13, 45, 28, 27, 65037],
    ),
    (
        Fingerprint::Firefox148,
        "t13d1715h2_5b57614c22b0_a54fffd0eb61",
        Some("7704a11cf87dfcf33080b90ce11d5527"),
        &[0, 23, 65281, 10, 11, 16, 5, 34, 18, 51, 43, 13, 28, 27, 65037],
    ),
    (
        Fingerprint::Firefox120,
        "t13d1715h2_5b57614c22b0_5c2c66f702b0",
        Some("b5001237acdf006056b409cc433726b0"),
        &[0, 23, 65281, 10, 11, 35, 16, 5, 34, 51, 43, 13, 45, 28, 65037],
    ),
    (
        Fingerprint::Safari,
        "t13d2013h2_a09f3c656075_7f0f34a4126d",
        Some("ecdf4f49dd59effc439639da29186671"),
        &[0, 23, 65281, 10, 11, 16, 5, 13, 18, 51, 45, 43, 27],
    ),
    (
        Fingerprint::Ios,
        "t13d2013h2_a09f3c656075_7f0f34a4126d",
        Some("ecdf4f49dd59effc439639da29186671"),
        &[0, 23, 65281, 10, 11, 16, 5, 13, 18, 51, 45, 43, 27],
    ),
    (
        Fingerprint::Safari16,
        "t13d2014h2_a09f3c656075_14788d8d241b",
        Some("773906b0efdefa24a7f2b8eb6985bf37"),
        &[0, 23, 65281, 10, 11, 16, 5, 13, 18, 51, 45, 43, 27, 21],
    ),
    (
        Fingerprint::Ios14,
        "t13d2613h2_2802a3db6c62_845d286b0d67",
        Some("656b9a2f4de6ed4909e157482860ab3d"),
        &[0, 23, 65281, 10, 11, 16, 5, 13, 18, 51, 45, 43, 21],
    ),
    (
        Fingerprint::Edge85,
        "t13d1515h2_8daaf6152771_de4a06bb82e3",
        Some("b32309a26951912be7dba376398abc3b"),
        &[0, 23, 65281, 10, 11, 35, 16, 5, 13, 18, 51, 45, 43, 27, 21],
    ),
    (
        Fingerprint::Qq,
        "t13d1516h2_8daaf6152771_e5627efa2ab1",
        Some("cd08e31494f9531f560d64c695473da9"),
        &[0, 23, 65281, 10, 11, 35, 16, 5, 13, 18, 51, 45, 43, 27, 17513, 21],
    ),
    (
        Fingerprint::Browser360,
        "t12d2010s2_",
        Some("c405bbbe31c0e53ac4c8448355b2af5b"),
        &[0, 65281, 10, 11, 35, 13172, 16, 30031, 5, 13],
    ),
    (
        Fingerprint::Android,
        "t12d120700_d34a8e72043a_036209cd1ead",
        Some("6c0f0a346dcd84cb4b97a0d9382c53fd"),
        &[0, 23, 65281, 10, 11, 5, 13],
    ),
];

#[test]
fn each_name_sends_what_is_published_of_the_browser() {
    for (fingerprint, ja4, ja3, kinds) in PUBLISHED {
        let hello = read(*fingerprint);
        assert!(hello.ja4().starts_with(ja4), "{fingerprint:?}: {}", hello.ja4());
        let mut seen: Vec<u16> = hello.kinds().into_iter().filter(|kind| !is_grease(*kind)).collect();
        let mut expected = kinds.to_vec();
        match ja3 {
            Some(ja3) => assert_eq!(hello.ja3(false), *ja3, "{fingerprint:?}: {}", hello.ja3_text(false)),
            None => {
                seen.sort_unstable();
                expected.sort_unstable();
            }
        }
        assert_eq!(seen, expected, "{fingerprint:?}");
    }
    assert_eq!(read(Fingerprint::Chrome).ja3(true), "8e19337e7524d2573be54efb2b0784c9");
}

#[test]
fn a_hello_of_android_is_the_captured_one() {
    let captured = "010000b5030351f5862a1eea22a15b33276736efe9b54597bac09692ab11521aac31de5d526b202beee3a9ba9e7fd7e2\
                    929fa92adbaedecf73cee00a1196e4095629e53003603e0018c02bc02ccca9c02fc030cca8c013c014009c009d002f0035\
                    0100005400000014001200000f7777772e6578616d706c652e636f6d00170000ff01000100000a00080006001d00170018\
                    000b00020100000500050100000000000d00140012040308040401050308050501080606010201";
    let mut hello = ClientHello::new(Fingerprint::Android, Some("www.example.com"), &[]).unwrap();
    let captured: Vec<u8> = (0..captured.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&captured[at..at + 2], 16).unwrap())
        .collect();
    hello.set_session_id(captured[39..71].try_into().unwrap());
    let mut message = hello.message().to_vec();
    message[6..38].copy_from_slice(&captured[6..38]);
    assert_eq!(message, captured);
}

#[test]
fn where_two_slots_of_a_hello_belong_together_they_agree() {
    for _ in 0..1000 {
        let hello = read(Fingerprint::Chrome);
        let kinds = hello.kinds();
        let (first, last) = (kinds[0], kinds[kinds.len() - 1]);
        assert!(is_grease(first) && is_grease(last) && first != last);
        assert_eq!(hello.extension(first), Some(&[][..]));
        assert_eq!(hello.extension(last), Some(&[0][..]));
        assert!(is_grease(hello.suites[0]) && is_grease(hello.versions()[0]));
        let shares = hello.shares();
        assert_eq!(hello.list(10)[0], shares[0].0);
        assert_eq!(shares[0].1, [0]);
        assert_eq!((shares[1].0, shares[1].1.len()), (0x11ec, 1216));
        assert_eq!((shares[2].0, shares[2].1.len()), (0x001d, 32));
        assert_ne!(shares[1].1[1184..], shares[2].1[..]);
        let ech = hello.extension(65037).unwrap();
        // The outer kind of hello, HKDF-SHA256, and the AEAD that the list of suites puts first too.
        assert_eq!(ech[..5], [0, 0, 1, 0, 1]);
        assert_eq!(ech[6..8], [0, 32]);
    }
    let shares = read(Fingerprint::Firefox).shares();
    assert_eq!(shares.iter().map(|share| share.0).collect::<Vec<_>>(), [0x11ec, 0x001d, 0x0017]);
    assert_eq!(shares[0].1[1184..], shares[1].1[..]);
    let hello = read(Fingerprint::Safari);
    assert_eq!(hello.list(10)[0], hello.shares()[0].0);
    assert_eq!(hello.list(13).iter().filter(|scheme| **scheme == 0x0805).count(), 2);
}

/// How often each value comes, of which there are `values`, all as likely: no count is six deviations from its mean.
fn is_even(counts: &HashMap<usize, usize>, values: usize, what: &str) {
    let all: usize = counts.values().sum();
    let mean = all as f64 / values as f64;
    let deviation = (mean * (1.0 - 1.0 / values as f64)).sqrt();
    assert_eq!(counts.len(), values, "{what}");
    for (value, count) in counts {
        assert!(
            (*count as f64 - mean).abs() < 6.0 * deviation,
            "{what}: {value} comes {count} times of {all}"
        );
    }
}

#[test]
fn what_is_random_in_a_hello_of_chrome_is_evenly_spread() {
    let mut places: HashMap<u16, HashMap<usize, usize>> = HashMap::new();
    let mut reserved: [HashMap<usize, usize>; 5] = Default::default();
    let mut lengths: HashMap<usize, usize> = HashMap::new();
    for _ in 0..2000 {
        let hello = read(Fingerprint::Chrome);
        let kinds = hello.kinds();
        for (place, kind) in kinds[1..17].iter().enumerate() {
            *places.entry(*kind).or_default().entry(place).or_default() += 1;
        }
        let slots = [hello.suites[0], hello.list(10)[0], kinds[0], kinds[17], hello.versions()[0]];
        for (counts, value) in reserved.iter_mut().zip(slots) {
            *counts.entry(value.into()).or_default() += 1;
        }
        *lengths.entry(hello.extension(65037).unwrap().len()).or_default() += 1;
    }
    assert_eq!(places.len(), 16);
    for (kind, counts) in &places {
        is_even(counts, 16, &format!("extension {kind}"));
    }
    for counts in &reserved {
        is_even(counts, 16, "reserved values");
    }
    is_even(&lengths, 4, "length of ECH");
    let mut lengths: Vec<_> = lengths.into_keys().collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [186, 218, 250, 282]);
}

#[test]
fn a_firefox_draws_its_aead_and_never_its_length() {
    let mut aeads: HashMap<usize, usize> = HashMap::new();
    for _ in 0..1000 {
        let hello = read(Fingerprint::Firefox120);
        let ech = hello.extension(65037).unwrap().to_vec();
        assert_eq!(ech.len(), 281);
        *aeads.entry(usize::from(ech[4])).or_default() += 1;
    }
    is_even(&aeads, 2, "AEAD");
}

#[test]
fn padding_makes_odd_lengths_512_and_stays_away_otherwise() {
    for len in 1..250 {
        let name = "a".repeat(len.min(63)) + &".b".repeat(len.saturating_sub(63) / 2);
        let hello = ClientHello::new(Fingerprint::Safari16, Some(&name), &[]).unwrap();
        let read = Read::new(hello.message());
        match read.extension(21) {
            // One byte of padding where less than that would be missing.
            Some(padding) => {
                assert!(hello.message().len() == 512 || padding.len() == 1, "{}", hello.message().len())
            }
            None => assert!(hello.message().len() >= 512 || hello.message().len() < 256),
        }
    }
}

#[test]
fn protocols_of_the_user_stand_in_for_the_browsers_where_it_has_any() {
    let own = ["http/1.1".to_owned()];
    let body = |fingerprint| {
        let hello = ClientHello::new(fingerprint, None, &own).unwrap();
        Read::new(hello.message()).extension(16).map(<[u8]>::to_vec)
    };
    assert_eq!(body(Fingerprint::Chrome).unwrap(), [&[0, 9, 8][..], b"http/1.1"].concat());
    assert_eq!(body(Fingerprint::Android), None);
    let hello = ClientHello::new(Fingerprint::Chrome, None, &own).unwrap();
    assert_eq!(Read::new(hello.message()).extension(0), None);
}

#[test]
fn made_up_hellos_offer_what_their_keys_need() {
    for _ in 0..300 {
        let hello = ClientHello::build(&super::randomized::profile(), Some("a.test"), &[]).unwrap();
        let read = Read::new(hello.message());
        let groups = read.list(10);
        let shares = read.shares();
        assert_ne!(shares[0].0, 0x0017);
        assert!(shares.iter().all(|(group, _)| groups.contains(group)));
        assert!(read.versions().contains(&0x0304));
        assert!(read.suites.iter().filter(|suite| **suite >> 8 == 0x13).count() == 3);
    }
    let (one, two) = (read(Fingerprint::Randomized), read(Fingerprint::Randomized));
    assert_eq!(one.ja3_text(false), two.ja3_text(false));
    assert_eq!(read(Fingerprint::Random).ja4(), read(Fingerprint::Random).ja4());
}
