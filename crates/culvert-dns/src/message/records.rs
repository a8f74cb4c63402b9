//! The message library, behind this one module: records with meaning, made and read.

use std::fmt;
use std::net::IpAddr;

use hickory_proto::op::{Message, MessageType, OpCode, Query as Question, ResponseCode};
use hickory_proto::rr::rdata::svcb::SvcParamKey;
use hickory_proto::rr::rdata::{A, AAAA, HTTPS, PTR};
use hickory_proto::rr::{Name, RData, Record, RecordType as Kind};

use culvert_core::Strategy;
use culvert_wire::Domain;

use super::wire::{self, Section, flag, kind, read_name, u16_at};
use super::{Query, Rcode, RecordType, Reply};

/// Writes a type's name.
pub(super) fn type_name(kind: RecordType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match Kind::from(kind.0) {
        Kind::Unknown(number) => write!(f, "TYPE{number}"),
        known => write!(f, "{known}"),
    }
}

/// Sixteen bits from the library's generator (ChaCha, seeded by the system).
pub(super) fn random() -> u16 {
    Message::query().metadata.id
}

/// A reply of our own that gives these addresses, those of the asked-for family.
#[must_use]
pub fn addresses(query: &Query, addresses: &[IpAddr], ttl: u32) -> Reply {
    let data = addresses.iter().filter_map(|ip| match (ip, query.kind()) {
        (IpAddr::V4(ip), RecordType::A) => Some(RData::A(A(*ip))),
        (IpAddr::V6(ip), RecordType::AAAA) => Some(RData::AAAA(AAAA(*ip))),
        _ => None,
    });
    reply(query, Rcode::NOERROR, data, ttl)
}

/// A reply of our own that gives the names of an address.
#[must_use]
pub fn pointers(query: &Query, names: &[Domain], ttl: u32) -> Reply {
    let names =
        names.iter().filter_map(|name| Name::from_labels(name.as_str().split('.').map(str::as_bytes)).ok());
    reply(query, Rcode::NOERROR, names.map(|name| RData::PTR(PTR(name))), ttl)
}

