//! Messages of D-Bus.
//!
//! ```text
//! order 1 ('l' or 'B') | kind 1 | flags 1 | version 1 | length of the body 4 | serial 4 | fields a(yv) | to 8 | body
//! ```
//!
//! Values stand at multiples of their size, structs and entries at multiples of eight, counted from the begin of the
//! message; the body begins at such a place. What is written is little-endian.
//!
//! Source: the D-Bus specification 0.43, "Marshalling" and "Message format". Left out: descriptors.

use std::fmt;

/// Longest message that is taken; the specification allows 128 MiB.
pub const MAX_MESSAGE: usize = 1 << 20;
/// How deep arrays, structs and variants may lie in each other.
const DEEPEST: usize = 32;
/// Bytes of the header that come before the fields' array, whose length is the last of them.
pub const FIXED: usize = 16;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `y`
    Byte(u8),
    /// `b`
    Bool(bool),
    /// `n`
    I16(i16),
    /// `q`
    U16(u16),
    /// `i`
    I32(i32),
    /// `u`
    U32(u32),
    /// `x`
    I64(i64),
    /// `t`
    U64(u64),
    /// `d`, as its bits.
    Double(u64),
    /// `s`
    Text(String),
    /// `o`
    Path(String),
    /// `g`
    Signature(String),
    /// `a`, with the type of its elements.
    Array(String, Vec<Self>),
    /// `(…)`
    Struct(Vec<Self>),
    /// `{…}`
    Entry(Box<(Self, Self)>),
    /// `v`
    Variant(Box<Self>),
}

impl Value {
    /// An array of bytes.
    #[must_use]
    pub fn bytes(bytes: &[u8]) -> Self {
        Self::Array("y".to_owned(), bytes.iter().map(|byte| Self::Byte(*byte)).collect())
    }

    /// Text.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    /// The text, if it is one, or a path.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Path(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if it is one.
    #[must_use]
    pub fn as_int(&self) -> Option<i64> {
        Some(match self {
            Self::Byte(number) => (*number).into(),
            Self::I16(number) => (*number).into(),
            Self::U16(number) => (*number).into(),
            Self::I32(number) => (*number).into(),
            Self::U32(number) => (*number).into(),
            Self::I64(number) => *number,
            Self::U64(number) => i64::try_from(*number).ok()?,
            _ => return None,
        })
    }

    /// The elements of an array or a struct.
    #[must_use]
    pub fn items(&self) -> Option<&[Self]> {
        match self {
            Self::Array(_, items) | Self::Struct(items) => Some(items),
            _ => None,
        }
    }

    /// The bytes of an array of them.
    #[must_use]
    pub fn as_bytes(&self) -> Option<Vec<u8>> {
        let byte = |item: &Self| match item {
            Self::Byte(byte) => Some(*byte),
            _ => None,
        };
        self.items()?.iter().map(byte).collect()
    }

    fn put_signature(&self, to: &mut String) {
        let last = match self {
            Self::Byte(_) => 'y',
            Self::Bool(_) => 'b',
            Self::I16(_) => 'n',
            Self::U16(_) => 'q',
            Self::I32(_) => 'i',
            Self::U32(_) => 'u',
            Self::I64(_) => 'x',
            Self::U64(_) => 't',
            Self::Double(_) => 'd',
            Self::Text(_) => 's',
            Self::Path(_) => 'o',
            Self::Signature(_) => 'g',
            Self::Variant(_) => 'v',
            Self::Array(element, _) => {
                to.push('a');
                to.push_str(element);
                return;
            }
            Self::Struct(items) => {
                to.push('(');
                items.iter().for_each(|item| item.put_signature(to));
                ')'
            }
            Self::Entry(entry) => {
                to.push('{');
                entry.0.put_signature(to);
                entry.1.put_signature(to);
                '}'
            }
        };
        to.push(last);
    }

    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Byte(byte) => to.push(*byte),
            Self::Bool(set) => put_word(u32::from(*set), to),
            Self::I16(number) => put_half(*number as u16, to),
            Self::U16(number) => put_half(*number, to),
            Self::I32(number) => put_word(*number as u32, to),
            Self::U32(number) => put_word(*number, to),
            Self::I64(number) => put_long(*number as u64, to),
            Self::U64(number) | Self::Double(number) => put_long(*number, to),
            Self::Text(text) | Self::Path(text) => {
                put_word(text.len() as u32, to);
                to.extend(text.as_bytes());
                to.push(0);
            }
            Self::Signature(text) => {
                to.push(text.len() as u8);
                to.extend(text.as_bytes());
                to.push(0);
            }
            Self::Array(element, items) => {
                put_word(0, to);
                let length_at = to.len() - 4;
                pad(alignment(element.as_bytes()), to);
                let start = to.len();
                items.iter().for_each(|item| item.put(to));
                let length = (to.len() - start) as u32;
                to[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
            }
            Self::Struct(items) => {
                pad(8, to);
                items.iter().for_each(|item| item.put(to));
            }
            Self::Entry(entry) => {
                pad(8, to);
                entry.0.put(to);
                entry.1.put(to);
            }
            Self::Variant(value) => {
                Self::Signature(signature(std::slice::from_ref(&**value))).put(to);
                value.put(to);
            }
        }
    }
}

