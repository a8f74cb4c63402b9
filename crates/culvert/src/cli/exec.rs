//! `culvert exec -- program`: a program in a network of its own, all of whose traffic goes by a configuration or one proxy.
//!
//! ```text
//! culvert exec             outbounds, rules and DNS, in the network where it was started
//!   │ a TUN device's descriptor
//!   └─ culvert exec --inside   new user, network and mount namespaces; makes the device, then becomes the program
//! ```
//!
//! The network is new, so nothing that the program does can get around it; when the last process in it is gone, so is the
//! network. Queries for names go to an address of the device: `/etc/resolv.conf` is another file in there, and the sockets of
//! other resolvers (systemd-resolved, nscd) cannot be reached. What listens on the outer network's loopback addresses is
//! not there either.
//!
//! The program's exit code is that of the command; a program that a signal ended ends the command by the same one. Signals
//! that other programs send to the command are handed to the program; those of a terminal reach it by themselves.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use clap::Args;
use culvert_config::Source;
use culvert_config::options::log::LogLevel;
use culvert_os::cell::{self, Signals};
use culvert_os::netlink::Prefix;
use culvert_os::tun::Tun;
use culvert_protocols::tun;
use serde_json::json;

use super::front::{self, ADDRESSES, Dns};
use super::{Failure, Global, run, sources};

/// Greatest packet of the device. It is memory, not a network.
const MTU: u16 = 65_535;
/// Where the program's queries for names go: the address after the device's own.
const RESOLVER: &str = "nameserver 172.19.0.2\n";
/// Ways to other resolvers than the one in there.
const OTHER_RESOLVERS: [&str; 3] =
    ["/run/systemd/resolve/io.systemd.Resolve", "/run/nscd/socket", "/var/run/nscd/socket"];

/// Flags of the command.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Go by this proxy instead of a configuration; links, and files with one, as for tun2socks.
    #[arg(long, value_name = "LINK")]
    proxy: Option<String>,
    #[command(flatten)]
    dns: Dns,
    /// Least important messages to show, in the place of what the configuration says; without either, warnings.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// The descriptor by which the inner part speaks with the outer one.
    #[arg(long, hide = true)]
    inside: Option<RawFd>,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(super) fn execute(global: &Global, arguments: &Arguments) -> Result<(), Failure> {
    match arguments.inside {
        Some(number) => inside(number, &arguments.program),
        None => {
            let status = outside(global, arguments)?;
            if let Some(signal) = status.signal() {
                cell::end_by(signal);
            }
            std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
    }
}

fn addresses() -> Vec<Prefix> {
    let prefix = |text: &str| {
        let (ip, len) = text.split_once('/')?;
        Some(Prefix { ip: ip.parse().ok()?, len: len.parse().ok()? })
    };
    ADDRESSES.iter().filter_map(|text| prefix(text)).collect()
}

/// The outer part: starts the inner one, serves its device, and waits for its end.
fn outside(global: &Global, arguments: &Arguments) -> Result<ExitStatus, Failure> {
    culvert_os::process::tune_allocator();
    let open_files = culvert_os::process::raise_open_files_limit().unwrap_or(1024);
    let config = configuration(global, arguments)?;
    run::configure_log(&config.loaded)?;
    super::report(&config.loaded.warnings);
    let failed = |what: &'static str| move |error: io::Error| Failure(format!("{what}: {error}"));
    let signals = Signals::hold().map_err(failed("hold signals back"))?;
    let (near, far) = UnixStream::pair().map_err(failed("make a pair of sockets"))?;
    let number = cell::pass_on(far.as_fd()).map_err(failed("pass on a socket"))?;
    let child = Command::new("/proc/self/exe")
        .arg0("culvert")
        .args(["exec", "--inside", &number.to_string(), "--"])
        .args(&arguments.program)
        .spawn()
        .map_err(failed("start another culvert"))?;
    drop(far);
    let process = child.id();
    // It lasts as long as this process, whose end is near once the program's has come.
    std::thread::spawn(move || {
        while let Ok(signal) = signals.next() {
            let _ = cell::send_signal(process, signal);
        }
    });
    serve(&config, open_files, &near, child)
}

/// Serves the device that the inner part makes, until the program's end.
fn serve(
    config: &run::Config,
    open_files: u64,
    near: &UnixStream,
    mut child: Child,
) -> Result<ExitStatus, Failure> {
    let runtime = run::runtime().map_err(|error| Failure(format!("start runtime: {error}")))?;
    let started = device(near).and_then(|device| match device {
        Some((name, device)) => {
            let inbound = tun::given("exec", Tun::from_fd(device, name), addresses(), MTU);
            runtime.block_on(config.start_with(open_files, Some(inbound))).map(Some)
        }
        None => Ok(None),
    });
    let failed = |error: io::Error| Failure(format!("wait for the program: {error}"));
    let instance = match started {
        Ok(instance) => instance,
        Err(failure) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failure);
        }
    };
    // The program may begin.
    let _ = { near }.write_all(&[1]);
    runtime.block_on(async {
        let ended = tokio::task::spawn_blocking(move || child.wait()).await;
        if let Some(instance) = instance {
            instance.close(Duration::ZERO).await;
        }
        ended.map_err(io::Error::other).and_then(|status| status).map_err(failed)
    })
}

