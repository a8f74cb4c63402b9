//! The smallest possible relays, as programs of their own: what is left of a proxy core when only the kernel and the
//! cipher work.
//!
//! They take a configuration of one `direct` inbound (`culvert-bench relay splice run -c FILE`), so that they run and are
//! measured exactly as the programs are. Each direction of a connection has a thread that blocks.
//!
//! Two of them make a tunnel for rows with an encrypted protocol: [`Mode::Seal`] stands for the client, [`Mode::Open`] for the
//! server. What they say is no protocol (the key is known, there is no handshake), but costs what any must: a system call for
//! many records, and one pass of the cipher in place.
//!
//! ```text
//! +---------+-----------------+---------+
//! | len u16 | sealed, len     | tag 16  |   up to 16,384 bytes a record, the nonce counts records
//! +---------+-----------------+---------+
//! ```

use std::fs;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use culvert_os::splice::{Pipe, splice_in, splice_out};
use serde_json::Value;

use crate::failure::Failure;
use crate::programs::{Kind, Program};
use crate::protocols::Floor;

const COPY: usize = 256 * 1024;
const STACK: usize = 128 * 1024;

const RECORD: usize = 16 * 1024;
const LENGTH: usize = 2;
const TAG: usize = 16;
/// A record with what stands around it.
const FRAME: usize = LENGTH + RECORD + TAG;
/// Records of one system call.
const RECORDS: usize = COPY / RECORD;

/// How bytes get from one socket to the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// In the kernel, through a pipe.
    Splice,
    /// Read and written, 256 KiB at a time.
    Copy,
    /// Sealed towards the server, opened towards the client.
    Seal,
    /// Opened towards the server, sealed towards the client.
    Open,
}

/// What seals.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Cipher {
    Aes128Gcm,
    Aes192Gcm,
    Aes256Gcm,
    Chacha20Poly1305,
}

impl Cipher {
    fn word(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes128-gcm",
            Self::Aes192Gcm => "aes192-gcm",
            Self::Aes256Gcm => "aes256-gcm",
            Self::Chacha20Poly1305 => "chacha20-poly1305",
        }
    }

    fn key(self) -> io::Result<LessSafeKey> {
        let algorithm = match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::Aes192Gcm => &AES_192_GCM,
            Self::Aes256Gcm => &AES_256_GCM,
            Self::Chacha20Poly1305 => &CHACHA20_POLY1305,
        };
        let key = UnboundKey::new(algorithm, &[7; 32][..algorithm.key_len()]);
        key.map(LessSafeKey::new).map_err(|_| io::Error::other("the cipher refuses its key"))
    }
}

/// A relay of this program's own, and its part in rows of each kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reference {
    Splice,
    Copy,
    /// Two relays with a cipher between them.
    Cipher,
}

impl Reference {
    pub(crate) const ALL: [Self; 3] = [Self::Splice, Self::Copy, Self::Cipher];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Splice => "floor: splice relay",
            Self::Copy => "floor: copy relay",
            Self::Cipher => "floor: cipher relays",
        }
    }

    /// Whether it shows anything about rows with this floor.
    pub(crate) fn fits(self, floor: Floor) -> bool {
        match floor {
            Floor::Kernel => self != Self::Cipher,
            Floor::Cipher(_) => self == Self::Cipher,
            Floor::Unknown => false,
        }
    }

    /// This very executable as the client and the server of a row with this floor.
    pub(crate) fn programs(self, floor: Floor) -> Result<[Program; 2], Failure> {
        let (modes, cipher) = match (self, floor) {
            (Self::Cipher, Floor::Cipher(cipher)) => (["seal", "open"], cipher),
            (Self::Copy, _) => (["copy", "copy"], Cipher::Aes128Gcm),
            _ => (["splice", "splice"], Cipher::Aes128Gcm),
        };
        let path = std::env::current_exe().map_err(Failure::io("cannot find this program"))?;
        Ok(modes.map(|mode| Program {
            name: self.title().to_owned(),
            path: path.clone(),
            kind: Kind::SingBox,
            server: None,
            arguments: ["relay", "--cipher", cipher.word(), mode].map(str::to_owned).to_vec(),
            version: env!("CARGO_PKG_VERSION").into(),
        }))
    }
}

/// Relays until it is killed.
pub(crate) fn run(mode: Mode, cipher: Cipher, config: &Path) -> Result<(), Failure> {
    let text = fs::read_to_string(config).map_err(Failure::file("cannot read", config))?;
    let (listen, target) = ports(&text)
        .ok_or_else(|| Failure::Usage(format!("{}: no direct inbound with an override", config.display())))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, listen)).map_err(Failure::io("cannot listen"))?;
    loop {
        let connection = listener.accept().and_then(|(client, _)| {
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target))?;
            relay(mode, cipher, &client, &server)
        });
        connection.map_err(Failure::io("cannot relay"))?;
    }
}

fn ports(config: &str) -> Option<(u16, u16)> {
    let config: Value = serde_json::from_str(config).ok()?;
    let inbound = &config["inbounds"][0];
    let port = |key: &str| u16::try_from(inbound[key].as_u64()?).ok();
    Some((port("listen_port")?, port("override_port")?))
}

