//! DNS messages: the [`Query`] that servers are asked, the [`Reply`] that comes back, and the [`Request`] of a client
//! that both stand between.
//!
//! ```text
//! client ── Request ─▶ Query ─▶ server          Request = id, spelling, flags, EDNS + Query
//! client ◀─ bytes ◀── Answer = Reply + TTLs ◀── server
//! ```
//!
//! A reply is checked once, when it arrives, and kept as the bytes it came in, without EDNS, which belongs to one hop.
//! Answering a client copies these bytes and patches id, flags, the question's spelling and the TTLs in the copy; so
//! every record type passes through, known or not. What needs the records' meaning (addresses excepted, which are
//! read in place) goes through the message library, which [`records`] wraps.
//!
//! Sources: RFC 1035, RFC 2181 (TTL), RFC 2308 (negative answers), RFC 6891 (EDNS).

pub mod edns;
pub mod records;
pub mod wire;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use culvert_wire::Domain;

use edns::{Edns, PAYLOAD, PLAIN_PAYLOAD, Subnet};
use wire::{HEADER, Malformed, NameBuf, Section, Walk, check_record, flag, kind, read_name};

/// Longest time, in seconds, that anything is cached, whatever its TTL says.
const LONGEST_LIFE: u32 = 7 * 24 * 3600;
/// How many aliases of one reply are looked at; the search among them is quadratic.
const MOST_LINKS: usize = 128;
/// The only class in use.
const CLASS_IN: u16 = 1;

/// A record type.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RecordType(pub u16);

impl RecordType {
    /// IPv4 address.
    pub const A: Self = Self(kind::A);
    /// IPv6 address.
    pub const AAAA: Self = Self(kind::AAAA);
    /// Alias.
    pub const CNAME: Self = Self(kind::CNAME);
    /// Name of an address.
    pub const PTR: Self = Self(kind::PTR);
    /// Text.
    pub const TXT: Self = Self(kind::TXT);
    /// Service binding of HTTPS.
    pub const HTTPS: Self = Self(kind::HTTPS);
    /// Any type.
    pub const ANY: Self = Self(kind::ANY);
}

/// `AAAA`, or `TYPE1234` where the type has no name.
impl fmt::Display for RecordType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        records::type_name(*self, f)
    }
}

/// A response code, with the bits that EDNS adds.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Rcode(pub u16);

impl Rcode {
    /// No error.
    pub const NOERROR: Self = Self(0);
    /// The server could not read the query.
    pub const FORMERR: Self = Self(1);
    /// The server failed.
    pub const SERVFAIL: Self = Self(2);
    /// There is no such name.
    pub const NXDOMAIN: Self = Self(3);
    /// The server does not do what was asked.
    pub const NOTIMP: Self = Self(4);
    /// The server does not want to.
    pub const REFUSED: Self = Self(5);
    /// The EDNS version is not known.
    pub const BADVERS: Self = Self(16);
}

/// `NXDOMAIN`, or the number where the code has no name here.
impl fmt::Display for Rcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NOERROR => "NOERROR",
            Self::FORMERR => "FORMERR",
            Self::SERVFAIL => "SERVFAIL",
            Self::NXDOMAIN => "NXDOMAIN",
            Self::NOTIMP => "NOTIMP",
            Self::REFUSED => "REFUSED",
            Self::BADVERS => "BADVERS",
            Self(other) => return write!(f, "response code {other}"),
        })
    }
}

/// A fresh id that nobody outside can guess.
#[must_use]
pub fn random_id() -> u16 {
    records::random()
}

/// What servers are asked: one question and all that changes its answer.
///
/// ```text
/// key   | name, small letters, uncompressed | type 2 | class 2 | DO and CD 1 | subnet, if any |
/// ```
///
/// Equal keys have equal answers: caches and de-duplication compare nothing else. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Query {
    key: Arc<[u8]>,
    name_len: u8,
    edns: bool,
}

const KEY_DNSSEC_OK: u8 = 1;
const KEY_CHECKING_DISABLED: u8 = 2;

impl Query {
    /// Asks for the records of one type that `name` has.
    ///
    /// # Errors
    /// The name has an empty label or one of more than 63 bytes, so that no question can be made of it.
    pub fn new(name: &Domain, kind: RecordType) -> Result<Self, Malformed> {
        let mut wire = NameBuf::default();
        for label in name.as_str().split('.') {
            wire.push_label(label.as_bytes())?;
        }
        wire.finish()?;
        Ok(Self::from_parts(&wire, kind.0, CLASS_IN, 0, None, false))
    }

