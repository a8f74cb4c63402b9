//! An outbound that dials something else than the client named: addresses that were looked up, another target, the name
//! behind a fake address. The client sees none of it: replies come from whom it asked.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use culvert_core::{
    BoxPackets, BoxStream, DialError, Network, Outbound, PacketBatch, PacketConn, Session, Tag, timeouts,
};
use culvert_wire::{BufChain, Host, Room, Target};
use tokio::task::JoinSet;

use super::Journey;
use crate::dns::Dns;

/// An outbound for one session.
pub(super) struct Redirected {
    outbound: Arc<dyn Outbound>,
    asked: Target,
    addresses: Vec<IpAddr>,
    keep_peers: bool,
    dns: Arc<Dns>,
}

impl Redirected {
    /// The same outbound where nothing is redirected.
    pub(super) fn wrap(
        outbound: Arc<dyn Outbound>,
        journey: Journey,
        session: &Session,
        dns: &Arc<Dns>,
    ) -> Arc<dyn Outbound> {
        let Journey { asked, addresses, keep_peers, .. } = journey;
        let packets = session.network == Network::Udp && (asked != session.target || dns.has_fake());
        if addresses.is_empty() && !packets {
            return outbound;
        }
        Arc::new(Self { outbound, asked, addresses, keep_peers, dns: Arc::clone(dns) })
    }

    /// Dials all addresses, the next one beside those before it when they are slow (RFC 8305 section 5).
    async fn race(&self, session: &Session) -> Result<BoxStream, DialError> {
        let mut attempts = JoinSet::new();
        let mut rest = self.addresses.iter();
        let mut last = None;
        loop {
            if let Some(ip) = rest.next() {
                let (outbound, session) = (Arc::clone(&self.outbound), to(session, *ip));
                attempts.spawn(async move { outbound.dial(&session, &mut BufChain::new()).await });
            }
            let joined = if rest.len() == 0 {
                attempts.join_next().await
            } else {
                match tokio::time::timeout(timeouts::HAPPY_EYEBALLS, attempts.join_next()).await {
                    Ok(joined) => joined,
                    Err(_) => continue,
                }
            };
            match joined {
                Some(Ok(Ok(conn))) => return Ok(conn),
                Some(Ok(Err(error))) => last = Some(error),
                Some(Err(_)) => {}
                None => return Err(last.unwrap_or_else(|| nowhere(session))),
            }
        }
    }
}

fn to(session: &Session, ip: IpAddr) -> Session {
    Session { target: Target { host: Host::from(ip), port: session.target.port }, ..session.clone() }
}

fn nowhere(session: &Session) -> DialError {
    DialError::Connect { target: session.target.clone(), source: io::ErrorKind::AddrNotAvailable.into() }
}

#[async_trait]
impl Outbound for Redirected {
    fn tag(&self) -> &Tag {
        self.outbound.tag()
    }

    fn carries(&self, network: Network) -> bool {
        self.outbound.carries(network)
    }

    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        match &*self.addresses {
            [] => self.outbound.dial(session, early).await,
            [only] => self.outbound.dial(&to(session, *only), early).await,
            _ if self.outbound.tag().kind == "direct" => self.race(session).await,
            // A proxy is asked for one address after the other.
            all => {
                let mut last = None;
                for ip in all {
                    match self.outbound.dial(&to(session, *ip), early).await {
                        Ok(conn) => return Ok(conn),
                        Err(error) => last = Some(error),
                    }
                }
                Err(last.unwrap_or_else(|| nowhere(session)))
            }
        }
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let session = match self.addresses.first() {
            Some(ip) => to(session, *ip),
            None => session.clone(),
        };
        let conn = self.outbound.listen_packet(&session).await?;
        let pairs = vec![(self.asked.clone(), session.target)];
        let plain = Vec::new();
        Ok(Box::new(Mapped { conn, pairs, plain, keep_peers: self.keep_peers, dns: Arc::clone(&self.dns) }))
    }
}

/// Most targets per association that stand for others; what comes after them is not redirected.
const MOST_PAIRS: usize = 64;

/// Packets to some targets go to others, and back.
struct Mapped {
    conn: BoxPackets,
    /// What the client names, and what is dialled in its place.
    pairs: Vec<(Target, Target)>,
    /// Targets that are dialled as they are.
    plain: Vec<Target>,
    keep_peers: bool,
    dns: Arc<Dns>,
}

impl Mapped {
    /// What is dialled in place of `asked`. `None` if it leads nowhere.
    fn dialled(&mut self, asked: &Target) -> Option<Target> {
        if let Some((_, dialled)) = self.pairs.iter().find(|(one, to)| one == asked || to == asked) {
            return Some(dialled.clone());
        }
        let Some(ip) = asked.host.ip().filter(|ip| self.dns.is_fake(*ip)) else {
            if self.plain.len() < MOST_PAIRS && !self.plain.contains(asked) {
                self.plain.push(asked.clone());
            }
            return Some(asked.clone());
        };
        let name = self.dns.name_of(ip).ok()??;
        let dialled = Target { host: Host::Domain(name), port: asked.port };
        if self.pairs.len() < MOST_PAIRS {
            self.pairs.push((asked.clone(), dialled.clone()));
        }
        Some(dialled)
    }

    /// Whom the client asked, when `peer` answers.
    fn asked(&self, peer: &Target) -> Option<&Target> {
        if self.plain.contains(peer) {
            return None;
        }
        let exact = self.pairs.iter().find(|(_, dialled)| dialled == peer);
        // Behind a name that is resolved further on, an address answers that the client has never heard of.
        let by_name = || {
            self.pairs.iter().find(|(asked, dialled)| {
                dialled.port == peer.port && dialled.host.domain().is_some() && asked != dialled
            })
        };
        exact.or_else(by_name).map(|(asked, _)| asked)
    }
}

impl PacketConn for Mapped {
    fn room(&self) -> Room {
        self.conn.room()
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        room: Room,
        batch: &mut PacketBatch,
    ) -> Poll<io::Result<()>> {
        let before = batch.len();
        let received = ready!(self.conn.poll_recv(cx, room, batch));
        if !self.keep_peers {
            for packet in batch.iter_mut().skip(before) {
                if let Some(asked) = self.asked(&packet.peer) {
                    packet.peer = asked.clone();
                }
            }
        }
        Poll::Ready(received)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut PacketBatch) -> Poll<io::Result<()>> {
        // Asked again with packets that are mapped already, this changes nothing.
        let mut lost = false;
        for packet in batch.iter_mut() {
            match self.dialled(&packet.peer) {
                Some(dialled) if dialled != packet.peer => packet.peer = dialled,
                Some(_) => {}
                None => lost = true,
            }
        }
        if lost {
            let dns = Arc::clone(&self.dns);
            batch.retain(|packet| packet.peer.host.ip().is_none_or(|ip| !dns.is_fake(ip)));
        }
        self.conn.poll_send(cx, batch)
    }
}
