//! One feature at a time, on our program alone.

use crate::client::{Flow, PATIENCE, ask, connect, verdict};
use crate::exits::Exit;
use crate::run;
use culvert::instance::Instance;
use culvert_config::Source;
use culvert_core::Network;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

pub(crate) fn build(config: &Value) -> Result<Instance> {
    let source = Source::new("test", config.to_string().as_bytes());
    let loaded = culvert_config::load(&[source]).map_err(|findings| format!("{findings:?}"))?;
    Ok(Instance::build(&loaded.options, 4096)?)
}

/// Builds and starts, and gives the address of the first inbound.
pub(crate) async fn start(config: &Value) -> Result<(Instance, SocketAddr)> {
    let mut instance = build(config)?;
    instance.start().await?;
    let address = instance.listening()[0].1;
    Ok((instance, address))
}

pub(crate) fn exit(tag: &str, exit: &Exit) -> Value {
    json!({ "type": "socks", "tag": tag, "server": "127.0.0.1", "server_port": exit.port() })
}

/// Waits until `check` holds.
pub(crate) async fn until(what: &str, mut check: impl AsyncFnMut() -> Result<bool>) -> Result {
    let begun = std::time::Instant::now();
    while !check().await? {
        ensure!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

#[test]
fn local_rule_sets_are_read_again() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let directory = TempDir::new()?;
        let rules = |name: &str| json!({ "version": 3, "rules": [{ "domain": [name] }] }).to_string();
        let path = directory.write("set.json", rules("one.test"))?;
        let (instance, proxy) = start(&json!({
            "inbounds": [{ "type": "socks", "listen": "127.0.0.1" }],
            "outbounds": [exit("a", &a), exit("b", &b)],
            "route": {
                "rule_set": [{ "type": "local", "tag": "set", "path": path }],
                "rules": [{ "rule_set": "set", "outbound": "b" }]
            }
        }))
        .await?;
        ensure!(verdict(proxy, &Flow::to("one.test", 1)).await? == "b one.test:1", "the set is not used");
        ensure!(verdict(proxy, &Flow::to("two.test", 1)).await? == "a two.test:1", "the set is too wide");
        directory.write("set.json", rules("two.test"))?;
        until("reload", async || Ok(verdict(proxy, &Flow::to("two.test", 1)).await? == "b two.test:1"))
            .await?;
        drop(instance);
        Ok(())
    });
}

#[test]
fn selectors_are_chosen_from_and_interrupt() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let (instance, proxy) = start(&json!({
            "inbounds": [{ "type": "socks", "listen": "127.0.0.1" }],
            "outbounds": [
                { "type": "selector", "tag": "outer", "outbounds": ["inner", "b"] },
                { "type": "selector", "tag": "inner", "outbounds": ["a", "b"], "default": "b",
                  "interrupt_exist_connections": true },
                exit("a", &a), exit("b", &b),
                { "type": "socks", "tag": "through", "server": "hop.test", "server_port": 9, "detour": "inner" }
            ],
            "route": { "rules": [{ "port": 7, "outbound": "through" }] }
        }))
        .await?;
        let flow = Flow::to("x.test", 1);
        let (said, open) = connect(proxy, &flow).await?;
        ensure!(said == "b x.test:1", "{said}");
        let mut open = open.ok_or("no stream")?;
        let way = instance.flows().list()[0].way().cloned().ok_or("no way")?;
        ensure!(way.chain.iter().map(|tag| &**tag).eq(["b", "inner", "outer"]), "{:?}", way.chain);
        let inner = instance.groups().get("inner").ok_or("no group")?.clone();
        ensure!(inner.now(Network::Tcp).is_some_and(|tag| *tag.name == *"b"), "the default is not chosen");
        inner.select("b")?;
        open.write_all(b"!").await?;
        ensure!(open.read_u8().await? == b'!', "choosing the same interrupts nothing");
        inner.select("a")?;
        let ended = tokio::time::timeout(PATIENCE, open.read(&mut [0; 8])).await?;
        ensure!(!matches!(ended, Ok(1..)), "the old connection goes on");
        ensure!(verdict(proxy, &flow).await? == "a x.test:1", "the choice has no effect");
        ensure!(inner.select("none").is_err(), "a member that is not there");
        // A detour to a group: the exit of the group is asked for the hop.
        let before = a.connections();
        let _ =
            tokio::time::timeout(Duration::from_millis(500), connect(proxy, &Flow::to("x.test", 7))).await;
        ensure!(a.connections() == before + 1, "the detour does not lead through the group");
        drop(instance);
        Ok(())
    });
}

