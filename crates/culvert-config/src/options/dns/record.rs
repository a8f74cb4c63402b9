//! DNS records as text: one line of a zone file, or a record in wire form as base64.
//!
//! ```text
//! example.org. 300 IN A 192.0.2.1       owner, optional TTL and class, type, data
//! ```
//!
//! Names are absolute. What a type's data consists of stands in [`layout`]; data of any other type is written in the
//! generic form of RFC 3597, `\# LENGTH HEX`. Left out: `$` directives, `@`, parentheses.
//!
//! Source: RFC 1035 section 5, RFC 3597, RFC 9460.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::types::{QueryType, class_name, class_number, query_type_number};
use crate::cx::Cx;
use crate::json::Node;
use crate::schema::Schema;
use crate::value::OptionValue;

/// A DNS record, its names and data in wire form.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Record {
    /// Owner name in wire form, uncompressed.
    pub owner: Vec<u8>,
    /// Type.
    pub record_type: QueryType,
    /// Class; 1 is IN.
    pub class: u16,
    /// Time to live in seconds.
    pub ttl: u32,
    /// Data in wire form, names in it uncompressed.
    pub data: Vec<u8>,
    /// The form `format` writes.
    text: String,
}

/// Time to live of a record without one, in seconds.
const DEFAULT_TTL: u32 = 3600;

impl Record {
    fn parse(text: &str) -> Result<Self, String> {
        match STANDARD.decode(text) {
            Ok(wire) => {
                Self::from_wire(&wire, text).ok_or_else(|| "not a DNS record in wire form".to_owned())
            }
            Err(_) => Self::from_presentation(text),
        }
    }

    fn from_wire(wire: &[u8], text: &str) -> Option<Self> {
        let owner = wire_name(wire)?;
        let (head, data) = wire[owner.len()..].split_at_checked(10)?;
        let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let ttl = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        (data.len() == usize::from(number(8))).then(|| Self {
            owner: owner.to_vec(),
            record_type: QueryType(number(0)),
            class: number(2),
            ttl,
            data: data.to_vec(),
            text: text.to_owned(),
        })
    }

    fn from_presentation(text: &str) -> Result<Self, String> {
        let tokens = tokens(text)?;
        let mut tokens = tokens.iter().peekable();
        let owner_text = tokens.next().ok_or("a DNS record is empty")?;
        let owner = name(&owner_text.text)?;
        let (mut ttl, mut class) = (None, None);
        let record_type = loop {
            let token = &tokens.next().ok_or("the record ends before its type")?.text;
            let upper = token.to_ascii_uppercase();
            if let Some(found) = class_number(&upper).filter(|_| class.is_none()) {
                class = Some(found);
            } else if let Some(number) = query_type_number(&upper) {
                break QueryType(number);
            } else if let Some(seconds) = seconds(token).filter(|_| ttl.is_none()) {
                ttl = Some(seconds);
            } else {
                return Err(format!("`{token}` is neither a time to live nor a class or type of record"));
            }
        };
        let rest: Vec<&Token> = tokens.collect();
        let (data, data_text) = data(record_type, &rest)?;
        let (ttl, class) = (ttl.unwrap_or(DEFAULT_TTL), class.unwrap_or(1));
        let (type_text, class_text) = match record_type.name() {
            Some(name) => (name.to_owned(), class_name(class)),
            None => (format!("TYPE{}", record_type.0), format!("CLASS{class}")),
        };
        let text = format!("{}\t{ttl}\t{class_text}\t{type_text}\t{data_text}", owner_text.text);
        Ok(Self { owner, record_type, class, ttl, data, text })
    }
}

impl OptionValue for Record {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(text) = node.as_str() else {
            cx.expected("a DNS record", node);
            return;
        };
        match Self::parse(text) {
            Ok(record) => *self = record,
            Err(message) => cx.error(node.place, format!("bad DNS record `{text}`: {message}")),
        }
    }

    fn encode(&self) -> Node {
        Node::string(self.text.as_str())
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::typed("string")
    }
}

