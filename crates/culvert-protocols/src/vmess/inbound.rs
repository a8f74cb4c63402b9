//! The server: finds out who the client is and what it wants, then gives the connection away whole.
//!
//! # What a stranger sees
//!
//! A plain connection ends with a reset, one inside TLS as TLS ends, and no byte is sent before. sing-box resets as soon as
//! the first read shows that nobody is meant, which tells a prober at which byte it was found out. So here, as with Xray,
//! what comes is read on and forgotten up to a number of bytes that is the server's own and not the prober's; a connection
//! on which less comes stays open until the time of its handshake is over, which then ends it in the same way.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::conn::read_chain;
use culvert_core::handshake::read_message;
use culvert_core::{
    BoxPackets, BoxStream, Dispatch, Half, Handshake, Incoming, Io, Network, ServeError, Session,
    StreamServer, timeouts,
};
use culvert_wire::{BufChain, DecodeError, Reader, Room};
use tokio::io::AsyncWriteExt;

use super::cfb::Cfb;
use super::chunk::Direction;
use super::codec::{Command, MAX_REQUEST, Request, RequestOpener, Security, response, seal_response};
use super::conn::{Ends, Head, Reading, VmessConn, Writing};
use super::keys::random;
use super::packets::VmessPackets;
use super::users::{Login, Refusal, Users};
use super::{legacy, unix_now};
use crate::handshake::foreign_or;
use crate::mux_cool;
use crate::onward::Onward;
use crate::packetaddr::{self, PacketAddrConn};
use crate::stranger::Stranger;

/// Who does not get in is read from on, up to so many bytes: this many and what the users' keys make of [`DRAIN_SPREAD`],
/// and what chance makes of [`DRAIN_CHANCE`]. Xray does so with the same numbers, and its reasons are ours: wherever a
/// prober's bytes went wrong, the connection ends at the same place.
const DRAIN_LEAST: usize = 54;
const DRAIN_SPREAD: u64 = 3267;
const DRAIN_CHANCE: u8 = 64;

/// Serves VMess.
pub(super) struct VmessServer {
    users: Users,
    onward: Onward,
    udp_timeout: Option<Duration>,
    /// See [`DRAIN_LEAST`].
    drain: usize,
    clock: fn() -> u64,
}

impl VmessServer {
    pub(super) fn new(users: Users, onward: Onward, udp_timeout: Option<Duration>) -> Self {
        let drain = DRAIN_LEAST + (users.seed() % DRAIN_SPREAD) as usize;
        Self { users, onward, udp_timeout, drain, clock: unix_now }
    }

    #[cfg(test)]
    pub(super) fn with_clock(self, clock: fn() -> u64) -> Self {
        Self { clock, ..self }
    }

