//! The `tls` options, made ready.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use culvert_config::options::tls::{InboundTls, OutboundTls};
use culvert_core::{
    BoxStream, Chain, DialError, Dispatch, Handshake, ResolveError, Resolver, ServeError, Session,
    StreamServer,
};
use culvert_tls::{Acceptor, Connector, Facts, SettingsError, Store, TlsConn, TlsFault, options};
use culvert_wire::{Domain, Host};

use super::reality;
use crate::BuildError;
use crate::table::MakeDialer;

/// The client's side: a connector, and where its ECH configurations come from.
pub(super) struct Securing {
    base: Connector,
    /// The name that DNS is asked for, if there are no configurations in the options.
    ech_name: Option<Domain>,
    ech: Mutex<Option<Ech>>,
}

/// What was last used for ECH.
struct Ech {
    /// What it was made for: lists as DNS told them, none for the one in the options.
    lists: Vec<Vec<u8>>,
    connector: Connector,
}

impl Securing {
    /// `alpn` is offered where the options offer nothing.
    pub(super) fn new(
        options: &OutboundTls,
        server: &Host,
        alpn: &[&str],
        store: &Arc<Store>,
    ) -> Result<Self, BuildError> {
        let mut settings = options::client(options)?;
        or_default(&mut settings.parameters.alpn, alpn);
        let base = Connector::new(settings, server, store)?;
        let ech_name = base.ech_query().map(|name| {
            Domain::new(&name).map_err(|_| BuildError::Invalid {
                option: "tls.ech.query_server_name",
                reason: format!("{name:?} cannot be asked for"),
            })
        });
        Ok(Self { base, ech_name: ech_name.transpose()?, ech: Mutex::new(None) })
    }

    /// Opens a connection by `dial` and secures it. A server that rejects our configuration of ECH and names another one
    /// is tried once more, over another connection.
    pub(super) async fn connect<D>(
        &self,
        resolver: &dyn Resolver,
        dial: impl Fn() -> D,
    ) -> Result<(TlsConn, Facts), DialError>
    where
        D: Future<Output = Result<BoxStream, DialError>>,
    {
        let lists = self.lists(resolver).await?;
        let connector = self.connector(&lists)?;
        let error = match connector.connect(dial().await?).await {
            Ok(secured) => return Ok(secured),
            Err(error) => error,
        };
        let TlsFault::EchRejected { retry: Some(list) } = &error.fault else { return Err(error.into()) };
        let connector = self.base.with_ech(list.clone()).map_err(unusable)?;
        self.keep(lists, connector.clone());
        Ok(connector.connect(dial().await?).await?)
    }

    /// What DNS says. It is asked each time, as its answers are kept there for as long as they hold.
    async fn lists(&self, resolver: &dyn Resolver) -> Result<Vec<Vec<u8>>, DialError> {
        let Some(name) = &self.ech_name else { return Ok(Vec::new()) };
        let failed = |source| DialError::Resolve { name: name.clone(), source };
        let lists = resolver.ech_configs(name).await.map_err(failed)?;
        if lists.is_empty() {
            return Err(failed(ResolveError::Failed("no HTTPS record with an ECH configuration".to_owned())));
        }
        Ok(lists)
    }

    /// The connector for these lists: the one that was used for them last, or one for the first that can be used.
    fn connector(&self, lists: &[Vec<u8>]) -> Result<Connector, DialError> {
        if let Some(ech) = &*self.lock()
            && ech.lists == lists
        {
            return Ok(ech.connector.clone());
        }
        let mut fault = None;
        for list in lists {
            match self.base.with_ech(list.clone()) {
                Ok(connector) => {
                    self.keep(lists.to_vec(), connector.clone());
                    return Ok(connector);
                }
                Err(error) => fault = Some(error),
            }
        }
        fault.map_or_else(|| Ok(self.base.clone()), |error| Err(unusable(error)))
    }

    fn keep(&self, lists: Vec<Vec<u8>>, connector: Connector) {
        *self.lock() = Some(Ech { lists, connector });
    }

