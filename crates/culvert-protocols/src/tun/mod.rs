//! TUN: a network interface whose packets are taken in. Everything that the system routes there becomes connections and
//! associations like those of any other inbound.
//!
//! ```text
//! device ─packets─▶ netstack (culvert-stack) ─▶ streams, packets ─▶ Dispatch
//! ```
//!
//! | file | |
//! |---|---|
//! | `device.rs` | the interface with its addresses |
//! | `routes.rs` | `auto_route`: routes and rules that lead into it |
//! | `redirect.rs` | `auto_redirect`: TCP diverted before it gets there |
//! | `resolved.rs` | the system's DNS servers |
//! | `link.rs` | a queue of the device under a stack, and the task that receives |
//! | `system.rs`, `nat.rs` | `stack: system` and `mixed`: the kernel's TCP in the place of ours |
//!
//! A client's connection is answered when the outbound has connected (or when a rule wants to sniff it), so that a closed
//! port looks closed and a dead host dead; with `early_accept` it is answered at once. Where the kernel speaks TCP, it is
//! answered at once too, and reset if the dial fails.
//!
//! Sources: SURFACE of sing-box 1.14.4 for the options. `include_package`, `exclude_package` and `include_android_user` mean
//! nothing but on Android, and `platform` nothing but to programs with a window, as in sing-box.

mod device;
mod link;
mod nat;
mod redirect;
mod resolved;
mod routes;
mod system;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use culvert_config::options::inbound::tun::{MacAddress, TunDnsMode, TunInbound, TunStack};
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::nat::NatOptions;
use culvert_config::value::Prefix;
use culvert_core::listener::StreamInbound;
use culvert_core::{Chain, Dispatch, Inbound, StartError, Tag};
use culvert_os::netlink;
use culvert_os::socket::{KeepAlive, TcpListen};
use culvert_os::tun::Tun;
use culvert_rules::ip::{self, IpSet};
use culvert_stack::{Config, Offloads, Stack};
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use self::device::Device;
use self::link::{DeviceLink, Receiving, Turning};
use self::nat::Nat;
use self::redirect::Redirect;
use self::routes::{AutoRoute, others};
use self::system::System;
use crate::nat::UdpNat;
use crate::netstack::{Clients, DeviceOptions, Engine, Gate, Ground};
use crate::table::{BuildInbound, Networks, inbound};
use crate::transparent::{Found, Server};
use crate::{BuildError, InboundCx, Protocol};

/// The table's line.
pub const PROTOCOL: Protocol = Protocol {
    name: "tun",
    inbound: inbound::<TunInbound>(),
    outbound: None,
    fuzz: &[culvert_stack::stack::fuzz_packets, nat::fuzz_turn],
};

/// `auto_redirect_output_mark` when absent; also the mark by which rules know our own sockets.
pub const OUTPUT_MARK: u32 = 0x2024;
/// `auto_redirect_input_mark` when absent.
const INPUT_MARK: u32 = 0x2023;
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
        let mtu = if self.mtu == 0 { MTU } else { self.mtu };
        let Some(mtu) = u16::try_from(mtu).ok().filter(|mtu| *mtu >= 576) else {
            let reason = "has to be between 576 and 65535".to_owned();
            return Err(BuildError::Invalid { option: "mtu", reason });
        };
        let addresses: Vec<_> = self.address.iter().map(prefix).collect();
        let device = Device {
            name: Some(self.interface_name.clone()).filter(|name| !name.is_empty()),
            netns: Some(self.netns.0.clone()).filter(|netns| !netns.is_empty()),
            mtu: mtu.into(),
            auto_route: if self.auto_route { Some(self.auto_route(cx.marks)?) } else { None },
            addresses,
            routed: Mutex::default(),
        };
        let loopback: Vec<_> = self.loopback_address.iter().map(|address| address.ip).collect();
        let system = match self.stack.get() {
            Some(TunStack::System | TunStack::Mixed) => {
                let system =
                    System::new(cx.tag.clone(), device.netns.clone(), &device.addresses, loopback.clone());
                Some(system.map_err(|reason| BuildError::Invalid { option: "stack", reason })?)
            }
            Some(TunStack::Own) | None => None,
        };
        let routed = Routed {
            networks: cx.networks.cloned(),
            include: self.route_address.iter().filter_map(network).collect(),
            exclude: self.route_exclude_address.iter().filter_map(network).collect(),
            include_sets: self.route_address_set.iter().map(|tag| tag.0.clone()).collect(),
            exclude_sets: self.route_exclude_address_set.iter().map(|tag| tag.0.clone()).collect(),
        };
        Ok(Arc::new(Shared(Arc::new(TunListener {
            tag: cx.tag,
            dns: self.dns_servers(),
            redirect: if self.auto_redirect { Some(self.redirect()?) } else { None },
            routed,
            given: Mutex::default(),
            device,
            system,
            loopback,
            mtu,
            udp_timeout: self.udp_timeout.0.get(),
            nat: UdpNat::from(&self.nat),
            early_accept: self.early_accept,
            running: Mutex::new(None),
        }))))
    }
}

