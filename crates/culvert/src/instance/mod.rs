//! A configuration, running: from options to objects that know each other, started and stopped in order.
//!
//! [`Instance::build`] makes the objects, outbounds before those that dial through them, and opens nothing.
//! [`Instance::start`] opens the sockets. [`Instance::close`] closes them and ends what is left.

mod cache;
mod certificates;
mod errors;
mod http_clients;
mod namespaces;
mod outbounds;

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_acme::Provider;
use culvert_config::Options;
use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::InboundKind;
use culvert_config::value::Mark;
use culvert_core::handshake::{Handshakes, Limits};
use culvert_core::{Dispatch, Flows, Inbound, Outbound, StartError, Tag};
use culvert_protocols::BuildError;
use culvert_protocols::table::{EndpointEntry, InboundCx, Networks, Protocol};
use thiserror::Error;
use tokio::task::JoinSet;

use crate::dns::{self, Dns};
use crate::groups::{Groups, History, Member};
use crate::router::remote::Remotes;
use crate::router::surroundings::Surroundings;
use crate::router::{Router, RuleSetStore};
use crate::services;
use cache::Cache;
use certificates::Certificates;
pub use errors::BuildErrors;
use http_clients::{Base, HttpClients};
use outbounds::Around;
pub(crate) use outbounds::{leading_out, with_defaults};

