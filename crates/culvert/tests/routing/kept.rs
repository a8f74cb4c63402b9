//! What is fetched, and what outlives the program: remote rule-sets and the cache file.

use crate::client::{Flow, PATIENCE, ask, verdict};
use crate::exits::Exit;
use crate::lists::Lists;
use crate::single::{build, exit, start, until};
use crate::{culvert, run};
use culvert::instance::Instance;
use culvert_testkit::peer::Program;
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::UdpSocket;

fn list(name: &str) -> String {
    json!({ "version": 3, "rules": [{ "domain": [name] }] }).to_string()
}

/// Names in the set go to `b`, all others to `a`.
fn config(exits: [&Exit; 2], set: Value, cache: Option<&TempDir>) -> Value {
    let mut rule_set = json!({ "type": "remote", "tag": "set" });
    for (key, value) in set.as_object().into_iter().flatten() {
        rule_set[key] = value.clone();
    }
    let mut config = json!({
        "inbounds": [{ "type": "socks", "listen": "127.0.0.1" }],
        "outbounds": [{ "type": "direct", "tag": "out" }, exit("a", exits[0]), exit("b", exits[1])],
        "http_clients": [{ "tag": "client" }],
        "route": { "rule_set": [rule_set], "rules": [{ "rule_set": "set", "outbound": "b" }], "final": "a" }
    });
    if let Some(directory) = cache {
        let path = directory.path().join("cache.db");
        config["experimental"] =
            json!({ "cache_file": { "enabled": true, "path": path, "store_fakeip": true } });
    }
    config
}

async fn is_in(proxy: SocketAddr, name: &str) -> Result<bool> {
    let said = verdict(proxy, &Flow::to(name, 1)).await?;
    ensure!(said == format!("a {name}:1") || said == format!("b {name}:1"), "{said}");
    Ok(said.starts_with('b'))
}

async fn close(instance: Instance) {
    instance.close(Duration::ZERO).await;
}

#[test]
fn remote_rule_sets_are_there_at_the_start_and_follow_the_server() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let lists = Lists::start(list("one.test")).await?;
        let set = json!({ "url": lists.url("set.json"), "update_interval": "50ms" });
        let (instance, proxy) = start(&config([&a, &b], set, None)).await?;
        ensure!(
            is_in(proxy, "one.test").await? && !is_in(proxy, "two.test").await?,
            "not there at the start"
        );
        until("a second look", async || Ok(lists.content().answered.contains(&304))).await?;
        lists.set(list("two.test"), "\"2\"");
        until("update", async || is_in(proxy, "two.test").await).await?;
        ensure!(!is_in(proxy, "one.test").await?, "the old list is still in use");
        lists.set("{", "\"3\"");
        let before = lists.content().answered.len();
        until("broken list", async || Ok(lists.content().answered.len() > before)).await?;
        ensure!(is_in(proxy, "two.test").await?, "a broken list has taken the place of a good one");
        close(instance).await;
        Ok(())
    });
}

#[test]
fn copies_outlive_the_program_and_the_network() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let directory = TempDir::new()?;
        let lists = Lists::start(list("one.test")).await?;
        let set = json!({ "url": lists.url("set.json") });
        let config = config([&a, &b], set, Some(&directory));
        let (instance, _) = start(&config).await?;
        close(instance).await;
        ensure!(lists.content().answered == [200], "{:?}", lists.content());
        let (instance, proxy) = start(&config).await?;
        ensure!(is_in(proxy, "one.test").await?, "the copy is not used");
        ensure!(lists.content().answered == [200], "a copy of today is fetched again: {:?}", lists.content());
        close(instance).await;
        drop(lists);
        let (instance, proxy) = start(&config).await?;
        ensure!(
            is_in(proxy, "one.test").await? && !is_in(proxy, "two.test").await?,
            "no start without network"
        );
        close(instance).await;
        // A copy from elsewhere is none.
        let mut other = config.clone();
        other["route"]["rule_set"][0]["url"] = "http://127.0.0.1:1/other.json".into();
        let (instance, proxy) = start(&other).await?;
        ensure!(!is_in(proxy, "one.test").await?, "a copy from another place is used");
        close(instance).await;
        Ok(())
    });
}

