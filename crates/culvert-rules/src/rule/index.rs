//! An index over a long list of rules: which of them can match at all, by the name asked for.
//!
//! Most rules of a long list name a few hosts and match nothing else. Those are found by the labels of the name, a
//! handful of hash look-ups whatever the length of the list. Those with one keyword are found by one search for all
//! keywords at once, and those that look at addresses alone are left out where there is none. All other rules stay
//! candidates always.

use std::collections::HashMap;

use aho_corasick::AhoCorasick;

use super::{
    Facts, Mode, Rule,
    item::Test,
    matcher::{Default, Kind},
};
use crate::domain::{Entry, Reach};

/// More lists than this at once are not merged; then every rule is a candidate.
const MAX_LISTS: usize = 16;
/// Fewer keywords than this are not worth a search of their own.
const MIN_WORDS: usize = 16;

/// Which rules of a list may match, without asking them. The list must stay as it was.
#[derive(Clone, Debug)]
pub struct RuleIndex {
    len: u32,
    /// Rules that the index knows nothing of.
    always: Box<[u32]>,
    /// Rules that need an address.
    by_address: Box<[u32]>,
    names: HashMap<Box<str>, Found>,
    words: Option<Words>,
}

/// Rules found by a keyword.
#[derive(Clone, Debug)]
struct Words {
    search: AhoCorasick,
    /// The rule of each keyword.
    rules: Box<[u32]>,
}

/// What a rule needs to be in a name.
enum Key<'a> {
    Entry(&'a Entry),
    Word(&'a [u8]),
}

/// The rules found by one name, ascending.
#[derive(Clone, Debug, Default)]
struct Found {
    /// When it is the whole name asked for.
    whole: Vec<u32>,
    /// When it is the end of it, behind a dot.
    end: Vec<u32>,
}

impl RuleIndex {
    /// Indexes `rules` by position.
    pub fn new<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Self {
        let (mut len, mut always, mut by_address) = (0, Vec::new(), Vec::new());
        let (mut names, mut words) = (HashMap::<Box<str>, Found>::new(), Vec::new());
        for rule in rules {
            let mut keys = Vec::new();
            if needs_name(rule, &mut keys) {
                for key in keys {
                    match key {
                        Key::Entry(entry) => {
                            names.entry(entry.name.clone()).or_default().add(len, entry.reach);
                        }
                        Key::Word(word) => words.push((word, len)),
                    }
                }
            } else if needs_address(rule) {
                by_address.push(len);
            } else {
                always.push(len);
            }
            len += 1;
        }
        let search = Some(&words).filter(|words| words.len() >= MIN_WORDS);
        let search = search.and_then(|words| AhoCorasick::new(words.iter().map(|(word, _)| word)).ok());
        let rules = words.into_iter().map(|(_, rule)| rule);
        let words = match search {
            Some(search) => Some(Words { search, rules: rules.collect() }),
            None => {
                always.extend(rules);
                always.sort_unstable();
                always.dedup();
                None
            }
        };
        Self { len, always: always.into(), by_address: by_address.into(), names, words }
    }

    /// The rules from position `from` on that may match, ascending. Every rule left out is one that does not match.
    ///
    /// Allocates nothing. To be asked again from the next position when the facts have changed.
    pub fn candidates(&self, facts: &Facts<'_>, from: usize) -> Candidates<'_> {
        let name = facts.domain.unwrap_or_default();
        let has_address =
            facts.destination.is_some() || !facts.addresses.is_empty() || facts.addresses_pending;
        let by_address: &[u32] = if has_address { &self.by_address } else { &[] };
        let found =
            [&*self.always, by_address].into_iter().chain(self.found_by(name)).chain(self.by_word(name));
        let (mut lists, mut used): ([&[u32]; MAX_LISTS], _) = ([&[]; MAX_LISTS], 0);
        for list in found {
            let list = &list[list.partition_point(|rule| (*rule as usize) < from)..];
            if list.is_empty() {
                continue;
            }
            match lists.get_mut(used) {
                Some(place) => *place = list,
                None => return Candidates { lists, used: 0, rest: from as u32..self.len },
            }
            used += 1;
        }
        Candidates { lists, used, rest: 0..0 }
    }

    /// The rules whose keywords are in a name, one in each list.
    fn by_word<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u32]> {
        let words = self.words.as_ref().filter(|_| !name.is_empty());
        words.into_iter().flat_map(move |words| {
            let hits = words.search.find_overlapping_iter(name);
            hits.map(|hit| std::slice::from_ref(&words.rules[hit.pattern().as_usize()]))
        })
    }

    /// The lists for a name and for each of its ends.
    fn found_by<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a [u32]> + use<'a, 'n> {
        let whole = self.names.get(name).map(|found| &*found.whole);
        let dots = memchr::memchr_iter(b'.', name.as_bytes());
        let ends = dots.filter_map(|dot| self.names.get(&name[dot + 1..])).map(|found| &*found.end);
        whole.into_iter().chain(ends).filter(|list| !list.is_empty())
    }
}

impl Found {
    fn add(&mut self, rule: u32, reach: Reach) {
        let add = |list: &mut Vec<u32>| {
            if list.last() != Some(&rule) {
                list.push(rule);
            }
        };
        if reach != Reach::Below {
            add(&mut self.whole);
        }
        if reach != Reach::Name {
            add(&mut self.end);
        }
    }
}

/// Whether the rule can match only names with one of the `keys` it adds.
fn needs_name<'a>(rule: &'a Rule, keys: &mut Vec<Key<'a>>) -> bool {
    match &rule.0 {
        Kind::Default(rule) => default_needs_name(rule, keys),
        Kind::Logical(rule) if rule.invert => false,
        Kind::Logical(rule) => match rule.mode {
            // One part that needs a name is enough, and the whole needs it too.
            Mode::And => rule.parts.iter().any(|part| {
                let before = keys.len();
                let needs = needs_name(part, keys);
                if !needs {
                    keys.truncate(before);
                }
                needs
            }),
            Mode::Or => !rule.parts.is_empty() && rule.parts.iter().all(|part| needs_name(part, keys)),
        },
    }
}

