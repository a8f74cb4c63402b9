//! `certificate_providers`, and the places that name one or describe their own.

use std::any::Any;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::http_client::HttpClientReference;
use crate::cx::Cx;
use crate::json::{Entry, Node, Value};
use crate::schema::Schema;
use crate::table::{self, Keys, Kind, UnknownKeys, kinds, options};
use crate::value::{CertificateProviderTag, Dur, EndpointTag, List, OptionValue, Secret, Word, choices};

kinds! {
    /// The types of certificate provider with their options.
    pub enum CertificateProviderKind: "certificate provider" in [CertificateProvider] {
        /// An authority that speaks ACME.
        Acme(AcmeProvider) = "acme",
        /// Cloudflare, for servers behind it.
        CloudflareOriginCa(CloudflareOriginCaProvider) = "cloudflare-origin-ca",
        /// Tailscale.
        Tailscale(TailscaleProvider) = "tailscale",
    }
}

/// The tag of a certificate provider, or a provider described in place.
#[derive(Clone, Debug, PartialEq)]
pub enum CertificateProviderReference {
    /// One of `certificate_providers`.
    Tag(CertificateProviderTag),
    /// A provider of its own.
    Inline(CertificateProviderKind),
    /// The running object that one of the other two stands for, put in its place by the program. Never read or written.
    Made(MadeProvider),
}

/// A running object. What it is, only those know who made it and who use it.
#[derive(Clone)]
pub struct MadeProvider(pub Arc<dyn Any + Send + Sync>);

impl fmt::Debug for MadeProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MadeProvider")
    }
}

impl PartialEq for MadeProvider {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

options! {
    /// Certificates by ACME (RFC 8555).
    pub struct AcmeProvider {
        /// Names to have certificates for, at least one.
        domain: List<String>,
        /// Where accounts and certificates are kept.
        data_directory: String,
        /// Name to answer with when a client asks for none.
        default_server_name: String,
        /// Address the authority can write to.
        email: String,
        /// `letsencrypt` (default), `zerossl`, or a URL.
        provider: String,
        /// Key of an account that exists, in PEM.
        account_key: Secret<String>,
        /// Does not prove ownership over HTTP.
        disable_http_challenge: bool,
        /// Does not prove ownership over TLS.
        disable_tls_alpn_challenge: bool,
        /// Port that requests to port 80 arrive at.
        alternative_http_port: u16,
        /// Port that connections to port 443 arrive at.
        alternative_tls_port: u16,
        /// An account elsewhere that the ACME account belongs to.
        external_account: Option<AcmeExternalAccount>,
        /// Proves ownership by DNS records.
        dns01_challenge: Option<Dns01Challenge>,
        /// Kind of the certificates' keys; `p256` when absent.
        key_type: Word<AcmeKeyType>,
        /// Profile of certificates the authority offers.
        profile: String,
        /// HTTP client to speak to the authority.
        http_client: HttpClientReference,
    }
    check = AcmeProvider::check_values;

    /// An account elsewhere that an ACME account belongs to.
    pub struct AcmeExternalAccount {
        /// Its id.
        key_id: String,
        /// Its key in URL-safe base64.
        mac_key: Secret<String>,
    }

    /// The old form of ACME inside `tls`.
    pub struct InlineAcme {
        /// Names to have certificates for.
        domain: List<String>,
        /// Where accounts and certificates are kept.
        data_directory: String,
        /// Name to answer with when a client asks for none.
        default_server_name: String,
        /// Address the authority can write to.
        email: String,
        /// `letsencrypt` (default), `zerossl`, or a URL.
        provider: String,
        /// Does not prove ownership over HTTP.
        disable_http_challenge: bool,
        /// Does not prove ownership over TLS.
        disable_tls_alpn_challenge: bool,
        /// Port that requests to port 80 arrive at.
        alternative_http_port: u16,
        /// Port that connections to port 443 arrive at.
        alternative_tls_port: u16,
        /// An account elsewhere that the ACME account belongs to.
        external_account: Option<AcmeExternalAccount>,
        /// Proves ownership by DNS records.
        dns01_challenge: Option<InlineDns01Challenge>,
        /// Profile of certificates the authority offers.
        profile: String,
    }

    /// Certificates from the Cloudflare Origin CA, which only Cloudflare trusts.
    pub struct CloudflareOriginCaProvider {
        /// Names to have a certificate for, at least one.
        domain: List<String>,
        /// Where the certificate is kept.
        data_directory: String,
        /// API token; or `origin_ca_key`.
        api_token: Secret<String>,
        /// Origin CA key; or `api_token`.
        origin_ca_key: Secret<String>,
        /// Kind of the certificate's key; `origin-rsa` when absent.
        request_type: Word<OriginRequestType>,
        /// How long the certificate is valid, in days; 5475 when absent.
        requested_validity: OriginValidity,
        /// HTTP client to speak to Cloudflare.
        http_client: HttpClientReference,
    }
    check = CloudflareOriginCaProvider::check_access;

    /// Certificates from Tailscale, for names inside its network.
    pub struct TailscaleProvider {
        /// The Tailscale endpoint.
        endpoint: EndpointTag,
    }
}

/// Proof of ownership by DNS records, with what the records have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dns01Challenge {
    /// About the records.
    pub records: Dns01Records,
    /// Who hosts them.
    pub provider: Dns01Provider,
}

