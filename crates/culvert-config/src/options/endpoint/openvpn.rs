//! Endpoints `openvpn-client` and `openvpn-server`. Names follow the options of the OpenVPN program.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::{DialOptions, ServerOptions};
use crate::options::listen::ListenOptions;
use crate::options::nat::NatOptions;
use crate::options::tls::TlsVersion;
use crate::options::users::LoginUser;
use crate::table::options;
use crate::value::{Address, Dur, DurOrSeconds, List, Pem, Prefix, Secret, Word, choices};

options! {
    /// Options of an OpenVPN client.
    pub struct OpenVpnClientEndpoint {
        /// How to dial.
        dial: DialOptions = ..,
        /// The server; or `servers`.
        server: ServerOptions = ..,
        /// The interface inside the tunnel.
        interface: OpenVpnInterface = ..,
        /// How keys are agreed on; `tls` when absent.
        mode: Word<OpenVpnMode>,
        /// What carries the tunnel; `udp` when absent.
        network: Word<OpenVpnNetwork>,
        /// Servers to try one after another.
        servers: Vec<OpenVpnRemote>,
        /// Tries them in random order.
        remote_random: bool,
        /// Addresses inside the tunnel; the server tells them when absent.
        address: List<Prefix>,
        /// What the addresses mean.
        addressing: OpenVpnAddressing = ..,
        /// Name to log in with.
        username: String,
        /// Password.
        password: Secret<String>,
        /// What to do when the server does not take them; `none` when absent.
        auth_retry: Word<OpenVpnAuthRetry>,
        /// Answer to the question the server asks besides.
        static_challenge: Secret<String>,
        /// The answer may be shown while it is typed.
        static_challenge_echo: bool,
        /// A key that both sides know.
        static_key: OpenVpnStaticKey = ..,
        /// TLS.
        tls: Option<Box<OpenVpnClientTls>>,
        /// How to encrypt.
        ciphers: OpenVpnCiphers = ..,
        /// Splits packets above this size in bytes.
        fragment: u32,
        /// Protection against repeated packets.
        replay: OpenVpnReplay = ..,
        /// How packets are compressed; not at all when absent.
        compression: Word<OpenVpnCompression>,
        /// The same by its old name.
        compression_lzo: Word<OpenVpnLzo>,
        /// Whether the server may ask for compression; `no` when absent.
        allow_compression: Word<OpenVpnAllowCompression>,
        /// Takes no routes from the server.
        route_no_pull: bool,
        /// Which options of the server are taken.
        pull_filters: Vec<OpenVpnPullFilter>,
        /// Further routes.
        routes: List<Prefix>,
        /// Where routes lead to; the server when absent.
        route_gateway: Option<Address>,
        /// Metric of routes.
        route_metric: i64,
        /// Routes everything into the tunnel.
        redirect_gateway: bool,
        /// How that is done.
        redirect_gateway_flags: List<String>,
        /// Does as if everything was routed into the tunnel.
        redirect_private: bool,
        /// Lets no IPv6 pass by the tunnel.
        block_ipv6: bool,
        /// Time between signs of life.
        ping_interval: Dur,
        /// Time without one after which the tunnel starts again.
        ping_restart: Dur,
        /// Never starts again for that reason.
        ping_restart_disabled: bool,
        /// When keys are renewed.
        renegotiation: OpenVpnRenegotiation = ..,
        /// Time until a control packet is sent again.
        tls_timeout: Dur,
        /// How long agreeing on keys may take.
        handshake_window: Dur,
        /// How often to tell the server that the tunnel ends.
        explicit_exit_notify: u32,
        /// Idle time after which a UDP session ends; 5m when absent.
        udp_timeout: DurOrSeconds,
    }
    check = OpenVpnClientEndpoint::check_values;

    /// Options of an OpenVPN server.
    pub struct OpenVpnServerEndpoint {
        /// How to listen.
        listen: ListenOptions = ..,
        /// The interface inside the tunnel.
        interface: OpenVpnInterface = ..,
        /// How keys are agreed on; `tls` when absent.
        mode: Word<OpenVpnMode>,
        /// What carries the tunnel; `udp` when absent.
        network: Word<OpenVpnServerNetwork>,
        /// The only client, for mode `static_key`.
        remote: String,
        /// Its port.
        remote_port: u16,
        /// How many clients there may be.
        max_clients: i64,
        /// Addresses inside the tunnel.
        address: List<Prefix> [keep],
        /// What the addresses mean.
        addressing: OpenVpnAddressing = ..,
        /// Lets several clients use the same certificate at once.
        duplicate_cn: bool,
        /// Who may use it; everybody with a certificate when empty.
        users: Vec<LoginUser>,
        /// A key that both sides know.
        static_key: OpenVpnStaticKey = ..,
        /// TLS.
        tls: Option<Box<OpenVpnServerTls>>,
        /// How to encrypt.
        ciphers: OpenVpnCiphers = ..,
        /// Protection against repeated packets.
        replay: OpenVpnReplay = ..,
        /// What clients are told.
        push: Option<OpenVpnPush>,
        /// Time between signs of life.
        ping_interval: Dur,
        /// Time without one after which a client is gone.
        ping_restart: Dur,
        /// When keys are renewed.
        renegotiation: OpenVpnRenegotiation = ..,
        /// How long agreeing on keys may take.
        handshake_window: Dur,
    }
    check = OpenVpnServerEndpoint::check_values;

    /// The interface inside an OpenVPN tunnel.
    pub struct OpenVpnInterface {
        /// Uses a network interface of the system.
        system: bool,
        /// Name of the network interface; chosen when absent.
        name: String,
        /// Greatest size of a packet in bytes; 1500 when absent.
        mtu: u32,
        /// How UDP sessions are told apart.
        nat: NatOptions = ..,
    }

    /// One of several servers.
    pub struct OpenVpnRemote {
        /// Its address.
        server: ServerOptions = ..,
        /// What carries the tunnel; as outside when absent.
        network: Word<OpenVpnNetwork>,
    }

    /// What addresses inside an OpenVPN tunnel mean.
    pub struct OpenVpnAddressing {
        /// IPv4 address of the other end.
        peer_address: Option<Address>,
        /// IPv6 address of the other end.
        peer_address_ipv6: Option<Address>,
        /// How addresses are given to clients.
        topology: Word<OpenVpnTopology>,
    }

    /// A key that both sides of an OpenVPN tunnel know.
    pub struct OpenVpnStaticKey {
        /// The key, as one text or as lines.
        static_key: Secret<Pem>,
        /// File with the key.
        static_key_path: String,
        /// Which half of it is for whom.
        key_direction: Word<OpenVpnSide>,
    }

    /// How an OpenVPN tunnel encrypts.
    pub struct OpenVpnCiphers {
        /// Cipher where none is agreed on.
        cipher: String,
        /// Ciphers to agree on, best first.
        data_ciphers: List<String>,
        /// Cipher for the other side where it cannot agree on one.
        data_ciphers_fallback: String,
        /// Hash that proves packets.
        auth: String,
        /// Greatest TCP segment in bytes.
        mss_fix: u32,
        /// Leaves TCP segments as they are.
        mss_fix_disabled: bool,
        /// What that size counts.
        mss_fix_mode: Word<OpenVpnMssFixMode>,
    }

    /// Protection against repeated packets.
    pub struct OpenVpnReplay {
        /// How far back packets are remembered; 64 when absent.
        replay_window: u32,
        /// How long they are remembered; 15s when absent.
        replay_window_time: Dur,
    }

    /// When the keys of an OpenVPN tunnel are renewed.
    pub struct OpenVpnRenegotiation {
        /// After this time; one hour when absent.
        renegotiate_interval: Dur,
        /// Never.
        renegotiate_disabled: bool,
        /// After this many bytes.
        renegotiate_bytes: u64,
        /// After this many packets.
        renegotiate_packets: u64,
    }

    /// What happens to options of the server.
    pub struct OpenVpnPullFilter {
        /// What happens.
        action: Word<OpenVpnPullAction> [keep],
        /// How the options begin.
        text: String [keep],
    }

    /// TLS of an OpenVPN client.
    pub struct OpenVpnClientTls {
        /// Name the certificate of the server must have.
        server_name: String,
        /// Which of its names that is.
        server_name_type: Word<OpenVpnNameType>,
        /// Trusted authorities in PEM.
        certificate: Pem,
        /// File with trusted authorities.
        certificate_path: String,
        /// Certificate of this client in PEM.
        client_certificate: Pem,
        /// File with the certificate of this client.
        client_certificate_path: String,
        /// Key of the certificate in PEM.
        client_key: Secret<Pem>,
        /// File with the key of the certificate.
        client_key_path: String,
        /// What is asked of the server.
        verification: OpenVpnVerification = ..,
        /// How control packets are hidden.
        control_wrap: Option<OpenVpnControlWrap>,
    }
    check = OpenVpnClientTls::check_words;

    /// TLS of an OpenVPN server.
    pub struct OpenVpnServerTls {
        /// Certificate chain in PEM.
        certificate: Pem,
        /// File with the certificate chain.
        certificate_path: String,
        /// Key of the certificate in PEM.
        key: Secret<Pem>,
        /// File with the key.
        key_path: String,
        /// Authorities for client certificates in PEM.
        client_certificate: Pem,
        /// File with authorities for client certificates.
        client_certificate_path: String,
        /// Whether clients show a certificate; `require` when absent.
        verify_client_certificate: Word<OpenVpnVerifyClient>,
        /// Name the certificate of a client must have.
        client_name: String,
        /// Which of its names that is.
        client_name_type: Word<OpenVpnNameType>,
        /// What is asked of clients.
        verification: OpenVpnVerification = ..,
        /// How control packets are hidden.
        control_wrap: Option<OpenVpnServerControlWrap>,
    }
    check = OpenVpnServerTls::check_words;

    /// What one side of an OpenVPN tunnel asks of the other.
    pub struct OpenVpnVerification {
        /// Fingerprints of certificates that are accepted.
        peer_fingerprint: List<String>,
        /// File with revoked certificates.
        crl_path: String,
        /// Key usages the certificate must have.
        remote_certificate_ku: List<String>,
        /// Extended key usage the certificate must have.
        remote_certificate_eku: String,
        /// The usual usages for one side.
        remote_certificate_tls: Word<OpenVpnCertificateUse>,
        /// How old the cryptography of certificates may be.
        certificate_profile: Word<OpenVpnCertificateProfile>,
        /// The usage by its old Netscape name.
        ns_certificate_type: Word<OpenVpnSide>,
        /// Lowest version of TLS.
        version_min: Word<TlsVersion>,
        /// Highest version of TLS.
        version_max: Word<TlsVersion>,
        /// Cipher suites of TLS.
        cipher: String,
        /// Key exchange groups of TLS.
        groups: String,
    }
    check = OpenVpnVerification::check_words;

    /// How control packets are hidden.
    pub struct OpenVpnControlWrap {
        /// Way to do it.
        wrap: Word<OpenVpnControlWrapType> = "type",
        /// A key that both sides know, as one text or as lines.
        key: Secret<Pem>,
        /// File with the key.
        key_path: String,
        /// Which half of the key is for whom.
        direction: Word<OpenVpnSide>,
    }
    check = OpenVpnControlWrap::check_words;

    /// How control packets are hidden, on the side of the server.
    pub struct OpenVpnServerControlWrap {
        /// As on the other side.
        common: OpenVpnControlWrap = ..,
        /// Has clients show that they can receive before anything is kept about them.
        force_cookie: bool,
    }

    /// What clients of an OpenVPN server are told.
    pub struct OpenVpnPush {
        /// Routes.
        routes: List<Prefix>,
        /// Addresses of DNS servers.
        dns: List<Address>,
        /// DNS servers with more about them.
        dns_servers: Vec<OpenVpnPushDnsServer>,
        /// Domains to complete names with.
        search_domains: List<String>,
        /// Further DHCP options.
        dhcp_options: List<String>,
        /// Routes everything into the tunnel.
        redirect_gateway: bool,
        /// How that is done.
        redirect_gateway_flags: List<String>,
        /// Lets no DNS pass by the tunnel.
        block_outside_dns: bool,
        /// Time between signs of life.
        ping_interval: Dur,
        /// Time without one after which the tunnel starts again.
        ping_restart: Dur,
    }

    /// A DNS server that clients are told.
    pub struct OpenVpnPushDnsServer {
        /// The lower, the earlier it is asked.
        priority: i64,
        /// Addresses, some with a port.
        addresses: List<String> [keep],
        /// Domains it is asked about; all when absent.
        resolve_domains: List<String>,
        /// Whether answers must be signed.
        dnssec: Word<OpenVpnDnssec>,
        /// How it is asked.
        transport: Word<OpenVpnDnsTransport>,
        /// Name to verify it by.
        sni: String,
    }
    check = OpenVpnPushDnsServer::check_words;
}

