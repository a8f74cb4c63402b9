//! The `dns` section at work: its servers behind their caches, its rules, and who asks them.
//!
//! | module | holds |
//! |---|---|
//! | [`mod@build`] | servers out of options, in any order of their detours |
//! | [`policy`] | the rules: which server answers, and how |
//! | [`rejected`] | what has passed no rule |
//! | [`answer`] | an answer as rules look at it |
//!
//! Outbounds exist before the servers, which may dial through them; they ask by a [`Names`], which finds the servers once
//! they are there.

mod answer;
mod build;
mod policy;
mod rejected;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use culvert_cache::CacheFile;
use culvert_config::options::dial::DomainResolver;
use culvert_config::value::Subnet as SubnetOption;
use culvert_core::{EndReason, Handler, Io, ResolveError, Resolver, Session, Strategy, Tag};
use culvert_dns::message::edns::Subnet;
use culvert_dns::resolved::{Links, Manager};
use culvert_dns::{Client, ClientSubnet, DnsRouter, Exchange, QueryOptions, hijack};
use culvert_protocols::fields::dial::strategy;
use culvert_wire::Domain;
use tracing::debug;

pub(crate) use build::{build, names};
use policy::{Policy, Shared};

/// The servers and rules of a configuration.
pub(crate) struct Dns {
    router: Arc<DnsRouter>,
    policy: Arc<Policy>,
    /// What services of type `resolved` are told, by their tags.
    links: HashMap<String, Arc<Links>>,
}

impl Dns {
    fn new(router: Arc<DnsRouter>, policy: Arc<Policy>, links: HashMap<String, Arc<Links>>) -> Self {
        Self { router, policy, links }
    }

    /// What a service of type `resolved` has on the bus.
    pub(crate) fn manager(&self, service: &Tag) -> Manager {
        let links = self.links.get(&*service.name).cloned().unwrap_or_default();
        Manager::new(service.clone(), links, Arc::clone(&self.router))
    }

    /// Serves clients that were bound for some DNS server.
    pub(crate) fn handler(&self) -> Arc<dyn Handler> {
        Arc::new(Hijack(Arc::clone(&self.router)))
    }

    /// The name behind an address, where one is known.
    ///
    /// # Errors
    /// The address is a fake one that nobody was given.
    pub(crate) fn name_of(&self, ip: IpAddr) -> Result<Option<Domain>, &'static str> {
        self.router.name_of(ip).map_err(|_| "missing fakeip record, try enable experimental.cache_file")
    }

    /// Whether an address lies in a fake range.
    pub(crate) fn is_fake(&self, ip: IpAddr) -> bool {
        self.router.fake.as_ref().is_some_and(|fake| fake.contains(ip))
    }

    /// Whether there are fake addresses at all.
    pub(crate) fn has_fake(&self) -> bool {
        self.router.fake.is_some()
    }

    /// Lets the fake addresses outlive the program.
    pub(crate) fn keep_fake_in(&self, file: &Arc<CacheFile>) {
        if let Some(fake) = &self.router.fake {
            fake.keep_in(Arc::clone(file) as _);
        }
    }

    /// Lets answers outlive the program: takes those that are there. Those to come are written by [`Dns::save_answers`].
    pub(crate) fn restore_answers(&self, file: &CacheFile) {
        for (tag, client) in &self.router.clients {
            if let Some(saved) = file.answers(tag) {
                client.restore_cache(&saved);
            }
        }
    }

    /// Writes the answers of all servers that have new ones.
    pub(crate) fn save_answers(&self, file: &CacheFile) {
        for (tag, client) in &self.router.clients {
            if let Some(saved) = client.save_cache() {
                file.set_answers(tag, saved);
            }
        }
    }

    /// Lets what has passed no rule outlive the program.
    pub(crate) fn keep_rejected_in(&self, file: &Arc<CacheFile>, timeout: Option<Duration>) {
        self.policy.rejected.keep_in(file, timeout);
    }

    /// Gives up the connections of all servers, since what they lead through has changed.
    pub(crate) fn reconnect(&self) {
        for client in self.router.clients.values() {
            client.server().reset();
        }
    }

    /// Has the rules tell from now on what they make of questions.
    pub(crate) fn tell(&self) {
        let _ = self.policy.told.set(Mutex::default());
    }

    /// What they have told since the last call.
    pub(crate) fn told(&self) -> Vec<String> {
        let told = self.policy.told.get();
        told.map(|told| std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner)))
            .unwrap_or_default()
    }

    /// A way to look names up: by the server of this tag, or by the rules.
    pub(crate) fn scope(&self, server: Option<&str>, changes: &QueryChanges) -> Scope {
        let mut options = self.router.options.clone();
        changes.apply(&mut options);
        match server {
            None if *changes == QueryChanges::default() => Scope::Rules(Arc::clone(&self.router)),
            None => Scope::Rules(Arc::new(DnsRouter {
                clients: self.router.clients.clone(),
                default: self.router.default.clone(),
                options,
                policy: Box::new(Shared(Arc::clone(&self.policy))),
                reverse: None,
                fake: self.router.fake.clone(),
            })),
            Some(tag) => match self.router.client(tag) {
                Some(client) => Scope::Server(client.clone(), options),
                None => Scope::Missing(tag.to_owned()),
            },
        }
    }
}

/// Who looks a name up.
pub(crate) enum Scope {
    /// The rules decide.
    Rules(Arc<DnsRouter>),
    /// One server.
    Server(Client, QueryOptions),
    /// A server that does not exist.
    Missing(String),
}

