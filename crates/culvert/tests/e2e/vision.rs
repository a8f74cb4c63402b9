//! VLESS with the flow `xtls-rprx-vision`, and TLS connections inside it: with 1.3 both directions leave the outer TLS, with
//! 1.2 none does. What passes is checked byte by byte, in both directions at once.

use crate::site::{ENDS_TOGETHER, Site};
use crate::table::{behind_tls, in_tls};
use crate::{Side, run};
use culvert_testkit::certificate::Certificate;
use culvert_testkit::pattern::{self, Verifier};
use culvert_testkit::{Result, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";
const FLOW: &str = "xtls-rprx-vision";

/// Bytes in each direction of a connection, and the pieces in which they are written.
const LONG: u64 = 16 << 20;
const SHORT: u64 = 70_000;

#[test]
fn tls_1_3_inside_passes_whole() {
    run(all_pairings(&rustls::version::TLS13));
}

#[test]
fn tls_1_2_inside_passes_whole() {
    run(all_pairings(&rustls::version::TLS12));
}

async fn all_pairings(version: &'static SupportedProtocolVersion) -> Result {
    for (client, server) in
        [(Side::Culvert, Side::SingBox), (Side::SingBox, Side::Culvert), (Side::Culvert, Side::Culvert)]
    {
        let outcome = pairing(client, server, version).await;
        outcome.map_err(|error| format!("{client:?} to {server:?}: {error}"))?;
    }
    Ok(())
}

async fn pairing(client: Side, server: Side, version: &'static SupportedProtocolVersion) -> Result {
    let (Some(client), Some(server)) = (client.program(), server.program()) else { return Ok(()) };
    let outbound = in_tls(json!({ "type": "vless", "uuid": ID, "flow": FLOW }));
    let inbound: Value = json!({ "type": "vless", "users": [{ "name": "alice", "uuid": ID, "flow": FLOW }] });
    let site = Site::linked_by(outbound, behind_tls(inbound), ENDS_TOGETHER, &client, &server).await?;
    let certificate = Certificate::for_name("inner.test");
    let (origin, serving) = origin(&certificate, version).await?;
    let connector = connector(&certificate, version)?;
    let mut exchanges = JoinSet::new();
    for (length, piece) in [(LONG, 64 << 10), (LONG, 1_000), (SHORT, 1), (SHORT, 16_384), (1, 1), (0, 1)] {
        let stream = site.dial(&origin.into()).await?;
        let connector = connector.clone();
        exchanges.spawn(async move {
            let name = ServerName::try_from("inner.test")?;
            let mut stream = connector.connect(name, stream).await?;
            stream.write_all(&[length.to_be_bytes(), (piece as u64).to_be_bytes()].concat()).await?;
            exchange(stream, [1, 2], length, piece).await
        });
    }
    while let Some(exchange) = exchanges.join_next().await {
        exchange??;
    }
    serving.abort();
    site.close().await
}

/// A server that says what it is told to say, and is told how much.
async fn origin(
    certificate: &Certificate,
    version: &'static SupportedProtocolVersion,
) -> Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    serve("127.0.0.1:0", certificate, version, |mut stream| async move {
        let (length, piece) = (stream.read_u64().await?, stream.read_u64().await?);
        exchange(stream, [2, 1], length, piece as usize).await
    })
    .await
}

/// A server that says what it hears.
pub(crate) async fn echo(
    certificate: &Certificate,
    version: &'static SupportedProtocolVersion,
) -> Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    echo_at("127.0.0.1:0", certificate, version).await
}

/// The same at this address.
pub(crate) async fn echo_at(
    address: &str,
    certificate: &Certificate,
    version: &'static SupportedProtocolVersion,
) -> Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    serve(address, certificate, version, |stream| async move {
        let (mut reading, mut writing) = tokio::io::split(stream);
        tokio::io::copy(&mut reading, &mut writing).await?;
        Ok(writing.shutdown().await?)
    })
    .await
}

async fn serve<F: Future<Output = Result> + Send>(
    address: &str,
    certificate: &Certificate,
    version: &'static SupportedProtocolVersion,
    one: impl Fn(TlsStream<TcpStream>) -> F + Copy + Send + Sync + 'static,
) -> Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let chain = vec![CertificateDer::from_pem_slice(certificate.certificate.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes())?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[version])?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move { one(acceptor.accept(stream).await?).await });
        }
    });
    Ok((address, serving))
}

pub(crate) fn connector(
    certificate: &Certificate,
    version: &'static SupportedProtocolVersion,
) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.certificate.as_bytes())?)?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[version])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Sends the pattern of the first seed and expects that of the second, at the same time.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    [says, hears]: [u64; 2],
    length: u64,
    piece: usize,
) -> Result {
    let (mut reading, mut writing) = tokio::io::split(stream);
    let saying = async {
        let mut at = 0;
        let mut bytes = vec![0; piece];
        while at < length {
            let count = bytes.len().min((length - at) as usize);
            pattern::fill(says, at, &mut bytes[..count]);
            writing.write_all(&bytes[..count]).await?;
            at += count as u64;
        }
        writing.flush().await
    };
    let hearing = async {
        let mut verifier = Verifier::new(hears);
        let mut bytes = vec![0; 64 << 10];
        while verifier.position() < length {
            let count = reading.read(&mut bytes).await?;
            ensure!(count > 0, "it ends after {} of {length} bytes", verifier.position());
            verifier.feed(&bytes[..count])?;
        }
        Result::<()>::Ok(())
    };
    let (said, heard) = tokio::join!(saying, hearing);
    heard?;
    said?;
    // The last word of whoever is slower has been heard by now, so both may go.
    writing.shutdown().await?;
    Ok(())
}
