//! What every path through one program or two must do.
//!
//! A check that the reference program fails says so where it asks [`Site::strict`].

use crate::site::{ALL, LockedUp, STEP, Site};
use culvert_testkit::client::{ClientError, Target};
use culvert_testkit::origin::{self, BANNER, ELSEWHERE, End, Service, confirmation, fresh_seed, until_end};
use culvert_testkit::ports::Port;
use culvert_testkit::{Result, ensure, pattern};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;

/// Bytes of a bulk transfer.
fn bulk(site: &Site) -> u64 {
    if site.light() { 8 << 20 } else { 64 << 20 }
}

/// Bytes that no chain of socket buffers holds.
const FLOOD: u64 = 192 << 20;
/// Longest a check may take on a busy machine.
const CHECK: Duration = Duration::from_secs(90);

type Checking<'a> = Pin<Box<dyn Future<Output = Result> + 'a>>;

struct Check {
    name: &'static str,
    /// Also where links are checked lightly.
    light: bool,
    applies: fn(&Site) -> bool,
    run: for<'a> fn(&'a Arc<Site>) -> Checking<'a>,
}

macro_rules! checks {
    ($($name:ident $([$light:ident])? if $applies:expr;)+) => {
        &[$(Check {
            name: stringify!($name),
            light: {
                let marks: &[&str] = &[$(stringify!($light))?];
                !marks.is_empty()
            },
            applies: $applies,
            run: |site| Box::pin($name(site)),
        }),+]
    };
}

const CHECKS: &[Check] = checks! {
    bulk_down [light] if |_| true;
    bulk_up [light] if |_| true;
    bulk_both_ways [light] if |_| true;
    client_half_closes_first if passes_half_closes;
    origin_half_closes_first if passes_half_closes;
    many_small_requests if |_| true;
    slow_reader_holds_the_origin_back if |_| true;
    slow_origin_holds_the_client_back if |_| true;
    origin_reset_reaches_the_client if |_| true;
    client_reset_reaches_the_origin if |_| true;
    server_speaks_first [light] if |_| true;
    request_comes_with_the_handshake if |site| site.carries().any_target;
    refused_target_is_an_error if |site| site.carries().any_target;
    named_target [light] if |site| site.carries().names;
    ipv6_target if |site| site.carries().v6;
    strangers_are_refused if Site::has_users;
    datagrams_of_all_sizes [light] if |site| site.carries().udp;
    datagrams_to_a_name [light] if |site| site.carries().udp && site.carries().names;
    datagrams_to_ipv6 if |site| site.carries().udp && site.carries().v6;
    datagrams_to_many_peers if |site| site.carries().udp && site.carries().any_target;
    datagram_from_a_stranger if |site| site.carries().udp && site.carries().any_target;
    many_associations if |site| site.carries().udp;
};

fn passes_half_closes(site: &Site) -> bool {
    (site.strict() || site.carries().half_close) && !site.carries().one_end
}

/// Whether a reset must arrive as one.
fn passes_resets(site: &Site) -> bool {
    site.strict() && site.carries().resets
}

/// Runs all checks that apply, then sees that nothing is left behind. All failures are told.
///
/// # Errors
/// [`LockedUp`] where that was the reference program's own doing.
pub(crate) async fn all(site: Site) -> Result {
    let site = Arc::new(site);
    let chosen = std::env::var("E2E_CHECKS").unwrap_or_default();
    let words: Vec<&str> = chosen.split(',').collect();
    let mut failures = String::new();
    for check in CHECKS.iter().filter(|check| (check.applies)(&site)) {
        if !words.iter().any(|word| check.name.contains(word)) || (site.light() && !check.light) {
            continue;
        }
        let start = Instant::now();
        let outcome = tokio::time::timeout(CHECK, (check.run)(&site)).await;
        let outcome = outcome.unwrap_or_else(|_| Err("takes too long".into()));
        let time = start.elapsed().as_millis();
        match outcome {
            Ok(()) => eprintln!("{:36} ok {time:6} ms", check.name),
            Err(error) => {
                eprintln!("{:36} FAILED {time:6} ms: {error}", check.name);
                failures += &format!("\n  {}: {error}", check.name);
                if site.fragile() {
                    if site.is_locked_up().await? {
                        return Err(LockedUp.into());
                    }
                    break;
                }
            }
        }
    }
    ensure!(failures.is_empty(), "{failures}");
    Arc::into_inner(site).ok_or("a check left a task behind")?.close().await
}

/// The target cannot be reached: the path was opened with wrong credentials, or leads nowhere.
pub(crate) async fn is_refused(site: &Site) -> Result {
    match site.ask(Service::Send { seed: fresh_seed(), length: 100 }).await {
        Err(_) => Ok(()),
        Ok(stream) => ends_empty(stream).await,
    }
}

