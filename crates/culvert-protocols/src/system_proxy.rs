//! `set_system_proxy`: makes an inbound the proxy of the desktop while it runs.
//!
//! On Linux this is a matter of the desktop's own tools: `gsettings` (GNOME and its kin) and `kwriteconfig5` or `6`
//! (KDE), whichever there are. As root they are run for the user that `sudo` was called by. Other systems are not
//! built yet.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use async_trait::async_trait;
use culvert_core::sockets::Sockets;
use culvert_core::{Dispatch, Inbound, StartError, StreamServer, Tag};
use tracing::{info, warn};

/// An inbound that is the system's proxy from its start to its close.
pub(crate) struct SystemProxy<I> {
    inbound: I,
    /// Whether it speaks SOCKS besides HTTP.
    socks: bool,
}

impl<I: Inbound> SystemProxy<I> {
    pub(crate) fn new(inbound: I, socks: bool) -> Self {
        Self { inbound, socks }
    }
}

#[async_trait]
impl<I: Inbound> Inbound for SystemProxy<I> {
    fn tag(&self) -> &Tag {
        self.inbound.tag()
    }

    fn open(&self, sockets: &Sockets) -> Result<(), StartError> {
        self.inbound.open(sockets)
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    async fn start(&self, dispatch: &Dispatch) -> Result<(), StartError> {
        let tag = self.inbound.tag();
        if !cfg!(target_os = "linux") {
            let feature = "set_system_proxy on this system".to_owned();
            return Err(StartError::NotBuilt { tag: tag.clone(), feature });
        }
        self.inbound.start(dispatch).await?;
        let Some(address) = self.inbound.local_addrs().first().copied().map(announced) else { return Ok(()) };
        let socks = self.socks;
        if let Err(source) = run(move |desktop| desktop.enable(address, socks)).await {
            self.inbound.close().await;
            return Err(StartError::Io { tag: tag.clone(), phase: "set the system proxy", source });
        }
        info!("inbound/{tag}: system proxy set to {address}");
        Ok(())
    }

    fn local_addrs(&self) -> Vec<SocketAddr> {
        self.inbound.local_addrs()
    }

    async fn close(&self) {
        if !self.inbound.local_addrs().is_empty()
            && let Err(error) = run(Desktop::disable).await
        {
            warn!("inbound/{}: unset the system proxy: {error}", self.tag());
        }
        self.inbound.close().await;
    }

    fn stream_server(&self) -> Option<Arc<dyn StreamServer>> {
        self.inbound.stream_server()
    }
}

/// Where programs of this machine reach a listener.
fn announced(mut listening: SocketAddr) -> SocketAddr {
    if listening.ip().is_unspecified() {
        listening.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    listening
}

async fn run(commands: impl FnOnce(&Desktop) -> Vec<Words> + Send + 'static) -> io::Result<()> {
    let work = move || {
        let desktop = Desktop::find()?;
        commands(&desktop).into_iter().try_for_each(execute)
    };
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(io::Error::other("interrupted")))
}

/// A command and its arguments.
type Words = Vec<String>;

/// The tools at hand.
struct Desktop {
    gsettings: bool,
    kwriteconfig: Option<&'static str>,
    /// Whom to run them for.
    user: Option<String>,
}

impl Desktop {
    fn find() -> io::Result<Self> {
        let gsettings = is_installed("gsettings");
        let kwriteconfig = ["kwriteconfig5", "kwriteconfig6"].into_iter().find(|name| is_installed(name));
        if !gsettings && kwriteconfig.is_none() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "neither gsettings nor kwriteconfig is here",
            ));
        }
        let user = if is_root() {
            let caller = std::env::var("SUDO_USER").ok().filter(|user| !user.is_empty());
            Some(caller.ok_or_else(|| io::Error::other("root has no desktop, and SUDO_USER names no user"))?)
        } else {
            None
        };
        Ok(Self { gsettings, kwriteconfig, user })
    }

    fn enable(&self, address: SocketAddr, socks: bool) -> Vec<Words> {
        let protocols: &[&str] = if socks { &["http", "https", "ftp", "socks"] } else { &["http", "https"] };
        let mut all = Vec::new();
        if self.gsettings {
            all.push(self.gnome("org.gnome.system.proxy.http", "enabled", "true"));
            for protocol in protocols {
                let schema = format!("org.gnome.system.proxy.{protocol}");
                all.push(self.gnome(&schema, "host", &address.ip().to_string()));
                all.push(self.gnome(&schema, "port", &address.port().to_string()));
            }
            all.push(self.gnome(
                "org.gnome.system.proxy",
                "use-same-proxy",
                if socks { "true" } else { "false" },
            ));
            all.push(self.gnome("org.gnome.system.proxy", "mode", "manual"));
        }
        if let Some(tool) = self.kwriteconfig {
            all.push(self.kde(tool, "ProxyType", "1"));
            for protocol in protocols {
                let scheme = if *protocol == "socks" { "socks" } else { "http" };
                all.push(self.kde(tool, &format!("{protocol}Proxy"), &format!("{scheme}://{address}")));
            }
            all.push(self.kde(tool, "Authmode", "0"));
            all.push(self.kde_reload());
        }
        all
    }

    fn disable(&self) -> Vec<Words> {
        let mut all = Vec::new();
        if self.gsettings {
            all.push(self.gnome("org.gnome.system.proxy", "mode", "none"));
        }
        if let Some(tool) = self.kwriteconfig {
            all.push(self.kde(tool, "ProxyType", "0"));
            all.push(self.kde_reload());
        }
        all
    }

    fn gnome(&self, schema: &str, key: &str, value: &str) -> Words {
        self.command(&["gsettings", "set", schema, key, value])
    }

    fn kde(&self, tool: &str, key: &str, value: &str) -> Words {
        self.command(&[tool, "--file", "kioslaverc", "--group", "Proxy Settings", "--key", key, value])
    }

    /// Running programs learn of the change by a signal.
    fn kde_reload(&self) -> Words {
        let signal = "org.kde.KIO.Scheduler.reparseSlaveConfiguration";
        self.command(&["dbus-send", "--type=signal", "/KIO/Scheduler", signal, "string:"])
    }

    fn command(&self, words: &[&str]) -> Words {
        let Some(user) = &self.user else { return words.iter().map(|word| (*word).to_owned()).collect() };
        // Addresses, keys and names of ours: none holds a quote.
        let line = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        ["su", "-", user, "-c", &line].map(str::to_owned).to_vec()
    }
}

