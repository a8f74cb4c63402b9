//! What a prober gets from a REALITY server is what the site itself gives: nginx, `openssl s_server`, and rustls.
//!
//! ```text
//! prober ─▶ culvert ─▶ recorder ─▶ site      every byte and the end, compared with what the recorder saw
//! prober ─────────────────────────▶ site      records and the end, compared with those
//! ```

use crate::proxy::Proxy;
use crate::reality::{ID, PRIVATE_KEY, PUBLIC_KEY, SHORT_ID};
use crate::vision::{connector, echo};
use crate::{culvert, run};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use culvert_testkit::certificate::Certificate;
use culvert_testkit::origin;
use culvert_testkit::peer::{Peer, Program, skip};
use culvert_testkit::ports::Port;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure};
use culvert_tls::reality::{AuthKey, SessionId};
use culvert_tls::{ClientHello, Fingerprint};
use rustls::pki_types::ServerName;
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

const NAME: &str = "site.test";
/// How long silence is listened to.
const SILENCE: Duration = Duration::from_secs(1);
/// Bytes by which records of two handshakes may differ: signatures are not all of one length.
const SLACK: usize = 8;

#[test]
fn before_nginx() {
    run(async {
        let Some(nginx) = Nginx::start().await? else { return Ok(()) };
        is_the_site(nginx.port.v4()).await?;
        pages_are_the_sites(&nginx).await
    });
}

#[test]
fn before_openssl() {
    run(async {
        let certificate = Certificate::for_name(NAME);
        let (directory, port) = (TempDir::new()?, Port::reserve()?);
        directory.write("key.pem", &certificate.key)?;
        directory.write("certificate.pem", &certificate.certificate)?;
        let listen = port.v4().to_string();
        let arguments =
            ["s_server", "-accept", &listen, "-cert", "certificate.pem", "-key", "key.pem", "-rev"];
        let _peer = Program::named("openssl").launch(arguments).directory(directory.path()).spawn()?;
        listens(port.v4()).await?;
        is_the_site(port.v4()).await
    });
}

#[test]
fn before_rustls() {
    run(async {
        let (site, serving) = echo(&Certificate::for_name(NAME), &rustls::version::TLS13).await?;
        is_the_site(site).await?;
        serving.abort();
        Ok(())
    });
}

/// nginx with a page.
struct Nginx {
    _peer: Peer,
    _directory: TempDir,
    port: Port,
    certificate: Certificate,
}

impl Nginx {
    async fn start() -> Result<Option<Self>> {
        // It is not in every user's path.
        let program = if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" };
        if !Command::new(program).arg("-v").output().is_ok_and(|output| output.status.success()) {
            assert!(std::env::var_os("CULVERT_REQUIRE_PEERS").is_none(), "no nginx: run scripts/test");
            skip("no nginx here");
            return Ok(None);
        }
        let (certificate, directory, port) = (Certificate::for_name(NAME), TempDir::new()?, Port::reserve()?);
        directory.write("key.pem", &certificate.key)?;
        directory.write("certificate.pem", &certificate.certificate)?;
        directory.write("index.html", "<html><body>a page of the site</body></html>\n".repeat(2000))?;
        let kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let folders: String = kinds.iter().map(|kind| format!("{kind}_temp_path {kind};\n")).collect();
        directory.write(
            "nginx.conf",
            format!(
                "daemon off; master_process off; pid nginx.pid; error_log stderr notice;\n\
                 events {{}}\n\
                 http {{ access_log off; {folders}\n\
                 server {{ listen {} ssl http2; server_name {NAME}; root .;\n\
                 ssl_certificate certificate.pem; ssl_certificate_key key.pem;\n\
                 ssl_protocols TLSv1.2 TLSv1.3; }} }}\n",
                port.v4()
            ),
        )?;
        let folder = directory.path().display().to_string();
        let arguments = ["-p", &folder, "-c", "nginx.conf", "-e", "stderr"];
        let peer = Program::named(program).launch(arguments).directory(directory.path()).spawn()?;
        listens(port.v4()).await.map_err(|error| format!("{error}: {}", peer.log().text()))?;
        Ok(Some(Self { _peer: peer, _directory: directory, port, certificate }))
    }
}

/// Waits until somebody listens there.
async fn listens(address: SocketAddr) -> Result {
    for _ in 0..600 {
        if TcpStream::connect(address).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(format!("nobody listens on {address}").into())
}

/// What was sent to one side, and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    bytes: Vec<u8>,
    end: Option<&'static str>,
}

/// Between a server and its target: notes what the target says on the connections that are made, the last one last.
struct Recorder {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Arc<Mutex<Seen>>>>>,
}

