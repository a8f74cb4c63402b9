//! A configuration, running: from options to objects that know each other, started and stopped in order.
//!
//! [`Instance::build`] makes the objects, outbounds before those that dial through them, and opens nothing.
//! [`Instance::start`] opens the sockets. [`Instance::close`] closes them and ends what is left.

mod errors;
mod outbounds;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use culvert_config::Options;
use culvert_core::handshake::{Handshakes, Limits};
use culvert_core::{Dispatch, Flows, Inbound, Resolver, StartError, Tag, timeouts};
use culvert_protocols::table::{InboundCx, Protocol};
use thiserror::Error;
use tokio::task::JoinSet;

use crate::router::Router;
pub use errors::BuildErrors;

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
        unbuilt_sections(options, &mut errors);
        let resolver: Arc<dyn Resolver> = culvert_dns::system();
        let outbounds = outbounds::build(&options.outbounds, &options.route, &resolver, &mut errors);
        let inbounds = build_inbounds(options, &mut errors);
        let Some(outbounds) = outbounds else { return Err(errors) };
        let router = Router::new(&options.route, outbounds.by_tag, outbounds.default, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        let dispatch =
            Dispatch::new(Flows::new(), Handshakes::new(Limits::default()), connections(open_files));
        dispatch.set_router(Arc::new(router));
        Ok(Self { inbounds, dispatch, background: JoinSet::new() })
    }

    /// Opens all sockets. If one cannot be opened, those that were are closed again.
    ///
    /// # Errors
    /// The first inbound that could not start.
    pub async fn start(&mut self) -> Result<(), InstanceError> {
        let (flows, handshakes) = (Arc::clone(self.dispatch.flows()), Arc::clone(self.dispatch.handshakes()));
        self.background.spawn(async move { flows.sweep(give_memory_back).await });
        self.background.spawn(async move { handshakes.sweep().await });
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
            None => Ok(()),
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

    /// The table of live flows.
    #[must_use]
    pub fn flows(&self) -> &Arc<Flows> {
        self.dispatch.flows()
    }

    /// Closes all sockets at once, and the flows after a short grace.
    pub async fn close(self) {
        self.close_inbounds().await;
        self.dispatch.flows().shut_down(timeouts::SHUTDOWN).await;
    }

    async fn close_inbounds(&self) {
        for built in &self.inbounds {
            built.inbound.close().await;
        }
    }
}

/// Frees what a busy time left in pools and in the allocator.
fn give_memory_back() {
    culvert_wire::pool::trim();
    culvert_os::splice::trim();
    culvert_os::process::release_free_memory();
}

/// A connection takes two descriptors, and a pipe while it is spliced; some stay for listeners, logs and look-ups.
fn connections(open_files: u64) -> usize {
    usize::try_from(open_files.saturating_sub(32) / 3).unwrap_or(usize::MAX).max(8)
}

fn build_inbounds(options: &Options, errors: &mut BuildErrors) -> Vec<BuiltInbound> {
    let mut built = Vec::new();
    for (index, one) in options.inbounds.iter().enumerate() {
        let kind = one.kind.name();
        let Some(entry) = Protocol::find(kind).and_then(|protocol| protocol.inbound.as_ref()) else {
            errors.not_built(format!("inbound type `{kind}` (inbounds[{index}] \"{}\")", one.tag));
            continue;
        };
        let cx = InboundCx { tag: Tag::new(kind, one.tag.as_str()) };
        match (entry.build)(&one.kind, cx) {
            Ok(inbound) => {
                let detour = (entry.listen)(&one.kind).and_then(|listen| listen.detour.get());
                built.push(BuiltInbound { inbound, detour: detour.map(str::to_owned) });
            }
            Err(error) => errors.invalid(format!("inbounds[{index}] \"{}\"", one.tag), error),
        }
    }
    built
}

/// Sections that are accepted by `check` but have no engine yet.
fn unbuilt_sections(options: &Options, errors: &mut BuildErrors) {
    let (route, experimental) = (&options.route, &options.experimental);
    let sections = [
        ("dns.servers", !options.dns.servers.is_empty()),
        ("dns.rules", !options.dns.rules.is_empty()),
        ("ntp", options.ntp.enabled),
        ("route.rule_set", !route.rule_set.is_empty()),
        ("route.find_process", route.find_process),
        ("route.find_neighbor", route.find_neighbor),
        ("route.auto_detect_interface", route.auto_detect_interface),
        ("route.default_network_strategy", route.default_network_strategy.is_some()),
        ("endpoints", !options.endpoints.is_empty()),
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