async fn bulk_down(site: &Site) -> Result {
    let bulk = bulk(site);
    let seed = fresh_seed();
    let mut stream = site.ask(Service::Send { seed, length: bulk }).await?;
    let received = origin::take(&mut stream, seed, None, |_| ()).await?;
    ensure!(received == bulk, "{received} of {bulk} bytes arrived");
    stream.shutdown().await?;
    let record = site.origin.ended(seed).await?;
    ensure!(record.end == Some(End::Clean), "at the origin: {record:?}");
    Ok(())
}

async fn bulk_up(site: &Site) -> Result {
    let bulk = bulk(site);
    let seed = fresh_seed();
    let mut stream = site.ask(Service::Take { seed, length: bulk }).await?;
    origin::send(&mut stream, seed, bulk, |_| ()).await?;
    confirmed(stream, bulk).await
}

async fn bulk_both_ways(site: &Site) -> Result {
    let bulk = bulk(site);
    let seed = fresh_seed();
    let stream = site.ask(Service::Both { seed, length: bulk }).await?;
    let (mut reader, mut writer) = stream.into_split();
    let (received, sent) = tokio::join!(
        origin::take(&mut reader, seed, Some(bulk), |_| ()),
        origin::send(&mut writer, seed + 1, bulk, |_| ()),
    );
    received?;
    sent?;
    confirmed(reader.reunite(writer)?, bulk).await
}

async fn client_half_closes_first(site: &Site) -> Result {
    for length in [0, 1, 100_000] {
        let seed = fresh_seed();
        let mut stream = site.ask(Service::Digest { seed }).await?;
        origin::send(&mut stream, seed, length, |_| ()).await?;
        stream.shutdown().await?;
        confirmed(stream, length).await?;
    }
    Ok(())
}

async fn origin_half_closes_first(site: &Site) -> Result {
    const LENGTH: u64 = 100_000;
    let seed = fresh_seed();
    let mut stream = site.ask(Service::Farewell { seed, length: LENGTH }).await?;
    let received = within(origin::take(&mut stream, seed, None, |_| ())).await?;
    ensure!(received == LENGTH, "{received} of {LENGTH} bytes arrived");
    origin::send(&mut stream, seed + 1, LENGTH, |_| ()).await?;
    stream.shutdown().await?;
    let record = site.origin.ended(seed).await?;
    ensure!(record.end == Some(End::Clean) && record.received == LENGTH, "at the origin: {record:?}");
    Ok(())
}

async fn many_small_requests(site: &Arc<Site>) -> Result {
    const REQUESTS: usize = 2000;
    const AT_ONCE: usize = 40;
    let mut workers = JoinSet::new();
    for worker in 0..AT_ONCE {
        let site = Arc::clone(site);
        workers.spawn(async move {
            for number in (worker..REQUESTS).step_by(AT_ONCE) {
                let (seed, length) = (fresh_seed(), number as u64 % 300 + 1);
                let mut stream = site.ask(Service::Send { seed, length }).await?;
                let received = origin::take(&mut stream, seed, None, |_| ()).await?;
                ensure!(received == length, "request {number}: {received} of {length} bytes");
            }
            Ok(())
        });
    }
    workers.join_all().await.into_iter().collect()
}

async fn slow_reader_holds_the_origin_back(site: &Site) -> Result {
    let seed = fresh_seed();
    let mut stream = site.ask(Service::Send { seed, length: FLOOD }).await?;
    let sent = until_still(|| site.origin.record(seed).sent).await?;
    ensure!(sent < FLOOD, "{sent} bytes were taken from the origin though nobody reads");
    within_memory(site)?;
    let received = origin::take(&mut stream, seed, None, |_| ()).await?;
    ensure!(received == FLOOD, "{received} of {FLOOD} bytes arrived");
    Ok(())
}

async fn slow_origin_holds_the_client_back(site: &Site) -> Result {
    let seed = fresh_seed();
    let stream = site.ask(Service::Stall { seed, length: FLOOD }).await?;
    let (mut reader, mut writer) = stream.into_split();
    let sent = Arc::new(AtomicU64::new(0));
    let progress = Arc::clone(&sent);
    let sending = tokio::spawn(async move {
        let tell = |total| progress.store(total, Ordering::Relaxed);
        origin::send(&mut writer, seed, FLOOD, tell).await.map(|()| writer)
    });
    let taken = until_still(|| sent.load(Ordering::Relaxed)).await?;
    ensure!(taken < FLOOD, "{taken} bytes were taken from the client though nobody reads");
    within_memory(site)?;
    site.origin.release(seed);
    let mut line = String::new();
    reader.read_to_string(&mut line).await?;
    sending.await??;
    ensure!(line == confirmation(FLOOD), "the origin answered {line:?}");
    Ok(())
}