    fn from_parts(
        name: &NameBuf,
        kind: u16,
        class: u16,
        flags: u8,
        subnet: Option<Subnet>,
        edns: bool,
    ) -> Self {
        let name = name.as_bytes();
        let mut key = Vec::with_capacity(name.len() + 5);
        key.extend(name);
        key.extend(kind.to_be_bytes());
        key.extend(class.to_be_bytes());
        key.push(flags);
        if let Some(subnet) = subnet {
            subnet.encode(&mut key);
        }
        Self { key: key.into(), name_len: name.len() as u8, edns }
    }

    /// The question of this [key](Self::key), which may come from a file.
    pub(crate) fn from_key(key: &[u8]) -> Option<Self> {
        let mut name_len = 0;
        loop {
            match *key.get(name_len)? {
                0 => break,
                length @ 1..=63 => name_len += 1 + usize::from(length),
                64.. => return None,
            }
        }
        name_len += 1;
        let subnet = key.get(name_len + 5..)?;
        if !subnet.is_empty() {
            Subnet::decode(subnet).ok()?;
        }
        Some(Self { key: key.into(), name_len: u8::try_from(name_len).ok()?, edns: false })
    }

    /// The same question with the subnet replaced, or taken out.
    #[must_use]
    pub fn with_subnet(&self, subnet: Option<Subnet>) -> Self {
        let fixed = self.tail_at() + 5;
        let mut key = self.key[..fixed].to_vec();
        if let Some(subnet) = subnet {
            subnet.encode(&mut key);
        }
        Self { key: key.into(), ..*self }
    }

    /// The same question, to be sent with EDNS.
    #[must_use]
    pub fn with_edns(self) -> Self {
        Self { edns: true, ..self }
    }

    /// What tells this question from others.
    #[must_use]
    pub fn key(&self) -> &Arc<[u8]> {
        &self.key
    }

    /// The type of the records asked for.
    #[must_use]
    pub fn kind(&self) -> RecordType {
        let at = self.tail_at();
        RecordType(u16::from_be_bytes([self.key[at], self.key[at + 1]]))
    }

    /// Whether the class is IN.
    #[must_use]
    pub fn is_internet(&self) -> bool {
        let at = self.tail_at() + 2;
        self.key[at..at + 2] == CLASS_IN.to_be_bytes()
    }

    /// Whether signatures are asked for.
    #[must_use]
    pub fn dnssec_ok(&self) -> bool {
        self.key[self.tail_at() + 4] & KEY_DNSSEC_OK != 0
    }

    /// The client subnet that goes with the question.
    #[must_use]
    pub fn subnet(&self) -> Option<Subnet> {
        // Written by `encode`, so it decodes; an empty tail is the absence.
        Subnet::decode(&self.key[self.tail_at() + 5..]).ok()
    }

    /// The name as text; `None` for the root and for names that text cannot hold without ambiguity (a dot or a
    /// control byte within a label, no UTF-8).
    #[must_use]
    pub fn domain(&self) -> Option<Domain> {
        text(self.wire_name())
    }

    /// The name in wire form, small letters.
    #[must_use]
    pub fn wire_name(&self) -> &[u8] {
        &self.key[..self.name_len.into()]
    }

    /// The message that asks it, with recursion desired.
    #[must_use]
    pub fn encode(&self, id: u16) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.key.len() + 24);
        self.encode_into(id, &mut out);
        out
    }

    /// Writes the message that asks it at the end of `out`.
    pub fn encode_into(&self, id: u16, out: &mut Vec<u8>) {
        let at = self.tail_at();
        let key_flags = self.key[at + 4];
        let checking = if key_flags & KEY_CHECKING_DISABLED != 0 { flag::CD } else { 0 };
        let subnet = self.subnet();
        let edns = self.edns || self.dnssec_ok() || subnet.is_some();
        for word in [id, flag::RD | checking, 1, 0, 0, edns.into()] {
            out.extend(word.to_be_bytes());
        }
        out.extend(&self.key[..at + 4]);
        if edns {
            let dnssec_ok = self.dnssec_ok();
            Edns { payload: PAYLOAD, code_high: 0, version: 0, dnssec_ok, subnet }.write(out);
        }
    }

    /// Where the type stands in the key.
    fn tail_at(&self) -> usize {
        self.name_len.into()
    }
}

