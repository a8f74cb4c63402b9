//! Vectors, cuts, client against server, and clients that are none.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use culvert_config::options::users::VmessUser;
use culvert_config::value::{Secret, UserId};
use culvert_config::{KindOf, Source};
use culvert_core::conn::{read_chain, write_chain};
use culvert_core::duplex::{Duplex, duplex};
use culvert_core::{
    BoxStream, Dispatch, Half, Handshake, Network, Packet, PacketBatch, PacketConn, ServeError, Session,
    StreamConn, StreamServer, Tag, TcpConn,
};
use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::cfb::Cfb;
use super::chunk::{Direction, Fault, Form};
use super::codec::*;
use super::conn::{Answer, Ends, Head, Reading, VmessConn, Writing};
use super::keys::{BodyKeys, Key, derive, expanded, fnv};
use super::packets::VmessPackets;
use super::users::{Refusal, WINDOW};
use super::*;
use crate::testing::{World, dialer, recv_packet, send_packets, session, store, target, write_in_pieces};

const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";
/// A user name that must not show up anywhere it does not belong.
const CANARY: &str = "canary-41bd";

const SECURITIES: [Security; 4] =
    [Security::Aes128Cfb, Security::Aes128Gcm, Security::ChaCha20Poly1305, Security::None];

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn bytes<const N: usize>(text: &str) -> [u8; N] {
    hex(text).try_into().unwrap()
}

/// The options of an outbound, as a config has them.
fn options(id: &str, security: &str) -> VmessOutbound {
    let config = format!(
        r#"{{"outbounds":[{{"type":"vmess","server":"192.0.2.1","server_port":443,"uuid":"{id}","security":"{security}"}}]}}"#
    );
    let loaded = culvert_config::load(&[Source::new("test", config.as_bytes())]).unwrap();
    VmessOutbound::of(&loaded.options.outbounds[0].kind).unwrap().clone()
}

fn secured(security: &str) -> VmessOutbound {
    options(ID, security)
}

fn user_id(text: &str) -> Secret<UserId> {
    options(text, "auto").uuid
}

fn request(security: Security, options: u8) -> Request {
    Request {
        keys: BodyKeys {
            key: bytes("303132333435363738393a3b3c3d3e3f"),
            iv: bytes("101112131415161718191a1b1c1d1e1f"),
        },
        check: 0x5a,
        options: Options(options),
        security,
        command: Command::Tcp,
        target: Some(target("example.com:443")),
    }
}

fn up(request: &Request) -> Direction<'_> {
    Direction { request, keys: &request.keys, cfb: None }
}

/// Each payload sealed as one chunk.
fn chunks(direction: Direction<'_>, payloads: &[&[u8]]) -> Vec<Vec<u8>> {
    let Form::Chunks(mut sealer) = direction.sealing() else { panic!("no chunks") };
    payloads.iter().map(|payload| sealer.seal_copy(payload, Room::NONE).to_vec()).collect()
}

// Vectors: made by a peer written from the specification that talked to sing-box 1.14.4.

#[test]
fn keys_from_ids() {
    let key: Key = command_key(bytes(&ID.replace('-', "")));
    assert_eq!(key, bytes("b50d916ac0cec067981af8e5f38a758f"));
    assert_eq!(derive(&key, &[b"AES Auth ID Encryption"]), bytes::<16>("1415ba74ca8b3d041a8f583fb4116315"));
    assert_eq!(
        derive(b"demokey", &[b"a", b"b", b"c"]),
        bytes::<32>("f19e3f153526d858109d78c39456ac565ab6f4b64136de37ef2776407dfd746d")
    );
    assert_eq!(user_id(ID).uuid(), bytes(&ID.replace('-', "")));
    assert_eq!(user_id("example").uuid(), bytes("feb54431301b52bba6dde1e93e81bb9e"));
    assert_eq!(next_id(&bytes(&ID.replace('-', ""))), bytes("5a07183412d5980a72ac845d5568d17d"));
}

#[test]
fn request_header() {
    let key = command_key(bytes(&ID.replace('-', "")));
    let id = seal_auth_id(&auth_id_sealer(&key), 1_700_000_000, [1, 2, 3, 4]);
    assert_eq!(id, bytes("4774fe5cc901ea4f81f2159909767a36"));
    assert_eq!(open_auth_id(&auth_id_opener(&key), &id), Some(1_700_000_000));
    assert_eq!(open_auth_id(&auth_id_opener(&[0; 16]), &id), None);

    let request = request(Security::Aes128Gcm, 0x05);
    let header = request.encode(&[]);
    assert_eq!(
        header,
        hex(
            "01101112131415161718191a1b1c1d1e1f303132333435363738393a3b3c3d3e3f5a0503000101bb020b6578616d706c
             652e636f6dbff3890f"
        )
    );
    let sealed = seal_request(&key, id, bytes("a0a1a2a3a4a5a6a7"), &header);
    assert_eq!(
        sealed,
        hex(
            "4774fe5cc901ea4f81f2159909767a366328a3310dc74ccde87ceff0f3ea38225c93a0a1a2a3a4a5a6a762e5f4443e29
             38813675bd05d2f4c27bfb3ce6a46cdd943192e7b63a7914f7e26c488ead9f69f82b875a0d3dd40a554711b830c7c475
             535b2c00e74ef4f6e9da0067d8ff82616a471f"
        )
    );
    let mut opener = RequestOpener::new(key, id);
    for cut in AUTH_ID..sealed.len() {
        let error = opener.open(&mut Reader::new(&sealed[AUTH_ID..cut])).err();
        assert_eq!(error, Some(DecodeError::Incomplete), "cut at {cut}");
    }
    assert!(opener.open(&mut Reader::new(&sealed[AUTH_ID..])) == Ok(request));
    for index in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[index] ^= 1;
        let id = *changed.first_chunk().unwrap();
        let opened = RequestOpener::new(key, id).open(&mut Reader::new(&changed[AUTH_ID..]));
        assert!(matches!(opened, Err(DecodeError::Invalid(_))), "byte {index} changed");
    }
}

