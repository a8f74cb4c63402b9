//! Downloads: a URL, followed through redirects, and only if what is there has changed.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use tokio::time::timeout;

use crate::client::{Client, Limits};
use crate::error::HttpError;
use crate::url::{Server, join};

/// Redirects that are followed (what Go does).
const REDIRECTS: usize = 10;

/// What tells one content of a URL from the next, as the server named it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Validator {
    /// Its `ETag`.
    pub etag: Option<String>,
    /// Its `Last-Modified`.
    pub last_modified: Option<String>,
}

/// What a download brought.
#[derive(Debug)]
pub enum Fetched {
    /// The content, and what names this version of it.
    New {
        /// The content.
        body: Bytes,
        /// To be sent along the next time.
        validator: Validator,
    },
    /// It is as it was.
    Unchanged,
}

impl Client {
    /// Downloads what is at `url`. With a `known` version of it, only if that is not the one there is. `headers` are sent
    /// along, to other servers than the first without credentials.
    ///
    /// # Errors
    /// Why there is nothing.
    pub async fn fetch(
        &self,
        url: &Uri,
        known: &Validator,
        headers: &HeaderMap,
        limits: Limits,
    ) -> Result<Fetched, HttpError> {
        let first = Server::of(url)?;
        let limit = limits.total;
        let late = |_| HttpError::Timeout { server: first.to_string(), phase: "the download", limit };
        timeout(limit, self.follow(url, known, headers.clone(), limits)).await.map_err(late)?
    }

    async fn follow(
        &self,
        url: &Uri,
        known: &Validator,
        mut headers: HeaderMap,
        limits: Limits,
    ) -> Result<Fetched, HttpError> {
        known.ask(&mut headers);
        let mut url = url.clone();
        let mut server = Server::of(&url)?;
        for _ in 0..=REDIRECTS {
            let mut request = Request::new(Bytes::new());
            *request.method_mut() = Method::GET;
            *request.uri_mut() = url.clone();
            *request.headers_mut() = headers.clone();
            let response = self.send(request, limits).await?;
            let status = response.status();
            match status {
                StatusCode::OK => {
                    let validator = Validator::of(&response);
                    return Ok(Fetched::New { body: response.into_body(), validator });
                }
                StatusCode::NOT_MODIFIED if *known != Validator::default() => return Ok(Fetched::Unchanged),
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => {
                    let location = response.headers().get(header::LOCATION);
                    let next = location.and_then(|to| to.to_str().ok()).and_then(|to| join(&url, to));
                    let lost = || HttpError::Redirect(server.to_string());
                    url = next.ok_or_else(lost)?;
                    let next = Server::of(&url).map_err(|_| lost())?;
                    if next != server {
                        for secret in [header::AUTHORIZATION, header::COOKIE] {
                            headers.remove(secret);
                        }
                    }
                    server = next;
                }
                _ => return Err(HttpError::Status { server: server.to_string(), status }),
            }
        }
        Err(HttpError::Redirects(REDIRECTS))
    }
}

impl Validator {
    fn of(response: &Response<Bytes>) -> Self {
        let text =
            |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Self { etag: text(header::ETAG), last_modified: text(header::LAST_MODIFIED) }
    }

    /// Adds the question whether it has changed. A tag is exact, a date is not, and need not be asked beside it.
    fn ask(&self, headers: &mut HeaderMap) {
        let value = |text: &Option<String>| text.as_ref().and_then(|text| HeaderValue::from_str(text).ok());
        if let Some(etag) = value(&self.etag) {
            headers.insert(header::IF_NONE_MATCH, etag);
        } else if let Some(date) = value(&self.last_modified) {
            headers.insert(header::IF_MODIFIED_SINCE, date);
        }
    }
}
