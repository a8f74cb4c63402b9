//! The system's resolver, without the C library: the hosts file, resolv.conf, and the name servers it lists.
//!
//! ```text
//! resolve(name) ─▶ localhost? ─▶ hosts file ─▶ cache ─▶ one exchange for all who ask
//!                                                       server 1 ─ 1 s ─▶ server 2 ─ 1 s ─▶ … the first good reply wins
//! ```
//!
//! Where it differs from glibc: both families are asked at the same time; a server that keeps silent delays a look-up by one
//! second and not by its whole timeout, since the next is asked beside it; replies are cached; the search list serves
//! only names without a dot, as proxied names must not be tried under somebody's company domain. nsswitch.conf, mDNS and
//! sortlist are left out.
//!
//! Sources: resolv.conf(5), hosts(5), RFC 6761 (localhost, invalid), RFC 8305 section 3 (one family must not wait for the
//! other).

pub mod hosts;
pub mod resolv_conf;
pub mod watched;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::{ResolveError, Resolver, Strategy, timeouts};
use culvert_wire::Domain;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

pub use hosts::Hosts;
pub use resolv_conf::ResolvConf;
pub use watched::Watched;

use crate::DnsError;
use crate::cache::{Cache, CacheOptions, Found};
use crate::flight::Flights;
use crate::lookup::{Ask, lookup};
use crate::message::{Answer, Query, Rcode, RecordType, Reply, records};
use crate::plain::{self, Sockets};

/// How long a silent server is waited for before the next is asked beside it.
const HEAD_START: Duration = Duration::from_secs(1);
/// TTL of answers out of the hosts file (sing-box 1.14.4: 600 s).
const HOSTS_TTL: u32 = 600;

/// Where the resolver looks.
#[derive(Clone, Debug)]
pub struct SystemOptions {
    /// The hosts file.
    pub hosts: PathBuf,
    /// The resolver's configuration file.
    pub resolv_conf: PathBuf,
    /// Port of the name servers in it.
    pub port: u16,
    /// How sockets to them are made.
    pub sockets: Sockets,
}

impl Default for SystemOptions {
    fn default() -> Self {
        Self {
            hosts: "/etc/hosts".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            port: 53,
            sockets: Sockets::default(),
        }
    }
}

/// The system's resolver with its standard files. Nothing is read before the first look-up.
#[must_use]
pub fn system() -> Arc<SystemResolver> {
    Arc::new(SystemResolver::new(SystemOptions::default()))
}

/// The system's resolver. One serves all; two would have two caches.
#[derive(Debug)]
pub struct SystemResolver {
    hosts: Watched<Hosts>,
    conf: Watched<ResolvConf>,
    sockets: Arc<Sockets>,
    cache: Arc<Cache>,
    flights: Flights<Result<Arc<Reply>, DnsError>>,
    /// Where `rotate` begins next.
    turn: AtomicUsize,
    /// Which resolv.conf the cache was filled by.
    generation: AtomicU64,
}

impl SystemResolver {
    /// A resolver over these files.
    #[must_use]
    pub fn new(options: SystemOptions) -> Self {
        Self {
            hosts: Watched::new(options.hosts, Hosts::parse),
            conf: Watched::new(options.resolv_conf, move |text| ResolvConf::parse(text, options.port)),
            sockets: Arc::new(options.sockets),
            cache: Arc::new(Cache::new(CacheOptions::default())),
            flights: Flights::new(),
            turn: AtomicUsize::new(0),
            generation: AtomicU64::new(0),
        }
    }

    /// Answers any question, as the DNS server of type `local` does.
    ///
    /// # Errors
    /// No server answered.
    pub async fn exchange(&self, query: &Query) -> Result<Answer, DnsError> {
        if let Some(reply) = self.answer_here(query) {
            return Ok(Answer::fresh(reply));
        }
        self.ask_servers(query).await
    }

    /// The same without the cache, for whoever has one: a reply of this host's own files says that it is not to be kept.
    pub(crate) async fn fetch(&self, query: &Query) -> Result<Reply, DnsError> {
        if let Some(reply) = self.answer_here(query) {
            return Ok(reply.uncached());
        }
        let conf = self.conf.view();
        let query = if conf.edns0 { query.clone().with_edns() } else { query.clone() };
        ask_in_turn(Arc::clone(&self.sockets), query, self.plan(&conf), conf.timeout).await
    }

    /// What needs no server: names of the hosts file and those that RFC 6761 settles.
    fn answer_here(&self, query: &Query) -> Option<Reply> {
        let name = query.domain()?;
        if query.kind() == RecordType::PTR {
            let hosts = self.hosts.view();
            let names = hosts.names(arpa_address(name.as_str())?)?;
            return Some(records::pointers(query, names, HOSTS_TTL));
        }
        match self.known_name(&name)? {
            Known::Never => Some(Reply::empty(query, Rcode::NXDOMAIN)),
            Known::Loopback => Some(records::addresses(query, &LOOPBACK, HOSTS_TTL)),
            Known::Hosts(addresses) => match query.kind() {
                RecordType::A | RecordType::AAAA => Some(records::addresses(query, &addresses, HOSTS_TTL)),
                _ => None,
            },
        }
    }

    fn known_name(&self, name: &Domain) -> Option<Known> {
        if let Some(addresses) = self.hosts.view().addresses(name.as_str()) {
            return Some(Known::Hosts(addresses.to_vec()));
        }
        match name.as_str().rsplit('.').next() {
            Some("localhost") => Some(Known::Loopback),
            Some("invalid") => Some(Known::Never),
            _ => None,
        }
    }

