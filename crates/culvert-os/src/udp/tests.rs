use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;

use super::*;
use crate::socket::{UdpOptions, udp_socket};
use crate::testing::{LOOPBACKS, Numbers, wait_readable, when_readable};

fn socket(local: SocketAddr) -> (UdpSocket, SocketAddr) {
    let socket = udp_socket(&UdpOptions::default(), local).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn send_all(socket: &UdpSocket, mut slots: &[SendSlot<'_>]) {
    while !slots.is_empty() {
        let sent = send_batch(socket.as_fd(), slots).unwrap();
        assert!(sent > 0);
        slots = &slots[sent..];
    }
}

fn segmented<'a>(piece: &'a IoSlice<'a>, to: SocketAddr, size: usize) -> SendSlot<'a> {
    SendSlot { segment_size: NonZeroU16::new(size as u16), ..SendSlot::single(piece, Some(to)) }
}

/// Receives messages until `count` datagrams are there: their bytes, and what was said about the last message.
fn receive(socket: &UdpSocket, count: usize) -> (Vec<Vec<u8>>, RecvMeta) {
    let mut buffers = vec![vec![0; GRO_BUFFER]; 8];
    let mut datagrams = Vec::new();
    let mut meta = RecvMeta::EMPTY;
    while datagrams.len() < count {
        let mut slots: Vec<RecvSlot<'_>> = buffers.iter_mut().map(|buffer| RecvSlot::new(buffer)).collect();
        let received = when_readable(socket, || recv_batch(socket.as_fd(), &mut slots)).unwrap();
        for slot in &slots[..received] {
            datagrams.extend(slot.datagrams().map(<[u8]>::to_vec));
            meta = slot.meta;
        }
    }
    assert_eq!(datagrams.len(), count);
    (datagrams, meta)
}

fn nothing_waits(socket: &UdpSocket) {
    let mut buffer = [0; 100];
    let mut slots = [RecvSlot::new(&mut buffer)];
    assert_eq!(recv_batch(socket.as_fd(), &mut slots).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn batch_arrives_in_order_with_its_source() {
    for loopback in LOOPBACKS {
        let ((sender, from), (receiver, to)) = (socket(loopback), socket(loopback));
        let payloads: Vec<Vec<u8>> = (0..MAX_BATCH + 1).map(|n| vec![n as u8; n * 10]).collect();
        let pieces: Vec<IoSlice<'_>> = payloads.iter().map(|payload| IoSlice::new(payload)).collect();
        let slots: Vec<SendSlot<'_>> = pieces.iter().map(|piece| SendSlot::single(piece, Some(to))).collect();
        assert_eq!(
            send_batch(sender.as_fd(), &slots).unwrap(),
            MAX_BATCH,
            "one call moves no more than this"
        );
        assert_eq!(send_batch(sender.as_fd(), &slots[MAX_BATCH..]).unwrap(), 1);

        let mut buffers = vec![[0; 700]; MAX_BATCH + 1];
        let mut slots: Vec<RecvSlot<'_>> = buffers.iter_mut().map(|buffer| RecvSlot::new(buffer)).collect();
        wait_readable(&receiver);
        assert_eq!(recv_batch(receiver.as_fd(), &mut slots).unwrap(), MAX_BATCH);
        for (slot, payload) in slots.iter().zip(&payloads).take(MAX_BATCH) {
            assert_eq!(slot.data(), payload);
            let expected = RecvMeta { len: payload.len(), source: from, ..RecvMeta::EMPTY };
            assert_eq!(slot.meta, expected);
            assert_eq!(slot.datagrams().count(), 1);
        }
        assert_eq!(receive(&receiver, 1).0, [payloads[MAX_BATCH].clone()]);
        nothing_waits(&receiver);
    }
}

#[test]
fn no_slots_move_nothing() {
    let (socket, _) = socket(LOOPBACKS[0]);
    assert_eq!(send_batch(socket.as_fd(), &[]).unwrap(), 0);
    assert_eq!(recv_batch(socket.as_fd(), &mut []).unwrap(), 0);
}

#[test]
fn pieces_are_gathered_into_one_datagram() {
    let ((sender, _), (receiver, to)) = (socket(LOOPBACKS[0]), socket(LOOPBACKS[0]));
    let pieces = [IoSlice::new(b"head"), IoSlice::new(b""), IoSlice::new(b"body")];
    send_all(&sender, &[SendSlot::new(&pieces, Some(to)), SendSlot::new(&[], Some(to))]);
    assert_eq!(receive(&receiver, 2).0, [b"headbody".to_vec(), Vec::new()]);
}

#[test]
fn connected_socket_needs_no_destination() {
    let ((sender, from), (receiver, to)) = (socket(LOOPBACKS[1]), socket(LOOPBACKS[1]));
    sender.connect(to).unwrap();
    let piece = IoSlice::new(b"hello");
    send_all(&sender, &[SendSlot::single(&piece, None)]);
    let (datagrams, meta) = receive(&receiver, 1);
    assert_eq!((datagrams, meta.source), (vec![b"hello".to_vec()], from));
}

#[test]
fn short_buffer_is_told_and_spares_the_next_datagram() {
    let ((sender, _), (receiver, to)) = (socket(LOOPBACKS[0]), socket(LOOPBACKS[0]));
    let (long, short) = (IoSlice::new(b"0123456789"), IoSlice::new(b"ok"));
    send_all(&sender, &[SendSlot::single(&long, Some(to)), SendSlot::single(&short, Some(to))]);
    let (mut first, mut second) = ([0; 9], [0; 10]);
    let mut slots = [RecvSlot::new(&mut first), RecvSlot::new(&mut second)];
    wait_readable(&receiver);
    assert_eq!(recv_batch(receiver.as_fd(), &mut slots).unwrap(), 2);
    assert_eq!((slots[0].data(), slots[0].meta.truncated), (&b"012345678"[..], true));
    assert_eq!((slots[1].data(), slots[1].meta.truncated), (&b"ok"[..], false));
}

#[test]
fn segments_arrive_as_datagrams_around_every_boundary() {
    const SIZE: usize = 1200;
    for (loopback, gro) in LOOPBACKS.into_iter().flat_map(|address| [(address, false), (address, true)]) {
        let ((sender, from), (receiver, to)) = (socket(loopback), socket(loopback));
        assert_eq!(probe_gso(sender.as_fd()), GsoSupport::Kernel);
        if gro {
            enable_gro(receiver.as_fd()).unwrap();
        }
        let around = [1, 2, 7, 54].into_iter().flat_map(|n| [n * SIZE - 1, n * SIZE, n * SIZE + 1]);
        for len in around.chain([1]) {
            let payload = Numbers(len as u64).bytes(len);
            let piece = IoSlice::new(&payload);
            send_all(&sender, &[segmented(&piece, to, SIZE)]);
            let expected: Vec<Vec<u8>> = payload.chunks(SIZE).map(<[u8]>::to_vec).collect();
            let (datagrams, meta) = receive(&receiver, expected.len());
            assert!(datagrams == expected, "{len} bytes to {to}, gro {gro}");
            assert_eq!((meta.source, meta.truncated), (from, false));
            if gro {
                let joined = (len > SIZE).then_some(SIZE as u16);
                assert_eq!(meta.segment_size.map(NonZeroU16::get), joined, "loopback passes them joined");
            } else {
                assert_eq!(meta.segment_size, None);
            }
        }
    }
}

#[test]
fn most_segments_of_the_smallest_size_pass() {
    let ((sender, _), (receiver, to)) = (socket(LOOPBACKS[0]), socket(LOOPBACKS[0]));
    enable_gro(receiver.as_fd()).unwrap();
    let payload = Numbers(5).bytes(MAX_SEGMENTS);
    let piece = IoSlice::new(&payload);
    send_all(&sender, &[segmented(&piece, to, 1)]);
    let (datagrams, _) = receive(&receiver, MAX_SEGMENTS);
    assert_eq!(datagrams.concat(), payload);
}

#[test]
fn scattered_datagrams_are_sent_as_segments_of_one_message() {
    let ((sender, _), (receiver, to)) = (socket(LOOPBACKS[0]), socket(LOOPBACKS[0]));
    enable_gro(receiver.as_fd()).unwrap();
    let (a, b, c) = ([1; 500], [2; 500], [3; 20]);
    let pieces = [IoSlice::new(&a), IoSlice::new(&b), IoSlice::new(&c)];
    let slot = SendSlot { segment_size: NonZeroU16::new(500), ..SendSlot::new(&pieces, Some(to)) };
    send_all(&sender, &[slot]);
    assert_eq!(receive(&receiver, 3).0, [a.to_vec(), b.to_vec(), c.to_vec()]);
}

#[test]
fn refused_segments_are_known_from_other_errors() {
    let ((sender, _), (receiver, to)) = (socket(LOOPBACKS[0]), socket(LOOPBACKS[0]));
    let payload = [0; 2000]; // 2000 segments are more than any kernel takes
    let piece = IoSlice::new(&payload);
    let error = send_batch(sender.as_fd(), &[segmented(&piece, to, 1)]).unwrap_err();
    assert!(is_gso_refused(&error), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    nothing_waits(&receiver);

    let huge = [0; 65536];
    let piece = IoSlice::new(&huge);
    let error = send_batch(sender.as_fd(), &[SendSlot::single(&piece, Some(to))]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    assert!(!is_gso_refused(&error));
}

#[test]
fn error_is_about_the_first_slot_and_the_rest_can_go_on() {
    let ((sender, _), (receiver, to)) = (socket(LOOPBACKS[0]), socket(LOOPBACKS[0]));
    let piece = IoSlice::new(b"x");
    let broadcast = SocketAddr::from((Ipv4Addr::BROADCAST, 9)); // refused without SO_BROADCAST
    let [good, bad] = [to, broadcast].map(|to| SendSlot::single(&piece, Some(to)));
    let slots = [good, bad, good];
    assert_eq!(send_batch(sender.as_fd(), &slots).unwrap(), 1);
    assert_eq!(send_batch(sender.as_fd(), &slots[1..]).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(send_batch(sender.as_fd(), &slots[2..]).unwrap(), 1);
    receive(&receiver, 2);
}

/// An address that nobody listens at.
fn closed_port(loopback: SocketAddr) -> SocketAddr {
    socket(loopback).1
}

#[test]
fn peer_that_is_gone_does_not_disturb_an_unconnected_socket() {
    for loopback in LOOPBACKS {
        let ((gone, (socket, address)), (other, _)) =
            ((closed_port(loopback), socket(loopback)), socket(loopback));
        let piece = IoSlice::new(b"x");
        for _ in 0..3 {
            send_all(&socket, &[SendSlot::single(&piece, Some(gone))]);
        }
        nothing_waits(&socket);
        send_all(&other, &[SendSlot::single(&piece, Some(address))]);
        receive(&socket, 1);
    }
}

#[test]
fn peer_that_is_gone_is_reported_once_to_a_connected_socket() {
    for loopback in LOOPBACKS {
        let (socket, _) = socket(loopback);
        socket.connect(closed_port(loopback)).unwrap();
        let piece = IoSlice::new(b"x");
        send_all(&socket, &[SendSlot::single(&piece, None)]);
        let mut buffer = [0; 10];
        let mut slots = [RecvSlot::new(&mut buffer)];
        let error = when_readable(&socket, || recv_batch(socket.as_fd(), &mut slots)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        nothing_waits(&socket);
    }
}

#[test]
fn dual_stack_socket_speaks_plain_v4() {
    let (server, address) = socket(SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0)));
    enable_ecn(server.as_fd(), true).unwrap();
    enable_local_address(server.as_fd(), true).unwrap();
    enable_original_destination(server.as_fd(), true).unwrap();
    for loopback in LOOPBACKS {
        let (client, from) = socket(loopback);
        let piece = IoSlice::new(b"ask");
        let asked = SocketAddr::new(loopback.ip(), address.port());
        send_all(&client, &[SendSlot { ecn: Some(Ecn::Capable1), ..SendSlot::single(&piece, Some(asked)) }]);
        let (_, meta) = receive(&server, 1);
        let expected = RecvMeta {
            len: 3,
            source: from,
            ecn: Ecn::Capable1,
            local: Some(loopback.ip()),
            original_destination: Some(asked),
            ..RecvMeta::EMPTY
        };
        assert_eq!(meta, expected);
        let answer = IoSlice::new(b"answer in segments");
        let slot = SendSlot {
            source: meta.local,
            ecn: Some(Ecn::Capable0),
            segment_size: NonZeroU16::new(6),
            ..SendSlot::single(&answer, Some(meta.source))
        };
        send_all(&server, &[slot]);
        let (datagrams, meta) = receive(&client, 3);
        assert_eq!(datagrams.concat(), b"answer in segments");
        assert_eq!(meta.source, asked);
    }
}

#[test]
fn congestion_marks_travel() {
    for loopback in LOOPBACKS {
        let ((sender, _), (receiver, to)) = (socket(loopback), socket(loopback));
        enable_ecn(receiver.as_fd(), loopback.is_ipv6()).unwrap();
        sender.connect(to).unwrap();
        let piece = IoSlice::new(b"x");
        for ecn in [Ecn::NotCapable, Ecn::Capable1, Ecn::Capable0, Ecn::Congested] {
            for destination in [None, Some(to)] {
                send_all(&sender, &[SendSlot { ecn: Some(ecn), ..SendSlot::single(&piece, destination) }]);
                assert_eq!(receive(&receiver, 1).1.ecn, ecn);
            }
        }
    }
}

#[test]
fn source_address_is_chosen_per_message() {
    let (sender, from) = socket(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    let (receiver, to) = socket(LOOPBACKS[0]);
    let piece = IoSlice::new(b"x");
    for source in [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 1, 2, 3)] {
        send_all(&sender, &[SendSlot { source: Some(source.into()), ..SendSlot::single(&piece, Some(to)) }]);
        assert_eq!(receive(&receiver, 1).1.source, SocketAddr::from((source, from.port())));
    }
}

#[test]
fn everything_reported_at_once_fits() {
    let ((sender, from), (receiver, to)) = (socket(LOOPBACKS[1]), socket(LOOPBACKS[1]));
    enable_gro(receiver.as_fd()).unwrap();
    enable_ecn(receiver.as_fd(), true).unwrap();
    enable_local_address(receiver.as_fd(), true).unwrap();
    enable_original_destination(receiver.as_fd(), true).unwrap();
    let piece = IoSlice::new(&[5; 100]);
    send_all(&sender, &[SendSlot { ecn: Some(Ecn::Congested), ..segmented(&piece, to, 30) }]);
    let expected = RecvMeta {
        len: 100,
        source: from,
        segment_size: NonZeroU16::new(30),
        truncated: false,
        ecn: Ecn::Congested,
        local: Some(to.ip()),
        original_destination: Some(to),
    };
    assert_eq!(receive(&receiver, 4).1, expected);
}
