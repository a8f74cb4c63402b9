//! Endpoint `openconnect`. Names follow the options of the OpenConnect program.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::dial::DialOptions;
use crate::options::nat::NatOptions;
use crate::table::options;
use crate::value::{Dur, List, Pem, Secret, Word, choices};

options! {
    /// Options of an OpenConnect endpoint.
    pub struct OpenConnectEndpoint {
        /// How to dial.
        dial: DialOptions = ..,
        /// Uses a network interface of the system.
        system: bool,
        /// Name of the network interface; chosen when absent.
        name: String,
        /// Idle time after which a UDP session ends; 5m when absent.
        udp_timeout: Dur,
        /// How UDP sessions are told apart.
        nat: NatOptions = ..,
        /// URL of the server.
        server: String [keep],
        /// Protocol; `anyconnect` when absent.
        flavor: Word<OpenConnectFlavor>,
        /// Name to log in with.
        username: String,
        /// Password.
        password: Secret<String>,
        /// Group to log in to.
        auth_group: String,
        /// Cookie of a login that has been done elsewhere.
        cookie: Secret<String>,
        /// One-time passwords.
        token: Option<OpenConnectToken>,
        /// System to say it is.
        reported_os: String,
        /// Program to say it is.
        user_agent: String,
        /// Version to say it is.
        version: String,
        /// Name of this machine to tell the server.
        local_hostname: String,
        /// Mobile device to say it is.
        mobile: Option<OpenConnectMobile>,
        /// Checks of this machine for Cisco.
        csd: Option<OpenConnectWrapper>,
        /// Checks of this machine for GlobalProtect.
        hip: Option<OpenConnectWrapper>,
        /// Checks of this machine for Juniper.
        tncc: Option<OpenConnectTncc>,
        /// Checks of this machine for Fortinet.
        fortinet_host_check: Option<OpenConnectFortinetCheck>,
        /// Uses TCP only.
        no_udp: bool,
        /// Local port for DTLS; a free one when absent.
        dtls_local_port: u16,
        /// Compresses nothing.
        compression_disabled: bool,
        /// How packets are compressed.
        compression_mode: Word<OpenConnectCompression>,
        /// Asks for no IPv6.
        ipv6_disabled: bool,
        /// Makes a connection for each request.
        http_keepalive_disabled: bool,
        /// Logs in without XML.
        xml_post_disabled: bool,
        /// Does not log in through a browser.
        external_auth_disabled: bool,
        /// Does not log in with a password.
        password_authentication_disabled: bool,
        /// Uses TCP keep-alive.
        tcp_keep_alive_enabled: bool,
        /// Insists on forward secrecy.
        pfs: bool,
        /// Greatest size of a packet in bytes; the server tells it when absent.
        mtu: u32,
        /// Greatest size of the packets that carry them.
        base_mtu: u32,
        /// Time between signs of life.
        dpd_interval: Dur,
        /// How long to try to come back.
        reconnect_timeout: Dur,
        /// Time between checks of this machine.
        trojan_interval: Dur,
        /// How many packets may wait.
        queue_length: u32,
        /// Accepts cryptography that is not safe any more.
        allow_insecure_crypto: bool,
        /// TLS.
        tls: Option<Box<OpenConnectTls>>,
        /// Answers to questions at the login.
        form_entries: Vec<OpenConnectFormEntry>,
    }
    check = OpenConnectEndpoint::check_values;

    /// One-time passwords.
    pub struct OpenConnectToken {
        /// How they are made.
        mode: Word<OpenConnectTokenMode>,
        /// What they are made of.
        secret: Secret<String>,
        /// File with that.
        secret_path: String,
        /// PIN.
        pin: Secret<String>,
        /// Password.
        password: Secret<String>,
        /// Device they are for.
        device_id: String,
        /// How many have been used.
        counter: u64,
    }
    check = OpenConnectToken::check_mode;

    /// A mobile device to say it is.
    pub struct OpenConnectMobile {
        /// Version of its system.
        platform_version: String,
        /// What it is.
        device_type: String,
        /// Its id.
        device_unique_id: String,
    }

    /// A program that checks this machine.
    pub struct OpenConnectWrapper {
        /// The program.
        wrapper_path: String,
    }

    /// Checks of this machine for Juniper.
    pub struct OpenConnectTncc {
        /// The program that does them.
        wrapper_path: String,
        /// Id of this machine.
        device_id: String,
        /// Program to say it is.
        user_agent: String,
        /// Tells which machine it is.
        machine_identification_enabled: bool,
        /// Certificates of this machine.
        certificates: Vec<OpenConnectMachineCertificate>,
    }

    /// A certificate of this machine.
    pub struct OpenConnectMachineCertificate {
        /// In PEM.
        certificate: Pem,
        /// File with it.
        certificate_path: String,
    }

    /// Checks of this machine for Fortinet.
    pub struct OpenConnectFortinetCheck {
        /// Result to tell.
        hostcheck: String,
        /// Result about virtual desktops to tell.
        check_virtual_desktop: String,
    }

    /// TLS of an OpenConnect endpoint.
    pub struct OpenConnectTls {
        /// Accepts any certificate.
        insecure: bool,
        /// Name of the server; from its URL when absent.
        server_name: String,
        /// Fingerprints of certificates that are accepted.
        peer_fingerprint: List<String>,
        /// Does not trust the authorities of the system.
        system_trust_disabled: bool,
        /// Trusted authorities in PEM.
        certificate_authority: Pem,
        /// File with trusted authorities.
        certificate_authority_path: String,
        /// Certificate of this client in PEM.
        client_certificate: Pem,
        /// File with the certificate of this client.
        client_certificate_path: String,
        /// Key of the certificate in PEM.
        client_key: Secret<Pem>,
        /// File with the key of the certificate.
        client_key_path: String,
        /// Password of the key.
        client_key_password: Secret<String>,
        /// Second certificate in PEM, for logins that need two.
        mca_certificate: Pem,
        /// File with the second certificate.
        mca_certificate_path: String,
        /// Key of the second certificate in PEM.
        mca_key: Secret<Pem>,
        /// File with the key of the second certificate.
        mca_key_path: String,
        /// Password of the key of the second certificate.
        mca_key_password: Secret<String>,
    }

    /// An answer to a question at the login.
    pub struct OpenConnectFormEntry {
        /// Id of the form; any when absent.
        form_id: String,
        /// Name under which the answer is sent.
        submission_key: String,
        /// Name of the question.
        name: String,
        /// The answer.
        value: Secret<String>,
        /// Has the question asked in place of the usual ones.
        promote: bool,
    }
}

