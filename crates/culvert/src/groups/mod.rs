//! Groups of outbounds: `selector`, whose member somebody chooses; `urltest`, whose member is the quickest; `fallback` and
//! `load-balance`, which try one member after the other.
//!
//! The router asks a group for the outbound behind it and dials that, so that a flow knows its whole chain. As a detour a
//! group is an outbound like others. When the choice changes, flows that should not outlive it are closed by their way
//! or, where the group was a detour, by their number: no stream is wrapped.

mod order;
mod probe;
mod urltest;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use culvert_cache::CacheFile;
use culvert_core::{
    BoxPackets, BoxStream, DialError, EndReason, Flows, Network, Outbound, Session, SessionId, Tag,
};
use culvert_wire::BufChain;
use thiserror::Error;

pub(crate) use order::{Balance, Order};
pub(crate) use probe::Probe;
pub use probe::{Delay, History};
pub(crate) use urltest::UrlTest;

/// What a rule, a group or a detour can name.
#[derive(Clone)]
pub(crate) enum Member {
    /// An outbound that dials itself.
    Outbound(Arc<dyn Outbound>),
    /// A group of them.
    Group(Arc<Group>),
}

impl Member {
    /// Its tag.
    pub(crate) fn tag(&self) -> &Tag {
        match self {
            Self::Outbound(outbound) => outbound.tag(),
            Self::Group(group) => &group.tag,
        }
    }

    /// The same as something that can be dialled through.
    pub(crate) fn outbound(&self) -> Arc<dyn Outbound> {
        match self {
            Self::Outbound(outbound) => Arc::clone(outbound),
            Self::Group(group) => Arc::clone(group) as Arc<dyn Outbound>,
        }
    }

    /// The outbound that dials at this moment, with all groups on the way to it. `None` if no member of a group
    /// carries `network`. Some groups look at whose connection it is.
    pub(crate) fn pick(&self, network: Network, session: Option<&Session>) -> Option<Picked> {
        match self {
            Self::Outbound(outbound) => {
                let chain = vec![Arc::clone(&outbound.tag().name)];
                Some(Picked { outbound: Arc::clone(outbound), chain })
            }
            Self::Group(group) => group.pick(network, session),
        }
    }

    /// The tag under which results of tests are kept: that of the outbound behind all groups.
    fn real_tag(&self) -> Option<Arc<str>> {
        match self {
            Self::Outbound(outbound) => Some(Arc::clone(&outbound.tag().name)),
            Self::Group(group) => group.member(Network::Tcp)?.real_tag(),
        }
    }

    fn carries(&self, network: Network) -> bool {
        match self {
            Self::Outbound(outbound) => outbound.carries(network),
            Self::Group(group) => group.carries(network),
        }
    }
}

/// An outbound and the groups it was picked by.
pub(crate) struct Picked {
    pub(crate) outbound: Arc<dyn Outbound>,
    /// Tags from the outbound back to the group that was named.
    pub(crate) chain: Vec<Arc<str>>,
}

/// A group of outbounds.
pub struct Group {
    tag: Tag,
    members: Vec<Member>,
    kind: Kind,
    /// Whether a change closes the flows of inbounds too (`interrupt_exist_connections`).
    interrupt: bool,
    flows: Arc<Flows>,
    /// Sessions that dialled through the group as a detour.
    detoured: Mutex<Vec<SessionId>>,
    /// Called after a change: closes what the program itself keeps open through the group.
    changed: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
    /// Where choices outlive the program.
    cache: OnceLock<Arc<CacheFile>>,
}

enum Kind {
    /// Index of the chosen member.
    Selector(AtomicUsize),
    UrlTest(UrlTest),
    Order(Order),
}

/// Why a member could not be chosen.
#[derive(Debug, Error, Eq, PartialEq)]
pub enum SelectError {
    /// The group is tested, not chosen from.
    #[error("not a selector")]
    NotSelector,
    /// It has no such member.
    #[error("outbound not found in selector: {0}")]
    NoMember(String),
}

impl Group {
    /// A group whose member is chosen; at first the one at `chosen`.
    pub(crate) fn selector(
        tag: Tag,
        members: Vec<Member>,
        chosen: usize,
        interrupt: bool,
        flows: Arc<Flows>,
    ) -> Self {
        Self::new(tag, members, Kind::Selector(AtomicUsize::new(chosen)), interrupt, flows)
    }

