//! Heads of frames, from bytes and to bytes.

use culvert_core::Network;
use culvert_wire::{AddressCodec, DecodeError, Reader, Target};

/// Longest meta part; longer ones are refused, as Xray refuses them.
const MAX_META: usize = 512;
/// Meta of a frame without an address.
const MIN_META: usize = 4;

/// Longest head of a frame, both lengths included.
pub const MAX_HEAD: usize = 2 + MAX_META + 2;

/// Head of a frame with data and without an address: both lengths, id, status, option.
pub const STREAM_HEAD: usize = 2 + MIN_META + 2;

/// Most data in one frame of a stream, which is as much as Xray and v2ray put into one.
pub const MAX_DATA: usize = 8 << 10;

const OPTION_DATA: u8 = 1;
const OPTION_ERROR: u8 = 2;

const NETWORK_TCP: u8 = 1;
const NETWORK_UDP: u8 = 2;

/// What a frame is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Status {
    /// Opens a session.
    New = 1,
    /// Goes on with it.
    Keep = 2,
    /// Ends it, both ways.
    End = 3,
    /// Shows that the carrier is alive.
    KeepAlive = 4,
}

/// All of a frame but its data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Head {
    /// Which session.
    pub id: u16,
    /// What for.
    pub status: Status,
    /// Something went wrong (of [`Status::End`]).
    pub error: bool,
    /// Where the session or the packet goes, or where the packet comes from. Of [`Status::New`] it is missing only if it
    /// was not to be understood: the length of the frame is known still, and the other sessions go on.
    pub peer: Option<(Network, Target)>,
    /// Length of the data that follows, where there is any.
    pub data: Option<u16>,
}

impl Head {
    /// The end of a session.
    #[must_use]
    pub fn end(id: u16, error: bool) -> Self {
        Self { id, status: Status::End, error, peer: None, data: None }
    }

    /// A frame with data for a session.
    #[must_use]
    pub fn keep(id: u16, data: u16) -> Self {
        Self { id, status: Status::Keep, error: false, peer: None, data: Some(data) }
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] if what follows could not be found, or the status is unknown.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let len = usize::from(r.u16()?);
        if !(MIN_META..=MAX_META).contains(&len) {
            return Err(DecodeError::Invalid("length of a multiplexed frame"));
        }
        let mut meta = Reader::new(r.take(len)?);
        let id = meta.u16()?;
        let status = match meta.u8()? {
            1 => Status::New,
            2 => Status::Keep,
            3 => Status::End,
            4 => Status::KeepAlive,
            _ => return Err(DecodeError::Invalid("status of a multiplexed frame")),
        };
        let option = meta.u8()?;
        let peer = match status {
            Status::New => decode_peer(&mut meta),
            Status::Keep => decode_peer(&mut meta).filter(|(network, _)| *network == Network::Udp),
            Status::End | Status::KeepAlive => None,
        };
        let data = if option & OPTION_DATA != 0 { Some(r.u16()?) } else { None };
        Ok(Self { id, status, error: option & OPTION_ERROR != 0, peer, data })
    }

    /// Writes it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let peer = self.peer.as_ref();
        let len = MIN_META + peer.map_or(0, |(_, target)| 1 + AddressCodec::VLESS.encoded_len(target));
        let option =
            if self.data.is_some() { OPTION_DATA } else { 0 } | if self.error { OPTION_ERROR } else { 0 };
        out.extend((len as u16).to_be_bytes()); // a name has at most 253 bytes
        out.extend(self.id.to_be_bytes());
        out.extend([self.status as u8, option]);
        if let Some((network, target)) = peer {
            out.push(match network {
                Network::Tcp => NETWORK_TCP,
                Network::Udp | Network::Icmp => NETWORK_UDP,
            });
            AddressCodec::VLESS.encode(target, out);
        }
        if let Some(data) = self.data {
            out.extend(data.to_be_bytes());
        }
    }
}

/// The peer in a meta part, if there is one that makes sense.
fn decode_peer(meta: &mut Reader<'_>) -> Option<(Network, Target)> {
    let network = match meta.u8().ok()? {
        NETWORK_TCP => Network::Tcp,
        NETWORK_UDP => Network::Udp,
        _ => return None,
    };
    AddressCodec::VLESS.decode(meta).ok().map(|target| (network, target))
}

/// Fed with random bytes: what decodes encodes to the same meaning.
pub fn fuzz_frame(bytes: &[u8]) {
    let mut r = Reader::new(bytes);
    if let Ok(head) = Head::decode(&mut r) {
        assert!(r.position() <= MAX_HEAD);
        let mut out = Vec::new();
        head.encode(&mut out);
        assert_eq!(Head::decode(&mut Reader::new(&out)), Ok(head));
    }
}
