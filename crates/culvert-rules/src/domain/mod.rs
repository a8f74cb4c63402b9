//! Matchers over host names: exact names and suffixes, keywords, patterns, AdGuard rules.
//!
//! All of them take a name in canonical form, which [`canonical_name`] makes: lower case, no trailing dot. The values
//! in rules are *not* folded: `domain: "A.Example"` never matches, as in sing-box.

mod adguard;
mod few;
mod keyword;
mod pattern;
mod set;
mod trie;

pub use adguard::AdGuardSet;
pub(crate) use few::{Entry, FewDomains, Reach};
pub use keyword::Keywords;
pub use pattern::{PatternError, Patterns};
pub use set::{DomainSet, EmptySuffix};
pub use trie::{TrieError, fuzz_trie};

use std::borrow::Cow;

/// The one spelling of a host name that rules see: lower case, without the dot that ends an absolute name.
///
/// Borrows when the name is canonical already, which is nearly always.
pub fn canonical_name(name: &str) -> Cow<'_, str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(name.to_lowercase())
    }
}

/// The bytes of `name` in the order of a trie key: last code point first, the bytes of one code point in order.
fn reversed(name: &str) -> impl Iterator<Item = u8> {
    // Two arms behind one type: for ASCII names, nearly all, each code point is one byte.
    let mut ascii = if name.is_ascii() { name.as_bytes() } else { &[] }.iter().rev();
    let mut wide = if name.is_ascii() { "" } else { name }.chars().rev().flat_map(utf8_bytes);
    std::iter::from_fn(move || ascii.next().copied().or_else(|| wide.next()))
}

fn utf8_bytes(c: char) -> impl Iterator<Item = u8> {
    let mut bytes = [0; 4];
    let len = c.encode_utf8(&mut bytes).len();
    bytes.into_iter().take(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_names_fold_case_and_the_root_dot() {
        for (spelling, canonical) in [
            ("example.com", "example.com"),
            ("example.com.", "example.com"),
            ("EXAMPLE.Com.", "example.com"),
            ("BÜCHER.example", "bücher.example"),
            ("", ""),
            (".", ""),
        ] {
            assert_eq!(canonical_name(spelling), canonical);
        }
        assert!(matches!(canonical_name("example.com."), Cow::Borrowed(_)));
    }

    #[test]
    fn reversal_keeps_the_bytes_of_one_code_point_together() {
        let reverse = |name| String::from_utf8(reversed(name).collect()).unwrap();
        assert_eq!(reverse("a.bc"), "cb.a");
        assert_eq!(reverse("日本.x"), "x.本日");
        assert_eq!(reverse(""), "");
    }
}
