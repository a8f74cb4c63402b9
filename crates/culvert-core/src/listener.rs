//! The listener that most inbounds share: it accepts, limits, and runs a [`StreamServer`] for each client.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use culvert_os::socket::TcpListen;
use culvert_wire::{Host, Target};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use crate::sockets::Sockets;
use crate::throttle::Throttle;
use crate::{Dispatch, Inbound, Network, Session, SessionId, StartError, StreamServer, Tag, TcpConn};

/// How long to wait when the system has no more descriptors or the program carries all it may.
const BACK_OFF: Duration = Duration::from_millis(50);

/// An inbound that accepts TCP connections and serves each with `server`.
pub struct StreamInbound {
    tag: Tag,
    address: SocketAddr,
    options: TcpListen,
    server: Arc<dyn StreamServer>,
    running: Mutex<Option<Running>>,
}

struct Running {
    local: SocketAddr,
    task: JoinHandle<()>,
}

impl StreamInbound {
    /// An inbound that will listen on `address`; port 0 takes a free one.
    #[must_use]
    pub fn new(tag: Tag, address: SocketAddr, options: TcpListen, server: Arc<dyn StreamServer>) -> Self {
        Self { tag, address, options, server, running: Mutex::new(None) }
    }

    /// [`Inbound::open`], which says where it will listen.
    ///
    /// # Errors
    /// As there.
    pub fn open_at(&self, sockets: &Sockets) -> Result<SocketAddr, StartError> {
        let opened = sockets.open_tcp(&self.options, self.address);
        opened.map_err(|source| StartError::Listen { tag: self.tag.clone(), source })
    }
}

#[async_trait]
impl Inbound for StreamInbound {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn open(&self, sockets: &Sockets) -> Result<(), StartError> {
        self.open_at(sockets).map(drop)
    }

    async fn start(&self, dispatch: &Dispatch) -> Result<(), StartError> {
        let (listener, hold) = dispatch
            .sockets()
            .tcp(&self.options, self.address)
            .map_err(|source| StartError::Listen { tag: self.tag.clone(), source })?;
        let failed = |source| StartError::Io { tag: self.tag.clone(), phase: "listen", source };
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        info!("inbound/{}: tcp server started at {local}", self.tag);
        let accept = accept(listener, self.tag.clone(), Arc::clone(&self.server), dispatch.clone());
        let server = Arc::clone(&self.server);
        let task = tokio::spawn(async move {
            let _hold = hold;
            tokio::join!(accept, server.tend()).0
        });
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(Running { local, task });
        Ok(())
    }

    fn local_addrs(&self) -> Vec<SocketAddr> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.iter().map(|running| running.local).collect()
    }

    async fn close(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Running { task, .. }) = running {
            task.abort();
            // The port is free once the task, and the socket in it, is gone.
            let _ = task.await;
        }
    }

    fn stream_server(&self) -> Option<Arc<dyn StreamServer>> {
        Some(Arc::clone(&self.server))
    }
}

/// Accepts until it is dropped. No error ends it: what fails is the one connection, or passes.
async fn accept(listener: TcpListener, tag: Tag, server: Arc<dyn StreamServer>, dispatch: Dispatch) {
    let trouble = Throttle::new(Duration::from_secs(10));
    loop {
        if dispatch.is_full() && !dispatch.make_room() {
            if let Some(more) = trouble.allow() {
                warn!(held_back = more, "inbound/{tag}: connection limit reached, new clients wait");
            }
            tokio::time::sleep(BACK_OFF).await;
            continue;
        }
        match listener.accept().await {
            Ok((stream, source)) => serve(stream, source, &tag, &server, &dispatch),
            Err(error) if is_about_one_client(&error) => debug!("inbound/{tag}: accept: {error}"),
            Err(error) => {
                if let Some(more) = trouble.allow() {
                    warn!(held_back = more, "inbound/{tag}: accept: {error}; trying again");
                }
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }
}

/// Errors that accept(2) passes on from a connection that is dead already.
fn is_about_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    )
}

fn serve(
    stream: TcpStream,
    source: SocketAddr,
    tag: &Tag,
    server: &Arc<dyn StreamServer>,
    dispatch: &Dispatch,
) {
    let source = SocketAddr::new(source.ip().to_canonical(), source.port());
    let session = Session {
        id: SessionId::next(),
        network: Network::Tcp,
        inbound: tag.clone(),
        user: None,
        source,
        // Until the server has read the real one: where the client connected to.
        target: stream.local_addr().map_or_else(|_| Target::new(Host::from(source.ip()), 0), Target::from),
        sniffed: None,
        alpn: None,
    };
    dispatch.serve(Arc::clone(server), Box::new(TcpConn::new(stream)), session);
}