#[test]
fn without_network_and_copy_the_set_is_empty_until_it_can_be_fetched() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let free = Lists::start("").await?.address;
        let url = format!("http://{free}/set.json");
        let (instance, proxy) = start(&config([&a, &b], json!({ "url": url }), None)).await?;
        ensure!(!is_in(proxy, "one.test").await?, "an empty set matches");
        let _lists = Lists::start_at(free, list("one.test")).await?;
        until("another try", async || is_in(proxy, "one.test").await).await?;
        close(instance).await;
        Ok(())
    });
}

#[test]
fn the_initial_file_is_used_at_once() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let directory = TempDir::new()?;
        let path = directory.write("first.json", list("first.test"))?;
        let set = json!({ "url": "http://127.0.0.1:1/set.json", "initial_path": path });
        let (instance, proxy) = start(&config([&a, &b], set, None)).await?;
        ensure!(is_in(proxy, "first.test").await?, "the file is not used");
        close(instance).await;
        let lists = Lists::start(list("later.test")).await?;
        let set = json!({ "url": lists.url("set.json"), "initial_path": path });
        let (instance, proxy) = start(&config([&a, &b], set, None)).await?;
        until("the real one", async || is_in(proxy, "later.test").await).await?;
        close(instance).await;
        Ok(())
    });
}

#[test]
fn several_tags_are_several_urls() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let lists = Lists::start(list("one.test")).await?;
        let set = json!({ "tag": ["set", "other"], "url": lists.url("{tag}.json") });
        let (instance, proxy) = start(&config([&a, &b], set, None)).await?;
        ensure!(is_in(proxy, "one.test").await?, "not there");
        let mut paths = lists.content().paths.clone();
        paths.sort();
        ensure!(paths == ["/other.json", "/set.json"], "{paths:?}");
        close(instance).await;
        Ok(())
    });
}

/// The exits are no web servers, so nothing is fetched; who was asked is what counts.
#[test]
fn lists_are_fetched_by_whom_the_options_name() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let url = "http://lists.test/set.json";
        let asked = async |set: Value, clients: Value| {
            let before = [a.connections(), b.connections()];
            let mut config = config([&a, &b], set, None);
            config["http_clients"] = clients;
            let (instance, _) = start(&config).await?;
            close(instance).await;
            Ok::<_, culvert_testkit::Error>([a.connections() - before[0], b.connections() - before[1]])
        };
        let none = json!([]);
        ensure!(asked(json!({ "url": url }), none.clone()).await? == [1, 0], "the default outbound");
        let through = json!({ "url": url, "download_detour": "b" });
        ensure!(asked(through, none.clone()).await? == [0, 1], "the detour of old");
        let own = json!({ "url": url, "http_client": { "detour": "b" } });
        ensure!(asked(own, none).await? == [0, 1], "a client in place");
        let clients = json!([{ "tag": "x", "detour": "a" }, { "tag": "y", "detour": "b" }]);
        ensure!(asked(json!({ "url": url }), clients.clone()).await? == [1, 0], "the first client");
        ensure!(
            asked(json!({ "url": url, "http_client": "y" }), clients).await? == [0, 1],
            "a client by its tag"
        );
        Ok(())
    });
}

