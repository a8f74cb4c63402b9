use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Barrier;
use std::thread;

use super::*;
use crate::socket::set_linger_zero;
use crate::testing::{LOOPBACKS, Numbers, tcp_pair, wait_readable, wait_writable, when_readable};

/// One direction of a relay until the end of `from`, in steps of random size. Ends the sending side of `to`.
fn relay(from: &TcpStream, to: &TcpStream, numbers: &mut Numbers) -> usize {
    let mut pipe = Pipe::take().unwrap();
    let mut total = 0;
    loop {
        let max = numbers.up_to(300_000);
        let moved = when_readable(from, || splice_in(from.as_fd(), &mut pipe, max)).unwrap();
        if moved == 0 {
            break;
        }
        assert!(moved <= max);
        assert_eq!(pipe.len(), moved);
        total += moved;
        while !pipe.is_empty() {
            match splice_out(&mut pipe, to.as_fd(), false) {
                Ok(written) => assert!(written > 0),
                Err(error) if error.kind() == ErrorKind::WouldBlock => wait_writable(to),
                Err(error) => panic!("{error}"),
            }
        }
    }
    to.shutdown(Shutdown::Write).unwrap();
    total
}

/// A blocking writer that cuts `data` at random places and then ends its side.
fn write_in_pieces(mut stream: TcpStream, mut data: &[u8], mut numbers: Numbers) -> TcpStream {
    stream.set_nonblocking(false).unwrap();
    while !data.is_empty() {
        let (piece, rest) = data.split_at(numbers.up_to(100_000).min(data.len()));
        stream.write_all(piece).unwrap();
        data = rest;
    }
    stream.shutdown(Shutdown::Write).unwrap();
    stream
}

fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_nonblocking(false).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn bytes_pass_whole_and_in_order_and_one_side_may_end_first() {
    for (loopback, seed) in LOOPBACKS.into_iter().zip([1, 2]) {
        let (request, answer) = (Numbers(seed).bytes(6_000_000), Numbers(seed + 10).bytes(700_000));
        let (client, inbound) = tcp_pair(loopback);
        let (outbound, mut server) = tcp_pair(loopback);
        thread::scope(|scope| {
            let writer = scope.spawn(|| write_in_pieces(client, &request, Numbers(seed + 20)));
            let up = scope.spawn(|| relay(&inbound, &outbound, &mut Numbers(seed + 30)));
            assert!(read_to_end(&mut server) == request);
            assert_eq!(up.join().unwrap(), request.len());
            // The first direction has ended; the second is untouched by that.
            let mut client = writer.join().unwrap();
            let down = scope.spawn(|| relay(&outbound, &inbound, &mut Numbers(seed + 40)));
            let server = scope.spawn(|| write_in_pieces(server, &answer, Numbers(seed + 50)));
            assert!(read_to_end(&mut client) == answer);
            assert_eq!(down.join().unwrap(), answer.len());
            drop(server.join().unwrap());
        });
    }
}

#[test]
fn idle_socket_would_block_and_an_empty_pipe_gives_nothing() {
    let (_near, far) = tcp_pair(LOOPBACKS[0]);
    let mut pipe = Pipe::take().unwrap();
    assert_eq!(splice_in(far.as_fd(), &mut pipe, 1000).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(splice_out(&mut pipe, far.as_fd(), false).unwrap(), 0);
}

#[test]
fn idle_socket_would_block_also_with_bytes_in_the_pipe() {
    let (mut near, far) = tcp_pair(LOOPBACKS[0]);
    let mut pipe = Pipe::take().unwrap();
    near.write_all(b"some").unwrap();
    assert_eq!(when_readable(&far, || splice_in(far.as_fd(), &mut pipe, 1000)).unwrap(), 4);
    assert_eq!(splice_in(far.as_fd(), &mut pipe, 1000).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn pipe_whose_slots_are_taken_is_not_mistaken_for_an_idle_socket() {
    let (mut near, mut far) = tcp_pair(LOOPBACKS[0]);
    let mut pipe = Pipe::take().unwrap();
    let piece = [7; 100];
    let error = loop {
        near.write_all(&piece).unwrap();
        wait_readable(&far);
        if let Err(error) = splice_in(far.as_fd(), &mut pipe, 1000) {
            break error;
        }
        assert!(pipe.len() < pipe.capacity());
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(pipe.len() % piece.len(), 0);
    assert!(pipe.len() < pipe.capacity(), "small pieces fill slots, not bytes");
    let mut rest = [0; 1000];
    assert_eq!(far.read(&mut rest).unwrap(), piece.len(), "what found no room is still in the socket");
}

#[test]
fn pipe_full_of_bytes_says_so() {
    let (mut near, far) = tcp_pair(LOOPBACKS[0]);
    near.set_nonblocking(false).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            // Ends with an error when the reader is dropped below.
            while near.write_all(&[3; 65536]).is_ok() {}
        });
        let mut pipe = Pipe::take().unwrap();
        let error = loop {
            wait_readable(&far);
            if let Err(error) = splice_in(far.as_fd(), &mut pipe, usize::MAX) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(pipe.len() <= pipe.capacity());
        drop(far);
    });
}

#[test]
fn target_that_does_not_read_would_block_and_keeps_the_rest_in_the_pipe() {
    let (mut near, far) = tcp_pair(LOOPBACKS[0]);
    let (out, mut silent) = tcp_pair(LOOPBACKS[0]);
    near.set_nonblocking(false).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || while near.write_all(&[3; 65536]).is_ok() {});
        let mut pipe = Pipe::take().unwrap();
        let (mut read, mut written) = (0, 0);
        let error = loop {
            read += when_readable(&far, || splice_in(far.as_fd(), &mut pipe, usize::MAX)).unwrap();
            match splice_out(&mut pipe, out.as_fd(), true) {
                Ok(moved) => written += moved,
                Err(error) => break error,
            }
            while let Ok(moved @ 1..) = splice_out(&mut pipe, out.as_fd(), true) {
                written += moved;
            }
            if !pipe.is_empty() {
                break splice_out(&mut pipe, out.as_fd(), true).unwrap_err();
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert_eq!(pipe.len(), read - written);
        assert!(!pipe.is_empty());
        drop(far);
        // Whatever was spliced out is what the other end reads, and not a byte more.
        drop(out);
        let mut bytes = Vec::new();
        silent.set_nonblocking(false).unwrap();
        silent.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), written);
    });
}

