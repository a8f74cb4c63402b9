//! The server of type `fakeip`: an address for every name, so that a connection to the address tells the name.
//!
//! Addresses are given out in order from the third of the range (`198.18.0.2`); a name keeps its address until the range
//! has been gone through and begins again. The last address of a range (IPv4's broadcast) is not used. At most
//! [`MOST_NAMES`] names have an address at a time, also in ranges that have more: a client that asks for random names
//! must not fill the memory.
//!
//! Source: sing-box 1.14.4, by its answers (order, TTL, wrap).

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use culvert_config::options::dns::server::FakeIpDnsServer;
use culvert_config::value::Prefix;
use culvert_core::Tag;
use culvert_wire::Domain;

use super::{BuildError, DnsServer};
use crate::DnsError;
use crate::message::{Query, Rcode, RecordType, Reply, records};

/// TTL of the answers in seconds (sing-box 1.14.4).
const TTL: u32 = 600;
/// Names per family that have an address at the same time: as many as an IPv4 range of /15 has.
pub const MOST_NAMES: u32 = 1 << 17;

/// A network that fake addresses are taken from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FakeRange {
    network: IpAddr,
    prefix: u8,
}

impl fmt::Display for FakeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl FakeRange {
    /// The network of `prefix` bits around `address`; `None` if it is too small for a third address.
    #[must_use]
    pub fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let (bits, network) = match address {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
                (32, Ipv4Addr::from_bits(ip.to_bits() & mask).into())
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
                (128, Ipv6Addr::from_bits(ip.to_bits() & mask).into())
            }
        };
        (prefix <= bits - 2).then_some(Self { network, prefix })
    }

    /// Whether an address lies in it.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.offset(ip).is_some()
    }

    /// How many addresses lie before `ip`, if it is in the range; past 32 bits, the highest number.
    fn offset(&self, ip: IpAddr) -> Option<u32> {
        let (distance, host_bits) = match (self.network, ip) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                (u128::from(ip.to_bits().checked_sub(network.to_bits())?), 32 - self.prefix)
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                (ip.to_bits().checked_sub(network.to_bits())?, 128 - self.prefix)
            }
            _ => return None,
        };
        let inside = u32::from(host_bits) >= 128 || distance >> host_bits == 0;
        inside.then(|| u32::try_from(distance).unwrap_or(u32::MAX))
    }

    fn address(&self, offset: u32) -> IpAddr {
        match self.network {
            IpAddr::V4(network) => Ipv4Addr::from_bits(network.to_bits() + offset).into(),
            IpAddr::V6(network) => Ipv6Addr::from_bits(network.to_bits() + u128::from(offset)).into(),
        }
    }

    /// How many names fit: all addresses but the first two and the last.
    fn capacity(&self) -> u32 {
        let host_bits = match self.network {
            IpAddr::V4(_) => 32 - self.prefix,
            IpAddr::V6(_) => 128 - self.prefix,
        };
        let all = 1u128.checked_shl(host_bits.into()).unwrap_or(u128::MAX);
        u32::try_from(all - 3).unwrap_or(u32::MAX).min(MOST_NAMES)
    }
}

/// Where fake addresses outlive the program (`store_fakeip` of the cache file).
///
/// [`FakeStore::keep`] is called while a name is looked up and others wait: it must be quick. What it was told must be there
/// again after the program was killed, since its clients go on using the address.
pub trait FakeStore: Send + Sync {
    /// All that was kept for exactly these ranges; `None` if there is nothing, or it was kept for others and is of no
    /// use any more.
    fn load(&self, inet4: Option<FakeRange>, inet6: Option<FakeRange>) -> Option<FakeRecords>;
    /// Begins anew for these ranges.
    fn reset(&self, inet4: Option<FakeRange>, inet6: Option<FakeRange>);
    /// `name` has this address; it is the last one given out in its range. Who had it before has it no longer.
    fn keep(&self, address: IpAddr, name: &Domain);
}

/// What a [`FakeStore`] has kept.
#[derive(Clone, Debug, Default)]
pub struct FakeRecords {
    /// Every address in use and its name.
    pub names: Vec<(IpAddr, Domain)>,
    /// The address given out last, per family.
    pub last: (Option<IpAddr>, Option<IpAddr>),
}