#[test]
fn response_header() {
    let keys = request(Security::Aes128Gcm, 0x05).keys.response();
    assert_eq!(keys.key, bytes("816b9e7c25d559c5766755b3bbb36654"));
    assert_eq!(keys.iv, bytes("fc2e2c73072bfa2bda03ff9307472deb"));
    // The vector's header says options 00.
    let sealed = seal_response(&keys, 0x5a, Options(5));
    assert_eq!(sealed, hex("d3724b0bb453576d8a43164e66e257f94868 e048fe4644e84cc6cbe7582ca84a981ffbdea477"));
    for cut in 0..sealed.len() {
        assert_eq!(open_response(&mut Reader::new(&sealed[..cut]), &keys), Err(DecodeError::Incomplete));
    }
    assert_eq!(open_response(&mut Reader::new(&sealed), &keys), Ok(0x5a));
}

#[test]
fn bodies() {
    let plain = request(Security::Aes128Gcm, 0x05);
    assert_eq!(
        chunks(up(&plain), &[b"hello", b"world"]).concat(),
        hex("fc841c352fa9a3a71afb00feb5fd07210579f1a016bacd 8e56019b304b76f720efd044e4cfebeacaeeab69624f66")
    );
    let padded = request(Security::Aes128Gcm, 0x0d);
    let chunk = chunks(up(&padded), &[b"hello"]).concat();
    assert_eq!(chunk[..23], hex("8e651c352fa9a3a71afb00feb5fd07210579f1a016bacd"));
    assert_eq!(chunk.len(), 23 + 17);
    let sealed = request(Security::ChaCha20Poly1305, 0x1d);
    assert_eq!(
        expanded(&sealed.keys.key),
        bytes("bdf2930f973f722e24a3773d61889501c3c2e371e23677b71c00a97d736d5e0f")
    );
    let auth_len: Key = derive(&sealed.keys.key, &[b"auth_len"]);
    assert_eq!(auth_len, bytes("7c51b315678ea68649f56f1566995e4c"));
    assert_eq!(
        expanded(&auth_len),
        bytes("87095d3ddf04013ec9af5159875790316bbb2ec3c44617aeb8c7517977da185d")
    );
    let chunk = chunks(up(&sealed), &[b"hello"]).concat();
    assert_eq!(
        chunk[..39],
        hex("7469c61d2ebcf3476e4de713f2d13ba37af6 366a45dd6d1d35f18520d525e58e0c3242d2623358")
    );
    assert_eq!(chunk.len(), 39 + 17);
    let keys = plain.keys.response();
    let down = Direction { request: &plain, keys: &keys, cfb: None };
    assert_eq!(chunks(down, &[b"ok"]).concat(), hex("608e7b9da84d75ac75870ffabc29db25b695046c"));
    let bare = request(Security::None, 0x01);
    assert_eq!(chunks(up(&bare), &[b"hello"]).concat(), b"\0\x05hello");
}

/// NIST SP 800-38A, F.3.13.
#[test]
fn cfb() {
    let keys = BodyKeys {
        key: bytes("2b7e151628aed2a6abf7158809cf4f3c"),
        iv: bytes("000102030405060708090a0b0c0d0e0f"),
    };
    let plain = hex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51");
    let sealed = hex("3b3fd92eb72dad20333449f8e83cfb4ac8a64537a0b3a93fcde3cdad9f1ce58b");
    for step in 1..=plain.len() {
        let (mut one, mut other) = (plain.clone(), sealed.clone());
        let (mut sealing, mut opening) = (Cfb::new(&keys), Cfb::new(&keys));
        one.chunks_mut(step).for_each(|part| sealing.encrypt(part));
        other.chunks_mut(step).for_each(|part| opening.decrypt(part));
        assert!(one == sealed && other == plain, "in steps of {step}");
    }
}

#[test]
fn fnv_is_fnv_1a() {
    assert_eq!((fnv(b""), fnv(b"a"), fnv(b"foobar")), (0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968));
}

// Headers that are wrong.

#[test]
fn what_no_server_takes_is_refused() {
    let header = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut header = request(Security::Aes128Gcm, 0x05).encode(b"pad");
        change(&mut header);
        Request::decode(&mut Reader::new(&header), false).err()
    };
    assert_eq!(header(&|_| {}), None);
    for version in [0, 2, 255] {
        assert_eq!(header(&|h| h[0] = version), Some(DecodeError::Invalid("version of the request")));
    }
    for security in [0, 2, 6, 7, 15] {
        assert_eq!(header(&|h| h[35] = security), Some(DecodeError::Invalid("security of the request")));
    }
    for command in [0, 4, 0x7f] {
        assert_eq!(header(&|h| h[37] = command), Some(DecodeError::Invalid("command of the request")));
    }
    let datagrams = header(&|h| (h[34], h[37]) = (0, 2));
    assert_eq!(datagrams, Some(DecodeError::Invalid("request for datagrams without chunks")));
    assert_eq!(header(&|h| h[40] = 9), Some(DecodeError::Invalid("address type")));
    // sing-box takes a wrong hash. Where nothing else proves the header, it counts.
    let mut wrong = request(Security::Aes128Gcm, 0x05).encode(b"");
    *wrong.last_mut().unwrap() ^= 1;
    assert!(Request::decode(&mut Reader::new(&wrong), false).is_ok());
    let error = Request::decode(&mut Reader::new(&wrong), true).err();
    assert_eq!(error, Some(DecodeError::Invalid("hash of the request")));
}

