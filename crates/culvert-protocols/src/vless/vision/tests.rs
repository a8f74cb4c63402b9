//! The sheet's vectors, cuts, and both ends over TLS on real sockets.

use culvert_core::conn::{read_chain, write_chain};
use culvert_core::handshake::read_message;
use culvert_core::{BoxStream, Half, StreamConn, TcpConn};
use culvert_tls::settings::{Identity, Trust};
use culvert_tls::{Acceptor, ClientSettings, Connector, ServerSettings};
use culvert_wire::{BufChain, DecodeError, Host, Room};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::filter::Filter;
use super::frame::{Command, MAX_CONTENT, MAX_FRAME, Unpadder, encode, fuzz_frames};
use super::records::Records;
use super::writer::{Mode, Writer};
use super::{NAME, VisionConn};
use crate::headed::Headed;
use crate::testing::{store, target};
use crate::vless::codec::{self, Id, MAX_REQUEST, RESPONSE, Request};
use crate::vless::conn::Answered;

const ID: [u8; 16] =
    [0xb8, 0x31, 0x38, 0x1d, 0x63, 0x24, 0x4d, 0x53, 0xad, 0x4f, 0x8c, 0xda, 0x48, 0xb3, 0x08, 0x11];

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn chain(bytes: &[u8]) -> BufChain {
    BufChain::copied(bytes)
}

/// An inner record.
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut record = vec![kind, 3, 3];
    record.extend((body.len() as u16).to_be_bytes());
    record.extend(body);
    record
}

fn client_hello() -> Vec<u8> {
    record(0x16, &[&[1, 0, 1, 0xfc, 3, 3][..], &[7; 506]].concat())
}

/// The sheet's, which chooses TLS 1.3 and this cipher suite.
fn server_hello(cipher: u16) -> Vec<u8> {
    let mut hello = hex("160303007a020000760303");
    hello.extend([5; 32]);
    hello.push(32);
    hello.extend([6; 32]);
    hello.extend(cipher.to_be_bytes());
    hello.extend(hex("00002e002b0002030400330024001d0020"));
    hello.extend([8; 32]);
    assert_eq!(hello.len(), 127);
    hello
}

fn data(len: usize) -> Vec<u8> {
    record(0x17, &vec![0xda; len])
}

const CHANGE: [u8; 6] = [0x14, 3, 3, 0, 1, 1];

#[test]
fn frames_of_the_sheet() {
    let id = "b831381d63244d53ad4f8cda48b30811";
    for (first, command, content, padding, bytes) in [
        (true, Command::Continue, "hello", 8, format!("{id} 00 0005 0008 68656c6c6f 0000000000000000")),
        (false, Command::End, "abc", 2, "01 0003 0002 616263 0000".to_owned()),
        (false, Command::Direct, "abc", 2, "02 0003 0002 616263 0000".to_owned()),
    ] {
        let mut data = chain(content.as_bytes());
        let frame = encode(first.then_some(Id(ID)), command, &mut data, content.len(), padding, Room::NONE);
        assert_eq!(&frame[..], hex(&bytes));
        assert!(data.is_empty());
        let mut unpadder = Unpadder::new(Id(ID));
        let start = if first { Vec::new() } else { hex(&format!("{id} 00 0000 0000")) };
        let whole = [&start[..], &frame, b"rest"].concat();
        for cut in 0..=start.len() + frame.len() {
            let mut unpadder = Unpadder::new(Id(ID));
            let mut got = unpadder.take_in(chain(&whole[..cut])).unwrap().to_vec();
            assert!(!unpadder.is_plain() || cut == start.len() + frame.len());
            got.extend(unpadder.take_in(chain(&whole[cut..start.len() + frame.len()])).unwrap().to_vec());
            assert_eq!(got, content.as_bytes());
        }
        unpadder.take_in(chain(&whole[..start.len() + frame.len()])).unwrap();
        assert_eq!(unpadder.is_plain(), command != Command::Continue);
        assert_eq!(unpadder.is_direct(), command == Command::Direct);
    }
}

#[test]
fn without_the_id_there_are_no_frames() {
    for bytes in [&b"x"[..], &ID[..15], &[&ID[..15], b"x"].concat(), &[9; 100]] {
        let mut unpadder = Unpadder::new(Id(ID));
        let mut got = unpadder.take_in(chain(bytes)).unwrap().to_vec();
        got.extend(unpadder.end().unwrap().to_vec());
        assert_eq!(got, bytes);
        assert!(unpadder.is_plain() && !unpadder.is_direct());
    }
}