/// A word of the line, without its quotes but with its escapes.
struct Token {
    text: String,
    quoted: bool,
}

/// The words of the first line that has any; `;` begins a comment.
fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        match first {
            ' ' | '\t' | '\r' => rest = &rest[1..],
            '\n' | ';' => break,
            '"' => {
                let end = end_of_token(&rest[1..], |c| c == '"').ok_or("a quote is never closed")?;
                tokens.push(Token { text: rest[1..=end].to_owned(), quoted: true });
                rest = &rest[end + 2..];
            }
            _ => {
                let end = end_of_token(rest, |c| matches!(c, ' ' | '\t' | '\r' | '\n' | ';' | '"'));
                let end = end.unwrap_or(rest.len());
                tokens.push(Token { text: rest[..end].to_owned(), quoted: false });
                rest = &rest[end..];
            }
        }
    }
    Ok(tokens)
}

/// Where the first character stands that ends a token and is not escaped.
fn end_of_token(text: &str, ends: impl Fn(char) -> bool) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if ends(c) => return Some(at),
            _ => {}
        }
    }
    None
}

/// One part of a record's data.
#[derive(Clone, Copy)]
enum Part {
    Name,
    U8,
    U16,
    U32,
    Time,
    Ipv4,
    Ipv6,
    /// A string with its length before it.
    Text,
    /// Several of those, at least one.
    Texts,
    /// A string that fills the rest.
    Tail,
    Hex,
    Base64,
    /// The parameters of an SVCB or HTTPS record.
    Params,
}

/// What the data of a type consists of, in text and on the wire alike.
fn layout(record_type: QueryType) -> Option<&'static [Part]> {
    use Part::{Base64, Hex, Ipv4, Ipv6, Name, Params, Tail, Text, Texts, Time, U8, U16, U32};
    Some(match record_type.name()? {
        "A" => &[Ipv4],
        "AAAA" => &[Ipv6],
        "NS" | "CNAME" | "PTR" | "DNAME" | "MB" | "MD" | "MF" | "MG" | "MR" => &[Name],
        "MX" | "AFSDB" | "KX" | "RT" => &[U16, Name],
        "RP" | "MINFO" => &[Name, Name],
        "TXT" | "SPF" | "NINFO" | "AVC" | "RESINFO" => &[Texts],
        "HINFO" => &[Text, Text],
        "SRV" => &[U16, U16, U16, Name],
        "SOA" => &[Name, Name, U32, Time, Time, Time, Time],
        "CAA" => &[U8, Text, Tail],
        "URI" => &[U16, U16, Tail],
        "NAPTR" => &[U16, U16, Text, Text, Text, Name],
        "DS" | "CDS" | "DLV" | "TA" => &[U16, U8, U8, Hex],
        "TLSA" | "SMIMEA" => &[U8, U8, U8, Hex],
        "SSHFP" => &[U8, U8, Hex],
        "DNSKEY" | "CDNSKEY" => &[U16, U8, U8, Base64],
        "OPENPGPKEY" | "DHCID" => &[Base64],
        "SVCB" | "HTTPS" => &[U16, Name, Params],
        _ => return None,
    })
}

/// Data in wire form, and its canonical text.
fn data(record_type: QueryType, tokens: &[&Token]) -> Result<(Vec<u8>, String), String> {
    if let [marker, length, hex @ ..] = tokens
        && marker.text == "\\#"
    {
        return generic_data(&length.text, hex);
    }
    let Some(parts) = layout(record_type) else {
        let name = record_type.name().unwrap_or("this type");
        return Err(format!("data of {name} can only be written as `\\# LENGTH HEX`"));
    };
    let (mut wire, mut texts) = (Vec::new(), Vec::new());
    let mut tokens = tokens.iter();
    for part in parts {
        match part {
            Part::Texts | Part::Params | Part::Hex | Part::Base64 => {
                let rest = tokens.by_ref().copied().collect::<Vec<_>>();
                texts.push(rest_of_data(*part, &rest, &mut wire)?);
            }
            _ => {
                let token = tokens.next().ok_or("the data of the record is too short")?;
                texts.push(one_part(*part, &token.text, &mut wire)?);
            }
        }
    }
    match tokens.next() {
        Some(extra) => Err(format!("`{}` does not belong to the data of the record", extra.text)),
        None => Ok((wire, texts.join(" "))),
    }
}

