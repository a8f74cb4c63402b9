//! The side that dials.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use culvert_core::{BoxStream, timeouts};
use culvert_wire::Host;
use rustls::client::{EchConfig as LibraryConfig, EchMode, Resumption};
use rustls::crypto::aws_lc_rs::hpke::ALL_SUPPORTED_SUITES;
use rustls::pki_types::{EchConfigListBytes, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, NoKeyLog};

use crate::authorities::{Authorities, Store};
use crate::browser::{ClientHello, EchConfig, Fingerprint};
use crate::client::{self, Client, Judge, Verdict};
use crate::conn::TlsConn;
use crate::engine::{self, Facts};
use crate::error::{SettingsError, Side, TlsError, TlsFault};
use crate::identity;
use crate::notes::Secrets;
use crate::provider;
use crate::reality;
use crate::sessions::Sessions;
use crate::settings::{ClientSettings, Ech, Fragment, Trust};
use crate::verify::{Belief, ServerVerifier};

/// Shakes hands with one server, over any stream to it. One object serves all connections, and remembers sessions.
#[derive(Clone)]
pub struct Connector {
    config: Arc<ClientConfig>,
    /// What a handshake of our own needs.
    verifier: Arc<ServerVerifier>,
    own: Option<Arc<CertifiedKey>>,
    name: ServerName<'static>,
    /// Whom the stream leads to, where that is not the name.
    peer: Option<Arc<str>>,
    fragment: Fragment,
    timeout: Duration,
    /// What it is made from, for [`Connector::with_ech`].
    settings: Arc<ClientSettings>,
    store: Arc<Store>,
}

impl Connector {
    /// A connector for what `settings` call their server, or else for `server`, whom the stream leads to.
    ///
    /// # Errors
    /// An option means nothing, or a file cannot be read.
    pub fn new(settings: ClientSettings, server: &Host, store: &Arc<Store>) -> Result<Self, SettingsError> {
        let name = server_name(&settings, server)?;
        let peer = Some(server.to_string()).filter(|peer| *peer != name.to_str());
        Self::build(Arc::new(settings), name, peer.map(Arc::from), Arc::clone(store))
    }

    /// The same with an `ECHConfigList` in place of the one in the settings: what DNS says, or what the server named
    /// when it rejected the last one ([`TlsFault::EchRejected`]).
    ///
    /// # Errors
    /// The list has no configuration that can be used.
    pub fn with_ech(&self, list: Vec<u8>) -> Result<Self, SettingsError> {
        let settings = ClientSettings { ech: Some(Ech::Configs(list)), ..(*self.settings).clone() };
        Self::build(Arc::new(settings), self.name.clone(), self.peer.clone(), Arc::clone(&self.store))
    }

    /// The name whose HTTPS record has the configurations for ECH, as long as there are none. Until they come by
    /// [`Connector::with_ech`], connecting fails: a name that was to be hidden is never sent in the open.
    #[must_use]
    pub fn ech_query(&self) -> Option<String> {
        match &self.settings.ech {
            Some(Ech::FromDns { name }) => {
                Some(name.clone().unwrap_or_else(|| self.name.to_str().into_owned()))
            }
            Some(Ech::Configs(_)) | None => None,
        }
    }

    /// The same for a connection to `server`, which counts where the settings name nobody.
    pub(crate) fn ech_query_for(&self, server: &Host) -> Option<String> {
        match &self.settings.ech {
            Some(Ech::FromDns { name: None }) if self.settings.server_name.is_none() => {
                Some(server.to_string())
            }
            _ => self.ech_query(),
        }
    }

    /// The same configuration for QUIC, whose library makes the records itself, and the server's name. `alpn` is offered
    /// where the settings offer nothing. `None` if the settings want a handshake of our own, which QUIC cannot carry.
    #[must_use]
    pub fn for_quic(&self, alpn: &[&str]) -> Option<(ClientConfig, String)> {
        if self.is_own_handshake() {
            return None;
        }
        let mut config = ClientConfig::clone(&self.config);
        if config.alpn_protocols.is_empty() {
            config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        }
        config.enable_secret_extraction = false;
        config.key_log = Arc::new(NoKeyLog);
        Some((config, self.name.to_str().into_owned()))
    }

    /// Whether the hello is not the library's.
    fn is_own_handshake(&self) -> bool {
        self.settings.fingerprint.is_some() || self.settings.reality.is_some()
    }

