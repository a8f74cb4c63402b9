//! Links that name a proxy, as programs and providers hand them around, to outbounds.
//!
//! ```text
//! socks5://user:password@host:port           http, https, socks, socks4, socks4a, socks5h likewise
//! ss://BASE64(method:password)@host:port     or in plain, or all of it in base64 (SIP002 and what was before)
//! vmess://BASE64({"add": …, "port": …})      v2rayN
//! vless://uuid@host:port?security=…&type=…   trojan, anytls likewise; and hysteria2 (hy2), tuic, with names of their own
//! ```
//!
//! Errors never repeat the link, which holds a password.

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine, alphabet};
use serde_json::{Map, Value, json};

/// Turns a link into an outbound with this tag. `Err`: what is wrong with it.
pub(super) fn outbound(link: &str, tag: &str) -> Result<Value, String> {
    let Some((scheme, rest)) = link.trim().split_once("://") else {
        return Err("a proxy is named by a link such as socks5://host:port".to_owned());
    };
    let scheme = scheme.to_ascii_lowercase();
    let mut made = match scheme.as_str() {
        "socks" | "socks5" | "socks5h" | "socks4" | "socks4a" => {
            socks(&scheme, &Link::parse(rest, Some(1080))?)?
        }
        "http" => http(&Link::parse(rest, Some(80))?)?,
        "https" => https(&Link::parse(rest, Some(443))?)?,
        "ss" => shadowsocks(rest)?,
        "vmess" => vmess(rest)?,
        "vless" => vless(&Link::parse(rest, Some(443))?)?,
        "trojan" => trojan(&Link::parse(rest, Some(443))?)?,
        "anytls" => anytls(&Link::parse(rest, Some(443))?)?,
        "hysteria2" | "hy2" => hysteria2(&Link::parse(rest, Some(443))?)?,
        "tuic" => tuic(&Link::parse(rest, Some(443))?)?,
        "direct" => json!({ "type": "direct" }),
        other => return Err(format!("links of the kind `{other}` are not known")),
    };
    made["tag"] = tag.into();
    Ok(made)
}

/// The parts of a link behind its scheme.
struct Link {
    user: String,
    /// `None` without a colon.
    password: Option<String>,
    host: String,
    port: u16,
    query: Vec<(String, String)>,
    /// Further ports, as text (`443,5000-6000`).
    ports: Option<String>,
}