/// Why a configuration does not run.
#[derive(Debug, Error)]
pub enum InstanceError {
    /// Something it asks for cannot be made.
    #[error(transparent)]
    Build(#[from] BuildErrors),
    /// An inbound could not open its sockets.
    #[error("start inbound")]
    Start(#[from] StartError),
    /// What outlives the program cannot be kept.
    #[error(transparent)]
    Cache(#[from] culvert_cache::OpenError),
}

/// All objects of one configuration.
pub struct Instance {
    inbounds: Vec<BuiltInbound>,
    /// How many of them, from the first on, others dial through.
    first: usize,
    dispatch: Dispatch,
    groups: Groups,
    rule_sets: Arc<RuleSetStore>,
    remotes: Option<Remotes>,
    /// What outlives the program; `None` if nothing is to.
    cache: Option<Cache>,
    dns: Arc<Dns>,
    surroundings: Arc<Surroundings>,
    /// Those that may keep something, to be told of another network.
    outbounds: Vec<Arc<dyn Outbound>>,
    certificates: Vec<Arc<Provider>>,
    /// Sweeps, and whatever else lives as long as the instance.
    background: JoinSet<()>,
}

struct BuiltInbound {
    inbound: Arc<dyn Inbound>,
    /// Tag of the inbound that is given the accepted streams.
    detour: Option<String>,
}

impl Instance {
    /// Makes the objects. `open_files` is how many descriptors the process may have.
    ///
    /// # Errors
    /// Everything that is not built yet or can never work.
    pub fn build(options: &Options, open_files: u64) -> Result<Self, BuildErrors> {
        let mut errors = BuildErrors::default();
        let options = &with_mark(options);
        unbuilt_sections(options, &mut errors);
        namespaces::check(&options.network_namespaces, &mut errors);
        let parts = Parts::build(options, &mut errors);
        let mut certificates =
            parts.as_ref().map(|parts| Certificates::new(options, &parts.base, &mut errors));
        let around = parts.as_ref().map(|parts| {
            let networks: Arc<dyn Networks> = parts.rule_sets.clone();
            InboundsAround { base: &parts.base, networks, marks: marks(options) }
        });
        let inbounds = build_inbounds(options, around.as_ref(), certificates.as_mut(), &mut errors);
        let certificates = certificates.map(Certificates::into_providers).unwrap_or_default();
        let remotes = parts.as_ref().map(|parts| parts.remotes(options, &mut errors));
        let services =
            parts.as_ref().map(|parts| services::build(&options.services, &parts.dns, &mut errors));
        let Some(Parts { router, groups, rule_sets, dns, flows, endpoints, surroundings, base }) = parts
        else {
            return Err(errors);
        };
        if !errors.is_empty() {
            return Err(errors);
        }
        let dispatch = Dispatch::new(flows, Handshakes::new(Limits::default()), connections(open_files));
        dispatch.set_router(Arc::new(router));
        dispatch.watch_servers(servers(options));
        let background = JoinSet::new();
        // Endpoints are there before anybody can want to dial through them.
        let first = endpoints.len();
        let endpoints = endpoints.into_iter().map(|inbound| BuiltInbound { inbound, detour: None });
        let services = services.into_iter().flatten().map(|inbound| BuiltInbound { inbound, detour: None });
        let inbounds = endpoints.chain(inbounds).chain(services).collect();
        let cache = Cache::of(options);
        let outbounds = base.outbounds.into_values().filter_map(|member| match member {
            Member::Outbound(outbound) => Some(outbound),
            Member::Group(_) => None,
        });
        Ok(Self {
            outbounds: outbounds.collect(),
            inbounds,
            first,
            dispatch,
            groups,
            rule_sets,
            remotes,
            cache,
            dns,
            surroundings,
            certificates,
            background,
        })
    }

    /// Opens what can be opened while `before` still runs, whose sockets it goes on with where both ask for the same. After
    /// an error nothing is left of it, and `before` has lost nothing.
    ///
    /// # Errors
    /// The first inbound that could not start.
    pub fn open_after(&self, before: &Self) -> Result<(), InstanceError> {
        let sockets = self.dispatch.sockets();
        sockets.inherit(Arc::clone(before.dispatch.sockets()));
        let opened = self.inbounds.iter().try_for_each(|built| built.inbound.open(sockets));
        sockets.forget_before();
        if opened.is_err() {
            sockets.clear();
        }
        Ok(opened?)
    }

    /// Whether both can run for a moment, so that the one before need not end until this one is known to run.
    #[must_use]
    pub fn can_run_beside(&self, before: &Self) -> bool {
        let is_exclusive =
            |instance: &Self| instance.inbounds.iter().any(|built| built.inbound.is_exclusive());
        let caches_agree = match (&self.cache, &before.cache) {
            (Some(cache), Some(earlier)) => cache.can_be_beside(earlier),
            _ => true,
        };
        !(is_exclusive(self) && is_exclusive(before)) && caches_agree
    }

    /// [`Self::start`] while `before` still runs, whose cache file it goes on with.
    ///
    /// # Errors
    /// As there; `before` has lost nothing then.
    pub async fn start_beside(&mut self, before: &mut Self) -> Result<(), InstanceError> {
        if let (Some(cache), Some(earlier)) = (&mut self.cache, &before.cache) {
            cache.share(earlier, &before.dns);
        }
        self.start().await?;
        if self.cache.as_mut().is_some_and(Cache::take_over) {
            before.cache = None;
        }
        Ok(())
    }

    /// Adds inbounds that were made elsewhere. They are started with the others.
    pub fn extend(&mut self, inbounds: impl IntoIterator<Item = Arc<dyn Inbound>>) {
        self.inbounds.extend(inbounds.into_iter().map(|inbound| BuiltInbound { inbound, detour: None }));
    }

    /// Opens all sockets. If one cannot be opened, those that were are closed again.
    ///
    /// # Errors
    /// The first inbound that could not start.
    pub async fn start(&mut self) -> Result<(), InstanceError> {
        if let Some(cache) = &mut self.cache {
            cache.open(&self.groups, &self.dns).await?;
            if let Some(saving) = cache.saving(&self.dns) {
                self.background.spawn(saving);
            }
        }
        let (flows, handshakes) = (Arc::clone(self.dispatch.flows()), Arc::clone(self.dispatch.handshakes()));
        self.background.spawn(async move { flows.sweep(give_memory_back).await });
        self.background.spawn(async move { handshakes.sweep().await });
        self.background.spawn(Arc::clone(&self.rule_sets).watch());
        let (dns, outbounds) = (Arc::clone(&self.dns), self.outbounds.clone());
        self.background.spawn(Arc::clone(&self.surroundings).watch(move || {
            dns.reconnect();
            outbounds.iter().for_each(|outbound| outbound.network_moved());
        }));
        for group in self.groups.iter() {
            self.background.spawn(Arc::clone(group).run());
        }
        let (first, all) = (self.first, self.inbounds.len());
        let mut started = self.start_inbounds(0..first).await;
        if let Some(remotes) = self.remotes.take().filter(|_| started.is_ok()) {
            let cache = self.cache.as_ref().and_then(Cache::file);
            let mut updates = remotes.start(cache).await;
            self.background.spawn(async move { while updates.join_next().await.is_some() {} });
        }
        if started.is_ok() {
            started = self.start_inbounds(first..all).await;
        }
        match started {
            Ok(()) => {
                // Now that the inbounds have their ports, what is free may be listened on for authorities.
                for provider in &self.certificates {
                    self.background.spawn(Arc::clone(provider).run());
                }
                Ok(())
            }
            Err(error) => {
                self.close_inbounds().await;
                self.dispatch.shut_down(Duration::ZERO).await;
                self.close_cache();
                Err(error.into())
            }
        }
    }

    async fn start_inbounds(&self, range: std::ops::Range<usize>) -> Result<(), StartError> {
        let servers: HashMap<&str, _> = self
            .inbounds
            .iter()
            .filter_map(|built| Some((&*built.inbound.tag().name, built.inbound.stream_server()?)))
            .collect();
        for built in &self.inbounds[range] {
            let dispatch = match built.detour.as_deref().and_then(|tag| servers.get(tag)) {
                Some(server) => self.dispatch.injecting(Arc::clone(server)),
                None => self.dispatch.clone(),
            };
            built.inbound.start(&dispatch).await?;
        }
        Ok(())
    }

    /// The addresses listened on, with the tag of their inbound.
    #[must_use]
    pub fn listening(&self) -> Vec<(Tag, SocketAddr)> {
        let inbounds = self.inbounds.iter().map(|built| &built.inbound);
        inbounds
            .flat_map(|one| one.local_addrs().into_iter().map(|address| (one.tag().clone(), address)))
            .collect()
    }

    /// The groups of outbounds, to be asked and chosen from.
    #[must_use]
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The table of live flows.
    #[must_use]
    pub fn flows(&self) -> &Arc<Flows> {
        self.dispatch.flows()
    }

    /// Closes all sockets at once, and the flows that are still there after `grace`. All addresses are free then.
    pub async fn close(mut self, grace: Duration) {
        self.close_inbounds().await;
        self.dispatch.shut_down(grace).await;
        self.background.shutdown().await;
        self.close_cache();
    }

    fn close_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.close(&self.dns);
        }
    }

    async fn close_inbounds(&self) {
        for built in &self.inbounds {
            built.inbound.close().await;
        }
        self.dispatch.sockets().clear();
    }
}

/// What decides, and what it decides between.
pub(crate) struct Parts {
    pub(crate) router: Router,
    groups: Groups,
    rule_sets: Arc<RuleSetStore>,
    dns: Arc<Dns>,
    flows: Arc<Flows>,
    endpoints: Vec<Arc<dyn Inbound>>,
    surroundings: Arc<Surroundings>,
    /// For what makes requests of its own.
    base: Base,
}

impl Parts {
    /// Makes all of it. `None` if the default outbound could not be built.
    pub(crate) fn build(options: &Options, errors: &mut BuildErrors) -> Option<Self> {
        let (flows, history) = (Flows::new(), Arc::new(History::default()));
        let surroundings = Surroundings::new(&options.route.dhcp_lease_files, &options.endpoints);
        let names = dns::names(options, surroundings.outward());
        let store = culvert_tls::Store::new(culvert_tls::options::store(&options.certificate));
        let around = Around {
            route: &options.route,
            namespaces: &options.network_namespaces,
            names: &names,
            outward: surroundings.outward(),
            flows: &flows,
            store: &store,
            history: &history,
        };
        let outbounds = outbounds::build(&options.outbounds, &options.endpoints, around, errors);
        let rule_sets = Arc::new(RuleSetStore::build(&options.route.rule_set, errors));
        let outbounds = outbounds?;
        let dns = Arc::new(dns::build(
            options,
            &outbounds.by_tag,
            &names,
            &store,
            &rule_sets,
            &surroundings,
            errors,
        ));
        names.set(&dns);
        let groups = Groups::new(outbounds.by_tag.values().filter_map(|member| match member {
            Member::Group(group) => Some(Arc::clone(group)),
            Member::Outbound(_) => None,
        }));
        for group in groups.iter() {
            // Not counted, as servers may dial through the group.
            let dns = Arc::downgrade(&dns);
            group.on_change(move || {
                if let Some(dns) = dns.upgrade() {
                    dns.reconnect();
                }
            });
        }
        let outbounds::Outbounds { by_tag, default, endpoints } = outbounds;
        let outward = surroundings.outward().clone();
        let base = Base { outbounds: by_tag.clone(), default: default.clone(), names, outward, store };
        let (servers, sets) = (Arc::clone(&dns), Arc::clone(&rule_sets));
        let around = Arc::clone(&surroundings);
        let router = Router::new(&options.route, by_tag, default, servers, sets, around, errors);
        Some(Self { router, groups, rule_sets, dns, flows, endpoints, surroundings, base })
    }