fn relay(mode: Mode, cipher: Cipher, client: &TcpStream, server: &TcpStream) -> io::Result<()> {
    for (from, to, up) in [(client, server, true), (server, client, false)] {
        from.set_nodelay(true)?;
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let work = move || {
            // A broken connection ends this direction, and by the shutdown the other.
            let _ = match mode {
                Mode::Splice => splice(&from, &to),
                Mode::Copy => copy(&from, &to),
                Mode::Seal | Mode::Open if up == (mode == Mode::Seal) => seal(cipher, &from, &to),
                Mode::Seal | Mode::Open => open(cipher, &from, &to),
            };
            let _ = to.shutdown(Shutdown::Write);
            let _ = from.shutdown(Shutdown::Read);
        };
        thread::Builder::new().stack_size(STACK).spawn(work)?;
    }
    Ok(())
}

fn splice(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let mut pipe = Pipe::take()?;
    while splice_in(from.as_fd(), &mut pipe, usize::MAX >> 1)? > 0 {
        while !pipe.is_empty() {
            splice_out(&mut pipe, to.as_fd(), false)?;
        }
    }
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; COPY];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count])?;
    }
}

/// Nonces from record numbers.
#[derive(Default)]
struct Counter(u64);

impl Counter {
    fn next(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.0.to_be_bytes());
        self.0 += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Reads straight into the places of payload and seals there.
fn seal(cipher: Cipher, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let (key, mut counter) = (cipher.key()?, Counter::default());
    let mut buffer = vec![0; RECORDS * FRAME];
    loop {
        let mut places: Vec<_> =
            buffer.chunks_mut(FRAME).map(|frame| IoSliceMut::new(&mut frame[LENGTH..][..RECORD])).collect();
        let count = from.read_vectored(&mut places)?;
        if count == 0 {
            return Ok(());
        }
        let mut end = 0;
        for (number, frame) in buffer.chunks_mut(FRAME).take(count.div_ceil(RECORD)).enumerate() {
            let len = RECORD.min(count - number * RECORD);
            frame[..LENGTH].copy_from_slice(&(len as u16).to_be_bytes());
            let (payload, rest) = frame[LENGTH..].split_at_mut(len);
            let tag = key.seal_in_place_separate_tag(counter.next(), Aad::empty(), payload);
            rest[..TAG].copy_from_slice(tag.map_err(|_| io::Error::other("cannot seal"))?.as_ref());
            end = number * FRAME + LENGTH + len + TAG;
        }
        to.write_all(&buffer[..end])?;
    }
}

/// Opens records where they lie and writes what was in them from there.
fn open(cipher: Cipher, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let (key, mut counter) = (cipher.key()?, Counter::default());
    let mut buffer = vec![0; RECORDS * FRAME];
    let mut filled = 0;
    loop {
        let count = from.read(&mut buffer[filled..])?;
        if count == 0 {
            return Ok(());
        }
        filled += count;
        let mut opened: Vec<&[u8]> = Vec::with_capacity(RECORDS);
        let (mut rest, mut used) = (&mut buffer[..filled], 0);
        while rest.len() >= LENGTH {
            let frame = LENGTH + usize::from(u16::from_be_bytes([rest[0], rest[1]])) + TAG;
            if rest.len() < frame {
                break;
            }
            let (record, later) = rest.split_at_mut(frame);
            let payload = key.open_in_place(counter.next(), Aad::empty(), &mut record[LENGTH..]);
            opened.push(payload.map_err(|_| io::Error::other("cannot open"))?);
            (rest, used) = (later, used + frame);
        }
        let mut slices: Vec<_> = opened.iter().map(|payload| IoSlice::new(payload)).collect();
        let mut slices = &mut slices[..];
        while !slices.is_empty() {
            let written = to.write_vectored(slices)?;
            IoSlice::advance_slices(&mut slices, written);
        }
        buffer.copy_within(used..filled, 0);
        filled -= used;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{Seeds, exchange};

    #[test]
    fn ports_of_a_direct_inbound() {
        let config = r#"{"inbounds": [{"type": "direct", "listen_port": 1, "override_port": 2}]}"#;
        assert_eq!(ports(config), Some((1, 2)));
        assert_eq!(ports(r#"{"inbounds": [{"type": "socks", "listen_port": 1}]}"#), None);
    }

    #[test]
    fn relays_carry_bytes_both_ways_alone_and_in_pairs() {
        for (mode, next) in [(Mode::Splice, None), (Mode::Copy, None), (Mode::Seal, Some(Mode::Open))] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let pair = || (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
            let ((client, near), (mut far, mut server)) = (pair(), pair());
            relay(mode, Cipher::Chacha20Poly1305, &near, &far).unwrap();
            if let Some(next) = next {
                let between = server;
                (far, server) = pair();
                relay(next, Cipher::Chacha20Poly1305, &between, &far).unwrap();
            }
            let target = thread::spawn(move || exchange(&server, Seeds::of_target(1), 3_000_000));
            assert_eq!(exchange(&client, Seeds::of_client(1), 3_000_000), Ok(()), "{mode:?}");
            assert_eq!(target.join().unwrap(), Ok(()), "{mode:?}");
        }
    }

    #[test]
    fn every_cipher_has_a_key() {
        for cipher in <Cipher as clap::ValueEnum>::value_variants() {
            assert!(cipher.key().is_ok(), "{cipher:?}");
            assert_eq!(<Cipher as clap::ValueEnum>::from_str(cipher.word(), false), Ok(*cipher));
        }
    }
}
