//! One URL test: HEAD over an outbound, timed from the dial to the head of the response. Any status counts.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_core::conn::{read_chain, write_chain};
use culvert_core::{BoxStream, DialError, Network, Outbound, Session, SessionId, Tag};
use culvert_tls::{ClientSettings, Connector, SettingsError, Store, TlsError};
use culvert_wire::{BufChain, Room, Target};
use thiserror::Error;
use tokio::time::Instant;

/// What is fetched when no URL is given (sing-box 1.14.4).
const URL: &str = "https://www.gstatic.com/generate_204";
/// Limit of one test (sing-box 1.14.4).
const TIMEOUT: Duration = Duration::from_secs(15);
/// Longest head of a response that is waited for.
const LONGEST_HEAD: usize = 64 << 10;

/// The latest delay of an outbound.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    /// Milliseconds.
    pub millis: u16,
    /// When it was measured.
    pub at: Instant,
}

/// The latest delays of all outbounds that were tested, by tag.
#[derive(Debug, Default)]
pub struct History(Mutex<HashMap<Arc<str>, Delay>>);

impl History {
    /// The latest delay of this outbound, if its last test succeeded.
    #[must_use]
    pub fn get(&self, tag: &str) -> Option<Delay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(tag).copied()
    }

    pub(super) fn set(&self, tag: &Arc<str>, delay: Duration) {
        let millis = u16::try_from(delay.as_millis()).unwrap_or(u16::MAX);
        let delay = Delay { millis, at: Instant::now() };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(Arc::clone(tag), delay);
    }

    pub(super) fn forget(&self, tag: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(tag);
    }
}

/// What is fetched.
pub(crate) struct Probe {
    target: Target,
    request: String,
    tls: Option<Connector>,
}

/// Why a test failed, or cannot be made at all.
#[derive(Debug, Error)]
pub(crate) enum ProbeError {
    #[error("url: `{0}` is no URL of http or https")]
    Url(String),
    #[error("TLS")]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("TLS")]
    Tls(#[from] TlsError),
    #[error("fetch")]
    Fetch(#[from] io::Error),
    #[error("took longer than {} s", TIMEOUT.as_secs())]
    Timeout,
}

impl Probe {
    /// Fetches `url`, the usual one if it is empty. `store` says whom to trust.
    pub(crate) fn new(url: &str, store: &Arc<Store>) -> Result<Self, ProbeError> {
        let url = if url.is_empty() { URL } else { url };
        let no_url = || ProbeError::Url(url.to_owned());
        let (is_tls, rest) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            _ => return Err(no_url()),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if url.bytes().any(|byte| byte <= b' ') || authority.contains('@') {
            return Err(no_url());
        }
        let port = if is_tls { 443 } else { 80 };
        let target = Target::parse(authority, Some(port)).ok_or_else(no_url)?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        let request = format!(
            "HEAD {slash}{path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: Go-http-client/1.1\r\n\
             Connection: close\r\n\r\n"
        );
        let tls =
            if is_tls { Some(Connector::new(ClientSettings::default(), &target.host, store)?) } else { None };
        Ok(Self { target, request, tls })
    }

    /// How long it takes over `outbound`.
    pub(crate) async fn measure(&self, outbound: &dyn Outbound) -> Result<Duration, ProbeError> {
        let begun = Instant::now();
        tokio::time::timeout(TIMEOUT, self.fetch(outbound)).await.map_err(|_| ProbeError::Timeout)??;
        Ok(begun.elapsed())
    }

    async fn fetch(&self, outbound: &dyn Outbound) -> Result<(), ProbeError> {
        let session = Session {
            id: SessionId::next(),
            network: Network::Tcp,
            inbound: Tag::new("urltest", outbound.tag().name.clone()),
            user: None,
            source: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            target: self.target.clone(),
            sniffed: None,
            alpn: None,
        };
        let mut conn = outbound.dial(&session, &mut BufChain::new()).await?;
        if let Some(tls) = &self.tls {
            conn = Box::new(tls.connect(conn).await?.0);
        }
        self.exchange(conn).await?;
        Ok(())
    }

    /// Sends the request and waits for the end of the response's head.
    async fn exchange(&self, mut conn: BoxStream) -> io::Result<()> {
        write_chain(&mut conn, &mut BufChain::copied(self.request.as_bytes())).await?;
        tokio::io::AsyncWriteExt::flush(&mut conn).await?;
        let mut head = BufChain::new();
        loop {
            let mut more = read_chain(&mut conn, Room::NONE).await?;
            if more.is_empty() || head.len() > LONGEST_HEAD {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "no HTTP response"));
            }
            head.append(&mut more);
            let bytes = head.contiguous();
            if bytes.windows(4).any(|end| end == b"\r\n\r\n") {
                let is_http = bytes.starts_with(b"HTTP/1.");
                let no_http = || io::Error::new(io::ErrorKind::InvalidData, "no HTTP response");
                return is_http.then_some(()).ok_or_else(no_http);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(url: &str) -> Option<(String, String, bool)> {
        let store = Store::new(culvert_tls::StoreSettings::default());
        let probe = Probe::new(url, &store).ok()?;
        let line = probe.request.lines().next().unwrap_or_default().to_owned();
        Some((probe.target.to_string(), line, probe.tls.is_some()))
    }

    #[test]
    fn urls_are_taken_apart() {
        let expect = |url, target: &str, line: &str, tls| {
            assert_eq!(probe(url), Some((target.to_owned(), line.to_owned(), tls)), "{url}");
        };
        expect("", "www.gstatic.com:443", "HEAD /generate_204 HTTP/1.1", true);
        expect("http://a.test", "a.test:80", "HEAD / HTTP/1.1", false);
        expect("HTTP://a.test:8080/x?y#z", "a.test:8080", "HEAD /x?y HTTP/1.1", false);
        expect("http://a.test?q", "a.test:80", "HEAD /?q HTTP/1.1", false);
        expect("http://[2001:db8::1]:81/", "[2001:db8::1]:81", "HEAD / HTTP/1.1", false);
        for wrong in ["ftp://a.test", "a.test", "http://", "http://u@a.test", "http://a.test/a b"] {
            assert_eq!(probe(wrong), None, "{wrong}");
        }
    }
}
