//! The side that is dialled.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use culvert_core::BoxStream;
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs::Ticketer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ProducesTickets, ServerSessionMemoryCache};
use rustls::{NoKeyLog, ServerConfig};
use tokio::io::AsyncWriteExt;

use crate::authorities::Authorities;
use crate::conn::TlsConn;
use crate::engine::{self, Facts, Failure};
use crate::error::{SettingsError, Side, TlsError, TlsFault};
use crate::identity::{self, CertificateSource, Resolver};
use crate::notes::Secrets;
use crate::provider;
use crate::settings::{ClientAuthentication, Identity, Parameters, ServerSettings, Source};
use crate::verify::{ClientBelief, ClientVerifier};
use crate::watch::Watched;

/// HTTP/1.1, as ALPN names it.
const HTTP_1_1: &str = "http/1.1";
/// HTTP/2.
const HTTP_2: &str = "h2";
/// What an authority offers that wants a proof (RFC 8737 section 3).
const ACME_TLS: &str = "acme-tls/1";

/// Shakes hands with clients. One object serves all connections.
#[derive(Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    timeout: Option<Duration>,
    /// HTTP/1.1 was not asked for, and stands in the list of protocols only so that its clients are let in.
    tolerates_http_1_1: bool,
    prover: Option<Prover>,
}

/// Makes no tickets: sessions are kept here.
#[derive(Debug)]
struct NoTickets;

impl ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }

    fn lifetime(&self) -> u32 {
        0
    }

    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// What answers an authority that wants a proof.
#[derive(Clone)]
struct Prover {
    source: Arc<dyn CertificateSource>,
    config: Arc<ServerConfig>,
}

impl Acceptor {
    /// An acceptor.
    ///
    /// # Errors
    /// An option means nothing, a file cannot be read, or key and certificate are no pair.
    pub fn new(settings: &ServerSettings) -> Result<Self, SettingsError> {
        let parameters = &settings.parameters;
        let prover = match &settings.identity {
            Identity::Provided(source) => Some(Prover::new(source)?),
            Identity::Given(_) | Identity::SelfSigned => None,
        };
        let provider = provider::provider(parameters)?;
        let algorithms = provider.signature_verification_algorithms;
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&provider::versions(parameters)?)
            .map_err(|error| SettingsError::invalid("tls", error))?;
        let builder = match verifier(&settings.clients, algorithms)? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(Resolver::new(&settings.identity)?));
        // As Go does: a client that only knows HTTP/1.1 is not turned away from a server that only names HTTP/2.
        let has = |name| parameters.alpn.iter().any(|offered| offered == name);
        let tolerates_http_1_1 = has(HTTP_2) && !has(HTTP_1_1);
        let extra = tolerates_http_1_1.then_some(HTTP_1_1);
        let alpn = parameters.alpn.iter().map(String::as_str).chain(extra);
        config.alpn_protocols = alpn.map(|name| name.as_bytes().to_vec()).collect();
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(Secrets);
        // Sessions live in the tickets, which clients keep: nothing grows here. One is what Go sends.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Ticketer::new().map_err(|error| SettingsError::invalid("tls", error))?;
        config.send_tls13_tickets = 1;
        let (config, timeout) = (Arc::new(config), settings.handshake_timeout);
        Ok(Self { config, timeout, tolerates_http_1_1, prover })
    }

    /// The same configuration for QUIC, whose library makes the records itself. `alpn` is known where the settings name
    /// nothing. `early_data` keeps sessions here, as a ticket cannot tell whether it was used before.
    #[must_use]
    pub fn for_quic(&self, alpn: &[&str], early_data: bool) -> ServerConfig {
        const SESSIONS: usize = 4096;
        let mut config = ServerConfig::clone(&self.config);
        if config.alpn_protocols.is_empty() {
            config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        }
        config.enable_secret_extraction = false;
        config.key_log = Arc::new(NoKeyLog);
        if early_data {
            config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
            config.ticketer = Arc::new(NoTickets);
            // QUIC knows no other limit than its windows.
            config.max_early_data_size = u32::MAX;
        }
        config
    }

    /// Shakes hands over `conn`. Without a timeout in the settings the table of handshakes limits the time.
    ///
    /// # Errors
    /// Why not, and what name the client asked for.
    pub async fn accept(&self, conn: BoxStream) -> Result<(TlsConn, Facts), TlsError> {
        let prover = self.prover.as_ref().filter(|prover| prover.source.is_proving());
        let other = prover.map(|prover| (ACME_TLS.as_bytes(), Arc::clone(&prover.config)));
        let handshake = engine::accept(conn, Arc::clone(&self.config), other);
        let result = match self.timeout {
            None => handshake.await,
            Some(limit) => match tokio::time::timeout(limit, handshake).await {
                Ok(result) => result,
                Err(_) => Err(Failure { fault: TlsFault::Timeout(limit), server_name: None }),
            },
        };
        let failed = |fault, name| TlsError { side: Side::Server, name, peer: None, fault };
        let (mut conn, mut facts) =
            result.map_err(|Failure { fault, server_name }| failed(fault, server_name))?;
        if prover.is_some() && facts.alpn.as_deref() == Some(ACME_TLS) {
            // The handshake was all it wanted. It may be gone already.
            let _ = conn.shutdown().await;
            return Err(failed(TlsFault::Proved, facts.server_name));
        }
        if self.tolerates_http_1_1 {
            facts.alpn = facts.alpn.filter(|name| name != HTTP_1_1);
        }
        Ok((conn, facts))
    }
}

#[cfg(test)]
impl Acceptor {
    /// As it serves clients that cannot take up sessions again, such as Go's without a cache.
    pub(crate) fn without_tickets(mut self) -> Self {
        Arc::make_mut(&mut self.config).send_tls13_tickets = 0;
        self
    }
}

impl Prover {
    fn new(source: &Arc<dyn CertificateSource>) -> Result<Self, SettingsError> {
        let parameters = Parameters::default();
        let mut config = ServerConfig::builder_with_provider(provider::provider(&parameters)?)
            .with_protocol_versions(&provider::versions(&parameters)?)
            .map_err(|error| SettingsError::invalid("tls", error))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(identity::Prover(Arc::clone(source))));
        config.alpn_protocols = vec![ACME_TLS.into()];
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(Secrets);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self { source: Arc::clone(source), config: Arc::new(config) })
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

fn verifier(
    clients: &ClientAuthentication,
    algorithms: WebPkiSupportedAlgorithms,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, SettingsError> {
    let (belief, optional) = match clients {
        ClientAuthentication::None => return Ok(None),
        ClientAuthentication::Any { optional } => (ClientBelief::Anyone, *optional),
        ClientAuthentication::Pins { optional, sha256 } => (ClientBelief::Pins(sha256.clone()), *optional),
        ClientAuthentication::Authorities { optional, authorities } => {
            let paths: Vec<PathBuf> = authorities.iter().filter_map(Source::path).collect();
            let sources = authorities.clone();
            let load = move || {
                let texts: Result<Vec<_>, _> =
                    sources.iter().map(|source| source.read("client_certificate_path")).collect();
                Authorities::from_pem(&texts?, "client_certificate")
            };
            (
                ClientBelief::Authorities(Watched::new("client certificate authorities", paths, load)?),
                *optional,
            )
        }
    };
    Ok(Some(Arc::new(ClientVerifier { belief, optional, algorithms })))
}