/// Proof of ownership by DNS records in the old form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InlineDns01Challenge {
    /// Who hosts the records.
    pub provider: Dns01Provider,
}

options! {
    /// DNS records that prove ownership.
    pub struct Dns01Records {
        /// Time to live of the records.
        ttl: Dur,
        /// Wait before the first look for the records.
        propagation_delay: Dur,
        /// How long to look for the records.
        propagation_timeout: Dur,
        /// DNS servers to look at.
        resolvers: List<String>,
        /// Name to put the records under.
        override_domain: String,
    }

    /// Access to Alibaba Cloud DNS.
    pub struct AliDns {
        /// Id of the access key.
        access_key_id: String,
        /// The access key.
        access_key_secret: Secret<String>,
        /// Region.
        region_id: String,
        /// Token of a temporary access key.
        security_token: Secret<String>,
    }

    /// Access to Cloudflare DNS.
    pub struct CloudflareDns {
        /// Token that may edit DNS records.
        api_token: Secret<String>,
        /// Token that may read zones.
        zone_token: Secret<String>,
    }

    /// Access to an acme-dns server.
    pub struct AcmeDns {
        /// User.
        username: String,
        /// Password.
        password: Secret<String>,
        /// Subdomain.
        subdomain: String,
        /// URL of the server.
        server_url: String,
    }
}

kinds! {
    /// Who hosts DNS records.
    pub enum Dns01Provider: "DNS provider" in [] {
        /// Alibaba Cloud DNS.
        AliDns(AliDns) = "alidns",
        /// Cloudflare.
        Cloudflare(CloudflareDns) = "cloudflare",
        /// An acme-dns server.
        AcmeDns(AcmeDns) = "acmedns",
    }
}

choices! {
    /// Kind of a certificate's key.
    pub enum AcmeKeyType: "key type" {
        /// Ed25519.
        Ed25519 = "ed25519",
        /// ECDSA on P-256.
        P256 = "p256",
        /// ECDSA on P-384.
        P384 = "p384",
        /// RSA with 2048 bits.
        Rsa2048 = "rsa2048",
        /// RSA with 4096 bits.
        Rsa4096 = "rsa4096",
    }

    /// Kind of an Origin CA certificate's key.
    pub enum OriginRequestType: "request type" {
        /// RSA.
        Rsa = "origin-rsa",
        /// ECDSA.
        Ecc = "origin-ecc",
    }
}

/// How long an Origin CA certificate is valid, in days. 0 means the longest time.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct OriginValidity(pub u16);

impl AcmeProvider {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        check_domains(&self.domain, node, cx);
        self.key_type.check("key_type", node, cx);
    }
}

impl CloudflareOriginCaProvider {
    fn check_access(&self, node: &Node, cx: &mut Cx<'_>) {
        check_domains(&self.domain, node, cx);
        self.request_type.check("request_type", node, cx);
        for fault in self.domain.iter().filter_map(|domain| host_name_fault(domain)) {
            cx.error(node.place_of("domain"), fault);
        }
        match (self.api_token.is_empty(), self.origin_ca_key.is_empty()) {
            (true, true) => cx.error(node.place, "`api_token` or `origin_ca_key` is missing"),
            (false, false) => {
                cx.error(node.place_of("origin_ca_key"), "`api_token` and `origin_ca_key` exclude each other")
            }
            _ => {}
        }
    }
}

/// What is wrong with a name, or with a wildcard, to have a certificate of the Origin CA for.
fn host_name_fault(name: &str) -> Option<String> {
    let plain = name.strip_prefix("*.").unwrap_or(name);
    if plain.is_empty() {
        Some("an empty name cannot have a certificate".to_owned())
    } else if plain.contains('*') {
        Some(format!("the wildcard of `{name}` must be its whole first label"))
    } else if plain != name && !plain.contains('.') {
        Some(format!("the wildcard `{name}` must stand before a domain with a dot in it"))
    } else if name.parse::<IpAddr>().is_ok() {
        Some(format!("`{name}` is an IP address, and these certificates are for names"))
    } else {
        None
    }
}

