//! Words of the DNS: types of query and response codes, each by name or number.
//!
//! Source: IANA, Domain Name System (DNS) Parameters.

use crate::cx::Cx;
use crate::json::{Node, Value};
use crate::nearest::did_you_mean;
use crate::schema::Schema;
use crate::value::OptionValue;

/// Type of a DNS query or record.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct QueryType(pub u16);

/// Response code of a DNS message.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ResponseCode(pub u16);

const QUERY_TYPES: &[(&str, u16)] = &[
    ("None", 0),
    ("A", 1),
    ("NS", 2),
    ("MD", 3),
    ("MF", 4),
    ("CNAME", 5),
    ("SOA", 6),
    ("MB", 7),
    ("MG", 8),
    ("MR", 9),
    ("NULL", 10),
    ("PTR", 12),
    ("HINFO", 13),
    ("MINFO", 14),
    ("MX", 15),
    ("TXT", 16),
    ("RP", 17),
    ("AFSDB", 18),
    ("X25", 19),
    ("ISDN", 20),
    ("RT", 21),
    ("NSAP-PTR", 23),
    ("SIG", 24),
    ("KEY", 25),
    ("PX", 26),
    ("GPOS", 27),
    ("AAAA", 28),
    ("LOC", 29),
    ("NXT", 30),
    ("EID", 31),
    ("NIMLOC", 32),
    ("SRV", 33),
    ("ATMA", 34),
    ("NAPTR", 35),
    ("KX", 36),
    ("CERT", 37),
    ("DNAME", 39),
    ("OPT", 41),
    ("APL", 42),
    ("DS", 43),
    ("SSHFP", 44),
    ("IPSECKEY", 45),
    ("RRSIG", 46),
    ("NSEC", 47),
    ("DNSKEY", 48),
    ("DHCID", 49),
    ("NSEC3", 50),
    ("NSEC3PARAM", 51),
    ("TLSA", 52),
    ("SMIMEA", 53),
    ("HIP", 55),
    ("NINFO", 56),
    ("RKEY", 57),
    ("TALINK", 58),
    ("CDS", 59),
    ("CDNSKEY", 60),
    ("OPENPGPKEY", 61),
    ("CSYNC", 62),
    ("ZONEMD", 63),
    ("SVCB", 64),
    ("HTTPS", 65),
    ("SPF", 99),
    ("UINFO", 100),
    ("UID", 101),
    ("GID", 102),
    ("UNSPEC", 103),
    ("NID", 104),
    ("L32", 105),
    ("L64", 106),
    ("LP", 107),
    ("EUI48", 108),
    ("EUI64", 109),
    ("NXNAME", 128),
    ("TKEY", 249),
    ("TSIG", 250),
    ("IXFR", 251),
    ("AXFR", 252),
    ("MAILB", 253),
    ("MAILA", 254),
    ("ANY", 255),
    ("URI", 256),
    ("CAA", 257),
    ("AVC", 258),
    ("AMTRELAY", 260),
    ("RESINFO", 261),
    ("TA", 32768),
    ("DLV", 32769),
    ("Reserved", 65535),
];

const RESPONSE_CODES: &[(&str, u16)] = &[
    ("NOERROR", 0),
    ("FORMERR", 1),
    ("SERVFAIL", 2),
    ("NXDOMAIN", 3),
    ("NOTIMP", 4),
    ("NOTIMPL", 4),
    ("REFUSED", 5),
    ("YXDOMAIN", 6),
    ("YXRRSET", 7),
    ("NXRRSET", 8),
    ("NOTAUTH", 9),
    ("NOTZONE", 10),
    ("DSOTYPENI", 11),
    ("BADSIG", 16),
    ("BADKEY", 17),
    ("BADTIME", 18),
    ("BADMODE", 19),
    ("BADNAME", 20),
    ("BADALG", 21),
    ("BADTRUNC", 22),
    ("BADCOOKIE", 23),
];

const CLASSES: &[(&str, u16)] = &[("IN", 1), ("CS", 2), ("CH", 3), ("HS", 4), ("NONE", 254), ("ANY", 255)];

/// The number of a record type, also in the form `TYPE65280`.
pub(super) fn query_type_number(name: &str) -> Option<u16> {
    number_of(QUERY_TYPES, name).or_else(|| name.strip_prefix("TYPE")?.parse().ok())
}

/// The number of a record class, also in the form `CLASS1`. `ANY` is a type far more often, so it is none here.
pub(super) fn class_number(name: &str) -> Option<u16> {
    number_of(CLASSES, name).filter(|_| name != "ANY").or_else(|| name.strip_prefix("CLASS")?.parse().ok())
}

/// The name of a record class.
pub(super) fn class_name(number: u16) -> String {
    name_of(CLASSES, number).map_or_else(|| format!("CLASS{number}"), str::to_owned)
}

fn number_of(names: &[(&str, u16)], name: &str) -> Option<u16> {
    names.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

fn name_of(names: &[(&'static str, u16)], number: u16) -> Option<&'static str> {
    names.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

macro_rules! named_numbers {
    ($name:ident, $names:ident, $noun:literal) => {
        impl $name {
            /// The name of the number, if it has one.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                name_of($names, self.0)
            }
        }

        impl OptionValue for $name {
            fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
                match &node.value {
                    Value::String(text) => match number_of($names, text) {
                        Some(number) => self.0 = number,
                        None => {
                            let hint = did_you_mean(text, $names.iter().map(|(name, _)| *name));
                            cx.error(node.place, format!(concat!("unknown ", $noun, " `{}`{}"), text, hint));
                        }
                    },
                    Value::Number(_) => self.0.decode(node, cx),
                    _ => cx.expected(concat!("the name or number of a ", $noun), node),
                }
            }

            fn encode(&self) -> Node {
                self.name().map_or_else(|| Node::number(self.0), Node::string)
            }

            fn is_zero(&self) -> bool {
                false
            }

            fn schema(&self, schema: &mut Schema) -> Node {
                schema.shared(stringify!($name), || {
                    let names = Schema::one_of_words($names.iter().map(|(name, _)| *name));
                    Schema::any_of([Schema::integer(0, u16::MAX), names])
                })
            }
        }
    };
}

named_numbers!(QueryType, QUERY_TYPES, "DNS query type");
named_numbers!(ResponseCode, RESPONSE_CODES, "DNS response code");
