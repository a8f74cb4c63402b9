//! Values that are one of a few words.

use super::OptionValue;
use crate::cx::Cx;
use crate::json::Node;
use crate::nearest::did_you_mean;
use crate::schema::Schema;

/// A few words that an option can have, as `choices!` defines them.
pub trait Choice: Copy + PartialEq {
    /// What messages call such a word.
    const NOUN: &'static str;
    /// The words, as they are written.
    const NAMES: &'static [&'static str];
    /// The meaning of a word.
    fn from_name(text: &str) -> Option<Self>;
}

/// One of the words of `T`. sing-box looks at such a word only where the option has an effect, and `format` writes it
/// as it stands; so an unknown one is no error of decoding. Who uses the option calls [`Word::check`].
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Word<T> {
    text: String,
    choice: Option<T>,
}

impl<T: Choice> Word<T> {
    /// What the word means; `None` without a word.
    #[must_use]
    pub const fn get(&self) -> Option<T> {
        self.choice
    }

    /// Reports a word that means nothing. `node` is the object that has the option `key`.
    pub(crate) fn check(&self, key: &str, node: &Node, cx: &mut Cx<'_>) {
        if self.is_unknown() {
            let place = node.get(key).map_or(node.place, |word| word.place);
            cx.error(place, unknown_word::<T>(&self.text));
        }
    }

    /// Warns of a word that means nothing, where sing-box goes on without it.
    pub(crate) fn check_leniently(&self, key: &str, node: &Node, cx: &mut Cx<'_>) {
        if self.is_unknown() {
            let place = node.get(key).map_or(node.place, |word| word.place);
            cx.warn(place, format!("{}; it has no effect", unknown_word::<T>(&self.text)));
        }
    }

    pub(crate) const fn is_unknown(&self) -> bool {
        self.choice.is_none() && !self.text.is_empty()
    }
}

/// Without a word.
impl<T> Default for Word<T> {
    fn default() -> Self {
        Self { text: String::new(), choice: None }
    }
}

impl<T: Choice> OptionValue for Word<T> {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        self.text.decode(node, cx);
        self.choice = T::from_name(&self.text).filter(|_| !self.text.is_empty());
    }

    fn encode(&self) -> Node {
        self.text.encode()
    }

    fn is_zero(&self) -> bool {
        self.text.is_empty()
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::one_of_words(T::NAMES.iter().copied())
    }
}

/// What is wrong with a word that none of `T` is.
pub(crate) fn unknown_word<T: Choice>(text: &str) -> String {
    let known: Vec<&str> = T::NAMES.iter().copied().filter(|name| !name.is_empty()).collect();
    let hint = did_you_mean(text, known.iter().copied());
    format!("unknown {} `{text}`{hint}; known are {}", T::NOUN, known.join(", "))
}

/// Defines an enum over strings: `choices! { pub enum LogLevel: "log level" { Trace = "trace", .. } }`.
///
/// The first line is the default, and the canonical form leaves it out. A line can list further spellings that are
/// accepted, `AsIs = "as_is" | ""`; the first one is written.
macro_rules! choices {
    ($(
        $(#[doc = $enum_doc:literal])*
        pub enum $name:ident : $noun:literal {
            $( $(#[doc = $doc:literal])* $variant:ident = $text:literal $(| $other:literal)* ),* $(,)?
        }
    )*) => {$(
        $(#[doc = $enum_doc])*
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum $name {
            $( $(#[doc = $doc])* $variant, )*
        }

        impl $name {
            /// The spelling in a configuration.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $text, )*
                }
            }
        }

        impl $crate::value::Choice for $name {
            const NOUN: &'static str = $noun;
            const NAMES: &'static [&'static str] = &[$($text),*];

            fn from_name(text: &str) -> Option<Self> {
                match text {
                    $( $text $(| $other)* => Some(Self::$variant), )*
                    _ => None,
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $crate::table::first!($( Self::$variant, )*)
            }
        }

        impl $crate::value::OptionValue for $name {
            fn decode(&mut self, node: &$crate::json::Node, cx: &mut $crate::cx::Cx<'_>) {
                let Some(text) = node.as_str() else {
                    cx.expected("a string", node);
                    return;
                };
                match <Self as $crate::value::Choice>::from_name(text) {
                    Some(value) => *self = value,
                    None => cx.error(node.place, $crate::value::unknown_word::<Self>(text)),
                }
            }

            fn encode(&self) -> $crate::json::Node {
                $crate::json::Node::string(self.name())
            }

            fn is_zero(&self) -> bool {
                *self == Self::default()
            }

            fn schema(&self, _schema: &mut $crate::schema::Schema) -> $crate::json::Node {
                $crate::schema::Schema::one_of_words([$($text $(, $other)*),*])
            }
        }
    )*};
}

pub(crate) use choices;