/// The types of values.
pub(crate) fn signature(values: &[Value]) -> String {
    let mut text = String::new();
    values.iter().for_each(|value| value.put_signature(&mut text));
    text
}

fn pad(to_multiple_of: usize, bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(to_multiple_of), 0);
}

fn put_half(number: u16, to: &mut Vec<u8>) {
    pad(2, to);
    to.extend(number.to_le_bytes());
}

fn put_word(number: u32, to: &mut Vec<u8>) {
    pad(4, to);
    to.extend(number.to_le_bytes());
}

fn put_long(number: u64, to: &mut Vec<u8>) {
    pad(8, to);
    to.extend(number.to_le_bytes());
}

/// What the first type of a signature is aligned to.
fn alignment(signature: &[u8]) -> usize {
    match signature.first() {
        Some(b'n' | b'q') => 2,
        Some(b'b' | b'i' | b'u' | b's' | b'o' | b'a') => 4,
        Some(b'x' | b't' | b'd' | b'(' | b'{') => 8,
        _ => 1,
    }
}

/// The length of the first complete type of a signature.
fn first_type(signature: &[u8], depth: usize) -> Option<usize> {
    if depth > DEEPEST {
        return None;
    }
    match signature.first()? {
        b'a' => Some(1 + first_type(&signature[1..], depth + 1)?),
        open @ (b'(' | b'{') => {
            let close = if *open == b'(' { b')' } else { b'}' };
            let mut at = 1;
            while *signature.get(at)? != close {
                at += first_type(&signature[at..], depth + 1)?;
            }
            (at > 1).then_some(at + 1)
        }
        b'y' | b'b' | b'n' | b'q' | b'i' | b'u' | b'x' | b't' | b'd' | b's' | b'o' | b'g' | b'v' | b'h' => {
            Some(1)
        }
        _ => None,
    }
}

/// Reads values out of a message.
struct Reading<'a> {
    bytes: &'a [u8],
    at: usize,
    big: bool,
}

impl<'a> Reading<'a> {
    fn align(&mut self, to_multiple_of: usize) -> Option<()> {
        self.at = self.at.checked_next_multiple_of(to_multiple_of)?;
        (self.at <= self.bytes.len()).then_some(())
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(bytes)
    }

    /// A number of so many bytes.
    fn number(&mut self, size: usize) -> Option<u64> {
        self.align(size)?;
        let bytes = self.take(size)?;
        let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        Some(if self.big { bytes.iter().fold(0, add) } else { bytes.iter().rev().fold(0, add) })
    }

    fn text(&mut self, length: usize) -> Option<String> {
        let bytes = self.take(length)?;
        self.take(1).filter(|end| *end == [0])?;
        String::from_utf8(bytes.to_vec()).ok()
    }

    fn values(&mut self, signature: &[u8], depth: usize) -> Option<Vec<Value>> {
        let (mut rest, mut values) = (signature, Vec::new());
        while !rest.is_empty() {
            let length = first_type(rest, depth)?;
            values.push(self.value(&rest[..length], depth)?);
            rest = &rest[length..];
        }
        Some(values)
    }

    fn value(&mut self, signature: &[u8], depth: usize) -> Option<Value> {
        if depth > DEEPEST {
            return None;
        }
        Some(match signature.first()? {
            b'y' => Value::Byte(self.number(1)? as u8),
            b'b' => match self.number(4)? {
                number @ 0..=1 => Value::Bool(number == 1),
                _ => return None,
            },
            b'n' => Value::I16(self.number(2)? as i16),
            b'q' => Value::U16(self.number(2)? as u16),
            b'i' => Value::I32(self.number(4)? as i32),
            b'u' | b'h' => Value::U32(self.number(4)? as u32),
            b'x' => Value::I64(self.number(8)? as i64),
            b't' => Value::U64(self.number(8)?),
            b'd' => Value::Double(self.number(8)?),
            kind @ (b's' | b'o') => {
                let length = usize::try_from(self.number(4)?).ok()?;
                let text = self.text(length)?;
                if *kind == b's' { Value::Text(text) } else { Value::Path(text) }
            }
            b'g' => {
                let length = self.number(1)? as usize;
                Value::Signature(self.text(length)?)
            }
            b'v' => {
                let length = self.number(1)? as usize;
                let inner = self.text(length)?;
                if first_type(inner.as_bytes(), depth)? != inner.len() {
                    return None;
                }
                Value::Variant(Box::new(self.value(inner.as_bytes(), depth + 1)?))
            }
            b'a' => {
                let element = &signature[1..];
                let length = usize::try_from(self.number(4)?).ok()?;
                self.align(alignment(element))?;
                let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len())?;
                let mut items = Vec::new();
                while self.at < end {
                    items.push(self.value(element, depth + 1)?);
                }
                (self.at == end).then_some(())?;
                Value::Array(String::from_utf8(element.to_vec()).ok()?, items)
            }
            b'(' => {
                self.align(8)?;
                Value::Struct(self.values(&signature[1..signature.len() - 1], depth + 1)?)
            }
            b'{' => {
                self.align(8)?;
                let mut both = self.values(&signature[1..signature.len() - 1], depth + 1)?.into_iter();
                let (Some(key), Some(value), None) = (both.next(), both.next(), both.next()) else {
                    return None;
                };
                Value::Entry(Box::new((key, value)))
            }
            _ => return None,
        })
    }
}

