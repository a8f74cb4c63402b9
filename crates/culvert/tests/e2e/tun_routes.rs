//! A TUN device in the way of the system's traffic: routes and rules, nftables, what must stay out, and what is undone.
//!
//! ```text
//! client namespace          this namespace (of the test)
//! veth c ──────────────── veth s ─▶ routed into tunt, or diverted by nftables ─▶ culvert ─▶ origin on loopback
//! 10.77.0.2, fd77::2        10.77.0.1, fd77::1
//! ```
//!
//! The origin is at any address under 10.99.0.0/16 and fd99::/16. There is no default route but the device's.

use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use culvert_testkit::origin::{self, Origin, Service, confirmation, fresh_seed};
use culvert_testkit::peer::{Peer, Program};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use crate::culvert;
use crate::transparent::{Client, alone, echo, sh};
use crate::tun::{config, ip};

const STEP: Duration = Duration::from_secs(20);

fn auto(more: Value) -> Value {
    let mut options = json!({ "auto_route": true, "auto_redirect": true });
    for (key, value) in more.as_object().unwrap() {
        options[key] = value.clone();
    }
    options
}

fn rules() -> String {
    ip("rule show") + &ip("-6 rule show")
}

fn nft(command: &str) -> String {
    let output = Command::new("nft").args(command.split(' ')).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Packets that our table has diverted on the way out, or of others on the way in.
fn diverted(chain: &str) -> u64 {
    let table = nft(&format!("list chain inet culvert-tunt {chain}"));
    let line = table.lines().find(|line| line.contains("redirect to")).unwrap_or_default();
    let mut words = line.split(' ').skip_while(|word| *word != "packets");
    words.nth(1).and_then(|count| count.parse().ok()).unwrap_or(0)
}

async fn dial(target: (&str, u16)) -> io::Result<TcpStream> {
    tokio::time::timeout(STEP, TcpStream::connect(target)).await?
}

/// Some bytes up, and what the origin says of them.
async fn moves(host: &str, port: u16) -> Result {
    let mut stream = dial((host, port)).await.map_err(|error| format!("{host}: {error}"))?;
    let (seed, length) = (fresh_seed(), 300_000);
    stream.write_all(Service::Take { seed, length }.line().as_bytes()).await?;
    origin::send(&mut stream, seed, length, |_| ()).await?;
    let mut said = String::new();
    tokio::time::timeout(STEP, stream.read_to_string(&mut said)).await??;
    ensure!(said == confirmation(length), "{host}: {said:?}");
    Ok(())
}

async fn datagram(host: &str, port: u16) -> Result {
    let any = if host.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).await?;
    socket.connect((host, port)).await?;
    socket.send(b"hello").await?;
    let mut buffer = [0; 64];
    let length = tokio::time::timeout(STEP, socket.recv(&mut buffer))
        .await
        .map_err(|_| format!("{host}: no answer"))??;
    ensure!(&buffer[..length] == b"hello", "{host}: other bytes");
    Ok(())
}

/// A server at port 80 of an address, in the network namespace of a process: it says `beyond` to whoever comes.
fn serving(process: &str, address: &str) -> Result<Peer> {
    let server = format!(
        "import socket\ns = socket.create_server((\"{address}\", 80))\n\
         while True:\n c, a = s.accept()\n c.sendall(b\"beyond\")\n c.close()"
    );
    Program::named("nsenter").launch(["-t", process, "-n", "python3", "-c", &server]).spawn()
}

async fn stopped(mut peer: Peer) -> Result {
    let status = peer.stop().await?;
    ensure!(status.code() == Some(0), "stopped with {status}");
    Ok(())
}

