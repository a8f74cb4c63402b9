//! One request, one response.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use culvert_core::{BoxStream, Dialer, Network, Session, SessionId, Tag, timeouts};
use culvert_tls::{Connector, Facts, Securing, SettingsError, Store, TlsConn, TlsError};
use culvert_wire::{Host, Target};
use http::{HeaderName, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

use crate::error::HttpError;
use crate::link::{Link, Unanswered};
use crate::pool::{self, Pool, Slot};
use crate::settings::{Settings, Version};
use crate::url::Server;

/// From the request to the head of the response.
const HEAD: Duration = Duration::from_secs(30);
/// From one piece of a body to the next.
const BODY: Duration = Duration::from_secs(30);
/// From the end of a response until the connection takes the next request.
const READY: Duration = Duration::from_millis(50);
/// What we call ourselves where the options say nothing.
const USER_AGENT: &str = concat!("culvert/", env!("CARGO_PKG_VERSION"));

/// How much one exchange may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest body of a response, in bytes.
    pub body: usize,
    /// Longest time for all of it: dial, handshake, request, response.
    pub total: Duration,
}

/// A client. Cheap to clone; the clones share their connections.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    tag: Tag,
    settings: Settings,
    dialer: Dialer,
    tls: Securing,
    pool: Pool,
}

impl Client {
    /// A client that dials by `dialer`; `store` says whom to trust where the settings name nobody. `tag` is whose requests
    /// these are, for those who see them pass.
    ///
    /// # Errors
    /// The TLS settings cannot be used.
    pub fn new(
        tag: Tag,
        mut settings: Settings,
        dialer: Dialer,
        store: &Arc<Store>,
    ) -> Result<Self, SettingsError> {
        let alpn = &mut settings.tls.parameters.alpn;
        if alpn.is_empty() {
            let both = match settings.version {
                Version::Http1 => &["http/1.1"][..],
                Version::Http2 if settings.strict_version => &["h2"],
                Version::Http2 => &["h2", "http/1.1"],
            };
            alpn.extend(both.iter().map(|&name| name.to_owned()));
        }
        // Whom it is for is said with each connection, unless the settings do.
        let nobody = Host::from(std::net::IpAddr::from(Ipv4Addr::UNSPECIFIED));
        let tls = Securing::for_many(Connector::new(settings.tls.clone(), &nobody, store)?);
        Ok(Self(Arc::new(Inner { tag, settings, dialer, tls, pool: Pool::default() })))
    }

    /// The same client over connections of its own: for when those of this one may be dead.
    #[must_use]
    pub fn with_own_connections(&self) -> Self {
        let Inner { tag, settings, dialer, tls, pool: _ } = &*self.0;
        Self(Arc::new(Inner {
            tag: tag.clone(),
            settings: settings.clone(),
            dialer: dialer.clone(),
            tls: tls.clone(),
            pool: Pool::default(),
        }))
    }

    /// Sends a request, whose URL is absolute, and reads the response. Any status is a response, and redirects are not
    /// followed; see [`Client::fetch`].
    ///
    /// # Errors
    /// Why there is no response.
    pub async fn send(&self, request: Request<Bytes>, limits: Limits) -> Result<Response<Bytes>, HttpError> {
        let server = Server::of(request.uri())?;
        match timeout(limits.total, self.0.exchange(request, &server, limits.body)).await {
            Ok(result) => result,
            Err(_) => Err(late(&server, "the whole exchange", limits.total)),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.0.tag)
    }
}

impl Inner {
    async fn exchange(
        &self,
        request: Request<Bytes>,
        server: &Server,
        most: usize,
    ) -> Result<Response<Bytes>, HttpError> {
        let authority = self.authority(&request)?;
        let is_harmless = request.method().is_idempotent();
        let mut request = request.map(Full::new);
        self.add_headers(&mut request);
        let slot = self.pool.slot(server);
        let mut retries = 2;
        loop {
            let (mut link, reused) = self.link(&slot, server).await?;
            let hold = link.hold();
            match timeout(HEAD, link.send(request.clone(), &authority)).await {
                Ok(Ok(response)) => {
                    let response = read(response, server, most).await;
                    drop(hold);
                    self.give_back(&slot, link, response.is_ok()).await;
                    return response;
                }
                // A connection that was kept may have been closed meanwhile, and only now it shows.
                Ok(Err(Unanswered { unsent, .. })) if reused && retries > 0 && (unsent || is_harmless) => {
                    pool::forget(&slot, &link);
                    retries -= 1;
                }
                Ok(Err(Unanswered { error, .. })) => {
                    pool::forget(&slot, &link);
                    return Err(HttpError::Exchange { server: server.to_string(), source: error });
                }
                Err(_) => {
                    pool::forget(&slot, &link);
                    return Err(late(server, "the response", HEAD));
                }
            }
        }
    }

