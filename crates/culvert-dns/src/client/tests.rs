use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use culvert_core::Tag;
use tokio::task::JoinSet;
use tokio::time::advance;

use super::*;
use crate::message::{Request, Ttl};
use crate::testing::{Build, ParseDomain, query};

const SECOND: Duration = Duration::from_secs(1);

type Say = dyn Fn(&Query, usize) -> Option<Build> + Send + Sync;

/// A server in memory: answers after a while, or never; counts those who wait.
struct Scripted {
    tag: Tag,
    say: Box<Say>,
    delay: Duration,
    asked: AtomicUsize,
    waiting: Arc<AtomicUsize>,
    queries: Mutex<Vec<Query>>,
}

struct Waits(Arc<AtomicUsize>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl DnsServer for Scripted {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        self.queries.lock().unwrap().push(query.clone());
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waits = Waits(Arc::clone(&self.waiting));
        tokio::time::sleep(self.delay).await;
        match (self.say)(query, number) {
            Some(build) => Ok(Reply::parse(&build.done(), query, 0).unwrap()),
            None => std::future::pending().await,
        }
    }
}

fn scripted(say: impl Fn(&Query, usize) -> Option<Build> + Send + Sync + 'static) -> Arc<Scripted> {
    Arc::new(Scripted {
        tag: Tag::new("scripted", "s"),
        say: Box::new(say),
        delay: 100 * SECOND / 1000,
        asked: AtomicUsize::new(0),
        waiting: Arc::default(),
        queries: Mutex::default(),
    })
}

fn client(server: &Arc<Scripted>) -> Client {
    Client::new(Arc::clone(server) as _, Some(CacheOptions::default()))
}

/// Numbers its answers in the address' last byte; TTL 60.
fn numbered(query: &Query, number: usize) -> Option<Build> {
    let name = query.domain().unwrap();
    Some(Build::reply_to(&query.encode(0)).address(name.as_str(), 60, &format!("192.0.2.{number}")))
}

async fn ask(client: &Client, name: &str, options: &QueryOptions) -> Result<String, String> {
    let answer =
        client.exchange(&query(name, RecordType::A), options).await.map_err(|error| error.to_string())?;
    Ok(answer.reply.addresses().map(|ip| ip.to_string()).collect::<Vec<_>>().join(" "))
}

#[tokio::test(start_paused = true)]
async fn answers_are_kept_while_they_live() {
    let server = scripted(numbered);
    let client = client(&server);
    let options = QueryOptions::default();
    for _ in 0..3 {
        assert_eq!(ask(&client, "a.test", &options).await.as_deref(), Ok("192.0.2.0"));
    }
    advance(30 * SECOND).await;
    let answer = client.exchange(&query("a.test", RecordType::A), &options).await.unwrap();
    assert_eq!(answer.ttl, Ttl::Aged(30));
    advance(31 * SECOND).await;
    assert_eq!(ask(&client, "a.test", &options).await.as_deref(), Ok("192.0.2.1"));
    client.clear_cache();
    assert_eq!(ask(&client, "a.test", &options).await.as_deref(), Ok("192.0.2.2"));
}