impl Link {
    fn parse(rest: &str, default_port: Option<u16>) -> Result<Self, String> {
        let rest = rest.split('#').next().unwrap_or_default();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = rest.split('/').next().unwrap_or_default();
        let (user, place) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match user.split_once(':') {
            Some((user, password)) => (decoded(user)?, Some(decoded(password)?)),
            None => (decoded(user)?, None),
        };
        let (host, port) = match place.strip_prefix('[') {
            Some(inner) => {
                let (host, rest) = inner.split_once(']').ok_or("an address is not closed by `]`")?;
                (host, rest.strip_prefix(':'))
            }
            None => match place.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        if host.is_empty() {
            return Err("the link names no host".to_owned());
        }
        let (first, ports) = match port {
            Some(list) if list.contains([',', '-']) => (list.split([',', '-']).next(), Some(list.to_owned())),
            port => (port, None),
        };
        let port = match first {
            Some(port) => port.parse().map_err(|_| "the link's port is none".to_owned())?,
            None => default_port.ok_or("the link names no port")?,
        };
        let query = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decoded(key)?, decoded(value)?))
        });
        let query = query.collect::<Result<_, String>>()?;
        Ok(Self { user, password, host: decoded(host)?, port, query, ports })
    }

    fn get(&self, names: &[&str]) -> Option<&str> {
        let named = self.query.iter().find(|(key, value)| names.contains(&key.as_str()) && !value.is_empty());
        named.map(|(_, value)| value.as_str())
    }

    fn is_set(&self, names: &[&str]) -> bool {
        self.get(names).is_some_and(|value| matches!(value, "1" | "true"))
    }

    fn secret(&self, what: &str) -> Result<&str, String> {
        if self.user.is_empty() { Err(format!("the link names no {what}")) } else { Ok(&self.user) }
    }

    /// The whole of what stands before `@`, where a colon in it means nothing.
    fn whole_secret(&self, what: &str) -> Result<String, String> {
        let user = self.secret(what)?;
        Ok(self.password.as_ref().map_or_else(|| user.to_owned(), |more| format!("{user}:{more}")))
    }

    fn server(&self, kind: &str) -> Value {
        json!({ "type": kind, "server": self.host, "server_port": self.port })
    }

    /// TLS as links describe it.
    fn tls(&self) -> Value {
        let mut tls = json!({ "enabled": true });
        if let Some(name) = self.get(&["sni", "peer", "host"]) {
            tls["server_name"] = name.into();
        }
        if self.is_set(&["insecure", "allowInsecure", "allow_insecure", "skip-cert-verify"]) {
            tls["insecure"] = true.into();
        }
        if let Some(alpn) = self.get(&["alpn"]) {
            tls["alpn"] = alpn.split(',').collect();
        }
        if let Some(fingerprint) = self.get(&["fp"]) {
            tls["utls"] = json!({ "enabled": true, "fingerprint": fingerprint });
        }
        if self.get(&["security"]) == Some("reality") {
            let key = self.get(&["pbk"]).unwrap_or_default();
            tls["reality"] = json!({ "enabled": true, "public_key": key, "short_id": self.get(&["sid"]).unwrap_or_default() });
            if tls.get("utls").is_none() {
                tls["utls"] = json!({ "enabled": true, "fingerprint": "chrome" });
            }
        }
        tls
    }

    /// What carries the protocol, as V2Ray's links describe it.
    fn transport(&self) -> Result<Option<Value>, String> {
        let path = self.get(&["path"]).unwrap_or("/");
        let host = self.get(&["host"]);
        transport(
            self.get(&["type"]).unwrap_or("tcp"),
            self.get(&["headerType"]),
            path,
            host,
            self.get(&["serviceName"]),
        )
    }
}

fn transport(
    kind: &str,
    head: Option<&str>,
    path: &str,
    host: Option<&str>,
    service: Option<&str>,
) -> Result<Option<Value>, String> {
    let mut made = match (kind, head) {
        ("tcp" | "raw" | "", None | Some("none" | "")) => return Ok(None),
        ("ws", _) => json!({ "type": "ws", "path": path }),
        ("grpc", _) => {
            return Ok(Some(json!({ "type": "grpc", "service_name": service.unwrap_or_default() })));
        }
        ("httpupgrade", _) => json!({ "type": "httpupgrade", "path": path }),
        ("http" | "h2", _) | ("tcp" | "raw" | "", Some("http")) => json!({ "type": "http", "path": path }),
        (other, _) => return Err(format!("the transport `{other}` is not known")),
    };
    if let Some(host) = host {
        match kind {
            "ws" => made["headers"] = json!({ "Host": host }),
            _ => made["host"] = host.into(),
        }
    }
    // Early data is written behind the path by some.
    if let ("ws", Some((path, early))) = (kind, path.split_once("?ed=")) {
        made["path"] = path.into();
        if let Ok(early) = early.parse::<u32>() {
            made["max_early_data"] = early.into();
            made["early_data_header_name"] = "Sec-WebSocket-Protocol".into();
        }
    }
    Ok(Some(made))
}

fn socks(scheme: &str, link: &Link) -> Result<Value, String> {
    let mut made = link.server("socks");
    made["version"] = match scheme {
        "socks4" => "4",
        "socks4a" => "4a",
        _ => "5",
    }
    .into();
    credentials(&mut made, link);
    Ok(made)
}

fn http(link: &Link) -> Result<Value, String> {
    let mut made = link.server("http");
    credentials(&mut made, link);
    Ok(made)
}

fn https(link: &Link) -> Result<Value, String> {
    let mut made = http(link)?;
    made["tls"] = link.tls();
    Ok(made)
}

fn credentials(made: &mut Value, link: &Link) {
    if !link.user.is_empty() {
        made["username"] = link.user.clone().into();
        made["password"] = link.password.clone().unwrap_or_default().into();
    }
}

