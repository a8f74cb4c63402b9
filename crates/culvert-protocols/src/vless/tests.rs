//! Vectors, cuts, wrong users, and both ends over streams in memory.

use std::net::SocketAddr;

use culvert_config::options::dial::ServerOptions;
use culvert_config::options::outbound::vmess::PacketEncoding;
use culvert_config::options::transport::Transport;
use culvert_config::options::users::VlessUser;
use culvert_core::conn::{read_chain, write_chain};
use culvert_core::duplex::{Duplex, duplex};
use culvert_core::{
    DialError, Half, Network, PacketBatch, PacketConn, ServeError, StreamConn, StreamServer, Tag, TcpConn,
};
use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::codec::{Command, Id, RESPONSE, Request, decode_response};
use super::conn::Answered;
use super::*;
use crate::headed::Headed;
use crate::testing::{World, dialer, recv_packet, send_packets, session, store, target, write_in_pieces};

const ID: [u8; 16] =
    [0xb8, 0x31, 0x38, 0x1d, 0x63, 0x24, 0x4d, 0x53, 0xad, 0x4f, 0x8c, 0xda, 0x48, 0xb3, 0x08, 0x11];

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// The options of a config's one inbound and one outbound.
fn load(inbound: &str, outbound: &str) -> culvert_config::Options {
    let text = format!(
        r#"{{"inbounds": [{{"type": "vless", "tag": "in", {inbound}}}],
            "outbounds": [{{"type": "vless", "tag": "out", "server": "a.test", "server_port": 1, {outbound}}}]}}"#
    );
    culvert_config::load(&[culvert_config::Source::new("c.json", text.as_bytes())]).unwrap().options
}

