//! Servers in URLs, and URLs relative to others (RFC 3986 section 5).

use std::fmt;

use culvert_wire::Target;
use http::Uri;

use crate::error::HttpError;

/// Who is asked.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Server {
    pub(crate) tls: bool,
    pub(crate) target: Target,
}

impl Server {
    /// The server that a URL names.
    pub(crate) fn of(url: &Uri) -> Result<Self, HttpError> {
        let wrong = || HttpError::Url(url.to_string());
        let (tls, port) = match url.scheme_str() {
            Some("https") => (true, 443),
            Some("http") => (false, 80),
            _ => return Err(wrong()),
        };
        let authority = url.authority().ok_or_else(wrong)?.as_str();
        if authority.contains('@') {
            return Err(wrong());
        }
        let target = Target::parse(authority, Some(port)).filter(|target| target.port != 0);
        Ok(Self { tls, target: target.ok_or_else(wrong)? })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}

/// What `reference` means in a response from `base`. `None` if it is no URL.
pub(crate) fn join(base: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.split('#').next().unwrap_or_default();
    if has_scheme(reference) {
        return reference.parse().ok();
    }
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    if let Some(rest) = reference.strip_prefix("//") {
        return format!("{scheme}://{rest}").parse().ok();
    }
    let (path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, format!("?{query}")),
        None => (reference, String::new()),
    };
    let base_query = base.query().map(|query| format!("?{query}")).unwrap_or_default();
    let (path, query) = match path {
        "" if query.is_empty() => (base.path().to_owned(), base_query),
        "" => (base.path().to_owned(), query),
        _ if path.starts_with('/') => (without_dots(path), query),
        _ => {
            let folder = base.path().rfind('/').map_or("/", |end| &base.path()[..=end]);
            (without_dots(&format!("{folder}{path}")), query)
        }
    };
    format!("{scheme}://{authority}{path}{query}").parse().ok()
}

fn has_scheme(reference: &str) -> bool {
    let Some((scheme, _)) = reference.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

/// A path from the root, without `.` and `..`.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let is_folder = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(part),
        }
    }
    if is_folder && kept.last().is_none_or(|last| !last.is_empty()) {
        kept.push("");
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_found_in_urls() {
        let server = |url: &str| Server::of(&url.parse().unwrap()).ok().map(|it| (it.tls, it.to_string()));
        assert_eq!(server("https://A.test/x"), Some((true, "a.test:443".to_owned())));
        assert_eq!(server("http://[::1]:81/"), Some((false, "[::1]:81".to_owned())));
        assert_eq!(server("http://127.0.0.1?q"), Some((false, "127.0.0.1:80".to_owned())));
        for wrong in ["ftp://a.test/", "/path", "https://u:p@a.test/", "http://a.test:0/"] {
            assert_eq!(server(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn references_are_resolved() {
        let base = "http://a.test/b/c/d;p?q".parse().unwrap();
        // RFC 3986 section 5.4, as far as http has it.
        for (reference, expected) in [
            ("g", "http://a.test/b/c/g"),
            ("./g", "http://a.test/b/c/g"),
            ("g/", "http://a.test/b/c/g/"),
            ("/g", "http://a.test/g"),
            ("//g.test", "http://g.test/"),
            ("?y", "http://a.test/b/c/d;p?y"),
            ("g?y", "http://a.test/b/c/g?y"),
            ("g#s", "http://a.test/b/c/g"),
            ("", "http://a.test/b/c/d;p?q"),
            (".", "http://a.test/b/c/"),
            ("..", "http://a.test/b/"),
            ("../g", "http://a.test/b/g"),
            ("../..", "http://a.test/"),
            ("../../../g", "http://a.test/g"),
            ("/./g", "http://a.test/g"),
            ("https://b.test:8443/x", "https://b.test:8443/x"),
        ] {
            assert_eq!(
                join(&base, reference).map(|url| url.to_string()).as_deref(),
                Some(expected),
                "{reference}"
            );
        }
        assert_eq!(join(&base, "http://a b/"), None);
    }
}