/// `example.com AAAA`, for logs.
impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.domain() {
            Some(name) => write!(f, "{name} {}", self.kind()),
            None => write!(f, "{} {}", self.wire_name().escape_ascii(), self.kind()),
        }
    }
}

/// The text of a name in wire form without compression, where text can hold it.
pub(crate) fn text(wire_name: &[u8]) -> Option<Domain> {
    let mut text = String::with_capacity(wire_name.len());
    let mut rest = wire_name;
    while let [length @ 1..=63, tail @ ..] = rest {
        let (label, behind) = tail.split_at_checked(usize::from(*length))?;
        let label = std::str::from_utf8(label).ok()?;
        if label.contains('.') {
            return None;
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(label);
        rest = behind;
    }
    Domain::new(&text).ok()
}

/// Why a message is not the reply that is waited for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoReply {
    /// It answers something else, or was not sent by whom we asked: to be ignored.
    Foreign,
    /// It is meant for us and broken.
    Malformed(Malformed),
}

impl From<Malformed> for NoReply {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// A checked reply to one query, without EDNS, with id 0.
#[derive(Clone, Debug)]
pub struct Reply {
    bytes: Box<[u8]>,
    question_end: u16,
    rcode: Rcode,
    lifetime: u32,
}

impl Reply {
    /// Checks the message `bytes` as the reply to `query`, which was sent with `id`.
    ///
    /// Every record is looked at: names can be read, pointers lead backwards, and data with names in it has its shape.
    /// A truncated reply keeps no records: it is good for nothing but asking again over a stream.
    ///
    /// # Errors
    /// See [`NoReply`].
    pub fn parse(bytes: &[u8], query: &Query, id: u16) -> Result<Self, NoReply> {
        let [first, flags, questions] = [0, 2, 4].map(|at| wire::u16_at(bytes, at));
        let (first, flags, questions) = (first?, flags?, questions?);
        if bytes.len() < HEADER {
            return Err(Malformed("ends too early").into());
        }
        if first != id || flags & flag::QR == 0 || flags & flag::OPCODE != 0 {
            return Err(NoReply::Foreign);
        }
        if questions == 0 && flags & flag::RCODE != 0 {
            // Some servers leave the question out when they could not read it.
            return Ok(Self::empty(query, Rcode(flags & flag::RCODE)));
        }
        if questions != 1 {
            return Err(Malformed("not exactly one question").into());
        }
        let question_end = check_question(bytes, query)?;
        let mut reply = bytes.to_vec();
        wire::set_u16(&mut reply, 0, 0);
        if flags & flag::TC != 0 {
            reply.truncate(question_end);
            reply[6..HEADER].fill(0);
            let rcode = Rcode(flags & flag::RCODE);
            return Ok(Self { bytes: reply.into(), question_end: question_end as u16, rcode, lifetime: 0 });
        }
        let survey = Survey::of(bytes, question_end, query.kind())?;
        reply.truncate(survey.end);
        wire::set_u16(&mut reply, 10, survey.additional);
        if let Some((ttl_at, ttl)) = survey.soa_ttl {
            wire::set_u32(&mut reply, ttl_at, ttl);
        }
        let rcode = Rcode(flags & flag::RCODE | u16::from(survey.code_high) << 4);
        let lifetime = survey.lifetime(rcode);
        Ok(Self { bytes: reply.into(), question_end: question_end as u16, rcode, lifetime })
    }

    /// A reply of our own without records.
    #[must_use]
    pub fn empty(query: &Query, rcode: Rcode) -> Self {
        let mut bytes = Vec::with_capacity(HEADER + query.wire_name().len() + 4);
        for word in [0, flag::QR | flag::RD | flag::RA | (rcode.0 & flag::RCODE), 1, 0, 0, 0] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(&query.key[..query.tail_at() + 4]);
        let question_end = bytes.len() as u16; // header, name and four bytes: below 300
        Self { bytes: bytes.into(), question_end, rcode, lifetime: 0 }
    }

