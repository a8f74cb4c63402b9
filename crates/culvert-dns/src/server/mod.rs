//! The DNS servers, one file per type, and the table of them.
//!
//! | type | is |
//! |---|---|
//! | [`mod@local`] | the system's resolver |
//! | [`mod@hosts`] | hosts files and names of the configuration |
//! | [`mod@udp`] | UDP, and TCP for what does not fit |
//! | [`mod@stream`] | TCP, and whatever else makes a byte stream |
//! | [`mod@tls`] | TLS over TCP |
//! | [`mod@https`] | requests of HTTP/2 |
//! | [`mod@quic`] | streams of QUIC |
//! | [`mod@h3`] | requests of HTTP/3 |
//! | [`mod@dhcp`] | the name servers of the network |
//! | [`mod@mdns`] | everybody on the links |
//! | [`resolved`](mod@crate::resolved) | the servers that the system was told |
//! | [`mod@fakeip`] | an invented address per name |
//!
//! A server answers one question at a time per call and keeps nothing but its connections: caching, de-duplication, and the
//! limit of time are [`Client`](crate::Client)'s.

pub mod dhcp;
pub mod fakeip;
pub mod h3;
pub mod hosts;
pub mod https;
mod link;
pub mod local;
pub mod mdns;
pub mod quic;
mod slot;
pub mod stream;
pub mod tls;
pub mod udp;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::KindOf;
use culvert_config::options::dial::{DialOptions, ServerOptions};
use culvert_config::options::dns::server::{
    DhcpDnsServer, DnsServerKind, FakeIpDnsServer, H3DnsServer, HostsDnsServer, HttpsDnsServer,
    LocalDnsServer, MdnsDnsServer, QuicDnsServer, ResolvedDnsServer, TcpDnsServer, TlsDnsServer,
    UdpDnsServer,
};
use culvert_config::options::http_client::HttpClientOptions;
use culvert_config::options::tls::OutboundTls;
use culvert_core::{Dialer, Network, Session, SessionId, Tag};
use culvert_http::http::HeaderValue;
use culvert_http::{Client, OptionsError, Settings};
use culvert_tls::{ClientSettings, Connector, Securing, SettingsError, Store};
use culvert_wire::{Domain, Host, Target};
use thiserror::Error;

use fakeip::FakeAddresses;

use crate::message::{Query, Reply};
use crate::plain::Sockets;
use crate::resolved::{Links, ResolvedServer};
use crate::system::Hosts;
use crate::{DnsError, SystemResolver};

/// Answers questions. One object serves all of them, at once.
#[async_trait]
pub trait DnsServer: Send + Sync {
    /// Its type and tag.
    fn tag(&self) -> &Tag;

    /// Asks one question. May take as long as it wants: the caller sets the limit, and drops the future at it.
    ///
    /// # Errors
    /// The server could not be reached or did not answer. An answer that reports an error is a reply.
    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError>;

    /// Gives up connections, because the network has changed.
    fn reset(&self) {}
}

/// All server types that the configuration knows.
pub const TABLE: &[ServerEntry] = &[
    ServerEntry { name: "local", dial: dial::<LocalDnsServer>, build: local },
    ServerEntry { name: "hosts", dial: no_dial, build: hosts },
    ServerEntry { name: "udp", dial: dial::<UdpDnsServer>, build: udp },
    ServerEntry { name: "tcp", dial: dial::<TcpDnsServer>, build: tcp },
    ServerEntry { name: "tls", dial: dial::<TlsDnsServer>, build: tls },
    ServerEntry { name: "quic", dial: dial::<QuicDnsServer>, build: quic },
    ServerEntry { name: "https", dial: dial::<HttpsDnsServer>, build: https },
    ServerEntry { name: "h3", dial: dial::<H3DnsServer>, build: h3 },
    ServerEntry { name: "fakeip", dial: no_dial, build: fakeip },
    ServerEntry { name: "mdns", dial: dial::<MdnsDnsServer>, build: mdns },
    ServerEntry { name: "dhcp", dial: dial::<DhcpDnsServer>, build: dhcp },
    ServerEntry { name: "resolved", dial: no_dial, build: resolved },
    ServerEntry { name: "tailscale", dial: no_dial, build: |_, _| Err(BuildError::NotBuilt("tailscale")) },
    ServerEntry { name: "openvpn", dial: no_dial, build: |_, _| Err(BuildError::NotBuilt("openvpn")) },
    ServerEntry {
        name: "openconnect",
        dial: no_dial,
        build: |_, _| Err(BuildError::NotBuilt("openconnect")),
    },
];

/// One type of server.
#[expect(clippy::type_complexity, reason = "said once, and plainer than a name for it")]
pub struct ServerEntry {
    /// Its `type` in the configuration.
    pub name: &'static str,
    /// Its dial fields, if it has them (`None` also for options of another type).
    pub dial: fn(&DnsServerKind) -> Option<&DialOptions>,
    /// Builds it.
    pub build: fn(&DnsServerKind, ServerCx) -> Result<Arc<dyn DnsServer>, BuildError>,
}