/// G5: the group looks for its best member by a page of the same server, and the rules wait for the set.
#[test]
fn a_list_is_fetched_by_a_group_that_knows_nothing_yet() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        for kind in ["urltest", "selector", "fallback", "load-balance"] {
            let lists = Lists::start(list("one.test")).await?;
            let directory = TempDir::new()?;
            let set = json!({ "url": lists.url("set.json"), "download_detour": "group" });
            let mut config = config([&a, &b], set, Some(&directory));
            let mut group = json!({ "type": kind, "tag": "group", "outbounds": ["dead", "out"] });
            match kind {
                "urltest" => group["url"] = lists.url("page").into(),
                "selector" => group["default"] = "out".into(),
                _ => {}
            }
            let outbounds = config["outbounds"].as_array_mut().unwrap();
            outbounds.push(group);
            outbounds
                .push(json!({ "type": "socks", "tag": "dead", "server": "127.0.0.1", "server_port": 1 }));
            let starting = tokio::time::timeout(PATIENCE, start(&config));
            let (instance, proxy) = starting.await.map_err(|_| format!("{kind}: hangs at the start"))??;
            until(kind, async || is_in(proxy, "one.test").await).await?;
            close(instance).await;
        }
        Ok(())
    });
}

#[test]
fn wrong_urls_are_refused() {
    let set = json!([{ "type": "remote", "tag": "r", "url": "ftp://a.test/r.srs" }]);
    let error = build(&json!({ "route": { "rule_set": set } })).err().unwrap().to_string();
    assert!(error.contains("route.rule_set[0]") && error.contains("no URL of http or https"), "{error}");
}

#[test]
fn choices_outlive_the_program() {
    run(async {
        let (a, b) = (Exit::start("a").await?, Exit::start("b").await?);
        let directory = TempDir::new()?;
        let path = directory.path().join("cache.db");
        let config = json!({
            "inbounds": [{ "type": "socks", "listen": "127.0.0.1" }],
            "outbounds": [
                { "type": "selector", "tag": "group", "outbounds": ["a", "b"] }, exit("a", &a), exit("b", &b)
            ],
            "experimental": { "cache_file": { "enabled": true, "path": path } }
        });
        let (instance, proxy) = start(&config).await?;
        ensure!(verdict(proxy, &Flow::to("x.test", 1)).await? == "a x.test:1", "the first is not chosen");
        instance.groups().get("group").ok_or("no group")?.select("b")?;
        close(instance).await;
        let (instance, proxy) = start(&config).await?;
        ensure!(verdict(proxy, &Flow::to("x.test", 1)).await? == "b x.test:1", "the choice is forgotten");
        close(instance).await;
        // A file that is broken is no reason not to start.
        std::fs::write(&path, b"broken")?;
        let (instance, proxy) = start(&config).await?;
        ensure!(verdict(proxy, &Flow::to("x.test", 1)).await? == "a x.test:1", "where is this choice from?");
        close(instance).await;
        ensure!(std::fs::read(directory.path().join("cache.db.bad"))? == b"broken", "the old file is lost");
        Ok(())
    });
}

/// Killed without a word, again and again: every address that a client was given leads to its name afterwards.
#[test]
fn fake_addresses_survive_kill() {
    run(async {
        let Some(program) = culvert() else { return Ok(()) };
        let exit = Exit::start("exit").await?;
        let directory = TempDir::new()?;
        let (proxy, dns) = (Port::reserve()?, Port::reserve()?);
        let config = json!({
            "dns": {
                "servers": [
                    { "type": "local", "tag": "local" },
                    { "type": "fakeip", "tag": "fake", "inet4_range": "198.18.0.0/15" }
                ],
                "rules": [{ "query_type": "A", "server": "fake" }]
            },
            "inbounds": [
                { "type": "socks", "tag": "in", "listen": "127.0.0.1", "listen_port": proxy.number() },
                { "type": "direct", "tag": "dns", "listen": "127.0.0.1", "listen_port": dns.number() }
            ],
            "outbounds": [{ "type": "socks", "tag": "exit", "server": "127.0.0.1", "server_port": exit.port() }],
            "route": {
                "rules": [{ "inbound": "dns", "action": "hijack-dns" }], "default_domain_resolver": "local"
            },
            "experimental": { "cache_file": { "enabled": true, "store_fakeip": true } }
        });
        directory.write("config.json", config.to_string())?;
        let mut given: Vec<(String, String)> = Vec::new();
        for round in 0..4 {
            let mut peer = serve(&program, &directory).await?;
            for (name, address) in &given {
                let said = verdict(proxy.v4(), &Flow::to(address, 1)).await?;
                ensure!(said == format!("exit {name}:1"), "round {round}: {address} of {name}: {said}");
            }
            for number in 0..20 {
                let name = format!("n{number}.r{round}.test");
                let reply = ask(dns.v4(), Ipv4Addr::LOCALHOST, &name, 1, PATIENCE).await?.ok_or("silence")?;
                let [(address, _)] = reply.addresses[..] else { return Err(format!("{reply:?}").into()) };
                given.push((name, address.to_string()));
            }
            peer.signal("KILL").await?;
            peer.ended().await?;
        }
        let distinct: std::collections::HashSet<_> = given.iter().map(|(_, address)| address).collect();
        ensure!(distinct.len() == given.len(), "an address was given twice: {given:?}");
        Ok(())
    });
}

