//! TUN: a network interface whose packets are taken in. Everything that the system routes there becomes connections and
//! associations like those of any other inbound.
//!
//! ```text
//! device ─packets─▶ netstack (culvert-stack) ─▶ streams, packets ─▶ Dispatch
//! ```
//!
//! | file | |
//! |---|---|
//! | `device.rs` | the interface, its addresses, routes and rules |
//! | `link.rs` | a queue of the device under a stack, and the task that receives |
//!
//! A client's connection is answered when the outbound has connected (or when a rule wants to sniff it), so that a closed
//! port looks closed and a dead host dead; with `early_accept` it is answered at once.
//!
//! Sources: SURFACE of sing-box 1.14.4 for the options. Not built yet: `auto_redirect`, rule-sets as routes, Android's
//! options, setting the system's DNS servers; the stacks `system` and `mixed` are served by our own, which does the same.

mod device;
mod link;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use culvert_config::options::inbound::tun::{TunDnsMode, TunInbound};
use culvert_config::options::listen::ListenOptions;
use culvert_config::value::Prefix;
use culvert_core::{Dispatch, Inbound, StartError, Tag};
use culvert_os::{netlink, tun};
use culvert_stack::{Config, Offloads, Stack};
use tokio::task::JoinSet;
use tracing::{error, info};

use self::device::{AutoRoute, Device, others};
use self::link::{DeviceLink, Receiving};
use crate::netstack::{Clients, Engine, Gate, Ground};
use crate::table::{BuildInbound, inbound};
use crate::{BuildError, InboundCx, Protocol};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "tun",
    inbound: inbound::<TunInbound>(),
    outbound: None,
    fuzz: &[culvert_stack::stack::fuzz_packets],
};

/// `auto_redirect_output_mark` when absent; also the mark by which rules know our own sockets.
pub const OUTPUT_MARK: u32 = 0x2024;
/// `mtu` when absent.
const MTU: u32 = 65_535;
/// `iproute2_table_index` and `iproute2_rule_index` when absent.
const TABLE: u32 = 2022;
const PRIORITY: u32 = 9000;

impl BuildInbound for TunInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        None
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let unbuilt = [
            ("auto_redirect", self.auto_redirect),
            ("route_address_set", !self.route_address_set.is_empty()),
            ("route_exclude_address_set", !self.route_exclude_address_set.is_empty()),
            ("loopback_address", !self.loopback_address.is_empty()),
            ("include_package", !self.include_package.is_empty() || !self.exclude_package.is_empty()),
            ("include_android_user", !self.include_android_user.is_empty()),
            (
                "include_mac_address",
                !self.include_mac_address.is_empty() || !self.exclude_mac_address.is_empty(),
            ),
        ];
        if let Some((option, _)) = unbuilt.into_iter().find(|(_, used)| *used) {
            return Err(cx.not_built(option));
        }
        let mtu = if self.mtu == 0 { MTU } else { self.mtu };
        let Some(mtu) = u16::try_from(mtu).ok().filter(|mtu| *mtu >= 576) else {
            let reason = "has to be between 576 and 65535".to_owned();
            return Err(BuildError::Invalid { option: "mtu", reason });
        };
        let addresses: Vec<_> = self.address.iter().map(prefix).collect();
        let dns = self.dns_mode.get().is_none_or(|mode| mode == TunDnsMode::Hijack);
        let device = Device {
            name: Some(self.interface_name.clone()).filter(|name| !name.is_empty()),
            netns: Some(self.netns.0.clone()).filter(|netns| !netns.is_empty()),
            mtu: mtu.into(),
            auto_route: self.auto_route.then(|| self.auto_route(dns)),
            addresses,
        };
        Ok(Arc::new(TunListener {
            tag: cx.tag,
            device,
            mtu,
            udp_timeout: self.udp_timeout.0.get(),
            early_accept: self.early_accept,
            running: Mutex::new(None),
        }))
    }
}

trait AutoRouteOptions {
    fn auto_route(&self, dns: bool) -> AutoRoute;
}

