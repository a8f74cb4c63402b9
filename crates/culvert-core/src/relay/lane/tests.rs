use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::thread;

use culvert_wire::Target;

use super::*;
use crate::flow::Flows;
use crate::{Network, Session, SessionId, Tag};

fn flow() -> Arc<Flow> {
    let local = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
    let session = Session {
        id: SessionId::next(),
        network: Network::Tcp,
        inbound: Tag::new("mixed", "in"),
        user: None,
        source: local,
        target: Target::from(local),
        sniffed: None,
        alpn: None,
    };
    Arc::clone(Flows::new().open(session).flow())
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// A load and the two peers at its ends.
fn load() -> (Load, TcpStream, TcpStream) {
    let ((client, near), (away, server)) = (sockets(), sockets());
    for socket in [&near, &away] {
        socket.set_nonblocking(true).unwrap();
    }
    let load = Load { client: near, upstream: away, up: Direction::default(), down: Direction::default() };
    (load, client, server)
}

/// A test beside this one may have them all for a moment.
fn place() -> Place {
    loop {
        match Place::take() {
            Some(place) => return place,
            None => thread::yield_now(),
        }
    }
}

async fn travel(load: Load, flow: &Arc<Flow>) -> (Load, io::Result<()>) {
    let mut lane = Lane::start(load, Arc::clone(flow), place());
    poll_fn(|cx| lane.poll(cx)).await.unwrap()
}

fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

/// Sends all of `data` and ends, while reading to the end.
fn exchange(socket: TcpStream, data: Vec<u8>) -> thread::JoinHandle<Vec<u8>> {
    let mut writes = socket.try_clone().unwrap();
    thread::spawn(move || {
        let writer = thread::spawn(move || {
            writes.write_all(&data).unwrap();
            writes.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        (&socket).read_to_end(&mut got).unwrap();
        writer.join().unwrap();
        got
    })
}

#[tokio::test]
async fn every_byte_arrives_both_ways_and_each_end_brings_the_flow_back() {
    let (mut load, client, server) = load();
    let flow = flow();
    let (up, down) = (pattern(20 << 20, 1), pattern(9 << 20, 2));
    let (client, server) = (exchange(client, up.clone()), exchange(server, down.clone()));
    let mut left = 2;
    while left > 0 {
        let end;
        (load, end) = travel(load, &flow).await;
        end.unwrap();
        for (direction, sink) in [(&mut load.up, &load.upstream), (&mut load.down, &load.client)] {
            // It may also come back because the peers were slow for a while.
            if direction.phase == Phase::Closing {
                sink.shutdown(Shutdown::Write).unwrap();
                direction.phase = Phase::Ended;
                left -= 1;
            }
        }
    }
    assert!(client.join().unwrap() == down, "the download differs");
    assert!(server.join().unwrap() == up, "the upload differs");
    assert_eq!((flow.up(), flow.down()), (up.len() as u64, down.len() as u64));
    assert_eq!((load.up.moved, load.down.moved), (up.len() as u64, down.len() as u64));
}

#[tokio::test]
async fn a_quiet_flow_comes_back() {
    let (load, _client, mut server) = load();
    let (load, end) = travel(load, &flow()).await;
    end.unwrap();
    assert!(load.up.phase == Phase::Moving && load.down.phase == Phase::Moving);
    (&load.upstream).write_all(b"still good").unwrap();
    server.read_exact(&mut [0; 10]).unwrap();
}

#[tokio::test]
async fn a_receiver_that_does_not_read_keeps_no_thread() {
    let (load, client, mut server) = load();
    let data = pattern(16 << 20, 3);
    let sender = exchange(client, data.clone());
    let flow = flow();
    let (load, end) = travel(load, &flow).await;
    end.unwrap();
    assert!(flow.up() < data.len() as u64, "nobody has read");
    // What is in the pipe then is not lost.
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        server.read_to_end(&mut got).unwrap();
        got
    });
    let mut load = load;
    while load.up.phase == Phase::Moving {
        let end;
        (load, end) = travel(load, &flow).await;
        end.unwrap();
    }
    drop(load);
    assert!(reader.join().unwrap() == data);
    assert!(sender.join().unwrap().is_empty());
}

#[tokio::test]
async fn a_reset_comes_back_as_an_error() {
    let (load, client, server) = load();
    let mut lane = Lane::start(load, flow(), place());
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    let (_load, end) = poll_fn(|cx| lane.poll(cx)).await.unwrap();
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    drop(server);
}

#[tokio::test]
async fn dropping_a_lane_closes_both_sockets() {
    let (load, mut client, mut server) = load();
    drop(Lane::start(load, flow(), place()));
    for peer in [&mut client, &mut server] {
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn there_are_only_so_many_places() {
    let taken: Vec<_> = std::iter::from_fn(Place::take).collect();
    assert!(taken.len() <= MOST);
    drop(taken);
    place();
}
