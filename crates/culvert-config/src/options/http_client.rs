//! `http_clients`, and the places that name one or describe their own.

use super::dial::DialOptions;
use super::http_fields::QuicOptions;
use super::tls::{Need, OutboundTls};
use crate::cx::{Cx, Definition, Space};
use crate::json::{Entry, Node, Value};
use crate::schema::Schema;
use crate::table::{self, Keys, Table, UnknownKeys, options};
use crate::value::{Headers, HttpClientTag, OptionValue, Word, choices};

/// An HTTP client that others can refer to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaggedHttpClient {
    /// The tag.
    pub tag: String,
    /// How it works.
    pub options: HttpClientOptions,
}

/// The tag of an HTTP client, or a client described in place.
#[derive(Clone, Debug, PartialEq)]
pub enum HttpClientReference {
    /// One of `http_clients`.
    Tag(HttpClientTag),
    /// A client of its own.
    Inline(Box<HttpClientOptions>),
}

options! {
    /// How an HTTP client works.
    pub struct HttpClientOptions {
        /// Which HTTP library is used.
        engine: Word<HttpEngine>,
        /// Highest version of HTTP.
        version: HttpVersion [keep],
        /// Fails where the server does not speak that version.
        disable_version_fallback: bool,
        /// Further request headers; `Host` sets the host that is asked for.
        headers: Headers,
        /// TLS towards servers.
        tls: Option<Box<OutboundTls>>,
        /// How to dial.
        dial: DialOptions = ..,
        /// Limits; of these, version 1 has none and version 2 those of HTTP/2.
        quic: QuicOptions = ..,
    }
    check = HttpClientOptions::check_parts;
}

choices! {
    /// An HTTP library.
    pub enum HttpEngine: "HTTP engine" {
        /// Our own.
        Own = "go",
        /// The one of macOS and iOS.
        Apple = "apple",
    }
}

/// Version of HTTP, written as a number; 0 is the same as 2.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum HttpVersion {
    /// HTTP/1.1.
    V1,
    /// HTTP/2.
    #[default]
    V2,
    /// HTTP/3.
    V3,
}

impl HttpClientOptions {
    /// Keys without meaning for the version.
    fn foreign_keys(&self) -> &'static [&'static str] {
        const ALL: [&str; 7] = [
            "initial_packet_size",
            "disable_path_mtu_discovery",
            "idle_timeout",
            "keep_alive_period",
            "stream_receive_window",
            "connection_receive_window",
            "max_concurrent_streams",
        ];
        match self.version {
            HttpVersion::V1 => &ALL,
            HttpVersion::V2 => &ALL[..2],
            HttpVersion::V3 => &[],
        }
    }

    fn check_parts(&self, node: &Node, cx: &mut Cx<'_>) {
        for key in self.foreign_keys().iter().filter(|key| node.get(key).is_some()) {
            let version = self.version.number();
            cx.error(
                node.place_of(key),
                format!("an HTTP client of version {version} has no option `{key}`"),
            );
        }
        self.engine.check("engine", node, cx);
        if self.engine.get() == Some(HttpEngine::Apple) && !cfg!(target_vendor = "apple") {
            cx.error(node.place_of("engine"), "this HTTP engine only exists on Apple systems");
        }
        // The name to verify is that of the server asked, whoever that will be.
        const ANY_SERVER: &str = "*";
        OutboundTls::check(self.tls.as_deref(), Need::Implied, ANY_SERVER, node, cx);
    }
}

impl HttpVersion {
    const fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }
}

impl Default for HttpClientReference {
    fn default() -> Self {
        Self::Tag(HttpClientTag::default())
    }
}

impl OptionValue for HttpVersion {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let mut number = 0_u8;
        number.decode(node, cx);
        *self = match number {
            0 | 2 => Self::V2,
            1 => Self::V1,
            3 => Self::V3,
            _ => {
                cx.error(node.place, format!("unknown HTTP version {number}; known are 1, 2, 3"));
                return;
            }
        };
    }

    fn encode(&self) -> Node {
        Node::number(self.number())
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, _schema: &mut Schema) -> Node {
        Schema::integer(0, 3)
    }
}

impl OptionValue for TaggedHttpClient {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let place = node.get("tag").map_or(node.place, |tag| tag.place);
        if let Some(tag) = node.get("tag") {
            self.tag.decode(tag, cx);
        }
        if self.tag.is_empty() {
            cx.error(place, "an HTTP client needs a `tag`");
        }
        let definition = Definition {
            space: Space::HttpClient,
            tag: self.tag.clone(),
            place,
            is_index: false,
            is_main: true,
        };
        cx.within([definition], |cx| {
            let keys = Keys { elsewhere: &["tag"], unknown: UnknownKeys::Refuse, exact: Keys::ALL };
            table::decode_with(&mut self.options, keys, node, cx);
        });
    }

    fn encode(&self) -> Node {
        let mut entries = vec![Entry::new("tag", Node::string(&*self.tag))];
        entries.extend(table::encode_fields(&self.options));
        Value::Object(entries).into()
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let mut properties = vec![Entry::new("tag", Schema::typed("string"))];
        properties.extend(table::schema_properties(&self.options, schema));
        Schema::object(properties, None, ["tag"])
    }
}

impl OptionValue for HttpClientReference {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        if node.as_str().is_some() {
            let mut tag = HttpClientTag::default();
            tag.decode(node, cx);
            *self = Self::Tag(tag);
        } else if node.as_object().is_some() {
            let mut options = Box::<HttpClientOptions>::default();
            // A tag is read and forgotten, as nothing could refer to it.
            let keys = Keys { elsewhere: &["tag"], unknown: options.unknown_keys(), exact: Keys::ALL };
            table::decode_with(&mut *options, keys, node, cx);
            *self = Self::Inline(options);
        } else {
            cx.expected("the tag of an HTTP client or an object", node);
        }
    }

    fn encode(&self) -> Node {
        match self {
            Self::Tag(tag) => tag.encode(),
            Self::Inline(options) => options.encode(),
        }
    }

    fn is_zero(&self) -> bool {
        match self {
            Self::Tag(tag) => tag.is_zero(),
            Self::Inline(_) => false,
        }
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let forms = [HttpClientTag::default().schema(schema), HttpClientOptions::default().schema(schema)];
        Schema::any_of(forms)
    }
}