#[test]
fn reset_is_an_error_and_spares_the_bytes_in_the_pipe() {
    let (mut near, far) = tcp_pair(LOOPBACKS[1]);
    let (out, mut target) = tcp_pair(LOOPBACKS[1]);
    let mut pipe = Pipe::take().unwrap();
    near.write_all(&[9; 1000]).unwrap();
    when_readable(&far, || splice_in(far.as_fd(), &mut pipe, 1000)).unwrap();
    set_linger_zero(near.as_fd()).unwrap();
    drop(near);
    let error = when_readable(&far, || splice_in(far.as_fd(), &mut pipe, 1000)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(pipe.len(), 1000);
    assert_eq!(splice_out(&mut pipe, out.as_fd(), false).unwrap(), 1000);
    drop(out);
    assert_eq!(read_to_end(&mut target), [9; 1000]);
}

#[test]
fn broken_target_is_an_error_and_leaves_the_bytes() {
    let (mut near, far) = tcp_pair(LOOPBACKS[0]);
    let (out, target) = tcp_pair(LOOPBACKS[0]);
    let mut pipe = Pipe::take().unwrap();
    near.write_all(&[9; 1000]).unwrap();
    when_readable(&far, || splice_in(far.as_fd(), &mut pipe, 1000)).unwrap();
    set_linger_zero(target.as_fd()).unwrap();
    drop(target);
    wait_readable(&out);
    let error = splice_out(&mut pipe, out.as_fd(), false).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
    assert_eq!(pipe.len(), 1000);
}

/// Tests share the process, and one's [`trim`] must not empty the pool another one counts.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    let guard = lock(&ALONE);
    trim();
    guard
}

#[test]
fn empty_pipe_is_taken_again() {
    let _alone = alone();
    let first = Pipe::take().unwrap();
    assert_eq!(first.capacity(), sys::pipe_size(first.ends().write.as_fd()).unwrap());
    let descriptor = format!("{:?}", first.ends().read);
    drop(first);
    assert_eq!(pooled(), 1);
    let again = Pipe::take().unwrap();
    assert_eq!(format!("{:?}", again.ends().read), descriptor);
    assert_eq!(pooled(), 0);
}

#[test]
fn pipe_with_bytes_inside_is_never_taken_again() {
    let _alone = alone();
    let (mut near, far) = tcp_pair(LOOPBACKS[0]);
    let mut pipe = Pipe::take().unwrap();
    near.write_all(b"secret").unwrap();
    when_readable(&far, || splice_in(far.as_fd(), &mut pipe, 1000)).unwrap();
    drop(pipe);
    assert_eq!(pooled(), 0);
}

#[test]
fn pool_is_bounded_and_trim_empties_it() {
    let _alone = alone();
    let pipes: Vec<Pipe> = (0..POOL + 4).map(|_| Pipe::take().unwrap()).collect();
    drop(pipes);
    assert_eq!(pooled(), POOL);
    trim();
    assert_eq!(pooled(), 0);
}

fn pooled() -> usize {
    MINE.with(|mine| lock(&mine.0).len())
}

#[test]
fn trim_reaches_the_pool_of_a_thread_that_waits() {
    let _alone = alone();
    let (filled, trimmed) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(Pipe::take().unwrap());
            let before = pooled();
            filled.wait();
            trimmed.wait();
            assert_eq!((before, pooled()), (1, 0));
        });
        filled.wait();
        trim();
        trimmed.wait();
    });
}