fn check_domains(domains: &[String], node: &Node, cx: &mut Cx<'_>) {
    if domains.is_empty() {
        cx.error(node.place_of("domain"), "no name is given to have a certificate for; add `domain`");
    }
}

impl Default for CertificateProviderReference {
    fn default() -> Self {
        Self::Tag(CertificateProviderTag::default())
    }
}

impl OptionValue for CertificateProviderReference {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        match node.as_str() {
            Some("") => cx.error(node.place, "the tag of a certificate provider is missing"),
            Some(_) => {
                let mut tag = CertificateProviderTag::default();
                tag.decode(node, cx);
                *self = Self::Tag(tag);
            }
            None if node.as_object().is_some() => {
                let Some(mut kind) = table::kind_of::<CertificateProviderKind>(node, "type", cx) else {
                    return;
                };
                decode_beside(&mut kind, &["type"], node, cx);
                *self = Self::Inline(kind);
            }
            None => cx.expected("the tag of a certificate provider or an object", node),
        }
    }

    fn encode(&self) -> Node {
        match self {
            Self::Tag(tag) => tag.encode(),
            Self::Inline(kind) => {
                let mut entries = vec![Entry::new("type", Node::string(kind.name()))];
                entries.extend(table::encode_fields(kind.table()));
                Value::Object(entries).into()
            }
            Self::Made(_) => Node::default(),
        }
    }

    fn is_zero(&self) -> bool {
        matches!(self, Self::Tag(tag) if tag.is_zero())
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let tag = CertificateProviderTag::default().schema(schema);
        let inline = schema.kinds::<CertificateProviderKind>("type", &[]);
        Schema::any_of([tag, inline])
    }
}

/// Decodes the options of a kind from an object in which `elsewhere` are other keys.
fn decode_beside<K: Kind>(kind: &mut K, elsewhere: &[&'static str], node: &Node, cx: &mut Cx<'_>) {
    let keys = Keys { elsewhere, unknown: UnknownKeys::Refuse, exact: 0 };
    table::decode_with(kind.table_mut(), keys, node, cx);
}

/// Keys of [`Dns01Records`] and the one that names the provider.
const RECORD_KEYS: &[&str] =
    &["provider", "ttl", "propagation_delay", "propagation_timeout", "resolvers", "override_domain"];

impl OptionValue for Dns01Challenge {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(mut provider) = table::kind_of::<Dns01Provider>(node, "provider", cx) else { return };
        let records: Vec<Entry> = node.as_object().unwrap_or_default().to_vec();
        let records = records.into_iter().filter(|entry| RECORD_KEYS[1..].contains(&entry.key.as_str()));
        let records = Node::new(Value::Object(records.collect()), node.place);
        self.records.decode(&records, cx);
        decode_beside(&mut provider, RECORD_KEYS, node, cx);
        self.provider = provider;
    }

    fn encode(&self) -> Node {
        let mut entries = table::encode_fields(&self.records);
        entries.push(Entry::new("provider", Node::string(self.provider.name())));
        entries.extend(table::encode_fields(self.provider.table()));
        Value::Object(entries).into()
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let records = table::schema_properties(&self.records, schema);
        let records: Vec<(&str, Node)> =
            records.iter().map(|entry| (entry.key.as_str(), entry.node.clone())).collect();
        schema.kinds::<Dns01Provider>("provider", &records)
    }
}

impl OptionValue for InlineDns01Challenge {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(mut provider) = table::kind_of::<Dns01Provider>(node, "provider", cx) else { return };
        decode_beside(&mut provider, &["provider"], node, cx);
        self.provider = provider;
    }

    fn encode(&self) -> Node {
        let mut entries = vec![Entry::new("provider", Node::string(self.provider.name()))];
        entries.extend(table::encode_fields(self.provider.table()));
        Value::Object(entries).into()
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        schema.kinds::<Dns01Provider>("provider", &[])
    }
}

impl OptionValue for OriginValidity {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        const DAYS: [u16; 8] = [0, 7, 30, 90, 365, 730, 1095, 5475];
        self.0.decode(node, cx);
        if !DAYS.contains(&self.0) {
            let known = DAYS[1..].iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
            cx.error(node.place, format!("a validity of {} days is not offered; known are {known}", self.0));
        }
    }

    fn encode(&self) -> Node {
        self.0.encode()
    }

    fn is_zero(&self) -> bool {
        self.0 == 0
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        self.0.schema(schema)
    }
}