    fn lock(&self) -> MutexGuard<'_, Option<Ech>> {
        self.ech.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unusable(error: SettingsError) -> DialError {
    DialError::Handshake { phase: "use the ECH configuration", source: io::Error::other(error) }
}

/// `server` behind TLS, if the options ask for it. `alpn` is taken where they name nothing.
pub(crate) fn secured(
    dialer: MakeDialer<'_>,
    options: Option<&InboundTls>,
    alpn: &[&str],
    server: Arc<dyn StreamServer>,
) -> Result<Arc<dyn StreamServer>, BuildError> {
    let Some(options) = options.filter(|options| options.enabled) else { return Ok(server) };
    if let Some(reality) = options.reality.as_deref().filter(|reality| reality.enabled) {
        return reality::secured(dialer, options, reality, server);
    }
    let mut settings = options::server(options)?;
    or_default(&mut settings.parameters.alpn, alpn);
    Ok(Arc::new(Secured { acceptor: Acceptor::new(&settings)?, server }))
}

fn or_default(alpn: &mut Vec<String>, default: &[&str]) {
    if alpn.is_empty() {
        alpn.extend(default.iter().map(|&name| name.to_owned()));
    }
}

impl From<SettingsError> for BuildError {
    fn from(error: SettingsError) -> Self {
        match error {
            SettingsError::NotBuilt { option } => Self::NotBuilt { feature: format!("`tls.{option}`") },
            other => Self::Invalid { option: "tls", reason: Chain(&other).to_string() },
        }
    }
}

/// A server inside TLS.
struct Secured {
    acceptor: Acceptor,
    server: Arc<dyn StreamServer>,
}

#[async_trait]
impl StreamServer for Secured {
    async fn serve(
        &self,
        conn: BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let (conn, facts) = self.acceptor.accept(conn).await?;
        session.alpn = facts.alpn.map(Arc::from);
        self.server.serve(Box::new(conn), session, handshake, dispatch).await
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use culvert_config::options::tls::outbound::OutboundEch;
    use culvert_core::Strategy;
    use culvert_core::duplex::duplex;
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::testing::store;

    /// An `ECHConfigList` for `public_name` with a made-up key (RFC 9849 section 4).
    fn ech_configs(public_name: &str) -> Vec<u8> {
        let mut contents = vec![7, 0, 0x20, 0, 32];
        contents.extend([9; 32]);
        contents.extend([0, 4, 0, 1, 0, 1, 0, public_name.len() as u8]);
        contents.extend(public_name.bytes());
        contents.extend([0, 0]);
        let mut config = vec![0xfe, 0x0d];
        config.extend((contents.len() as u16).to_be_bytes());
        config.extend(contents);
        [&(config.len() as u16).to_be_bytes()[..], &config].concat()
    }

    /// Answers every question for HTTPS records with these.
    struct Lists(Vec<Vec<u8>>);

    #[async_trait]
    impl Resolver for Lists {
        async fn resolve(&self, _: &Domain, _: Strategy) -> Result<Vec<IpAddr>, ResolveError> {
            Err(ResolveError::NotFound)
        }

        async fn ech_configs(&self, name: &Domain) -> Result<Vec<Vec<u8>>, ResolveError> {
            assert_eq!(name.as_str(), "query.test");
            Ok(self.0.clone())
        }
    }

    fn securing() -> Securing {
        let ech =
            OutboundEch { enabled: true, query_server_name: "query.test".into(), ..OutboundEch::default() };
        let options = OutboundTls { enabled: true, insecure: true, ech: Some(ech), ..OutboundTls::default() };
        Securing::new(&options, &Host::Domain(Domain::new("secret.test").unwrap()), &[], &store()).unwrap()
    }

    #[tokio::test]
    async fn ech_configurations_are_asked_of_dns_and_hide_the_name() {
        let securing = securing();
        // One that cannot be used stands first, as some servers have it.
        let lists = Lists(vec![vec![0, 2, 1, 2], ech_configs("public.test")]);
        let (near, mut far) = duplex(64 << 10);
        let near = Mutex::new(Some(near));
        let dial = || async { Ok::<BoxStream, DialError>(Box::new(near.lock().unwrap().take().unwrap())) };
        let mut hello = vec![0; 4096];
        let read = tokio::select! {
            _ = securing.connect(&lists, dial) => panic!("nobody answers"),
            read = far.read(&mut hello) => read.unwrap(),
        };
        let seen = |name: &[u8]| hello[..read].windows(name.len()).any(|window| window == name);
        assert!(seen(b"public.test") && !seen(b"secret.test"));
    }

    #[tokio::test]
    async fn without_a_configuration_nobody_is_dialled() {
        let dialled = AtomicUsize::new(0);
        for lists in [vec![], vec![vec![1, 2, 3]]] {
            let dial = || async {
                dialled.fetch_add(1, Ordering::Relaxed);
                Err(DialError::Rejected("test"))
            };
            let error = securing().connect(&Lists(lists), dial).await.unwrap_err();
            assert!(!matches!(error, DialError::Rejected(_)), "{error}");
        }
        assert_eq!(dialled.load(Ordering::Relaxed), 0);
    }
}
