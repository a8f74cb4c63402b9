//! Which protocols are measured: one entry each, giving both ends' configuration.
//!
//! ```text
//! load generator ─SOCKS─▶ client program ─protocol─▶ server program ─TCP─▶ load generator
//! load generator ─SOCKS─▶ program ─TCP─▶ load generator                       (one-program entries)
//! ```
//!
//! To add a protocol, add an entry to [`PROTOCOLS`]. All passwords and keys are for these runs alone.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::identity::{Identity, SERVER_NAME};
use crate::relay::Cipher;

/// A Shadowsocks entry: only method and password differ.
macro_rules! shadowsocks {
    ($name:literal, $method:literal, $password:expr) => {
        two(
            $name,
            |_| json!({ "type": "shadowsocks", "method": $method, "password": $password }),
            |_| json!({ "type": "shadowsocks", "method": $method, "password": $password }),
        )
    .without_floor()
    .sealed(Cipher::Aes128Gcm)
    };
    ($name:literal, $method:literal, $password:expr, $cipher:ident) => {
        shadowsocks!($name, $method, $password).sealed(Cipher::$cipher)
    };
}

/// What an entry may put into its configuration.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Where the load generator enters: the listen port of the client program.
    pub(crate) entry_port: u16,
    /// Where the server program listens, as both programs know it.
    pub(crate) server: Ipv4Addr,
    pub(crate) server_port: u16,
    /// For servers of two parts.
    pub(crate) inner_port: u16,
    /// The load generator's own server. Where a protocol borrows a site's handshake, this is the site.
    pub(crate) target: SocketAddr,
    /// What clients and servers are told about the path between them, in Mbit/s.
    pub(crate) bandwidth: u32,
    /// What TLS servers show and clients trust.
    pub(crate) identity: Identity,
}

impl Setup {
    /// With ports and paths that only show what a configuration looks like.
    pub(crate) fn example() -> Self {
        Self {
            entry_port: 1080,
            server: Ipv4Addr::LOCALHOST,
            server_port: 8443,
            inner_port: 8444,
            target: SocketAddr::from((Ipv4Addr::LOCALHOST, 9000)),
            bandwidth: 100,
            identity: Identity::example(Path::new("/tmp/culvert-bench")),
        }
    }
}

/// How the load generator talks to the entry port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Entry {
    /// SOCKS5 without a password.
    Socks,
    /// The same, where the program is told a name for the target.
    SocksName(&'static str),
    /// A plain connection: the program already knows the target.
    Plain,
}

/// The programs an entry needs.
enum Ends {
    /// One program with this inbound and a direct outbound.
    One { inbound: Part },
    /// Two programs: a SOCKS inbound leads to `outbound`, and `inbound` of the other program to a direct outbound.
    Two { outbound: Part, inbound: Part },
    /// Two programs that hold endpoints: the client's and the server's.
    Endpoints { client: Part, server: Part },
}

/// The least that has to be done to payload, whoever does it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Floor {
    /// Nothing: the kernel can move it.
    Kernel,
    /// It is sealed once and opened once.
    Cipher(Cipher),
    /// More than a relay over TCP shows.
    Unknown,
}

/// An inbound or outbound, or several of which the first is the one that the others serve. Tags, addresses and ports are
/// filled in unless the entry has its own.
type Part = fn(&Setup) -> Value;

/// One line of the table.
pub(crate) struct Protocol {
    /// What `--protocol` takes.
    pub(crate) name: &'static str,
    /// What tables show.
    pub(crate) title: &'static str,
    pub(crate) entry: Entry,
    pub(crate) floor: Floor,
    /// What the streams carry.
    pub(crate) inner: Inner,
    /// The target's address as clients ask for it, where it is another.
    pub(crate) inside: Option<Ipv4Addr>,
    /// Whether it is measured where no protocol was asked for.
    by_default: bool,
    ends: Ends,
}

/// What streams carry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Inner {
    Plain,
    /// A TLS 1.3 handshake and then its records.
    Tls,
}

/// What `--quick` measures.
const QUICK: &[&str] = &["direct", "socks", "ss2022-aes-128-gcm", "vless-tls", "hysteria2"];

