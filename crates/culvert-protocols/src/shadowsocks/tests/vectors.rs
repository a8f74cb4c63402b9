//! The vectors of the protocol sheet, computed apart from any of our code and checked against sing-box 1.14.4.

use std::sync::Arc;

use culvert_core::{Packet, PacketBatch};
use culvert_wire::{AddressCodec, Buf, BufChain, Room};

use super::super::cipher::{Blocks, Cipher, Key, MAX_CHUNK, MAX_CHUNK_2022, Opener, Sealer, Stream};
use super::super::codec::{
    Request, Salt, decode_request, decode_request_head, decode_response_head, open_identity, seal_first,
    seal_response_with,
};
use super::super::key::Secret;
use super::super::packet::{
    Outgoing, SEPARATE_FRONT, WHOLE_FRONT, decode_body, open_aead, open_body, open_packet_identity,
    open_separate, open_whole, session_key, whole_key,
};
use super::super::replay::{RecentSalts, Salts, Window, is_timely};
use super::{PASSWORD, base64, counting, hex, key_of};
use crate::chunks::{Reading, Seal};
use crate::testing::target;

const TIME: u64 = 1_700_000_000;

fn salt16() -> Salt {
    Salt::received(&counting::<16>(0x10))
}

fn k16() -> Secret {
    key_of(Cipher::Aes128Gcm, 0)
}

fn user_key() -> Secret {
    key_of(Cipher::Aes128Gcm, 0x64)
}

#[test]
fn a_keys_of_passwords() {
    let whole = hex("217a88a090b96b8ab01679a2d52c42450f883aa9d47eb0a5d6cc39a20ebd3c10");
    for len in [16, 24, 32] {
        assert_eq!(Secret::of_password(PASSWORD, len).bytes(), &whole[..len]);
    }
}

