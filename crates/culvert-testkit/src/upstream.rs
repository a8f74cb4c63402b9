//! A server that answers every connection with the same prepared bytes, right or wrong, and keeps what it received.

use crate::{Error, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::task::JoinSet;

/// How long a test waits for what the server should see.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the server does next on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Reads exactly this many bytes.
    Read(usize),
    /// Reads up to and with an empty line.
    ReadHead,
    /// Writes.
    Write(Vec<u8>),
    /// Lets time pass, where time itself is what is tested.
    Pause(Duration),
    /// Keeps the connection open and silent until the peer ends it.
    Hold,
    /// Ends the connection with a reset.
    Reset,
}

/// A running server; its connections end when it is dropped.
#[derive(Debug)]
pub struct Upstream {
    address: SocketAddr,
    contacted: Arc<Notify>,
    received: Mutex<mpsc::UnboundedReceiver<Vec<u8>>>,
    _tasks: JoinSet<()>,
}

impl Upstream {
    /// Serves these steps on a free port of `127.0.0.1`; after the last one the connection is closed.
    ///
    /// # Errors
    /// When no socket can be bound.
    pub async fn start(steps: impl IntoIterator<Item = Step>) -> Result<Self> {
        let steps: Arc<[Step]> = steps.into_iter().collect();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (sender, received) = mpsc::unbounded_channel();
        let contacted = Arc::new(Notify::new());
        let contact = Arc::clone(&contacted);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    contact.notify_one();
                    let (steps, sender) = (Arc::clone(&steps), sender.clone());
                    connections.spawn(async move {
                        let mut received = Vec::new();
                        // A peer that leaves early is told by what was received.
                        drop(follow(stream, &steps, &mut received).await);
                        drop(sender.send(received));
                    });
                }
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, contacted, received: Mutex::new(received), _tasks: tasks })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until somebody has connected.
    ///
    /// # Errors
    /// When nobody does within half a minute.
    pub async fn contacted(&self) -> Result {
        Ok(tokio::time::timeout(PATIENCE, self.contacted.notified()).await?)
    }

    /// What the next connection to end had sent.
    ///
    /// # Errors
    /// When none ends within half a minute.
    pub async fn received(&self) -> Result<Vec<u8>> {
        let mut received = self.received.lock().await;
        tokio::time::timeout(PATIENCE, received.recv())
            .await?
            .ok_or_else(|| Error::from("the upstream server has ended"))
    }
}

async fn follow(mut stream: TcpStream, steps: &[Step], received: &mut Vec<u8>) -> std::io::Result<()> {
    for step in steps {
        match step {
            Step::Read(count) => {
                let before = received.len();
                (&mut stream).take(*count as u64).read_to_end(received).await?;
                if received.len() < before + count {
                    return Ok(());
                }
            }
            Step::ReadHead => {
                while !received.ends_with(b"\r\n\r\n") {
                    received.push(stream.read_u8().await?);
                }
            }
            Step::Write(bytes) => stream.write_all(bytes).await?,
            Step::Pause(pause) => tokio::time::sleep(*pause).await,
            Step::Hold => {
                stream.read_to_end(received).await?;
            }
            Step::Reset => return crate::origin::reset(stream),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn steps_are_followed_in_order() {
        let steps =
            [Step::Read(2), Step::Write(b"one".to_vec()), Step::ReadHead, Step::Write(b"two".to_vec())];
        let upstream = Upstream::start(steps).await.unwrap();
        let mut stream = TcpStream::connect(upstream.address()).await.unwrap();
        upstream.contacted().await.unwrap();
        stream.write_all(b"hi").await.unwrap();
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"one");
        stream.write_all(b"head\r\n\r\n").await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"two");
        assert_eq!(upstream.received().await.unwrap(), b"hihead\r\n\r\n");
    }
}