    /// What the rule action `reject` answers: REFUSED, and no recursion available.
    #[must_use]
    pub fn refused(query: &Query) -> Self {
        let mut reply = Self::empty(query, Rcode::REFUSED);
        let flags = reply.flags() & !flag::RA;
        wire::set_u16(&mut reply.bytes, 2, flags);
        reply
    }

    /// The same reply, never to be kept.
    #[must_use]
    pub fn uncached(self) -> Self {
        Self { lifetime: 0, ..self }
    }

    /// The response code.
    #[must_use]
    pub fn rcode(&self) -> Rcode {
        self.rcode
    }

    /// Whether the records did not fit and must be asked for over a stream.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.flags() & flag::TC != 0
    }

    /// How many seconds it may be kept; 0 is not at all.
    ///
    /// The smallest TTL of its records, OPT excepted; a negative answer's is also bounded by the SOA's minimum and is 0
    /// without one (RFC 2308 section 5).
    #[must_use]
    pub fn lifetime(&self) -> u32 {
        self.lifetime
    }

    /// Its records in order.
    pub fn walk(&self) -> impl Iterator<Item = (Section, wire::RecordAt)> {
        // Checked when the reply was made: the header and all records are there.
        Walk::new(&self.bytes, self.question_end.into()).into_iter().flatten()
    }

    /// The addresses in its answer section, whatever name of the alias chain owns them.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.walk().take_while(|(section, _)| *section == Section::Answer).filter_map(|(_, record)| {
            let data = &self.bytes[record.data];
            match record.kind {
                kind::A => <[u8; 4]>::try_from(data).ok().map(|octets| Ipv4Addr::from(octets).into()),
                kind::AAAA => <[u8; 16]>::try_from(data).ok().map(|octets| Ipv6Addr::from(octets).into()),
                _ => None,
            }
        })
    }

    /// Where the alias chain that begins at the question's name ends, if there is one: a name in wire form.
    ///
    /// A chain that comes back to itself ends where it would; one of more than [`MOST_LINKS`] is followed so far.
    #[must_use]
    pub fn alias_end(&self) -> Option<NameBuf> {
        let mut links = Vec::new();
        for (section, record) in self.walk() {
            if section == Section::Answer && record.kind == kind::CNAME && links.len() < MOST_LINKS {
                let (Ok((from, _)), Ok((to, _))) =
                    (self.name_at(record.start), self.name_at(record.data.start))
                else {
                    continue;
                };
                links.push((from, to));
            }
        }
        let (mut end, _) = self.name_at(HEADER).ok()?;
        let steps = links.len();
        let mut moved = false;
        for _ in 0..steps {
            let Some((_, to)) = links.iter().find(|(from, _)| from.as_bytes() == end.as_bytes()) else {
                break;
            };
            end = to.clone();
            moved = true;
        }
        moved.then_some(end)
    }

    /// One of its records, in wire form, with its names written out.
    #[must_use]
    pub fn record(&self, record: &wire::RecordAt) -> Option<Vec<u8>> {
        let (owner, _) = self.name_at(record.start).ok()?;
        let data = wire::uncompressed(&self.bytes, record.kind, record.data.clone());
        let mut out = owner.as_bytes().to_vec();
        out.extend(record.kind.to_be_bytes());
        out.extend(record.class.to_be_bytes());
        out.extend(record.ttl.to_be_bytes());
        out.extend(u16::try_from(data.len()).ok()?.to_be_bytes());
        out.extend(data);
        Some(out)
    }

    /// The message, with id 0.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Sets the TTL of every record.
    pub fn rewrite_ttl(&mut self, ttl: u32) {
        let places: Vec<_> = self.walk().map(|(_, record)| record.ttl_at).collect();
        for place in &places {
            wire::set_u32(&mut self.bytes, *place, ttl);
        }
        if self.lifetime > 0 {
            self.lifetime = usable(ttl);
        }
    }

    /// The name at `at`, small letters.
    fn name_at(&self, at: usize) -> Result<(NameBuf, usize), Malformed> {
        let (mut name, end) = read_name(&self.bytes, at)?;
        name.make_lowercase();
        Ok((name, end))
    }

    fn flags(&self) -> u16 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]])
    }
}