choices! {
    /// How the keys of an OpenVPN tunnel are agreed on.
    pub enum OpenVpnMode: "OpenVPN mode" {
        /// By TLS.
        Tls = "tls",
        /// Both sides know them.
        StaticKey = "static_key",
    }

    /// What carries an OpenVPN tunnel of a client.
    pub enum OpenVpnNetwork: "network" {
        /// UDP.
        Udp = "udp",
        /// UDP over IPv4.
        Udp4 = "udp4",
        /// UDP over IPv6.
        Udp6 = "udp6",
        /// TCP.
        Tcp = "tcp",
        /// TCP over IPv4.
        Tcp4 = "tcp4",
        /// TCP over IPv6.
        Tcp6 = "tcp6",
    }

    /// What carries an OpenVPN tunnel of a server.
    pub enum OpenVpnServerNetwork: "network" {
        /// UDP.
        Udp = "udp",
        /// TCP.
        Tcp = "tcp",
    }

    /// How addresses are given to OpenVPN clients.
    pub enum OpenVpnTopology: "topology" {
        /// Four to each client.
        Net30 = "net30",
        /// One to each client, with any other end.
        P2p = "p2p",
        /// One to each client, in one network.
        Subnet = "subnet",
    }

    /// What to do when a server does not take name and password.
    pub enum OpenVpnAuthRetry: "way to retry" {
        /// End.
        None = "none",
        /// Try again.
        NoInteract = "nointeract",
        /// Ask.
        Interact = "interact",
    }

    /// A side of a tunnel.
    pub enum OpenVpnSide: "side" {
        /// The server.
        Server = "server",
        /// The client.
        Client = "client",
    }

    /// What the greatest TCP segment counts.
    pub enum OpenVpnMssFixMode: "MSS mode" {
        /// The packet that carries it.
        Mtu = "mtu",
        /// The segment alone.
        Fixed = "fixed",
    }

    /// How packets are compressed.
    pub enum OpenVpnCompression: "compression" {
        /// Not at all.
        None = "none" | "no" | "disabled" | "off",
        /// LZ4.
        Lz4 = "lz4",
        /// LZ4, second form.
        Lz4V2 = "lz4-v2",
        /// Not at all, but marked.
        Stub = "stub",
        /// Not at all, but marked in the second form.
        StubV2 = "stub-v2",
    }

    /// How packets are compressed, by its old name.
    pub enum OpenVpnLzo: "compression" {
        /// Not at all.
        None = "none" | "no" | "disabled" | "off",
        /// LZO.
        Yes = "yes",
        /// LZO where it helps.
        Adaptive = "adaptive",
        /// LZO from the server only.
        Asym = "asym",
    }

    /// Whether an OpenVPN server may ask for compression.
    pub enum OpenVpnAllowCompression: "permission to compress" {
        /// It may not.
        No = "no",
        /// In its own direction.
        Asym = "asym",
        /// In both directions.
        Yes = "yes",
    }

    /// What happens to an option of an OpenVPN server.
    pub enum OpenVpnPullAction: "pull filter action" {
        /// It is taken.
        Accept = "accept",
        /// It is not taken.
        Ignore = "ignore",
        /// The tunnel starts again.
        Reject = "reject",
    }

    /// Which name of a certificate is compared.
    pub enum OpenVpnNameType: "name type" {
        /// The whole subject.
        Subject = "subject",
        /// The common name.
        Name = "name",
        /// How the common name begins.
        NamePrefix = "name-prefix",
    }

    /// What the certificate of the other side must be for.
    pub enum OpenVpnCertificateUse: "certificate use" {
        /// Servers.
        Server = "server",
        /// Clients.
        Client = "client",
        /// Anything.
        None = "none",
    }

    /// How old the cryptography of certificates may be.
    pub enum OpenVpnCertificateProfile: "certificate profile" {
        /// As old as still seen.
        Legacy = "legacy",
        /// Recent.
        Preferred = "preferred",
        /// As old as can be.
        Insecure = "insecure",
        /// NSA Suite B.
        SuiteB = "suiteb",
    }

    /// Whether OpenVPN clients show a certificate.
    pub enum OpenVpnVerifyClient: "way to verify clients" {
        /// They must.
        Require = "require",
        /// They may.
        Optional = "optional",
        /// They need not.
        None = "none",
    }

    /// How control packets are hidden.
    pub enum OpenVpnControlWrapType: "control wrap" {
        /// They are proved.
        TlsAuth = "tls_auth",
        /// They are encrypted.
        TlsCrypt = "tls_crypt",
        /// They are encrypted with a key for each client.
        TlsCryptV2 = "tls_crypt_v2",
    }

    /// Whether answers of a DNS server must be signed.
    pub enum OpenVpnDnssec: "DNSSEC mode" {
        /// They must.
        Yes = "yes",
        /// Where they are, the signature must be right.
        Optional = "optional",
        /// Signatures do not matter.
        No = "no",
    }

    /// How a DNS server is asked.
    pub enum OpenVpnDnsTransport: "DNS transport" {
        /// As ever.
        Plain = "plain",
        /// Over TLS.
        Dot = "dot",
        /// Over HTTPS.
        Doh = "doh",
    }
}

