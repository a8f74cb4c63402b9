//! Known byte patterns, and the exchange that checks them at both ends.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const CHUNK: usize = 64 * 1024;
/// What ends an exchange; no end of a pattern but by rare chance.
const DONE: [u8; 8] = *b"all done";
/// A stream that moves nothing for this long has stalled.
const STALL: Duration = Duration::from_secs(10);

/// An endless stream of bytes that no compression shortens and no repetition hides: word `i` is a mix of seed and `i`.
pub(crate) struct Pattern {
    seed: u64,
    words: u64,
}

impl Pattern {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed: mix(seed), words: 0 }
    }

    /// Fills `buffer` with what comes next. Its length is a multiple of 8 except in the last call.
    fn fill(&mut self, buffer: &mut [u8]) {
        for piece in buffer.chunks_mut(8) {
            let word = mix(self.seed.wrapping_add(self.words)).to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
            self.words += 1;
        }
    }
}

/// The finaliser of SplitMix64: every bit of the input changes half the bits of the output.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Bytes to send where nobody checks them.
pub(crate) fn noise(length: usize) -> Arc<[u8]> {
    let mut bytes = vec![0; length];
    Pattern::new(0).fill(&mut bytes);
    bytes.into()
}

/// What one end sends and what it expects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeds {
    send: u64,
    expect: u64,
}

impl Seeds {
    pub(crate) fn of_client(stream: u32) -> Self {
        let base = 2 * u64::from(stream);
        Self { send: base, expect: base + 1 }
    }

    pub(crate) fn of_target(stream: u32) -> Self {
        let client = Self::of_client(stream);
        Self { send: client.expect, expect: client.send }
    }
}

/// Sends `length` bytes and receives as many at the same time. Then each end says [`DONE`] and waits for the other's, so
/// that nothing is closed before all has arrived: many protocols cannot close one direction alone. The error says what
/// was wrong and where.
pub(crate) fn exchange(stream: &TcpStream, seeds: Seeds, length: u64) -> Result<(), String> {
    let timeouts = stream.set_read_timeout(Some(STALL)).and_then(|()| stream.set_write_timeout(Some(STALL)));
    timeouts.map_err(|error| error.to_string())?;
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(stream, seeds.send, length));
        let received = receive(stream, seeds.expect, length);
        let sent = sender.join().unwrap_or_else(|_| Err(io::Error::other("the sender panicked")));
        received.and(sent.map_err(|error| format!("sending: {error}")))
    })?;
    finish(stream, length)
}

fn send(mut stream: &TcpStream, seed: u64, length: u64) -> io::Result<()> {
    let mut pattern = Pattern::new(seed);
    let mut buffer = vec![0; CHUNK];
    let mut left = length;
    while left > 0 {
        let part = left.min(CHUNK as u64) as usize;
        pattern.fill(&mut buffer[..part]);
        stream.write_all(&buffer[..part])?;
        left -= part as u64;
    }
    Ok(())
}

fn receive(mut stream: &TcpStream, seed: u64, length: u64) -> Result<(), String> {
    let mut pattern = Pattern::new(seed);
    let (mut buffer, mut expected) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut done = 0;
    while done < length {
        let part = (length - done).min(CHUNK as u64) as usize;
        stream
            .read_exact(&mut buffer[..part])
            .map_err(|error| format!("after {done} of {length} bytes: {error}"))?;
        pattern.fill(&mut expected[..part]);
        if buffer[..part] != expected[..part] {
            let matching = buffer.iter().zip(&expected).take_while(|(got, want)| got == want).count();
            return Err(format!("wrong byte at {}", done + matching as u64));
        }
        done += part as u64;
    }
    Ok(())
}

fn finish(mut stream: &TcpStream, length: u64) -> Result<(), String> {
    let mut last = [0; DONE.len()];
    let outcome = stream.write_all(&DONE).and_then(|()| stream.read_exact(&mut last));
    outcome.map_err(|error| format!("after all {length} bytes: {error}"))?;
    if last == DONE { Ok(()) } else { Err(format!("other than {length} bytes arrived")) }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// Runs both ends and returns the client's and the target's verdict.
    fn run(length: u64, target_length: u64, target: Seeds) -> (Result<(), String>, Result<(), String>) {
        let (client, server) = pair();
        let target = thread::spawn(move || exchange(&server, target, target_length));
        let verdict = exchange(&client, Seeds::of_client(7), length);
        drop(client);
        (verdict, target.join().unwrap())
    }

    #[test]
    fn an_honest_exchange_passes() {
        assert_eq!(run(300_001, 300_001, Seeds::of_target(7)), (Ok(()), Ok(())));
        assert_eq!(run(0, 0, Seeds::of_target(7)), (Ok(()), Ok(())));
    }

    #[test]
    fn bytes_of_another_stream_are_noticed() {
        let (client, target) = run(1000, 1000, Seeds::of_target(8));
        assert_eq!(client, Err("wrong byte at 0".into()));
        assert_eq!(target, Err("wrong byte at 0".into()));
    }

    #[test]
    fn missing_and_surplus_bytes_are_noticed() {
        let (client, target) = run(1000, 900, Seeds::of_target(7));
        assert!(client.unwrap_err().starts_with("after 0 of 1000 bytes"));
        assert_eq!(target, Err("other than 900 bytes arrived".into()));
    }
}
