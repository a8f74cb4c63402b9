//! The choice of a `urltest` group: the lowest delay, left only for one that is better by more than the tolerance.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_core::{Chain, Network};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::debug;

use super::{Group, History, Member, Probe};

/// Most tests of one group at the same time (sing-box 1.14.4).
const AT_ONCE: usize = 10;
/// No member of this index: nothing is chosen yet.
const NONE: usize = usize::MAX;

/// Tests the members of a group and remembers the best.
pub(crate) struct UrlTest {
    probe: Arc<Probe>,
    interval: Duration,
    idle_timeout: Duration,
    tolerance: u16,
    history: Arc<History>,
    /// Index of the member in use, for streams and for datagrams.
    chosen: [AtomicUsize; 2],
    used: Mutex<Option<Instant>>,
    /// Wakes the tests when the group is used after a pause.
    woken: Notify,
}

impl UrlTest {
    pub(crate) fn new(
        probe: Probe,
        interval: Duration,
        idle_timeout: Duration,
        tolerance: u16,
        history: Arc<History>,
    ) -> Self {
        let probe = Arc::new(probe);
        let chosen = [AtomicUsize::new(NONE), AtomicUsize::new(NONE)];
        let (used, woken) = (Mutex::default(), Notify::new());
        Self { probe, interval, idle_timeout, tolerance, history, chosen, used, woken }
    }

    /// The results of all groups' tests.
    pub(super) fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Notes that the group is in use.
    pub(super) fn touch(&self) {
        let before = self.lock_used().replace(Instant::now());
        if before.is_none_or(|before| before.elapsed() > self.idle_timeout) {
            self.woken.notify_one();
        }
    }

    /// Tests when the program starts, and then from time to time while the group is in use.
    pub(super) async fn run(&self, group: &Group) {
        group.check(self, false).await;
        loop {
            self.woken.notified().await;
            while self.lock_used().is_some_and(|used| used.elapsed() <= self.idle_timeout) {
                group.check(self, false).await;
                tokio::time::sleep(self.interval).await;
            }
        }
    }

    /// Tests all members whose last result is older than the interval, or all of them with `force`. Returns whether
    /// the choice has changed.
    pub(super) async fn check(&self, members: &[Member], force: bool) -> bool {
        let (mut tests, places) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
        let mut seen = Vec::new();
        for member in members {
            let Some(tag) = member.real_tag() else { continue };
            let recent = self.history.get(&tag).is_some_and(|delay| delay.at.elapsed() < self.interval);
            if seen.contains(&tag) || (recent && !force) {
                continue;
            }
            seen.push(Arc::clone(&tag));
            let Some(outbound) = member.pick(Network::Tcp, None).map(|picked| picked.outbound) else {
                continue;
            };
            let (probe, history, places) =
                (Arc::clone(&self.probe), Arc::clone(&self.history), Arc::clone(&places));
            tests.spawn(async move {
                let _place = places.acquire().await;
                match probe.measure(&*outbound).await {
                    Ok(delay) => {
                        debug!("outbound {tag} available: {} ms", delay.as_millis());
                        history.set(&tag, delay);
                    }
                    Err(error) => {
                        debug!("outbound {tag} unavailable: {}", Chain(&error));
                        history.forget(&tag);
                    }
                }
            });
        }
        while tests.join_next().await.is_some() {}
        self.choose(members)
    }

