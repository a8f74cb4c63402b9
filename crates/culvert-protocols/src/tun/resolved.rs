//! The system's DNS, where systemd-resolved has it: queries go to the device's network, which takes them in.
//!
//! It is told by resolvectl(1), as sing-box 1.14.4 does it. Without that program there is nothing to tell. What was set
//! goes with the device, and is taken back before that so that nothing is asked of a device that is about to go.

use std::io;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use tracing::{debug, info, warn};

/// Makes the device's DNS the system's.
pub(super) fn set(device: &str, servers: &[IpAddr]) {
    let servers: Vec<String> = servers.iter().map(IpAddr::to_string).collect();
    let mut dns = vec!["dns", device];
    dns.extend(servers.iter().map(String::as_str));
    for arguments in [&["domain", device, "~."][..], &["default-route", device, "true"], &dns] {
        match run(arguments) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                debug!("no resolvectl here: the system's DNS stays as it is");
                return;
            }
            Err(error) => {
                warn!("{device}: resolvectl {}: {error}; the system's DNS stays as it is", arguments[0]);
                return;
            }
        }
    }
    info!("{device}: systemd-resolved asks {}", servers.join(" and "));
}

/// Takes it back.
pub(super) fn unset(device: &str) {
    let _ = run(&["revert", device]);
}

fn run(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("resolvectl")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(said.lines().next().unwrap_or("failed").to_owned()))
}