    fn build(
        settings: Arc<ClientSettings>,
        name: ServerName<'static>,
        peer: Option<Arc<str>>,
        store: Arc<Store>,
    ) -> Result<Self, SettingsError> {
        let parameters = &settings.parameters;
        let provider = provider::provider(parameters)?;
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = match &settings.ech {
            Some(Ech::Configs(list)) => builder.with_ech(ech(list)?),
            Some(Ech::FromDns { .. }) | None => {
                builder.with_protocol_versions(&provider::versions(parameters)?)
            }
        };
        let builder = builder.map_err(|error| SettingsError::invalid("tls", error))?;
        let belief = match &settings.trust {
            // Here the question is only whether it is the real site.
            _ if settings.reality.is_some() => Belief::Store(Arc::clone(&store)),
            Trust::Store => Belief::Store(Arc::clone(&store)),
            Trust::Authorities(source) => {
                let text = source.read("certificate_path")?;
                Belief::Authorities(Authorities::from_pem(&[text], "certificate")?)
            }
            Trust::Pins(pins) => Belief::Pins(pins.clone()),
            Trust::Anyone => Belief::Anyone,
        };
        let verifier = Arc::new(ServerVerifier { belief, algorithms });
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::clone(&verifier) as _);
        let own = match &settings.certificate {
            Some(source) => Some(Arc::new(identity::load(source, ["client_certificate", "client_key"])?)),
            None => None,
        };
        let mut config = match &own {
            Some(own) => {
                let own = SingleCertAndKey::from(CertifiedKey::clone(own));
                builder.with_client_cert_resolver(Arc::new(own))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = parameters.alpn.iter().map(|name| name.clone().into_bytes()).collect();
        config.enable_sni = !settings.disable_sni;
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(Secrets);
        config.resumption = Resumption::store(Arc::new(Sessions::default()));
        Ok(Self {
            config: Arc::new(config),
            verifier,
            own,
            name,
            peer,
            fragment: settings.fragment,
            timeout: settings.handshake_timeout.unwrap_or(timeouts::OUTBOUND_HANDSHAKE),
            settings,
            store,
        })
    }

    /// Shakes hands over `conn`. The last flight of the client leaves with the first data that is written, when something
    /// is read, or with a flush.
    ///
    /// # Errors
    /// Why not, and with whom.
    pub async fn connect(&self, conn: BoxStream) -> Result<(TlsConn, Facts), TlsError> {
        self.connect_as(conn, self.name.clone(), self.peer.clone()).await
    }

    /// The same for another server, where one configuration serves several: an HTTP client, a DNS client.
    ///
    /// # Errors
    /// Why not, and with whom.
    pub async fn connect_to(&self, conn: BoxStream, server: &Host) -> Result<(TlsConn, Facts), TlsError> {
        match host_name(server) {
            Ok(name) => self.connect_as(conn, name, None).await,
            Err(error) => Err(failed(server.to_string(), None, TlsFault::Protocol(error.to_string()))),
        }
    }

    async fn connect_as(
        &self,
        conn: BoxStream,
        name: ServerName<'static>,
        peer: Option<Arc<str>>,
    ) -> Result<(TlsConn, Facts), TlsError> {
        let shown = name.to_str().into_owned();
        if self.ech_query().is_some() {
            return Err(failed(shown, peer, TlsFault::EchMissing));
        }
        let handshake = async {
            if self.is_own_handshake() {
                return self.imitate(conn, name, self.fragment, |_| Ok(())).await;
            }
            let done = engine::connect(conn, Arc::clone(&self.config), name, self.fragment).await;
            done.map_err(|failure| failure.fault)
        };
        match tokio::time::timeout(self.timeout, handshake).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(fault)) => Err(failed(shown, peer, fault)),
            Err(_) => Err(failed(shown, peer, TlsFault::Timeout(self.timeout))),
        }
    }

    /// The same by a handshake of our own whose hello `change` may still change, in what
    /// [`ClientHello`] allows: a protocol that hides a sign in the session id. The hello is that of
    /// the fingerprint in the settings, or else that of a recent Chrome, and it stays in one record.
    ///
    /// # Errors
    /// Why not, and with whom.
    pub async fn connect_changed(
        &self,
        conn: BoxStream,
        change: impl FnOnce(&mut ClientHello) -> Result<(), TlsFault> + Send,
    ) -> Result<(TlsConn, Facts), TlsError> {
        let failed = |fault| failed(self.name.to_str().into_owned(), self.peer.clone(), fault);
        if self.settings.ech.is_some() {
            let reason = "a hello cannot be encrypted and changed at once".to_owned();
            return Err(failed(TlsFault::Protocol(reason)));
        }
        let fragment = Fragment { records: false, ..self.fragment };
        let handshake = self.imitate(conn, self.name.clone(), fragment, change);
        match tokio::time::timeout(self.timeout, handshake).await {
            Ok(done) => done.map_err(failed),
            Err(_) => Err(failed(TlsFault::Timeout(self.timeout))),
        }
    }

    /// Shakes hands with the hello of a browser, and as a client of REALITY if that is asked for.
    async fn imitate(
        &self,
        conn: BoxStream,
        name: ServerName<'static>,
        fragment: Fragment,
        change: impl FnOnce(&mut ClientHello) -> Result<(), TlsFault>,
    ) -> Result<(TlsConn, Facts), TlsFault> {
        let unable = || TlsFault::Protocol("the cryptography library failed".to_owned());
        let settings = &*self.settings;
        let config = match &settings.ech {
            Some(Ech::Configs(list)) => {
                Some(EchConfig::choose(list).ok().flatten().ok_or(TlsFault::EchMissing)?)
            }
            Some(Ech::FromDns { .. }) | None => None,
        };
        let fingerprint = match settings.fingerprint {
            // Not all that this may be have ECH.
            None => Fingerprint::Chrome,
            Some(Fingerprint::Random) if config.is_some() => Fingerprint::Chrome,
            Some(fingerprint) => fingerprint,
        };
        let shown = match &name {
            ServerName::DnsName(name) if !settings.disable_sni => Some(name.as_ref()),
            _ => None,
        };
        let public = config.as_ref().map(|config| &*config.public_name).or(shown);
        let mut hello =
            ClientHello::new(fingerprint, public, &settings.parameters.alpn).ok_or_else(unable)?;
        if let Some(config) = &config {
            hello.encrypt(config, shown).ok_or_else(unable)?;
        }
        let proof = settings.reality.as_ref().map(|reality| reality.sign(&mut hello).ok_or_else(unable));
        let proof = proof.transpose()?;
        change(&mut hello)?;
        let judge = Judge {
            verifier: Arc::clone(&self.verifier),
            name: name.clone(),
            reality: proof,
            own: self.own.clone(),
        };
        let (conn, facts, verdict) = client::connect(conn, Client::new(hello, judge), fragment).await?;
        match verdict {
            Verdict::Accepted => Ok((conn, facts)),
            Verdict::RealSite => {
                let name = name.to_str().into_owned();
                tokio::spawn(reality::visit(conn, name, fingerprint, facts.alpn));
                Err(TlsFault::RealSite)
            }
        }
    }
}

