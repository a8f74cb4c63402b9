//! The inbound: sockets, a server on them, and a task that hands connections on.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use culvert_core::{Dispatch, Inbound, StartError, Tag};
use culvert_quic::{Connection, Disguise, Server, ServerSettings, ServerTls, Transport};
use tracing::info;

use super::link::server_links;
use crate::fields::listen::Listen;
use crate::running::Running;

/// What a protocol does with connections.
pub(crate) trait Service: Send + Sync + 'static {
    /// Takes one that has begun to shake hands, from `source`, and returns at once.
    fn take(self: Arc<Self>, connection: Connection, source: SocketAddr, dispatch: &Dispatch);
}

/// The inbound of a protocol.
pub(crate) struct Listener<S> {
    pub(crate) tag: Tag,
    pub(crate) listen: Listen,
    pub(crate) tls: ServerTls,
    pub(crate) transport: Transport,
    pub(crate) disguise: Option<Arc<dyn Disguise>>,
    /// What a server that was started again knows its old connections by.
    pub(crate) secret: [u8; 32],
    pub(crate) service: Arc<S>,
    pub(crate) running: Running<Arc<Server>>,
}

#[async_trait]
impl<S: Service> Inbound for Listener<S> {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    /// The system spreads clients over all sockets of a port, also over those of another server, which knows none of the
    /// connections of this one.
    fn is_exclusive(&self) -> bool {
        true
    }

    async fn start(&self, dispatch: &Dispatch) -> Result<(), StartError> {
        let (links, local) = server_links(&self.tag, &self.listen)?;
        let links = links.into_iter().map(|link| match &self.disguise {
            Some(disguise) => link.disguised(Arc::clone(disguise)),
            None => link,
        });
        let settings = ServerSettings {
            tls: self.tls.clone(),
            transport: self.transport.clone(),
            secret: self.secret,
            connections: dispatch.limit(),
        };
        let server = Arc::new(Server::spread(links, &settings));
        info!("inbound/{}: udp server started at {local}", self.tag);
        let task = tokio::spawn(accept(Arc::clone(&server), Arc::clone(&self.service), dispatch.clone()));
        self.running.set(local, task, server);
        Ok(())
    }

    fn local_addrs(&self) -> Vec<SocketAddr> {
        self.running.local_addr().into_iter().collect()
    }

    async fn close(&self) {
        self.running.stop_and(|server| async move { server.close().await }).await;
    }
}

async fn accept<S: Service>(server: Arc<Server>, service: Arc<S>, dispatch: Dispatch) {
    while let Some(connection) = server.accept().await {
        if dispatch.is_full() && !dispatch.make_room() {
            continue; // dropped, which closes it
        }
        let source = connection.remote();
        let source = SocketAddr::new(source.ip().to_canonical(), source.port());
        Arc::clone(&service).take(connection, source, &dispatch);
    }
}
