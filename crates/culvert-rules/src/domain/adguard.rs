//! AdGuard DNS filter rules as a trie, in the meaning sing-box gives them (`RULESET.md` section 5).
//!
//! | rule | key before reversal | stands for |
//! |---|---|---|
//! | `\|x^` | `x` | the name |
//! | `\|\|x^` | `\n` + `x` | the name and its subdomains |
//! | `x^` | `\r` + `x` | every name ending so |
//! | no `^` | the same + `0x08` | ... followed by anything |
//! | `*` | itself | any run of bytes |

use super::{
    reversed,
    set::{ANYTHING_BEFORE, WITH_SUBDOMAINS},
    trie::{Keys, Node, Trie, TrieError},
};

/// Ends the name part of a rule without `^`: more may follow.
const OPEN_END: u8 = 0x08;
const WILDCARD: u8 = b'*';
/// How deep wildcards may follow each other, as in sing-box.
const MAX_DEPTH: usize = 100;
/// Steps one lookup may take. A list made of stars could otherwise take hours; real lists need a few hundred.
const MAX_STEPS: usize = 1 << 18;
/// Names up to here are reversed on the stack. No valid name is longer.
const NAME: usize = 255;

/// A set of AdGuard rules, without the exceptions and priorities, which are rules of their own around it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AdGuardSet {
    trie: Trie,
}

impl AdGuardSet {
    /// Compiles rules of the form `[|| or |]name[^]`.
    pub fn new<R: AsRef<str>>(rules: &[R]) -> Self {
        let mut keys = Keys::default();
        for rule in rules {
            let (name, first) = match rule.as_ref() {
                rule if rule.starts_with("||") => (&rule[2..], Some(WITH_SUBDOMAINS)),
                rule if rule.starts_with('|') => (&rule[1..], None),
                rule => (rule, Some(ANYTHING_BEFORE)),
            };
            match name.strip_suffix('^') {
                Some(name) => keys.push(reversed(name).chain(first)),
                None => {
                    let name = name.strip_suffix('.').unwrap_or(name);
                    keys.push([OPEN_END].into_iter().chain(reversed(name)).chain(first));
                }
            }
        }
        Self { trie: Trie::build(&keys) }
    }

    /// Whether a rule covers `name`, which must be [canonical](super::canonical_name). The empty name never matches.
    pub fn contains(&self, name: &str) -> bool {
        if name.is_empty() {
            return false;
        }
        // One byte in front for the mark of an open end.
        let mut stack = [0; NAME + 1];
        let mut heap = Vec::new();
        let key = if name.len() <= NAME {
            &mut stack[..=name.len()]
        } else {
            heap.resize(name.len() + 1, 0);
            &mut heap[..]
        };
        key[1..].iter_mut().zip(reversed(name)).for_each(|(to, from)| *to = from);

        let mut walk = Walk { trie: &self.trie, steps: MAX_STEPS };
        if walk.matches(&key[1..], self.trie.root(), 0) {
            return true;
        }
        // A rule with an open end may stand for the name less any number of its last labels.
        let mut start = 0;
        loop {
            key[start] = OPEN_END;
            if walk.matches(&key[start..], self.trie.root(), 0) {
                return true;
            }
            match memchr::memchr(b'.', &key[start + 1..]) {
                Some(dot) => start += dot + 1,
                None => return false,
            }
        }
    }

    /// The rules again, sorted by key.
    pub fn to_rules(&self) -> Vec<String> {
        let mut rules = Vec::new();
        self.trie.for_each_key(|key| {
            let (key, start) = match key {
                [key @ .., WITH_SUBDOMAINS] => (key, "||"),
                [key @ .., ANYTHING_BEFORE] => (key, ""),
                key => (key, "|"),
            };
            let (key, end) = match key {
                [OPEN_END, key @ ..] => (key, ""),
                key => (key, "^"),
            };
            let name: String = String::from_utf8_lossy(key).chars().rev().collect();
            rules.push(format!("{start}{name}{end}"));
        });
        rules
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

struct Walk<'a> {
    trie: &'a Trie,
    steps: usize,
}

impl Walk<'_> {
    fn matches(&mut self, key: &[u8], mut node: Node, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            return false;
        }
        for (at, &byte) in key.iter().enumerate() {
            let Some(steps) = self.steps.checked_sub(1) else { return false };
            self.steps = steps;
            let mut next = None;
            for (index, &label) in self.trie.labels(node).iter().enumerate() {
                match label {
                    ANYTHING_BEFORE => return true,
                    WITH_SUBDOMAINS if byte == b'.' && self.trie.child_is_leaf(node, index) => return true,
                    _ if label == byte => {
                        next = Some(index);
                        break;
                    }
                    WILDCARD | OPEN_END => {
                        let child = self.trie.child(node, index);
                        if (at..=key.len()).any(|after| self.matches(&key[after..], child, depth + 1)) {
                            return true;
                        }
                    }
                    _ => {}
                }
            }
            let Some(index) = next else { return false };
            node = self.trie.child(node, index);
        }
        self.ends(node, depth)
    }

    /// Whether a rule may end at `node` when nothing of the name is left.
    fn ends(&mut self, mut node: Node, mut depth: usize) -> bool {
        loop {
            let labels = self.trie.labels(node);
            if self.trie.is_leaf(node)
                || labels.iter().any(|label| matches!(*label, ANYTHING_BEFORE | WITH_SUBDOMAINS | OPEN_END))
            {
                return true;
            }
            let Some(star) = memchr::memchr(WILDCARD, labels) else { return false };
            node = self.trie.child(node, star);
            depth += 1;
            if depth > MAX_DEPTH {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_and_stars_mean_what_they_mean_in_sing_box() {
        for (rule, yes, no) in [
            (
                "||ads.example^",
                &["ads.example", "x.ads.example"][..],
                &["bads.example", "ads.example.org"][..],
            ),
            ("|ads.example^", &["ads.example"], &["x.ads.example"]),
            ("ads.example^", &["ads.example", "bads.example", "x.ads.example"], &["ads.example.org"]),
            ("||ads.", &["ads.example", "x.ads.org", "ads"], &["bads.example"]),
            ("|ads", &["ads.example", "adserver", "ads"], &["x.ads"]),
            ("ads", &["bads.example"], &["dsa.example"]),
            ("||a*c^", &["abc", "ac", "x.a.b.c"], &["ab", "xabc"]),
            ("||*.example^", &["a.example", "a.b.example"], &["example.org"]),
        ] {
            let set = AdGuardSet::new(&[rule]);
            yes.iter().for_each(|name| assert!(set.contains(name), "{rule} {name}"));
            no.iter().for_each(|name| assert!(!set.contains(name), "{rule} {name}"));
        }
    }

    /// Vector C of RULESET.md, written by sing-box 1.14.4.
    #[test]
    fn the_arrays_are_those_of_sing_box() {
        let set = AdGuardSet::new(&["||ads.example^", "sub*x"]);
        let labels = b"\x08exl*pbmuasx\re.sda\n";
        assert_eq!(set.parts(), (&[0x82000][..], &[0x6a_ad55_5554][..], &labels[..]));
        assert_eq!(set.to_rules(), ["sub*x", "||ads.example^"]);
    }

    #[test]
    fn a_list_of_stars_ends() {
        let set = AdGuardSet::new(&["||*a*a*a*a*a*a*a*a*a*a*a*b^"]);
        assert!(!set.contains(&"a".repeat(250)));
    }
}
