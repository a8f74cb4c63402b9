use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use culvert_config::options::dns::server::RemoteDnsServer;
use culvert_core::{
    BoxPackets, BoxStream, DialError, Outbound, ResolveError, Resolver, Strategy, TcpConn, UdpConn,
};
use culvert_testkit::certificate::Certificate;
use culvert_testkit::temp::TempDir;
use culvert_tls::settings::{ClientAuthentication, Identity, KeyPairSource, Parameters, Source, Trust};
use culvert_tls::{Acceptor, ServerSettings, StoreSettings};
use culvert_wire::{BufChain, Domain};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::hosts::HostsServer;
use super::local::LocalServer;
use super::stream::TcpServer;
use super::udp::UdpServer;
use super::*;
use crate::message::wire::flag;
use crate::message::{Rcode, RecordType};
use crate::system::Hosts;
use crate::testing::{Asked, Mock, ParseDomain, query};
use crate::{SystemOptions, SystemResolver};

/// Knows one name.
struct OneName(&'static str);

#[async_trait]
impl Resolver for OneName {
    async fn resolve(&self, name: &Domain, _: Strategy) -> Result<Vec<IpAddr>, ResolveError> {
        if name.as_str() == self.0 {
            Ok(vec![Ipv4Addr::LOCALHOST.into()])
        } else {
            Err(ResolveError::NotFound)
        }
    }
}

fn dialer() -> Dialer {
    Dialer::new(Arc::new(OneName("ns.test")))
}

fn udp(mock: &Mock) -> UdpServer {
    UdpServer::new(Tag::new("udp", "up"), dialer(), mock.address.into())
}

fn tcp(mock: &Mock) -> TcpServer {
    TcpServer::new(Tag::new("tcp", "up"), dialer(), mock.address.into())
}

/// Every name has the address 192.0.2.1.
fn one_address(asked: &Asked) -> Vec<Vec<u8>> {
    asked.reply().address(&asked.name, 60, "192.0.2.1").only()
}

async fn address(server: &dyn DnsServer, name: &str) -> Result<String, String> {
    let reply = server.exchange(&query(name, RecordType::A)).await.map_err(|error| error.to_string())?;
    Ok(reply.addresses().map(|ip| ip.to_string()).collect::<Vec<_>>().join(" "))
}

#[tokio::test]
async fn many_udp_questions_get_each_its_own_answer() {
    let mock = Mock::start(|asked| {
        let last = asked.name.strip_suffix(".test").unwrap();
        asked.reply().address(&asked.name, 60, &format!("192.0.2.{last}")).only()
    })
    .await;
    let server = Arc::new(udp(&mock));
    let mut asked = JoinSet::new();
    for n in 0..200 {
        let server = Arc::clone(&server);
        asked.spawn(async move { (n, address(&*server, &format!("{n}.test")).await) });
    }
    while let Some(answer) = asked.join_next().await {
        let (n, answer) = answer.unwrap();
        assert_eq!(answer, Ok(format!("192.0.2.{n}")));
    }
}

#[tokio::test]
async fn a_name_is_where_its_resolver_says() {
    let mock = Mock::start(one_address).await;
    let target = |name: &str| Target::new(name.parse_domain(), mock.address.port());
    let known = UdpServer::new(Tag::new("udp", "up"), dialer(), target("ns.test"));
    assert_eq!(address(&known, "a.test").await.as_deref(), Ok("192.0.2.1"));
    let unknown = UdpServer::new(Tag::new("udp", "up"), dialer(), target("xx.test"));
    assert_eq!(address(&unknown, "a.test").await.unwrap_err(), "udp[up]: no such name");
}

#[tokio::test]
async fn what_udp_cuts_tcp_gives_whole() {
    let mock = Mock::start(|asked| {
        if !asked.stream {
            return asked.reply().flags(flag::TC).only();
        }
        let reply = asked.reply();
        (0..200).fold(reply, |reply, n| reply.address(&asked.name, 60, &format!("192.0.2.{n}"))).only()
    })
    .await;
    let answer = address(&udp(&mock), "big.test").await.unwrap();
    assert_eq!(answer.split(' ').count(), 200);
    assert_eq!(mock.log(), ["udp big.test A", "accept", "tcp big.test A"]);
}

#[tokio::test]
async fn a_lost_datagram_costs_a_second() {
    let asked = AtomicUsize::new(0);
    let mock = Mock::start(move |question| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Vec::new(),
        _ => one_address(question),
    })
    .await;
    let begun = Instant::now();
    assert_eq!(address(&udp(&mock), "a.test").await.as_deref(), Ok("192.0.2.1"));
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(3), "{took:?}");
    assert_eq!(mock.count("udp a.test A"), 2);
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_an_error_at_once() {
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = UdpServer::new(Tag::new("udp", "up"), dialer(), free.into());
    let error = timeout(Duration::from_secs(5), address(&server, "a.test")).await.unwrap().unwrap_err();
    assert!(error.contains("refused"), "{error}");
    let server = Arc::new(TcpServer::new(Tag::new("tcp", "up"), dialer(), free.into()));
    let mut asked = JoinSet::new();
    for n in 0..50 {
        let server = Arc::clone(&server);
        asked.spawn(async move { address(&*server, &format!("{n}.test")).await });
    }
    let all = timeout(Duration::from_secs(5), asked.join_all()).await.unwrap();
    assert!(
        all.iter().all(|answer| answer.as_ref().is_err_and(|error| error.contains("refused"))),
        "{all:?}"
    );
}

