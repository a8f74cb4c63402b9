//! What DHCP servers on this machine write down about their clients.
//!
//! ```text
//! dnsmasq   1700000000 00:11:22:33:44:55 192.168.1.5 laptop 01:00:11:22:33:44:55
//! ISC       lease 192.168.1.5 { … hardware ethernet 00:11:22:33:44:55; … client-hostname "laptop"; }
//! Kea       192.168.1.5,00:11:22:33:44:55,…,laptop,0,…        (columns named in the first line)
//! ```

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;

/// Where DHCP servers usually write.
pub(super) const USUAL_FILES: [&str; 5] = [
    "/tmp/dhcp.leases",
    "/var/lib/misc/dnsmasq.leases",
    "/var/lib/dnsmasq/dnsmasq.leases",
    "/var/lib/dhcp/dhcpd.leases",
    "/var/lib/kea/kea-leases4.csv",
];
/// Longest file that is read.
const LONGEST: u64 = 4 << 20;

/// Clients of DHCP servers.
#[derive(Debug, Default)]
pub(super) struct Leases {
    macs: HashMap<IpAddr, [u8; 6]>,
    names: HashMap<IpAddr, String>,
    names_by_mac: HashMap<[u8; 6], String>,
}

impl Leases {
    /// The hardware address of who was given this address.
    pub(super) fn mac(&self, ip: IpAddr) -> Option<[u8; 6]> {
        self.macs.get(&ip).copied()
    }

    /// How who has this address calls itself. The hardware address finds it also behind addresses that nobody gave out.
    pub(super) fn name(&self, ip: IpAddr, mac: Option<[u8; 6]>) -> Option<String> {
        self.names.get(&ip).or_else(|| self.names_by_mac.get(&mac?)).cloned()
    }

    fn add(&mut self, ip: Option<IpAddr>, mac: Option<[u8; 6]>, name: &str) {
        let Some(ip) = ip else { return };
        if let Some(mac) = mac {
            self.macs.insert(ip, mac);
        }
        if name.is_empty() || name == "*" {
            return;
        }
        self.names.insert(ip, name.to_owned());
        if let Some(mac) = mac {
            self.names_by_mac.insert(mac, name.to_owned());
        }
    }

    /// Reads one file; of several leases of an address the last counts, as DHCP servers append.
    fn read(&mut self, text: &str) {
        let mut columns: Option<Vec<&str>> = None;
        let mut open: Option<(Option<IpAddr>, Option<[u8; 6]>, String)> = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if line.starts_with("address,") {
                columns = Some(line.split(',').collect());
            } else if let Some(columns) = &columns {
                let fields: Vec<&str> = line.split(',').collect();
                let field = |name| {
                    let at = columns.iter().position(|column| *column == name)?;
                    fields.get(at).copied()
                };
                let ip = field("address").and_then(|text| text.parse().ok());
                let name = field("hostname").unwrap_or_default().trim_end_matches('.');
                self.add(ip, field("hwaddr").and_then(mac), name);
            } else if let ["lease", ip, "{"] = words[..] {
                open = Some((ip.parse().ok(), None, String::new()));
            } else if let Some((ip, hardware, name)) = &mut open {
                match words[..] {
                    ["hardware", "ethernet", address] => *hardware = mac(address.trim_end_matches(';')),
                    ["client-hostname", text] => {
                        text.trim_end_matches(';').trim_matches('"').clone_into(name);
                    }
                    ["}"] => {
                        self.add(*ip, *hardware, name);
                        open = None;
                    }
                    _ => {}
                }
            } else if let [_, hardware, ip, name, ..] = words[..] {
                self.add(ip.parse().ok(), mac(hardware), name);
            }
        }
    }
}

/// Reads what of the files there is.
pub(super) fn read(files: &[PathBuf]) -> Leases {
    let mut leases = Leases::default();
    for path in files {
        if std::fs::metadata(path).is_ok_and(|data| data.len() <= LONGEST)
            && let Ok(data) = std::fs::read(path)
        {
            leases.read(&String::from_utf8_lossy(&data));
        }
    }
    leases
}

/// A hardware address as text.
fn mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [0, 0x11, 0x22, 0x33, 0x44, 0x55];

    fn read(text: &str) -> Leases {
        let mut leases = Leases::default();
        leases.read(text);
        leases
    }

    #[test]
    fn the_files_of_three_servers_are_understood() {
        let dnsmasq = "1700000000 00:11:22:33:44:55 192.168.1.5 laptop 01:00:11:22:33:44:55\n\
                       1700000000 00:11:22:33:44:56 192.168.1.6 * *\nduid 00:01\n";
        let isc = "# comment\nlease 192.168.1.5 {\n  starts 1 2026/01/01 00:00:00;\n  \
                   hardware ethernet 00:11:22:33:44:55;\n  client-hostname \"laptop\";\n}\n";
        let kea = "address,hwaddr,client_id,valid_lifetime,expire,subnet_id,fqdn_fwd,fqdn_rev,hostname,state\n\
                   192.168.1.5,00:11:22:33:44:55,,3600,1700000000,1,0,0,laptop.,0\n";
        let ip = "192.168.1.5".parse().unwrap();
        for text in [dnsmasq, isc, kea] {
            let leases = read(text);
            assert_eq!(leases.mac(ip), Some(MAC), "{text}");
            assert_eq!(leases.name(ip, None).as_deref(), Some("laptop"), "{text}");
            let other = "fe80::5".parse().unwrap();
            assert_eq!(leases.name(other, Some(MAC)).as_deref(), Some("laptop"), "{text}");
            assert_eq!((leases.mac(other), leases.name(other, None)), (None, None));
        }
        assert_eq!(read(dnsmasq).name("192.168.1.6".parse().unwrap(), None), None);
    }

    #[test]
    fn garbage_is_no_lease() {
        for text in ["", "lease", "lease x {\n}\n", "address,\n,,,", "a b c d", "1 00:11:22:33:44 1.2.3.4 x"]
        {
            let leases = read(text);
            assert_eq!(leases.mac("1.2.3.4".parse().unwrap()), None, "{text}");
        }
    }
}
