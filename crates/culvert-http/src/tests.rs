//! The client against servers written by hand, over streams in memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use culvert_core::{
    BoxPackets, BoxStream, DialError, Dialer, Network, Outbound, ResolveError, Resolver, Session, Strategy,
    Tag,
};
use culvert_testkit::certificate::Certificate;
use culvert_tls::settings::{Identity, KeyPairSource, Parameters, Source, StoreBase, Trust};
use culvert_tls::{Acceptor, ClientSettings, ServerSettings, Store, StoreSettings};
use culvert_wire::{BufChain, Domain};
use http::{HeaderMap, HeaderValue, Method, Request, header};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Client, Fetched, HttpError, Limits, Settings, Validator, Version};

const LIMITS: Limits = Limits { body: 1 << 20, total: Duration::from_secs(300) };

/// An outbound whose server is a function.
struct Wire {
    tag: Tag,
    dials: AtomicUsize,
    targets: Mutex<Vec<String>>,
    serve: Box<dyn Fn(BoxStream) + Send + Sync>,
}

impl Wire {
    fn new<F: Future<Output = ()> + Send + 'static>(
        serve: impl Fn(BoxStream) -> F + Send + Sync + 'static,
    ) -> Arc<Self> {
        let serve = Box::new(move |conn| drop(tokio::spawn(serve(conn))));
        Arc::new(Self {
            tag: Tag::new("wire", "w"),
            dials: AtomicUsize::new(0),
            targets: Mutex::default(),
            serve,
        })
    }

    fn dials(&self) -> usize {
        self.dials.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Outbound for Wire {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, network: Network) -> bool {
        network == Network::Tcp
    }

    async fn dial(&self, session: &Session, _early: &mut BufChain) -> Result<BoxStream, DialError> {
        self.dials.fetch_add(1, Ordering::Relaxed);
        self.targets.lock().unwrap().push(session.target.to_string());
        let (near, far) = tokio::io::duplex(64 << 10);
        (self.serve)(Box::new(far));
        Ok(Box::new(near))
    }

    async fn listen_packet(&self, _session: &Session) -> Result<BoxPackets, DialError> {
        Err(DialError::Network(Network::Udp))
    }
}

struct Nobody;

#[async_trait]
impl Resolver for Nobody {
    async fn resolve(
        &self,
        _name: &Domain,
        _strategy: Strategy,
    ) -> Result<Vec<std::net::IpAddr>, ResolveError> {
        panic!("names go to the detour")
    }
}

fn client(settings: Settings, wire: &Arc<Wire>) -> Client {
    let dialer = Dialer { detour: Some(Arc::clone(wire) as _), ..Dialer::new(Arc::new(Nobody)) };
    let store = Store::new(StoreSettings { base: StoreBase::None, ..StoreSettings::default() });
    Client::new(Tag::new("http-client", "c"), settings, dialer, &store).unwrap()
}

fn get(url: &str) -> Request<Bytes> {
    Request::get(url).body(Bytes::new()).unwrap()
}

