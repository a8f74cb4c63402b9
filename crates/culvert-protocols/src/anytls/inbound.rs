//! The server: checks who the client is, then serves the streams of its session.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::inbound::anytls::AnyTlsInbound;
use culvert_core::conn::read_chain;
use culvert_core::handshake::read_message;
use culvert_core::{
    BoxStream, DialOutcome, Dispatch, Handshake, Incoming, Io, ServeError, Session, SessionId, StreamServer,
};
use culvert_wire::{AddressCodec, BufChain, Room};

use super::codec::{KEY_LEN, key};
use super::padding::{DEFAULT, Scheme};
use super::session::{Driver, FAILED, Fault, OPENED};
use crate::BuildError;
use crate::handshake::{foreign_or, turn_away};
use crate::onward::Onward;
use crate::stranger::Stranger;
use crate::users::{KeyedUsers, Known};

/// Serves AnyTLS.
pub(super) struct AnyTlsServer {
    users: KeyedUsers<KEY_LEN>,
    scheme: Arc<Scheme>,
    opener: Arc<Opener>,
}

impl AnyTlsServer {
    pub(super) fn new(options: &AnyTlsInbound, udp_timeout: Option<Duration>) -> Result<Self, BuildError> {
        let mut users = KeyedUsers::default();
        for user in &options.users {
            users.insert(key(user.password.as_bytes()), &user.name);
        }
        let text = options.padding_scheme.join("\n");
        let scheme = Scheme::parse(if text.is_empty() { DEFAULT } else { &text });
        let scheme = scheme.ok_or_else(|| BuildError::Invalid {
            option: "padding_scheme",
            reason: "has no line `stop=N`".to_owned(),
        })?;
        Ok(Self { users, scheme: Arc::new(scheme), opener: Arc::new(Opener { udp_timeout }) })
    }

    /// Reads the login, padding and all. What was read too far stays in `early`.
    async fn authenticate(&self, conn: &mut BoxStream, early: &mut BufChain) -> Result<Known, ServeError> {
        let mut key = [0; KEY_LEN];
        read_at_least(conn, early, KEY_LEN).await?;
        early.peek(&mut key);
        let known = self.users.find(&key).ok_or(ServeError::Denied("wrong password"))?;
        early.advance(KEY_LEN);
        let mut padding = [0; 2];
        read_at_least(conn, early, padding.len()).await?;
        early.peek(&mut padding);
        early.advance(padding.len());
        let mut padding = usize::from(u16::from_be_bytes(padding));
        while padding > 0 {
            read_at_least(conn, early, 1).await?;
            let here = early.len().min(padding);
            early.advance(here);
            padding -= here;
        }
        Ok(known)
    }
}

#[async_trait]
impl StreamServer for AnyTlsServer {
    async fn serve(
        &self,
        conn: BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        let mut stranger = Stranger::outside_tls(conn);
        let conn = stranger.conn()?;
        let known = match self.authenticate(conn, &mut early).await {
            Ok(known) => known,
            Err(error) => {
                turn_away(conn).await;
                return Err(foreign_or(&early, error));
            }
        };
        let conn = stranger.known()?;
        drop(handshake);
        session.user = known.name;
        let _counts = culvert_core::crowd::Member::default();
        let mut driver = Driver::server(conn, early, Arc::clone(&self.scheme));
        // Held while there is no stream.
        let mut place = None;
        let outcome = poll_fn(|cx| {
            let polled = driver.poll(cx);
            for stream in driver.take_opened() {
                let opener = Arc::<Opener>::clone(&self.opener);
                let session = Session { id: SessionId::next(), ..session.clone() };
                dispatch.serve(opener, Box::new(stream), session);
            }
            if polled.is_ready() {
                return polled;
            }
            if !driver.is_idle() {
                place = None;
                return Poll::Pending;
            }
            let place = place.get_or_insert_with(|| dispatch.waiting().enter(session.source.ip()));
            pin!(place.evicted()).poll(cx).map(Ok)
        });
        let outcome = outcome.await;
        driver.end(&outcome).await;
        match outcome {
            Ok(()) => Ok(()),
            Err(Fault::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(()),
            Err(Fault::Io(error)) => Err(error.into()),
            Err(Fault::Protocol(what)) => Err(ServeError::Denied(what)),
            Err(Fault::Alert(_)) => Ok(()),
        }
    }
}

/// Serves one stream of a session.
struct Opener {
    udp_timeout: Option<Duration>,
}

#[async_trait]
impl StreamServer for Opener {
    async fn serve(
        &self,
        mut conn: BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        let decode = |r: &mut culvert_wire::Reader<'_>| AddressCodec::SOCKS.decode(r);
        session.target = read_message(&mut conn, &mut early, MAX_ADDRESS, decode).await?;
        drop(handshake);
        let (io, udp_timeout) = (Io::Stream(conn), self.udp_timeout);
        ONWARD.submit(Incoming { session, io, early, reply: Some(reply), udp_timeout }, dispatch).await
    }
}

/// Besides plain connections, UDP over TCP.
const ONWARD: Onward = Onward { mux: None, uot: true };

const MAX_ADDRESS: usize = 1 + 1 + 255 + 2;

/// What [`super::session::Stream`] makes a frame of. How a dial failed is told in a few words that name nothing of ours.
fn reply(outcome: &DialOutcome<'_>, out: &mut Vec<u8>) {
    match outcome {
        DialOutcome::Connected(_) => out.push(OPENED),
        DialOutcome::Failed(error) => {
            out.push(FAILED);
            out.extend(error.kind().to_string().bytes());
        }
    }
}

/// Reads until `early` holds so many bytes.
async fn read_at_least(conn: &mut BoxStream, early: &mut BufChain, count: usize) -> Result<(), ServeError> {
    while early.len() < count {
        let mut more = read_chain(conn, Room::NONE).await?;
        if more.is_empty() {
            return Err(ServeError::Left);
        }
        early.append(&mut more);
    }
    Ok(())
}