#[tokio::test]
async fn a_flood_of_foreign_messages_ends_the_socket_and_not_the_question() {
    let asked = AtomicUsize::new(0);
    let mock = Mock::start(move |question| match asked.fetch_add(1, Ordering::SeqCst) {
        // Guesses of the id: right question, wrong id.
        0 => (1..400).map(|n| question.reply().id(|id| id.wrapping_add(n)).done()).collect(),
        _ => one_address(question),
    })
    .await;
    let answer = timeout(Duration::from_secs(5), address(&udp(&mock), "a.test")).await.unwrap();
    assert_eq!(answer.as_deref(), Ok("192.0.2.1"));
}

#[tokio::test]
async fn many_tcp_questions_share_one_connection_in_any_order() {
    // The first answer is held back until the second question has come.
    let held = Mutex::new(None);
    let mock = Mock::start(move |asked| {
        let reply = asked.reply().address(&asked.name, 60, "192.0.2.1").done();
        let first = held.lock().unwrap().take();
        match first {
            None if asked.name == "first.test" => {
                *held.lock().unwrap() = Some(reply);
                Vec::new()
            }
            None => vec![reply],
            Some(first) => vec![reply, first],
        }
    })
    .await;
    let server = tcp(&mock);
    let (first, second) = tokio::join!(address(&server, "first.test"), address(&server, "second.test"));
    assert_eq!((first.as_deref(), second.as_deref()), (Ok("192.0.2.1"), Ok("192.0.2.1")));
    for n in 0..20 {
        address(&server, &format!("{n}.test")).await.unwrap();
    }
    assert_eq!(mock.count("accept"), 1);
}

#[tokio::test]
async fn a_connection_closed_by_the_server_costs_no_error() {
    // D20: pooled connections go stale.
    let mock =
        Mock::start(|asked| vec![asked.reply().address(&asked.name, 60, "192.0.2.1").done(), Vec::new()])
            .await;
    let server = tcp(&mock);
    for n in 0..10 {
        assert_eq!(address(&server, &format!("{n}.test")).await.as_deref(), Ok("192.0.2.1"), "{n}");
    }
    assert!(mock.count("accept") <= 10);
}

#[tokio::test]
async fn a_connection_that_died_in_silence_is_replaced_within_two_seconds() {
    let asked = AtomicUsize::new(0);
    let mock = Mock::start(move |question| match asked.fetch_add(1, Ordering::SeqCst) {
        1 => Vec::new(),
        _ => one_address(question),
    })
    .await;
    let server = tcp(&mock);
    assert_eq!(address(&server, "a.test").await.as_deref(), Ok("192.0.2.1"));
    let begun = Instant::now();
    assert_eq!(address(&server, "b.test").await.as_deref(), Ok("192.0.2.1"));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(mock.count("accept"), 2);
}