    /// Fetches the remote rule-sets once, for whoever wants verdicts without an instance.
    pub(crate) async fn fetch_rule_sets(&self, options: &Options, errors: &mut BuildErrors) {
        drop(self.remotes(options, errors).start(None).await);
    }

    /// The rule-sets that are to be fetched.
    fn remotes(&self, options: &Options, errors: &mut BuildErrors) -> Remotes {
        let mut clients = HttpClients::new(options, &self.base);
        let mut faults = Vec::new();
        let remotes = Remotes::build(
            &options.route.rule_set,
            &self.rule_sets,
            |remote, place| clients.of_rule_set(remote, place, errors),
            |place, reason| faults.push((place.to_owned(), reason)),
        );
        faults.into_iter().for_each(|(place, reason)| errors.invalid(place, reason));
        remotes
    }
}

/// Frees what a busy time left in pools and in the allocator.
fn give_memory_back() {
    culvert_wire::pool::trim();
    culvert_os::splice::trim();
    culvert_os::process::release_free_memory();
    culvert_os::process::release_program_pages();
}

/// Some descriptors stay for listeners, logs and look-ups. Of the others four fifths are for connections, two each, and one
/// for pipes, without which a connection is copied instead of spliced. A client in its handshake takes one, and counts
/// half.
fn connections(open_files: u64) -> usize {
    let fifth = usize::try_from(open_files.saturating_sub(24) / 5).unwrap_or(usize::MAX / 2);
    culvert_os::splice::limit((fifth / 2).max(2));
    (fifth * 2).max(8)
}

/// The servers of outbounds, each with its address, for what is said of those that do not answer.
fn servers(options: &Options) -> impl Iterator<Item = (Tag, String)> {
    let outbounds = options.outbounds.iter();
    outbounds.filter_map(|one| Some((Tag::new(one.kind.name(), one.tag.as_str()), one.server()?)))
}

/// What inbounds are built from besides their options.
struct InboundsAround<'a> {
    base: &'a Base,
    networks: Arc<dyn Networks>,
    marks: Vec<u32>,
}

