//! `probe`: does to a server what a censor would do, does the same to the site it imitates, and says where they differ.
//!
//! Each probe is a connection of its own: some bytes are sent, and all that comes is read until it ends or nothing comes
//! for a while. What a TLS server draws at random is not compared, only the types and lengths of its records; and of those a
//! few bytes are let pass, as signatures differ by so many. What is no TLS is compared as it is.

use std::time::{Duration, Instant};

use clap::Args;
use culvert_tls::{ClientHello, Fingerprint};
use culvert_wire::{Host, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Failure, print};

/// Flags of the command.
#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// The server that is probed.
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// The name that is asked for; the server's own by default.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The site that the server imitates; port 443 of the name by default.
    #[arg(long, value_name = "HOST:PORT")]
    site: Option<String>,
    /// How long silence is listened to.
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    patience: u64,
}

/// Bytes by which records may differ: signatures in DER are not all of one length.
const SLACK: usize = 8;
/// Most bytes that are read in one probe.
const MOST: usize = 256 << 10;
/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

pub(super) fn execute(arguments: &Arguments) -> Result<(), Failure> {
    let invalid = |text: &str| Failure(format!("{text:?} is no HOST:PORT"));
    let parse = |text: &str| Target::parse(text, Some(443)).ok_or_else(|| invalid(text));
    let server = parse(&arguments.server)?;
    let name = match (&arguments.name, &server.host) {
        (Some(name), _) => name.clone(),
        (None, Host::Domain(name)) => name.to_string(),
        (None, Host::Ip(_)) => return Err(Failure("the name of the site is missing: --name NAME".into())),
    };
    let site = parse(arguments.site.as_deref().unwrap_or(&name))?;
    let patience = Duration::from_secs(arguments.patience);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::new)?;
    let (report, different) = runtime.block_on(compare(&server, &site, &name, patience))?;
    print(report.as_bytes())?;
    match different {
        0 => Ok(()),
        count => Err(Failure(format!("{server} differs from {site} in {count} probes"))),
    }
}

/// One thing to try.
struct Probe {
    what: &'static str,
    bytes: Vec<u8>,
    /// The same was sent before, as if it had been recorded.
    again: bool,
}

fn probes(name: &str) -> Result<Vec<Probe>, Failure> {
    let hello = |name: &str| {
        let hello = ClientHello::new(Fingerprint::Chrome, Some(name), &[]);
        hello
            .map(|hello| record(hello.message()))
            .ok_or_else(|| Failure("there are no random numbers".into()))
    };
    let good = hello(name)?;
    let mut tls12 = good.clone();
    // The versions are a GREASE value, 1.3 and 1.2.
    if let Some(at) = tls12.windows(4).position(|window| window == [3, 4, 3, 3]) {
        tls12[at + 1] = 3;
    }
    let probe = |what, bytes| Probe { what, bytes, again: false };
    Ok(vec![
        probe("nothing", Vec::new()),
        probe("garbage", (0..200u8).map(|at| at.wrapping_mul(167).wrapping_add(91)).collect()),
        probe("plain HTTP", format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").into_bytes()),
        probe("a truncated hello", good[..good.len() / 2].to_vec()),
        probe("a hello with a session id of nobody", hello(name)?),
        Probe { what: "a replayed hello", bytes: hello(name)?, again: true },
        probe("a hello, then garbage", [&good[..], &[23, 3, 3, 0, 40], &[7; 40]].concat()),
        probe("TLS 1.2 only", tls12),
        probe("another name", hello("www.example.com")?),
    ])
}

fn record(message: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &(message.len() as u16).to_be_bytes(), message].concat()
}

/// What is seen of an answer.
#[derive(Debug)]
struct Seen {
    bytes: Vec<u8>,
    end: &'static str,
    time: Duration,
}

/// The report, and in how many probes the two differ.
async fn compare(
    server: &Target,
    site: &Target,
    name: &str,
    patience: Duration,
) -> Result<(String, usize), Failure> {
    let (mut report, mut different) = (String::new(), 0);
    for probe in probes(name)? {
        if probe.again {
            let _ = look(server, &probe.bytes, patience).await;
            let _ = look(site, &probe.bytes, patience).await;
        }
        // One after the other: the server may hold a connection to the site, and some sites serve one at a time.
        let ours = look(server, &probe.bytes, patience).await;
        let theirs = look(site, &probe.bytes, patience).await;
        let ours = ours.map_err(|error| Failure(format!("{server}: {error}")))?;
        let theirs = theirs.map_err(|error| Failure(format!("{site}: {error}")))?;
        if is_same(&ours, &theirs) {
            report += &format!("{:36} same: {}\n", probe.what, describe(&ours));
        } else {
            different += 1;
            report += &format!("{:36} DIFFERENT\n", probe.what);
            report += &format!("    server   {}\n    site     {}\n", describe(&ours), describe(&theirs));
        }
    }
    Ok((report, different))
}