    /// A group whose member is the quickest.
    pub(crate) fn url_test(
        tag: Tag,
        members: Vec<Member>,
        test: UrlTest,
        interrupt: bool,
        flows: Arc<Flows>,
    ) -> Self {
        Self::new(tag, members, Kind::UrlTest(test), interrupt, flows)
    }

    /// A group whose members are tried in an order.
    pub(crate) fn ordered(tag: Tag, members: Vec<Member>, order: Order, flows: Arc<Flows>) -> Self {
        Self::new(tag, members, Kind::Order(order), false, flows)
    }

    fn new(tag: Tag, members: Vec<Member>, kind: Kind, interrupt: bool, flows: Arc<Flows>) -> Self {
        let (detoured, changed) = (Mutex::default(), Mutex::default());
        Self { tag, members, kind, interrupt, flows, detoured, changed, cache: OnceLock::new() }
    }

    /// Its type and tag.
    #[must_use]
    pub fn tag(&self) -> &Tag {
        &self.tag
    }

    /// The tags of its members, in order.
    pub fn members(&self) -> impl Iterator<Item = &Tag> {
        self.members.iter().map(Member::tag)
    }

    /// The member that carries `network` at this moment.
    #[must_use]
    pub fn now(&self, network: Network) -> Option<&Tag> {
        self.member(network).map(Member::tag)
    }

    /// Which member it has before it runs, and why.
    pub(crate) fn why(&self) -> String {
        let tag = &self.tag.name;
        match &self.kind {
            Kind::Selector(chosen) => {
                let member = &self.members[chosen.load(Ordering::Relaxed)].tag().name;
                format!(
                    "    {tag} has {member}, unless another was chosen (by the API, or in the cache file)"
                )
            }
            Kind::UrlTest(_) => {
                format!("    {tag} has its first member until it runs and has measured all of them")
            }
            Kind::Order(_) => {
                format!("    {tag} has the first member of its order, as long as that does not fail")
            }
        }
    }

    /// Chooses a member of a selector.
    ///
    /// # Errors
    /// It is no selector, or has no such member.
    pub fn select(&self, member: &str) -> Result<(), SelectError> {
        let Kind::Selector(chosen) = &self.kind else { return Err(SelectError::NotSelector) };
        let index = self.members.iter().position(|one| *one.tag().name == *member);
        let index = index.ok_or_else(|| SelectError::NoMember(member.to_owned()))?;
        if chosen.swap(index, Ordering::Relaxed) != index {
            self.interrupt();
        }
        if let Some(file) = self.cache.get() {
            file.set_selected(&self.tag.name, member);
        }
        Ok(())
    }

    /// Takes up the choice that the file remembers, and keeps later ones there. Only the first file counts.
    pub(crate) fn keep_choice_in(&self, file: &Arc<CacheFile>) {
        let Kind::Selector(chosen) = &self.kind else { return };
        let member = file.selected(&self.tag.name);
        let index = member.and_then(|tag| self.members.iter().position(|one| *one.tag().name == *tag));
        if let Some(index) = index {
            chosen.store(index, Ordering::Relaxed);
        }
        let _ = self.cache.set(Arc::clone(file));
    }

    /// Tests all members at once, whether in use or not, and returns the delays of those that answered.
    pub async fn test(&self) -> Vec<(Arc<str>, Delay)> {
        match &self.kind {
            Kind::Selector(_) | Kind::Order(_) => Vec::new(),
            Kind::UrlTest(test) => {
                self.check(test, true).await;
                let delay =
                    |member: &Member| Some((member.real_tag()?, test.history().get(&member.real_tag()?)?));
                self.members.iter().filter_map(delay).collect()
            }
        }
    }

    /// Keeps the choice of a URL test up to date for as long as it is polled; of a selector there is nothing to do.
    pub(crate) async fn run(self: Arc<Self>) {
        let Kind::UrlTest(test) = &self.kind else { return };
        test.run(&self).await;
    }