fn default_needs_name<'a>(rule: &'a Default, keys: &mut Vec<Key<'a>>) -> bool {
    // A rule-set could be merged and match in the group's place.
    if rule.invert || rule.rule_sets.is_some() || !rule.groups.destination_ip.is_empty() {
        return false;
    }
    let items = &rule.groups.destination_address;
    !items.is_empty()
        && items.iter().all(|item| match &item.test {
            Test::FewDomains(few) => {
                keys.extend(few.entries().iter().map(Key::Entry));
                true
            }
            Test::DomainKeyword(words) => {
                let word = words.only().filter(|word| !word.is_empty());
                keys.extend(word.map(Key::Word));
                word.is_some()
            }
            _ => false,
        })
}

/// Whether the rule can match only where there is an address. Those of an answer that it refers to are others.
fn needs_address(rule: &Rule) -> bool {
    let Kind::Default(rule) = &rule.0 else { return false };
    let groups = &rule.groups;
    !rule.invert
        && rule.rule_sets.is_none()
        && rule.response.is_none()
        && groups.destination_address.is_empty()
        && !groups.destination_ip.is_empty()
}

/// Positions of rules, ascending, each once.
#[derive(Clone, Debug)]
pub struct Candidates<'a> {
    lists: [&'a [u32]; MAX_LISTS],
    /// How many of them there are.
    used: usize,
    /// Instead of the lists, when there were too many.
    rest: std::ops::Range<u32>,
}

impl Iterator for Candidates<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if let Some(rule) = self.rest.next() {
            return Some(rule as usize);
        }
        let lists = &mut self.lists[..self.used];
        let next = *lists.iter().filter_map(|list| list.first()).min()?;
        for list in lists {
            if list.first() == Some(&next) {
                *list = &list[1..];
            }
        }
        Some(next as usize)
    }
}