#[tokio::test]
async fn a_slow_answer_on_a_living_connection_opens_no_other() {
    // The slow question's answer comes with that of a later one; others are answered meanwhile.
    let held = Mutex::new(Vec::new());
    let mock = Mock::start(move |asked| {
        let reply = asked.reply().address(&asked.name, 60, "192.0.2.1").done();
        match &*asked.name {
            "slow.test" => {
                held.lock().unwrap().push(reply);
                Vec::new()
            }
            "last.test" => held.lock().unwrap().drain(..).chain([reply]).collect(),
            _ => vec![reply],
        }
    })
    .await;
    let server = tcp(&mock);
    address(&server, "a.test").await.unwrap();
    let others = async {
        for n in 0..6 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            address(&server, &format!("{n}.test")).await.unwrap();
        }
        address(&server, "last.test").await.unwrap();
    };
    let (slow, ()) = tokio::join!(address(&server, "slow.test"), others);
    assert_eq!(slow.as_deref(), Ok("192.0.2.1"));
    assert_eq!(mock.count("accept"), 1);
}

#[tokio::test]
async fn malformed_answers_are_no_answers() {
    let asked = AtomicUsize::new(0);
    let mock = Mock::start(move |question| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => question.reply().count(6).bytes(&[0xc0, 0xff]).only(),
        _ => one_address(question),
    })
    .await;
    assert_eq!(address(&tcp(&mock), "a.test").await.as_deref(), Ok("192.0.2.1"));
}

/// An outbound that goes straight to the target and counts.
struct Straight {
    tag: Tag,
    used: AtomicUsize,
}

#[async_trait]
impl Outbound for Straight {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    fn carries(&self, _: Network) -> bool {
        true
    }

    async fn dial(&self, session: &Session, _: &mut BufChain) -> Result<BoxStream, DialError> {
        self.used.fetch_add(1, Ordering::SeqCst);
        let address = session.target.socket_addr().unwrap();
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(|source| DialError::Connect { target: address.into(), source })?;
        Ok(Box::new(TcpConn::new(stream)))
    }

    async fn listen_packet(&self, _: &Session) -> Result<BoxPackets, DialError> {
        self.used.fetch_add(1, Ordering::SeqCst);
        let socket = UdpSocket::bind("127.0.0.1:0").await;
        let socket = socket.map_err(|source| DialError::Handshake { phase: "open UDP socket", source })?;
        Ok(Box::new(UdpConn::new(socket)))
    }
}