    /// The member in use. Before any result it is the first that carries `network`.
    pub(super) fn best<'a>(&self, members: &'a [Member], network: Network) -> Option<&'a Member> {
        let chosen = self.chosen[slot(network)].load(Ordering::Relaxed);
        let chosen =
            members.get(chosen).or_else(|| self.select(members, network).and_then(|at| members.get(at)));
        chosen.or_else(|| members.iter().find(|member| member.carries(network)))
    }

    /// Chooses anew by what the tests have found. Returns whether a choice made before has changed.
    fn choose(&self, members: &[Member]) -> bool {
        let mut changed = false;
        for network in [Network::Tcp, Network::Udp] {
            if let Some(best) = self.select(members, network) {
                let before = self.chosen[slot(network)].swap(best, Ordering::Relaxed);
                changed |= before != NONE && before != best;
            }
        }
        changed
    }

    fn select(&self, members: &[Member], network: Network) -> Option<usize> {
        let delay = |index: usize| {
            let member = members.get(index).filter(|member| member.carries(network))?;
            Some((index, self.history.get(&member.real_tag()?)?.millis))
        };
        let mut best = delay(self.chosen[slot(network)].load(Ordering::Relaxed));
        for (index, millis) in (0..members.len()).filter_map(delay) {
            if best.is_none_or(|(_, least)| u32::from(least) > u32::from(millis) + u32::from(self.tolerance))
            {
                best = Some((index, millis));
            }
        }
        best.map(|(index, _)| index)
    }

    fn lock_used(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn slot(network: Network) -> usize {
    match network {
        Network::Tcp => 0,
        Network::Udp | Network::Icmp => 1,
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use culvert_core::{BoxPackets, BoxStream, DialError, Flows, Outbound, Session, Tag};
    use culvert_tls::{Store, StoreSettings};
    use culvert_wire::BufChain;

    use super::*;

    /// Carries streams, and datagrams where its tag says so.
    struct Fake(Tag);

    #[async_trait]
    impl Outbound for Fake {
        fn tag(&self) -> &Tag {
            &self.0
        }

        fn carries(&self, network: Network) -> bool {
            network == Network::Tcp || self.0.name.starts_with("udp")
        }

        async fn dial(&self, _: &Session, _: &mut BufChain) -> Result<BoxStream, DialError> {
            Err(DialError::Rejected("test"))
        }

        async fn listen_packet(&self, _: &Session) -> Result<BoxPackets, DialError> {
            Err(DialError::Rejected("test"))
        }
    }

    fn group(members: &[&str], history: &Arc<History>) -> Group {
        let probe = Probe::new("http://probe.test", &Store::new(StoreSettings::default())).unwrap();
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
        let test = UrlTest::new(probe, minute, hour, 50, Arc::clone(history));
        let members =
            members.iter().map(|tag| Member::Outbound(Arc::new(Fake(Tag::new("fake", *tag))))).collect();
        Group::url_test(Tag::new("urltest", "g"), members, test, false, Flows::new())
    }

    #[tokio::test]
    async fn a_member_is_left_only_for_one_that_is_better_by_more_than_the_tolerance() {
        let history = Arc::new(History::default());
        let group = group(&["a", "b", "udp"], &history);
        let now = |network| group.now(network).map(|tag| tag.name.to_string());
        let set = |tag: &str, millis| {
            history.set(&tag.into(), Duration::from_millis(millis));
            let super::super::Kind::UrlTest(test) = &group.kind else { panic!("a URL test") };
            test.choose(&group.members)
        };
        assert_eq!(now(Network::Tcp).as_deref(), Some("a"), "before any result, the first");
        assert_eq!(now(Network::Udp).as_deref(), Some("udp"), "the first that carries it");
        assert!(!set("a", 200), "a first choice is no change");
        assert!(!set("b", 150), "within the tolerance");
        assert_eq!(now(Network::Tcp).as_deref(), Some("a"));
        assert!(set("b", 149));
        assert_eq!(now(Network::Tcp).as_deref(), Some("b"));
        assert_eq!(now(Network::Udp).as_deref(), Some("udp"));
        history.forget("b");
        assert!(set("a", 200), "a member without a result is left");
        assert_eq!(now(Network::Tcp).as_deref(), Some("a"));
    }

    #[tokio::test]
    async fn members_that_fail_lose_their_results() {
        let history = Arc::new(History::default());
        let group = group(&["a", "b"], &history);
        history.set(&"a".into(), Duration::from_millis(1));
        assert!(group.test().await.is_empty(), "nobody answers");
        assert!(history.get("a").is_none());
    }
}
