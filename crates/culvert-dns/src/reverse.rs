//! Which name an address was last given out for: so that a connection to the address can be routed by the name
//! (`reverse_mapping`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use culvert_wire::Domain;
use tokio::time::Instant;

use crate::message::{Answer, Ttl};

/// Most addresses remembered (sing-box 1.14.4: 1024).
const MOST: usize = 1024;
/// An answer outlives its TTL in the clients' hands: a connection that is opened late still has its name.
const AT_LEAST: Duration = Duration::from_secs(60);

/// The addresses of recent answers.
#[derive(Debug, Default)]
pub struct ReverseMapping {
    names: Mutex<HashMap<IpAddr, (Domain, Instant)>>,
}

impl ReverseMapping {
    /// Remembers the addresses of an answer to a question for `name`.
    pub fn learn(&self, name: &Domain, answer: &Answer) {
        let now = Instant::now();
        let life = match answer.ttl {
            Ttl::Fresh => answer.reply.lifetime(),
            Ttl::Aged(age) => answer.reply.lifetime().saturating_sub(age),
            Ttl::Fixed(ttl) => ttl,
        };
        let until = now + Duration::from_secs(life.into()).max(AT_LEAST);
        let mut addresses = answer.reply.addresses().peekable();
        if addresses.peek().is_none() {
            return;
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for ip in addresses {
            if names.len() >= MOST && !names.contains_key(&ip) {
                make_room(&mut names, now);
            }
            names.insert(ip, (name.clone(), until));
        }
    }

    /// The name last given out with this address.
    #[must_use]
    pub fn name(&self, ip: IpAddr) -> Option<Domain> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, until) = names.get(&ip)?;
        (*until > Instant::now()).then(|| name.clone())
    }
}

/// Drops what is past its time, and where that is too little, the half that would be first.
fn make_room(names: &mut HashMap<IpAddr, (Domain, Instant)>, now: Instant) {
    names.retain(|_, (_, until)| *until > now);
    if names.len() < MOST {
        return;
    }
    let mut times: Vec<_> = names.values().map(|(_, until)| *until).collect();
    let (_, median, _) = times.select_nth_unstable(MOST / 2);
    let median = *median;
    let mut surplus = names.len() - MOST / 2;
    names.retain(|_, (_, until)| {
        let drop = *until <= median && surplus > 0;
        surplus -= usize::from(drop);
        !drop
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordType;
    use crate::message::records;
    use crate::testing::{ParseDomain, query};

    fn answer(ip: &str, ttl: u32) -> Answer {
        Answer::fresh(records::addresses(&query("any.test", RecordType::A), &[ip.parse().unwrap()], ttl))
    }

    fn name(mapping: &ReverseMapping, ip: &str) -> Option<String> {
        mapping.name(ip.parse().unwrap()).map(|name| name.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_name_counts_until_its_time() {
        let mapping = ReverseMapping::default();
        mapping.learn(&"a.test".parse_domain(), &answer("192.0.2.1", 1));
        mapping.learn(&"b.test".parse_domain(), &answer("192.0.2.2", 300));
        mapping.learn(&"c.test".parse_domain(), &answer("192.0.2.2", 300));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(
            name(&mapping, "192.0.2.1").as_deref(),
            Some("a.test"),
            "late connections keep their name"
        );
        assert_eq!(name(&mapping, "192.0.2.2").as_deref(), Some("c.test"));
        assert_eq!(name(&mapping, "192.0.2.3"), None);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(name(&mapping, "192.0.2.1"), None);
        tokio::time::advance(Duration::from_secs(300)).await;
        assert_eq!(name(&mapping, "192.0.2.2"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_make_room_for_each_other() {
        let mapping = ReverseMapping::default();
        for n in 0..5000u32 {
            tokio::time::advance(Duration::from_millis(1)).await;
            let ip = std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).to_string();
            mapping.learn(&"a.test".parse_domain(), &answer(&ip, 600));
            assert_eq!(name(&mapping, &ip).as_deref(), Some("a.test"));
        }
        assert!(mapping.names.lock().unwrap().len() <= MOST);
    }
}
