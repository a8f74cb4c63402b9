//! Objects of one of several types that have no tag, such as a transport.

use super::OptionValue;
use crate::cx::Cx;
use crate::json::{Entry, Node, Value};
use crate::schema::Schema;
use crate::table::{self, Keys, Kind};

/// An object whose `type` says which options it has. `{}` is the same as no object.
#[derive(Clone, Debug, PartialEq)]
pub struct Typed<K>(pub Option<K>);

impl<K> Default for Typed<K> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: Kind> OptionValue for Typed<K> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        if node.as_object().is_some_and(<[Entry]>::is_empty) {
            return;
        }
        let Some(mut kind) = table::kind_of::<K>(node, "type", cx) else { return };
        let table = kind.table_mut();
        let keys = Keys { elsewhere: &["type"], unknown: table.unknown_keys(), exact: 0 };
        table::decode_with(table, keys, node, cx);
        self.0 = Some(kind);
    }

    fn encode(&self) -> Node {
        let Some(kind) = &self.0 else { return Node::default() };
        let mut entries = vec![Entry::new("type", Node::string(kind.name()))];
        entries.extend(table::encode_fields(kind.table()));
        Value::Object(entries).into()
    }

    fn is_zero(&self) -> bool {
        self.0.is_none()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        schema.kinds::<K>("type", &[])
    }
}