trait RouteOptions {
    fn auto_route(&self, marks: &[u32]) -> Result<AutoRoute, BuildError>;
    fn redirect(&self) -> Result<Redirect, BuildError>;
    fn own_mark(&self) -> u32;
    fn asking_mark(&self) -> u32;
    fn takes_dns(&self) -> bool;
    fn dns_servers(&self) -> Vec<IpAddr>;
}

impl RouteOptions for TunInbound {
    fn auto_route(&self, marks: &[u32]) -> Result<AutoRoute, BuildError> {
        /// The system's own tables: default, main, local.
        const SYSTEM: std::ops::RangeInclusive<u32> = 253..=255;
        /// Where the system's own rules begin, and how many places ours may take.
        const END: u32 = 32_766 - 512;
        let number = |option: i64, default: u32| match u32::try_from(option) {
            Ok(number) if number > 0 => number,
            _ => default,
        };
        let (table, priority) =
            (number(self.iproute2_table_index, TABLE), number(self.iproute2_rule_index, PRIORITY));
        if SYSTEM.contains(&table) {
            let reason = format!("{table} is a table of the system itself, where routes would cut it off");
            return Err(BuildError::Invalid { option: "iproute2_table_index", reason });
        }
        if priority > END {
            let reason =
                format!("{priority} is behind or too near to the rules of the system; at most {END}");
            return Err(BuildError::Invalid { option: "iproute2_rule_index", reason });
        }
        let users = |single: &[u32], ranges: &[culvert_config::options::inbound::tun::UidRange]| {
            let ranges = ranges.iter().map(|range| (range.start, range.end));
            single.iter().map(|user| (*user, *user)).chain(ranges).collect::<Vec<_>>()
        };
        let mut exclude_users = users(&self.exclude_uid, &self.exclude_uid_range);
        let include_users = users(&self.include_uid, &self.include_uid_range);
        if !include_users.is_empty() {
            exclude_users.extend(others(include_users));
        }
        let mut marks: Vec<u32> = std::iter::once(self.own_mark()).chain(marks.iter().copied()).collect();
        marks.sort_unstable();
        marks.dedup();
        Ok(AutoRoute {
            table,
            priority,
            marks,
            asking: self.auto_redirect.then(|| self.asking_mark()),
            dns: self.takes_dns(),
            strict: self.strict_route,
            named: !(self.route_address.is_empty() && self.route_address_set.is_empty()),
            include_interfaces: self.include_interface.iter().cloned().collect(),
            exclude_interfaces: self.exclude_interface.iter().cloned().collect(),
            exclude_users,
        })
    }

