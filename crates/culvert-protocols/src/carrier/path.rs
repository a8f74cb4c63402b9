//! Paths of requests as sing-box writes and compares them, which is as Go's `net/url` does.
//!
//! A client's option is a path that may hold escapes. It is sent as it stands if every byte of it may stand in a URL, else
//! it is decoded and escaped anew; so `?` never begins a query. A server compares its option with the decoded path of the
//! request.
//!
//! Sources: RFC 3986; the behaviour of sing-box 1.14.4, by captures.

/// The path that a client sends for an option.
pub(super) fn escaped(option: &str) -> String {
    if !option.starts_with('/') {
        // What is put in front makes it another path than the one that was written, so nothing of how it was written stays.
        return format!("/{}", escape(&decoded_lossless(option), b"$&+,/:;=@"));
    }
    as_written(option, b"$&+,/:;=@")
}

/// One segment of a path that a client sends.
pub(super) fn escaped_segment(option: &str) -> String {
    escape(option.as_bytes(), b"$&+:=@")
}

/// The path that a server expects: the option, made absolute.
pub(super) fn absolute(option: &str) -> String {
    if option.starts_with('/') { option.to_owned() } else { format!("/{option}") }
}

/// The decoded path of a request's target in any of its forms; `None` if it is no path.
pub(super) fn of_target(target: &str) -> Option<Vec<u8>> {
    let path = without_authority(target);
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    decoded(path)
}

/// A request's target without the scheme and the host that it may begin with.
pub(super) fn without_authority(target: &str) -> &str {
    let Some((scheme, rest)) = target.split_once("://") else { return target };
    if scheme.contains(['/', '?']) {
        return target;
    }
    rest.find(['/', '?']).map_or("", |at| &rest[at..])
}

fn as_written(path: &str, kept: &[u8]) -> String {
    let may_stand = |byte: u8| is_plain(byte) || b"!$&'()*+,;=:@[]%/".contains(&byte);
    if path.bytes().all(may_stand) { path.to_owned() } else { escape(&decoded_lossless(path), kept) }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)
}

fn escape(bytes: &[u8], kept: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if is_plain(byte) || kept.contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.push(char::from(DIGITS[usize::from(byte >> 4)]));
            text.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    text
}

/// Options with bad escapes are refused when they are read, so there is something to decode.
fn decoded_lossless(path: &str) -> Vec<u8> {
    decoded(path).unwrap_or_else(|| path.as_bytes().to_vec())
}

fn decoded(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (high, low) = (digit()?, digit()?);
        bytes.push((high << 4 | low) as u8);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As sing-box 1.14.4 sent them.
    #[test]
    fn paths_are_sent_as_sing_box_sends_them() {
        for (option, sent) in [
            ("/ws", "/ws"),
            ("", "/"),
            ("ws", "/ws"),
            ("/a b?c=d%20e", "/a%20b%3Fc=d%20e"),
            ("a b?c=d%20e/é", "/a%20b%3Fc=d%20e/%C3%A9"),
            ("/a!b(c)%2Fd", "/a!b(c)%2Fd"),
            ("a!b", "/a%21b"),
        ] {
            assert_eq!(escaped(option), sent, "{option:?}");
        }
        assert_eq!(escaped_segment("svc a/b;c"), "svc%20a%2Fb%3Bc");
    }

    #[test]
    fn targets_have_paths() {
        for (target, path) in [
            ("/ws", Some("/ws")),
            ("/%77s?x=/y", Some("/ws")),
            ("http://host:1/a/b?q", Some("/a/b")),
            ("http://host", Some("")),
            ("http://host?q=/", Some("")),
            ("*", Some("*")),
            ("/a?b=http://c/d", Some("/a")),
            ("/%zz", None),
            ("/%2", None),
        ] {
            assert_eq!(of_target(target).as_deref(), path.map(str::as_bytes), "{target:?}");
        }
    }
}
