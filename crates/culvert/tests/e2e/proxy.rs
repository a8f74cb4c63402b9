//! One program with one inbound, for tests that speak to it by hand.

use culvert_testkit::peer::{Peer, Program, Usage};
use culvert_testkit::ports::Port;
use culvert_testkit::{Error, Result};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest a single step may take.
pub(crate) const STEP: Duration = Duration::from_secs(20);

/// A running program whose one inbound listens on a port of its own.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) peer: Peer,
    port: Port,
}

impl Proxy {
    /// An inbound of this type, with nothing else said, before a direct outbound.
    pub(crate) async fn plain(program: &Program, inbound: &str) -> Result<Self> {
        Self::start(program, json!({ "type": inbound }), json!({ "type": "direct" })).await
    }

    /// An inbound, whose place to listen is added, and an outbound.
    pub(crate) async fn start(program: &Program, inbound: Value, outbound: Value) -> Result<Self> {
        Self::limited(program, inbound, outbound, None).await
    }

    /// [`start`](Self::start) with a limit on open files.
    pub(crate) async fn limited(
        program: &Program,
        mut inbound: Value,
        mut outbound: Value,
        open_files: Option<u32>,
    ) -> Result<Self> {
        let port = Port::reserve()?;
        inbound["tag"] = "in".into();
        if inbound.get("listen").is_none() {
            inbound["listen"] = "127.0.0.1".into();
        }
        inbound["listen_port"] = port.number().into();
        outbound["tag"] = "out".into();
        let config = json!({ "log": { "level": "debug" }, "inbounds": [inbound], "outbounds": [outbound] });
        Ok(Self { peer: program.serve_limited(&config, open_files).await?, port })
    }

    /// Where the inbound listens, if nothing else was said.
    pub(crate) fn address(&self) -> SocketAddr {
        self.port.v4()
    }

    /// Where it listens if it was told to do so on `::`.
    pub(crate) fn address_v6(&self) -> SocketAddr {
        self.port.v6()
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        self.peer.usage()
    }

    /// Connects, and sends these bytes in one write.
    pub(crate) async fn send(&self, bytes: &[u8]) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address()).await?;
        stream.set_nodelay(true)?;
        stream.write_all(bytes).await?;
        Ok(stream)
    }

    /// Connects, and sends these bytes in one write each.
    pub(crate) async fn trickle(&self, bytes: &[u8]) -> Result<TcpStream> {
        let mut stream = self.send(b"").await?;
        for byte in bytes {
            stream.write_u8(*byte).await?;
            // Lets the other end read before the next byte comes.
            tokio::task::yield_now().await;
        }
        Ok(stream)
    }

    /// Waits until the program holds no more than so many descriptors.
    pub(crate) async fn descriptors_fall_to(&self, most: usize) -> Result {
        let deadline = tokio::time::Instant::now() + STEP;
        loop {
            let now = self.usage()?.descriptors;
            if now <= most {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                return Err(format!("{now} descriptors stay open, {most} were before").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Reads until the other end closes or resets; a reset is an end like any other.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reading = tokio::time::timeout(STEP, async {
        let mut block = [0; 16_384];
        while let Ok(length @ 1..) = stream.read(&mut block).await {
            bytes.extend(&block[..length]);
        }
    });
    reading.await.map_err(|_| Error::from("the connection stays open"))?;
    Ok(bytes)
}

/// Reads exactly so many bytes.
pub(crate) async fn read_exactly<const N: usize>(stream: &mut TcpStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    tokio::time::timeout(STEP, stream.read_exact(&mut bytes)).await.map_err(|_| "no answer")??;
    Ok(bytes)
}