// Bodies, whatever the cuts.

/// All forms that a body can have: securities and options, the odd ones too.
fn any_request() -> impl Strategy<Value = Request> {
    (0..4usize, 0u8..32).prop_map(|(security, options)| request(SECURITIES[security], options))
}

/// What comes out of `reading` when `wire` comes in pieces of the lengths that `cuts` give, over and over.
fn opened(reading: &mut Reading, mut wire: &[u8], cuts: &[usize], room: Room) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::new();
    let mut cuts = cuts.iter().copied().cycle();
    while !wire.is_empty() {
        let (now, later) = wire.split_at(cuts.next().unwrap_or(usize::MAX).clamp(1, wire.len()));
        let mut piece = Buf::new(now.len(), 0, 0);
        piece.append(now);
        reading.take_in(piece.into());
        loop {
            let some = reading.open(room)?;
            if some.is_empty() {
                break;
            }
            some.iter().for_each(|piece| out.extend_from_slice(piece));
        }
        wire = later;
    }
    Ok(out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn streams_survive_any_cut(
        request in any_request(),
        payloads in prop::collection::vec(1usize..40_000, 1..5),
        cuts in prop::collection::vec(1usize..30_000, 1..6),
        room in (0usize..40, 0usize..100, 1000usize..40_000).prop_map(|(head, tail, max)| Room { head, tail, max }),
        legacy: bool,
    ) {
        let keys = if legacy { request.keys.legacy_response() } else { request.keys.response() };
        let mut cfb = Cfb::new(&keys);
        let mut wire = if legacy {
            let mut header = response(request.check, request.options).to_vec();
            cfb.encrypt(&mut header);
            header
        } else {
            seal_response(&keys, request.check, request.options)
        };
        let cfb = (legacy && request.security == Security::Aes128Cfb).then(|| Box::new(cfb));
        let mut form = Direction { request: &request, keys: &keys, cfb }.sealing();
        let mut sent = Vec::new();
        for (index, len) in payloads.into_iter().enumerate() {
            let mut payload: Vec<u8> = (0..len).map(|at| (at * 7 + index) as u8).collect();
            sent.extend_from_slice(&payload);
            match &mut form {
                Form::Raw => wire.extend(payload),
                Form::Stream(cfb) => {
                    cfb.encrypt(&mut payload);
                    wire.extend(payload);
                }
                Form::Chunks(sealer) if index % 2 == 0 => {
                    wire.extend_from_slice(&sealer.seal_copy(&payload, Room::NONE));
                }
                Form::Chunks(sealer) => {
                    let room = sealer.room();
                    let mut piece = Buf::new(len, room.head, room.tail);
                    piece.append(&payload);
                    sealer.seal(&mut piece);
                    wire.extend_from_slice(&piece);
                }
            }
        }
        let mut reading = Reading::answer(Answer { request, legacy });
        prop_assert_eq!(opened(&mut reading, &wire, &cuts, room), Ok(sent));
        prop_assert!(reading.is_empty());
        prop_assert_eq!(reading.end_of_lower(), Ok(()));
    }

    #[test]
    fn datagrams_survive_any_cut(
        security in 0..4usize, options in 0u8..32,
        payloads in prop::collection::vec(1usize..20_000, 1..6),
        cuts in prop::collection::vec(1usize..30_000, 1..6),
    ) {
        let request = request(SECURITIES[security], options | 1);
        let payloads: Vec<Vec<u8>> = payloads.into_iter().map(|len| vec![len as u8; len]).collect();
        let wire = chunks(up(&request), &payloads.iter().map(Vec::as_slice).collect::<Vec<_>>()).concat();
        let mut reading = Reading::body(up(&request).opening(), BufChain::new());
        let (room, mut got, mut rest) = (Room { head: 9, tail: 33, max: usize::MAX }, Vec::new(), &wire[..]);
        let mut cuts = cuts.into_iter().cycle();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(cuts.next().unwrap().min(rest.len()));
            reading.take_in(BufChain::copied(now));
            while let Some(datagram) = reading.open_datagram(room).unwrap() {
                prop_assert!(datagram.head() >= room.head && datagram.spare() >= room.tail);
                got.push(datagram.to_vec());
            }
            rest = later;
        }
        prop_assert_eq!(got, payloads);
        prop_assert_eq!(reading.end_of_lower(), Ok(()));
    }

    #[test]
    fn any_changed_byte_of_a_sealed_chunk_is_noticed(
        options in 0u8..32, chacha: bool, at in 0usize..1000, bit in 0u8..8,
    ) {
        let security = if chacha { Security::ChaCha20Poly1305 } else { Security::Aes128Gcm };
        let request = request(security, options);
        let mut wire = chunks(up(&request), &[b"first", &[7; 300], b"last"]).concat();
        let index = at % wire.len();
        wire[index] ^= 1 << bit;
        let mut reading = Reading::body(up(&request).opening(), BufChain::new());
        let sent = [&b"first"[..], &[7; 300], b"last"].concat();
        // Padding proves nothing. A length without a seal can make what follows it seem to be cut.
        match opened(&mut reading, &wire, &[64], Room::NONE) {
            Ok(got) if got == sent => prop_assert!(request.options.has(Options::PADDED)),
            Ok(got) => {
                prop_assert!(sent.starts_with(&got));
                prop_assert_eq!(reading.end_of_lower(), Err(Fault::Cut));
            }
            Err(fault) => prop_assert!(matches!(fault, Fault::Changed | Fault::Length)),
        }
    }

    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..600), request in any_request()) {
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
        let mut reading = Reading::body(up(&request).opening(), BufChain::new());
        let _ = opened(&mut reading, &bytes, &[100, 3], Room::NONE);
        let mut answer = Reading::answer(Answer { request, legacy: false });
        prop_assert!(bytes.len() < 18 || opened(&mut answer, &bytes, &[18], Room::NONE) == Err(Fault::Answer));
    }
}

