//! `culvert tun2socks`: a TUN device in, one proxy out, no configuration.

use clap::Args;
use serde_json::{Value, json};

use super::front::{self, ADDRESSES, Dns};
use super::{Failure, run};

/// Flags of the command.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The proxy: socks5://user:password@host:port, http://, https://, ss://, vmess://, vless://, trojan://, anytls://,
    /// hysteria2:// or tuic://. @FILE reads it from a file, so that nobody sees its password in the list of processes.
    #[arg(value_name = "LINK")]
    proxy: String,
    /// Name of the device; the first free one of tun0, tun1, … when absent.
    #[arg(long, value_name = "NAME", default_value = "")]
    device: String,
    /// Greatest size of a packet in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 8500)]
    mtu: u32,
    /// Address of the device with its prefix; may be given twice, for IPv4 and IPv6.
    #[arg(long, value_name = "PREFIX", default_values = ADDRESSES)]
    address: Vec<String>,
    /// Lead the traffic of the whole system into the device; without this or --route, routes are yours to make.
    #[arg(long)]
    auto_route: bool,
    /// Lead only traffic to this network into the device; may be given many times.
    #[arg(long, value_name = "PREFIX")]
    route: Vec<String>,
    /// Keep traffic to this network out of it; may be given many times.
    #[arg(long, value_name = "PREFIX")]
    exclude: Vec<String>,
    /// Who speaks TCP with the clients: `gvisor` (our own stack), `system` or `mixed`.
    #[arg(long, value_name = "STACK", default_value = "gvisor")]
    stack: String,
    /// Divert TCP by nftables, which is faster where there are some.
    #[arg(long)]
    auto_redirect: bool,
    #[command(flatten)]
    dns: Dns,
    /// Least important messages to show: trace, debug, info, warn, error.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

pub(super) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let config = arguments.config()?;
    run::execute_text("command line", &config.to_string())
}

impl Arguments {
    fn config(&self) -> Result<Value, Failure> {
        let mut config = front::config(&self.proxy, &self.dns, &self.log_level)?;
        let auto =
            self.auto_route || !self.route.is_empty() || !self.exclude.is_empty() || self.auto_redirect;
        if auto {
            front::look_up_server(&mut config)?;
        }
        config["inbounds"] = json!([{
            "type": "tun", "tag": "tun", "interface_name": self.device, "mtu": self.mtu, "address": self.address,
            "auto_route": auto, "auto_redirect": self.auto_redirect, "stack": self.stack,
            "route_address": self.route, "route_exclude_address": self.exclude,
        }]);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn config(line: &str) -> Value {
        let line = std::iter::once("tun2socks").chain(line.split(' '));
        Line::try_parse_from(line).unwrap().arguments.config().unwrap()
    }

    #[test]
    fn a_link_alone_is_enough() {
        let made = config("socks5://127.0.0.1:1080");
        let tun = &made["inbounds"][0];
        assert_eq!((&tun["auto_route"], &tun["address"]), (&json!(false), &json!(ADDRESSES)));
        let text = made.to_string();
        assert!(culvert_config::load(&[culvert_config::Source::new("line", text.as_bytes())]).is_ok());
    }

    #[test]
    fn routes_come_with_their_flags() {
        let made =
            config("--device t --mtu 1500 --address 10.9.0.1/24 --route 10.0.0.0/8 socks5://127.0.0.1:1080");
        let tun = &made["inbounds"][0];
        assert_eq!(tun["auto_route"], true);
        assert_eq!(tun["address"], json!(["10.9.0.1/24"]));
        assert_eq!(tun["route_address"], json!(["10.0.0.0/8"]));
        let text = made.to_string();
        assert!(culvert_config::load(&[culvert_config::Source::new("line", text.as_bytes())]).is_ok());
    }
}