/// The name and the descriptor of the device. `None` if the inner part was ended before it could make it.
fn device(near: &UnixStream) -> Result<Option<(String, OwnedFd)>, Failure> {
    let mut said = [0; 512];
    let received = cell::receive_descriptor(near.as_fd(), &mut said);
    let (length, device) = received.map_err(|error| Failure(format!("wait for the device: {error}")))?;
    let said = String::from_utf8_lossy(&said[..length]).into_owned();
    match device {
        Some(device) => Ok(Some((said, device))),
        None if said.is_empty() => Ok(None),
        None => Err(Failure(said)),
    }
}

/// The configuration, with nothing that listens, and with all queries for names answered here.
fn configuration(global: &Global, arguments: &Arguments) -> Result<run::Config, Failure> {
    let mut read = match &arguments.proxy {
        Some(link) => {
            let text = front::config(link, &arguments.dns, "warn")?.to_string();
            vec![Source::new("command line", text.as_bytes())]
        }
        None if sources::is_nothing_given(global) => {
            return Err(Failure("name a proxy (--proxy) or a configuration (-c)".to_owned()));
        }
        None => sources::read(global)?,
    };
    // Lists are joined in the order of their sources, and of other values the last counts.
    let hijack = json!({ "route": { "rules": [{ "port": 53, "action": "hijack-dns" }] } });
    read.insert(0, Source::new("command", hijack.to_string().as_bytes()));
    if let Some(level) = &arguments.log_level {
        let level = json!({ "log": { "level": level } }).to_string();
        read.push(Source::new("command line", level.as_bytes()));
    }
    let mut config = run::Config::read(read)?;
    let options = &mut config.loaded.options;
    options.inbounds.clear();
    if options.log.level == LogLevel::Unset {
        options.log.level = LogLevel::Warn;
    }
    Ok(config)
}

/// The inner part: makes the network, and becomes the program.
fn inside(number: RawFd, program: &[OsString]) -> Result<(), Failure> {
    let stream =
        cell::take_over(number).map_err(|error| Failure(format!("--inside is not for you: {error}")))?;
    let mut stream = UnixStream::from(stream);
    // The outer part holds them back, and what it starts would inherit that.
    Signals::release().map_err(|error| Failure(format!("let signals through: {error}")))?;
    match network() {
        Ok(device) => {
            let sent = cell::send_descriptor(stream.as_fd(), device.name().as_bytes(), device.as_fd());
            sent.map_err(|error| Failure(format!("give the device away: {error}")))?;
        }
        Err(reason) => {
            let _ = stream.write_all(reason.as_bytes());
            std::process::exit(1);
        }
    }
    // Until the other side serves; it has said why if it does not.
    if stream.read_exact(&mut [0]).is_err() {
        std::process::exit(1);
    }
    drop(stream);
    let Some((name, arguments)) = program.split_first() else { return Err(Failure("no program".to_owned())) };
    let error = Command::new(name).args(arguments).exec();
    super::note(format_args!("culvert exec: {}: {error}", Path::new(name).display()));
    // As shells do it.
    std::process::exit(if error.kind() == ErrorKind::NotFound { 127 } else { 126 });
}

fn network() -> Result<Tun, String> {
    cell::enter().map_err(|error| {
        format!(
            "no user and network namespaces here ({error}); the kernel has to permit them \
             (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, \
             kernel.apparmor_restrict_unprivileged_userns)"
        )
    })?;
    let device = tun::lead_all(&addresses(), MTU).map_err(|error| format!("make the device: {error}"))?;
    if let Err(error) = resolver() {
        tracing::warn!("/etc/resolv.conf cannot be replaced ({error}): names may not be found");
    }
    for path in OTHER_RESOLVERS.map(Path::new) {
        if path.exists() {
            let _ = cell::cover(path, Path::new("/dev/null"));
        }
    }
    Ok(device)
}

/// Puts a file in the place of `/etc/resolv.conf`, or of what that leads to.
fn resolver() -> io::Result<()> {
    let path = std::fs::canonicalize("/etc/resolv.conf")?;
    let own = std::env::temp_dir().join(format!("culvert-resolv-{}", std::process::id()));
    let mut file = std::fs::File::options().write(true).create_new(true).open(&own)?;
    let covered = file.write_all(RESOLVER.as_bytes()).and_then(|()| cell::cover(&path, &own));
    // What is mounted needs no name.
    std::fs::remove_file(&own)?;
    covered
}
