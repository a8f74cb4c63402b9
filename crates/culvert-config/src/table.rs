//! Option tables: one line per option gives the struct field, its decoding, its canonical output and its schema.
//!
//! ```text
//! options! {
//!     /// What the struct is.
//!     pub struct ExampleOptions {
//!         /// What the option does, its unit and default.
//!         timeout: Dur,                     // the key is the name of the field
//!         kind: String = "type",            // the key is given
//!         server: String [keep],            // written by `format` even when empty
//!         old: bool [hidden],               // accepted, but not in the schema
//!         dial: DialOptions = ..,           // all options of another table, in this place
//!     }
//!     check = ExampleOptions::check;        // optional: fn(&self, &Node, &mut Cx), runs after clean decoding
//!     unknown_keys = Warn;                  // optional: for objects whose unknown keys sing-box ignores
//! }
//! ```

use crate::cx::{Cx, Definition, Space};
use crate::json::{Entry, Node, Value};
use crate::schema::Schema;
use crate::value::OptionValue;

/// A struct made of options.
pub(crate) trait Table {
    /// Name of the struct, which is its name in the schema.
    fn name(&self) -> &'static str;
    /// Doc comment of the struct.
    fn doc(&self) -> &'static str;
    /// What happens to keys that are no option.
    fn unknown_keys(&self) -> UnknownKeys {
        UnknownKeys::Refuse
    }
    /// Lists the options in canonical order.
    fn fields<'a>(&'a self, out: &mut Vec<Field<'a>>);
    /// The same list, to decode into.
    fn fields_mut<'a>(&'a mut self, out: &mut Vec<FieldMut<'a>>);
    /// Looks for values that do not go together. `node` is what was decoded, to name places.
    fn check(&self, node: &Node, cx: &mut Cx<'_>);
}

/// What happens to keys that are no option.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum UnknownKeys {
    /// They are errors.
    Refuse,
    /// They are ignored with a warning, where sing-box ignores them too.
    Warn,
}

/// One option, to read from.
pub(crate) struct Field<'a> {
    pub(crate) key: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) flags: Flags,
    pub(crate) value: &'a dyn OptionValue,
}

/// One option, to decode into.
pub(crate) struct FieldMut<'a> {
    pub(crate) key: &'static str,
    pub(crate) value: &'a mut dyn OptionValue,
}

/// Marks behind an option in its table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) keep: bool,
    pub(crate) hidden: bool,
}

impl Flags {
    pub(crate) const NONE: Self = Self { keep: false, hidden: false };

    pub(crate) const fn keep(self) -> Self {
        Self { keep: true, ..self }
    }

    pub(crate) const fn hidden(self) -> Self {
        Self { hidden: true, ..self }
    }
}

/// How [`decode_fields`] treats keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a> {
    /// Keys that the caller reads by itself.
    pub(crate) elsewhere: &'a [&'static str],
    pub(crate) unknown: UnknownKeys,
    /// How many fields, from the first on, are unknown in another letter case. sing-box is strict about the keys it
    /// reads when it decodes an object for the first of two times.
    pub(crate) exact: usize,
}

impl Keys<'_> {
    /// For [`Self::exact`]: every field.
    pub(crate) const ALL: usize = usize::MAX;
}

/// Decodes a whole table and, if that went well, checks it.
pub(crate) fn decode(table: &mut dyn Table, node: &Node, cx: &mut Cx<'_>) {
    let keys = Keys { elsewhere: &[], unknown: table.unknown_keys(), exact: 0 };
    decode_with(table, keys, node, cx);
}

/// Like [`decode`], for objects that have keys beside those of the table.
pub(crate) fn decode_with(table: &mut dyn Table, keys: Keys<'_>, node: &Node, cx: &mut Cx<'_>) {
    let errors = cx.report.errors();
    let mut fields = Vec::new();
    table.fields_mut(&mut fields);
    decode_fields(&mut fields, keys, node, cx);
    if cx.is_checking() && cx.report.errors() == errors {
        table.check(node, cx);
    }
}

