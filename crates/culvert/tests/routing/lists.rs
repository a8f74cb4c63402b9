//! A web server for lists: counts what it is asked for, knows tags, can be broken.

use culvert_testkit::Result;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What is served, and what was asked for.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) body: Vec<u8>,
    pub(crate) etag: String,
    /// Status of each response so far.
    pub(crate) answered: Vec<u16>,
    /// Paths asked for.
    pub(crate) paths: Vec<String>,
}

/// The server; it stops when dropped.
pub(crate) struct Lists {
    pub(crate) address: SocketAddr,
    content: Arc<Mutex<Content>>,
    task: JoinHandle<()>,
}

impl Lists {
    pub(crate) async fn start(body: impl Into<Vec<u8>>) -> Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), body).await
    }

    pub(crate) async fn start_at(address: SocketAddr, body: impl Into<Vec<u8>>) -> Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let content = Content { body: body.into(), etag: "\"1\"".into(), ..Content::default() };
        let content = Arc::new(Mutex::new(content));
        let served = Arc::clone(&content);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = serve(stream, &served).await;
            }
        });
        Ok(Self { address, content, task })
    }

    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, body: impl Into<Vec<u8>>, etag: &str) {
        let mut content = self.content();
        (content.body, content.etag) = (body.into(), etag.into());
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers one request.
async fn serve(mut stream: TcpStream, content: &Mutex<Content>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let response = {
        let mut content = content.lock().unwrap_or_else(PoisonError::into_inner);
        content.paths.push(head.split(' ').nth(1).unwrap_or_default().to_owned());
        let same = head.contains(&format!("if-none-match: {}\r\n", content.etag));
        content.answered.push(if same { 304 } else { 200 });
        let (etag, length) = (&content.etag, content.body.len());
        if same {
            format!("HTTP/1.1 304 Not Modified\r\nETag: {etag}\r\nConnection: close\r\n\r\n").into_bytes()
        } else {
            let head = format!(
                "HTTP/1.1 200 OK\r\nETag: {etag}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            [head.as_bytes(), &content.body].concat()
        }
    };
    stream.write_all(&response).await?;
    stream.shutdown().await
}