/// Every protocol, in the order of the tables.
pub(crate) const PROTOCOLS: &[Protocol] = &[
    Protocol {
        name: "direct",
        title: "direct-in → direct",
        entry: Entry::Plain,
        floor: Floor::Kernel,
        inner: Inner::Plain,
        inside: None,
        by_default: true,
        ends: Ends::One {
            inbound: |s| {
                let (address, port) = (s.target.ip(), s.target.port());
                json!({ "type": "direct", "network": "tcp", "override_address": address, "override_port": port })
            },
        },
    },
    Protocol {
        name: "socks",
        title: "socks → direct",
        entry: Entry::Socks,
        floor: Floor::Kernel,
        inner: Inner::Plain,
        inside: None,
        by_default: true,
        ends: Ends::One { inbound: |_| json!({ "type": "socks" }) },
    },
    two("socks-hop", |_| json!({ "type": "socks" }), |_| json!({ "type": "socks" })),
    two("http-hop", |_| json!({ "type": "http" }), |_| json!({ "type": "http" })),
    shadowsocks!("ss-none", "none", PASSWORD),
    shadowsocks!("ss-aes-128-gcm", "aes-128-gcm", PASSWORD, Aes128Gcm),
    shadowsocks!("ss-aes-192-gcm", "aes-192-gcm", PASSWORD, Aes192Gcm),
    shadowsocks!("ss-aes-256-gcm", "aes-256-gcm", PASSWORD, Aes256Gcm),
    shadowsocks!("ss-chacha20", "chacha20-ietf-poly1305", PASSWORD, Chacha20Poly1305),
    shadowsocks!("ss-xchacha20", "xchacha20-ietf-poly1305", PASSWORD, Chacha20Poly1305),
    shadowsocks!("ss2022-aes-128-gcm", "2022-blake3-aes-128-gcm", KEY_16, Aes128Gcm),
    shadowsocks!("ss2022-aes-256-gcm", "2022-blake3-aes-256-gcm", KEY_32, Aes256Gcm),
    shadowsocks!("ss2022-chacha20", "2022-blake3-chacha20-poly1305", KEY_32, Chacha20Poly1305),
    two("vless", |_| vless(), |_| vless_server()),
    two("vmess-aes-128-gcm", |_| vmess("aes-128-gcm"), |_| vmess_server()).sealed(Cipher::Aes128Gcm),
    two("vmess-chacha20", |_| vmess("chacha20-poly1305"), |_| vmess_server())
        .sealed(Cipher::Chacha20Poly1305),
    two("vless-tls", |s| with(vless(), client_tls(s)), |s| with(vless_server(), server_tls(s))),
    two("vmess-tls", |s| with(vmess("zero"), client_tls(s)), |s| with(vmess_server(), server_tls(s)))
        .sealed(Cipher::Aes128Gcm),
    two("trojan-tls", |s| with(trojan(), client_tls(s)), |s| with(trojan_server(), server_tls(s)))
        .sealed(Cipher::Aes128Gcm),
    two("vless-vision", vision_client, vision_server).sealed(Cipher::Aes128Gcm),
    two("vless-vision-inner-tls", vision_client, vision_server).carrying(Inner::Tls),
    two(
        "vless-vision-reality",
        |_| with(with(vless(), vision()), client_reality()),
        |s| with(with(vless_server(), vision_users()), server_reality(s)),
    )
    .sealed(Cipher::Aes128Gcm),
    two(
        "vless-vision-reality-inner-tls",
        |_| with(with(vless(), vision()), client_reality()),
        |s| with(with(vless_server(), vision_users()), server_reality(s)),
    )
    .carrying(Inner::Tls),
    two("anytls", |s| with(anytls(), client_tls(s)), |s| with(anytls_server(), server_tls(s)))
        .sealed(Cipher::Aes128Gcm),
    two("anytls-reality", |_| with(anytls(), client_reality()), |s| with(anytls_server(), server_reality(s)))
        .sealed(Cipher::Aes128Gcm),
    two("shadowtls-v3", shadowtls, shadowtls_server).sealed(Cipher::Aes128Gcm),
    two("vless-ws", |_| with(vless(), transport("ws")), |_| with(vless_server(), transport("ws"))),
    two(
        "vless-ws-tls",
        |s| with(with(vless(), transport("ws")), client_tls(s)),
        |s| with(with(vless_server(), transport("ws")), server_tls(s)),
    )
    .sealed(Cipher::Aes128Gcm),
    two(
        "vless-grpc-tls",
        |s| with(with(vless(), transport("grpc")), client_tls(s)),
        |s| with(with(vless_server(), transport("grpc")), server_tls(s)),
    )
    .sealed(Cipher::Aes128Gcm),
    two(
        "vless-http-tls",
        |s| with(with(vless(), transport("http")), client_tls(s)),
        |s| with(with(vless_server(), transport("http")), server_tls(s)),
    )
    .sealed(Cipher::Aes128Gcm),
    two(
        "vless-httpupgrade",
        |_| with(vless(), transport("httpupgrade")),
        |_| with(vless_server(), transport("httpupgrade")),
    ),
    two("vless-smux", |_| with(vless(), mux("smux")), |_| with(vless_server(), mux_server())),
    two("vless-yamux", |_| with(vless(), mux("yamux")), |_| with(vless_server(), mux_server())),
    two("vless-h2mux", |_| with(vless(), mux("h2mux")), |_| with(vless_server(), mux_server())),
    two("hysteria2", |s| with(hysteria2(), client_tls(s)), |s| with(hysteria2_server(), server_tls(s)))
        .without_floor(),
    two(
        "hysteria2-salamander",
        |s| with(with(hysteria2(), salamander()), client_tls(s)),
        |s| with(with(hysteria2_server(), salamander()), server_tls(s)),
    )
    .without_floor(),
    two(
        "hysteria2-brutal",
        |s| with(with(hysteria2(), bandwidth(s)), client_tls(s)),
        |s| with(hysteria2_server(), server_tls(s)),
    )
    .without_floor()
    .on_demand(),
    two("tuic", |s| tuic("bbr", s), |s| tuic_server("bbr", s)).without_floor(),
    two("tuic-cubic", |s| tuic("cubic", s), |s| tuic_server("cubic", s)).without_floor().on_demand(),
    Protocol {
        inside: Some(INSIDE),
        ends: Ends::Endpoints { client: wireguard, server: wireguard_server },
        ..two("wireguard", wireguard, wireguard_server).without_floor()
    },
];