/// Decodes the entries of an object into the fields of that name.
pub(crate) fn decode_fields(fields: &mut [FieldMut<'_>], keys: Keys<'_>, node: &Node, cx: &mut Cx<'_>) {
    let Some(entries) = node.as_object() else {
        cx.expected("an object", node);
        return;
    };
    for (index, entry) in entries.iter().enumerate() {
        if keys.elsewhere.contains(&entry.key.as_str()) || cx.counts_as_absent(&entry.node) {
            continue;
        }
        let Some(field) = field_of(fields, keys, entry, cx) else { continue };
        // The last one of a key decodes all of them.
        if same_key(&entries[index + 1..], entry).next().is_some() {
            continue;
        }
        let earlier: Vec<&Node> = same_key(&entries[..index], entry).collect();
        if entry.node.is_null() {
            field.value.decode_null(&entry.node, cx);
        } else if earlier.is_empty() {
            field.value.decode(&entry.node, cx);
        } else {
            cx.warn(entry.key_place, format!("`{}` is written more than once", entry.key));
            field.value.decode(&joined(&earlier, &entry.node), cx);
        }
    }
}

/// Other values under the key of `entry`; a `null` says nothing.
fn same_key<'a>(entries: &'a [Entry], entry: &Entry) -> impl Iterator<Item = &'a Node> {
    entries
        .iter()
        .filter(move |other| other.key == entry.key && !other.node.is_null())
        .map(|other| &other.node)
}

/// What a repeated key means, as in sing-box: objects add up, and of anything else the last one counts.
fn joined(earlier: &[&Node], last: &Node) -> Node {
    let mut joined = last.clone();
    if let Some(entries) = joined.as_object_mut() {
        let before = earlier.iter().filter_map(|node| node.as_object()).flatten().cloned();
        entries.splice(0..0, before);
    }
    joined
}

fn field_of<'f, 'a>(
    fields: &'f mut [FieldMut<'a>],
    keys: Keys<'_>,
    entry: &Entry,
    cx: &mut Cx<'_>,
) -> Option<&'f mut FieldMut<'a>> {
    if let Some(index) = fields.iter().position(|field| field.key == entry.key) {
        return Some(&mut fields[index]);
    }
    let other_case = fields.iter().position(|field| field.key.eq_ignore_ascii_case(&entry.key));
    if let Some(index) = other_case.filter(|&index| index >= keys.exact) {
        cx.warn(entry.key_place, format!("`{}` is read as `{}`; write it so", entry.key, fields[index].key));
        return Some(&mut fields[index]);
    }
    let known = fields.iter().map(|field| field.key).chain(keys.elsewhere.iter().copied());
    let hint = cx.did_you_mean(&entry.key, known);
    match keys.unknown {
        UnknownKeys::Refuse => cx.error(entry.key_place, format!("unknown field `{}`{hint}", entry.key)),
        UnknownKeys::Warn => {
            cx.warn(entry.key_place, format!("unknown field `{}` is ignored{hint}", entry.key))
        }
    }
    None
}

/// The canonical form: fields in the order of the table, zero values left out.
pub(crate) fn encode(table: &dyn Table) -> Node {
    Value::Object(encode_fields(table)).into()
}

pub(crate) fn encode_fields(table: &dyn Table) -> Vec<Entry> {
    let mut fields = Vec::new();
    table.fields(&mut fields);
    let written = fields.iter().filter(|field| field.flags.keep || !field.value.is_zero());
    let entries = written.map(|field| (field.flags.keep, Entry::new(field.key, field.value.encode())));
    entries.filter(|(keep, entry)| *keep || !is_empty(&entry.node)).map(|(_, entry)| entry).collect()
}

