//! Commands, from bytes and to bytes, and the proof of who a client is.

use culvert_wire::{AddressCodec, DecodeError, Reader, Target};

/// The first byte of every command.
pub const VERSION: u8 = 5;
/// Bytes of a user's id.
pub const ID_LEN: usize = 16;
/// Bytes of the proof.
pub const TOKEN_LEN: usize = 32;
/// Longest command, payload not counted: a packet's with the longest name.
pub const MAX_COMMAND: usize = PACKET_HEAD + 1 + 1 + 255 + 2;
/// Bytes of a packet's command before the address.
pub const PACKET_HEAD: usize = 10;

const AUTHENTICATE: u8 = 0;
const CONNECT: u8 = 1;
const PACKET: u8 = 2;
const DISSOCIATE: u8 = 3;
const HEARTBEAT: u8 = 4;
/// In the place of an address: there is none.
const NONE: u8 = 0xff;

/// What stands at the beginning of a stream or a datagram.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Command {
    /// Who the client is; the token proves that it knows the password, in this very connection.
    Authenticate {
        /// The user's id.
        id: [u8; ID_LEN],
        /// The proof.
        token: [u8; TOKEN_LEN],
    },
    /// The stream is to go to this target.
    Connect(Target),
    /// A datagram or a part of one, which follows.
    Packet(PacketHead),
    /// An association has ended.
    Dissociate(u16),
    /// A sign of life.
    Heartbeat,
}

/// What is said of a datagram, or of a part of one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PacketHead {
    /// The association.
    pub association: u16,
    /// The datagram's number in it.
    pub id: u16,
    /// In how many parts it comes.
    pub total: u8,
    /// Which of them this is, from 0.
    pub index: u8,
    /// Bytes of this part.
    pub len: u16,
    /// Where it goes, or comes from; only with the first part.
    pub peer: Option<Target>,
}

impl Command {
    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.expect(&[VERSION], "version")?;
        match r.u8()? {
            AUTHENTICATE => Ok(Self::Authenticate { id: r.array()?, token: r.array()? }),
            CONNECT => {
                let target = decode_address(r)?;
                target.map(Self::Connect).ok_or(DecodeError::Invalid("target"))
            }
            PACKET => {
                let (association, id, total, index) = (r.u16()?, r.u16()?, r.u8()?, r.u8()?);
                let (len, peer) = (r.u16()?, decode_address(r)?);
                Ok(Self::Packet(PacketHead { association, id, total, index, len, peer }))
            }
            DISSOCIATE => Ok(Self::Dissociate(r.u16()?)),
            HEARTBEAT => Ok(Self::Heartbeat),
            _ => Err(DecodeError::Invalid("command")),
        }
    }

    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        match self {
            Self::Authenticate { id, token } => {
                out.push(AUTHENTICATE);
                out.extend(id);
                out.extend(token);
            }
            Self::Connect(target) => {
                out.push(CONNECT);
                AddressCodec::TUIC.encode(target, out);
            }
            Self::Packet(head) => {
                out.push(PACKET);
                out.extend(head.association.to_be_bytes());
                out.extend(head.id.to_be_bytes());
                out.extend([head.total, head.index]);
                out.extend(head.len.to_be_bytes());
                match &head.peer {
                    Some(peer) => AddressCodec::TUIC.encode(peer, out),
                    None => out.push(NONE),
                }
            }
            Self::Dissociate(association) => {
                out.push(DISSOCIATE);
                out.extend(association.to_be_bytes());
            }
            Self::Heartbeat => out.push(HEARTBEAT),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }
}

fn decode_address(r: &mut Reader<'_>) -> Result<Option<Target>, DecodeError> {
    if r.rest().first() == Some(&NONE) {
        r.u8()?;
        return Ok(None);
    }
    AddressCodec::TUIC.decode(r).map(Some)
}

/// Fed with random bytes: what decodes encodes to the same meaning.
pub fn fuzz_command(bytes: &[u8]) {
    if let Ok(command) = Command::decode(&mut Reader::new(bytes)) {
        let out = command.bytes();
        assert!(out.len() <= MAX_COMMAND);
        assert_eq!(Command::decode(&mut Reader::new(&out)), Ok(command));
    }
}

#[cfg(test)]
mod tests {
    use culvert_wire::Host;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn target(host: &str, port: u16) -> Target {
        Target { host: Host::parse(host).unwrap(), port }
    }

    /// Commands with their bytes; vectors of the sheet, payload not included.
    fn vectors() -> Vec<(Command, Vec<u8>)> {
        let token = hex("1a1f9e90eefaac3f2711f2a5430d2f9cd8b252dc3c7b34efeb8f51c16dde9b38");
        let id = hex("b831381d63244d53ad4f8cda48b30811");
        let packet = |id, total, index, len, peer| {
            Command::Packet(PacketHead { association: 1, id, total, index, len, peer })
        };
        let dns = || Some(target("127.0.0.1", 53));
        vec![
            (
                Command::Authenticate { id: id.try_into().unwrap(), token: token.try_into().unwrap() },
                hex(
                    "0500b831381d63244d53ad4f8cda48b308111a1f9e90eefaac3f2711f2a5430d2f9cd8b252dc3c7b34efeb8f51c16dde9b38",
                ),
            ),
            (Command::Connect(target("example.com", 443)), hex("0501000b6578616d706c652e636f6d01bb")),
            (
                Command::Connect(target("2001:db8::1", 8443)),
                hex("05010220010db800000000000000000000000120fb"),
            ),
            (packet(7, 1, 0, 5, dns()), hex("05020001000701000005017f0000010035")),
            (packet(8, 2, 0, 6, dns()), hex("05020001000802000006017f0000010035")),
            (packet(8, 2, 1, 4, None), hex("05020001000802010004ff")),
            (Command::Dissociate(1), hex("05030001")),
            (Command::Heartbeat, hex("0504")),
        ]
    }

    #[test]
    fn commands_are_those_of_the_vectors() {
        for (command, bytes) in vectors() {
            assert_eq!(command.bytes(), bytes);
            let mut reader = Reader::new(&bytes);
            assert_eq!(Command::decode(&mut reader), Ok(command));
            assert_eq!(reader.position(), bytes.len());
        }
    }

    #[test]
    fn a_command_that_is_cut_short_is_waited_for() {
        for (_, bytes) in vectors() {
            for cut in 0..bytes.len() {
                let read = Command::decode(&mut Reader::new(&bytes[..cut]));
                assert_eq!(read, Err(DecodeError::Incomplete), "{cut} of {bytes:?}");
            }
        }
    }

    #[test]
    fn what_is_no_command_is_refused() {
        for bytes in [&b"\x04\x04"[..], b"\x05\x05", b"\x05\xff", b"\x05\x01\x07", b"\x05\x01\xff", b"G"] {
            assert!(matches!(Command::decode(&mut Reader::new(bytes)), Err(DecodeError::Invalid(_))));
            fuzz_command(bytes);
        }
        assert!(Command::decode(&mut Reader::new(b"\x05\x01\x00\x00\x00\x50")).is_err(), "an empty name");
    }
}
