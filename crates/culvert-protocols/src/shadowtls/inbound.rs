//! The server: stands between a client and a handshake server until the client shows that it is one of ours.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, ready};

use async_trait::async_trait;
use culvert_config::options::inbound::shadowtls::{ShadowTlsHandshake, ShadowTlsInbound, WildcardSni};
use culvert_core::conn::{Prefixed, read_chain, write_chain};
use culvert_core::{
    BoxStream, Dialer, Dispatch, Handshake, Incoming, Io, ServeError, Session, StreamConn, StreamServer,
    timeouts,
};
use culvert_tls::hello::server_name;
use culvert_wire::{BufChain, DecodeError, Host, Room, Target};

use super::codec::{HANDSHAKE, HEADER, Password, record_len};
use super::conn::{Records, Tags};
use super::server::{Plain, Second, Step, Third, fingerprint};
use crate::BuildError;
use crate::fields::server::server as target;
use crate::table::MakeDialer;
use crate::users::find_in_turns;

/// Users that are tried before other connections have their turn.
const AT_ONCE: usize = 64;
/// Hellos that are remembered. Nobody without a password can add to them.
const REMEMBERED: usize = 16 << 10;
/// Where a site listens that is known by its name only.
const HTTPS: u16 = 443;

pub(super) struct ShadowTlsServer {
    version: Version,
    /// For those whose name leads nowhere else.
    default: Option<Site>,
    by_name: HashMap<String, Site>,
    wildcard: WildcardSni,
    /// Dials sites that are known by their name only.
    dialer: Dialer,
    seen: Mutex<Seen>,
}

/// Hellos that were signed, by their hashes, the last ones.
#[derive(Default)]
struct Seen {
    all: HashSet<[u8; 32]>,
    order: VecDeque<[u8; 32]>,
}

enum Version {
    First,
    Second(Password),
    Third { users: Vec<(Arc<str>, Password)>, strict: bool },
}

/// A handshake server.
#[derive(Clone)]
struct Site {
    dialer: Dialer,
    target: Target,
}

impl ShadowTlsServer {
    pub(super) fn new(options: &ShadowTlsInbound, dialer: MakeDialer<'_>) -> Result<Self, BuildError> {
        let site = |options: &ShadowTlsHandshake| {
            Ok::<_, BuildError>(Site { dialer: dialer(&options.dial)?, target: target(&options.server)? })
        };
        let user = |(index, user): (usize, &culvert_config::options::users::PasswordUser)| {
            let name =
                if user.name.is_empty() { index.to_string().into() } else { user.name.as_str().into() };
            (name, Password::new(&user.password))
        };
        let version = match options.version() {
            1 => Version::First,
            2 => Version::Second(Password::new(&options.password)),
            _ => Version::Third {
                users: options.users.iter().enumerate().map(user).collect(),
                strict: options.strict_mode,
            },
        };
        let mut by_name = HashMap::new();
        for (name, options) in options.handshake_for_server_name.iter() {
            by_name.insert(name.to_owned(), site(options)?);
        }
        let has_default = !options.handshake.server.server.is_empty();
        Ok(Self {
            version,
            default: has_default.then(|| site(&options.handshake)).transpose()?,
            by_name,
            wildcard: options.wildcard_sni,
            dialer: dialer(&options.handshake.dial)?,
            seen: Mutex::default(),
        })
    }

    /// The site for a client that has sent this hello.
    fn site(&self, hello: &[u8], is_ours: bool) -> Option<Site> {
        let name = server_name(hello).and_then(|range| std::str::from_utf8(&hello[range]).ok());
        if let Some(site) = name.and_then(|name| self.by_name.get(name)) {
            return Some(site.clone());
        }
        let by_its_name = matches!(self.version, Version::Third { .. })
            && match self.wildcard {
                WildcardSni::Off => false,
                WildcardSni::Authed => is_ours,
                WildcardSni::All => true,
            };
        if by_its_name && let Some(host) = name.and_then(|name| Host::parse(name).ok()) {
            return Some(Site { dialer: self.dialer.clone(), target: Target { host, port: HTTPS } });
        }
        self.default.clone()
    }

    /// Whether this hello has not been seen before.
    fn is_first(&self, hello: &[u8]) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Seen { all, order } = &mut *seen;
        let print = fingerprint(hello);
        if !all.insert(print) {
            return false;
        }
        order.push_back(print);
        if order.len() > REMEMBERED
            && let Some(oldest) = order.pop_front()
        {
            all.remove(&oldest);
        }
        true
    }
}

/// What the time between client and handshake server came to.
pub(super) enum End {
    /// They have each other.
    Relay,
    /// The client is one of ours.
    Switch(Vec<u8>, Tags),
}