/// Objects and lists without content say nothing, also where an option exists with only zero values in it.
pub(crate) const fn is_empty(node: &Node) -> bool {
    match &node.value {
        Value::Object(entries) => entries.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

pub(crate) fn is_zero(table: &dyn Table) -> bool {
    let mut fields = Vec::new();
    table.fields(&mut fields);
    fields.iter().all(|field| field.value.is_zero())
}

/// Schema entries of a table's options.
pub(crate) fn schema_properties(table: &dyn Table, schema: &mut Schema) -> Vec<Entry> {
    let mut fields = Vec::new();
    table.fields(&mut fields);
    let shown = fields.iter().filter(|field| !field.flags.hidden);
    shown.map(|field| Entry::new(field.key, schema.described(field.value, field.doc))).collect()
}

/// An enum over tables, told apart by a key such as `type`.
pub(crate) trait Kind: Default {
    /// What messages call such an object: `inbound`.
    const NOUN: &'static str;
    /// The name spaces its tag is found in. In the first one it is unique, and there it owns references inside it.
    const SPACES: &'static [Space];
    /// Whether the default kind is meant where no name is given.
    const HAS_DEFAULT: bool;
    /// Every known name with the table it stands for, in the order of the schema.
    fn all() -> Vec<Self>;
    /// The empty table of that name.
    fn from_name(name: &str) -> Option<Self>;
    /// The name of this variant.
    fn name(&self) -> &'static str;
    fn table(&self) -> &dyn Table;
    fn table_mut(&mut self) -> &mut dyn Table;
}

/// Access to the options of one kind by their type.
pub trait KindOf<K>: Sized {
    /// The options, if `kind` is of this kind.
    fn of(kind: &K) -> Option<&Self>;
}

/// `"type": "name"`, unless that kind is meant anyway.
pub(crate) fn encode_kind<K: Kind>(kind: &K, key: &str) -> Option<Entry> {
    let implied = K::HAS_DEFAULT && kind.name() == K::default().name();
    (!implied).then(|| Entry::new(key, Node::string(kind.name())))
}

/// What other programs and people call some types.
const NICKNAMES: [(&str, &str); 14] = [
    ("ss", "shadowsocks"),
    ("socks4", "socks"),
    ("socks5", "socks"),
    ("https", "http"),
    ("hy", "hysteria"),
    ("hy2", "hysteria2"),
    ("wg", "wireguard"),
    ("freedom", "direct"),
    ("blackhole", "block"),
    ("url-test", "urltest"),
    ("select", "selector"),
    ("dokodemo-door", "direct"),
    ("doh", "https"),
    ("dot", "tls"),
];

/// Finds the kind that `key` of an object names. Reports a missing or unknown name.
pub(crate) fn kind_of<K: Kind>(node: &Node, key: &str, cx: &mut Cx<'_>) -> Option<K> {
    let noun = K::NOUN;
    if node.as_object().is_none() {
        cx.expected("an object", node);
        return None;
    }
    let Some(name) = node.get(key).filter(|name| !K::HAS_DEFAULT || name.as_str() != Some("")) else {
        if K::HAS_DEFAULT {
            return Some(K::default());
        }
        cx.error(node.place, format!("this {noun} has no `{key}`"));
        return None;
    };
    let Some(text) = name.as_str() else {
        cx.expected("a string", name);
        return None;
    };
    let kind = K::from_name(text);
    if kind.is_none() {
        let all = K::all();
        let names: Vec<&str> = all.iter().map(K::name).collect();
        let known_as = NICKNAMES.iter().find(|(nickname, name)| *nickname == text && names.contains(name));
        let mut hint = match known_as {
            Some((_, name)) => format!(", did you mean `{name}`?"),
            None => cx.did_you_mean(text, names.iter().copied()),
        };
        if hint.is_empty() {
            hint = format!("; known are {}", names.join(", "));
        }
        cx.error(name.place, format!("unknown {noun} {key} `{text}`{hint}"));
    }
    kind
}

/// An object of one of several types, with a tag to refer to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tagged<K> {
    /// The tag; after loading an object without one has its index in the list.
    pub tag: String,
    /// Its type and the options of that type.
    pub kind: K,
}

impl<K> Tagged<K> {
    /// The options, if this is an object of type `T`.
    #[must_use]
    pub fn of<T: KindOf<K>>(&self) -> Option<&T> {
        T::of(&self.kind)
    }
}

impl<K: Kind> OptionValue for Tagged<K> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        self.decode_item(node, None, cx);
    }

    fn decode_item(&mut self, node: &Node, index: Option<usize>, cx: &mut Cx<'_>) {
        if let Some(tag) = node.get("tag") {
            self.tag.decode(tag, cx);
        }
        let kind = kind_of::<K>(node, "type", cx);
        let tag =
            if self.tag.is_empty() { index.map(|index| index.to_string()) } else { Some(self.tag.clone()) };
        let place = node.get("tag").map_or(node.place, |tag| tag.place);
        let is_index = self.tag.is_empty();
        let definitions = tag.into_iter().flat_map(|tag| {
            let spaces = K::SPACES.iter().enumerate();
            spaces.map(move |(index, &space)| Definition {
                space,
                tag: tag.clone(),
                place,
                is_index,
                is_main: index == 0,
            })
        });
        cx.within(definitions.collect::<Vec<_>>(), |cx| {
            let Some(kind) = kind else { return };
            self.kind = kind;
            let table = self.kind.table_mut();
            let keys = Keys { elsewhere: &["type", "tag"], unknown: table.unknown_keys(), exact: 0 };
            decode_with(table, keys, node, cx);
        });
    }

    fn encode(&self) -> Node {
        let mut entries: Vec<Entry> = encode_kind(&self.kind, "type").into_iter().collect();
        if !self.tag.is_empty() {
            entries.push(Entry::new("tag", Node::string(&*self.tag)));
        }
        entries.extend(encode_fields(self.kind.table()));
        Value::Object(entries).into()
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        schema.kinds::<K>("type", &[("tag", Node::object([("type", Node::string("string"))]))])
    }
}

