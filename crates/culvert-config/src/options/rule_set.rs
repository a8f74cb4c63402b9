//! `route.rule_set`: named sets of conditions, inline, in a file or fetched.

use super::dial::InterfaceType;
use super::http_client::HttpClientReference;
use super::rule::{Condition, Match, check_no_empty_item};
use crate::cx::{Cx, Definition, Space};
use crate::json::{self, Entry, Node, Place, Value};
use crate::schema::Schema;
use crate::table::{self, Keys, Kind, UnknownKeys, kinds, options};
use crate::value::{Cidr, Dur, List, Map, OptionValue, OutboundTag, Pattern, PortRange, Subnet, choices};

/// A rule-set, or with several tags one for each of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleSet {
    /// Its tags. With more than one, `{tag}` in the path or URL stands for each of them.
    pub tags: List<String>,
    /// Where its rules come from.
    pub kind: RuleSetKind,
}

kinds! {
    /// Where the rules of a rule-set come from.
    pub enum RuleSetKind: "rule-set" in [], default {
        /// From the configuration itself.
        Inline(InlineRuleSet) = "inline",
        /// From a file.
        Local(LocalRuleSet) = "local",
        /// From the network.
        Remote(RemoteRuleSet) = "remote",
    }
}

options! {
    /// A rule-set written in the configuration.
    pub struct InlineRuleSet {
        /// Its rules, at least one.
        rules: Vec<Condition<HeadlessMatch>>,
    }
    check = InlineRuleSet::check_not_empty;

    /// A rule-set in a file, read again when it changes.
    pub struct LocalRuleSet {
        /// Form of the file; told by its name (`.json`, `.srs`) when absent.
        format: RuleSetFormat,
        /// The file.
        path: String,
    }

    /// A rule-set fetched at the start and from time to time.
    pub struct RemoteRuleSet {
        /// Form of the file; told by the URL (`.json`, `.srs`) when absent.
        format: RuleSetFormat,
        /// What to fetch.
        url: String,
        /// File to use until it is fetched for the first time.
        initial_path: String,
        /// HTTP client to fetch with; the default one when absent.
        http_client: Option<HttpClientReference>,
        /// Outbound to fetch through; moved to `http_client`.
        download_detour: OutboundTag [hidden],
        /// Time between fetches; one day when absent.
        update_interval: Dur,
    }
    check = RemoteRuleSet::check_detour;
}

choices! {
    /// Form of a rule-set file.
    pub enum RuleSetFormat: "rule-set format" {
        /// Not set.
        Unset = "",
        /// JSON.
        Source = "source",
        /// Compiled.
        Binary = "binary",
    }
}

options! {
    /// Conditions of a rule in a rule-set; as in a route rule, without what depends on the configuration around it.
    pub struct HeadlessMatch {
        /// Types of DNS query.
        query_type: List<super::dns::types::QueryType>,
        /// `tcp`, `udp` or `icmp`.
        network: List<String>,
        /// Whole domain names.
        domain: List<String>,
        /// Ends of domain names; with a leading dot only names below.
        domain_suffix: List<String>,
        /// Parts of domain names.
        domain_keyword: List<String>,
        /// Regular expressions on domain names.
        domain_regex: List<Pattern>,
        /// Source addresses.
        source_ip_cidr: List<Cidr>,
        /// Destination addresses.
        ip_cidr: List<Cidr>,
        /// Source ports.
        source_port: List<u16>,
        /// Ranges of source ports.
        source_port_range: List<PortRange>,
        /// Destination ports.
        port: List<u16>,
        /// Ranges of destination ports.
        port_range: List<PortRange>,
        /// Names of programs.
        process_name: List<String>,
        /// Paths of programs.
        process_path: List<String>,
        /// Regular expressions on paths of programs.
        process_path_regex: List<Pattern>,
        /// Android packages.
        package_name: List<String>,
        /// Regular expressions on Android packages.
        package_name_regex: List<Pattern>,
        /// Kinds of the default network interface.
        network_type: List<InterfaceType>,
        /// The default network is metered.
        network_is_expensive: bool,
        /// The default network is in data saving mode.
        network_is_constrained: bool,
        /// Names of wireless networks.
        wifi_ssid: List<String>,
        /// Addresses of wireless access points.
        wifi_bssid: List<String>,
        /// Addresses of interfaces, by kind of network.
        network_interface_address: Map<List<Subnet>>,
        /// Addresses of the default interface.
        default_interface_address: List<Subnet>,
        /// Matches when the conditions do not.
        invert: bool,
    }
    check = HeadlessMatch::check_values;
}