impl Recorder {
    async fn start(site: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let seen: Arc<Mutex<Vec<Arc<Mutex<Seen>>>>> = Arc::default();
        let all = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let note: Arc<Mutex<Seen>> = Arc::default();
                all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&note));
                tokio::spawn(record(near, site, note));
            }
        });
        Ok(Self { address, seen })
    }

    /// What the target has said on the last connection.
    fn last(&self) -> Seen {
        let all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.last().map(|last| last.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap_or_default()
    }
}

async fn record(near: TcpStream, site: SocketAddr, note: Arc<Mutex<Seen>>) {
    let Ok(far) = TcpStream::connect(site).await else { return };
    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
    let up = pass(from_near, to_far, |_, _| ());
    let down = pass(from_far, to_near, |bytes, end| {
        let mut note = note.lock().unwrap_or_else(PoisonError::into_inner);
        note.bytes.extend_from_slice(bytes);
        note.end = end;
    });
    // Halves that have ended are kept until both have; what breaks off ends all at once.
    let _ = tokio::try_join!(up, down);
}

/// Passes on what comes. After a reset the other end is reset too as soon as all its halves are gone.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut note: impl FnMut(&[u8], Option<&'static str>),
) -> Result<(OwnedReadHalf, OwnedWriteHalf), ()> {
    let mut bytes = vec![0; 16 << 10];
    loop {
        match from.read(&mut bytes).await {
            Ok(0) => {
                note(b"", Some("end"));
                let _ = to.shutdown().await;
                return Ok((from, to));
            }
            Ok(count) => {
                note(&bytes[..count], None);
                to.write_all(&bytes[..count]).await.map_err(drop)?;
            }
            Err(_) => {
                note(b"", Some("reset"));
                let _ = socket2::SockRef::from(to.as_ref()).set_linger(Some(Duration::ZERO));
                to.forget();
                return Err(());
            }
        }
    }
}

/// What a prober gets.
async fn look(address: SocketAddr, probe: &[u8], then_ends: bool) -> Result<Seen> {
    let mut stream = TcpStream::connect(address).await?;
    let mut seen = Seen::default();
    if stream.write_all(probe).await.is_err() {
        seen.end = Some("reset");
    }
    if then_ends {
        let _ = stream.shutdown().await;
    }
    let mut bytes = vec![0; 16 << 10];
    while seen.end.is_none() {
        match tokio::time::timeout(SILENCE, stream.read(&mut bytes)).await {
            Err(_) => break,
            Ok(Err(_)) => seen.end = Some("reset"),
            Ok(Ok(0)) => seen.end = Some("end"),
            Ok(Ok(count)) => seen.bytes.extend(&bytes[..count]),
        }
    }
    if seen.end.is_none() {
        // Gone at once, so that a site which serves one at a time is free again.
        drop(origin::reset(stream));
    }
    Ok(seen)
}

/// Types and lengths of records; `None` if they are none.
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

/// The lines of an answer that do not tell the time.
fn lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().filter(|line| !line.starts_with("Date:")).map(str::to_owned).collect()
}

fn are_alike(one: &Seen, other: &Seen) -> bool {
    let alike = match (records(&one.bytes), records(&other.bytes)) {
        (Some(one), Some(other)) => {
            let mut pairs = one.iter().zip(&other);
            one.len() == other.len()
                && pairs.all(|(one, other)| one.0 == other.0 && one.1.abs_diff(other.1) <= SLACK)
        }
        (None, None) => lines(&one.bytes) == lines(&other.bytes),
        _ => false,
    };
    alike && one.end == other.end
}

/// A hello of Chrome as a record, sealed for a server of REALITY with this key.
fn sealed(name: &str, key: &[u8; 32], id: SessionId) -> Result<Vec<u8>> {
    let mut hello = ClientHello::new(Fingerprint::Chrome, Some(name), &[]).ok_or("no random numbers")?;
    let shared = hello.agree_x25519(key).ok_or("no key")?;
    AuthKey::new(&shared, hello.random()).seal(&mut hello, id).ok_or("not sealed")?;
    let message = hello.message();
    Ok([&[22, 3, 1][..], &(message.len() as u16).to_be_bytes(), message].concat())
}

