//! Vectors of the sheet, client against server in memory, and each against frames written by hand.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::dial::ServerOptions;
use culvert_config::options::users::PasswordUser;
use culvert_config::value::Secret;
use culvert_core::conn::read_chain;
use culvert_core::duplex::Duplex;
use culvert_core::{
    BoxStream, DialError, Dispatch, Handshake, Network, Outbound, PacketBatch, ServeError, Session,
    StreamConn, StreamServer, Tag, timeouts,
};
use culvert_wire::{Buf, BufChain, DecodeError, Reader, Room};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::codec::{Command, Frame, Frames, Head, encode_login, frame, key, setting};
use super::padding::{DEFAULT, Scheme};
use super::*;
use crate::testing::{World, dialer, recv_packet, send_packets, session, store, target};

const PASSWORD: &str = "test-password";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

#[test]
fn sheet_vectors() {
    let mut login = Vec::new();
    encode_login(&key(PASSWORD.as_bytes()), 3, &mut login);
    let expected = "c638833f69bbfb3c267afa0a74434812436b8f08a81fd263c6be6871de4f1265 0003 000000";
    assert_eq!(login, hex(expected));

    let scheme = Scheme::parse(DEFAULT).unwrap();
    assert_eq!((scheme.text().len(), scheme.md5()), (137, "75cff2ad89aadf5e257059ee571ebe11"));
    let settings = format!("v=2\nclient=demo/1.0\npadding-md5={}", scheme.md5());
    let frames: [(Command, u32, &[u8], &str); 6] = [
        (
            Command::Settings,
            0,
            settings.as_bytes(),
            "04000000000040 763d320a636c69656e743d64656d6f2f312e300a70616464696e672d6d64353d
             3735636666326164383961616466356532353730353965653537316562653131",
        ),
        (Command::Open, 1, b"", "01 00000001 0000"),
        (
            Command::Push,
            1,
            b"\x03\x0bexample.com\x01\xbb",
            "02 00000001 000f 03 0b 6578616d706c652e636f6d 01bb",
        ),
        (Command::Opened, 1, b"", "07 00000001 0000"),
        (Command::Opened, 1, b"boom", "07 00000001 0004 626f6f6d"),
        (Command::ServerSettings, 0, b"v=2", "0a 00000000 0003 763d32"),
    ];
    for (command, stream, data, expected) in frames {
        let mut bytes = Vec::new();
        frame(command, stream, data, &mut bytes);
        assert_eq!(bytes, hex(expected));
        for cut in 0..7 {
            assert_eq!(Head::decode(&mut Reader::new(&bytes[..cut])), Err(DecodeError::Incomplete));
        }
        let head = Head { command, stream, len: data.len() as u16 };
        assert_eq!(Head::decode(&mut Reader::new(&bytes)), Ok(head));
    }
}

#[test]
fn settings_are_lines_in_any_order() {
    let text = b"client=a=b\nv=2\n";
    assert_eq!(
        (setting(text, "v"), setting(text, "client"), setting(text, "x")),
        (Some("2"), Some("a=b"), None)
    );
    assert_eq!(setting(b"\xff=1\nv=2", "v"), None);
}

#[test]
fn packets_are_cut_and_filled_up_as_the_scheme_says() {
    let lengths = |scheme: &str, packet, len| {
        let scheme = Scheme::parse(scheme).unwrap();
        let records = scheme.apply(packet, BufChain::copied(&vec![7; len]));
        records.iter().map(BufChain::len).collect::<Vec<_>>()
    };
    let fixed = "stop=8\n1=200-200\n2=400-400,c,500-500,c,500-500\n3=9-9,500-500\n5=x,-3-4,0-0,10-20-30,8-8";
    assert_eq!(lengths(fixed, 1, 100), [200], "filled up with a frame of waste");
    assert_eq!(lengths(fixed, 1, 193), [193], "no room for the head of one");
    assert_eq!(lengths(fixed, 1, 192), [200]);
    assert_eq!(lengths(fixed, 1, 500), [200, 300], "what the line does not say goes as it is");
    assert_eq!(lengths(fixed, 2, 400), [400], "checked: nothing is left");
    assert_eq!(lengths(fixed, 2, 401), [400, 500]);
    assert_eq!(lengths(fixed, 3, 7), [7, 507], "waste by itself is as long as its data says");
    assert_eq!(lengths(fixed, 4, 77), [77], "a line that is missing");
    assert_eq!(lengths(fixed, 5, 9), [8, 1], "parts that make no sense are passed over");
    assert_eq!(lengths(fixed, 8, 9), [9], "behind the stop");
    for _ in 0..100 {
        let [first] = lengths(DEFAULT, 1, 50)[..] else { panic!("one record") };
        assert!((100..400).contains(&first), "{first}");
    }
    assert_eq!(Scheme::parse(DEFAULT).unwrap().login_padding(), 30);
    assert_eq!(Scheme::parse("stop=1").unwrap().login_padding(), 0);
    for bad in ["", "stop", "stop=x", "1=2-3"] {
        assert!(Scheme::parse(bad).is_none(), "{bad}");
    }
    assert!(lengths("stop=-1\n0=1-1", 0, 5) == [5]);
}

