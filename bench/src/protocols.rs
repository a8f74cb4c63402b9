//! Which protocols are measured: one entry each, giving both ends' configuration.
//!
//! ```text
//! load generator ─SOCKS─▶ client program ─protocol─▶ server program ─TCP─▶ load generator
//! load generator ─SOCKS─▶ program ─TCP─▶ load generator                       (one-program entries)
//! ```
//!
//! To add a protocol, add an entry to [`PROTOCOLS`]. All passwords and keys are for these runs alone.

use std::net::{Ipv4Addr, SocketAddr};

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
    /// The listen port of the server program.
    pub(crate) server_port: u16,
    /// The load generator's own server.
    pub(crate) target: SocketAddr,
    /// What TLS servers show and clients trust.
    pub(crate) identity: Identity,
}

/// How the load generator talks to the entry port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Entry {
    /// SOCKS5 without a password.
    Socks,
    /// A plain connection: the program already knows the target.
    Plain,
}

/// The programs an entry needs.
enum Ends {
    /// One program with this inbound and a direct outbound.
    One { inbound: Part },
    /// Two programs: a SOCKS inbound leads to `outbound`, and `inbound` of the other program to a direct outbound.
    Two { outbound: Part, inbound: Part },
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

/// An inbound or outbound. Tags, addresses and ports are filled in unless the entry has its own.
type Part = fn(&Setup) -> Value;

/// One line of the table.
pub(crate) struct Protocol {
    /// What `--protocol` takes.
    pub(crate) name: &'static str,
    /// What tables show.
    pub(crate) title: &'static str,
    pub(crate) entry: Entry,
    pub(crate) floor: Floor,
    ends: Ends,
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
    two(
        "vless-vision",
        |s| with(with(vless(), json!({ "flow": VISION })), client_tls(s)),
        |s| {
            let users = json!({ "users": [{ "uuid": UUID, "flow": VISION }] });
            with(with(vless_server(), users), server_tls(s))
        },
    )
    .sealed(Cipher::Aes128Gcm),
    two(
        "anytls",
        |s| with(json!({ "type": "anytls", "password": PASSWORD }), client_tls(s)),
        |s| with(json!({ "type": "anytls", "users": [{ "password": PASSWORD }] }), server_tls(s)),
    )
    .sealed(Cipher::Aes128Gcm),
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
    two("hysteria2", |s| with(hysteria2(), client_tls(s)), |s| with(hysteria2_server(), server_tls(s))),
    two(
        "hysteria2-salamander",
        |s| with(with(hysteria2(), salamander()), client_tls(s)),
        |s| with(with(hysteria2_server(), salamander()), server_tls(s)),
    )
    .without_floor(),
    two(
        "tuic",
        |s| {
            let tuic =
                json!({ "type": "tuic", "uuid": UUID, "password": PASSWORD, "congestion_control": "bbr" });
            with(with(tuic, client_tls(s)), json!({ "tls": { "alpn": "h3" } }))
        },
        |s| {
            let users = json!([{ "uuid": UUID, "password": PASSWORD }]);
            let tuic = json!({ "type": "tuic", "users": users, "congestion_control": "bbr" });
            with(with(tuic, server_tls(s)), json!({ "tls": { "alpn": "h3" } }))
        },
    )
    .without_floor(),
];

const PASSWORD: &str = "for benchmarks only";
const UUID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";
/// Base64 of 16 and of 32 bytes.
const KEY_16: &str = "MDEyMzQ1Njc4OWFiY2RlZg==";
const KEY_32: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const VISION: &str = "xtls-rprx-vision";

const fn two(name: &'static str, outbound: Part, inbound: Part) -> Protocol {
    Protocol {
        name,
        title: name,
        entry: Entry::Socks,
        floor: Floor::Kernel,
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
        matches!(self.ends, Ends::Two { .. })
    }

    /// The configurations of relays in place of the programs: each knows the next one's port.
    pub(crate) fn relay_configs(&self, setup: &Setup) -> (Value, Option<Value>) {
        let to = |listen: u16, address: SocketAddr| {
            let inbound = json!({
                "type": "direct", "override_address": address.ip(), "override_port": address.port(),
            });
            config(listening(inbound, listen), direct())
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
        match &self.ends {
            Ends::One { inbound } => config(listening(inbound(setup), setup.entry_port), direct()),
            Ends::Two { outbound, .. } => {
                let mut outbound = outbound(setup);
                fill(&mut outbound, "tag", json!("out"));
                fill(&mut outbound, "server", json!("127.0.0.1"));
                fill(&mut outbound, "server_port", json!(setup.server_port));
                config(listening(json!({ "type": "socks" }), setup.entry_port), outbound)
            }
        }
    }

    /// The configuration of the second program, where there is one.
    pub(crate) fn server_config(&self, setup: &Setup) -> Option<Value> {
        let Ends::Two { inbound, .. } = &self.ends else { return None };
        Some(config(listening(inbound(setup), setup.server_port), direct()))
    }
}

/// The protocols called `names`; without any the quick ones or all.
pub(crate) fn choose(names: &[String], quick: bool) -> Result<Vec<&'static Protocol>, Failure> {
    if names.is_empty() {
        let wanted = |protocol: &&Protocol| !quick || QUICK.contains(&protocol.name);
        return Ok(PROTOCOLS.iter().filter(wanted).collect());
    }
    named(names)
}

/// The protocols called `names`; without any the plain SOCKS proxy.
pub(crate) fn choose_or_socks(names: &[String]) -> Result<Vec<&'static Protocol>, Failure> {
    if names.is_empty() { named(&["socks".into()]) } else { named(names) }
}

