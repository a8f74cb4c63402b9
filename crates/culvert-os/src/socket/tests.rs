use std::error::Error as _;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use super::*;
use crate::sys::get_int;
use crate::testing::{LOOPBACKS, in_fresh_network, tcp_pair, wait_readable, wait_writable, when_readable};

const V4_ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
const V6_ANY: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

fn listener(listen: &TcpListen, address: SocketAddr) -> (TcpListener, SocketAddr) {
    let listener = tcp_listener(listen, address).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Starts the connection, and says whether connect(2) was done at once.
fn start(socket: &Socket, target: SocketAddr) -> bool {
    match socket.connect(&target.into()) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS), "sockets are non-blocking");
            false
        }
    }
}

fn connect(dial: &TcpDial, target: SocketAddr) -> TcpStream {
    let socket = tcp_socket(dial, target).unwrap();
    start(&socket, target);
    wait_writable(&socket);
    assert!(take_error(socket.as_fd()).unwrap().is_none());
    socket.into()
}

fn accept(listener: &TcpListener) -> TcpStream {
    when_readable(listener, || listener.accept()).unwrap().0
}

/// What a user reads: the error and its sources, joined.
fn chain(error: &SocketError) -> String {
    format!("{error}: {}", error.source().unwrap())
}

#[test]
fn dialed_and_accepted_sockets_have_their_options() {
    let keep_alive = Some(KeepAlive { idle: Duration::from_secs(41), interval: Duration::from_millis(6500) });
    for loopback in LOOPBACKS {
        let (listener, address) = listener(&TcpListen { keep_alive, ..TcpListen::default() }, loopback);
        let near = connect(&TcpDial { keep_alive, ..TcpDial::default() }, address);
        let far = accept(&listener);
        for stream in [&near, &far] {
            let socket = SockRef::from(stream);
            assert!(socket.tcp_nodelay().unwrap());
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(41));
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(7));
        }
        assert_eq!(peer_addr(near.as_fd()).unwrap(), address);
        assert_eq!(peer_addr(far.as_fd()).unwrap(), local_addr(near.as_fd()).unwrap());
    }
}

#[test]
fn without_keep_alive_none_is_sent() {
    let (listener, address) = listener(&TcpListen::default(), LOOPBACKS[0]);
    let near = connect(&TcpDial::default(), address);
    for stream in [near, accept(&listener)] {
        assert!(!SockRef::from(&stream).keepalive().unwrap());
    }
}

#[test]
fn times_are_rounded_up_into_what_the_kernel_takes() {
    for (given, taken) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (75_000, 75), (u64::MAX, 32767)] {
        assert_eq!(whole_seconds(Duration::from_millis(given)), Duration::from_secs(taken));
    }
    let default = KeepAlive::default();
    assert_eq!((default.idle.as_secs(), default.interval.as_secs()), (300, 75));
}

#[test]
fn source_address_follows_the_family_of_the_target() {
    let dial = TcpDial {
        bind_v4: Some(Ipv4Addr::new(127, 0, 0, 9)),
        bind_v6: Some(Ipv6Addr::LOCALHOST),
        ..TcpDial::default()
    };
    for (loopback, source) in LOOPBACKS.into_iter().zip(["127.0.0.9", "::1"]) {
        let (listener, address) = listener(&TcpListen::default(), loopback);
        let near = connect(&dial, address);
        assert_eq!(near.local_addr().unwrap().ip().to_string(), source);
        drop(accept(&listener));
    }
}

#[test]
fn source_port_is_left_to_connect() {
    for (bind_address_no_port, early) in [(false, true), (true, false)] {
        let dial = TcpDial { bind_v4: Some(Ipv4Addr::LOCALHOST), bind_address_no_port, ..TcpDial::default() };
        let socket = tcp_socket(&dial, LOOPBACKS[0]).unwrap();
        assert_eq!(local_addr(socket.as_fd()).unwrap().port() != 0, early);
        let (_listener, address) = listener(&TcpListen::default(), LOOPBACKS[0]);
        start(&socket, address);
        assert_ne!(local_addr(socket.as_fd()).unwrap().port(), 0);
    }
}