#[test]
fn this_host_and_those_behind_it_are_diverted_and_all_is_undone() {
    alone("tun_routes::this_host_and_those_behind_it_are_diverted_and_all_is_undone", || async {
        let (client, origin) = (Client::new(), Origin::start().await?);
        let port = origin.port().number();
        let (before, tables) = (rules(), nft("list ruleset"));
        for stack in ["gvisor", "system"] {
            let peer = culvert().serve(&config(auto(json!({ "stack": stack })))).await?;
            for host in ["10.99.1.2", "fd99::2"] {
                moves(host, port).await?;
                datagram(host, port).await?;
                echo(&client, host, port, 90_000).await?;
                let asked = client.asks(host, port)?;
                ensure!(asked == "1200\n", "{host}: {asked:?}");
            }
            let (out, through) = (diverted("output"), diverted("prerouting"));
            ensure!(
                out >= 2 && through >= 2,
                "{stack}: diverted {out} and {through}: {}",
                nft("list ruleset")
            );
            // The local network is still one: nothing of it is taken.
            let listener = TcpListener::bind("10.77.0.1:0").await?;
            let local = listener.local_addr()?.port().to_string();
            let (said, accepted) = tokio::join!(
                tokio::task::spawn_blocking({
                    let pid = client.process();
                    move || {
                        Command::new("nsenter")
                            .args([
                                "-t",
                                &pid,
                                "-n",
                                "bash",
                                "-c",
                                &format!("exec 3<>/dev/tcp/10.77.0.1/{local}; cat <&3"),
                            ])
                            .output()
                    }
                }),
                async {
                    let (mut stream, from) = tokio::time::timeout(STEP, listener.accept()).await??;
                    stream.write_all(b"local").await?;
                    Ok::<SocketAddr, io::Error>(from)
                }
            );
            ensure!(accepted?.ip().to_string() == "10.77.0.2", "the client's own address");
            ensure!(said??.stdout == b"local", "the client of the local network");
            stopped(peer).await?;
            ensure!(rules() == before, "{stack}: rules stay:\n{}", rules());
            ensure!(nft("list ruleset") == tables, "{stack}: {}", nft("list ruleset"));
        }
        Ok(())
    });
}

#[test]
fn after_a_kill_clients_are_not_cut_off_and_the_next_start_repairs() {
    alone("tun_routes::after_a_kill_clients_are_not_cut_off_and_the_next_start_repairs", || async {
        let (client, origin) = (Client::new(), Origin::start().await?);
        let port = origin.port().number();
        let (before, tables) = (rules(), nft("list ruleset"));
        let mut peer = culvert().serve(&config(auto(json!({})))).await?;
        echo(&client, "10.99.1.2", port, 100).await?;
        let during = rules();
        peer.signal("KILL").await?;
        peer.ended().await?;
        ensure!(
            nft("list ruleset").contains("culvert-tunt"),
            "the kill left no table: this test shows nothing"
        );
        // What leads elsewhere leads there again: to the origin itself, by its address here.
        sh("ip route add 10.99.0.0/16 dev lo src 127.0.0.1; ip address add 10.99.1.2/32 dev lo");
        let listener = TcpListener::bind("10.99.1.2:0").await?;
        let local = listener.local_addr()?.port();
        let accepting = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await?;
            stream.write_all(b"past the table").await
        });
        let script = format!("exec 3<>/dev/tcp/10.99.1.2/{local}; cat <&3");
        let pid = client.process();
        let said = tokio::task::spawn_blocking(move || {
            Command::new("nsenter").args(["-t", &pid, "-n", "timeout", "15", "bash", "-c", &script]).output()
        });
        let said = said.await??;
        ensure!(said.stdout == b"past the table", "a table without a program takes connections: {said:?}");
        accepting.await??;
        sh("ip route delete 10.99.0.0/16 dev lo; ip address delete 10.99.1.2/32 dev lo");
        let peer = culvert().serve(&config(auto(json!({})))).await?;
        ensure!(rules() == during, "the rules are doubled: {}", rules());
        echo(&client, "10.99.1.2", port, 100).await?;
        moves("fd99::2", port).await?;
        stopped(peer).await?;
        ensure!(rules() == before && nft("list ruleset") == tables, "something stays: {}", rules());
        Ok(())
    });
}

#[test]
fn without_nftables_everything_goes_by_the_device() {
    alone("tun_routes::without_nftables_everything_goes_by_the_device", || async {
        let (client, origin) = (Client::new(), Origin::start().await?);
        let port = origin.port().number();
        // A program of that name that the kernel refuses, and none at all.
        let folder = TempDir::new()?;
        let refusing = folder.write(
            "nft",
            "#!/bin/sh\necho 'Error: Could not process rule: No such file or directory' >&2\nexit 1\n",
        )?;
        Command::new("/bin/chmod").arg("+x").arg(&refusing).status()?;
        let refusing = format!("PATH={}:/bin", folder.path().display());
        for (path, reason) in
            [("PATH=/nonexistent", "cannot be run"), (refusing.as_str(), "No such file or directory")]
        {
            let text = config(auto(json!({}))).to_string();
            let program = culvert().path().display().to_string();
            let mut peer = Program::named("env")
                .launch([path, program.as_str(), "run", "--disable-color", "-c", "stdin"])
                .input(text)
                .spawn()?;
            peer.log().line(|line| line.contains("culvert started")).await?;
            let told = peer.log().text();
            ensure!(told.contains("auto_redirect") && told.contains(reason), "{path}: {told}");
            for host in ["10.99.1.2", "fd99::2"] {
                moves(host, port).await?;
                echo(&client, host, port, 90_000).await?;
            }
            peer.stop().await?;
            // What only nftables can do is not left undone in silence.
            let text = config(auto(json!({ "exclude_mptcp": true }))).to_string();
            let finished = Program::named("env")
                .launch([path, program.as_str(), "run", "--disable-color", "-c", "stdin"])
                .input(text)
                .run()
                .await?;
            ensure!(finished.code == Some(1) && finished.stderr.contains(reason), "{finished:?}");
            ensure!(!rules().contains("2022"), "a start that failed left rules: {}", rules());
        }
        Ok(())
    });
}