/// The end of the question section, if it holds the query's question.
fn check_question(bytes: &[u8], query: &Query) -> Result<usize, NoReply> {
    let (mut name, end) = read_name(bytes, HEADER)?;
    name.make_lowercase();
    let rest = bytes.get(end..end + 4).ok_or(Malformed("ends too early"))?;
    let at = query.tail_at();
    if name.as_bytes() != query.wire_name() || *rest != query.key[at..at + 4] {
        return Err(NoReply::Foreign);
    }
    // The question must be spelled out, or patching its spelling would be writing over something else.
    if end != HEADER + name.as_bytes().len() {
        return Err(Malformed("compressed question").into());
    }
    Ok(end + 4)
}

/// What one look at all records tells.
struct Survey {
    /// Where the records end, EDNS left out.
    end: usize,
    /// How many additional records are left.
    additional: u16,
    /// Upper bits of the response code.
    code_high: u8,
    /// Smallest TTL.
    shortest: Option<u32>,
    /// A record of the wanted type was there.
    positive: bool,
    /// Place and bounded TTL of the SOA in the authority section.
    soa_ttl: Option<(usize, u32)>,
}

impl Survey {
    fn of(bytes: &[u8], question_end: usize, wanted: RecordType) -> Result<Self, Malformed> {
        let mut seen = Self {
            end: question_end,
            additional: 0,
            code_high: 0,
            shortest: None,
            positive: false,
            soa_ttl: None,
        };
        let mut opt = false;
        let mut walk = Walk::new(bytes, question_end)?;
        while let Some((section, record)) = walk.step()? {
            if record.kind == kind::OPT {
                if opt || section != Section::Additional {
                    return Err(Malformed("misplaced OPT record"));
                }
                opt = true;
                seen.code_high = Edns::read(record.class, record.ttl, &bytes[record.data])?.code_high;
                continue;
            }
            check_record(bytes, &record)?;
            if opt {
                // What stands behind OPT may be pointed at only from there, so it goes with it.
                continue;
            }
            seen.end = record.data.end;
            let mut ttl = usable(record.ttl);
            match section {
                Section::Answer => {
                    seen.positive |= record.kind == wanted.0 || wanted == RecordType::ANY;
                }
                Section::Authority if record.kind == kind::SOA => {
                    let minimum = wire::u32_at(bytes, record.data.end - 4)?;
                    ttl = ttl.min(usable(minimum));
                    seen.soa_ttl = Some((record.ttl_at, ttl));
                }
                Section::Authority => {}
                Section::Additional => seen.additional += 1,
            }
            seen.shortest = Some(seen.shortest.map_or(ttl, |shortest| shortest.min(ttl)));
        }
        // Only a negative answer's SOA speaks of the answer.
        if seen.positive {
            seen.soa_ttl = None;
        }
        Ok(seen)
    }

    fn lifetime(&self, rcode: Rcode) -> u32 {
        let sound = match rcode {
            Rcode::NOERROR => self.positive || self.soa_ttl.is_some(),
            Rcode::NXDOMAIN => self.soa_ttl.is_some(),
            _ => false,
        };
        if sound { self.shortest.unwrap_or(0) } else { 0 }
    }
}

/// A TTL as a time: values with the top bit set count as zero (RFC 2181 section 8), long ones are cut.
fn usable(ttl: u32) -> u32 {
    if ttl > i32::MAX as u32 { 0 } else { ttl.min(LONGEST_LIFE) }
}

/// How the TTLs of a kept reply are shown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ttl {
    /// As they came.
    Fresh,
    /// This many seconds less, at least zero.
    Aged(u32),
    /// All the same.
    Fixed(u32),
}

impl Ttl {
    fn apply(self, ttl: u32) -> u32 {
        match self {
            Self::Fresh => ttl,
            // A TTL with the top bit set means zero and must not be counted down into a long one.
            Self::Aged(_) if ttl > i32::MAX as u32 => 0,
            Self::Aged(age) => ttl.saturating_sub(age),
            Self::Fixed(fixed) => fixed,
        }
    }
}

/// A reply, new or kept, on its way to whoever asked.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The reply.
    pub reply: Arc<Reply>,
    /// How its TTLs are to be shown.
    pub ttl: Ttl,
}

impl Answer {
    /// A reply that has just come.
    #[must_use]
    pub fn fresh(reply: impl Into<Arc<Reply>>) -> Self {
        Self { reply: reply.into(), ttl: Ttl::Fresh }
    }
}

/// How a client is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Carrier {
    /// A datagram: what does not fit the client's buffer is cut, with TC set.
    Datagram,
    /// A stream: 65,535 bytes.
    Stream,
}

