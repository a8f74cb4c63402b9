use culvert_testkit::temp::TempDir;

use super::*;
use crate::message::wire::flag;
use crate::testing::{Asked, Mock, ParseDomain, query};

/// A resolver over files in a folder of its own.
struct Rig {
    folder: TempDir,
    resolver: Arc<SystemResolver>,
}

impl Rig {
    fn new(hosts: &str, resolv_conf: &str, port: u16) -> Self {
        let folder = TempDir::new().unwrap();
        let hosts = folder.write("hosts", hosts).unwrap();
        let resolv_conf = folder.write("resolv.conf", resolv_conf).unwrap();
        let options = SystemOptions { hosts, resolv_conf, port, sockets: Sockets::default() };
        Self { folder, resolver: Arc::new(SystemResolver::new(options)) }
    }

    fn asking(mock: &Mock) -> Self {
        Self::new("", "nameserver 127.0.0.1\n", mock.address.port())
    }

    async fn resolve(&self, name: &str) -> Result<String, String> {
        self.resolve_as(name, Strategy::AsIs).await
    }

    async fn resolve_as(&self, name: &str, strategy: Strategy) -> Result<String, String> {
        match self.resolver.resolve(&name.parse_domain(), strategy).await {
            Ok(addresses) => Ok(addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Every name has one address of each family.
fn both_families(asked: &Asked) -> Vec<Vec<u8>> {
    let reply = asked.reply();
    match asked.kind {
        RecordType::A => reply.address(&asked.name, 60, "192.0.2.1"),
        RecordType::AAAA => reply.address(&asked.name, 60, "2001:db8::1"),
        _ => reply.soa("test", 60, 60),
    }
    .only()
}

#[tokio::test]
async fn both_families_are_asked_once_and_kept() {
    let mock = Mock::start(both_families).await;
    let rig = Rig::asking(&mock);
    for _ in 0..3 {
        assert_eq!(rig.resolve("Host.Test.").await.as_deref(), Ok("192.0.2.1 2001:db8::1"));
    }
    assert_eq!(
        rig.resolve_as("host.test", Strategy::PreferIpv6).await.as_deref(),
        Ok("2001:db8::1 192.0.2.1")
    );
    assert_eq!(rig.resolve_as("host.test", Strategy::Ipv4Only).await.as_deref(), Ok("192.0.2.1"));
    let mut log = mock.log();
    log.sort();
    assert_eq!(log, ["udp host.test A", "udp host.test AAAA"]);
}

#[tokio::test]
async fn only_the_wanted_family_is_asked_for() {
    let mock = Mock::start(both_families).await;
    let rig = Rig::asking(&mock);
    assert_eq!(rig.resolve_as("host.test", Strategy::Ipv6Only).await.as_deref(), Ok("2001:db8::1"));
    assert_eq!(mock.log(), ["udp host.test AAAA"]);
}

#[tokio::test]
async fn hosts_and_loopback_names_need_no_server() {
    let mock = Mock::start(both_families).await;
    let hosts = "192.0.2.7 box.test box\n127.0.0.1 only4.test\n";
    let rig = Rig::new(hosts, "nameserver 127.0.0.1\n", mock.address.port());
    assert_eq!(rig.resolve("BOX.test").await.as_deref(), Ok("192.0.2.7"));
    assert_eq!(rig.resolve("box").await.as_deref(), Ok("192.0.2.7"));
    assert_eq!(rig.resolve("localhost").await.as_deref(), Ok("127.0.0.1 ::1"));
    assert_eq!(rig.resolve("a.b.localhost.").await.as_deref(), Ok("127.0.0.1 ::1"));
    assert_eq!(rig.resolve_as("localhost", Strategy::Ipv6Only).await.as_deref(), Ok("::1"));
    assert_eq!(rig.resolve("never.invalid").await.unwrap_err(), "no such name");
    let error = rig.resolve_as("only4.test", Strategy::Ipv6Only).await.unwrap_err();
    assert_eq!(error, "name has no address of the wanted family");
    let pointer = rig.resolver.exchange(&query("7.2.0.192.in-addr.arpa", RecordType::PTR)).await.unwrap();
    assert_eq!(pointer.reply.walk().count(), 2, "box.test and box");
    assert_eq!(mock.log(), [""; 0]);
}

#[tokio::test]
async fn changed_files_count_within_a_second() {
    let mock = Mock::start(both_families).await;
    let rig = Rig::new("192.0.2.7 box.test\n", "nameserver 127.0.0.1\n", mock.address.port());
    assert_eq!(rig.resolve("box.test").await.as_deref(), Ok("192.0.2.7"));
    rig.folder.write("hosts", "192.0.2.8 box.test\n# and a comment\n").unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while rig.resolve("box.test").await.as_deref() != Ok("192.0.2.8") {
        assert!(Instant::now() < deadline, "the change was never seen");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn another_name_server_empties_the_cache() {
    let first = Mock::start(both_families).await;
    let second = SocketAddr::new("127.0.0.2".parse().unwrap(), first.address.port());
    let second =
        Mock::start_at(second, |asked| asked.reply().address(&asked.name, 60, "192.0.2.2").only()).await;
    let rig = Rig::asking(&first);
    assert_eq!(rig.resolve_as("host.test", Strategy::Ipv4Only).await.as_deref(), Ok("192.0.2.1"));
    rig.folder.write("resolv.conf", "nameserver 127.0.0.2\n").unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while rig.resolve_as("host.test", Strategy::Ipv4Only).await.as_deref() != Ok("192.0.2.2") {
        assert!(Instant::now() < deadline, "the change was never seen");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(second.log(), ["udp host.test A"]);
}

#[tokio::test]
async fn single_names_go_through_the_search_list() {
    let mock = Mock::start(|asked| match (&*asked.name, asked.kind) {
        ("printer.lab.test", RecordType::A) => asked.reply().address(&asked.name, 60, "192.0.2.3").only(),
        ("printer.lab.test", _) => asked.reply().soa("test", 60, 60).only(),
        _ => asked.reply().flags(3).soa("test", 60, 60).only(),
    })
    .await;
    let conf = "nameserver 127.0.0.1\nsearch corp.test lab.test\n";
    let rig = Rig::new("", conf, mock.address.port());
    assert_eq!(rig.resolve("printer").await.as_deref(), Ok("192.0.2.3"));
    assert_eq!(rig.resolve("www.example").await.unwrap_err(), "no such name");
    let log = mock.log();
    assert!(log.contains(&"udp printer.corp.test A".to_owned()), "{log:?}");
    assert!(
        !log.iter().any(|line| line.contains("www.example.")),
        "a name with dots stays as it is: {log:?}"
    );
    assert!(!log.contains(&"udp printer A".to_owned()), "ndots:1 tries the bare name last: {log:?}");
}

#[tokio::test]
async fn a_cut_reply_is_asked_for_over_tcp() {
    let mock = Mock::start(|asked| {
        let mut reply = asked.reply();
        if !asked.stream {
            // Cut in the middle of a record, as some servers do.
            return reply.flags(flag::TC).count(6).bytes(&[0xc0]).only();
        }
        for last in 0..100 {
            reply = reply.address(&asked.name, 60, &format!("192.0.2.{last}"));
        }
        reply.only()
    })
    .await;
    let rig = Rig::asking(&mock);
    let addresses = rig.resolve_as("big.test", Strategy::Ipv4Only).await.unwrap();
    assert_eq!(addresses.split(' ').count(), 100);
    assert_eq!(mock.log(), ["udp big.test A", "accept", "tcp big.test A"]);
}

#[tokio::test]
async fn foreign_and_broken_datagrams_are_passed_over() {
    let mock = Mock::start(|asked| {
        let right = asked.reply().address(&asked.name, 60, "192.0.2.1");
        let other =
            query("evil.test", asked.kind).encode(u16::from_be_bytes([asked.bytes[0], asked.bytes[1]]));
        let other = crate::testing::Build::reply_to(&other).address("evil.test", 60, "192.0.2.66");
        let looping = asked.reply().count(6).bytes(&[0xc0, 29 + 12]);
        vec![
            right.clone().id(|id| id ^ 1).done(),
            other.done(),
            asked.bytes.clone(),
            looping.done(),
            vec![0; 3],
            Vec::new(),
            right.done(),
        ]
    })
    .await;
    let rig = Rig::asking(&mock);
    assert_eq!(rig.resolve_as("host.test", Strategy::Ipv4Only).await.as_deref(), Ok("192.0.2.1"));
    assert_eq!(mock.log(), ["udp host.test A"]);
}

#[tokio::test]
async fn a_failing_server_gives_way_to_the_next() {
    let second = Mock::start_at("127.0.0.1:0".parse().unwrap(), both_families).await;
    let first = SocketAddr::new("127.0.0.2".parse().unwrap(), second.address.port());
    let first = Mock::start_at(first, |asked| asked.reply().flags(2).only()).await;
    let conf = "nameserver 127.0.0.2\nnameserver 127.0.0.1\n";
    let rig = Rig::new("", conf, second.address.port());
    assert_eq!(rig.resolve("host.test").await.as_deref(), Ok("192.0.2.1 2001:db8::1"));
    assert_eq!(first.log().len(), 2);
}

#[tokio::test]
async fn a_silent_server_costs_a_second() {
    let second = Mock::start_at("127.0.0.1:0".parse().unwrap(), both_families).await;
    let first = SocketAddr::new("127.0.0.2".parse().unwrap(), second.address.port());
    let _first = Mock::start_at(first, |_| Vec::new()).await;
    let conf = "nameserver 127.0.0.2\nnameserver 127.0.0.1\n";
    let rig = Rig::new("", conf, second.address.port());
    let begun = Instant::now();
    assert_eq!(rig.resolve("host.test").await.as_deref(), Ok("192.0.2.1 2001:db8::1"));
    let took = begun.elapsed();
    assert!(took >= HEAD_START && took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn one_silent_family_does_not_hold_the_other() {
    let mock = Mock::start(|asked| match asked.kind {
        RecordType::A => both_families(asked),
        _ => Vec::new(),
    })
    .await;
    let rig = Rig::asking(&mock);
    let begun = Instant::now();
    assert_eq!(rig.resolve("host.test").await.as_deref(), Ok("192.0.2.1"));
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn refusals_and_absence_have_their_own_errors() {
    let mock = Mock::start(|asked| match &*asked.name {
        "none.test" => asked.reply().flags(3).soa("test", 60, 60).only(),
        "empty.test" => asked.reply().soa("test", 60, 60).only(),
        _ => asked.reply().flags(5).only(),
    })
    .await;
    let rig = Rig::asking(&mock);
    assert_eq!(rig.resolve("none.test").await.unwrap_err(), "no such name");
    assert_eq!(rig.resolve("empty.test").await.unwrap_err(), "name has no address of the wanted family");
    assert_eq!(rig.resolve("refused.test").await.unwrap_err(), "name server answered REFUSED");
    let long = "a".repeat(64) + ".test";
    assert_eq!(rig.resolve(&long).await.unwrap_err(), "no such name");
    assert_eq!(rig.resolve("a..test").await.unwrap_err(), "no such name");
}

#[tokio::test]
async fn aliases_are_followed_and_loops_end() {
    let mock = Mock::start(|asked| {
        let reply = asked.reply();
        match &*asked.name {
            // A chain of three in one reply, and one that goes on at another server.
            "whole.test" => reply.alias("whole.test", 60, "b.test").alias("b.test", 60, "c.test").address(
                "c.test",
                60,
                "192.0.2.9",
            ),
            "part.test" => reply.alias("part.test", 60, "m.test").alias("m.test", 60, "end.example"),
            "end.example" => reply.address("end.example", 60, "192.0.2.10"),
            "self.test" => reply.alias("self.test", 60, "self.test"),
            "two.test" => reply.alias("two.test", 60, "owt.test").alias("owt.test", 60, "two.test"),
            "ping.test" => reply.alias("ping.test", 60, "pong.test"),
            "pong.test" => reply.alias("pong.test", 60, "ping.test"),
            _ => reply.flags(3),
        }
        .only()
    })
    .await;
    let rig = Rig::asking(&mock);
    let resolve = |name| rig.resolve_as(name, Strategy::Ipv4Only);
    assert_eq!(resolve("whole.test").await.as_deref(), Ok("192.0.2.9"));
    assert_eq!(resolve("part.test").await.as_deref(), Ok("192.0.2.10"));
    for name in ["self.test", "two.test", "ping.test"] {
        assert!(resolve(name).await.is_err(), "{name}");
    }
    assert!(mock.log().len() < 24, "loops are not followed for long: {:?}", mock.log());
}

#[tokio::test]
async fn no_server_at_all_is_an_error_and_no_hang() {
    // Nothing listens there: the system says so at once.
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rig = Rig::new("", "nameserver 127.0.0.1\noptions attempts:1\n", port);
    let error = rig.resolve("host.test").await.unwrap_err();
    assert!(error.contains("127.0.0.1"), "{error}");
}

#[tokio::test]
async fn a_thousand_equal_lookups_on_a_silent_server_leave_nothing() {
    let mock = Mock::start(|_| Vec::new()).await;
    let rig = Rig::asking(&mock);
    let mut lookups = JoinSet::new();
    for _ in 0..1000 {
        let resolver = Arc::clone(&rig.resolver);
        lookups.spawn(async move { resolver.resolve(&"host.test".parse_domain(), Strategy::AsIs).await });
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while mock.log().len() < 2 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(rig.resolver.flights.len(), 2, "one per family");
    lookups.shutdown().await;
    assert_eq!(rig.resolver.flights.len(), 0);
    assert_eq!(mock.count("udp host.test A"), 1);
}

#[test]
fn arpa_names_are_addresses() {
    let shown = |name| arpa_address(name).map(|ip| ip.to_string());
    assert_eq!(shown("1.2.0.192.in-addr.arpa").as_deref(), Some("192.0.2.1"));
    let v6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa";
    assert_eq!(shown(v6).as_deref(), Some("2001:db8::1"));
    for name in ["2.0.192.in-addr.arpa", "x.2.0.192.in-addr.arpa", "1.ip6.arpa", "test", "12.ip6.arpa"] {
        assert_eq!(shown(name), None, "{name}");
    }
}

proptest::proptest! {
    /// Files are written by hand and by other programs: whatever they hold, they are read.
    #[test]
    fn files_may_hold_anything(text in "(nameserver|search|domain|options|[ \\t:.%#;\\n0-9a-z-])*", junk in ".*") {
        for text in [&text, &junk] {
            let conf = ResolvConf::parse(text, 53);
            assert!((1..=3).contains(&conf.servers.len()) && conf.search.len() <= 6 && conf.attempts >= 1);
            let hosts = Hosts::parse(text);
            assert!(hosts.addresses("").is_none());
            let _ = arpa_address(text);
        }
    }
}
