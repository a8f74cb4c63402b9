//! `culvert exec` and `culvert tun2socks`, as somebody without rights and as root.

use std::os::unix::process::ExitStatusExt;

use culvert_testkit::origin::{self, BANNER, Origin, Service, confirmation, fresh_seed};
use culvert_testkit::peer::{Finished, Launch, Peer, Program};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{culvert, tun};

/// A user without any rights.
const NOBODY: [&str; 4] = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];

/// A configuration that leads networks and a name to the origin.
fn config() -> String {
    json!({
        "dns": { "servers": [{ "type": "hosts", "tag": "h", "predefined": { "name.test": ["10.99.1.2", "fd99::2"] } }] },
        "inbounds": [{ "type": "mixed", "tag": "in", "listen": "127.0.0.1", "listen_port": 1 }],
        "outbounds": [{ "type": "direct", "tag": "out" }],
        "route": { "rules": [
            { "ip_cidr": "10.99.0.0/16", "action": "route-options", "override_address": "127.0.0.1" },
            { "ip_cidr": "fd99::/16", "action": "route-options", "override_address": "::1" }
        ] }
    })
    .to_string()
}

/// `culvert exec` as that user with these arguments.
fn exec(arguments: &[&str]) -> Launch {
    let path = culvert().path().display().to_string();
    let all = NOBODY
        .iter()
        .copied()
        .chain([path.as_str(), "exec", "--disable-color"])
        .chain(arguments.iter().copied());
    Program::named("setpriv").launch(all)
}

/// A folder that the user may read, with the configuration in it.
fn folder() -> Result<(TempDir, String)> {
    let folder = TempDir::new()?;
    let file = folder.write("config.json", config())?;
    std::process::Command::new("chmod").args(["-R", "a+rX"]).arg(folder.path()).status()?;
    Ok((folder, file.display().to_string()))
}

async fn shell(file: &str, script: &str) -> Result<Finished> {
    exec(&["-c", file, "--", "bash", "-c", script]).run().await
}

#[test]
fn a_program_of_somebody_without_rights_goes_by_the_configuration() {
    tun::alone("exec::a_program_of_somebody_without_rights_goes_by_the_configuration", || async {
        let (origin, (_folder, file)) = (Origin::start().await?, folder()?);
        let banner = origin.banner_port().number();
        for host in ["10.99.1.2", "fd99::2", "name.test"] {
            let finished =
                shell(&file, &format!("head -c {} < /dev/tcp/{host}/{banner}", BANNER.len())).await?;
            ensure!(finished.code == Some(0), "{host}: {finished:?}");
            ensure!(finished.stdout.trim_end().as_bytes() == BANNER.trim_ascii_end(), "{host}: {finished:?}");
            ensure!(finished.stderr.is_empty(), "it says more than the program: {}", finished.stderr);
        }
        // The program is who it was, and what is outside is not there.
        let finished = shell(
            &file,
            &format!("id -u; id -g; ls /sys/class/net | wc -l; echo > /dev/tcp/127.0.0.1/{banner}"),
        )
        .await?;
        ensure!(finished.stdout.starts_with("65534\n65534\n"), "{finished:?}");
        ensure!(
            finished.code == Some(1) && finished.stderr.contains("refused"),
            "the outer loopback: {finished:?}"
        );
        Ok(())
    });
}

#[test]
fn the_end_of_the_program_is_the_end_of_the_command() {
    tun::alone("exec::the_end_of_the_program_is_the_end_of_the_command", || async {
        let (_folder, file) = folder()?;
        for code in [0, 7, 255] {
            let finished = shell(&file, &format!("exit {code}")).await?;
            ensure!(finished.code == Some(code), "exit {code}: {finished:?}");
        }
        let finished = exec(&["-c", &file, "--", "/nonexistent/program"]).run().await?;
        ensure!(
            finished.code == Some(127) && finished.stderr.contains("/nonexistent/program"),
            "{finished:?}"
        );
        let finished = exec(&["-c", &file, "--", "/dev/null"]).run().await?;
        ensure!(finished.code == Some(126), "{finished:?}");
        // Ended by a signal, and a signal that is handed through.
        let mut peer = exec(&["-c", &file, "--", "bash", "-c", "kill -KILL $$"]).spawn()?;
        let status = peer.ended().await?;
        ensure!(status.signal() == Some(9), "{status}");
        // Not those that whoever runs tests in the background may have had ignored: a shell cannot trap these.
        for (name, number) in [("TERM", 15), ("USR1", 10), ("USR2", 12)] {
            let script = format!(
                "trap 'exit $((40 + {number}))' {name}; echo ready >&2; while :; do sleep 0.05; done"
            );
            let mut peer = exec(&["-c", &file, "--", "bash", "-c", &script]).spawn()?;
            peer.log().line(|line| line.contains("ready")).await?;
            peer.signal(name).await?;
            let status = peer.ended().await?;
            ensure!(status.code() == Some(40 + number), "{name}: {status}");
        }
        // Input and output are the program's.
        let finished = exec(&["-c", &file, "--", "cat"]).input("through\n").run().await?;
        ensure!(finished.stdout == "through\n", "{finished:?}");
        Ok(())
    });
}

