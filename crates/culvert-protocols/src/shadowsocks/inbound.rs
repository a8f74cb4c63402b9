//! The inbound: a TCP listener, a UDP socket, or both.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use culvert_core::inbound::ManagedUsers;
use culvert_core::listener::StreamInbound;
use culvert_core::sockets::Sockets;
use culvert_core::{Dispatch, Inbound, StartError, StreamServer, Tag};

use super::server_packets::PacketListener;
use super::users::Users;

/// The inbound.
pub(super) struct Listener {
    pub(super) tag: Tag,
    pub(super) streams: Option<StreamInbound>,
    pub(super) packets: Option<PacketListener>,
    /// The users, where a service may change them.
    pub(super) managed: Option<Arc<Users>>,
}

#[async_trait]
impl Inbound for Listener {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn open(&self, sockets: &Sockets) -> Result<(), StartError> {
        let streams = self.streams.as_ref().map(|streams| streams.open_at(sockets)).transpose()?;
        let port = streams.map(|address| address.port());
        self.packets.as_ref().map_or(Ok(()), |packets| packets.open(sockets, port))
    }

    async fn start(&self, dispatch: &Dispatch) -> Result<(), StartError> {
        let mut port = None;
        if let Some(streams) = &self.streams {
            streams.start(dispatch).await?;
            port = streams.local_addrs().first().map(SocketAddr::port);
        }
        let Some(packets) = &self.packets else { return Ok(()) };
        let started = packets.start(dispatch, port);
        if started.is_err() {
            self.close().await;
        }
        started
    }

    fn local_addrs(&self) -> Vec<SocketAddr> {
        let streams = self.streams.iter().flat_map(StreamInbound::local_addrs);
        streams.chain(self.packets.as_ref().and_then(PacketListener::local_addr)).collect()
    }

    async fn close(&self) {
        if let Some(streams) = &self.streams {
            streams.close().await;
        }
        if let Some(packets) = &self.packets {
            packets.close().await;
        }
    }

    fn stream_server(&self) -> Option<Arc<dyn StreamServer>> {
        self.streams.as_ref()?.stream_server()
    }

    fn managed_users(&self) -> Option<Arc<dyn ManagedUsers>> {
        self.managed.clone().map(|users| -> Arc<dyn ManagedUsers> { users })
    }
}
