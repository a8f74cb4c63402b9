//! VLESS.

use super::{behind_tls, in_tls};
use crate::site::{ALL, Carries, Link, linked};
use crate::{Side, run};
use serde_json::{Value, json};

const ID: &str = "b831381d-6324-4d53-ad4f-8cda48b30811";

links! {
    vless: client => server, ALL;
    vless_tls: || in_tls(client()) => || behind_tls(server()), ALL;
}

light_links! {
    vless_packetaddr: || with(client(), "packet_encoding", "packetaddr") => server, NO_NAMES;
    vless_plain_packets: || with(client(), "packet_encoding", "") => server, ALL;
    vless_id_of_words: || with(client(), "uuid", "no uuid at all") => words, ALL;
}

/// Packets to names are refused.
const NO_NAMES: Carries = Carries { names: false, ..ALL };

fn client() -> Value {
    json!({ "type": "vless", "uuid": ID })
}

fn server() -> Value {
    json!({ "type": "vless", "users": [{ "name": "bob", "uuid": "another" }, { "name": "alice", "uuid": ID }] })
}

fn words() -> Value {
    json!({ "type": "vless", "users": [{ "name": "alice", "uuid": "no uuid at all" }] })
}

fn with(mut options: Value, key: &str, value: &str) -> Value {
    options[key] = value.into();
    options
}
