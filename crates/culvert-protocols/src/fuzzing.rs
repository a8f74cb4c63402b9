//! Feeds every decoder of the [table](crate::table) with known messages, changed in the ways in which faults show: lengths
//! that lie, pieces cut out, doubled, or put together with others.
//!
//! In CI it runs for a moment, always with the same changes. By hand it runs as long as it is told, with others each time:
//!
//! ```sh
//! CULVERT_FUZZ_SECONDS=600 cargo test -p culvert-protocols fuzzing -- --nocapture
//! ```
//!
//! What makes a decoder panic is printed; it belongs into `corpus.txt`, which is where all of this begins.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant, SystemTime};

use crate::table::TABLE;

/// Messages for each decoder where no time is set.
const BRIEFLY: usize = 400;
/// Longest message that is made.
const LONGEST: usize = 8 << 10;

/// Numbers at which lengths and kinds are read wrong, if they are.
const EDGES: [u32; 14] =
    [0, 1, 2, 0x7f, 0x80, 0xff, 0x100, 0x3fff, 0x4000, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0xffff_ffff];

/// Numbers that look random and come again with the same seed (xorshift).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Below `end`, which is not zero.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A piece of something so long.
    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len + 1);
        start..start + self.below(len - start + 1).min(64)
    }
}

fn corpus() -> Vec<(&'static str, Vec<u8>)> {
    let lines = include_str!("../corpus.txt").lines().filter(|line| !line.starts_with('#'));
    let message = |line: &'static str| {
        let (name, digits) = line.split_once(' ').expect("a name and bytes");
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
        (name, (0..digits.len()).step_by(2).map(byte).collect())
    };
    lines.map(message).collect()
}

/// A message with some changes, some of them by `other`.
fn changed(dice: &mut Dice, message: &[u8], other: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    for _ in 0..=dice.below(6) {
        let len = message.len();
        match dice.below(9) {
            0 => message.truncate(dice.below(len + 1)),
            1 if len > 0 => message[dice.below(len)] ^= 1 << dice.below(8),
            2 if len > 0 => message[dice.below(len)] = EDGES[dice.below(EDGES.len())] as u8,
            3 => {
                let edge = EDGES[dice.below(EDGES.len())].wrapping_add(dice.below(3) as u32).to_be_bytes();
                let width = 1 << dice.below(3);
                let at = dice.below(len + 1);
                let end = (at + width).min(len);
                message[at..end].copy_from_slice(&edge[4 - width..][..end - at]);
            }
            4 => drop(message.drain(dice.range(len))),
            5 => {
                let piece = message[dice.range(len)].to_vec();
                let at = dice.below(len + 1);
                message.splice(at..at, piece);
            }
            6 => {
                let piece = other[dice.range(other.len())].to_vec();
                let range = dice.range(len);
                message.splice(range, piece);
            }
            7 => message.extend_from_slice(other),
            _ => {
                let noise: Vec<u8> = (0..dice.below(24)).map(|_| dice.next() as u8).collect();
                let range = dice.range(len);
                message.splice(range, noise);
            }
        }
    }
    message.truncate(LONGEST);
    message
}

#[test]
#[allow(clippy::print_stderr, reason = "what was found is told there")]
fn changed_messages_keep_the_promises_of_every_decoder() {
    let seconds = std::env::var("CULVERT_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let mut dice = Dice(until.map_or(0x9e37_79b9_7f4a_7c15, |_| now.as_nanos() as u64 | 1));
    let corpus = corpus();
    let mut count = 0u64;
    loop {
        for protocol in TABLE {
            let own: Vec<_> = corpus.iter().filter(|(name, _)| *name == protocol.name).collect();
            for fuzz in protocol.fuzz {
                for _ in 0..BRIEFLY {
                    let (_, other) = &corpus[dice.below(corpus.len())];
                    let message = match own.len() {
                        0 => other,
                        len => &own[dice.below(len)].1,
                    };
                    let message = changed(&mut dice, message, other);
                    count += 1;
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| fuzz(&message))) {
                        let digits: String = message.iter().map(|byte| format!("{byte:02x}")).collect();
                        eprintln!("a decoder of {} fails with\n{} {digits}", protocol.name, protocol.name);
                        resume_unwind(panic);
                    }
                }
            }
        }
        if until.is_none_or(|until| Instant::now() >= until) {
            break;
        }
    }
    eprintln!("{count} messages");
}

#[test]
fn every_protocol_with_a_line_in_the_corpus_is_in_the_table() {
    for (name, _) in corpus() {
        assert!(TABLE.iter().any(|protocol| protocol.name == name && !protocol.fuzz.is_empty()), "{name}");
    }
}
