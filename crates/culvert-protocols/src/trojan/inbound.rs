//! The server: tells clients from strangers, and gives either away whole.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::dial::ServerOptions;
use culvert_config::options::inbound::vmess::TrojanInbound;
use culvert_core::conn::read_chain;
use culvert_core::handshake::read_message;
use culvert_core::{
    BoxStream, Dispatch, Handshake, Incoming, Io, Network, ServeError, Session, StreamServer, timeouts,
};
use culvert_wire::{BufChain, DecodeError, Host, Reader, Room, Target};

use super::codec::{Command, KEY_LEN, MAX_HEAD, MAX_REQUEST, Opening, Request, decode_head, key, opening};
use super::framing::{TrojanFraming, TrojanPackets};
use crate::fields::server::server;
use crate::handshake::{foreign_or, turn_away};
use crate::onward::Onward;
use crate::users::{KeyedUsers, Known};
use crate::{BuildError, mux};

/// Serves Trojan.
pub(super) struct TrojanServer {
    users: KeyedUsers<KEY_LEN>,
    fallbacks: Fallbacks,
    onward: Onward,
    inner: Arc<Inner>,
}

/// Serves the streams of trojan-go's mux, and associations.
struct Inner {
    udp_timeout: Option<Duration>,
}

/// Where strangers go.
struct Fallbacks {
    default: Option<Target>,
    by_alpn: Vec<(String, Target)>,
}

impl TrojanServer {
    pub(super) fn new(options: &TrojanInbound, udp_timeout: Option<Duration>) -> Result<Self, BuildError> {
        let mut users = KeyedUsers::default();
        for user in &options.users {
            users.insert(key(user.password.as_bytes()), &user.name);
        }
        Ok(Self {
            users,
            fallbacks: Fallbacks::new(options)?,
            onward: Onward { mux: mux::Server::new(options.multiplex.as_ref())?, uot: false },
            inner: Arc::new(Inner { udp_timeout }),
        })
    }

    /// Reads until it is known who the client is. `None` is a stranger; all that was read stays in `early`.
    async fn identify(&self, conn: &mut BoxStream, early: &mut BufChain) -> io::Result<Option<Known>> {
        loop {
            let mut seen = [0; KEY_LEN];
            let count = early.peek(&mut seen);
            match opening(&seen[..count]) {
                Opening::Key(key) => return Ok(self.users.find(&key)),
                Opening::Foreign => return Ok(None),
                Opening::Incomplete => {}
            }
            let mut more = read_chain(conn, Room::NONE).await?;
            if more.is_empty() {
                return Ok(None);
            }
            early.append(&mut more);
        }
    }

    /// Gives somebody who is no client to the site that this server seems to be, or sends it away.
    async fn fall_back(
        &self,
        mut conn: BoxStream,
        early: BufChain,
        mut session: Session,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let Some(target) = self.fallbacks.of(session.alpn.as_deref()) else {
            turn_away(&mut conn).await;
            return Err(if early.is_empty() {
                ServeError::Left
            } else {
                foreign_or(&early, ServeError::Denied("wrong password"))
            });
        };
        tracing::debug!(
            conn = session.id.get(),
            "inbound/{}: {} is no client, on to {target}",
            session.inbound,
            session.source
        );
        session.target = target.clone();
        dispatch.submit(Incoming { session, io: Io::Stream(conn), early, reply: None, udp_timeout: None });
        Ok(())
    }
}

