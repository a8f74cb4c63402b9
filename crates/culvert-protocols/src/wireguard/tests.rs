//! What may stand in the options. How endpoints speak is tested end to end, and in the crates they are made of.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_config::options::endpoint::EndpointKind;
use culvert_config::{Source, load};
use culvert_core::{Dialer, ResolveError, Resolver, Strategy, Tag};
use culvert_wire::Domain;

use crate::OutboundCx;
use crate::table::EndpointEntry;

struct Nothing;

#[async_trait]
impl Resolver for Nothing {
    async fn resolve(&self, _: &Domain, _: Strategy) -> Result<Vec<std::net::IpAddr>, ResolveError> {
        Err(ResolveError::Failed("not here".to_owned()))
    }
}

/// What building an endpoint with these options says.
fn build(options: &str) -> Result<(), String> {
    let key = STANDARD.encode([7; 32]);
    let text = format!(r#"{{"endpoints": [{{"type": "wireguard", "private_key": "{key}", {options}}}]}}"#);
    let loaded = load(&[Source::new("test.json", text.as_bytes())]).map_err(|errors| errors.to_string())?;
    let kind: &EndpointKind = &loaded.options.endpoints[0].kind;
    let entry = EndpointEntry::find("wireguard").unwrap();
    assert!((entry.dial)(kind).is_some());
    let (dialer, store) = (Dialer::new(Arc::new(Nothing)), culvert_tls::Store::new(Default::default()));
    let cx = OutboundCx { tag: Tag::new("wireguard", "wg"), dialer, store };
    (entry.build)(kind, cx).map(drop).map_err(|error| error.to_string())
}

fn peer(key: u8, more: &str) -> String {
    format!(r#"{{"public_key": "{}", {more}}}"#, STANDARD.encode([key; 32]))
}

#[test]
fn good_options_are_built_and_nothing_is_opened() {
    let peers = format!(
        "{}, {}",
        peer(9, r#""address": "peer.test", "port": 1, "allowed_ips": ["0.0.0.0/0", "::/0"]"#),
        peer(8, r#""allowed_ips": "10.0.0.0/8", "reserved": [1, 2, 3]"#)
    );
    assert_eq!(build(&format!(r#""address": ["10.0.0.1/24", "fd00::1/64"], "peers": [{peers}]"#)), Ok(()));
}

#[test]
fn mistakes_are_named() {
    let said = |options: &str| build(options).unwrap_err();
    let two = |one: u8, other: u8, allowed: [&str; 2]| {
        let list = |key, allowed| peer(key, &format!(r#""allowed_ips": "{allowed}""#));
        format!(r#""peers": [{}, {}]"#, list(one, allowed[0]), list(other, allowed[1]))
    };
    let same = said(&two(8, 9, ["10.9.9.9/8", "10.0.0.0/8"]));
    assert!(same.contains("10.0.0.0/8 is among the `allowed_ips` of `peers[0]` too"), "{same}");
    let twice = said(&two(9, 9, ["10.0.0.0/8", "10.1.0.0/16"]));
    assert!(twice.contains("`peers[0]` has this `public_key` too"), "{twice}");
    let no_key = format!(r#""peers": [{}]"#, peer(0, r#""allowed_ips": "10.0.0.0/8""#));
    assert!(said(&no_key).contains("the public key of peer 0 is no key"));
    let no_port =
        format!(r#""peers": [{}]"#, peer(9, r#""address": "192.0.2.1", "allowed_ips": "10.0.0.0/8""#));
    assert!(said(&no_port).contains("`port` is missing"));
    assert!(said(r#""mtu": 500"#).contains("between 576"));
}