#[async_trait]
impl StreamServer for ShadowTlsServer {
    async fn serve(
        &self,
        conn: BoxStream,
        mut session: Session,
        handshake: Handshake,
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let mut client = Client { conn, read: BufChain::new() };
        let (hello, user) = match &self.version {
            // Nothing in the hello matters, and some servers may even speak first.
            Version::First => (Vec::new(), None),
            Version::Second(_) => (client.hello().await?, None),
            Version::Third { users, .. } => {
                let hello = client.hello().await?;
                let known = find_in_turns(users, AT_ONCE, |user| user.1.signed(&hello).then_some(user)).await;
                (hello.clone(), known.filter(|_| self.is_first(&hello)))
            }
        };
        let Some(site) = self.site(&hello, user.is_some()) else {
            client.conn.abort();
            return Err(ServeError::Denied("no handshake server for this name"));
        };
        let server = match site.dialer.connect(&session, &site.target).await {
            Ok(server) => server,
            Err(error) => {
                client.conn.abort();
                return Err(io::Error::other(error).into());
            }
        };
        let mut middle = Middle::new(client, server);
        let end = match &self.version {
            Version::First => middle.first().await?,
            Version::Second(password) => {
                let between = tokio::time::timeout(timeouts::STRANGER, middle.second(password));
                between.await.unwrap_or(Ok(End::Relay))?
            }
            Version::Third { strict, .. } => match user {
                Some((name, password)) => {
                    session.user = Some(Arc::clone(name));
                    middle.third(password.clone(), *strict).await?
                }
                None => End::Relay,
            },
        };
        drop(handshake);
        let Middle { client, server, from_client, from_server, mut to_client, mut to_server } = middle;
        match end {
            End::Relay => {
                session.target = site.target;
                to_client.append(&mut { from_server });
                to_server.append(&mut { from_client });
                let server = Prefixed::wrap(to_client, server);
                dispatch.join(session, "a stranger of ShadowTLS", client, server, to_server);
            }
            End::Switch(payload, tags) => {
                let conn: BoxStream = match &self.version {
                    Version::First => Prefixed::wrap(from_client, client),
                    _ => Box::new(Records::new(client, tags, from_client, to_client)),
                };
                let (io, early) = (Io::Stream(conn), BufChain::copied(&payload));
                dispatch.submit(Incoming { session, io, early, reply: None, udp_timeout: None });
            }
        }
        Ok(())
    }
}

/// A client before it is known who shakes its hand.
pub(super) struct Client {
    pub(super) conn: BoxStream,
    pub(super) read: BufChain,
}

impl Client {
    /// Its first record, which stays where it is; what there is, if that is none.
    async fn hello(&mut self) -> io::Result<Vec<u8>> {
        let reading = async {
            loop {
                let seen = self.read.contiguous();
                match (seen.first(), record_len(seen)) {
                    (Some(&HANDSHAKE), Ok(len)) if len <= seen.len() => return Ok(seen[..len].to_vec()),
                    (None | Some(&HANDSHAKE), Ok(_) | Err(DecodeError::Incomplete)) => {}
                    _ => return Ok(Vec::new()),
                }
                let mut more = read_chain(&mut self.conn, Room::NONE).await?;
                if more.is_empty() {
                    return Ok(Vec::new());
                }
                self.read.append(&mut more);
            }
        };
        tokio::time::timeout(timeouts::STRANGER, reading).await.unwrap_or_else(|_| Ok(Vec::new()))
    }
}

/// A client, a handshake server, and what is on its way between them.
pub(super) struct Middle {
    client: BoxStream,
    server: BoxStream,
    /// Read and not looked at.
    from_client: BufChain,
    from_server: BufChain,
    /// To be written.
    to_client: BufChain,
    to_server: BufChain,
}

/// What came of waiting for either side.
enum Heard {
    /// One has said something.
    More,
    ClientEnded,
    /// So has the handshake server, or it broke off.
    ServerEnded(io::Result<()>),
}

impl Middle {
    pub(super) fn new(client: Client, server: BoxStream) -> Self {
        let Client { conn: client, read: from_client } = client;
        let [from_server, to_client, to_server] = [(); 3].map(|()| BufChain::new());
        Self { client, server, from_client, from_server, to_client, to_server }
    }

