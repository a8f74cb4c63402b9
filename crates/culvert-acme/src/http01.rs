//! The server of `http-01` (RFC 8555 section 8.3): one GET for one resource, then the end.

use std::sync::Arc;

use culvert_core::BoxStream;
use culvert_core::conn::finish;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::challenge::Challenges;

/// Where authorities look.
const FOLDER: &str = "/.well-known/acme-challenge/";
/// Longest head of a request.
const HEAD: usize = 8 << 10;

/// Serves one connection; who calls this limits its time.
pub(crate) async fn serve(mut conn: BoxStream, challenges: Arc<Challenges>) {
    let Some(path) = requested(&mut conn).await else { return };
    let token = path.strip_prefix(FOLDER).map(|rest| rest.split('?').next().unwrap_or_default());
    let (status, body) = match token.and_then(|token| challenges.key_authorization(token)) {
        Some(authorization) => ("200 OK", authorization),
        None => ("404 Not Found", String::new()),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    if conn.write_all(answer.as_bytes()).await.is_ok() {
        finish(&mut conn).await;
    }
}

/// The path of a GET request.
async fn requested(conn: &mut BoxStream) -> Option<String> {
    let mut head = Vec::new();
    loop {
        let mut more = [0; 1024];
        let count = conn.read(&mut more).await.ok().filter(|count| *count > 0)?;
        head.extend_from_slice(&more[..count]);
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        if request.parse(&head).ok()?.is_complete() {
            return request.path.filter(|_| request.method == Some("GET")).map(str::to_owned);
        }
        if head.len() > HEAD {
            return None;
        }
    }
}