pub(crate) const PASSWORD: &str = "for benchmarks only";
pub(crate) const UUID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";
/// Base64 of 16 and of 32 bytes.
pub(crate) const KEY_16: &str = "MDEyMzQ1Njc4OWFiY2RlZg==";
pub(crate) const KEY_32: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
pub(crate) const VISION: &str = "xtls-rprx-vision";
/// Of REALITY.
const PRIVATE_KEY: &str = "iL9cKjRqiG1pgOLNlzu0YlrdQlYkuUbdBHRSa0-fA2M";
const PUBLIC_KEY: &str = "8ArWVcY-iIYDiKnxlNs11SBM-n3-7utASpo47ItTBFo";
const SHORT_ID: &str = "0123456789abcdef";
/// Of the WireGuard tunnel's two ends: the private one and the one that the other end knows.
pub(crate) const SERVER_KEYS: [&str; 2] =
    ["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "j0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8="];
pub(crate) const CLIENT_KEYS: [&str; 2] =
    ["ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=", "NYBy1jZYgNGu6jKa35EhODhR7SGijjt16WXQ0s0WYlQ="];
/// The server's and the client's address in that tunnel.
pub(crate) const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
pub(crate) const INSIDE_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);

const fn two(name: &'static str, outbound: Part, inbound: Part) -> Protocol {
    Protocol {
        name,
        title: name,
        entry: Entry::Socks,
        floor: Floor::Kernel,
        inner: Inner::Plain,
        inside: None,
        by_default: true,
        ends: Ends::Two { outbound, inbound },
    }
}

impl Protocol {
    /// With payload sealed and opened once by `cipher`. TLS programs here agree on AES-128-GCM.
    const fn sealed(self, cipher: Cipher) -> Self {
        Self { floor: Floor::Cipher(cipher), ..self }
    }

    const fn without_floor(self) -> Self {
        Self { floor: Floor::Unknown, ..self }
    }

    const fn carrying(self, inner: Inner) -> Self {
        Self { inner, ..self }
    }

    /// Only where it is asked for by name.
    const fn on_demand(self) -> Self {
        Self { by_default: false, ..self }
    }
}

fn vless() -> Value {
    json!({ "type": "vless", "uuid": UUID })
}

fn vless_server() -> Value {
    json!({ "type": "vless", "users": [{ "uuid": UUID }] })
}

fn vmess(security: &str) -> Value {
    json!({ "type": "vmess", "uuid": UUID, "security": security })
}

fn vmess_server() -> Value {
    json!({ "type": "vmess", "users": [{ "uuid": UUID }] })
}

fn trojan() -> Value {
    json!({ "type": "trojan", "password": PASSWORD })
}

fn trojan_server() -> Value {
    json!({ "type": "trojan", "users": [{ "password": PASSWORD }] })
}