/// Users as a config has them.
fn users(list: &str) -> Vec<VlessUser> {
    let options = load(&format!(r#""users": [{list}]"#), r#""uuid": "x""#);
    options.inbounds[0].of::<VlessInbound>().unwrap().users.clone()
}

fn server() -> Arc<dyn StreamServer> {
    let users = users(
        r#"{"name": "bob", "uuid": "example"}, {"name": "alice", "uuid": "b831381d-6324-4d53-ad4f-8cda48b30811"}"#,
    );
    Arc::new(VlessServer::new(Users::new(&users), Onward { mux: None, uot: true }, None))
}

fn request(command: Command) -> Request {
    Request { id: Id(ID), flow: vec![], command }
}

fn header(command: Command) -> Vec<u8> {
    let mut out = Vec::new();
    request(command).encode(&mut out);
    out
}

/// A client's end behind `request`.
fn client_end(conn: impl StreamConn + 'static, request: Request) -> Answered {
    let mut header = Vec::new();
    request.encode(&mut header);
    Answered::new(Box::new(Headed::new(header, Box::new(conn))))
}

/// A server's end behind the request.
fn server_end(conn: impl StreamConn + 'static) -> Headed {
    Headed::answering(RESPONSE.to_vec(), Box::new(conn))
}

/// An outbound whose server is [`server`], with its sessions in `world`.
fn client(world: &World, packet_encoding: Option<PacketEncoding>) -> Client {
    let address = ServerOptions { server: "server.test".to_owned(), server_port: 443 };
    let dialer = dialer(world.upstream(&server()));
    let carrier = Carrier::new(dialer, &store(), &address, None, &Transport::default()).unwrap();
    let tag = Tag::new("vless", "out");
    Client { tag, carrier, id: Id(ID), tcp: true, udp: true, packet_encoding, vision: false }
}

#[test]
fn vectors_of_the_sheet() {
    let cases = [
        (
            "00b831381d63244d53ad4f8cda48b30811000101bb020b6578616d706c652e636f6d",
            "",
            Command::Tcp(target("example.com:443")),
        ),
        (
            "00b831381d63244d53ad4f8cda48b30811120a1078746c732d727072782d766973696f6e0101bb0101020304",
            "xtls-rprx-vision",
            Command::Tcp(target("1.2.3.4:443")),
        ),
        ("00b831381d63244d53ad4f8cda48b30811000200350101020304", "", Command::Udp(target("1.2.3.4:53"))),
        ("00b831381d63244d53ad4f8cda48b308110003", "", Command::Mux),
        (
            "00b831381d63244d53ad4f8cda48b3081100020000021973702e7061636b65742d616464722e7632666c792e61727061",
            "",
            Command::Udp(crate::packetaddr::magic_target()),
        ),
    ];
    for (bytes, flow, command) in cases {
        let bytes = hex(bytes);
        let request = Request { id: Id(ID), flow: flow.as_bytes().to_vec(), command };
        assert_eq!(Request::decode(&mut Reader::new(&bytes)), Ok(request.clone()));
        let mut out = Vec::new();
        request.encode(&mut out);
        assert_eq!(out, bytes);
        for cut in 0..bytes.len() {
            assert_eq!(Request::decode(&mut Reader::new(&bytes[..cut])), Err(DecodeError::Incomplete));
        }
        assert!(!format!("{request:?}").contains("184"), "an id is shown");
    }
}

#[test]
fn addons_are_read_as_protobuf() {
    let with = |addons: &str| {
        let addons = hex(addons);
        let bytes = [&[0][..], &ID, &[addons.len() as u8], &addons, &[3]].concat();
        Request::decode(&mut Reader::new(&bytes)).map(|request| request.flow)
    };
    for (addons, flow) in [
        ("", ""),
        ("0a00", ""),
        ("120178", ""),
        ("0a0161 120178", "a"),
        ("120178 0a0161", "a"),
        ("0a8100 61", "a"),
        // Fields of other wire types, which nobody sends yet.
        ("0801 11 0000000000000000 1d 00000000 0a0161", "a"),
    ] {
        assert_eq!(with(addons), Ok(flow.as_bytes().to_vec()), "{addons}");
    }
    for addons in ["0a", "0a05 61", "0b", "ff", "0affffffffffffffffff7f", "11 00", "ffffffffffffffffffffff"] {
        assert!(matches!(with(addons), Err(DecodeError::Invalid(_))), "{addons}");
    }
}

#[test]
fn responses_end_behind_their_addons() {
    for (bytes, used) in [("0000", 2), ("0003 616263 ff", 5)] {
        let bytes = hex(bytes);
        let mut r = Reader::new(&bytes);
        assert_eq!((decode_response(&mut r), r.position()), (Ok(()), used));
        for cut in 0..used {
            assert_eq!(decode_response(&mut Reader::new(&bytes[..cut])), Err(DecodeError::Incomplete));
        }
    }
    assert!(matches!(decode_response(&mut Reader::new(b"HTTP")), Err(DecodeError::Invalid(_))));
}

#[test]
fn users_are_found_by_all_of_their_id() {
    let users = Users::new(&users(
        r#"{"name": "a", "uuid": "b831381d-6324-4d53-ad4f-8cda48b30811"}, {"uuid": "example"},
           {"name": "twice", "uuid": "x"}, {"name": "thrice", "uuid": "x"}"#,
    ));
    let name = |id: &[u8; 16]| users.find(&Id(*id)).map(|user| user.name.to_string());
    assert_eq!(name(&ID).as_deref(), Some("a"));
    let example: [u8; 16] = hex("feb54431301b52bba6dde1e93e81bb9e").try_into().unwrap();
    assert_eq!(name(&example).as_deref(), Some("1"), "without a name it is the place in the list");
    for at in 0..16 {
        let mut other = ID;
        other[at] ^= 1;
        assert_eq!(name(&other), None, "byte {at}");
    }
    assert_eq!(format!("{users:?}"), "Users(3)");
}

#[tokio::test]
async fn header_and_first_payload_leave_together_and_in_place() {
    let (near, mut far) = duplex(1 << 16);
    let mut conn = client_end(near, request(Command::Tcp(target("a.test:80"))));
    let room = conn.room();
    let mut data = Buf::new(3, room.head, room.tail);
    data.append(b"GET");
    let place = data.as_ptr() as usize;
    write_chain(&mut conn, &mut data.into()).await.unwrap();
    let sent = read_chain(&mut far, Room::NONE).await.unwrap();
    assert_eq!(sent.to_vec(), [&header(Command::Tcp(target("a.test:80")))[..], b"GET"].concat());
    assert_eq!(
        (sent.pieces(), sent.front().as_ptr() as usize + sent.len() - 3),
        (1, place),
        "the payload was copied"
    );
    assert_eq!(conn.room(), Room::NONE);
    // Without room, or by the other way to write, they leave together all the same.
    for by_chain in [true, false] {
        let (near, mut far) = duplex(1 << 16);
        let mut conn = client_end(near, request(Command::Mux));
        match by_chain {
            true => write_chain(&mut conn, &mut BufChain::copied(b"GET")).await.unwrap(),
            false => conn.write_all(b"GET").await.unwrap(),
        }
        let sent = read_chain(&mut far, Room::NONE).await.unwrap();
        assert_eq!(sent.to_vec(), [&header(Command::Mux)[..], b"GET"].concat());
    }
}

#[tokio::test]
async fn a_client_that_is_silent_or_listens_first_sends_its_header() {
    for listens in [false, true] {
        let (near, mut far) = duplex(1 << 16);
        let mut conn = client_end(near, request(Command::Mux));
        let reading = tokio::spawn(async move {
            if !listens {
                conn.flush().await.unwrap();
            }
            let mut all = Vec::new();
            conn.read_to_end(&mut all).await.unwrap();
            all
        });
        let mut seen = vec![0; header(Command::Mux).len()];
        far.read_exact(&mut seen).await.unwrap();
        assert_eq!(seen, header(Command::Mux));
        far.write_all(b"\0\x02xxhello").await.unwrap();
        drop(far);
        assert_eq!(reading.await.unwrap(), b"hello");
    }
}

#[tokio::test]
async fn a_server_says_nothing_before_the_target_does() {
    let (near, mut far) = duplex(1 << 16);
    let mut conn = server_end(near);
    conn.flush().await.unwrap();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(far.poll_read_chain(&mut cx, Room::NONE).is_pending());
    write_chain(&mut conn, &mut BufChain::copied(b"data")).await.unwrap();
    assert_eq!(read_chain(&mut far, Room::NONE).await.unwrap().to_vec(), b"\0\0data");
    // Where it never does, the client is told that this is an end like any other.
    let (near, mut far) = duplex(1 << 16);
    server_end(near).shutdown().await.unwrap();
    let mut all = Vec::new();
    far.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, RESPONSE);
}

#[tokio::test]
async fn answers_that_are_none_are_told_from_ends() {
    use std::io::ErrorKind::{InvalidData, UnexpectedEof};
    for (answer, wanted) in [
        (&b""[..], None),
        (b"\0", Some(UnexpectedEof)),
        (b"\0\x05ab", Some(UnexpectedEof)),
        (b"HTTP", Some(InvalidData)),
    ] {
        let (near, mut far) = duplex(1 << 16);
        let mut conn = client_end(near, request(Command::Mux));
        far.write_all(answer).await.unwrap();
        drop(far);
        match wanted {
            None => assert!(read_chain(&mut conn, Room::NONE).await.unwrap().is_empty()),
            Some(kind) => assert_eq!(read_chain(&mut conn, Room::NONE).await.unwrap_err().kind(), kind),
        }
    }
}

fn is_socket(conn: &impl StreamConn, half: Half) -> bool {
    conn.kernel_socket(half).is_some()
}

/// Two ends of a TCP connection.
async fn sockets() -> (TcpConn, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (TcpConn::new(near), listener.accept().await.unwrap().0)
}

#[tokio::test]
async fn once_the_headers_are_through_each_half_is_the_socket() {
    let (near, mut far) = sockets().await;
    let mut conn = client_end(near, request(Command::Mux));
    assert!(!is_socket(&conn, Half::Write) && !is_socket(&conn, Half::Read));
    assert!(conn.bypass(Half::Write).is_err() && conn.bypass(Half::Read).is_err());
    conn.write_all(b"x").await.unwrap();
    conn.flush().await.unwrap();
    assert!(is_socket(&conn, Half::Write) && !is_socket(&conn, Half::Read));
    far.write_all(b"\0\0first").await.unwrap();
    let mut first = [0; 2];
    conn.read_exact(&mut first).await.unwrap();
    assert!(!is_socket(&conn, Half::Read), "bytes are held still");
    assert_eq!(read_chain(&mut conn, Room::NONE).await.unwrap().to_vec(), b"rst");
    assert!(
        is_socket(&conn, Half::Read) && conn.bypass(Half::Read).is_ok() && conn.bypass(Half::Write).is_ok()
    );

    let (near, _far) = sockets().await;
    let mut conn = server_end(near);
    assert!(is_socket(&conn, Half::Read) && !is_socket(&conn, Half::Write));
    conn.write_all(b"x").await.unwrap();
    conn.flush().await.unwrap();
    assert!(is_socket(&conn, Half::Write));
}

#[tokio::test]
async fn a_full_stream_takes_header_and_payload_bit_by_bit() {
    let (near, far) = duplex(7);
    let mut conn = client_end(near, request(Command::Mux));
    let payload: Vec<u8> = (0..=255).cycle().take(50_000).collect();
    let wanted = [header(Command::Mux), payload.clone()].concat();
    let reading = tokio::spawn(async move {
        let (mut far, mut all) = (far, Vec::new());
        far.read_to_end(&mut all).await.unwrap();
        all
    });
    conn.write_all(&payload[..20_000]).await.unwrap();
    for part in payload[20_000..].chunks(1000) {
        write_chain(&mut conn, &mut BufChain::copied(part)).await.unwrap();
    }
    conn.shutdown().await.unwrap();
    assert!(reading.await.unwrap() == wanted);
}

#[tokio::test]
async fn streams_go_through_both_ends() {
    let mut world = World::new();
    let client = client(&world, None);
    let mut conn = client.dial(&session("a.test:80"), &mut BufChain::new()).await.unwrap();
    conn.write_all(b"hello").await.unwrap();
    conn.flush().await.unwrap();
    let arrived = world.next().await;
    assert_eq!(
        (arrived.session.network, arrived.session.target.to_string().as_str()),
        (Network::Tcp, "a.test:80")
    );
    assert_eq!(arrived.session.user.as_deref(), Some("alice"));
    let mut far = arrived.stream();
    let mut seen = [0; 5];
    far.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"hello");
    far.write_all(b"answer").await.unwrap();
    far.shutdown().await.unwrap();
    let mut all = Vec::new();
    conn.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"answer");
    // The other way is open still.
    conn.write_all(b"more").await.unwrap();
    conn.shutdown().await.unwrap();
    all.clear();
    far.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"more");
}