#[test]
fn counters_run_over_as_the_protocol_has_it() {
    for options in [0x01, 0x15] {
        let request = request(Security::Aes128Gcm, options);
        let Form::Chunks(mut sealer) = up(&request).sealing() else { panic!("no chunks") };
        let mut reading = Reading::body(up(&request).opening(), BufChain::new());
        for number in 0..65_600u32 {
            let wire = sealer.seal_copy(&number.to_be_bytes(), Room::NONE);
            reading.take_in(wire.into());
            assert_eq!(reading.open(Room::NONE).unwrap().to_vec(), number.to_be_bytes());
        }
    }
}

#[test]
fn an_empty_chunk_is_the_end() {
    for security in SECURITIES {
        let request = request(security, 0x0d);
        let wire = chunks(up(&request), &[b"last", b"", b"not any more"]).concat();
        let mut reading = Reading::body(up(&request).opening(), BufChain::new());
        assert_eq!(opened(&mut reading, &wire, &[5], Room::NONE), Ok(b"last".to_vec()));
        assert!(reading.has_ended(), "{security:?}");
    }
}

#[test]
fn an_end_inside_a_chunk_is_none() {
    let request = request(Security::Aes128Gcm, 0x0d);
    let wire = chunks(up(&request), &[b"hello"]).concat();
    for cut in 1..wire.len() {
        let mut reading = Reading::body(up(&request).opening(), BufChain::new());
        opened(&mut reading, &wire[..cut], &[7], Room::NONE).unwrap();
        assert_eq!(reading.end_of_lower(), Err(Fault::Cut), "cut at {cut}");
    }
}

#[test]
fn an_answer_to_another_request_is_none() {
    let request = request(Security::Aes128Gcm, 0x05);
    let keys = request.keys.response();
    for (keys, check) in [(&keys, 0x5b), (&request.keys, 0x5a)] {
        let mut reading = Reading::answer(Answer { request: request.clone(), legacy: false });
        let wire = seal_response(keys, check, request.options);
        assert_eq!(opened(&mut reading, &wire, &[99], Room::NONE), Err(Fault::Answer));
    }
    let mut reading = Reading::answer(Answer { request, legacy: true });
    let outcome = opened(&mut reading, b"HTTP/1.1 400 Bad Request\r\n\r\n", &[99], Room::NONE);
    assert_eq!(outcome, Err(Fault::Answer));
}

#[test]
fn payload_in_front_of_a_fault_comes_out_first() {
    let request = request(Security::Aes128Gcm, 0x05);
    let mut wire = chunks(up(&request), &[b"good", b"bad"]).concat();
    *wire.last_mut().unwrap() ^= 1;
    let mut reading = Reading::body(up(&request).opening(), BufChain::copied(&wire));
    assert_eq!(reading.open(Room::NONE).unwrap().to_vec(), b"good");
    assert_eq!(reading.open(Room::NONE).err(), Some(Fault::Changed));
    assert_eq!(reading.open(Room::NONE).err(), Some(Fault::Failed));
}

// Both ends.

fn user(alter_id: i64) -> VmessUser {
    VmessUser { name: CANARY.to_owned(), uuid: user_id(ID), alter_id }
}

fn server_at(clock: fn() -> u64, alter_id: i64) -> Arc<dyn StreamServer> {
    let others = (0..20).map(|n| VmessUser { uuid: user_id(&format!("user {n}")), ..VmessUser::default() });
    let users = Users::new(&others.chain([user(alter_id)]).collect::<Vec<_>>()).unwrap();
    Arc::new(VmessServer::new(users, Onward { mux: None, uot: true }, None).with_clock(clock))
}

fn server() -> Arc<dyn StreamServer> {
    server_at(unix_now, 0)
}

fn client(world: &World, server: &Arc<dyn StreamServer>, options: &VmessOutbound) -> Arc<dyn Outbound> {
    let dialer = dialer(world.upstream(server));
    options.build(OutboundCx { tag: Tag::new("vmess", "out"), dialer, store: store() }).unwrap()
}

/// Every way in which a client can be configured that is seen on the wire.
fn all_options() -> Vec<VmessOutbound> {
    let mut all = Vec::new();
    for security in ["auto", "none", "zero", "aes-128-gcm", "chacha20-poly1305", "aes-128-cfb"] {
        for bits in 0..8 {
            all.push(VmessOutbound {
                global_padding: bits & 1 != 0,
                authenticated_length: bits & 2 != 0,
                alter_id: i64::from(bits & 4 != 0),
                ..secured(security)
            });
        }
    }
    all
}

