//! The server: what becomes of a session, and of the streams in it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::mux::{InboundMux, MuxProtocol};
use culvert_core::conn::{finish, write_chain};
use culvert_core::handshake::read_message;
use culvert_core::timeouts::{HANDSHAKE, MUX_IDLE_SERVER};
use culvert_core::{
    BoxStream, DialOutcome, Dispatch, Handshake, Incoming, Io, Network, ServeError, Session, SessionId,
    StreamConn, StreamServer,
};
use culvert_wire::{AddressCodec, BufChain, DecodeError, Reader, Target};

use super::brutal::{self, Speeds};
use super::codec::{Kind, MAX_REQUEST, MAX_START, Request, Response, Start};
use super::conn::Answering;
use super::frame::Wire;
use super::padding::Padded;
use super::session::Driver;
use super::stream::Link;
use super::{Event, MAX_STREAMS, h2, is_sign};
use crate::BuildError;
use crate::handshake::send;
use crate::onward::Onward;
use crate::uot::UotConn;

/// The server.
pub(crate) struct Server {
    /// Sessions without padding are refused.
    padded_only: bool,
    brutal: Option<Speeds>,
}

impl Server {
    /// The server that the options ask for, if they do.
    pub(crate) fn new(options: Option<&InboundMux>) -> Result<Option<Self>, BuildError> {
        Ok(options.filter(|options| options.enabled).map(|options| Self {
            padded_only: options.padding,
            brutal: Speeds::new(options.brutal.as_ref()),
        }))
    }

    /// Serves the connections inside one, until that ends. `uot` says whether they may be UDP over TCP.
    ///
    /// # Errors
    /// What is inside is no session, or it broke the rules.
    pub(crate) async fn serve(
        &self,
        mut incoming: Incoming,
        uot: bool,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let Io::Stream(mut conn) = incoming.io else {
            return Err(ServeError::Invalid("multiplexing over datagrams"));
        };
        let reply = incoming.reply.take();
        let mut early = incoming.early;
        let starting = async {
            if let Some(reply) = reply {
                let mut bytes = Vec::new();
                reply(&DialOutcome::Connected(conn.local_addr()), &mut bytes);
                write_chain(&mut conn, &mut BufChain::copied(&bytes)).await?;
            }
            read_message(&mut conn, &mut early, MAX_START, Start::decode).await
        };
        let start = tokio::time::timeout(HANDSHAKE, starting).await;
        let start = start.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
        if self.padded_only && !start.padded {
            conn.abort();
            return Err(ServeError::Denied("multiplexing without padding"));
        }
        let brutal = self.brutal.map(|speeds| (speeds, brutal::Socket::of(&*conn)));
        if start.padded {
            conn = Box::new(Padded::new(conn, std::mem::take(&mut early), &[]));
        }
        let streams = Arc::new(Streams { uot, brutal, udp_timeout: incoming.udp_timeout });
        let session = open(start.protocol, conn, early).await?;
        drive(session, &incoming.session, streams, dispatch).await
    }
}

/// Serves the streams of a connection that is smux from its first byte on; `streams` is given each of them.
///
/// # Errors
/// What is inside is no smux.
pub(crate) async fn serve_smux(
    conn: BoxStream,
    early: BufChain,
    carrier: &Session,
    streams: Arc<dyn StreamServer>,
    dispatch: &Dispatch,
) -> Result<(), ServeError> {
    drive(open(MuxProtocol::Smux, conn, early).await?, carrier, streams, dispatch).await
}

/// A session of either kind.
enum Driving {
    Frames(Box<Driver>),
    H2(Box<h2::Server>),
}

async fn open(protocol: MuxProtocol, conn: BoxStream, early: BufChain) -> io::Result<Driving> {
    let wire = match protocol {
        MuxProtocol::Smux => Wire::Smux,
        MuxProtocol::Yamux => Wire::Yamux,
        MuxProtocol::H2Mux => {
            let opening = h2::Server::new(conn, early, MUX_IDLE_SERVER);
            let session = tokio::time::timeout(HANDSHAKE, opening).await;
            let session = session.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
            return Ok(Driving::H2(Box::new(session)));
        }
    };
    let link = Link::new(wire, false);
    Ok(Driving::Frames(Box::new(Driver::new(link, conn, &[], early, MAX_STREAMS, MUX_IDLE_SERVER))))
}

impl Driving {
    async fn next(&mut self) -> Event {
        match self {
            Self::Frames(driver) => driver.next().await,
            Self::H2(session) => session.next().await,
        }
    }

