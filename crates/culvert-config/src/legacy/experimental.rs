//! `experimental` of old: the cache file inside the Clash API section, and the memory watch inside `debug`.

use super::take;
use crate::diagnostics::Report;
use crate::json::{Node, Value, write_line};

pub(super) fn migrate(root: &mut Node, report: &mut Report) {
    if let Some(experimental) = root.get_mut("experimental") {
        move_cache_file(experimental, report);
    }
    move_oom_killer(root, report);
}

/// Fields of the Clash API section that told of the cache file.
const CACHE_FIELDS: [&str; 5] = ["cache_file", "cache_id", "store_mode", "store_selected", "store_fakeip"];

fn move_cache_file(experimental: &mut Node, report: &mut Report) {
    let Some(clash_api) = experimental.get_mut("clash_api") else { return };
    let fields = take(clash_api, &CACHE_FIELDS);
    let Some(first) = fields.first() else { return };
    let place = first.key_place;
    let mut cache = Node::object([("enabled", Node::bool(true))]);
    for field in &fields {
        match &*field.key {
            "cache_file" => cache.set("path", field.node.clone()),
            "cache_id" | "store_fakeip" => cache.set(&field.key, field.node.clone()),
            // Mode and selection are always stored.
            _ => {}
        }
    }
    let shown = write_line(&cache);
    report.warn(place, format!("the cache file has a section of its own: \"cache_file\": {shown}"));
    let Some(section) = experimental.get_or_insert("cache_file", Value::Object(vec![])) else { return };
    for entry in cache.at(place).as_object().unwrap_or_default() {
        if section.get(&entry.key).is_none() {
            section.set(&entry.key, entry.node.clone());
        }
    }
}

fn move_oom_killer(root: &mut Node, report: &mut Report) {
    let debug = root.get_mut("experimental").and_then(|experimental| experimental.get_mut("debug"));
    let Some(debug) = debug else { return };
    let Some(entry) = debug.remove("oom_killer") else { return };
    let mut service = Node::object([("type", Node::string("oom-killer"))]);
    if let Some(limit) = debug.get("memory_limit") {
        service.set("memory_limit", limit.clone());
    }
    let shown = write_line(&service);
    report.warn(entry.key_place, format!("`oom_killer` is now a service: \"services\": [{shown}]"));
    if entry.node.as_bool() == Some(true)
        && let Some(services) =
            root.get_or_insert("services", Value::Array(vec![])).and_then(Node::as_array_mut)
    {
        services.push(service.at(entry.key_place));
    }
}