#[tokio::test(start_paused = true)]
async fn the_cache_can_be_left_out() {
    let server = scripted(numbered);
    let without = QueryOptions { disable_cache: true, ..QueryOptions::default() };
    let client = client(&server);
    assert_eq!(ask(&client, "a.test", &without).await.as_deref(), Ok("192.0.2.0"));
    assert_eq!(ask(&client, "a.test", &without).await.as_deref(), Ok("192.0.2.1"));
    // What was asked without the cache is not in it.
    assert_eq!(ask(&client, "a.test", &QueryOptions::default()).await.as_deref(), Ok("192.0.2.2"));
    let uncached = Client::new(Arc::clone(&server) as _, None);
    assert_eq!(ask(&uncached, "a.test", &QueryOptions::default()).await.as_deref(), Ok("192.0.2.3"));
    assert_eq!(ask(&uncached, "a.test", &QueryOptions::default()).await.as_deref(), Ok("192.0.2.4"));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_askers_of_a_silent_server_leave_nothing() {
    // D6.
    let server = scripted(|_, _| None);
    let client = client(&server);
    let mut askers = JoinSet::new();
    for _ in 0..1000 {
        let client = client.clone();
        askers.spawn(async move { ask(&client, "a.test", &QueryOptions::default()).await });
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!((server.asked.load(Ordering::SeqCst), server.waiting.load(Ordering::SeqCst)), (1, 1));
    askers.shutdown().await;
    tokio::time::sleep(SECOND).await;
    assert_eq!((client.0.flights.len(), server.waiting.load(Ordering::SeqCst)), (0, 0));
    // Nobody cancels: the limit of time does.
    let begun = Instant::now();
    let outcome = ask(&client, "a.test", &QueryOptions::default()).await;
    assert_eq!(outcome.unwrap_err(), "no answer within 10 s");
    assert_eq!((begun.elapsed(), client.0.flights.len()), (timeouts::RESOLVE, 0));
    assert_eq!(server.waiting.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn stale_answers_are_given_once_more_and_fetched_again() {
    let server = scripted(numbered);
    let options = CacheOptions { optimistic: Some(3600 * SECOND), ..CacheOptions::default() };
    let client = Client::new(Arc::clone(&server) as _, Some(options));
    let options = QueryOptions::default();
    assert_eq!(ask(&client, "a.test", &options).await.as_deref(), Ok("192.0.2.0"));
    advance(100 * SECOND).await;
    let begun = Instant::now();
    for _ in 0..5 {
        assert_eq!(ask(&client, "a.test", &options).await.as_deref(), Ok("192.0.2.0"));
    }
    assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waits");
    tokio::time::sleep(SECOND).await;
    assert_eq!(ask(&client, "a.test", &options).await.as_deref(), Ok("192.0.2.1"));
    assert_eq!(server.asked.load(Ordering::SeqCst), 2, "refreshed once");
    advance(100 * SECOND).await;
    let strict = QueryOptions { disable_optimistic_cache: true, ..options };
    assert_eq!(ask(&client, "a.test", &strict).await.as_deref(), Ok("192.0.2.2"));
}

#[tokio::test(start_paused = true)]
async fn a_stale_answer_outlives_a_server_that_fails() {
    let server = scripted(|query, number| if number == 0 { numbered(query, 0) } else { None });
    let options = CacheOptions { optimistic: Some(3600 * SECOND), ..CacheOptions::default() };
    let client = Client::new(Arc::clone(&server) as _, Some(options));
    let options = QueryOptions::default();
    ask(&client, "a.test", &options).await.unwrap();
    for _ in 0..5 {
        advance(100 * SECOND).await;
        assert_eq!(ask(&client, "a.test", &options).await.as_deref(), Ok("192.0.2.0"));
        tokio::time::sleep(20 * SECOND).await;
    }
    assert_eq!(server.waiting.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn one_family_only_leaves_the_other_without_records() {
    let server = scripted(numbered);
    let client = client(&server);
    let options = QueryOptions { strategy: Strategy::Ipv6Only, ..QueryOptions::default() };
    let answer = client.exchange(&query("a.test", RecordType::A), &options).await.unwrap();
    assert_eq!((answer.reply.rcode(), answer.reply.walk().count()), (Rcode::NOERROR, 0));
    assert_eq!(server.asked.load(Ordering::SeqCst), 0);
    let prefer = QueryOptions { strategy: Strategy::PreferIpv6, ..QueryOptions::default() };
    assert_eq!(
        ask(&client, "a.test", &prefer).await.as_deref(),
        Ok("192.0.2.0"),
        "clients get what they ask for"
    );
}

#[tokio::test(start_paused = true)]
async fn address_hints_follow_the_strategy() {
    // HTTPS record: priority 1, target root, alpn h2, ipv4hint, ipv6hint.
    const DATA: &[u8] = b"\x00\x01\x00\x00\x01\x00\x03\x02h2\x00\x04\x00\x04\xc0\x00\x02\x01\x00\x06\x00\x10\
                          \x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01";
    let server =
        scripted(|query, _| Some(Build::reply_to(&query.encode(0)).record(6, "a.test", 65, 60, DATA)));
    let client = client(&server);
    let data = |strategy| {
        let client = client.clone();
        async move {
            let options = QueryOptions { strategy, ..QueryOptions::default() };
            let answer = client.exchange(&query("a.test", RecordType::HTTPS), &options).await.unwrap();
            let record = answer.reply.walk().next().unwrap().1;
            answer.reply.as_bytes()[record.data].to_vec()
        }
    };
    assert_eq!(data(Strategy::AsIs).await, DATA);
    assert_eq!(data(Strategy::PreferIpv4).await, DATA);
    assert_eq!(data(Strategy::Ipv4Only).await, DATA[..18]);
    assert_eq!(data(Strategy::Ipv6Only).await, [&DATA[..10], &DATA[18..]].concat());
    assert_eq!(server.asked.load(Ordering::SeqCst), 1, "the cache has the whole");
}

#[tokio::test(start_paused = true)]
async fn subnets_have_answers_of_their_own() {
    let server = scripted(numbered);
    let client = client(&server);
    let with = |client_subnet| QueryOptions { client_subnet, ..QueryOptions::default() };
    let subnet = |ip: &str| ClientSubnet::Set(Subnet::new(ip.parse().unwrap(), 24));
    assert_eq!(ask(&client, "a.test", &with(subnet("198.51.100.7"))).await.as_deref(), Ok("192.0.2.0"));
    assert_eq!(ask(&client, "a.test", &with(subnet("203.0.113.7"))).await.as_deref(), Ok("192.0.2.1"));
    assert_eq!(ask(&client, "a.test", &with(subnet("198.51.100.99"))).await.as_deref(), Ok("192.0.2.0"));
    assert_eq!(ask(&client, "a.test", &with(ClientSubnet::Keep)).await.as_deref(), Ok("192.0.2.2"));
    let asked =
        query("a.test", RecordType::A).with_subnet(Some(Subnet::new("198.51.100.0".parse().unwrap(), 24)));
    let answer = client.exchange(&asked, &with(ClientSubnet::Remove)).await.unwrap();
    assert_eq!(answer.reply.addresses().next().unwrap().to_string(), "192.0.2.2");
    let sent: Vec<_> = server.queries.lock().unwrap().iter().map(|query| query.subnet().is_some()).collect();
    assert_eq!(sent, [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn rewritten_ttls_hold_in_the_cache() {
    let server = scripted(numbered);
    let client = client(&server);
    let options = QueryOptions { rewrite_ttl: Some(7), ..QueryOptions::default() };
    let answer = client.exchange(&query("a.test", RecordType::A), &options).await.unwrap();
    let request = Request::parse(&query("a.test", RecordType::A).encode(1)).unwrap();
    let bytes = request.answer(&answer, crate::message::Carrier::Stream);
    assert_eq!(Reply::parse(&bytes, &request.query, 1).unwrap().lifetime(), 7);
    advance(8 * SECOND).await;
    assert_eq!(ask(&client, "a.test", &options).await.as_deref(), Ok("192.0.2.1"));
}

#[tokio::test(start_paused = true)]
async fn lookups_ask_for_both_families_and_order_them() {
    let server = scripted(|query, _| {
        let name = query.domain().unwrap();
        let ip = if query.kind() == RecordType::A { "192.0.2.1" } else { "2001:db8::1" };
        Some(Build::reply_to(&query.encode(0)).address(name.as_str(), 60, ip))
    });
    let resolver = client(&server).resolver(QueryOptions::default());
    let name = "a.test".parse_domain();
    let shown = |strategy| {
        let (resolver, name) = (&resolver, &name);
        async move {
            let addresses = resolver.resolve(name, strategy).await.unwrap();
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        }
    };
    assert_eq!(shown(Strategy::AsIs).await, "192.0.2.1 2001:db8::1");
    assert_eq!(shown(Strategy::PreferIpv6).await, "2001:db8::1 192.0.2.1");
    assert_eq!(shown(Strategy::Ipv6Only).await, "2001:db8::1");
    let only = QueryOptions { strategy: Strategy::Ipv4Only, ..QueryOptions::default() };
    let resolver = client(&server).resolver(only);
    assert_eq!(resolver.resolve(&name, Strategy::AsIs).await.unwrap().len(), 1);
}

/// A server that first asks another for its own name, as one with a `domain_resolver` does.
struct Named {
    tag: Tag,
    resolver: std::sync::OnceLock<Arc<dyn Resolver>>,
}

#[async_trait]
impl DnsServer for Named {
    fn tag(&self) -> &Tag {
        &self.tag
    }

    async fn exchange(&self, query: &Query) -> Result<Reply, DnsError> {
        let resolver = Arc::clone(self.resolver.get().unwrap());
        let resolved = resolver.resolve(&"ns.test".parse_domain(), Strategy::AsIs).await;
        resolved
            .map_err(|error| DnsError::Dial { server: "named".into(), reason: error.to_string().into() })?;
        Ok(Reply::empty(query, Rcode::NOERROR))
    }
}

#[tokio::test(start_paused = true)]
async fn servers_that_resolve_each_other_fail_at_once() {
    let named = |name: &str| {
        let server = Arc::new(Named { tag: Tag::new("udp", name), resolver: std::sync::OnceLock::new() });
        (Arc::clone(&server), Client::new(server as _, Some(CacheOptions::default())))
    };
    let ((a, client_a), (b, client_b)) = (named("a"), named("b"));
    assert!(a.resolver.set(client_b.resolver(QueryOptions::default())).is_ok());
    assert!(b.resolver.set(client_a.resolver(QueryOptions::default())).is_ok());
    let begun = Instant::now();
    let error = ask(&client_a, "x.test", &QueryOptions::default()).await.unwrap_err();
    assert!(error.contains("a -> b -> a"), "{error}");
    assert!(begun.elapsed() < SECOND);
}
