//! The source format: JSON with a `version` and headless `rules`.
//!
//! Unknown keys are refused at every level, with the path to them. Keys inside rules are taken in any letter case, as
//! sing-box does. Text that is not UTF-8, and escapes of half a surrogate pair, are refused (sing-box replaces them).

use thiserror::Error;

use super::{
    CURRENT_VERSION, RuleSetFile,
    json::{self, Json},
};
use crate::{
    ip::Prefix,
    rule::{DefaultRule, LogicalRule, Mode, NetworkType, RuleOptions, query_type},
};

/// Why text is no rule-set source.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{}{}{reason}", .path, if .path.is_empty() { "" } else { ": " })]
pub struct SourceError {
    /// Where: `rules[2].domain[1]`, or empty for the document as a whole.
    pub path: String,
    /// What is wrong, in the words of sing-box where it has some.
    pub reason: String,
}

impl SourceError {
    fn new(reason: impl Into<String>) -> Self {
        Self { path: String::new(), reason: reason.into() }
    }

    /// The same error one level further out.
    fn at(self, place: &str) -> Self {
        let path = match self.path.chars().next() {
            None => place.to_owned(),
            Some('[') => format!("{place}{}", self.path),
            Some(_) => format!("{place}.{}", self.path),
        };
        Self { path, ..self }
    }
}

/// Reads a source file.
///
/// # Errors
/// For text that is not JSON in sing-box's dialect, a missing or unknown version, unknown keys and wrong types.
pub fn read_source(data: &[u8]) -> Result<RuleSetFile, SourceError> {
    let text = std::str::from_utf8(data).map_err(|error| SourceError::new(error.to_string()))?;
    let document = json::parse(text).map_err(SourceError::new)?;
    let Json::Object(entries) = document else {
        let kind = document.kind();
        let message =
            format!("json: cannot unmarshal {kind} into Go value of type option._PlainRuleSetCompat");
        return Err(SourceError::new(message));
    };
    let (mut version, mut rules) = (0, Vec::new());
    for (key, value) in entries {
        match key.as_str() {
            "version" => version = read_version(&value).map_err(|error| error.at("version"))?,
            "rules" => rules = read_rules(value).map_err(|error| error.at("rules"))?,
            _ => return Err(unknown_field(&key)),
        }
    }
    match version {
        0 => Err(SourceError::new("missing rule-set version")),
        1..=CURRENT_VERSION => Ok(RuleSetFile { version, rules }),
        _ => Err(SourceError::new(format!("unknown rule-set version: {version}"))),
    }
}

/// Writes the canonical form: keys in order, no empty fields, one value without brackets. A line end behind it.
///
/// Compiled name and address sets are written as lists.
pub fn write_source(file: RuleSetFile) -> String {
    let mut document = vec![("version".to_owned(), Json::Integer(file.version.into()))];
    if !file.rules.is_empty() {
        document.push(("rules".to_owned(), Json::Array(file.rules.into_iter().map(rule_to_json).collect())));
    }
    format!("{}\n", Json::Object(document))
}

fn unknown_field(key: &str) -> SourceError {
    SourceError::new(format!("json: unknown field \"{key}\"")).at(key)
}

fn mismatch(value: &Json, wanted: &str) -> SourceError {
    SourceError::new(format!("json: cannot unmarshal {} into Go value of type {wanted}", value.kind()))
}

fn read_version(value: &Json) -> Result<u8, SourceError> {
    let wanted = "Go struct field _PlainRuleSetCompat.version of type uint8";
    match value {
        Json::Null => Ok(0),
        Json::Integer(number) => u8::try_from(*number)
            .map_err(|_| SourceError::new(format!("json: cannot unmarshal number {number} into {wanted}"))),
        other => Err(SourceError::new(format!("json: cannot unmarshal {} into {wanted}", other.kind()))),
    }
}

fn read_rules(value: Json) -> Result<Vec<RuleOptions>, SourceError> {
    let rules = match value {
        Json::Null => return Ok(Vec::new()),
        Json::Array(rules) => rules,
        other => {
            let wanted = "Go struct field PlainRuleSet.rules of type []option.HeadlessRule";
            return Err(SourceError::new(format!("json: cannot unmarshal {} into {wanted}", other.kind())));
        }
    };
    let read = |(index, rule)| read_rule(rule).map_err(|error| error.at(&format!("[{index}]")));
    rules.into_iter().enumerate().map(read).collect()
}

