//! What is answered while an authority looks, for all providers of a program together.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use culvert_core::{BoxStream, TcpConn};
use culvert_os::socket::{TcpListen, tcp_listener};
use culvert_tls::settings::{ClientAuthentication, Identity, Parameters};
use culvert_tls::{Acceptor, CertificateSource, OwnCertificate, ServerSettings};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::error::AcmeError;
use crate::http01;
use crate::settings::Name;

/// How long one connection to a listener may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections to a listener at once. Authorities look from a handful of places.
const CONNECTIONS: usize = 64;

/// How ownership is proven.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Method {
    /// `http-01`: by a resource on port 80.
    Http,
    /// `tls-alpn-01`: by a certificate on port 443.
    Tls,
}

impl Method {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http-01",
            Self::Tls => "tls-alpn-01",
        }
    }
}

/// The open questions of authorities and their answers.
#[derive(Default)]
pub struct Challenges {
    open: Mutex<Open>,
    listeners: Mutex<HashMap<(Method, u16), Weak<Listening>>>,
}

#[derive(Default)]
struct Open {
    /// Key authorizations by their tokens.
    tokens: HashMap<String, String>,
    /// Certificates by the names that an authority asks for.
    proofs: HashMap<String, OwnCertificate>,
}

/// One answer, given as long as this lives.
pub(crate) struct Answer {
    challenges: Arc<Challenges>,
    method: Method,
    key: String,
    /// `None` where somebody else listens on the port: an inbound of ours, it is hoped.
    listening: Option<Arc<Listening>>,
}

/// A listener that is there as long as somebody needs it.
struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Challenges {
    /// None yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The key authorization for a token.
    pub(crate) fn key_authorization(&self, token: &str) -> Option<String> {
        self.lock().tokens.get(token).cloned()
    }

    /// Answers by `http-01` on this port.
    pub(crate) fn answer_http(
        self: &Arc<Self>,
        port: u16,
        token: &str,
        key_authorization: &str,
    ) -> Result<Answer, AcmeError> {
        let listening = self.listen(Method::Http, port).map_err(|source| {
            let words = format!("cannot listen on port {port}: {source}");
            AcmeError::Unproven { method: Method::Http.name(), words }
        })?;
        self.lock().tokens.insert(token.to_owned(), key_authorization.to_owned());
        let (challenges, key) = (Arc::clone(self), token.to_owned());
        Ok(Answer { challenges, method: Method::Http, key, listening: Some(listening) })
    }

    /// Answers by `tls-alpn-01` on this port. `digest` is the SHA-256 of the key authorization.
    pub(crate) fn answer_tls(
        self: &Arc<Self>,
        port: u16,
        name: &Name,
        digest: &[u8],
    ) -> Result<Answer, AcmeError> {
        let failed = |words: String| AcmeError::Unproven { method: Method::Tls.name(), words };
        let proof = proof(name, digest).map_err(failed)?;
        let key = asked_name(name);
        self.lock().proofs.insert(key.clone(), proof);
        let mut answer = Answer { challenges: Arc::clone(self), method: Method::Tls, key, listening: None };
        match self.listen(Method::Tls, port) {
            Ok(listening) => answer.listening = Some(listening),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed(format!("cannot listen on port {port}: {error}"))),
        }
        Ok(answer)
    }

    fn listen(self: &Arc<Self>, method: Method, port: u16) -> io::Result<Arc<Listening>> {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|_, listening| listening.strong_count() > 0);
        if let Some(listening) = listeners.get(&(method, port)).and_then(Weak::upgrade) {
            return Ok(listening);
        }
        let listener = bind(port)?;
        let challenges = Arc::clone(self);
        let task = match method {
            Method::Http => {
                tokio::spawn(accept(listener, move |conn| http01::serve(conn, Arc::clone(&challenges))))
            }
            Method::Tls => {
                let acceptor = Acceptor::new(&ServerSettings {
                    parameters: Parameters::default(),
                    identity: Identity::Provided(challenges),
                    clients: ClientAuthentication::None,
                    handshake_timeout: Some(PATIENCE),
                })
                .map_err(io::Error::other)?;
                tokio::spawn(accept(listener, move |conn| {
                    let acceptor = acceptor.clone();
                    // A handshake is all there is.
                    async move { drop(acceptor.accept(conn).await) }
                }))
            }
        };
        let listening = Arc::new(Listening(task));
        listeners.insert((method, port), Arc::downgrade(&listening));
        Ok(listening)
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CertificateSource for Challenges {
    fn certificate(&self, _name: Option<&str>) -> Result<OwnCertificate, String> {
        Err("this port is open for authorities only".to_owned())
    }

    fn is_proving(&self) -> bool {
        !self.lock().proofs.is_empty()
    }

    fn proof(&self, name: &str) -> Option<OwnCertificate> {
        self.lock().proofs.get(&name.to_ascii_lowercase()).cloned()
    }
}

