//! The server of type `https`: each question is a request, all of them on one connection of HTTP/2.
//!
//! ```text
//! POST /dns-query                         200
//! content-type: application/dns-message   content-type: application/dns-message
//! | message, id 0 |                       | message, id 0 |
//! ```
//!
//! A question without an answer after a second is asked once more; on another connection, if nothing at all has been heard
//! on this one meanwhile.
//!
//! Source: RFC 8484. Requests are POST whatever `method` says (sing-box 1.14.4); `GET` is for caches on the way.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use culvert_core::{Chain, Tag};
use culvert_http::http::header::{ACCEPT, CONTENT_TYPE};
use culvert_http::http::{HeaderValue, Method, Request, StatusCode, Uri};
use culvert_http::{Client, HttpError, Limits};
use tokio::time::Instant;

use super::DnsServer;
use super::slot::{PATIENCE, hedge};
use crate::DnsError;
use crate::message::{NoReply, Query, Reply};

const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/dns-message");
/// Longest reply, and a limit of time that is never reached: the caller's comes first.
const LIMITS: Limits = Limits { body: u16::MAX as usize, total: Duration::from_secs(60) };
/// Requests carry this id, so that caches on the way see equal questions as equal.
const ID: u16 = 0;

/// A server of type `https`.
pub struct HttpsServer {
    tag: Tag,
    name: Arc<str>,
    url: Uri,
    current: Mutex<Current>,
}

/// The client in use, whose connections all questions share.
struct Current {
    client: Client,
    /// When it was taken into use.
    since: Instant,
    /// When something was last heard.
    heard: Option<Instant>,
}

impl HttpsServer {
    /// The server at `url`, asked by `client`.
    #[must_use]
    pub fn new(tag: Tag, client: Client, url: Uri) -> Self {
        let current = Mutex::new(Current { client, since: Instant::now(), heard: None });
        Self { name: tag.to_string().into(), tag, url, current }
    }

    async fn ask(&self, query: &Query, begun: Instant) -> Result<Reply, DnsError> {
        let client = self.client(begun);
        let mut request = Request::new(Bytes::from(query.encode(ID)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        request.headers_mut().insert(CONTENT_TYPE, MEDIA_TYPE);
        request.headers_mut().insert(ACCEPT, MEDIA_TYPE);
        let response = client.send(request, LIMITS).await;
        let response = response.map_err(|error| self.failed(&error))?;
        self.lock().heard = Some(Instant::now());
        let status = response.status();
        if status != StatusCode::OK {
            return Err(self.failed(&HttpError::Status { server: self.tag.name.to_string(), status }));
        }
        Reply::parse(response.body(), query, ID).map_err(|no| match no {
            NoReply::Malformed(source) => DnsError::Malformed { server: Arc::clone(&self.name), source },
            NoReply::Foreign => {
                let foreign = io::Error::new(io::ErrorKind::InvalidData, "a reply to another question");
                DnsError::network(&self.name, foreign)
            }
        })
    }

    /// The client for a question that was first asked at `begun`: one with connections of its own, if nothing has come by
    /// the present one for as long as the question has waited. A connection may die in silence.
    fn client(&self, begun: Instant) -> Client {
        let mut current = self.lock();
        let now = Instant::now();
        let is_silent = current.heard.is_none_or(|heard| heard < begun);
        if now - begun >= PATIENCE && current.since <= begun && is_silent {
            *current = Current { client: current.client.with_own_connections(), since: now, heard: None };
        }
        current.client.clone()
    }

    fn failed(&self, error: &HttpError) -> DnsError {
        DnsError::Dial { server: Arc::clone(&self.name), reason: Chain(error).to_string().into() }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl DnsServer for HttpsServer {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        let begun = Instant::now();
        let again = || self.ask(query, begun);
        hedge(self.ask(query, begun), PATIENCE, || hedge(again(), 2 * PATIENCE, again)).await
    }

    fn reset(&self) {
        let mut current = self.lock();
        let client = current.client.with_own_connections();
        *current = Current { client, since: Instant::now(), heard: None };
    }
}