fn server() -> Arc<dyn StreamServer> {
    let user = |name: &str, password: &str| PasswordUser {
        name: name.to_owned(),
        password: Secret(password.to_owned()),
    };
    let users = vec![user("alice", PASSWORD), user("", "other")];
    Arc::new(AnyTlsServer::new(&AnyTlsInbound { users, ..AnyTlsInbound::default() }, None).unwrap())
}

fn client_of(upstream: Arc<dyn Outbound>, password: &str) -> Arc<Client> {
    let options = AnyTlsOutbound {
        server: ServerOptions { server: "192.0.2.1".to_owned(), server_port: 443 },
        password: Secret(password.to_owned()),
        ..AnyTlsOutbound::default()
    };
    let tag = Tag::new("anytls", "out");
    let cx = OutboundCx { tag, dialer: dialer(upstream), store: store() };
    Arc::new(Client::new(cx, &options).unwrap())
}

fn client(world: &World) -> Arc<Client> {
    client_of(world.upstream(&server()), PASSWORD)
}

async fn read_some(conn: &mut (impl StreamConn + ?Sized)) -> Vec<u8> {
    read_chain(conn, Room::NONE).await.unwrap().to_vec()
}

/// Lets every task that can go on do so.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn streams_follow_one_another_in_one_session() {
    let mut world = World::new();
    let client = client(&world);
    for round in 0..5 {
        let mut early = BufChain::copied(b"early");
        let mut near = client.dial(&session("a.test:443"), &mut early).await.unwrap();
        assert!(early.is_empty());
        let arrived = world.next().await;
        assert_eq!(arrived.session.user.as_deref(), Some("alice"));
        assert_eq!(arrived.session.target, target("a.test:443"));
        let mut far = arrived.stream();
        near.write_all(b" and late").await.unwrap();
        near.shutdown().await.unwrap();
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"early and late", "round {round}");
        far.write_all(b"back").await.unwrap();
        drop(far);
        all.clear();
        near.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"back");
        drop(near);
        settle().await;
        assert_eq!(client.pool.len(), 1, "round {round}");
    }
}

#[tokio::test]
async fn streams_at_once_have_a_session_each() {
    let mut world = World::new();
    let client = client(&world);
    let mut both = Vec::new();
    for name in ["a.test:1", "b.test:2"] {
        both.push((name, client.dial(&session(name), &mut BufChain::new()).await.unwrap()));
        assert_eq!(world.next().await.session.target, target(name));
    }
    drop(both);
    settle().await;
    assert_eq!(client.pool.len(), 2);
}

#[tokio::test]
async fn datagrams_pass_both_ways() {
    let mut world = World::new();
    let client = client(&world);
    let mut near = client.listen_packet(&session("1.2.3.4:53")).await.unwrap();
    let large = vec![7; 65_000];
    let sent = [("1.2.3.4:53", &b"one"[..]), ("a.test:9", b""), ("[2001:db8::1]:1", &large)];
    send_packets(&mut *near, &sent).await;
    let arrived = world.next().await;
    assert_eq!((arrived.session.network, &arrived.session.target), (Network::Udp, &target("1.2.3.4:53")));
    let mut far = arrived.packets();
    let mut waiting = PacketBatch::new();
    for (peer, data) in sent {
        assert_eq!(recv_packet(&mut far, &mut waiting).await, (peer.to_owned(), data.to_vec()));
    }
    send_packets(&mut far, &[("[2001:db8::1]:1", b"back")]).await;
    assert_eq!(recv_packet(&mut *near, &mut waiting).await, ("[2001:db8::1]:1".into(), b"back".to_vec()));
}