    async fn close(self) {
        match self {
            Self::Frames(driver) => driver.close().await,
            Self::H2(session) => session.close().await,
        }
    }
}

/// Serves the streams of a session. While it has none it is one of those that wait, and may have to make room.
async fn drive(
    mut driving: Driving,
    carrier: &Session,
    streams: Arc<dyn StreamServer>,
    dispatch: &Dispatch,
) -> Result<(), ServeError> {
    let _counts = culvert_core::crowd::Member::default();
    let client = carrier.source.ip();
    let mut place = Some(dispatch.waiting().enter(client));
    loop {
        let event = match &mut place {
            None => driving.next().await,
            Some(place) => tokio::select! {
                event = driving.next() => event,
                () = place.evicted() => Event::Unused,
            },
        };
        match event {
            Event::Opened(mut conn) => {
                place = None;
                if dispatch.is_full() && !dispatch.make_room() {
                    conn.abort();
                    continue;
                }
                let session = Session { id: SessionId::next(), sniffed: None, ..carrier.clone() };
                dispatch.serve(Arc::clone(&streams), conn, session);
            }
            Event::Idle => place = Some(dispatch.waiting().enter(client)),
            Event::Unused => {
                driving.close().await;
                return Ok(());
            }
            Event::Ended(error) => {
                tracing::debug!(conn = carrier.id.get(), "multiplexed connection ended: {error}");
                return match error.kind() {
                    io::ErrorKind::InvalidData => Err(error.into()),
                    _ => Ok(()),
                };
            }
        }
    }
}

/// The server of a session's streams.
struct Streams {
    uot: bool,
    brutal: Option<(Speeds, brutal::Socket)>,
    udp_timeout: Option<Duration>,
}

#[async_trait]
impl StreamServer for Streams {
    async fn serve(
        &self,
        mut conn: BoxStream,
        mut session: Session,
        _handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut early = BufChain::new();
        let request = read_message(&mut conn, &mut early, MAX_REQUEST, Request::decode).await;
        let Request { kind, mut target } = request.inspect_err(|_| conn.abort())?;
        if kind == Kind::Tcp && brutal::is_sign(&target) {
            let own = self.brutal.as_ref().map(|(speeds, socket)| (*speeds, socket));
            brutal::answer(&mut conn, early, own).await?;
            finish(&mut conn).await;
            return Ok(());
        }
        let io = match kind {
            Kind::Tcp if is_sign(&target) => {
                let mut answer = Vec::new();
                let reason = "multiplexing inside multiplexing";
                Response::Failed(format!("{reason} is not supported")).encode(&mut answer);
                send(&mut conn, &answer).await?;
                finish(&mut conn).await;
                return Err(ServeError::Unsupported(reason));
            }
            Kind::Tcp => Io::Stream(Box::new(Answering::to_be_told(conn))),
            Kind::Connected => {
                let early = std::mem::take(&mut early);
                let packets = UotConn::server(Box::new(Answering::good(conn)), early, Some(target.clone()));
                Io::Packets(Box::new(packets))
            }
            Kind::Packets => {
                if is_sign(&target) {
                    // The client did not know it yet when it opened the stream.
                    target = read_message(&mut conn, &mut early, MAX_REQUEST, peek_peer).await?;
                }
                let early = std::mem::take(&mut early);
                let packets = UotConn::server(Box::new(Answering::good(conn)), early, None);
                Io::Packets(Box::new(packets.with_addresses(AddressCodec::SOCKS)))
            }
        };
        let reply = match kind {
            Kind::Tcp => Some(reply as culvert_core::Reply),
            Kind::Connected | Kind::Packets => None,
        };
        session.network = if kind == Kind::Tcp { Network::Tcp } else { Network::Udp };
        session.target = target;
        let incoming = Incoming { session, io, early, reply, udp_timeout: self.udp_timeout };
        Box::pin(Onward { mux: None, uot: self.uot }.submit(incoming, dispatch)).await
    }
}

/// What the client of a stream is told. Why a dial failed is said in general words: the rest is for our log.
fn reply(outcome: &DialOutcome<'_>, out: &mut Vec<u8>) {
    match outcome {
        DialOutcome::Connected(_) => Response::Connected.encode(out),
        DialOutcome::Failed(error) => Response::Failed(error.kind().to_string()).encode(out),
    }
}

/// Where the first packet goes; it stays where it is.
fn peek_peer(r: &mut Reader<'_>) -> Result<Target, DecodeError> {
    AddressCodec::SOCKS.decode(&mut r.clone())
}
