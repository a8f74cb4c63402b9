//! `mixed`: SOCKS and HTTP on one port. A first byte of 4 or 5 is SOCKS; everything else is HTTP.

use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::options::inbound::mixed::MixedInbound;
use culvert_config::options::listen::ListenOptions;
use culvert_core::handshake::read_message;
use culvert_core::listener::StreamInbound;
use culvert_core::{BoxStream, Dispatch, Handshake, Inbound, ServeError, Session, StreamServer};
use culvert_wire::{BufChain, DecodeError, Reader};

use crate::carrier::secured;
use crate::fields::listen::listen;
use crate::http::HttpServer;
use crate::socks::SocksServer;
use crate::system_proxy::SystemProxy;
use crate::table::{BuildInbound, inbound};
use crate::users::Users;
use crate::{BuildError, InboundCx, Protocol};

/// The table's line.
pub const PROTOCOL: Protocol =
    Protocol { name: "mixed", inbound: inbound::<MixedInbound>(), outbound: None, fuzz: &[] };

impl BuildInbound for MixedInbound {
    fn listen(&self) -> Option<&ListenOptions> {
        Some(&self.listen)
    }

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError> {
        let listen = listen(&self.listen, true)?;
        let users = Arc::new(Users::new(&self.users));
        let server = MixedServer {
            http: HttpServer::new(Arc::clone(&users), listen.udp_timeout),
            socks: SocksServer::new(users, listen.udp, listen.udp_timeout),
        };
        let inbound = StreamInbound::new(
            cx.tag,
            listen.address,
            listen.tcp,
            secured(cx.dialer, self.tls.as_deref(), &[], Arc::new(server))?,
        );
        if self.set_system_proxy {
            return Ok(Arc::new(SystemProxy::new(inbound, true)));
        }
        Ok(Arc::new(inbound))
    }
}

/// Serves the clients of both.
struct MixedServer {
    socks: SocksServer,
    http: HttpServer,
}

#[async_trait]
impl StreamServer for MixedServer {
    async fn serve(
        &self,
        mut conn: BoxStream,
        session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        let first = |r: &mut Reader<'_>| r.rest().first().copied().ok_or(DecodeError::Incomplete);
        match read_message(&mut conn, &mut early, 1, first).await? {
            4 | 5 => self.socks.serve_early(conn, early, session, handshake, dispatch).await,
            _ => self.http.serve_early(conn, early, session, handshake, dispatch).await,
        }
    }
}