#[tokio::test]
async fn a_detour_carries_datagrams_and_streams() {
    let mock = Mock::start(|asked| match &*asked.name {
        "big.test" if !asked.stream => asked.reply().flags(flag::TC).only(),
        _ => one_address(asked),
    })
    .await;
    let straight = Arc::new(Straight { tag: Tag::new("direct", "way"), used: AtomicUsize::new(0) });
    let dialer = Dialer { detour: Some(Arc::clone(&straight) as _), ..dialer() };
    let server = UdpServer::new(Tag::new("udp", "up"), dialer, mock.address.into());
    for n in 0..5 {
        assert_eq!(address(&server, &format!("{n}.test")).await.as_deref(), Ok("192.0.2.1"));
    }
    assert_eq!(straight.used.load(Ordering::SeqCst), 1, "one association for all");
    assert_eq!(address(&server, "big.test").await.as_deref(), Ok("192.0.2.1"));
    assert_eq!(straight.used.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn questions_given_up_leave_nothing_on_the_link() {
    let mock = Mock::start(|_| Vec::new()).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(mock.address).await.unwrap();
    let link = Arc::new(link::Link::new("up".into(), link::Out::Socket(Arc::new(socket))));
    let mut asked = JoinSet::new();
    for n in 0..1000 {
        let link = Arc::clone(&link);
        asked.spawn(async move { link.ask(&query(&format!("{n}.test"), RecordType::A)).await });
    }
    while link.waiting() < 1000 {
        tokio::task::yield_now().await;
    }
    assert!(!link.end_if_idle());
    asked.shutdown().await;
    assert_eq!(link.waiting(), 0);
    assert!(link.end_if_idle());
}

#[tokio::test]
async fn hosts_answers_what_it_knows_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let first = folder.write("first", "192.0.2.1 file.test both.test\n").unwrap();
    let second = folder.write("second", "192.0.2.2 both.test second.test\n").unwrap();
    let mut predefined = Hosts::default();
    predefined.insert("both.test".parse_domain(), "192.0.2.9".parse().unwrap());
    let server = HostsServer::new(Tag::new("hosts", "h"), predefined, vec![first, second]);
    assert_eq!(address(&server, "both.test").await.as_deref(), Ok("192.0.2.9"), "predefined wins");
    assert_eq!(address(&server, "file.test").await.as_deref(), Ok("192.0.2.1"));
    assert_eq!(address(&server, "second.test").await.as_deref(), Ok("192.0.2.2"));
    for (name, kind, rcode) in [
        ("none.test", RecordType::A, Rcode::NXDOMAIN),
        ("file.test", RecordType::AAAA, Rcode::NOERROR),
        ("file.test", RecordType::HTTPS, Rcode::NOERROR),
    ] {
        let reply = server.exchange(&query(name, kind)).await.unwrap();
        assert_eq!((reply.rcode(), reply.walk().count(), reply.lifetime()), (rcode, 0, 0), "{name} {kind}");
    }
}

#[tokio::test]
async fn local_is_the_systems_resolver_without_its_cache() {
    let mock = Mock::start(one_address).await;
    let folder = TempDir::new().unwrap();
    let options = SystemOptions {
        hosts: folder.write("hosts", "192.0.2.7 box.test\n").unwrap(),
        resolv_conf: folder.write("resolv.conf", "nameserver 127.0.0.1\n").unwrap(),
        port: mock.address.port(),
        ..SystemOptions::default()
    };
    let server = LocalServer::new(Tag::new("local", "l"), Arc::new(SystemResolver::new(options)));
    assert_eq!(address(&server, "box.test").await.as_deref(), Ok("192.0.2.7"));
    for _ in 0..2 {
        assert_eq!(address(&server, "far.test").await.as_deref(), Ok("192.0.2.1"));
    }
    assert_eq!(mock.count("udp far.test A"), 2);
}

#[test]
fn targets_are_addresses_or_names_with_port_53() {
    let shown = |server: &str, server_port| {
        let options = ServerOptions { server: server.to_owned(), server_port };
        target(&options, 53).map(|target| target.to_string()).map_err(|error| error.to_string())
    };
    assert_eq!(shown("192.0.2.53", 0).as_deref(), Ok("192.0.2.53:53"));
    assert_eq!(shown("2001:db8::53", 5353).as_deref(), Ok("[2001:db8::53]:5353"));
    assert_eq!(shown("ns.test", 0).as_deref(), Ok("ns.test:53"));
    assert_eq!(shown("", 0).unwrap_err(), "server: `` is neither an address nor a name");
}

#[tokio::test]
async fn the_table_builds_what_its_options_say() {
    let mock = Mock::start(one_address).await;
    let server = ServerOptions { server: "127.0.0.1".to_owned(), server_port: mock.address.port() };
    let remote = RemoteDnsServer { server, ..RemoteDnsServer::default() };
    let kinds = [
        ("udp", DnsServerKind::Udp(UdpDnsServer { remote: remote.clone() }.into())),
        ("tcp", DnsServerKind::Tcp(TcpDnsServer { remote }.into())),
    ];
    let cx = |name| ServerCx {
        tag: Tag::new(name, "x"),
        dialer: dialer(),
        system: crate::system(),
        store: Store::new(StoreSettings::default()),
        fake: None,
        links: None,
    };
    for (name, kind) in &kinds {
        let entry = ServerEntry::find(name).unwrap();
        assert!((entry.dial)(kind).is_some());
        let server = (entry.build)(kind, cx(entry.name)).unwrap();
        assert_eq!(address(&*server, "a.test").await.as_deref(), Ok("192.0.2.1"));
        let other = ServerEntry::find("local").unwrap();
        assert!((other.build)(kind, cx("local")).is_err() && (other.dial)(kind).is_none());
    }
    let resolved = ServerEntry::find("tailscale").unwrap();
    let error = (resolved.build)(&kinds[0].1, cx("tailscale")).err().unwrap();
    assert_eq!(error.to_string(), "DNS server type tailscale is not built yet");
}

/// A server of TLS on a free port; each connection is `serve`d.
async fn secure<F: Future<Output = ()> + Send + 'static>(
    certificate: &Certificate,
    alpn: &[&str],
    serve: impl Fn(BoxStream) -> F + Send + Sync + 'static,
) -> Target {
    let source = KeyPairSource {
        certificate: Source::Inline(certificate.certificate.clone()),
        key: Source::Inline(certificate.key.clone()),
    };
    let alpn = alpn.iter().map(|&name| name.to_owned()).collect();
    let acceptor = Acceptor::new(&ServerSettings {
        parameters: Parameters { alpn, ..Parameters::default() },
        identity: Identity::Given(source),
        clients: ClientAuthentication::None,
        handshake_timeout: None,
    })
    .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok((conn, _)) = acceptor.accept(Box::new(TcpConn::new(stream))).await {
                tokio::spawn(serve(Box::new(conn)));
            }
        }
    });
    Target::new("ns.test".parse_domain(), port)
}