#[test]
fn nothing_is_left_of_the_network() {
    tun::alone("exec::nothing_is_left_of_the_network", || async {
        let (_folder, file) = folder()?;
        let left = || -> Result<usize> {
            let names = std::fs::read_dir(std::env::temp_dir())?.filter_map(|entry| entry.ok());
            Ok(names
                .filter(|entry| entry.file_name().to_string_lossy().starts_with("culvert-resolv-"))
                .count())
        };
        let (links, before) = (tun::ip("link show"), left()?);
        let finished = shell(&file, "cat /etc/resolv.conf").await?;
        ensure!(finished.stdout == "nameserver 172.19.0.2\n", "{finished:?}");
        ensure!(tun::ip("link show") == links, "{}", tun::ip("link show"));
        ensure!(left()? <= before, "files are left");
        // A killed command takes the network from its program, and nothing gets out.
        let mut peer = exec(&["-c", &file, "--", "bash", "-c", "echo ready >&2; sleep 600"]).spawn()?;
        peer.log().line(|line| line.contains("ready")).await?;
        let children = format!("/proc/{0}/task/{0}/children", peer.process());
        let child = std::fs::read_to_string(children)?.trim().to_owned();
        peer.signal("KILL").await?;
        peer.ended().await?;
        let inside = std::process::Command::new("nsenter")
            .args(["-t", &child, "-n", "ip", "route", "show"])
            .output()?;
        let routes = String::from_utf8_lossy(&inside.stdout).into_owned();
        std::process::Command::new("kill").arg(&child).status()?;
        ensure!(!routes.contains("default"), "there is a way out: {routes}");
        Ok(())
    });
}

#[test]
fn names_go_to_a_proxy_as_names() {
    tun::alone("exec::names_go_to_a_proxy_as_names", || async {
        let (origin, port) = (Origin::start().await?, Port::reserve()?);
        let mut proxy = proxy(&port).await?;
        let link = format!("socks5://127.0.0.1:{}", port.number());
        let script = format!(
            "head -c {} < /dev/tcp/far.test/{}; getent ahostsv4 far.test",
            BANNER.len(),
            origin.banner_port().number()
        );
        let finished = exec(&["--proxy", &link, "--", "bash", "-c", &script]).run().await?;
        ensure!(finished.code == Some(0), "{finished:?}");
        ensure!(finished.stdout.as_bytes().starts_with(BANNER.trim_ascii_end()), "{finished:?}");
        ensure!(finished.stdout.contains("198.1"), "an address made up: {finished:?}");
        let finished = exec(&["--proxy", "nonsense", "--", "true"]).run().await?;
        ensure!(finished.code == Some(1) && finished.stderr.contains("link"), "{finished:?}");
        proxy.stop().await?;
        Ok(())
    });
}

/// A SOCKS server that knows one name, and one network, as the origin's. It reaches no other.
async fn proxy(port: &Port) -> Result<Peer> {
    let config = json!({
        "log": { "level": "debug" },
        "inbounds": [{ "type": "mixed", "tag": "in", "listen": "127.0.0.1", "listen_port": port.number() }],
        "outbounds": [{ "type": "direct", "tag": "out" }],
        "route": { "rules": [
            { "domain": ["far.test"], "action": "route-options", "override_address": "127.0.0.1" },
            { "ip_cidr": "10.99.0.0/16", "action": "route-options", "override_address": "127.0.0.1" }
        ] }
    });
    culvert().serve(&config).await
}

#[test]
fn one_line_leads_a_device_to_a_proxy() {
    tun::alone("exec::one_line_leads_a_device_to_a_proxy", || async {
        let (origin, port) = (Origin::start().await?, Port::reserve()?);
        let mut proxy = proxy(&port).await?;
        let link = format!("socks5://127.0.0.1:{}", port.number());
        for flags in
            [&["--route", "10.99.0.0/16"][..], &["--auto-route", "--stack", "system", "--mtu", "1500"]]
        {
            let before = tun::ip("rule show");
            let line =
                ["tun2socks", "--disable-color", "--device", "tunt"].into_iter().chain(flags.iter().copied());
            let mut peer = culvert().launch(line.chain([link.as_str()])).spawn()?;
            peer.log().line(|line| line.contains("culvert started")).await?;
            let target = ("10.99.1.2", origin.port().number());
            let mut stream = TcpStream::connect(target).await?;
            let (seed, length) = (fresh_seed(), 4 << 20);
            stream.write_all(Service::Take { seed, length }.line().as_bytes()).await?;
            origin::send(&mut stream, seed, length, |_| ()).await?;
            let mut said = String::new();
            stream.read_to_string(&mut said).await?;
            ensure!(said == confirmation(length), "{flags:?}: {said:?}");
            let status = peer.stop().await?;
            ensure!(status.code() == Some(0), "{flags:?}: {status}");
            ensure!(tun::ip("rule show") == before, "{flags:?}: rules stay: {}", tun::ip("rule show"));
        }
        proxy.stop().await?;
        Ok(())
    });
}
