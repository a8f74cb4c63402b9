//! JSON as sing-box writes it: a tree that remembers where everything stood, its comments and its number texts.
//!
//! Beyond RFC 8259 the reader takes `//`, `#` and `/* */` comments and trailing commas. Duplicate keys are kept in
//! order; what they mean is up to the decoder. Left out on purpose: a byte order mark, single quotes, bare keys.

mod read;
mod write;

pub(crate) use read::{SyntaxError, read};
pub(crate) use write::{write, write_line};

/// Where something stands: which of the loaded files, and at which byte of it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Place {
    /// Index into the list of sources.
    pub(crate) source: u32,
    /// Offset in bytes from the start of that source.
    pub(crate) offset: u32,
}

/// One JSON value with its place and the comments around it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: Place,
    comments: Option<Box<Comments>>,
}

/// What a [`Node`] holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Value {
    #[default]
    Null,
    Bool(bool),
    /// The text of the number, so that nothing is lost by reading it.
    Number(String),
    String(String),
    Array(Vec<Node>),
    Object(Vec<Entry>),
}

/// One `"key": value` of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_place: Place,
    pub(crate) node: Node,
}

/// Comments that belong to one value, each with its own delimiters and without a line end.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Comments {
    /// On lines of their own before the value (or before its key).
    pub(crate) before: Vec<String>,
    /// On the line where the value ends.
    pub(crate) after: Vec<String>,
    /// Inside a container, behind its last child.
    pub(crate) end: Vec<String>,
    /// On lines below the document.
    pub(crate) below: Vec<String>,
}

