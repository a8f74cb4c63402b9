//! Outbound `shadowsocks`, with its SIP003 plugins.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::mux::OutboundMux;
use crate::options::outbound::socks::UdpOverTcp;
use crate::options::shadowsocks::ShadowsocksMethod;
use crate::options::transport::has_bad_escape;
use crate::table::options;
use crate::value::{Networks, Secret, Word, choices};

options! {
    /// Options of a Shadowsocks outbound.
    pub struct ShadowsocksOutbound {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server.
        server: ServerOptions = ..,
        /// How to encrypt.
        method: Word<ShadowsocksMethod> [keep],
        /// Password; for the methods that begin with 2022 a key in base64, or several with colons between them.
        password: Secret<String>,
        /// What disguises the connection.
        plugin: Word<ShadowsocksPlugin>,
        /// Options of the plugin: `name=value` with semicolons between them.
        plugin_opts: String,
        /// What to send there; both when absent.
        network: Networks,
        /// Sends datagrams over streams.
        udp_over_tcp: Option<UdpOverTcp>,
        /// Multiplexing.
        multiplex: Option<OutboundMux>,
    }
    check = ShadowsocksOutbound::check_key_and_plugin;
}

choices! {
    /// What disguises a Shadowsocks connection.
    pub enum ShadowsocksPlugin: "plugin" {
        /// simple-obfs: as HTTP or TLS.
        ObfsLocal = "obfs-local",
        /// v2ray-plugin: as WebSocket or QUIC.
        V2ray = "v2ray-plugin",
    }
}

/// Options of a plugin in the order of the text. One without a value has the value `1`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PluginOptions(Vec<(String, String)>);

impl PluginOptions {
    /// Reads `name=value;name;...`, in which a backslash takes the meaning away from the character behind it.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let mut options = Vec::new();
        let (mut name, mut value) = (String::new(), None::<String>);
        let mut chars = text.chars();
        loop {
            let next = chars.next();
            match next {
                None | Some(';') => {
                    if name.is_empty() && (value.is_some() || next.is_some()) {
                        return Err("an option has no name");
                    }
                    if !name.is_empty() {
                        let value = value.take().unwrap_or_else(|| "1".to_owned());
                        options.push((std::mem::take(&mut name), value));
                    }
                    if next.is_none() {
                        return Ok(Self(options));
                    }
                }
                Some('=') if value.is_none() => value = Some(String::new()),
                Some('\\') => {
                    let escaped = chars.next().ok_or("there is nothing behind the last backslash")?;
                    value.as_mut().unwrap_or(&mut name).push(escaped);
                }
                Some(plain) => value.as_mut().unwrap_or(&mut name).push(plain),
            }
        }
    }

    /// The value of the first option of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl ShadowsocksOutbound {
    fn check_key_and_plugin(&self, node: &Node, cx: &mut Cx<'_>) {
        self.method.check("method", node, cx);
        match self.method.get() {
            Some(method) => {
                if let Some(fault) = method.client_fault(&self.password) {
                    cx.error(node.place_of("password"), fault);
                }
            }
            None if self.method.is_unknown() => {}
            None => cx.error(node.place, "this Shadowsocks outbound has no `method`"),
        }
        self.plugin.check("plugin", node, cx);
        let Some(plugin) = self.plugin.get() else { return };
        let checked = PluginOptions::parse(&self.plugin_opts)
            .map_err(str::to_owned)
            .and_then(|options| check_plugin(plugin, &options, node, cx));
        if let Err(message) = checked {
            cx.error(node.place_of("plugin_opts"), message);
        }
    }
}

fn check_plugin(
    plugin: ShadowsocksPlugin,
    options: &PluginOptions,
    node: &Node,
    cx: &mut Cx<'_>,
) -> Result<(), String> {
    match plugin {
        ShadowsocksPlugin::ObfsLocal => match options.get("obfs") {
            None | Some("http" | "tls") => Ok(()),
            Some(other) => Err(format!("unknown obfs mode `{other}`; known are http, tls")),
        },
        ShadowsocksPlugin::V2ray => {
            match options.get("mode") {
                None | Some("websocket") => {}
                Some("quic") if options.get("tls").is_some() => {}
                Some("quic") => return Err("mode `quic` needs the option `tls`".to_owned()),
                Some(other) => return Err(format!("unknown mode `{other}`; known are websocket, quic")),
            }
            if options.get("mux").is_some_and(|mux| mux.parse::<i64>().is_err()) {
                return Err("the value of `mux` is not a number".to_owned());
            }
            if options.get("path").is_some_and(has_bad_escape) {
                return Err("`path` has a `%` without two hexadecimal digits behind it".to_owned());
            }
            if let (Some(_), Some(path)) = (options.get("tls"), options.get("cert")) {
                cx.read_file(node.place_of("plugin_opts"), path);
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_options_have_escapes_and_defaults() {
        let options = PluginOptions::parse(r"tls;host=a\;b;path=/x=y;key\=1=2").expect("good options");
        assert_eq!(options.get("tls"), Some("1"));
        assert_eq!(options.get("host"), Some("a;b"));
        assert_eq!(options.get("path"), Some("/x=y"));
        assert_eq!(options.get("key=1"), Some("2"));
        assert_eq!(options.get("mode"), None);
        assert_eq!(PluginOptions::parse(""), Ok(PluginOptions::default()));
        assert!(PluginOptions::parse("=x").is_err());
        assert!(PluginOptions::parse(r"a\").is_err());
    }
}