    fn redirect(&self) -> Result<Redirect, BuildError> {
        let names = |option, names: &[String]| match names.iter().find(|name| !redirect::is_name(name)) {
            Some(name) => {
                let reason = format!("`{name}` is no name of an interface");
                Err(BuildError::Invalid { option, reason })
            }
            None => Ok(names.to_vec()),
        };
        let devices = |option, devices: &[MacAddress]| {
            let text = |device: &MacAddress| match device.bytes.as_slice() {
                bytes if bytes.len() == 6 => {
                    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
                }
                _ => Err(BuildError::Invalid { option, reason: "has to be six bytes long".to_owned() }),
            };
            devices.iter().map(text).collect::<Result<Vec<_>, _>>()
        };
        if !self.interface_name.is_empty() {
            names("interface_name", std::slice::from_ref(&self.interface_name))?;
        }
        if self.own_mark() == self.asking_mark() {
            let reason = "has to differ from `auto_redirect_output_mark`".to_owned();
            return Err(BuildError::Invalid { option: "auto_redirect_input_mark", reason });
        }
        Ok(Redirect {
            mark: self.own_mark(),
            asking: self.asking_mark(),
            include_interfaces: names("include_interface", &self.include_interface)?,
            exclude_interfaces: names("exclude_interface", &self.exclude_interface)?,
            include_devices: devices("include_mac_address", &self.include_mac_address)?,
            exclude_devices: devices("exclude_mac_address", &self.exclude_mac_address)?,
            exclude_mptcp: self.exclude_mptcp,
        })
    }

    fn own_mark(&self) -> u32 {
        if self.auto_redirect_output_mark.0 == 0 { OUTPUT_MARK } else { self.auto_redirect_output_mark.0 }
    }

    fn asking_mark(&self) -> u32 {
        if self.auto_redirect_input_mark.0 == 0 { INPUT_MARK } else { self.auto_redirect_input_mark.0 }
    }

    fn takes_dns(&self) -> bool {
        self.dns_mode.get().is_none_or(|mode| mode == TunDnsMode::Hijack)
    }

    /// The servers that the system is told to ask; none if it is not told.
    fn dns_servers(&self) -> Vec<IpAddr> {
        if !self.auto_route || self.dns_mode.get() == Some(TunDnsMode::Disabled) {
            return Vec::new();
        }
        if self.dns_address.is_empty() {
            return self.address.iter().filter_map(|one| system::next(&prefix(one))).collect();
        }
        self.dns_address.iter().map(|address| address.ip).collect()
    }
}

/// Makes a device with these addresses and leads all traffic of this network namespace into it.
///
/// # Errors
/// What is missing, in words.
pub fn lead_all(addresses: &[netlink::Prefix], mtu: u16) -> io::Result<Tun> {
    const MAIN: u32 = 254;
    let options = DeviceOptions {
        name: None,
        prefix: "tun",
        mtu: mtu.into(),
        addresses,
        instead: "a mixed or socks inbound works without",
    };
    let (tun, link) = options.open().map_err(io::Error::other)?;
    for address in addresses {
        let all = netlink::network(netlink::Prefix { len: 0, ..*address });
        match netlink::add_route(all, link, MAIN) {
            Err(error) if address.ip.is_ipv4() => return Err(error),
            _ => {}
        }
    }
    Ok(tun)
}

/// An inbound of a device that is there already, made by [`lead_all`].
#[must_use]
pub fn given(tag: &str, tun: Tun, addresses: Vec<netlink::Prefix>, mtu: u16) -> Arc<dyn Inbound> {
    let device = Device {
        name: Some(tun.name().to_owned()),
        netns: None,
        mtu: mtu.into(),
        addresses,
        auto_route: None,
        routed: Mutex::default(),
    };
    Arc::new(Shared(Arc::new(TunListener {
        tag: Tag::new("tun", tag),
        device,
        given: Mutex::new(Some(tun)),
        routed: Routed::default(),
        redirect: None,
        dns: Vec::new(),
        system: None,
        loopback: Vec::new(),
        mtu,
        udp_timeout: None,
        nat: UdpNat::from(&NatOptions::default()),
        early_accept: false,
        running: Mutex::new(None),
    })))
}

/// The mark that sockets of the program need so that what they send does not come back in; `None` where nothing is put in
/// the way of the system's traffic.
#[must_use]
pub fn mark(options: &TunInbound) -> Option<u32> {
    options.auto_route.then(|| options.own_mark())
}

fn prefix(option: &Prefix) -> netlink::Prefix {
    netlink::Prefix { ip: option.ip, len: option.length }
}

fn network(option: &Prefix) -> Option<ip::Prefix> {
    ip::Prefix::new(option.ip, option.length).ok()
}