#[test]
fn foreign_source_address_is_named() {
    let dial = TcpDial { bind_v4: Some(Ipv4Addr::new(192, 0, 2, 77)), ..TcpDial::default() };
    let error = tcp_socket(&dial, LOOPBACKS[0]).unwrap_err();
    assert!(matches!(&error, SocketError::Bind { address, .. } if address.ip().to_string() == "192.0.2.77"));
    assert_eq!(error.io().kind(), ErrorKind::AddrNotAvailable);
    assert!(chain(&error).starts_with("bind to 192.0.2.77:0: "), "{}", chain(&error));
}

#[test]
fn mark_is_set_on_every_kind_of_socket() {
    let mark = Some(0x1234);
    let dial = match tcp_socket(&TcpDial { mark, ..TcpDial::default() }, LOOPBACKS[0]) {
        Err(error @ SocketError::Mark { .. }) if error.io().kind() == ErrorKind::PermissionDenied => {
            assert!(chain(&error).starts_with("routing_mark 0x1234 (needs CAP_NET_ADMIN): "), "{error}");
            return eprintln!("SKIPPED mark_is_set_on_every_kind_of_socket: {error}");
        }
        other => other.unwrap(),
    };
    let listen = tcp_listener(&TcpListen { mark, ..TcpListen::default() }, LOOPBACKS[0]).unwrap();
    let udp = udp_socket(&UdpOptions { mark, ..UdpOptions::default() }, LOOPBACKS[1]).unwrap();
    for socket in [SockRef::from(&dial), SockRef::from(&listen), SockRef::from(&udp)] {
        assert_eq!(socket.mark().unwrap(), 0x1234);
    }
}

#[test]
fn missing_privilege_is_explained() {
    let denied = || io::Error::from(ErrorKind::PermissionDenied);
    let error = SocketError::Mark { mark: 255, source: denied() };
    assert_eq!(error.to_string(), "routing_mark 0xff (needs CAP_NET_ADMIN)");
    let error = SocketError::Bind { address: "[::]:80".parse().unwrap(), source: denied() };
    assert_eq!(error.to_string(), "bind to [::]:80 (needs CAP_NET_BIND_SERVICE)");
    let error = io::Error::from(SocketError::Netns { name: "blue".into(), source: denied() });
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "an io::Error keeps the kind");
    assert_eq!(error.to_string(), "netns blue (needs CAP_SYS_ADMIN)");
    assert_eq!(error.source().unwrap().to_string(), denied().to_string());
}

#[test]
fn interface_is_bound_on_every_kind_of_socket() {
    let name = || Some("lo".to_owned());
    let dial = tcp_socket(&TcpDial { bind_interface: name(), ..TcpDial::default() }, LOOPBACKS[0]).unwrap();
    let listen = tcp_listener(&TcpListen { bind_interface: name(), ..TcpListen::default() }, V6_ANY).unwrap();
    let udp = udp_socket(&UdpOptions { bind_interface: name(), ..UdpOptions::default() }, V4_ANY).unwrap();
    for socket in [SockRef::from(&dial), SockRef::from(&listen), SockRef::from(&udp)] {
        assert_eq!(socket.device().unwrap().unwrap(), b"lo");
    }
}

#[test]
fn unknown_interface_is_named() {
    let bind_interface = Some("no-such-if0".to_owned());
    let error = tcp_socket(&TcpDial { bind_interface, ..TcpDial::default() }, LOOPBACKS[0]).unwrap_err();
    assert_eq!(error.io().raw_os_error(), Some(libc::ENODEV));
    assert!(chain(&error).starts_with("bind_interface no-such-if0: "), "{}", chain(&error));
}

#[test]
fn any_address_of_v6_takes_v4_too_and_of_v4_nothing_else() {
    let (both, address) = listener(&TcpListen::default(), V6_ANY);
    for loopback in LOOPBACKS {
        let near = connect(&TcpDial::default(), SocketAddr::new(loopback.ip(), address.port()));
        let far = accept(&both);
        assert_eq!(peer_addr(far.as_fd()).unwrap(), near.local_addr().unwrap(), "IPv4 comes as plain IPv4");
        assert_eq!(local_addr(far.as_fd()).unwrap().ip(), loopback.ip());
    }
    let (_v4, address) = listener(&TcpListen::default(), V4_ANY);
    assert!(TcpStream::connect(SocketAddr::new(LOOPBACKS[1].ip(), address.port())).is_err());
    assert!(TcpStream::connect(SocketAddr::new(LOOPBACKS[0].ip(), address.port())).is_ok());
}

