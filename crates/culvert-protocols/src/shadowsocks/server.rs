//! The server of streams: finds out who the client is, then gives the connection away whole.
//!
//! # What a stranger sees
//!
//! | edition | of anything that does not open |
//! |---|---|
//! | 2022 | a reset at once, also where the first read brings less than the first header: the spec wants one read |
//! | AEAD | nothing until a limit that is drawn at the start, then a reset; the same where too little comes |
//! | none | a reset |
//!
//! So neither the time nor the number of bytes after which something happens tells what was wrong. sing-box resets at once
//! in the first AEAD edition too, but at the byte that completes the first length.
//!
//! A salt is looked for when the first header or length has opened, so that a copy is sent away like a stranger, and kept
//! only when all that leads to the target has: a damaged copy that comes first does not turn the genuine one away.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::conn::read_chain;
use culvert_core::handshake::read_message;
use culvert_core::{
    BoxStream, Dispatch, Handshake, Incoming, Io, ServeError, Session, StreamServer, timeouts,
};
use culvert_wire::{AddressCodec, BufChain, DecodeError, Reader, Room};
use tokio::time::Instant;

use super::cipher::{BLOCK, Cipher, Key, LENGTH, MAX_CHUNK, MAX_CHUNK_2022, Opener, Stream, TAG};
use super::codec::{
    MAX_ADDRESS, REQUEST_HEAD, Salt, decode_request, decode_request_head, open_identity, random_padding,
};
use super::conn::{Answer, ShadowConn, unix_now};
use super::key::Secret;
use super::replay::{RecentSalts, Salts};
use super::users::{User, Users};
use crate::chunks::{Fault, Open, Reading};
use crate::handshake::foreign;
use crate::onward::Onward;
use crate::stranger::Stranger;
use crate::users::find_in_turns;

/// Who may use an inbound, and how it is proved.
pub(super) enum Access {
    /// Everybody.
    None,
    /// Whoever has sealed with a user's key.
    Aead { cipher: Cipher, users: Arc<Users> },
    /// Whoever has sealed with the key, or with a user's and said whose under the key.
    Edition2022 { cipher: Cipher, key: Arc<Secret>, users: Option<Arc<Users>> },
}

/// The server.
pub(super) struct Server {
    access: Arc<Access>,
    onward: Onward,
    udp_timeout: Option<Duration>,
    salts: Mutex<Salts>,
    recent: Mutex<RecentSalts>,
}

impl Server {
    pub(super) fn new(access: Arc<Access>, onward: Onward, udp_timeout: Option<Duration>) -> Self {
        Self { access, onward, udp_timeout, salts: Mutex::default(), recent: Mutex::default() }
    }

    async fn open_none(&self, conn: &mut BoxStream) -> Result<Opened, ServeError> {
        let mut early = BufChain::new();
        let decode = |r: &mut Reader<'_>| AddressCodec::SOCKS.decode(r);
        let target = read_message(conn, &mut early, MAX_ADDRESS, decode).await?;
        Ok(Opened { target, user: None, early, inside: None })
    }

    /// The first AEAD edition. What does not open is read on, unopened, until the limit.
    async fn open_aead(
        &self,
        cipher: Cipher,
        users: &Users,
        conn: &mut BoxStream,
    ) -> Result<Opened, ServeError> {
        let limit = Instant::now() + patience();
        let opening = async {
            match self.try_open_aead(cipher, users, conn).await {
                Err(error @ (ServeError::Left | ServeError::Io(_))) => Err(error),
                Err(error) => {
                    drain(conn, limit).await;
                    Err(error)
                }
                opened => opened,
            }
        };
        let late = ServeError::Denied("client took too long to send what it must send first");
        tokio::time::timeout_at(limit, opening).await.unwrap_or(Err(late))
    }

