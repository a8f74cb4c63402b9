//! For this crate's tests: a name server that says what it is told to, and messages built byte by byte.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

use crate::message::wire::{self, HEADER, flag, kind, read_name};
use crate::message::{Query, RecordType, Request, text};
use crate::plain::{read_message, write_message};

/// What a client sent.
pub(crate) struct Asked {
    pub(crate) bytes: Vec<u8>,
    /// The name, `.` for the root.
    pub(crate) name: String,
    pub(crate) kind: RecordType,
    pub(crate) stream: bool,
}

impl Asked {
    fn new(bytes: &[u8], stream: bool) -> Self {
        let query = Request::parse(bytes).expect("the client sends sound queries").query;
        let name = query.domain().map_or_else(|| ".".to_owned(), |name| name.to_string());
        Self { bytes: bytes.to_vec(), name, kind: query.kind(), stream }
    }

    /// A reply to it, without records so far.
    pub(crate) fn reply(&self) -> Build {
        Build::reply_to(&self.bytes)
    }
}

/// A name server on one port, UDP and TCP.
pub(crate) struct Mock {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Mock {
    /// Serves `answer`: the messages to send back, none for silence; over TCP an empty message hangs up.
    pub(crate) async fn start(answer: impl Fn(&Asked) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), answer).await
    }

    pub(crate) async fn start_at(
        address: SocketAddr,
        answer: impl Fn(&Asked) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let answer = Arc::new(answer);
        let asked = Arc::new(Mutex::new(Vec::new()));
        // A port that is free for UDP may be taken for TCP: try until one is free for both.
        let (udp, tcp) = loop {
            let tcp = TcpListener::bind(address).await.unwrap();
            match UdpSocket::bind(tcp.local_addr().unwrap()).await {
                Ok(udp) => break (udp, tcp),
                Err(_) if address.port() == 0 => {}
                Err(error) => panic!("{error}"),
            }
        };
        let address = udp.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        let (log, say) = (Arc::clone(&asked), Arc::clone(&answer));
        tasks.spawn(async move {
            let mut buffer = [0; 4096];
            // A client that has gone shows as an error of the next receive.
            loop {
                let Ok((length, from)) = udp.recv_from(&mut buffer).await else { continue };
                let query = Asked::new(&buffer[..length], false);
                log.lock().unwrap().push(format!("udp {} {}", query.name, query.kind));
                for message in say(&query) {
                    let _ = udp.send_to(&message, from).await;
                }
            }
        });
        let log = Arc::clone(&asked);
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let (log, say) = (Arc::clone(&log), Arc::clone(&answer));
                log.lock().unwrap().push("accept".to_owned());
                clients.spawn(async move {
                    while let Ok(message) = read_message(&mut stream).await {
                        let query = Asked::new(&message, true);
                        log.lock().unwrap().push(format!("tcp {} {}", query.name, query.kind));
                        for message in say(&query) {
                            if message.is_empty() || write_message(&mut stream, &message).await.is_err() {
                                return;
                            }
                        }
                    }
                });
            }
        });
        Self { address, asked, _tasks: tasks }
    }

    /// What was asked, in order: `udp name TYPE`, `accept`, `tcp name TYPE`.
    pub(crate) fn log(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, entry: &str) -> usize {
        self.log().iter().filter(|line| *line == entry).count()
    }
}

/// The question for a name.
pub(crate) fn query(name: &str, kind: RecordType) -> Query {
    Query::new(&name.parse_domain(), kind).unwrap()
}

/// Text as a domain, for brevity.
pub(crate) trait ParseDomain {
    fn parse_domain(&self) -> culvert_wire::Domain;
}

impl ParseDomain for str {
    fn parse_domain(&self) -> culvert_wire::Domain {
        culvert_wire::Domain::new(self).unwrap()
    }
}

/// A message built record by record; sections must be filled in order.
#[derive(Clone)]
pub(crate) struct Build(Vec<u8>);

impl Build {
    /// A reply to the query `bytes`: its id and question.
    pub(crate) fn reply_to(bytes: &[u8]) -> Self {
        let (_, end) = read_name(bytes, HEADER).unwrap();
        let mut reply = bytes[..end + 4].to_vec();
        let flags = wire::u16_at(bytes, 2).unwrap() | flag::QR | flag::RA;
        wire::set_u16(&mut reply, 2, flags);
        reply[6..HEADER].fill(0);
        Self(reply)
    }

    pub(crate) fn flags(mut self, set: u16) -> Self {
        let flags = wire::u16_at(&self.0, 2).unwrap() | set;
        wire::set_u16(&mut self.0, 2, flags);
        self
    }

    pub(crate) fn id(mut self, change: impl Fn(u16) -> u16) -> Self {
        let id = change(wire::u16_at(&self.0, 0).unwrap());
        wire::set_u16(&mut self.0, 0, id);
        self
    }

    pub(crate) fn count(mut self, at: usize) -> Self {
        let count = wire::u16_at(&self.0, at).unwrap() + 1;
        wire::set_u16(&mut self.0, at, count);
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// A record in the section whose count stands at `at` (6, 8, 10).
    pub(crate) fn record(self, at: usize, name: &str, kind: u16, ttl: u32, data: &[u8]) -> Self {
        let class: u16 = if kind == kind::OPT { 1232 } else { 1 };
        let record = [
            &labels(name)[..],
            &kind.to_be_bytes(),
            &class.to_be_bytes(),
            &ttl.to_be_bytes(),
            &(data.len() as u16).to_be_bytes(),
            data,
        ];
        self.count(at).bytes(&record.concat())
    }

    /// An address in the answer section.
    pub(crate) fn address(self, name: &str, ttl: u32, ip: &str) -> Self {
        match ip.parse().unwrap() {
            IpAddr::V4(ip) => self.record(6, name, kind::A, ttl, &ip.octets()),
            IpAddr::V6(ip) => self.record(6, name, kind::AAAA, ttl, &ip.octets()),
        }
    }

    /// An alias in the answer section.
    pub(crate) fn alias(self, name: &str, ttl: u32, target: &str) -> Self {
        self.record(6, name, kind::CNAME, ttl, &labels(target))
    }

    /// An SOA in the authority section.
    pub(crate) fn soa(self, zone: &str, ttl: u32, minimum: u32) -> Self {
        let mut data = [labels("ns.test"), labels("admin.test")].concat();
        for number in [1, 3600, 600, 86400, minimum] {
            data.extend(number.to_be_bytes());
        }
        self.record(8, zone, kind::SOA, ttl, &data)
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }

    /// The message as all there is to say.
    pub(crate) fn only(self) -> Vec<Vec<u8>> {
        vec![self.0]
    }
}

/// A name in wire form; empty text is the root.
pub(crate) fn labels(name: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        wire.push(label.len() as u8);
        wire.extend(label.as_bytes());
    }
    wire.push(0);
    assert!(name.is_empty() || text(&wire).is_some());
    wire
}