/// The addresses given out, for the server and for the router, which asks for the name behind a destination.
pub struct FakeAddresses {
    inet4: Option<Family>,
    inet6: Option<Family>,
    store: OnceLock<Arc<dyn FakeStore>>,
}

struct Family {
    range: FakeRange,
    given: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    /// The name of each address, from the third on.
    names: Vec<Option<Domain>>,
    /// The index into `names` of each name.
    places: HashMap<Domain, u32>,
    /// Where the next name goes.
    next: u32,
}

impl FakeAddresses {
    /// The ranges of the options.
    ///
    /// # Errors
    /// A range is too small.
    pub fn from_options(options: &FakeIpDnsServer) -> Result<Self, BuildError> {
        let range = |option, prefix: Option<Prefix>| match prefix {
            None => Ok::<_, BuildError>(None),
            Some(Prefix { ip, length }) => {
                let range = FakeRange::new(ip, length).ok_or(BuildError::Range { option, ip, length })?;
                Ok(Some(range))
            }
        };
        let inet4 = range("inet4_range", options.inet4_range)?;
        Ok(Self::new(inet4, range("inet6_range", options.inet6_range)?))
    }

    /// Addresses of these ranges, none given out so far.
    #[must_use]
    pub fn new(inet4: Option<FakeRange>, inet6: Option<FakeRange>) -> Self {
        let family = |range: Option<FakeRange>| range.map(Family::new);
        Self { inet4: family(inet4), inet6: family(inet6), store: OnceLock::new() }
    }

    /// Goes on where `store` left off, if it knows these ranges, and keeps there what is given out from here on. To be
    /// called before anything is; only the first store counts.
    pub fn keep_in(&self, store: Arc<dyn FakeStore>) {
        let range = |family: &Option<Family>| family.as_ref().map(|family| family.range);
        let (inet4, inet6) = (range(&self.inet4), range(&self.inet6));
        match store.load(inet4, inet6) {
            Some(kept) => {
                let families = [(&self.inet4, kept.last.0), (&self.inet6, kept.last.1)];
                for (family, last) in families {
                    if let Some(family) = family {
                        family.restore(&kept.names, last);
                    }
                }
            }
            None => store.reset(inet4, inet6),
        }
        let _ = self.store.set(store);
    }

    /// Whether an address lies in a fake range.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        [&self.inet4, &self.inet6].into_iter().flatten().any(|family| family.range.contains(ip))
    }

    /// The name that was given this address.
    #[must_use]
    pub fn name(&self, ip: IpAddr) -> Option<Domain> {
        [&self.inet4, &self.inet6].into_iter().flatten().find_map(|family| family.name(ip))
    }

    /// The address of `name` in the family of `kind`; `None` if the family has no range.
    pub fn address(&self, name: &Domain, kind: RecordType) -> Option<IpAddr> {
        let family = match kind {
            RecordType::A => self.inet4.as_ref()?,
            RecordType::AAAA => self.inet6.as_ref()?,
            _ => return None,
        };
        Some(family.give(name, |address| {
            if let Some(store) = self.store.get() {
                store.keep(address, name);
            }
        }))
    }
}

impl Family {
    /// The first address that is given out is the third of the range.
    const FIRST: u32 = 2;

    fn new(range: FakeRange) -> Self {
        Self { range, given: Mutex::default() }
    }

    fn restore(&self, names: &[(IpAddr, Domain)], last: Option<IpAddr>) {
        let (range, capacity) = (self.range, self.range.capacity());
        let mut given = Given::default();
        let place = |ip: IpAddr| range.offset(ip)?.checked_sub(Self::FIRST).filter(|place| *place < capacity);
        for (ip, name) in names {
            if let Some(place) = place(*ip) {
                given.set(place, name);
            }
        }
        if let Some(last) = last.and_then(place) {
            given.next = (last + 1) % capacity;
        }
        *self.lock() = given;
    }

    fn name(&self, ip: IpAddr) -> Option<Domain> {
        let place = self.range.offset(ip)?.checked_sub(Self::FIRST)?;
        self.lock().names.get(place as usize)?.clone()
    }

