//! The `tls` options for protocols over QUIC, and what else their two sides share.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use culvert_config::options::tls::{InboundTls, OutboundTls};
use culvert_quic::{ClientTls, ServerTls};
use culvert_tls::settings::Identity;
use culvert_tls::{Acceptor, Connector, ServerSettings, Store, options};
use culvert_wire::Host;

use crate::BuildError;

/// TLS of a server. `alpn` is taken where the options name nothing; see [`ServerTls::new`] for `early_data`.
pub(crate) fn server(
    settings: &ServerSettings,
    alpn: &[&str],
    early_data: bool,
) -> Result<ServerTls, BuildError> {
    ServerTls::new(&Acceptor::new(settings)?, alpn, early_data).map_err(invalid)
}

/// What a server that was started again knows its old connections by: something of its own that stays, which is its key.
/// Where that comes and goes, old connections are not known.
pub(crate) fn lasting_secret(identity: &Identity) -> Result<[u8; 32], BuildError> {
    let mut secret = [0; 32];
    match identity {
        Identity::Given(pair) => {
            secret.copy_from_slice(digest(&SHA256, pair.key.read("key_path")?.as_bytes()).as_ref());
        }
        Identity::SelfSigned | Identity::Provided(_) => {
            aws_lc_rs::rand::fill(&mut secret).map_err(|_| BuildError::Invalid {
                option: "tls",
                reason: "the system gives no random numbers".to_owned(),
            })?;
        }
    }
    Ok(secret)
}

/// TLS of an inbound with these options, which must be there and enabled, likewise.
pub(crate) fn inbound(
    tls: Option<&InboundTls>,
    alpn: &[&str],
    early_data: bool,
) -> Result<ServerTls, BuildError> {
    let Some(tls) = tls.filter(|tls| tls.enabled) else {
        return Err(BuildError::Invalid { option: "tls", reason: "it is required".to_owned() });
    };
    server(&options::server(tls)?, alpn, early_data)
}

/// TLS of a client of `server`, likewise.
pub(crate) fn client(
    tls: Option<&OutboundTls>,
    server: &Host,
    store: &Arc<Store>,
    alpn: &[&str],
    early_data: bool,
) -> Result<ClientTls, BuildError> {
    let Some(tls) = tls.filter(|tls| tls.enabled) else {
        return Err(BuildError::Invalid { option: "tls", reason: "it is required".to_owned() });
    };
    if tls.utls.as_ref().is_some_and(|utls| utls.enabled) {
        return Err(BuildError::NotBuilt { feature: "`tls.utls` over QUIC".to_owned() });
    }
    if tls.reality.as_ref().is_some_and(|reality| reality.enabled) {
        return Err(BuildError::NotBuilt { feature: "`tls.reality` over QUIC".to_owned() });
    }
    let connector = Connector::new(options::client(tls)?, server, store)?;
    if connector.ech_query().is_some() {
        return Err(BuildError::NotBuilt { feature: "`tls.ech` from DNS over QUIC".to_owned() });
    }
    ClientTls::new(&connector, alpn, early_data).map_err(invalid)
}

fn invalid(error: culvert_quic::SettingsError) -> BuildError {
    BuildError::Invalid { option: "tls", reason: error.to_string() }
}