    /// The servers' reply, out of the cache where it has one.
    async fn ask_servers(&self, query: &Query) -> Result<Answer, DnsError> {
        let (conf, generation) = self.conf.view_counted();
        if self.generation.swap(generation, Ordering::Relaxed) != generation {
            // Another network may call other things by the same names.
            self.cache.clear();
        }
        if let Some(Found::Fresh(answer)) = self.cache.find(query, Instant::now()) {
            return Ok(answer);
        }
        let reply = self.flights.join(query.key(), || {
            let query = if conf.edns0 { query.clone().with_edns() } else { query.clone() };
            let (plan, patience) = (self.plan(&conf), conf.timeout);
            let (sockets, cache) = (Arc::clone(&self.sockets), Arc::clone(&self.cache));
            async move {
                let asked = ask_in_turn(sockets, query.clone(), plan, patience);
                let reply = timeout(timeouts::RESOLVE, asked).await;
                let reply = Arc::new(reply.map_err(|_| DnsError::Timeout(timeouts::RESOLVE))??);
                cache.keep(&query, &reply, Instant::now());
                Ok(reply)
            }
        });
        reply.await.unwrap_or(Err(DnsError::Broken)).map(Answer::fresh)
    }

    /// The servers to ask one after the other: each as often as `attempts` says.
    fn plan(&self, conf: &ResolvConf) -> Vec<SocketAddr> {
        let mut servers = conf.servers.clone();
        if conf.rotate {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % servers.len();
            servers.rotate_left(turn);
        }
        servers.repeat(conf.attempts)
    }

    /// The names to try for `name`, in order.
    fn candidates(&self, name: &Domain) -> Vec<Domain> {
        let conf = self.conf.view();
        let dots = name.as_str().matches('.').count();
        let mut candidates = Vec::new();
        if dots == 0 {
            let joined = |suffix: &Domain| Domain::new(&format!("{name}.{suffix}")).ok();
            candidates.extend(conf.search.iter().filter_map(joined));
        }
        let place = if dots >= conf.ndots { 0 } else { candidates.len() };
        candidates.insert(place, name.clone());
        candidates
    }
}

impl Ask for SystemResolver {
    async fn ask(&self, query: Query) -> Result<Answer, DnsError> {
        self.ask_servers(&query).await
    }
}

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, name: &Domain, strategy: Strategy) -> Result<Vec<IpAddr>, ResolveError> {
        let known = match self.known_name(name) {
            Some(Known::Never) => return Err(ResolveError::NotFound),
            Some(Known::Loopback) => Some(LOOPBACK.to_vec()),
            Some(Known::Hosts(addresses)) => Some(addresses),
            None => None,
        };
        if let Some(mut addresses) = known {
            strategy.apply(&mut addresses);
            return if addresses.is_empty() { Err(ResolveError::NoAddress) } else { Ok(addresses) };
        }
        let mut outcome = Err(ResolveError::NotFound);
        for candidate in self.candidates(name) {
            match lookup(&candidate, strategy, self).await {
                // A name that is there without an address says more than one that is not there.
                Err(ResolveError::NotFound) => {}
                Err(ResolveError::NoAddress) => outcome = Err(ResolveError::NoAddress),
                settled => return settled,
            }
        }
        outcome
    }
}

const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// A name that needs no server.
enum Known {
    Hosts(Vec<IpAddr>),
    Loopback,
    Never,
}

/// Asks one server after the other, the next as soon as the one before has failed or had its head start, all within
/// their own time. The first good reply wins; failing that the last bad one.
pub(crate) async fn ask_in_turn(
    sockets: Arc<Sockets>,
    query: Query,
    plan: Vec<SocketAddr>,
    patience: Duration,
) -> Result<Reply, DnsError> {
    let mut plan = plan.into_iter();
    let mut asked = JoinSet::new();
    let mut outcome = Err(DnsError::NoServer);
    loop {
        if let Some(server) = plan.next() {
            let (sockets, query) = (Arc::clone(&sockets), query.clone());
            asked.spawn(async move {
                let exchange = timeout(patience, plain::exchange(&sockets, &query, server));
                exchange.await.unwrap_or(Err(DnsError::Timeout(patience)))
            });
        }
        let joined = if plan.len() == 0 {
            asked.join_next().await
        } else {
            match timeout(HEAD_START, asked.join_next()).await {
                Ok(joined) => joined,
                Err(_) => continue,
            }
        };
        match joined {
            None => return outcome,
            Some(Ok(Ok(reply))) if matches!(reply.rcode(), Rcode::NOERROR | Rcode::NXDOMAIN) => {
                return Ok(reply);
            }
            Some(Ok(Ok(reply))) => outcome = Ok(reply),
            Some(Ok(Err(error))) if outcome.is_err() => outcome = Err(error),
            Some(_) => {}
        }
    }
}

/// The address that a name under `in-addr.arpa` or `ip6.arpa` stands for (RFC 1035 section 3.5, RFC 3596 section 2.5).
#[must_use]
pub fn arpa_address(name: &str) -> Option<IpAddr> {
    if let Some(octets) = name.strip_suffix(".in-addr.arpa") {
        let mut parts: Vec<&str> = octets.split('.').collect();
        parts.reverse();
        return parts.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    }
    let nibbles = name.strip_suffix(".ip6.arpa")?;
    let mut bits = 0u128;
    let mut count = 0;
    for nibble in nibbles.split('.').rev() {
        let digit = u8::from_str_radix(nibble, 16).ok().filter(|_| nibble.len() == 1)?;
        bits = bits << 4 | u128::from(digit);
        count += 1;
    }
    (count == 32).then(|| Ipv6Addr::from_bits(bits).into())
}