fn hysteria2() -> Value {
    json!({ "type": "hysteria2", "password": PASSWORD })
}

fn hysteria2_server() -> Value {
    json!({ "type": "hysteria2", "users": [{ "password": PASSWORD }] })
}

fn vision() -> Value {
    json!({ "flow": VISION })
}

fn vision_users() -> Value {
    json!({ "users": [{ "uuid": UUID, "flow": VISION }] })
}

fn vision_client(setup: &Setup) -> Value {
    with(with(vless(), vision()), client_tls(setup))
}

fn vision_server(setup: &Setup) -> Value {
    with(with(vless_server(), vision_users()), server_tls(setup))
}

fn anytls() -> Value {
    json!({ "type": "anytls", "password": PASSWORD })
}

fn anytls_server() -> Value {
    json!({ "type": "anytls", "users": [{ "password": PASSWORD }] })
}

/// Shadowsocks inside, as the protocol is used.
fn shadowtls(_: &Setup) -> Value {
    json!([
        { "type": "shadowsocks", "method": "aes-128-gcm", "password": PASSWORD, "detour": "cover" },
        {
            "type": "shadowtls", "tag": "cover", "version": 3, "password": PASSWORD,
            "tls": { "enabled": true, "server_name": SERVER_NAME, "insecure": true },
        },
    ])
}

fn shadowtls_server(setup: &Setup) -> Value {
    json!([
        {
            "type": "shadowtls", "version": 3, "users": [{ "name": "bench", "password": PASSWORD }],
            "handshake": { "server": setup.target.ip(), "server_port": setup.target.port() }, "detour": "inner",
        },
        {
            "type": "shadowsocks", "tag": "inner", "listen": "127.0.0.1", "listen_port": setup.inner_port,
            "method": "aes-128-gcm", "password": PASSWORD,
        },
    ])
}

fn tuic(congestion_control: &str, setup: &Setup) -> Value {
    let tuic = json!({
        "type": "tuic", "uuid": UUID, "password": PASSWORD, "congestion_control": congestion_control,
    });
    with(with(tuic, client_tls(setup)), json!({ "tls": { "alpn": "h3" } }))
}

fn tuic_server(congestion_control: &str, setup: &Setup) -> Value {
    let users = json!([{ "uuid": UUID, "password": PASSWORD }]);
    let tuic = json!({ "type": "tuic", "users": users, "congestion_control": congestion_control });
    with(with(tuic, server_tls(setup)), json!({ "tls": { "alpn": "h3" } }))
}

fn bandwidth(setup: &Setup) -> Value {
    json!({ "up_mbps": setup.bandwidth, "down_mbps": setup.bandwidth })
}

fn wireguard(setup: &Setup) -> Value {
    json!({
        "type": "wireguard", "address": [format!("{INSIDE_CLIENT}/32")], "private_key": CLIENT_KEYS[0],
        "peers": [{
            "address": setup.server, "port": setup.server_port, "public_key": SERVER_KEYS[1],
            "allowed_ips": ["10.7.0.0/24"],
        }],
    })
}

fn wireguard_server(setup: &Setup) -> Value {
    json!({
        "type": "wireguard", "address": [format!("{INSIDE}/32")], "private_key": SERVER_KEYS[0],
        "listen_port": setup.server_port,
        "peers": [{ "public_key": CLIENT_KEYS[1], "allowed_ips": [format!("{INSIDE_CLIENT}/32")] }],
    })
}

fn salamander() -> Value {
    json!({ "obfs": { "type": "salamander", "password": PASSWORD } })
}

fn client_tls(setup: &Setup) -> Value {
    let certificate = &setup.identity.certificate;
    json!({ "tls": { "enabled": true, "server_name": SERVER_NAME, "certificate_path": certificate } })
}

fn server_tls(setup: &Setup) -> Value {
    let Identity { certificate, key } = &setup.identity;
    json!({ "tls": {
        "enabled": true, "server_name": SERVER_NAME, "certificate_path": certificate, "key_path": key,
    } })
}

fn client_reality() -> Value {
    json!({ "tls": {
        "enabled": true, "server_name": SERVER_NAME, "utls": { "enabled": true, "fingerprint": "chrome" },
        "reality": { "enabled": true, "public_key": PUBLIC_KEY, "short_id": SHORT_ID },
    } })
}

fn server_reality(setup: &Setup) -> Value {
    json!({ "tls": {
        "enabled": true, "server_name": SERVER_NAME,
        "reality": {
            "enabled": true, "private_key": PRIVATE_KEY, "short_id": [SHORT_ID],
            "handshake": { "server": setup.target.ip(), "server_port": setup.target.port() },
        },
    } })
}