/// A client's message.
#[derive(Clone, Debug)]
pub struct Request {
    /// What it asks.
    pub query: Query,
    id: u16,
    flags: u16,
    spelling: Box<[u8]>,
    edns: Option<Edns>,
}

/// A client's message that asks nothing that could be answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// It is no query at all: silence.
    Silence,
    /// The message that says so.
    Reply(Vec<u8>),
}

impl Request {
    /// Reads a client's message.
    ///
    /// # Errors
    /// What to send back instead.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let Ok([id, flags, questions]) = header(bytes) else { return Err(Refusal::Silence) };
        if flags & flag::QR != 0 {
            // Answering answers would let two servers keep each other busy.
            return Err(Refusal::Silence);
        }
        if flags & flag::OPCODE != 0 {
            return Err(refuse(id, flags, Rcode::NOTIMP));
        }
        let formerr = |_| refuse(id, flags, Rcode::FORMERR);
        if questions != 1 {
            return Err(formerr(Malformed("not exactly one question")));
        }
        let (mut name, end) = read_name(bytes, HEADER).map_err(formerr)?;
        let kind = wire::u16_at(bytes, end).map_err(formerr)?;
        let class = wire::u16_at(bytes, end + 2).map_err(formerr)?;
        let edns = client_edns(bytes, end + 4).map_err(formerr)?;
        if edns.is_some_and(|edns| edns.version != 0) {
            return Err(refuse(id, flags, Rcode::BADVERS));
        }
        let spelling = name.as_bytes().into();
        name.make_lowercase();
        let mut key_flags = 0;
        if edns.is_some_and(|edns| edns.dnssec_ok) {
            key_flags |= KEY_DNSSEC_OK;
        }
        if flags & flag::CD != 0 {
            key_flags |= KEY_CHECKING_DISABLED;
        }
        let subnet = edns.and_then(|edns| edns.subnet);
        let query = Query::from_parts(&name, kind, class, key_flags, subnet, edns.is_some());
        Ok(Self { query, id, flags, spelling, edns })
    }

    /// The message that answers it.
    #[must_use]
    pub fn answer(&self, answer: &Answer, carrier: Carrier) -> Vec<u8> {
        let mut out = Vec::with_capacity(answer.reply.bytes.len() + edns::EMPTY_OPT + 28);
        self.answer_into(answer, carrier, &mut out);
        out
    }

    /// Writes the message that answers it at the end of `out`: one copy of the reply, patched in place.
    pub fn answer_into(&self, answer: &Answer, carrier: Carrier, out: &mut Vec<u8>) {
        let start = out.len();
        let reply = &*answer.reply;
        out.extend(&reply.bytes);
        let bytes = &mut out[start..];
        wire::set_u16(bytes, 0, self.id);
        let mut kept = reply.flags() & !(flag::RD | flag::CD | flag::RCODE);
        if self.flags & flag::AD == 0 && !self.query.dnssec_ok() {
            kept &= !flag::AD; // whoever does not ask for it does not know it (RFC 6840 section 5.7)
        }
        let asked = self.flags & (flag::RD | flag::CD);
        wire::set_u16(bytes, 2, kept | asked | (reply.rcode.0 & flag::RCODE));
        bytes[HEADER..HEADER + self.spelling.len()].copy_from_slice(&self.spelling);
        if answer.ttl != Ttl::Fresh {
            for (_, record) in reply.walk() {
                wire::set_u32(bytes, record.ttl_at, answer.ttl.apply(record.ttl));
            }
        }
        let edns = self.edns.map(|client| Edns {
            payload: PAYLOAD,
            code_high: (reply.rcode.0 >> 4) as u8,
            version: 0,
            dnssec_ok: client.dnssec_ok,
            subnet: client.subnet,
        });
        let limit = self.limit(carrier) - edns.map_or(0, |edns| edns.encoded_len());
        if bytes.len() > limit {
            let end = cut(bytes, reply, limit);
            out.truncate(start + end);
        }
        if let Some(edns) = edns {
            let additional = u16::from_be_bytes([out[start + 10], out[start + 11]]);
            wire::set_u16(&mut out[start..], 10, additional.saturating_add(1));
            edns.write(out);
        }
    }

    /// The message that reports a failure; no records.
    #[must_use]
    pub fn fail(&self, rcode: Rcode) -> Vec<u8> {
        self.answer(&Answer::fresh(Reply::empty(&self.query, rcode)), Carrier::Stream)
    }

    /// How long an answer may be.
    fn limit(&self, carrier: Carrier) -> usize {
        match carrier {
            Carrier::Stream => usize::from(u16::MAX),
            Carrier::Datagram => {
                let payload = self.edns.map_or(PLAIN_PAYLOAD, |edns| edns.payload);
                payload.max(PLAIN_PAYLOAD).into()
            }
        }
    }
}