impl OpenVpnClientEndpoint {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.server.server.is_empty() && self.servers.is_empty() {
            cx.error(node.place, "this OpenVPN client has no `server`");
        }
        self.network.check("network", node, cx);
        self.auth_retry.check("auth_retry", node, cx);
        self.compression.check("compression", node, cx);
        self.compression_lzo.check("compression_lzo", node, cx);
        self.allow_compression.check("allow_compression", node, cx);
        let remotes = node.get("servers").and_then(Node::as_array).unwrap_or_default();
        for (remote, item) in self.servers.iter().zip(remotes) {
            remote.network.check("network", item, cx);
        }
        let filters = node.get("pull_filters").and_then(Node::as_array).unwrap_or_default();
        for (filter, item) in self.pull_filters.iter().zip(filters) {
            filter.action.check("action", item, cx);
        }
        check_keys(&self.mode, &self.static_key, self.tls.is_some(), node, cx);
        check_common(&self.addressing, &self.ciphers, node, cx);
    }
}

impl OpenVpnServerEndpoint {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        self.network.check("network", node, cx);
        check_keys(&self.mode, &self.static_key, self.tls.is_some(), node, cx);
        check_common(&self.addressing, &self.ciphers, node, cx);
    }
}

/// The mode decides which keys are needed.
fn check_keys(mode: &Word<OpenVpnMode>, key: &OpenVpnStaticKey, has_tls: bool, node: &Node, cx: &mut Cx<'_>) {
    mode.check("mode", node, cx);
    key.key_direction.check("key_direction", node, cx);
    let has_key = !key.static_key.is_empty() || !key.static_key_path.is_empty();
    match mode.get() {
        Some(OpenVpnMode::StaticKey) if !has_key => {
            cx.error(node.place_of("mode"), "mode `static_key` needs `static_key` or `static_key_path`");
        }
        None | Some(OpenVpnMode::Tls) if !has_tls && !mode.is_unknown() => {
            cx.error(node.place, "mode `tls` needs `tls`");
        }
        _ => {}
    }
}