    /// The name's address. `keep` is told of a new one before anybody else, in the order in which they are given out.
    fn give(&self, name: &Domain, keep: impl FnOnce(IpAddr)) -> IpAddr {
        let mut given = self.lock();
        if let Some(place) = given.places.get(name) {
            return self.range.address(place + Self::FIRST);
        }
        let place = given.next;
        given.set(place, name);
        given.next = (place + 1) % self.range.capacity();
        let address = self.range.address(place + Self::FIRST);
        keep(address);
        address
    }

    fn lock(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Given {
    /// Puts a name in a place, and out of it the one that was there.
    fn set(&mut self, place: u32, name: &Domain) {
        let index = place as usize;
        if self.names.len() <= index {
            self.names.resize(index + 1, None);
        }
        if let Some(old) = self.names[index].replace(name.clone()) {
            self.places.remove(&old);
        }
        if let Some(former) = self.places.insert(name.clone(), place).filter(|former| *former != place) {
            self.names[former as usize] = None;
        }
    }
}

/// A server of type `fakeip`.
pub struct FakeIpServer {
    tag: Tag,
    addresses: Arc<FakeAddresses>,
}

impl FakeIpServer {
    /// Answers with these addresses.
    #[must_use]
    pub fn new(tag: Tag, addresses: Arc<FakeAddresses>) -> Self {
        Self { tag, addresses }
    }
}

#[async_trait]
impl DnsServer for FakeIpServer {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    /// Names have addresses and nothing else: other types, and a family without a range, are answered with no records,
    /// where sing-box keeps silent and lets the client wait.
    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        let address = query.domain().and_then(|name| self.addresses.address(&name, query.kind()));
        let reply = match address {
            Some(ip) => records::addresses(query, &[ip], TTL),
            None => Reply::empty(query, Rcode::NOERROR),
        };
        Ok(reply.uncached())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ParseDomain, query};

    fn range(text: &str) -> FakeRange {
        let (ip, prefix) = text.split_once('/').unwrap();
        FakeRange::new(ip.parse().unwrap(), prefix.parse().unwrap()).unwrap()
    }

    fn addresses(inet4: &str, inet6: &str) -> FakeAddresses {
        FakeAddresses::new(Some(range(inet4)), Some(range(inet6)))
    }

    fn give(addresses: &FakeAddresses, name: &str, kind: RecordType) -> String {
        addresses.address(&name.parse_domain(), kind).unwrap().to_string()
    }

    fn name(addresses: &FakeAddresses, ip: &str) -> Option<String> {
        addresses.name(ip.parse().unwrap()).map(|name| name.to_string())
    }

    #[test]
    fn addresses_come_in_order_and_stay() {
        let addresses = addresses("198.18.0.0/15", "fc00::/18");
        assert_eq!(give(&addresses, "a.test", RecordType::A), "198.18.0.2");
        assert_eq!(give(&addresses, "b.test", RecordType::A), "198.18.0.3");
        assert_eq!(give(&addresses, "A.test.", RecordType::A), "198.18.0.2");
        assert_eq!(give(&addresses, "b.test", RecordType::AAAA), "fc00::2");
        assert_eq!(give(&addresses, "a.test", RecordType::AAAA), "fc00::3");
        assert_eq!(name(&addresses, "198.18.0.3").as_deref(), Some("b.test"));
        assert_eq!(name(&addresses, "fc00::3").as_deref(), Some("a.test"));
        for unknown in
            ["198.18.0.0", "198.18.0.1", "198.18.0.4", "198.20.0.2", "192.0.2.1", "fc00::1", "fe80::2"]
        {
            assert_eq!(name(&addresses, unknown), None, "{unknown}");
        }
        assert!(addresses.contains("198.19.255.255".parse().unwrap()));
        assert!(!addresses.contains("198.20.0.0".parse().unwrap()));
        assert!(!addresses.contains("::ffff:198.18.0.2".parse().unwrap()));
    }

    #[test]
    fn small_ranges_wrap_to_the_third_address() {
        // F5: /30 and /126 have one address to give, /29 and /125 five.
        for (kind, third) in [(RecordType::A, "198.18.0.2"), (RecordType::AAAA, "fc00::2")] {
            let one = addresses("198.18.0.0/30", "fc00::/126");
            for name in ["a.test", "b.test", "c.test"] {
                assert_eq!(give(&one, name, kind), third);
            }
            assert_eq!(name(&one, third).as_deref(), Some("c.test"));
            let five = addresses("198.18.0.0/29", "fc00::/125");
            let shown: Vec<_> = (0..6).map(|n| give(&five, &format!("n{n}.test"), kind)).collect();
            assert_eq!(shown[0], shown[5]);
            assert_eq!(shown[..5].iter().collect::<std::collections::HashSet<_>>().len(), 5);
            // The one that lost its address gets the next in order.
            assert_eq!(give(&five, "n0.test", kind), shown[1]);
            assert_eq!(name(&five, &shown[0]).as_deref(), Some("n5.test"));
        }
        for prefix in [31, 32] {
            assert_eq!(FakeRange::new("198.18.0.0".parse().unwrap(), prefix), None);
        }
    }

    #[test]
    fn a_flood_of_names_is_bounded_in_large_ranges() {
        let addresses = addresses("10.0.0.0/8", "fc00::/7");
        for n in 0..MOST_NAMES + 10 {
            addresses.address(&format!("n{n}.test").parse_domain(), RecordType::AAAA);
        }
        let given = addresses.inet6.as_ref().unwrap().lock();
        assert_eq!((given.names.len(), given.places.len()), (MOST_NAMES as usize, MOST_NAMES as usize));
    }

    /// Keeps records as the cache file does.
    #[derive(Default)]
    struct Memory(Mutex<Option<(Ranges, FakeRecords)>>);

    type Ranges = (Option<FakeRange>, Option<FakeRange>);

    impl FakeStore for Memory {
        fn load(&self, inet4: Option<FakeRange>, inet6: Option<FakeRange>) -> Option<FakeRecords> {
            let kept = self.0.lock().unwrap();
            kept.as_ref().filter(|kept| kept.0 == (inet4, inet6)).map(|kept| kept.1.clone())
        }

        fn reset(&self, inet4: Option<FakeRange>, inet6: Option<FakeRange>) {
            *self.0.lock().unwrap() = Some(((inet4, inet6), FakeRecords::default()));
        }

        fn keep(&self, address: IpAddr, name: &Domain) {
            let mut kept = self.0.lock().unwrap();
            let records = &mut kept.as_mut().unwrap().1;
            records.names.retain(|(ip, _)| *ip != address);
            records.names.push((address, name.clone()));
            let last = if address.is_ipv4() { &mut records.last.0 } else { &mut records.last.1 };
            *last = Some(address);
        }
    }

    #[test]
    fn kept_addresses_survive_and_other_ranges_begin_anew() {
        let store = Arc::new(Memory::default());
        let open = |inet4: &str| {
            let addresses = FakeAddresses::new(Some(range(inet4)), None);
            addresses.keep_in(Arc::clone(&store) as _);
            addresses
        };
        let first = open("198.18.0.0/29");
        for n in 0..7 {
            give(&first, &format!("n{n}.test"), RecordType::A);
        }
        let second = open("198.18.0.0/29");
        for n in 2..7 {
            assert_eq!(
                give(&second, &format!("n{n}.test"), RecordType::A),
                give(&first, &format!("n{n}.test"), RecordType::A)
            );
        }
        assert_eq!(give(&second, "next.test", RecordType::A), give(&first, "next.test", RecordType::A));
        let third = open("198.18.1.0/29");
        assert_eq!(name(&third, "198.18.0.2"), None);
        assert_eq!(give(&third, "x.test", RecordType::A), "198.18.1.2");
    }

    #[tokio::test]
    async fn other_types_and_families_have_no_records() {
        let addresses = FakeAddresses::new(Some(range("198.18.0.0/15")), None);
        let server = FakeIpServer::new(Tag::new("fakeip", "fake"), addresses.into());
        for (kind, count) in
            [(RecordType::A, 1), (RecordType::AAAA, 0), (RecordType::HTTPS, 0), (RecordType::PTR, 0)]
        {
            let reply = server.exchange(&query("a.test", kind)).await.unwrap();
            assert_eq!(
                (reply.rcode(), reply.walk().count(), reply.lifetime()),
                (Rcode::NOERROR, count, 0),
                "{kind}"
            );
            assert!(reply.walk().all(|(_, record)| record.ttl == TTL));
        }
    }
}