/// Cuts the copy `bytes` of `reply` between two records so that it fits `limit`, and returns where.
///
/// TC is set unless only additional records go.
fn cut(bytes: &mut [u8], reply: &Reply, limit: usize) -> usize {
    let mut counts = [0u16; 3];
    let mut end = usize::from(reply.question_end);
    for (section, record) in reply.walk() {
        if record.data.end > limit {
            if section != Section::Additional {
                let flags = u16::from_be_bytes([bytes[2], bytes[3]]);
                wire::set_u16(bytes, 2, flags | flag::TC);
            }
            break;
        }
        end = record.data.end;
        counts[section as usize] += 1;
    }
    for (index, count) in counts.into_iter().enumerate() {
        wire::set_u16(bytes, 6 + 2 * index, count);
    }
    end
}

/// Id, flags and number of questions, if there is a whole header.
fn header(bytes: &[u8]) -> Result<[u16; 3], Malformed> {
    if bytes.len() < HEADER {
        return Err(Malformed("ends too early"));
    }
    Ok([wire::u16_at(bytes, 0)?, wire::u16_at(bytes, 2)?, wire::u16_at(bytes, 4)?])
}

/// The OPT record of a client's message; other records there mean nothing to us.
fn client_edns(bytes: &[u8], question_end: usize) -> Result<Option<Edns>, Malformed> {
    let mut edns = None;
    let mut walk = Walk::new(bytes, question_end)?;
    while let Some((section, record)) = walk.step()? {
        if record.kind != kind::OPT {
            continue;
        }
        if edns.is_some() || section != Section::Additional {
            return Err(Malformed("misplaced OPT record"));
        }
        edns = Some(Edns::read(record.class, record.ttl, &bytes[record.data])?);
    }
    Ok(edns)
}

/// A bare header with a response code, for messages whose question is of no use.
fn refuse(id: u16, flags: u16, rcode: Rcode) -> Refusal {
    let extended = rcode.0 > flag::RCODE;
    let kept = flags & (flag::OPCODE | flag::RD);
    let mut out = Vec::with_capacity(HEADER + edns::EMPTY_OPT);
    for word in [id, flag::QR | flag::RA | kept | (rcode.0 & flag::RCODE), 0, 0, 0, extended.into()] {
        out.extend(word.to_be_bytes());
    }
    if extended {
        let code_high = (rcode.0 >> 4) as u8;
        Edns { payload: PAYLOAD, code_high, version: 0, dnssec_ok: false, subnet: None }.write(&mut out);
    }
    Refusal::Reply(out)
}

/// Replayed and grown by the fuzz runner: any bytes as a client's message and as a server's reply.
pub fn fuzz_message(bytes: &[u8]) {
    let Ok(request) = Request::parse(bytes) else { return };
    let again = Request::parse(&request.query.encode(7)).expect("a query of our own can be read");
    assert_eq!(again.query.key(), request.query.key());
    // The same bytes, made a reply to the very question in them.
    let mut reply = bytes.to_vec();
    reply[2] |= 0x80;
    let id = u16::from_be_bytes([bytes[0], bytes[1]]);
    let Ok(reply) = Reply::parse(&reply, &request.query, id) else { return };
    let _ = (reply.addresses().count(), reply.alias_end());
    for (carrier, ttl) in [(Carrier::Datagram, Ttl::Aged(3)), (Carrier::Stream, Ttl::Fixed(9))] {
        let answer = Answer { reply: Arc::new(reply.clone()), ttl };
        let bytes = request.answer(&answer, carrier);
        assert!(bytes.len() <= request.limit(carrier), "an answer keeps to its limit");
        let again = Reply::parse(&bytes, &request.query, id).expect("an answer of our own can be read");
        assert_eq!(again.rcode(), reply.rcode());
    }
}
