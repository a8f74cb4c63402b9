//! The server of type `tls`: the byte stream of [`stream`](super::stream) inside TLS.
//!
//! A connection stays for half a minute without questions, since another one costs a handshake.
//!
//! Source: RFC 7858. Padding (RFC 8467) is left out, as sing-box 1.14.4 does.

use std::time::Duration;

use async_trait::async_trait;
use culvert_core::{BoxStream, DialError, Dialer, Tag};
use culvert_tls::Securing;
use culvert_wire::Target;

use super::stream::{Connect, StreamServer, TcpConnect};

/// TLS over what the dialer makes.
pub struct TlsConnect {
    tcp: TcpConnect,
    tls: Securing,
}

#[async_trait]
impl Connect for TlsConnect {
    const IDLE: Duration = Duration::from_secs(30);

    async fn connect(&self) -> Result<BoxStream, DialError> {
        let (conn, _) = self.tls.connect(&*self.tcp.dialer.resolver, || self.tcp.connect()).await?;
        Ok(Box::new(conn))
    }
}

/// A server of type `tls`.
pub type TlsServer = StreamServer<TlsConnect>;

impl TlsServer {
    /// The server at `target`, which `tls` knows by its name.
    #[must_use]
    pub fn new(tag: Tag, dialer: Dialer, target: Target, tls: Securing) -> Self {
        let tcp = TcpConnect::new(tag.clone(), dialer, target);
        Self::over(tag, TlsConnect { tcp, tls })
    }
}