fn failed(name: String, peer: Option<Arc<str>>, fault: TlsFault) -> TlsError {
    TlsError { side: Side::Client, name: Some(name), peer, fault }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connector({})", self.name.to_str())
    }
}

fn server_name(settings: &ClientSettings, server: &Host) -> Result<ServerName<'static>, SettingsError> {
    match &settings.server_name {
        Some(name) => {
            // A final dot is for resolvers; certificates do not have it.
            let name = name.strip_suffix('.').unwrap_or(name);
            let named = ServerName::try_from(name.to_owned());
            named.map_err(|_| {
                SettingsError::invalid("server_name", format!("{name:?} is no name and no address"))
            })
        }
        None => host_name(server),
    }
}

fn host_name(host: &Host) -> Result<ServerName<'static>, SettingsError> {
    match host {
        Host::Ip(ip) => Ok(ServerName::IpAddress((*ip).into())),
        Host::Domain(name) => {
            let text = name.to_string();
            let named = ServerName::try_from(text.strip_suffix('.').unwrap_or(&text).to_owned());
            named
                .map_err(|_| SettingsError::invalid("server", format!("{text:?} cannot be asked for in TLS")))
        }
    }
}

fn ech(list: &[u8]) -> Result<EchMode, SettingsError> {
    let list = EchConfigListBytes::from(list.to_vec());
    let config = LibraryConfig::new(list, ALL_SUPPORTED_SUITES);
    config.map(EchMode::Enable).map_err(|error| SettingsError::invalid("ech", error))
}
