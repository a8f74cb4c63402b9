//! The server of type `hosts`: names of the configuration and of hosts files, and nothing else.

use std::path::PathBuf;

use async_trait::async_trait;
use culvert_core::Tag;

use super::DnsServer;
use crate::DnsError;
use crate::message::{Query, Rcode, RecordType, Reply, records};
use crate::system::{Hosts, Watched, arpa_address};

/// TTL of the answers in seconds (sing-box 1.14.4).
const TTL: u32 = 600;

/// A server of type `hosts`.
///
/// `predefined` goes before the files, and the first file that knows a name before the others. A known name has no
/// records besides its addresses; an unknown one does not exist. Answers are made on the spot and not cached, so that
/// a changed file counts at once.
pub struct HostsServer {
    tag: Tag,
    predefined: Hosts,
    files: Vec<Watched<Hosts>>,
}

impl HostsServer {
    /// A server over these names and files; without any file, over the system's.
    #[must_use]
    pub fn new(tag: Tag, predefined: Hosts, paths: Vec<PathBuf>) -> Self {
        let paths = if paths.is_empty() { vec!["/etc/hosts".into()] } else { paths };
        Self {
            tag,
            predefined,
            files: paths.into_iter().map(|path| Watched::new(path, Hosts::parse)).collect(),
        }
    }

    fn answer(&self, query: &Query) -> Option<Reply> {
        let name = query.domain()?;
        let files = self.files.iter().map(Watched::view);
        if query.kind() == RecordType::PTR {
            let ip = arpa_address(name.as_str())?;
            let find = |hosts: &Hosts| hosts.names(ip).map(|names| records::pointers(query, names, TTL));
            return find(&self.predefined).or_else(|| files.into_iter().find_map(|hosts| find(&hosts)));
        }
        let find =
            |hosts: &Hosts| hosts.addresses(name.as_str()).map(|ips| records::addresses(query, ips, TTL));
        find(&self.predefined).or_else(|| files.into_iter().find_map(|hosts| find(&hosts)))
    }
}

#[async_trait]
impl DnsServer for HostsServer {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        Ok(self.answer(query).unwrap_or_else(|| Reply::empty(query, Rcode::NXDOMAIN)).uncached())
    }
}