impl ServerEntry {
    /// The type of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|entry| entry.name == name)
    }
}

/// What a server is given besides its options.
pub struct ServerCx {
    /// Its type and tag.
    pub tag: Tag,
    /// Its dial fields, made ready.
    pub dialer: Dialer,
    /// The system's resolver.
    pub system: Arc<SystemResolver>,
    /// Whom to trust where the options name nobody.
    pub store: Arc<Store>,
    /// The fake addresses, which the router knows too; needed by the type `fakeip` only.
    pub fake: Option<Arc<FakeAddresses>>,
    /// The links of the service that the options name; needed by the type `resolved` only.
    pub links: Option<Arc<Links>>,
}

/// Why a server cannot be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// The type is known but has no engine yet.
    #[error("DNS server type {0} is not built yet")]
    NotBuilt(&'static str),
    /// `server` is neither an address nor a name.
    #[error("server: `{0}` is neither an address nor a name")]
    Server(String),
    /// A name of `predefined` is none.
    #[error("predefined: `{0}` is not a name")]
    Name(String),
    /// A fake range has no third address.
    #[error("{option}: {ip}/{length} is too small")]
    Range {
        /// The option.
        option: &'static str,
        /// Its address.
        ip: IpAddr,
        /// Its length in bits.
        length: u8,
    },
    /// An option is known but has no engine yet.
    #[error("{0} is not built yet")]
    OptionNotBuilt(String),
    /// The `tls` options cannot be used.
    #[error("tls")]
    Tls(#[from] SettingsError),
    /// The `tls` options cannot serve QUIC.
    #[error(transparent)]
    Quic(#[from] culvert_quic::SettingsError),
    /// The options for requests cannot be used.
    #[error(transparent)]
    Http(#[from] OptionsError),
    /// There is no such service, or it is of another type.
    #[error("service `{0}` of type resolved does not exist")]
    Service(String),
    /// `path` cannot stand in a URL.
    #[error("path: `{0}` cannot stand in a URL")]
    Path(String),
    /// The options belong to another type, or the context lacks what the type needs.
    #[error("options of another type given to {0}")]
    Mismatch(&'static str),
}

fn dial<O: Dials + 'static>(kind: &DnsServerKind) -> Option<&DialOptions> {
    O::of(kind).map(O::dial_fields)
}

fn no_dial(_: &DnsServerKind) -> Option<&DialOptions> {
    None
}

/// Options with dial fields.
trait Dials: KindOf<DnsServerKind> {
    fn dial_fields(&self) -> &DialOptions;
}

macro_rules! dials {
    ($($options:ty: $($path:ident).+;)*) => {
        $(impl Dials for $options {
            fn dial_fields(&self) -> &DialOptions {
                &self.$($path).+
            }
        })*
    };
}

dials! {
    LocalDnsServer: dial;
    UdpDnsServer: remote.dial;
    TcpDnsServer: remote.dial;
    TlsDnsServer: remote.dial;
    QuicDnsServer: server.remote.dial;
    HttpsDnsServer: server.remote.dial;
    H3DnsServer: https.server.remote.dial;
    MdnsDnsServer: local.dial;
    DhcpDnsServer: local.dial;
}

fn local(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    options::<LocalDnsServer>(kind, "local")?;
    Ok(Arc::new(local::LocalServer::new(cx.tag, cx.system)))
}

fn hosts(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    let options = options::<HostsDnsServer>(kind, "hosts")?;
    let mut predefined = Hosts::default();
    for (name, addresses) in options.predefined.iter() {
        let domain = Domain::new(name).map_err(|_| BuildError::Name(name.clone()))?;
        for address in addresses {
            predefined.insert(domain.clone(), address.ip);
        }
    }
    let paths = options.path.iter().map(Into::into).collect();
    Ok(Arc::new(hosts::HostsServer::new(cx.tag, predefined, paths)))
}

fn udp(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    let target = target(&options::<UdpDnsServer>(kind, "udp")?.remote.server, 53)?;
    Ok(Arc::new(udp::UdpServer::new(cx.tag, cx.dialer, target)))
}

fn tcp(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    let target = target(&options::<TcpDnsServer>(kind, "tcp")?.remote.server, 53)?;
    Ok(Arc::new(stream::TcpServer::new(cx.tag, cx.dialer, target)))
}

fn tls(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    let options = options::<TlsDnsServer>(kind, "tls")?;
    let target = target(&options.remote.server, 853)?;
    let settings = client_settings(options)?;
    let tls = Securing::new(Connector::new(settings, &target.host, &cx.store)?)?;
    Ok(Arc::new(tls::TlsServer::new(cx.tag, cx.dialer, target, tls)))
}

fn https(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    let Web { target, url, settings } = web(options::<HttpsDnsServer>(kind, "https")?)?;
    let url = format!("https://{target}{url}").parse().map_err(|_| BuildError::Path(url))?;
    let client = Client::new(cx.tag.clone(), settings, cx.dialer, &cx.store)?;
    Ok(Arc::new(https::HttpsServer::new(cx.tag, client, url)))
}

fn h3(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    let Web { target, url, settings } = web(&options::<H3DnsServer>(kind, "h3")?.https)?;
    let tls = Connector::new(settings.tls, &target.host, &cx.store)?;
    let shown = target.to_string();
    let authority = match &settings.host {
        Some(host) => host.as_bytes(),
        // The port of the scheme is not said.
        None => shown.strip_suffix(":443").unwrap_or(&shown).as_bytes(),
    };
    let requests = h3::Requests::new(authority, url.as_bytes(), &settings.headers);
    Ok(Arc::new(quic::QuicServer::new(cx.tag, cx.dialer, target, tls, requests)?))
}

fn quic(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    let options = &options::<QuicDnsServer>(kind, "quic")?.server;
    let target = target(&options.remote.server, 853)?;
    let tls = Connector::new(client_settings(options)?, &target.host, &cx.store)?;
    Ok(Arc::new(quic::QuicServer::new(cx.tag, cx.dialer, target, tls, quic::Streams)?))
}

/// A server asked by requests of HTTP.
struct Web {
    target: Target,
    /// The path, with a slash in front.
    url: String,
    settings: Settings,
}

fn web(options: &HttpsDnsServer) -> Result<Web, BuildError> {
    let target = target(&options.server.remote.server, 443)?;
    let tls = client_settings(&options.server)?;
    let client = HttpClientOptions { headers: options.headers.clone(), ..HttpClientOptions::default() };
    let mut settings = culvert_http::options::settings(&client)?;
    if settings.host.is_none()
        && let Some(name) = &tls.server_name
    {
        // The server is known by the name in its certificate, whatever it is reached by.
        let authority = if target.port == 443 { name.clone() } else { format!("{name}:{}", target.port) };
        settings.host = HeaderValue::from_str(&authority).ok();
    }
    let path = if options.path.is_empty() { "/dns-query" } else { &options.path };
    let slash = if path.starts_with('/') { "" } else { "/" };
    settings.tls = tls;
    Ok(Web { target, url: format!("{slash}{path}"), settings })
}

fn dhcp(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    let options = options::<DhcpDnsServer>(kind, "dhcp")?;
    let interface = Some(options.interface.clone()).filter(|name| !matches!(name.as_str(), "" | "auto"));
    let sockets = Sockets { tcp: cx.dialer.tcp, udp: cx.dialer.udp };
    Ok(Arc::new(dhcp::DhcpServer::new(cx.tag, interface, sockets)))
}

fn mdns(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    let options = options::<MdnsDnsServer>(kind, "mdns")?;
    let interfaces = options.interface.iter().cloned().collect();
    Ok(Arc::new(mdns::MdnsServer::new(cx.tag, interfaces, cx.dialer.udp)))
}

/// The TLS of a server, which is on whatever `enabled` says.
fn client_settings(options: &TlsDnsServer) -> Result<ClientSettings, BuildError> {
    let none = OutboundTls::default();
    let settings = culvert_tls::options::client(options.tls.as_deref().unwrap_or(&none));
    settings.map_err(|error| match error {
        SettingsError::NotBuilt { option } => BuildError::OptionNotBuilt(format!("tls.{option}")),
        other => BuildError::Tls(other),
    })
}

fn fakeip(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    options::<FakeIpDnsServer>(kind, "fakeip")?;
    let addresses = cx.fake.ok_or(BuildError::Mismatch("fakeip"))?;
    Ok(Arc::new(fakeip::FakeIpServer::new(cx.tag, addresses)))
}

fn resolved(kind: &DnsServerKind, cx: ServerCx) -> Result<Arc<dyn DnsServer>, BuildError> {
    let options = options::<ResolvedDnsServer>(kind, "resolved")?;
    let links = cx.links.ok_or_else(|| BuildError::Service(options.service.0.clone()))?;
    Ok(Arc::new(ResolvedServer::new(cx.tag, links, options.accept_default_resolvers, cx.store)))
}

fn options<'a, O: KindOf<DnsServerKind>>(
    kind: &'a DnsServerKind,
    name: &'static str,
) -> Result<&'a O, BuildError> {
    O::of(kind).ok_or(BuildError::Mismatch(name))
}

/// Where a server is; at `port` unless another is given.
fn target(options: &ServerOptions, port: u16) -> Result<Target, BuildError> {
    let host = Host::parse(&options.server).map_err(|_| BuildError::Server(options.server.clone()))?;
    Ok(Target { host, port: if options.server_port == 0 { port } else { options.server_port } })
}

/// The session of a connection that a server opens for itself.
fn session(tag: &Tag, network: Network, target: &Target) -> Session {
    Session {
        id: SessionId::next(),
        network,
        inbound: tag.clone(),
        user: None,
        source: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        target: target.clone(),
        sniffed: None,
        alpn: None,
    }
}
