//! The kernel's own TCP and UDP over a link between two network namespaces.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stderr, reason = "the tests report there")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use culvert_os::netlink::Prefix;
use culvert_path::link::{Link, between_two_networks};
use culvert_path::{Loss, Shape};

const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));

/// Runs `test` on a thread at the far end of a link, with what `near` opened at the near one.
fn over<T: Send + 'static>(
    shape: Shape,
    near: impl FnOnce() -> T + Send + 'static,
    test: impl FnOnce(T, &Link) + Send + 'static,
) {
    let thread = thread::spawn(move || {
        let prefix = |ip| [Prefix { ip, len: 30 }];
        match between_two_networks(1500, [&prefix(NEAR), &prefix(FAR)], near) {
            Ok((ends, near)) => test(near, &Link::join(ends, [shape.clone(), shape], 1).unwrap()),
            Err(error) => eprintln!("SKIPPED: no network namespaces here: {error}"),
        }
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// A block of bytes, over and over; its length fits no packet.
fn pattern(len: usize) -> Vec<u8> {
    let block: Vec<u8> = (0..65_521u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let mut pattern = block.repeat(len / block.len() + 1);
    pattern.truncate(len);
    pattern
}

/// Bits per second of one TCP connection that carries `len` bytes to the far end, whole.
fn download(listener: &TcpListener, len: usize) -> f64 {
    let address = listener.local_addr().unwrap();
    let pattern = pattern(len);
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut near, _) = listener.accept().unwrap();
            near.write_all(&pattern).unwrap();
        });
        let mut far = TcpStream::connect(address).unwrap();
        let (mut at, mut buffer) = (0, vec![0; 1 << 18]);
        loop {
            let got = far.read(&mut buffer).unwrap();
            if got == 0 {
                break;
            }
            assert!(buffer[..got] == pattern[at..at + got], "what arrived is not what was sent");
            at += got;
        }
        assert_eq!(at, len);
    });
    len as f64 * 8.0 / start.elapsed().as_secs_f64()
}

fn listener() -> TcpListener {
    TcpListener::bind((NEAR, 0)).unwrap()
}

#[test]
fn a_round_trip_takes_as_long_as_the_path_says() {
    let shape = Shape { delay: Duration::from_millis(30), ..Shape::default() };
    over(
        shape,
        || UdpSocket::bind((NEAR, 0)).unwrap(),
        |near, _| {
            let address = near.local_addr().unwrap();
            let far = UdpSocket::bind((FAR, 0)).unwrap();
            let mut buffer = [0; 2000];
            let mut shortest = Duration::MAX;
            for len in [0, 1, 1472, 1500] {
                // The longest one is in two fragments.
                let start = Instant::now();
                far.send_to(&pattern(len), address).unwrap();
                let (got, from) = near.recv_from(&mut buffer).unwrap();
                assert!(buffer[..got] == pattern(len));
                near.send_to(&buffer[..got], from).unwrap();
                let got = far.recv(&mut buffer).unwrap();
                assert!(buffer[..got] == pattern(len));
                assert!(start.elapsed() >= Duration::from_millis(60));
                shortest = shortest.min(start.elapsed());
            }
            // A busy machine may add to that.
            assert!(shortest < Duration::from_millis(500), "{shortest:?}");
        },
    );
}

#[test]
fn tcp_gets_what_the_bottleneck_lets_through() {
    let shape = Shape::bottleneck(50_000_000, Duration::from_millis(20));
    over(shape, listener, |near, link| {
        let rate = download(&near, 12 << 20);
        assert!((20e6..50e6).contains(&rate), "{rate:.2e} bit/s");
        assert!(link.counts()[0].delivered > 8000);
    });
}

#[test]
fn trains_are_lost_by_the_packet_and_the_rest_arrives() {
    let shape = Shape { delay: Duration::from_millis(1), ..Shape::default() }.losing(Loss::Random(0.02));
    over(shape, listener, |near, link| {
        download(&near, 4 << 20);
        let counts = link.counts()[0];
        let share = counts.lost as f64 / counts.offered as f64;
        assert!((0.01..0.03).contains(&share) && counts.lost > 30, "{counts:?}");
    });
}

#[test]
fn a_link_carries_much_and_all_of_it() {
    over(Shape::default(), listener, |near, _| {
        let rate = download(&near, 256 << 20);
        eprintln!("one TCP connection through the link: {:.2} Gbit/s", rate / 1e9);
    });
}

#[test]
fn a_path_can_break_and_come_back() {
    over(
        Shape::default(),
        || UdpSocket::bind((NEAR, 0)).unwrap(),
        |near, link| {
            let far = UdpSocket::bind((FAR, 0)).unwrap();
            let target: SocketAddr = near.local_addr().unwrap();
            near.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let arrives = || {
                far.send_to(b"x", target).unwrap();
                near.recv_from(&mut [0; 8]).is_ok()
            };
            let until = |wanted: bool| (0..200).any(|_| arrives() == wanted);
            assert!(until(true));
            let broken = Shape::default().losing(Loss::Random(1.0));
            link.reshape([broken.clone(), broken]);
            assert!(until(false));
            link.reshape([Shape::default(), Shape::default()]);
            assert!(until(true));
        },
    );
}
