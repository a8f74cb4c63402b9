//! Exact names and suffixes: the `domain` and `domain_suffix` items of a rule.
//!
//! An entry becomes one trie key, reversed so that what names have in common comes first. The last byte of the key says
//! how much of a name it stands for:
//!
//! | entry | key | stands for |
//! |---|---|---|
//! | `domain: "d.e"` | `e.d` | the name |
//! | `domain_suffix: "d.e"` | `e.d\n` | the name and its subdomains |
//! | `domain_suffix: ".d.e"` | `e.d.\r` | its subdomains |

use std::collections::HashSet;

use thiserror::Error;

use super::{
    reversed,
    trie::{Keys, Trie, TrieError},
};

/// Ends a key whose name and subdomains match.
pub(super) const WITH_SUBDOMAINS: u8 = b'\n';
/// Ends a key (behind a dot) of which everything longer matches.
pub(super) const ANYTHING_BEFORE: u8 = b'\r';

/// A set of names and suffixes. A lookup allocates nothing and takes well below a microsecond for any size.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DomainSet {
    trie: Trie,
}

/// An empty `domain_suffix` would match every name; sing-box refuses it (or crashes), so do we.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("domain_suffix: empty item is not allowed")]
pub struct EmptySuffix;

impl DomainSet {
    /// Compiles names and suffixes. An entry in both lists counts as a suffix.
    ///
    /// # Errors
    /// When a suffix is empty.
    pub fn new<D: AsRef<str>, S: AsRef<str>>(domains: &[D], suffixes: &[S]) -> Result<Self, EmptySuffix> {
        Self::build(domains, suffixes, |suffix, keys| match suffix.starts_with('.') {
            true => keys.push(reversed(suffix).chain([ANYTHING_BEFORE])),
            false => keys.push(reversed(suffix).chain([WITH_SUBDOMAINS])),
        })
    }

    /// The same set as rule-set version 1 writes it: a suffix `d` as the name `d` and everything under `.d`.
    ///
    /// # Errors
    /// When a suffix is empty.
    pub fn new_version_1<D: AsRef<str>, S: AsRef<str>>(
        domains: &[D],
        suffixes: &[S],
    ) -> Result<Self, EmptySuffix> {
        let dotted: HashSet<&str> = suffixes.iter().map(AsRef::as_ref).collect();
        let domains: Vec<&str> = domains.iter().map(AsRef::as_ref).collect();
        // `.d` written for the suffix `d` hides a name `.d`, odd as that is.
        let domains: Vec<&str> = domains
            .into_iter()
            .filter(|domain| domain.strip_prefix('.').is_none_or(|rest| !dotted.contains(rest)))
            .collect();
        Self::build(&domains, suffixes, |suffix, keys| {
            if suffix.starts_with('.') {
                keys.push(reversed(suffix).chain([ANYTHING_BEFORE]));
            } else {
                keys.push(reversed(suffix));
                keys.push(reversed(suffix).chain([b'.', ANYTHING_BEFORE]));
            }
        })
    }

    fn build<D: AsRef<str>, S: AsRef<str>>(
        domains: &[D],
        suffixes: &[S],
        push_suffix: impl Fn(&str, &mut Keys),
    ) -> Result<Self, EmptySuffix> {
        let mut keys = Keys::default();
        let mut seen = HashSet::with_capacity(suffixes.len());
        for suffix in suffixes {
            let suffix = suffix.as_ref();
            if suffix.is_empty() {
                return Err(EmptySuffix);
            }
            if seen.insert(suffix) {
                push_suffix(suffix, &mut keys);
            }
        }
        for domain in domains.iter().map(AsRef::as_ref).filter(|domain| !seen.contains(domain)) {
            keys.push(reversed(domain));
        }
        Ok(Self { trie: Trie::build(&keys) })
    }

    /// Whether the set covers `name`, which must be [canonical](super::canonical_name). The empty name never matches.
    pub fn contains(&self, name: &str) -> bool {
        !name.is_empty() && self.walk(reversed(name))
    }

    fn walk(&self, key: impl Iterator<Item = u8>) -> bool {
        let mut node = self.trie.root();
        for byte in key {
            let mut next = None;
            for (index, &label) in self.trie.labels(node).iter().enumerate() {
                match label {
                    ANYTHING_BEFORE => return true,
                    WITH_SUBDOMAINS if byte == b'.' && self.trie.child_is_leaf(node, index) => return true,
                    _ if label == byte => {
                        next = Some(index);
                        break;
                    }
                    _ => {}
                }
            }
            let Some(index) = next else { return false };
            node = self.trie.child(node, index);
        }
        self.trie.is_leaf(node)
            || self.trie.labels(node).iter().any(|label| matches!(*label, ANYTHING_BEFORE | WITH_SUBDOMAINS))
    }

    /// The entries again, as (names, suffixes), each sorted. A version-1 pair of `d` and `.d` becomes the suffix `d`.
    pub fn to_lists(&self) -> (Vec<String>, Vec<String>) {
        let (mut names, mut suffixes, mut dotted) = (HashSet::new(), Vec::new(), Vec::new());
        self.trie.for_each_key(|key| {
            let text = |key: &[u8]| {
                let text = String::from_utf8_lossy(key);
                text.chars().rev().collect::<String>()
            };
            match key {
                [rest @ .., WITH_SUBDOMAINS] => suffixes.push(text(rest)),
                [rest @ .., ANYTHING_BEFORE] => dotted.push(text(rest)),
                _ => drop(names.insert(text(key))),
            }
        });
        for suffix in dotted {
            match suffix.strip_prefix('.') {
                Some(name) if names.remove(name) => suffixes.push(name.to_owned()),
                _ => suffixes.push(suffix),
            }
        }
        let mut names: Vec<String> = names.into_iter().collect();
        names.sort_unstable();
        suffixes.sort_unstable();
        (names, suffixes)
    }