    async fn try_open_aead(
        &self,
        cipher: Cipher,
        users: &Users,
        conn: &mut BoxStream,
    ) -> Result<Opened, ServeError> {
        let salt_len = cipher.key_len();
        let mut raw = BufChain::new();
        let first = read_message(conn, &mut raw, salt_len + LENGTH, |r| {
            r.take(salt_len + LENGTH).map(<[u8]>::to_vec)
        })
        .await?;
        let (salt, length) = first.split_at(salt_len);
        let (user, stream, len) = find_user(cipher, users, salt, length)
            .await
            .ok_or_else(|| unsealed(salt, "first bytes that no user can have sealed"))?;
        if !lock(&self.recent).is_new(salt) {
            return Err(SEEN);
        }
        let mut reading = Reading::within(Opener::new(stream, MAX_CHUNK), raw, len);
        let mut early = BufChain::new();
        let target = loop {
            early.append(&mut reading.open(Room::NONE).map_err(fault)?);
            let mut r = Reader::new(early.contiguous());
            match AddressCodec::SOCKS.decode(&mut r) {
                Ok(target) => {
                    let used = r.position();
                    early.advance(used);
                    break target;
                }
                Err(DecodeError::Incomplete) => reading.take_in(read_more(conn).await?),
                Err(error) => return Err(error.into()),
            }
        };
        if !lock(&self.recent).insert(salt) {
            return Err(SEEN);
        }
        let inside = Some((cipher, reading, Answer::Aead(user.key.clone())));
        Ok(Opened { target, user: Some(user), early, inside })
    }

    /// The 2022 edition.
    async fn open_2022(
        &self,
        cipher: Cipher,
        key: &Arc<Secret>,
        users: Option<&Users>,
        conn: &mut BoxStream,
    ) -> Result<Opened, ServeError> {
        let salt_len = cipher.key_len();
        let mut raw = read_more(conn).await?;
        let identity = if users.is_some() { BLOCK } else { 0 };
        if raw.len() < salt_len + identity + REQUEST_HEAD {
            return Err(ServeError::Denied("less than a header in the first segment"));
        }
        raw.contiguous();
        let mut piece = raw.pop_front().ok_or(ServeError::Left)?;
        let salt = Salt::received(&piece[..salt_len]);
        piece.advance(salt_len);
        let user = match users {
            None => Arc::new(User { name: None, key: (**key).clone() }),
            Some(users) => {
                let block = *piece.first_chunk().ok_or(ServeError::Left)?;
                piece.advance(BLOCK);
                let hash = open_identity(key, salt.bytes(), block);
                let user = hash.and_then(|hash| users.now().by_hash(&hash).cloned());
                user.ok_or(ServeError::Denied("unknown user"))?
            }
        };
        let mut stream = Stream::new(Key::new(cipher, user.key.session_subkey(salt.bytes()).bytes()));
        let opened = stream.open_region(&mut piece[..REQUEST_HEAD]);
        opened.map_err(|_| unsealed(salt.bytes(), "bytes that were not sealed with the key"))?;
        let now = unix_now();
        let (time, len) = decode_request_head(&piece[..REQUEST_HEAD], now)?;
        if !lock(&self.salts).is_new(salt.bytes()) {
            return Err(SEEN);
        }
        piece.advance(REQUEST_HEAD);
        raw.push_front(piece);
        while raw.len() < len + TAG {
            raw.append(&mut read_more(conn).await?);
        }
        raw.contiguous();
        let mut piece = raw.pop_front().ok_or(ServeError::Left)?;
        stream.open_region(&mut piece[..len + TAG]).map_err(fault)?;
        let mut r = Reader::new(&piece[..len]);
        let target = decode_request(&mut r)?;
        if !lock(&self.salts).insert(salt.bytes(), time, now) {
            return Err(SEEN);
        }
        let used = r.position();
        let early;
        if piece.len() == len + TAG {
            piece.truncate(len);
            piece.advance(used);
            early = piece.into();
        } else {
            early = BufChain::copied(&piece[used..len]);
            piece.advance(len + TAG);
            raw.push_front(piece);
        }
        let reading = Reading::new(Opener::new(stream, MAX_CHUNK_2022), raw);
        let answer = Answer::Edition2022(user.key.clone(), salt);
        Ok(Opened { target, user: Some(user), early, inside: Some((cipher, reading, answer)) })
    }
}