fn read_rule(value: Json) -> Result<RuleOptions, SourceError> {
    let Json::Object(entries) = value else {
        return Err(SourceError::new(format!(
            "expected json object start, but starts with {}",
            value.kind()
        )));
    };
    let kind = entries.iter().find(|entry| entry.0.eq_ignore_ascii_case("type")).map(|entry| &entry.1);
    match kind {
        None | Some(Json::Null) => read_default(entries),
        Some(Json::String(kind)) if kind.is_empty() || kind == "default" => read_default(entries),
        Some(Json::String(kind)) if kind == "logical" => read_logical(entries),
        Some(Json::String(kind)) => Err(SourceError::new(format!("unknown rule type: {kind}"))),
        Some(other) => Err(mismatch(other, "string").at("type")),
    }
}

fn read_default(entries: Vec<(String, Json)>) -> Result<RuleOptions, SourceError> {
    let mut rule = DefaultRule::default();
    for (key, value) in entries {
        let known = key.to_ascii_lowercase();
        if known == "type" {
            continue;
        }
        let slot = slot(&mut rule, &known).ok_or_else(|| unknown_field(&key))?;
        fill(slot, value).map_err(|error| error.at(&known))?;
    }
    Ok(rule.into())
}

fn read_logical(entries: Vec<(String, Json)>) -> Result<RuleOptions, SourceError> {
    let (mut mode, mut rules, mut invert) = (None, Vec::new(), false);
    for (key, value) in entries {
        match key.to_ascii_lowercase().as_str() {
            "type" => {}
            "mode" => mode = Some(value),
            "rules" => rules = read_rules(value).map_err(|error| error.at("rules"))?,
            "invert" => invert = read_flag(&value).map_err(|error| error.at("invert"))?,
            _ => return Err(unknown_field(&key)),
        }
    }
    let mode = match mode {
        Some(Json::String(mode)) if mode == "and" => Mode::And,
        Some(Json::String(mode)) if mode == "or" => Mode::Or,
        Some(Json::String(mode)) => return Err(SourceError::new(format!("unknown logical mode: {mode}"))),
        None | Some(Json::Null) => return Err(SourceError::new("unknown logical mode: ")),
        Some(other) => return Err(mismatch(&other, "string").at("mode")),
    };
    Ok(LogicalRule { mode, rules, invert }.into())
}

