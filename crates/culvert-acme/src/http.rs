//! The ACME library's requests by our HTTP client, with an eye on what the library does not look at.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use culvert_http::{Client, Limits};
use http::header::RETRY_AFTER;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};

/// What an authority has to say is short.
pub(crate) const LIMITS: Limits = Limits { body: 1 << 20, total: Duration::from_secs(60) };

/// The client of one authority. Clones share what they have seen.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client,
    wait: Arc<Mutex<Option<Duration>>>,
}

impl Http {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, wait: Arc::default() }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// How long the authority has asked us to wait since this was last called, if its last refusal did.
    pub(crate) fn take_wait(&self) -> Option<Duration> {
        self.wait.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn exchange(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Error> {
        let (head, body) = request.into_parts();
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(never) => match never {},
        };
        let response = self.client.send(Request::from_parts(head, body), LIMITS).await;
        let response = response.map_err(|error| Error::Other(Box::new(error)))?;
        let status = response.status();
        if is_refusal(status) {
            let wait = response.headers().get(RETRY_AFTER).and_then(|value| seconds(value.to_str().ok()?));
            *self.wait.lock().unwrap_or_else(PoisonError::into_inner) = wait;
            // A proxy on the way, or a server in trouble, answers in its own form.
            if serde_json::from_slice::<serde_json::Value>(response.body()).is_err() {
                return Err(Error::Other(format!("the authority answered {status}").into()));
            }
        }
        let (parts, body) = response.into_parts();
        Ok(BytesResponse { parts, body: Box::new(body) })
    }
}

impl HttpClient for Http {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        Box::pin(self.clone().exchange(request))
    }
}

fn is_refusal(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

/// `Retry-After` in seconds (RFC 9110 section 10.2.3). Authorities do not use the form with a date.
fn seconds(value: &str) -> Option<Duration> {
    value.trim().parse().ok().map(Duration::from_secs)
}
