use aws_lc_rs::aead::Aad;
use culvert_wire::{Buf, Room};
use zeroize::Zeroizing;

use super::keys::{Keys, once};
use super::*;

const CIPHERS: [Cipher; 3] = [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

/// Every suite of both versions.
fn secrets() -> Vec<Secret> {
    let tls13 = CIPHERS.map(|cipher| {
        let len = if cipher == Cipher::Aes256Gcm { 48 } else { 32 };
        Secret::Tls13(TrafficSecret::new(cipher, &[7; 48][..len]).unwrap())
    });
    let tls12 = CIPHERS.map(|cipher| {
        let len = if cipher == Cipher::Aes128Gcm { 16 } else { 32 };
        Secret::Tls12 { cipher, key: Zeroizing::new(vec![9; len]), iv: [5; 12] }
    });
    tls13.into_iter().chain(tls12).collect()
}

fn pair(secret: &Secret) -> (Sealer, Opener) {
    (Sealer::new(secret.clone(), 0).unwrap(), Opener::new(secret.clone(), 0).unwrap())
}

fn sealed(sealer: &mut Sealer, kind: ContentType, data: &[u8]) -> Vec<u8> {
    sealer.seal_copy(kind, data, Room::NONE).unwrap().to_vec()
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn records_of_rfc_8448_are_made_and_opened() {
    let data: Vec<u8> = (0..50).collect();
    // Section 3, "{client} Send application_data record".
    let client = hex("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
    let client = Secret::Tls13(TrafficSecret::new(Cipher::Aes128Gcm, &client).unwrap());
    let record =
        hex("1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20
         441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4");
    let (mut sealer, mut opener) = pair(&client);
    assert_eq!(sealed(&mut sealer, ContentType::Data, &data), record);
    let mut copy = record;
    let (kind, range) = opener.open(&mut copy).unwrap();
    assert_eq!((kind, &copy[range]), (ContentType::Data, &data[..]));
    // "{server} Send application_data record": the ticket was record 0.
    let server = hex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643");
    let server = Secret::Tls13(TrafficSecret::new(Cipher::Aes128Gcm, &server).unwrap());
    let record =
        hex("17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb50
         1a59a8fcc49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d");
    let mut sealer = Sealer::new(server, 1).unwrap();
    assert_eq!(sealed(&mut sealer, ContentType::Data, &data), record);
}

#[test]
fn both_ways_of_sealing_and_opening_agree() {
    for secret in secrets() {
        for len in [0, 1, 100, MAX_DATA] {
            let data = crate::testing::pattern(len);
            let (mut in_place, mut opener) = pair(&secret);
            let mut copying = Sealer::new(secret.clone(), 0).unwrap();
            let room = in_place.room();
            for _ in 0..3 {
                let mut piece = Buf::new(len, room.head, room.tail);
                piece.append(&data);
                in_place.seal(ContentType::Data, &mut piece).unwrap();
                let around = Room { head: 3, tail: 2, max: usize::MAX };
                let copied = copying.seal_copy(ContentType::Data, &data, around).unwrap();
                assert_eq!(*piece, *copied);
                assert!(copied.head() >= 3 && copied.spare() >= 2);
                assert_eq!(opener.record_len(&piece), Ok(Some(piece.len())));

                let mut other = Opener::new(secret.clone(), opener_sequence(&opener)).unwrap();
                let space = other.space_for(piece.len());
                let mut to = vec![0; space];
                let (kind, count) = other.open_into(&piece, &mut to).unwrap();
                assert_eq!((kind, &to[..count]), (ContentType::Data, &data[..]));
                let (kind, range) = opener.open(&mut piece).unwrap();
                assert_eq!((kind, &piece[range]), (ContentType::Data, &data[..]));
            }
        }
    }
}

fn opener_sequence(opener: &Opener) -> u64 {
    opener.keys.sequence()
}

#[test]
fn a_changed_bit_anywhere_is_noticed_and_the_record_left_as_it_is() {
    for secret in secrets() {
        let (mut sealer, mut opener) = pair(&secret);
        let record = sealed(&mut sealer, ContentType::Data, b"some data");
        for position in 0..record.len() {
            let mut broken = record.clone();
            broken[position] ^= 1;
            // The minor version counts for nothing in TLS 1.2, where it is not sealed.
            let Ok(Some(len)) = opener.record_len(&broken) else { continue };
            if len != broken.len() || (position == 2 && !opener.is_tls13()) {
                continue;
            }
            let before = broken.clone();
            let mut to = vec![0; opener.space_for(len)];
            assert_eq!(opener.open_into(&broken, &mut to), Err(RecordError::BadTag), "byte {position}");
            assert_eq!(broken, before);
            assert!(to.iter().all(|byte| *byte == 0), "nothing unverified is given out");
        }
        let mut whole = record;
        assert!(opener.open(&mut whole).is_ok(), "failures do not count");
    }
}

#[test]
fn records_out_of_order_do_not_open() {
    for secret in secrets() {
        let (mut sealer, mut opener) = pair(&secret);
        sealed(&mut sealer, ContentType::Data, b"first");
        let mut second = sealed(&mut sealer, ContentType::Data, b"second");
        assert_eq!(opener.open(&mut second).unwrap_err(), RecordError::BadTag);
    }
}

#[test]
fn impossible_headers_are_refused_before_the_body_comes() {
    for secret in secrets() {
        let (sealer, opener) = pair(&secret);
        let room = sealer.room();
        let largest = (room.head - HEADER + MAX_DATA + room.tail) as u16;
        let header = |kind, version, len: u16| {
            let [high, low] = len.to_be_bytes();
            opener.record_len(&[kind, version, 3, high, low])
        };
        assert_eq!(header(23, 3, largest), Ok(Some(HEADER + usize::from(largest))));
        assert_eq!(header(23, 3, largest + 1), Err(RecordError::TooLong));
        assert_eq!(header(23, 3, u16::MAX), Err(RecordError::TooLong));
        let smallest = (room.head - HEADER + room.tail) as u16;
        assert_eq!(header(23, 3, smallest), Ok(Some(HEADER + usize::from(smallest))));
        assert_eq!(header(23, 3, smallest - 1), Err(RecordError::BadTag));
        assert_eq!(header(23, 2, 100), Err(RecordError::Unexpected));
        assert_eq!(header(b'H', b'T', 100), Err(RecordError::Unexpected));
        let alert = if opener.is_tls13() { Err(RecordError::Unexpected) } else { Ok(Some(105)) };
        assert_eq!(header(21, 3, 100), alert);
        for end in 0..HEADER {
            assert_eq!(opener.record_len(&[23, 3, 3, 0, 100][..end]), Ok(None));
        }
    }
}

#[test]
fn padding_is_taken_off_and_a_record_of_nothing_else_refused() {
    let secret = &secrets()[0];
    for (inner, outcome) in [
        (&b"data\x17\0\0\0"[..], Ok((ContentType::Data, 0..4))),
        (b"\x17\0\0", Ok((ContentType::Data, 0..0))),
        (b"\0\0\x16", Ok((ContentType::Handshake, 0..2))),
        (b"\0\0\0", Err(RecordError::Unexpected)),
        (b"data\x99", Err(RecordError::Unexpected)),
    ] {
        let keys = Keys::new(secret.clone(), 0).unwrap();
        let header = [23, 3, 3, 0, (inner.len() + TAG) as u8];
        let mut body = inner.to_vec();
        keys.key.seal_in_place_append_tag(once(keys.nonce()), Aad::from(header), &mut body).unwrap();
        let mut record = [&header[..], &body].concat();
        let opened = Opener::new(secret.clone(), 0).unwrap().open(&mut record);
        assert_eq!(opened.map(|(kind, range)| (kind, range.start - HEADER..range.end - HEADER)), outcome);
    }
}

#[test]
fn keys_follow_one_another_on_both_sides() {
    for secret in secrets() {
        let (mut sealer, mut opener) = pair(&secret);
        let is_tls13 = sealer.is_tls13();
        for round in 0..4u8 {
            let mut record = sealed(&mut sealer, ContentType::Data, &[round]);
            let (_, range) = opener.open(&mut record).unwrap();
            assert_eq!(record[range], [round]);
            sealer.update_keys();
            if is_tls13 {
                let mut early = sealed(&mut sealer, ContentType::Data, b"new key");
                assert_eq!(opener.open(&mut early).unwrap_err(), RecordError::BadTag);
                sealer = Sealer::new(next(&sealer), 0).unwrap();
            }
            opener.update_keys();
        }
    }

    fn next(sealer: &Sealer) -> Secret {
        match &sealer.keys.form {
            keys::Form::Tls13(secret) => Secret::Tls13(secret.clone()),
            keys::Form::Tls12 { .. } => unreachable!("asked for TLS 1.3 only"),
        }
    }
}

#[test]
fn a_secret_of_the_wrong_length_is_refused() {
    assert!(TrafficSecret::new(Cipher::Aes256Gcm, &[0; 32]).is_none());
    let secret = Secret::Tls12 { cipher: Cipher::Aes128Gcm, key: Zeroizing::new(vec![0; 5]), iv: [0; 12] };
    assert!(Sealer::new(secret, 0).is_none());
}

#[test]
fn secrets_do_not_show() {
    for secret in secrets() {
        let shown = format!("{secret:?}");
        assert!(!shown.contains('7') && !shown.contains('9'), "{shown}");
    }
}