fn generic_data(length: &str, tokens: &[&Token]) -> Result<(Vec<u8>, String), String> {
    let digits: String = tokens.iter().map(|token| token.text.as_str()).collect();
    let wire = hex(&digits).ok_or("the data is not hexadecimal")?;
    if length.parse() != Ok(wire.len()) {
        return Err(format!("the data has {} bytes, not {length}", wire.len()));
    }
    Ok((wire, format!("\\# {length} {digits}")))
}

/// Adds a part that is one token to `wire`, and gives its canonical text.
fn one_part(part: Part, text: &str, wire: &mut Vec<u8>) -> Result<String, String> {
    let bad = |what: &str| format!("`{text}` is not {what}");
    match part {
        Part::Name => wire.extend(name(text)?),
        Part::U8 => wire.push(text.parse().map_err(|_| bad("a number up to 255"))?),
        Part::U16 => {
            let number: u16 = text.parse().map_err(|_| bad("a number up to 65535"))?;
            wire.extend(number.to_be_bytes());
        }
        Part::U32 => {
            let number: u32 = text.parse().map_err(|_| bad("a number"))?;
            wire.extend(number.to_be_bytes());
        }
        Part::Time => {
            let time = seconds(text).ok_or_else(|| bad("a time"))?;
            wire.extend(time.to_be_bytes());
            return Ok(time.to_string());
        }
        Part::Ipv4 => {
            let address: Ipv4Addr = text.parse().map_err(|_| bad("an IPv4 address"))?;
            wire.extend(address.octets());
        }
        Part::Ipv6 => {
            let address: Ipv6Addr = text.parse().map_err(|_| bad("an IPv6 address"))?;
            wire.extend(address.octets());
            return Ok(address.to_string());
        }
        Part::Text => {
            push_text(text, wire)?;
            return Ok(format!("\"{text}\""));
        }
        Part::Tail => {
            wire.extend(unescape(text));
            return Ok(format!("\"{text}\""));
        }
        Part::Texts | Part::Hex | Part::Base64 | Part::Params => unreachable!("these take all tokens"),
    }
    Ok(text.to_owned())
}

/// Adds a part that takes all tokens that are left.
fn rest_of_data(part: Part, tokens: &[&Token], wire: &mut Vec<u8>) -> Result<String, String> {
    let joined: String = tokens.iter().map(|token| token.text.as_str()).collect();
    match part {
        Part::Texts if tokens.is_empty() => Err("the data of the record is too short".to_owned()),
        Part::Texts => {
            tokens.iter().try_for_each(|token| push_text(&token.text, wire))?;
            Ok(tokens.iter().map(|token| format!("\"{}\"", token.text)).collect::<Vec<_>>().join(" "))
        }
        Part::Hex => {
            wire.extend(hex(&joined).ok_or("the data is not hexadecimal")?);
            Ok(joined)
        }
        Part::Base64 => {
            wire.extend(STANDARD.decode(&joined).map_err(|_| "the data is not base64")?);
            Ok(joined)
        }
        _ => params(tokens, wire),
    }
}

/// Keys of SVCB parameters, by number.
const PARAM_KEYS: [&str; 9] =
    ["mandatory", "alpn", "no-default-alpn", "port", "ipv4hint", "ech", "ipv6hint", "dohpath", "ohttp"];

