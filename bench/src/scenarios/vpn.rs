//! `vpn`: WireGuard from one endpoint to the other, between two network namespaces.
//!
//! ```text
//! near namespace                                      far namespace
//! load generator ─SOCKS─▶ program ═══ veth ═══▶ program ─TCP─▶ load generator       (endpoints of proxies)
//! load generator ─▶ device ─▶ program ═══ veth ═══▶ program ─▶ device ─▶ load generator        (wireguard-go)
//! ```
//!
//! All ask for the target by its address inside the tunnel.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use culvert_os::netlink::Prefix;

use crate::bulk::{Bulk, Direction, Stalls};
use crate::chain::{Chain, Contender, Place};
use crate::failure::Failure;
use crate::network::{FAR, Network, Wire, lead_into};
use crate::plan::{Turns, Values, note_configs};
use crate::process::Process;
use crate::programs::{Kind, Program};
use crate::progress::Progress;
use crate::protocols::{self, CLIENT_KEYS, INSIDE, INSIDE_CLIENT, SERVER_KEYS};
use crate::results::{Better, Entry, FOREIGN, Metric, Run};
use crate::scenarios::{Context, mib};
use crate::target::Target;

/// How much and how long.
pub(crate) struct Settings {
    /// Streams of each row.
    pub(crate) streams: Vec<usize>,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
}

/// Of wireguard-go's devices.
const MTU: u32 = 1420;
const PORT: u16 = 51_820;
/// A tunnel loses packets, and a stream may stand still for a while without being broken.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long wireguard-go may take until it can be told its keys.
const START: Duration = Duration::from_secs(10);

