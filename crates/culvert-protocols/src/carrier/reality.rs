//! A server inside REALITY.
//!
//! Its target is dialled as soon as a client comes, before a byte of it is read: what it is like to connect to the target is
//! part of what a stranger sees.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::tls::InboundTls;
use culvert_config::options::tls::inbound::InboundReality;
use culvert_core::conn::Prefixed;
use culvert_core::{
    BoxStream, Chain, Dialer, Dispatch, Handshake, Network, ServeError, Session, SessionId, StreamServer, Tag,
};
use culvert_tls::options;
use culvert_tls::reality::server::hello::Offer;
use culvert_tls::reality::server::{Outcome, RealityAcceptor, Stranger, tail};
use culvert_wire::Target;
use tracing::{debug, warn};

use crate::BuildError;
use crate::fields::server::server as target;
use crate::table::MakeDialer;

/// How long what was found out about a target is believed.
const AGAIN: Duration = Duration::from_secs(3600);

/// `server` inside REALITY.
pub(super) fn secured(
    dialer: MakeDialer<'_>,
    options: &InboundTls,
    reality: &InboundReality,
    server: Arc<dyn StreamServer>,
) -> Result<Arc<dyn StreamServer>, BuildError> {
    let acceptor = options::reality_server(options, reality)?;
    let dialer = dialer(&reality.handshake.dial)?;
    let target = target(&reality.handshake.server)?;
    let server_name = options.server_name.clone();
    Ok(Arc::new(Borrowed { acceptor, dialer, target, server_name, server }))
}

struct Borrowed {
    acceptor: RealityAcceptor,
    dialer: Dialer,
    target: Target,
    server_name: String,
    server: Arc<dyn StreamServer>,
}

impl Borrowed {
    /// Finds out what the target does behind its handshake, after this offer.
    async fn visit(&self, offer: Offer) -> Result<(), String> {
        let visitor = tail::visitor(&self.server_name, &self.target.host, offer);
        let visitor = visitor.map_err(|error| Chain(&error).to_string())?;
        let conn = self.dialer.connect(&self.session(), &self.target).await;
        let conn = conn.map_err(|error| Chain(&error).to_string())?;
        let lengths = tail::listen(&visitor, conn).await.map_err(|error| Chain(&error).to_string())?;
        let lengths = lengths.ok_or("it does not speak TLS 1.3")?;
        debug!("the target of REALITY, {}, sends {lengths:?} after {offer:?}", self.target);
        self.acceptor.tails().set(offer, lengths);
        Ok(())
    }

    fn session(&self) -> Session {
        Session {
            id: SessionId::next(),
            network: Network::Tcp,
            inbound: Tag::new("reality", ""),
            user: None,
            source: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            target: self.target.clone(),
            sniffed: None,
            alpn: None,
        }
    }
}

#[async_trait]
impl StreamServer for Borrowed {
    /// Looks at the target now and then: what it is like may change.
    async fn tend(&self) {
        loop {
            for offer in tail::OFFERS {
                if let Err(reason) = self.visit(offer).await {
                    warn!("the target of REALITY, {}, cannot be imitated: {reason}", self.target);
                    break;
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn serve(
        &self,
        mut conn: BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let target = match self.dialer.connect(&session, &self.target).await {
            Ok(target) => target,
            Err(error) => {
                conn.abort();
                return Err(io::Error::other(error).into());
            }
        };
        match self.acceptor.accept(conn, target).await? {
            Outcome::Client(conn, facts) => {
                session.alpn = facts.alpn.map(Arc::from);
                self.server.serve(conn, session, handshake, dispatch).await
            }
            Outcome::Stranger(Stranger { conn, target, early, answer }) => {
                drop(handshake);
                session.target = self.target.clone();
                dispatch.join(session, "a stranger of REALITY", conn, Prefixed::wrap(answer, target), early);
                Ok(())
            }
        }
    }
}
