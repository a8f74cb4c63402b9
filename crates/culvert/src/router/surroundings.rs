//! What rules can know of the machine around: the program behind a connection, the interfaces, the neighbours.
//!
//! Only what some rule asks for is looked up. Interfaces, and the wireless network they are in, are asked for again when the
//! kernel says that they have changed;
//! neighbours, when they have not been for a while.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use culvert_config::Tagged;
use culvert_config::options::endpoint::EndpointKind;
use culvert_core::{Network, Session};
use culvert_os::iface::Outward;
use culvert_os::owner::{Finder, Transport};
use culvert_os::{iface, netlink, owner, wifi};
use culvert_rules::ip::Prefix;
use culvert_rules::rule::{Environment, Facts, Interface, Needs, Process};
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;
use tracing::{debug, trace, warn};

use super::leases;
use super::preferred::Preferred;

/// How long neighbours count as known.
const NEIGHBORS_LAST: Duration = Duration::from_secs(5);
/// Changes come in swarms; this long after the first of them the interfaces are asked for.
const SETTLE: Duration = Duration::from_millis(200);

/// The machine around.
pub(crate) struct Surroundings {
    finder: Arc<Finder>,
    seen: RwLock<Seen>,
    /// The interface that leads out, for sockets.
    outward: Outward,
    lease_files: Vec<PathBuf>,
    preferred: Arc<Preferred>,
    neighbors: Mutex<Option<(Instant, Arc<Neighbors>)>>,
}

/// What was last seen of the interfaces.
#[derive(Default)]
struct Seen {
    environment: Arc<Environment>,
    /// All addresses of this machine.
    addresses: HashSet<IpAddr>,
}

/// Hosts in reach.
#[derive(Default)]
struct Neighbors {
    macs: HashMap<IpAddr, [u8; 6]>,
    leases: leases::Leases,
}

/// Who a neighbour is.
#[derive(Clone, Debug, Default)]
struct Neighbor {
    mac: Option<[u8; 6]>,
    host_name: Option<String>,
}

/// What of all that is known about one session.
#[derive(Clone, Default)]
pub(crate) struct Around {
    environment: Arc<Environment>,
    preferred: Arc<Preferred>,
    process: Option<Arc<Process>>,
    neighbor: Neighbor,
}

impl Around {
    /// These facts, and what is known around.
    pub(crate) fn complete<'a>(&'a self, facts: Facts<'a>) -> Facts<'a> {
        Facts {
            environment: Some(&self.environment),
            preferences: Some(&*self.preferred),
            process: self.process.as_deref(),
            source_mac: self.neighbor.mac,
            source_hostname: self.neighbor.host_name.as_deref(),
            ..facts
        }
    }
}

impl Surroundings {
    /// As they are now. Host names of neighbours are in `lease_files`, or where DHCP servers usually have them; `endpoints`
    /// ask for destinations.
    pub(crate) fn new(lease_files: &[String], endpoints: &[Tagged<EndpointKind>]) -> Arc<Self> {
        let lease_files = if lease_files.is_empty() {
            leases::USUAL_FILES.iter().map(PathBuf::from).collect()
        } else {
            lease_files.iter().map(PathBuf::from).collect()
        };
        let outward = Outward::default();
        Arc::new(Self {
            finder: Arc::default(),
            seen: RwLock::new(look(&outward)),
            outward,
            lease_files,
            preferred: Arc::new(Preferred::by(endpoints)),
            neighbors: Mutex::new(None),
        })
    }

    /// What there is to know about a session, of what is needed. `process` is the program, if it is not to be found out.
    pub(crate) async fn around(
        self: &Arc<Self>,
        session: Option<&Session>,
        needs: Needs,
        process: Option<Arc<Process>>,
    ) -> Around {
        let mut around = Around {
            environment: self.environment(),
            preferred: Arc::clone(&self.preferred),
            process,
            ..Around::default()
        };
        let Some(session) = session else { return around };
        if needs.process && around.process.is_none() {
            around.process = self.process(session).await;
            if let Some(process) = &around.process {
                debug!("[{}] opened by {} of user {}", session.id, process.path, process.user);
            }
        }
        if needs.neighbor {
            around.neighbor = self.neighbor(session.source.ip()).await;
        }
        around
    }

    /// The interface that leads out, kept up to date by [`Surroundings::watch`].
    pub(crate) fn outward(&self) -> &Outward {
        &self.outward
    }

    /// The interfaces at this moment.
    fn environment(&self) -> Arc<Environment> {
        Arc::clone(&self.seen.read().unwrap_or_else(PoisonError::into_inner).environment)
    }

