//! Session tickets that a TLS 1.3 server sends once the handshake is done.

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;

/// What the handshake library needs to make a session of a ticket. It also holds the server's certificates, so a conn
/// lets go of it once tickets are not to be expected any more.
pub(crate) struct Tickets(pub(crate) Box<KernelConnection<ClientConnectionData>>);

impl Tickets {
    /// Keeps the ticket for a later handshake. A ticket that cannot be used is no fault of the stream.
    pub(crate) fn keep(&mut self, message: &[u8]) {
        if let Err(error) = self.0.handle_new_session_ticket(message) {
            tracing::debug!("session ticket not kept: {error}");
        }
    }
}
