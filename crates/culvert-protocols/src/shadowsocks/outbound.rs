//! The client.

use std::sync::Arc;

use async_trait::async_trait;
use culvert_core::{BoxPackets, BoxStream, DialError, Dialer, Network, Outbound, Session, Tag};
use culvert_wire::{AddressCodec, BufChain, Target};

use super::cipher::Cipher;
use super::client_packets::ClientPackets;
use super::conn::{Hello, ShadowConn};
use super::key::Secret;
use super::plugin::Plugin;
use crate::headed::Headed;
use crate::uot;

/// How a client proves that it may use the server.
pub(super) enum Proof {
    /// Not at all.
    None,
    /// The first AEAD edition.
    Aead(Cipher, Secret),
    /// The 2022 edition: a chain of keys, the server's first, the user's last.
    Edition2022(Cipher, Arc<[Secret]>),
}

/// The outbound.
pub(super) struct Client {
    pub(super) tag: Tag,
    pub(super) dialer: Dialer,
    pub(super) server: Target,
    pub(super) proof: Proof,
    pub(super) plugin: Option<Plugin>,
    pub(super) tcp: bool,
    pub(super) udp: bool,
    pub(super) udp_over_tcp: Option<uot::Version>,
}

impl Client {
    /// Opens a stream to `target`. The address leaves with the first bytes that are written.
    async fn connect(&self, session: &Session, target: &Target) -> Result<BoxStream, DialError> {
        let conn = match &self.plugin {
            None => self.dialer.connect(session, &self.server).await?,
            Some(plugin) => plugin.connect(session, &self.dialer, &self.server).await?,
        };
        Ok(match &self.proof {
            Proof::None => {
                let mut header = Vec::new();
                AddressCodec::SOCKS.encode(target, &mut header);
                Box::new(Headed::new(header, conn))
            }
            Proof::Aead(cipher, key) => {
                Box::new(ShadowConn::client(conn, *cipher, Hello::Aead(key.clone()), target.clone()))
            }
            Proof::Edition2022(cipher, keys) => {
                let hello = Hello::Edition2022(Arc::clone(keys));
                Box::new(ShadowConn::client(conn, *cipher, hello, target.clone()))
            }
        })
    }
}

#[async_trait]
impl Outbound for Client {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, network: Network) -> bool {
        match network {
            Network::Tcp => self.tcp,
            Network::Udp => self.udp,
            Network::Icmp => false,
        }
    }

    /// What is in `early` stays there: it is what is written first.
    async fn dial(&self, session: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        self.connect(session, &session.target).await
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        if let Some(version) = self.udp_over_tcp {
            let conn = self.connect(session, &version.magic_target()).await?;
            return Ok(Box::new(uot::UotConn::client(version, conn, &session.target)));
        }
        let packets = self.dialer.packets(session, &self.server).await?;
        let server = self.server.clone();
        let packets = match &self.proof {
            Proof::None => Some(ClientPackets::none(packets, server)),
            Proof::Aead(cipher, key) => Some(ClientPackets::aead(packets, server, *cipher, key)),
            Proof::Edition2022(cipher, keys) => ClientPackets::edition_2022(packets, server, *cipher, keys),
        };
        match packets {
            Some(packets) => Ok(Box::new(packets)),
            None => Err(DialError::Network(Network::Udp)),
        }
    }
}
