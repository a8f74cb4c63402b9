//! A stand-in for systemd-resolved: programs that manage links tell it their name servers over D-Bus, programs that look
//! names up ask it, and DNS servers of type `resolved` ask the servers it was told.
//!
//! ```text
//! NetworkManager …  ──SetLinkDNS──▶ [Manager] ──▶ [Links] ◀── [ResolvedServer]   a DNS server of the configuration
//! nss-resolve …  ──ResolveHostname──▶ [Manager] ──▶ the rules of the `dns` section
//! ```
//!
//! Source: org.freedesktop.resolve1(5) of systemd 257. Left out: `ResolveService`, DNSSEC, LLMNR and multicast, whose
//! settings are taken and have no effect.

pub mod links;
pub mod manager;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use culvert_core::Tag;
use culvert_tls::Store;

pub use links::Links;
pub use manager::Manager;

use crate::DnsError;
use crate::message::{Query, Rcode, Reply};
use crate::server::DnsServer;

/// A server of type `resolved`.
pub struct ResolvedServer {
    tag: Tag,
    links: Arc<Links>,
    accept_default: bool,
    store: Arc<Store>,
}

impl ResolvedServer {
    /// Asks the servers of these links: those that are for the name, and with `accept_default` those that are for all.
    #[must_use]
    pub fn new(tag: Tag, links: Arc<Links>, accept_default: bool, store: Arc<Store>) -> Self {
        Self { tag, links, accept_default, store }
    }
}

#[async_trait]
impl DnsServer for ResolvedServer {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    /// A name that no link is for does not exist (sing-box 1.14.4).
    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        let unknown = || Ok(Reply::empty(query, Rcode::NXDOMAIN));
        let Some(name) = query.domain() else { return unknown() };
        let servers = self.links.servers(&self.tag, &name, self.accept_default, &self.store);
        let Some(servers) = servers else { return unknown() };
        let mut last = DnsError::NoServer;
        for server in servers.iter() {
            match server.exchange(query).await {
                Ok(reply) => return Ok(reply),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
