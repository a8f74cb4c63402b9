//! What `tun2socks` and `exec` have in common: a configuration made of one link.

use std::net::{SocketAddr, ToSocketAddrs};

use clap::Args;
use serde_json::{Value, json};

use super::{Failure, link};

/// Addresses of a device where nothing else is said.
pub(super) const ADDRESSES: [&str; 2] = ["172.19.0.1/30", "fdfe:dcba:9876::1/126"];
/// Names that are asked for are given addresses of these networks, and go to the proxy as names.
const FAKE: [&str; 2] = ["198.18.0.0/15", "fc00::/18"];
/// Asked, through the proxy, for what is no address.
const SERVER: &str = "1.1.1.1";

/// How names are looked up.
#[derive(Args, Clone, Debug)]
pub(super) struct Dns {
    /// How DNS queries are answered: `names`, so that the proxy gets names and looks them up itself, or the address of a
    /// DNS server that is asked through the proxy, over TCP unless written as udp://ADDRESS.
    #[arg(long, value_name = "names|SERVER", default_value = "names")]
    dns: String,
}

impl Dns {
    /// The `dns` section for queries that go through `proxy`.
    fn section(&self) -> Result<Value, Failure> {
        let text = if self.dns == "names" { SERVER } else { self.dns.as_str() };
        let (kind, server) = text.split_once("://").unwrap_or(("tcp", text));
        if !matches!(kind, "tcp" | "udp" | "tls") {
            return Err(Failure(format!("--dns: `{kind}` is none of tcp, udp, tls")));
        }
        let mut far = json!({ "type": kind, "tag": "far", "detour": "proxy" });
        match server.parse::<SocketAddr>() {
            Ok(address) => {
                far["server"] = address.ip().to_string().into();
                far["server_port"] = address.port().into();
            }
            Err(_) => {
                let ip = server.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
                let ip = ip.map_err(|_| Failure(format!("--dns: `{server}` is no address of a server")))?;
                far["server"] = ip.to_string().into();
            }
        }
        let mut servers = vec![far, json!({ "type": "local", "tag": "near" })];
        let mut rules = Vec::new();
        if self.dns == "names" {
            servers.push(
                json!({ "type": "fakeip", "tag": "names", "inet4_range": FAKE[0], "inet6_range": FAKE[1] }),
            );
            rules.push(json!({ "query_type": ["A", "AAAA"], "server": "names" }));
        }
        Ok(json!({ "servers": servers, "rules": rules, "final": "far" }))
    }
}

/// A configuration of one outbound, without inbounds. `proxy` is a link, or `@` and the path of a file that holds one.
pub(super) fn config(proxy: &str, dns: &Dns, level: &str) -> Result<Value, Failure> {
    let held = proxy.strip_prefix('@').map(read_link).transpose()?;
    let proxy = link::outbound(held.as_deref().unwrap_or(proxy), "proxy");
    let proxy = proxy.map_err(|reason| Failure(format!("proxy: {reason}")))?;
    Ok(json!({
        "log": { "level": level },
        "dns": dns.section()?,
        "outbounds": [proxy],
        "route": {
            "rules": [{ "port": 53, "action": "hijack-dns" }],
            "default_domain_resolver": "near"
        }
    }))
}

/// The link in this file, whose other lines are empty or comments behind `#`. What stands on a command line
/// is seen by every user of the machine, and a link holds a password.
fn read_link(path: &str) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure(format!("proxy: {path}: {error}")))?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(link), None) => Ok(link.to_owned()),
        (None, _) => Err(Failure(format!("proxy: {path}: no link in this file"))),
        (Some(_), Some(_)) => Err(Failure(format!("proxy: {path}: more than one link in this file"))),
    }
}

/// Puts the address of the proxy's server in the place of its name, which cannot be asked for once all queries go through
/// the proxy.
pub(super) fn look_up_server(config: &mut Value) -> Result<(), Failure> {
    let proxy = &mut config["outbounds"][0];
    let Some(name) = proxy["server"].as_str().map(str::to_owned) else { return Ok(()) };
    if name.parse::<std::net::IpAddr>().is_ok() {
        return Ok(());
    }
    let found =
        (name.as_str(), 0).to_socket_addrs().map_err(|error| Failure(format!("look up {name}: {error}")))?;
    let address = found.map(|address| address.ip()).next();
    proxy["server"] =
        address.ok_or_else(|| Failure(format!("look up {name}: no address")))?.to_string().into();
    if let Some(tls) = proxy.get_mut("tls").filter(|tls| tls.get("server_name").is_none()) {
        tls["server_name"] = name.into();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(dns: &str) -> Result<Value, Failure> {
        config("socks5://127.0.0.1:1080", &Dns { dns: dns.to_owned() }, "warn")
    }

    #[test]
    fn configurations_of_every_kind_of_dns_are_accepted() {
        for dns in ["names", "9.9.9.9", "udp://9.9.9.9:5353", "tls://[2620:fe::fe]:853", "2620:fe::fe"] {
            let text = made(dns).unwrap().to_string();
            let loaded = culvert_config::load(&[culvert_config::Source::new("front", text.as_bytes())]);
            assert!(
                loaded.is_ok(),
                "{dns}: {}",
                loaded.err().map(|error| error.to_string()).unwrap_or_default()
            );
        }
        for dns in ["", "dns.test", "ftp://1.1.1.1"] {
            assert!(made(dns).is_err(), "{dns}");
        }
    }

    #[test]
    fn a_name_of_the_server_stays_in_its_certificate() {
        let mut config =
            config("trojan://p@localhost:443", &Dns { dns: "names".to_owned() }, "warn").unwrap();
        look_up_server(&mut config).unwrap();
        let proxy = &config["outbounds"][0];
        assert!(proxy["server"].as_str().unwrap().parse::<std::net::IpAddr>().is_ok());
        assert_eq!(proxy["tls"]["server_name"], "localhost");
    }

    #[test]
    fn a_link_may_stand_in_a_file() {
        let path = std::env::temp_dir().join(format!("culvert-link-{}", std::process::id()));
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            config(&format!("@{}", path.display()), &Dns { dns: "names".to_owned() }, "warn")
        };
        let made = of("# mine\n\n  socks5://user:secret@192.0.2.1:1080 \n").unwrap();
        assert_eq!(made["outbounds"][0]["password"], "secret");
        for bad in ["", "# only words\n", "socks5://h:1\nsocks5://h:2\n", "secret\n"] {
            let Failure(said) = of(bad).unwrap_err();
            assert!(said.starts_with("proxy: ") && !said.contains("secret"), "{said}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(config("@/nowhere", &Dns { dns: "names".to_owned() }, "warn").is_err());
    }
}
