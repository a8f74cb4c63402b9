//! What an idle connection holds: `cargo run --release -p culvert-tls --example idle`.
//!
//! Both ends of many connections are made in this process, each exchanges some data and then idles. The memory of the
//! process is compared with that of as many plain ones.

use std::error::Error;
use std::io::Write;

use culvert_core::{BoxStream, TcpConn};
use culvert_tls::settings::{
    ClientAuthentication, ClientSettings, Identity, Parameters, ServerSettings, Trust,
};
use culvert_tls::{Acceptor, Connector, Store, StoreSettings};
use culvert_wire::{Host, pool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const CONNECTIONS: usize = 4000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let acceptor = Acceptor::new(&ServerSettings {
        parameters: Parameters::default(),
        identity: Identity::SelfSigned,
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
    // What is made once, and what the allocator keeps.
    drop(tls(&listener, &connector, &acceptor).await?);
    let mut out = std::io::stdout();
    let start = resident()?;
    let mut plain = Vec::new();
    for _ in 0..CONNECTIONS {
        plain.push(ends(&listener).await?);
    }
    let plain_each = (resident()? - start) / CONNECTIONS / 2;
    drop(plain);
    let start = resident()?;
    let mut inside = Vec::new();
    for _ in 0..CONNECTIONS {
        inside.push(tls(&listener, &connector, &acceptor).await?);
    }
    pool::trim();
    let tls_each = (resident()? - start) / CONNECTIONS / 2;
    writeln!(out, "bytes of resident memory for one idle end: plain {plain_each}, TLS {tls_each}")?;
    drop(inside);
    Ok(())
}

async fn ends(listener: &TcpListener) -> Result<(BoxStream, BoxStream)> {
    let near = TcpStream::connect(listener.local_addr()?).await?;
    let far = listener.accept().await?.0;
    Ok((Box::new(TcpConn::new(near)), Box::new(TcpConn::new(far))))
}

async fn tls(
    listener: &TcpListener,
    connector: &Connector,
    acceptor: &Acceptor,
) -> Result<(BoxStream, BoxStream)> {
    let (near, far) = ends(listener).await?;
    let connect = async {
        let (mut conn, _) = connector.connect(near).await?;
        conn.write_all(b"question").await?;
        conn.flush().await?;
        Result::Ok(conn)
    };
    let (near, far) = tokio::join!(connect, acceptor.accept(far));
    let (mut near, (mut far, _)) = (near?, far?);
    far.write_all(b"an answer").await?;
    far.flush().await?;
    near.read_exact(&mut [0; 9]).await?;
    far.read_exact(&mut [0; 8]).await?;
    Ok((Box::new(near), Box::new(far)))
}

/// Resident memory of this process in bytes.
fn resident() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("VmRSS")?;
    let kibibytes: usize = line.split_whitespace().nth(1).ok_or("VmRSS")?.parse()?;
    Ok(kibibytes << 10)
}