/// Parameters of SVCB and HTTPS: `key`, `key=value` or `key="value"`. On the wire they are sorted by number.
fn params(tokens: &[&Token], wire: &mut Vec<u8>) -> Result<String, String> {
    let (mut found, mut texts) = (Vec::new(), Vec::new());
    let mut tokens = tokens.iter().peekable();
    while let Some(token) = tokens.next() {
        let (key, mut value) = match token.text.split_once('=') {
            Some((key, value)) => (key, value.to_owned()),
            None => (token.text.as_str(), String::new()),
        };
        if token.text.ends_with('=')
            && let Some(quoted) = tokens.next_if(|next| next.quoted)
        {
            value.clone_from(&quoted.text);
        }
        let number = param_number(key).ok_or_else(|| format!("unknown parameter `{key}`"))?;
        if found.iter().any(|(known, _)| *known == number) {
            return Err(format!("the parameter `{key}` is given twice"));
        }
        found.push((number, param_value(number, &value).ok_or_else(|| format!("bad value of `{key}`"))?));
        texts.push(if value.is_empty() { key.to_owned() } else { format!("{key}=\"{value}\"") });
    }
    found.sort();
    for (number, value) in found {
        wire.extend(number.to_be_bytes());
        wire.extend(u16::try_from(value.len()).map_err(|_| "a parameter is too long")?.to_be_bytes());
        wire.extend(value);
    }
    Ok(texts.join(" "))
}

fn param_number(key: &str) -> Option<u16> {
    let known = PARAM_KEYS.iter().zip(0..).find(|(name, _)| **name == key).map(|(_, number)| number);
    known.or_else(|| key.strip_prefix("key")?.parse().ok())
}

fn param_value(number: u16, text: &str) -> Option<Vec<u8>> {
    let items = text.split(',');
    let mut wire = Vec::new();
    match PARAM_KEYS.get(usize::from(number)).copied().unwrap_or_default() {
        "mandatory" => {
            let mut numbers = items.map(param_number).collect::<Option<Vec<u16>>>()?;
            numbers.sort_unstable();
            wire.extend(numbers.into_iter().flat_map(u16::to_be_bytes));
        }
        "alpn" => items.map(|item| push_text(item, &mut wire).ok()).collect::<Option<()>>()?,
        "port" => wire.extend(text.parse::<u16>().ok()?.to_be_bytes()),
        "ipv4hint" => {
            for item in items {
                wire.extend(item.parse::<Ipv4Addr>().ok()?.octets());
            }
        }
        "ipv6hint" => {
            for item in items {
                wire.extend(item.parse::<Ipv6Addr>().ok()?.octets());
            }
        }
        "ech" => wire = STANDARD.decode(text).ok()?,
        "no-default-alpn" | "ohttp" => text.is_empty().then_some(())?,
        _ => wire = unescape(text),
    }
    Some(wire)
}

/// A name in wire form. It has to be absolute, which is told by a dot at its end.
fn name(text: &str) -> Result<Vec<u8>, String> {
    let bad = |why: &str| format!("bad name `{text}`: {why}");
    if text == "." {
        return Ok(vec![0]);
    }
    let mut wire = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(end) = end_of_token(rest, |c| c == '.') else {
            return Err(bad("it does not end in a dot"));
        };
        let label = unescape(&rest[..end]);
        if label.is_empty() || label.len() > 63 {
            return Err(bad("a label has 1 to 63 bytes"));
        }
        wire.push(label.len() as u8);
        wire.extend(label);
        rest = &rest[end + 1..];
    }
    wire.push(0);
    match wire.len() {
        1 => Err(bad("it is empty")),
        2..=255 => Ok(wire),
        _ => Err(bad("it is longer than 255 bytes")),
    }
}

/// The uncompressed name at the start of `wire`.
fn wire_name(wire: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        let length = usize::from(*wire.get(at)?);
        match length {
            0 => return wire.get(..=at).filter(|name| name.len() <= 255),
            1..=63 => at += 1 + length,
            _ => return None,
        }
    }
}

/// A string with its length before it.
fn push_text(text: &str, wire: &mut Vec<u8>) -> Result<(), String> {
    let bytes = unescape(text);
    wire.push(u8::try_from(bytes.len()).map_err(|_| format!("`{text}` is longer than 255 bytes"))?);
    wire.extend(bytes);
    Ok(())
}