    /// Keeps the interfaces up to date for as long as it is polled. Calls `moved` when another interface has become the
    /// default one, or its addresses have changed.
    pub(crate) async fn watch(self: Arc<Self>, moved: impl Fn() + Send) {
        #[expect(deprecated, reason = "sound here, where the descriptor is owned and never replaced")]
        let socket = match netlink::watch().and_then(AsyncFd::new) {
            Ok(socket) => socket,
            Err(error) => return warn!("interfaces are not watched: {error}"),
        };
        loop {
            let Ok(mut ready) = socket.readable().await else { return };
            netlink::drain(std::os::fd::AsFd::as_fd(socket.get_ref()));
            ready.clear_ready();
            tokio::time::sleep(SETTLE).await;
            netlink::drain(std::os::fd::AsFd::as_fd(socket.get_ref()));
            trace!("the network has changed");
            let next = look(&self.outward);
            let environment = Arc::clone(&next.environment);
            let before = {
                let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *seen, next).environment
            };
            let default = |environment: &Environment| {
                environment.default_interface.and_then(|index| environment.interfaces.get(index).cloned())
            };
            let (old, new) = (default(&before), default(&environment));
            if old != new {
                match &new {
                    Some(new) => debug!("default interface is {}", new.name),
                    None => debug!("no default interface"),
                }
                // Without a network there is nothing to begin anew.
                if new.is_some() {
                    moved();
                }
            }
        }
    }

    /// The program that opened this connection; `None` if it is none of this machine's.
    async fn process(&self, session: &Session) -> Option<Arc<Process>> {
        let (source, finder) = (session.source, Arc::clone(&self.finder));
        if !self.is_ours(source.ip()) {
            return None;
        }
        let transport = match session.network {
            Network::Tcp => Transport::Tcp,
            Network::Udp => Transport::Udp,
            Network::Icmp => return None,
        };
        let target = session.target.socket_addr();
        let found = tokio::task::spawn_blocking(move || {
            let socket = match owner::socket(transport, source, target) {
                Ok(socket) => socket?,
                Err(error) => {
                    debug!("find the program of {source}: {error}");
                    return None;
                }
            };
            let path = finder.program(socket).map(|program| program.path.to_string_lossy().into_owned());
            Some(Process {
                path: path.unwrap_or_default(),
                user: owner::user_name(socket.user).unwrap_or_default(),
                user_id: Some(socket.user),
                ..Process::default()
            })
        })
        .await;
        found.ok().flatten().map(Arc::new)
    }

    /// Who is behind this address, as far as this machine knows.
    async fn neighbor(self: &Arc<Self>, ip: IpAddr) -> Neighbor {
        let known = {
            let neighbors = self.neighbors.lock().unwrap_or_else(PoisonError::into_inner);
            neighbors
                .as_ref()
                .filter(|(at, _)| at.elapsed() < NEIGHBORS_LAST)
                .map(|(_, known)| Arc::clone(known))
        };
        let known = match known {
            Some(known) => known,
            None => {
                let this = Arc::clone(self);
                let found = tokio::task::spawn_blocking(move || Arc::new(this.find_neighbors())).await;
                let found = found.unwrap_or_default();
                let latest = Some((Instant::now(), Arc::clone(&found)));
                *self.neighbors.lock().unwrap_or_else(PoisonError::into_inner) = latest;
                found
            }
        };
        let mac = known.macs.get(&ip).copied().or_else(|| known.leases.mac(ip));
        Neighbor { mac, host_name: known.leases.name(ip, mac) }
    }

    fn find_neighbors(&self) -> Neighbors {
        let found = netlink::neighbors().unwrap_or_else(|error| {
            debug!("neighbours: {error}");
            Vec::new()
        });
        Neighbors {
            macs: found.into_iter().map(|one| (one.ip, one.mac)).collect(),
            leases: leases::read(&self.lease_files),
        }
    }

    fn is_ours(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.seen.read().unwrap_or_else(PoisonError::into_inner).addresses.contains(&ip)
    }
}

/// The interfaces, and which of them has the default route, which `outward` is told too.
fn look(outward: &Outward) -> Seen {
    let all = iface::interfaces().unwrap_or_else(|error| {
        warn!("interfaces: {error}");
        Vec::new()
    });
    let default = |v6| netlink::default_link(v6).ok().flatten();
    let link = default(false).or_else(|| default(true));
    outward.set(&all, link);
    let default_interface = link.and_then(|link| all.iter().position(|one| one.index == link));
    let addresses = all.iter().flat_map(|one| &one.addresses).map(|address| address.ip).collect();
    let interfaces = all.into_iter().map(|one| Interface {
        name: one.name,
        addresses: one.addresses.iter().filter_map(|at| Prefix::new(at.ip, at.prefix_len).ok()).collect(),
        ..Interface::default()
    });
    let wifi = wifi::current().unwrap_or_else(|error| {
        debug!("wireless networks: {error}");
        None
    });
    let wifi = wifi.unwrap_or_default();
    let environment = Environment {
        interfaces: interfaces.collect(),
        default_interface,
        wifi_ssid: wifi.ssid,
        wifi_bssid: wifi.bssid,
        ..Environment::default()
    };
    Seen { environment: Arc::new(environment), addresses }
}
