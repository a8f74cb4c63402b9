//! What may be inside a protocol's connection besides bytes for a target: many connections, or datagrams.
//!
//! Clients say so by the name they ask for. Which of these an inbound understands depends on its type and options.

use culvert_core::{Dispatch, Incoming, ServeError};

use crate::{mux, uot};

/// What an inbound understands besides plain connections.
#[derive(Default)]
pub(crate) struct Onward {
    /// Multiplexed connections.
    pub(crate) mux: Option<mux::Server>,
    /// UDP over TCP.
    pub(crate) uot: bool,
}

impl Onward {
    /// Gives a client's connection on: to the router, or first to what its target's name is the sign of.
    ///
    /// # Errors
    /// What is inside does not follow its protocol, or the stream broke.
    pub(crate) async fn submit(&self, incoming: Incoming, dispatch: &Dispatch) -> Result<(), ServeError> {
        let target = &incoming.session.target;
        if let Some(mux) = &self.mux
            && mux::is_sign(target)
        {
            return Box::pin(mux.serve(incoming, self.uot, dispatch)).await;
        }
        if self.uot
            && let Some(version) = uot::Version::of(target)
        {
            return uot::serve(version, incoming, dispatch).await;
        }
        // Nobody answers to these names; they are the signs of what this inbound does not do.
        if mux::is_sign(target) {
            return Err(ServeError::Unsupported("multiplexing, which this inbound has not enabled,"));
        }
        if uot::Version::of(target).is_some() {
            return Err(ServeError::Unsupported("UDP over TCP in this protocol"));
        }
        dispatch.submit(incoming);
        Ok(())
    }
}
