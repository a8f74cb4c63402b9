//! Values made of values: lists, optional values, maps.

use std::ops::Deref;

use super::OptionValue;
use crate::cx::Cx;
use crate::json::{Entry, Node, Value};
use crate::schema::Schema;
use crate::table;

/// A list that may be written as a single value; canonical output does so when there is exactly one item.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct List<T>(pub Vec<T>);

/// Header names with their values.
pub type Headers = SortedMap<List<String>>;

/// A [`Map`] that is sorted by key, as their order means nothing.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct SortedMap<V>(pub Map<V>);

/// An object with free keys, in the order of the file.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Map<V>(pub Vec<(String, V)>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'a, T> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self(items.into_iter().collect())
    }
}

impl<V> Default for Map<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V> Deref for Map<V> {
    type Target = [(String, V)];

    fn deref(&self) -> &[(String, V)] {
        &self.0
    }
}

impl<V> Default for SortedMap<V> {
    fn default() -> Self {
        Self(Map::default())
    }
}

impl<V> Deref for SortedMap<V> {
    type Target = [(String, V)];

    fn deref(&self) -> &[(String, V)] {
        &self.0
    }
}

impl<T: OptionValue + Default> OptionValue for List<T> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        match &node.value {
            Value::Array(_) => self.0.decode(node, cx),
            _ => {
                let mut item = T::default();
                item.decode(node, cx);
                self.0 = vec![item];
            }
        }
    }

    fn decode_null(&mut self, _node: &Node, _cx: &mut Cx<'_>) {
        self.0.clear();
    }

    fn encode(&self) -> Node {
        match self.0.as_slice() {
            [item] => item.encode(),
            _ => self.0.encode(),
        }
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let item = T::default().schema(schema);
        let list = Schema::list(item.clone());
        Schema::any_of([item, list])
    }
}

impl<T: OptionValue + Default> OptionValue for Vec<T> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(items) = node.as_array() else {
            cx.expected("a list", node);
            return;
        };
        self.clear();
        for (index, node) in items.iter().enumerate() {
            let mut item = T::default();
            item.decode_item(node, Some(index), cx);
            self.push(item);
        }
    }

    fn decode_null(&mut self, _node: &Node, _cx: &mut Cx<'_>) {
        self.clear();
    }

    /// An empty list that has to be written shows as `null`.
    fn encode(&self) -> Node {
        if self.is_empty() { Node::default() } else { Node::array(self.iter().map(T::encode)) }
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        Schema::list(T::default().schema(schema))
    }
}

impl<T: OptionValue + Default> OptionValue for Option<T> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let mut value = self.take().unwrap_or_default();
        value.decode(node, cx);
        // An object that says nothing is as good as none; the canonical form leaves it out, too.
        let says_nothing = node.as_object().is_some() && table::is_empty(&value.encode());
        *self = (!says_nothing).then_some(value);
    }

    fn encode(&self) -> Node {
        self.as_ref().map_or_else(Node::default, T::encode)
    }

    fn is_zero(&self) -> bool {
        self.is_none()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        T::default().schema(schema)
    }
}

impl<T: OptionValue> OptionValue for Box<T> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        (**self).decode(node, cx);
    }

    fn decode_item(&mut self, node: &Node, index: Option<usize>, cx: &mut Cx<'_>) {
        (**self).decode_item(node, index, cx);
    }

    fn decode_null(&mut self, node: &Node, cx: &mut Cx<'_>) {
        (**self).decode_null(node, cx);
    }

    fn encode(&self) -> Node {
        (**self).encode()
    }

    fn is_zero(&self) -> bool {
        (**self).is_zero()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        (**self).schema(schema)
    }
}

impl<V: OptionValue + Default> OptionValue for Map<V> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let Some(entries) = node.as_object() else {
            cx.expected("an object", node);
            return;
        };
        for Entry { key, node, .. } in entries {
            let mut value = V::default();
            if !node.is_null() {
                value.decode(node, cx);
            }
            self.0.retain(|(known, _)| known != key);
            self.0.push((key.clone(), value));
        }
    }

    fn encode(&self) -> Node {
        Node::object(self.0.iter().map(|(key, value)| (key.as_str(), value.encode())))
    }

    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let value = V::default().schema(schema);
        Node::object([("type", Node::string("object")), ("additionalProperties", value)])
    }
}

impl<V: OptionValue + Default> OptionValue for SortedMap<V> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        self.0.decode(node, cx);
        self.0.0.sort_by(|(one, _), (other, _)| one.cmp(other));
    }

    fn encode(&self) -> Node {
        self.0.encode()
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        self.0.schema(schema)
    }
}
