//! The command line, signals, start and reload.

use crate::proxy::STEP;
use crate::{culvert, run};
use culvert_testkit::client::{self, Protocol, Target};
use culvert_testkit::origin::{self, Origin, Service, fresh_seed};
use culvert_testkit::peer::{Program, skip};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[test]
fn check_is_silent_about_a_good_config() {
    run(async {
        let program = culvert();
        let directory = TempDir::new()?;
        directory.write("config.json", config(&Port::reserve()?).to_string())?;
        // Without -c it is config.json in the working directory.
        for arguments in [&["check"][..], &["check", "-c", "config.json"], &["-c", "config.json", "check"]] {
            let finished =
                program.launch(arguments.iter().copied()).directory(directory.path()).run().await?;
            ensure!(finished.code == Some(0), "{arguments:?}: {finished:?}");
            ensure!(finished.stdout.is_empty() && finished.stderr.is_empty(), "{arguments:?}: {finished:?}");
        }
        Ok(())
    });
}

#[test]
fn check_names_every_error_with_its_place() {
    run(async {
        let program = culvert();
        let directory = TempDir::new()?;
        let broken = r#"{
  "inbounds": [
    { "type": "socks", "tag": "in", "listen": "127.0.0.1", "listen_prot": 1080 },
    { "type": "mixed", "listen": "127.0.0.1", "listen_port": 99999 }
  ],
  "outbounds": [{ "type": "no-such-type" }]
}"#;
        directory.write("broken.json", broken)?;
        let finished = program
            .launch(["check", "--disable-color", "-c", "broken.json"])
            .directory(directory.path())
            .run()
            .await?;
        ensure!(finished.code == Some(1), "{finished:?}");
        for part in [
            "listen_prot",
            "listen_port",
            "no-such-type",
            "broken.json:3:",
            "broken.json:4:",
            "broken.json:6:",
        ] {
            ensure!(finished.stderr.contains(part), "{part:?} is missing in:\n{}", finished.stderr);
        }
        Ok(())
    });
}

/// sing-box takes these, and fails at each connection.
#[test]
fn outbound_without_a_server_is_named_with_its_place() {
    run(async {
        let program = culvert();
        let directory = TempDir::new()?;
        let config = r#"{
  "outbounds": [
    { "type": "socks", "tag": "nowhere" },
    { "type": "http", "tag": "half", "server": "127.0.0.1" }
  ]
}"#;
        directory.write("config.json", config)?;
        let launch = |command| program.launch([command, "--disable-color"]).directory(directory.path()).run();
        let checked = launch("check").await?;
        ensure!(checked.code == Some(0), "{checked:?}");
        let ran = launch("run").await?;
        ensure!(ran.code == Some(1), "{ran:?}");
        for finished in [&checked, &ran] {
            for part in [
                "WARN[0000] config.json:3:5: outbounds[0] \"nowhere\": `server` is missing",
                "WARN[0000] config.json:3:5: outbounds[0] \"nowhere\": `server_port` is missing",
                "WARN[0000] config.json:4:5: outbounds[1] \"half\": `server_port` is missing",
            ] {
                ensure!(finished.stderr.contains(part), "{part:?} is missing in:\n{}", finished.stderr);
            }
        }
        let fatal =
            "FATAL[0000] start service: config.json:3:5: outbounds[0] \"nowhere\": server: it is missing";
        ensure!(ran.stderr.contains(fatal), "{}", ran.stderr);
        Ok(())
    });
}