/// All probes: a name, and what is sent.
fn probes(replayed: &[u8]) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let key: [u8; 32] = URL_SAFE_NO_PAD.decode(PUBLIC_KEY)?.try_into().map_err(|_| "no key")?;
    let now = SessionId::now(0x0123_4567_89ab_cdef_u64.to_be_bytes());
    let wrong_id = sealed(NAME, &key, SessionId { short_id: [9; 8], ..now })?;
    let mut tls12 = wrong_id.clone();
    // Chrome's versions: a reserved one, 1.3, 1.2.
    let at = tls12.windows(4).position(|window| window == [3, 4, 3, 3]).ok_or("no versions")?;
    tls12[at + 1] = 3;
    let mut no_tls = wrong_id.clone();
    no_tls[5] = 2;
    let message = &wrong_id[5..];
    let fragments: Vec<u8> =
        message.chunks(100).flat_map(|part| [&[22, 3, 1, 0, part.len() as u8][..], part].concat()).collect();
    Ok(vec![
        ("nothing", Vec::new()),
        ("garbage", (0..200u8).map(|at| at.wrapping_mul(167).wrapping_add(91)).collect()),
        ("one byte", vec![22]),
        ("plain HTTP", format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n").into_bytes()),
        ("a preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("a truncated hello", wrong_id[..wrong_id.len() / 2].to_vec()),
        ("a record header", wrong_id[..5].to_vec()),
        ("a hello in many records", fragments),
        ("a hello of a wrong short id", wrong_id.clone()),
        ("an old hello", sealed(NAME, &key, SessionId { time: 1_000_000_000, ..now })?),
        ("a hello for another key", sealed(NAME, &[9; 32], now)?),
        ("another name", sealed("www.example.com", &key, now)?),
        ("a replayed hello", replayed.to_vec()),
        ("a hello, then junk", [&wrong_id[..], &[23, 3, 3, 0, 40], &[7; 40]].concat()),
        (
            "a hello, then records that mean nothing",
            [&wrong_id[..], &[20, 3, 3, 0, 1, 1].repeat(100)].concat(),
        ),
        ("two hellos", [&wrong_id[..], &wrong_id].concat()),
        ("TLS 1.2 only", tls12),
        ("another message than a hello", no_tls),
        ("an alert", b"\x15\x03\x03\x00\x02\x02\x28".to_vec()),
        ("a record that is too long", b"\x16\x03\x01\xff\xff\x01\x00\x00\x00".to_vec()),
    ])
}

/// A server of REALITY whose target this is.
async fn server(target: SocketAddr) -> Result<Proxy> {
    let tls = json!({
        "enabled": true, "server_name": NAME,
        "reality": {
            "enabled": true, "handshake": { "server": target.ip().to_string(), "server_port": target.port() },
            "private_key": PRIVATE_KEY, "short_id": [SHORT_ID], "max_time_difference": "1m"
        }
    });
    let inbound = json!({ "type": "vless", "users": [{ "uuid": ID }], "tls": tls });
    let proxy = Proxy::start(&culvert(), inbound, json!({ "type": "direct" })).await?;
    // It looks at its target first, and some serve one at a time.
    for offer in ["after None", "after Http1", "after Http2"] {
        proxy.peer.log().line(|line| line.contains(offer)).await?;
    }
    Ok(proxy)
}

async fn is_the_site(site: SocketAddr) -> Result {
    let recorder = Recorder::start(site).await?;
    let proxy = server(recorder.address).await?;
    let key: [u8; 32] = URL_SAFE_NO_PAD.decode(PUBLIC_KEY)?.try_into().map_err(|_| "no key")?;
    // A client of the server's says this once, and somebody has seen it go by.
    let replayed = sealed(NAME, &key, SessionId::now(0x0123_4567_89ab_cdef_u64.to_be_bytes()))?;
    look(proxy.address(), &replayed, true).await?;
    let mut different = String::new();
    for (what, probe) in probes(&replayed)? {
        for then_ends in [false, true] {
            let theirs = look(site, &probe, then_ends).await?;
            let ours = look(proxy.address(), &probe, then_ends).await?;
            let passed = recorder.last();
            if ours != passed && !(ours.end.is_none() && ours.bytes == passed.bytes) {
                different += &format!(
                    "\n  {what}, then ends: {then_ends}: the site said {passed:?}, here came {ours:?}"
                );
            } else if !are_alike(&ours, &theirs) {
                different +=
                    &format!("\n  {what}, then ends: {then_ends}: directly {theirs:?}, here {ours:?}");
            }
        }
    }
    ensure!(different.is_empty(), "{different}");
    Ok(())
}

/// Whoever asks for pages gets those of the site, with its head fields, over one connection.
async fn pages_are_the_sites(nginx: &Nginx) -> Result {
    let proxy = server(nginx.port.v4()).await?;
    let mut answers = Vec::new();
    for address in [nginx.port.v4(), proxy.address()] {
        let stream = TcpStream::connect(address).await?;
        let connector = connector(&nginx.certificate, &rustls::version::TLS13)?;
        let mut stream = connector.connect(ServerName::try_from(NAME)?, stream).await?;
        for request in
            ["GET / HTTP/1.1\r\n", "HEAD / HTTP/1.1\r\n", "OPTIONS /x HTTP/1.1\r\nConnection: close\r\n"]
        {
            stream.write_all(format!("{request}Host: {NAME}\r\n\r\n").as_bytes()).await?;
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        ensure!(answer.len() > 90_000, "the page has {} bytes", answer.len());
        answers.push(lines(&answer));
    }
    ensure!(answers[0] == answers[1], "the pages differ");
    Ok(())
}
