//! What a server does with each record while the handshake goes on.

use std::collections::VecDeque;

use aws_lc_rs::digest;
use culvert_wire::BufChain;
use subtle::ConstantTimeEq;

use super::codec::{
    CHANGE_CIPHER_SPEC, DATA, FIRST_TAG, HANDSHAKE, HEADER, Password, TAG, Tag, chooses_tls13, disguise,
    server_random,
};
use super::conn::Tags;

/// Data records of a client of version 2 without the tag, the end of its handshake among them, after which it is none.
const MAX_UNTAGGED: usize = 2;

/// Tags of version 2 that are remembered.
const TAGS: usize = 16;

/// What becomes of a record.
pub(super) enum Step {
    /// It is given on, maybe changed.
    Forward(Vec<u8>),
    /// It is given on, and from there on everything as it is.
    Relay(Vec<u8>),
    /// The handshake is over for us: this was the first payload, and so the records go on.
    Switch(Vec<u8>, Tags),
}

/// The handshake of version 1: each side is done with the record behind its change of ciphers.
#[derive(Default)]
pub(super) struct Plain {
    changed: bool,
    pub(super) done: bool,
}

impl Plain {
    /// Whether a record may pass.
    pub(super) fn passes(&mut self, record: &[u8]) -> bool {
        match record[0] {
            HANDSHAKE => self.done = self.changed,
            CHANGE_CIPHER_SPEC => self.changed = true,
            _ => return false,
        }
        true
    }
}

/// The handshake of version 2.
pub(super) struct Second {
    tag: Tag,
    /// The tags at the last places where the client may have stopped reading: ends of records, and of pieces. Tickets behind
    /// the handshake come in as many pieces as the network likes, and the client may have seen all or none of them.
    tags: VecDeque<[u8; FIRST_TAG]>,
    /// The header of a record, as far as it is there.
    header: Vec<u8>,
    /// Bytes that are still to come behind it.
    rest: usize,
    untagged: usize,
}

impl Second {
    pub(super) fn new(password: &Password) -> Self {
        let (tags, header) = (VecDeque::new(), Vec::new());
        Self { tag: password.tag(&[]), tags, header, rest: 0, untagged: 0 }
    }

    /// A piece, as it came, goes to the client.
    pub(super) fn server_says(&mut self, piece: &BufChain) {
        for bytes in piece.iter() {
            let mut bytes = &bytes[..];
            while !bytes.is_empty() {
                let wanted = if self.rest > 0 { self.rest } else { HEADER - self.header.len() };
                let (now, later) = bytes.split_at(bytes.len().min(wanted));
                self.tag.take(now);
                bytes = later;
                if self.rest > 0 {
                    self.rest -= now.len();
                } else {
                    self.header.extend_from_slice(now);
                    let [_, _, _, high, low] = self.header[..] else { continue };
                    self.rest = u16::from_be_bytes([high, low]).into();
                    self.header.clear();
                }
                if self.rest == 0 {
                    self.remember();
                }
            }
        }
        self.remember();
    }

    fn remember(&mut self) {
        self.tags.push_back(self.tag.now());
        if self.tags.len() > TAGS {
            self.tags.pop_front();
        }
    }

    /// A record of the client.
    pub(super) fn client_says(&mut self, record: Vec<u8>) -> Step {
        if record[0] != DATA {
            return Step::Forward(record);
        }
        if let Some((tag, payload)) = record[HEADER..].split_first_chunk::<FIRST_TAG>()
            && self.tags.iter().fold(0, |found, known| found | known.ct_eq(tag).unwrap_u8()) == 1
        {
            return Step::Switch(payload.to_vec(), Tags::First(None));
        }
        self.untagged += 1;
        if self.untagged > MAX_UNTAGGED { Step::Relay(record) } else { Step::Forward(record) }
    }
}

/// The handshake of version 3, with a client that has signed its hello.
pub(super) struct Third {
    password: Password,
    strict: bool,
    /// Once the server has said hello.
    known: Option<Known>,
}

struct Known {
    random: [u8; 32],
    mask: [u8; 32],
    tag: Tag,
}

impl Third {
    pub(super) fn new(password: Password, strict: bool) -> Self {
        Self { password, strict, known: None }
    }

    /// A record of the handshake server.
    pub(super) fn server_says(&mut self, record: Vec<u8>) -> Step {
        let Some(known) = &mut self.known else {
            let random = server_random(&record);
            let Some(random) = random.filter(|_| !self.strict || chooses_tls13(&record)) else {
                return Step::Relay(record);
            };
            let (mask, tag) = (self.password.mask(&random), self.password.tag(&[&random]));
            self.known = Some(Known { random, mask, tag });
            return Step::Forward(record);
        };
        let is_data = record[0] == DATA;
        Step::Forward(if is_data { disguise(&known.mask, &mut known.tag, &record) } else { record })
    }

    /// Whether the server has said hello.
    pub(super) fn has_begun(&self) -> bool {
        self.known.is_some()
    }

    /// A record of the client.
    pub(super) fn client_says(&self, record: Vec<u8>) -> Step {
        let Some(known) = self.known.as_ref().filter(|_| record[0] == DATA && record.len() > HEADER + TAG)
        else {
            return Step::Forward(record);
        };
        let mut read = self.password.tag(&[&known.random, b"C"]);
        if !read.open(&record[HEADER..]) {
            return Step::Forward(record);
        }
        let written = self.password.tag(&[&known.random, b"S"]);
        Step::Switch(record[HEADER + TAG..].to_vec(), Tags::Each { read, written })
    }
}

/// What is remembered of a hello: enough to know it again.
pub(super) fn fingerprint(hello: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, hello).as_ref());
    hash
}
