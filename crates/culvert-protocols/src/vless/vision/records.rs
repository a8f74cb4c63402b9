//! Where the records of an inner TLS connection end, in one direction.

use culvert_wire::BufChain;

const HEADER: usize = 5;
/// Most that is behind a header, in any version.
const MAX_BODY: usize = (16 << 10) + 2048;
const HANDSHAKE: u8 = 0x16;
const DATA: u8 = 0x17;

/// What was found in a packet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Found {
    /// Its first byte belongs to a record with data.
    pub begins_with_data: bool,
    /// Where the last record with data ends that ends in it.
    pub last_end: Option<usize>,
}

/// Follows the records of one direction, however they are cut.
#[derive(Debug, Default)]
pub struct Records {
    /// Somewhere a record began, and all that came since were records.
    synchronous: bool,
    header: [u8; HEADER],
    /// Bytes of the header that are there.
    have: usize,
    /// Bytes of the record that are still to come behind its header.
    rest: usize,
}

impl Records {
    /// Looks at the next packet.
    pub fn see(&mut self, packet: &BufChain) -> Found {
        if !self.synchronous {
            let mut head = [0; HEADER];
            let begins =
                packet.peek(&mut head) == HEADER && head[1] == 3 && matches!(head[0], HANDSHAKE | DATA);
            *self = Self { synchronous: begins, ..Self::default() };
        }
        let mut found = Found::default();
        let mut at = 0;
        for piece in packet.iter() {
            let mut bytes = &piece[..];
            while !bytes.is_empty() && self.synchronous {
                let count = self.take(bytes);
                if at == 0 {
                    found.begins_with_data = self.header[0] == DATA;
                }
                at += count;
                bytes = &bytes[count..];
                if self.have == HEADER && self.rest == 0 {
                    self.have = 0;
                    if self.header[0] == DATA {
                        found.last_end = Some(at);
                    }
                }
            }
        }
        if self.synchronous { found } else { Found::default() }
    }

    /// Takes bytes of the header, or bytes behind it. How many.
    fn take(&mut self, bytes: &[u8]) -> usize {
        if self.have < HEADER {
            let count = bytes.len().min(HEADER - self.have);
            self.header[self.have..self.have + count].copy_from_slice(&bytes[..count]);
            self.have += count;
            if self.have == HEADER {
                self.rest = u16::from_be_bytes([self.header[3], self.header[4]]).into();
                self.synchronous =
                    matches!(self.header[0], 0x14..=0x18) && self.header[1] == 3 && self.rest <= MAX_BODY;
            }
            return count;
        }
        let count = bytes.len().min(self.rest);
        self.rest -= count;
        count
    }
}