#[tokio::test]
async fn bulk_passes_whole_and_in_its_own_memory() {
    let mut world = World::new();
    let client = client(&world);
    let mut near = client.dial(&session("a.test:443"), &mut BufChain::new()).await.unwrap();
    let mut far = world.next().await.stream();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    let sent = bytes.clone();
    let writing = tokio::spawn(async move {
        far.write_all(&sent).await.unwrap();
        far
    });
    let mut all = vec![0; bytes.len()];
    near.read_exact(&mut all).await.unwrap();
    assert!(all == bytes);
    let mut far = writing.await.unwrap();
    let sent = bytes.clone();
    let writing = tokio::spawn(async move {
        near.write_all(&sent).await.unwrap();
        near
    });
    far.read_exact(&mut all).await.unwrap();
    assert!(all == bytes);
    drop(writing.await.unwrap());
}

#[tokio::test]
async fn half_closes_and_breaks_pass_between_two_of_us() {
    let mut world = World::new();
    let client = client(&world);
    // The first stream's end may come before the server has said what it knows.
    for _ in 0..2 {
        let mut near = client.dial(&session("a.test:443"), &mut BufChain::copied(b"hi")).await.unwrap();
        near.shutdown().await.unwrap();
        let mut far = world.next().await.stream();
        let mut all = Vec::new();
        far.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"hi");
        far.write_all(b"the other way goes on").await.unwrap();
        drop(far);
        all.clear();
        near.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"the other way goes on");
    }
    let mut near = client.dial(&session("a.test:443"), &mut BufChain::copied(b"hi")).await.unwrap();
    let mut far = world.next().await.stream();
    assert_eq!(read_some(&mut far).await, b"hi");
    near.abort();
    drop(near);
    let broken = far.read(&mut [0; 9]).await.unwrap_err();
    assert_eq!(broken.kind(), std::io::ErrorKind::ConnectionReset);

    let mut near = client.dial(&session("a.test:443"), &mut BufChain::copied(b"hi")).await.unwrap();
    let mut far = world.next().await.stream();
    far.write_all(b"x").await.unwrap();
    far.abort();
    drop(far);
    let mut all = Vec::new();
    assert!(near.read_to_end(&mut all).await.is_err());
    settle().await;
    drop(near);
    assert_eq!(client.pool.len(), 1, "the session lives on");
}

#[tokio::test]
async fn a_failed_dial_is_told_and_the_session_lives() {
    let mut world =
        World::deciding(
            |session| {
                if session.target.port == 1 { Err(DialError::Rejected("a test")) } else { Ok(()) }
            },
        );
    let client = client(&world);
    for _ in 0..3 {
        let mut near = client.dial(&session("a.test:1"), &mut BufChain::copied(b"hi")).await.unwrap();
        let error = near.read(&mut [0; 9]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        assert_eq!(error.to_string(), "remote: permission denied");
        drop(near);
        settle().await;
        assert_eq!(client.pool.len(), 1);
    }
    let mut near = client.dial(&session("a.test:2"), &mut BufChain::copied(b"hi")).await.unwrap();
    assert_eq!(read_some(&mut world.next().await.stream()).await, b"hi");
    near.abort();
}

#[tokio::test]
async fn a_wrong_password_is_closed_without_a_word_and_a_dial() {
    let mut world = World::new();
    let mut login = Vec::new();
    encode_login(&key(b"wrong"), 30, &mut login);
    for bytes in [&login[..], &[0; 64], b"GET / HTTP/1.1\r\nHost: site.test\r\n\r\n"] {
        let (mut near, serving) = world.serve(&server());
        near.write_all(bytes).await.unwrap();
        let mut all = Vec::new();
        near.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"");
        assert!(matches!(serving.await.unwrap(), Err(ServeError::Denied(_))));
    }
    let client = client_of(world.upstream(&server()), "wrong");
    let mut near = client.dial(&session("a.test:1"), &mut BufChain::copied(b"hi")).await.unwrap();
    assert!(near.read(&mut [0; 9]).await.is_err());
    drop(near);
    settle().await;
    assert_eq!(client.pool.len(), 0, "a session that has ended is not kept");
    assert!(world.arrivals.try_recv().is_err());
}

/// The other end of a session, by hand.
struct Raw {
    conn: BoxStream,
    frames: Frames,
}