#[tokio::test]
async fn datagrams_go_through_both_ends_in_every_encoding() {
    for encoding in [None, Some(PacketEncoding::PacketAddr), Some(PacketEncoding::Xudp)] {
        let mut world = World::new();
        let client = client(&world, encoding);
        let mut conn = client.listen_packet(&session("192.0.2.1:53")).await.unwrap();
        let long = vec![7; 60_000];
        let packets: [(&str, &[u8]); 4] = [
            ("192.0.2.1:53", b"one"),
            ("198.51.100.2:9", b"two"),
            ("192.0.2.1:53", b""),
            ("192.0.2.1:53", &long),
        ];
        send_packets(&mut conn, &packets).await;
        let arrived = world.next().await;
        assert_eq!(
            (arrived.session.network, arrived.session.target.to_string().as_str()),
            (Network::Udp, "192.0.2.1:53")
        );
        assert_eq!(arrived.session.user.as_deref(), Some("alice"));
        let (mut far, mut waiting) = (arrived.packets(), PacketBatch::new());
        for (peer, data) in
            packets.into_iter().filter(|(peer, _)| encoding.is_some() || *peer == "192.0.2.1:53")
        {
            assert_eq!(
                recv_packet(&mut far, &mut waiting).await,
                (peer.to_owned(), data.to_vec()),
                "{encoding:?}"
            );
        }
        send_packets(&mut far, &[("203.0.113.9:5", b"back"), ("203.0.113.9:5", b"")]).await;
        let from = if encoding.is_some() { "203.0.113.9:5" } else { "192.0.2.1:53" };
        assert_eq!(recv_packet(&mut conn, &mut waiting).await, (from.to_owned(), b"back".to_vec()));
        assert_eq!(recv_packet(&mut conn, &mut waiting).await, (from.to_owned(), vec![]));
        drop(far);
        let end = std::future::poll_fn(|cx| conn.poll_recv(cx, Room::NONE, &mut waiting)).await;
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }
}