/// Defines option structs. The syntax is shown at the top of this module.
macro_rules! options {
    ($(
        $(#[doc = $struct_doc:literal])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident : $ty:ty $(= $key:tt)? $([$($flag:ident),*])?
            ),* $(,)?
        }
        $(check = $check:expr;)?
        $(unknown_keys = $unknown:ident;)?
    )*) => {$(
        $(#[doc = $struct_doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $( $(#[doc = $doc])* pub $field: $ty, )*
        }

        impl $crate::table::Table for $name {
            fn name(&self) -> &'static str {
                stringify!($name)
            }

            fn doc(&self) -> &'static str {
                concat!($($struct_doc),*)
            }

            $(
                fn unknown_keys(&self) -> $crate::table::UnknownKeys {
                    $crate::table::UnknownKeys::$unknown
                }
            )?

            fn fields<'a>(&'a self, _out: &mut Vec<$crate::table::Field<'a>>) {
                $( $crate::table::field!(
                    _out, self.$field, $field, [$($key)?], [$($($flag)*)?], concat!($($doc),*)
                ); )*
            }

            fn fields_mut<'a>(&'a mut self, _out: &mut Vec<$crate::table::FieldMut<'a>>) {
                $( $crate::table::field_mut!(_out, self.$field, $field, [$($key)?]); )*
            }

            fn check(&self, _node: &$crate::json::Node, _cx: &mut $crate::cx::Cx<'_>) {
                $( $crate::table::field_check!(self.$field, _node, _cx, [$($key)?]); )*
                $( $check(self, _node, _cx); )?
            }
        }

        impl $crate::value::OptionValue for $name {
            fn decode(&mut self, node: &$crate::json::Node, cx: &mut $crate::cx::Cx<'_>) {
                $crate::table::decode(self, node, cx);
            }

            fn decode_item(
                &mut self,
                node: &$crate::json::Node,
                _index: Option<usize>,
                cx: &mut $crate::cx::Cx<'_>,
            ) {
                if !node.is_null() {
                    self.decode(node, cx);
                }
            }

            fn encode(&self) -> $crate::json::Node {
                $crate::table::encode(self)
            }

            fn is_zero(&self) -> bool {
                $crate::table::is_zero(self)
            }

            fn schema(&self, schema: &mut $crate::schema::Schema) -> $crate::json::Node {
                schema.table(self)
            }
        }
    )*};
}

