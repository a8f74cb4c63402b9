//! Inbounds `hysteria` and `hysteria2`.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::http_fields::QuicOptions;
use crate::options::hysteria::{InboundRealm, Obfuscation, bytes_per_second};
use crate::options::listen::ListenOptions;
use crate::options::quic::BbrProfile;
use crate::options::tls::{InboundTls, Need};
use crate::options::users::{HysteriaUser, PasswordUser};
use crate::schema::Schema;
use crate::table::{kinds, options};
use crate::value::{Bandwidth, Headers, OptionValue, Secret, Typed, Word};

options! {
    /// Options of a Hysteria inbound.
    pub struct HysteriaInbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Upload speed; or `up_mbps`.
        up: Option<Bandwidth>,
        /// Upload speed in megabits per second.
        up_mbps: i64,
        /// Download speed; or `down_mbps`.
        down: Option<Bandwidth>,
        /// Download speed in megabits per second.
        down_mbps: i64,
        /// Password to disguise packets with.
        obfs: Secret<String>,
        /// Who may use it.
        users: Vec<HysteriaUser>,
        /// The old name of `stream_receive_window`, in bytes.
        recv_window_conn: u64 [hidden],
        /// The old name of `connection_receive_window`, in bytes.
        recv_window_client: u64 [hidden],
        /// The old name of `max_concurrent_streams`.
        max_conn_client: i64 [hidden],
        /// The old name of `disable_path_mtu_discovery`.
        disable_mtu_discovery: bool [hidden],
        /// TLS, which is required.
        tls: Option<Box<InboundTls>>,
        /// Limits of connections.
        quic: QuicOptions = ..,
    }
    check = HysteriaInbound::check_tls_and_speeds;

    /// Options of a Hysteria 2 inbound.
    pub struct Hysteria2Inbound {
        /// How to listen.
        listen: ListenOptions = ..,
        /// Upload speed in megabits per second; what clients ask for when absent.
        up_mbps: i64,
        /// Download speed in megabits per second; what clients ask for when absent.
        down_mbps: i64,
        /// How packets are disguised.
        obfs: Obfuscation,
        /// Who may use it.
        users: Vec<PasswordUser>,
        /// Lets BBR find the speed, whatever clients ask for.
        ignore_client_bandwidth: bool,
        /// TLS, which is required.
        tls: Option<Box<InboundTls>>,
        /// Limits of connections.
        quic: QuicOptions = ..,
        /// What HTTP/3 requests of others get; 404 when absent.
        masquerade: Masquerade,
        /// How hard BBR tries; `standard` when absent.
        bbr_profile: Word<BbrProfile>,
        /// Logs what the Brutal congestion control does.
        brutal_debug: bool,
        /// Meets clients at a meeting point.
        realm: Option<Box<InboundRealm>>,
    }
    check = Hysteria2Inbound::check_values;
}

/// What HTTP/3 requests get that are not Hysteria: a URL, or an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Masquerade(pub Typed<MasqueradeKind>);

kinds! {
    /// What a Hysteria 2 server pretends to be.
    pub enum MasqueradeKind: "masquerade" in [] {
        /// A directory of files.
        File(MasqueradeFile) = "file",
        /// Another web server.
        Proxy(MasqueradeProxy) = "proxy",
        /// Always the same answer.
        String(MasqueradeString) = "string",
    }
}

options! {
    /// A directory of files.
    pub struct MasqueradeFile {
        /// The directory.
        directory: String [keep],
    }

    /// Another web server.
    pub struct MasqueradeProxy {
        /// Its URL.
        url: String [keep],
        /// Asks it for its own host in place of the one the client asked for.
        rewrite_host: bool,
    }

    /// Always the same answer.
    pub struct MasqueradeString {
        /// Status code; 200 when absent.
        status_code: i64,
        /// Headers.
        headers: Headers,
        /// Body.
        content: String [keep],
    }
}

impl HysteriaInbound {
    /// Upload speed in bytes per second.
    #[must_use]
    pub fn upload(&self) -> i64 {
        bytes_per_second(self.up.as_ref(), self.up_mbps)
    }

    /// Download speed in bytes per second.
    #[must_use]
    pub fn download(&self) -> i64 {
        bytes_per_second(self.down.as_ref(), self.down_mbps)
    }

    fn check_tls_and_speeds(&self, node: &Node, cx: &mut Cx<'_>) {
        InboundTls::check(self.tls.as_deref(), Need::Required, node, cx);
        for (key, speed) in [("up", self.upload()), ("down", self.download())] {
            if speed == 0 {
                cx.error(node.place_of(key), format!("no speed is given; add `{key}` or `{key}_mbps`"));
            }
        }
    }
}

impl Hysteria2Inbound {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        InboundTls::check(self.tls.as_deref(), Need::Required, node, cx);
        self.bbr_profile.check("bbr_profile", node, cx);
        let (Some(realm), Some(node)) = (self.realm.as_deref(), node.get("realm")) else { return };
        let realm = &realm.realm;
        realm.check(node, cx);
        let needed = [
            ("server_url", realm.server_url.is_empty(), "the URL of the meeting point"),
            ("realm_id", realm.realm_id.is_empty(), "the name of the place to meet"),
            ("stun_servers", realm.stun_servers.is_empty(), "at least one STUN server"),
        ];
        for (key, _, what) in needed.into_iter().filter(|(_, missing, _)| *missing) {
            cx.error(node.place_of(key), format!("the realm needs {what} in `{key}`"));
        }
    }
}

impl Masquerade {
    fn from_url(url: &str) -> Result<MasqueradeKind, String> {
        let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
        let after = rest.strip_prefix("//").unwrap_or(rest);
        let (host, path) = after.find('/').map_or((after, ""), |at| after.split_at(at));
        if host.contains([' ', '<', '>', '"']) {
            return Err(format!("`{url}` is not a URL: its host is `{host}`"));
        }
        match scheme {
            "http" | "https" => {
                let proxy = MasqueradeProxy { url: url.to_owned(), rewrite_host: false };
                Ok(MasqueradeKind::Proxy(Box::new(proxy)))
            }
            "file" => {
                let file = MasqueradeFile { directory: unescaped(path) };
                Ok(MasqueradeKind::File(Box::new(file)))
            }
            _ => Err(format!("unknown URL scheme `{scheme}`; known are http, https, file")),
        }
    }
}

/// A path of a URL with its `%XX` made the bytes they stand for.
fn unescaped(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(escaped) if byte == b'%' => {
                bytes.push(escaped);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl OptionValue for Masquerade {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(url) = node.as_str() else {
            self.0.decode(node, cx);
            return;
        };
        match Self::from_url(url) {
            Ok(kind) => self.0 = Typed(Some(kind)),
            Err(message) => cx.error(node.place, message),
        }
    }

    fn encode(&self) -> Node {
        self.0.encode()
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let forms = [Schema::typed("string"), self.0.schema(schema)];
        Schema::any_of(forms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_what_to_pretend() {
        let directory = |url| match Masquerade::from_url(url) {
            Ok(MasqueradeKind::File(file)) => Some(file.directory),
            _ => None,
        };
        assert_eq!(directory("file:///var/www%20x").as_deref(), Some("/var/www x"));
        assert_eq!(directory("file:///100%").as_deref(), Some("/100%"));
        assert!(matches!(Masquerade::from_url("https://example.org/a"), Ok(MasqueradeKind::Proxy(_))));
        for url in ["", "example.org", "ftp://example.org", "http://a b"] {
            assert!(Masquerade::from_url(url).is_err(), "{url}");
        }
    }
}