#[tokio::test]
async fn packetaddr_refuses_associations_to_names_before_dialling() {
    let mut world = World::new();
    let client = client(&world, Some(PacketEncoding::PacketAddr));
    let error = client.listen_packet(&session("a.test:53")).await.err().unwrap();
    assert!(matches!(error, DialError::Target { .. }), "{error}");
    assert!(world.arrivals.try_recv().is_err());
}

#[tokio::test]
async fn first_packets_are_those_of_the_sheet() {
    for (encoding, bytes) in [
        (None, "00b831381d63244d53ad4f8cda48b308110002003501010203040003646e73"),
        (
            Some(PacketEncoding::Xudp),
            "00b831381d63244d53ad4f8cda48b3081100 03000c0000010102003501010203040003646e73",
        ),
        (
            Some(PacketEncoding::PacketAddr),
            "00b831381d63244d53ad4f8cda48b3081100020000021973702e7061636b65742d616464722e7632666c792e61727061000a01010203040035646e73",
        ),
    ] {
        let world = World::new();
        let mut upstream = World::new();
        // The server is a target like any other here, so that what is sent to it can be seen.
        let plain: Arc<dyn Outbound> = Arc::new(ToTarget(upstream.dispatch.clone()));
        let mut client = client(&world, encoding);
        let address = ServerOptions { server: "server.test".to_owned(), server_port: 443 };
        client.carrier =
            Carrier::new(dialer(plain), &store(), &address, None, &Transport::default()).unwrap();
        let mut conn = client.listen_packet(&session("1.2.3.4:53")).await.unwrap();
        send_packets(&mut conn, &[("1.2.3.4:53", b"dns")]).await;
        let mut far = upstream.next().await.stream();
        let sent = read_chain(&mut far, Room::NONE).await.unwrap().to_vec();
        assert_eq!(sent, hex(bytes), "{encoding:?}");
    }
}

