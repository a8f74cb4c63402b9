//! Nothing keeps a descriptor open for longer than it says. One test, for it counts those of the whole process.

#![cfg(target_os = "linux")]

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

use culvert_os::process::open_files;
use culvert_os::socket::{TcpDial, TcpListen, UdpOptions, tcp_listener, tcp_socket, udp_socket};
use culvert_os::splice::{Pipe, splice_in, trim};
use culvert_os::{iface, netns};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[test]
fn every_descriptor_is_closed() {
    let at_start = open_files().unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(open_files().unwrap(), at_start + 1, "the count is of open files");
    drop(file);

    // Two per pipe; sixteen empty pipes stay with the thread until they are trimmed.
    let pipes: Vec<Pipe> = (0..20).map(|_| Pipe::take().unwrap()).collect();
    assert_eq!(open_files().unwrap(), at_start + 40);
    drop(pipes);
    assert_eq!(open_files().unwrap(), at_start + 32);
    trim();
    assert_eq!(open_files().unwrap(), at_start);

    // A thread's pool ends with it.
    thread::spawn(|| drop(Pipe::take().unwrap())).join().unwrap();
    assert_eq!(open_files().unwrap(), at_start);

    // A pipe with bytes inside is closed.
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.write_all(b"bytes").unwrap();
    let mut pipe = Pipe::take().unwrap();
    assert_eq!(splice_in(far.as_fd(), &mut pipe, 100).unwrap(), 5);
    assert_eq!(open_files().unwrap(), at_start + 5);
    drop((pipe, listener, near, far));
    assert_eq!(open_files().unwrap(), at_start);

    // What fails halfway closes what it had opened.
    let netns = Some("/proc/self/ns/net".to_owned());
    let bind_interface = Some("no-such-if0".to_owned());
    for _ in 0..10 {
        let dial =
            TcpDial { bind_interface: bind_interface.clone(), netns: netns.clone(), ..TcpDial::default() };
        assert!(tcp_socket(&dial, LOOPBACK).is_err());
        let listen = TcpListen { bind_interface: bind_interface.clone(), ..TcpListen::default() };
        assert!(tcp_listener(&listen, LOOPBACK).is_err());
        let udp = UdpOptions { bind_interface: bind_interface.clone(), ..UdpOptions::default() };
        assert!(udp_socket(&udp, LOOPBACK).is_err());
        assert!(netns::within("no-such-namespace", || ()).is_err());
        let _ = netns::within("/proc/self/ns/net", || ());
        iface::interfaces().unwrap();
    }
    assert_eq!(open_files().unwrap(), at_start);
}