/// Who owns this process, as the system shows it.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn is_installed(name: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()))
}

fn execute(words: Words) -> io::Result<()> {
    let Some((name, arguments)) = words.split_first() else { return Ok(()) };
    let output = Command::new(name).args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{}: {}: {}", words.join(" "), output.status, said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(commands: Vec<Words>) -> Vec<String> {
        commands.into_iter().map(|words| words.join(" ")).collect()
    }

    #[test]
    fn gnome_is_told_by_gsettings() {
        let desktop = Desktop { gsettings: true, kwriteconfig: None, user: None };
        let address = announced("0.0.0.0:2080".parse().unwrap());
        let proxy = "gsettings set org.gnome.system.proxy";
        assert_eq!(
            lines(desktop.enable(address, false)),
            [
                format!("{proxy}.http enabled true"),
                format!("{proxy}.http host 127.0.0.1"),
                format!("{proxy}.http port 2080"),
                format!("{proxy}.https host 127.0.0.1"),
                format!("{proxy}.https port 2080"),
                format!("{proxy} use-same-proxy false"),
                format!("{proxy} mode manual"),
            ]
        );
        assert_eq!(desktop.enable(address, true).len(), 11);
        assert_eq!(lines(desktop.disable()), [format!("{proxy} mode none")]);
    }

    #[test]
    fn kde_is_told_by_its_tool_and_a_signal() {
        let desktop = Desktop { gsettings: false, kwriteconfig: Some("kwriteconfig6"), user: None };
        let all = lines(desktop.enable("[::1]:2080".parse().unwrap(), true));
        let set = "kwriteconfig6 --file kioslaverc --group Proxy Settings --key";
        assert_eq!(all[0], format!("{set} ProxyType 1"));
        assert_eq!(all[1], format!("{set} httpProxy http://[::1]:2080"));
        assert_eq!(all[4], format!("{set} socksProxy socks://[::1]:2080"));
        assert!(all.last().unwrap().starts_with("dbus-send --type=signal /KIO/Scheduler "));
        assert_eq!(lines(desktop.disable())[0], format!("{set} ProxyType 0"));
    }

    #[test]
    fn root_runs_the_tools_for_the_caller_of_sudo() {
        let desktop = Desktop { gsettings: true, kwriteconfig: None, user: Some("me".to_owned()) };
        let expected = ["su", "-", "me", "-c", "'gsettings' 'set' 'org.gnome.system.proxy' 'mode' 'none'"];
        assert_eq!(desktop.disable(), [expected.map(str::to_owned).to_vec()]);
    }
}
