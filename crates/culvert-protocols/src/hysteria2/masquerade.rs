//! The web server that those see who are no clients.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use culvert_config::options::inbound::hysteria::{Masquerade as Options, MasqueradeKind};
use culvert_core::conn::write_chain;
use culvert_core::duplex::duplex;
use culvert_core::{BoxStream, Dispatch, Incoming, Io, ServeError, Session, StreamConn};
use culvert_quic::QuicStream;
use culvert_tls::{Connector, Store, StoreSettings};
use culvert_wire::{BufChain, Target};
use http_body_util::{BodyExt, Full};
use tokio::io::AsyncWriteExt;

use crate::BuildError;
use crate::carrier::date;
use culvert_quic::h3::qpack::{self, Field};
use culvert_quic::h3::{Body, DATA, HEADERS, NO_ERROR, put_frame, put_varint, value};

/// Longest body of a request that is passed on to another server.
const MAX_BODY: usize = 1 << 20;
/// Bytes of a file that are read at a time.
const PIECE: usize = 64 << 10;
/// How long another server may take for the head of its answer.
const UPSTREAM: Duration = Duration::from_secs(30);

/// A request, and where the answer goes.
pub(super) struct Visit<'a> {
    pub(super) fields: &'a [Field],
    pub(super) stream: &'a mut QuicStream,
    pub(super) early: &'a mut BufChain,
}

/// What is shown.
pub(super) enum Masquerade {
    /// Nothing is found.
    Nothing,
    /// Always the same.
    Fixed { status: u16, headers: Vec<(String, String)>, content: Bytes },
    /// What a directory has.
    Files(PathBuf),
    /// What another server says.
    Proxy(Box<Proxy>),
}

/// Another server.
pub(super) struct Proxy {
    target: Target,
    /// `host` or `host:port`, as it stands in the URL.
    authority: String,
    /// The path that requests' paths are put behind, without a slash at its end, and the query before theirs.
    base: String,
    query: String,
    tls: Option<Connector>,
    rewrite_host: bool,
}

/// The head of an answer.
struct Head {
    status: u16,
    fields: Vec<(String, Vec<u8>)>,
}

impl Head {
    fn new(status: u16) -> Self {
        Self { status, fields: vec![("date".to_owned(), date::now().into_bytes())] }
    }

    fn with(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.fields.push((name.to_owned(), value.into()));
        self
    }

    fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(known, _)| known == name)
    }

    fn encode(&self) -> Vec<u8> {
        let status = self.status.to_string();
        let fields = self.fields.iter().map(|(name, value)| (name.as_str(), &value[..]));
        let (mut section, mut frame) = (Vec::new(), Vec::new());
        qpack::encode(std::iter::once((":status", status.as_bytes())).chain(fields), &mut section);
        put_frame(HEADERS, &section, &mut frame);
        frame
    }
}

impl Masquerade {
    pub(super) fn new(options: &Options) -> Result<Self, BuildError> {
        Ok(match &options.0.0 {
            None => Self::Nothing,
            Some(MasqueradeKind::File(file)) => Self::Files(PathBuf::from(&file.directory)),
            Some(MasqueradeKind::Proxy(proxy)) => {
                Self::Proxy(Box::new(Proxy::new(&proxy.url, proxy.rewrite_host)?))
            }
            Some(MasqueradeKind::String(fixed)) => {
                let status = match fixed.status_code {
                    0 => 200,
                    code => u16::try_from(code).ok().filter(|code| (200..=999).contains(code)).ok_or_else(
                        || BuildError::Invalid {
                            option: "masquerade.status_code",
                            reason: format!("{code} is no final status"),
                        },
                    )?,
                };
                let mut headers = Vec::new();
                for (name, values) in fixed.headers.0.0.iter() {
                    headers.extend(values.iter().map(|value| (name.to_ascii_lowercase(), value.clone())));
                }
                Self::Fixed { status, headers, content: Bytes::copy_from_slice(fixed.content.as_bytes()) }
            }
        })
    }

