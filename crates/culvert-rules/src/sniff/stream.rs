//! The sniffers for streams that are short enough to stand here, and the order of all.

use culvert_wire::{DecodeError, Reader};

use super::{Protocol, Sniffed, Sniffers, bittorrent, dns, http, tls};

pub(super) type Sniffer = fn(&[u8]) -> Result<Sniffed, DecodeError>;

/// In the order of sing-box.
pub(super) const SNIFFERS: [(Protocol, Sniffer); 6] = [
    (Protocol::Tls, tls::sniff),
    (Protocol::Http, http::sniff),
    (Protocol::Dns, dns::sniff_stream),
    (Protocol::BitTorrent, bittorrent::sniff_stream),
    (Protocol::Ssh, ssh),
    (Protocol::Rdp, rdp),
];

pub(super) const PROTOCOLS: Sniffers = {
    let (mut bits, mut at) = (0, 0);
    while at < SNIFFERS.len() {
        bits |= 1 << SNIFFERS[at].0 as u16;
        at += 1;
    }
    Sniffers(bits)
};

pub(super) const SSH_PREFIX: &[u8] = b"SSH-2.0-";
/// Longest identification line of SSH, RFC 4253 section 4.2.
const SSH_LINE: usize = 255;

/// `SSH-2.0-software comments`; the client is the rest of the line.
fn ssh(bytes: &[u8]) -> Result<Sniffed, DecodeError> {
    let mut r = Reader::new(bytes);
    r.expect(SSH_PREFIX, "SSH version")?;
    let line = r.until(b'\n', SSH_LINE - SSH_PREFIX.len(), "SSH identification")?;
    let software = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
    let client = (!software.is_empty()).then(|| software.into());
    Ok(Sniffed { client, ..Sniffed::new(Protocol::Ssh) })
}

/// An X.224 connection request in TPKT, with an RDP negotiation request and no cookie.
///
/// ```text
/// 03 00 0013 | 0e e0 dst:2 src:2 class | 01 flags 0008 protocols:4
/// ```
fn rdp(bytes: &[u8]) -> Result<Sniffed, DecodeError> {
    let mut r = Reader::new(bytes);
    r.expect(&[3, 0, 0, 19, 14, 0xe0], "RDP connection request")?;
    // Checked ahead of the references in between, which may be anything.
    r.take(5)?;
    r.expect(&[1], "RDP negotiation request")?;
    r.u8()?;
    r.expect(&[8], "RDP negotiation length")?;
    Ok(Sniffed::new(Protocol::Rdp))
}

/// Ports of mail protocols, where servers always speak first. sing-box does not sniff there at all: waiting for the
/// client would only delay the greeting.
pub fn server_speaks_first(port: u16) -> bool {
    matches!(port, 25 | 110 | 143 | 465 | 587 | 993 | 995)
}

/// Other ports where the server usually speaks first. A client here may well say something, so sniffing is not
/// pointless, but dialing ahead of its result saves the whole wait.
pub fn server_may_speak_first(port: u16) -> bool {
    server_speaks_first(port) || matches!(port, 21 | 22 | 119 | 2525 | 3306 | 4190 | 5900..=5909)
}

/// However the bytes are cut: a verdict once given stays, and giving all at once finds the same.
#[doc(hidden)]
pub fn fuzz_stream(data: &[u8]) {
    use super::{StreamSniffer, Verdict};

    let whole = StreamSniffer::new(Sniffers::ALL).sniff(data);
    let mut growing = StreamSniffer::new(Sniffers::ALL);
    let mut found = None;
    // Short inputs byte by byte, long ones in bounded work.
    for len in (0..=data.len()).step_by(data.len() / 64 + 1) {
        match growing.sniff(&data[..len]) {
            Verdict::NeedMore => assert!(found.is_none(), "undecided again after {found:?}"),
            verdict => {
                assert!(found.is_none() || found.as_ref() == Some(&verdict), "{verdict:?} after {found:?}");
                found = Some(verdict);
            }
        }
    }
    if let Some(found) = found {
        assert_eq!(found, whole, "pieces and the whole disagree");
    }
    let alone: Vec<Verdict> = SNIFFERS.iter().map(|(_, sniffer)| sniffer(data).into()).collect();
    if matches!(whole, Verdict::No) && data.len() < StreamSniffer::LIMIT {
        assert!(alone.iter().all(|verdict| *verdict == Verdict::No));
    }
}
