//! The message library, behind this one module: records with meaning, made and read.

use std::fmt;
use std::net::IpAddr;

use hickory_proto::op::{Message, MessageType, OpCode, Query as Question, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{Name, RData, Record, RecordType as Kind};

use culvert_wire::Domain;

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