fn check_common(addressing: &OpenVpnAddressing, ciphers: &OpenVpnCiphers, node: &Node, cx: &mut Cx<'_>) {
    addressing.topology.check("topology", node, cx);
    ciphers.mss_fix_mode.check("mss_fix_mode", node, cx);
}

impl OpenVpnClientTls {
    fn check_words(&self, node: &Node, cx: &mut Cx<'_>) {
        self.server_name_type.check("server_name_type", node, cx);
    }
}

impl OpenVpnServerTls {
    fn check_words(&self, node: &Node, cx: &mut Cx<'_>) {
        self.verify_client_certificate.check("verify_client_certificate", node, cx);
        self.client_name_type.check("client_name_type", node, cx);
    }
}

impl OpenVpnVerification {
    fn check_words(&self, node: &Node, cx: &mut Cx<'_>) {
        self.remote_certificate_tls.check("remote_certificate_tls", node, cx);
        self.certificate_profile.check("certificate_profile", node, cx);
        self.ns_certificate_type.check("ns_certificate_type", node, cx);
        self.version_min.check("version_min", node, cx);
        self.version_max.check("version_max", node, cx);
    }
}

impl OpenVpnControlWrap {
    fn check_words(&self, node: &Node, cx: &mut Cx<'_>) {
        self.wrap.check("type", node, cx);
        self.direction.check("direction", node, cx);
    }
}

impl OpenVpnPushDnsServer {
    fn check_words(&self, node: &Node, cx: &mut Cx<'_>) {
        self.dnssec.check("dnssec", node, cx);
        self.transport.check("transport", node, cx);
    }
}
