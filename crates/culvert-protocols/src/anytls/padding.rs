//! Padding schemes: how the first packets of a client are cut and filled up.
//!
//! ```text
//! stop=8                     packets from the eighth on go as they are
//! 0=30-30                    zeros behind the login: from 30 to 30
//! 2=400-500,c,500-1000       the second packet: a record of 400 to 500 bytes, another of 500 to 1000 if something is left
//! ```
//!
//! A packet is what the client writes at once: the login is packet 0. A size is that of a record's plaintext.

use culvert_wire::BufChain;
use md5::{Digest, Md5};

use super::codec::{Command, HEAD, Head, MAX_DATA};
use crate::random::below;

/// What is used where nothing else was asked for (sing-anytls 0.0.11).
pub const DEFAULT: &str = "stop=8\n0=30-30\n1=100-400\n2=400-500,c,500-1000,c,500-1000,c,500-1000,c,500-1000\n\
    3=9-9,500-1000\n4=500-1000\n5=500-1000\n6=500-1000\n7=500-1000";

/// Most bytes of one record that a scheme can ask for: a frame of padding takes no more.
const MAX_SIZE: u32 = MAX_DATA as u32;

/// Most parts of a line that count; a packet of ours is not to become thousands.
const MAX_PARTS: usize = 256;

/// A padding scheme.
#[derive(Debug)]
pub struct Scheme {
    text: String,
    md5: String,
    stop: u32,
}

/// One part of a line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    /// The end, if nothing is left to send.
    Check,
    /// A record of so many bytes.
    Size(usize),
}

impl Scheme {
    /// The scheme in `text`; `None` if it does not say where it stops.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let stop = line(text, "stop")?.trim().parse::<i32>().ok()?;
        let md5 = Md5::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Self { text: text.to_owned(), md5, stop: u32::try_from(stop).unwrap_or(0) })
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it is known by: hexadecimal digits.
    #[must_use]
    pub fn md5(&self) -> &str {
        &self.md5
    }

    /// Whether packet number `packet` goes as it is, and all behind it.
    #[must_use]
    pub fn has_stopped(&self, packet: u32) -> bool {
        packet >= self.stop
    }

    /// How many zeros stand behind the login.
    #[must_use]
    pub fn login_padding(&self) -> u16 {
        let sizes = self.parts(0).into_iter().filter_map(|part| match part {
            Part::Size(size) => u16::try_from(size).ok(),
            Part::Check => None,
        });
        sizes.take(1).sum()
    }

    /// The records that packet number `packet` becomes.
    #[must_use]
    pub fn apply(&self, packet: u32, mut data: BufChain) -> Vec<BufChain> {
        let mut records = Vec::new();
        for part in self.parts(packet) {
            match part {
                Part::Check if data.is_empty() => return records,
                Part::Check => {}
                Part::Size(size) if data.len() > size => records.push(data.take_front(size)),
                Part::Size(size) => {
                    let fill =
                        if data.is_empty() { Some(size) } else { (size - data.len()).checked_sub(HEAD) };
                    if let Some(fill) = fill.filter(|fill| *fill > 0) {
                        data.append_copy(&waste(fill));
                    }
                    records.push(std::mem::take(&mut data));
                }
            }
        }
        if !data.is_empty() {
            records.push(data);
        }
        records
    }

    /// The parts of a line, with sizes drawn. A line that is missing has none.
    fn parts(&self, packet: u32) -> Vec<Part> {
        if self.has_stopped(packet) {
            return Vec::new();
        }
        let Some(line) = line(&self.text, &packet.to_string()) else { return Vec::new() };
        line.split(',').filter_map(part).take(MAX_PARTS).collect()
    }
}

/// The value of a line; of several with one key the last counts.
fn line<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    lines.filter(|(name, _)| *name == key).map(|(_, value)| value).next_back()
}

fn part(text: &str) -> Option<Part> {
    if text == "c" {
        return Some(Part::Check);
    }
    let (one, other) = text.split_once('-')?;
    let (one, other) = (one.trim().parse::<u32>().ok()?, other.trim().parse::<u32>().ok()?);
    let (least, most) = (one.min(other).min(MAX_SIZE), one.max(other).min(MAX_SIZE));
    // The upper bound itself is never drawn, unless both are the same.
    let size = if least == most { least } else { least + below(most - least) };
    (least > 0).then_some(Part::Size(size as usize))
}

/// A frame of `len` bytes of padding.
fn waste(len: usize) -> Vec<u8> {
    let len = len.min(MAX_DATA);
    let mut frame = Head { command: Command::Waste, stream: 0, len: len as u16 }.encode().to_vec();
    frame.resize(HEAD + len, 0);
    frame
}

/// Fed with random bytes: whatever a server makes the scheme, what is sent stays the same bytes with waste in between.
pub fn fuzz_scheme(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Some(scheme) = Scheme::parse(&text) else { return };
    assert!(usize::from(scheme.login_padding()) <= MAX_DATA);
    let mut data = Vec::new();
    super::codec::frame(Command::Push, 1, &[7; 700], &mut data);
    for packet in 0..4 {
        let records = scheme.apply(packet, BufChain::copied(&data));
        let sent: Vec<u8> = records.iter().flat_map(BufChain::to_vec).collect();
        assert!(sent.starts_with(&data));
        let mut frames = super::codec::Frames::default();
        frames.take_in(BufChain::copied(&sent[data.len()..]));
        assert!(frames.next_frame().is_none() && frames.is_between());
    }
}
