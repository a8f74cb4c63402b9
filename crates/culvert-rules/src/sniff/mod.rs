//! Sniffers: what protocol the first bytes of a connection speak, and for which host.
//!
//! Pure functions over bytes. A stream is asked again with all bytes so far whenever more have come; packets are given
//! one by one. The answers are those of sing-box 1.14.4 with these differences, all of them towards knowing sooner:
//!
//! - A sniffer gives up on the first byte that does not fit, so an unknown protocol waits only while one of the enabled
//!   sniffers can still match. (sing-box's HTTP sniffer waits for a line end whatever the bytes are.)
//! - The name is canonical, and an address in its place is no name.
//! - All QUIC packets of a datagram are read, lost and overlapping CRYPTO data is waited for in bounded memory.
//! - BitTorrent DHT messages count as `bittorrent`.
//! - A packet that is a DNS message but no query goes on to the other sniffers. (sing-box stops there without a
//!   protocol, and so never finds the DTLS hellos and NTP requests that happen to read as empty DNS messages.)

mod bittorrent;
mod client_hello;
mod dns;
mod http;
mod packets;
mod quic;
mod stream;
#[cfg(test)]
mod tests;
mod tls;

use std::{borrow::Cow, fmt};

use culvert_wire::{DecodeError, Domain};

pub use client_hello::ClientHello;
pub use quic::QuicSniffer;
pub use stream::{server_may_speak_first, server_speaks_first};

#[doc(hidden)]
pub use {
    client_hello::fuzz_client_hello, dns::fuzz_dns, http::fuzz_http, packets::fuzz_packets, quic::fuzz_quic,
    stream::fuzz_stream, tls::fuzz_tls,
};

/// A protocol that can be sniffed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs)] // named like what they are
pub enum Protocol {
    Tls,
    Http,
    Quic,
    Dns,
    Stun,
    BitTorrent,
    Dtls,
    Ssh,
    Rdp,
    Ntp,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Tls,
        Self::Http,
        Self::Quic,
        Self::Dns,
        Self::Stun,
        Self::BitTorrent,
        Self::Dtls,
        Self::Ssh,
        Self::Rdp,
        Self::Ntp,
    ];

    /// The name, of the sniffer in `sniffer` and of the result in `protocol`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Http => "http",
            Self::Quic => "quic",
            Self::Dns => "dns",
            Self::Stun => "stun",
            Self::BitTorrent => "bittorrent",
            Self::Dtls => "dtls",
            Self::Ssh => "ssh",
            Self::Rdp => "rdp",
            Self::Ntp => "ntp",
        }
    }

    /// The protocol of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.as_str() == name)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of sniffers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sniffers(u16);

impl Sniffers {
    /// All sniffers: what an empty `sniffer` list means.
    pub const ALL: Self = Self((1 << Protocol::ALL.len()) - 1);
    /// No sniffer.
    pub const NONE: Self = Self(0);

    /// The same set and one more.
    #[must_use]
    pub fn with(self, protocol: Protocol) -> Self {
        Self(self.0 | 1 << protocol as u16)
    }

    /// The same set without one.
    #[must_use]
    pub fn without(self, protocol: Protocol) -> Self {
        Self(self.0 & !(1 << protocol as u16))
    }

    /// Whether the set has this one.
    pub fn has(self, protocol: Protocol) -> bool {
        self.0 >> protocol as u16 & 1 == 1
    }

    fn of(protocols: &[Protocol]) -> Self {
        protocols.iter().fold(Self::NONE, |set, protocol| set.with(*protocol))
    }
}

impl FromIterator<Protocol> for Sniffers {
    fn from_iter<I: IntoIterator<Item = Protocol>>(protocols: I) -> Self {
        protocols.into_iter().fold(Self::NONE, Self::with)
    }
}

/// What was found out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sniffed {
    /// The protocol.
    pub protocol: Protocol,
    /// The host asked for, where the protocol says it.
    pub domain: Option<Domain>,
    /// The client program: a guess for QUIC (`chromium` `safari` `firefox` `quic-go` `unknown`), its own words for SSH.
    pub client: Option<Cow<'static, str>>,
}

impl Sniffed {
    fn new(protocol: Protocol) -> Self {
        Self { protocol, domain: None, client: None }
    }
}

/// The answer of a sniffer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// This is it.
    Match(Sniffed),
    /// It may be; more bytes or packets will tell.
    NeedMore,
    /// It is not, whatever comes.
    No,
}

