//! Encrypted Client Hello whose configurations come from DNS: the HTTPS record of a name is asked for before each
//! connection, as its answers are kept there for as long as they hold.
//!
//! Source: RFC 9849, and RFC 9848 for the records.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use culvert_core::{BoxStream, DialError, ResolveError, Resolver};
use culvert_wire::{Domain, Host};

use crate::conn::TlsConn;
use crate::connector::Connector;
use crate::engine::Facts;
use crate::error::{SettingsError, TlsError, TlsFault};

/// A [`Connector`], and where its configurations for ECH come from. Its clones share what was learned.
#[derive(Clone)]
pub struct Securing {
    base: Connector,
    /// The name that DNS is asked for, if there are no configurations in the settings.
    name: Option<Domain>,
    last: Arc<Mutex<Option<Last>>>,
}

/// What was last used for ECH.
struct Last {
    /// What it was made for: lists as DNS told them, none for the one in the settings.
    lists: Vec<Vec<u8>>,
    connector: Connector,
}

impl Securing {
    /// By `connector`, or by one like it with what DNS says.
    ///
    /// # Errors
    /// The name that DNS would be asked for is none.
    pub fn new(connector: Connector) -> Result<Self, SettingsError> {
        let name = connector.ech_query().map(|name| {
            Domain::new(&name).map_err(|_| {
                SettingsError::invalid("ech.query_server_name", format!("{name:?} cannot be asked for"))
            })
        });
        Ok(Self { name: name.transpose()?, ..Self::for_many(connector) })
    }

    /// The same for many servers, whose names are told with each connection ([`Securing::connector_to`]).
    #[must_use]
    pub fn for_many(connector: Connector) -> Self {
        Self { base: connector, name: None, last: Arc::default() }
    }

    /// Opens a connection by `dial` and secures it. A server that rejects our configuration of ECH and names another one
    /// is tried once more, over another connection.
    ///
    /// # Errors
    /// No configuration can be had, nothing could be dialled, or the handshake failed.
    pub async fn connect<D>(
        &self,
        resolver: &dyn Resolver,
        dial: impl Fn() -> D,
    ) -> Result<(TlsConn, Facts), DialError>
    where
        D: Future<Output = Result<BoxStream, DialError>>,
    {
        let connector = self.connector(resolver).await?;
        let error = match connector.connect(dial().await?).await {
            Ok(secured) => return Ok(secured),
            Err(error) => error,
        };
        let Some(connector) = self.retry(&error) else { return Err(error.into()) };
        Ok(connector.connect(dial().await?).await?)
    }

    /// The connector for the next connection.
    ///
    /// # Errors
    /// No configuration can be had.
    pub async fn connector(&self, resolver: &dyn Resolver) -> Result<Connector, DialError> {
        let lists = self.lists(resolver, self.name.as_ref()).await?;
        self.for_lists(&lists)
    }

    /// The connector for the next connection, which is to `server`.
    ///
    /// # Errors
    /// No configuration can be had.
    pub async fn connector_to(&self, resolver: &dyn Resolver, server: &Host) -> Result<Connector, DialError> {
        let name = self.base.ech_query_for(server).map(|name| Domain::new(&name)).transpose();
        let name = name.map_err(|error| DialError::Handshake {
            phase: "ask for the ECH configuration",
            source: io::Error::other(error),
        })?;
        let lists = self.lists(resolver, name.as_ref()).await?;
        self.for_lists(&lists)
    }

    /// The connector to try once more with, if the handshake failed because the server rejected our configuration of ECH
    /// and has named another one.
    #[must_use]
    pub fn retry(&self, error: &TlsError) -> Option<Connector> {
        let TlsFault::EchRejected { retry: Some(list) } = &error.fault else { return None };
        let connector = self.base.with_ech(list.clone()).ok()?;
        let mut last = self.lock();
        let lists = last.take().map(|last| last.lists).unwrap_or_default();
        *last = Some(Last { lists, connector: connector.clone() });
        Some(connector)
    }

    /// What DNS says.
    async fn lists(&self, resolver: &dyn Resolver, name: Option<&Domain>) -> Result<Vec<Vec<u8>>, DialError> {
        let Some(name) = name else { return Ok(Vec::new()) };
        let failed = |source| DialError::Resolve { name: name.clone(), source };
        let lists = resolver.ech_configs(name).await.map_err(failed)?;
        if lists.is_empty() {
            return Err(failed(ResolveError::Failed("no HTTPS record with an ECH configuration".to_owned())));
        }
        Ok(lists)
    }

    /// The connector for these lists: the one that was used for them last, or one for the first that can be used.
    fn for_lists(&self, lists: &[Vec<u8>]) -> Result<Connector, DialError> {
        let mut last = self.lock();
        if let Some(last) = &*last
            && last.lists == lists
        {
            return Ok(last.connector.clone());
        }
        let mut fault = None;
        for list in lists {
            match self.base.with_ech(list.clone()) {
                Ok(connector) => {
                    *last = Some(Last { lists: lists.to_vec(), connector: connector.clone() });
                    return Ok(connector);
                }
                Err(error) => fault = Some(error),
            }
        }
        fault.map_or_else(|| Ok(self.base.clone()), |error| Err(unusable(error)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unusable(error: SettingsError) -> DialError {
    DialError::Handshake { phase: "use the ECH configuration", source: io::Error::other(error) }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use culvert_core::Strategy;
    use culvert_core::duplex::duplex;
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::settings::{Ech, Trust};
    use crate::{ClientSettings, Store, StoreSettings};

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
        let ech = Some(Ech::FromDns { name: Some("query.test".into()) });
        let settings = ClientSettings { trust: Trust::Anyone, ech, ..ClientSettings::default() };
        let server = Host::Domain(Domain::new("secret.test").unwrap());
        let store = Store::new(StoreSettings::default());
        Securing::new(Connector::new(settings, &server, &store).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn ech_configurations_are_asked_of_dns_and_hide_the_name() {
        // One that cannot be used stands first, as some servers have it.
        let lists = Lists(vec![vec![0, 2, 1, 2], ech_configs("public.test")]);
        let securing = securing();
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
