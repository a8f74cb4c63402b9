//! A TUN device, in a network namespace of its own: the system's own TCP and UDP on one side, the origin on the other.
//!
//! Each test runs itself once more under unshare(1), and says so and is skipped where that is not permitted.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use culvert_os::netlink::Prefix;
use culvert_path::{Loss, Shape, link as path};
use culvert_testkit::origin::{self, BANNER, End, Origin, Service, confirmation, fresh_seed, until_end};
use culvert_testkit::peer::Peer;
use culvert_testkit::ports::Port;
use culvert_testkit::{Result, ensure, pattern};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use crate::{culvert, run};

/// Who may speak TCP with the clients.
pub(crate) const STACKS: [&str; 3] = ["gvisor", "system", "mixed"];
/// Longest a step may take.
const STEP: Duration = Duration::from_secs(20);

/// Runs `test`, which goes by this name in this module or, with its module's name before it, in another, in a network
/// namespace of its own, with loopback up.
pub(crate) fn alone<F: Future<Output = Result>>(name: &str, test: impl FnOnce() -> F) {
    const INSIDE: &str = "CULVERT_TEST_NETWORK";
    if std::env::var_os(INSIDE).is_some() {
        ip("link set lo up");
        return run(test());
    }
    if !Command::new("unshare").args(["-n", "true"]).status().is_ok_and(|status| status.success()) {
        return culvert_testkit::peer::skip("no network namespaces here");
    }
    let this = std::env::current_exe().unwrap();
    let name = if name.contains("::") { name.to_owned() } else { format!("tun::{name}") };
    let inside = Command::new("unshare")
        .arg("-n")
        .arg(this)
        .args(["--exact", &name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .status();
    assert!(inside.unwrap().success(), "{name} failed inside its network");
}

pub(crate) fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {arguments}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A running Culvert whose TUN device leads every address to the origin.
pub(crate) struct Network {
    pub(crate) origin: Origin,
    pub(crate) peer: Peer,
}

pub(crate) fn config(tun: Value) -> Value {
    let mut inbound = json!({ "type": "tun", "tag": "tun", "interface_name": "tunt", "address": ["172.19.0.1/30", "fdfe:dcba::1/126"] });
    for (key, value) in tun.as_object().unwrap() {
        inbound[key] = value.clone();
    }
    json!({
        "log": { "level": "debug" },
        "inbounds": [inbound],
        "outbounds": [{ "type": "direct", "tag": "out" }],
        "route": { "rules": [
            { "ip_cidr": "10.99.0.9/32", "action": "reject" },
            { "ip_cidr": "10.99.0.8/32", "action": "reject", "method": "drop" },
            { "ip_cidr": "10.99.0.0/16", "action": "route-options", "override_address": "127.0.0.1" },
            { "ip_cidr": "fd99::/16", "action": "route-options", "override_address": "::1" }
        ] }
    })
}

impl Network {
    async fn start(tun: Value) -> Result<Self> {
        let origin = Origin::start().await?;
        let mut peer = culvert().serve(&config(tun)).await?;
        peer.started().await?;
        Ok(Self { origin, peer })
    }

    /// One whose routes are made by hand.
    pub(crate) async fn routed(tun: Value) -> Result<Self> {
        let network = Self::start(tun).await?;
        ip("route add 10.99.0.0/16 dev tunt");
        ip("-6 route add fd99::/16 dev tunt");
        Ok(network)
    }

    pub(crate) async fn dial(&self, host: &str) -> io::Result<TcpStream> {
        self.dial_port(host, self.origin.port().number()).await
    }

    async fn dial_port(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        tokio::time::timeout(STEP, TcpStream::connect((host, port))).await?
    }

    async fn ask(&self, host: &str, service: Service) -> Result<TcpStream> {
        let mut stream = self.dial(host).await?;
        stream.write_all(service.line().as_bytes()).await?;
        Ok(stream)
    }

    pub(crate) async fn bulk(&self, host: &str, length: u64) -> Result {
        let seed = fresh_seed();
        let mut stream = self.ask(host, Service::Send { seed, length }).await?;
        let received = origin::take(&mut stream, seed, None, |_| ()).await?;
        ensure!(received == length, "{received} of {length} bytes came down");
        stream.shutdown().await?;
        let record = self.origin.ended(seed).await?;
        ensure!(record.end == Some(End::Clean), "at the origin: {record:?}");
        let seed = fresh_seed();
        let mut stream = self.ask(host, Service::Take { seed, length }).await?;
        origin::send(&mut stream, seed, length, |_| ()).await?;
        let mut line = String::new();
        tokio::time::timeout(STEP, stream.read_to_string(&mut line)).await??;
        ensure!(line == confirmation(length), "the origin answered {line:?}");
        Ok(())
    }

    pub(crate) async fn stop(mut self) -> Result {
        let status = self.peer.stop().await?;
        ensure!(status.code() == Some(0), "stopped with {status}");
        Ok(())
    }
}

#[test]
fn streams_carry_every_byte_at_every_mtu() {
    alone("streams_carry_every_byte_at_every_mtu", || async {
        for mtu in [65_535, 9000, 1500, 1280] {
            let network = Network::routed(json!({ "mtu": mtu })).await?;
            for host in ["10.99.1.2", "fd99::2"] {
                network.bulk(host, 64 << 20).await.map_err(|error| format!("mtu {mtu}, {host}: {error}"))?;
            }
            network.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn many_streams_at_once_and_many_one_after_the_other() {
    alone("many_streams_at_once_and_many_one_after_the_other", || async {
        let network = Arc::new(Network::routed(json!({})).await?);
        let mut crowd = JoinSet::new();
        for number in 0..200u64 {
            let network = Arc::clone(&network);
            crowd.spawn(
                async move { network.bulk(&format!("10.99.{}.7", number % 200), 200_000 + number).await },
            );
        }
        while let Some(outcome) = crowd.join_next().await {
            outcome??;
        }
        // Ten thousand, eight at a time.
        let mut crowd = JoinSet::<Result>::new();
        for lane in 0..8u64 {
            let network = Arc::clone(&network);
            crowd.spawn(async move {
                for number in 0..1250 {
                    let (seed, length) = (fresh_seed(), 100 + (number + lane) % 50);
                    let mut stream = network.ask("10.99.3.4", Service::Send { seed, length }).await?;
                    let received = origin::take(&mut stream, seed, None, |_| ()).await?;
                    ensure!(received == length, "{received} bytes");
                }
                Ok(())
            });
        }
        while let Some(outcome) = crowd.join_next().await {
            outcome??;
        }
        Arc::into_inner(network).ok_or("a task is left")?.stop().await
    });
}

/// Half-closes, resets, and a server that speaks first.
async fn ends_and_breaks(network: &Network) -> Result {
    // The client half-closes, and still gets its answer.
    for length in [0, 1, 3 << 20] {
        let seed = fresh_seed();
        let mut stream = network.ask("10.99.1.2", Service::Digest { seed }).await?;
        origin::send(&mut stream, seed, length, |_| ()).await?;
        stream.shutdown().await?;
        let mut line = String::new();
        tokio::time::timeout(STEP, stream.read_to_string(&mut line)).await??;
        ensure!(line == confirmation(length), "the origin answered {line:?}");
    }
    // A reset is a reset, at the other end too.
    let seed = fresh_seed();
    let mut stream = network.ask("10.99.1.2", Service::Watch { seed }).await?;
    let mut ready = [0; 6];
    stream.read_exact(&mut ready).await?;
    origin::reset(stream)?;
    let record = network.origin.ended(seed).await?;
    ensure!(record.end == Some(End::Reset), "the reset arrives as {record:?}");
    // A server that speaks first.
    let banner = (Ipv4Addr::new(10, 99, 1, 2), network.origin.banner_port().number());
    let mut stream = TcpStream::connect(banner).await.map_err(|error| format!("banner, dial: {error}"))?;
    let mut said = vec![0; BANNER.len()];
    let reading = tokio::time::timeout(STEP, stream.read_exact(&mut said));
    reading.await?.map_err(|error| format!("banner: {error}"))?;
    ensure!(said == BANNER, "{said:?}");
    Ok(())
}

#[test]
fn ends_and_breaks_are_what_they_are() {
    alone("ends_and_breaks_are_what_they_are", || async {
        for stack in STACKS {
            let network = Network::routed(json!({ "stack": stack })).await?;
            ends_and_breaks(&network).await.map_err(|error| format!("{stack}: {error}"))?;
            network.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn the_kernels_tcp_carries_every_byte_at_every_mtu() {
    alone("the_kernels_tcp_carries_every_byte_at_every_mtu", || async {
        for (stack, mtu) in [("system", 65_535), ("system", 1500), ("system", 1280), ("mixed", 9000)] {
            let network = Network::routed(json!({ "stack": stack, "mtu": mtu })).await?;
            for host in ["10.99.1.2", "fd99::2"] {
                let moved = network.bulk(host, 16 << 20).await;
                moved.map_err(|error| format!("{stack}, mtu {mtu}, {host}: {error}"))?;
            }
            network.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn many_streams_by_the_kernels_tcp_keep_their_bytes_apart() {
    alone("many_streams_by_the_kernels_tcp_keep_their_bytes_apart", || async {
        let network = Arc::new(Network::routed(json!({ "stack": "system" })).await?);
        let mut crowd = JoinSet::new();
        for number in 0..200u64 {
            let network = Arc::clone(&network);
            crowd.spawn(
                async move { network.bulk(&format!("10.99.{}.7", number % 200), 100_000 + number).await },
            );
        }
        while let Some(outcome) = crowd.join_next().await {
            outcome??;
        }
        // One port of the client to several targets, held open together.
        let port = Port::reserve()?;
        let mut held = Vec::new();
        for last in 1..=20u8 {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.set_reuseport(true)?;
            socket.bind((Ipv4Addr::new(172, 19, 0, 1), port.number()).into())?;
            let target = (Ipv4Addr::new(10, 99, 7, last), network.origin.port().number());
            held.push(tokio::time::timeout(STEP, socket.connect(target.into())).await??);
        }
        for (number, mut stream) in held.into_iter().enumerate() {
            let (seed, length) = (fresh_seed(), 1000 + number as u64);
            stream.write_all(Service::Send { seed, length }.line().as_bytes()).await?;
            let received = origin::take(&mut stream, seed, None, |_| ()).await?;
            ensure!(received == length, "{received} of {length} bytes");
        }
        for number in 0..2000u64 {
            let seed = fresh_seed();
            let mut stream =
                network.ask("10.99.3.4", Service::Send { seed, length: 100 + number % 50 }).await?;
            let received = origin::take(&mut stream, seed, None, |_| ()).await?;
            ensure!(received == 100 + number % 50, "{received} bytes");
        }
        Arc::into_inner(network).ok_or("a task is left")?.stop().await
    });
}

#[test]
fn the_devices_own_network_leads_to_no_service_of_this_host() {
    alone("the_devices_own_network_leads_to_no_service_of_this_host", || async {
        for stack in STACKS {
            let network = Network::routed(json!({ "stack": stack })).await?;
            for host in ["172.19.0.2", "fdfe:dcba::2"] {
                // The origin listens at this port of the loopback addresses.
                let kind = network.dial(host).await.map(drop).map_err(|error| error.kind());
                ensure!(kind == Err(io::ErrorKind::ConnectionRefused), "{stack}, {host}: {kind:?}");
            }
            network.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn a_dial_that_fails_behind_the_kernels_tcp_is_a_reset() {
    alone("a_dial_that_fails_behind_the_kernels_tcp_is_a_reset", || async {
        let network = Network::routed(json!({ "stack": "system" })).await?;
        let nobody = Port::reserve()?;
        for host in ["10.99.1.2", "fd99::2", "10.99.0.9"] {
            // The reset may be quicker than the client.
            let read = match network.dial_port(host, nobody.number()).await {
                Ok(mut stream) => tokio::time::timeout(STEP, stream.read(&mut [0])).await?,
                Err(error) => Err(error),
            };
            let kind = read.map_err(|error| error.kind());
            ensure!(kind == Err(io::ErrorKind::ConnectionReset), "{host}: {kind:?}");
        }
        network.stop().await
    });
}

#[test]
fn a_loopback_address_leads_back_to_who_dials_it() {
    alone("a_loopback_address_leads_back_to_who_dials_it", || async {
        for stack in STACKS {
            let options = json!({ "stack": stack, "loopback_address": ["10.7.0.1", "fd07::1"] });
            let network = Network::start(options).await?;
            ip("route add 10.7.0.1 dev tunt");
            ip("-6 route add fd07::1 dev tunt");
            for (host, any) in [("10.7.0.1", "0.0.0.0:0"), ("fd07::1", "[::]:0")] {
                let listener = tokio::net::TcpListener::bind(any).await?;
                let port = listener.local_addr()?.port();
                let (dialed, accepted) = tokio::time::timeout(STEP, async {
                    tokio::join!(TcpStream::connect((host, port)), listener.accept())
                })
                .await
                .map_err(|_| format!("{stack}: {host} leads nowhere"))?;
                let (mut stream, from) = accepted?;
                ensure!(from.ip().to_canonical() == host.parse::<std::net::IpAddr>()?, "from {from}");
                dialed?.write_all(b"myself").await?;
                let mut said = [0; 6];
                stream.read_exact(&mut said).await?;
                ensure!(&said == b"myself", "{said:?}");
            }
            network.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn a_stack_of_the_kernel_needs_a_second_address() {
    alone("a_stack_of_the_kernel_needs_a_second_address", || async {
        let text = config(json!({ "stack": "system", "address": ["172.19.0.1/32"] })).to_string();
        let finished = culvert().launch(["run", "--disable-color", "-c", "stdin"]).input(text).run().await?;
        ensure!(finished.code == Some(1), "{finished:?}");
        ensure!(finished.stderr.contains("stack: needs one more address"), "{}", finished.stderr);
        Ok(())
    });
}

#[test]
fn closed_ports_look_closed_and_at_once() {
    alone("closed_ports_look_closed_and_at_once", || async {
        let network = Network::routed(json!({})).await?;
        let nobody = Port::reserve()?;
        for host in ["10.99.1.2", "fd99::2", "10.99.0.9", "172.19.0.2"] {
            let started = Instant::now();
            let dialed = tokio::time::timeout(STEP, TcpStream::connect((host, nobody.number()))).await?;
            let kind = dialed.map(drop).unwrap_err().kind();
            ensure!(kind == io::ErrorKind::ConnectionRefused, "{host}: {kind:?}");
            ensure!(started.elapsed() < Duration::from_secs(2), "{host}: after {:?}", started.elapsed());
        }
        network.stop().await
    });
}

#[test]
fn datagrams_of_all_sizes_come_back() {
    alone("datagrams_of_all_sizes_come_back", || async {
        for (mtu, stack) in
            [(65_535, "gvisor"), (1500, "gvisor"), (1400, "gvisor"), (65_535, "system"), (1500, "mixed")]
        {
            let network = Network::routed(json!({ "mtu": mtu, "stack": stack })).await?;
            for (host, local) in [("10.99.1.2", "0.0.0.0:0"), ("fd99::2", "[::]:0")] {
                let socket = UdpSocket::bind(local).await?;
                socket.connect((host, network.origin.port().number())).await?;
                for size in [1, 100, 1472, 1473, 8000, 30_000, 60_000, 65_507] {
                    let sent = pattern::bytes(size as u64, size);
                    socket.send(&sent).await?;
                    let mut buffer = vec![0; 65_536];
                    let length = tokio::time::timeout(STEP, socket.recv(&mut buffer))
                        .await
                        .map_err(|_| format!("mtu {mtu}, {host}: {size} bytes do not come back"))??;
                    ensure!(buffer[..length] == sent, "{host}: {size} bytes come back as {length} others");
                }
            }
            network.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn a_slow_reader_holds_the_sender_back_and_takes_no_memory() {
    alone("a_slow_reader_holds_the_sender_back_and_takes_no_memory", || async {
        let network = Network::routed(json!({})).await?;
        let (seed, length) = (fresh_seed(), 192 << 20);
        let mut stream = network.ask("10.99.1.2", Service::Send { seed, length }).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let memory = network.peer.usage()?.memory;
        ensure!(memory < 64 << 20, "a stalled stream takes {memory} bytes");
        let received = origin::take(&mut stream, seed, None, |_| ()).await?;
        ensure!(received == length, "{received} of {length} bytes");
        network.stop().await
    });
}

#[test]
fn routes_are_made_and_undone_also_after_a_crash() {
    alone("routes_are_made_and_undone_also_after_a_crash", || async {
        let before = ip("rule show") + &ip("-6 rule show");
        let auto = json!({ "auto_route": true, "route_exclude_address": ["192.0.2.0/24"] });
        let mut network = Network::start(auto.clone()).await?;
        // Without a route of the system's.
        network.bulk("10.99.1.2", 1 << 20).await?;
        network.bulk("fd99::2", 1 << 20).await?;
        let excluded = tokio::time::timeout(STEP, TcpStream::connect(("192.0.2.1", 9))).await?;
        ensure!(
            excluded.is_err_and(|error| error.kind() == io::ErrorKind::NetworkUnreachable),
            "an excluded target"
        );
        let during = ip("rule show");
        network.peer.signal("KILL").await?;
        network.peer.ended().await?;
        ensure!(ip("rule show").lines().count() == during.lines().count(), "nobody has cleaned up");
        let network = Network::start(auto).await?;
        ensure!(ip("rule show") == during, "the rules are doubled: {}", ip("rule show"));
        network.bulk("10.99.1.2", 1 << 20).await?;
        network.stop().await?;
        let after = ip("rule show") + &ip("-6 rule show");
        ensure!(after == before, "something stays:\n{after}");
        Ok(())
    });
}

#[test]
fn what_goes_to_nobody_makes_no_loop() {
    alone("what_goes_to_nobody_makes_no_loop", || async {
        for stack in STACKS {
            nobody(stack).await.map_err(|error| format!("{stack}: {error}"))?;
        }
        Ok(())
    });
}

async fn nobody(stack: &str) -> Result {
    let network = Network::start(json!({ "auto_route": true, "stack": stack })).await?;
    let socket = UdpSocket::bind("0.0.0.0:0").await?;
    socket.set_broadcast(true)?;
    for target in [
        "172.19.0.1:9",
        "172.19.0.2:9",
        "172.19.0.3:9",
        "10.255.255.255:7551",
        "224.0.0.251:5353",
        "255.255.255.255:7551",
        "203.0.113.1:9",
    ] {
        for _ in 0..200 {
            let _ = socket.send_to(b"hello?", target).await;
        }
    }
    // Nothing is behind this address, and our own dial must not come back in.
    let mut stream =
        tokio::time::timeout(Duration::from_secs(12), TcpStream::connect("203.0.113.1:80")).await;
    if let Ok(Ok(stream)) = &mut stream {
        // However it ends.
        let _ = until_end(stream).await;
    }
    let usage = network.peer.usage()?;
    ensure!(usage.descriptors < 300, "{} descriptors", usage.descriptors);
    let connections = network.peer.log().text().matches("connection from").count();
    ensure!(connections < 20, "{connections} connections of a few flows");
    network.bulk("10.99.1.2", 1 << 20).await?;
    network.stop().await
}

#[test]
fn thousands_of_one_shot_datagrams_leave_room_for_others() {
    alone("thousands_of_one_shot_datagrams_leave_room_for_others", || async {
        let network = Network::routed(json!({ "udp_timeout": "2s" })).await?;
        let target = ("10.99.1.2", network.origin.port().number());
        let before = network.peer.usage()?;
        let mut crowd = Vec::new();
        for _ in 0..5000 {
            // Each from a port of its own, which is given back at once.
            let socket = UdpSocket::bind("0.0.0.0:0").await?;
            socket.send_to(b"once", target).await?;
            crowd.push(socket);
            if crowd.len() == 200 {
                crowd.clear();
            }
        }
        network.bulk("10.99.1.2", 1 << 20).await?;
        network.bulk("fd99::2", 1 << 20).await?;
        let during = network.peer.usage()?;
        ensure!(during.memory < before.memory + (100 << 20), "{} bytes more", during.memory - before.memory);
        let begun = Instant::now();
        while network.peer.usage()?.descriptors > before.descriptors + 10 {
            ensure!(begun.elapsed() < STEP, "{} descriptors stay", network.peer.usage()?.descriptors);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        network.stop().await
    });
}

#[test]
fn without_the_right_to_make_a_device_it_says_so() {
    alone("without_the_right_to_make_a_device_it_says_so", || async {
        let text = config(json!({})).to_string();
        let folder = culvert_testkit::temp::TempDir::new()?;
        let file = folder.path().join("config.json");
        std::fs::write(&file, text)?;
        let output = Command::new("setpriv")
            .args(["--bounding-set=-net_admin", "--inh-caps=-all", "--reuid=65534", "--clear-groups"])
            .arg(culvert().path())
            .args(["run", "-c"])
            .arg("/dev/stdin")
            .stdin(std::fs::File::open(&file)?)
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1), "{output:?}");
        ensure!(said.contains("CAP_NET_ADMIN") || said.contains("/dev/net/tun"), "{said}");
        Ok(())
    });
}

/// Runs `client` on a thread in a second namespace. Its packets come to ours over an emulated path, and go into the device
/// from there: the kernel's TCP of the one, our stack behind the other. What `client` sends by its channel becomes the MTU
/// of the way back.
///
/// ```text
/// client 10.66.0.2 ─ path ─ 10.66.0.1 [forwarding] ─ tunt ─ our stack ─ origin
/// ```
///
/// The path carries 1500 bytes; the device, as many as `tun` says.
async fn over_a_path<F: Future<Output = Result>>(
    tun: Value,
    shape: Shape,
    client: impl FnOnce(Arc<Network>, UnboundedSender<u32>) -> F + Send + 'static,
) -> Result {
    let network = Arc::new(Network::routed(tun).await?);
    let address = |last: u8| {
        let v6 = Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, last.into());
        [Prefix { ip: Ipv4Addr::new(10, 66, 0, last).into(), len: 24 }, Prefix { ip: v6.into(), len: 64 }]
    };
    let near = path::End::open(1500, &address(1))?;
    let device = near.name().to_owned();
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
    let (narrow, mut narrows) = tokio::sync::mpsc::unbounded_channel();
    let theirs = Arc::clone(&network);
    let client = std::thread::spawn(move || {
        let ran = (|| -> Result {
            culvert_os::netns::isolate_thread()?;
            let far = path::End::open(1500, &address(2))?;
            ip("route add 10.99.0.0/16 via 10.66.0.1");
            ip("-6 route add fd99::/16 via fd66::1");
            let _link = path::Link::join([near, far], [shape.clone(), shape], 7)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(client(theirs, narrow))
        })();
        ran.map_err(|error| error.to_string())
    });
    // Until the client is through and has dropped its end.
    while let Some(mtu) = narrows.recv().await {
        ip(&format!("link set dev {device} mtu {mtu}"));
    }
    client.join().map_err(|_| "the client panicked")??;
    Arc::into_inner(network).ok_or("a task is left")?.stop().await
}

#[test]
fn the_kernels_tcp_gets_every_byte_over_a_bad_path() {
    alone("the_kernels_tcp_gets_every_byte_over_a_bad_path", || async {
        let delay = Duration::from_millis(5);
        let shape = Shape { delay, reorder: 0.1, late: delay, repeat: 0.01, ..Shape::default() };
        over_a_path(json!({ "mtu": 1500 }), shape.losing(Loss::Random(0.02)), |network, _narrow| async move {
            network.bulk("10.99.1.2", 3 << 20).await?;
            // A half-close arrives as one over such a path, too.
            let seed = fresh_seed();
            let mut stream = network.ask("10.99.1.2", Service::Digest { seed }).await?;
            origin::send(&mut stream, seed, 100_000, |_| ()).await?;
            stream.shutdown().await?;
            let mut line = String::new();
            tokio::time::timeout(STEP, stream.read_to_string(&mut line)).await??;
            ensure!(line == confirmation(100_000), "the origin answered {line:?}");
            Ok(())
        })
        .await
    });
}

#[test]
fn packets_that_must_get_shorter_on_the_way_do() {
    alone("packets_that_must_get_shorter_on_the_way_do", || async {
        let shape = Shape { delay: Duration::from_millis(2), ..Shape::default() };
        over_a_path(json!({ "mtu": 1500 }), shape, |network, narrow| async move {
            let (seed, length) = (fresh_seed(), 24 << 20);
            let mut stream = network.ask("10.99.1.2", Service::Send { seed, length }).await?;
            // The way back gets narrow in the middle, and narrower: the system tells our stack by ICMP.
            let mut steps = vec![(4u64 << 20, 1400), (12 << 20, 900)].into_iter().peekable();
            let taking = origin::take(&mut stream, seed, None, |at| {
                while let Some((_, mtu)) = steps.next_if(|(from, _)| at >= *from) {
                    let _ = narrow.send(mtu);
                }
            });
            let received = tokio::time::timeout(Duration::from_secs(60), taking).await??;
            ensure!(received == length, "{received} of {length} bytes came down");
            network.bulk("10.99.1.2", 4 << 20).await
        })
        .await
    });
}

#[test]
fn datagrams_longer_than_the_clients_link_arrive_in_pieces() {
    alone("datagrams_longer_than_the_clients_link_arrive_in_pieces", || async {
        for mtu in [65_535, 9000, 1500] {
            let client = |network: Arc<Network>, _narrow| async move {
                for (host, local) in [("10.99.1.2", "0.0.0.0:0"), ("fd99::2", "[::]:0")] {
                    let socket = UdpSocket::bind(local).await?;
                    socket.connect((host, network.origin.port().number())).await?;
                    for size in [1472, 1473, 4000, 20_000] {
                        let sent = pattern::bytes(size as u64, size);
                        socket.send(&sent).await?;
                        let mut buffer = vec![0; 65_536];
                        let mut received =
                            tokio::time::timeout(Duration::from_secs(2), socket.recv(&mut buffer)).await;
                        if received.is_err() && host.contains(':') {
                            // Nobody but who sends it cuts a packet of IPv6, and learns that it has to by losing one.
                            socket.send(&sent).await?;
                            received = tokio::time::timeout(STEP, socket.recv(&mut buffer)).await;
                        }
                        let length =
                            received.map_err(|_| format!("{host}: {size} bytes do not come back"))??;
                        ensure!(
                            buffer[..length] == sent,
                            "{host}: {size} bytes come back as {length} others"
                        );
                    }
                    many_datagrams(&socket, 2000).await.map_err(|error| format!("{host}: {error}"))?;
                }
                Ok(())
            };
            let carried = over_a_path(json!({ "mtu": mtu }), Shape::default(), client).await;
            carried.map_err(|error| format!("mtu {mtu}: {error}"))?;
        }
        Ok(())
    });
}

/// Sends datagrams of one size, ten at a time, and wants each of them back as it was.
async fn many_datagrams(socket: &UdpSocket, size: usize) -> Result {
    for spell in 0..20u64 {
        let sent: Vec<_> = (0..10).map(|number| pattern::bytes(spell * 10 + number, size)).collect();
        for datagram in &sent {
            socket.send(datagram).await?;
        }
        let mut missing = sent.clone();
        let mut buffer = vec![0; 65_536];
        while !missing.is_empty() {
            let left = missing.len();
            let received = tokio::time::timeout(STEP, socket.recv(&mut buffer)).await;
            let length = received.map_err(|_| format!("spell {spell}: {left} are missing"))??;
            let at = missing.iter().position(|datagram| *datagram == buffer[..length]);
            missing.swap_remove(at.ok_or("a datagram that nobody sent")?);
        }
    }
    Ok(())
}

/// Sends a ping that may go so many hops, and returns the type of the message that comes back about it.
pub(crate) fn ping(host: &str, hops: u32) -> Result<Option<u8>> {
    let socket =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(socket2::Protocol::ICMPV4))?;
    socket.set_read_timeout(Some(Duration::from_secs(3)))?;
    socket.set_ttl_v4(hops)?;
    let target: std::net::IpAddr = host.parse()?;
    let id = u16::from_be_bytes([0x77, u8::try_from(fresh_seed() % 256)?]);
    // Echo request 1 with eight bytes of data; its words add up to what the checksum makes all ones.
    let words = [0x0800u16, 0, id, 1, 0x1234, 0x5678, 0x9abc, 0xdef0];
    let sum = words.iter().map(|word| u32::from(*word)).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    let words = words.iter().enumerate().map(|(at, word)| if at == 1 { sum } else { *word });
    let message: Vec<u8> = words.flat_map(u16::to_be_bytes).collect();
    socket.send_to(&message, &std::net::SocketAddr::new(target, 0).into())?;
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        let mut buffer = vec![0; 2000];
        let Ok(length) = io::Read::read(&mut &socket, &mut buffer) else { return Ok(None) };
        let source = std::net::IpAddr::from([buffer[12], buffer[13], buffer[14], buffer[15]]);
        let answer = &buffer[20..length];
        // An answer has our id; an error quotes our message behind an IP head.
        let place = if answer[0] == 0 { 4 } else { 8 + 20 + 4 };
        let ours = answer.get(place..place + 2) == Some(&id.to_be_bytes()[..]) && answer[0] != 8;
        if ours && source == target {
            let data = answer[0] != 0 || answer[8..] == message[8..];
            ensure!(data, "another ping's answer");
            return Ok(Some(answer[0]));
        }
    }
    Ok(None)
}

#[test]
fn pings_go_where_the_rules_say() {
    alone("pings_go_where_the_rules_say", || async {
        let network = Network::routed(json!({})).await?;
        for (host, kind) in [
            ("10.99.1.2", Some(0)),  // carried by the direct outbound
            ("10.99.0.9", Some(3)),  // rejected: unreachable
            ("10.99.0.8", None),     // dropped: silence
            ("172.19.0.2", Some(3)), // nobody's address in the device's own network
        ] {
            let answer =
                tokio::task::spawn_blocking(move || ping(host, 64).map_err(|error| error.to_string()));
            let answer = answer.await??;
            ensure!(answer == kind, "{host}: {answer:?}");
        }
        network.stop().await
    });
}

#[test]
fn rejected_datagrams_are_answered_by_an_error() {
    alone("rejected_datagrams_are_answered_by_an_error", || async {
        let network = Network::routed(json!({})).await?;
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        socket.connect("10.99.0.9:443").await?;
        socket.send(b"hello?").await?;
        let answer = tokio::time::timeout(STEP, socket.recv(&mut [0; 10])).await?;
        let kind = answer.map(drop).unwrap_err().kind();
        ensure!(kind == io::ErrorKind::ConnectionRefused, "{kind:?}");
        network.stop().await
    });
}

#[test]
fn with_early_accept_a_client_need_not_wait() {
    alone("with_early_accept_a_client_need_not_wait", || async {
        let network = Network::routed(json!({ "early_accept": true })).await?;
        network.bulk("10.99.1.2", 1 << 20).await?;
        // Nobody listens there, which shows only afterwards: not as a refusal but as a reset, of which a client that looks
        // late is told when it asks whether it is connected.
        let nobody = Port::reserve()?;
        let read = match TcpStream::connect(("10.99.1.2", nobody.number())).await {
            Ok(mut stream) => tokio::time::timeout(STEP, stream.read(&mut [0; 1])).await?,
            Err(error) => Err(error),
        };
        ensure!(read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset), "{read:?}");
        network.stop().await
    });
}