impl Raw {
    /// A client that has logged in.
    async fn client(conn: Duplex, settings: &str) -> Self {
        let mut raw = Self { conn: Box::new(conn), frames: Frames::default() };
        let mut login = Vec::new();
        encode_login(&key(PASSWORD.as_bytes()), 5, &mut login);
        raw.conn.write_all(&login).await.unwrap();
        if !settings.is_empty() {
            raw.send(Command::Settings, 0, settings.as_bytes()).await;
        }
        raw
    }

    async fn send(&mut self, command: Command, stream: u32, data: &[u8]) {
        let mut bytes = Vec::new();
        frame(command, stream, data, &mut bytes);
        self.conn.write_all(&bytes).await.unwrap();
    }

    async fn open(&mut self, stream: u32) {
        self.send(Command::Open, stream, b"").await;
        self.send(Command::Push, stream, b"\x01\x01\x02\x03\x04\x00\x09").await;
    }

    /// The next frame, whole, in however many packets it came; `None` is the end of the connection.
    async fn recv(&mut self) -> Option<(Command, u32, Vec<u8>)> {
        let mut pushed = Vec::new();
        loop {
            match self.frames.next_frame() {
                Some(Frame::Data { stream, data }) => {
                    pushed.extend_from_slice(&data);
                    if self.frames.is_between() {
                        return Some((Command::Push, stream, pushed));
                    }
                    continue;
                }
                Some(Frame::Control { head, data }) => return Some((head.command, head.stream, data)),
                None => {}
            }
            let more = read_chain(&mut self.conn, Room::NONE).await.ok()?;
            if more.is_empty() {
                return None;
            }
            self.frames.take_in(more);
        }
    }

    async fn expect(&mut self, command: Command, stream: u32, data: &[u8]) {
        let (found, of, bytes) = self.recv().await.expect("the session ended");
        assert_eq!(
            (found, of, &*String::from_utf8_lossy(&bytes)),
            (command, stream, &*String::from_utf8_lossy(data))
        );
    }
}

fn settings(version: u32) -> String {
    format!("v={version}\npadding-md5={}", Scheme::parse(DEFAULT).unwrap().md5())
}

#[tokio::test]
async fn a_server_says_what_the_version_has() {
    let mut world = World::new();
    let (near, _serving) = world.serve(&server());
    let mut raw = Raw::client(near, &settings(2)).await;
    raw.expect(Command::ServerSettings, 0, b"v=2").await;
    raw.open(1).await;
    let mut far = world.next().await.stream();
    raw.expect(Command::Opened, 1, b"").await;
    raw.send(Command::HeartRequest, 77, b"").await;
    raw.expect(Command::HeartResponse, 77, b"").await;
    far.write_all(b"hello").await.unwrap();
    raw.expect(Command::Push, 1, b"hello").await;

    let (near, _serving) = world.serve(&server());
    let mut raw = Raw::client(near, "v=1\npadding-md5=another").await;
    raw.expect(Command::UpdatePadding, 0, DEFAULT.as_bytes()).await;
    raw.open(1).await;
    world.next().await.stream().write_all(b"hello").await.unwrap();
    raw.expect(Command::Push, 1, b"hello").await;
    raw.expect(Command::Finish, 1, b"").await;
}

#[tokio::test]
async fn odd_frames_of_a_client_do_no_harm() {
    let mut world = World::new();
    let (near, _serving) = world.serve(&server());
    let mut raw = Raw::client(near, &settings(2)).await;
    raw.expect(Command::ServerSettings, 0, b"v=2").await;
    raw.send(Command::Push, 5, b"nobody has opened this").await;
    raw.send(Command::Unknown(200), 5, &[9; 3000]).await;
    raw.send(Command::Waste, 0, &[0; 60_000]).await;
    raw.send(Command::Finish, 5, b"").await;
    raw.open(6).await;
    raw.open(6).await; // opened already: ignored; the address is data then
    let mut far = world.next().await.stream();
    raw.expect(Command::Opened, 6, b"").await;
    assert_eq!(read_some(&mut far).await, b"\x01\x01\x02\x03\x04\x00\x09");
    raw.send(Command::Finish, 6, b"").await;
    raw.send(Command::Push, 6, b"too late").await;
    assert_eq!(read_some(&mut far).await, b"");
    raw.open(7).await;
    let _ = world.next().await;
    raw.expect(Command::Opened, 7, b"").await;
}

#[tokio::test]
async fn a_stream_before_the_settings_ends_the_session() {
    let world = World::new();
    let (near, serving) = world.serve(&server());
    let mut raw = Raw::client(near, "").await;
    raw.open(1).await;
    raw.expect(Command::Alert, 0, b"client did not send its settings").await;
    assert!(raw.recv().await.is_none());
    assert!(matches!(serving.await.unwrap(), Err(ServeError::Denied(_))));
}

