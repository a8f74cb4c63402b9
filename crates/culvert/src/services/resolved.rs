//! Service `resolved`: programs tell it over D-Bus which name servers a link has, and ask it for names, over D-Bus or DNS.
//!
//! What comes by DNS goes to the rules of the `dns` section, past those of the route. The listener is that of a `direct`
//! inbound.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use culvert_config::options::dial::DialOptions;
use culvert_config::options::inbound::InboundKind;
use culvert_config::options::inbound::direct::DirectInbound;
use culvert_config::options::service::resolved::ResolvedService;
use culvert_core::flow::Way;
use culvert_core::{Decision, Dialer, Dispatch, Handler, Inbound, Incoming, Router, StartError, Tag};
use culvert_dns::bus::Bus;
use culvert_dns::resolved::Manager;
use culvert_dns::resolved::manager::NAME;
use culvert_protocols::BuildError;
use culvert_protocols::table::{InboundCx, Protocol};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::dns::Dns;

/// How long after the bus went away it is looked for again.
const AGAIN: Duration = Duration::from_secs(5);

struct Resolved {
    tag: Tag,
    listener: Arc<dyn Inbound>,
    dns: Arc<Dns>,
    manager: Arc<Manager>,
    serving: Mutex<Option<JoinHandle<()>>>,
}

/// Builds the service.
pub(super) fn build(
    tag: Tag,
    options: &ResolvedService,
    dns: &Arc<Dns>,
) -> Result<Arc<dyn Inbound>, BuildError> {
    let direct = InboundKind::Direct(
        DirectInbound { listen: options.listen.0.clone(), ..DirectInbound::default() }.into(),
    );
    let entry = Protocol::find("direct").and_then(|protocol| protocol.inbound.as_ref());
    let none = || BuildError::NotBuilt { feature: "inbound type `direct`".to_owned() };
    // A `direct` inbound dials nobody.
    let dialer = |_: &DialOptions| Err::<Dialer, _>(none());
    let listener = (entry.ok_or_else(none)?.build)(
        &direct,
        InboundCx { tag: tag.clone(), dialer: &dialer, networks: None, marks: &[] },
    )?;
    let manager = Arc::new(dns.manager(&tag));
    Ok(Arc::new(Resolved { tag, listener, dns: Arc::clone(dns), manager, serving: Mutex::default() }))
}

impl Resolved {
    /// A connection to the bus that has the name.
    async fn own(&self) -> io::Result<Bus> {
        let mut bus = Bus::system().await?;
        if bus.own(NAME).await? {
            return Ok(bus);
        }
        let taken = "another program has it, systemd-resolved perhaps";
        Err(io::Error::new(io::ErrorKind::AddrInUse, taken))
    }
}

#[async_trait]
impl Inbound for Resolved {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    /// The name on the bus has one owner.
    fn is_exclusive(&self) -> bool {
        true
    }

    async fn start(&self, dispatch: &Dispatch) -> Result<(), StartError> {
        let phase = "take the name org.freedesktop.resolve1 on the system's bus";
        let failed = |source| StartError::Io { tag: self.tag.clone(), phase, source };
        let mut bus = self.own().await.map_err(failed)?;
        let own =
            Dispatch::new(Arc::clone(dispatch.flows()), Arc::clone(dispatch.handshakes()), dispatch.limit());
        own.set_router(Arc::new(ToDns { handler: self.dns.handler(), rule: "service".into() }));
        self.listener.start(&own).await?;
        let (tag, manager) = (self.tag.clone(), Arc::clone(&self.manager));
        let serving = tokio::spawn(async move {
            loop {
                if let Err(error) = Arc::clone(&manager).serve(bus).await {
                    warn!("service/{tag}: the system's bus: {error}");
                }
                bus = loop {
                    tokio::time::sleep(AGAIN).await;
                    let Ok(mut again) = Bus::system().await else { continue };
                    if matches!(again.own(NAME).await, Ok(true)) {
                        info!("service/{tag}: the system's bus is back");
                        break again;
                    }
                };
            }
        });
        *self.serving.lock().unwrap_or_else(PoisonError::into_inner) = Some(serving);
        Ok(())
    }

    fn local_addrs(&self) -> Vec<SocketAddr> {
        self.listener.local_addrs()
    }

    async fn close(&self) {
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(serving) = serving {
            serving.abort();
            let _ = serving.await;
        }
        self.listener.close().await;
    }
}

/// Gives everything to the DNS servers.
struct ToDns {
    handler: Arc<dyn Handler>,
    rule: Arc<str>,
}

#[async_trait]
impl Router for ToDns {
    async fn decide(&self, _: &mut Incoming) -> Decision {
        let way = Way { rule: Arc::clone(&self.rule), chain: Vec::new() };
        Decision::Serve { handler: Arc::clone(&self.handler), way }
    }
}