/// Why first bytes do not open: the salt, which comes first, may be the beginning of something else.
fn unsealed(salt: &[u8], reason: &'static str) -> ServeError {
    ServeError::Denied(foreign(salt).unwrap_or(reason))
}

const SEEN: ServeError = ServeError::Denied("first bytes that were seen before");

/// A client that has proved itself, and what it wants.
struct Opened {
    target: culvert_wire::Target,
    user: Option<Arc<User>>,
    early: BufChain,
    /// How the rest of the stream is opened and the answer sealed, unless nothing is.
    inside: Option<(Cipher, Reading<Opener>, Answer)>,
}

#[async_trait]
impl StreamServer for Server {
    async fn serve(
        &self,
        conn: BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut stranger = Stranger::new(conn);
        let conn = stranger.conn()?;
        let opened = match &*self.access {
            Access::None => self.open_none(conn).await,
            Access::Aead { cipher, users } => self.open_aead(*cipher, users, conn).await,
            Access::Edition2022 { cipher, key, users } => {
                self.open_2022(*cipher, key, users.as_deref(), conn).await
            }
        };
        let Opened { target, user, early, inside } = opened?;
        let conn = stranger.known()?;
        drop(handshake);
        session.target = target;
        session.user = user.and_then(|user| user.name.clone());
        let conn = match inside {
            None => conn,
            Some((cipher, reading, answer)) => Box::new(ShadowConn::server(conn, cipher, reading, answer)),
        };
        let io = Io::Stream(conn);
        let incoming = Incoming { session, io, early, reply: None, udp_timeout: self.udp_timeout };
        self.onward.submit(incoming, dispatch).await
    }
}

/// How long a client of the first AEAD edition may take: drawn anew for each, and over before the table of handshakes ends
/// it.
fn patience() -> Duration {
    let least = timeouts::HANDSHAKE / 2;
    let more = timeouts::HANDSHAKE - least - timeouts::SWEEP;
    least + Duration::from_millis(random_padding(usize::try_from(more.as_millis()).unwrap_or(1)) as u64)
}

/// Users that are tried before other connections have their turn: between a tenth and a fifth of a millisecond.
const AT_ONCE: usize = 64;

/// Whose key opens the length of the first chunk, with the stream behind it and the length of the chunk's body.
///
/// The protocol leaves nothing but to try each user. Whoever sends garbage makes a server with many of them work, but not its
/// other clients wait.
async fn find_user(
    cipher: Cipher,
    users: &Users,
    salt: &[u8],
    length: &[u8],
) -> Option<(Arc<User>, Stream, usize)> {
    let table = users.now();
    let fits = |user: &Arc<User>| {
        let mut length = <[u8; LENGTH]>::try_from(length).ok()?;
        let stream = Stream::new(Key::new(cipher, user.key.subkey(salt).bytes()));
        let mut opener = Opener::new(stream, MAX_CHUNK);
        let len = opener.head(&mut length).ok()?;
        Some((Arc::clone(user), opener.into_stream(), len))
    };
    find_in_turns(table.all(), AT_ONCE, fits).await
}

/// The next bytes. There are some.
pub(super) async fn read_more(conn: &mut BoxStream) -> Result<BufChain, ServeError> {
    match read_chain(conn, Room::NONE).await {
        Ok(more) if more.is_empty() => Err(ServeError::Left),
        Ok(more) => Ok(more),
        Err(error) => Err(error.into()),
    }
}

/// Reads and forgets until the client ends or the time does.
async fn drain(conn: &mut BoxStream, limit: Instant) {
    let reading = async { while read_more(conn).await.is_ok() {} };
    let _ = tokio::time::timeout_at(limit, reading).await;
}

fn fault(fault: Fault) -> ServeError {
    match fault {
        Fault::Tag => ServeError::Denied("bytes that were not sealed with the key"),
        Fault::Length => ServeError::Invalid("chunk length"),
        Fault::Cut | Fault::Failed => ServeError::Left,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
