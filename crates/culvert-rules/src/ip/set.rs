//! Address sets as sorted, disjoint ranges, searched by bisection: 8 bytes a v4 range, 32 a v6 one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Prefix;

/// A set of addresses.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct IpSet {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

/// Collects prefixes and ranges in any order.
#[derive(Clone, Debug, Default)]
pub struct IpSetBuilder {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl IpSetBuilder {
    /// Adds all addresses of `prefix`.
    pub fn add(&mut self, prefix: Prefix) {
        let (first, last) = prefix.range();
        let taken = self.add_range(first, last);
        debug_assert!(taken, "both ends of a prefix are of one family and in order");
    }

    /// Adds `first` to `last`, both inside. The result says whether it was taken: not if they are of two families or
    /// the wrong way round.
    ///
    /// A v6 range inside `::ffff:0:0/96` is a v4 range; one that only reaches into it stays v6 and covers no v4 address.
    #[must_use]
    pub fn add_range(&mut self, first: IpAddr, last: IpAddr) -> bool {
        match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
                self.v4.push((first.into(), last.into()))
            }
            (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
                match (first.to_ipv4_mapped(), last.to_ipv4_mapped()) {
                    (Some(first), Some(last)) => self.v4.push((first.into(), last.into())),
                    _ => self.v6.push((first.into(), last.into())),
                }
            }
            _ => return false,
        }
        true
    }

    /// Sorts and merges.
    pub fn build(self) -> IpSet {
        let v4 = merge(self.v4, |last| last.checked_add(1));
        let v6 = merge(self.v6, |last| last.checked_add(1));
        IpSet { v4, v6 }
    }
}

fn merge<A: Copy + Ord>(mut ranges: Vec<(A, A)>, next: impl Fn(A) -> Option<A>) -> Box<[(A, A)]> {
    ranges.sort_unstable();
    let mut merged: Vec<(A, A)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if next(before.1).is_none_or(|next| first <= next) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged.into_boxed_slice()
}

impl FromIterator<Prefix> for IpSet {
    fn from_iter<I: IntoIterator<Item = Prefix>>(prefixes: I) -> Self {
        let mut builder = IpSetBuilder::default();
        prefixes.into_iter().for_each(|prefix| builder.add(prefix));
        builder.build()
    }
}

impl IpSet {
    /// Whether `addr` is inside.
    pub fn contains(&self, addr: IpAddr) -> bool {
        match addr.to_canonical() {
            IpAddr::V4(addr) => search(&self.v4, addr.into()),
            IpAddr::V6(addr) => search(&self.v6, addr.into()),
        }
    }

    /// Whether it holds no address.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// The ranges, both ends inside, sorted, v4 first.
    pub fn ranges(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        let v4 = self.v4.iter().map(|&(a, b)| (Ipv4Addr::from(a).into(), Ipv4Addr::from(b).into()));
        v4.chain(self.v6.iter().map(|&(a, b)| (Ipv6Addr::from(a).into(), Ipv6Addr::from(b).into())))
    }

    /// The fewest prefixes that make up the set, sorted, v4 first.
    pub fn prefixes(&self) -> Vec<Prefix> {
        let mut prefixes = Vec::with_capacity(self.v4.len() + self.v6.len());
        for &(first, last) in &self.v4 {
            cover(first.into(), last.into(), 32, |addr, bits| {
                prefixes.push(Prefix { addr: Ipv4Addr::from(addr as u32).into(), bits });
            });
        }
        for &(first, last) in &self.v6 {
            cover(first, last, 128, |addr, bits| {
                prefixes.push(Prefix { addr: Ipv6Addr::from(addr).into(), bits });
            });
        }
        prefixes
    }

    /// All addresses of either.
    pub fn with(&self, other: &Self) -> Self {
        IpSetBuilder { v4: [&*self.v4, &*other.v4].concat(), v6: [&*self.v6, &*other.v6].concat() }.build()
    }

    /// The addresses that are not in `other`.
    pub fn without(&self, other: &Self) -> Self {
        Self {
            v4: subtract(&self.v4, &other.v4, |last| last.checked_add(1), |first| first.checked_sub(1)),
            v6: subtract(&self.v6, &other.v6, |last| last.checked_add(1), |first| first.checked_sub(1)),
        }
    }

    /// Heap bytes held.
    pub fn heap_size(&self) -> usize {
        size_of_val(&*self.v4) + size_of_val(&*self.v6)
    }
}

/// What is left of sorted, disjoint ranges without others.
fn subtract<A: Copy + Ord>(
    ranges: &[(A, A)],
    others: &[(A, A)],
    next: impl Fn(A) -> Option<A>,
    previous: impl Fn(A) -> Option<A>,
) -> Box<[(A, A)]> {
    let mut left = Vec::with_capacity(ranges.len());
    for &(first, last) in ranges {
        let mut first = Some(first);
        let begin = others.partition_point(|&(_, end)| first.is_some_and(|first| end < first));
        for &(from, to) in others[begin..].iter().take_while(|&&(from, _)| from <= last) {
            if let Some(first) = first
                && let Some(before) = previous(from)
                && first <= before
            {
                left.push((first, before));
            }
            first = next(to).filter(|after| *after <= last);
        }
        left.extend(first.map(|first| (first, last)));
    }
    left.into_boxed_slice()
}

fn search<A: Copy + Ord>(ranges: &[(A, A)], addr: A) -> bool {
    let after = ranges.partition_point(|&(first, _)| first <= addr);
    after > 0 && addr <= ranges[after - 1].1
}

