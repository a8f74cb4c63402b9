//! What is queued for the store, written down before anybody is told: a program that is killed leaves it behind, and the next
//! start puts it where it belongs.
//!
//! ```text
//! | length 4 | sum 4 | number 8 | kind 1 | texts | …          length and sum (CRC-32) are of what follows them
//! a text: length 4 | bytes                                    (numbers little-endian)
//! ```
//!
//! The file stands beside the store, under its name with `.journal`. A record costs one `write(2)` and no wait for a disk:
//! the kernel keeps what was written when a program is killed. It is emptied when the store has all of it. Each record has
//! a number, and the store the last one it has, so that an old file never undoes anything.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use culvert_wire::Domain;

use crate::Write;
use crate::fake::FakeWrite;

/// Longest file that is read back: more than all fake addresses there can be.
const MOST: u64 = 64 << 20;

const TEXT: u8 = 0;
const KEEP: u8 = 1;
const RESET: u8 = 2;

pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    /// The number of the last record.
    number: u64,
    is_empty: bool,
}

impl Journal {
    /// Opens the file beside `store`, and reads what an earlier program has left in it.
    pub(crate) fn open(store: &Path) -> io::Result<(Self, Vec<(u64, Write)>)> {
        let mut path = store.as_os_str().to_owned();
        path.push(".journal");
        let path = PathBuf::from(path);
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
        let mut bytes = Vec::new();
        (&mut file).take(MOST).read_to_end(&mut bytes)?;
        let left = read(&bytes);
        let number = left.last().map_or(0, |(number, _)| *number);
        Ok((Self { file, path, number, is_empty: bytes.is_empty() }, left))
    }

    /// Goes on behind what the store has.
    pub(crate) fn go_on_from(&mut self, number: u64) {
        self.number = self.number.max(number);
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Writes a change down, unless it is of a kind that may be lost.
    pub(crate) fn note(&mut self, write: &Write) -> io::Result<()> {
        let Some(record) = record(self.number + 1, write) else { return Ok(()) };
        self.number += 1;
        self.is_empty = false;
        self.file.write_all(&record)
    }

    /// Forgets everything: the store has it.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        if !self.is_empty {
            self.file.set_len(0)?;
            self.is_empty = true;
        }
        Ok(())
    }

    /// The same, for good.
    pub(crate) fn remove(self) {
        if self.is_empty {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

fn record(number: u64, write: &Write) -> Option<Vec<u8>> {
    let ip;
    let (kind, texts): (u8, Vec<&str>) = match write {
        Write::Text { table, key, value } => (TEXT, vec![table, key, value]),
        Write::Fake(id, FakeWrite::Keep(address, name)) => {
            ip = address.to_string();
            (KEEP, vec![id, &ip, name.as_str()])
        }
        Write::Fake(id, FakeWrite::Reset([inet4, inet6])) => (RESET, vec![id, inet4, inet6]),
        Write::Bytes { .. } | Write::Remove { .. } => return None,
    };
    let mut body = number.to_le_bytes().to_vec();
    body.push(kind);
    for text in texts {
        body.extend((text.len() as u32).to_le_bytes());
        body.extend(text.as_bytes());
    }
    let mut record = (body.len() as u32).to_le_bytes().to_vec();
    record.extend(crc32fast::hash(&body).to_le_bytes());
    record.extend(body);
    Some(record)
}

/// All records up to the first one that is not whole.
fn read(mut bytes: &[u8]) -> Vec<(u64, Write)> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<8>() {
        let [a, b, c, d, sum @ ..] = *head;
        let Some((body, rest)) = rest.split_at_checked(u32::from_le_bytes([a, b, c, d]) as usize) else {
            break;
        };
        let sum_matches = crc32fast::hash(body) == u32::from_le_bytes(sum);
        let Some(record) = decode(body).filter(|_| sum_matches) else { break };
        found.push(record);
        bytes = rest;
    }
    found
}

fn decode(body: &[u8]) -> Option<(u64, Write)> {
    let (number, rest) = body.split_first_chunk()?;
    let (&kind, mut rest) = rest.split_first()?;
    let mut text = || {
        let (length, behind) = rest.split_first_chunk()?;
        let (text, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = behind;
        String::from_utf8(text.to_vec()).ok()
    };
    let [first, second, third] = [text()?, text()?, text()?];
    let write = match kind {
        TEXT => Write::Text { table: first, key: second, value: third },
        KEEP => Write::Fake(first, FakeWrite::Keep(second.parse().ok()?, Domain::new(&third).ok()?)),
        RESET => Write::Fake(first, FakeWrite::Reset([second, third])),
        _ => return None,
    };
    Some((u64::from_le_bytes(*number), write))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_up_to_the_first_that_is_not_whole() {
        let name = Domain::new("a.test").unwrap();
        let writes = [
            Write::Fake("id".into(), FakeWrite::Reset(["198.18.0.0/15".into(), String::new()])),
            Write::Fake("id".into(), FakeWrite::Keep("198.18.0.2".parse().unwrap(), name)),
            Write::Text { table: "selected/".into(), key: "g".into(), value: "a".into() },
        ];
        let records: Vec<_> =
            (5..).zip(&writes).map(|(number, write)| record(number, write).unwrap()).collect();
        let all = records.concat();
        let shown = |bytes: &[u8]| -> Vec<Vec<u8>> {
            read(bytes).iter().map(|(number, write)| record(*number, write).unwrap()).collect()
        };
        assert_eq!(shown(&all), records);
        let starts = [0, records[0].len(), records[0].len() + records[1].len(), all.len()];
        for cut in 0..all.len() {
            let whole = starts.iter().filter(|start| **start > 0 && **start <= cut).count();
            assert_eq!(shown(&all[..cut]), records[..whole], "cut at {cut}");
            let mut damaged = all.clone();
            damaged[cut] ^= 0x55;
            assert!(records.starts_with(&shown(&damaged)), "damaged at {cut}");
        }
    }
}