fn build_inbounds(
    options: &Options,
    around: Option<&InboundsAround<'_>>,
    mut certificates: Option<&mut Certificates<'_>>,
    errors: &mut BuildErrors,
) -> Vec<BuiltInbound> {
    let mut built = Vec::new();
    let dialer = |dial: &DialOptions| match around {
        Some(around) => around.base.dialer(dial, options),
        // What is wrong with the outbounds is told elsewhere.
        None => Err(BuildError::Invalid { option: "detour", reason: "there are no outbounds".to_owned() }),
    };
    for (index, one) in options.inbounds.iter().enumerate() {
        let kind = one.kind.name();
        let place = format!("inbounds[{index}] \"{}\"", one.tag);
        let Some(entry) = Protocol::find(kind).and_then(|protocol| protocol.inbound.as_ref()) else {
            errors.not_built(format!("inbound type `{kind}` ({place})"));
            continue;
        };
        let cx = InboundCx {
            tag: Tag::new(kind, one.tag.as_str()),
            dialer: &dialer,
            networks: around.map(|around| &around.networks),
            marks: around.map_or(&[], |around| &around.marks),
        };
        let mut options_here = one.kind.clone();
        namespaces::resolve_inbound(&mut options_here, &options.network_namespaces);
        // What listeners answer is no traffic of the system's either.
        if let Some(listen) = namespaces::listen_fields(&mut options_here)
            && let Some(mark) = tun_mark(options)
            && listen.routing_mark == Mark::default()
        {
            listen.routing_mark = Mark(mark);
        }
        if let Some(certificates) = &mut certificates
            && !certificates.put_into(&mut options_here, &one.tag, &place, errors)
        {
            continue;
        }
        match (entry.build)(&options_here, cx) {
            Ok(inbound) => {
                let detour = (entry.listen)(&one.kind).and_then(|listen| listen.detour.get());
                built.push(BuiltInbound { inbound, detour: detour.map(str::to_owned) });
            }
            Err(error) => errors.invalid(place, error),
        }
    }
    built
}

