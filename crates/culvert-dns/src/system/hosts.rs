//! The hosts file: names and addresses that need no server.
//!
//! Source: hosts(5).

use std::collections::HashMap;
use std::net::IpAddr;

use culvert_wire::Domain;

/// The names of one hosts file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Hosts {
    addresses: HashMap<Domain, Vec<IpAddr>>,
    names: HashMap<IpAddr, Vec<Domain>>,
}

impl Hosts {
    /// Reads `address name alias…  # comment` lines. A line that is none is passed over, as every reader of the file
    /// does.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut hosts = Self::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            // A zone (`fe80::1%lo0`) has no place in an answer.
            let address = words.next().and_then(|word| word.split('%').next());
            let Some(Ok(ip)) = address.map(str::parse::<IpAddr>) else { continue };
            for name in words.filter_map(|word| Domain::new(word).ok()) {
                hosts.insert(name, ip);
            }
        }
        hosts
    }

    /// Adds one address to a name.
    pub fn insert(&mut self, name: Domain, ip: IpAddr) {
        let addresses = self.addresses.entry(name.clone()).or_default();
        if !addresses.contains(&ip) {
            addresses.push(ip);
            self.names.entry(ip).or_default().push(name);
        }
    }

    /// The addresses of a name, in the file's order; `None` if the file does not know it.
    #[must_use]
    pub fn addresses(&self, name: &str) -> Option<&[IpAddr]> {
        self.addresses.get(name).map(Vec::as_slice)
    }

    /// The names of an address, in the file's order; the first is the canonical one.
    #[must_use]
    pub fn names(&self, ip: IpAddr) -> Option<&[Domain]> {
        self.names.get(&ip).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usual_file_is_read() {
        let hosts = Hosts::parse(
            "# static table\n127.0.0.1\tlocalhost\n::1 localhost ip6-localhost # both\n\n\
             192.0.2.1 Web.Example.  www.example # trailing dot, capitals\n\
             192.0.2.2 www.example\n192.0.2.2 www.example\nfe80::1%lo0 link\nnonsense here\n192.0.2.300 bad\n",
        );
        let shown = |name: &str| {
            let addresses = hosts.addresses(name)?;
            Some(addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(shown("localhost").as_deref(), Some("127.0.0.1 ::1"));
        assert_eq!(shown("web.example").as_deref(), Some("192.0.2.1"));
        assert_eq!(shown("www.example").as_deref(), Some("192.0.2.1 192.0.2.2"));
        assert_eq!(shown("link").as_deref(), Some("fe80::1"));
        assert_eq!((shown("here"), shown("bad"), shown("both")), (None, None, None));
        let names = hosts.names("192.0.2.1".parse().unwrap()).unwrap();
        assert_eq!(names.iter().map(Domain::as_str).collect::<Vec<_>>(), ["web.example", "www.example"]);
    }
}