#[test]
fn rule_sets_are_routes_and_change_as_they_do() {
    alone("tun_routes::rule_sets_are_routes_and_change_as_they_do", || async {
        let (origin, folder) = (Origin::start().await?, TempDir::new()?);
        let port = origin.port().number();
        let set = |networks: &[&str]| json!({ "version": 3, "rules": [{ "ip_cidr": networks }] }).to_string();
        let file = folder.write("set.json", set(&["10.99.1.0/24", "fd99::/64"]))?;
        folder.write("not.json", set(&["10.99.1.128/25"]))?;
        let mut config = config(json!({
            "auto_route": true, "route_address_set": ["in"], "route_exclude_address_set": ["out"]
        }));
        let source = |tag: &str, path: &std::path::Path| json!({ "type": "local", "tag": tag, "format": "source", "path": path });
        config["route"]["rule_set"] =
            json!([source("in", &file), source("out", &folder.path().join("not.json"))]);
        let peer = culvert().serve(&config).await?;
        let routes = || ip("route show table 2022") + &ip("-6 route show table 2022");
        ensure!(routes().contains("10.99.1.0/25 dev tunt"), "{}", routes());
        moves("10.99.1.2", port).await?;
        moves("fd99::2", port).await?;
        for outside in ["10.99.1.130", "10.99.2.2", "fd99:1::2"] {
            let kind = dial((outside, port)).await.map(drop).map_err(|error| error.kind());
            ensure!(kind == Err(io::ErrorKind::NetworkUnreachable), "{outside}: {kind:?}");
        }
        folder.write("set.json", set(&["10.99.2.0/24"]))?;
        let begun = std::time::Instant::now();
        while !routes().contains("10.99.2.0/24") || routes().contains("10.99.1.0") {
            ensure!(begun.elapsed() < STEP, "the routes stay as they were: {}", routes());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        moves("10.99.2.2", port).await?;
        ensure!(dial(("10.99.1.2", port)).await.is_err(), "what has left the set is still routed");
        stopped(peer).await
    });
}

#[test]
fn strict_routes_make_the_other_family_unreachable() {
    alone("tun_routes::strict_routes_make_the_other_family_unreachable", || async {
        let (client, origin) = (Client::new(), Origin::start().await?);
        let port = origin.port().number();
        for (strict, expected) in [(false, "fd77::2"), (true, "unreachable")] {
            let options = json!({ "auto_route": true, "address": ["172.19.0.1/30"], "strict_route": strict });
            sh("ip -6 route replace default via fd77::2");
            let peer = culvert().serve(&config(options)).await?;
            moves("10.99.1.2", port).await?;
            let led = Command::new("ip").args(["-6", "route", "get", "2001:db8::1"]).output()?;
            let led = String::from_utf8_lossy(&[led.stdout, led.stderr].concat()).to_lowercase();
            ensure!(led.contains(expected), "strict {strict}: {led}");
            // Our own sockets still have both.
            let own = ip("-6 route get 2001:db8::1 mark 0x2024");
            ensure!(own.contains("fd77::2"), "ours: {own}");
            stopped(peer).await?;
        }
        drop(client);
        Ok(())
    });
}

#[test]
fn only_the_users_that_are_named_are_taken() {
    alone("tun_routes::only_the_users_that_are_named_are_taken", || async {
        let origin = Origin::start().await?;
        let reaches = |user: u32| {
            let script = format!("exec 3<>/dev/tcp/10.99.1.2/{}", origin.port().number());
            let user = format!("--reuid={user}");
            let status =
                Command::new("setpriv").args([&user, "--clear-groups", "bash", "-c", &script]).output();
            status.unwrap().status.success()
        };
        for (options, inside, outside) in [
            (json!({ "include_uid": [4242] }), vec![4242], vec![4241, 4243, 0]),
            (json!({ "include_uid": [4242, 5000] }), vec![4242, 5000], vec![4243]),
            (json!({ "include_uid_range": ["4000:4100"] }), vec![4000, 4050, 4100], vec![3999, 4101]),
            (json!({ "exclude_uid": [4242] }), vec![4241, 0], vec![4242]),
        ] {
            let peer = culvert().serve(&config(auto(options.clone()))).await?;
            for user in inside {
                ensure!(reaches(user), "{options}: user {user} is not taken");
            }
            for user in outside {
                ensure!(!reaches(user), "{options}: user {user} is taken");
            }
            stopped(peer).await?;
        }
        Ok(())
    });
}

#[test]
fn interfaces_that_are_named_are_taken_or_left_out() {
    alone("tun_routes::interfaces_that_are_named_are_taken_or_left_out", || async {
        let (client, origin) = (Client::new(), Origin::start().await?);
        let port = origin.port().number();
        let reaches = |host: &str| {
            client
                .program(&["tcp", host, &port.to_string(), "echo\nx"])
                .is_ok_and(|said| said.starts_with("1 "))
        };
        for redirect in [false, true] {
            let with = |more: Value| {
                config(auto(json!({ "auto_redirect": redirect })).as_object().map_or(json!({}), |base| {
                    let mut all = Value::Object(base.clone());
                    for (key, value) in more.as_object().into_iter().flatten() {
                        all[key] = value.clone();
                    }
                    all
                }))
            };
            let peer = culvert().serve(&with(json!({ "include_interface": ["s"] }))).await?;
            ensure!(
                reaches("10.99.1.2") && reaches("fd99::2"),
                "redirect {redirect}: the client is not taken"
            );
            ensure!(dial(("10.99.1.2", port)).await.is_err(), "redirect {redirect}: this host is taken");
            stopped(peer).await?;
            let peer = culvert().serve(&with(json!({ "exclude_interface": ["s"] }))).await?;
            ensure!(!reaches("10.99.1.2"), "redirect {redirect}: the client is taken");
            moves("10.99.1.2", port).await?;
            stopped(peer).await?;
        }
        Ok(())
    });
}

#[test]
fn devices_that_are_named_pass_by() {
    alone("tun_routes::devices_that_are_named_pass_by", || async {
        let (client, origin) = (Client::new(), Origin::start().await?);
        let port = origin.port().number().to_string();
        client.sh("ip link set c address 02:00:00:00:00:07");
        let reaches = || {
            client.program(&["tcp", "10.99.1.2", &port, "echo\nx"]).is_ok_and(|said| said.starts_with("1 "))
        };
        for (options, taken) in [
            (json!({ "exclude_mac_address": ["02:00:00:00:00:07"] }), false),
            (json!({ "exclude_mac_address": ["02:00:00:00:00:08"] }), true),
            (json!({ "include_mac_address": ["02:00:00:00:00:07"] }), true),
            (json!({ "include_mac_address": ["02:00:00:00:00:08"] }), false),
        ] {
            let peer = culvert().serve(&config(auto(options.clone()))).await?;
            ensure!(reaches() == taken, "{options}: not {taken}");
            stopped(peer).await?;
        }
        Ok(())
    });
}

#[test]
fn the_filters_of_the_host_stay_what_they_are() {
    alone("tun_routes::the_filters_of_the_host_stay_what_they_are", || async {
        let (client, origin) = (Client::new(), Origin::start().await?);
        let port = origin.port().number();
        // The shapes of Docker's and of a firewall's tables: nothing is forwarded from one network to another, one port of
        // this host is closed, and one is published for a container.
        sh("nft -f - <<'END'\n\
            table ip filter { chain DOCKER-USER { ip daddr 10.88.0.0/16 drop; }; \
              chain FORWARD { type filter hook forward priority filter; policy accept; jump DOCKER-USER; }; }\n\
            table inet fw { chain input { type filter hook input priority filter; policy accept; tcp dport 7777 drop; }; }\n\
            table ip nat { chain PREROUTING { type nat hook prerouting priority dstnat; tcp dport 8080 dnat to 10.88.0.2:80; }; }\nEND");
        let ours = nft("list ruleset");
        let peer = culvert().serve(&config(auto(json!({})))).await?;
        echo(&client, "10.99.1.2", port, 1000).await?;
        for table in ["ip filter", "inet fw", "ip nat"] {
            let now = nft(&format!("list table {table}"));
            ensure!(ours.contains(now.trim()), "the table {table} is another: {now}");
        }
        let closed = TcpListener::bind("10.77.0.1:7777").await?;
        let script = "timeout 1 bash -c \"exec 3<>/dev/tcp/10.77.0.1/7777\"";
        let pid = client.process();
        let dialed = Command::new("nsenter").args(["-t", &pid, "-n", "sh", "-c", script]).status()?;
        ensure!(!dialed.success(), "a closed port is open");
        drop(closed);
        stopped(peer).await?;
        ensure!(nft("list ruleset") == ours, "{}", nft("list ruleset"));
        Ok(())
    });
}

#[test]
fn a_published_port_of_a_container_still_answers() {
    alone("tun_routes::a_published_port_of_a_container_still_answers", || async {
        let (client, container) = (Client::new(), Client::holder()?);
        let pid = container.process();
        sh(&format!(
            "ip link add br0 type bridge; ip address add 10.88.0.1/24 dev br0; ip link set br0 up; \
             ip link add v0 type veth peer name v1 netns {pid}; ip link set v0 master br0 up"
        ));
        container.sh(
            "ip link set lo up; ip address add 10.88.0.2/24 dev v1; ip link set v1 up; ip route add default via 10.88.0.1",
        );
        sh("nft -f - <<'END'\ntable ip nat { chain PREROUTING { type nat hook prerouting priority dstnat; \
            iifname s tcp dport 8080 dnat to 10.88.0.2:80; }; \
            chain POSTROUTING { type nat hook postrouting priority srcnat; ip saddr 10.88.0.0/24 oifname != br0 masquerade; }; }\nEND");
        let mut serving = serving(&pid, "10.88.0.2")?;
        for options in [json!({ "auto_redirect": false }), json!({}), json!({ "strict_route": true })] {
            let peer = culvert().serve(&config(auto(options.clone()))).await?;
            let begun = std::time::Instant::now();
            loop {
                let said = client.program(&["tcp", "10.77.0.1", "8080", ""]);
                if said.as_ref().is_ok_and(|said| said.contains("beyond")) {
                    break;
                }
                ensure!(begun.elapsed() < STEP, "{options}: {said:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            stopped(peer).await?;
        }
        serving.signal("KILL").await?;
        serving.ended().await?;
        Ok(())
    });
}

#[test]
fn sockets_that_are_bound_to_a_device_go_by_that_device() {
    alone("tun_routes::sockets_that_are_bound_to_a_device_go_by_that_device", || async {
        let client = Client::new();
        sh("ip route add default via 10.77.0.2");
        // A host beyond the client, which is what the default route leads to.
        client.sh("ip address add 203.0.113.7/32 dev lo");
        let pid = client.process();
        let mut serving = serving(&pid, "203.0.113.7")?;
        let peer = culvert().serve(&config(auto(json!({})))).await?;
        let fetch = || {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind_device(Some(b"s"))?;
            Ok::<_, io::Error>(socket)
        };
        let begun = std::time::Instant::now();
        let mut stream = loop {
            let target: SocketAddr = "203.0.113.7:80".parse()?;
            match tokio::time::timeout(STEP, fetch()?.connect(target)).await? {
                Ok(stream) => break stream,
                Err(error) => ensure!(begun.elapsed() < STEP, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let mut said = String::new();
        tokio::time::timeout(STEP, stream.read_to_string(&mut said)).await??;
        ensure!(said == "beyond", "{said:?}");
        ensure!(diverted("output") == 0, "a socket that is bound to a device was diverted");
        stopped(peer).await?;
        serving.signal("KILL").await?;
        serving.ended().await?;
        Ok(())
    });
}

#[test]
fn the_listener_of_diverted_connections_is_no_way_in() {
    alone("tun_routes::the_listener_of_diverted_connections_is_no_way_in", || async {
        let (client, origin) = (Client::new(), Origin::start().await?);
        let peer = culvert().serve(&config(auto(json!({ "stack": "system" })))).await?;
        let table = nft("list table inet culvert-tunt");
        let port = table.split("redirect to :").nth(1).and_then(|rest| rest.split_whitespace().next());
        let port = port.ok_or("no port in the table")?.to_owned();
        let listeners = Command::new("ss").args(["-Htln"]).output()?;
        let listeners = String::from_utf8_lossy(&listeners.stdout).into_owned();
        let at_device = listeners.split_whitespace().find_map(|word| word.strip_prefix("172.19.0.1:"));
        let at_device = at_device.unwrap_or(&port);
        for (host, port) in [
            ("127.0.0.1", port.as_str()),
            ("10.77.0.1", port.as_str()),
            ("172.19.0.1", port.as_str()),
            ("172.19.0.1", at_device),
        ] {
            let mut stream = dial((host, port.parse()?)).await?;
            let read = tokio::time::timeout(STEP, stream.read(&mut [0])).await?;
            ensure!(!matches!(read, Ok(count) if count > 0), "{host}:{port} answers");
        }
        let said = client.program(&["tcp", "10.77.0.1", &port, "x"]);
        ensure!(said.as_ref().map_or(true, |said| said.starts_with("0 ")), "{said:?}");
        let usage = peer.usage()?;
        ensure!(usage.descriptors < 100, "{} descriptors", usage.descriptors);
        moves("10.99.1.2", origin.port().number()).await?;
        stopped(peer).await
    });
}

#[test]
fn what_would_cut_the_host_off_is_refused_and_nothing_changes() {
    alone("tun_routes::what_would_cut_the_host_off_is_refused_and_nothing_changes", || async {
        let _client = Client::new();
        sh("ip route add default via 10.77.0.2");
        let state = || rules() + &ip("route show table all") + &ip("-br address show") + &nft("list ruleset");
        let before = state();
        for (options, reason) in [
            (json!({ "address": ["10.77.0.9/30"] }), "overlaps with 10.77.0.1/24 of the interface s"),
            (json!({ "address": ["10.0.0.1/8"] }), "overlaps with"),
            (json!({ "address": ["172.19.0.1/30", "fd77::1/64"] }), "overlaps with fd77::1/64"),
            (json!({ "iproute2_table_index": 254 }), "iproute2_table_index: 254 is a table of the system"),
            (json!({ "iproute2_rule_index": 32_767 }), "iproute2_rule_index"),
            (
                json!({ "auto_redirect_input_mark": 7, "auto_redirect_output_mark": 7 }),
                "auto_redirect_input_mark",
            ),
        ] {
            let text = config(auto(options.clone())).to_string();
            let finished =
                culvert().launch(["run", "--disable-color", "-c", "stdin"]).input(text).run().await?;
            ensure!(finished.code == Some(1) && finished.stderr.contains(reason), "{options}: {finished:?}");
            ensure!(state() == before, "{options} changed something: {}", state());
        }
        Ok(())
    });
}

#[test]
fn a_second_one_does_not_take_the_place_of_the_first() {
    alone("tun_routes::a_second_one_does_not_take_the_place_of_the_first", || async {
        let origin = Origin::start().await?;
        let port = origin.port().number();
        let first = culvert().serve(&config(auto(json!({})))).await?;
        let during = rules();
        let other = json!({ "interface_name": "tunu", "address": ["172.18.0.1/30", "fdfd::1/126"] });
        let text = config(auto(other)).to_string();
        let finished = culvert().launch(["run", "--disable-color", "-c", "stdin"]).input(text).run().await?;
        ensure!(finished.code == Some(1) && finished.stderr.contains("table 2022 is in use"), "{finished:?}");
        ensure!(rules() == during, "the rules of the first are gone: {}", rules());
        moves("10.99.1.2", port).await?;
        // With places of its own it takes what comes first to it, and the first one goes on after its end.
        let apart = json!({
            "interface_name": "tunu", "address": ["172.18.0.1/30", "fdfd::1/126"], "iproute2_table_index": 2023,
            "iproute2_rule_index": 8000, "auto_redirect": false
        });
        let second = culvert().serve(&config(auto(apart))).await?;
        moves("10.99.1.2", port).await?;
        stopped(second).await?;
        ensure!(rules() == during, "the rules of the first are changed: {}", rules());
        moves("10.99.1.2", port).await?;
        stopped(first).await
    });
}

#[test]
fn hosts_of_one_family_and_repeated_starts() {
    alone("tun_routes::hosts_of_one_family_and_repeated_starts", || async {
        let origin = Origin::start().await?;
        let port = origin.port().number();
        let before = rules();
        for addresses in [
            json!(["172.19.0.1/30"]),
            json!(["fdfe:dcba::1/126"]),
            json!(["172.19.0.1/30", "fdfe:dcba::1/126"]),
        ] {
            let peer = culvert().serve(&config(auto(json!({ "address": addresses })))).await?;
            let text = addresses.to_string();
            for (host, there) in [("10.99.1.2", text.contains("172")), ("fd99::2", text.contains("fdfe"))] {
                ensure!(dial((host, port)).await.is_ok() == there, "{text}: {host}");
            }
            stopped(peer).await?;
        }
        // IPv6 switched off: a warning, and IPv4 works.
        sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
        for stack in ["gvisor", "system"] {
            let peer = culvert().serve(&config(auto(json!({ "stack": stack })))).await?;
            ensure!(peer.log().text().contains("WARN"), "no word on IPv6: {}", peer.log().text());
            moves("10.99.1.2", port).await?;
            stopped(peer).await?;
        }
        sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0");
        // A device that is there with its address already, and many starts.
        sh("ip tuntap add tunt mode tun vnet_hdr; ip address add 172.19.0.1/30 dev tunt");
        for _ in 0..10 {
            let peer = culvert().serve(&config(auto(json!({})))).await?;
            moves("10.99.1.2", port).await?;
            stopped(peer).await?;
        }
        sh("ip link delete tunt");
        ensure!(rules() == before, "{}", rules());
        Ok(())
    });
}

#[test]
fn the_systems_dns_is_led_here_and_back() {
    alone("tun_routes::the_systems_dns_is_led_here_and_back", || async {
        let folder = TempDir::new()?;
        let tool = folder
            .write("resolvectl", format!("#!/bin/sh\necho \"$@\" >> {}/told\n", folder.path().display()))?;
        Command::new("chmod").arg("+x").arg(&tool).status()?;
        let path = format!("PATH={}:{}", folder.path().display(), std::env::var("PATH")?);
        let program = culvert().path().display().to_string();
        let told = || std::fs::read_to_string(folder.path().join("told")).unwrap_or_default();
        for (options, expected) in [
            (json!({}), "dns tunt 172.19.0.2 fdfe:dcba::2"),
            (json!({ "dns_mode": "native", "dns_address": ["9.9.9.9"] }), "dns tunt 9.9.9.9"),
            (json!({ "dns_mode": "disabled" }), ""),
        ] {
            let _ = std::fs::remove_file(folder.path().join("told"));
            let mut peer = Program::named("env")
                .launch([path.as_str(), program.as_str(), "run", "--disable-color", "-c", "stdin"])
                .input(config(auto(options.clone())).to_string())
                .spawn()?;
            peer.log().line(|line| line.contains("culvert started")).await?;
            if expected.is_empty() {
                peer.stop().await?;
                ensure!(told().is_empty(), "{options}: {}", told());
                continue;
            }
            peer.log().line(|line| line.contains("systemd-resolved asks")).await?;
            let wanted = format!("domain tunt ~.\ndefault-route tunt true\n{expected}\n");
            ensure!(told() == wanted, "{options}: {}", told());
            peer.stop().await?;
            ensure!(told() == format!("{wanted}revert tunt\n"), "{options}: {}", told());
        }
        Ok(())
    });
}

#[test]
fn what_our_own_listeners_answer_does_not_come_back_in() {
    alone("tun_routes::what_our_own_listeners_answer_does_not_come_back_in", || async {
        let (client, origin) = (Client::new(), Origin::start().await?);
        sh("ip route add default via 10.77.0.2");
        // A client that no route of the local network leads to.
        client.sh("ip address add 198.51.100.7/32 dev lo; ip route replace 10.77.0.1 dev c src 198.51.100.7");
        let port = Port::reserve()?;
        let mut config = config(auto(json!({})));
        config["inbounds"].as_array_mut().ok_or("no list")?.push(json!({
            "type": "direct", "tag": "relay", "listen": "0.0.0.0", "listen_port": port.number(),
            "override_address": "127.0.0.1", "override_port": origin.port().number()
        }));
        let peer = culvert().serve(&config).await?;
        let answered = client.program(&["udp", "10.77.0.1", &port.number().to_string()])?;
        ensure!(answered.lines().count() == 3 && !answered.contains("False"), "{answered}");
        let said = client.program(&["tcp", "10.77.0.1", &port.number().to_string(), "echo\nhello"])?;
        ensure!(said.starts_with("5 hello"), "{said}");
        let log = peer.log().text();
        let back =
            log.lines().any(|line| line.contains("inbound/tun[tun]") && line.contains("connection from"));
        ensure!(!back, "answers came back in: {log}");
        stopped(peer).await
    });
}

#[test]
fn thousands_of_routes_that_change_are_looked_at_together() {
    alone("tun_routes::thousands_of_routes_that_change_are_looked_at_together", || async {
        let _client = Client::new();
        let mut config = config(auto(json!({})));
        config["log"]["level"] = "trace".into();
        let peer = culvert().serve(&config).await?;
        let batch = |verb: &str, count: u32| {
            (0..count)
                .map(|n| format!("route {verb} 100.{}.{}.0/24 dev s\n", n >> 8, n & 255))
                .collect::<String>()
        };
        let folder = TempDir::new()?;
        let (add, del) =
            (folder.write("add", batch("add", 10_000))?, folder.write("del", batch("delete", 10_000))?);
        sh(&format!("ip -batch {}", add.display()));
        for _ in 0..20 {
            sh("ip route delete 100.0.7.0/24 dev s; ip route add 100.0.7.0/24 dev s");
        }
        sh(&format!("ip -batch {}", del.display()));
        // What comes last is seen after all of it.
        sh("ip route add default via 10.77.0.2");
        peer.log().line(|line| line.contains("default interface is s")).await?;
        let looks = peer.log().text().lines().filter(|line| line.contains("the network has changed")).count();
        ensure!((1..1_000).contains(&looks), "{looks} looks at 20,000 changes");
        stopped(peer).await
    });
}

#[test]
fn a_way_out_that_is_replaced_is_found_again() {
    alone("tun_routes::a_way_out_that_is_replaced_is_found_again", || async {
        let client = Client::new();
        sh("ip route add default via 10.77.0.2");
        client.sh("ip address add 203.0.113.7/32 dev lo");
        let pid = client.process();
        let mut serving = serving(&pid, "203.0.113.7")?;
        let mut config = config(auto(json!({ "auto_redirect": false })));
        config["route"]["auto_detect_interface"] = true.into();
        let peer = culvert().serve(&config).await?;
        let reached = || async {
            let begun = std::time::Instant::now();
            loop {
                let mut said = String::new();
                if let Ok(mut stream) = dial(("203.0.113.7", 80)).await
                    && stream.read_to_string(&mut said).await.is_ok()
                    && said == "beyond"
                {
                    return Ok::<(), culvert_testkit::Error>(());
                }
                ensure!(begun.elapsed() < STEP, "nothing comes back");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        reached().await?;
        // The same name with another number.
        sh("ip link delete s");
        sh(&format!(
            "ip link add d0 type veth peer name d1; ip link add s type veth peer name c netns {pid}; \
             ip address add 10.77.0.1/24 dev s; ip link set s up"
        ));
        client.sh("ip address add 10.77.0.2/24 dev c; ip link set c up");
        sh("ip route add default via 10.77.0.2");
        reached().await.map_err(|error| format!("after the change: {error}"))?;
        stopped(peer).await?;
        serving.signal("KILL").await?;
        serving.ended().await?;
        Ok(())
    });
}

#[test]
fn another_programs_rules_keep_their_networks() {
    alone("tun_routes::another_programs_rules_keep_their_networks", || async {
        let origin = Origin::start().await?;
        // The shape of Tailscale's: what it has marked goes by the main table, its network by a table of its own.
        let theirs = "ip link add ts0 type veth peer name ts1; ip link set ts1 up; ip link set ts0 up; ip route add 100.64.0.0/10 dev ts0 table 52; \
            ip rule add priority 5210 fwmark 0x80000/0xff0000 lookup main; \
            ip rule add priority 5250 fwmark 0x80000/0xff0000 unreachable; ip rule add priority 5270 lookup 52";
        let leads = |to: &str| ip(&format!("route get {to}"));
        for first in [true, false] {
            if first {
                sh(theirs);
            }
            let peer = culvert().serve(&config(auto(json!({})))).await?;
            if !first {
                sh(theirs);
            }
            ensure!(leads("100.100.1.1").contains("dev ts0"), "{}", leads("100.100.1.1"));
            ensure!(leads("203.0.113.1").contains("dev tunt"), "{}", leads("203.0.113.1"));
            moves("10.99.1.2", origin.port().number()).await?;
            stopped(peer).await?;
            ensure!(rules().contains("5270:"), "their rules are gone: {}", rules());
            sh(
                "ip link delete ts0; ip rule delete priority 5210; ip rule delete priority 5250; ip rule delete priority 5270",
            );
        }
        Ok(())
    });
}

#[test]
fn multipath_connections_are_taken_or_pass_by() {
    alone("tun_routes::multipath_connections_are_taken_or_pass_by", || async {
        let (client, origin) = (Client::new(), Origin::start().await?);
        let program = "import socket,sys\ns = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\ns.settimeout(1)\n\
                       s.connect((sys.argv[1], int(sys.argv[2])))\ns.sendall(b\"echo\\nhello\")\n\
                       s.shutdown(socket.SHUT_WR)\nprint(s.recv(100).decode())";
        let (pid, port) = (client.process(), origin.port().number().to_string());
        let reaches = |inside: bool| {
            let mut command = if inside {
                let mut command = Command::new("nsenter");
                command.args(["-t", &pid, "-n", "python3"]);
                command
            } else {
                Command::new("python3")
            };
            let output = command.args(["-c", program, "10.99.1.2", &port]).output()?;
            Ok::<bool, io::Error>(output.stdout == b"hello\n")
        };
        let peer = culvert().serve(&config(auto(json!({})))).await?;
        ensure!(reaches(true)? && reaches(false)?, "they are not taken: {}", nft("list ruleset"));
        stopped(peer).await?;
        let peer = culvert().serve(&config(auto(json!({ "exclude_mptcp": true })))).await?;
        ensure!(!reaches(true)? && !reaches(false)?, "they do not pass by: {}", nft("list ruleset"));
        moves("10.99.1.2", origin.port().number()).await?;
        stopped(peer).await
    });
}
