//! A server inside REALITY.
//!
//! Its target is dialled as soon as a client comes, before a byte of it is read: what it is like to connect to the target is
//! part of what a stranger sees.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use culvert_config::options::tls::InboundTls;
use culvert_config::options::tls::inbound::InboundReality;
use culvert_core::conn::Prefixed;
use culvert_core::{BoxStream, Dialer, Dispatch, Handshake, ServeError, Session, StreamServer};
use culvert_tls::options;
use culvert_tls::reality::server::{Outcome, RealityAcceptor, Stranger};
use culvert_wire::Target;

use crate::BuildError;
use crate::fields::server::server as target;
use crate::table::MakeDialer;

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
    Ok(Arc::new(Borrowed { acceptor, dialer, target, server }))
}

struct Borrowed {
    acceptor: RealityAcceptor,
    dialer: Dialer,
    target: Target,
    server: Arc<dyn StreamServer>,
}

#[async_trait]
impl StreamServer for Borrowed {
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
