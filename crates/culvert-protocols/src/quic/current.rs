//! The one connection of an outbound, made when it is first needed and again when it has ended.

use std::sync::Arc;

use culvert_core::{DialError, timeouts};
use culvert_quic::{Connection, QuicStream};
use tokio::sync::Mutex;

use super::is_alive;

/// What a protocol keeps with a connection.
pub(crate) trait Carrying {
    fn connection(&self) -> &Connection;
}

/// See the module. What was begun over the connection ends with this.
pub(crate) struct Current<H: Carrying>(Mutex<Option<Arc<H>>>);

impl<H: Carrying> Default for Current<H> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<H: Carrying> Current<H> {
    /// The connection there is, or what `connect` makes.
    pub(crate) async fn get(
        &self,
        connect: impl Future<Output = Result<Arc<H>, DialError>>,
    ) -> Result<Arc<H>, DialError> {
        let limit = timeouts::OUTBOUND_HANDSHAKE;
        let found = tokio::time::timeout(limit, async {
            let mut current = self.0.lock().await;
            if let Some(hub) = current.as_ref().filter(|hub| is_alive(hub.connection())) {
                return Ok(Arc::clone(hub));
            }
            let hub = connect.await?;
            *current = Some(Arc::clone(&hub));
            Ok(hub)
        });
        found.await.unwrap_or(Err(DialError::Timeout { phase: "connect to the server", limit }))
    }

    /// A stream over it.
    pub(crate) async fn stream<F: Future<Output = Result<Arc<H>, DialError>>>(
        &self,
        connect: impl Fn() -> F,
    ) -> Result<(Arc<H>, QuicStream), DialError> {
        let hub = self.get(connect()).await?;
        // The connection may end between the look at it and its use.
        if let Ok(stream) = hub.connection().open_bi().await {
            return Ok((hub, stream));
        }
        let hub = self.get(connect()).await?;
        let failed = |error: culvert_quic::ConnectionError| DialError::Handshake {
            phase: "open a stream",
            source: error.into(),
        };
        let stream = hub.connection().open_bi().await.map_err(failed)?;
        Ok((hub, stream))
    }
}

impl<H: Carrying> Drop for Current<H> {
    fn drop(&mut self) {
        if let Some(hub) = self.0.get_mut().take() {
            hub.connection().close(0, b"");
        }
    }
}
