//! The conn of a client that has not proved itself yet.
//!
//! Its handshake may end in many ways: by what it sends, by its leaving, or by the table of handshakes, which ends the task
//! when the time is over. A conn that is simply dropped then ends with FIN or with RST, by what happens to be unread. Held by
//! a [`Stranger`] it ends the same way always.

use culvert_core::{BoxStream, Half, ServeError};

/// A conn that is reset when it is dropped, until its client is known.
pub(crate) struct Stranger {
    conn: Option<BoxStream>,
    resets: bool,
}

impl Stranger {
    /// Of a protocol that looks like nothing: a reset, whatever is below.
    pub(crate) fn new(conn: BoxStream) -> Self {
        Self { conn: Some(conn), resets: true }
    }

    /// Of a protocol that is mostly inside TLS: a reset on a plain socket. TLS has an end of its own, of which a reset would
    /// be a sign.
    pub(crate) fn outside_tls(conn: BoxStream) -> Self {
        let resets = conn.kernel_socket(Half::Write).is_some();
        Self { conn: Some(conn), resets }
    }

    /// The conn, to find out who it is.
    ///
    /// # Errors
    /// It was taken.
    pub(crate) fn conn(&mut self) -> Result<&mut BoxStream, ServeError> {
        self.conn.as_mut().ok_or(ServeError::Left)
    }

    /// The conn of somebody who is known.
    ///
    /// # Errors
    /// It was taken.
    pub(crate) fn known(mut self) -> Result<BoxStream, ServeError> {
        self.conn.take().ok_or(ServeError::Left)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.as_mut().filter(|_| self.resets) {
            conn.abort();
        }
    }
}
