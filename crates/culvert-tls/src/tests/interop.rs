//! Against OpenSSL and curl, where they are installed; else the tests say so aloud and pass.

use std::process::Stdio;
use std::time::Duration;

use culvert_core::TcpConn;
use culvert_testkit::temp::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::{acceptor, client_of, connector, server_with};
use crate::browser::Fingerprint;
use crate::settings::{ClientAuthentication, ClientSettings, Parameters, ServerSettings, Source, Version};
use crate::testing::{Ca, pattern};
use crate::{Acceptor, Connector};

const PATIENCE: Duration = Duration::from_secs(30);

fn is_installed(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// An `openssl` command with the given arguments, killed when it is dropped.
fn openssl(arguments: &[&str]) -> Child {
    Command::new("openssl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// A port that was free a moment ago.
async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

async fn dial(connector: &Connector, port: u16) -> crate::TlsConn {
    let dial = async {
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", port)).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        connector.connect(Box::new(TcpConn::new(stream))).await.unwrap().0
    };
    timeout(PATIENCE, dial).await.unwrap()
}

fn one_version(version: Version) -> Parameters {
    Parameters { min_version: version, max_version: version, ..Parameters::default() }
}

/// By groups that no browser sends a key of OpenSSL is made to ask for another hello.
#[tokio::test]
async fn openssl_as_server_for_hellos_of_browsers() {
    if !is_installed("openssl") {
        return;
    }
    let (ca, folder) = (Ca::new("ca"), TempDir::new().unwrap());
    let identity = ca.issue("a.test");
    let path = |name: &str| folder.path().join(name).display().to_string();
    folder.write("cert", &identity.chain).unwrap();
    folder.write("key", &identity.key).unwrap();
    let (cert, key) = (path("cert"), path("key"));
    for more in [&["-tls1_3"][..], &["-tls1_3", "-groups", "P-384"], &["-tls1_2"], &["-num_tickets", "8"]] {
        let port = free_port().await;
        let port_text = port.to_string();
        let arguments = ["s_server", "-accept", &port_text, "-cert", &cert, "-key", &key, "-rev", "-quiet"];
        let _server = openssl(&[&arguments[..], more].concat());
        for fingerprint in [Fingerprint::Chrome, Fingerprint::Firefox, Fingerprint::Safari, Fingerprint::Qq] {
            let settings = ClientSettings { fingerprint: Some(fingerprint), ..client_of(&ca) };
            let mut conn = dial(&connector(settings, "a.test"), port).await;
            conn.write_all(b"forwards\n").await.unwrap();
            conn.flush().await.unwrap();
            let mut line = [0; 9];
            timeout(PATIENCE, conn.read_exact(&mut line)).await.unwrap().unwrap();
            assert_eq!(&line, b"sdrawrof\n", "{fingerprint:?} {more:?}");
        }
    }
}

/// `openssl s_server -rev` sends back each line in reverse.
#[tokio::test]
async fn openssl_as_server_in_both_versions_with_a_client_certificate_and_resumption() {
    if !is_installed("openssl") {
        return;
    }
    let (ca, folder) = (Ca::new("ca"), TempDir::new().unwrap());
    let identity = ca.issue("a.test");
    let path = |name: &str| folder.path().join(name).display().to_string();
    folder.write("cert", &identity.chain).unwrap();
    folder.write("key", &identity.key).unwrap();
    folder.write("ca", ca.pem()).unwrap();
    let port = free_port().await;
    let (cert, key, ca_path, port_text) = (path("cert"), path("key"), path("ca"), port.to_string());
    let arguments = ["s_server", "-accept", &port_text, "-cert", &cert, "-key", &key, "-rev", "-quiet"];
    let _server =
        openssl(&[&arguments[..], &["-Verify", "1", "-CAfile", &ca_path, "-verify_return_error"]].concat());
    for version in [Version::Tls12, Version::Tls13] {
        let settings = ClientSettings {
            parameters: one_version(version),
            certificate: Some(ca.issue("client").source()),
            ..client_of(&ca)
        };
        let connector = connector(settings, "a.test");
        for _ in 0..3 {
            let mut conn = dial(&connector, port).await;
            conn.write_all(b"abcdef\n").await.unwrap();
            conn.flush().await.unwrap();
            let mut line = [0; 7];
            timeout(PATIENCE, conn.read_exact(&mut line)).await.unwrap().unwrap();
            assert_eq!(&line, b"fedcba\n");
            conn.shutdown().await.unwrap();
        }
    }
}

/// The line `K` makes `openssl s_client` change its keys and ask for ours; `k` changes its own only.
#[tokio::test]
async fn openssl_as_client_with_key_updates() {
    if !is_installed("openssl") {
        return;
    }
    let ca = Ca::new("ca");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for version in ["-tls1_2", "-tls1_3"] {
        let mut client = openssl(&["s_client", "-connect", &address, "-servername", "a.test", version]);
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            acceptor(&ca.issue("a.test")).accept(Box::new(TcpConn::new(stream))).await.unwrap()
        };
        let (mut conn, facts) = timeout(PATIENCE, serve).await.unwrap();
        assert_eq!(facts.server_name.as_deref(), Some("a.test"));
        let mut input = client.stdin.take().unwrap();
        let mut output = client.stdout.take().unwrap();
        let lines: &[&str] =
            if version == "-tls1_3" { &["one\n", "K\n", "two\n", "k\n", "three\n"] } else { &["one\n"] };
        for line in lines {
            // A command is one only where it stands alone in a read.
            tokio::time::sleep(Duration::from_millis(200)).await;
            input.write_all(line.as_bytes()).await.unwrap();
            input.flush().await.unwrap();
            if line.len() == 2 {
                continue;
            }
            let mut got = vec![0; line.len()];
            timeout(PATIENCE, conn.read_exact(&mut got)).await.unwrap().unwrap();
            assert_eq!(got, line.as_bytes());
            conn.write_all(format!("answer to {line}").as_bytes()).await.unwrap();
            conn.flush().await.unwrap();
        }
        conn.shutdown().await.unwrap();
        let mut said = Vec::new();
        timeout(PATIENCE, output.read_to_end(&mut said)).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&said);
        for line in lines.iter().filter(|line| line.len() > 2) {
            assert!(said.contains(&format!("answer to {}", line.trim())), "{said}");
        }
    }
}

#[tokio::test]
async fn curl_downloads_with_a_client_certificate_in_both_versions() {
    if !is_installed("curl") {
        return;
    }
    const SIZE: usize = 3_000_000;
    let (ca, folder) = (Ca::new("ca"), TempDir::new().unwrap());
    let client = ca.issue("client");
    folder.write("ca", ca.pem()).unwrap();
    folder.write("cert", &client.chain).unwrap();
    folder.write("key", &client.key).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let settings = ServerSettings {
        clients: ClientAuthentication::Authorities {
            optional: false,
            authorities: vec![Source::Inline(ca.pem())],
        },
        parameters: Parameters { alpn: vec!["http/1.1".into()], ..Parameters::default() },
        ..server_with(ca.issue("a.test").source())
    };
    let acceptor = Acceptor::new(&settings).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for limits in [["--tlsv1.2", "--tls-max", "1.2"], ["--tlsv1.3", "--tls-max", "1.3"]] {
        let output = folder.path().join("output");
        let curl = Command::new("curl")
            .args(["--silent", "--show-error", "--http1.1", "--noproxy", "*", "--cacert", &path("ca")])
            .args(["--cert", &path("cert"), "--key", &path("key"), "--output", &output.display().to_string()])
            .args(["--resolve", &format!("a.test:{port}:127.0.0.1"), &format!("https://a.test:{port}/")])
            .args(limits)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let serve = async {
            let (stream, _) = listener.accept().await.unwrap();
            let (mut conn, facts) = acceptor.accept(Box::new(TcpConn::new(stream))).await.unwrap();
            assert_eq!(facts.alpn.as_deref(), Some("http/1.1"));
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(conn.read_u8().await.unwrap());
            }
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n");
            conn.write_all(head.as_bytes()).await.unwrap();
            conn.write_all(&pattern(SIZE)).await.unwrap();
            conn.shutdown().await.unwrap();
            conn
        };
        let (_conn, result) =
            timeout(PATIENCE, async { tokio::join!(serve, curl.wait_with_output()) }).await.unwrap();
        let result = result.unwrap();
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        assert!(std::fs::read(&output).unwrap() == pattern(SIZE));
    }
}