#[test]
fn port_is_shared_only_on_demand() {
    let (one, address) = listener(&TcpListen::default(), LOOPBACKS[0]);
    assert!(SockRef::from(&one).reuse_address().unwrap(), "a restart must not wait for old connections");
    let error = tcp_listener(&TcpListen::default(), address).unwrap_err();
    assert!(matches!(error, SocketError::Bind { .. }));
    assert_eq!(error.io().kind(), ErrorKind::AddrInUse);

    let shared = TcpListen { reuse_addr: true, ..TcpListen::default() };
    let (_one, address) = listener(&shared, LOOPBACKS[0]);
    tcp_listener(&shared, address).unwrap();

    let plain = udp_socket(&UdpOptions::default(), LOOPBACKS[0]).unwrap();
    assert!(udp_socket(&UdpOptions::default(), plain.local_addr().unwrap()).is_err());
    let shared = UdpOptions { reuse_addr: true, ..UdpOptions::default() };
    let one = udp_socket(&shared, LOOPBACKS[0]).unwrap();
    udp_socket(&shared, one.local_addr().unwrap()).unwrap();
}

#[test]
fn a_bound_port_can_be_shared_by_those_who_ask() {
    let one = udp_socket(&UdpOptions::default(), LOOPBACKS[0]).unwrap();
    let address = one.local_addr().unwrap();
    let joining = UdpOptions { reuse_addr: true, ..UdpOptions::default() };
    assert!(udp_socket(&joining, address).is_err(), "not before it is shared");
    share_port(one.as_fd()).unwrap();
    let two = udp_socket(&joining, address).unwrap();
    assert!(udp_socket(&UdpOptions::default(), address).is_err(), "a second program is told");
    // What comes is spread by where it comes from, and nothing is lost.
    for socket in [&one, &two] {
        socket.set_nonblocking(true).unwrap();
    }
    for _ in 0..64 {
        let sender = UdpSocket::bind(LOOPBACKS[0]).unwrap();
        sender.send_to(b"x", address).unwrap();
    }
    let count = |socket: &UdpSocket| std::iter::from_fn(|| socket.recv(&mut [0]).ok()).count();
    let (first, second) = (count(&one), count(&two));
    assert_eq!(first + second, 64);
    assert!(first > 0 && second > 0, "{first} and {second}");
}

#[test]
fn loopback_takes_longer_packets_than_any_network() {
    for address in LOOPBACKS {
        let target = SocketAddr::new(address.ip(), 9);
        assert!(path_mtu(target).unwrap() > 9000, "{target}");
    }
}

#[test]
fn reuse_of_a_dialed_socket_is_set() {
    let socket = tcp_socket(&TcpDial { reuse_addr: true, ..TcpDial::default() }, LOOPBACKS[0]).unwrap();
    assert!(socket.reuse_address().unwrap() && socket.reuse_port().unwrap());
    let socket = tcp_socket(&TcpDial::default(), LOOPBACKS[0]).unwrap();
    assert!(!socket.reuse_address().unwrap() && !socket.reuse_port().unwrap());
}

#[test]
fn fast_open_connects_before_the_handshake() {
    in_fresh_network("fast_open_connects_before_the_handshake", || {
        fs::write("/proc/sys/net/ipv4/tcp_fastopen", "3").unwrap();
        let (listener, address) =
            listener(&TcpListen { fast_open: true, ..TcpListen::default() }, LOOPBACKS[0]);
        assert!(get_int(listener.as_fd(), libc::IPPROTO_TCP, libc::TCP_FASTOPEN).unwrap() > 0);
        let dial = TcpDial { fast_open: true, ..TcpDial::default() };
        // The first connection brings the cookie; the second one may then speak at once.
        for at_once in [false, true] {
            let socket = tcp_socket(&dial, address).unwrap();
            assert_eq!(get_int(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT).unwrap(), 1);
            assert_eq!(start(&socket, address), at_once);
            wait_writable(&socket);
            (&socket).write_all(b"hello").unwrap();
            let far = accept(&listener);
            let mut bytes = [0; 5];
            when_readable(&far, || (&far).read_exact(&mut bytes)).unwrap();
            assert_eq!(&bytes, b"hello");
        }
    });
}

#[test]
fn fast_open_is_a_wish() {
    in_fresh_network("fast_open_is_a_wish", || {
        fs::write("/proc/sys/net/ipv4/tcp_fastopen", "0").unwrap();
        let (listener, address) =
            listener(&TcpListen { fast_open: true, ..TcpListen::default() }, LOOPBACKS[0]);
        connect(&TcpDial { fast_open: true, ..TcpDial::default() }, address);
        accept(&listener);
    });
}