#[test]
fn what_is_no_frame_or_ends_inside_one_is_a_fault() {
    let mut unpadder = Unpadder::new(Id(ID));
    assert!(matches!(
        unpadder.take_in(chain(&[&ID[..], &[3, 0, 0, 0, 0]].concat())),
        Err(DecodeError::Invalid(_))
    ));
    for end in [&[0][..], &[0, 0, 1, 0, 0], &[0, 0, 1, 0, 1, 9]] {
        let mut unpadder = Unpadder::new(Id(ID));
        unpadder.take_in(chain(&[&ID[..], end].concat())).unwrap();
        assert_eq!(unpadder.end().unwrap_err(), DecodeError::Incomplete);
    }
    let mut unpadder = Unpadder::new(Id(ID));
    unpadder.take_in(chain(&ID)).unwrap();
    assert!(unpadder.end().unwrap().is_empty(), "between two frames");
}

#[test]
fn the_filter_finds_tls_1_3_and_nothing_else() {
    let seen = |packets: &[(Half, Vec<u8>)]| {
        let mut filter = Filter::default();
        for (half, packet) in packets {
            filter.see(*half, &chain(packet));
        }
        (filter.is_tls(), filter.is_tls13(), filter.is_decided())
    };
    let hello = |cipher| (Half::Read, server_hello(cipher));
    for cipher in 0x1301..=0x1304 {
        assert_eq!(seen(&[hello(cipher)]), (true, true, true));
    }
    for cipher in [0x1305, 0xc02f] {
        assert_eq!(seen(&[hello(cipher)]), (true, false, true));
    }
    assert_eq!(seen(&[(Half::Write, client_hello())]), (true, false, false));
    let mut older = server_hello(0xc02f);
    older[127 - 44] = 0;
    assert_eq!(seen(&[(Half::Read, older)]), (true, false, true));
    assert_eq!(seen(&[(Half::Write, b"GET / HTTP/1.1\r\n\r\n".to_vec())]), (false, false, false));
    assert_eq!(seen(&vec![(Half::Write, b"SSH-2.0-OpenSSH".to_vec()); 8]), (false, false, true));
}

#[test]
fn a_server_hello_is_found_however_it_is_cut() {
    let hello = server_hello(0x1301);
    for cut in 6..hello.len() {
        let mut filter = Filter::default();
        filter.see(Half::Read, &chain(&hello[..cut]));
        filter.see(Half::Write, &chain(b"something else"));
        assert!(!filter.is_tls13());
        filter.see(Half::Read, &chain(&hello[cut..]));
        assert!(filter.is_tls13(), "cut at {cut}");
    }
}

#[test]
fn the_ends_of_inner_records_are_found_however_they_are_cut() {
    let bytes = [client_hello(), CHANGE.to_vec(), data(50), data(3)].concat();
    let ends = [bytes.len() - 8, bytes.len()];
    for cut in 6..bytes.len() {
        let mut records = Records::default();
        let first = records.see(&chain(&bytes[..cut]));
        let expected = ends.iter().copied().filter(|end| *end <= cut).max();
        assert_eq!((first.begins_with_data, first.last_end), (false, expected), "cut at {cut}");
        let second = records.see(&chain(&bytes[cut..]));
        assert_eq!(second.begins_with_data, cut >= 517 + 6, "cut at {cut}");
        assert_eq!(second.last_end, Some(bytes.len() - cut));
    }
    let mut records = Records::default();
    records.see(&chain(&client_hello()));
    assert_eq!(records.see(&chain(b"no record")).last_end, None);
    assert_eq!(records.see(&chain(&data(5))).last_end, Some(10), "it begins anew where a record may begin");
}

/// Commands, and contents, of all frames that are made of these packets; what comes behind them.
fn written(filter: &mut Filter, writer: &mut Writer, packet: &[u8]) -> (Vec<(u8, usize)>, Vec<u8>) {
    let mut rest = chain(packet);
    let fresh = writer.is_fresh();
    writer.frame(filter, &mut rest, Room::NONE);
    let mut frames = Vec::new();
    let mut content = Vec::new();
    while let Some(frame) = writer.next_frame() {
        let id = if fresh && frames.is_empty() { 16 } else { 0 };
        assert!(frame.len() <= MAX_FRAME);
        let head = &frame[id..];
        let count = usize::from(u16::from_be_bytes([head[1], head[2]]));
        assert_eq!(head.len(), 5 + count + usize::from(u16::from_be_bytes([head[3], head[4]])));
        frames.push((head[0], count));
        content.extend(&head[5..5 + count]);
    }
    content.extend(rest.to_vec());
    assert_eq!(content, packet);
    (frames, rest.to_vec())
}