    /// Answers a request.
    pub(super) async fn answer(
        &self,
        visit: Visit<'_>,
        session: &(impl Fn(Target) -> Session + Sync),
        dispatch: &Dispatch,
    ) -> Result<(), ServeError> {
        let Visit { fields, stream, early } = visit;
        let is_head = value(fields, ":method") == Some(b"HEAD");
        match self {
            Self::Nothing => text(stream, not_found(), NOT_FOUND, is_head).await?,
            Self::Fixed { status, headers, content } => {
                let mut head = Head::new(*status);
                head.fields.extend(headers.iter().map(|(name, value)| (name.clone(), value.clone().into())));
                if !head.has("content-type") && !content.is_empty() {
                    head = head.with("content-type", sniff(content));
                }
                text(stream, head, content, is_head).await?;
            }
            Self::Files(directory) => files(directory, fields, stream, is_head).await?,
            Self::Proxy(proxy) => {
                let upstream = proxy.open(session, dispatch);
                proxy.pass(fields, stream, early, upstream).await?;
            }
        }
        // A request whose body nobody wants; the answer is whole nevertheless.
        stream.stop(NO_ERROR);
        Ok(())
    }
}

const NOT_FOUND: &[u8] = b"404 page not found\n";

fn not_found() -> Head {
    plain(404)
}

/// The head of an answer that is a line of text.
fn plain(status: u16) -> Head {
    Head::new(status)
        .with("content-type", "text/plain; charset=utf-8")
        .with("x-content-type-options", "nosniff")
}

/// Sends a head and a body that is at hand, and the end.
async fn text(stream: &mut QuicStream, head: Head, body: &[u8], is_head: bool) -> io::Result<()> {
    let has_body = !matches!(head.status, 204 | 304);
    let head = if has_body && !head.has("content-length") {
        head.with("content-length", body.len().to_string())
    } else {
        head
    };
    let mut bytes = head.encode();
    if has_body && !is_head && !body.is_empty() {
        put_frame(DATA, body, &mut bytes);
    }
    write_chain(stream, &mut BufChain::copied(&bytes)).await?;
    stream.shutdown().await
}

async fn send_data(stream: &mut QuicStream, body: &[u8]) -> io::Result<()> {
    let mut head = Vec::new();
    put_varint(DATA, &mut head);
    put_varint(body.len() as u64, &mut head);
    let mut chain = BufChain::copied(&head);
    chain.append_copy(body);
    write_chain(stream, &mut chain).await
}

/// The bytes of a path with its `%XX` undone; `None` if it leads out of the directory or means nothing.
fn unescape(path: &[u8]) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    let bad = text.contains('\0') || text.contains('\\') || text.split('/').any(|part| part == "..");
    (!bad && text.starts_with('/')).then_some(text)
}

/// What was found in a directory.
enum Found {
    File(File, Metadata, PathBuf),
    Listing(String),
    /// The client should ask for this instead, relative to what it asked for.
    Elsewhere(String),
    Nothing,
    Forbidden,
}

fn find(directory: &Path, path: &str) -> Found {
    let relative: PathBuf = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let full = directory.join(relative);
    if path.ends_with("/index.html") {
        return Found::Elsewhere("./".to_owned());
    }
    let classify = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => Found::Forbidden,
        _ => Found::Nothing,
    };
    let meta = match std::fs::metadata(&full) {
        Ok(meta) => meta,
        Err(error) => return classify(error),
    };
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if meta.is_dir() {
        if !path.ends_with('/') {
            return Found::Elsewhere(format!("{last}/"));
        }
        let index = full.join("index.html");
        return match std::fs::metadata(&index) {
            Ok(meta) if meta.is_file() => open(index, classify),
            _ => listing(&full).map_or_else(classify, Found::Listing),
        };
    }
    if path.ends_with('/') {
        return Found::Elsewhere(format!("../{last}"));
    }
    if meta.is_file() { open(full, classify) } else { Found::Nothing }
}

fn open(path: PathBuf, classify: impl Fn(io::Error) -> Found) -> Found {
    match File::open(&path).and_then(|file| file.metadata().map(|meta| (file, meta))) {
        Ok((file, meta)) => Found::File(file, meta, path),
        Err(error) => classify(error),
    }
}

/// The names in a directory, as Go's file server shows them.
fn listing(directory: &Path) -> io::Result<String> {
    const MOST: usize = 10_000;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)?.take(MOST) {
        let entry = entry?;
        let mut name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            name.push('/');
        }
        names.push(name);
    }
    names.sort();
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for name in names {
        let shown: String = name
            .chars()
            .map(|char| match char {
                '&' => "&amp;".to_owned(),
                '<' => "&lt;".to_owned(),
                '>' => "&gt;".to_owned(),
                '"' => "&#34;".to_owned(),
                '\'' => "&#39;".to_owned(),
                other => other.to_string(),
            })
            .collect();
        let mut link = String::new();
        for byte in name.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                    link.push(byte.into())
                }
                other => link.push_str(&format!("%{other:02X}")),
            }
        }
        page.push_str(&format!("<a href=\"{link}\">{shown}</a>\n"));
    }
    page.push_str("</pre>\n");
    Ok(page)
}