#[tokio::test]
async fn the_end_of_an_origin_is_told_to_other_programs_at_once() {
    let mut world = World::new();
    let (near, _serving) = world.serve(&server());
    let mut raw = Raw::client(near, &settings(2)).await;
    raw.expect(Command::ServerSettings, 0, b"v=2").await;
    raw.open(1).await;
    let mut far = world.next().await.stream();
    raw.expect(Command::Opened, 1, b"").await;
    far.write_all(b"all").await.unwrap();
    far.shutdown().await.unwrap();
    raw.expect(Command::Push, 1, b"all").await;
    raw.expect(Command::Finish, 1, b"").await;
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"", "the other direction has ended with it");
}

#[tokio::test]
async fn a_client_cannot_have_streams_without_end() {
    let mut world = World::new();
    let (near, _serving) = world.serve(&server());
    let mut raw = Raw::client(near, &settings(2)).await;
    raw.expect(Command::ServerSettings, 0, b"v=2").await;
    let mut held = Vec::new();
    for stream in 1..=1024 {
        raw.open(stream).await;
        held.push(world.next().await);
        raw.expect(Command::Opened, stream, b"").await;
    }
    raw.open(1025).await;
    raw.expect(Command::Opened, 1025, b"too many streams").await;
    raw.expect(Command::Finish, 1025, b"").await;
    drop(held);
}

#[tokio::test]
async fn many_short_streams_leave_nothing_behind() {
    let mut world = World::new();
    let (near, _serving) = world.serve(&server());
    let mut raw = Raw::client(near, &settings(2)).await;
    raw.expect(Command::ServerSettings, 0, b"v=2").await;
    // The limit of streams at once would be reached long before.
    for stream in 1..=5000 {
        raw.open(stream).await;
        let far = world.next().await;
        loop {
            let (command, of, text) = raw.recv().await.unwrap();
            assert!(text.is_empty());
            match command {
                Command::Opened if of == stream => break,
                // The server may notice the end of the last one first.
                Command::Finish => assert_eq!(of, stream - 1),
                other => panic!("{other:?}"),
            }
        }
        raw.send(Command::Finish, stream, b"").await;
        drop(far);
    }
}

#[tokio::test]
async fn a_slow_stream_holds_up_others_only_when_much_is_left_behind() {
    let mut world = World::new();
    let (near, _serving) = world.serve(&server());
    let mut raw = Raw::client(near, &settings(2)).await;
    raw.expect(Command::ServerSettings, 0, b"v=2").await;
    raw.open(1).await;
    let slow = world.next().await.stream();
    raw.open(2).await;
    let mut quick = world.next().await.stream();
    for _ in 0..8 {
        raw.send(Command::Push, 1, &[1; 60_000]).await;
    }
    raw.send(Command::Push, 2, b"past it").await;
    let mut seen = [0; 7];
    quick.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"past it");
    // A flood that nobody reads is not taken in.
    let flood = tokio::time::timeout(Duration::from_millis(300), async {
        for _ in 0..1000 {
            raw.send(Command::Push, 1, &[1; 60_000]).await;
        }
    });
    assert!(flood.await.is_err(), "60 MB were taken from the client though nobody reads");
    drop(slow);
}

#[tokio::test]
async fn questions_without_end_are_not_answered_into_memory() {
    let world = World::new();
    let (near, _serving) = world.serve(&server());
    let mut raw = Raw::client(near, &settings(2)).await;
    let mut question = Vec::new();
    for _ in 0..1000 {
        frame(Command::HeartRequest, 1, b"", &mut question);
    }
    // Nobody reads the answers, so sooner or later the questions are not read either.
    let asking = tokio::time::timeout(Duration::from_millis(300), async {
        for _ in 0..10_000 {
            raw.conn.write_all(&question).await.unwrap();
        }
    });
    assert!(asking.await.is_err());
}