choices! {
    /// A protocol that OpenConnect speaks.
    pub enum OpenConnectFlavor: "flavor" {
        /// Cisco AnyConnect, and ocserv.
        AnyConnect = "anyconnect",
        /// Palo Alto GlobalProtect.
        GlobalProtect = "gp",
        /// Fortinet.
        Fortinet = "fortinet",
        /// F5.
        F5 = "f5",
        /// Pulse Connect Secure.
        Pulse = "pulse",
        /// Juniper Network Connect.
        NetworkConnect = "nc",
    }

    /// How one-time passwords are made.
    pub enum OpenConnectTokenMode: "token mode" {
        /// From the time (RFC 6238).
        Totp = "totp",
        /// From a counter (RFC 4226).
        Hotp = "hotp",
        /// RSA SecurID.
        Stoken = "stoken",
        /// OpenID Connect.
        Oidc = "oidc",
    }

    /// How packets are compressed.
    pub enum OpenConnectCompression: "compression mode" {
        /// Each by itself.
        Stateless = "stateless",
        /// Each with what came before.
        All = "all",
    }
}

impl OpenConnectEndpoint {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.server.is_empty() {
            cx.error(node.place_of("server"), "this OpenConnect endpoint has no `server`");
        }
        self.flavor.check("flavor", node, cx);
        self.compression_mode.check("compression_mode", node, cx);
    }
}

impl OpenConnectToken {
    fn check_mode(&self, node: &Node, cx: &mut Cx<'_>) {
        self.mode.check("mode", node, cx);
    }
}