/// The type of a file by its name, of those that sites are made of.
fn kind(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match extension.as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "txt" => "text/plain; charset=utf-8",
        "xml" => "text/xml; charset=utf-8",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/vnd.microsoft.icon",
        "wasm" => "application/wasm",
        "pdf" => "application/pdf",
        "gz" => "application/gzip",
        "woff2" => "font/woff2",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        _ => return None,
    })
}

/// The type by what is in it: a page, text, or bytes.
fn sniff(content: &[u8]) -> &'static str {
    let start = content.trim_ascii_start();
    let begins =
        |with: &str| start.get(..with.len()).is_some_and(|s| s.eq_ignore_ascii_case(with.as_bytes()));
    if ["<!doctype html", "<html", "<head", "<body", "<h1", "<p>", "<!--"].iter().any(|with| begins(with)) {
        return "text/html; charset=utf-8";
    }
    let binary = |byte: &u8| matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    if content.iter().take(512).any(binary) {
        "application/octet-stream"
    } else {
        "text/plain; charset=utf-8"
    }
}

/// The one range that a request asks for, of so many bytes: first and last. `Err` for one that there is not.
fn range(asked: &[u8], len: u64) -> Option<Result<(u64, u64), ()>> {
    let text = std::str::from_utf8(asked).ok()?.strip_prefix("bytes=")?;
    let (first, last) = text.split_once('-').filter(|_| !text.contains(','))?;
    let (first, last) = (first.trim(), last.trim());
    let range = if first.is_empty() {
        let count: u64 = last.parse().ok()?;
        (len.saturating_sub(count), len.saturating_sub(1))
    } else {
        let first: u64 = first.parse().ok()?;
        let last = if last.is_empty() { len.saturating_sub(1) } else { last.parse().ok()? };
        (first, last.min(len.saturating_sub(1)))
    };
    Some(if range.0 <= range.1 && range.0 < len { Ok(range) } else { Err(()) })
}

async fn files(directory: &Path, fields: &[Field], stream: &mut QuicStream, is_head: bool) -> io::Result<()> {
    let whole = value(fields, ":path").unwrap_or(b"/");
    let path = whole.split(|byte| *byte == b'?').next().unwrap_or_default();
    let Some(path) = unescape(path) else {
        return text(stream, plain(400), b"invalid URL path\n", is_head).await;
    };
    let directory = directory.to_owned();
    let found =
        tokio::task::spawn_blocking(move || find(&directory, &path)).await.map_err(io::Error::other)?;
    match found {
        Found::Nothing => text(stream, not_found(), NOT_FOUND, is_head).await,
        Found::Forbidden => text(stream, plain(403), b"403 Forbidden\n", is_head).await,
        Found::Elsewhere(mut place) => {
            if let Some(at) = whole.iter().position(|byte| *byte == b'?') {
                place.push_str(&String::from_utf8_lossy(&whole[at..]));
            }
            text(stream, Head::new(301).with("location", place), b"", is_head).await
        }
        Found::Listing(page) => {
            let head = Head::new(200).with("content-type", "text/html; charset=utf-8");
            text(stream, head, page.as_bytes(), is_head).await
        }
        Found::File(file, meta, path) => send_file(file, &meta, &path, fields, stream, is_head).await,
    }
}