/// What a message is for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Kind {
    /// Calls a method.
    #[default]
    Call,
    /// Answers a call.
    Return,
    /// Answers a call with an error.
    Error,
    /// Tells something, or is of a kind that is not known.
    Signal,
}

/// A message.
#[derive(Clone, Default, PartialEq)]
pub struct Message {
    /// What it is for.
    pub kind: Kind,
    /// Whether the caller wants no answer.
    pub no_reply: bool,
    /// Its number.
    pub serial: u32,
    /// The object.
    pub path: String,
    /// The interface.
    pub interface: String,
    /// The method or signal.
    pub member: String,
    /// The name of an error.
    pub error: String,
    /// The number of the call that this answers; 0 for none.
    pub reply_to: u32,
    /// Whom it is for.
    pub destination: String,
    /// Whom it is from, as the bus says.
    pub sender: String,
    /// What it says.
    pub body: Vec<Value>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {}.{} {:?}", self.kind, self.path, self.interface, self.member, self.body)
    }
}

impl Message {
    /// The bytes of it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let signature = signature(&self.body);
        let mut fields = Vec::new();
        let mut field = |code: u8, value: Value| {
            fields.push(Value::Struct(vec![Value::Byte(code), Value::Variant(Box::new(value))]));
        };
        if !self.path.is_empty() {
            field(1, Value::Path(self.path.clone()));
        }
        for (code, text) in [
            (2, &self.interface),
            (3, &self.member),
            (4, &self.error),
            (6, &self.destination),
            (7, &self.sender),
        ] {
            if !text.is_empty() {
                field(code, Value::Text(text.clone()));
            }
        }
        if self.reply_to != 0 {
            field(5, Value::U32(self.reply_to));
        }
        if !signature.is_empty() {
            field(8, Value::Signature(signature));
        }
        let mut body = Vec::new();
        self.body.iter().for_each(|value| value.put(&mut body));
        let kind = match self.kind {
            Kind::Call => 1,
            Kind::Return => 2,
            Kind::Error => 3,
            Kind::Signal => 4,
        };
        let mut bytes = vec![b'l', kind, self.no_reply.into(), 1];
        put_word(body.len() as u32, &mut bytes);
        put_word(self.serial, &mut bytes);
        Value::Array("(yv)".to_owned(), fields).put(&mut bytes);
        pad(8, &mut bytes);
        bytes.extend(body);
        bytes
    }

    /// The length of the message whose first bytes these are, if there are enough to tell; `Some(Err)` for what is none.
    #[must_use]
    pub fn length(head: &[u8; FIXED]) -> Option<usize> {
        let big = head[0] == b'B';
        if head[3] != 1 || !(big || head[0] == b'l') {
            return None;
        }
        let word = |at: usize| {
            let word = [head[at], head[at + 1], head[at + 2], head[at + 3]];
            if big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
        };
        let fields = usize::try_from(word(12)).ok()?.checked_next_multiple_of(8)?;
        let length = FIXED.checked_add(fields)?.checked_add(usize::try_from(word(4)).ok()?)?;
        (length <= MAX_MESSAGE).then_some(length)
    }

    /// Reads a whole message. `None` for what is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if Self::length(bytes.first_chunk()?)? != bytes.len() {
            return None;
        }
        let mut reading = Reading { bytes, at: 4, big: bytes[0] == b'B' };
        let body_length = usize::try_from(reading.number(4)?).ok()?;
        let mut message = Self {
            kind: match bytes[1] {
                1 => Kind::Call,
                2 => Kind::Return,
                3 => Kind::Error,
                _ => Kind::Signal,
            },
            no_reply: bytes[2] & 1 != 0,
            serial: reading.number(4)? as u32,
            ..Self::default()
        };
        let mut types = String::new();
        let Value::Array(_, fields) = reading.value(b"a(yv)", 0)? else { return None };
        for field in fields {
            let Value::Struct(field) = field else { return None };
            let [Value::Byte(code), Value::Variant(value)] = &field[..] else { return None };
            match (code, &**value) {
                (1, Value::Path(text)) => message.path.clone_from(text),
                (2, Value::Text(text)) => message.interface.clone_from(text),
                (3, Value::Text(text)) => message.member.clone_from(text),
                (4, Value::Text(text)) => message.error.clone_from(text),
                (5, Value::U32(serial)) => message.reply_to = *serial,
                (6, Value::Text(text)) => message.destination.clone_from(text),
                (7, Value::Text(text)) => message.sender.clone_from(text),
                (8, Value::Signature(text)) => types.clone_from(text),
                (1..=8, _) => return None,
                _ => {}
            }
        }
        reading.align(8)?;
        (bytes.len() - reading.at == body_length).then_some(())?;
        // The body is aligned as if it began a message of its own, and it begins at a multiple of eight.
        message.body = reading.values(types.as_bytes(), 0)?;
        (reading.at == bytes.len()).then_some(message)
    }
}