    /// From the three arrays of a `.srs` file: leaves, edge bitmap, labels.
    ///
    /// # Errors
    /// When they do not make a trie.
    pub fn from_parts(leaves: Vec<u64>, edges: Vec<u64>, labels: Vec<u8>) -> Result<Self, TrieError> {
        Trie::from_parts(leaves, edges, labels).map(|trie| Self { trie })
    }

    /// The three arrays as a `.srs` file stores them: leaves, edge bitmap, labels.
    pub fn parts(&self) -> (&[u64], &[u64], &[u8]) {
        self.trie.parts()
    }

    /// Heap bytes held.
    pub fn heap_size(&self) -> usize {
        self.trie.heap_size()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::FewDomains;

    fn set(domains: &[&str], suffixes: &[&str]) -> DomainSet {
        DomainSet::new(domains, suffixes).unwrap()
    }

    #[test]
    fn suffixes_match_at_label_boundaries() {
        let set = set(&["a.example"], &["b.example", ".c.example"]);
        for name in ["a.example", "b.example", "x.b.example", "y.x.b.example", "s.c.example"] {
            assert!(set.contains(name), "{name}");
        }
        for name in
            ["x.a.example", "xb.example", "c.example", "xc.example", "example", "", "b.exampl", "A.example"]
        {
            assert!(!set.contains(name), "{name}");
        }
    }

    /// Two spellings of one suffix and the name itself once crashed a matcher (SagerNet/sing-box@1349acfd).
    #[test]
    fn an_entry_in_every_spelling_is_no_problem() {
        let set = set(&["a.test"], &["a.test", ".a.test", "a.test"]);
        assert!(set.contains("a.test") && set.contains("x.a.test") && !set.contains("xa.test"));
        assert_eq!(set.to_lists(), (vec![], vec![".a.test".into(), "a.test".into()]));
    }

    #[test]
    fn empty_suffixes_are_refused() {
        assert_eq!(DomainSet::new(&["a"], &["b", ""]), Err(EmptySuffix));
    }

    #[test]
    fn wide_characters_are_ordinary() {
        let set = set(&["日本.example"], &["bücher.example"]);
        assert!(set.contains("日本.example") && set.contains("x.bücher.example"));
        assert!(!set.contains("本.example"));
        assert_eq!(set.to_lists(), (vec!["日本.example".into()], vec!["bücher.example".into()]));
    }

    #[test]
    fn version_1_sets_match_alike_and_fold_back() {
        let old =
            DomainSet::new_version_1(&["a.example", ".b.example"], &["b.example", ".c.example"]).unwrap();
        assert!(old.contains("b.example") && old.contains("x.b.example") && !old.contains("xb.example"));
        assert_eq!(old.to_lists(), (vec!["a.example".into()], vec![".c.example".into(), "b.example".into()]));
    }

    /// Vector A of RULESET.md, written by sing-box 1.14.4.
    #[test]
    fn the_arrays_are_those_of_sing_box() {
        let set = set(&["a.example"], &["b.example", ".c.example"]);
        assert_eq!(set.parts(), (&[0x5200][..], &[0x1b58_aaaa][..], &b"elpmaxe.abc\n.\r"[..]));
    }

    /// What the documentation says, entry by entry.
    fn naive(domains: &[String], suffixes: &[String], name: &str) -> bool {
        !name.is_empty()
            && (domains.iter().any(|domain| domain == name)
                || suffixes.iter().any(|suffix| match suffix.starts_with('.') {
                    true => name.ends_with(suffix.as_str()) && name != suffix,
                    false => name == suffix || name.ends_with(&format!(".{suffix}")),
                }))
    }

    proptest! {
        #[test]
        fn lookups_equal_a_linear_search(
            domains in prop::collection::vec("[ab](\\.?[abc]){0,3}", 0..12),
            suffixes in prop::collection::vec("\\.?[ab](\\.?[abc]){0,2}", 0..12),
            names in prop::collection::vec("[abc](\\.?[abc]){0,4}", 1..60),
        ) {
            prop_assume!(!(domains.is_empty() && suffixes.is_empty()));
            let new = DomainSet::new(&domains, &suffixes).unwrap();
            let old = DomainSet::new_version_1(&domains, &suffixes).unwrap();
            let few = FewDomains::new(&domains, &suffixes).unwrap();
            for name in names.iter().chain(&domains) {
                let expected = naive(&domains, &suffixes, name);
                prop_assert_eq!(new.contains(name), expected, "{}", name);
                prop_assert_eq!(old.contains(name), expected, "{} in version 1", name);
                prop_assert_eq!(few.contains(name), expected, "{} compared", name);
            }
            // The lists may be spelled otherwise (`d` and `.d` as the suffix `d`), but mean the same.
            let (listed_names, listed_suffixes) = new.to_lists();
            for name in names.iter().chain(&domains) {
                prop_assert_eq!(naive(&listed_names, &listed_suffixes, name), new.contains(name), "{}", name);
            }
        }
    }
}