/// An outbound that gives its streams to a dispatch as they are.
struct ToTarget(culvert_core::Dispatch);

#[async_trait::async_trait]
impl Outbound for ToTarget {
    fn tag(&self) -> &Tag {
        static TAG: std::sync::LazyLock<Tag> = std::sync::LazyLock::new(|| Tag::new("direct", "target"));
        &TAG
    }

    fn carries(&self, _network: Network) -> bool {
        true
    }

    async fn dial(
        &self,
        session: &culvert_core::Session,
        early: &mut BufChain,
    ) -> Result<culvert_core::BoxStream, DialError> {
        let (near, far) = duplex(1 << 16);
        self.0.submit(culvert_core::Incoming {
            session: session.clone(),
            io: culvert_core::Io::Stream(Box::new(far)),
            early: std::mem::take(early),
            reply: None,
            udp_timeout: None,
        });
        Ok(Box::new(near))
    }

    async fn listen_packet(
        &self,
        _session: &culvert_core::Session,
    ) -> Result<culvert_core::BoxPackets, DialError> {
        Err(DialError::Network(Network::Udp))
    }
}

#[tokio::test]
async fn nobody_else_is_served_or_answered() {
    let mut stranger = header(Command::Tcp(target("a.test:80")));
    stranger[5] ^= 1;
    let vision = [&[0][..], &ID, &hex("120a10"), b"xtls-rprx-vision", &hex("0101bb0101020304")].concat();
    let mut command = header(Command::Mux);
    *command.last_mut().unwrap() = 9;
    let mut kind = header(Command::Tcp(target("1.2.3.4:80")));
    kind[21] = 9;
    for bytes in
        [b"GET / HTTP/1.1\r\n\r\n".to_vec(), stranger, vision, command, kind, vec![0; 2000], vec![0xff; 40]]
    {
        let mut world = World::new();
        let (mut near, serving) = world.serve(&server());
        near.write_all(&bytes).await.unwrap();
        assert!(serving.await.unwrap().is_err(), "{bytes:?}");
        let mut all = Vec::new();
        let _ = near.read_to_end(&mut all).await;
        assert!(all.is_empty() && world.arrivals.try_recv().is_err(), "{bytes:?}");
    }
}

