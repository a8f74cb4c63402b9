//! Ways that are narrower than the device, as far as one has to know: nobody on the way cuts a packet of IPv6, so whoever sends
//! datagrams has to (RFC 8200 section 5, RFC 8201). TCP keeps what it learns with the connection.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long word of a way counts: it may have become wider since (RFC 8201 section 4).
const MEMORY: Duration = Duration::from_secs(600);
/// Most ways that are remembered.
const MOST: usize = 1024;

/// What was told of ways, by where they lead.
#[derive(Default)]
pub(crate) struct Narrow {
    ways: HashMap<IpAddr, (u16, Instant)>,
}

impl Narrow {
    /// What every link of IPv6 carries. Whoever tells of less is not believed.
    pub(crate) const LEAST: u16 = 1280;

    /// Takes word that packets to `target` must be no longer than `mtu`.
    pub(crate) fn learn(&mut self, target: IpAddr, mtu: u16, now: Instant) {
        if target.is_ipv4() {
            return; // those who cannot carry a packet cut it
        }
        if self.ways.len() == MOST && !self.ways.contains_key(&target) {
            // Word comes again where it is needed.
            self.ways.clear();
        }
        self.ways.insert(target, (mtu.max(Self::LEAST), now));
    }

    /// Longest packet to `target`, if there was word of it.
    pub(crate) fn mtu(&self, target: IpAddr, now: Instant) -> Option<u16> {
        if self.ways.is_empty() {
            return None;
        }
        let (mtu, since) = self.ways.get(&target)?;
        (now.saturating_duration_since(*since) < MEMORY).then_some(*mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: usize) -> IpAddr {
        IpAddr::from((number as u128 | 0xfd << 120).to_be_bytes())
    }

    #[test]
    fn word_of_a_way_counts_for_a_while() {
        let (mut narrow, now) = (Narrow::default(), Instant::now());
        narrow.learn(host(1), 1400, now);
        narrow.learn(host(2), 68, now);
        narrow.learn([192, 0, 2, 1].into(), 1400, now);
        let mtus = [host(1), host(2), host(3), [192, 0, 2, 1].into()].map(|host| narrow.mtu(host, now));
        assert_eq!(mtus, [Some(1400), Some(1280), None, None]);
        assert_eq!(narrow.mtu(host(1), now + MEMORY), None);
    }

    #[test]
    fn nobody_can_make_it_keep_much() {
        let (mut narrow, now) = (Narrow::default(), Instant::now());
        for number in 0..10 * MOST {
            narrow.learn(host(number), 1400, now);
            assert!(narrow.ways.len() <= MOST);
        }
    }
}
