//! Certificates and conns for the tests of this crate.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use culvert_core::{BoxStream, StreamConn};
use culvert_testkit::conn::pair;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::conn::TlsConn;
use crate::engine::Facts;
use crate::error::TlsError;
use crate::settings::{KeyPairSource, Source};
use crate::{Acceptor, Connector};

/// An authority.
pub(crate) struct Ca(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, in PEM.
pub(crate) struct Issued {
    pub(crate) chain: String,
    pub(crate) key: String,
    pub(crate) der: CertificateDer<'static>,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// An authority that is signed by this one.
    pub(crate) fn middle(&self, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &self.0).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        self.0.der()
    }

    pub(crate) fn issue(&self, name: &str) -> Issued {
        self.issue_with(name, &KeyPair::generate().unwrap(), |_| {})
    }

    pub(crate) fn issue_with(
        &self,
        name: &str,
        key: &KeyPair,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let made = params.signed_by(key, &self.0).unwrap();
        Issued { chain: made.pem(), key: key.serialize_pem(), der: made.der().clone() }
    }
}

impl Issued {
    pub(crate) fn source(&self) -> KeyPairSource {
        KeyPairSource {
            certificate: Source::Inline(self.chain.clone()),
            key: Source::Inline(self.key.clone()),
        }
    }
}

/// What one side has after a handshake.
pub(crate) type Outcome = Result<(TlsConn, Facts), TlsError>;

/// Lets the two shake hands in memory.
pub(crate) async fn shake(connector: &Connector, acceptor: &Acceptor) -> (Outcome, Outcome) {
    let (near, far) = pair(64 << 10);
    shake_over(connector, acceptor, Box::new(near), Box::new(far)).await
}

/// Lets the two shake hands over the ends of a stream.
pub(crate) async fn shake_over(
    connector: &Connector,
    acceptor: &Acceptor,
    near: BoxStream,
    far: BoxStream,
) -> (Outcome, Outcome) {
    let connect = async {
        let mut outcome = connector.connect(near).await;
        if let Ok((conn, _)) = &mut outcome {
            // The last flight may be refused, which the next read will say.
            let _ = conn.flush().await;
        }
        outcome
    };
    tokio::join!(connect, acceptor.accept(far))
}

/// Sends `data` from one to the other and sees that it arrives.
pub(crate) async fn transfer<A, B>(from: &mut A, to: &mut B, data: &[u8])
where
    A: AsyncWrite + Unpin,
    B: AsyncRead + Unpin,
{
    let mut got = vec![0; data.len()];
    let send = async {
        from.write_all(data).await.unwrap();
        from.flush().await.unwrap();
    };
    let (_, read) = tokio::join!(send, to.read_exact(&mut got));
    read.unwrap();
    assert!(got == data, "what arrived is not what was sent");
}

/// Bytes in which order and loss show.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

/// Makes a conn of any stream.
pub(crate) struct Conn<S>(pub(crate) S);

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> StreamConn for Conn<S> {}

impl<S: AsyncRead + Unpin> AsyncRead for Conn<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Conn<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