#[test]
fn unreadable_config_is_an_error() {
    run(async {
        let program = culvert();
        let directory = TempDir::new()?;
        directory.write("cut.json", r#"{ "inbounds": ["#)?;
        for (command, file) in
            [("check", "cut.json"), ("run", "cut.json"), ("check", "none.json"), ("run", "none.json")]
        {
            let finished = program.launch([command, "-c", file]).directory(directory.path()).run().await?;
            ensure!(finished.code == Some(1), "{command} {file}: {finished:?}");
            ensure!(finished.stderr.contains(file), "{command} {file}: {finished:?}");
        }
        Ok(())
    });
}

#[test]
fn version_is_printed() {
    run(async {
        let program = culvert();
        let finished = program.launch(["version", "-n"]).run().await?;
        let version = finished.stdout.trim().to_owned();
        ensure!(finished.code == Some(0) && version.split('.').count() >= 3, "{finished:?}");
        let finished = program.launch(["version"]).run().await?;
        ensure!(finished.code == Some(0) && finished.stdout.contains(&version), "{finished:?}");
        let protocols = finished.stdout.lines().find_map(|line| line.strip_prefix("Protocols: "));
        let protocols: Vec<_> = protocols.ok_or("no protocols")?.split(',').collect();
        ensure!(protocols.contains(&"socks"), "{protocols:?}");
        ensure!(!protocols.contains(&"uot"), "no inbound and no outbound is of that type: {protocols:?}");
        Ok(())
    });
}

#[test]
fn usage_errors_are_told() {
    run(async {
        let program = culvert();
        for arguments in [&["nonsense"][..], &["run", "--nonsense"], &["check", "-c"]] {
            let finished = program.launch(arguments.iter().copied()).run().await?;
            ensure!(finished.code.is_some_and(|code| code != 0), "{arguments:?}: {finished:?}");
            ensure!(!finished.stderr.is_empty(), "{arguments:?} says nothing");
        }
        let finished = program.launch(["--help"]).run().await?;
        ensure!(finished.code == Some(0) && finished.stdout.contains("run"), "{finished:?}");
        let finished = program.launch(["format", "--help"]).run().await?;
        let (own, shared) =
            finished.stdout.split_once("Options of all commands:").ok_or("one heap of options")?;
        ensure!(own.contains("--write") && !own.contains("--config"), "{own}");
        ensure!(shared.contains("--config") && !shared.contains("--write"), "{shared}");
        Ok(())
    });
}

#[test]
fn port_in_use_names_inbound_and_address() {
    run(async {
        let program = culvert();
        let port = Port::reserve()?;
        let _occupant = TcpListener::bind(port.v4()).await?;
        let directory = TempDir::new()?;
        directory.write("config.json", config(&port).to_string())?;
        let finished = program.launch(["run", "-c", "config.json"]).directory(directory.path()).run().await?;
        ensure!(finished.code == Some(1), "{finished:?}");
        for part in ["door", &port.v4().to_string()] {
            ensure!(finished.stderr.contains(part), "{part:?} is missing in:\n{}", finished.stderr);
        }
        Ok(())
    });
}

#[test]
fn signals_end_the_program_in_order() {
    run(async {
        let program = culvert();
        for signal in ["TERM", "INT"] {
            let (port, origin) = (Port::reserve()?, Origin::start().await?);
            let mut peer = program.serve(&config(&port)).await?;
            // With a stream and a stalled handshake open.
            let _stalled = TcpStream::connect(port.v4()).await?;
            let _stream = tunnel(port.v4(), &origin).await?;
            peer.signal(signal).await?;
            let status = tokio::time::timeout(Duration::from_secs(10), peer.ended()).await??;
            ensure!(status.code() == Some(0), "SIG{signal}: {status}");
        }
        Ok(())
    });
}

#[test]
fn reload_takes_a_good_config_and_leaves_a_bad_one() {
    run(async {
        let program = culvert();
        let (first, second, origin) = (Port::reserve()?, Port::reserve()?, Origin::start().await?);
        let mut peer = program.serve(&config(&first)).await?;
        let file = peer.directory().ok_or("no directory")?.join("config.json");
        works(first.v4(), &origin).await?;

        for bad in [r#"{ "inbounds": ["#, r#"{ "inbounds": [{ "type": "nonsense" }] }"#] {
            std::fs::write(&file, bad)?;
            let seen = peer.log().count();
            peer.signal("HUP").await?;
            peer.log().line_after(seen, |line| line.contains("ERROR") && line.contains("reload")).await?;
            works(first.v4(), &origin).await?;
        }

        std::fs::write(&file, config(&second).to_string())?;
        let seen = peer.log().count();
        peer.signal("HUP").await?;
        peer.log().line_after(seen, is_reloaded).await?;
        works(second.v4(), &origin).await?;
        ensure!(TcpStream::connect(first.v4()).await.is_err(), "the old port is still open");

        let status = peer.stop().await?;
        ensure!(status.code() == Some(0), "{status}");
        Ok(())
    });
}

/// With an unchanged file there is nothing to do, and with one that cannot start everything goes on.
#[test]
fn reload_that_changes_nothing_ends_no_connection() {
    run(async {
        let (port, origin) = (Port::reserve()?, Origin::start().await?);
        let peer = culvert().serve(&config(&port)).await?;
        let file = peer.directory().ok_or("no directory")?.join("config.json");
        let mut kept = tunnel(port.v4(), &origin).await?;
        kept.write_all(Service::Echo.line().as_bytes()).await?;
        let mut echoes = async |word: &[u8; 4]| {
            kept.write_all(word).await?;
            let mut echo = [0; 4];
            tokio::time::timeout(STEP, kept.read_exact(&mut echo)).await??;
            ensure!(echo == *word, "the kept connection says {echo:?}");
            Ok::<_, culvert_testkit::Error>(())
        };
        echoes(b"one ").await?;

        let seen = peer.log().count();
        peer.signal("HUP").await?;
        peer.log().line_after(seen, |line| line.contains("INFO") && line.contains("unchanged")).await?;
        echoes(b"two ").await?;

        // One of its ports is taken.
        let taken = Port::reserve()?;
        let _occupant = TcpListener::bind(taken.v4()).await?;
        let mut busy = config(&port);
        busy["inbounds"] = json!([inbound(&port, "door"), inbound(&taken, "gate")]);
        std::fs::write(&file, busy.to_string())?;
        let seen = peer.log().count();
        peer.signal("HUP").await?;
        let tells = |line: &str| line.contains("ERROR") && line.contains("gate") && line.contains("stays");
        peer.log().line_after(seen, tells).await?;
        echoes(b"more").await?;
        works(port.v4(), &origin).await
    });
}

/// While one configuration takes the place of another, somebody is there for every new connection.
#[test]
fn reload_refuses_no_new_connection() {
    run(async {
        let (port, origin) = (Port::reserve()?, Origin::start().await?);
        let peer = culvert().serve(&config(&port)).await?;
        let file = peer.directory().ok_or("no directory")?.join("config.json");
        let address = port.v4();
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let knocking = tokio::spawn(async move {
            let mut refused = 0;
            while !*stopped.borrow() {
                refused += usize::from(TcpStream::connect(address).await.is_err());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            refused
        });
        for round in 0..20 {
            let mut changed = config(&port);
            changed["outbounds"][0]["tag"] = format!("direct-{round}").into();
            std::fs::write(&file, changed.to_string())?;
            let seen = peer.log().count();
            peer.signal("HUP").await?;
            peer.log().line_after(seen, is_reloaded).await?;
            works(address, &origin).await?;
        }
        stop.send(true)?;
        let refused = knocking.await?;
        ensure!(refused == 0, "{refused} connections were refused");
        Ok(())
    });
}

/// The cache file is handed on with everything else.
#[test]
fn reload_with_a_cache_file_goes_on_with_it() {
    run(async {
        let (port, origin) = (Port::reserve()?, Origin::start().await?);
        let with_cache = |tag: &str| {
            let mut config = config(&port);
            config["outbounds"][0]["tag"] = tag.into();
            config["experimental"] = json!({ "cache_file": { "enabled": true, "path": "kept.db" } });
            config
        };
        let mut peer = culvert().serve(&with_cache("a")).await?;
        let file = peer.directory().ok_or("no directory")?.join("config.json");
        for tag in ["b", "c"] {
            std::fs::write(&file, with_cache(tag).to_string())?;
            let seen = peer.log().count();
            peer.signal("HUP").await?;
            peer.log().line_after(seen, is_reloaded).await?;
            works(port.v4(), &origin).await?;
        }
        ensure!(peer.stop().await?.success(), "it did not stop in order");
        Ok(())
    });
}

/// Programs that tell all daemons to open their logs again do no harm, and an end is told.
#[test]
fn other_signals_are_taken_calmly() {
    run(async {
        let (port, origin) = (Port::reserve()?, Origin::start().await?);
        let mut peer = culvert().serve(&config(&port)).await?;
        peer.signal("USR1").await?;
        works(port.v4(), &origin).await?;
        ensure!(peer.stop().await?.success(), "it did not stop in order");
        peer.log().line(|line| line.contains("INFO") && line.contains("SIGTERM")).await?;
        Ok(())
    });
}

/// A server that closes without a word is all that many protocols have to say of a wrong password.
#[test]
fn silent_servers_are_told_at_info() {
    run(async {
        let (port, server) = (Port::reserve()?, TcpListener::bind(("127.0.0.1", 0)).await?);
        let address = server.local_addr()?;
        let turning_away = tokio::spawn(async move {
            while let Ok((mut stream, _)) = server.accept().await {
                let _ = stream.read(&mut [0; 100]).await;
            }
        });
        let mut config = config(&port);
        config["outbounds"] = json!([{
            "type": "vless", "tag": "far", "server": "127.0.0.1", "server_port": address.port(),
            "uuid": "b831381d-6324-4d53-ad4f-8cda48b30811"
        }]);
        let peer = culvert().serve(&config).await?;
        for _ in 0..5 {
            let target: Target = address.into();
            let mut stream = client::connect(Protocol::Socks5, port.v4(), None, &target).await?;
            stream.write_all(b"anybody there?").await?;
            crate::proxy::read_to_end(&mut stream).await?;
        }
        let told = format!("server {address}");
        let tells = |line: &str| {
            line.contains("WARN") && line.contains("outbound/vless[far]") && line.contains(&told)
        };
        let line = peer.log().line(tells).await?;
        ensure!(line.contains("password or id") && line.contains("multiplex"), "{line}");
        let lines = peer.log().text().lines().filter(|line| tells(line)).count();
        ensure!(lines == 1, "{lines} such lines for 5 connections");
        turning_away.abort();
        Ok(())
    });
}

#[test]
fn check_can_be_strict() {
    run(async {
        let directory = TempDir::new()?;
        let doubtful = json!({
            "log": { "output": "missing/culvert.log" },
            "outbounds": [{ "type": "socks", "tag": "a", "server": "192.0.2.1:1080" }],
            "route": { "rules": [{ "domain": "a.test" }] }
        });
        directory.write("config.json", doubtful.to_string())?;
        let check = |arguments: &'static [&'static str]| {
            culvert().launch(arguments.iter().copied()).directory(directory.path()).run()
        };
        let lax = check(&["check", "--disable-color"]).await?;
        ensure!(lax.code == Some(0), "{lax:?}");
        for part in [
            "has a port in it",
            "`server_port` is missing",
            "neither `outbound` nor",
            "missing does not exist",
        ] {
            let lines = lax.stderr.lines().filter(|line| line.contains(part)).count();
            ensure!(lines == 1, "{part:?} is told {lines} times in:\n{}", lax.stderr);
        }
        ensure!(lax.stderr.lines().all(|line| line.contains("config.json:1:")), "{}", lax.stderr);
        let strict = check(&["check", "--strict", "--disable-color"]).await?;
        ensure!(strict.code == Some(1) && strict.stderr.contains("--strict"), "{strict:?}");
        Ok(())
    });
}

#[test]
fn reload_tells_each_reason_on_a_line_with_its_place() {
    run(async {
        let port = Port::reserve()?;
        let peer = culvert().serve(&config(&port)).await?;
        let file = peer.directory().ok_or("no directory")?.join("config.json");
        let mistyped =
            "{\n  \"inbounds\": [\n    { \"type\": \"nonsense\" },\n    { \"type\": \"mixd\" }\n  ]\n}";
        let impossible =
            "{\n  \"outbounds\": [\n    { \"type\": \"socks\" },\n    { \"type\": \"http\" }\n  ]\n}";
        for (bad, reasons, sum) in [
            (mistyped, ["inbounds[0].type", "inbounds[1].type"], "2 errors in the configuration"),
            (impossible, ["outbounds[0]", "outbounds[1]"], "2 things stand in the way"),
        ] {
            std::fs::write(&file, bad)?;
            let seen = peer.log().count();
            peer.signal("HUP").await?;
            for (reason, place) in reasons.into_iter().zip(["config.json:3:", "config.json:4:"]) {
                let tells = |line: &str| {
                    line.contains("ERROR")
                        && line.contains(place)
                        && line.contains(reason)
                        && line.matches("config.json:").count() == 1
                };
                peer.log().line_after(seen, tells).await?;
            }
            let sums_up = |line: &str| line.contains("reload service") && line.contains(sum);
            peer.log().line_after(seen, sums_up).await?;
        }
        Ok(())
    });
}

/// An editor may take the file away for a moment. That must not turn a client into a proxy that goes straight out.
#[test]
fn reload_without_the_default_file_keeps_what_runs() {
    run(async {
        let (port, origin) = (Port::reserve()?, Origin::start().await?);
        let directory = TempDir::new()?;
        let file = directory.path().join("config.json");
        std::fs::write(&file, config(&port).to_string())?;
        let mut peer = culvert().launch(["run", "--disable-color"]).directory(directory.path()).spawn()?;
        peer.started().await?;
        works(port.v4(), &origin).await?;
        std::fs::remove_file(&file)?;
        let seen = peer.log().count();
        peer.signal("HUP").await?;
        peer.log().line_after(seen, |line| line.contains("ERROR") && line.contains("config.json")).await?;
        works(port.v4(), &origin).await?;
        ensure!(peer.stop().await?.success(), "it did not stop in order");
        Ok(())
    });
}

#[test]
fn config_comes_from_standard_input() {
    run(async {
        let program = culvert();
        let (port, origin) = (Port::reserve()?, Origin::start().await?);
        let mut peer = program.launch(["run", "-c", "stdin"]).input(config(&port).to_string()).spawn()?;
        peer.started().await?;
        works(port.v4(), &origin).await
    });
}

#[test]
fn directories_of_configs_are_merged() {
    run(async {
        let program = culvert();
        let (first, second, origin) = (Port::reserve()?, Port::reserve()?, Origin::start().await?);
        let directory = TempDir::new()?;
        let inbounds = |port: &Port, tag: &str| json!({ "inbounds": [inbound(port, tag)] }).to_string();
        directory.write("conf/10-a.json", inbounds(&first, "a"))?;
        directory.write("conf/20-b.json", inbounds(&second, "b"))?;
        directory.write("conf/readme.txt", "not JSON")?;
        directory.write("conf/folder/c.json", "not read")?;
        directory.write(
            "base.json",
            r#"{ "log": { "level": "info" }, "outbounds": [{ "type": "direct", "tag": "d" }] }"#,
        )?;
        let mut peer =
            program.launch(["run", "-c", "base.json", "-C", "conf"]).directory(directory.path()).spawn()?;
        peer.started().await?;
        works(first.v4(), &origin).await?;
        works(second.v4(), &origin).await?;

        // The same tag in two files is found after merging.
        directory.write("conf/20-b.json", inbounds(&second, "a"))?;
        let finished = program.launch(["check", "-C", "conf"]).directory(directory.path()).run().await?;
        ensure!(finished.code == Some(1), "{finished:?}");
        Ok(())
    });
}

/// A pipe has no end until somebody writes. It is refused where it was not named, and read where it was.
#[test]
fn pipes_in_directories_hold_up_nobody() {
    run(async {
        let program = culvert();
        let directory = TempDir::new()?;
        directory.write("conf/10-a.json", "{}")?;
        let pipe = directory.path().join("conf/20-b.json").display().to_string();
        ensure!(Program::named("mkfifo").launch([&*pipe]).run().await?.code == Some(0), "no pipe");
        let check = |arguments: [&str; 3]| program.launch(arguments).directory(directory.path()).run();
        let finished = tokio::time::timeout(STEP, check(["check", "-C", "conf"])).await??;
        ensure!(finished.code == Some(1), "{finished:?}");
        ensure!(finished.stderr.contains("conf/20-b.json: not a regular file"), "{finished:?}");
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::write(pipe, "{}")
        });
        let finished = tokio::time::timeout(STEP, check(["check", "-c", &pipe])).await??;
        ensure!(finished.code == Some(0), "{finished:?}");
        writer.join().map_err(|_| "the writer panicked")??;
        Ok(())
    });
}

