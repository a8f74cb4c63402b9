//! Which protocols are measured: one entry each, giving both ends' configuration.
//!
//! ```text
//! load generator ─SOCKS─▶ client program ─protocol─▶ server program ─TCP─▶ load generator
//! load generator ─SOCKS─▶ program ─TCP─▶ load generator                       (one-program entries)
//! ```
//!
//! To add a protocol, add an entry to [`PROTOCOLS`]. All passwords and keys are for these runs alone.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::failure::Failure;

/// What an entry may put into its configuration.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Where the load generator enters: the listen port of the client program.
    pub(crate) entry_port: u16,
    /// The listen port of the server program.
    pub(crate) server_port: u16,
    /// The load generator's own server.
    pub(crate) target: SocketAddr,
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
pub(crate) enum Ends {
    /// One program with this inbound and a direct outbound.
    One { inbound: fn(&Setup) -> Value },
    /// Two programs: a SOCKS inbound leads to `outbound`, and `inbound` of the other program to a direct outbound.
    /// Addresses and ports are filled in unless the entry has its own.
    Two { outbound: fn(&Setup) -> Value, inbound: fn(&Setup) -> Value },
}

/// One line of the table.
pub(crate) struct Protocol {
    /// What `--protocol` takes.
    pub(crate) name: &'static str,
    /// What tables show.
    pub(crate) title: &'static str,
    /// Whether `--quick` measures it.
    pub(crate) quick: bool,
    pub(crate) entry: Entry,
    pub(crate) ends: Ends,
}

/// Every protocol, in the order of the tables.
pub(crate) const PROTOCOLS: &[Protocol] = &[
    Protocol {
        name: "direct",
        title: "direct-in → direct",
        quick: true,
        entry: Entry::Plain,
        ends: Ends::One {
            inbound: |setup| {
                json!({
                    "type": "direct", "network": "tcp",
                    "override_address": setup.target.ip(), "override_port": setup.target.port(),
                })
            },
        },
    },
    Protocol {
        name: "socks",
        title: "socks → direct",
        quick: true,
        entry: Entry::Socks,
        ends: Ends::One { inbound: |_| json!({ "type": "socks" }) },
    },
    Protocol {
        name: "socks-hop",
        title: "socks hop",
        quick: false,
        entry: Entry::Socks,
        ends: Ends::Two { outbound: |_| json!({ "type": "socks" }), inbound: |_| json!({ "type": "socks" }) },
    },
    Protocol {
        name: "http-hop",
        title: "http hop",
        quick: false,
        entry: Entry::Socks,
        ends: Ends::Two { outbound: |_| json!({ "type": "http" }), inbound: |_| json!({ "type": "http" }) },
    },
];

impl Protocol {
    /// Whether a second program is needed.
    pub(crate) fn has_server(&self) -> bool {
        matches!(self.ends, Ends::Two { .. })
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
        return Ok(PROTOCOLS.iter().filter(|protocol| protocol.quick || !quick).collect());
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
        Setup { entry_port: 1, server_port: 2, target: SocketAddr::from(([127, 0, 0, 1], 3)) }
    }

    #[test]
    fn names_are_unique_and_some_are_quick() {
        let names: BTreeSet<&str> = PROTOCOLS.iter().map(|protocol| protocol.name).collect();
        assert_eq!(names.len(), PROTOCOLS.len());
        assert!(!choose(&[], true).unwrap().is_empty());
        assert_eq!(choose(&[], false).unwrap().len(), PROTOCOLS.len());
    }

    #[test]
    fn an_unknown_protocol_gets_the_list_of_known_ones() {
        let message = choose(&["shocks".into()], false).err().unwrap().to_string();
        assert!(message.starts_with("unknown protocol `shocks`: known are direct, socks, "), "{message}");
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
