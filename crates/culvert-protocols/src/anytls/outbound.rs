//! The client: a session for each stream, kept for the next one.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::outbound::anytls::AnyTlsOutbound;
use culvert_config::options::transport::Transport;
use culvert_config::value::Dur;
use culvert_core::{BoxPackets, BoxStream, DialError, Network, Outbound, Session, Tag, timeouts};
use culvert_wire::{Buf, BufChain, Target};

use super::codec::{Key, encode_login, key};
use super::padding::{DEFAULT, Scheme};
use super::pool::{Limits, Pool};
use super::session::{Driver, Stream, VERSION};
use crate::carrier::Carrier;
use crate::uot::{UotConn, Version};
use crate::{BuildError, OutboundCx};

/// The outbound.
pub(super) struct Client {
    tag: Tag,
    carrier: Carrier,
    key: Key,
    /// What the server is told about the client.
    metadata: String,
    /// As the server wants it.
    scheme: Arc<Mutex<Arc<Scheme>>>,
    pub(super) pool: Arc<Pool>,
}

impl Client {
    pub(super) fn new(cx: OutboundCx, options: &AnyTlsOutbound) -> Result<Self, BuildError> {
        let tls = options.tls.as_deref();
        let scheme = Scheme::parse(DEFAULT).expect("a constant that is a scheme");
        let metadata = match &*options.client_metadata {
            "" => concat!("culvert/", env!("CARGO_PKG_VERSION")),
            given => given,
        };
        Ok(Self {
            tag: cx.tag,
            carrier: Carrier::new(cx.dialer, &cx.store, &options.server, tls, &Transport::default())?,
            key: key(options.password.as_bytes()),
            metadata: metadata.to_owned(),
            scheme: Arc::new(Mutex::new(Arc::new(scheme))),
            pool: Pool::new(Limits {
                interval: idle_time(options.idle_session_check_interval),
                timeout: idle_time(options.idle_session_timeout),
                least: usize::try_from(options.min_idle_session).unwrap_or(0),
            }),
        })
    }

    /// Opens a stream, in a session that is there or a new one.
    async fn open(
        &self,
        session: &Session,
        target: &Target,
        early: &mut BufChain,
    ) -> Result<Stream, DialError> {
        while let Some((lease, idle)) = self.pool.take() {
            if idle >= timeouts::SESSION_STALE && !lease.session.is_alive().await {
                tracing::debug!(conn = session.id.get(), "outbound/{}: an idle session is dead", self.tag);
                lease.session.close();
                continue;
            }
            if let Some(stream) = lease.session.open(None, target, early) {
                return Ok(stream.leased(lease));
            }
        }
        let conn = self.carrier.connect(session).await?;
        let scheme = Arc::clone(&self.scheme.lock().unwrap_or_else(PoisonError::into_inner));
        let settings =
            format!("v={VERSION}\nclient={}\npadding-md5={}\nhalf-close=1", self.metadata, scheme.md5());
        let driver = self.begin(conn, scheme);
        let lease = self.pool.add(Arc::clone(driver.shared()));
        let stream = lease.session.open(Some(&settings), target, early);
        self.run(driver, session);
        // Nobody could have ended it before it ran.
        stream.map(|stream| stream.leased(lease)).ok_or(DialError::Refused {
            reason: "session has ended".to_owned(),
            kind: std::io::ErrorKind::ConnectionReset,
        })
    }

    fn begin(&self, conn: BoxStream, scheme: Arc<Scheme>) -> Driver {
        let mut login = Vec::new();
        encode_login(&self.key, scheme.login_padding(), &mut login);
        let room = conn.room();
        // One record holds all of it: that is how servers tell it from what follows.
        let mut first = Buf::new(login.len(), room.head, room.tail);
        first.append(&login);
        let learnt = Arc::clone(&self.scheme);
        Driver::client(conn, first.into(), scheme, move |scheme| {
            *learnt.lock().unwrap_or_else(PoisonError::into_inner) = scheme;
        })
    }

    /// Lets a session run by itself until it ends.
    fn run(&self, mut driver: Driver, session: &Session) {
        let (tag, id, pool) = (self.tag.clone(), session.id.get(), Arc::downgrade(&self.pool));
        tokio::spawn(async move {
            let _counts = culvert_core::crowd::Member::default();
            let outcome = poll_fn(|cx| driver.poll(cx)).await;
            if let Err(fault) = &outcome {
                tracing::debug!(conn = id, "outbound/{tag}: session ended: {fault}");
            }
            driver.end(&outcome).await;
            if let Some(pool) = pool.upgrade() {
                pool.forget_ended();
            }
        });
    }
}

/// As sing-box: what is not set or no more than five seconds is half a minute.
fn idle_time(option: Dur) -> Duration {
    const DEFAULT: Duration = Duration::from_secs(30);
    const LEAST: Duration = Duration::from_secs(5);
    option.get().filter(|time| *time > LEAST).unwrap_or(DEFAULT)
}

#[async_trait]
impl Outbound for Client {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, network: Network) -> bool {
        network != Network::Icmp
    }

    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        Ok(Box::new(self.open(session, &session.target, early).await?))
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let sign = Version::V2.magic_target();
        let stream = self.open(session, &sign, &mut BufChain::new()).await?;
        Ok(Box::new(UotConn::client(Version::V2, Box::new(stream), &session.target)))
    }
}