    /// Sets what is called after a change.
    pub(crate) fn on_change(&self, changed: impl Fn() + Send + Sync + 'static) {
        *self.changed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(changed));
    }

    async fn check(&self, test: &UrlTest, force: bool) {
        if test.check(&self.members, force).await {
            self.interrupt();
        }
    }

    fn member(&self, network: Network) -> Option<&Member> {
        match &self.kind {
            Kind::Selector(chosen) => self.members.get(chosen.load(Ordering::Relaxed)),
            Kind::UrlTest(test) => test.best(&self.members, network),
            Kind::Order(order) => self.members.get(order.first(&self.members, network)?),
        }
    }

    /// Closes what should not outlive a change of the member.
    fn interrupt(&self) {
        if self.interrupt {
            for flow in self.flows.list() {
                let Some(way) = flow.way() else { continue };
                let at = way.chain.iter().position(|tag| *tag == self.tag.name);
                let Some(by) = at.and_then(|at| at.checked_sub(1)).and_then(|at| way.chain.get(at)) else {
                    continue;
                };
                let now = self.now(flow.session().network);
                if now.is_none_or(|now| now.name != *by) {
                    flow.close(EndReason::Closed);
                }
            }
            for id in std::mem::take(&mut *self.lock_detoured()) {
                if let Some(flow) = self.flows.get(id) {
                    flow.close(EndReason::Closed);
                }
            }
        }
        if let Some(changed) = &*self.changed.lock().unwrap_or_else(PoisonError::into_inner) {
            changed();
        }
    }

    /// Notes that a session dials through the group as a detour.
    fn note_detoured(&self, session: SessionId) {
        if !self.interrupt {
            return;
        }
        let mut detoured = self.lock_detoured();
        if detoured.len() == detoured.capacity() {
            detoured.retain(|id| self.flows.get(*id).is_some());
        }
        detoured.push(session);
    }

    fn lock_detoured(&self) -> std::sync::MutexGuard<'_, Vec<SessionId>> {
        self.detoured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pick(&self, network: Network, session: Option<&Session>) -> Option<Picked> {
        let mut picked = match &self.kind {
            Kind::Order(order) => order.pick(&self.members, network, session)?,
            Kind::Selector(_) | Kind::UrlTest(_) => self.member(network)?.pick(network, session)?,
        };
        if let Kind::UrlTest(test) = &self.kind {
            test.touch();
            let (outbound, history) = (picked.outbound, Arc::clone(test.history()));
            picked.outbound = Arc::new(Reporting { outbound, history });
        }
        picked.chain.push(Arc::clone(&self.tag.name));
        Some(picked)
    }
}

/// As a detour. A router goes past this, see [`Member::pick`].
#[async_trait]
impl Outbound for Group {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, network: Network) -> bool {
        match &self.kind {
            Kind::Selector(_) => self.member(network).is_some_and(|member| member.carries(network)),
            Kind::UrlTest(_) | Kind::Order(_) => self.members.iter().any(|member| member.carries(network)),
        }
    }

    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        let picked = self.pick(Network::Tcp, Some(session)).ok_or(DialError::Network(Network::Tcp))?;
        self.note_detoured(session.id);
        picked.outbound.dial(session, early).await
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let network = session.network;
        let picked = self.pick(network, Some(session)).ok_or(DialError::Network(network))?;
        self.note_detoured(session.id);
        picked.outbound.listen_packet(session).await
    }
}

/// All groups of an instance, by tag.
#[derive(Clone, Default)]
pub struct Groups(Arc<HashMap<Arc<str>, Arc<Group>>>);

impl Groups {
    pub(crate) fn new(groups: impl IntoIterator<Item = Arc<Group>>) -> Self {
        Self(Arc::new(groups.into_iter().map(|group| (Arc::clone(&group.tag.name), group)).collect()))
    }

    /// The group with this tag.
    #[must_use]
    pub fn get(&self, tag: &str) -> Option<&Arc<Group>> {
        self.0.get(tag)
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.0.values()
    }
}

/// An outbound whose failures count against it in the tests' results.
struct Reporting {
    outbound: Arc<dyn Outbound>,
    history: Arc<History>,
}

impl Reporting {
    fn note<T>(&self, result: Result<T, DialError>) -> Result<T, DialError> {
        if result.is_err() {
            self.history.forget(&self.outbound.tag().name);
        }
        result
    }
}

#[async_trait]
impl Outbound for Reporting {
    fn tag(&self) -> &Tag {
        self.outbound.tag()
    }

    fn carries(&self, network: Network) -> bool {
        self.outbound.carries(network)
    }

    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        self.note(self.outbound.dial(session, early).await)
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        self.note(self.outbound.listen_packet(session).await)
    }
}