/// The place in a rule that a key fills. One table for reading and writing.
enum Slot<'a> {
    Texts(&'a mut Vec<String>),
    Ports(&'a mut Vec<u16>),
    QueryTypes(&'a mut Vec<u16>),
    NetworkTypes(&'a mut Vec<NetworkType>),
    Prefixes(&'a mut Vec<Prefix>),
    PrefixesByType(&'a mut Vec<(NetworkType, Vec<Prefix>)>),
    Flag(&'a mut bool),
}

/// The keys of a headless rule in the order they are written.
const KEYS: [&str; 25] = [
    "query_type",
    "network",
    "domain",
    "domain_suffix",
    "domain_keyword",
    "domain_regex",
    "source_ip_cidr",
    "ip_cidr",
    "source_port",
    "source_port_range",
    "port",
    "port_range",
    "process_name",
    "process_path",
    "process_path_regex",
    "package_name",
    "package_name_regex",
    "network_type",
    "network_is_expensive",
    "network_is_constrained",
    "wifi_ssid",
    "wifi_bssid",
    "network_interface_address",
    "default_interface_address",
    "invert",
];

fn slot<'a>(rule: &'a mut DefaultRule, key: &str) -> Option<Slot<'a>> {
    Some(match key {
        "query_type" => Slot::QueryTypes(&mut rule.query_type),
        "network" => Slot::Texts(&mut rule.network),
        "domain" => Slot::Texts(&mut rule.domain),
        "domain_suffix" => Slot::Texts(&mut rule.domain_suffix),
        "domain_keyword" => Slot::Texts(&mut rule.domain_keyword),
        "domain_regex" => Slot::Texts(&mut rule.domain_regex),
        "source_ip_cidr" => Slot::Texts(&mut rule.source_ip_cidr),
        "ip_cidr" => Slot::Texts(&mut rule.ip_cidr),
        "source_port" => Slot::Ports(&mut rule.source_port),
        "source_port_range" => Slot::Texts(&mut rule.source_port_range),
        "port" => Slot::Ports(&mut rule.port),
        "port_range" => Slot::Texts(&mut rule.port_range),
        "process_name" => Slot::Texts(&mut rule.process_name),
        "process_path" => Slot::Texts(&mut rule.process_path),
        "process_path_regex" => Slot::Texts(&mut rule.process_path_regex),
        "package_name" => Slot::Texts(&mut rule.package_name),
        "package_name_regex" => Slot::Texts(&mut rule.package_name_regex),
        "network_type" => Slot::NetworkTypes(&mut rule.network_type),
        "network_is_expensive" => Slot::Flag(&mut rule.network_is_expensive),
        "network_is_constrained" => Slot::Flag(&mut rule.network_is_constrained),
        "wifi_ssid" => Slot::Texts(&mut rule.wifi_ssid),
        "wifi_bssid" => Slot::Texts(&mut rule.wifi_bssid),
        "network_interface_address" => Slot::PrefixesByType(&mut rule.network_interface_address),
        "default_interface_address" => Slot::Prefixes(&mut rule.default_interface_address),
        "invert" => Slot::Flag(&mut rule.invert),
        _ => return None,
    })
}

fn fill(slot: Slot<'_>, value: Json) -> Result<(), SourceError> {
    match slot {
        Slot::Texts(list) => *list = listable(value, "string", read_text)?,
        Slot::Ports(list) => *list = listable(value, "uint16", read_port)?,
        Slot::QueryTypes(list) => *list = listable(value, "option.DNSQueryType", read_query_type)?,
        Slot::NetworkTypes(list) => *list = listable(value, "option.InterfaceType", read_network_type)?,
        Slot::Prefixes(list) => *list = listable(value, "*badoption.Prefixable", read_prefix)?,
        Slot::PrefixesByType(list) => *list = read_prefixes_by_type(value)?,
        Slot::Flag(flag) => *flag = read_flag(&value)?,
    }
    Ok(())
}

/// One value or a list of values; `null` is no value.
fn listable<T>(
    value: Json,
    wanted: &str,
    read: impl Fn(&Json) -> Result<T, SourceError>,
) -> Result<Vec<T>, SourceError> {
    match value {
        Json::Null => Ok(Vec::new()),
        Json::Array(items) => {
            let read = |(index, item)| read(item).map_err(|error| error.at(&format!("[{index}]")));
            let list: Result<Vec<T>, SourceError> = items.iter().enumerate().map(read).collect();
            list.map_err(|error| {
                let first = format!("json: cannot unmarshal array into Go value of type {wanted}");
                SourceError::new(format!("({first} | {error})"))
            })
        }
        one => read(&one).map(|value| vec![value]).map_err(|error| {
            let second = mismatch(&one, &format!("[]{wanted}"));
            SourceError::new(format!("({} | {second})", error.reason))
        }),
    }
}

fn read_text(value: &Json) -> Result<String, SourceError> {
    match value {
        Json::String(text) => Ok(text.clone()),
        other => Err(mismatch(other, "string")),
    }
}

fn read_port(value: &Json) -> Result<u16, SourceError> {
    match value {
        Json::Integer(number) if u16::try_from(*number).is_ok() => Ok(*number as u16),
        Json::Integer(number) => Err(SourceError::new(format!(
            "json: cannot unmarshal number {number} into Go value of type uint16"
        ))),
        Json::Float(number) => Err(SourceError::new(format!(
            "json: cannot unmarshal number {number:?} into Go value of type uint16"
        ))),
        other => Err(mismatch(other, "uint16")),
    }
}

fn read_query_type(value: &Json) -> Result<u16, SourceError> {
    let unknown = || SourceError::new(format!("unknown DNS query type: {value}"));
    match value {
        Json::Integer(number) => u16::try_from(*number).map_err(|_| unknown()),
        Json::String(name) => query_type::number(name).ok_or_else(unknown),
        _ => Err(unknown()),
    }
}

fn read_network_type(value: &Json) -> Result<NetworkType, SourceError> {
    let name = read_text(value)?;
    NetworkType::from_name(&name).ok_or_else(|| SourceError::new(format!("unknown interface type: {name}")))
}

fn read_prefix(value: &Json) -> Result<Prefix, SourceError> {
    read_text(value)?.parse().map_err(|error: crate::ip::PrefixError| SourceError::new(error.to_string()))
}

fn read_prefixes_by_type(value: Json) -> Result<Vec<(NetworkType, Vec<Prefix>)>, SourceError> {
    let entries = match value {
        Json::Null => return Ok(Vec::new()),
        Json::Object(entries) => entries,
        other => {
            return Err(SourceError::new(format!(
                "expected json object start, but starts with {}",
                other.kind()
            )));
        }
    };
    let inside = |error: SourceError| SourceError::new(format!("decode json object content: {error}"));
    let mut list = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let kind = read_network_type(&Json::String(key)).map_err(inside)?;
        let prefixes = listable(value, "*badoption.Prefixable", read_prefix).map_err(inside)?;
        if !prefixes.is_empty() {
            list.push((kind, prefixes));
        }
    }
    Ok(list)
}

fn read_flag(value: &Json) -> Result<bool, SourceError> {
    match value {
        Json::Null => Ok(false),
        Json::Bool(flag) => Ok(*flag),
        other => Err(mismatch(other, "bool")),
    }
}

fn rule_to_json(rule: RuleOptions) -> Json {
    match rule {
        RuleOptions::Default(rule) => default_to_json(*rule),
        RuleOptions::Logical(rule) => {
            let mut object = vec![
                ("type".to_owned(), Json::String("logical".into())),
                ("mode".to_owned(), Json::String(rule.mode.as_str().into())),
            ];
            if !rule.rules.is_empty() {
                object.push((
                    "rules".to_owned(),
                    Json::Array(rule.rules.into_iter().map(rule_to_json).collect()),
                ));
            }
            if rule.invert {
                object.push(("invert".to_owned(), Json::Bool(true)));
            }
            Json::Object(object)
        }
    }
}

fn default_to_json(mut rule: DefaultRule) -> Json {
    list_sets(&mut rule);
    let mut object = Vec::new();
    for key in KEYS {
        let value = slot(&mut rule, key).and_then(slot_to_json);
        object.extend(value.map(|value| (key.to_owned(), value)));
    }
    Json::Object(object)
}

/// Turns compiled sets back into lists, where the list is empty.
fn list_sets(rule: &mut DefaultRule) {
    let prefixes = |set: &crate::ip::IpSet| set.prefixes().iter().map(Prefix::to_string).collect();
    if rule.domain.is_empty() && rule.domain_suffix.is_empty() {
        (rule.domain, rule.domain_suffix) =
            rule.domain_set.as_ref().map(|set| set.to_lists()).unwrap_or_default();
    }
    if rule.source_ip_cidr.is_empty() {
        rule.source_ip_cidr = rule.source_ip_set.as_ref().map(prefixes).unwrap_or_default();
    }
    if rule.ip_cidr.is_empty() {
        rule.ip_cidr = rule.ip_set.as_ref().map(prefixes).unwrap_or_default();
    }
}

/// `None` for what is not written.
fn slot_to_json(slot: Slot<'_>) -> Option<Json> {
    match slot {
        Slot::Texts(list) => one_or_all(list.drain(..).map(Json::String)),
        Slot::Ports(list) => one_or_all(list.drain(..).map(|port| Json::Integer(port.into()))),
        Slot::QueryTypes(list) => one_or_all(list.drain(..).map(|kind| match query_type::name(kind) {
            Some(name) => Json::String(name.to_owned()),
            None => Json::Integer(kind.into()),
        })),
        Slot::NetworkTypes(list) => {
            one_or_all(list.drain(..).map(|kind| Json::String(kind.as_str().to_owned())))
        }
        Slot::Prefixes(list) => one_or_all(list.drain(..).map(prefix_to_json)),
        Slot::PrefixesByType(list) => {
            let entry = |(kind, prefixes): (NetworkType, Vec<Prefix>)| {
                let prefixes = one_or_all(prefixes.into_iter().map(prefix_to_json))?;
                Some((kind.as_str().to_owned(), prefixes))
            };
            let entries: Vec<_> = list.drain(..).filter_map(entry).collect();
            (!entries.is_empty()).then_some(Json::Object(entries))
        }
        Slot::Flag(flag) => flag.then_some(Json::Bool(true)),
    }
}

fn one_or_all(values: impl Iterator<Item = Json>) -> Option<Json> {
    let mut values: Vec<Json> = values.collect();
    match values.len() {
        0 => None,
        1 => values.pop(),
        _ => Some(Json::Array(values)),
    }
}

/// An address stays without its length.
fn prefix_to_json(prefix: Prefix) -> Json {
    let addr = prefix.addr();
    let whole = Prefix::from(addr) == prefix;
    Json::String(if whole { addr.to_string() } else { prefix.to_string() })
}

/// What is read is written, and what is written reads the same.
#[doc(hidden)]
pub fn fuzz_source(data: &[u8]) {
    let Ok(file) = read_source(data) else { return };
    let text = write_source(file.clone());
    let again = read_source(text.as_bytes()).expect("the canonical form is readable");
    assert_eq!(again, file);
    assert_eq!(write_source(again), text);
}
