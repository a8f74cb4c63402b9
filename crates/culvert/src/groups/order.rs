//! The choice of `fallback` and `load-balance` groups (not in sing-box): an order of the members for each connection, and
//! the next one is tried where one fails.
//!
//! Whether a member works is learnt from real connections: one that failed, or has not connected within its head start,
//! while another one could do it, is at fault, and stands behind all others for a while; twice as long each time in a row.
//! Where all fail it is the target's fault, or the network's, and nobody is blamed. Nothing is probed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use culvert_core::{BoxPackets, BoxStream, Chain, DialError, Network, Outbound, Session, Tag};
use culvert_wire::BufChain;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::info;

use super::{Member, Picked};

/// How long a member stands back after its first failure, and at most.
const BACK: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(600));

/// What the order depends on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Balance {
    /// The order of the configuration: the first that works.
    InOrder,
    /// Each connection begins with the next member.
    RoundRobin,
    /// The same member for all connections of one client.
    Source,
    /// The same member for all connections to one host.
    Target,
}

/// Orders the members of a group.
pub(crate) struct Order {
    balance: Balance,
    /// Head start of a member before the next one is tried too.
    delay: Duration,
    next: AtomicUsize,
    health: Arc<Health>,
}

impl Order {
    pub(crate) fn new(balance: Balance, delay: Duration, members: usize) -> Self {
        let health = Arc::new(Health(Mutex::new(vec![State::default(); members])));
        Self { balance, delay, next: AtomicUsize::new(0), health }
    }

    /// The member that a connection would begin with at this moment.
    pub(super) fn first(&self, members: &[Member], network: Network) -> Option<usize> {
        self.order(members, network, None, self.next.load(Ordering::Relaxed)).into_iter().next()
    }

    /// The outbound that tries all of them.
    pub(super) fn pick(
        &self,
        members: &[Member],
        network: Network,
        session: Option<&Session>,
    ) -> Option<Picked> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let order = self.order(members, network, session, turn);
        let mut picked = order.into_iter().filter_map(|at| Some((at, members[at].pick(network, session)?)));
        let (first, Picked { outbound, chain }) = picked.next()?;
        let tag = outbound.tag().clone();
        let mut candidates = vec![(first, outbound)];
        candidates.extend(picked.map(|(at, picked)| (at, picked.outbound)));
        let (delay, health) = (self.delay, Arc::clone(&self.health));
        Some(Picked { outbound: Arc::new(Trying { tag, candidates, delay, health }), chain })
    }

    fn order(
        &self,
        members: &[Member],
        network: Network,
        session: Option<&Session>,
        turn: usize,
    ) -> Vec<usize> {
        let mut order: Vec<usize> = (0..members.len()).filter(|at| members[*at].carries(network)).collect();
        let key = match (self.balance, session) {
            (Balance::Source, Some(session)) => Some(session.source.ip().to_string()),
            (Balance::Target, Some(session)) => Some(session.target.host.to_string()),
            _ => None,
        };
        if let Some(key) = key {
            // The highest number decides, so that a member that is gone moves only those who were with it.
            order.sort_by_cached_key(|at| std::cmp::Reverse(number(&key, &members[*at].tag().name)));
        } else if self.balance == Balance::RoundRobin && !order.is_empty() {
            let turn = turn % order.len();
            order.rotate_left(turn);
        }
        let stands_back = self.health.standing_back();
        order.sort_by_key(|at| stands_back.get(*at).copied().unwrap_or_default());
        order
    }
}

fn number(key: &str, member: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, member).hash(&mut hasher);
    hasher.finish()
}

/// How the members are, by their index.
struct Health(Mutex<Vec<State>>);

#[derive(Clone, Copy, Default)]
struct State {
    /// Failures in a row.
    failures: u32,
    /// Until when it stands behind the others.
    back_until: Option<Instant>,
}

impl Health {
    fn standing_back(&self) -> Vec<bool> {
        let now = Instant::now();
        self.lock().iter().map(|state| state.back_until.is_some_and(|until| until > now)).collect()
    }

    fn works(&self, at: usize) {
        if let Some(state) = self.lock().get_mut(at) {
            *state = State::default();
        }
    }

    /// Returns how long the member stands back.
    fn failed(&self, at: usize) -> Duration {
        let (first, longest) = BACK;
        let mut states = self.lock();
        let Some(state) = states.get_mut(at) else { return first };
        // Connections that were under way at the same time are one failure.
        if state.back_until.is_some_and(|until| until > Instant::now()) {
            return Duration::ZERO;
        }
        let back = first.saturating_mul(1 << state.failures.min(16)).min(longest);
        state.failures += 1;
        state.back_until = Some(Instant::now() + back);
        back
    }

