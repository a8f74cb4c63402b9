//! What the record layer costs beside the one of rustls: `cargo run --release -p culvert-tls --example throughput`.
//!
//! The first table is the records alone, sealed and opened once each in memory, per second of CPU time. The second one is
//! a download over loopback TCP: one task sends, one receives, both in TLS; its figures are goodput, and the CPU time of
//! the whole process per gigabyte, kernel included. CPU time says more than goodput where a machine has other work too.

use std::error::Error;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use culvert_core::conn::{read_chain, write_chain};
use culvert_core::{StreamConn, TcpConn};
use culvert_tls::record::{Cipher, ContentType, MAX_DATA, Opener, Sealer, Secret, TrafficSecret};
use culvert_tls::settings::{
    ClientAuthentication, ClientSettings, Identity, KeyPairSource, Parameters, ServerSettings, Source, Trust,
};
use culvert_tls::{Acceptor, Connector, Store, StoreSettings};
use culvert_wire::{Buf, BufChain, Host, Room};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// CPU seconds for each line of the first table, and bytes between two looks at the clock.
const TIME: f64 = 1.0;
const STRETCH: usize = 16 << 20;
const DOWNLOAD: usize = 4 << 30;

fn main() -> Result {
    let mut out = std::io::stdout();
    writeln!(out, "records alone, GB per second of CPU time, sealing and opening each byte once")?;
    for (cipher, len, suite) in [
        (Cipher::Aes128Gcm, 32, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256),
        (Cipher::Aes256Gcm, 48, rustls::CipherSuite::TLS13_AES_256_GCM_SHA384),
        (Cipher::ChaCha20Poly1305, 32, rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    ] {
        let secret = TrafficSecret::new(cipher, &[7; 48][..len]).map(Secret::Tls13).ok_or("secret")?;
        let (ours, joined) = (records(&secret)?, records_joined(&secret)?);
        let theirs = stock_records(suite)?;
        writeln!(out, "  {cipher:?}: in place {ours:.2}, joined {joined:.2}, rustls {theirs:.2}")?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    writeln!(out, "download over loopback")?;
    for (name, (goodput, cpu)) in [
        ("plain TCP", runtime.block_on(plain_download())?),
        ("culvert-tls", runtime.block_on(download())?),
        ("tokio-rustls", runtime.block_on(stock_download())?),
    ] {
        writeln!(out, "  {name}: {goodput:.2} GB/s, {cpu:.3} CPU-s/GB")?;
    }
    Ok(())
}

/// One full record at a time, sealed and opened in the same memory.
fn records(secret: &Secret) -> Result<f64> {
    let mut sealer = Sealer::new(secret.clone(), 0).ok_or("sealer")?;
    let mut opener = Opener::new(secret.clone(), 0).ok_or("opener")?;
    let room = sealer.room();
    per_second(|| {
        let mut piece = Buf::new(MAX_DATA, room.head, room.tail);
        piece.grow(MAX_DATA);
        sealer.seal(ContentType::Data, &mut piece)?;
        Ok(opener.open(&mut piece)?.1.len())
    })
}

/// Sixteen records sealed one by one, then opened out of one piece of memory into another, as a long read is.
fn records_joined(secret: &Secret) -> Result<f64> {
    let mut sealer = Sealer::new(secret.clone(), 0).ok_or("sealer")?;
    let mut opener = Opener::new(secret.clone(), 0).ok_or("opener")?;
    let data = vec![0; MAX_DATA];
    per_second(|| {
        let mut read = Buf::new(260 << 10, 0, 0);
        for _ in 0..15 {
            // Stands for the kernel's copy into the memory of a read.
            read.append(&sealer.seal_copy(ContentType::Data, &data, Room::NONE)?);
        }
        let mut opened = Buf::new(260 << 10, 0, 0);
        while let Some(len) = opener.record_len(&read)? {
            let space = opener.space_for(len);
            let (_, count) = opener.open_into(&read[..len], &mut opened.spare_mut()[..space])?;
            opened.grow(count);
            read.advance(len);
        }
        Ok(opened.len())
    })
}

/// Gigabytes per second of CPU time, where `work` is repeated and says how many bytes it was.
fn per_second(mut work: impl FnMut() -> Result<usize>) -> Result<f64> {
    let (start, mut bytes, mut stretch) = (cpu_seconds()?, 0, 0);
    loop {
        stretch += work()?;
        if stretch >= STRETCH {
            bytes += std::mem::take(&mut stretch);
            let spent = cpu_seconds()? - start;
            if spent > TIME {
                return Ok(bytes as f64 / spent / 1e9);
            }
        }
    }
}

struct Pem {
    chain: String,
    key: String,
}

fn identity() -> Result<Pem> {
    let made = rcgen::generate_simple_self_signed(["a.test".to_owned()])?;
    Ok(Pem { chain: made.cert.pem(), key: made.signing_key.serialize_pem() })
}

fn stock_configs(
    suite: Option<rustls::CipherSuite>,
) -> Result<(Arc<rustls::ClientConfig>, Arc<rustls::ServerConfig>)> {
    let identity = identity()?;
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(identity.chain.as_bytes()).collect::<std::result::Result<_, _>>()?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(chain[0].clone())?;
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let wanted = suite.unwrap_or(rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider.cipher_suites.retain(|suite| suite.suite() == wanted);
    let provider = Arc::new(provider);
    let versions = &[&rustls::version::TLS13];
    let client = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?)?;
    Ok((Arc::new(client), Arc::new(server)))
}

/// The same with rustls' connections, through buffers in memory.
fn stock_records(suite: rustls::CipherSuite) -> Result<f64> {
    let (client, server) = stock_configs(Some(suite))?;
    let mut client = rustls::ClientConnection::new(client, ServerName::try_from("a.test")?)?;
    let mut server = rustls::ServerConnection::new(server)?;
    let mut wire = Vec::new();
    while client.is_handshaking() || server.is_handshaking() {
        wire.clear();
        client.write_tls(&mut wire)?;
        server.read_tls(&mut &wire[..])?;
        server.process_new_packets()?;
        wire.clear();
        server.write_tls(&mut wire)?;
        client.read_tls(&mut &wire[..])?;
        client.process_new_packets()?;
    }
    let (data, mut got) = (vec![0; MAX_DATA], vec![0; MAX_DATA]);
    per_second(|| {
        wire.clear();
        server.writer().write_all(&data)?;
        while server.wants_write() {
            server.write_tls(&mut wire)?;
        }
        let mut rest = &wire[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest)?;
            client.process_new_packets()?;
        }
        client.reader().read_exact(&mut got)?;
        Ok(got.len())
    })
}

async fn sockets() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let near = TcpStream::connect(listener.local_addr()?).await?;
    Ok((near, listener.accept().await?.0))
}