async fn send_file(
    mut file: File,
    meta: &Metadata,
    path: &Path,
    fields: &[Field],
    stream: &mut QuicStream,
    is_head: bool,
) -> io::Result<()> {
    let len = meta.len();
    let modified = meta.modified().ok().and_then(|time: SystemTime| time.duration_since(UNIX_EPOCH).ok());
    let modified = modified.map(|time| date::at(time.as_secs()));
    let mut first = vec![0; 512.min(len as usize)];
    let kind = match kind(path) {
        Some(kind) => kind,
        None => {
            file.read_exact(&mut first)?;
            file.rewind()?;
            sniff(&first)
        }
    };
    let dated = |head: Head| match &modified {
        Some(modified) => head.with("last-modified", modified.as_str()),
        None => head,
    };
    if modified.is_some()
        && value(fields, "if-modified-since") == modified.as_ref().map(|text| text.as_bytes())
    {
        return text(stream, dated(Head::new(304)), b"", is_head).await;
    }
    let asked = value(fields, "range").filter(|_| value(fields, "if-range").is_none());
    let (status, first, count) = match asked.and_then(|asked| range(asked, len)) {
        None => (200, 0, len),
        Some(Ok((first, last))) => (206, first, last - first + 1),
        Some(Err(())) => {
            let head = plain(416).with("content-range", format!("bytes */{len}"));
            return text(stream, head, b"invalid range: failed to overlap\n", is_head).await;
        }
    };
    let mut head = dated(Head::new(status).with("accept-ranges", "bytes").with("content-type", kind))
        .with("content-length", count.to_string());
    if status == 206 {
        head = head.with("content-range", format!("bytes {first}-{}/{len}", first + count - 1));
    }
    write_chain(stream, &mut BufChain::copied(&head.encode())).await?;
    if !is_head {
        file.seek(SeekFrom::Start(first))?;
        let mut rest = count;
        while rest > 0 {
            let most = rest.min(PIECE as u64) as usize;
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; most];
                let count = file.read(&mut piece)?;
                piece.truncate(count);
                io::Result::Ok((file, piece))
            });
            let (same, piece) = read.await.map_err(io::Error::other)??;
            file = same;
            if piece.is_empty() {
                // Shorter than it was: what was announced cannot be sent.
                stream.abort();
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            rest -= piece.len() as u64;
            send_data(stream, &piece).await?;
        }
    }
    stream.shutdown().await
}

/// Fields that concern one connection only.
fn is_of_the_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "transfer-encoding"
            | "upgrade"
            | "te"
            | "trailer"
            | "host"
    )
}

impl Proxy {
    fn new(url: &str, rewrite_host: bool) -> Result<Self, BuildError> {
        let invalid = |reason: String| BuildError::Invalid { option: "masquerade.url", reason };
        let uri: http::Uri = url.parse().map_err(|error| invalid(format!("{url}: {error}")))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid(format!("{url} is no URL of http or https"))),
        };
        let authority = uri.authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
        let target = Target::parse(&authority, Some(if secure { 443 } else { 80 }))
            .ok_or_else(|| invalid(format!("{url} names no server")))?;
        let tls = if secure {
            let options = culvert_config::options::tls::OutboundTls::default();
            let store = Store::new(StoreSettings::default());
            Some(Connector::new(culvert_tls::options::client(&options)?, &target.host, &store)?)
        } else {
            None
        };
        let base = uri.path().trim_end_matches('/').to_owned();
        let query = uri.query().unwrap_or_default().to_owned();
        Ok(Self { target, authority, base, query, tls, rewrite_host })
    }

    /// A stream to the server, by way of the router, which need not be connected yet.
    fn open(&self, session: &(impl Fn(Target) -> Session + Sync), dispatch: &Dispatch) -> BoxStream {
        const BUFFER: usize = 64 << 10;
        let (near, far) = duplex(BUFFER);
        let session = session(self.target.clone());
        let io = Io::Stream(Box::new(far));
        dispatch.submit(Incoming { session, io, early: BufChain::new(), reply: None, udp_timeout: None });
        Box::new(near)
    }

    /// Where a request goes at the server.
    fn path(&self, asked: &str) -> String {
        let (path, query) = asked.split_once('?').unwrap_or((asked, ""));
        let joined = [self.query.as_str(), query].into_iter().filter(|query| !query.is_empty());
        let query = joined.collect::<Vec<_>>().join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{}{path}{mark}{query}", self.base)
    }

    fn request(&self, fields: &[Field], body: Bytes) -> Option<http::Request<Full<Bytes>>> {
        let text = |name| value(fields, name).and_then(|value| std::str::from_utf8(value).ok());
        let authority = text(":authority").or(text("host")).filter(|_| !self.rewrite_host);
        let mut request = http::Request::builder()
            .method(text(":method")?)
            .uri(self.path(text(":path").filter(|path| path.starts_with('/'))?))
            .header("host", authority.unwrap_or(&self.authority));
        for (name, value) in fields {
            let name = std::str::from_utf8(name).ok()?;
            if name.starts_with(':') || is_of_the_hop(name) || name == "content-length" {
                continue;
            }
            request = request.header(name, &value[..]);
        }
        request.body(Full::new(body)).ok()
    }

    async fn pass(
        &self,
        fields: &[Field],
        stream: &mut QuicStream,
        early: &mut BufChain,
        upstream: BoxStream,
    ) -> Result<(), ServeError> {
        let is_head = value(fields, ":method") == Some(b"HEAD");
        let mut body = Vec::new();
        let mut frames = Body::default();
        if !matches!(value(fields, ":method"), Some(b"GET" | b"HEAD")) {
            loop {
                let piece = frames.read(stream, early).await?;
                if piece.is_empty() {
                    break;
                }
                if body.len() + piece.len() > MAX_BODY {
                    text(stream, plain(413), b"Request Entity Too Large\n", is_head).await?;
                    return Ok(());
                }
                body.extend(piece.to_vec());
            }
        }
        let Some(request) = self.request(fields, body.into()) else {
            text(stream, plain(400), b"Bad Request\n", is_head).await?;
            return Ok(());
        };
        let exchange = tokio::time::timeout(UPSTREAM, self.exchange(upstream, request)).await;
        let Ok(Ok((response, _task))) = exchange else {
            text(stream, Head::new(502), b"", is_head).await?;
            return Ok(());
        };
        let (parts, mut body) = response.into_parts();
        let mut head = Head { status: parts.status.as_u16(), fields: Vec::new() };
        for (name, value) in &parts.headers {
            if !is_of_the_hop(name.as_str()) {
                head = head.with(name.as_str(), value.as_bytes());
            }
        }
        write_chain(stream, &mut BufChain::copied(&head.encode())).await?;
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        send_data(stream, &data).await?;
                    }
                }
                Err(_) => {
                    // An answer that is cut off must not look whole.
                    stream.abort();
                    return Ok(());
                }
            }
        }
        stream.shutdown().await?;
        Ok(())
    }

    async fn exchange(
        &self,
        upstream: BoxStream,
        request: http::Request<Full<Bytes>>,
    ) -> io::Result<(http::Response<hyper::body::Incoming>, Ending)> {
        let upstream: BoxStream = match &self.tls {
            Some(tls) => Box::new(tls.connect(upstream).await.map_err(io::Error::other)?.0),
            None => upstream,
        };
        let handshake = hyper::client::conn::http1::handshake(culvert_http::Io::new(upstream));
        let (mut sender, connection) = handshake.await.map_err(io::Error::other)?;
        let task = Ending(tokio::spawn(async move {
            let _ = connection.await;
        }));
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        Ok((response, task))
    }
}