    /// Reads the header. What was read too far stays in `early`; so does everything when it fails.
    async fn authenticate(
        &self,
        conn: &mut BoxStream,
        early: &mut BufChain,
    ) -> Result<(Login, Request), ServeError> {
        let mut step = Step::Id;
        let request = read_message(conn, early, MAX_REQUEST, |r| self.open(&mut step, r)).await;
        match (request, step) {
            (Ok(found), _) => Ok(found),
            (Err(ServeError::Invalid(_)), Step::Refused(refusal)) => {
                Err(ServeError::Denied(refusal.reason()))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Goes on from the step where more bytes were needed.
    fn open(&self, step: &mut Step, r: &mut Reader<'_>) -> Result<(Login, Request), DecodeError> {
        let id = r.array()?;
        if let Step::Id = step {
            *step = match self.users.identify(&id, (self.clock)()) {
                Ok(login) => Step::Known(login, RequestOpener::new(login.command_key, id)),
                Err(refusal) => Step::Refused(refusal),
            };
        }
        let Step::Known(login, opener) = step else { return Err(DecodeError::Invalid("request")) };
        let login = *login;
        let request = if login.legacy {
            legacy::open_request(r, login.command_key, login.time)?
        } else {
            opener.open(r)?
        };
        if let Err(refusal) = self.users.note_keys(&login, &request.keys, (self.clock)()) {
            *step = Step::Refused(refusal);
            return Err(DecodeError::Invalid("request"));
        }
        Ok((login, request))
    }

    /// Says nothing, reads on as far as with anybody who does not get in, then breaks off. In TLS that looks like any end.
    async fn turn_away(&self, conn: &mut BoxStream, read: usize) {
        let [chance] = random();
        let mut rest = (self.drain + usize::from(chance % DRAIN_CHANCE)).saturating_sub(read);
        while rest > 0 {
            match read_chain(conn, Room::NONE).await {
                Ok(more) if !more.is_empty() => rest = rest.saturating_sub(more.len()),
                _ => break,
            }
        }
        if conn.kernel_socket(Half::Write).is_some() {
            conn.abort();
        } else {
            let _ = tokio::time::timeout(timeouts::SHUTDOWN, conn.shutdown()).await;
        }
    }
}

/// How far a client has come.
enum Step {
    Id,
    Known(Login, RequestOpener),
    Refused(Refusal),
}

#[async_trait]
impl StreamServer for VmessServer {
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
        let (login, request) = match self.authenticate(conn, &mut early).await {
            Ok(found) => found,
            Err(error) => {
                let error = foreign_or(&early, error);
                if !matches!(error, ServeError::Left | ServeError::Io(_)) {
                    let read = early.len();
                    drop(early);
                    self.turn_away(conn, read).await;
                }
                return Err(error);
            }
        };
        let conn = stranger.known()?;
        session.user = Some(self.users.name(&login));
        if let Some(target) = &request.target {
            session.target = target.clone();
        }
        let (command, udp_timeout) = (request.command, self.udp_timeout);
        let ends = ends(conn, &request, login.legacy, early);
        match command {
            Command::Tcp => {
                drop(handshake);
                let mut conn = VmessConn::new(ends);
                let early = conn.take_early();
                let io = Io::Stream(Box::new(conn));
                let incoming = Incoming { session, io, early, reply: None, udp_timeout };
                self.onward.submit(incoming, dispatch).await
            }
            Command::Udp => {
                session.network = Network::Udp;
                let mut packets: BoxPackets = Box::new(VmessPackets::new(ends, session.target.clone()));
                if packetaddr::is_sign(&session.target) {
                    let first = packetaddr::first(Box::new(PacketAddrConn::new(packets))).await;
                    (session.target, packets) = first.map_err(|error| match error.kind() {
                        io::ErrorKind::UnexpectedEof => ServeError::Left,
                        _ => error.into(),
                    })?;
                }
                let (io, early) = (Io::Packets(packets), BufChain::new());
                dispatch.submit(Incoming { session, io, early, reply: None, udp_timeout });
                Ok(())
            }
            Command::Mux => {
                let mut conn = VmessConn::new(ends);
                let early = conn.take_early();
                mux_cool::serve(Box::new(conn), early, session, udp_timeout, handshake, dispatch).await
            }
        }
    }
}

/// Both directions behind a request; `read` came behind its header.
fn ends(lower: BoxStream, request: &Request, legacy: bool, read: BufChain) -> Ends {
    let up = Direction { request, keys: &request.keys, cfb: None };
    let reading = Reading::body(up.opening(), read);
    let (keys, bytes, cfb) = if legacy {
        let keys = request.keys.legacy_response();
        let mut bytes = response(request.check, request.options).to_vec();
        let mut cfb = Cfb::new(&keys);
        cfb.encrypt(&mut bytes);
        (keys, bytes, Some(Box::new(cfb)).filter(|_| request.security == Security::Aes128Cfb))
    } else {
        let keys = request.keys.response();
        let bytes = seal_response(&keys, request.check, request.options);
        (keys, bytes, None)
    };
    let down = Direction { request, keys: &keys, cfb };
    Ends { lower, reading, writing: Writing::new(down.sealing(), Head { bytes, waits: true }) }
}
