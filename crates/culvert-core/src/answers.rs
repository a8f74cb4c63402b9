//! Servers of outbounds that close connections before they have said a word.
//!
//! Most protocols cannot say what is wrong: a server that is given another password, or plain bytes where it expects
//! TLS, closes the connection, as it does where it cannot reach the target. Who runs the client would see nothing of it.
//! So it is told, at a limited rate, of outbounds by which no byte has ever come, and of those by which none comes any
//! more.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::throttle::Throttle;
use crate::{Chain, Flow, Flows, Tag};

/// How often one outbound is spoken of.
const INTERVAL: Duration = Duration::from_secs(30);

/// So many silent ends in a row say something of an outbound that has worked.
const MANY: u32 = 10;

/// How a server ended a connection before it had said a word: in order, or with an error.
pub(crate) type Silence = Option<io::Error>;

/// What is known of the servers.
pub(crate) struct Answers {
    /// By the name of the outbound.
    servers: HashMap<Arc<str>, Server>,
    flows: Arc<Flows>,
}

struct Server {
    tag: Tag,
    address: String,
    has_answered: AtomicBool,
    /// Connections in a row that it has ended without a word.
    silent: AtomicU32,
    throttle: Throttle,
}

impl Answers {
    /// For these outbounds, each with the address of its server.
    pub(crate) fn new(servers: impl IntoIterator<Item = (Tag, String)>, flows: Arc<Flows>) -> Self {
        let server = |(tag, address): (Tag, String)| {
            let name = Arc::clone(&tag.name);
            let (has_answered, silent) = (AtomicBool::new(false), AtomicU32::new(0));
            (name, Server { tag, address, has_answered, silent, throttle: Throttle::new(INTERVAL) })
        };
        Self { servers: servers.into_iter().map(server).collect(), flows }
    }

    /// Notes how a flow has ended: `silence`, if that was by its server and before the first byte.
    pub(crate) fn note(&self, flow: &Flow, silence: Option<&Silence>) {
        let Some(server) = dials(flow).and_then(|name| self.servers.get(name)) else { return };
        if flow.down() > 0 {
            server.has_answered.store(true, Ordering::Relaxed);
            server.silent.store(0, Ordering::Relaxed);
        }
        let Some(silence) = silence else { return };
        let row = server.silent.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if row < MANY && (server.has_answered.load(Ordering::Relaxed) || self.answers_now(&server.tag)) {
            return;
        }
        let Some(more) = server.throttle.allow() else { return };
        let how = match silence {
            Some(error) => format!("broke off ({})", Chain(error)),
            None => "closed the connection".to_owned(),
        };
        let others = if more > 0 { format!(" ({more} more not shown)") } else { String::new() };
        tracing::warn!(
            conn = flow.session().id.get(),
            age_ms = flow.age().as_millis() as u64,
            "outbound/{}: server {} {how} before its first byte; likely causes: another password or id, TLS, transport \
             or multiplex on one side only, a clock that is wrong, or a target that cannot be reached from there{others}",
            server.tag,
            server.address
        );
    }

    /// Whether a flow that is still there has been answered.
    fn answers_now(&self, tag: &Tag) -> bool {
        self.flows.list().iter().any(|flow| flow.down() > 0 && dials(flow) == Some(&tag.name))
    }
}

/// The outbound that a flow goes by.
fn dials(flow: &Flow) -> Option<&Arc<str>> {
    flow.way()?.chain.first()
}