impl AutoRouteOptions for TunInbound {
    fn auto_route(&self, dns: bool) -> AutoRoute {
        let number = |option: i64, default: u32| match u32::try_from(option) {
            Ok(number) if number > 0 => number,
            _ => default,
        };
        let users = |single: &[u32], ranges: &[culvert_config::options::inbound::tun::UidRange]| {
            let ranges = ranges.iter().map(|range| (range.start, range.end));
            single.iter().map(|user| (*user, *user)).chain(ranges).collect::<Vec<_>>()
        };
        let mut exclude_users = users(&self.exclude_uid, &self.exclude_uid_range);
        let include_users = users(&self.include_uid, &self.include_uid_range);
        if !include_users.is_empty() {
            exclude_users.extend(others(include_users));
        }
        AutoRoute {
            table: number(self.iproute2_table_index, TABLE),
            priority: number(self.iproute2_rule_index, PRIORITY),
            mark: if self.auto_redirect_output_mark.0 == 0 {
                OUTPUT_MARK
            } else {
                self.auto_redirect_output_mark.0
            },
            dns,
            strict: self.strict_route,
            include: self.route_address.iter().map(prefix).collect(),
            exclude: self.route_exclude_address.iter().map(prefix).collect(),
            include_interfaces: self.include_interface.iter().cloned().collect(),
            exclude_interfaces: self.exclude_interface.iter().cloned().collect(),
            exclude_users,
        }
    }
}

/// The mark that sockets of the program need so that what they send does not come back in; `None` where nothing is put in
/// the way of the system's traffic.
#[must_use]
pub fn mark(options: &TunInbound) -> Option<u32> {
    options.auto_route.then(|| options.auto_route(false).mark)
}

fn prefix(option: &Prefix) -> netlink::Prefix {
    netlink::Prefix { ip: option.ip, len: option.length }
}

/// The inbound.
struct TunListener {
    tag: Tag,
    device: Device,
    mtu: u16,
    udp_timeout: Option<Duration>,
    early_accept: bool,
    running: Mutex<Option<JoinSet<()>>>,
}

impl TunListener {
    fn config(&self, does: tun::Offloads, dispatch: &Dispatch) -> Config {
        Config {
            mtu: self.mtu,
            offloads: Offloads { checksum: does.tcp, tcp_segment: does.tcp, udp_segment: does.udp },
            // There is no network on the way to the client, only memory.
            initial_window: 1 << 20,
            connections: dispatch.limit(),
            time_wait: Duration::from_secs(1),
            ..Config::default()
        }
    }
}

/// One queue for each core, as many as make a difference.
fn queues() -> usize {
    const MOST: usize = 8;
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST)
}

#[async_trait]
impl Inbound for TunListener {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    async fn start(&self, dispatch: &Dispatch) -> Result<(), StartError> {
        let failed = |phase| move |source| StartError::Io { tag: self.tag.clone(), phase, source };
        let queues = self.device.open(queues()).map_err(io::Error::other).map_err(failed("start"))?;
        let name = queues[0].name().to_owned();
        let clients = Clients::new(dispatch);
        let mut tasks = JoinSet::new();
        for tun in queues {
            let stack = Stack::new(self.config(tun.offloads(), dispatch), Instant::now());
            let link = DeviceLink::new(tun).map_err(failed("watch the device"))?;
            let engine = Engine::new(Box::new(link.clone()), stack);
            let ground = Ground::Made(self.device.addresses.clone());
            let gate = Gate::new(self.tag.clone(), engine, dispatch.clone(), self.udp_timeout, ground);
            let gate = gate.with_clients(clients.clone()).accepting_early(self.early_accept);
            let receiving = Receiving::new(link, gate);
            let (tag, name) = (self.tag.clone(), name.clone());
            tasks.spawn(async move {
                if let Err(error) = receiving.run().await {
                    error!("inbound/{tag}: the device {name} is gone: {error}");
                }
            });
        }
        info!("inbound/{}: started at {name}", self.tag);
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(tasks);
        Ok(())
    }

    fn local_addrs(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    async fn close(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut tasks) = running {
            tasks.shutdown().await;
            self.device.close();
        }
    }
}
