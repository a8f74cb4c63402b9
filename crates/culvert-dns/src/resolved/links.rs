//! What the system says of its links: the servers of each, the names they are for, and which of them are for all names.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use culvert_core::Dialer;
use culvert_core::Tag;
use culvert_os::iface;
use culvert_tls::{ClientSettings, Connector, Securing, Store};
use culvert_wire::{Domain, Host, Target};

use crate::server::DnsServer;
use crate::server::tls::TlsServer;
use crate::server::udp::UdpServer;

/// Most links, servers of a link and names of a link that are kept.
const MOST: usize = 64;

/// The links, as the programs that manage them tell.
#[derive(Default)]
pub struct Links(Mutex<State>);

#[derive(Default)]
struct State {
    links: BTreeMap<i32, Link>,
    /// Counts the changes.
    version: u64,
    /// The servers of the links at that version, for one user of them.
    made: HashMap<Tag, (u64, HashMap<i32, Servers>)>,
}

/// Asked one after the other.
pub(crate) type Servers = Arc<Vec<Arc<dyn DnsServer>>>;

/// One link.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Link {
    pub(super) servers: Vec<Server>,
    pub(super) domains: Vec<SearchDomain>,
    /// Whether it is for all names; `None` says nothing about it.
    pub(super) default_route: Option<bool>,
    /// Whether its servers are spoken to by TLS only.
    pub(super) tls: bool,
}

/// A name server of a link.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Server {
    pub(super) ip: IpAddr,
    /// 0 is the usual one.
    pub(super) port: u16,
    /// The name in its certificate; empty for none.
    pub(super) name: String,
}

/// A name whose link is to be asked for it and all below it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SearchDomain {
    /// Without a dot at the end; empty for all names.
    pub(super) name: String,
    /// Only says where names are asked for, and is not searched in.
    pub(super) routing_only: bool,
}

impl Link {
    /// As systemd-resolved has it: a link that is only for some names is not for all.
    fn is_for_all(&self) -> bool {
        self.default_route.unwrap_or_else(|| self.domains.iter().all(|domain| !domain.routing_only))
    }

    /// How many labels of the name the best of its names covers.
    fn covers(&self, name: &str) -> Option<usize> {
        let covered = self.domains.iter().filter_map(|domain| {
            let suffix = domain.name.as_str();
            if suffix.is_empty() {
                return Some(0);
            }
            let rest = name.len().checked_sub(suffix.len())?;
            let tail = name.get(rest..)?;
            let at_label = rest == 0 || name.as_bytes()[rest - 1] == b'.';
            (tail.eq_ignore_ascii_case(suffix) && at_label).then(|| suffix.split('.').count())
        });
        covered.max()
    }
}

impl Links {
    /// Changes a link, which need not have been known.
    pub(super) fn change(&self, index: i32, change: impl FnOnce(&mut Link)) {
        let mut state = self.lock();
        if state.links.len() >= MOST && !state.links.contains_key(&index) {
            return;
        }
        let link = state.links.entry(index).or_default();
        change(link);
        link.servers.truncate(MOST);
        link.domains.truncate(MOST);
        state.version += 1;
    }

    /// Forgets what was said of a link.
    pub(super) fn forget(&self, index: i32) {
        let mut state = self.lock();
        if state.links.remove(&index).is_some() {
            state.version += 1;
        }
    }

    /// The link for a name: the one whose names say most of it, or else, `or_default`, one that is for all names.
    fn choose(state: &State, name: &str, or_default: bool) -> Option<i32> {
        let usable = || state.links.iter().filter(|(_, link)| !link.servers.is_empty());
        let best = usable().filter_map(|(index, link)| Some((link.covers(name)?, *index)));
        let best = best.max_by_key(|(labels, _)| *labels);
        let default = || usable().find(|(_, link)| or_default && link.is_for_all()).map(|(index, _)| *index);
        best.map(|(_, index)| index).or_else(default)
    }

