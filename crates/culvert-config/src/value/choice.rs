//! Values that are one of a few words.

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
            const NAMES: &'static [&'static str] = &[$($text),*];

            /// The spelling in a configuration.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $text, )*
                }
            }

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
                match Self::from_name(text) {
                    Some(value) => *self = value,
                    None => {
                        let known: Vec<&str> = Self::NAMES.iter().copied().filter(|name| !name.is_empty()).collect();
                        let (hint, known) = ($crate::nearest::did_you_mean(text, known.iter().copied()), known.join(", "));
                        cx.error(node.place, format!(concat!("unknown ", $noun, " `{}`{}; known are {}"), text, hint, known));
                    }
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