/// Two nodes are equal when their values are; places and comments do not count.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Node {
    /// A node that was not read from a file, or that stands in for what was read at `place`.
    pub(crate) const fn new(value: Value, place: Place) -> Self {
        Self { value, place, comments: None }
    }

    pub(crate) fn string(text: impl Into<String>) -> Self {
        Value::String(text.into()).into()
    }

    pub(crate) fn number(number: impl ToString) -> Self {
        Value::Number(number.to_string()).into()
    }

    pub(crate) fn bool(value: bool) -> Self {
        Value::Bool(value).into()
    }

    pub(crate) fn array(items: impl IntoIterator<Item = Self>) -> Self {
        Value::Array(items.into_iter().collect()).into()
    }

    pub(crate) fn object<K: Into<String>>(entries: impl IntoIterator<Item = (K, Self)>) -> Self {
        Value::Object(entries.into_iter().map(|(key, node)| Entry::new(key, node)).collect()).into()
    }

    /// The same value, said to stand at `place` together with everything below it that was not read from a file.
    pub(crate) fn at(mut self, place: Place) -> Self {
        self.place = place;
        self.place_children();
        self
    }

    fn place_children(&mut self) {
        let own = self.place;
        let settle = |node: &mut Self| {
            // Only the root of the first file stands at the default place, and that is nobody's child.
            if node.place == Place::default() {
                node.place = own;
            }
            node.place_children();
        };
        match &mut self.value {
            Value::Array(items) => items.iter_mut().for_each(settle),
            Value::Object(entries) => {
                for entry in entries {
                    if entry.key_place == Place::default() {
                        entry.key_place = own;
                    }
                    settle(&mut entry.node);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    pub(crate) const fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_bool(&self) -> Option<bool> {
        match self.value {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn as_array(&self) -> Option<&[Self]> {
        match &self.value {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    pub(crate) fn as_array_mut(&mut self) -> Option<&mut Vec<Self>> {
        match &mut self.value {
            Value::Array(items) => Some(items),
            _ => None,
        }
    }

    pub(crate) fn as_object(&self) -> Option<&[Entry]> {
        match &self.value {
            Value::Object(entries) => Some(entries),
            _ => None,
        }
    }

    pub(crate) fn as_object_mut(&mut self) -> Option<&mut Vec<Entry>> {
        match &mut self.value {
            Value::Object(entries) => Some(entries),
            _ => None,
        }
    }

    /// The entry of that exact key; of several, the last, which is the one that counts.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.as_object()?.iter().rfind(|entry| entry.key == key)
    }

    /// The value under that exact key, unless it is `null`.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|entry| &entry.node).filter(|node| !node.is_null())
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let entries = self.as_object_mut()?;
        entries
            .iter_mut()
            .rfind(|entry| entry.key == key && !entry.node.is_null())
            .map(|entry| &mut entry.node)
    }

    /// Takes every entry of that key out of the object and gives the last one.
    pub(crate) fn remove(&mut self, key: &str) -> Option<Entry> {
        let mut last = None;
        for entry in self.as_object_mut()?.extract_if(.., |entry| entry.key == key) {
            last = Some(entry);
        }
        last
    }

    /// Puts `node` under `key`, in place of what was there.
    pub(crate) fn set(&mut self, key: &str, node: Self) {
        let place = self.place;
        let Some(entries) = self.as_object_mut() else { return };
        match entries.iter_mut().rfind(|entry| entry.key == key) {
            Some(entry) => entry.node = node,
            None => entries.push(Entry { key: key.to_owned(), key_place: place, node }),
        }
    }

    /// The items of a list, or the value itself where a single one may stand for a list.
    pub(crate) fn items(&self) -> &[Self] {
        match &self.value {
            Value::Null => &[],
            Value::Array(items) => items,
            _ => std::slice::from_ref(self),
        }
    }

    /// The texts under `key`, where one text may stand for a list.
    pub(crate) fn texts(&self, key: &str) -> Vec<String> {
        let items = self.get(key).map_or(&[][..], Self::items);
        items.iter().filter_map(Self::as_str).map(str::to_owned).collect()
    }

    /// Whether sing-box takes the value for "not set".
    pub(crate) fn is_zero(&self) -> bool {
        match &self.value {
            Value::Null => true,
            Value::Bool(value) => !value,
            Value::Number(text) => text.parse() == Ok(0.0),
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(entries) => entries.is_empty(),
        }
    }

    /// The value under `key` in an object, made by `default` at the object's place if there is none.
    pub(crate) fn get_or_insert(&mut self, key: &str, default: Value) -> Option<&mut Self> {
        let place = self.place;
        self.get(key).is_none().then(|| self.remove(key));
        let entries = self.as_object_mut()?;
        let index = entries.iter().rposition(|entry| entry.key == key).unwrap_or_else(|| {
            entries.push(Entry { key: key.to_owned(), key_place: place, node: Self::new(default, place) });
            entries.len() - 1
        });
        Some(&mut entries[index].node)
    }

    /// Where the value under `key` stands, or the whole object if it has no such key.
    pub(crate) fn place_of(&self, key: &str) -> Place {
        self.entry(key).map_or(self.place, |entry| entry.key_place)
    }

    /// The node at a path such as `outbounds[0].tls`.
    pub(crate) fn at_path(&self, path: &str) -> Option<&Self> {
        let mut node = self;
        for step in path.split('.') {
            let (key, indices) = step.split_at(step.find('[').unwrap_or(step.len()));
            node = node.get(key)?;
            for index in indices.split_terminator(']') {
                node = node.as_array()?.get(index.strip_prefix('[')?.parse::<usize>().ok()?)?;
            }
        }
        Some(node)
    }

    /// What kind of value this is, with its article, for messages.
    pub(crate) const fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        }
    }

    pub(crate) fn comments(&self) -> Option<&Comments> {
        self.comments.as_deref()
    }

    /// The comments of this node, to add to.
    pub(crate) fn comments_mut(&mut self) -> &mut Comments {
        self.comments.get_or_insert_default()
    }

    pub(crate) fn take_comments(&mut self) -> Comments {
        self.comments.take().map(|own| *own).unwrap_or_default()
    }

    /// Every comment on and below this node, in the order of the file.
    pub(crate) fn take_all_comments(&mut self) -> Vec<String> {
        let own = self.take_comments();
        let mut all = own.before;
        match &mut self.value {
            Value::Array(items) => all.extend(items.iter_mut().flat_map(Self::take_all_comments)),
            Value::Object(entries) => {
                all.extend(entries.iter_mut().flat_map(|entry| entry.node.take_all_comments()));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        all.extend(own.end);
        all.extend(own.after);
        all
    }
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        Self::new(value, Place::default())
    }
}

impl Entry {
    pub(crate) fn new(key: impl Into<String>, node: Node) -> Self {
        Self { key: key.into(), key_place: Place::default(), node }
    }
}