#[test]
fn b_stream_of_the_aead_edition() {
    let key = Secret::of_password(PASSWORD, 16);
    assert_eq!(key.subkey(salt16().bytes()).bytes(), hex("002739a5b02c2b6b8e97d93a3655131b"));
    let mut data = BufChain::copied(b"hello");
    let address = target("example.com:443");
    let (lead, stream) =
        seal_first(Cipher::Aes128Gcm, &key, &salt16(), Some(&address), &mut data, Room::NONE);
    assert!(data.is_empty());
    let first = hex("d0e60278134ee590712fdabd73a978c5b494
         474e9f037cb6ec908a4e73c36c91fe6db155f40939128ae9a8a6dc622f52cfcd6882e3fa");
    assert_eq!(lead[..16], counting::<16>(0x10));
    assert_eq!(lead[16..], first);
    let mut sealer = Sealer::new(stream, MAX_CHUNK);
    let room = sealer.room();
    let mut piece = Buf::new(5, room.head, room.tail);
    piece.append(b"world");
    sealer.seal(&mut piece);
    let second = hex("771e6d7a364c20d08d5380ebef3341f16a28 de1a145cf7fee1ca2b6525ec49eac297da25d4b78a");
    assert_eq!(*piece, second);

    let stream = Stream::new(Key::new(Cipher::Aes128Gcm, key.subkey(salt16().bytes()).bytes()));
    let mut reading =
        Reading::new(Opener::new(stream, MAX_CHUNK), BufChain::copied(&[first, second].concat()));
    assert_eq!(reading.open(Room::NONE).unwrap().to_vec(), b"\x03\x0bexample.com\x01\xbbhelloworld");
}

#[test]
fn c_datagram_of_the_aead_edition() {
    let key = Secret::of_password(PASSWORD, 32);
    let salt: [u8; 32] = counting(0x20);
    let subkey = hex("03a4ec2c92ae880f978f1649e64fed9bacd8ebece4a23be7c9ca4917a71e1ad7");
    assert_eq!(key.subkey(&salt).bytes(), subkey);
    let mut datagram = salt.to_vec();
    datagram.extend(hex("c7315f9533efd1749f0b3ac3e1d2b72d76f8b579e7c5d61d7d78"));
    let (payload, peer) = open_aead(Cipher::ChaCha20Poly1305, &key, &mut datagram).unwrap();
    assert_eq!((&datagram[payload], peer), (&b"dns"[..], target("1.2.3.4:53")));
}

#[test]
fn d_stream_of_the_2022_edition() {
    let (salt, address) = (salt16(), target("example.com:443"));
    assert_eq!(k16().session_subkey(salt.bytes()).bytes(), hex("bc32fb8d5205f7b84f9691dfb9f04ff3"));
    let request = Request {
        cipher: Cipher::Aes128Gcm,
        keys: &[k16()],
        salt: &salt,
        target: &address,
        now: TIME,
        padding: 3,
    };
    let (lead, stream) = request.seal(&mut BufChain::copied(b"hi"), Room::NONE);
    let (fixed, variable) = (
        hex("f62b42ac395d4aead07a65d09471860919e806ee8ea58821dd5f47"),
        hex("e19e0c3dc0253175322489f04f22537d6c3c80d573941b18deacefb3b3118147daf5726a8805"),
    );
    assert_eq!(lead[16..], [fixed.clone(), variable.clone()].concat());
    let mut sealer = Sealer::new(stream, MAX_CHUNK_2022);
    let room = sealer.room();
    let mut piece = Buf::new(4, room.head, room.tail);
    piece.append(b"data");
    sealer.seal(&mut piece);
    let chunk = hex("bed1b205b1527aea5ec9551d5dcfa926451f a6372648ac1c38b284c501675daa468b121437fc");
    assert_eq!(*piece, chunk);

    let mut stream = Stream::new(Key::new(Cipher::Aes128Gcm, k16().session_subkey(salt.bytes()).bytes()));
    let (mut fixed, mut variable) = (fixed, variable);
    stream.open_region(&mut fixed).unwrap();
    assert_eq!(decode_request_head(&fixed, TIME + 30), Ok((TIME, 0x16)));
    assert!(
        decode_request_head(&fixed, TIME + 31).is_err() && decode_request_head(&fixed, TIME - 31).is_err()
    );
    stream.open_region(&mut variable).unwrap();
    let mut r = culvert_wire::Reader::new(&variable[..0x16]);
    assert_eq!(decode_request(&mut r), Ok(address));
    assert_eq!(r.rest(), b"hi");

    let answer_salt = Salt::received(&counting::<16>(0x30));
    assert_eq!(k16().session_subkey(answer_salt.bytes()).bytes(), hex("bd121aaf02d2c85e4f1e8f510871b752"));
    let mut data = BufChain::copied(b"ok");
    let (lead, _) =
        seal_response_with(Cipher::Aes128Gcm, &k16(), [&answer_salt, &salt], TIME, &mut data, Room::NONE);
    let head = "186a24e29218b83c6537e1cb2c04eb99c3930dec57bfa96bddc24d24777b52aceb84bf9eecdec5604d7bc6";
    assert_eq!(lead[16..], [hex(head), hex("e8b2a2e19df44c9d79be5078e89c1db24bd1")].concat());
    let mut stream =
        Stream::new(Key::new(Cipher::Aes128Gcm, k16().session_subkey(answer_salt.bytes()).bytes()));
    let mut head = hex(head);
    stream.open_region(&mut head).unwrap();
    assert_eq!(decode_response_head(&head, &salt, TIME), Ok(2));
    assert!(decode_response_head(&head, &answer_salt, TIME).is_err(), "an answer to something else");
}

#[test]
fn e_identity_of_a_stream() {
    let salt = salt16();
    assert_eq!(k16().identity_subkey(salt.bytes()).bytes(), hex("c6929b0d4d713bf21148dfc4f34dd083"));
    assert_eq!(user_key().hash().to_vec(), hex("16c73b1fdd38762790888bfc3a0d47db"));
    let subkey = user_key().session_subkey(salt.bytes());
    assert_eq!(subkey.bytes(), hex("3f3f39a08bad078c47ecf048ac80f4fe"));
    let address = target("example.com:443");
    let keys = [k16(), user_key()];
    let request = Request {
        cipher: Cipher::Aes128Gcm,
        keys: &keys,
        salt: &salt,
        target: &address,
        now: TIME,
        padding: 1,
    };
    let (lead, _) = request.seal(&mut BufChain::new(), Room::NONE);
    let identity = hex("9b8e1bcbac93f96a728c84a5b168fc64");
    assert_eq!(lead[16..32], identity);
    let opened = open_identity(&k16(), salt.bytes(), identity.try_into().unwrap());
    assert_eq!(opened, Some(user_key().hash()));
}

#[test]
fn f_packet_with_an_identity() {
    let session = counting::<8>(1);
    let mut outgoing = Outgoing::to_server(Cipher::Aes128Gcm, &[k16(), user_key()], session).unwrap();
    let mut batch = PacketBatch::new();
    // Port 53 would be padded; the vector is not, so the address is put in by hand.
    batch.push(Packet::new(Buf::copied(b"dns"), target("1.2.3.4:54")));
    outgoing.seal_batch(&mut batch, 0, &target("192.0.2.1:8388"), TIME);
    let mut sealed = batch.pop().unwrap().data.to_vec();
    assert_eq!(sealed[..32], hex("18ba69bb4661fee5a7cc9ec1a731e278 7be8a579d051c1bd6ffc74d141883e9f"));

    let blocks = Blocks::new(k16().bytes()).unwrap();
    let separate = open_separate(&blocks, &sealed).unwrap();
    assert_eq!((separate.session, separate.number), (session, 0));
    assert_eq!(open_packet_identity(&blocks, separate, &sealed), Some(user_key().hash()));
    let key = session_key(Cipher::Aes128Gcm, &user_key(), session);
    assert_eq!(user_key().session_subkey(&session).bytes(), hex("b35ab57b69cc16079a6c00cd096f9d01"));
    open_body(&key, separate, 32, &mut sealed).unwrap();
    let (payload, peer) = decode_body(&sealed, 32, None, TIME).unwrap();
    assert_eq!((&sealed[payload], peer), (&b"dns"[..], target("1.2.3.4:54")));

    let mut body = vec![0; 16];
    body.extend(hex("ff8656db1ac88f91ceae0dd3004cf0ee46328c69f5e008c9aa82be4daff5d058e3a2d4206a"));
    open_body(&key, separate, SEPARATE_FRONT, &mut body).unwrap();
    let (payload, peer) = decode_body(&body, SEPARATE_FRONT, None, TIME).unwrap();
    assert_eq!((&body[payload], peer), (&b"dns"[..], target("1.2.3.4:53")));
}

#[test]
fn g_packet_with_chacha20() {
    let key = key_of(Cipher::ChaCha20Poly1305, 0);
    let mut datagram = counting::<24>(0x40).to_vec();
    datagram.extend(hex(
        "d53b0674d5e67e1e8ff487beaf9c659292baadc4133c006b6a31fd440806209416cc660026dce0f691d989944cf4252799db653dea",
    ));
    let separate = open_whole(&whole_key(&key), &mut datagram).unwrap();
    assert_eq!((separate.session, separate.number), (counting::<8>(1), 0));
    let (payload, peer) = decode_body(&datagram, WHOLE_FRONT, None, TIME).unwrap();
    assert_eq!((&datagram[payload], peer), (&b"dns"[..], target("1.2.3.4:53")));
}

#[test]
fn keys_are_as_long_as_the_method_wants_and_servers_hash_longer_ones_down() {
    assert!(Secret::of_base64(&base64(&[1; 15]), 16).is_none());
    assert!(Secret::of_base64(&base64(&[1; 17]), 16).is_none());
    assert!(Secret::of_base64("AQEBAQEBAQEBAQEBAQEBAQ", 16).is_none(), "no padding");
    assert!(Secret::of_base64_or_longer(&base64(&[1; 15]), 16).is_none());
    let hashed = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &[1; 17]);
    let key = Secret::of_base64_or_longer(&base64(&[1; 17]), 16).unwrap();
    assert_eq!(key.bytes(), &hashed.as_ref()[..16]);
    assert!(!format!("{key:?}").contains('1'));
}

