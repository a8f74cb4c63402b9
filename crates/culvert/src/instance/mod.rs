//! A configuration, running: from options to objects that know each other, started and stopped in order.
//!
//! [`Instance::build`] makes the objects, outbounds before those that dial through them, and opens nothing.
//! [`Instance::start`] opens the sockets. [`Instance::close`] closes them and ends what is left.

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
use culvert_core::{Dispatch, Flows, Inbound, StartError, Tag};
use culvert_protocols::BuildError;
use culvert_protocols::table::{InboundCx, Protocol};
use thiserror::Error;
use tokio::task::JoinSet;

use crate::dns::{self, Dns};
use crate::groups::{Groups, History, Member};
use crate::router::{Router, RuleSetStore};
use certificates::Certificates;
pub use errors::BuildErrors;
use http_clients::Base;
use outbounds::Around;
pub(crate) use outbounds::with_defaults;

/// Why a configuration does not run.
#[derive(Debug, Error)]
pub enum InstanceError {
    /// Something it asks for cannot be made.
    #[error(transparent)]
    Build(#[from] BuildErrors),
    /// An inbound could not open its sockets.
    #[error("start inbound")]
    Start(#[from] StartError),
}

/// All objects of one configuration.
pub struct Instance {
    inbounds: Vec<BuiltInbound>,
    dispatch: Dispatch,
    groups: Groups,
    rule_sets: Arc<RuleSetStore>,
    /// Kept here: those who ask it do not count themselves.
    _dns: Arc<Dns>,
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
        let base = parts.as_ref().map(|parts| &parts.base);
        let inbounds = build_inbounds(options, base, certificates.as_mut(), &mut errors);
        let certificates = certificates.map(Certificates::into_providers).unwrap_or_default();
        let Some(Parts { router, groups, rule_sets, dns, flows, endpoints, base: _ }) = parts else {
            return Err(errors);
        };
        if !errors.is_empty() {
            return Err(errors);
        }
        let dispatch = Dispatch::new(flows, Handshakes::new(Limits::default()), connections(open_files));
        dispatch.set_router(Arc::new(router));
        let background = JoinSet::new();
        // Endpoints are there before anybody can want to dial through them.
        let endpoints = endpoints.into_iter().map(|inbound| BuiltInbound { inbound, detour: None });
        let inbounds = endpoints.chain(inbounds).collect();
        Ok(Self { inbounds, dispatch, groups, rule_sets, _dns: dns, certificates, background })
    }

    /// Opens all sockets. If one cannot be opened, those that were are closed again.
    ///
    /// # Errors
    /// The first inbound that could not start.
    pub async fn start(&mut self) -> Result<(), InstanceError> {
        let (flows, handshakes) = (Arc::clone(self.dispatch.flows()), Arc::clone(self.dispatch.handshakes()));
        self.background.spawn(async move { flows.sweep(give_memory_back).await });
        self.background.spawn(async move { handshakes.sweep().await });
        self.background.spawn(Arc::clone(&self.rule_sets).watch());
        for group in self.groups.iter() {
            self.background.spawn(Arc::clone(group).run());
        }
        let servers: HashMap<&str, _> = self
            .inbounds
            .iter()
            .filter_map(|built| Some((&*built.inbound.tag().name, built.inbound.stream_server()?)))
            .collect();
        let mut failed = None;
        for built in &self.inbounds {
            let dispatch = match built.detour.as_deref().and_then(|tag| servers.get(tag)) {
                Some(server) => self.dispatch.injecting(Arc::clone(server)),
                None => self.dispatch.clone(),
            };
            if let Err(error) = built.inbound.start(&dispatch).await {
                failed = Some(error);
                break;
            }
        }
        match failed {
            None => {
                // Now that the inbounds have their ports, what is free may be listened on for authorities.
                for provider in &self.certificates {
                    self.background.spawn(Arc::clone(provider).run());
                }
                Ok(())
            }
            Some(error) => {
                self.close_inbounds().await;
                Err(error.into())
            }
        }
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
    pub async fn close(self, grace: Duration) {
        self.close_inbounds().await;
        self.dispatch.shut_down(grace).await;
    }

    async fn close_inbounds(&self) {
        for built in &self.inbounds {
            built.inbound.close().await;
        }
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
    /// For what makes requests of its own.
    base: Base,
}

impl Parts {
    /// Makes all of it. `None` if the default outbound could not be built.
    pub(crate) fn build(options: &Options, errors: &mut BuildErrors) -> Option<Self> {
        let (flows, history) = (Flows::new(), Arc::new(History::default()));
        let names = dns::names(options);
        let store = culvert_tls::Store::new(culvert_tls::options::store(&options.certificate));
        let around = Around {
            route: &options.route,
            namespaces: &options.network_namespaces,
            names: &names,
            flows: &flows,
            store: &store,
            history: &history,
        };
        let outbounds = outbounds::build(&options.outbounds, &options.endpoints, around, errors);
        let rule_sets = Arc::new(RuleSetStore::build(&options.route.rule_set, errors));
        let outbounds = outbounds?;
        let dns = Arc::new(dns::build(options, &outbounds.by_tag, &names, &rule_sets, errors));
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
        let base = Base { outbounds: by_tag.clone(), names, store };
        let (servers, sets) = (Arc::clone(&dns), Arc::clone(&rule_sets));
        let router = Router::new(&options.route, by_tag, default, servers, sets, errors);
        Some(Self { router, groups, rule_sets, dns, flows, endpoints, base })
    }
}

/// Frees what a busy time left in pools and in the allocator.
fn give_memory_back() {
    culvert_wire::pool::trim();
    culvert_os::splice::trim();
    culvert_os::process::release_free_memory();
    culvert_os::process::release_program_pages();
}

/// A connection takes two descriptors, and a pipe while it is spliced; some stay for listeners, logs and look-ups.
fn connections(open_files: u64) -> usize {
    usize::try_from(open_files.saturating_sub(32) / 3).unwrap_or(usize::MAX).max(8)
}

fn build_inbounds(
    options: &Options,
    base: Option<&Base>,
    mut certificates: Option<&mut Certificates<'_>>,
    errors: &mut BuildErrors,
) -> Vec<BuiltInbound> {
    let mut built = Vec::new();
    let dialer = |dial: &DialOptions| match base {
        Some(base) => base.dialer(dial, options),
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
        let cx = InboundCx { tag: Tag::new(kind, one.tag.as_str()), dialer: &dialer };
        let mut options_here = one.kind.clone();
        namespaces::resolve_inbound(&mut options_here, &options.network_namespaces);
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
    let mark = options.inbounds.iter().find_map(|inbound| match &inbound.kind {
        InboundKind::Tun(tun) => culvert_protocols::tun::mark(tun),
        _ => None,
    });
    match mark {
        Some(mark) if options.route.default_mark == Mark::default() => {
            let mut options = options.clone();
            options.route.default_mark = Mark(mark);
            Cow::Owned(options)
        }
        _ => Cow::Borrowed(options),
    }
}

/// Sections that are accepted by `check` but have no engine yet.
fn unbuilt_sections(options: &Options, errors: &mut BuildErrors) {
    let (route, experimental) = (&options.route, &options.experimental);
    if experimental.cache_file.as_ref().is_some_and(|cache| cache.enabled) {
        // Its absence changes no verdict, and nearly every configuration has it.
        tracing::warn!(
            "`experimental.cache_file` is not built yet: choices and fake addresses end with the program"
        );
    }
    let sections = [
        ("ntp", options.ntp.enabled),
        ("route.find_process", route.find_process),
        ("route.find_neighbor", route.find_neighbor),
        ("route.default_network_strategy", route.default_network_strategy.is_some()),
        ("services", !options.services.is_empty()),
        ("experimental.clash_api", experimental.clash_api.is_some()),
        ("experimental.v2ray_api", experimental.v2ray_api.is_some()),
    ];
    for (section, used) in sections {
        if used {
            errors.not_built(format!("`{section}`"));
        }
    }
}