#[test]
fn multipath_is_used_where_the_kernel_has_it_and_is_a_wish() {
    in_fresh_network("multipath_is_used_where_the_kernel_has_it_and_is_a_wish", || {
        let switch = "/proc/sys/net/mptcp/enabled";
        let settings = if fs::exists(switch).unwrap() { &["1", "0"][..] } else { &["absent"] };
        for setting in settings {
            if *setting != "absent" {
                fs::write(switch, setting).unwrap();
            }
            let protocol = if *setting == "1" { Protocol::MPTCP } else { Protocol::TCP };
            let (listener, address) =
                listener(&TcpListen { multipath: true, ..TcpListen::default() }, LOOPBACKS[0]);
            let near = connect(&TcpDial { multipath: true, ..TcpDial::default() }, address);
            let far = accept(&listener);
            assert_eq!(SockRef::from(&listener).protocol().unwrap(), Some(protocol), "mptcp {setting}");
            assert_eq!(SockRef::from(&near).protocol().unwrap(), Some(protocol), "mptcp {setting}");
            (&near).write_all(b"hello").unwrap();
            let mut bytes = [0; 5];
            when_readable(&far, || (&far).read_exact(&mut bytes)).unwrap();
        }
    });
}

#[test]
fn transparent_listener_takes_addresses_of_others() {
    in_fresh_network("transparent_listener_takes_addresses_of_others", || {
        let foreign = SocketAddr::from(([192, 0, 2, 1], 0));
        let udp = UdpOptions { transparent: true, ..UdpOptions::default() };
        udp_socket(&udp, foreign).unwrap();
        udp_socket(&udp, "[2001:db8::1]:0".parse().unwrap()).unwrap();
        assert!(udp_socket(&UdpOptions::default(), foreign).is_err());
        let (socket, _) = listener(&TcpListen { transparent: true, ..TcpListen::default() }, V6_ANY);
        assert!(SockRef::from(&socket).ip_transparent_v6().unwrap());
    });
}

#[test]
fn fragmentation_is_set_for_both_families() {
    let modes = [
        (Fragmentation::Forbidden, libc::IP_PMTUDISC_DO),
        (Fragmentation::Probe, libc::IP_PMTUDISC_PROBE),
        (Fragmentation::System, libc::IP_PMTUDISC_WANT),
    ];
    for (fragmentation, expected) in modes {
        let options = UdpOptions { fragmentation, ..UdpOptions::default() };
        let socket = udp_socket(&options, V6_ANY).unwrap();
        let v4 = get_int(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER).unwrap();
        let v6 = get_int(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER).unwrap();
        // The system's own choice is an administrator's: ip_no_pmtu_disc makes it another.
        if fragmentation != Fragmentation::System
            || fs::read("/proc/sys/net/ipv4/ip_no_pmtu_disc").unwrap() == b"0\n"
        {
            assert_eq!((v4, v6), (expected, expected), "{fragmentation:?}");
        }
        udp_socket(&options, V4_ANY).unwrap();
    }
}

#[test]
fn udp_buffers_grow_as_far_as_the_system_allows() {
    let socket = udp_socket(&UdpOptions { buffer: 1 << 20, ..UdpOptions::default() }, LOOPBACKS[0]).unwrap();
    let most = |name| {
        let text = fs::read_to_string(format!("/proc/sys/net/core/{name}")).unwrap();
        text.trim().parse::<usize>().unwrap()
    };
    let socket = SockRef::from(&socket);
    // The kernel doubles what it grants, for its own bookkeeping.
    assert_eq!(socket.recv_buffer_size().unwrap(), 2 * most("rmem_max").min(1 << 20));
    assert_eq!(socket.send_buffer_size().unwrap(), 2 * most("wmem_max").min(1 << 20));
}

#[test]
fn sockets_are_not_inherited_and_do_not_block() {
    let dial = tcp_socket(&TcpDial::default(), LOOPBACKS[0]).unwrap();
    let listen = tcp_listener(&TcpListen::default(), LOOPBACKS[0]).unwrap();
    let udp = udp_socket(&UdpOptions::default(), LOOPBACKS[0]).unwrap();
    for fd in [dial.as_fd(), listen.as_fd(), udp.as_fd()] {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)))
            .unwrap();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        let flags = i32::from_str_radix(flags, 8).unwrap();
        assert_ne!(flags & libc::O_CLOEXEC, 0);
        assert_ne!(flags & libc::O_NONBLOCK, 0);
    }
}

