//! `redirect` and `tproxy`: clients in a network namespace of their own whose packets nftables turns aside.
//!
//! ```text
//! client namespace          this namespace (of the test)
//! veth c ──────────────── veth s ─▶ nftables ─▶ culvert ─▶ origin on loopback
//! 10.77.0.2, fd77::2        10.77.0.1, fd77::1
//! ```
//!
//! The origin is at any address under 10.99.0.0/16 and fd99::/16: rules lead streams to loopback, and nftables datagrams
//! that leave.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use culvert_testkit::origin::Origin;
use culvert_testkit::peer::{Peer, Program};
use culvert_testkit::ports::Port;
use culvert_testkit::{Result, ensure};
use serde_json::json;

use crate::{culvert, run};

/// A program of the client's side: says what it got back, line by line.
const CLIENT: &str = r#"
import socket, sys
kind, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
family = socket.AF_INET6 if ":" in host else socket.AF_INET
if kind == "tcp":
    s = socket.create_connection((host, port), timeout=10)
    s.sendall(sys.argv[4].encode())
    s.shutdown(socket.SHUT_WR)
    got = b""
    while True:
        part = s.recv(65536)
        if not part: break
        got += part
    print(len(got), got[:200].decode(errors="replace"))
else:
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(10)
    for host in sys.argv[2].split(","):
        for size in (1, 1200, 9000):
            s.sendto(bytes([size % 251]) * size, (host, port))
            data, peer = s.recvfrom(65536)
            print(peer[0], peer[1], data == bytes([size % 251]) * size)
"#;

/// Runs `test` in a network namespace of its own, with loopback up.
pub(crate) fn alone<F: Future<Output = Result>>(name: &str, test: impl FnOnce() -> F) {
    const INSIDE: &str = "CULVERT_TEST_NETWORK";
    if std::env::var_os(INSIDE).is_some() {
        sh("ip link set lo up");
        return run(test());
    }
    if !Command::new("unshare").args(["-n", "true"]).status().is_ok_and(|status| status.success()) {
        return culvert_testkit::peer::skip("no network namespaces here");
    }
    let nft = Command::new("unshare").args(["-n", "nft", "add table ip probe"]).output();
    if !nft.is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CULVERT_REQUIRE_PEERS").is_none(), "nft(8) does not work here");
        return culvert_testkit::peer::skip("no nftables here");
    }
    let this = std::env::current_exe().unwrap();
    let inside = Command::new("unshare")
        .arg("-n")
        .arg(this)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .status();
    assert!(inside.unwrap().success(), "{name} failed inside its network");
}