#[tokio::test]
async fn every_stream_keeps_its_own_bytes() {
    let mut world = World::new();
    let (near, _serving) = world.serve(&server());
    let mut raw = Raw::client(near, &settings(2)).await;
    raw.expect(Command::ServerSettings, 0, b"v=2").await;
    let mut far = Vec::new();
    for stream in 1..=50u32 {
        raw.open(stream).await;
        far.push(world.next().await.stream());
        raw.expect(Command::Opened, stream, b"").await;
    }
    let reading: Vec<_> = (1..)
        .zip(far)
        .map(|(stream, mut far)| {
            tokio::spawn(async move {
                let mut all = Vec::new();
                far.read_to_end(&mut all).await.unwrap();
                assert_eq!(all.len(), 20 * 999);
                assert!(all.iter().all(|byte| *byte == stream as u8), "bytes of another in {stream}");
            })
        })
        .collect();
    for _ in 0..20 {
        for stream in 1..=50 {
            raw.send(Command::Push, stream, &[stream as u8; 999]).await;
        }
    }
    for stream in 1..=50 {
        raw.send(Command::Finish, stream, b"").await;
    }
    for reading in reading {
        reading.await.unwrap();
    }
}

/// Where the client's connections to its server come out.
struct Caught(mpsc::UnboundedSender<BoxStream>);

#[async_trait]
impl StreamServer for Caught {
    async fn serve(
        &self,
        conn: BoxStream,
        _session: Session,
        _handshake: Handshake,
        _dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        self.0.send(conn).unwrap();
        Ok(())
    }
}

struct Server {
    _world: World,
    conns: mpsc::UnboundedReceiver<BoxStream>,
}

impl Server {
    fn new() -> (Self, Arc<Client>) {
        let (world, (sender, conns)) = (World::new(), mpsc::unbounded_channel());
        let caught: Arc<dyn StreamServer> = Arc::new(Caught(sender));
        let client = client_of(world.upstream(&caught), PASSWORD);
        (Self { _world: world, conns }, client)
    }

    /// The next connection, behind its login.
    async fn next(&mut self) -> Raw {
        let mut conn = self.conns.recv().await.unwrap();
        let mut login = [0; 34];
        conn.read_exact(&mut login).await.unwrap();
        assert_eq!(login[..32], key(PASSWORD.as_bytes()));
        let mut padding = vec![0; usize::from(u16::from_be_bytes([login[32], login[33]]))];
        conn.read_exact(&mut padding).await.unwrap();
        Raw { conn, frames: Frames::default() }
    }
}

async fn dialled(client: &Client, payload: &[u8]) -> BoxStream {
    client.dial(&session("a.test:9"), &mut BufChain::copied(payload)).await.unwrap()
}

const ADDRESS: &[u8] = b"\x03\x06a.test\x00\x09";

#[tokio::test]
async fn a_client_says_what_it_is_and_pads() {
    let (mut server, client) = Server::new();
    let _near = dialled(&client, b"payload").await;
    let mut conn = server.conns.recv().await.unwrap();
    let sent = read_chain(&mut conn, Room::NONE).await.unwrap();
    let mut bytes = sent.to_vec();
    assert_eq!(u16::from_be_bytes([bytes[32], bytes[33]]), 30);
    let rest = bytes.split_off(64);
    let mut frames = Frames::default();
    frames.take_in(BufChain::copied(&rest));
    let Some(Frame::Control { head, data }) = frames.next_frame() else { panic!("settings") };
    assert_eq!(head.command, Command::Settings);
    assert_eq!((setting(&data, "v"), setting(&data, "half-close")), (Some("2"), Some("1")));
    assert!(setting(&data, "client").unwrap().starts_with("culvert/"));
    assert_eq!(setting(&data, "padding-md5"), Some("75cff2ad89aadf5e257059ee571ebe11"));
    let mut raw = Raw { conn, frames };
    raw.expect(Command::Open, 1, b"").await;
    raw.expect(Command::Push, 1, ADDRESS).await;
    raw.expect(Command::Push, 1, b"payload").await;
    // Settings, address and waste are at least 100 bytes, the payload and waste at least 400.
    assert!(rest.len() >= 500, "{}", rest.len());
}

