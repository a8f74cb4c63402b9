//! Who is being asked on behalf of whom: so that servers which wait for each other fail at once.
//!
//! A server whose address is a name asks another server for it (`domain_resolver`), and an outbound that a server dials
//! through (`detour`) may ask for its own server's name. Either can lead back to the first server, which would wait for
//! itself until the time is up. The chain of servers travels with the task that asks.

use std::future::Future;
use std::sync::Arc;

use culvert_core::Tag;

use crate::DnsError;

tokio::task_local! {
    static ASKED: Chain;
}

/// The servers being asked in this task, innermost first.
#[derive(Clone, Debug)]
pub(crate) struct Chain(Arc<Asked>);

#[derive(Debug)]
struct Asked {
    server: Tag,
    by: Option<Chain>,
}

impl Chain {
    /// The chain with `server` added.
    ///
    /// # Errors
    /// The server is in it already.
    pub(crate) fn with(server: &Tag) -> Result<Self, DnsError> {
        let by = ASKED.try_with(Self::clone).ok();
        let mut link = by.as_ref();
        let mut names = vec![server.name.to_string()];
        while let Some(Self(asked)) = link {
            names.push(asked.server.name.to_string());
            if asked.server == *server {
                names.reverse();
                return Err(DnsError::Loop(names.join(" -> ").into()));
            }
            link = asked.by.as_ref();
        }
        Ok(Self(Arc::new(Asked { server: server.clone(), by })))
    }

    /// Runs `future` as part of the chain.
    pub(crate) async fn scope<F: Future>(self, future: F) -> F::Output {
        ASKED.scope(self, future).await
    }
}

/// A circle among servers that resolve each other's names, as `a -> b -> a`; to be looked for before the start.
///
/// `resolver` gives the server that a server's own name is resolved by, if it has a name.
pub fn find_circle<'a>(
    servers: impl IntoIterator<Item = &'a str>,
    resolver: impl Fn(&str) -> Option<&'a str>,
) -> Option<String> {
    for first in servers {
        let mut path = vec![first];
        let mut at = first;
        while let Some(next) = resolver(at) {
            if next == first {
                path.push(next);
                return Some(path.join(" -> "));
            }
            if path.contains(&next) {
                break; // a circle that `first` only leads to: found from within
            }
            path.push(next);
            at = next;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_waits_for_itself_is_told_by_whom() {
        let tag = |name: &str| Tag::new("udp", name);
        let inner = async {
            let second = Chain::with(&tag("b")).unwrap();
            second
                .scope(async {
                    assert!(Chain::with(&tag("c")).is_ok());
                    Chain::with(&tag("a")).unwrap_err().to_string()
                })
                .await
        };
        let first = Chain::with(&tag("a")).unwrap();
        assert_eq!(first.scope(inner).await, "DNS servers wait for each other: a -> b -> a");
        assert!(Chain::with(&tag("a")).is_ok(), "the chain ends with its task's part");
    }

    #[test]
    fn circles_are_found_before_the_start() {
        let find = |edges: &[(&'static str, &'static str)]| {
            let resolver = |tag: &str| edges.iter().find(|(from, _)| *from == tag).map(|(_, to)| *to);
            find_circle(["a", "b", "c"], resolver)
        };
        assert_eq!(find(&[("a", "b"), ("b", "c")]), None);
        assert_eq!(find(&[("a", "a")]).as_deref(), Some("a -> a"));
        assert_eq!(find(&[("a", "b"), ("b", "c"), ("c", "b")]).as_deref(), Some("b -> c -> b"));
    }
}
