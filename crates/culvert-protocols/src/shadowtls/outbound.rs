//! The client: shakes hands with a site, and goes on with the server that stands before it.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use culvert_config::options::outbound::shadowtls::ShadowTlsOutbound;
use culvert_core::conn::{Prefixed, copy_in};
use culvert_core::{
    BoxPackets, BoxStream, DialError, Dialer, Network, Outbound, Session, StreamConn, Tag as OutboundTag,
    timeouts,
};
use culvert_tls::record::Opener;
use culvert_tls::settings::Version;
use culvert_tls::{ClientHello, Connector, TlsConn, options};
use culvert_wire::{BufChain, DecodeError, Room, Target};
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use super::codec::{DATA, FIRST_TAG, HEADER, Password, TAG, Tag, apply, record_len, server_random};
use super::conn::{Records, Residue, Tags};
use crate::fields::server::server;
use crate::handshake::write_error;
use crate::random::below;
use crate::{BuildError, OutboundCx};

const PHASE: &str = "shadowtls handshake";

/// The outbound.
pub(super) struct Client {
    tag: OutboundTag,
    dialer: Dialer,
    server: Target,
    connector: Connector,
    /// The name that a request asks for which only passes the time.
    name: String,
    version: u8,
    password: Password,
}

impl Client {
    pub(super) fn new(options: &ShadowTlsOutbound, cx: OutboundCx) -> Result<Self, BuildError> {
        let server = server(&options.server)?;
        let missing = || BuildError::Invalid { option: "tls", reason: "must be enabled".to_owned() };
        let tls = options.tls.as_deref().filter(|tls| tls.enabled).ok_or_else(missing)?;
        let mut settings = options::client(tls)?;
        if options.version() == 1 {
            (settings.parameters.min_version, settings.parameters.max_version) =
                (Version::Tls12, Version::Tls12);
        }
        let name = settings.server_name.clone().unwrap_or_else(|| server.host.to_string());
        let connector = Connector::new(settings, &server.host, &cx.store)?;
        let password = Password::new(&options.password);
        Ok(Self {
            tag: cx.tag,
            dialer: cx.dialer,
            server,
            connector,
            name,
            version: options.version(),
            password,
        })
    }

    async fn open(&self, session: &Session) -> Result<BoxStream, DialError> {
        let conn = self.dialer.connect(session, &self.server).await?;
        let seen = match self.version {
            1 => Seen::Nothing,
            2 => Seen::All(self.password.tag(&[])),
            _ => Seen::Server { password: self.password.clone(), known: None, is_ours: false },
        };
        let tap = Box::new(Tap { conn, raw: BufChain::new(), ready: BufChain::new(), seen });
        let secured = if self.version == 3 {
            let changed = self.connector.connect_changed(tap, |hello| {
                self.sign(hello);
                Ok(())
            });
            changed.await
        } else {
            self.connector.connect(tap).await
        };
        let (mut tls, facts) = secured?;
        tls.flush().await.map_err(write_error(PHASE))?;
        if self.version == 3 && facts.version == Version::Tls13 && !is_ours(&tls) {
            tokio::spawn(pass_the_time(tls, self.name.clone()));
            let source = io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the handshake server itself has answered: wrong password, or somebody stands between",
            );
            return Err(DialError::Handshake { phase: PHASE, source });
        }
        let (tap, opener) = take_apart(tls).map_err(write_error(PHASE))?;
        let Tap { conn, raw, seen, .. } = tap;
        let none = BufChain::new();
        Ok(match seen {
            Seen::Nothing => Prefixed::wrap(raw, conn),
            Seen::All(tag) => {
                let records = Records::new(conn, Tags::First(Some(tag.now::<FIRST_TAG>())), raw, none);
                Box::new(records.with_residue(sealed_by(opener)))
            }
            Seen::Server { password, known: Some(known), .. } => {
                let read = password.tag(&[&known.random, b"S"]);
                let written = password.tag(&[&known.random, b"C"]);
                let records = Records::new(conn, Tags::Each { read, written }, raw, none);
                Box::new(records.with_residue(tagged_with(known.tag)))
            }
            Seen::Server { known: None, .. } => {
                let source = io::Error::new(io::ErrorKind::InvalidData, "there was no ServerHello");
                return Err(DialError::Handshake { phase: PHASE, source });
            }
        })
    }

    fn sign(&self, hello: &mut ClientHello) {
        let mut message = hello.message().to_vec();
        let at = ClientHello::session_id_at();
        message[at.end - TAG..at.end].fill(0);
        self.password.sign(&mut message);
        let mut id = [0; 32];
        id.copy_from_slice(&message[at]);
        hello.set_session_id(id);
    }
}

#[async_trait]
impl Outbound for Client {
    fn tag(&self) -> &OutboundTag {
        &self.tag
    }

    fn carries(&self, network: Network) -> bool {
        network == Network::Tcp
    }

    async fn dial(&self, session: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        self.open(session).await
    }

    async fn listen_packet(&self, _session: &Session) -> Result<BoxPackets, DialError> {
        Err(DialError::Network(Network::Udp))
    }
}