/// The options, with the mark for our own sockets that a TUN device with routes needs to tell them from all others.
fn with_mark(options: &Options) -> Cow<'_, Options> {
    match tun_mark(options) {
        Some(mark) if options.route.default_mark == Mark::default() => {
            let mut options = options.clone();
            options.route.default_mark = Mark(mark);
            Cow::Owned(options)
        }
        _ => Cow::Borrowed(options),
    }
}

fn tun_mark(options: &Options) -> Option<u32> {
    options.inbounds.iter().find_map(|inbound| match &inbound.kind {
        InboundKind::Tun(tun) => culvert_protocols::tun::mark(tun),
        _ => None,
    })
}

/// The firewall marks that our own sockets have.
fn marks(options: &Options) -> Vec<u32> {
    let outbounds = options.outbounds.iter().filter_map(|one| {
        let entry = Protocol::find(one.kind.name())?.outbound.as_ref()?;
        (entry.dial)(&one.kind)
    });
    let endpoints = options.endpoints.iter().filter_map(|one| {
        let entry = EndpointEntry::find(one.kind.name())?;
        (entry.dial)(&one.kind)
    });
    let own = outbounds.chain(endpoints).map(|dial| dial.routing_mark);
    own.chain([options.route.default_mark]).map(|mark| mark.0).filter(|mark| *mark != 0).collect()
}

/// Sections that are accepted by `check` but have no engine yet.
fn unbuilt_sections(options: &Options, errors: &mut BuildErrors) {
    let experimental = &options.experimental;
    let route = &options.route;
    for (key, used) in [
        ("default_network_strategy", route.default_network_strategy.is_some()),
        ("default_network_type", !route.default_network_type.is_empty()),
        ("default_fallback_network_type", !route.default_fallback_network_type.is_empty()),
        ("default_fallback_delay", route.default_fallback_delay.get().is_some()),
    ] {
        if used {
            tracing::warn!("`route.{key}` has no effect: interfaces have no type on this system");
        }
    }
    let sections = [
        ("ntp", options.ntp.enabled),
        ("experimental.clash_api", experimental.clash_api.is_some()),
        ("experimental.v2ray_api", experimental.v2ray_api.is_some()),
    ];
    for (section, used) in sections {
        if used {
            errors.not_built(format!("`{section}`"));
        }
    }
}