#[test]
fn zero_linger_resets_the_peer() {
    let (near, far) = tcp_pair(LOOPBACKS[0]);
    set_linger_zero(near.as_fd()).unwrap();
    drop(near);
    let error = when_readable(&far, || (&far).read(&mut [0; 10])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn failed_connect_leaves_its_error_once() {
    let (gone, address) = listener(&TcpListen::default(), LOOPBACKS[0]);
    drop(gone);
    let socket = tcp_socket(&TcpDial::default(), address).unwrap();
    match socket.connect(&address.into()) {
        // Loopback may answer before connect(2) returns.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
        other => assert_eq!(other.unwrap_err().raw_os_error(), Some(libc::EINPROGRESS)),
    }
    wait_writable(&socket);
    assert_eq!(take_error(socket.as_fd()).unwrap().unwrap().kind(), ErrorKind::ConnectionRefused);
    assert!(take_error(socket.as_fd()).unwrap().is_none());
    assert_eq!(peer_addr(socket.as_fd()).unwrap_err().kind(), ErrorKind::NotConnected);
}

#[test]
fn send_queue_tells_what_is_on_its_way() {
    let (mut near, far) = tcp_pair(LOOPBACKS[0]);
    assert_eq!(send_queue(near.as_fd()).unwrap(), SendQueue::default());
    let mut written = 0;
    while let Ok(more) = near.write(&[1; 65536]) {
        written += more;
    }
    let queue = send_queue(near.as_fd()).unwrap();
    assert!(queue.unsent > 0 && queue.unsent <= queue.unacknowledged, "the window is closed: {queue:?}");
    assert!(queue.unacknowledged <= written);
    let mut rest = vec![0; 1 << 20];
    while written > 0 {
        written -= when_readable(&far, || (&far).read(&mut rest)).unwrap();
    }
    // The last acknowledgement arrives with an answer, if not before.
    (&far).write_all(b"done").unwrap();
    wait_readable(&near);
    assert_eq!(send_queue(near.as_fd()).unwrap(), SendQueue::default());
}

#[test]
fn socket_is_made_in_the_namespace_asked_for() {
    in_fresh_network("socket_is_made_in_the_namespace_asked_for", || {
        let thread = fs::read_link("/proc/thread-self").unwrap();
        let netns = Some(format!("/proc/{}/ns/net", thread.display()));
        in_fresh_network("nested", move || {
            let listen = TcpListen { netns: netns.clone(), ..TcpListen::default() };
            let (listener, address) = listener(&listen, LOOPBACKS[0]);
            let dial = TcpDial { netns: netns.clone(), ..TcpDial::default() };
            let mut near = connect(&dial, address);
            let far = accept(&listener);
            near.write_all(b"hi").unwrap();
            let mut bytes = [0; 2];
            when_readable(&far, || (&far).read_exact(&mut bytes)).unwrap();
            assert!(TcpStream::connect(address).is_err(), "nothing listens out here");

            let one = udp_socket(&UdpOptions { netns, ..UdpOptions::default() }, LOOPBACKS[0]).unwrap();
            udp_socket(&UdpOptions::default(), one.local_addr().unwrap()).expect("the port is free out here");
        });
    });
}

#[test]
fn unknown_namespace_fails_every_kind_of_socket() {
    let netns = || Some("culvert-no-such-namespace".to_owned());
    let errors = [
        tcp_socket(&TcpDial { netns: netns(), ..TcpDial::default() }, LOOPBACKS[0]).unwrap_err(),
        tcp_listener(&TcpListen { netns: netns(), ..TcpListen::default() }, LOOPBACKS[0]).unwrap_err(),
        udp_socket(&UdpOptions { netns: netns(), ..UdpOptions::default() }, LOOPBACKS[0]).unwrap_err(),
    ];
    for error in errors {
        assert!(
            chain(&error).starts_with("netns culvert-no-such-namespace: No such file"),
            "{}",
            chain(&error)
        );
    }
}

#[test]
fn a_fixed_speed_takes_a_module_that_is_missing() {
    let (near, _far) = tcp_pair(LOOPBACKS[0]);
    match set_brutal(near.as_fd(), 1_000_000) {
        Ok(()) => {}
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied), "{error}")
        }
    }
}
