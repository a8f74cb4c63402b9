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

mod files;
pub mod hosts;
pub mod resolv_conf;

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

use crate::DnsError;
use crate::cache::{Cache, CacheOptions, Found};
use crate::flight::Flights;
use crate::message::{Answer, Query, Rcode, RecordType, Reply, records, text};
use crate::plain::{self, Sockets};

use files::Files;

/// How long a silent server is waited for before the next is asked beside it.
const HEAD_START: Duration = Duration::from_secs(1);
/// How long one family's addresses wait for the other's.
const OTHER_FAMILY: Duration = Duration::from_millis(300);
/// How many aliases are followed from server to server.
const MOST_ALIASES: usize = 8;
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
    files: Files,
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
            files: Files::new(options.hosts, options.resolv_conf, options.port),
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
        self.ask(query).await
    }

    /// What needs no server: names of the hosts file and those that RFC 6761 settles.
    fn answer_here(&self, query: &Query) -> Option<Reply> {
        let name = query.domain()?;
        if query.kind() == RecordType::PTR {
            let hosts = self.files.view().hosts;
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
        if let Some(addresses) = self.files.view().hosts.addresses(name.as_str()) {
            return Some(Known::Hosts(addresses.to_vec()));
        }
        match name.as_str().rsplit('.').next() {
            Some("localhost") => Some(Known::Loopback),
            Some("invalid") => Some(Known::Never),
            _ => None,
        }
    }

    /// The servers' reply, out of the cache where it has one.
    async fn ask(&self, query: &Query) -> Result<Answer, DnsError> {
        let view = self.files.view();
        if self.generation.swap(view.generation, Ordering::Relaxed) != view.generation {
            // Another network may call other things by the same names.
            self.cache.clear();
        }
        if let Some(Found::Fresh(answer)) = self.cache.find(query, Instant::now()) {
            return Ok(answer);
        }
        let reply = self.flights.join(query.key(), || {
            let query = if view.conf.edns0 { query.clone().with_edns() } else { query.clone() };
            let plan = self.plan(&view.conf);
            let (sockets, cache) = (Arc::clone(&self.sockets), Arc::clone(&self.cache));
            async move {
                let asked = ask_in_turn(sockets, query.clone(), plan, view.conf.timeout);
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
        let conf = self.files.view().conf;
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

    /// The addresses of exactly this name.
    async fn lookup(&self, name: &Domain, strategy: Strategy) -> Result<Vec<IpAddr>, ResolveError> {
        let family = |kind, ip: IpAddr| async move {
            if strategy.wants(ip) { self.lookup_family(name, kind).await } else { Ok(Vec::new()) }
        };
        let v4 = family(RecordType::A, Ipv4Addr::UNSPECIFIED.into());
        let v6 = family(RecordType::AAAA, Ipv6Addr::UNSPECIFIED.into());
        let (v4, v6) = both(v4, v6).await;
        let mut addresses = Vec::new();
        let mut failure = None;
        for outcome in [v4, v6] {
            match outcome {
                Ok(found) => addresses.extend(found),
                // What a server could not say weighs more than that the name is not there.
                Err(error) if matches!(failure, None | Some(ResolveError::NotFound)) => failure = Some(error),
                Err(_) => {}
            }
        }
        strategy.apply(&mut addresses);
        if addresses.is_empty() { Err(failure.unwrap_or(ResolveError::NoAddress)) } else { Ok(addresses) }
    }

    /// The addresses of one family; none if the name has other records only.
    async fn lookup_family(&self, name: &Domain, kind: RecordType) -> Result<Vec<IpAddr>, ResolveError> {
        let mut name = name.clone();
        for _ in 0..MOST_ALIASES {
            let query = Query::new(&name, kind).map_err(|_| ResolveError::NotFound)?;
            let reply = self.ask(&query).await?.reply;
            match reply.rcode() {
                Rcode::NOERROR => {}
                Rcode::NXDOMAIN => return Err(ResolveError::NotFound),
                other => return Err(ResolveError::Failed(format!("name server answered {other}"))),
            }
            let addresses: Vec<_> = reply.addresses().collect();
            // A server that follows aliases itself says with an SOA that nothing is at their end.
            let end = if reply.lifetime() == 0 { reply.alias_end() } else { None };
            match end.and_then(|end| text(end.as_bytes())) {
                Some(end) if addresses.is_empty() && end != name => name = end,
                _ => return Ok(addresses),
            }
        }
        Err(ResolveError::Failed("too many aliases".into()))
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
            match self.lookup(&candidate, strategy).await {
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
async fn ask_in_turn(
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

/// Waits for both look-ups, but once one has found something, no longer than [`OTHER_FAMILY`] for the other.
async fn both<F4, F6>(v4: F4, v6: F6) -> (Lookup, Lookup)
where
    F4: Future<Output = Lookup>,
    F6: Future<Output = Lookup>,
{
    tokio::pin!(v4, v6);
    let found = |lookup: &Lookup| lookup.as_ref().is_ok_and(|addresses| !addresses.is_empty());
    tokio::select! {
        v4 = &mut v4 => {
            let patience = if found(&v4) { OTHER_FAMILY } else { timeouts::RESOLVE };
            (v4, timeout(patience, v6).await.unwrap_or(Err(ResolveError::Timeout)))
        }
        v6 = &mut v6 => {
            let patience = if found(&v6) { OTHER_FAMILY } else { timeouts::RESOLVE };
            (timeout(patience, v4).await.unwrap_or(Err(ResolveError::Timeout)), v6)
        }
    }
}

type Lookup = Result<Vec<IpAddr>, ResolveError>;

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