fn transport(kind: &str) -> Value {
    match kind {
        "grpc" => json!({ "transport": { "type": kind, "service_name": "bench" } }),
        _ => json!({ "transport": { "type": kind, "path": "/bench" } }),
    }
}

fn mux(protocol: &str) -> Value {
    json!({ "multiplex": { "enabled": true, "protocol": protocol, "max_connections": 4 } })
}

fn mux_server() -> Value {
    json!({ "multiplex": { "enabled": true } })
}

impl Protocol {
    /// Whether a second program is needed.
    pub(crate) fn has_server(&self) -> bool {
        !matches!(self.ends, Ends::One { .. })
    }

    /// The target as clients ask for it.
    pub(crate) fn asked_for(&self, target: SocketAddr) -> SocketAddr {
        self.inside.map_or(target, |inside| SocketAddr::from((inside, target.port())))
    }

    /// The configurations of relays in place of the programs: each knows the next one's port.
    pub(crate) fn relay_configs(&self, setup: &Setup) -> (Value, Option<Value>) {
        let to = |listen: u16, address: SocketAddr| {
            let inbound = json!({
                "type": "direct", "override_address": address.ip(), "override_port": address.port(),
            });
            config(listening(inbound, Ipv4Addr::LOCALHOST, listen), direct())
        };
        if self.has_server() {
            let server = SocketAddr::from((Ipv4Addr::LOCALHOST, setup.server_port));
            (to(setup.entry_port, server), Some(to(setup.server_port, setup.target)))
        } else {
            (to(setup.entry_port, setup.target), None)
        }
    }

    /// The configuration of the program at the entry port.
    pub(crate) fn client_config(&self, setup: &Setup) -> Value {
        let entry = || listening(json!({ "type": "socks" }), Ipv4Addr::LOCALHOST, setup.entry_port);
        match &self.ends {
            Ends::One { inbound } => {
                config(listening(inbound(setup), Ipv4Addr::LOCALHOST, setup.entry_port), direct())
            }
            Ends::Two { outbound, .. } => {
                let mut outbound = outbound(setup);
                for outbound in each(&mut outbound) {
                    fill(outbound, "tag", json!("out"));
                    fill(outbound, "server", json!(setup.server));
                    fill(outbound, "server_port", json!(setup.server_port));
                }
                config(entry(), outbound)
            }
            Ends::Endpoints { client, .. } => {
                let mut config = config(entry(), direct());
                config["endpoints"] = json!([with(client(setup), json!({ "tag": "tunnel" }))]);
                config["route"] = json!({ "final": "tunnel" });
                config
            }
        }
    }

    /// The configuration of the second program, where there is one.
    pub(crate) fn server_config(&self, setup: &Setup) -> Option<Value> {
        match &self.ends {
            Ends::One { .. } => None,
            Ends::Two { inbound, .. } => {
                Some(config(listening(inbound(setup), setup.server, setup.server_port), direct()))
            }
            Ends::Endpoints { server, .. } => Some(json!({
                "log": { "level": "warn" },
                "endpoints": [with(server(setup), json!({ "tag": "tunnel" }))],
                "outbounds": [direct()],
            })),
        }
    }
}

/// Stands for every protocol of the tables.
const ALL: &str = "all";

/// The protocols called `names`; without any the quick ones or all.
pub(crate) fn choose(names: &[String], quick: bool) -> Result<Vec<&'static Protocol>, Failure> {
    let quick = quick && names.is_empty();
    if names.is_empty() || *names == [ALL] {
        let wanted = |protocol: &&Protocol| {
            if quick { QUICK.contains(&protocol.name) } else { protocol.by_default }
        };
        return Ok(PROTOCOLS.iter().filter(wanted).collect());
    }
    named(names)
}

/// The protocols called `names`; without any the plain SOCKS proxy.
pub(crate) fn choose_or_socks(names: &[String]) -> Result<Vec<&'static Protocol>, Failure> {
    choose_or(names, &["socks"])
}

/// The protocols called `names`; without any these.
pub(crate) fn choose_or(names: &[String], usual: &[&str]) -> Result<Vec<&'static Protocol>, Failure> {
    if names.is_empty() {
        return named(&usual.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    }
    named(names)
}