    /// The servers to ask for a name on behalf of `tag`; none if no link is for it. `store` says whom to trust.
    pub(crate) fn servers(
        &self,
        tag: &Tag,
        name: &Domain,
        or_default: bool,
        store: &Arc<Store>,
    ) -> Option<Servers> {
        let mut state = self.lock();
        let index = Self::choose(&state, name.as_str(), or_default)?;
        let version = state.version;
        let link = state.links.get(&index)?.clone();
        let made = state.made.entry(tag.clone()).or_default();
        if made.0 != version {
            *made = (version, HashMap::new());
        }
        let make =
            || Arc::new(link.servers.iter().filter_map(|one| make(tag, index, &link, one, store)).collect());
        Some(Arc::clone(made.1.entry(index).or_insert_with(make)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn link(&self, index: i32) -> Option<Link> {
        self.lock().links.get(&index).cloned()
    }

    #[cfg(test)]
    pub(super) fn chosen(&self, name: &str, or_default: bool) -> Option<i32> {
        Self::choose(&self.lock(), name, or_default)
    }
}

/// A server, spoken to by the link it is of. `None` if its name is none.
fn make(tag: &Tag, index: i32, link: &Link, one: &Server, store: &Arc<Store>) -> Option<Arc<dyn DnsServer>> {
    let mut dialer = Dialer::new(crate::system());
    let all = iface::interfaces().unwrap_or_default();
    let interface = all.into_iter().find(|one| i64::from(one.index) == i64::from(index)).map(|one| one.name);
    if !one.ip.is_loopback() {
        dialer.tcp.bind_interface.clone_from(&interface);
        dialer.udp.bind_interface = interface;
    }
    let port = |usual| if one.port == 0 { usual } else { one.port };
    if !link.tls {
        let target = Target { host: Host::Ip(one.ip), port: port(53) };
        return Some(Arc::new(UdpServer::new(tag.clone(), dialer, target)));
    }
    let target = Target { host: Host::Ip(one.ip), port: port(853) };
    let server_name = Some(one.name.clone()).filter(|name| !name.is_empty());
    let settings = ClientSettings { server_name, ..ClientSettings::default() };
    let tls = Connector::new(settings, &target.host, store).ok()?;
    Some(Arc::new(TlsServer::new(tag.clone(), dialer, target, Securing::new(tls).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(domains: &[(&str, bool)], default_route: Option<bool>) -> impl FnOnce(&mut Link) {
        let server = Server { ip: "127.0.0.1".parse().unwrap(), port: 0, name: String::new() };
        let domains = domains.iter().map(|(name, routing_only)| SearchDomain {
            name: (*name).to_owned(),
            routing_only: *routing_only,
        });
        let link = Link { servers: vec![server], domains: domains.collect(), default_route, tls: false };
        move |known| *known = link
    }

    #[test]
    fn names_go_to_the_link_that_says_most_of_them() {
        let links = Links::default();
        assert_eq!(links.chosen("a.test", true), None);
        links.change(1, with(&[], None));
        links.change(2, with(&[("corp.test", false), ("test", true)], None));
        links.change(3, with(&[("vpn.corp.test", true)], None));
        links.change(4, |link| link.default_route = Some(true));
        for (name, or_default, expected) in [
            ("a.test", false, Some(2)),
            ("corp.test", false, Some(2)),
            ("x.CORP.test", false, Some(2)),
            ("vpn.corp.test", false, Some(3)),
            ("a.vpn.corp.test", false, Some(3)),
            ("xvpn.corp.test", false, Some(2)),
            ("other.example", false, None),
            ("other.example", true, Some(1)),
        ] {
            assert_eq!(links.chosen(name, or_default), expected, "{name}");
        }
        links.change(1, |link| link.default_route = Some(false));
        assert_eq!(
            links.chosen("other.example", true),
            None,
            "links 2 and 3 are for some names, 4 has no server"
        );
        links.change(3, |link| link.default_route = Some(true));
        assert_eq!(links.chosen("other.example", true), Some(3));
        links.change(2, with(&[("", true)], None));
        assert_eq!(links.chosen("other.example", false), Some(2), "all names");
        links.forget(3);
        assert_eq!(links.chosen("vpn.corp.test", false), Some(2));
        links.forget(2);
        assert_eq!(links.chosen("vpn.corp.test", false), None);
    }

    #[test]
    fn a_flood_of_links_is_bounded() {
        let links = Links::default();
        for index in 0..1000 {
            links.change(index, with(&[("a", false); 100], None));
        }
        assert_eq!(links.lock().links.len(), MOST);
        assert_eq!(links.link(1).unwrap().domains.len(), MOST);
    }
}
