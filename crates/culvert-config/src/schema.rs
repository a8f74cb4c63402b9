//! JSON Schema (2020-12) of the whole configuration, made from the option tables.

use std::collections::BTreeMap;

use crate::cx::Space;
use crate::json::{Entry, Node, Value};
use crate::table::{Kind, Table, schema_properties};
use crate::value::OptionValue;

/// A schema while it is made: the definitions found so far.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    /// `None` while a definition is being made, so that recursive tables end.
    definitions: BTreeMap<&'static str, Option<Node>>,
}

impl Schema {
    /// The whole document for a root table.
    pub(crate) fn document(root: &dyn Table) -> Node {
        let mut schema = Self::default();
        let mut document = schema.object_of(root);
        let definitions = schema.definitions.into_iter();
        let definitions = Node::object(definitions.map(|(name, node)| (name, node.unwrap_or_default())));
        if let Some(entries) = document.as_object_mut() {
            let dialect = Node::string("https://json-schema.org/draft/2020-12/schema");
            entries.insert(0, Entry::new("$schema", dialect));
            entries.push(Entry::new("$defs", definitions));
        }
        document
    }

    /// A reference to the definition of a table, which is made when first needed.
    pub(crate) fn table(&mut self, table: &dyn Table) -> Node {
        self.define(table.name(), |schema| schema.object_of(table))
    }

    /// A reference to a definition that is the same wherever it is used.
    pub(crate) fn shared(&mut self, name: &'static str, make: impl FnOnce() -> Node) -> Node {
        self.define(name, |_| make())
    }

    /// A reference to the definition `name`, made by `make` when first needed.
    pub(crate) fn define(&mut self, name: &'static str, make: impl FnOnce(&mut Self) -> Node) -> Node {
        if !self.definitions.contains_key(name) {
            self.definitions.insert(name, None);
            let node = make(self);
            self.definitions.insert(name, Some(node));
        }
        Node::object([("$ref", Node::string(format!("#/$defs/{name}")))])
    }

    /// One object per kind, told apart by a constant under `key`, with `common` properties behind it.
    pub(crate) fn kinds<K: Kind>(&mut self, key: &str, common: &[(&str, Node)]) -> Node {
        let variants = K::all();
        Self::one_of(variants.iter().map(|kind| {
            let mut properties = vec![Entry::new(key, Self::constant(kind.name()))];
            properties.extend(common.iter().map(|(key, node)| Entry::new(*key, node.clone())));
            properties.extend(schema_properties(kind.table(), self));
            let description = describe(kind.table().doc());
            let implied = K::HAS_DEFAULT && kind.name() == K::default().name();
            Self::object(properties, description, (!implied).then_some(key))
        }))
    }

    /// What a value's schema says, with the doc comment of its option as description.
    pub(crate) fn described(&mut self, value: &dyn OptionValue, doc: &str) -> Node {
        let mut node = value.schema(self);
        if let (Some(text), Some(entries)) = (describe(doc), node.as_object_mut()) {
            entries.push(Entry::new("description", Node::string(text)));
        }
        node
    }

    pub(crate) fn typed(name: &str) -> Node {
        Node::object([("type", Node::string(name))])
    }

    pub(crate) fn integer(min: impl ToString, max: impl ToString) -> Node {
        Node::object([
            ("type", Node::string("integer")),
            ("minimum", Node::number(min)),
            ("maximum", Node::number(max)),
        ])
    }

    pub(crate) fn constant(word: &str) -> Node {
        Node::object([("const", Node::string(word))])
    }

    pub(crate) fn one_of_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Node {
        Node::object([
            ("type", Node::string("string")),
            ("enum", Node::array(words.into_iter().map(Node::string))),
        ])
    }

    pub(crate) fn list(item: Node) -> Node {
        Node::object([("type", Node::string("array")), ("items", item)])
    }

    pub(crate) fn any_of(forms: impl IntoIterator<Item = Node>) -> Node {
        Node::object([("anyOf", Node::array(forms))])
    }

    pub(crate) fn one_of(forms: impl IntoIterator<Item = Node>) -> Node {
        Node::object([("oneOf", Node::array(forms))])
    }

    /// A reference to a tagged object.
    pub(crate) fn tag(space: Space) -> Node {
        Node::object([
            ("type", Node::string("string")),
            ("x-tag-reference", Node::string(space.schema_name())),
        ])
    }

    /// An object with exactly these properties.
    pub(crate) fn object<'a>(
        properties: Vec<Entry>,
        description: Option<String>,
        required: impl IntoIterator<Item = &'a str>,
    ) -> Node {
        let mut object = Self::open_object(properties, description, required);
        if let Some(entries) = object.as_object_mut() {
            entries.push(Entry::new("additionalProperties", Node::bool(false)));
        }
        object
    }

    /// An object with these properties, for parts that together make up a whole; see [`Self::all_of`].
    pub(crate) fn open_object<'a>(
        properties: Vec<Entry>,
        description: Option<String>,
        required: impl IntoIterator<Item = &'a str>,
    ) -> Node {
        let required: Vec<Node> = required.into_iter().map(Node::string).collect();
        let mut entries = vec![Entry::new("type", Node::string("object"))];
        entries.extend(description.map(|text| Entry::new("description", Node::string(text))));
        entries.push(Entry::new("properties", Value::Object(properties).into()));
        if !required.is_empty() {
            entries.push(Entry::new("required", Node::array(required)));
        }
        Value::Object(entries).into()
    }

    /// An object whose properties are those of all parts.
    pub(crate) fn all_of(parts: impl IntoIterator<Item = Node>) -> Node {
        Node::object([
            ("type", Node::string("object")),
            ("allOf", Node::array(parts)),
            ("unevaluatedProperties", Node::bool(false)),
        ])
    }

    fn object_of(&mut self, table: &dyn Table) -> Node {
        let properties = schema_properties(table, self);
        Self::object(properties, describe(table.doc()), [])
    }
}

/// A doc comment as one line of text.
fn describe(doc: &str) -> Option<String> {
    let text = doc.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    #[test]
    fn every_reference_leads_to_a_definition() {
        let document = Schema::document(&Options::default());
        let definitions = document.get("$defs").expect("there are definitions");
        let mut references = 0;
        visit(&document, &mut |node| {
            if let Some(target) = node.get("$ref").and_then(Node::as_str) {
                let name = target.strip_prefix("#/$defs/").expect("a definition of this document");
                assert!(definitions.get(name).is_some_and(|found| !found.is_zero()), "{name}");
                references += 1;
            }
        });
        assert!(references > 100, "{references}");
    }

    #[test]
    fn tags_and_descriptions_are_told() {
        let document = Schema::document(&Options::default());
        let route =
            document.get("$defs").and_then(|defs| defs.get("RouteOptions")).expect("the route section");
        let last =
            route.get("properties").and_then(|properties| properties.get("final")).expect("its last resort");
        assert_eq!(last.get("x-tag-reference").and_then(Node::as_str), Some("outbound"));
        assert!(
            last.get("description")
                .and_then(Node::as_str)
                .is_some_and(|text| text.starts_with("Outbound when"))
        );
        assert!(
            route.get("properties").is_some_and(|properties| properties.get("geoip").is_none()),
            "hidden"
        );
    }

    fn visit(node: &Node, look: &mut impl FnMut(&Node)) {
        look(node);
        match &node.value {
            Value::Array(items) => items.iter().for_each(|item| visit(item, look)),
            Value::Object(entries) => entries.iter().for_each(|entry| visit(&entry.node, look)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}