/// The stream below the TLS of the handshake. It gives one record at a time, so that nothing is read too far, and looks at
/// each.
struct Tap {
    conn: BoxStream,
    /// Read and not looked at.
    raw: BufChain,
    /// A record that is being given.
    ready: BufChain,
    seen: Seen,
}

/// What is seen of the server.
enum Seen {
    Nothing,
    All(Tag),
    Server {
        password: Password,
        known: Option<Known>,
        /// The last data record was one of a server of ours.
        is_ours: bool,
    },
}

struct Known {
    random: [u8; 32],
    mask: [u8; 32],
    tag: Tag,
}

impl Seen {
    /// Looks at a record, which may become another one.
    fn see(&mut self, mut record: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Nothing => {}
            Self::All(tag) => tag.take(&record),
            Self::Server { password, known: known @ None, .. } => {
                // After a request for another hello it is the first random that counts.
                *known = server_random(&record).map(|random| Known {
                    random,
                    mask: password.mask(&random),
                    tag: password.tag(&[&random]),
                });
            }
            Self::Server { known: Some(known), is_ours, .. } => {
                if record[0] == DATA && record.len() >= HEADER + TAG {
                    let (tag, body) = record[HEADER..].split_at(TAG);
                    known.tag.take(body);
                    *is_ours = known.tag.now::<TAG>().ct_eq(tag).into();
                    if *is_ours {
                        let mut body = body.to_vec();
                        apply(&known.mask, &mut body);
                        record.truncate(3);
                        record.extend((body.len() as u16).to_be_bytes());
                        record.extend(body);
                    }
                }
            }
        }
        record
    }
}

impl StreamConn for Tap {
    fn poll_read_chain(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<io::Result<BufChain>> {
        copy_in(self, cx, room)
    }

    fn poll_write_chain(&mut self, cx: &mut Context<'_>, data: &mut BufChain) -> Poll<io::Result<()>> {
        self.conn.poll_write_chain(cx, data)
    }

    fn abort(&mut self) {
        self.conn.abort();
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.conn.local_addr()
    }

    fn outermost_socket(&self) -> Option<&TcpStream> {
        self.conn.outermost_socket()
    }
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ready.is_empty() {
            let mut head = [0; HEADER];
            let seen = this.raw.peek(&mut head);
            match record_len(&head[..seen]) {
                Ok(len) if len <= this.raw.len() => {
                    let record = this.seen.see(this.raw.take_front(len).to_vec());
                    this.ready.append_copy(&record);
                }
                Ok(_) | Err(DecodeError::Incomplete) => {
                    let mut more = ready!(this.conn.poll_read_chain(cx, Room::NONE))?;
                    if more.is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                    this.raw.append(&mut more);
                }
                Err(error) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error))),
            }
        }
        let count = this.ready.peek(to.initialize_unfilled());
        to.advance(count);
        this.ready.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tap {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.conn).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.conn).poll_shutdown(cx)
    }
}

/// Whether a server of ours stood between.
fn is_ours(tls: &TlsConn) -> bool {
    let below: &dyn Any = tls.lower();
    matches!(below.downcast_ref::<Tap>(), Some(Tap { seen: Seen::Server { is_ours: true, .. }, .. }))
}

/// What is below the TLS of the handshake, and what opens records inside it.
fn take_apart(tls: TlsConn) -> io::Result<(Tap, Option<Opener>)> {
    let (lower, opener) = tls.into_parts();
    let lower: Box<dyn Any> = lower;
    let tap = lower.downcast::<Tap>().map_err(|_| io::Error::other("the stream below TLS is another one"))?;
    Ok((*tap, opener))
}

/// Records of the handshake server itself: TLS opens them. They end with the first that it does not open.
fn sealed_by(mut opener: Option<Opener>) -> Residue {
    Box::new(move |record| {
        let opened = opener.as_mut().is_some_and(|opener| {
            let fits = opener.record_len(record) == Ok(Some(record.len()));
            fits && opener.open_into(record, &mut vec![0; opener.space_for(record.len())]).is_ok()
        });
        if !opened {
            opener = None;
        }
        opened
    })
}

/// The same in version 3: their tags go on from those of the handshake.
fn tagged_with(mut tag: Tag) -> Residue {
    Box::new(move |record| {
        let Some((found, body)) = record[HEADER..].split_first_chunk::<TAG>() else { return false };
        tag.take(body);
        tag.now::<TAG>().ct_eq(found).into()
    })
}

/// Does what a browser would do that has reached the site whose name it asked for.
async fn pass_the_time(mut tls: TlsConn, name: String) {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let len = 16 + below(48);
    let cookie: String = (0..len).map(|_| LETTERS[below(LETTERS.len() as u32) as usize] as char).collect();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {name}\r\nUser-Agent: Mozilla/5.0\r\nAccept: text/html\r\n\
         Connection: close\r\nCookie: sessionid={cookie}\r\n\r\n"
    );
    let _ = tokio::time::timeout(timeouts::HANDSHAKE, async {
        tls.write_all(request.as_bytes()).await?;
        tls.flush().await?;
        tokio::io::copy(&mut (&mut tls).take(1 << 20), &mut tokio::io::sink()).await?;
        tls.shutdown().await
    })
    .await;
}

/// Shows no password.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", Arc::clone(&self.tag.name))
    }
}
