//! DNS servers out of options.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use culvert_config::Options;
use culvert_config::Tagged;
use culvert_config::options::dial::DialOptions;
use culvert_config::options::dns::DnsOptions;
use culvert_config::options::dns::server::{DnsServerKind, LocalDnsServer};
use culvert_config::options::route::RouteOptions;
use culvert_config::options::service::ServiceKind;
use culvert_core::{Chain, Dialer, Outbound, Resolver, Tag};
use culvert_dns::cache::CacheOptions;
use culvert_dns::plain::Sockets;
use culvert_dns::resolved::Links;
use culvert_dns::reverse::ReverseMapping;
use culvert_dns::server::fakeip::FakeAddresses;
use culvert_dns::server::local::LocalServer;
use culvert_dns::server::{BuildError, ServerCx, ServerEntry};
use culvert_dns::{Client, DnsRouter, DnsServer, SystemOptions, SystemResolver};
use culvert_os::iface::Outward;
use culvert_protocols::fields::dial::dialer;
use culvert_tls::Store;

use super::policy::{Policy, Shared, query_options};
use super::{Dns, Names};
use crate::groups::Member;
use crate::instance::{BuildErrors, leading_out, with_defaults};
use crate::router::RuleSetStore;
use crate::router::surroundings::Surroundings;

/// How long past its time an answer may be served with `optimistic` (sing-box 1.14.4).
const OPTIMISTIC: Duration = Duration::from_secs(3 * 24 * 3600);

/// The resolvers of dialers, for servers that are built later.
pub(crate) fn names(options: &Options, outward: &Outward) -> Names {
    let dns = &options.dns;
    let is_empty = dns.servers.is_empty() && dns.rules.is_empty() && *dns == DnsOptions::default();
    let system = is_empty.then(|| system(&options.route, outward) as Arc<dyn Resolver>);
    Names { router: Arc::default(), by_rules: dns.servers.len() > 1, system }
}

/// The system's resolver, by sockets with the marks of all sockets.
pub(crate) fn system(route: &RouteOptions, outward: &Outward) -> Arc<SystemResolver> {
    let none = Arc::new(SystemResolver::new(SystemOptions::default()));
    let dial = with_defaults(DialOptions::default(), route, &[]);
    match dialer(&dial, false, Arc::clone(&none) as Arc<dyn Resolver>, None) {
        Ok(dialer) => by_sockets_of(&leading_out(dialer, route, outward)),
        Err(_) => none,
    }
}

fn by_sockets_of(dialer: &Dialer) -> Arc<SystemResolver> {
    let sockets = Sockets { tcp: dialer.tcp.clone(), udp: dialer.udp.clone() };
    Arc::new(SystemResolver::new(SystemOptions { sockets, ..SystemOptions::default() }))
}

/// Builds all servers and rules. What is not built yet or can never work is noted in `errors`.
pub(crate) fn build(
    options: &Options,
    outbounds: &HashMap<String, Member>,
    names: &Names,
    store: &Arc<Store>,
    rule_sets: &Arc<RuleSetStore>,
    surroundings: &Arc<Surroundings>,
    errors: &mut BuildErrors,
) -> Dns {
    let dns = &options.dns;
    let is_resolved = |one: &&Tagged<ServiceKind>| matches!(one.kind, ServiceKind::Resolved(_));
    let links: HashMap<_, _> =
        options.services.iter().filter(is_resolved).map(|one| (one.tag.clone(), Arc::default())).collect();
    let mut builder =
        Builder { options, outbounds, names, store, surroundings, links: &links, fake: None, errors };
    let mut clients = HashMap::new();
    let cache = cache(dns);
    for (index, one) in dns.servers.iter().enumerate() {
        if let Some(server) = builder.server(index, one) {
            clients.insert(Arc::from(one.tag.as_str()), Client::new(server, cache));
        }
    }
    let fake = builder.fake.take();
    let default = dns.final_server.get().or(dns.servers.first().map(|first| &*first.tag));
    let default = default.and_then(|tag| clients.get(tag)).cloned().unwrap_or_else(|| {
        // Only without servers; where one could not be built, nothing runs.
        let local =
            LocalServer::new(Tag::new("local", "local"), system(&options.route, surroundings.outward()));
        Client::new(Arc::new(local), cache)
    });
    if default.server().tag().kind == "fakeip" {
        errors.invalid("dns", "default server cannot be fakeip");
    }
    let is_fake = |one: &&Tagged<DnsServerKind>| matches!(one.kind, DnsServerKind::FakeIp(_));
    let fake_tags = dns.servers.iter().filter(is_fake).map(|one| one.tag.clone()).collect();
    let policy = Arc::new(Policy::build(&dns.rules, fake_tags, rule_sets, surroundings, errors));
    let router = DnsRouter {
        clients,
        default,
        options: query_options(dns),
        policy: Box::new(Shared(Arc::clone(&policy))),
        reverse: dns.reverse_mapping.then(ReverseMapping::default),
        fake,
    };
    Dns::new(Arc::new(router), policy, links)
}

