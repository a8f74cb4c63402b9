//! The `sniff` action: looks at the first bytes or packets of a client for the protocol and the name it asks for.
//!
//! What was looked at stays in front of the connection; nothing is lost or changed.

use std::time::Duration;

use culvert_config::options::rule::{Sniff, Sniffer};
use culvert_core::conn::read_chain;
use culvert_core::{BoxPackets, Incoming, Io, Network, PacketBatch, PacketConn, Replayed, Sniffed};
use culvert_rules::sniff::{self, PacketSniffer, Protocol, Sniffers, StreamSniffer, Verdict};
use culvert_wire::Room;

/// How long the client may take to say something (sing-box 1.14.4).
const TIMEOUT: Duration = Duration::from_millis(300);

/// The options of the action, made ready.
pub(super) struct Settings {
    sniffers: Sniffers,
    timeout: Duration,
}

impl Settings {
    pub(super) fn new(options: &Sniff) -> Self {
        let named = options.sniffer.0.iter().map(protocol);
        let sniffers = if options.sniffer.0.is_empty() { Sniffers::ALL } else { named.collect() };
        Self { sniffers, timeout: options.timeout.or(TIMEOUT) }
    }
}

impl Settings {
    /// Whether it looks for a protocol of this name.
    pub(super) fn looks_for(&self, protocol: &str) -> bool {
        Protocol::ALL.into_iter().any(|one| one.as_str() == protocol && self.sniffers.has(one))
    }
}

fn protocol(option: &Sniffer) -> Protocol {
    match option {
        Sniffer::Tls => Protocol::Tls,
        Sniffer::Http => Protocol::Http,
        Sniffer::Quic => Protocol::Quic,
        Sniffer::Dns => Protocol::Dns,
        Sniffer::Stun => Protocol::Stun,
        Sniffer::BitTorrent => Protocol::BitTorrent,
        Sniffer::Dtls => Protocol::Dtls,
        Sniffer::Ssh => Protocol::Ssh,
        Sniffer::Rdp => Protocol::Rdp,
        Sniffer::Ntp => Protocol::Ntp,
    }
}

/// Fills in `incoming.session.sniffed`, if anything is found in time.
pub(super) async fn sniff(incoming: &mut Incoming, settings: &Settings) {
    let found = match &incoming.io {
        Io::Stream(_) => stream(incoming, settings).await,
        Io::Packets(_) if incoming.session.network == Network::Icmp => None,
        Io::Packets(_) => packets(incoming, settings).await,
    };
    if let Some(sniff::Sniffed { protocol, domain, client }) = found {
        incoming.session.sniffed = Some(Sniffed { protocol: protocol.as_str(), domain, client });
    }
}

async fn stream(incoming: &mut Incoming, settings: &Settings) -> Option<sniff::Sniffed> {
    if sniff::server_speaks_first(incoming.session.target.port) {
        return None;
    }
    let mut sniffer = StreamSniffer::new(settings.sniffers);
    let reading = async {
        loop {
            match sniffer.sniff(incoming.early.contiguous()) {
                Verdict::Match(found) => return Some(found),
                Verdict::No => return None,
                Verdict::NeedMore => {}
            }
            // A client that waits for its answer says nothing before it has it.
            incoming.answer_early().await.ok()?;
            let Io::Stream(conn) = &mut incoming.io else { return None };
            let mut more = read_chain(conn, Room::NONE).await.ok()?;
            if more.is_empty() {
                return None;
            }
            incoming.early.append(&mut more);
        }
    };
    tokio::time::timeout(settings.timeout, reading).await.unwrap_or_default()
}

async fn packets(incoming: &mut Incoming, settings: &Settings) -> Option<sniff::Sniffed> {
    let Io::Packets(conn) = &mut incoming.io else { return None };
    let mut sniffer = PacketSniffer::new(settings.sniffers);
    let mut held = PacketBatch::new();
    let reading = look(conn, &mut sniffer, &mut held);
    let found = tokio::time::timeout(settings.timeout, reading).await.unwrap_or_else(|_| sniffer.give_up());
    let conn = std::mem::replace(conn, Box::new(Gone));
    incoming.io = Io::Packets(Replayed::wrap(held, conn));
    found
}

/// Receives until there is a verdict; what was received is in `held`.
async fn look(
    conn: &mut BoxPackets,
    sniffer: &mut PacketSniffer,
    held: &mut PacketBatch,
) -> Option<sniff::Sniffed> {
    let mut seen = 0;
    loop {
        std::future::poll_fn(|cx| conn.poll_recv(cx, Room::NONE, held)).await.ok()?;
        for payload in held.iter().skip(seen).flat_map(culvert_core::Packet::payloads) {
            match sniffer.sniff(payload) {
                Verdict::Match(found) => return Some(found),
                Verdict::No => return None,
                Verdict::NeedMore => {}
            }
        }
        seen = held.len();
    }
}

/// Stands in for a conn while it is being wrapped, or where there is none.
pub(super) struct Gone;

impl PacketConn for Gone {
    fn poll_recv(
        &mut self,
        _: &mut std::task::Context<'_>,
        _: Room,
        _: &mut PacketBatch,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Err(std::io::ErrorKind::UnexpectedEof.into()))
    }

    fn poll_send(
        &mut self,
        _: &mut std::task::Context<'_>,
        _: &mut PacketBatch,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Err(std::io::ErrorKind::UnexpectedEof.into()))
    }
}