#[tokio::test]
async fn a_scheme_of_the_servers_is_used_from_then_on() {
    let (mut server, client) = Server::new();
    let mut near = dialled(&client, b"").await;
    let mut raw = server.next().await;
    let scheme = "stop=9\n0=7-7\n2=50-50\n3=1000-1000";
    raw.send(Command::UpdatePadding, 0, scheme.as_bytes()).await;
    raw.send(Command::Push, 1, b"!").await;
    near.read_u8().await.unwrap();
    while raw.recv().await.unwrap().0 != Command::Push {}
    near.write_all(&[7; 20]).await.unwrap();
    raw.expect(Command::Push, 1, &[7; 20]).await;
    near.write_all(&[8; 20]).await.unwrap();
    raw.expect(Command::Push, 1, &[8; 20]).await;
    let left = raw.frames.next_frame();
    assert!(left.is_none());
    let _other = dialled(&client, b"").await;
    let mut conn = server.conns.recv().await.unwrap();
    let mut login = [0; 34 + 7];
    conn.read_exact(&mut login).await.unwrap();
    assert_eq!(login[32..34], [0, 7]);
    let mut raw = Raw { conn, frames: Frames::default() };
    let (_, _, settings) = raw.recv().await.unwrap();
    assert_eq!(setting(&settings, "padding-md5"), Some(Scheme::parse(scheme).unwrap().md5()));
    // One that makes no sense changes nothing.
    raw.send(Command::UpdatePadding, 0, b"no stop").await;
    raw.send(Command::Alert, 0, b"enough").await;
}

#[tokio::test]
async fn a_client_takes_a_stream_as_refused_or_ended() {
    let (mut server, client) = Server::new();
    let mut near = dialled(&client, b"").await;
    let mut raw = server.next().await;
    raw.send(Command::ServerSettings, 0, b"v=2").await;
    raw.send(Command::Opened, 1, b"no\x07 way").await;
    let error = near.read(&mut [0; 9]).await.unwrap_err();
    assert_eq!(error.to_string(), "remote: no way", "without what a log must not hold");
    drop(near);
    while raw.recv().await.unwrap().0 != Command::Push {}
    // A second stream: it asks whether the server lives, and is told data, the end, and more data after that.
    let mut near = dialled(&client, b"").await;
    raw.expect(Command::HeartRequest, 0, b"").await;
    raw.expect(Command::Open, 2, b"").await;
    raw.expect(Command::Push, 2, ADDRESS).await;
    raw.send(Command::HeartResponse, 0, b"").await;
    raw.send(Command::Push, 1, b"for one that is gone").await;
    raw.send(Command::Push, 2, b"last").await;
    raw.send(Command::Finish, 2, b"").await;
    raw.send(Command::Push, 2, b"too late").await;
    let mut all = Vec::new();
    near.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"last");
    assert!(near.write_all(b"x").await.is_err());
    drop(near);
    raw.send(Command::HeartRequest, 3, b"").await;
    raw.expect(Command::HeartResponse, 3, b"").await;
    assert_eq!(client.pool.len(), 1);
}

