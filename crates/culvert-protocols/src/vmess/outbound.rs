//! The client: asks a server for connections and associations.

use aes::Aes128Enc;
use async_trait::async_trait;
use culvert_config::options::outbound::vmess::PacketEncoding;
use culvert_core::conn::write_chain;
use culvert_core::{BoxPackets, BoxStream, DialError, Network, Outbound, Session, Tag};
use culvert_wire::{BufChain, Target};

use super::chunk::Direction;
use super::codec::{Command, Options, Request, Security, seal_auth_id, seal_request};
use super::conn::{Answer, Ends, Head, Reading, VmessConn, Writing};
use super::keys::{BodyKeys, Key, random};
use super::packets::VmessPackets;
use super::{legacy, unix_now};
use crate::carrier::Carrier;
use crate::handshake::{within_limit, write_error};
use crate::mux_cool::XudpConn;
use crate::packetaddr::{self, PacketAddrConn};

/// The outbound.
pub(super) struct Client {
    pub(super) tag: Tag,
    pub(super) carrier: Carrier,
    pub(super) command_key: Key,
    pub(super) auth_ids: Aes128Enc,
    /// With the legacy header: the further id that is used.
    pub(super) alter_id: Option<[u8; 16]>,
    pub(super) security: Security,
    /// Of connections that are in chunks: how their lengths are and whether they are padded.
    pub(super) options: Options,
    pub(super) tcp: bool,
    pub(super) udp: bool,
    pub(super) packet_encoding: Option<PacketEncoding>,
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

    /// The header goes out together with all of `early`; without any it leaves with the first payload, or with the first
    /// flush.
    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        let ends = self.open(session, Command::Tcp, Some(session.target.clone())).await?;
        let mut conn = VmessConn::new(ends);
        if !early.is_empty() {
            const PHASE: &str = "vmess request";
            let sending = async { write_chain(&mut conn, early).await.map_err(write_error(PHASE)) };
            within_limit(PHASE, sending).await?;
        }
        Ok(Box::new(conn))
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let target = session.target.clone();
        match self.packet_encoding {
            Some(PacketEncoding::Xudp) => {
                let ends = self.open(session, Command::Mux, None).await?;
                Ok(Box::new(XudpConn::client(Box::new(VmessConn::new(ends)), target)))
            }
            Some(PacketEncoding::PacketAddr) => {
                if target.socket_addr().is_none() {
                    let reason = "packetaddr carries packets to addresses only";
                    return Err(DialError::Target { target, reason });
                }
                let sign = packetaddr::magic_target();
                let ends = self.open(session, Command::Udp, Some(sign.clone())).await?;
                Ok(Box::new(PacketAddrConn::new(Box::new(VmessPackets::new(ends, sign)))))
            }
            None => {
                let ends = self.open(session, Command::Udp, Some(target.clone())).await?;
                Ok(Box::new(VmessPackets::new(ends, target).only_to_peer()))
            }
        }
    }
}

impl Client {
    /// A connection to the server whose request is made and not sent.
    async fn open(
        &self,
        session: &Session,
        command: Command,
        target: Option<Target>,
    ) -> Result<Ends, DialError> {
        let lower = self.carrier.connect(session).await?;
        let request = Request {
            keys: BodyKeys::random(),
            check: random::<1>()[0],
            options: self.options_for(command),
            security: self.security,
            command,
            target,
        };
        let head = Head { bytes: self.seal(&request), waits: false };
        let up = Direction { request: &request, keys: &request.keys, cfb: None }.sealing();
        let writing = Writing::new(up, head);
        let reading = Reading::answer(Answer { request, legacy: self.alter_id.is_some() });
        Ok(Ends { lower, reading, writing })
    }

    /// What is not encrypted needs chunks for datagrams alone.
    fn options_for(&self, command: Command) -> Options {
        match (self.security, command) {
            (Security::None, Command::Tcp | Command::Mux) => Options::default(),
            (Security::None, Command::Udp) | (Security::Aes128Cfb, _) => Options::CHUNKS,
            (Security::Aes128Gcm | Security::ChaCha20Poly1305, _) => Options::CHUNKS.with(self.options),
        }
    }

    fn seal(&self, request: &Request) -> Vec<u8> {
        let padding: [u8; 16] = random();
        let header = request.encode(&padding[1..][..usize::from(padding[0] % 16)]);
        let now = unix_now();
        match &self.alter_id {
            Some(id) => legacy::seal_request(self.command_key, id, now, &header),
            None => {
                let id = seal_auth_id(&self.auth_ids, now, random());
                seal_request(&self.command_key, id, random(), &header)
            }
        }
    }
}