impl HeadlessMatch {
    fn check_values(&self, node: &Node, cx: &mut Cx<'_>) {
        let texts = [
            ("domain", &self.domain),
            ("domain_suffix", &self.domain_suffix),
            ("domain_keyword", &self.domain_keyword),
        ];
        check_no_empty_item(texts, node, cx);
    }
}

impl Match for HeadlessMatch {
    const NOUN: &'static str = "rule";
    const SCHEMA_NAME: &'static str = "HeadlessRule";
    const ACTION_KEYS: &'static [&'static str] = &["action", "outbound"];
    const EXACT_KEYS: bool = false;
}

impl InlineRuleSet {
    fn check_not_empty(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.rules.is_empty() {
            cx.error(node.place_of("rules"), "an inline rule-set needs at least one rule in `rules`");
        }
    }
}

impl RemoteRuleSet {
    fn check_detour(&self, node: &Node, cx: &mut Cx<'_>) {
        if let Some(detour) = self.download_detour.get() {
            let message =
                format!("`download_detour` is old; write `\"http_client\": {{\"detour\": \"{detour}\"}}`");
            cx.warn(node.place_of("download_detour"), message);
            if self.http_client.is_some() {
                let place = node.place_of("download_detour");
                cx.error(place, "`http_client` and `download_detour` exclude each other");
            }
        }
    }
}

impl RuleSetFormat {
    /// The form that the end of a path or URL tells.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        match path.rsplit_once('.')?.1 {
            "json" => Some(Self::Source),
            "srs" => Some(Self::Binary),
            _ => None,
        }
    }
}

impl RuleSetKind {
    fn take_format_from_path(&mut self) {
        let (format, location) = match self {
            Self::Inline(_) => return,
            Self::Local(local) => (&mut local.format, &local.path),
            Self::Remote(remote) => (&mut remote.format, &remote.url),
        };
        if *format == RuleSetFormat::Unset {
            *format = RuleSetFormat::of_path(location).unwrap_or_default();
        }
    }
}

impl RuleSet {
    /// The form and the path or URL of a rule-set that is not inline.
    fn location(&self) -> Option<(&'static str, &str, RuleSetFormat)> {
        match &self.kind {
            RuleSetKind::Inline(_) => None,
            RuleSetKind::Local(local) => Some(("path", &local.path, local.format)),
            RuleSetKind::Remote(remote) => Some(("url", &remote.url, remote.format)),
        }
    }

    fn check(&self, node: &Node, cx: &mut Cx<'_>) {
        if self.tags.is_empty() || self.tags.iter().any(String::is_empty) {
            cx.error(node.place_of("tag"), "a rule-set needs a `tag`");
        }
        let Some((key, location, format)) = self.location() else {
            if self.tags.len() > 1 {
                cx.error(node.place_of("tag"), "an inline rule-set has only one tag");
            }
            return;
        };
        if self.tags.len() > 1 && !location.contains("{tag}") {
            let message = format!("with several tags `{key}` needs `{{tag}}` where they differ");
            cx.error(node.place_of(key), message);
        }
        if let RuleSetKind::Local(local) = &self.kind {
            for tag in &self.tags {
                check_file(&local.path.replace("{tag}", tag), format, node.place_of("path"), cx);
            }
        }
        if format == RuleSetFormat::Unset {
            let message = format!("`format` is missing, and `{key}` does not end in .json or .srs");
            cx.error(node.place, message);
        }
    }
}