#[test]
fn xchacha20_counts_beyond_the_first_chunk() {
    let key = Secret::of_password(PASSWORD, 32);
    let salt = Salt::received(&counting::<32>(1));
    let mut data = BufChain::copied(&[7; 50_000]);
    let (lead, stream) = seal_first(Cipher::XChaCha20Poly1305, &key, &salt, None, &mut data, Room::NONE);
    let mut sealer = Sealer::new(stream, MAX_CHUNK);
    let mut sealed = lead[32..].to_vec();
    let room = sealer.room();
    for part in data.to_vec().chunks(10_000) {
        let mut piece = Buf::new(part.len(), room.head, room.tail);
        piece.append(part);
        sealer.seal(&mut piece);
        sealed.extend(&*piece);
    }
    let stream = Stream::new(Key::new(Cipher::XChaCha20Poly1305, key.subkey(salt.bytes()).bytes()));
    let mut reading = Reading::new(Opener::new(stream, MAX_CHUNK), BufChain::copied(&sealed));
    assert_eq!(reading.open(Room::NONE).unwrap().to_vec(), [7; 50_000]);
}

#[test]
fn header_without_padding_and_payload_is_refused_and_padding_must_fit() {
    let mut header = Vec::new();
    AddressCodec::SOCKS.encode(&target("1.2.3.4:5"), &mut header);
    let read = |tail: &[u8]| {
        let bytes = [&header, tail].concat();
        decode_request(&mut culvert_wire::Reader::new(&bytes)).is_ok()
    };
    assert!(!read(&[0, 0]));
    assert!(read(&[0, 0, 1]));
    assert!(read(&[0, 1, 0]));
    assert!(!read(&[0, 2, 0]));
    assert!(!read(&[0xff, 0xff]));
    assert!(!read(&[0]));
    assert!(read(&[&[0x13, 0x88][..], &[0; 5000]].concat()), "others may send more than we do");
}