/// A name server that gives every name the address 192.0.2.1, and counts.
async fn name_server() -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let (address, asked) = (socket.local_addr()?, Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            count.fetch_add(1, Ordering::Relaxed);
            // The question is all there is behind the header, as nothing here asks with EDNS.
            let mut reply = buffer[..length].to_vec();
            reply[2..4].copy_from_slice(&[0x81, 0x80]);
            reply[6..8].copy_from_slice(&[0, 1]);
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 0x2c, 0, 4, 192, 0, 2, 1]);
            let _ = socket.send_to(&reply, from).await;
        }
    });
    Ok((address, asked))
}

#[test]
fn answers_and_rejections_outlive_the_program() {
    run(async {
        let (server, asked) = name_server().await?;
        let directory = TempDir::new()?;
        let config = json!({
            "dns": {
                "servers": [
                    { "type": "udp", "tag": "up", "server": "127.0.0.1", "server_port": server.port() },
                    { "type": "hosts", "tag": "hosts", "path": "/nonexistent" }
                ],
                "rules": [
                    { "domain": "kept.test", "server": "up" },
                    // Beside a domain the addresses would not count (sing-box 1.14.4).
                    { "source_ip_cidr": "127.0.0.1", "ip_cidr": "10.0.0.0/8", "server": "up", "rewrite_ttl": 0 }
                ],
                "final": "hosts"
            },
            "inbounds": [{ "type": "direct", "tag": "dns", "listen": "127.0.0.1" }],
            "outbounds": [{ "type": "direct", "tag": "out" }],
            "route": { "rules": [{ "action": "hijack-dns" }], "default_domain_resolver": "hosts" },
            "experimental": { "cache_file": {
                "enabled": true, "path": directory.path().join("cache.db"), "store_dns": true, "store_rdrc": true
            } }
        });
        for round in 0..3 {
            let (instance, dns) = start(&config).await?;
            let reply = ask(dns, Ipv4Addr::LOCALHOST, "kept.test", 1, PATIENCE).await?.ok_or("silence")?;
            ensure!(reply.addresses.len() == 1 && reply.addresses[0].1 <= 300, "{reply:?}");
            let reply = ask(dns, Ipv4Addr::LOCALHOST, "other.test", 1, PATIENCE).await?.ok_or("silence")?;
            ensure!(reply.rcode == 3, "an address that passes no rule: {reply:?}");
            close(instance).await;
            let asked = asked.load(Ordering::Relaxed);
            ensure!(asked == 2, "round {round}: the server was asked {asked} times");
        }
        Ok(())
    });
}

async fn serve(program: &Program, directory: &TempDir) -> Result<culvert_testkit::peer::Peer> {
    let arguments = ["run", "--disable-color", "-c", "config.json"];
    let mut peer = program.launch(arguments).directory(directory.path()).spawn()?;
    peer.started().await?;
    Ok(peer)
}