    /// The connection that is kept, or a new one; and whether it was kept.
    async fn link(&self, slot: &Slot, server: &Server) -> Result<(Link, bool), HttpError> {
        let mut kept = Arc::clone(slot).lock_owned().await;
        if let Some(link) = pool::take(&mut kept) {
            return Ok((link, true));
        }
        let link = self.connect(server).await?;
        *kept = link.share();
        Ok((link, false))
    }

    async fn give_back(&self, slot: &Slot, mut link: Link, is_whole: bool) {
        // A shared one has never left. One with half a response on it is of no more use, nor is one on which the server
        // has answered before it had the whole request.
        if link.share().is_none() && is_whole && timeout(READY, link.is_ready()).await == Ok(true) {
            pool::keep(slot, link);
        }
    }

    async fn connect(&self, server: &Server) -> Result<Link, HttpError> {
        let broken = |source| HttpError::Exchange { server: server.to_string(), source };
        if !server.tls {
            self.fall_back(server)?;
            return Link::http1(self.dial(server).await?, &self.settings).await.map_err(broken);
        }
        let connector = self.tls.connector_to(&*self.dialer.resolver, &server.target.host).await?;
        let (conn, facts) = match self.secure(&connector, self.dial(server).await?, server).await {
            Ok(secured) => secured,
            Err(error) => match self.tls.retry(&error) {
                Some(connector) => self.secure(&connector, self.dial(server).await?, server).await?,
                None => return Err(error.into()),
            },
        };
        if facts.alpn.as_deref() == Some("h2") {
            return Link::http2(Box::new(conn), &self.settings).await.map_err(broken);
        }
        self.fall_back(server)?;
        Link::http1(Box::new(conn), &self.settings).await.map_err(broken)
    }

    async fn dial(&self, server: &Server) -> Result<BoxStream, HttpError> {
        let session = self.session(&server.target);
        // A detour may have handshakes of its own, and their limits.
        let limit = self.dialer.connect_timeout + timeouts::OUTBOUND_HANDSHAKE;
        let dialled = timeout(limit, self.dialer.connect(&session, &server.target)).await;
        Ok(dialled.map_err(|_| late(server, "the connect", limit))??)
    }

    async fn secure(
        &self,
        connector: &Connector,
        conn: BoxStream,
        server: &Server,
    ) -> Result<(TlsConn, Facts), TlsError> {
        match self.settings.tls.server_name {
            Some(_) => connector.connect(conn).await,
            None => connector.connect_to(conn, &server.target.host).await,
        }
    }

    /// Whether HTTP/1.1 will do.
    fn fall_back(&self, server: &Server) -> Result<(), HttpError> {
        if self.settings.strict_version && self.settings.version == Version::Http2 {
            return Err(HttpError::Version(server.to_string()));
        }
        Ok(())
    }

    fn authority(&self, request: &Request<Bytes>) -> Result<HeaderValue, HttpError> {
        if let Some(host) = &self.settings.host {
            return Ok(host.clone());
        }
        let authority = request.uri().authority().map_or("", |authority| authority.as_str());
        HeaderValue::from_str(authority).map_err(|_| HttpError::Url(request.uri().to_string()))
    }

    fn add_headers<T>(&self, request: &mut Request<T>) {
        let headers = request.headers_mut();
        for name in self.settings.headers.keys() {
            if !headers.contains_key(name) {
                let values = self.settings.headers.get_all(name);
                for value in values {
                    headers.append(name, value.clone());
                }
            }
        }
        let mut or_insert = |name: HeaderName, value| {
            headers.entry(name).or_insert(HeaderValue::from_static(value));
        };
        or_insert(header::USER_AGENT, USER_AGENT);
        or_insert(header::ACCEPT, "*/*");
    }

    fn session(&self, target: &Target) -> Session {
        Session {
            id: SessionId::next(),
            network: Network::Tcp,
            inbound: self.tag.clone(),
            user: None,
            source: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            target: target.clone(),
            sniffed: None,
            alpn: None,
        }
    }
}

fn late(server: &Server, phase: &'static str, limit: Duration) -> HttpError {
    HttpError::Timeout { server: server.to_string(), phase, limit }
}

async fn read(
    response: Response<Incoming>,
    server: &Server,
    most: usize,
) -> Result<Response<Bytes>, HttpError> {
    let (head, mut body) = response.into_parts();
    let too_long = || HttpError::TooLong { server: server.to_string(), limit: most };
    if body.size_hint().lower() > most as u64 {
        return Err(too_long());
    }
    let mut whole = BytesMut::new();
    loop {
        let frame = timeout(BODY, body.frame()).await.map_err(|_| late(server, "the body", BODY))?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|source| HttpError::Exchange { server: server.to_string(), source })?;
        // Trailers say nothing to us.
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > most - whole.len() {
            return Err(too_long());
        }
        whole.extend_from_slice(&data);
    }
    Ok(Response::from_parts(head, whole.freeze()))
}
