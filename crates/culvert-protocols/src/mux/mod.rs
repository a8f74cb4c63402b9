//! Multiplexing (sing-mux): many connections inside one.

use std::sync::Arc;

use culvert_config::options::mux::{InboundMux, OutboundMux};
use culvert_core::{Dispatch, Incoming, Outbound, ServeError};
use culvert_wire::Target;

use crate::BuildError;

/// Whether a client that asks for `target` wants to multiplex.
pub(crate) fn is_sign(target: &Target) -> bool {
    target.port == 444 && target.host.domain().is_some_and(|name| name.as_str() == "sp.mux.sing-box.arpa")
}

/// The server.
pub(crate) struct Server {}

impl Server {
    /// The server that the options ask for, if they do.
    pub(crate) fn new(options: Option<&InboundMux>) -> Result<Option<Self>, BuildError> {
        match options.filter(|options| options.enabled) {
            Some(_) => Err(BuildError::NotBuilt { feature: "multiplex".to_owned() }),
            None => Ok(None),
        }
    }

    /// Serves the connections inside one, until that ends.
    pub(crate) async fn serve(&self, _incoming: Incoming, _dispatch: &Dispatch) -> Result<(), ServeError> {
        Err(ServeError::Unsupported("multiplexing"))
    }
}

/// `outbound` with its connections multiplexed, if the options ask for it.
pub(crate) fn client(
    outbound: Arc<dyn Outbound>,
    options: Option<&OutboundMux>,
) -> Result<Arc<dyn Outbound>, BuildError> {
    match options.filter(|options| options.enabled) {
        Some(_) => Err(BuildError::NotBuilt { feature: "multiplex".to_owned() }),
        None => Ok(outbound),
    }
}