/// What was read is the same after it was written and read.
pub fn fuzz_message(bytes: &[u8]) {
    let Some(message) = Message::decode(bytes) else { return };
    let written = message.encode();
    if written.len() <= MAX_MESSAGE {
        assert_eq!(Message::decode(&written), Some(message));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What `dbus-daemon` 1.14 is sent by its own library for `Hello`, from a capture.
    #[test]
    fn the_first_call_is_the_one_of_the_reference() {
        let hello = Message {
            serial: 1,
            path: "/org/freedesktop/DBus".into(),
            interface: "org.freedesktop.DBus".into(),
            member: "Hello".into(),
            destination: "org.freedesktop.DBus".into(),
            ..Message::default()
        };
        let bytes = hello.encode();
        assert_eq!(bytes[..16], [b'l', 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0x6d, 0, 0, 0]);
        assert_eq!(bytes.len(), 128);
        assert_eq!(Message::decode(&bytes), Some(hello));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<u8>().prop_map(Value::Byte),
            any::<bool>().prop_map(Value::Bool),
            any::<i16>().prop_map(Value::I16),
            any::<u32>().prop_map(Value::U32),
            any::<i64>().prop_map(Value::I64),
            "[a-z]{0,9}".prop_map(Value::Text),
            Just(Value::Signature("a(iiay)".into())),
            proptest::collection::vec(any::<u8>(), 0..9).prop_map(|bytes| Value::bytes(&bytes)),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 1..4).prop_map(Value::Struct),
                inner.clone().prop_map(|value| Value::Variant(value.into())),
                ("[a-z]{1,3}", inner.clone())
                    .prop_map(|(key, value)| (Value::Text(key), Value::Variant(value.into())))
                    .prop_map(|entry| Value::Array("{sv}".into(), vec![Value::Entry(entry.into())])),
                (inner, 0..4usize).prop_map(|(value, count)| {
                    Value::Array(signature(std::slice::from_ref(&value)), vec![value; count])
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(body in proptest::collection::vec(value(), 0..5), cut in any::<prop::sample::Index>()) {
            let message = Message {
                kind: Kind::Return, serial: 7, reply_to: 9, sender: ":1.5".into(), body, ..Message::default()
            };
            prop_assume!(signature(&message.body).len() <= usize::from(u8::MAX));
            let bytes = message.encode();
            prop_assert_eq!(Message::length(bytes.first_chunk().unwrap()), Some(bytes.len()));
            prop_assert_eq!(Message::decode(&bytes), Some(message));
            prop_assert_eq!(Message::decode(&bytes[..cut.index(bytes.len())]), None);
            fuzz_message(&bytes);
        }

        #[test]
        fn damage_harms_nobody(mut bytes in Just(Message { body: vec![Value::Array("(ayqs)".into(), vec![Value::Struct(
            vec![Value::bytes(&[1, 2]), Value::U16(5), Value::text("x")])])], ..Message::default() }.encode()),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
            for (place, byte) in changes {
                let at = place.index(bytes.len());
                bytes[at] = byte;
            }
            fuzz_message(&bytes);
        }
    }

    #[test]
    fn what_lies_too_deep_or_is_no_type_is_refused() {
        assert_eq!(first_type(&[b'a'; 40], 0), None);
        assert_eq!(first_type(b"()", 0), None);
        assert_eq!(first_type(b"(i", 0), None);
        assert_eq!(first_type(b"z", 0), None);
        assert_eq!(first_type(b"a{sv}i", 0), Some(5));
    }
}