async fn look(target: &Target, bytes: &[u8], patience: Duration) -> std::io::Result<Seen> {
    let host = target.host.to_string();
    let stream = tokio::time::timeout(CONNECT, TcpStream::connect((host.as_str(), target.port))).await;
    let mut stream = stream.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    let start = Instant::now();
    let mut seen = Seen { bytes: Vec::new(), end: "silence", time: Duration::ZERO };
    if stream.write_all(bytes).await.is_err() {
        seen.end = "reset";
    }
    let mut buffer = [0; 16 << 10];
    while seen.end == "silence" && seen.bytes.len() < MOST {
        match tokio::time::timeout(patience, stream.read(&mut buffer)).await {
            Err(_) => return Ok(seen),
            Ok(Err(_)) => seen.end = "reset",
            Ok(Ok(0)) => seen.end = "end",
            Ok(Ok(count)) => seen.bytes.extend(&buffer[..count]),
        }
        seen.time = start.elapsed();
    }
    Ok(seen)
}

/// Types and lengths of the records; `None` if these are none.
fn records(mut bytes: &[u8]) -> Option<Vec<(u8, usize)>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let [kind @ 20..=23, 3, _, high, low, rest @ ..] = bytes else { return None };
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        records.push((*kind, len));
        bytes = &rest[len..];
    }
    Some(records)
}

fn is_same(ours: &Seen, theirs: &Seen) -> bool {
    let same = match (records(&ours.bytes), records(&theirs.bytes)) {
        (Some(ours), Some(theirs)) => {
            let alike = |((kind, len), (other_kind, other_len)): (&(u8, usize), &(u8, usize))| {
                kind == other_kind && len.abs_diff(*other_len) <= SLACK
            };
            ours.len() == theirs.len() && ours.iter().zip(&theirs).all(alike)
        }
        (None, None) => ours.bytes == theirs.bytes,
        _ => false,
    };
    same && ours.end == theirs.end
}

fn describe(seen: &Seen) -> String {
    let what = match records(&seen.bytes) {
        Some(records) if records.is_empty() => "nothing".to_owned(),
        Some(records) => {
            let names = records.iter().map(|(kind, len)| {
                let name = match kind {
                    20 => "change",
                    21 => "alert",
                    22 => "handshake",
                    _ => "data",
                };
                format!("{name} {len}")
            });
            names.collect::<Vec<_>>().join(", ")
        }
        None => {
            let first = String::from_utf8_lossy(&seen.bytes[..seen.bytes.len().min(40)]).into_owned();
            format!("{} bytes: {first:?}", seen.bytes.len())
        }
    };
    let end = match seen.end {
        "silence" => "silence".to_owned(),
        end => format!("{end} after {} ms", seen.time.as_millis()),
    };
    format!("{what}, then {end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(bytes: &[u8], end: &'static str) -> Seen {
        Seen { bytes: bytes.to_vec(), end, time: Duration::ZERO }
    }

    #[test]
    fn answers_are_compared_by_their_records_and_their_end() {
        let data = |len: usize| [&[23, 3, 3, 0, len as u8][..], &vec![len as u8; len]].concat();
        let same = |one: &Seen, other: &Seen| is_same(one, other) && is_same(other, one);
        assert!(same(&seen(&data(70), "end"), &seen(&data(72), "end")));
        assert!(!same(&seen(&data(70), "end"), &seen(&data(70), "reset")));
        assert!(!same(&seen(&data(70), "end"), &seen(&data(90), "end")));
        assert!(!same(&seen(&data(70), "end"), &seen(&[data(70), data(70)].concat(), "end")));
        assert!(!same(&seen(b"", "end"), &seen(b"HTTP/1.1 400", "end")));
        assert!(same(&seen(b"HTTP/1.1 400", "end"), &seen(b"HTTP/1.1 400", "end")));
        assert!(describe(&seen(&data(70), "silence")).starts_with("data 70, then silence"));
    }

    #[tokio::test]
    async fn a_server_that_differs_is_found_out() {
        let answering = async |answer: &'static [u8]| {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let _ = stream.write_all(answer).await;
                }
            });
            Target::from(address)
        };
        let (one, same) = (answering(b"one").await, answering(b"one").await);
        let other = answering(b"other").await;
        let patience = Duration::from_millis(300);
        let (report, different) = compare(&one, &same, "site.test", patience).await.unwrap();
        assert_eq!(different, 0, "{report}");
        let (report, different) = compare(&one, &other, "site.test", patience).await.unwrap();
        assert_eq!(different, probes("site.test").unwrap().len(), "{report}");
    }
}