/// Bytes of a text with the escapes `\DDD` and `\c`.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = text.as_bytes();
    while let Some((&byte, rest)) = bytes.split_first() {
        bytes = rest;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let code = rest
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|text| text.parse().ok());
        let skip = if code.is_some() { 3 } else { 1.min(rest.len()) };
        out.extend(code.or(rest.first().copied()));
        bytes = &rest[skip..];
    }
    out
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?, 16).ok()
        })
        .collect()
}

/// A time in seconds, or with the units `s m h d w`.
fn seconds(text: &str) -> Option<u32> {
    let (mut total, mut number) = (0_u32, None);
    for c in text.chars() {
        if let Some(digit) = c.to_digit(10) {
            number = Some(number.unwrap_or(0_u32).checked_mul(10)?.checked_add(digit)?);
            continue;
        }
        let unit = match c.to_ascii_lowercase() {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return None,
        };
        total = total.checked_add(number.take()?.checked_mul(unit)?)?;
    }
    if text.is_empty() { None } else { total.checked_add(number.unwrap_or(0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        Record::parse(text).map_or_else(|error| format!("error: {error}"), |record| record.text)
    }

    /// Expected texts are what sing-box 1.14.4 prints for the same records.
    #[test]
    fn records_are_written_as_sing_box_writes_them() {
        for (text, expected) in [
            ("a.b. IN A 1.1.1.1", "a.b.\t3600\tIN\tA\t1.1.1.1"),
            ("A.B. 1h IN A 1.1.1.1", "A.B.\t3600\tIN\tA\t1.1.1.1"),
            ("a.b. in a 1.1.1.1 ; comment", "a.b.\t3600\tIN\tA\t1.1.1.1"),
            ("a.b. IN 5 A 1.1.1.1", "a.b.\t5\tIN\tA\t1.1.1.1"),
            ("a.b. AAAA 2001:DB8::1", "a.b.\t3600\tIN\tAAAA\t2001:db8::1"),
            ("*.b. A 1.1.1.1", "*.b.\t3600\tIN\tA\t1.1.1.1"),
            ("a.b. CH TXT \"a;b\" c", "a.b.\t3600\tCH\tTXT\t\"a;b\" \"c\""),
            ("a.b. HTTPS 1 . alpn=h2", "a.b.\t3600\tIN\tHTTPS\t1 . alpn=\"h2\""),
            ("a.b. MX 10 m.b.", "a.b.\t3600\tIN\tMX\t10 m.b."),
            ("a.b. SRV 1 2 3 d.", "a.b.\t3600\tIN\tSRV\t1 2 3 d."),
            ("a.b. SOA n. m. 1 2 3 4 5", "a.b.\t3600\tIN\tSOA\tn. m. 1 2 3 4 5"),
            ("a.b. TYPE65280 \\# 4 0A000001", "a.b.\t3600\tCLASS1\tTYPE65280\t\\# 4 0A000001"),
            ("A2MBYgAAAQABAAAAAQAEAQEBAQ==", "A2MBYgAAAQABAAAAAQAEAQEBAQ=="),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for text in [
            "",
            "* A 1.1.1.1",
            "a.b A 1.1.1.1",
            "@ A 1.1.1.1",
            "a.b. IN A",
            "a.b. 5 5 A 1.1.1.1",
            "a.b. FOO x",
        ] {
            assert!(canonical(text).starts_with("error: "), "{text}: {}", canonical(text));
        }
    }

    #[test]
    fn data_is_kept_in_wire_form() {
        let record = Record::parse("a.b. HTTPS 1 . port=8443 alpn=h2,h3").expect("a record");
        assert_eq!(record.owner, b"\x01a\x01b\x00");
        assert_eq!(record.data, b"\x00\x01\x00\x00\x01\x00\x06\x02h2\x02h3\x00\x03\x00\x02\x20\xfb");
        let record = Record::parse("a.b. TXT \"\\065b\\\"\"").expect("a record");
        assert_eq!(record.data, b"\x03Ab\"");
    }
}
