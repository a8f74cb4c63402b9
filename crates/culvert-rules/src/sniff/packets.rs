//! The sniffers for packets that one look decides.

use super::{Protocol, bittorrent};

type Test = fn(&[u8]) -> bool;

/// In the order of sing-box, behind DNS and QUIC.
pub(super) const SNIFFERS: [(Protocol, Test); 6] = [
    (Protocol::Stun, is_stun),
    (Protocol::BitTorrent, bittorrent::is_utp),
    (Protocol::BitTorrent, bittorrent::is_tracker),
    (Protocol::Dtls, is_dtls),
    (Protocol::Ntp, is_ntp),
    (Protocol::BitTorrent, bittorrent::is_dht),
];

/// `type:2  length:2  cookie:4  transaction:12  attributes`, RFC 8489 section 5.
fn is_stun(packet: &[u8]) -> bool {
    let [_, _, a, b, 0x21, 0x12, 0xa4, 0x42, ..] = packet else { return false };
    packet.len() >= 20 + usize::from(u16::from_be_bytes([*a, *b]))
}

/// `type:1  version:2 = 1.0 or 1.2  epoch:2  sequence:6  length:2`, RFC 6347 section 4.1.
fn is_dtls(packet: &[u8]) -> bool {
    packet.len() >= 13 && matches!(packet, [20..=23 | 25, 0xfe, 0xff | 0xfd, ..])
}

/// A client's request of version 3 or 4 with plausible root delay and dispersion (at most 16 s), RFC 5905 section 7.3.
fn is_ntp(packet: &[u8]) -> bool {
    const SIXTEEN_SECONDS: u32 = 16 << 16;
    let [first, _, _, _, fields @ ..] = packet else { return false };
    let (version, mode) = (first >> 3 & 7, first & 7);
    let field = |at: usize| fields.get(at..at + 4).map(|it| u32::from_be_bytes([it[0], it[1], it[2], it[3]]));
    packet.len() >= 48
        && matches!(version, 3 | 4)
        && mode == 3
        && field(0).is_some_and(|delay| delay <= SIXTEEN_SECONDS)
        && field(4).is_some_and(|dispersion| dispersion <= SIXTEEN_SECONDS)
}

/// One packet gets one answer, of an enabled sniffer.
#[doc(hidden)]
pub fn fuzz_packets(data: &[u8]) {
    use super::{PacketSniffer, Sniffers, Verdict};

    let verdict = PacketSniffer::new(Sniffers::ALL).sniff(data);
    assert_eq!(PacketSniffer::new(Sniffers::ALL).sniff(data), verdict);
    assert_eq!(PacketSniffer::new(Sniffers::NONE).sniff(data), Verdict::No);
    if let Verdict::Match(sniffed) = &verdict {
        let only = PacketSniffer::new(Sniffers::of(&[sniffed.protocol])).sniff(data);
        assert_eq!(only, verdict);
    }
}