#[async_trait]
impl StreamServer for TrojanServer {
    async fn serve(
        &self,
        mut conn: BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        let known = match patiently(self.identify(&mut conn, &mut early)).await {
            Some(known) => known?,
            // Neither a key nor anything that is none: whoever waits for the site to speak shall have it.
            None => None,
        };
        let Some(known) = known else { return self.fall_back(conn, early, session, dispatch).await };
        session.user = known.name;
        early.advance(KEY_LEN);
        let request = match read_message(&mut conn, &mut early, MAX_REQUEST, Request::decode).await {
            Ok(request) => request,
            Err(error) => {
                turn_away(&mut conn).await;
                return Err(error);
            }
        };
        drop(handshake);
        session.target = request.target;
        match request.command {
            Command::Connect => {
                let io = Io::Stream(conn);
                let incoming = Incoming { session, io, early, reply: None, udp_timeout: None };
                self.onward.submit(incoming, dispatch).await
            }
            Command::Associate => self.inner.associate(conn, early, session, dispatch).await,
            Command::Mux => {
                let inner = Arc::<Inner>::clone(&self.inner);
                mux::serve_smux(conn, early, &session, inner, dispatch).await
            }
        }
    }
}

#[async_trait]
impl StreamServer for Inner {
    async fn serve(
        &self,
        mut conn: BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        let request = read_message(&mut conn, &mut early, MAX_REQUEST, Request::decode_inner).await;
        let request = request.inspect_err(|_| conn.abort())?;
        drop(handshake);
        session.target = request.target;
        match request.command {
            Command::Connect => {
                let io = Io::Stream(conn);
                let incoming = Incoming { session, io, early, reply: None, udp_timeout: None };
                Onward::default().submit(incoming, dispatch).await
            }
            Command::Associate => self.associate(conn, early, session, dispatch).await,
            Command::Mux => Err(ServeError::Unsupported("mux inside mux")),
        }
    }
}

impl Inner {
    async fn associate(
        &self,
        mut conn: BoxStream,
        mut early: BufChain,
        mut session: Session,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        if is_nowhere(&session.target) {
            let mut place = dispatch.waiting().enter(session.source.ip());
            let first = read_message(&mut conn, &mut early, MAX_HEAD, peek_peer);
            let first = tokio::time::timeout(self.udp_timeout.unwrap_or(timeouts::UDP_IDLE), first);
            let first = tokio::select! {
                first = first => first,
                () = place.evicted() => {
                    return Err(ServeError::Denied("too many associations wait for their first datagram"));
                }
            };
            match first {
                Ok(target) => session.target = target?,
                Err(_) => return Ok(()),
            }
        }
        session.network = Network::Udp;
        let packets = TrojanPackets::new(TrojanFraming::towards(None), conn, early, BufChain::new());
        dispatch.submit(Incoming {
            session,
            io: Io::Packets(Box::new(packets)),
            early: BufChain::new(),
            reply: None,
            udp_timeout: self.udp_timeout,
        });
        Ok(())
    }
}

impl Fallbacks {
    fn new(options: &TrojanInbound) -> Result<Self, BuildError> {
        let named = |option: &ServerOptions| (!option.server.is_empty()).then(|| server(option)).transpose();
        let mut by_alpn = Vec::new();
        for (alpn, option) in options.fallback_for_alpn.iter() {
            by_alpn.push((alpn.clone(), server(option)?));
        }
        Ok(Self { default: options.fallback.as_ref().map(named).transpose()?.flatten(), by_alpn })
    }

    /// Where one goes that has agreed on `alpn`. As in sing-box: where there are fallbacks by ALPN, the default is for
    /// those who have agreed on nothing.
    fn of(&self, alpn: Option<&str>) -> Option<&Target> {
        match alpn {
            Some(alpn) if !self.by_alpn.is_empty() => {
                self.by_alpn.iter().find(|(name, _)| name == alpn).map(|(_, target)| target)
            }
            _ => self.default.as_ref(),
        }
    }
}

/// Gives up, without an outcome, on a client that does not say whether it is one.
async fn patiently<T>(reading: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(timeouts::STRANGER, reading).await.ok()
}

/// Whether a request for datagrams does not say where the first one goes.
fn is_nowhere(target: &Target) -> bool {
    target.port == 0 || matches!(target.host, Host::Ip(ip) if ip.is_unspecified())
}

/// Where the first datagram goes; it stays where it is.
fn peek_peer(r: &mut Reader<'_>) -> Result<Target, DecodeError> {
    decode_head(&mut r.clone()).map(|(peer, _)| peer)
}