fn named(names: &[String]) -> Result<Vec<&'static Protocol>, Failure> {
    names
        .iter()
        .map(|name| {
            PROTOCOLS.iter().find(|protocol| protocol.name == *name).ok_or_else(|| {
                let known: Vec<&str> = PROTOCOLS.iter().map(|protocol| protocol.name).collect();
                Failure::Usage(format!("unknown protocol `{name}`: known are {}", known.join(", ")))
            })
        })
        .collect()
}

/// A complete configuration of one inbound and one outbound. Only warnings are logged: a line per connection would be
/// measured too.
fn config(inbound: Value, outbound: Value) -> Value {
    json!({
        "log": { "level": "warn" },
        "inbounds": [inbound],
        "outbounds": [outbound],
    })
}

fn direct() -> Value {
    json!({ "type": "direct", "tag": "out" })
}

fn listening(mut inbound: Value, port: u16) -> Value {
    fill(&mut inbound, "tag", json!("in"));
    fill(&mut inbound, "listen", json!("127.0.0.1"));
    fill(&mut inbound, "listen_port", json!(port));
    inbound
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
        let identity = Identity { certificate: "/certificate".into(), key: "/key".into() };
        Setup { entry_port: 1, server_port: 2, target: SocketAddr::from(([127, 0, 0, 1], 3)), identity }
    }

    #[test]
    fn names_are_unique_and_the_quick_ones_exist() {
        let names: BTreeSet<&str> = PROTOCOLS.iter().map(|protocol| protocol.name).collect();
        assert_eq!(names.len(), PROTOCOLS.len());
        assert_eq!(choose(&[], true).unwrap().len(), QUICK.len());
        assert_eq!(choose(&[], false).unwrap().len(), PROTOCOLS.len());
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
            if let Some(server) = protocol.server_config(&setup()) {
                assert_eq!(client["outbounds"][0]["server_port"], 2, "{}", protocol.name);
                assert_eq!(server["inbounds"][0]["listen_port"], 2, "{}", protocol.name);
                assert_eq!(
                    client["outbounds"][0]["type"], server["inbounds"][0]["type"],
                    "{}",
                    protocol.name
                );
            }
        }
    }
}
