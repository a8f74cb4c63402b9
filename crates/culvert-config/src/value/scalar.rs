//! The plain JSON types: booleans, integers, strings. Nothing is converted from one to the other.

use super::OptionValue;
use crate::cx::Cx;
use crate::json::{Node, Value};
use crate::schema::Schema;

impl OptionValue for bool {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        match node.as_bool() {
            Some(value) => *self = value,
            None => cx.expected("true or false", node),
        }
    }

    fn encode(&self) -> Node {
        Node::bool(*self)
    }

    fn is_zero(&self) -> bool {
        !*self
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::typed("boolean")
    }
}

impl OptionValue for String {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        match node.as_str() {
            Some(text) => text.clone_into(self),
            None => cx.expected("a string", node),
        }
    }

    fn decode_item(&mut self, node: &Node, _index: Option<usize>, cx: &mut Cx<'_>) {
        if !node.is_null() {
            self.decode(node, cx);
        }
    }

    fn encode(&self) -> Node {
        Node::string(self.as_str())
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::typed("string")
    }
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl OptionValue for $int {
            fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
                let Some(value) = decode_integer(node, cx) else { return };
                match Self::try_from(value) {
                    Ok(value) => *self = value,
                    Err(_) => {
                        let (min, max) = (Self::MIN, Self::MAX);
                        cx.error(node.place, format!("{value} is out of range, which is {min} to {max}"));
                    }
                }
            }

            fn encode(&self) -> Node {
                Node::number(self)
            }

            fn is_zero(&self) -> bool {
                *self == 0
            }

            fn schema(&self, _schema: &mut Schema) -> Node {
                Schema::integer(Self::MIN, Self::MAX)
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, i32, i64);

/// A number without a fraction; `80.0` and `1e2` count as such.
pub(super) fn decode_integer(node: &Node, cx: &mut Cx<'_>) -> Option<i128> {
    let Value::Number(text) = &node.value else {
        cx.expected("a number", node);
        return None;
    };
    let value = integer(text);
    if value.is_none() {
        cx.error(node.place, format!("expected a whole number, found {text}"));
    }
    value
}

fn integer(text: &str) -> Option<i128> {
    if let Ok(value) = text.parse() {
        return Some(value);
    }
    let value: f64 = text.parse().ok()?;
    let exact = value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0;
    exact.then_some(value as i128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_fraction_are_integers() {
        assert_eq!(integer("80.0"), Some(80));
        assert_eq!(integer("1e2"), Some(100));
        assert_eq!(integer("-7"), Some(-7));
        assert_eq!(integer("5.5"), None);
        assert_eq!(integer("1e400"), None);
    }
}