fn trusting(certificate: &Certificate) -> ClientSettings {
    let trust = Trust::Authorities(Source::Inline(certificate.certificate.clone()));
    ClientSettings { trust, ..ClientSettings::default() }
}

#[tokio::test]
async fn tls_carries_the_stream_of_tcp_and_looks_at_the_certificate() {
    let mock = Mock::start(one_address).await;
    let (certificate, plain) = (Certificate::for_name("ns.test"), mock.address);
    let target = secure(&certificate, &[], move |mut conn| async move {
        let mut server = TcpStream::connect(plain).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut conn, &mut server).await;
    })
    .await;
    let store = Store::new(StoreSettings::default());
    let server = |tls: ClientSettings| {
        let tls = Securing::new(Connector::new(tls, &target.host, &store).unwrap()).unwrap();
        tls::TlsServer::new(Tag::new("tls", "up"), dialer(), target.clone(), tls)
    };
    let trusted = server(trusting(&certificate));
    for name in ["a.test", "b.test"] {
        assert_eq!(address(&trusted, name).await.as_deref(), Ok("192.0.2.1"));
    }
    assert_eq!(mock.log(), ["accept", "tcp a.test A", "tcp b.test A"], "one connection for both");
    let strange = server(trusting(&Certificate::for_name("ns.test")));
    let error = address(&strange, "a.test").await.unwrap_err();
    assert!(error.starts_with("tls[up]: ") && error.contains("ns.test"), "{error}");
    let other = server(ClientSettings { server_name: Some("other.test".into()), ..trusting(&certificate) });
    assert!(address(&other, "a.test").await.is_err());
}

/// What a server of DNS over HTTPS does with a question.
#[derive(Clone, Copy, PartialEq)]
enum Web {
    Answers,
    /// Reads and never says anything, on its first connection.
    DiesOnce,
    Status(u16),
    Says(&'static [u8]),
}

async fn web(does: Web) -> (https::HttpsServer, Arc<Mutex<Vec<String>>>) {
    let certificate = Certificate::for_name("ns.test");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, connections) = (Arc::clone(&seen), Arc::new(AtomicUsize::new(0)));
    let target = secure(&certificate, &["h2"], move |conn| {
        let (log, number) = (Arc::clone(&log), connections.fetch_add(1, Ordering::SeqCst));
        async move {
            let mut connection = h2::server::handshake(conn).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let (log, head) = (Arc::clone(&log), request.uri().clone());
                tokio::spawn(async move {
                    let kind = request.headers()["content-type"].to_str().unwrap().to_owned();
                    let mut body = request.into_body();
                    let mut message = Vec::new();
                    while let Some(Ok(data)) = body.data().await {
                        message.extend(&data);
                    }
                    log.lock().unwrap().push(format!("{number} {head} {kind}"));
                    let mut response = culvert_http::http::Response::new(());
                    let bytes = match does {
                        Web::DiesOnce if number == 0 => std::future::pending().await,
                        Web::Status(status) => {
                            *response.status_mut() = status.try_into().unwrap();
                            Vec::new()
                        }
                        Web::Says(bytes) => bytes.to_vec(),
                        Web::Answers | Web::DiesOnce => {
                            let name = query_name(&message);
                            crate::testing::Build::reply_to(&message).address(&name, 60, "192.0.2.1").done()
                        }
                    };
                    let mut stream = respond.send_response(response, false).unwrap();
                    stream.send_data(bytes.into(), true).unwrap();
                });
            }
        }
    })
    .await;
    let settings = Settings { tls: trusting(&certificate), ..Settings::default() };
    let store = Store::new(StoreSettings::default());
    let client = Client::new(Tag::new("https", "up"), settings, dialer(), &store).unwrap();
    let url = format!("https://{target}/dns-query").parse().unwrap();
    (https::HttpsServer::new(Tag::new("https", "up"), client, url), seen)
}

