//! SOCKS servers that say to whoever is connected through them which of them it is, and what it was to dial.

use culvert_testkit::Result;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A SOCKS server without a network behind it.
pub(crate) struct Exit {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Exit {
    pub(crate) async fn start(name: impl Into<String>) -> Result<Self> {
        let (name, connections) = (name.into(), Arc::<AtomicUsize>::default());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let name = name.clone();
                tokio::spawn(async move { serve(stream, &name).await });
            }
        });
        Ok(Self { address, connections })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many connections came.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Says `name target` and then repeats what it is sent, a line `HEAD` excepted, which is a test of the outbound.
async fn serve(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await?;
    let mut methods = vec![0; head[1].into()];
    stream.read_exact(&mut methods).await?;
    stream.write_all(&[5, 0]).await?;
    let mut request = [0; 4];
    stream.read_exact(&mut request).await?;
    let host = match request[3] {
        1 => {
            let mut ip = [0; 4];
            stream.read_exact(&mut ip).await?;
            Ipv4Addr::from(ip).to_string()
        }
        4 => {
            let mut ip = [0; 16];
            stream.read_exact(&mut ip).await?;
            Ipv6Addr::from(ip).to_string()
        }
        _ => {
            let mut name = vec![0; stream.read_u8().await?.into()];
            stream.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
    };
    let port = stream.read_u16().await?;
    stream.write_all(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 1]).await?;
    if port == 80 && host == "probe.test" {
        return stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    }
    stream.write_all(format!("{name} {host}:{port}\n").as_bytes()).await?;
    let (mut from, mut to) = stream.split();
    tokio::io::copy(&mut from, &mut to).await?;
    Ok(())
}