impl fmt::Debug for Challenges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Challenges")
    }
}

impl Answer {
    /// Whether somebody else listens where the authority looks.
    pub(crate) fn is_left_to_others(&self) -> bool {
        self.listening.is_none()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let mut open = self.challenges.lock();
        match self.method {
            Method::Http => drop(open.tokens.remove(&self.key)),
            Method::Tls => drop(open.proofs.remove(&self.key)),
        }
    }
}

/// On all addresses of both families, or of the one there is.
fn bind(port: u16) -> io::Result<TcpListener> {
    let options = TcpListen::default();
    let open = |ip: IpAddr| {
        tcp_listener(&options, SocketAddr::new(ip, port))
            .map_err(|error| io::Error::new(error.io().kind(), error.io().to_string()))
    };
    let listener = open(Ipv6Addr::UNSPECIFIED.into()).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
        _ => open(Ipv4Addr::UNSPECIFIED.into()),
    })?;
    TcpListener::from_std(listener)
}

async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    serve: impl Fn(BoxStream) -> F + Send + 'static,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let task = serve(Box::new(TcpConn::new(stream)));
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(PATIENCE, task).await;
                    drop(place);
                });
            }
            // The one connection is dead, or there are no descriptors for the moment.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// The certificate that proves ownership of a name (RFC 8737 section 3).
fn proof(name: &Name, digest: &[u8]) -> Result<OwnCertificate, String> {
    let made = || -> Result<_, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![name.to_string()])?;
        params.distinguished_name = DistinguishedName::new();
        params.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
        Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
    };
    let (certificate, key) = made().map_err(|error| error.to_string())?;
    OwnCertificate::from_pem(&certificate, &key).map_err(|error| error.to_string())
}

/// What an authority asks for in TLS: the name, of an address its name in the reverse zone (RFC 8738 section 6).
fn asked_name(name: &Name) -> String {
    match name {
        Name::Domain(name) => name.clone(),
        Name::Ip(IpAddr::V4(ip)) => {
            let [a, b, c, d] = ip.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        Name::Ip(IpAddr::V6(ip)) => {
            let nibbles = ip.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            nibbles.map(|nibble| format!("{nibble:x}.")).collect::<String>() + "ip6.arpa"
        }
    }
}

#[cfg(test)]
mod tests {
    use culvert_testkit::ports::Port;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn addresses_are_asked_for_by_their_reverse_names() {
        assert_eq!(asked_name(&Name::Ip([192, 0, 2, 1].into())), "1.2.0.192.in-addr.arpa");
        let v6 = asked_name(&Name::Ip("2001:db8::1".parse().unwrap()));
        assert_eq!(v6, "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa");
    }

    async fn ask(port: &Port, path: &str) -> String {
        let mut conn = TcpStream::connect(port.v4()).await.unwrap();
        conn.write_all(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        conn.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_port_is_open_only_while_an_authority_looks() {
        let port = Port::reserve().unwrap();
        let challenges = Challenges::new();
        let one = challenges.answer_http(port.number(), "one", "one.key").unwrap();
        let two = challenges.answer_http(port.number(), "two", "two.key").unwrap();
        let answer = ask(&port, "/.well-known/acme-challenge/one").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\none.key"), "{answer}");
        assert!(ask(&port, "/.well-known/acme-challenge/three").await.starts_with("HTTP/1.1 404 "));
        assert!(ask(&port, "/").await.starts_with("HTTP/1.1 404 "));
        drop(one);
        assert!(ask(&port, "/.well-known/acme-challenge/one").await.starts_with("HTTP/1.1 404 "));
        assert!(ask(&port, "/.well-known/acme-challenge/two").await.starts_with("HTTP/1.1 200 "));
        drop(two);
        while TcpStream::connect(port.v4()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_an_obstacle_for_http_only() {
        let port = Port::reserve().unwrap();
        let _occupant = std::net::TcpListener::bind(port.v4()).unwrap();
        let challenges = Challenges::new();
        let error = challenges.answer_http(port.number(), "t", "t.k").map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("http-01: cannot listen on port {}", port.number())), "{error}");
        assert!(challenges.key_authorization("t").is_none());
        let name = Name::Domain("a.test".into());
        let answer = challenges.answer_tls(port.number(), &name, &[7; 32]).unwrap();
        assert!(
            answer.is_left_to_others() && challenges.is_proving() && challenges.proof("A.test").is_some()
        );
        drop(answer);
        assert!(!challenges.is_proving());
    }
}