/// A task that ends with this.
struct Ending(tokio::task::JoinHandle<()>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_of_the_directory() {
        assert_eq!(unescape(b"/a%20b/c").as_deref(), Some("/a b/c"));
        for path in
            [&b"/../x"[..], b"/a/%2e%2e/x", b"/a/..", b"/%00", b"/%", b"/%zz", b"x", b"", b"/a\\b", b"/%ff"]
        {
            assert_eq!(unescape(path), None, "{}", String::from_utf8_lossy(path));
        }
    }

    #[test]
    fn ranges_are_cut_to_what_there_is() {
        assert_eq!(range(b"bytes=0-", 10), Some(Ok((0, 9))));
        assert_eq!(range(b"bytes=2-3", 10), Some(Ok((2, 3))));
        assert_eq!(range(b"bytes=2-99", 10), Some(Ok((2, 9))));
        assert_eq!(range(b"bytes=-3", 10), Some(Ok((7, 9))));
        assert_eq!(range(b"bytes=-30", 10), Some(Ok((0, 9))));
        assert_eq!(range(b"bytes=10-", 10), Some(Err(())));
        assert_eq!(range(b"bytes=5-4", 10), Some(Err(())));
        assert_eq!(range(b"bytes=0-", 0), Some(Err(())));
        for all in [&b"bytes=0-1,3-4"[..], b"lines=1-2", b"bytes=x-", b"bytes=-"] {
            assert_eq!(range(all, 10), None, "the whole file is the answer");
        }
    }

    #[test]
    fn paths_are_put_behind_the_path_of_the_url() {
        let proxy = |url| Proxy::new(url, false).unwrap();
        assert_eq!(proxy("http://a.test").path("/x?y"), "/x?y");
        assert_eq!(proxy("http://a.test/base/").path("/x"), "/base/x");
        assert_eq!(proxy("http://a.test/base?q=1").path("/x?y=2"), "/base/x?q=1&y=2");
        assert_eq!(proxy("http://a.test:81").target.to_string(), "a.test:81");
        assert!(proxy("https://a.test").tls.is_some());
        assert!(Proxy::new("ftp://a.test", false).is_err());
    }
}