fn cache(dns: &DnsOptions) -> Option<CacheOptions> {
    let optimistic = dns.optimistic.as_ref().filter(|optimistic| optimistic.0.enabled);
    (!dns.disable_cache).then(|| CacheOptions {
        capacity: dns.cache_capacity as usize,
        disable_expire: dns.disable_expire,
        optimistic: optimistic.map(|optimistic| optimistic.0.timeout.or(OPTIMISTIC)),
    })
}

struct Builder<'a> {
    options: &'a Options,
    outbounds: &'a HashMap<String, Member>,
    names: &'a Names,
    store: &'a Arc<Store>,
    surroundings: &'a Surroundings,
    links: &'a HashMap<String, Arc<Links>>,
    fake: Option<Arc<FakeAddresses>>,
    errors: &'a mut BuildErrors,
}

impl Builder<'_> {
    fn server(&mut self, index: usize, one: &Tagged<DnsServerKind>) -> Option<Arc<dyn DnsServer>> {
        let (kind, place) = (one.kind.name(), format!("dns.servers[{index}] \"{}\"", one.tag));
        let entry = ServerEntry::find(kind)?;
        let dial = (entry.dial)(&one.kind).cloned().unwrap_or_default();
        let dial = with_defaults(dial, &self.options.route, &self.options.network_namespaces);
        if let DnsServerKind::Local(local) = &one.kind {
            self.check_local(local, &place);
        }
        let detour = match dial.detour.get() {
            None => None,
            Some(tag) => Some(self.detour(tag, &place)?),
        };
        if let DnsServerKind::FakeIp(fake) = &one.kind {
            match FakeAddresses::from_options(fake) {
                Ok(addresses) => self.fake = Some(Arc::new(addresses)),
                Err(error) => self.errors.invalid(&place, error),
            }
        }
        let resolver = self.names.resolver(dial.domain_resolver.as_ref());
        let dialer = match dialer(&dial, false, resolver, detour) {
            Ok(dialer) => leading_out(dialer, &self.options.route, self.surroundings.outward()),
            Err(error) => {
                self.errors.invalid(place, error);
                return None;
            }
        };
        let system = by_sockets_of(&dialer);
        let links = match &one.kind {
            DnsServerKind::Resolved(resolved) => self.links.get(&resolved.service.0).cloned(),
            _ => None,
        };
        let cx = ServerCx {
            tag: Tag::new(kind, one.tag.as_str()),
            dialer,
            system,
            store: Arc::clone(self.store),
            fake: self.fake.clone(),
            links,
        };
        match (entry.build)(&one.kind, cx) {
            Ok(server) => Some(server),
            Err(BuildError::NotBuilt(kind)) => {
                self.errors.not_built(format!("DNS server type `{kind}` ({place})"));
                None
            }
            Err(BuildError::OptionNotBuilt(option)) => {
                self.errors.not_built(format!("`{option}` of a DNS server ({place})"));
                None
            }
            Err(error) => {
                self.errors.invalid(place, Chain(&error));
                None
            }
        }
    }

    fn detour(&mut self, tag: &str, place: &str) -> Option<Arc<dyn Outbound>> {
        let found = self.outbounds.get(tag).map(Member::outbound);
        if found.is_none() {
            self.errors.invalid(place, format!("detour `{tag}` does not exist"));
        }
        found
    }

    /// What the system's resolver cannot do by itself.
    fn check_local(&mut self, local: &LocalDnsServer, place: &str) {
        let dial = &local.dial;
        let unbuilt = [
            ("detour", dial.detour.get().is_some()),
            ("inet4_bind_address", dial.inet4_bind_address.is_some()),
            ("inet6_bind_address", dial.inet6_bind_address.is_some()),
            ("neighbor_domain", !local.local.neighbor_domain.is_empty()),
        ];
        for (key, used) in unbuilt {
            if used {
                self.errors.not_built(format!("`{key}` of a local DNS server ({place})"));
            }
        }
    }
}
