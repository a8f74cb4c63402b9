//! The object that other programs call: `org.freedesktop.resolve1.Manager`.
//!
//! ```text
//! SetLinkDNS (i ifindex, a(iay) family and address)            SetLinkDNSEx (i, a(iayqs) and port and name)
//! SetLinkDomains (i, a(sb) name and whether it routes only)    SetLinkDefaultRoute (i, b)    SetLinkDNSOverTLS (i, s)
//! RevertLink (i)    FlushCaches ()                             others of the kind: taken, without effect
//! ResolveHostname (i, s name, i family, t) -> a(iiay) ifindex, family, address; s name in the end; t flags
//! ResolveAddress (i, i family, ay, t) -> a(is) ifindex, name; t
//! ResolveRecord (i, s, q class, q type, t) -> a(iqqay) ifindex, class, type, record in wire form; t
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use culvert_core::{Network, Session, SessionId, Tag};
use culvert_wire::Domain;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::links::{Link, Links, SearchDomain, Server};
use crate::DnsError;
use crate::bus::Bus;
use crate::bus::message::{Kind, Message, Value};
use crate::message::wire::{Section, kind, read_name};
use crate::message::{Answer, Query, Rcode, RecordType, text};
use crate::router::DnsRouter;

/// The name on the bus.
pub const NAME: &str = "org.freedesktop.resolve1";
const PATH: &str = "/org/freedesktop/resolve1";
const INTERFACE: &str = "org.freedesktop.resolve1.Manager";
/// Answers of whatever came over the network, by DNS.
const FLAGS: u64 = 1;
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;
/// Most look-ups under way.
const MOST_UNDER_WAY: usize = 256;

/// Settings of links that are taken and have no effect.
const WITHOUT_EFFECT: [&str; 5] = [
    "SetLinkLLMNR",
    "SetLinkMulticastDNS",
    "SetLinkDNSSEC",
    "SetLinkDNSSECNegativeTrustAnchors",
    "ResetStatistics",
];

