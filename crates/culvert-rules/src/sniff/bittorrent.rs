//! BitTorrent: the peer protocol over TCP (BEP 3), uTP (BEP 29), trackers over UDP (BEP 15) and DHT (BEP 5).

use culvert_wire::{DecodeError, Reader};

use super::{Protocol, Sniffed};

/// Set by the protocol for the first message to a tracker.
const TRACKER_ID: u64 = 0x0417_2710_1980;

pub(super) fn sniff_stream(bytes: &[u8]) -> Result<Sniffed, DecodeError> {
    Reader::new(bytes).expect(b"\x13BitTorrent protocol", "BitTorrent handshake")?;
    Ok(Sniffed::new(Protocol::BitTorrent))
}

/// `type:4 version:4  extension:1  connection:2  timestamps:8  window:4  seq:2  ack:2`, then extensions
/// `next:1  length:1  data`.
pub(super) fn is_utp(packet: &[u8]) -> bool {
    let mut r = Reader::new(packet);
    let mut check = || -> Result<bool, DecodeError> {
        let header: [u8; 20] = r.array()?;
        if header[0] & 0x0f != 1 || header[0] >> 4 > 4 {
            return Ok(false);
        }
        let mut extension = header[1];
        while extension != 0 {
            extension = r.u8()?;
            if extension > 4 {
                return Ok(false);
            }
            let len = r.u8()?;
            // sing-box lets the last one run over the end.
            let len = usize::from(len).min(r.rest().len());
            r.take(len)?;
        }
        Ok(true)
    };
    check().unwrap_or(false)
}

/// `protocol:8  action:4 = connect  transaction:4`
pub(super) fn is_tracker(packet: &[u8]) -> bool {
    let mut r = Reader::new(packet);
    packet.len() >= 16 && r.u64() == Ok(TRACKER_ID) && r.u32() == Ok(0)
}

/// A bencoded dictionary with a transaction (`1:t`) and a kind (`1:y`) of query, response or error.
pub(super) fn is_dht(packet: &[u8]) -> bool {
    let starts = [&b"d1:ad2:id20:"[..], b"d1:rd2:id20:", b"d1:eli", b"d2:ip"];
    starts.iter().any(|start| packet.starts_with(start))
        && packet.ends_with(b"e")
        && memchr::memmem::find(packet, b"1:t").is_some()
        && [&b"1:y1:q"[..], b"1:y1:r", b"1:y1:e"]
            .iter()
            .any(|kind| memchr::memmem::find(packet, kind).is_some())
}