/// What is to be routed, as far as the options say it and the rule-sets that they name.
#[derive(Default)]
struct Routed {
    networks: Option<Arc<dyn Networks>>,
    include: IpSet,
    exclude: IpSet,
    include_sets: Vec<String>,
    exclude_sets: Vec<String>,
}

impl Routed {
    fn targets(&self) -> IpSet {
        let of = |tags: &[String]| match &self.networks {
            Some(networks) if !tags.is_empty() => networks.of(tags),
            _ => IpSet::default(),
        };
        let include = if self.include.is_empty() && self.include_sets.is_empty() {
            let all = [IpAddr::from([0u8; 4]), IpAddr::from([0u16; 8])];
            all.into_iter().filter_map(|ip| ip::Prefix::new(ip, 0).ok()).collect()
        } else {
            self.include.with(&of(&self.include_sets))
        };
        include.without(&self.exclude.with(&of(&self.exclude_sets)))
    }

    fn follows_rule_sets(&self) -> bool {
        !(self.include_sets.is_empty() && self.exclude_sets.is_empty())
    }
}

/// The inbound.
struct TunListener {
    tag: Tag,
    device: Device,
    /// One that somebody else has made, until it is started.
    given: Mutex<Option<Tun>>,
    routed: Routed,
    redirect: Option<Redirect>,
    /// The servers that the system is told to ask.
    dns: Vec<IpAddr>,
    /// `None`: our own stack speaks TCP.
    system: Option<System>,
    loopback: Vec<IpAddr>,
    mtu: u16,
    udp_timeout: Option<Duration>,
    nat: UdpNat,
    early_accept: bool,
    running: Mutex<Option<Running>>,
}

/// What is there between start and close.
struct Running {
    name: String,
    tasks: JoinSet<()>,
    redirected: Vec<StreamInbound>,
}

impl TunListener {
    fn failed(&self, phase: &'static str) -> impl FnOnce(io::Error) -> StartError {
        let tag = self.tag.clone();
        move |source| StartError::Io { tag, phase, source }
    }

    fn config(&self, does: culvert_os::tun::Offloads, dispatch: &Dispatch) -> Config {
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

    /// Serves what comes by the device.
    async fn receive(
        self: &Arc<Self>,
        queues: Vec<Tun>,
        dispatch: &Dispatch,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), StartError> {
        let ground = Ground::Made(self.device.addresses.clone());
        let nat = match &self.system {
            Some(system) => system.start(dispatch).await?,
            None => Nat::new(Vec::new(), self.loopback.clone()),
        };
        let turning = (!nat.is_idle()).then(|| Turning { nat, ground: ground.clone() });
        let clients = Clients::new(dispatch, self.nat);
        for tun in queues {
            let stack = Stack::new(self.config(tun.offloads(), dispatch), Instant::now());
            let name = tun.name().to_owned();
            let link = DeviceLink::new(tun).map_err(self.failed("watch the device"))?;
            let engine = Engine::new(Box::new(link.clone()), stack);
            let (ground, udp_timeout) = (ground.clone(), self.udp_timeout);
            let (tag, clients) = (self.tag.clone(), clients.clone());
            let gate = Gate::new(tag, engine, dispatch.clone(), udp_timeout, ground, clients);
            let gate = gate.accepting_early(self.early_accept);
            let receiving = Receiving::new(link, gate, turning.clone());
            let tag = self.tag.clone();
            tasks.spawn(async move {
                if let Err(error) = receiving.run().await {
                    error!("inbound/{tag}: the device {name} is gone: {error}");
                }
            });
        }
        Ok(())
    }

    /// Listens for what nftables divert, and has them do it. Nothing if there are none: all goes by the device then.
    async fn divert(
        self: &Arc<Self>,
        redirect: &Redirect,
        name: &str,
        dispatch: &Dispatch,
    ) -> Result<Vec<StreamInbound>, StartError> {
        let options = TcpListen {
            netns: self.device.netns.clone(),
            keep_alive: Some(KeepAlive::default()),
            ..TcpListen::default()
        };
        let server = Arc::new(Server::new(Found::BeforeRewriting));
        let any = [SocketAddr::from(([0u16; 8], 0)), SocketAddr::from(([0u8; 4], 0))];
        let listener =
            |address| StreamInbound::new(self.tag.clone(), address, options.clone(), server.clone());
        // One for both families, where there are both.
        let mut listening = listener(any[0]);
        if listening.start(dispatch).await.is_err() {
            listening = listener(any[1]);
            listening.start(dispatch).await?;
        }
        let port = listening.local_addrs().first().map_or(0, SocketAddr::port);
        let (this, name, redirect_here) = (Arc::clone(self), name.to_owned(), redirect.clone());
        let made = tokio::task::spawn_blocking(move || {
            this.device
                .within(|| redirect_here.set_up(&name, port))
                .map_err(|error| Chain(&error).to_string())?
        });
        match made.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(()) => Ok(vec![listening]),
            Err(reason) => {
                listening.close().await;
                if redirect.is_needed() {
                    return Err(self.failed("auto_redirect")(io::Error::other(reason)));
                }
                warn!("inbound/{}: auto_redirect: {reason}; TCP goes by the device instead", self.tag);
                Ok(Vec::new())
            }
        }
    }

