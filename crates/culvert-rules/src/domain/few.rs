//! A handful of names and suffixes, compared one by one: what nearly every rule holds, where a trie would be slower.

use super::EmptySuffix;

/// A name or suffix, and what of it must be there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Entry {
    /// Without the dot of a suffix like `.x`.
    pub(crate) name: Box<str>,
    pub(crate) reach: Reach,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reach {
    /// `domain`
    Name,
    /// `domain_suffix: "x"`
    NameAndBelow,
    /// `domain_suffix: ".x"`
    Below,
}

/// The same as a [`DomainSet`](super::DomainSet) of the same lists.
#[derive(Clone, Debug)]
pub(crate) struct FewDomains(Box<[Entry]>);

impl FewDomains {
    /// Up to here comparing is faster than walking.
    pub(crate) const MOST: usize = 8;

    pub(crate) fn new(domains: &[String], suffixes: &[String]) -> Result<Self, EmptySuffix> {
        let name = |name: &String| Entry { name: name.as_str().into(), reach: Reach::Name };
        let suffix = |suffix: &String| match suffix.strip_prefix('.') {
            Some(name) => Entry { name: name.into(), reach: Reach::Below },
            None => Entry { name: suffix.as_str().into(), reach: Reach::NameAndBelow },
        };
        if suffixes.iter().any(String::is_empty) {
            return Err(EmptySuffix);
        }
        Ok(Self(domains.iter().map(name).chain(suffixes.iter().map(suffix)).collect()))
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        !name.is_empty() && self.0.iter().any(|entry| entry.covers(name))
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.0
    }

    pub(crate) fn heap_size(&self) -> usize {
        size_of_val(&*self.0) + self.0.iter().map(|entry| entry.name.len()).sum::<usize>()
    }
}

impl Entry {
    fn covers(&self, name: &str) -> bool {
        match name.strip_suffix(&*self.name) {
            None => false,
            Some("") => self.reach != Reach::Below,
            Some(front) => self.reach != Reach::Name && front.ends_with('.'),
        }
    }
}
