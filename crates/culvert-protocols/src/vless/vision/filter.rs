//! What the inner connection is, told by its first packets in both directions.

use culvert_core::Half;
use culvert_wire::BufChain;

/// Packets that are looked at.
const PACKETS: u8 = 8;
/// Most of a record with a `ServerHello` that is looked at. The longest one, with a key exchange for the days of quantum
/// computers, has a third of that.
const MAX_HELLO: usize = 4096;

/// `supported_versions` with TLS 1.3 chosen.
const TLS_13: [u8; 6] = [0, 0x2b, 0, 2, 3, 4];

const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;

/// The watcher of one connection.
#[derive(Debug)]
pub struct Filter {
    /// Packets that are still looked at.
    left: u8,
    is_tls: bool,
    has_answer: bool,
    is_tls13: bool,
    /// A `ServerHello` that has not come in whole: the direction it comes from, and how long its record is.
    hello: Option<(Half, usize, Vec<u8>)>,
}

impl Default for Filter {
    fn default() -> Self {
        Self { left: PACKETS, is_tls: false, has_answer: false, is_tls13: false, hello: None }
    }
}

impl Filter {
    /// Looks at a packet that passes in this direction.
    pub fn see(&mut self, half: Half, packet: &BufChain) {
        if self.left == 0 || packet.is_empty() {
            return;
        }
        self.left -= 1;
        if let Some((from, len, mut start)) = self.hello.take() {
            if from == half {
                self.collect(half, len, &mut start, packet);
            } else {
                self.hello = Some((from, len, start));
            }
        } else {
            let mut head = [0; 6];
            if packet.peek(&mut head) < head.len() {
                return;
            }
            match head {
                [0x16, 3, 3, high, low, SERVER_HELLO] => {
                    (self.is_tls, self.has_answer) = (true, true);
                    let len = 5 + usize::from(u16::from_be_bytes([high, low]));
                    self.collect(half, len, &mut Vec::new(), packet);
                }
                [0x16, 3, _, _, _, CLIENT_HELLO] => self.is_tls = true,
                _ => {}
            }
        }
    }

    /// Whether there is TLS inside, as far as is known.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Whether TLS 1.3 with a usual cipher is inside.
    #[must_use]
    pub fn is_tls13(&self) -> bool {
        self.is_tls13
    }

    /// Whether nothing more will be found out.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.left == 0
    }

    /// Whether this is the last packet, or there were more, and no server has answered as one of TLS.
    #[must_use]
    pub fn gives_up(&self) -> bool {
        !self.has_answer && self.left <= 1
    }

    fn collect(&mut self, half: Half, len: usize, start: &mut Vec<u8>, packet: &BufChain) {
        let wanted = len.min(MAX_HELLO);
        let had = start.len();
        start.resize(had + packet.len().min(wanted - had), 0);
        packet.peek(&mut start[had..]);
        if start.len() < wanted {
            self.hello = Some((half, len, std::mem::take(start)));
            return;
        }
        self.is_tls13 =
            start.windows(TLS_13.len()).any(|window| window == TLS_13) && cipher(start).is_some_and(is_usual);
        self.left = 0;
    }
}

/// The cipher suite of a `ServerHello` inside its record.
fn cipher(record: &[u8]) -> Option<u16> {
    let session_id = usize::from(*record.get(43)?);
    record.get(44 + session_id..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// AES-GCM, `ChaCha20`, AES-CCM; not the one with a short tag.
fn is_usual(cipher: u16) -> bool {
    (0x1301..=0x1304).contains(&cipher)
}