#[tokio::test]
async fn the_end_of_a_session_is_the_end_of_its_streams() {
    let (mut server, client) = Server::new();
    let mut near = dialled(&client, b"").await;
    let mut raw = server.next().await;
    raw.send(Command::Push, 1, b"data").await;
    raw.send(Command::Alert, 0, b"go away").await;
    let mut all = Vec::new();
    let error = near.read_to_end(&mut all).await.unwrap_err();
    assert_eq!(
        (&all[..], error.to_string()),
        (&b"data"[..], "anytls session: peer says: go away".to_owned())
    );
    assert!(near.write_all(b"x").await.is_err());
    let mut near = dialled(&client, b"").await;
    drop(server.next().await);
    let error = near.read_to_end(&mut all).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    drop(near);
    settle().await;
    assert_eq!(client.pool.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_ends_first_gets_its_answer_from_other_programs() {
    let (mut server, client) = Server::new();
    let mut near = dialled(&client, b"question").await;
    near.shutdown().await.unwrap();
    let mut raw = server.next().await;
    raw.send(Command::ServerSettings, 0, b"v=2").await;
    tokio::time::sleep(timeouts::LAST_ANSWER / 2).await;
    raw.send(Command::Push, 1, b"answer").await;
    let mut answer = [0; 6];
    near.read_exact(&mut answer).await.unwrap();
    let start = tokio::time::Instant::now();
    assert_eq!(near.read(&mut answer).await.unwrap(), 0);
    assert_eq!(start.elapsed(), timeouts::LAST_ANSWER);
    loop {
        let (command, stream, _) = raw.recv().await.unwrap();
        if command == Command::Finish {
            assert_eq!(stream, 1);
            break;
        }
    }
    drop(near);
    settle().await;
    assert_eq!(client.pool.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_died_unseen_is_replaced() {
    let (mut server, client) = Server::new();
    drop(dialled(&client, b"").await);
    let mut dead = server.next().await;
    dead.send(Command::ServerSettings, 0, b"v=2").await;
    settle().await;
    assert_eq!(client.pool.len(), 1);
    tokio::time::sleep(timeouts::SESSION_STALE).await;
    let dialling = tokio::spawn(async move { (dialled(&client, b"hi").await, client) });
    let mut raw = server.next().await;
    let (_near, client) = dialling.await.unwrap();
    while raw.recv().await.unwrap() != (Command::Push, 1, b"hi".to_vec()) {}
    while dead.recv().await.is_some() {}

    // One that answers is used again.
    raw.send(Command::ServerSettings, 0, b"v=2").await;
    drop(_near);
    settle().await;
    tokio::time::sleep(timeouts::SESSION_STALE).await;
    let dialling = tokio::spawn(async move { (dialled(&client, b"").await, client) });
    while raw.recv().await.unwrap().0 != Command::HeartRequest {}
    raw.send(Command::HeartResponse, 0, b"").await;
    let (mut near, client) = dialling.await.unwrap();
    while raw.recv().await.unwrap() != (Command::Open, 2, vec![]) {}
    // And dies only now: the stream is not left hanging.
    let start = tokio::time::Instant::now();
    assert!(near.read(&mut [0; 9]).await.is_err());
    assert_eq!(start.elapsed(), timeouts::SESSION_ANSWER);
    drop(near);
    settle().await;
    assert_eq!(client.pool.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn idle_sessions_are_closed_in_time() {
    let (mut server, client) = Server::new();
    let (one, other) = (dialled(&client, b"").await, dialled(&client, b"").await);
    let (mut first, mut second) = (server.next().await, server.next().await);
    drop((one, other));
    settle().await;
    assert_eq!(client.pool.len(), 2);
    let start = tokio::time::Instant::now();
    while first.recv().await.is_some() {}
    while second.recv().await.is_some() {}
    assert!((30..=61).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!(client.pool.len(), 0);
    // When the outbound goes, what it kept goes too.
    drop(dialled(&client, b"").await);
    let mut last = server.next().await;
    settle().await;
    drop(client);
    while last.recv().await.is_some() {}
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_cut_of_a_session_is_the_same_session(cuts in prop::collection::vec(1usize..50, 1..5)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            let (mut near, _serving) = world.serve(&server());
            let mut bytes = Vec::new();
            encode_login(&key(b"other"), 40, &mut bytes);
            frame(Command::Settings, 0, settings(2).as_bytes(), &mut bytes);
            frame(Command::Waste, 0, &[0; 33], &mut bytes);
            for stream in [1, 9] {
                frame(Command::Open, stream, b"", &mut bytes);
                frame(Command::Push, stream, ADDRESS, &mut bytes);
                frame(Command::Push, stream, &[stream as u8; 300], &mut bytes);
            }
            frame(Command::Push, 1, b"more", &mut bytes);
            frame(Command::Finish, 1, b"", &mut bytes);
            crate::testing::write_in_pieces(&mut near, &bytes, &cuts).await.unwrap();
            let mut far = [world.next().await, world.next().await].map(crate::testing::Arrived::stream);
            let mut all = Vec::new();
            far[0].read_to_end(&mut all).await.unwrap();
            assert_eq!(all, [&[1; 300][..], b"more"].concat());
            all.resize(300, 0);
            far[1].read_exact(&mut all[..300]).await.unwrap();
            assert_eq!(all[..300], [9; 300]);
        });
    }

    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        PROTOCOL.fuzz.iter().for_each(|fuzz| fuzz(&bytes));
    }

    #[test]
    fn random_schemes_keep_the_promises(lines in prop::collection::vec("[0-9]{1,2}=([0-9]{1,5}-[0-9]{1,5},|c,|x,){0,5}", 0..5)) {
        padding::fuzz_scheme(format!("stop=5\n{}", lines.join("\n")).as_bytes());
    }
}

#[test]
fn data_goes_on_in_the_memory_it_came_in() {
    let mut frames = Frames::default();
    let mut piece = Buf::new(16_384, 64, 64);
    piece.append(&Head { command: Command::Push, stream: 1, len: 16_377 }.encode());
    piece.append(&[7; 16_377]);
    let place = piece.as_ptr() as usize;
    frames.take_in(piece.into());
    let Some(Frame::Data { data, .. }) = frames.next_frame() else { panic!("data") };
    assert_eq!((data.as_ptr() as usize, data.len()), (place + 7, 16_377));
    assert!(frames.next_frame().is_none() && frames.is_between());
}