/// Sends and receives, and measures. Each side runs in a task of its own.
async fn measure<S, R>(send: S, receive: R) -> Result<(f64, f64)>
where
    S: Future<Output = Result> + Send + 'static,
    R: Future<Output = Result> + Send + 'static,
{
    let (start, cpu) = (Instant::now(), cpu_seconds()?);
    let (send, receive) = (tokio::spawn(send), tokio::spawn(receive));
    send.await??;
    receive.await??;
    let gigabytes = DOWNLOAD as f64 / 1e9;
    Ok((gigabytes / start.elapsed().as_secs_f64(), (cpu_seconds()? - cpu) / gigabytes))
}

/// Sends the download as a relay would: pieces with the room that the conn asks for.
async fn send(mut conn: impl StreamConn) -> Result {
    let mut left = DOWNLOAD;
    while left > 0 {
        let mut chain = BufChain::new();
        let room = conn.room();
        while chain.len() < 256 << 10 {
            let mut piece = Buf::new(MAX_DATA, room.head, room.tail);
            piece.grow(MAX_DATA.min(left - chain.len()));
            chain.push_back(piece);
        }
        left -= chain.len();
        write_chain(&mut conn, &mut chain).await?;
    }
    conn.shutdown().await?;
    Ok(())
}

async fn receive(mut conn: impl StreamConn) -> Result {
    let mut got = 0;
    loop {
        match read_chain(&mut conn, Room::NONE).await?.len() {
            0 => break,
            count => got += count,
        }
    }
    if got == DOWNLOAD { Ok(()) } else { Err("bytes are missing".into()) }
}

async fn plain_download() -> Result<(f64, f64)> {
    let (near, far) = sockets().await?;
    measure(send(TcpConn::new(far)), receive(TcpConn::new(near))).await
}

async fn download() -> Result<(f64, f64)> {
    let identity = identity()?;
    let source =
        KeyPairSource { certificate: Source::Inline(identity.chain), key: Source::Inline(identity.key) };
    let acceptor = Acceptor::new(&ServerSettings {
        parameters: Parameters::default(),
        identity: Identity::Given(source),
        clients: ClientAuthentication::None,
        handshake_timeout: None,
    })?;
    let settings = ClientSettings {
        trust: Trust::Anyone,
        server_name: Some("a.test".into()),
        ..ClientSettings::default()
    };
    let nowhere = Host::Ip([127, 0, 0, 1].into());
    let connector = Connector::new(settings, &nowhere, &Store::new(StoreSettings::default()))?;
    let (near, far) = sockets().await?;
    let connect = async {
        let (mut conn, facts) = connector.connect(Box::new(TcpConn::new(near))).await?;
        conn.flush().await?;
        Result::Ok((conn, facts))
    };
    let (near, far) = tokio::join!(connect, acceptor.accept(Box::new(TcpConn::new(far))));
    let (near, facts) = near?;
    assert_eq!(facts.cipher_suite, "TLS_AES_128_GCM_SHA256");
    measure(send(far?.0), receive(near)).await
}

async fn stock_download() -> Result<(f64, f64)> {
    let (client, server) = stock_configs(None)?;
    let (near, far) = sockets().await?;
    let name = ServerName::try_from("a.test")?;
    let (near, far) = tokio::join!(
        tokio_rustls::TlsConnector::from(client).connect(name, near),
        tokio_rustls::TlsAcceptor::from(server).accept(far),
    );
    let (mut near, mut far) = (near?, far?);
    let send = async move {
        let data = vec![0; 256 << 10];
        for _ in 0..DOWNLOAD / data.len() {
            far.write_all(&data).await?;
        }
        far.shutdown().await?;
        Ok(())
    };
    let receive = async move {
        let mut data = vec![0; 256 << 10];
        let mut got = 0;
        loop {
            match near.read(&mut data).await? {
                0 => break,
                count => got += count,
            }
        }
        if got == DOWNLOAD { Ok(()) } else { Err("bytes are missing".into()) }
    };
    measure(send, receive).await
}

/// CPU time of this process so far, user and system.
fn cpu_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit_once(')').ok_or("stat")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.0)
}