async fn origin_reset_reaches_the_client(site: &Site) -> Result {
    const LENGTH: u64 = 100_000;
    let seed = fresh_seed();
    let mut stream = site.ask(Service::Reset { seed, length: LENGTH }).await?;
    within(origin::take(&mut stream, seed, Some(LENGTH), |_| ())).await?;
    stream.write_all(b"!").await?;
    match within(until_end(&mut stream)).await {
        Err(error) if is_reset(&error) => Ok(()),
        Err(error) => Err(error),
        Ok(()) if passes_resets(site) => Err("the reset arrives as an orderly end".into()),
        Ok(()) => Ok(()),
    }
}

async fn client_reset_reaches_the_origin(site: &Site) -> Result {
    let seed = fresh_seed();
    let mut stream = site.ask(Service::Watch { seed }).await?;
    let mut ready = [0; 6];
    stream.read_exact(&mut ready).await?;
    origin::reset(stream)?;
    let record = site.origin.ended(seed).await?;
    ensure!(record.end == Some(End::Reset) || !passes_resets(site), "the reset arrives as {record:?}");
    Ok(())
}

async fn server_speaks_first(site: &Site) -> Result {
    let mut stream = site.dial(&site.origin.banner_port().v4().into()).await?;
    let mut banner = vec![0; BANNER.len()];
    within(async { Ok(stream.read_exact(&mut banner).await?) }).await?;
    ensure!(banner == BANNER, "the banner is {banner:?}");
    stream.write_all(b"?").await?;
    ensure!(stream.read_u8().await? == b'?', "no echo after the banner");
    Ok(())
}

/// The dial helpers wait for each answer; here nothing is waited for, so that early data meets the handshake.
async fn request_comes_with_the_handshake(site: &Site) -> Result {
    if !site.strict() {
        // The reference program loses data that arrive in one segment with a SOCKS request.
        return Ok(());
    }
    for _ in 0..20 {
        let (seed, target) = (fresh_seed(), site.origin.port().v4().into());
        let mut stream =
            site.dial_with_early_data(&target, &Service::Send { seed, length: 999 }.line()).await?;
        let received = within(origin::take(&mut stream, seed, None, |_| ())).await?;
        ensure!(received == 999, "{received} of 999 bytes arrived");
    }
    Ok(())
}