/// Cuts a range into aligned blocks, each as large as its start and the end allow.
fn cover(mut first: u128, last: u128, width: u32, mut emit: impl FnMut(u128, u8)) {
    loop {
        let aligned = first.trailing_zeros().min(width);
        let fitting = match (last - first).checked_add(1) {
            Some(size) => size.ilog2(),
            None => 128,
        };
        let block = aligned.min(fitting);
        emit(first, (width - block) as u8);
        let Some(next) = 1u128.checked_shl(block).and_then(|size| first.checked_add(size)) else { return };
        if next > last {
            return;
        }
        first = next;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(prefixes: &[&str]) -> IpSet {
        prefixes.iter().map(|text| text.parse::<Prefix>().unwrap()).collect()
    }

    fn cidrs(set: &IpSet) -> Vec<String> {
        set.prefixes().iter().map(Prefix::to_string).collect()
    }

    #[test]
    fn neighbours_merge() {
        let set =
            set(&["192.0.2.128/25", "192.0.2.0/25", "192.0.2.7", "2001:db8::/33", "2001:db8:8000::/33"]);
        assert_eq!(set.ranges().count(), 2);
        assert_eq!(cidrs(&set), ["192.0.2.0/24", "2001:db8::/32"]);
    }

    #[test]
    fn the_whole_space_is_one_prefix() {
        let set = set(&["0.0.0.0/1", "128.0.0.0/1", "::/0", "::1"]);
        assert_eq!(cidrs(&set), ["0.0.0.0/0", "::/0"]);
        assert!(set.contains("255.255.255.255".parse().unwrap()) && set.contains("ffff::".parse().unwrap()));
    }

    #[test]
    fn mapped_addresses_are_v4() {
        let set = set(&["::ffff:192.0.2.0/120"]);
        assert_eq!(cidrs(&set), ["192.0.2.0/24"]);
        assert!(
            set.contains("::ffff:192.0.2.1".parse().unwrap()) && set.contains("192.0.2.1".parse().unwrap())
        );
        assert!(!set.contains("::ffff:192.0.3.1".parse().unwrap()));
        let around = self::set(&["::fffe:0:0/95", "::/0"]);
        assert!(around.contains("::1".parse().unwrap()) && !around.contains("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn ranges_across_families_or_backwards_are_not_taken() {
        let mut builder = IpSetBuilder::default();
        assert!(!builder.add_range("1.1.1.1".parse().unwrap(), "::1".parse().unwrap()));
        assert!(!builder.add_range("1.1.1.2".parse().unwrap(), "1.1.1.1".parse().unwrap()));
        assert!(builder.build().is_empty());
    }

    #[test]
    fn what_is_left_without_the_private_networks() {
        let all = set(&["0.0.0.0/0", "::/0"]);
        let left = all.without(&set(&["10.0.0.0/8", "255.255.255.255/32", "0.0.0.0/32", "fc00::/7"]));
        for inside in ["9.255.255.255", "11.0.0.0", "255.255.255.254", "0.0.0.1", "fe00::", "::"] {
            assert!(left.contains(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["10.0.0.0", "10.255.255.255", "255.255.255.255", "0.0.0.0", "fd00::1"] {
            assert!(!left.contains(outside.parse().unwrap()), "{outside}");
        }
        assert!(all.without(&all).is_empty());
        assert_eq!(all.without(&IpSet::default()), all);
    }

    proptest! {
        #[test]
        fn with_and_without_are_of_each_address(
            a in prop::collection::vec((0u32..300, 0u32..20), 0..20),
            b in prop::collection::vec((0u32..300, 0u32..20), 0..20),
        ) {
            let build = |ranges: &[(u32, u32)]| {
                let mut builder = IpSetBuilder::default();
                for &(first, more) in ranges {
                    let ends = [first, first + more].map(|end| Ipv4Addr::from(end).into());
                    prop_assert!(builder.add_range(ends[0], ends[1]));
                }
                Ok(builder.build())
            };
            let (a, b) = (build(&a)?, build(&b)?);
            let (with, without) = (a.with(&b), a.without(&b));
            for probe in 0u32..330 {
                let probe = Ipv4Addr::from(probe).into();
                prop_assert_eq!(with.contains(probe), a.contains(probe) || b.contains(probe));
                prop_assert_eq!(without.contains(probe), a.contains(probe) && !b.contains(probe));
            }
        }

        #[test]
        fn lookups_equal_a_linear_search(
            ranges in prop::collection::vec((0u32..300, 0u32..20), 0..40),
            probes in prop::collection::vec(0u32..340, 50),
        ) {
            let mut builder = IpSetBuilder::default();
            for &(first, more) in &ranges {
                let v6 = |addr| Ipv6Addr::from(u128::from(addr) << 64).into();
                prop_assert!(builder.add_range(Ipv4Addr::from(first).into(), Ipv4Addr::from(first + more).into()));
                prop_assert!(builder.add_range(v6(first), v6(first + more)));
            }
            let set = builder.build();
            for probe in probes {
                let inside = ranges.iter().any(|&(first, more)| (first..=first + more).contains(&probe));
                prop_assert_eq!(set.contains(Ipv4Addr::from(probe).into()), inside);
                prop_assert_eq!(set.contains(Ipv6Addr::from(u128::from(probe) << 64).into()), inside);
            }
            prop_assert_eq!(set.prefixes().into_iter().collect::<IpSet>(), set);
        }
    }
}