#[tokio::test]
async fn streams_pass_with_all_options() {
    let mut world = World::new();
    let server = server_at(unix_now, 3);
    let payload: Vec<u8> = (0..300_000u32).map(|n| (n * 7) as u8).collect();
    for options in all_options() {
        let client = client(&world, &server, &options);
        let mut early = BufChain::copied(b"early ");
        let mut near = client.dial(&session("a.test:80"), &mut early).await.unwrap();
        assert!(early.is_empty());
        let arrived = world.next().await;
        assert_eq!(arrived.session.target, target("a.test:80"));
        assert_eq!(arrived.session.user.as_deref(), Some(CANARY));
        let mut far = arrived.stream();
        let there = async {
            near.write_all(&payload).await.unwrap();
            write_chain(&mut near, &mut BufChain::copied(&payload)).await.unwrap();
            near.shutdown().await.unwrap();
            let mut got = Vec::new();
            near.read_to_end(&mut got).await.unwrap();
            got
        };
        let back = async {
            let mut got = Vec::new();
            far.read_to_end(&mut got).await.unwrap();
            far.write_all(&payload).await.unwrap();
            far.shutdown().await.unwrap();
            got
        };
        let (down, up) = tokio::join!(there, back);
        assert!(down == payload, "{options:?}");
        assert!(up == [b"early ", &payload[..], &payload].concat(), "{options:?}");
    }
}

#[tokio::test]
async fn a_target_may_speak_first_or_not_at_all() {
    let mut world = World::new();
    let server = server();
    for security in ["aes-128-gcm", "zero"] {
        let client = client(&world, &server, &secured(security));
        let mut near = client.dial(&session("a.test:25"), &mut BufChain::new()).await.unwrap();
        near.flush().await.unwrap();
        let mut far = world.next().await.stream();
        far.write_all(b"220 hello").await.unwrap();
        let mut got = [0; 9];
        near.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"220 hello");
        drop(far);
        assert_eq!(near.read(&mut got).await.unwrap(), 0);

        let mut near = client.dial(&session("a.test:25"), &mut BufChain::new()).await.unwrap();
        // To read is enough for the request to leave.
        let (got, far) = tokio::join!(read_chain(&mut near, Room::NONE), async {
            world.next().await.stream().shutdown().await
        });
        assert!(got.unwrap().is_empty() && far.is_ok());
    }
}

#[tokio::test]
async fn datagrams_pass_with_all_options() {
    let mut world = World::new();
    let server = server_at(unix_now, 1);
    for options in all_options() {
        let client = client(&world, &server, &options);
        let session = Session { network: Network::Udp, ..session("192.0.2.9:53") };
        let mut near = client.listen_packet(&session).await.unwrap();
        send_packets(&mut near, &[("192.0.2.9:53", b"query"), ("192.0.2.9:53", &[9; 50_000])]).await;
        let arrived = world.next().await;
        assert_eq!((arrived.session.network, &arrived.session.target), (Network::Udp, &session.target));
        let (mut far, mut waiting) = (arrived.packets(), PacketBatch::new());
        assert_eq!(recv_packet(&mut far, &mut waiting).await.1, b"query");
        assert!(recv_packet(&mut far, &mut waiting).await.1 == [9; 50_000]);
        send_packets(&mut far, &[("192.0.2.9:53", b"answer"), ("192.0.2.9:53", &[8; 50_000])]).await;
        let mut waiting = PacketBatch::new();
        let first = recv_packet(&mut near, &mut waiting).await;
        assert_eq!(first, ("192.0.2.9:53".to_owned(), b"answer".to_vec()));
        assert!(recv_packet(&mut near, &mut waiting).await.1 == [8; 50_000]);
    }
}