/// Reads a rule-set file as far as that tells a good one from a bad one. Compiled ones are opened by whoever runs them.
fn check_file(path: &str, format: RuleSetFormat, place: Place, cx: &mut Cx<'_>) {
    let Some(content) = cx.read_file(place, path) else { return };
    let problem = match format {
        RuleSetFormat::Unset => None,
        RuleSetFormat::Binary => (!content.starts_with(b"SRS")).then(|| "not a compiled rule-set".to_owned()),
        RuleSetFormat::Source => source_problem(&String::from_utf8_lossy(&content)),
    };
    if let Some(problem) = problem {
        cx.error(place, format!("`{path}`: {problem}"));
    }
}

/// Versions of rule-sets in JSON.
const SOURCE_VERSIONS: std::ops::RangeInclusive<u8> = 1..=5;

/// What is wrong with a rule-set in JSON.
fn source_problem(text: &str) -> Option<String> {
    let root = match json::read(text, 0) {
        Ok(root) => root,
        Err(error) => return Some(error.message),
    };
    let mut cx = Cx::decoding();
    let mut version = 0_u8;
    match root.get("version") {
        Some(node) => version.decode(node, &mut cx),
        None => return Some("there is no `version`".to_owned()),
    }
    if !SOURCE_VERSIONS.contains(&version) {
        return Some(format!("unknown version {version}"));
    }
    let mut rules: Vec<Condition<HeadlessMatch>> = Vec::new();
    if let Some(node) = root.get("rules") {
        rules.decode(node, &mut cx);
    }
    cx.report.first_error().map(str::to_owned)
}

impl OptionValue for RuleSet {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        let errors = cx.report.errors();
        let kind = table::kind_of::<RuleSetKind>(node, "type", cx);
        if let Some(tag) = node.get("tag") {
            self.tags.decode(tag, cx);
        }
        let place = node.get("tag").map_or(node.place, |tag| tag.place);
        let definitions: Vec<Definition> = self
            .tags
            .iter()
            .map(|tag| Definition {
                space: Space::RuleSet,
                tag: tag.clone(),
                place,
                is_index: false,
                is_main: true,
            })
            .collect();
        cx.within(definitions, |cx| {
            let Some(kind) = kind else { return };
            self.kind = kind;
            let table = self.kind.table_mut();
            let keys = Keys { elsewhere: &["type", "tag"], unknown: UnknownKeys::Refuse, exact: 0 };
            table::decode_with(table, keys, node, cx);
            self.kind.take_format_from_path();
            if cx.report.errors() == errors && cx.is_checking() {
                self.check(node, cx);
            }
        });
    }

    fn decode_item(&mut self, node: &Node, _index: Option<usize>, cx: &mut Cx<'_>) {
        self.decode(node, cx);
    }

    /// `inline` is not written, nor a format that the path tells.
    fn encode(&self) -> Node {
        let mut entries: Vec<Entry> = table::encode_kind(&self.kind, "type").into_iter().collect();
        entries.push(Entry::new("tag", self.tags.encode()));
        entries.extend(table::encode_fields(self.kind.table()));
        if let Some((_, location, format)) = self.location()
            && RuleSetFormat::of_path(location) == Some(format)
        {
            entries.retain(|entry| entry.key != "format");
        }
        Value::Object(entries).into()
    }

    fn is_zero(&self) -> bool {
        false
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let tag = self.tags.schema(schema);
        schema.kinds::<RuleSetKind>("type", &[("tag", tag)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_in_rule_set_files_are_told() {
        assert_eq!(source_problem(r#"{"version": 3, "rules": [{"domain": "a.example"}]}"#), None);
        assert_eq!(source_problem(r#"{"rules": []}"#).as_deref(), Some("there is no `version`"));
        assert_eq!(source_problem(r#"{"version": 9}"#).as_deref(), Some("unknown version 9"));
        let unknown = source_problem(r#"{"version": 3, "rules": [{"domian": "a.example"}]}"#);
        assert_eq!(unknown.as_deref(), Some("unknown field `domian`, did you mean `domain`?"));
        assert!(source_problem("{").is_some());
    }
}