    /// Version 1.
    async fn first(&mut self) -> io::Result<End> {
        let (mut client, mut server) = (Plain::default(), Plain::default());
        let stranger = || io::Error::new(io::ErrorKind::InvalidData, "no handshake of TLS 1.2");
        loop {
            for (from, to, plain) in [
                (&mut self.from_client, &mut self.to_server, &mut client),
                (&mut self.from_server, &mut self.to_client, &mut server),
            ] {
                while !plain.done
                    && let Some(record) = take_record(from).map_err(|_| stranger())?
                {
                    if !plain.passes(&record) {
                        return Err(stranger());
                    }
                    to.append_copy(&record);
                }
            }
            if client.done && server.done {
                self.flush().await?;
                return Ok(End::Switch(Vec::new(), Tags::First(None)));
            }
            match self.hear().await? {
                Heard::More => {}
                Heard::ClientEnded => return Err(io::ErrorKind::UnexpectedEof.into()),
                Heard::ServerEnded(outcome) => {
                    self.break_off_with(outcome)?;
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }

    /// Version 2.
    async fn second(&mut self, password: &Password) -> io::Result<End> {
        let mut state = Second::new(password);
        loop {
            if !self.from_server.is_empty() {
                state.server_says(&self.from_server);
                self.to_client.append(&mut self.from_server);
            }
            if let Some(end) = self.sift_client(|record| state.client_says(record)) {
                return Ok(end);
            }
            match self.hear().await? {
                Heard::More => {}
                Heard::ClientEnded => return Ok(End::Relay),
                Heard::ServerEnded(outcome) => return self.break_off_with(outcome).map(|()| End::Relay),
            }
        }
    }

    /// Version 3, with a client that has signed its hello.
    ///
    /// It may be through with the handshake server before it has anything to say, and a server need not wait for that. So its
    /// end, once it has said hello, is passed on only if the client does not show soon who it is.
    pub(super) async fn third(&mut self, password: Password, strict: bool) -> io::Result<End> {
        let mut state = Third::new(password, strict);
        loop {
            loop {
                match take_record(&mut self.from_server) {
                    Ok(None) => break,
                    Ok(Some(record)) => match state.server_says(record) {
                        Step::Forward(record) => self.to_client.append_copy(&record),
                        Step::Relay(record) | Step::Switch(record, _) => {
                            self.to_client.append_copy(&record);
                            return Ok(End::Relay);
                        }
                    },
                    Err(_) => return Ok(End::Relay),
                }
            }
            if let Some(end) = self.sift_client(|record| state.client_says(record)) {
                return Ok(end);
            }
            match self.hear().await? {
                Heard::More => {}
                Heard::ClientEnded => return Ok(End::Relay),
                Heard::ServerEnded(outcome) if state.has_begun() => {
                    let last = tokio::time::timeout(timeouts::STRANGER, self.client_alone(&state));
                    return match last.await {
                        Ok(Ok(Some(end))) => Ok(end),
                        Ok(Err(error)) => Err(error),
                        Ok(Ok(None)) | Err(_) => self.break_off_with(outcome).map(|()| End::Relay),
                    };
                }
                Heard::ServerEnded(outcome) => return self.break_off_with(outcome).map(|()| End::Relay),
            }
        }
    }

    /// The rest of version 3 where the handshake server is gone. `None` at the end of the client.
    async fn client_alone(&mut self, state: &Third) -> io::Result<Option<End>> {
        loop {
            if let Some(end) = self.sift_client(|record| state.client_says(record)) {
                return Ok(Some(end));
            }
            write_chain(&mut self.client, &mut self.to_client).await?;
            let mut data = read_chain(&mut self.client, Room::NONE).await?;
            if data.is_empty() {
                return Ok(None);
            }
            self.from_client.append(&mut data);
        }
    }

    /// Takes the client's records apart as far as they are whole.
    fn sift_client(&mut self, mut step: impl FnMut(Vec<u8>) -> Step) -> Option<End> {
        loop {
            match take_record(&mut self.from_client) {
                Ok(None) => return None,
                Ok(Some(record)) => match step(record) {
                    Step::Forward(record) => self.to_server.append_copy(&record),
                    Step::Relay(record) => {
                        self.to_server.append_copy(&record);
                        return Some(End::Relay);
                    }
                    Step::Switch(payload, tags) => return Some(End::Switch(payload, tags)),
                },
                Err(_) => return Some(End::Relay),
            }
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        write_chain(&mut self.server, &mut self.to_server).await?;
        write_chain(&mut self.client, &mut self.to_client).await
    }

    /// Writes what is to be written, and reads what either has said.
    async fn hear(&mut self) -> io::Result<Heard> {
        let written = write_chain(&mut self.server, &mut self.to_server).await;
        write_chain(&mut self.client, &mut self.to_client).await?;
        if let Err(error) = written {
            return Ok(Heard::ServerEnded(Err(error)));
        }
        let Self { client, server, from_client, from_server, .. } = self;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(data) = server.poll_read_chain(cx, Room::NONE) {
                return Poll::Ready(Ok(match data {
                    Ok(data) if data.is_empty() => Heard::ServerEnded(Ok(())),
                    Ok(mut data) => {
                        from_server.append(&mut data);
                        Heard::More
                    }
                    Err(error) => Heard::ServerEnded(Err(error)),
                }));
            }
            let mut data = ready!(client.poll_read_chain(cx, Room::NONE)).inspect_err(|_| server.abort())?;
            if data.is_empty() {
                return Poll::Ready(Ok(Heard::ClientEnded));
            }
            from_client.append(&mut data);
            Poll::Ready(Ok(Heard::More))
        })
        .await
    }

    /// A handshake server that broke off is a broken connection for the client, too.
    fn break_off_with(&mut self, outcome: io::Result<()>) -> io::Result<()> {
        outcome.inspect_err(|_| self.client.abort())
    }
}

/// The record at the front, if it is whole.
fn take_record(from: &mut BufChain) -> Result<Option<Vec<u8>>, DecodeError> {
    let mut head = [0; HEADER];
    let seen = from.peek(&mut head);
    match record_len(&head[..seen]) {
        Ok(len) if len <= from.len() => Ok(Some(from.take_front(len).to_vec())),
        Ok(_) | Err(DecodeError::Incomplete) => Ok(None),
        Err(error) => Err(error),
    }
}