#[test]
fn url_tests_find_the_member_that_works() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let (instance, proxy) = start(&json!({
            "inbounds": [{ "type": "socks", "listen": "127.0.0.1" }],
            "outbounds": [
                { "type": "urltest", "tag": "test", "outbounds": ["dead", "b"], "url": "http://probe.test/" },
                { "type": "socks", "tag": "dead", "server": "127.0.0.1", "server_port": 1 },
                exit("a", &a), exit("b", &b)
            ]
        }))
        .await?;
        until("test", async || Ok(verdict(proxy, &Flow::to("x.test", 1)).await? == "b x.test:1")).await?;
        let group = instance.groups().get("test").ok_or("no group")?.clone();
        let delays = group.test().await;
        ensure!(delays.len() == 1 && *delays[0].0 == *"b", "{delays:?}");
        drop(instance);
        Ok(())
    });
}

#[test]
fn fake_addresses_lead_back_to_their_names() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let (instance, _) = start(&json!({
            "dns": {
                "servers": [
                    { "type": "hosts", "tag": "hosts", "path": "/nonexistent", "predefined": { "x.test": "10.0.0.1" } },
                    { "type": "fakeip", "tag": "fake", "inet4_range": "198.18.0.0/15" }
                ],
                "rules": [{ "query_type": ["A", "AAAA"], "server": "fake" }]
            },
            "inbounds": [
                { "type": "socks", "tag": "in", "listen": "127.0.0.1" },
                { "type": "direct", "tag": "dns", "listen": "127.0.0.1" }
            ],
            "outbounds": [exit("a", &a), exit("b", &b)],
            "route": { "rules": [
                { "inbound": "dns", "action": "hijack-dns" },
                { "port": 2, "action": "resolve" },
                { "domain": "x.test", "outbound": "b" }
            ] }
        }))
        .await?;
        let listening = instance.listening();
        let address =
            |tag: &str| listening.iter().find(|(one, _)| *one.name == *tag).map(|(_, address)| *address);
        let (proxy, dns) = (address("in").ok_or("in")?, address("dns").ok_or("dns")?);
        let reply = ask(dns, Ipv4Addr::LOCALHOST, "x.test", 1, PATIENCE).await?.ok_or("silence")?;
        ensure!(reply.addresses == [("198.18.0.2".parse()?, 600)], "{reply:?}");
        let said = verdict(proxy, &Flow::to("198.18.0.2", 1)).await?;
        ensure!(said == "b x.test:1", "{said}");
        let said = verdict(proxy, &Flow::to("198.18.0.2", 2)).await?;
        ensure!(said == "b 10.0.0.1:2", "a look-up of the router has the real address: {said}");
        let said = verdict(proxy, &Flow::to("198.18.0.3", 1)).await?;
        ensure!(said == "refused", "nobody was given this address: {said}");
        drop(instance);
        Ok(())
    });
}

/// A UDP server that gives back what it is sent, and a SOCKS client's association to `host` that reaches it.
#[test]
fn datagrams_to_resolved_names_are_answered_by_the_name() {
    run(async {
        let echo = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = echo.local_addr()?.port();
        tokio::spawn(async move {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = echo.recv_from(&mut buffer).await {
                let _ = echo.send_to(&buffer[..length], from).await;
            }
        });
        let (instance, proxy) = start(&json!({
            "dns": { "servers": [
                { "type": "hosts", "tag": "hosts", "path": "/nonexistent", "predefined": { "echo.test": "127.0.0.1" } }
            ] },
            "inbounds": [{ "type": "socks", "tag": "in", "listen": "127.0.0.1" }],
            "route": { "rules": [{ "action": "resolve" }] }
        }))
        .await?;
        use culvert_testkit::client::{Association, Credentials, Target};
        let association = Association::open(proxy, Credentials::None).await?;
        let target = Target::name("echo.test", port);
        association.send_to(&target, b"ping").await?;
        let (from, data) = tokio::time::timeout(PATIENCE, association.recv()).await??;
        ensure!(data == b"ping" && from == target, "{data:?} from {from:?}");
        drop(instance);
        Ok(())
    });
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    let refused = |dns: Value, rule_sets: Value, expected: &str| {
        let config = json!({ "dns": dns, "route": { "rule_set": rule_sets } });
        let error = build(&config).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let server = json!({ "servers": [{ "type": "local", "tag": "s", "neighbor_domain": [".lan"] }] });
    refused(server, json!([]), "`neighbor_domain`");
    let filter = json!({ "servers": [{ "type": "local", "tag": "s" }], "rules": [
        { "query_type": "A", "server": "s" }, { "ip_cidr": "10.0.0.0/8", "server": "s" }
    ] });
    refused(filter, json!([]), "`match_response`");
}