async fn refused_target_is_an_error(site: &Site) -> Result {
    let nobody = Port::reserve()?;
    match site.dial(&nobody.v4().into()).await {
        // What SOCKS has to say when this program itself was refused; through a link it cannot know.
        Err(ClientError::Refused(_)) => Ok(()),
        Err(ClientError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => Err(error.into()),
        Err(ClientError::Io(_)) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(stream) => ends_empty(stream).await,
    }
}

async fn named_target(site: &Site) -> Result {
    let target = Target::name("localhost", site.origin.port().number());
    small_exchange(site, &target).await
}

async fn ipv6_target(site: &Site) -> Result {
    small_exchange(site, &site.origin.port().v6().into()).await
}

async fn strangers_are_refused(site: &Site) -> Result {
    let target = site.origin.port().v4().into();
    let strangers = [
        None,
        Some(("bob", "wrong")),
        Some(("mallory", "another")),
        Some(("bob", "")),
        Some(("bob", "anothe")),
    ];
    for stranger in strangers {
        match site.dial_as(stranger, &target).await {
            Err(ClientError::Denied | ClientError::Refused(91)) => {}
            // The reference program says first no, then something else, to a client without credentials.
            Err(_) if !site.strict() => {}
            other => return Err(format!("{stranger:?} was answered {other:?}").into()),
        }
    }
    Ok(())
}

async fn datagrams_of_all_sizes(site: &Site) -> Result {
    let target = site.origin.port().v4().into();
    let datagrams = site.associate().await?;
    let largest = match site.carries().datagram {
        limit if limit < ALL.datagram => limit,
        _ if site.strict() => 65_000,
        limit => limit,
    };
    for size in [1, 2, 512, 1200, 1400, 1500, 8000, 16_000, 60_000, 65_000] {
        if size > largest {
            break;
        }
        let sent = pattern::bytes(size as u64, size);
        datagrams.send_to(&target, &sent).await?;
        let (from, received) = datagrams.recv().await.map_err(|error| format!("{size} bytes: {error}"))?;
        ensure!(from == target, "{size} bytes come from {from}");
        ensure!(received == sent, "{size} bytes come back as {} others", received.len());
    }
    Ok(())
}

async fn datagrams_to_a_name(site: &Site) -> Result {
    let target = Target::name("localhost", site.origin.port().number());
    let datagrams = site.associate().await?;
    for data in ["one", "two"] {
        datagrams.send_to(&target, data.as_bytes()).await?;
        let (from, received) = datagrams.recv().await?;
        ensure!(received == data.as_bytes(), "{data} comes back as {received:?}");
        ensure!(from.port() == target.port(), "the answer is from {from}");
    }
    Ok(())
}

async fn datagrams_to_ipv6(site: &Site) -> Result {
    let target = site.origin.port().v6().into();
    let datagrams = site.associate().await?;
    datagrams.send_to(&target, b"six").await?;
    let (from, received) = datagrams.recv().await?;
    ensure!(from == target && received == b"six", "{received:?} from {from}");
    Ok(())
}

/// One association reaches many peers, and each answer says whom it is from.
async fn datagrams_to_many_peers(site: &Site) -> Result {
    let datagrams = site.associate().await?;
    let mut peers = Vec::new();
    for _ in 0..50 {
        peers.push(UdpSocket::bind("127.0.0.1:0").await?);
    }
    for round in 0..2 {
        for (number, peer) in peers.iter().enumerate() {
            let data = format!("round {round} peer {number}");
            datagrams.send_to(&peer.local_addr()?.into(), data.as_bytes()).await?;
            let mut buffer = [0; 64];
            let (length, from) = within(async { Ok(peer.recv_from(&mut buffer).await?) }).await?;
            ensure!(&buffer[..length] == data.as_bytes(), "peer {number} received {:?}", &buffer[..length]);
            peer.send_to(&buffer[..length], from).await?;
            let (from, received) = datagrams.recv().await?;
            ensure!(received == data.as_bytes(), "{data} comes back as {received:?}");
            ensure!(from == peer.local_addr()?.into(), "peer {number} appears as {from}");
        }
    }
    Ok(())
}

/// Whoever is sent the association's outer address may answer (endpoint-independent filtering, RFC 4787).
async fn datagram_from_a_stranger(site: &Site) -> Result {
    let target = site.origin.port().v4().into();
    let datagrams = site.associate().await?;
    datagrams.send_to(&target, ELSEWHERE).await?;
    let (from, received) = datagrams.recv().await?;
    ensure!(received == ELSEWHERE && from != target, "{received:?} from {from}");
    Ok(())
}

async fn many_associations(site: &Site) -> Result {
    let target: Target = site.origin.port().v4().into();
    let mut associations = Vec::new();
    for _ in 0..50 {
        associations.push(site.associate().await?);
    }
    for (number, datagrams) in associations.iter().enumerate() {
        datagrams.send_to(&target, format!("association {number}").as_bytes()).await?;
    }
    for (number, datagrams) in associations.iter().enumerate() {
        let (_, received) = datagrams.recv().await?;
        ensure!(received == format!("association {number}").as_bytes(), "{number} received {received:?}");
    }
    Ok(())
}

async fn small_exchange(site: &Site, target: &Target) -> Result {
    let seed = fresh_seed();
    let mut stream = site.dial(target).await?;
    stream.write_all(Service::Send { seed, length: 1000 }.line().as_bytes()).await?;
    let received = within(origin::take(&mut stream, seed, None, |_| ())).await?;
    ensure!(received == 1000, "{received} of 1000 bytes arrived");
    Ok(())
}

/// The origin says that all arrived, then the stream ends.
async fn confirmed(mut stream: TcpStream, length: u64) -> Result {
    let mut line = String::new();
    within(async { Ok(stream.read_to_string(&mut line).await?) }).await?;
    ensure!(line == confirmation(length), "the origin answered {line:?}");
    Ok(())
}

/// The stream ends, orderly or by reset, without a byte.
async fn ends_empty(mut stream: TcpStream) -> Result {
    match within(until_end(&mut stream)).await {
        Err(error) if is_reset(&error) => Ok(()),
        other => other,
    }
}

fn is_reset(error: &culvert_testkit::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe))
}

async fn within<T>(step: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(STEP, step).await.map_err(|_| "nothing happens")?
}

/// Waits until a count that has begun to grow grows no more, and returns it.
async fn until_still(count: impl Fn() -> u64) -> Result<u64> {
    within(async {
        let mut last = 0;
        loop {
            // The absence of progress is no event; only time shows it.
            tokio::time::sleep(Duration::from_millis(300)).await;
            match count() {
                now if now > 0 && now == last => return Ok(now),
                now => last = now,
            }
        }
    })
    .await
}

/// A stalled stream is held by the sockets, not in the program.
fn within_memory(site: &Site) -> Result {
    const MOST: u64 = 64 << 20;
    for peer in site.peers.iter().filter(|peer| peer.program().name() == "culvert") {
        let memory = peer.usage()?.memory;
        ensure!(memory < MOST, "a stalled stream takes {memory} bytes of memory");
    }
    Ok(())
}