    fn lock(&self) -> MutexGuard<'_, Vec<State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An outbound that tries one member after the other.
struct Trying {
    /// That of the first.
    tag: Tag,
    /// With their index in the group.
    candidates: Vec<(usize, Arc<dyn Outbound>)>,
    delay: Duration,
    health: Arc<Health>,
}

impl Trying {
    async fn race<T, F>(&self, attempt: impl Fn(Arc<dyn Outbound>) -> F) -> Result<T, DialError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DialError>> + Send + 'static,
    {
        let mut attempts = JoinSet::new();
        let mut rest = self.candidates.iter();
        let (mut begun, mut last) = (Vec::new(), None);
        loop {
            if let Some((at, outbound)) = rest.next() {
                let (at, attempt) = (*at, attempt(Arc::clone(outbound)));
                begun.push((at, outbound.tag()));
                attempts.spawn(async move { (at, attempt.await) });
            }
            let joined = if rest.len() == 0 {
                attempts.join_next().await
            } else {
                match timeout(self.delay, attempts.join_next()).await {
                    Ok(joined) => joined,
                    Err(_) => continue,
                }
            };
            match joined {
                Some(Ok((at, Ok(done)))) => {
                    self.health.works(at);
                    // Those before it have failed, or have had their head start. Those behind it have not.
                    let before = begun.iter().take_while(|(one, _)| *one != at);
                    for (at, tag) in before {
                        let back = self.health.failed(*at);
                        if !back.is_zero() {
                            info!("outbound {tag} fails; others come first for {} s", back.as_secs());
                        }
                    }
                    return Ok(done);
                }
                Some(Ok((_, Err(error)))) => {
                    tracing::debug!("a member failed: {}", Chain(&error));
                    last = Some(error);
                }
                Some(Err(_)) => {}
                None => return Err(last.unwrap_or(DialError::Dropped("its group"))),
            }
        }
    }
}

#[async_trait]
impl Outbound for Trying {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, network: Network) -> bool {
        self.candidates.iter().any(|(_, outbound)| outbound.carries(network))
    }

    async fn dial(&self, session: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
        if let [(_, only)] = &self.candidates[..] {
            return only.dial(session, early).await;
        }
        // Each may send what the client has said; what the one that connects has not sent is left.
        let said = early.to_vec();
        let dial = |outbound: Arc<dyn Outbound>| {
            let (session, mut early) = (session.clone(), BufChain::copied(&said));
            async move { outbound.dial(&session, &mut early).await.map(|conn| (conn, early)) }
        };
        let (conn, left) = self.race(dial).await?;
        *early = left;
        Ok(conn)
    }