macro_rules! field {
    ($out:ident, $value:expr, $field:ident, [..], [], $doc:expr) => {
        $crate::table::Table::fields(&$value, $out)
    };
    ($out:ident, $value:expr, $field:ident, [], $flags:tt, $doc:expr) => {
        $crate::table::field!(@push $out, $value, stringify!($field), $flags, $doc)
    };
    ($out:ident, $value:expr, $field:ident, [$key:literal], $flags:tt, $doc:expr) => {
        $crate::table::field!(@push $out, $value, $key, $flags, $doc)
    };
    (@push $out:ident, $value:expr, $key:expr, [$($flag:ident)*], $doc:expr) => {
        $out.push($crate::table::Field {
            key: $key,
            doc: $doc,
            flags: $crate::table::Flags::NONE $(.$flag())*,
            value: &$value,
        })
    };
}

macro_rules! field_mut {
    ($out:ident, $value:expr, $field:ident, [..]) => {
        $crate::table::Table::fields_mut(&mut $value, $out)
    };
    ($out:ident, $value:expr, $field:ident, []) => {
        $out.push($crate::table::FieldMut { key: stringify!($field), value: &mut $value })
    };
    ($out:ident, $value:expr, $field:ident, [$key:literal]) => {
        $out.push($crate::table::FieldMut { key: $key, value: &mut $value })
    };
}

macro_rules! field_check {
    ($value:expr, $node:ident, $cx:ident, [..]) => {
        $crate::table::Table::check(&$value, $node, $cx)
    };
    ($value:expr, $node:ident, $cx:ident, [$($key:literal)?]) => {};
}

/// Defines an enum over option structs: `kinds! { pub enum InboundKind: "inbound" in [Inbound] { .. } }`, where each
/// line reads `Mixed(MixedInbound) = "mixed"`. The first line is the default value; with `in [..], default` it is also
/// what an object without a name means.
macro_rules! kinds {
    (
        $(#[doc = $enum_doc:literal])*
        pub enum $name:ident : $noun:literal in [$($space:ident),*] $(, $default:ident)? {
            $( $(#[doc = $doc:literal])* $variant:ident($table:ty) = $key:literal ),* $(,)?
        }
    ) => {
        $(#[doc = $enum_doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name {
            $( $(#[doc = $doc])* $variant(Box<$table>), )*
        }

        impl $name {
            /// The name of the type, as it stands in a configuration.
            #[must_use]
            pub fn name(&self) -> &'static str {
                $crate::table::Kind::name(self)
            }
        }

        #[allow(clippy::derivable_impls, reason = "the macro cannot mark one repeated variant")]
        impl Default for $name {
            fn default() -> Self {
                $crate::table::first!($( Self::$variant(Box::default()), )*)
            }
        }

        impl $crate::table::Kind for $name {
            const NOUN: &'static str = $noun;
            const SPACES: &'static [$crate::cx::Space] = &[$($crate::cx::Space::$space),*];
            const HAS_DEFAULT: bool = !matches!(stringify!($($default)?).as_bytes(), b"");

            fn all() -> Vec<Self> {
                vec![$( Self::$variant(Box::default()), )*]
            }

            fn from_name(name: &str) -> Option<Self> {
                match name {
                    $( $key => Some(Self::$variant(Box::default())), )*
                    _ => None,
                }
            }

            fn name(&self) -> &'static str {
                match self {
                    $( Self::$variant(_) => $key, )*
                }
            }

            fn table(&self) -> &dyn $crate::table::Table {
                match self {
                    $( Self::$variant(table) => &**table, )*
                }
            }

            fn table_mut(&mut self) -> &mut dyn $crate::table::Table {
                match self {
                    $( Self::$variant(table) => &mut **table, )*
                }
            }
        }

        $(
            impl $crate::table::KindOf<$name> for $table {
                #[allow(unreachable_patterns, reason = "an enum with one variant")]
                fn of(kind: &$name) -> Option<&Self> {
                    match kind {
                        $name::$variant(table) => Some(table),
                        _ => None,
                    }
                }
            }
        )*
    };
}

macro_rules! first {
    ($first:expr, $($rest:tt)*) => {
        $first
    };
}

pub(crate) use {field, field_check, field_mut, first, kinds, options};