    /// Changes the routes when the rule-sets behind them do.
    async fn follow(self: Arc<Self>) {
        let Some(networks) = &self.routed.networks else { return };
        let mut changes = networks.changes();
        // What has changed since the device was made counts too.
        changes.mark_changed();
        while changes.changed().await.is_ok() {
            let this = Arc::clone(&self);
            // Thousands of routes take their time.
            let _ = tokio::task::spawn_blocking(move || this.device.route_to(this.routed.targets())).await;
        }
    }

    async fn set_up(self: &Arc<Self>, dispatch: &Dispatch) -> Result<Running, StartError> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner).take();
        let made =
            given.map_or_else(|| self.device.open(queues(), &self.routed.targets()), |given| Ok(vec![given]));
        let made = made.map_err(io::Error::other).map_err(self.failed("start"))?;
        let name = made[0].name().to_owned();
        let (mut tasks, mut redirected) = (JoinSet::new(), Vec::new());
        let mut started = self.receive(made, dispatch, &mut tasks).await;
        if let Some(redirect) = &self.redirect
            && started.is_ok()
        {
            started = self.divert(redirect, &name, dispatch).await.map(|listeners| redirected = listeners);
        }
        let running = Running { name, tasks, redirected };
        if let Err(error) = started {
            self.undo(running).await;
            return Err(error);
        }
        Ok(running)
    }

    async fn undo(self: &Arc<Self>, mut running: Running) {
        let (this, name) = (Arc::clone(self), running.name.clone());
        let diverted = !running.redirected.is_empty();
        let _ = tokio::task::spawn_blocking(move || {
            if diverted {
                let _ = this.device.within(|| Redirect::remove(&name));
            }
            if !this.dns.is_empty() {
                let _ = this.device.within(|| resolved::unset(&name));
            }
            this.device.close();
        })
        .await;
        for listener in &running.redirected {
            listener.close().await;
        }
        if let Some(system) = &self.system {
            system.close().await;
        }
        running.tasks.shutdown().await;
    }
}

/// One queue for each core, as many as make a difference.
fn queues() -> usize {
    const MOST: usize = 8;
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST)
}

/// The inbound as others hold it.
struct Shared(Arc<TunListener>);

#[async_trait]
impl Inbound for Shared {
    fn tag(&self) -> &Tag {
        &self.0.tag
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    async fn start(&self, dispatch: &Dispatch) -> Result<(), StartError> {
        let this = &self.0;
        let mut running = this.set_up(dispatch).await?;
        info!("inbound/{}: started at {}", this.tag, running.name);
        if this.routed.follows_rule_sets() {
            running.tasks.spawn(Arc::clone(this).follow());
        }
        if !this.dns.is_empty() {
            let (this, name) = (Arc::clone(this), running.name.clone());
            running.tasks.spawn(async move {
                let set = move || drop(this.device.within(|| resolved::set(&name, &this.dns)));
                let _ = tokio::task::spawn_blocking(set).await;
            });
        }
        *this.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        Ok(())
    }

    fn local_addrs(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    async fn close(&self) {
        let running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(running) = running {
            self.0.undo(running).await;
        }
    }
}