fn shadowsocks(rest: &str) -> Result<Value, String> {
    let body = rest.split(['#', '?']).next().unwrap_or_default();
    let whole;
    let rest = if body.contains('@') {
        rest
    } else {
        // Before SIP002: all of it in base64.
        let text = base64_text(body.trim_end_matches('/')).ok_or("what stands behind ss:// is no base64")?;
        whole = text;
        &whole
    };
    // A password in plain may hold anything; in base64 it has no meaning yet.
    let (secret, place) = rest.rsplit_once('@').ok_or("the link names no server")?;
    let link = Link::parse(place, None)?;
    let secret = if secret.contains(':') {
        decoded(secret)?
    } else {
        base64_text(&decoded(secret)?).ok_or("method and password are no base64")?
    };
    let (method, password) = secret.split_once(':').ok_or("the link names no method and password")?;
    let mut made = link.server("shadowsocks");
    made["method"] = method.into();
    made["password"] = password.into();
    if let Some(plugin) = link.get(&["plugin"]) {
        let (name, options) = plugin.split_once(';').unwrap_or((plugin, ""));
        made["plugin"] = if name == "simple-obfs" { "obfs-local" } else { name }.into();
        made["plugin_opts"] = options.into();
    }
    Ok(made)
}

fn vmess(rest: &str) -> Result<Value, String> {
    let body = rest.split('#').next().unwrap_or_default();
    let text = base64_text(body).ok_or("what stands behind vmess:// is no base64")?;
    let fields: Map<String, Value> =
        serde_json::from_str(&text).map_err(|_| "what stands behind vmess:// is no object".to_owned())?;
    let get = |key: &str| match fields.get(key) {
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    };
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let port: u16 = get("port").parse().map_err(|_| "the link's port is none".to_owned())?;
    let mut made = json!({
        "type": "vmess", "server": get("add"), "server_port": port, "uuid": get("id"),
        "alter_id": get("aid").parse::<u32>().unwrap_or(0),
        "security": some(get("scy")).unwrap_or_else(|| "auto".to_owned()),
    });
    if get("tls") == "tls" {
        let mut tls = json!({ "enabled": true });
        if let Some(name) = some(get("sni")).or_else(|| some(get("host"))) {
            tls["server_name"] = name.into();
        }
        if let Some(alpn) = some(get("alpn")) {
            tls["alpn"] = alpn.split(',').collect();
        }
        if let Some(fingerprint) = some(get("fp")) {
            tls["utls"] = json!({ "enabled": true, "fingerprint": fingerprint });
        }
        made["tls"] = tls;
    }
    let path = some(get("path")).unwrap_or_else(|| "/".to_owned());
    let (host, head) = (some(get("host")), some(get("type")));
    let service = some(get("path"));
    if let Some(transport) =
        transport(&get("net"), head.as_deref(), &path, host.as_deref(), service.as_deref())?
    {
        made["transport"] = transport;
    }
    Ok(made)
}

fn vless(link: &Link) -> Result<Value, String> {
    let mut made = link.server("vless");
    made["uuid"] = link.secret("id")?.into();
    if let Some(flow) = link.get(&["flow"]) {
        made["flow"] = flow.into();
    }
    if link.get(&["encryption"]).is_some_and(|encryption| encryption != "none") {
        return Err("the link asks for an encryption of VLESS, which is not known".to_owned());
    }
    if matches!(link.get(&["security"]), Some("tls" | "reality" | "xtls")) {
        made["tls"] = link.tls();
    }
    if let Some(transport) = link.transport()? {
        made["transport"] = transport;
    }
    Ok(made)
}

fn trojan(link: &Link) -> Result<Value, String> {
    let mut made = link.server("trojan");
    made["password"] = link.whole_secret("password")?.into();
    if link.get(&["security"]) != Some("none") {
        made["tls"] = link.tls();
    }
    if let Some(transport) = link.transport()? {
        made["transport"] = transport;
    }
    Ok(made)
}

fn anytls(link: &Link) -> Result<Value, String> {
    let mut made = link.server("anytls");
    made["password"] = link.whole_secret("password")?.into();
    made["tls"] = link.tls();
    Ok(made)
}