/// An error to answer a call with: its name and what it says.
type Fault = (&'static str, String);

const INVALID: &str = "org.freedesktop.DBus.Error.InvalidArgs";
const UNKNOWN_METHOD: &str = "org.freedesktop.DBus.Error.UnknownMethod";
const NO_SUCH_RECORD: &str = "org.freedesktop.resolve1.NoSuchRR";
const NO_NAME_SERVERS: &str = "org.freedesktop.resolve1.NoNameServers";
const NXDOMAIN: &str = "org.freedesktop.resolve1.DnsError.NXDOMAIN";
const SERVFAIL: &str = "org.freedesktop.resolve1.DnsError.SERVFAIL";

/// Serves the object on a bus.
pub struct Manager {
    tag: Tag,
    links: Arc<Links>,
    dns: Arc<DnsRouter>,
}

impl Manager {
    /// Writes what it is told into `links`, and looks names up by `dns`, on behalf of `tag`.
    #[must_use]
    pub fn new(tag: Tag, links: Arc<Links>, dns: Arc<DnsRouter>) -> Self {
        Self { tag, links, dns }
    }

    /// Serves calls until the bus goes away.
    ///
    /// # Errors
    /// Those of the bus.
    pub async fn serve(self: Arc<Self>, mut bus: Bus) -> io::Result<()> {
        let (answers, mut answered) = mpsc::unbounded_channel(); // at most as many as are under way
        let mut under_way = JoinSet::new();
        loop {
            let call = tokio::select! {
                Some(answer) = answered.recv() => {
                    bus.send(answer).await?;
                    continue;
                }
                message = bus.next() => message?,
            };
            if call.kind != Kind::Call {
                continue;
            }
            while under_way.try_join_next().is_some() {}
            if under_way.len() >= MOST_UNDER_WAY {
                let busy = Err(("org.freedesktop.DBus.Error.LimitsExceeded", "too many calls".to_owned()));
                bus.send(answer(&call, busy)).await?;
                continue;
            }
            let (this, answers) = (Arc::clone(&self), answers.clone());
            // Changes take effect in their order.
            if let Some(done) = this.change(&call) {
                if !call.no_reply {
                    bus.send(answer(&call, done.map(|()| Vec::new()))).await?;
                }
                continue;
            }
            under_way.spawn(async move {
                let result = this.ask(&call).await;
                if !call.no_reply {
                    let _ = answers.send(answer(&call, result));
                }
            });
        }
    }

    /// Does what a call wants to have changed. `None`: it asks something.
    fn change(&self, call: &Message) -> Option<Result<(), Fault>> {
        if call.path != PATH || (call.interface != INTERFACE && !call.interface.is_empty()) {
            return None;
        }
        let method = call.member.as_str();
        if method == "FlushCaches" {
            self.dns.clear_caches();
            return Some(Ok(()));
        }
        if method == "ResetServerFeatures" || WITHOUT_EFFECT.contains(&method) {
            return Some(Ok(()));
        }
        let link = || call.body.first().and_then(Value::as_int).and_then(|index| i32::try_from(index).ok());
        let change =
            |change: Box<dyn FnOnce(&mut Link)>| link().map(|index| self.links.change(index, change));
        let argument = call.body.get(1);
        let done = match method {
            "RevertLink" => link().map(|index| self.links.forget(index)),
            "SetLinkDNS" | "SetLinkDNSEx" => argument
                .and_then(Value::items)
                .and_then(|items| items.iter().map(server).collect::<Option<Vec<_>>>())
                .and_then(|servers| change(Box::new(|link| link.servers = servers))),
            "SetLinkDomains" => argument
                .and_then(Value::items)
                .and_then(|items| items.iter().map(search_domain).collect::<Option<Vec<_>>>())
                .and_then(|domains| change(Box::new(|link| link.domains = domains))),
            "SetLinkDefaultRoute" => match argument {
                Some(Value::Bool(set)) => {
                    let set = *set;
                    change(Box::new(move |link| link.default_route = Some(set)))
                }
                _ => None,
            },
            // "opportunistic" is as good as nothing: without it a link may be asked in the open.
            "SetLinkDNSOverTLS" => argument.and_then(Value::as_text).and_then(|mode| {
                let tls = mode == "yes";
                change(Box::new(move |link| link.tls = tls))
            }),
            _ => return None,
        };
        Some(done.ok_or_else(|| (INVALID, format!("arguments of {method}"))))
    }

    async fn ask(&self, call: &Message) -> Result<Vec<Value>, Fault> {
        if call.interface == "org.freedesktop.DBus.Peer" && call.member == "Ping" {
            return Ok(Vec::new());
        }
        let arguments = &call.body;
        let invalid = || (INVALID, format!("arguments of {}", call.member));
        let number = |at: usize| arguments.get(at).and_then(Value::as_int).ok_or_else(invalid);
        match call.member.as_str() {
            "ResolveHostname" => {
                let name = arguments.get(1).and_then(Value::as_text).ok_or_else(invalid)?;
                self.host_name(name, number(2)?).await
            }
            "ResolveAddress" => {
                let address = arguments.get(2).and_then(Value::as_bytes).and_then(|bytes| address(&bytes));
                self.address(address.ok_or_else(invalid)?).await
            }
            "ResolveRecord" => {
                let name = arguments.get(1).and_then(Value::as_text).ok_or_else(invalid)?;
                let kind = u16::try_from(number(3)?).map_err(|_| invalid())?;
                self.record(name, RecordType(kind)).await
            }
            other => Err((UNKNOWN_METHOD, format!("{other} is not known"))),
        }
    }

    async fn host_name(&self, name: &str, family: i64) -> Result<Vec<Value>, Fault> {
        if let Ok(ip) = name.parse::<IpAddr>() {
            let addresses = Value::Array("(iiay)".to_owned(), vec![shown(ip)]);
            return Ok(vec![addresses, Value::text(name), Value::U64(FLAGS)]);
        }
        let (wants_v4, wants_v6) =
            (family == 0 || family == i64::from(AF_INET), family == 0 || family == i64::from(AF_INET6));
        let ask = async |wanted: bool, kind| match wanted {
            true => Some(self.query(name, kind).await),
            false => None,
        };
        let (v6, v4) = tokio::join!(ask(wants_v6, RecordType::AAAA), ask(wants_v4, RecordType::A));
        let (mut addresses, mut end, mut fault) = (Vec::new(), None, None);
        for answer in [v6, v4].into_iter().flatten() {
            match answer {
                Ok(answer) => {
                    addresses.extend(answer.reply.addresses().map(shown));
                    let alias = answer.reply.alias_end().and_then(|end| text(end.as_bytes()));
                    end = end.or(alias.map(|name| name.to_string()));
                }
                Err(error) => fault = Some(error),
            }
        }
        if addresses.is_empty() {
            return Err(fault.unwrap_or_else(|| (NO_SUCH_RECORD, format!("{name} has no such address"))));
        }
        let end = end.unwrap_or_else(|| name.trim_end_matches('.').to_ascii_lowercase());
        let addresses = Value::Array("(iiay)".to_owned(), addresses);
        Ok(vec![addresses, Value::Text(end), Value::U64(FLAGS)])
    }

    async fn address(&self, ip: IpAddr) -> Result<Vec<Value>, Fault> {
        let answer = self.query(&reverse_name(ip), RecordType::PTR).await?;
        let bytes = answer.reply.as_bytes();
        let pointers = answer
            .reply
            .walk()
            .filter(|(section, record)| *section == Section::Answer && record.kind == kind::PTR);
        let names = pointers.filter_map(|(_, record)| {
            let (name, _) = read_name(bytes, record.data.start).ok()?;
            Some(Value::Struct(vec![Value::I32(0), Value::Text(text(name.as_bytes())?.to_string())]))
        });
        let names: Vec<_> = names.collect();
        if names.is_empty() {
            return Err((NO_SUCH_RECORD, format!("{ip} has no name")));
        }
        Ok(vec![Value::Array("(is)".to_owned(), names), Value::U64(FLAGS)])
    }

    async fn record(&self, name: &str, kind: RecordType) -> Result<Vec<Value>, Fault> {
        let answer = self.query(name, kind).await?;
        let records = answer.reply.walk().filter(|(section, record)| {
            *section == Section::Answer && (record.kind == kind.0 || kind == RecordType::ANY)
        });
        let records = records.filter_map(|(_, record)| {
            let raw = answer.reply.record(&record)?;
            let (class, kind) = (Value::U16(record.class), Value::U16(record.kind));
            Some(Value::Struct(vec![Value::I32(0), class, kind, Value::bytes(&raw)]))
        });
        let records: Vec<_> = records.collect();
        if records.is_empty() {
            return Err((NO_SUCH_RECORD, format!("{name} has no record of type {kind}")));
        }
        Ok(vec![Value::Array("(iqqay)".to_owned(), records), Value::U64(FLAGS)])
    }

    /// Asks by the rules. An answer that says there is nothing is an error here.
    async fn query(&self, name: &str, kind: RecordType) -> Result<Answer, Fault> {
        let invalid = || (INVALID, format!("{name:?} is no name"));
        let domain = Domain::new(name).map_err(|_| invalid())?;
        let query = Query::new(&domain, kind).map_err(|_| invalid())?;
        let answer = self.dns.answer(&query, &self.session()).await.map_err(|error| match error {
            DnsError::NoServer => (NO_NAME_SERVERS, error.to_string()),
            other => (SERVFAIL, other.to_string()),
        })?;
        match answer.reply.rcode() {
            Rcode::NOERROR => Ok(answer),
            Rcode::NXDOMAIN => Err((NXDOMAIN, format!("{name} does not exist"))),
            rcode => Err((SERVFAIL, format!("{name}: {rcode}"))),
        }
    }

    /// The caller is somebody on this machine.
    fn session(&self) -> Session {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Session {
            id: SessionId::next(),
            network: Network::Udp,
            inbound: self.tag.clone(),
            user: None,
            source: here,
            target: here.into(),
            sniffed: None,
            alpn: None,
        }
    }
}

fn answer(call: &Message, result: Result<Vec<Value>, Fault>) -> Message {
    let base = Message { reply_to: call.serial, destination: call.sender.clone(), ..Message::default() };
    match result {
        Ok(body) => Message { kind: Kind::Return, body, ..base },
        Err((error, text)) => {
            Message { kind: Kind::Error, error: error.to_owned(), body: vec![Value::Text(text)], ..base }
        }
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(octets).into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into())
}

/// `(iiay)`: no link in particular, the family, the bytes.
fn shown(ip: IpAddr) -> Value {
    let (family, bytes) = match ip {
        IpAddr::V4(ip) => (AF_INET, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AF_INET6, ip.octets().to_vec()),
    };
    Value::Struct(vec![Value::I32(0), Value::I32(family), Value::bytes(&bytes)])
}

/// `(iay)` or `(iayqs)`.
fn server(value: &Value) -> Option<Server> {
    let [_, bytes, more @ ..] = value.items()? else { return None };
    let (port, name) = match more {
        [port, name] => (u16::try_from(port.as_int()?).ok()?, name.as_text()?.to_owned()),
        [] => (0, String::new()),
        _ => return None,
    };
    Some(Server { ip: address(&bytes.as_bytes()?)?, port, name })
}

/// `(sb)`.
fn search_domain(value: &Value) -> Option<SearchDomain> {
    let [name, Value::Bool(routing_only)] = value.items()? else { return None };
    let name = name.as_text()?.trim_matches('.').to_ascii_lowercase();
    Some(SearchDomain { name, routing_only: *routing_only })
}

fn reverse_name(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(ip) => {
            let digits =
                ip.octets().into_iter().rev().map(|byte| format!("{:x}.{:x}.", byte & 15, byte >> 4));
            format!("{}ip6.arpa", digits.collect::<String>())
        }
    }
}
