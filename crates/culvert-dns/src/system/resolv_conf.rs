//! The resolver's configuration file.
//!
//! Source: resolv.conf(5), and glibc's resolv/res_init.c for what the page leaves open: the limits, and that the last of
//! `domain` and `search` counts.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use culvert_wire::Domain;

/// Most name servers that are asked (MAXNS).
const MOST_SERVERS: usize = 3;
/// Most suffixes that are tried. glibc has no limit any more; every one costs a question to strangers.
const MOST_SUFFIXES: usize = 6;

/// What the file says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResolvConf {
    /// Whom to ask, in order.
    pub servers: Vec<SocketAddr>,
    /// What to hang on a name without dots.
    pub search: Vec<Domain>,
    /// A name with at least this many dots is tried as it stands first.
    pub ndots: usize,
    /// How long to wait for one server.
    pub timeout: Duration,
    /// How often to go through the servers.
    pub attempts: usize,
    /// Begin with another server each time.
    pub rotate: bool,
    /// Ask with EDNS.
    pub edns0: bool,
}

impl ResolvConf {
    /// Reads the file's text; `port` is that of the name servers. What is not understood is passed over.
    #[must_use]
    pub fn parse(text: &str, port: u16) -> Self {
        let mut conf = Self {
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
            rotate: false,
            edns0: false,
        };
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") if conf.servers.len() < MOST_SERVERS => {
                    conf.servers.extend(words.next().and_then(|word| server(word, port)));
                }
                Some("domain") => conf.search = words.take(1).filter_map(suffix).collect(),
                Some("search") => conf.search = words.filter_map(suffix).take(MOST_SUFFIXES).collect(),
                Some("options") => words.for_each(|word| conf.option(word)),
                _ => {}
            }
        }
        if conf.servers.is_empty() {
            conf.servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
        }
        conf
    }

    fn option(&mut self, word: &str) {
        let (name, value) = word.split_once(':').unwrap_or((word, ""));
        let number = || value.parse::<u32>().ok();
        match name {
            "ndots" => self.ndots = number().map_or(self.ndots, |n| n.min(15) as usize),
            "timeout" => {
                self.timeout = number().map_or(self.timeout, |n| Duration::from_secs(n.clamp(1, 30).into()));
            }
            "attempts" => self.attempts = number().map_or(self.attempts, |n| n.clamp(1, 5) as usize),
            "rotate" => self.rotate = true,
            "edns0" => self.edns0 = true,
            _ => {}
        }
    }
}

/// `192.0.2.53`, `2001:db8::53`, `fe80::1%eth0`.
fn server(word: &str, port: u16) -> Option<SocketAddr> {
    let (address, zone) = word.split_once('%').map_or((word, None), |(ip, zone)| (ip, Some(zone)));
    match (address.parse().ok()?, zone) {
        (IpAddr::V6(ip), Some(zone)) => {
            let index = zone.parse().ok().or_else(|| culvert_os::iface::index(zone).ok())?;
            Some(SocketAddrV6::new(ip, port, 0, index).into())
        }
        (ip, _) => Some(SocketAddr::new(ip, port)),
    }
}

/// A suffix; the root (`search .`) adds nothing to a name and is none.
fn suffix(word: &str) -> Option<Domain> {
    Domain::new(word.trim_matches('.')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_file_is_read() {
        let conf = ResolvConf::parse(
            "; made by hand\nnameserver 192.0.2.53 # first\nnameserver 2001:db8::53\nnameserver fe80::1%7\n\
             nameserver 192.0.2.99\nnameserver bad\ndomain old.test\nsearch Corp.Test. . lab.test\n\
             options ndots:2 timeout:3 attempts:4 rotate edns0 unknown\noptions timeout:x\n",
            53,
        );
        let shown: Vec<_> = conf.servers.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.53:53", "[2001:db8::53]:53", "[fe80::1%7]:53"]);
        assert_eq!(conf.search.iter().map(Domain::as_str).collect::<Vec<_>>(), ["corp.test", "lab.test"]);
        assert_eq!((conf.ndots, conf.timeout, conf.attempts), (2, Duration::from_secs(3), 4));
        assert!(conf.rotate && conf.edns0);
    }

    #[test]
    fn an_empty_file_means_this_host() {
        let conf = ResolvConf::parse("", 53);
        assert_eq!(conf.servers, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!((conf.ndots, conf.timeout, conf.attempts), (1, Duration::from_secs(5), 2));
        assert!(conf.search.is_empty() && !conf.rotate && !conf.edns0);
    }

    #[test]
    fn limits_are_those_of_the_page() {
        let conf = ResolvConf::parse("options ndots:99 timeout:99 attempts:99\noptions attempts:0", 53);
        assert_eq!((conf.ndots, conf.timeout, conf.attempts), (15, Duration::from_secs(30), 1));
    }
}