#[test]
fn times_salts_and_numbers_that_were_seen_are_told() {
    assert!(is_timely(100, 130) && is_timely(130, 100) && !is_timely(100, 131) && !is_timely(u64::MAX, 5));

    let mut salts = Salts::default();
    assert!(salts.insert(&[1; 32], 1000, 1000) && salts.insert(&[2; 32], 1030, 1000));
    for now in 1000..=1030 {
        assert!(!salts.insert(&[1; 32], 1000, now), "at {now}");
    }
    for now in 1030..=1060 {
        assert!(!salts.insert(&[2; 32], 1030, now), "at {now}");
    }
    assert!(salts.insert(&[3; 16], 1080, 1080));
    assert!(salts.insert(&[1; 32], 1080, 1080), "what no copy can pass as is forgotten");

    let mut recent = RecentSalts::default();
    let salt = |number: u32| [&number.to_be_bytes()[..], &[0; 12]].concat();
    assert!((0..40_000).all(|number| recent.insert(&salt(number))));
    assert!((20_000..40_000).all(|number| !recent.insert(&salt(number))));

    let mut window = Window::default();
    let mut see = |number| {
        let new = window.is_new(number);
        if new {
            window.note(number);
        }
        new
    };
    assert!(see(5) && !see(5) && see(0) && !see(0) && see(64) && see(63) && !see(64));
    assert!(see(10_000) && see(10_000 - 8128) && !see(10_000 - 8128) && !see(10_000 - 8129) && !see(64));
    assert!(see(1 << 40) && see((1 << 40) - 8128) && !see((1 << 40) - 8129) && !see(10_001));
    assert!(see(u64::MAX) && !see(u64::MAX) && see(u64::MAX - 1));
}

#[test]
fn window_takes_every_number_once() {
    let mut window = Window::default();
    // Each number behind the next six, as a net may mix them.
    for number in (7..100_000u64).map(|number| number ^ 7) {
        assert!(window.is_new(number), "{number}");
        window.note(number);
        assert!(!window.is_new(number));
    }
}

#[test]
fn several_users_with_one_key_and_a_swapped_table() {
    let users = super::Users::new(|password, len| Some(Secret::of_password(password, len)), 16);
    assert!(users.now().all().is_empty());
    users.replace([("a", "same"), ("b", "same")]).unwrap();
    let hash = Secret::of_password("same", 16).hash();
    assert_eq!(users.now().by_hash(&hash).unwrap().name.as_deref(), Some("b"));
    let before = users.now();
    users.replace([("c", "other")]).unwrap();
    assert!(users.now().by_hash(&hash).is_none() && before.by_hash(&hash).is_some());
    assert!(!format!("{users:?}").contains('c'));
    let strict = super::Users::new(Secret::of_base64, 16);
    assert_eq!(strict.replace([("d", "no key")]), Err("d".to_owned()));
    drop(Arc::new(users));
}
