//! `auto_redirect`: TCP that would go into the device is diverted to a listener before it gets there, by nftables. The kernel
//! then speaks with the clients, and bytes can be spliced.
//!
//! One table, named after the device, does it. It decides nothing by itself: on the way out it takes what has been routed
//! into the device; of what comes in from elsewhere it asks the routing rules where they would lead, which have a place for
//! the question (`auto_redirect_input_mark`, see `routes.rs`). So a program that was killed leaves a table behind that takes
//! nothing, for the device is gone.
//!
//! ```text
//! table inet culvert-tun0 {
//!   chain pass       filter, prerouting   devices and Multipath TCP that are to pass by: marked as ours
//!   chain pass_out   route, output        Multipath TCP, likewise
//!   chain output     nat, output          oifname tun0, TCP              redirect to the listener
//!   chain prerouting nat, prerouting      not by tun0, TCP, unmarked, would go into tun0      redirect to the listener
//! }
//! ```
//!
//! A packet that bears somebody's mark already is left to the device, as is everything where there are no nftables.
//!
//! Source: nft(8); what sing-box 1.14.4 makes in its place (`nft list ruleset`). Left out: its queue to judge first packets
//! in (`auto_redirect_nfqueue`, `auto_redirect_reset_mark`): a refused connection is reset after it was accepted.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// What the table is made from.
#[derive(Clone, Debug)]
pub(super) struct Redirect {
    /// The mark of what passes by.
    pub(super) mark: u32,
    /// The mark of the question where a packet would go.
    pub(super) asking: u32,
    pub(super) include_interfaces: Vec<String>,
    pub(super) exclude_interfaces: Vec<String>,
    /// Hardware addresses, as text.
    pub(super) include_devices: Vec<String>,
    pub(super) exclude_devices: Vec<String>,
    pub(super) exclude_mptcp: bool,
}

impl Redirect {
    /// Whether the table does what nothing else does, so that going on without it would be wrong.
    pub(super) fn is_needed(&self) -> bool {
        self.exclude_mptcp || !self.include_devices.is_empty() || !self.exclude_devices.is_empty()
    }

    /// Makes the table, in the place of one of the same name. `Err`: why it cannot be made.
    pub(super) fn set_up(&self, device: &str, port: u16) -> Result<(), String> {
        nft(&self.script(device, port))
    }

    fn script(&self, device: &str, port: u16) -> String {
        let table = table(device);
        let mut text = format!("add table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n");
        let Self { mark, asking, .. } = self;
        let mut pass = Vec::new();
        if self.exclude_mptcp {
            pass.push("meta l4proto tcp tcp option mptcp exists".to_owned());
        }
        let pass_out = pass.clone();
        if !self.include_devices.is_empty() {
            let devices = self.include_devices.join(", ");
            pass.push(format!("meta iiftype ether ether saddr != {{ {devices} }}"));
        }
        if !self.exclude_devices.is_empty() {
            let devices = self.exclude_devices.join(", ");
            pass.push(format!("meta iiftype ether ether saddr {{ {devices} }}"));
        }
        for (chain, kind, what) in [
            ("pass", "filter hook prerouting priority mangle", pass),
            ("pass_out", "route hook output priority mangle", pass_out),
        ] {
            if !what.is_empty() {
                let _ = writeln!(text, "chain {chain} {{\ntype {kind}; policy accept;");
                for what in what {
                    let _ = writeln!(text, "iifname != \"{device}\" {what} meta mark set {mark}");
                }
                text.push_str("}\n");
            }
        }
        let _ = writeln!(
            text,
            "chain output {{\ntype nat hook output priority -99; policy accept;\n\
             oifname \"{device}\" meta l4proto tcp counter redirect to :{port}\n}}\n\
             chain prerouting {{\ntype nat hook prerouting priority -99; policy accept;\n\
             iifname {{ \"{device}\", \"lo\" }} return"
        );
        let names =
            |names: &[String]| names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        if !self.include_interfaces.is_empty() {
            let _ = writeln!(text, "iifname != {{ {} }} return", names(&self.include_interfaces));
        }
        if !self.exclude_interfaces.is_empty() {
            let _ = writeln!(text, "iifname {{ {} }} return", names(&self.exclude_interfaces));
        }
        let _ = writeln!(
            text,
            "meta l4proto != tcp return\nmeta mark != 0 return\nmeta mark set {asking}\n\
             meta l4proto tcp fib daddr . mark oifname \"{device}\" counter redirect to :{port}\nmeta mark set 0\n}}\n}}"
        );
        text
    }

    /// Takes the table away.
    pub(super) fn remove(device: &str) {
        // Without it there is nothing to take away.
        let _ = nft(&format!("delete table inet {}\n", table(device)));
    }
}

fn table(device: &str) -> String {
    format!("culvert-{device}")
}

/// Whether a name can stand between quotes.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'/');
    !name.is_empty() && name.len() < 16 && name.bytes().all(plain)
}

/// Runs nft(8) with a script; all of it is done, or nothing.
fn nft(script: &str) -> Result<(), String> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("the program nft (package nftables) cannot be run: {error}"))?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(script.as_bytes()));
    let output = child.wait_with_output().map_err(|error| format!("nft: {error}"))?;
    if output.status.success() && written.is_ok() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("nft: {}", said.lines().next().unwrap_or("failed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect() -> Redirect {
        Redirect {
            mark: 0x2024,
            asking: 0x2023,
            include_interfaces: vec![],
            exclude_interfaces: vec![],
            include_devices: vec![],
            exclude_devices: vec![],
            exclude_mptcp: false,
        }
    }

    #[test]
    fn a_plain_table_has_two_chains() {
        let script = redirect().script("tun0", 7000);
        assert!(script.starts_with("add table inet culvert-tun0\ndelete table inet culvert-tun0\n"));
        assert!(script.contains("oifname \"tun0\" meta l4proto tcp counter redirect to :7000"), "{script}");
        assert_eq!(script.matches("chain ").count(), 2);
        assert_eq!(script.matches('{').count(), script.matches('}').count());
        assert!(!redirect().is_needed());
    }

    #[test]
    fn what_passes_by_is_marked_before_it_is_routed() {
        let script = Redirect {
            exclude_mptcp: true,
            exclude_devices: vec!["02:00:00:00:00:01".to_owned()],
            include_interfaces: vec!["lan".to_owned(), "wlan".to_owned()],
            ..redirect()
        }
        .script("tun0", 7000);
        assert_eq!(script.matches("chain ").count(), 4);
        for part in [
            "tcp option mptcp exists meta mark set 8228",
            "ether saddr { 02:00:00:00:00:01 } meta mark set 8228",
            "iifname != { \"lan\", \"wlan\" } return",
        ] {
            assert!(script.contains(part), "{part}: {script}");
        }
    }

    #[test]
    fn names_that_would_end_the_quotes_are_none() {
        assert!(is_name("br-lan.7") && is_name("wlan0"));
        for bad in ["", "a\"b", "a b", "eth0/1", "a-name-that-is-too-long", "a\nb"] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