    async fn listen_packet(&self, session: &Session) -> Result<BoxPackets, DialError> {
        let listen = |outbound: Arc<dyn Outbound>| {
            let session = session.clone();
            async move { outbound.listen_packet(&session).await }
        };
        self.race(listen).await
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::atomic::AtomicU8;

    use culvert_core::{Flows, SessionId};
    use culvert_wire::{Domain, Host, Target};

    use super::super::Group;
    use super::*;

    /// Connects, refuses, or never ends; and sends what the client has said.
    struct Fake {
        tag: Tag,
        does: AtomicU8,
        dials: AtomicUsize,
    }

    const WORKS: u8 = 0;
    const FAILS: u8 = 1;
    const HANGS: u8 = 2;

    #[async_trait]
    impl Outbound for Fake {
        fn tag(&self) -> &Tag {
            &self.tag
        }

        fn carries(&self, network: Network) -> bool {
            network == Network::Tcp
        }

        async fn dial(&self, _: &Session, early: &mut BufChain) -> Result<BoxStream, DialError> {
            self.dials.fetch_add(1, Ordering::Relaxed);
            early.advance(1);
            match self.does.load(Ordering::Relaxed) {
                WORKS => Ok(Box::new(culvert_core::duplex::duplex(1).0)),
                FAILS => {
                    Err(DialError::Handshake { phase: "test", source: io::ErrorKind::ConnectionReset.into() })
                }
                _ => std::future::pending().await,
            }
        }

        async fn listen_packet(&self, _: &Session) -> Result<BoxPackets, DialError> {
            Err(DialError::Network(Network::Udp))
        }
    }

    struct Site {
        fakes: Vec<Arc<Fake>>,
        group: Arc<Group>,
    }

    impl Site {
        fn new(balance: Balance, count: usize) -> Self {
            let fakes: Vec<_> = (0..count)
                .map(|at| {
                    let tag = Tag::new("fake", format!("m{at}"));
                    Arc::new(Fake { tag, does: AtomicU8::new(WORKS), dials: AtomicUsize::new(0) })
                })
                .collect();
            let members = fakes.iter().map(|fake| Member::Outbound(Arc::clone(fake) as _)).collect();
            let order = Order::new(balance, Duration::from_secs(3), count);
            let group = Group::ordered(Tag::new("fallback", "g"), members, order, Flows::new());
            Self { fakes, group: Arc::new(group) }
        }

        fn does(&self, at: usize, does: u8) {
            self.fakes[at].does.store(does, Ordering::Relaxed);
        }

        /// How often each member has been dialled since the last time.
        fn dials(&self) -> Vec<usize> {
            self.fakes.iter().map(|fake| fake.dials.swap(0, Ordering::Relaxed)).collect()
        }

        async fn dial(&self, source: u8, host: &str) -> Result<Vec<u8>, DialError> {
            let session = Session {
                id: SessionId::next(),
                network: Network::Tcp,
                inbound: Tag::new("test", "in"),
                user: None,
                source: SocketAddr::from((Ipv4Addr::new(10, 0, 0, source), 1)),
                target: Target::new(Host::from(Domain::new(host).unwrap()), 1),
                sniffed: None,
                alpn: None,
            };
            let member = Member::Group(Arc::clone(&self.group));
            let picked = member.pick(Network::Tcp, Some(&session)).unwrap();
            let mut early = BufChain::copied(b"abc");
            picked.outbound.dial(&session, &mut early).await?;
            Ok(early.to_vec())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_one_is_tried_and_the_one_at_fault_stands_back() {
        let site = Site::new(Balance::InOrder, 3);
        assert_eq!(site.dial(1, "a.test").await.unwrap(), b"bc", "what was sent is gone, once");
        assert_eq!(site.dials(), [1, 0, 0]);
        site.does(0, FAILS);
        assert_eq!(site.dial(1, "a.test").await.unwrap(), b"bc");
        assert_eq!(site.dials(), [1, 1, 0]);
        assert_eq!(site.group.now(Network::Tcp).map(|tag| &*tag.name), Some("m1"));
        site.does(0, WORKS);
        site.dial(1, "a.test").await.unwrap();
        assert_eq!(site.dials(), [0, 1, 0], "the second comes first for a while");
        tokio::time::advance(BACK.0 + Duration::from_secs(1)).await;
        site.dial(1, "a.test").await.unwrap();
        assert_eq!(site.dials(), [1, 0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_costs_its_head_start_once() {
        let site = Site::new(Balance::InOrder, 2);
        site.does(0, HANGS);
        let begun = Instant::now();
        site.dial(1, "a.test").await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(3));
        let begun = Instant::now();
        site.dial(1, "a.test").await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(site.dials(), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_blamed_where_all_fail() {
        let site = Site::new(Balance::InOrder, 2);
        site.does(0, FAILS);
        site.does(1, FAILS);
        for _ in 0..3 {
            assert!(site.dial(1, "a.test").await.is_err());
        }
        assert_eq!(site.dials(), [3, 3]);
        site.does(0, WORKS);
        site.dial(1, "a.test").await.unwrap();
        assert_eq!(site.dials(), [1, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn longer_each_time_in_a_row() {
        let health = Health(Mutex::new(vec![State::default()]));
        for seconds in [15, 30, 60, 120, 240, 480, 600, 600] {
            assert_eq!(health.failed(0), Duration::from_secs(seconds));
            assert_eq!(health.failed(0), Duration::ZERO, "it stands back already");
            tokio::time::advance(Duration::from_secs(seconds + 1)).await;
        }
        health.works(0);
        assert_eq!(health.failed(0), BACK.0);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_spread_and_stick() {
        let round = Site::new(Balance::RoundRobin, 3);
        for _ in 0..9 {
            round.dial(1, "a.test").await.unwrap();
        }
        assert_eq!(round.dials(), [3, 3, 3]);
        for balance in [Balance::Source, Balance::Target] {
            let site = Site::new(balance, 3);
            let mut used = vec![0; 3];
            for number in 0..60u8 {
                for _ in 0..2 {
                    // One of both stays as it is, whatever the other one does.
                    match balance {
                        Balance::Source => {
                            site.dial(number, &format!("h{}.test", rand(number))).await.unwrap()
                        }
                        _ => site.dial(rand(number), &format!("h{number}.test")).await.unwrap(),
                    };
                }
                let dials = site.dials();
                let one = dials.iter().position(|count| *count == 2);
                used[one.unwrap_or_else(|| panic!("{balance:?}: {dials:?}"))] += 1;
            }
            assert!(used.iter().all(|count| *count > 5), "{balance:?}: {used:?}");
        }
    }

    fn rand(number: u8) -> u8 {
        number.wrapping_mul(31).wrapping_add(7)
    }
}