#[tokio::test]
async fn a_refused_client_is_reset_and_one_that_leaves_is_no_fault() {
    let world = World::new();
    let (near, mut far) = sockets().await;
    far.write_all(b"GET").await.unwrap();
    let source: SocketAddr = "192.0.2.7:5000".parse().unwrap();
    let served = world.serve_on(&server(), Box::new(near), source).await.unwrap();
    assert!(matches!(served, Err(ServeError::Invalid(_))));
    let error = far.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let whole = header(Command::Tcp(target("a.test:80")));
    for cut in 0..whole.len() {
        let (mut near, serving) = world.serve(&server());
        near.write_all(&whole[..cut]).await.unwrap();
        drop(near);
        assert!(matches!(serving.await.unwrap(), Err(ServeError::Left)), "cut at {cut}");
    }
}

#[tokio::test]
async fn a_failed_dial_is_a_reset_without_an_answer() {
    let world = World::deciding(|_| Err(DialError::Rejected("test")));
    let (mut near, serving) = world.serve(&server());
    near.write_all(&header(Command::Tcp(target("a.test:80")))).await.unwrap();
    serving.await.unwrap().unwrap();
    let error = near.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn many_streams_and_udp_over_tcp_go_inside() {
    let mut world = World::new();
    let (mut near, _serving) = world.serve(&server());
    let frame = hex("001400010101010050020b6578616d706c652e636f6d00026869");
    near.write_all(&[header(Command::Mux), frame].concat()).await.unwrap();
    let arrived = world.next().await;
    assert_eq!(arrived.session.user.as_deref(), Some("alice"));
    let mut one = arrived.stream();
    one.write_all(b"mux1").await.unwrap();
    let mut answer = [0; 14];
    near.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[..], hex("0000 0004 0001 02 01 0004 6d757831"));

    let (mut near, _serving) = world.serve(&server());
    let sign = crate::uot::Version::V2.magic_target();
    near.write_all(&header(Command::Tcp(sign))).await.unwrap();
    near.write_all(b"\x01\x01\x01\x02\x03\x04\0\x35\0\x03dns").await.unwrap();
    let mut far = world.next().await.packets();
    let got = recv_packet(&mut far, &mut PacketBatch::new()).await;
    assert_eq!(got, ("1.2.3.4:53".to_owned(), b"dns".to_vec()));
}

/// Where the first datagram is late, the place in the table of handshakes is kept: nobody else limits the wait.
#[tokio::test]
async fn packetaddr_without_a_packet_is_a_handshake_still() {
    let world = World::new();
    let (mut near, _serving) = world.serve(&server());
    near.write_all(&header(Command::Udp(crate::packetaddr::magic_target()))).await.unwrap();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!((world.dispatch.handshakes().len(), world.dispatch.flows().len()), (1, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_cut_gives_the_same_connection(up in prop::collection::vec(1usize..30, 1..5), down in prop::collection::vec(1usize..5, 1..5)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            let (mut near, _serving) = world.serve(&server());
            let bytes = [&header(Command::Tcp(target("a.test:80")))[..], b"payload"].concat();
            write_in_pieces(&mut near, &bytes, &up).await.unwrap();
            let mut far = world.next().await.stream();
            let mut seen = [0; 7];
            far.read_exact(&mut seen).await.unwrap();
            assert_eq!(&seen, b"payload");

            let (mut near, far): (Duplex, Duplex) = duplex(1 << 16);
            let mut conn = client_end(far, request(Command::Mux));
            write_in_pieces(&mut near, b"\0\x03abcanswer", &down).await.unwrap();
            drop(near);
            let mut all = Vec::new();
            conn.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"answer");
        });
    }

    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
        // What gets past the version is more telling.
        let behind_version = [&[0; 17][..], &bytes].concat();
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&behind_version));
    }
}