fn hysteria2(link: &Link) -> Result<Value, String> {
    let mut made = link.server("hysteria2");
    if !link.user.is_empty() {
        made["password"] = link.whole_secret("password")?.into();
    }
    if let Some(ports) = link.ports.as_deref().or_else(|| link.get(&["mport"])) {
        let ranges = ports.split(',').map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            format!("{first}:{last}")
        });
        made["server_ports"] = ranges.collect();
    }
    if let Some(kind) = link.get(&["obfs"]).filter(|kind| *kind != "none") {
        made["obfs"] = json!({ "type": kind, "password": link.get(&["obfs-password"]).unwrap_or_default() });
    }
    made["tls"] = link.tls();
    Ok(made)
}

fn tuic(link: &Link) -> Result<Value, String> {
    let mut made = link.server("tuic");
    made["uuid"] = link.secret("id")?.into();
    made["password"] = link.password.clone().unwrap_or_default().into();
    for (name, key) in [("congestion_control", "congestion_control"), ("udp_relay_mode", "udp_relay_mode")] {
        if let Some(value) = link.get(&[name]) {
            made[key] = value.into();
        }
    }
    let mut tls = link.tls();
    if tls.get("alpn").is_none() {
        tls["alpn"] = json!(["h3"]);
    }
    made["tls"] = tls;
    Ok(made)
}

/// Text with `%xx` for bytes.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |at: usize| rest.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err("a `%` in the link is followed by no two hexadecimal digits".to_owned());
        };
        bytes.push((high << 4 | low) as u8);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| "the link is no UTF-8".to_owned())
}