fn named(names: &[String]) -> Result<Vec<&'static Protocol>, Failure> {
    names
        .iter()
        .map(|name| {
            PROTOCOLS.iter().find(|protocol| protocol.name == *name).ok_or_else(|| {
                let known: Vec<&str> = PROTOCOLS.iter().map(|protocol| protocol.name).collect();
                Failure::Usage(format!(
                    "unknown protocol `{name}`: known are {}, and `{ALL}`",
                    known.join(", ")
                ))
            })
        })
        .collect()
}

/// A complete configuration of inbounds and outbounds. Only warnings are logged: a line per connection would be
/// measured too.
fn config(inbound: Value, outbound: Value) -> Value {
    let list = |value: Value| if value.is_array() { value } else { json!([value]) };
    json!({
        "log": { "level": "warn" },
        "inbounds": list(inbound),
        "outbounds": list(outbound),
    })
}

fn direct() -> Value {
    json!({ "type": "direct", "tag": "out" })
}

fn listening(mut inbound: Value, address: Ipv4Addr, port: u16) -> Value {
    for inbound in each(&mut inbound) {
        fill(inbound, "tag", json!("in"));
        fill(inbound, "listen", json!(address));
        fill(inbound, "listen_port", json!(port));
    }
    inbound
}

/// The parts of a list, or the one that is none.
fn each(value: &mut Value) -> &mut [Value] {
    match value {
        Value::Array(list) => list,
        single => std::slice::from_mut(single),
    }
}

/// An object with the fields of another; objects inside objects likewise.
fn with(mut object: Value, fields: Value) -> Value {
    merge(&mut object, fields);
    object
}

fn merge(object: &mut Value, fields: Value) {
    match (object, fields) {
        (Value::Object(object), Value::Object(fields)) => {
            for (key, value) in fields {
                merge(object.entry(key).or_insert(Value::Null), value);
            }
        }
        (object, value) => *object = value,
    }
}

/// Sets a field that the entry left open.
fn fill(object: &mut Value, key: &str, value: Value) {
    if object[key].is_null() {
        object[key] = value;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn setup() -> Setup {
        Setup { entry_port: 1, server_port: 2, ..Setup::example() }
    }

    #[test]
    fn names_are_unique_and_the_quick_ones_exist() {
        let names: BTreeSet<&str> = PROTOCOLS.iter().map(|protocol| protocol.name).collect();
        assert_eq!(names.len(), PROTOCOLS.len());
        assert_eq!(choose(&[], true).unwrap().len(), QUICK.len());
        let all = choose(&[], false).unwrap();
        assert_eq!(choose(&[ALL.to_owned()], true).unwrap().len(), all.len());
        assert!(all.len() > 30 && all.iter().all(|protocol| protocol.by_default));
    }

    #[test]
    fn an_unknown_protocol_gets_the_list_of_known_ones() {
        let message = choose(&["shocks".into()], false).err().unwrap().to_string();
        assert!(message.starts_with("unknown protocol `shocks`: known are direct, socks, "), "{message}");
    }

    #[test]
    fn fields_merge_into_inner_objects() {
        let merged = with(json!({ "a": { "b": 1 } }), json!({ "a": { "c": 2 }, "d": 3 }));
        assert_eq!(merged, json!({ "a": { "b": 1, "c": 2 }, "d": 3 }));
    }

    #[test]
    fn every_entry_connects_its_ends() {
        for protocol in PROTOCOLS {
            let client = protocol.client_config(&setup());
            assert_eq!(client["inbounds"][0]["listen_port"], 1, "{}", protocol.name);
            let Some(server) = protocol.server_config(&setup()) else { continue };
            let ends = match protocol.ends {
                Ends::Endpoints { .. } => {
                    let peer = &client["endpoints"][0]["peers"][0];
                    [
                        (&peer["port"], &peer["address"]),
                        (&server["endpoints"][0]["listen_port"], &json!("127.0.0.1")),
                    ]
                    .map(|(port, address)| (port.clone(), address.clone()))
                }
                _ => {
                    let outbound = client["outbounds"].as_array().unwrap().last().unwrap();
                    let inbound = &server["inbounds"][0];
                    assert_eq!(outbound["type"], inbound["type"], "{}", protocol.name);
                    [
                        (&outbound["server_port"], &outbound["server"]),
                        (&inbound["listen_port"], &inbound["listen"]),
                    ]
                    .map(|(port, address)| (port.clone(), address.clone()))
                }
            };
            assert!(
                ends.iter().all(|end| *end == (json!(2), json!("127.0.0.1"))),
                "{}: {ends:?}",
                protocol.name
            );
        }
    }
}