#[test]
fn tls_1_3_leaves_at_the_end_of_a_record() {
    let (mut filter, mut writer) = (Filter::default(), Writer::new(Id(ID)));
    let hello = client_hello();
    assert_eq!(written(&mut filter, &mut writer, &hello).0, [(0, hello.len())]);
    filter.see(Half::Read, &chain(&server_hello(0x1301)));
    let finished = [&CHANGE[..], &data(53)].concat();
    assert_eq!(written(&mut filter, &mut writer, &finished).0, [(0, finished.len())]);
    // A bulk upload: records of the greatest length, and the read ended somewhere inside.
    let upload = [data(16_401), data(16_401), data(16_401)].concat();
    let (frames, rest) = written(&mut filter, &mut writer, &upload[..40_000]);
    assert_eq!(frames.last().unwrap().0, 2);
    assert_eq!(rest, &upload[2 * 16_406..40_000]);
    assert_eq!(writer.mode(), Mode::Direct);
}

#[test]
fn tls_1_2_stays_and_ends_its_padding_with_the_first_data() {
    let (mut filter, mut writer) = (Filter::default(), Writer::new(Id(ID)));
    written(&mut filter, &mut writer, &client_hello());
    let mut older = server_hello(0xc02f);
    older[127 - 44] = 0;
    filter.see(Half::Read, &chain(&older));
    written(&mut filter, &mut writer, &record(0x16, &[16; 40]));
    let first = data(100);
    assert_eq!(written(&mut filter, &mut writer, &first).0, [(1, first.len())]);
    assert_eq!(writer.mode(), Mode::Plain);
}

#[test]
fn other_traffic_ends_its_padding_with_the_seventh_packet() {
    let (mut filter, mut writer) = (Filter::default(), Writer::new(Id(ID)));
    for _ in 0..3 {
        assert_eq!(written(&mut filter, &mut writer, b"question").0, [(0, 8)]);
        filter.see(Half::Read, &chain(b"answer"));
    }
    let (frames, rest) = written(&mut filter, &mut writer, &[1; 20_000]);
    assert_eq!((&frames[..], rest.len()), (&[(1, MAX_CONTENT)][..], 20_000 - MAX_CONTENT));
    assert_eq!(writer.mode(), Mode::Plain);
}

#[test]
fn padding_is_long_where_tls_is_inside() {
    for _ in 0..50 {
        let (mut filter, mut writer) = (Filter::default(), Writer::new(Id(ID)));
        writer.frame(&mut filter, &mut chain(&client_hello()), Room::NONE);
        let len = writer.next_frame().unwrap().len() - 21;
        assert!((900..1400).contains(&len), "{len}");
        let (mut filter, mut writer) = (Filter::default(), Writer::new(Id(ID)));
        writer.frame(&mut filter, &mut chain(b"plain"), Room::NONE);
        let len = writer.next_frame().unwrap().len() - 21;
        assert!((5..5 + 256).contains(&len), "{len}");
    }
}

proptest! {
    #[test]
    fn random_bytes_keep_the_promises(bytes in prop::collection::vec(any::<u8>(), 0..300), framed in any::<bool>()) {
        fuzz_frames(&bytes);
        if framed && bytes.len() >= 16 {
            let mut bytes = bytes;
            for at in (16..bytes.len()).step_by(7) {
                bytes[at] %= 3;
            }
            fuzz_frames(&bytes);
        }
    }
}

/// A connected pair of sockets.
async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let far = listener.accept().await.unwrap().0;
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    (near, far)
}

/// Both ends of a Vision connection inside TLS 1.3 over sockets; the client's hello leaves with the first payload.
async fn ends(first: &[u8]) -> (VisionConn, VisionConn) {
    let (near, far) = sockets().await;
    let settings = ServerSettings {
        parameters: Default::default(),
        identity: Identity::SelfSigned,
        clients: Default::default(),
        handshake_timeout: None,
    };
    let acceptor = Acceptor::new(&settings).unwrap();
    let settings = ClientSettings { trust: Trust::Anyone, ..ClientSettings::default() };
    let host = Host::parse("a.test").unwrap();
    let connector = Connector::new(settings, &host, &store()).unwrap();
    // The client's last flight leaves with its first data.
    let server = tokio::spawn(async move { acceptor.accept(Box::new(TcpConn::new(far))).await.unwrap().0 });
    let (client, _) = connector.connect(Box::new(TcpConn::new(near))).await.unwrap();
    let request =
        Request { id: Id(ID), flow: NAME.into(), command: codec::Command::Tcp(target("example.com:443")) };
    let mut header = Vec::new();
    request.encode(&mut header);
    let client = Answered::new(Box::new(Headed::answering(header, Box::new(client))));
    let mut client = VisionConn::client(Box::new(client), Id(ID));
    if !first.is_empty() {
        write_chain(&mut client, &mut chain(first)).await.unwrap();
    } else {
        client.flush().await.unwrap();
    }
    let mut conn: BoxStream = Box::new(server.await.unwrap());
    let mut early = BufChain::new();
    let got = read_message(&mut conn, &mut early, MAX_REQUEST, Request::decode).await.unwrap();
    assert_eq!(got, request);
    let mut server = VisionConn::server(Box::new(Headed::answering(RESPONSE.to_vec(), conn)), Id(ID));
    let content = server.take_in(early).unwrap();
    assert_eq!(content.to_vec(), first);
    (client, server)
}