pub(crate) fn sh(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The client's namespace, which lives as long as its holder.
pub(crate) struct Client(std::process::Child);

impl Client {
    /// A namespace without any link.
    pub(crate) fn holder() -> Result<Self> {
        let holder =
            Command::new("setpriv").args(["--pdeathsig", "KILL", "unshare", "-n", "sleep", "600"]).spawn()?;
        let client = Self(holder);
        let pid = client.0.id();
        let own = std::fs::read_link("/proc/thread-self/ns/net")?;
        let begun = std::time::Instant::now();
        while std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|other| other == own) {
            ensure!(begun.elapsed() < Duration::from_secs(10), "no namespace for the client");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(client)
    }

    /// Makes the namespace and the link to it; everything that is not this namespace's is routed here.
    pub(crate) fn new() -> Self {
        let client = Self::holder().unwrap();
        let pid = client.0.id();
        sh(&format!("ip link add s type veth peer name c netns {pid}"));
        sh("ip address add 10.77.0.1/24 dev s; ip address add fd77::1/64 dev s nodad; ip link set s up");
        client.sh(
            "ip link set lo up; ip address add 10.77.0.2/24 dev c; ip address add fd77::2/64 dev c nodad; \
                   ip link set c up; ip route add default via 10.77.0.1; ip -6 route add default via fd77::1",
        );
        sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        client
    }

    /// The process that holds the namespace.
    pub(crate) fn process(&self) -> String {
        self.0.id().to_string()
    }

    pub(crate) fn sh(&self, command: &str) {
        sh(&format!("nsenter -t {} -n sh -c '{command}'", self.0.id()));
    }

    /// Sends a datagram of 1200 bytes from there, and says how long the answer is.
    pub(crate) fn asks(&self, host: &str, port: u16) -> Result<String> {
        const ASK: &str = "import socket,sys\nf = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET\n\
                           s = socket.socket(f, socket.SOCK_DGRAM)\ns.settimeout(10)\n\
                           s.sendto(bytes(1200), (sys.argv[1], int(sys.argv[2])))\nprint(len(s.recv(65536)))";
        let (pid, port) = (self.process(), port.to_string());
        let output = Command::new("nsenter")
            .args(["-t", pid.as_str(), "-n", "python3", "-c", ASK, host, port.as_str()])
            .output()?;
        ensure!(output.status.success(), "{host}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs the client's program there.
    pub(crate) fn program(&self, arguments: &[&str]) -> Result<String> {
        let pid = self.0.id().to_string();
        let output = Command::new("nsenter")
            .args(["-t", &pid, "-n", "python3", "-c", CLIENT])
            .args(arguments)
            .output()?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn serve(program: &Program, kind: &str, listen: &str, port: &Port) -> Result<Peer> {
    let config = json!({
        "log": { "level": "debug" },
        "inbounds": [{
            "type": kind, "tag": "in", "listen": listen, "listen_port": port.number()
        }],
        "outbounds": [{ "type": "direct", "tag": "out" }],
        "route": { "rules": [
            { "network": "tcp", "ip_cidr": "10.99.0.0/16", "action": "route-options", "override_address": "127.0.0.1" },
            { "network": "tcp", "ip_cidr": "fd99::/16", "action": "route-options", "override_address": "::1" }
        ] }
    });
    program.serve(&config).await
}

/// Asks the origin's echo over TCP from the client's side.
pub(crate) async fn echo(client: &Client, host: &str, port: u16, length: usize) -> Result {
    use culvert_testkit::origin::Service;
    let said = format!("{}{}", Service::Echo.line(), "x".repeat(length));
    let got = client.program(&["tcp", host, &port.to_string(), &said])?;
    ensure!(got.starts_with(&format!("{length} xxx")), "{host}: {got}");
    Ok(())
}

#[test]
fn redirected_streams_reach_their_target() {
    alone("transparent::redirected_streams_reach_their_target", || async {
        let (client, origin, port) = (Client::new(), Origin::start().await?, Port::reserve()?);
        sh(&format!(
            "nft -f - <<'END'\ntable inet t {{ chain c {{ type nat hook prerouting priority dstnat; \
             ip daddr 10.99.0.0/16 meta l4proto tcp redirect to :{0}; \
             ip6 daddr fd99::/16 meta l4proto tcp redirect to :{0}; }}; }}\nEND",
            port.number()
        ));
        let mut peer = serve(&culvert(), "redirect", "::", &port).await?;
        for host in ["10.99.1.2", "fd99::2"] {
            echo(&client, host, origin.port().number(), 100).await?;
            echo(&client, host, origin.port().number(), 90_000).await?;
        }
        // Nobody redirected this one, and its target would be the listener itself.
        let direct = client.program(&["tcp", "10.77.0.1", &port.number().to_string(), "x"]);
        ensure!(direct.is_err() || direct.is_ok_and(|said| said.starts_with("0 ")), "a loop was built");
        let status = peer.stop().await?;
        ensure!(status.code() == Some(0), "stopped with {status}");
        Ok(())
    });
}

#[test]
fn streams_and_datagrams_are_taken_by_tproxy() {
    alone("transparent::streams_and_datagrams_are_taken_by_tproxy", || async {
        let (client, origin, port) = (Client::new(), Origin::start().await?, Port::reserve()?);
        sh(&format!(
            "nft -f - <<'END'\ntable inet t {{ chain c {{ type filter hook prerouting priority mangle; \
             iifname s ip daddr 10.99.0.0/16 meta l4proto {{ tcp, udp }} tproxy ip to :{0} meta mark set 7; \
             iifname s ip6 daddr fd99::/16 meta l4proto {{ tcp, udp }} tproxy ip6 to :{0} meta mark set 7; }}; \
             chain o {{ type nat hook output priority -100; \
             ip daddr 10.99.0.0/16 meta l4proto udp dnat ip to 127.0.0.1; \
             ip6 daddr fd99::/16 meta l4proto udp dnat ip6 to ::1; }}; }}\nEND",
            port.number()
        ));
        for family in ["-4", "-6"] {
            sh(&format!(
                "ip {family} rule add fwmark 7 lookup 100; ip {family} route add local default dev lo table 100"
            ));
        }
        sh("ip route add 10.99.0.0/16 dev lo src 127.0.0.1; ip -6 route add fd99::/16 dev lo src ::1");
        let mut peer = serve(&culvert(), "tproxy", "::", &port).await?;
        for host in ["10.99.1.2", "fd99::2"] {
            echo(&client, host, origin.port().number(), 100).await?;
            echo(&client, host, origin.port().number(), 90_000).await?;
        }
        let udp = origin.port().number();
        // Several targets from one socket: each answer comes from where it was asked.
        for hosts in
            ["10.99.1.2,10.99.3.4,10.99.5.6,10.99.1.7,10.99.1.8,10.99.1.9,10.99.1.2", "fd99::2,fd99::3"]
        {
            let got = client.program(&["udp", hosts, &udp.to_string()])?;
            let expected: Vec<_> = hosts
                .split(',')
                .flat_map(|host| {
                    std::iter::repeat_n(SocketAddr::new(host.parse::<IpAddr>().unwrap(), udp), 3)
                })
                .map(|from| format!("{} {} True", from.ip(), from.port()))
                .collect();
            ensure!(got.lines().eq(expected.iter().map(String::as_str)), "{hosts}: {got}");
        }
        let status = peer.stop().await?;
        ensure!(status.code() == Some(0), "stopped with {status}");
        Ok(())
    });
}

#[test]
fn one_client_with_hundreds_of_targets_takes_few_sockets() {
    alone("transparent::one_client_with_hundreds_of_targets_takes_few_sockets", || async {
        let (client, origin, port) = (Client::new(), Origin::start().await?, Port::reserve()?);
        sh(&format!(
            "nft -f - <<'END'\ntable inet t {{ chain c {{ type filter hook prerouting priority mangle; \
             iifname s ip daddr 10.99.0.0/16 meta l4proto udp tproxy ip to :{0} meta mark set 7; }}; \
             chain o {{ type nat hook output priority -100; \
             ip daddr 10.99.0.0/16 meta l4proto udp dnat ip to 127.0.0.1; }}; }}\nEND",
            port.number()
        ));
        sh("ip rule add fwmark 7 lookup 100; ip route add local default dev lo table 100");
        sh("ip route add 10.99.0.0/16 dev lo src 127.0.0.1");
        let mut peer = serve(&culvert(), "tproxy", "::", &port).await?;
        let hosts: Vec<String> = (0..600).map(|n| format!("10.99.{}.{}", n / 200, n % 200 + 1)).collect();
        let got = client.program(&["udp", &hosts.join(","), &origin.port().number().to_string()])?;
        ensure!(got.lines().count() == 1800 && !got.contains("False"), "{} answers", got.lines().count());
        let usage = peer.usage()?;
        ensure!(usage.descriptors < 60, "{} descriptors for one client", usage.descriptors);
        let status = peer.stop().await?;
        ensure!(status.code() == Some(0), "stopped with {status}");
        Ok(())
    });
}