fn query_name(message: &[u8]) -> String {
    crate::Request::parse(message).unwrap().query.domain().unwrap().to_string()
}

#[tokio::test]
async fn https_asks_all_questions_on_one_connection() {
    let (server, seen) = web(Web::Answers).await;
    let server = Arc::new(server);
    let mut asked = JoinSet::new();
    for n in 0..50 {
        let server = Arc::clone(&server);
        asked.spawn(async move { address(&*server, &format!("{n}.test")).await });
    }
    for answer in asked.join_all().await {
        assert_eq!(answer.as_deref(), Ok("192.0.2.1"));
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 50);
    for line in &*seen {
        assert!(
            line.starts_with("0 https://ns.test:") && line.ends_with("/dns-query application/dns-message"),
            "{line}"
        );
    }
}

#[tokio::test]
async fn https_asks_again_elsewhere_when_a_connection_died_in_silence() {
    let (server, seen) = web(Web::DiesOnce).await;
    let begun = Instant::now();
    assert_eq!(address(&server, "a.test").await.as_deref(), Ok("192.0.2.1"));
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert_eq!(address(&server, "b.test").await.as_deref(), Ok("192.0.2.1"));
    let connections: Vec<_> = seen.lock().unwrap().iter().map(|line| line[..1].to_owned()).collect();
    assert_eq!(connections, ["0", "1", "1"]);
}

