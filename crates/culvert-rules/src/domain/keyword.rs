//! `domain_keyword`: plain substrings, anywhere in the name.

use aho_corasick::AhoCorasick;
use memchr::memmem::Finder;

/// A set of substrings searched for in one pass.
#[derive(Clone, Debug)]
pub struct Keywords(Search);

#[derive(Clone, Debug)]
enum Search {
    /// The most common case by far, and a fraction of an automaton's memory.
    One(Box<Finder<'static>>),
    Many(AhoCorasick),
    /// Too many for one automaton's numbering.
    Each(Vec<Finder<'static>>),
}

impl Keywords {
    /// Compiles the keywords as they stand; an empty one matches every name.
    pub fn new<K: AsRef<str>>(keywords: &[K]) -> Self {
        let finder = |keyword: &K| Finder::new(keyword.as_ref()).into_owned();
        Self(match keywords {
            [only] => Search::One(Box::new(finder(only))),
            _ => match AhoCorasick::new(keywords.iter().map(AsRef::as_ref)) {
                Ok(automaton) => Search::Many(automaton),
                Err(_) => Search::Each(keywords.iter().map(finder).collect()),
            },
        })
    }

    /// The keyword, if there is but one.
    pub(crate) fn only(&self) -> Option<&[u8]> {
        match &self.0 {
            Search::One(finder) => Some(finder.needle()),
            Search::Many(_) | Search::Each(_) => None,
        }
    }

    /// Whether any keyword occurs in `name`. The empty name never matches.
    pub fn is_match(&self, name: &str) -> bool {
        !name.is_empty()
            && match &self.0 {
                Search::One(finder) => finder.find(name.as_bytes()).is_some(),
                Search::Many(automaton) => automaton.is_match(name),
                Search::Each(finders) => finders.iter().any(|finder| finder.find(name.as_bytes()).is_some()),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_unanchored_and_literal() {
        for keywords in [&["b.c"][..], &["zzz", "b.c"]] {
            let keywords = Keywords::new(keywords);
            assert!(keywords.is_match("ab.cd") && keywords.is_match("b.c"));
            assert!(!keywords.is_match("bxc") && !keywords.is_match("") && !keywords.is_match("B.C"));
        }
        assert!(!Keywords::new::<&str>(&[]).is_match("a"));
        assert!(Keywords::new(&[""]).is_match("a"));
    }
}