/// Measures.
pub(crate) fn run(context: &Context, settings: &Settings) -> Result<Run, Failure> {
    let metrics = vec![
        Metric::new("goodput", "Mbit/s", Better::Higher, 0).main(),
        Metric::new("client_cpu", "client CPU-s/GB", Better::Lower, 2).main(),
        Metric::new("server_cpu", "server CPU-s/GB", Better::Lower, 2),
        Metric::new("client_peak", "client peak MiB", Better::Lower, 1).main(),
        Metric::new("server_peak", "server peak MiB", Better::Lower, 1),
        Metric::new("generator_cpu", "load generator CPU-s/GB", Better::Neither, 2),
        Metric::new(FOREIGN, "others' CPU %", Better::Neither, 1),
    ];
    let mut run = Run::begin("vpn", &context.programs, metrics);
    run.set("rounds", settings.rounds);
    run.set("warm-up, s", settings.warm_up.as_secs_f64());
    run.set("window, s", settings.window.as_secs_f64());
    let wireguard = protocols::choose_or(&[], &["wireguard"])?[0];
    note_configs(&mut run, wireguard);
    let mut parts = Vec::new();
    for streams in &settings.streams {
        for direction in Direction::BOTH {
            let name = direction.name();
            let plural = if *streams == 1 { "" } else { "s" };
            parts.push((format!("wireguard-{streams}/{name}"), format!("{streams} stream{plural}, {name}")));
        }
    }
    let contenders = Contender::all(&context.programs, false);
    let turns = Turns {
        title: "vpn",
        parts,
        entries: context.programs.iter().map(|program| Entry::new(&program.name)).collect(),
        rounds: settings.rounds,
        work_dir: context.work_dir.path(),
    };
    let mut progress = Progress::new(turns.steps());
    turns.run(&mut run, &mut progress, |turn| {
        let program = &context.programs[turn.entry];
        let work = || {
            let network = Network::create(Wire::Veth)?;
            let most = settings.streams.iter().copied().max().unwrap_or(1);
            let target = network.far(|| Target::start_everywhere(most))??;
            let chain = if program.kind == Kind::WireguardGo {
                devices(program, &network, &turn.folder, &target)?
            } else {
                let place = Place::apart(&target, &network);
                Chain::start(&turn.folder, wireguard, &contenders[turn.entry], &place)?
            };
            measure(&chain, &target, settings)
        };
        // The namespaces go with the thread.
        thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    Ok(run)
}

fn measure(
    chain: &Chain,
    target: &Target,
    settings: &Settings,
) -> Result<Vec<Result<Values, Failure>>, Failure> {
    let mut parts = Vec::new();
    for streams in &settings.streams {
        for direction in Direction::BOTH {
            let outcome = Bulk::start_with(chain, target, *streams, direction, Stalls::Fail(PATIENCE))
                .and_then(|bulk| bulk.measure(settings.warm_up, settings.window));
            chain.check()?;
            let memory = chain.memory()?;
            parts.push(outcome.map(|measured| {
                let gigabytes = measured.bytes as f64 / 1e9;
                let per_gigabyte = |cpu: Duration| cpu.as_secs_f64() / gigabytes;
                let mut values = vec![
                    ("goodput", gigabytes * 8000.0 / measured.time.as_secs_f64()),
                    ("generator_cpu", per_gigabyte(measured.generator_cpu)),
                    (FOREIGN, measured.foreign_percent),
                ];
                values.extend(measured.cpu.client.map(|cpu| ("client_cpu", per_gigabyte(cpu))));
                values.extend(measured.cpu.server.map(|cpu| ("server_cpu", per_gigabyte(cpu))));
                values.extend(memory.client.map(|client| ("client_peak", mib(client.peak))));
                values.extend(memory.server.map(|server| ("server_peak", mib(server.peak))));
                values
            }));
        }
    }
    Ok(parts)
}

/// A device in each namespace.
fn devices(program: &Program, network: &Network, folder: &Path, target: &Target) -> Result<Chain, Failure> {
    let server = network.far(|| {
        let peer = Peer { key: CLIENT_KEYS[1], endpoint: None };
        device(program, "server", (INSIDE, SERVER_KEYS[0]), &peer, folder)
    })??;
    let peer = Peer { key: SERVER_KEYS[1], endpoint: Some(SocketAddr::from((FAR, PORT))) };
    let client = device(program, "client", (INSIDE_CLIENT, CLIENT_KEYS[0]), &peer, folder)?;
    let address = SocketAddr::from((INSIDE, target.address().port()));
    let chain = Chain::around(client, Some(server), address);
    chain.wait_until_ready()?;
    Ok(chain)
}

struct Peer {
    key: &'static str,
    endpoint: Option<SocketAddr>,
}

/// One device, told its keys by the program's own socket.
fn device(
    program: &Program,
    end: &str,
    (address, key): (Ipv4Addr, &str),
    peer: &Peer,
    folder: &Path,
) -> Result<Process, Failure> {
    // The socket's folder is everybody's: names must not meet those of other runs.
    let name = format!("bwg{}{}", std::process::id() % 10_000_000, &end[..1]);
    let socket = PathBuf::from(format!("/var/run/wireguard/{name}.sock"));
    let mut command = Command::new(&program.path);
    command.args(["-f", &name]).env("LOG_LEVEL", "error");
    let log = folder.join(format!("{end}.log"));
    let title = format!("{} ({end})", program.name);
    let process = Process::spawn_leaving(&title, &mut command, &log, Some(socket.clone()))?;
    let began = Instant::now();
    let stream = loop {
        if let Ok(stream) = UnixStream::connect(&socket) {
            break stream;
        }
        if process.exited().is_some() || began.elapsed() > START {
            return Err(process.start_failure("its socket never appeared"));
        }
        thread::sleep(Duration::from_millis(2));
    };
    let told = tell(stream, &settings(key, peer)).map_err(Failure::io("cannot configure wireguard-go"))?;
    if !told.starts_with("errno=0") {
        return Err(process.start_failure(&format!("it refused its keys: {}", told.trim())));
    }
    let own = Prefix { ip: IpAddr::V4(address), len: 24 };
    let inside = Prefix { ip: IpAddr::V4(Ipv4Addr::new(10, 7, 0, 0)), len: 24 };
    lead_into(&name, Some(own), inside, MTU).map_err(Failure::io("cannot set up wireguard-go's device"))?;
    Ok(process)
}

fn settings(key: &str, peer: &Peer) -> String {
    let mut text = format!("set=1\nprivate_key={}\n", hex(key));
    if peer.endpoint.is_none() {
        let _ = writeln!(text, "listen_port={PORT}");
    }
    let _ = writeln!(text, "public_key={}", hex(peer.key));
    if let Some(endpoint) = peer.endpoint {
        let _ = writeln!(text, "endpoint={endpoint}");
    }
    text + "allowed_ip=10.7.0.0/24\n\n"
}

fn tell(mut stream: UnixStream, text: &str) -> std::io::Result<String> {
    stream.set_read_timeout(Some(START))?;
    stream.write_all(text.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A key's base64 as hexadecimal digits, which is how the socket wants it.
fn hex(base64: &str) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut digits, mut bits, mut held) = (String::new(), 0u32, 0);
    for letter in base64.bytes() {
        let Some(value) = ALPHABET.iter().position(|known| *known == letter) else { break };
        bits = bits << 6 | value as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            let _ = write!(digits, "{:02x}", bits >> held & 0xff);
        }
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_in_hexadecimal() {
        assert_eq!(hex(SERVER_KEYS[0]), "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f");
        let peer = Peer { key: CLIENT_KEYS[1], endpoint: None };
        let text = settings(SERVER_KEYS[0], &peer);
        assert!(text.starts_with("set=1\nprivate_key=00010203"), "{text}");
        assert!(
            text.contains("listen_port=51820\npublic_key=358072d6") && text.ends_with("/24\n\n"),
            "{text}"
        );
        let peer = Peer { key: SERVER_KEYS[1], endpoint: Some(SocketAddr::from((FAR, PORT))) };
        assert!(settings(CLIENT_KEYS[0], &peer).contains("endpoint=10.99.0.2:51820\n"));
    }
}