#[tokio::test]
async fn https_says_what_is_wrong_with_an_answer() {
    for (does, expected) in [
        (Web::Status(503), "https[up]: up answered 503"),
        (Web::Says(b"<html>"), "https[up]: "),
        (Web::Says(b""), "https[up]: "),
    ] {
        let error = address(&web(does).await.0, "a.test").await.unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// A QUIC server on a free port, which gives each connection and its number to `serve`.
async fn quic_server<F: Future<Output = ()> + Send + 'static>(
    certificate: &Certificate,
    alpn: &'static str,
    serve: impl Fn(culvert_quic::Connection, usize) -> F + Send + 'static,
) -> Target {
    let source = KeyPairSource {
        certificate: Source::Inline(certificate.certificate.clone()),
        key: Source::Inline(certificate.key.clone()),
    };
    let acceptor = Acceptor::new(&ServerSettings {
        parameters: Parameters::default(),
        identity: Identity::Given(source),
        clients: ClientAuthentication::None,
        handshake_timeout: None,
    })
    .unwrap();
    let tls = culvert_quic::ServerTls::new(&acceptor, &[alpn], false).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let transport = culvert_quic::Transport::default();
    let settings = culvert_quic::ServerSettings { tls, transport, secret: [7; 32], connections: 10 };
    let server = culvert_quic::Server::new(culvert_quic::Link::socket(socket).unwrap(), &settings);
    tokio::spawn(async move {
        let mut number = 0;
        while let Some(connection) = server.accept().await {
            tokio::spawn(serve(connection, number));
            number += 1;
        }
    });
    Target::new("ns.test".parse_domain(), port)
}

/// A server of DNS over QUIC. Its first connection says nothing if `dies_once`.
async fn doq_server(certificate: &Certificate, dies_once: bool) -> Target {
    quic_server(certificate, <quic::Streams as quic::Ask>::ALPN, move |connection, number| async move {
        while let Ok(mut stream) = connection.accept_bi().await {
            if number == 0 && dies_once {
                std::future::pending::<()>().await;
            }
            tokio::spawn(async move {
                let message = crate::plain::read_message(&mut stream).await.unwrap();
                assert_eq!(message[..2], [0, 0], "no id");
                assert_eq!(tokio::io::AsyncReadExt::read(&mut stream, &mut [0]).await.unwrap(), 0);
                let reply = crate::testing::Build::reply_to(&message);
                let reply = reply.address(&query_name(&message), 60, "192.0.2.1").done();
                crate::plain::write_message(&mut stream, &reply).await.unwrap();
                tokio::io::AsyncWriteExt::shutdown(&mut stream).await.unwrap();
            });
        }
    })
    .await
}

fn quic_client<A: quic::Ask>(certificate: &Certificate, target: &Target, form: A) -> quic::QuicServer<A> {
    let store = Store::new(StoreSettings::default());
    let tls = Connector::new(trusting(certificate), &target.host, &store).unwrap();
    quic::QuicServer::new(Tag::new("quic", "up"), dialer(), target.clone(), tls, form).unwrap()
}

#[tokio::test]
async fn quic_asks_each_question_on_a_stream_of_its_own() {
    let certificate = Certificate::for_name("ns.test");
    let target = doq_server(&certificate, false).await;
    let server = Arc::new(quic_client(&certificate, &target, quic::Streams));
    let mut asked = JoinSet::new();
    for n in 0..200 {
        let server = Arc::clone(&server);
        asked.spawn(async move { address(&*server, &format!("{n}.test")).await });
    }
    for answer in asked.join_all().await {
        assert_eq!(answer.as_deref(), Ok("192.0.2.1"));
    }
    server.reset();
    assert_eq!(address(&*server, "again.test").await.as_deref(), Ok("192.0.2.1"));
    let strange = quic_client(&Certificate::for_name("ns.test"), &target, quic::Streams);
    let error = address(&strange, "a.test").await.unwrap_err();
    assert!(error.starts_with("quic[up]: QUIC handshake"), "{error}");
}

#[tokio::test]
async fn quic_asks_again_when_a_stream_stays_silent() {
    let certificate = Certificate::for_name("ns.test");
    let target = doq_server(&certificate, true).await;
    let server = quic_client(&certificate, &target, quic::Streams);
    let answer = timeout(Duration::from_secs(10), address(&server, "a.test")).await.unwrap();
    assert_eq!(answer.as_deref(), Ok("192.0.2.1"));
}

/// What a server of HTTP/3 does with a request; the bytes stand for the answer that belongs to it.
#[derive(Clone, Copy)]
enum Third {
    Answers,
    /// Says first that the answer is coming, and puts it into pieces between what is unknown.
    InPieces,
    /// Wants no more requests on its first connection.
    RefusesOnce,
    Status(&'static str),
    Endless,
    Silent,
}

async fn h3_server(certificate: &Certificate, does: Third) -> (Target, Arc<Mutex<Vec<String>>>) {
    use culvert_quic::h3::{self, Background, Body, qpack};

    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let target = quic_server(certificate, h3::ALPN, move |connection, number| {
        let log = Arc::clone(&log);
        async move {
            let _background = Background::start(&connection).await.unwrap();
            while let Ok(mut stream) = connection.accept_bi().await {
                let log = Arc::clone(&log);
                tokio::spawn(async move {
                    if matches!(does, Third::RefusesOnce) && number == 0 {
                        stream.reset(0x10b);
                        stream.stop(0x10b);
                        return;
                    }
                    let mut early = BufChain::new();
                    let fields = h3::read_headers(&mut stream, &mut early).await.unwrap();
                    let text = |(name, value): &qpack::Field| {
                        format!("{}={}", name.escape_ascii(), value.escape_ascii())
                    };
                    log.lock().unwrap().push(fields.iter().map(text).collect::<Vec<_>>().join(" "));
                    let (mut body, mut message) = (Body::default(), Vec::new());
                    loop {
                        let bytes = body.read(&mut stream, &mut early).await.unwrap();
                        if bytes.is_empty() {
                            break;
                        }
                        message.extend(bytes.to_vec());
                    }
                    assert_eq!(message[..2], [0, 0], "no id");
                    let name = query_name(&message);
                    let reply =
                        crate::testing::Build::reply_to(&message).address(&name, 60, "192.0.2.1").done();
                    let head = |status: &str, out: &mut Vec<u8>| {
                        let mut section = Vec::new();
                        qpack::encode([(":status", status.as_bytes())], &mut section);
                        h3::put_frame(h3::HEADERS, &section, out);
                    };
                    let mut out = Vec::new();
                    match does {
                        Third::Silent => {
                            // Frames that mean nothing, until nobody wants them.
                            let mut nothing = Vec::new();
                            h3::put_frame(0x21, b"", &mut nothing);
                            let mut chain = BufChain::copied(&nothing);
                            while culvert_core::conn::write_chain(&mut stream, &mut chain).await.is_ok() {
                                tokio::time::sleep(Duration::from_millis(200)).await;
                                chain = BufChain::copied(&nothing);
                            }
                        }
                        Third::Status(status) => head(status, &mut out),
                        Third::Endless => {
                            head("200", &mut out);
                            h3::put_frame(h3::DATA, &vec![0; 70_000], &mut out);
                        }
                        Third::InPieces => {
                            head("103", &mut out);
                            h3::put_frame(0x21, b"unknown", &mut out);
                            head("200", &mut out);
                            for piece in reply.chunks(5) {
                                h3::put_frame(h3::DATA, piece, &mut out);
                                h3::put_frame(0x40, b"", &mut out);
                            }
                        }
                        Third::Answers | Third::RefusesOnce => {
                            head("200", &mut out);
                            h3::put_frame(h3::DATA, &reply, &mut out);
                        }
                    }
                    let _ = culvert_core::conn::write_chain(&mut stream, &mut BufChain::copied(&out)).await;
                    let _ = tokio::io::AsyncWriteExt::shutdown(&mut stream).await;
                });
            }
        }
    })
    .await;
    (target, seen)
}

fn requests() -> h3::Requests {
    let mut headers = culvert_http::http::HeaderMap::new();
    headers.insert("x-key", "1".parse().unwrap());
    headers.insert("connection", "close".parse().unwrap());
    h3::Requests::new(b"ns.test:8443", b"/dns-query", &headers)
}

#[tokio::test]
async fn h3_asks_all_questions_on_one_connection() {
    for does in [Third::Answers, Third::InPieces] {
        let certificate = Certificate::for_name("ns.test");
        let (target, seen) = h3_server(&certificate, does).await;
        let server = Arc::new(quic_client(&certificate, &target, requests()));
        let mut asked = JoinSet::new();
        for n in 0..50 {
            let server = Arc::clone(&server);
            asked.spawn(async move { address(&*server, &format!("{n}.test")).await });
        }
        for answer in asked.join_all().await {
            assert_eq!(answer.as_deref(), Ok("192.0.2.1"));
        }
        let seen = seen.lock().unwrap();
        // On a busy machine some are asked again.
        assert!((50..=150).contains(&seen.len()), "{}", seen.len());
        let expected = ":method=POST :scheme=https :authority=ns.test:8443 :path=/dns-query \
            content-type=application/dns-message accept=application/dns-message x-key=1";
        assert!(seen.iter().all(|fields| fields == expected), "{:?}", seen[0]);
    }
}

#[tokio::test]
async fn h3_takes_another_connection_where_one_wants_no_more() {
    let certificate = Certificate::for_name("ns.test");
    let (target, _) = h3_server(&certificate, Third::RefusesOnce).await;
    let server = quic_client(&certificate, &target, requests());
    for name in ["a.test", "b.test"] {
        assert_eq!(address(&server, name).await.as_deref(), Ok("192.0.2.1"));
    }
}

#[tokio::test]
async fn h3_says_what_is_wrong_with_an_answer() {
    let certificate = Certificate::for_name("ns.test");
    for (does, expected) in [
        (Third::Status("503"), "quic[up]: the server answered 503"),
        (Third::Endless, "quic[up]: HTTP/3: invalid length of a message"),
    ] {
        let (target, _) = h3_server(&certificate, does).await;
        let server = quic_client(&certificate, &target, requests());
        assert_eq!(address(&server, "a.test").await.unwrap_err(), expected);
    }
}

/// D21: streams of a server that keeps silent must not pile up.
#[tokio::test]
async fn questions_given_up_over_quic_leave_no_streams() {
    let certificate = Certificate::for_name("ns.test");
    let (target, seen) = h3_server(&certificate, Third::Silent).await;
    let server = Arc::new(quic_client(&certificate, &target, requests()));
    for round in 1..=3 {
        let mut asked = JoinSet::new();
        // More than the server lets be open at once, all rounds together.
        for n in 0..500 {
            let server = Arc::clone(&server);
            asked.spawn(async move { address(&*server, &format!("{n}.test")).await });
        }
        while seen.lock().unwrap().len() < round * 500 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        asked.shutdown().await;
    }
}