#[test]
fn working_directory_is_set_and_made() {
    run(async {
        let program = culvert();
        let (port, origin) = (Port::reserve()?, Origin::start().await?);
        let directory = TempDir::new()?;
        directory.write("place/config.json", config(&port).to_string())?;
        let place = directory.path().join("place").display().to_string();
        let mut peer = program.launch(["-D", &place, "run"]).directory(directory.path()).spawn()?;
        peer.started().await?;
        works(port.v4(), &origin).await?;

        let made = directory.path().join("made/here").display().to_string();
        program.launch(["check", "-D", &made, "-c", "none.json"]).run().await?;
        ensure!(directory.path().join("made/here").is_dir(), "-D does not make the directory");
        Ok(())
    });
}

/// Without any config there is a mixed inbound on 127.0.0.1:2080. Tried in a network namespace, where nobody else has
/// the port.
#[test]
fn without_a_config_there_is_a_local_proxy() {
    run(async {
        let program = culvert();
        if Program::named("unshare").launch(["-n", "true"]).run().await?.code != Some(0) {
            skip("this user may not make network namespaces");
            return Ok(());
        }
        let directory = TempDir::new()?;
        let script = "ip link set lo up && exec \"$0\" run";
        let path = program.path().display().to_string();
        let mut peer = Program::named("unshare")
            .launch(["-n", "sh", "-c", script, &path])
            .directory(directory.path())
            .spawn()?;
        peer.started().await?;
        let process = peer.process().to_string();
        let inside = |proxy: &'static str, url: &'static str| {
            let curl = ["curl", "-q", "-sS", "-m", "10", "--noproxy", "", "-x", proxy, url];
            Program::named("nsenter").launch(["-n", "-t", &process].into_iter().chain(curl)).run()
        };
        // The proxy itself is the only server there. What it answers to a request in origin form proves the way.
        for proxy in ["http://127.0.0.1:2080", "socks5h://127.0.0.1:2080", "socks4a://127.0.0.1:2080"] {
            let finished = inside(proxy, "http://127.0.0.1:2080/").await?;
            ensure!(finished.code == Some(0), "{proxy}: {finished:?}");
        }
        let finished = inside("http://127.0.0.1:2080", "http://127.0.0.1:1/").await?;
        ensure!(finished.code == Some(0), "a refused target gets a status: {finished:?}");
        Ok(())
    });
}

