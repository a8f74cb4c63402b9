//! The `tls` options, made ready.

use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::options::tls::{InboundTls, OutboundTls};
use culvert_core::{BoxStream, Chain, Dispatch, Handshake, ServeError, Session, StreamServer};
use culvert_tls::{Acceptor, Connector, Securing, SettingsError, Store, options};
use culvert_wire::Host;

use super::reality;
use crate::BuildError;
use crate::table::MakeDialer;

/// The client's side. `alpn` is offered where the options offer nothing.
pub(super) fn securing(
    options: &OutboundTls,
    server: &Host,
    alpn: &[&str],
    store: &Arc<Store>,
) -> Result<Securing, BuildError> {
    let mut settings = options::client(options)?;
    or_default(&mut settings.parameters.alpn, alpn);
    Ok(Securing::new(Connector::new(settings, server, store)?)?)
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
