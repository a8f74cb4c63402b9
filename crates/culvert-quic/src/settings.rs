//! What connections are made with: limits, and TLS from the settings of `culvert-tls`.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_os::socket::path_mtu;
use culvert_tls::{Acceptor, Connector};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::ServerName;
use rustls::quic::{self, Suite, Version};
use thiserror::Error;

use crate::congestion::{Choice, Congestion, Factory};

/// Limits and habits of a connection.
#[derive(Clone, Debug)]
pub struct Transport {
    /// Bytes that the peer may send in one stream ahead of what was read.
    pub stream_window: u64,
    /// The same for all streams of a connection together, at most: it grows with what comes in a round trip.
    pub connection_window: u64,
    /// Streams in both directions that the peer may have open.
    pub bidi_streams: u64,
    /// Streams in one direction likewise.
    pub uni_streams: u64,
    /// Silence that ends the connection; the smaller one of both ends counts.
    pub idle_timeout: Duration,
    /// Silence after which the peer is asked for a sign of life.
    pub keep_alive: Option<Duration>,
    /// Largest datagram frame that may come; `None` takes none.
    pub datagram: Option<u16>,
    /// Looks for packets larger than the first ones.
    pub mtu_discovery: bool,
    /// Bytes of the first packets, the disguise not counted: 1200 to 1452.
    pub initial_packet: u16,
    /// What finds out how fast to send.
    pub congestion: Congestion,
}

impl Default for Transport {
    /// What hysteria and sing-box use.
    fn default() -> Self {
        Self {
            stream_window: 8 << 20,
            connection_window: 20 << 20,
            bidi_streams: 1024,
            uni_streams: 100,
            idle_timeout: Duration::from_secs(30),
            keep_alive: Some(Duration::from_secs(10)),
            datagram: Some(16383),
            mtu_discovery: true,
            initial_packet: 1200,
            congestion: Congestion::default(),
        }
    }
}

/// Smallest packets that QUIC may need a path to carry.
const LEAST_PACKET: u16 = 1200;
/// Largest packets that are tried as a rule: an Ethernet frame less the heads of IPv6 and UDP.
const USUAL_PACKET: u16 = 1452;
/// Largest packets at all: a jumbo frame less the same.
pub(crate) const LARGEST_PACKET: u16 = 8952;
/// Bytes of the heads of IPv6 and UDP.
const HEADS: u32 = 48;

/// The largest packet that is worth trying on the way to `peer`. Larger ones than usual are only looked for where the first
/// hop takes them: each step of the search costs a lost packet where they do not fit.
pub(crate) fn largest_packet(peer: SocketAddr) -> u16 {
    let first_hop = path_mtu(peer).map_or(0, |mtu| mtu.saturating_sub(HEADS));
    (first_hop.min(LARGEST_PACKET.into()) as u16).max(USUAL_PACKET)
}
/// Datagrams that wait to be read or sent, in bytes.
const DATAGRAM_BUFFER: usize = 2 << 20;
/// Bytes that a peer may send ahead before it is known how many come in a round trip.
pub(crate) const RECEIVE_WINDOW: u64 = 2 << 20;
/// Bytes that streams may have written ahead before anything is known of the path.
pub(crate) const SEND_WINDOW: u64 = 1 << 20;

impl Transport {
    /// The library's form, with a choice of congestion control of its own. `overhead` is what a disguise adds, `largest` the
    /// largest packet to try.
    pub(crate) fn build(&self, choice: Arc<Choice>, overhead: usize, largest: u16) -> TransportConfig {
        let var = |number: u64| VarInt::from_u64(number).unwrap_or(VarInt::MAX);
        let mut config = TransportConfig::default();
        let largest = largest - (overhead as u16).min(largest - LEAST_PACKET);
        config
            .max_concurrent_bidi_streams(var(self.bidi_streams))
            .max_concurrent_uni_streams(var(self.uni_streams))
            .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok())
            .stream_receive_window(var(self.stream_window))
            .receive_window(var(self.connection_window.min(RECEIVE_WINDOW)))
            .send_window(SEND_WINDOW)
            .keep_alive_interval(self.keep_alive)
            .initial_mtu(self.initial_packet.clamp(LEAST_PACKET, largest.min(USUAL_PACKET)))
            .datagram_receive_buffer_size(self.datagram.map(|_| DATAGRAM_BUFFER))
            .datagram_send_buffer_size(DATAGRAM_BUFFER)
            .congestion_controller_factory(Arc::new(Factory(choice)));
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(largest);
        config.mtu_discovery_config(self.mtu_discovery.then_some(discovery));
        config
    }
}

/// TLS that cannot serve QUIC.
#[derive(Debug, Error)]
#[error("tls: {0}")]
pub struct SettingsError(&'static str);

fn initial_suite() -> Option<Suite> {
    TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite())
}

/// The client's TLS.
#[derive(Clone)]
pub struct ClientTls {
    pub(crate) config: Arc<QuicClientConfig>,
    pub(crate) name: String,
}

impl ClientTls {
    /// From a connector. `early_data` says whether data may leave with the first packets, where the server was known
    /// before and allows it: whoever hears them can send them once more.
    ///
    /// # Errors
    /// It does not speak TLS 1.3, or imitates a browser.
    pub fn new(connector: &Connector, alpn: &[&str], early_data: bool) -> Result<Self, SettingsError> {
        let (mut config, name) = connector
            .for_quic(alpn)
            .ok_or(SettingsError("neither `utls` nor `reality` can be used over QUIC"))?;
        config.enable_early_data = early_data;
        let suite = initial_suite().ok_or(SettingsError("AES-128-GCM is missing"))?;
        let config = Arc::new(config);
        // The library takes it for granted that this works.
        ServerName::try_from(name.clone())
            .ok()
            .and_then(|name| {
                quic::ClientConnection::new(Arc::clone(&config), Version::V1, name, Vec::new()).ok()
            })
            .ok_or(SettingsError("QUIC needs version 1.3"))?;
        let config = QuicClientConfig::with_initial(config, suite)
            .map_err(|_| SettingsError("AES-128-GCM is missing"))?;
        Ok(Self { config: Arc::new(config), name })
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientTls({})", self.name)
    }
}

/// The server's TLS.
#[derive(Clone)]
pub struct ServerTls(pub(crate) Arc<QuicServerConfig>);

impl ServerTls {
    /// From an acceptor. `early_data` as in [`ClientTls::new`].
    ///
    /// # Errors
    /// It does not speak TLS 1.3.
    pub fn new(acceptor: &Acceptor, alpn: &[&str], early_data: bool) -> Result<Self, SettingsError> {
        let config = acceptor.for_quic(alpn, early_data);
        let suite = initial_suite().ok_or(SettingsError("AES-128-GCM is missing"))?;
        let config = Arc::new(config);
        quic::ServerConnection::new(Arc::clone(&config), Version::V1, Vec::new())
            .map_err(|_| SettingsError("QUIC needs version 1.3"))?;
        let config = QuicServerConfig::with_initial(config, suite)
            .map_err(|_| SettingsError("AES-128-GCM is missing"))?;
        Ok(Self(Arc::new(config)))
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls")
    }
}

/// What a server is made with.
pub struct ServerSettings {
    /// TLS.
    pub tls: ServerTls,
    /// Limits of each connection.
    pub transport: Transport,
    /// What connections after a restart recognise those before it by: whoever has it can end them. Something secret
    /// that stays as it is, such as a hash over the users' passwords.
    pub secret: [u8; 32],
    /// Connections at once.
    pub connections: usize,
}