/// The last line of a reload, as this program says it, or sing-box.
fn is_reloaded(line: &str) -> bool {
    line.contains("culvert reloaded") || line.contains(" started (")
}

/// A config with one mixed inbound, tagged `door`.
fn config(port: &Port) -> Value {
    json!({
        "log": { "level": "info" },
        "inbounds": [inbound(port, "door")],
        "outbounds": [{ "type": "direct", "tag": "direct" }]
    })
}

fn inbound(port: &Port, tag: &str) -> Value {
    json!({ "type": "mixed", "tag": tag, "listen": "127.0.0.1", "listen_port": port.number() })
}

async fn tunnel(proxy: SocketAddr, origin: &Origin) -> Result<TcpStream> {
    let target: Target = origin.port().v4().into();
    let dialing = client::connect(Protocol::Socks5, proxy, None, &target);
    Ok(tokio::time::timeout(STEP, dialing).await.map_err(|_| "no answer")??)
}

async fn works(proxy: SocketAddr, origin: &Origin) -> Result {
    let (seed, mut stream) = (fresh_seed(), tunnel(proxy, origin).await?);
    stream.write_all(Service::Send { seed, length: 100 }.line().as_bytes()).await?;
    let received = tokio::time::timeout(STEP, origin::take(&mut stream, seed, None, |_| ())).await??;
    ensure!(received == 100, "{received} of 100 bytes arrived");
    Ok(())
}
