//! An index over a long list of rules: which of them can match at all, by the name asked for.
//!
//! Most rules of a long list name a few hosts and match nothing else. Those are found by the labels of the name, a
//! handful of hash look-ups whatever the length of the list; all other rules stay candidates always.

use std::collections::HashMap;

use super::{
    Facts, Mode, Rule,
    item::Test,
    matcher::{Default, Kind},
};
use crate::domain::{Entry, Reach};

/// More lists than this at once are not merged; then every rule is a candidate.
const MAX_LISTS: usize = 16;

/// Which rules of a list may match, without asking them. The list must stay as it was.
#[derive(Clone, Debug)]
pub struct RuleIndex {
    len: u32,
    /// Rules that the index knows nothing of.
    always: Box<[u32]>,
    names: HashMap<Box<str>, Found>,
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
        let (mut len, mut always, mut names) = (0, Vec::new(), HashMap::<Box<str>, Found>::new());
        for rule in rules {
            let mut entries = Vec::new();
            if needs_name(rule, &mut entries) {
                for entry in entries {
                    names.entry(entry.name.clone()).or_default().add(len, entry.reach);
                }
            } else {
                always.push(len);
            }
            len += 1;
        }
        Self { len, always: always.into(), names }
    }

    /// The rules from position `from` on that may match, ascending. Every rule left out is one that does not match.
    ///
    /// Allocates nothing. To be asked again from the next position when the facts have changed.
    pub fn candidates(&self, facts: &Facts<'_>, from: usize) -> Candidates<'_> {
        let mut lists: [&[u32]; MAX_LISTS] = [&[]; MAX_LISTS];
        lists[0] = &self.always;
        for (at, found) in (1..).zip(self.found_by(facts.domain.unwrap_or_default())) {
            match lists.get_mut(at) {
                Some(list) => *list = found,
                None => return Candidates { lists: [&[]; MAX_LISTS], rest: from as u32..self.len },
            }
        }
        for list in &mut lists {
            *list = &list[list.partition_point(|rule| (*rule as usize) < from)..];
        }
        Candidates { lists, rest: 0..0 }
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

/// Whether the rule can match only names among the `entries` it adds.
fn needs_name<'a>(rule: &'a Rule, entries: &mut Vec<&'a Entry>) -> bool {
    match &rule.0 {
        Kind::Default(rule) => default_needs_name(rule, entries),
        Kind::Logical(rule) if rule.invert => false,
        Kind::Logical(rule) => match rule.mode {
            // One part that needs a name is enough, and the whole needs it too.
            Mode::And => rule.parts.iter().any(|part| {
                let before = entries.len();
                let needs = needs_name(part, entries);
                if !needs {
                    entries.truncate(before);
                }
                needs
            }),
            Mode::Or => !rule.parts.is_empty() && rule.parts.iter().all(|part| needs_name(part, entries)),
        },
    }
}

fn default_needs_name<'a>(rule: &'a Default, entries: &mut Vec<&'a Entry>) -> bool {
    // A rule-set could be merged and match in the group's place.
    if rule.invert || rule.rule_sets.is_some() || !rule.groups.destination_ip.is_empty() {
        return false;
    }
    let [item] = &*rule.groups.destination_address else { return false };
    let Test::FewDomains(few) = &item.test else { return false };
    entries.extend(few.entries());
    true
}

/// Positions of rules, ascending, each once.
#[derive(Clone, Debug)]
pub struct Candidates<'a> {
    lists: [&'a [u32]; MAX_LISTS],
    /// Instead of the lists, when there were too many.
    rest: std::ops::Range<u32>,
}

impl Iterator for Candidates<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if let Some(rule) = self.rest.next() {
            return Some(rule as usize);
        }
        let next = *self.lists.iter().filter_map(|list| list.first()).min()?;
        for list in &mut self.lists {
            if list.first() == Some(&next) {
                *list = &list[1..];
            }
        }
        Some(next as usize)
    }
}