/// The text behind base64 of either alphabet, padded or not.
fn base64_text(text: &str) -> Option<String> {
    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    let bytes = BASE64.decode(text.trim().replace('-', "+").replace('_', "/")).ok()?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(link: &str) -> Value {
        outbound(link, "proxy").unwrap_or_else(|error| panic!("{link}: {error}"))
    }

    #[test]
    fn plain_proxies_have_their_usual_links() {
        assert_eq!(
            made("socks5://127.0.0.1:1080"),
            json!({ "type": "socks", "tag": "proxy", "server": "127.0.0.1", "server_port": 1080, "version": "5" })
        );
        let full = made("socks5h://me%40home:a%3Ab@[2001:db8::1]:9");
        assert_eq!(full["server"], "2001:db8::1");
        assert_eq!((&full["username"], &full["password"]), (&json!("me@home"), &json!("a:b")));
        assert_eq!(made("socks4a://h")["version"], "4a");
        assert_eq!(made("http://p.test")["server_port"], 80);
        let https = made("https://u:p@p.test/?insecure=1");
        assert_eq!((&https["server_port"], &https["tls"]["insecure"]), (&json!(443), &json!(true)));
    }

    #[test]
    fn shadowsocks_comes_in_three_forms() {
        let expected = |link: &str| {
            let made = made(link);
            assert_eq!(made["method"], "aes-256-gcm", "{link}");
            assert_eq!(made["password"], "pass:word", "{link}");
            assert_eq!(
                (&made["server"], &made["server_port"]),
                (&json!("192.0.2.1"), &json!(8388)),
                "{link}"
            );
            made
        };
        expected("ss://YWVzLTI1Ni1nY206cGFzczp3b3Jk@192.0.2.1:8388#name");
        expected("ss://aes-256-gcm:pass%3Aword@192.0.2.1:8388");
        expected("ss://YWVzLTI1Ni1nY206cGFzczp3b3JkQDE5Mi4wLjIuMTo4Mzg4#name");
        let plugin = expected(
            "ss://YWVzLTI1Ni1nY206cGFzczp3b3Jk@192.0.2.1:8388/?plugin=simple-obfs%3Bobfs%3Dhttp%3Bobfs-host%3Dx.test",
        );
        assert_eq!(plugin["plugin"], "obfs-local");
        assert_eq!(plugin["plugin_opts"], "obfs=http;obfs-host=x.test");
    }

    #[test]
    fn links_of_v2ray_carry_tls_and_transports() {
        let vless = made(
            "vless://b831381d-6324-4d53-ad4f-8cda48b30811@h.test:443?encryption=none&flow=xtls-rprx-vision&security=reality\
             &sni=site.test&fp=firefox&pbk=KEY&sid=0123&type=tcp#name",
        );
        assert_eq!(vless["flow"], "xtls-rprx-vision");
        assert_eq!(
            vless["tls"]["reality"],
            json!({ "enabled": true, "public_key": "KEY", "short_id": "0123" })
        );
        assert_eq!(vless["tls"]["utls"]["fingerprint"], "firefox");
        assert!(vless.get("transport").is_none());
        let trojan =
            made("trojan://pa:ss@h.test?type=ws&path=%2Fws%3Fed%3D2048&host=front.test&sni=front.test");
        assert_eq!(trojan["password"], "pa:ss");
        assert_eq!(trojan["transport"]["path"], "/ws");
        assert_eq!(trojan["transport"]["max_early_data"], 2048);
        assert_eq!(trojan["transport"]["headers"]["Host"], "front.test");
        assert_eq!(trojan["tls"]["server_name"], "front.test");
        let object = r#"{"v":"2","add":"h.test","port":"443","id":"ID","aid":0,"net":"grpc","path":"svc","tls":"tls","sni":"s"}"#;
        let encoded: String = {
            const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            object
                .as_bytes()
                .chunks(3)
                .flat_map(|part| {
                    let word = part.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte))
                        << (8 * (3 - part.len()));
                    (0..=part.len()).map(move |at| char::from(DIGITS[(word >> (18 - 6 * at) & 63) as usize]))
                })
                .collect()
        };
        let vmess = made(&format!("vmess://{encoded}"));
        assert_eq!((&vmess["server_port"], &vmess["uuid"]), (&json!(443), &json!("ID")));
        assert_eq!(vmess["transport"], json!({ "type": "grpc", "service_name": "svc" }));
        assert_eq!(vmess["tls"]["server_name"], "s");
    }

    #[test]
    fn links_over_quic_have_their_own_words() {
        let hysteria =
            made("hy2://secret@h.test:443,5000-6000/?obfs=salamander&obfs-password=x&sni=s&insecure=1");
        assert_eq!(hysteria["server_ports"], json!(["443:443", "5000:6000"]));
        assert_eq!(hysteria["obfs"], json!({ "type": "salamander", "password": "x" }));
        assert_eq!(hysteria["tls"]["insecure"], true);
        let tuic = made("tuic://ID:secret@h.test:443?congestion_control=bbr&alpn=h3");
        assert_eq!((&tuic["password"], &tuic["congestion_control"]), (&json!("secret"), &json!("bbr")));
    }

    #[test]
    fn what_is_wrong_is_told_without_the_secret() {
        for link in [
            "secret",
            "ftp://secret@h",
            "ss://secret",
            "vmess://secret",
            "trojan://secret@",
            "vless://h:1",
            "socks5://secret@h:port",
            "socks5://secret@h:99999",
            "trojan://secret%zz@h",
            "trojan://secret%+f@h",
            "ss://secret@h:1",
            "vless://secret@h?type=quic",
            "socks5://secret@[::1",
        ] {
            let error = outbound(link, "proxy").unwrap_err();
            assert!(!error.contains("secret"), "{link}: {error}");
        }
    }

    #[test]
    fn outbounds_from_links_are_accepted() {
        let uuid = "b831381d-6324-4d53-ad4f-8cda48b30811";
        for link in [
            "socks5://u:p@192.0.2.1:1080".to_owned(),
            "https://u:p@p.test".to_owned(),
            "ss://YWVzLTI1Ni1nY206cGFzczp3b3Jk@192.0.2.1:8388".to_owned(),
            format!("vless://{uuid}@h.test?security=tls&type=ws&path=/x&host=y"),
            "trojan://p@h.test?type=grpc&serviceName=s".to_owned(),
            "anytls://p@h.test".to_owned(),
            "hy2://p@h.test:443,5000-6000".to_owned(),
            format!("tuic://{uuid}:p@h.test"),
        ] {
            let config = json!({ "outbounds": [made(&link)] }).to_string();
            let source = culvert_config::Source::new("link", config.as_bytes());
            let loaded = culvert_config::load(&[source]);
            assert!(
                loaded.is_ok(),
                "{link}: {}",
                loaded.err().map(|error| error.to_string()).unwrap_or_default()
            );
        }
    }
}