impl From<Result<Sniffed, DecodeError>> for Verdict {
    fn from(result: Result<Sniffed, DecodeError>) -> Self {
        match result {
            Ok(sniffed) => Self::Match(sniffed),
            Err(DecodeError::Incomplete) => Self::NeedMore,
            Err(DecodeError::Invalid(_)) => Self::No,
        }
    }
}

/// Looks for all enabled protocols in the beginning of a stream.
#[derive(Clone, Debug)]
pub struct StreamSniffer {
    /// Enabled and not ruled out yet.
    possible: Sniffers,
}

impl StreamSniffer {
    /// With more bytes than this and still no answer there will be none.
    pub const LIMIT: usize = 64 << 10;

    /// With these sniffers; those for packets do nothing here.
    pub fn new(enabled: Sniffers) -> Self {
        Self { possible: Sniffers(enabled.0 & stream::PROTOCOLS.0) }
    }

    /// Judges all bytes that have come so far. `NeedMore` only while some enabled sniffer can still match.
    pub fn sniff(&mut self, bytes: &[u8]) -> Verdict {
        for (protocol, sniffer) in stream::SNIFFERS {
            if !self.possible.has(protocol) {
                continue;
            }
            match Verdict::from(sniffer(bytes)) {
                Verdict::Match(sniffed) => return Verdict::Match(sniffed),
                Verdict::NeedMore => {}
                Verdict::No => self.possible = self.possible.without(protocol),
            }
        }
        match self.possible {
            Sniffers::NONE => Verdict::No,
            _ if bytes.len() >= Self::LIMIT => Verdict::No,
            _ => Verdict::NeedMore,
        }
    }

    /// What is certain when no more bytes come: an SSH client whose line has not ended.
    pub fn give_up(&self, bytes: &[u8]) -> Option<Sniffed> {
        let ssh = self.possible.has(Protocol::Ssh) && bytes.starts_with(stream::SSH_PREFIX);
        ssh.then(|| Sniffed::new(Protocol::Ssh))
    }
}

/// Looks for all enabled protocols in the first packets of an association.
#[derive(Debug)]
pub struct PacketSniffer {
    enabled: Sniffers,
    /// Begun by the first packet that is QUIC. From then on nothing else is looked for.
    quic: Option<Box<QuicSniffer>>,
}

impl PacketSniffer {
    /// With these sniffers; those for streams do nothing here.
    pub fn new(enabled: Sniffers) -> Self {
        Self { enabled, quic: None }
    }

    /// Judges one more packet. `NeedMore` is said only in the middle of a QUIC handshake.
    pub fn sniff(&mut self, packet: &[u8]) -> Verdict {
        if let Some(quic) = &mut self.quic {
            return quic.packet(packet);
        }
        if self.enabled.has(Protocol::Dns) && dns::is_query(packet) {
            return Verdict::Match(Sniffed::new(Protocol::Dns));
        }
        if self.enabled.has(Protocol::Quic) && quic::looks_like_initial(packet) {
            let mut quic = Box::new(QuicSniffer::new());
            match quic.packet(packet) {
                Verdict::No => {}
                Verdict::NeedMore => {
                    self.quic = Some(quic);
                    return Verdict::NeedMore;
                }
                found => return found,
            }
        }
        let mut sniffers = packets::SNIFFERS.iter();
        match sniffers.find(|(protocol, is)| self.enabled.has(*protocol) && is(packet)) {
            Some((protocol, _)) => Verdict::Match(Sniffed::new(*protocol)),
            None => Verdict::No,
        }
    }

    /// What is certain when no more packets come: QUIC without a name.
    pub fn give_up(&self) -> Option<Sniffed> {
        let begun = self.quic.as_ref().is_some_and(|quic| quic.decrypted());
        begun.then(|| Sniffed::new(Protocol::Quic))
    }
}

/// The name in a field that may hold anything: canonical, without an address in its place.
fn domain(text: &[u8]) -> Option<Domain> {
    let text = std::str::from_utf8(text).ok()?;
    let domain = Domain::new(text).ok()?;
    let plain = domain.as_str().trim_start_matches('[').trim_end_matches(']');
    plain.parse::<std::net::IpAddr>().is_err().then_some(domain)
}

/// The name in a `Host` header or an authority: `name` or `name:port`, whatever the port reads. A v6 address is none.
fn host_domain(text: &[u8]) -> Option<Domain> {
    let text = text.trim_ascii();
    let name = match text.iter().rposition(|byte| *byte == b':') {
        // A bare v6 address has more colons before.
        Some(colon) if !text[..colon].contains(&b':') => &text[..colon],
        Some(_) => return None,
        None => text,
    };
    domain(name)
}
