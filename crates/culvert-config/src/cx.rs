//! What decoding carries along: the findings, and every tag that was defined or referred to.

use std::path::Path;

use crate::diagnostics::Report;
use crate::json::{Node, Place, Value};
use crate::nearest::did_you_mean;

/// State of decoding one configuration.
pub(crate) struct Cx<'a> {
    /// What was found so far.
    pub(crate) report: Report,
    /// Objects with a tag, in the order of decoding.
    pub(crate) definitions: Vec<Definition>,
    /// Options that name a tag.
    pub(crate) references: Vec<Reference>,
    /// The files options point to; `None` where options are only decoded, not checked.
    files: Option<&'a dyn Files>,
    owner: Option<usize>,
    empties_are_absent: bool,
}

/// Reads the files that options name, so that tests decide what exists.
pub trait Files {
    /// The content of the file at `path`; a relative path starts at the working directory of the process.
    ///
    /// # Errors
    /// Whatever the system says.
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>>;
}

/// The real file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFiles;

impl Files for SystemFiles {
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        std::fs::read(path)
    }
}

/// A name space of tags.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Space {
    /// Inbounds, and endpoints seen as inbounds.
    Inbound,
    /// Outbounds and endpoints together.
    Outbound,
    /// Endpoints alone.
    Endpoint,
    DnsServer,
    RuleSet,
    HttpClient,
    CertificateProvider,
    Namespace,
    Service,
}

impl Space {
    /// The name in messages.
    pub(crate) const fn noun(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound or endpoint",
            Self::Endpoint => "endpoint",
            Self::DnsServer => "DNS server",
            Self::RuleSet => "rule-set",
            Self::HttpClient => "HTTP client",
            Self::CertificateProvider => "certificate provider",
            Self::Namespace => "network namespace",
            Self::Service => "service",
        }
    }

    /// The value of `x-tag-reference` in the schema.
    pub(crate) const fn schema_name(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
            Self::Endpoint => "endpoint",
            Self::DnsServer => "dns_server",
            Self::RuleSet => "rule_set",
            Self::HttpClient => "http_client",
            Self::CertificateProvider => "certificate_provider",
            Self::Namespace => "network_namespace",
            Self::Service => "service",
        }
    }
}

/// An object that others can refer to.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    pub(crate) space: Space,
    /// The tag, or the index in its list where the object has none.
    pub(crate) tag: String,
    /// Where the tag stands, or the object without one.
    pub(crate) place: Place,
    /// Whether nobody wrote the tag: it is the index.
    pub(crate) is_index: bool,
    /// Whether the tag has to be unique there. An endpoint is found where an inbound is looked for, but may share its
    /// tag with one.
    pub(crate) is_main: bool,
}

/// A mention of a tag.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    pub(crate) space: Space,
    pub(crate) tag: String,
    pub(crate) place: Place,
    /// What to say when nothing has that tag.
    pub(crate) missing: Missing,
    /// Index of the definition inside which it stands.
    pub(crate) owner: Option<usize>,
}

/// What a reference to nothing means.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Missing {
    /// The configuration cannot run.
    Error,
    /// sing-box starts all the same and fails later; so it is accepted, but said.
    Warning,
    /// The text need not be a tag at all.
    Fine,
}

impl<'a> Cx<'a> {
    /// For looking at everything; option checks may read `files`.
    pub(crate) fn checking(files: &'a dyn Files) -> Self {
        Self { files: Some(files), ..Self::decoding() }
    }

    /// For types and values only, as `format` and `merge` need it.
    pub(crate) fn decoding() -> Self {
        Self {
            report: Report::default(),
            definitions: vec![],
            references: vec![],
            files: None,
            owner: None,
            empties_are_absent: false,
        }
    }

    /// A sentence end that proposes the name nearest to `word`. It costs a look at all names, so that a configuration
    /// with very many mistakes gets it for the first ones only.
    pub(crate) fn did_you_mean<'n>(&self, word: &str, names: impl IntoIterator<Item = &'n str>) -> String {
        if self.report.is_full() { String::new() } else { did_you_mean(word, names) }
    }

    pub(crate) fn error(&mut self, place: Place, message: impl Into<String>) {
        self.report.error(place, message);
    }

    pub(crate) fn warn(&mut self, place: Place, message: impl Into<String>) {
        self.report.warn(place, message);
    }

    /// Reports that `node` is of the wrong JSON kind.
    pub(crate) fn expected(&mut self, wanted: &str, node: &Node) {
        self.error(node.place, format!("expected {wanted}, found {}", node.kind()));
    }

    /// Whether semantic checks are wanted.
    pub(crate) const fn is_checking(&self) -> bool {
        self.files.is_some()
    }

    /// Reads a file an option at `place` names. Reports why it cannot be read; `None` also without checking.
    pub(crate) fn read_file(&mut self, place: Place, path: &str) -> Option<Vec<u8>> {
        match self.files?.read(Path::new(path)) {
            Ok(content) => Some(content),
            Err(error) => {
                self.error(place, format!("cannot read `{path}`: {error}"));
                None
            }
        }
    }

    /// Notes an object with a tag and decodes it with `decode`; references found meanwhile belong to it.
    pub(crate) fn within(
        &mut self,
        definitions: impl IntoIterator<Item = Definition>,
        decode: impl FnOnce(&mut Self),
    ) {
        let first = self.definitions.len();
        self.definitions.extend(definitions);
        let outer = self.owner;
        if self.definitions.len() > first {
            self.owner = Some(first);
        }
        self.without_empties(decode);
        self.owner = outer;
    }

    /// Decodes an object that sing-box takes through an intermediate form in which empty lists and objects get lost.
    /// Inside they count as absent, whatever their key.
    pub(crate) fn without_empties(&mut self, decode: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.empties_are_absent, true);
        decode(self);
        self.empties_are_absent = outer;
    }

    /// Whether a value is lost as [`Self::without_empties`] says.
    pub(crate) fn counts_as_absent(&self, node: &Node) -> bool {
        self.empties_are_absent && is_empty_throughout(node)
    }

    pub(crate) fn refer(&mut self, space: Space, tag: &str, place: Place, missing: Missing) {
        self.references.push(Reference { space, tag: tag.to_owned(), place, missing, owner: self.owner });
    }
}

/// Whether there is nothing in a list or object but further empty ones.
fn is_empty_throughout(node: &Node) -> bool {
    match &node.value {
        Value::Array(items) => items.iter().all(is_empty_throughout),
        Value::Object(entries) => entries.iter().all(|entry| is_empty_throughout(&entry.node)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