/// One request's head as text; empty at the end of the stream.
async fn head(conn: &mut BoxStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match conn.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

/// A server of HTTP/1.1 that answers each head with what `answer` makes of it, and closes after `Connection: close`.
async fn http1(mut conn: BoxStream, answer: impl Fn(&str) -> String) {
    loop {
        let head = head(&mut conn).await;
        if head.is_empty() {
            return;
        }
        let answer = answer(&head);
        if conn.write_all(answer.as_bytes()).await.is_err() || conn.flush().await.is_err() {
            return;
        }
        if answer.contains("Connection: close") {
            let _ = conn.shutdown().await;
            return;
        }
    }
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn server_tls(certificate: &Certificate, alpn: &[&str]) -> Acceptor {
    let source = KeyPairSource {
        certificate: Source::Inline(certificate.certificate.clone()),
        key: Source::Inline(certificate.key.clone()),
    };
    Acceptor::new(&ServerSettings {
        parameters: Parameters {
            alpn: alpn.iter().map(|&name| name.to_owned()).collect(),
            ..Parameters::default()
        },
        identity: Identity::Given(source),
        clients: culvert_tls::settings::ClientAuthentication::None,
        handshake_timeout: None,
    })
    .unwrap()
}

fn trusting(certificate: &Certificate) -> Settings {
    let trust = Trust::Authorities(Source::Inline(certificate.certificate.clone()));
    Settings { tls: ClientSettings { trust, ..ClientSettings::default() }, ..Settings::default() }
}

/// A server of HTTP/2 that answers each request with its method, host and path.
async fn http2(conn: BoxStream, acceptor: Acceptor) {
    let Ok((conn, facts)) = acceptor.accept(conn).await else { return };
    assert_eq!(facts.alpn.as_deref(), Some("h2"));
    let mut connection = h2::server::handshake(conn).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let url = request.uri();
        let said = format!("{} {} {}", request.method(), url.host().unwrap(), url.path());
        let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
        stream.send_data(said.into(), true).unwrap();
    }
}

#[tokio::test]
async fn a_connection_is_kept_between_requests() {
    let wire = Wire::new(|conn| http1(conn, |head| ok(head.lines().next().unwrap())));
    let client = client(Settings::default(), &wire);
    for path in ["/", "/a?b=c"] {
        let response = client.send(get(&format!("http://a.test:81{path}")), LIMITS).await.unwrap();
        assert_eq!(response.body(), &format!("get {path} http/1.1"));
    }
    assert_eq!(*wire.targets.lock().unwrap(), ["a.test:81"]);
    client.send(get("http://b.test/"), LIMITS).await.unwrap();
    assert_eq!(wire.targets.lock().unwrap()[1..], ["b.test:80"]);
}

#[tokio::test]
async fn headers_of_the_settings_stand_behind_those_of_the_request() {
    let wire = Wire::new(|conn| http1(conn, ok));
    let mut headers = HeaderMap::new();
    headers.insert("x-one", HeaderValue::from_static("default"));
    headers.insert("x-two", HeaderValue::from_static("default"));
    let host = Some(HeaderValue::from_static("front.test"));
    let client = client(Settings { headers, host, ..Settings::default() }, &wire);
    let mut request = get("http://a.test/");
    request.headers_mut().insert("x-two", HeaderValue::from_static("own"));
    let response = client.send(request, LIMITS).await.unwrap();
    let head = std::str::from_utf8(response.body()).unwrap();
    for line in ["x-one: default\r\n", "x-two: own\r\n", "host: front.test\r\n", "user-agent: culvert/"] {
        assert!(head.contains(line), "{head}");
    }
    assert_eq!(*wire.targets.lock().unwrap(), ["a.test:80"]);
}

#[tokio::test]
async fn a_kept_connection_that_died_is_replaced() {
    // The first connection answers once and then breaks off without a word.
    let first = Arc::new(AtomicUsize::new(0));
    let wire = Wire::new(move |mut conn| {
        let number = first.fetch_add(1, Ordering::Relaxed);
        async move {
            if number > 0 {
                return http1(conn, |_| ok("second")).await;
            }
            head(&mut conn).await;
            conn.write_all(ok("first").as_bytes()).await.unwrap();
            head(&mut conn).await;
        }
    });
    let client = client(Settings::default(), &wire);
    assert_eq!(client.send(get("http://a.test/"), LIMITS).await.unwrap().body(), "first");
    assert_eq!(client.send(get("http://a.test/"), LIMITS).await.unwrap().body(), "second");
    assert_eq!(wire.dials(), 2);
}

#[tokio::test]
async fn what_may_have_been_done_is_not_done_twice() {
    let wire = Wire::new(|mut conn| async move {
        head(&mut conn).await;
        conn.write_all(ok("").as_bytes()).await.unwrap();
        // It reads the second request and says nothing.
        head(&mut conn).await;
    });
    let client = client(Settings::default(), &wire);
    client.send(get("http://a.test/"), LIMITS).await.unwrap();
    let post = Request::post("http://a.test/").body(Bytes::from_static(b"x")).unwrap();
    let error = client.send(post, LIMITS).await.unwrap_err();
    assert!(matches!(&error, HttpError::Exchange { server, .. } if server == "a.test:80"), "{error:?}");
    assert_eq!(wire.dials(), 1);
}

#[tokio::test]
async fn a_connection_that_the_server_closes_is_not_kept() {
    let wire = Wire::new(|conn| {
        http1(conn, |_| "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end".to_owned())
    });
    let client = client(Settings::default(), &wire);
    for _ in 0..2 {
        assert_eq!(client.send(get("http://a.test/"), LIMITS).await.unwrap().body(), "until the end");
    }
    assert_eq!(wire.dials(), 2);
}

#[tokio::test]
async fn bodies_are_bounded_however_they_are_framed() {
    let wire = Wire::new(|conn| {
        http1(conn, |head| {
            if head.starts_with("get /chunked") {
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n4\r\nefgh\r\n0\r\n\r\n"
                    .to_owned()
            } else {
                ok("abcdefgh")
            }
        })
    });
    let client = client(Settings::default(), &wire);
    for path in ["/chunked", "/length"] {
        for (body, fits) in [(8, true), (7, false)] {
            let limits = Limits { body, ..LIMITS };
            let result = client.send(get(&format!("http://a.test{path}")), limits).await;
            match result {
                Ok(response) => assert!(fits && response.body() == "abcdefgh"),
                Err(HttpError::TooLong { limit: 7, .. }) => assert!(!fits),
                Err(other) => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn garbage_is_an_error_that_names_the_server() {
    let wire = Wire::new(|conn| http1(conn, |_| "SSH-2.0-OpenSSH_9\r\n".to_owned()));
    let error =
        client(Settings::default(), &wire).send(get("http://a.test/secret"), LIMITS).await.unwrap_err();
    let shown = error.to_string();
    assert!(shown.contains("a.test:80") && !shown.contains("secret"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn silence_has_an_end_in_every_phase() {
    let accepts = Wire::new(|conn| async move {
        std::future::pending::<()>().await;
        drop(conn);
    });
    let phase = async |wire: &Arc<Wire>, url: &str| match client(Settings::default(), wire)
        .send(get(url), LIMITS)
        .await
        .unwrap_err()
    {
        HttpError::Timeout { phase, .. } => phase.to_owned(),
        other => other.to_string(),
    };
    assert_eq!(phase(&accepts, "http://a.test/").await, "the response");
    assert!(phase(&accepts, "https://a.test/").await.contains("took longer than 15s"));
    let stalls = Wire::new(|mut conn| async move {
        head(&mut conn).await;
        conn.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").await.unwrap();
        std::future::pending::<()>().await;
    });
    assert_eq!(phase(&stalls, "http://a.test/").await, "the body");
    // One byte at a time takes too long in the end.
    let drips = Wire::new(|mut conn| async move {
        head(&mut conn).await;
        conn.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n").await.unwrap();
        while conn.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(20)).await;
        }
    });
    assert_eq!(phase(&drips, "http://a.test/").await, "the whole exchange");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_after_its_time() {
    let wire = Wire::new(|conn| http1(conn, |_| ok("")));
    let settings = Settings { idle_timeout: Some(Duration::from_secs(10)), ..Settings::default() };
    let client = client(settings, &wire);
    for (pause, dials) in [(0, 1), (9, 1), (11, 2)] {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        client.send(get("http://a.test/"), LIMITS).await.unwrap();
        assert_eq!(wire.dials(), dials);
    }
}

#[tokio::test]
async fn many_requests_share_one_connection_of_http2() {
    let certificate = Certificate::for_name("a.test");
    let acceptor = server_tls(&certificate, &["h2", "http/1.1"]);
    let wire = Wire::new(move |conn| http2(conn, acceptor.clone()));
    let client = client(trusting(&certificate), &wire);
    let asks = (0..20).map(|i| {
        let client = client.clone();
        tokio::spawn(async move { client.send(get(&format!("https://a.test/{i}")), LIMITS).await })
    });
    for (i, ask) in asks.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(ask.await.unwrap().unwrap().body(), &format!("GET a.test /{i}"));
    }
    assert_eq!(wire.dials(), 1);
}

#[tokio::test]
async fn http2_asks_for_the_host_of_the_settings() {
    let certificate = Certificate::for_name("a.test");
    let acceptor = server_tls(&certificate, &["h2"]);
    let wire = Wire::new(move |conn| http2(conn, acceptor.clone()));
    let host = Some(HeaderValue::from_static("front.test"));
    let client = client(Settings { host, ..trusting(&certificate) }, &wire);
    let post = Request::post("https://a.test/").body(Bytes::from_static(b"x")).unwrap();
    assert_eq!(client.send(post, LIMITS).await.unwrap().body(), "POST front.test /");
}

#[tokio::test]
async fn a_dead_connection_of_http2_is_replaced() {
    let certificate = Certificate::for_name("a.test");
    let acceptor = server_tls(&certificate, &["h2"]);
    let first = Arc::new(AtomicUsize::new(0));
    let wire = Wire::new(move |conn| {
        let (acceptor, number) = (acceptor.clone(), first.fetch_add(1, Ordering::Relaxed));
        async move {
            if number > 0 {
                return http2(conn, acceptor).await;
            }
            let Ok((conn, _)) = acceptor.accept(conn).await else { return };
            let mut connection = h2::server::handshake(conn).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
            stream.send_data("once".into(), true).unwrap();
            // Breaks in the middle of the second one.
            let _second = connection.accept().await;
        }
    });
    let client = client(trusting(&certificate), &wire);
    assert_eq!(client.send(get("https://a.test/"), LIMITS).await.unwrap().body(), "once");
    assert_eq!(client.send(get("https://a.test/"), LIMITS).await.unwrap().body(), "GET a.test /");
    assert_eq!(wire.dials(), 2);
}

#[tokio::test]
async fn servers_without_http2_get_http1_unless_that_is_forbidden() {
    let certificate = Certificate::for_name("a.test");
    for alpn in [&["http/1.1"][..], &[]] {
        let acceptor = server_tls(&certificate, alpn);
        let wire = Wire::new(move |conn| {
            let acceptor = acceptor.clone();
            async move {
                let Ok((conn, _)) = acceptor.accept(conn).await else { return };
                http1(Box::new(conn), |_| ok("one")).await;
            }
        });
        let loose = client(trusting(&certificate), &wire);
        assert_eq!(loose.send(get("https://a.test/"), LIMITS).await.unwrap().body(), "one");
        let old = client(Settings { version: Version::Http1, ..trusting(&certificate) }, &wire);
        assert_eq!(old.send(get("https://a.test/"), LIMITS).await.unwrap().body(), "one");
        let strict = client(Settings { strict_version: true, ..trusting(&certificate) }, &wire);
        assert!(strict.send(get("https://a.test/"), LIMITS).await.is_err());
        assert!(matches!(strict.send(get("http://a.test/"), LIMITS).await, Err(HttpError::Version(_))));
    }
}

#[tokio::test]
async fn the_name_of_the_url_is_verified() {
    let certificate = Certificate::for_name("a.test");
    let acceptor = server_tls(&certificate, &["h2"]);
    let wire = Wire::new(move |conn| http2(conn, acceptor.clone()));
    let error = client(trusting(&certificate), &wire).send(get("https://b.test/"), LIMITS).await.unwrap_err();
    assert!(error.to_string().contains("certificate is valid for a.test, not b.test"), "{error}");
    // The settings may name it, whatever the URL says.
    let mut settings = trusting(&certificate);
    settings.tls.server_name = Some("a.test".to_owned());
    client(settings, &wire).send(get("https://b.test/"), LIMITS).await.unwrap();
}

#[tokio::test]
async fn downloads_follow_redirects_and_leave_credentials_behind() {
    let wire = Wire::new(|conn| {
        http1(conn, |head| {
            let to =
                |url: &str| format!("HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n");
            match head.split(' ').nth(1).unwrap() {
                "/start" => to("next"),
                "/next" if head.contains("authorization: key") => to("http://b.test/end"),
                "/end" if !head.contains("authorization") => ok("there"),
                "/circle" => to("/circle"),
                "/away" => to("ftp://b.test/"),
                _ => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
            }
        })
    });
    let client = client(Settings::default(), &wire);
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Key"));
    let fetch = async |path: &str| {
        let url = format!("http://a.test{path}").parse().unwrap();
        client.fetch(&url, &Validator::default(), &headers, LIMITS).await
    };
    let Ok(Fetched::New { body, .. }) = fetch("/start").await else { panic!("not there") };
    assert_eq!(body, "there");
    assert!(matches!(fetch("/circle").await, Err(HttpError::Redirects(_))));
    assert!(matches!(fetch("/away").await, Err(HttpError::Redirect(server)) if server == "a.test:80"));
    assert_eq!(fetch("/x").await.unwrap_err().to_string(), "a.test:80 answered 404 Not Found");
}

#[tokio::test]
async fn what_has_not_changed_is_not_sent_again() {
    let wire = Wire::new(|conn| {
        http1(conn, |head| {
            let known = head.contains("if-none-match: \"v1\"") || head.contains("if-modified-since: then");
            let tag =
                if head.starts_with("get /tag") { "ETag: \"v1\"\r\n" } else { "Last-Modified: Then\r\n" };
            if known {
                "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()
            } else {
                format!("HTTP/1.1 200 OK\r\n{tag}Content-Length: 1\r\n\r\nx")
            }
        })
    });
    let client = client(Settings::default(), &wire);
    for path in ["/tag", "/date"] {
        let url = format!("http://a.test{path}").parse().unwrap();
        let fetch =
            async |known: &Validator| client.fetch(&url, known, &HeaderMap::new(), LIMITS).await.unwrap();
        let Fetched::New { validator, .. } = fetch(&Validator::default()).await else { panic!("not there") };
        assert!(matches!(fetch(&validator).await, Fetched::Unchanged));
    }
    assert_eq!(wire.dials(), 1);
}

#[tokio::test]
async fn a_head_request_has_no_body() {
    let wire = Wire::new(|conn| http1(conn, |_| "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n".to_owned()));
    let client = client(Settings::default(), &wire);
    for _ in 0..2 {
        let mut request = get("http://a.test/");
        *request.method_mut() = Method::HEAD;
        assert!(client.send(request, LIMITS).await.unwrap().body().is_empty());
    }
    assert_eq!(wire.dials(), 1);
}