#[tokio::test]
async fn datagrams_pass_with_every_encoding() {
    let (mut world, server) = (World::new(), server());
    for encoding in ["packetaddr", "xudp"] {
        for security in ["zero", "aes-128-gcm", "aes-128-cfb"] {
            let options = options(ID, &format!(r#"{security}","packet_encoding":"{encoding}"#));
            let client = client(&world, &server, &options);
            let session = Session { network: Network::Udp, ..session("192.0.2.9:53") };
            let mut near = client.listen_packet(&session).await.unwrap();
            send_packets(&mut near, &[("192.0.2.9:53", b"one"), ("[2001:db8::1]:9", b"two")]).await;
            let arrived = world.next().await;
            assert_eq!((arrived.session.network, &arrived.session.target), (Network::Udp, &session.target));
            let (mut far, mut waiting) = (arrived.packets(), PacketBatch::new());
            for (peer, payload) in [("192.0.2.9:53", &b"one"[..]), ("[2001:db8::1]:9", b"two")] {
                let got = recv_packet(&mut far, &mut waiting).await;
                assert_eq!(got, (peer.to_owned(), payload.to_vec()), "{encoding} in {security}");
            }
            send_packets(&mut far, &[("198.51.100.1:1", b"from elsewhere")]).await;
            let got = recv_packet(&mut near, &mut PacketBatch::new()).await;
            assert_eq!(got, ("198.51.100.1:1".to_owned(), b"from elsewhere".to_vec()));
        }
    }
}

#[tokio::test]
async fn an_association_to_a_name_is_answered_by_an_address() {
    let (mut world, server) = (World::new(), server());
    let client = client(&world, &server, &secured("aes-128-gcm"));
    let session = Session { network: Network::Udp, ..session("a.test:53") };
    let mut near = client.listen_packet(&session).await.unwrap();
    send_packets(&mut near, &[("a.test:53", b"query")]).await;
    let mut far = world.next().await.packets();
    send_packets(&mut far, &[("192.0.2.1:53", b"answer")]).await;
    let got = recv_packet(&mut near, &mut PacketBatch::new()).await;
    assert_eq!(got, ("a.test:53".to_owned(), b"answer".to_vec()));
}

#[tokio::test]
async fn multiplexed_sessions_are_served_without_configuration() {
    let (mut world, server) = (World::new(), server());
    let request = Request { command: Command::Mux, target: None, ..request(Security::Aes128Gcm, 0x05) };
    let key = command_key(user_id(ID).uuid());
    let id = seal_auth_id(&auth_id_sealer(&key), unix_now(), [0; 4]);
    let (mut near, _) = world.serve(&server);
    near.write_all(&seal_request(&key, id, [0; 8], &request.encode(b""))).await.unwrap();
    let mut conn = VmessConn::new(Ends {
        lower: Box::new(near),
        reading: Reading::answer(Answer { request: request.clone(), legacy: false }),
        writing: Writing::new(up(&request).sealing(), Head { bytes: vec![], waits: false }),
    });
    conn.write_all(b"\0\x0c\0\x07\x01\x01\x01\0\x50\x01\xc0\0\x02\x01\0\x03ask").await.unwrap();
    let arrived = world.next().await;
    assert_eq!(
        (arrived.session.target.clone(), arrived.session.user.as_deref()),
        (target("192.0.2.1:80"), Some(CANARY))
    );
    let mut far = arrived.stream();
    let mut got = [0; 3];
    far.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"ask");
    far.write_all(b"yes").await.unwrap();
    let mut frame = [0; 11];
    conn.read_exact(&mut frame).await.unwrap();
    assert_eq!(&frame, b"\0\x04\0\x07\x02\x01\0\x03yes");
}

#[tokio::test]
async fn trains_leave_as_their_datagrams_and_strangers_get_nothing() {
    let (near, far) = duplex(1 << 20);
    let request = request(Security::Aes128Gcm, 0x0d);
    let head = || Head { bytes: Vec::new(), waits: false };
    let ends = |lower: Duplex| Ends {
        lower: Box::new(lower),
        reading: Reading::body(up(&request).opening(), BufChain::new()),
        writing: Writing::new(up(&request).sealing(), head()),
    };
    let mut one = VmessPackets::new(ends(near), target("192.0.2.9:53")).only_to_peer();
    let mut other = VmessPackets::new(ends(far), target("192.0.2.9:53"));
    let mut batch = PacketBatch::new();
    batch.push(Packet { data: Buf::copied(b"aabbc"), segment: 2, peer: target("192.0.2.9:53") });
    batch.push(Packet::new(Buf::copied(b"lost"), target("192.0.2.10:53")));
    batch.push(Packet::new(Buf::copied(b""), target("192.0.2.9:53")));
    std::future::poll_fn(|cx| one.poll_send(cx, &mut batch)).await.unwrap();
    send_packets(&mut one, &[("192.0.2.9:53", b"end")]).await;
    let mut waiting = PacketBatch::new();
    for wanted in [&b"aa"[..], b"bb", b"c", b"end"] {
        assert_eq!(recv_packet(&mut other, &mut waiting).await.1, wanted);
    }
}

/// What a client sends, as it comes from the wire, and an empty chain at its end.
struct Recorder(mpsc::UnboundedSender<BufChain>);

#[async_trait]
impl StreamServer for Recorder {
    async fn serve(
        &self,
        mut conn: BoxStream,
        _session: Session,
        _handshake: Handshake,
        _dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        loop {
            let read = read_chain(&mut conn, Room::NONE).await?;
            let has_ended = read.is_empty();
            let _ = self.0.send(read);
            if has_ended {
                return Ok(());
            }
        }
    }
}

/// A whole connection's worth of bytes of a client that has said `early` and `later`.
async fn recorded(options: &VmessOutbound) -> Vec<u8> {
    let world = World::new();
    let (sender, mut pieces) = mpsc::unbounded_channel();
    let client = client(&world, &(Arc::new(Recorder(sender)) as Arc<dyn StreamServer>), options);
    let mut early = BufChain::copied(b"early");
    let mut conn = client.dial(&session("a.test:80"), &mut early).await.unwrap();
    let first = pieces.recv().await.unwrap();
    conn.write_all(b"later").await.unwrap();
    conn.shutdown().await.unwrap();
    let mut wire = first.to_vec();
    while let Some(piece) = pieces.recv().await.filter(|piece| !piece.is_empty()) {
        wire.extend(piece.to_vec());
    }
    wire
}

#[tokio::test]
async fn the_first_payload_leaves_with_the_header() {
    let world = World::new();
    for (security, chunk) in [("zero", 5), ("aes-128-gcm", 2 + 5 + TAG), ("aes-128-cfb", 2 + 4 + 5)] {
        let (sender, mut pieces) = mpsc::unbounded_channel();
        let recorder: Arc<dyn StreamServer> = Arc::new(Recorder(sender));
        let client = client(&world, &recorder, &secured(security));
        let mut conn = client.dial(&session("a.test:80"), &mut BufChain::copied(b"early")).await.unwrap();
        conn.flush().await.unwrap();
        let len = pieces.recv().await.unwrap().len();
        let header = 16 + 18 + 8 + 52 + 16;
        assert!((header + chunk..=header + chunk + 15).contains(&len), "{len} bytes with {security}");
        assert!(pieces.try_recv().is_err());
        // Without a payload at hand, a flush is what the header waits for.
        let mut conn = client.dial(&session("a.test:80"), &mut BufChain::new()).await.unwrap();
        tokio::task::yield_now().await;
        assert!(pieces.try_recv().is_err());
        conn.flush().await.unwrap();
        assert!((header..=header + 15).contains(&pieces.recv().await.unwrap().len()));
    }
}

/// Sends `wire` to the server and returns whether it dialled, and that it said nothing if not.
async fn is_served(world: &mut World, server: &Arc<dyn StreamServer>, wire: &[u8]) -> bool {
    let (mut near, served) = world.serve(server);
    near.write_all(wire).await.unwrap();
    near.shutdown().await.unwrap();
    if served.await.unwrap().is_ok() {
        let mut far = world.next().await.stream();
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"earlylater");
        return true;
    }
    let mut got = Vec::new();
    let _ = near.read_to_end(&mut got).await;
    assert!(got.is_empty(), "a stranger is told something");
    assert!(world.arrivals.try_recv().is_err(), "a stranger makes the server dial");
    false
}