async fn carry(from: &mut VisionConn, to: &mut VisionConn, bytes: &[u8]) {
    let mut data = chain(bytes);
    let reading = async {
        let mut got = Vec::new();
        while got.len() < bytes.len() {
            let more = read_chain(to, Room::NONE).await.unwrap();
            assert!(!more.is_empty(), "an end after {} of {}", got.len(), bytes.len());
            got.extend(more.to_vec());
        }
        got
    };
    let (written, got) = tokio::join!(write_chain(from, &mut data), reading);
    written.unwrap();
    assert!(got == bytes);
}

#[tokio::test]
async fn with_tls_1_3_inside_all_four_halves_become_kernel_sockets() {
    let (mut client, mut server) = ends(&client_hello()).await;
    let flight = [&server_hello(0x1301)[..], &CHANGE, &data(700), &data(80)].concat();
    carry(&mut server, &mut client, &flight).await;
    carry(&mut client, &mut server, &[&CHANGE[..], &data(53)].concat()).await;
    for conn in [&client, &server] {
        assert!(conn.kernel_socket(Half::Read).is_none() && conn.kernel_socket(Half::Write).is_none());
    }
    carry(&mut client, &mut server, &data(300)).await;
    assert!(client.kernel_socket(Half::Write).is_some() && server.kernel_socket(Half::Read).is_some());
    assert!(client.kernel_socket(Half::Read).is_none() && server.kernel_socket(Half::Write).is_none());
    carry(&mut server, &mut client, &data(16_000)).await;
    assert!(client.kernel_socket(Half::Read).is_some() && server.kernel_socket(Half::Write).is_some());
    // From here on nothing is encrypted twice: raw bytes pass as they are.
    for len in [1, 100, 100_000] {
        carry(&mut client, &mut server, &data(len)[..len]).await;
        carry(&mut server, &mut client, &data(len)[..len]).await;
    }
    client.shutdown().await.unwrap();
    assert!(read_chain(&mut server, Room::NONE).await.unwrap().is_empty());
    carry(&mut server, &mut client, b"half-closed").await;
    server.shutdown().await.unwrap();
    assert!(read_chain(&mut client, Room::NONE).await.unwrap().is_empty());
}

#[tokio::test]
async fn raw_bytes_right_behind_the_last_frame_are_not_taken_for_records() {
    let (mut client, mut server) = ends(&client_hello()).await;
    carry(&mut server, &mut client, &[&server_hello(0x1302)[..], &CHANGE, &data(700)].concat()).await;
    carry(&mut client, &mut server, &[&CHANGE[..], &data(53)].concat()).await;
    // Nobody reads while records, the last frame and raw bytes come.
    let upload: Vec<u8> = (0..40).flat_map(|at| data(1000 + at)).collect();
    for part in upload.chunks(7777) {
        write_chain(&mut client, &mut chain(part)).await.unwrap();
    }
    assert!(client.kernel_socket(Half::Write).is_some());
    let mut got = vec![0; upload.len()];
    server.read_exact(&mut got).await.unwrap();
    assert!(got == upload);
    assert!(server.kernel_socket(Half::Read).is_some());
}

#[tokio::test]
async fn other_traffic_goes_on_inside_tls() {
    let (mut client, mut server) = ends(b"").await;
    for round in 0..8 {
        carry(&mut client, &mut server, format!("question {round}").as_bytes()).await;
        carry(&mut server, &mut client, format!("answer {round}").as_bytes()).await;
    }
    let bulk: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8).collect();
    carry(&mut client, &mut server, &bulk).await;
    carry(&mut server, &mut client, &bulk).await;
    for conn in [&client, &server] {
        assert!(conn.kernel_socket(Half::Read).is_none() && conn.kernel_socket(Half::Write).is_none());
    }
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard() {
    let (mut client, mut server) = ends(b"").await;
    carry(&mut server, &mut client, b"220 mail.test ready\r\n").await;
    carry(&mut client, &mut server, b"EHLO me\r\n").await;
}
