use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use culvert_config::options::dns::server::RemoteDnsServer;
use culvert_core::{
    BoxPackets, BoxStream, DialError, Outbound, ResolveError, Resolver, Strategy, TcpConn, UdpConn,
};
use culvert_testkit::temp::TempDir;
use culvert_wire::{BufChain, Domain};
use tokio::net::{TcpStream, UdpSocket};
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
        target(&options).map(|target| target.to_string()).map_err(|error| error.to_string())
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
    let cx =
        |name| ServerCx { tag: Tag::new(name, "x"), dialer: dialer(), system: crate::system(), fake: None };
    for (name, kind) in &kinds {
        let entry = ServerEntry::find(name).unwrap();
        assert!((entry.dial)(kind).is_some());
        let server = (entry.build)(kind, cx(entry.name)).unwrap();
        assert_eq!(address(&*server, "a.test").await.as_deref(), Ok("192.0.2.1"));
        let other = ServerEntry::find("local").unwrap();
        assert!((other.build)(kind, cx("local")).is_err() && (other.dial)(kind).is_none());
    }
    let quic = ServerEntry::find("quic").unwrap();
    let error = (quic.build)(&kinds[0].1, cx("quic")).err().unwrap();
    assert_eq!(error.to_string(), "DNS server type quic is not built yet");
}