#[tokio::test]
async fn a_recorded_stream_is_served_once() {
    for (security, alter_id) in [("aes-128-gcm", 0), ("zero", 0), ("aes-128-cfb", 1)] {
        let (mut world, server) = (World::new(), server_at(unix_now, alter_id));
        let wire = recorded(&VmessOutbound { alter_id, ..secured(security) }).await;
        assert!(is_served(&mut world, &server, &wire).await);
        assert!(!is_served(&mut world, &server, &wire).await, "a replay is served");
        // What is not sealed of the header may be changed, and it is the same replay.
        let mut changed = wire.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(!is_served(&mut world, &server, &changed).await, "a changed replay is served");
    }
}

#[tokio::test]
async fn strangers_are_not_served() {
    let (mut world, server) = (World::new(), server());
    let other = VmessOutbound { uuid: user_id("somebody else"), ..secured("aes-128-gcm") };
    assert!(!is_served(&mut world, &server, &recorded(&other).await).await);
    let legacy = VmessOutbound { alter_id: 1, ..secured("aes-128-gcm") };
    assert!(!is_served(&mut world, &server, &recorded(&legacy).await).await, "by the legacy header");
    assert!(!is_served(&mut world, &server, b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").await);
    assert!(!is_served(&mut world, &server, &[0; 4000]).await);
    let wire = recorded(&secured("aes-128-gcm")).await;
    for cut in (0..100).step_by(9) {
        assert!(!is_served(&mut world, &server, &wire[..cut]).await, "cut at {cut}");
        // An id that was seen is gone, so each of these needs a new one.
        let mut wire = recorded(&secured("aes-128-gcm")).await;
        wire[cut] ^= 1;
        assert!(!is_served(&mut world, &server, &wire).await, "changed at {cut}");
    }
}

#[tokio::test]
async fn clocks_may_differ_by_two_minutes() {
    // The client's clock is read a moment before the server's, so one of these is not exact.
    let clocks: [(fn() -> u64, bool); 4] = [
        (|| unix_now() + WINDOW - 1, true),
        (|| unix_now() + WINDOW + 1, false),
        (|| unix_now() - WINDOW, true),
        (|| unix_now() - WINDOW - 3, false),
    ];
    for (index, (clock, served)) in clocks.into_iter().enumerate() {
        for alter_id in [0, 1] {
            let (mut world, server) = (World::new(), server_at(clock, alter_id));
            let wire = recorded(&VmessOutbound { alter_id, ..secured("aes-128-gcm") }).await;
            assert_eq!(is_served(&mut world, &server, &wire).await, served, "clock {index}, {alter_id}");
        }
    }
}

/// Whatever is wrong, the connection breaks off behind the same number of bytes, give or take what chance adds.
#[tokio::test]
async fn the_end_of_a_stranger_does_not_tell_what_was_wrong() {
    let (world, server) = (World::new(), server());
    let good = recorded(&secured("aes-128-gcm")).await;
    let mut changed = good.clone();
    changed[60] ^= 1;
    let mut ends = Vec::new();
    for wire in [vec![], changed, good.clone(), good] {
        let (mut near, served) = world.serve(&server);
        let (wire, mut sent) = ([&wire[..115.min(wire.len())], &[0; 4000]].concat(), 0);
        for byte in wire {
            if served.is_finished() || near.write_all(&[byte]).await.is_err() {
                break;
            }
            sent += 1;
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        }
        assert!(near.read_u8().await.is_err());
        ends.push(sent);
    }
    let (least, most) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    assert!(*least >= 54 && *most <= 54 + 3267 + 64 + 1 && most - least <= 66, "{ends:?}");
}

#[tokio::test]
async fn a_changed_chunk_breaks_both_sides() {
    let (mut world, server) = (World::new(), server());
    let mut wire = recorded(&secured("aes-128-gcm")).await;
    *wire.last_mut().unwrap() ^= 1;
    let (mut near, _) = world.serve(&server);
    near.write_all(&wire).await.unwrap();
    let mut far = world.next().await.stream();
    let mut got = Vec::new();
    assert_eq!(far.read_to_end(&mut got).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(got, b"early");
    assert_eq!(near.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn the_header_may_come_byte_by_byte() {
    let (mut world, server) = (World::new(), server_at(unix_now, 1));
    for alter_id in [0, 1] {
        let wire = recorded(&VmessOutbound { alter_id, ..secured("aes-128-gcm") }).await;
        let (mut near, _) = world.serve(&server);
        write_in_pieces(&mut near, &wire, &[1]).await.unwrap();
        near.shutdown().await.unwrap();
        let mut got = Vec::new();
        world.next().await.stream().read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"earlylater");
    }
}

#[tokio::test]
async fn udp_over_tcp_is_understood() {
    let (mut world, server) = (World::new(), server());
    let client = client(&world, &server, &secured("aes-128-gcm"));
    let version = crate::uot::Version::V2;
    let asked = Session { target: version.magic_target(), ..session("a.test:1") };
    let conn = client.dial(&asked, &mut BufChain::new()).await.unwrap();
    let mut near = crate::uot::UotConn::client(version, conn, &target("192.0.2.9:53"));
    send_packets(&mut near, &[("192.0.2.9:53", b"query")]).await;
    let arrived = world.next().await;
    assert_eq!(arrived.session.target, target("192.0.2.9:53"));
    let (mut far, mut waiting) = (arrived.packets(), PacketBatch::new());
    assert_eq!(recv_packet(&mut far, &mut waiting).await.1, b"query");
}

async fn tcp() -> (BoxStream, BoxStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (Box::new(TcpConn::new(near.unwrap())), Box::new(TcpConn::new(far.unwrap().0)))
}

/// Both ends of a connection behind the request's header, which is left out.
async fn connected(request: &Request) -> (VmessConn, VmessConn) {
    let (near, far) = tcp().await;
    let keys = request.keys.response();
    let client = Ends {
        lower: near,
        reading: Reading::answer(Answer { request: request.clone(), legacy: false }),
        writing: Writing::new(up(request).sealing(), Head { bytes: vec![], waits: false }),
    };
    let down = Direction { request, keys: &keys, cfb: None };
    let bytes = seal_response(&keys, request.check, request.options);
    let server = Ends {
        lower: far,
        reading: Reading::body(up(request).opening(), BufChain::new()),
        writing: Writing::new(down.sealing(), Head { bytes, waits: true }),
    };
    (VmessConn::new(client), VmessConn::new(server))
}

#[tokio::test]
async fn what_is_not_encrypted_becomes_plain_sockets() {
    let request = request(Security::None, 0);
    let (mut client, mut server) = connected(&request).await;
    assert!(client.kernel_socket(Half::Read).is_none() && client.kernel_socket(Half::Write).is_none());
    assert!(server.kernel_socket(Half::Read).is_some() && server.kernel_socket(Half::Write).is_none());
    client.write_all(b"ask").await.unwrap();
    let mut got = [0; 3];
    server.read_exact(&mut got).await.unwrap();
    server.write_all(b"yes").await.unwrap();
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"yes");
    for conn in [&client, &server] {
        assert!(conn.kernel_socket(Half::Read).is_some() && conn.kernel_socket(Half::Write).is_some());
    }
}

#[tokio::test]
async fn a_server_answers_with_the_first_bytes_and_not_before() {
    let request = request(Security::Aes128Gcm, 5);
    let (mut client, mut server) = connected(&request).await;
    server.flush().await.unwrap();
    let Ends { lower, .. } = &mut client.ends_for_test();
    let nothing = std::future::poll_fn(|cx| Poll::Ready(lower.poll_read_chain(cx, Room::NONE).is_pending()));
    assert!(nothing.await, "a flush sends the answer");
    server.write_all(b"data").await.unwrap();
    let together = read_chain(lower, Room::NONE).await.unwrap();
    assert_eq!(together.len(), 38 + 2 + 4 + 16);
}

#[tokio::test]
async fn nothing_is_held_while_idle() {
    for options in [0x05, 0x0d, 0x15, 0x1d] {
        let request = request(Security::Aes128Gcm, options);
        let (mut client, mut server) = connected(&request).await;
        for len in [1, 100, 15_000, 100_000] {
            let payload = vec![len as u8; len];
            let sending = async { client.write_all(&payload).await.unwrap() };
            let mut got = vec![0; len];
            let receiving = async { server.read_exact(&mut got).await.unwrap() };
            tokio::join!(sending, receiving);
            assert!(got == payload);
            assert!(server.is_idle() && client.is_idle(), "{options:#x}, {len} bytes");
        }
    }
}

#[tokio::test]
async fn chunks_are_sealed_where_they_lie_and_leave_in_one_write() {
    let request = request(Security::Aes128Gcm, 0x05);
    let (mut client, mut server) = connected(&request).await;
    let room = client.room();
    let mut data = BufChain::new();
    for byte in 0..4 {
        let mut piece = Buf::new(2000, room.head, room.tail);
        piece.append(&[byte; 2000]);
        data.push_back(piece);
    }
    let place = data.iter().next().unwrap().as_ptr() as usize;
    write_chain(&mut client, &mut data).await.unwrap();
    assert_eq!(place % 2, room.head % 2, "the room is in front of the payload");
    let got = read_chain(&mut server, Room::NONE).await.unwrap();
    assert_eq!((got.len(), got.pieces()), (8000, 1), "four chunks come out in one piece");
}

#[test]
fn no_log_shows_keys_or_names() {
    let users = Users::new(&[user(0)]).unwrap();
    let shown = format!("{users:?} {:?}", Refusal::Unknown.reason());
    assert!(!shown.contains(CANARY) && !shown.contains("b831"));
}