impl Scope {
    /// The addresses of `name`.
    pub(crate) async fn lookup(
        &self,
        name: &Domain,
        strategy: Strategy,
        session: &Session,
    ) -> Result<Vec<IpAddr>, ResolveError> {
        match self {
            Self::Rules(router) => router.lookup(name, strategy, Some(session)).await,
            Self::Server(client, options) => client.lookup(name, strategy, options).await,
            Self::Missing(tag) => Err(ResolveError::Failed(format!("DNS server not found: {tag}"))),
        }
    }
}

/// What a rule or an option changes about a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QueryChanges {
    pub(crate) timeout: Option<Duration>,
    pub(crate) disable_cache: bool,
    pub(crate) disable_optimistic_cache: bool,
    pub(crate) rewrite_ttl: Option<u32>,
    pub(crate) client_subnet: Option<ClientSubnet>,
    pub(crate) strategy: Option<Strategy>,
}

impl QueryChanges {
    /// The subnet of an option.
    pub(crate) fn subnet(option: &SubnetOption) -> ClientSubnet {
        ClientSubnet::Set(Subnet::new(option.0.ip, option.0.length))
    }

    fn apply(&self, options: &mut QueryOptions) {
        options.timeout = self.timeout.unwrap_or(options.timeout);
        options.disable_cache |= self.disable_cache;
        options.disable_optimistic_cache |= self.disable_optimistic_cache;
        options.rewrite_ttl = self.rewrite_ttl.or(options.rewrite_ttl);
        options.client_subnet = self.client_subnet.unwrap_or(options.client_subnet);
        options.strategy = self.strategy.unwrap_or(options.strategy);
    }
}

impl From<&DomainResolver> for QueryChanges {
    fn from(DomainResolver(options): &DomainResolver) -> Self {
        Self {
            timeout: options.timeout.get(),
            disable_cache: options.disable_cache,
            disable_optimistic_cache: options.disable_optimistic_cache,
            rewrite_ttl: options.rewrite_ttl,
            client_subnet: options.client_subnet.as_ref().map(Self::subnet),
            strategy: Some(strategy(options.strategy)).filter(|strategy| *strategy != Strategy::AsIs),
        }
    }
}

/// Makes the resolvers of dialers before the servers exist.
#[derive(Clone)]
pub(crate) struct Names {
    /// Not counted: the servers may dial through the very outbounds that hold this.
    router: Arc<OnceLock<Weak<DnsRouter>>>,
    /// Whether the rules are asked where no server is named; with one server at most, it is asked itself.
    by_rules: bool,
    /// Asked in place of everything where the section is empty.
    system: Option<Arc<dyn Resolver>>,
}

impl Names {
    /// The resolver of a dialer with this `domain_resolver`.
    pub(crate) fn resolver(&self, domain_resolver: Option<&DomainResolver>) -> Arc<dyn Resolver> {
        let server = domain_resolver.map(|resolver| (resolver.0.server.0.clone(), resolver.into()));
        match (&self.system, server) {
            (Some(system), _) => Arc::clone(system),
            (None, server) => {
                Arc::new(Late { router: Arc::clone(&self.router), by_rules: self.by_rules, server })
            }
        }
    }

    /// From here on resolvers find the servers.
    pub(crate) fn set(&self, dns: &Dns) {
        let _ = self.router.set(Arc::downgrade(&dns.router));
    }
}

/// A resolver that finds its servers when it is first asked.
struct Late {
    router: Arc<OnceLock<Weak<DnsRouter>>>,
    by_rules: bool,
    server: Option<(String, QueryChanges)>,
}

/// What [`Late`] asks.
enum Asked {
    Rules(Arc<DnsRouter>),
    Server(Client, QueryOptions),
}

impl Late {
    fn asked(&self) -> Result<Asked, ResolveError> {
        let Some(router) = self.router.get().and_then(Weak::upgrade) else {
            return Err(ResolveError::Failed("DNS servers are not running".to_owned()));
        };
        Ok(match &self.server {
            None if self.by_rules => Asked::Rules(router),
            None => Asked::Server(router.default.clone(), router.options.clone()),
            Some((tag, changes)) => {
                let Some(client) = router.client(tag) else {
                    return Err(ResolveError::Failed(format!("DNS server not found: {tag}")));
                };
                let mut options = router.options.clone();
                changes.apply(&mut options);
                Asked::Server(client.clone(), options)
            }
        })
    }
}

#[async_trait]
impl Resolver for Late {
    async fn resolve(&self, name: &Domain, strategy: Strategy) -> Result<Vec<IpAddr>, ResolveError> {
        match self.asked()? {
            Asked::Rules(router) => router.lookup(name, strategy, None).await,
            Asked::Server(client, options) => client.lookup(name, strategy, &options).await,
        }
    }

    async fn ech_configs(&self, name: &Domain) -> Result<Vec<Vec<u8>>, ResolveError> {
        match self.asked()? {
            Asked::Rules(router) => router.ech_configs(name).await,
            Asked::Server(client, options) => client.ech_configs(name, &options).await,
        }
    }
}

/// Answers what was bound for some DNS server.
struct Hijack(Arc<DnsRouter>);

#[async_trait]
impl Handler for Hijack {
    fn name(&self) -> &'static str {
        "dns"
    }

    async fn serve(&self, session: Session, io: Io) -> EndReason {
        let exchange = Arc::clone(&self.0) as Arc<dyn Exchange>;
        let (id, session) = (session.id, Arc::new(session));
        let served = match io {
            Io::Stream(conn) => hijack::serve_stream(conn, exchange, session).await,
            Io::Packets(conn) => hijack::serve_packets(conn, exchange, session).await,
        };
        match served {
            Ok(()) => EndReason::Finished,
            Err(error) => {
                debug!(conn = id.get(), "DNS client: {error}");
                EndReason::Reset
            }
        }
    }
}