fn reply(query: &Query, rcode: Rcode, data: impl Iterator<Item = RData>, ttl: u32) -> Reply {
    let name = name(query.wire_name());
    let mut message = Message::new(0, MessageType::Response, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.metadata.recursion_available = true;
    message.metadata.response_code = ResponseCode::from_low((rcode.0 & 0xf) as u8);
    message.add_query(Question::query(name.clone(), Kind::from(query.kind().0)));
    message.add_answers(data.map(|data| Record::from_rdata(name.clone(), ttl, data)));
    let bytes = message.to_vec().ok();
    let parsed = bytes.and_then(|bytes| Reply::parse(&bytes, query, 0).ok());
    parsed.unwrap_or_else(|| Reply::empty(query, Rcode::SERVFAIL))
}

/// The library's form of a name in wire form.
fn name(wire: &[u8]) -> Name {
    let mut labels = Vec::new();
    let mut rest = wire;
    while let [length @ 1..=63, tail @ ..] = rest {
        let (label, behind) = tail.split_at(usize::from(*length).min(tail.len()));
        labels.push(label);
        rest = behind;
    }
    Name::from_labels(labels).unwrap_or_else(|_| Name::root())
}

/// The same answer without the address hints of the family that the strategy leaves out; `None` if it has none.
///
/// HTTPS and SVCB records carry addresses besides their names (RFC 9460 section 7.3), by which a client would walk past
/// the strategy.
#[must_use]
pub fn without_hints(query: &Query, reply: &Reply, strategy: Strategy) -> Option<Reply> {
    let unwanted = match strategy {
        Strategy::Ipv4Only => SvcParamKey::Ipv6Hint,
        Strategy::Ipv6Only => SvcParamKey::Ipv4Hint,
        Strategy::AsIs | Strategy::PreferIpv4 | Strategy::PreferIpv6 => return None,
    };
    let mut message = Message::from_vec(reply.as_bytes()).ok()?;
    let mut changed = false;
    for record in &mut message.answers {
        if let RData::HTTPS(HTTPS(data)) | RData::SVCB(data) = &mut record.data {
            let before = data.svc_params.len();
            data.svc_params.retain(|(key, _)| *key != unwanted);
            changed |= data.svc_params.len() != before;
        }
    }
    if !changed {
        return None;
    }
    let bytes = message.to_vec().ok()?;
    Reply::parse(&bytes, query, 0).ok()
}

/// The `ECHConfigList`s in the HTTPS records of an answer, those of the best records first (RFC 9460 section 2.4.1,
/// RFC 9849 section 3).
#[must_use]
pub fn ech_configs(reply: &Reply) -> Vec<Vec<u8>> {
    let bytes = reply.as_bytes();
    let mut found: Vec<(u16, Vec<u8>)> = Vec::new();
    for (section, record) in reply.walk() {
        if section == Section::Answer
            && record.kind == kind::HTTPS
            && let Ok(priority @ 1..) = u16_at(bytes, record.data.start)
        {
            found.extend(service_parameter(bytes, record.data, ECH).map(|list| (priority, list.to_vec())));
        }
    }
    found.sort_by_key(|(priority, _)| *priority);
    found.into_iter().map(|(_, list)| list).collect()
}

/// The number of the parameter that holds an `ECHConfigList`.
const ECH: u16 = 5;

/// A parameter of an HTTPS record.
fn service_parameter(bytes: &[u8], data: std::ops::Range<usize>, wanted: u16) -> Option<&[u8]> {
    let (_, mut at) = read_name(bytes, data.start + 2).ok()?;
    while at < data.end {
        let (key, length) = (u16_at(bytes, at).ok()?, usize::from(u16_at(bytes, at + 2).ok()?));
        let value = bytes[..data.end].get(at + 4..at + 4 + length)?;
        if key == wanted {
            return Some(value);
        }
        at += 4 + length;
    }
    None
}

/// One record in wire form, its names uncompressed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RawRecord {
    /// Owner name in wire form.
    pub owner: Vec<u8>,
    /// Type.
    pub kind: u16,
    /// Class; 1 is IN.
    pub class: u16,
    /// TTL in seconds.
    pub ttl: u32,
    /// Data in wire form.
    pub data: Vec<u8>,
}

/// What the rule action `predefined` answers: code and records as configured, whatever type was asked for, with AA and
/// RA set.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Predefined {
    /// Response code.
    pub rcode: u16,
    /// Records of the answer, authority and additional sections.
    pub sections: [Vec<RawRecord>; 3],
}

impl Predefined {
    /// The reply to `query`; `None` if the records are not in their types' shape or do not fit into a message.
    #[must_use]
    pub fn reply(&self, query: &Query) -> Option<Reply> {
        let empty = Reply::empty(query, Rcode::NOERROR);
        let mut bytes = empty.as_bytes().to_vec();
        let flags = flag::QR | flag::AA | flag::RD | flag::RA | (self.rcode & flag::RCODE);
        wire::set_u16(&mut bytes, 2, flags);
        for (index, records) in self.sections.iter().enumerate() {
            wire::set_u16(&mut bytes, 6 + 2 * index, u16::try_from(records.len()).ok()?);
            for record in records {
                bytes.extend(&record.owner);
                for word in [record.kind, record.class] {
                    bytes.extend(word.to_be_bytes());
                }
                bytes.extend(record.ttl.to_be_bytes());
                bytes.extend(u16::try_from(record.data.len()).ok()?.to_be_bytes());
                bytes.extend(&record.data);
            }
        }
        (bytes.len() <= usize::from(u16::MAX)).then_some(())?;
        Some(Reply::parse(&bytes, query, 0).ok()?.uncached())
    }
}
