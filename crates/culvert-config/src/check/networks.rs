//! Networks that get in each other's way: of TUN inbounds, of WireGuard endpoints, of fake addresses. sing-box accepts them, and
//! connections fail at run time: warnings only.

use std::net::IpAddr;

use crate::cx::Cx;
use crate::json::Node;
use crate::options::Options;
use crate::options::dns::server::FakeIpDnsServer;
use crate::options::endpoint::wireguard::WireGuardEndpoint;
use crate::options::inbound::tun::TunInbound;
use crate::value::Prefix;

pub(super) fn check(options: &Options, root: &Node, cx: &mut Cx<'_>) {
    let nodes = root.get("inbounds").and_then(Node::as_array).unwrap_or_default();
    let devices = options.inbounds.iter().zip(nodes).enumerate();
    let devices: Vec<_> = devices
        .filter_map(|(index, (inbound, node))| {
            let options = inbound.of::<TunInbound>()?;
            Some(Device { whose: told("inbounds", index, &inbound.tag, node), options, node })
        })
        .collect();
    let (tunnels, fake) = (tunnels(options, root), fake(options, root));
    for (index, device) in devices.iter().enumerate() {
        check_device(device, &devices[..index], cx);
        for (own, item) in device.addresses() {
            let taken = tunnels.iter().chain(&fake).find(|other| overlap(own, other.prefix));
            if let Some(Taken { prefix, whose, .. }) = taken {
                let (own, other) = (text(own), text(*prefix));
                let message = format!(
                    "{own} overlaps {other} of {whose}, and what is in both cannot be reached by this device; \
                     give it a network of its own"
                );
                cx.warn(item.place, message);
            }
        }
        check_routes(device, &fake, cx);
    }
}

/// A TUN inbound.
struct Device<'a> {
    whose: String,
    options: &'a TunInbound,
    node: &'a Node,
}

impl<'a> Device<'a> {
    fn addresses(&self) -> impl Iterator<Item = (Prefix, &'a Node)> + use<'a> {
        self.prefixes("address", &self.options.address)
    }

    fn prefixes(
        &self,
        key: &str,
        prefixes: &'a [Prefix],
    ) -> impl Iterator<Item = (Prefix, &'a Node)> + use<'a> {
        let items = self.node.get(key).map_or(&[][..], Node::items);
        prefixes.iter().copied().zip(items)
    }
}

/// A network that somebody has already.
struct Taken {
    prefix: Prefix,
    whose: String,
}

fn told(section: &str, index: usize, tag: &str, node: &Node) -> String {
    let tag = if node.get("tag").is_some() { format!(" \"{tag}\"") } else { String::new() };
    format!("{section}[{index}]{tag}")
}

fn text(prefix: Prefix) -> String {
    format!("{}/{}", prefix.ip, prefix.length)
}

/// Networks of WireGuard endpoints.
fn tunnels(options: &Options, root: &Node) -> Vec<Taken> {
    let nodes = root.get("endpoints").and_then(Node::as_array).unwrap_or_default();
    let endpoints = options.endpoints.iter().zip(nodes).enumerate();
    let of = |(index, (endpoint, node)): (usize, (&crate::table::Tagged<_>, &Node))| {
        let whose = told("endpoints", index, &endpoint.tag, node);
        let addresses = endpoint.of::<WireGuardEndpoint>().map(|endpoint| endpoint.address.iter());
        let taken = |prefix: &Prefix| Taken { prefix: *prefix, whose: whose.clone() };
        addresses.into_iter().flatten().map(taken).collect::<Vec<_>>()
    };
    endpoints.flat_map(of).collect()
}

/// Ranges of fake addresses.
fn fake(options: &Options, root: &Node) -> Vec<Taken> {
    let nodes = root.get("dns").and_then(|dns| dns.get("servers")).and_then(Node::as_array);
    let servers = options.dns.servers.iter().zip(nodes.unwrap_or_default()).enumerate();
    let of = |(index, (server, node)): (usize, (&crate::table::Tagged<_>, &Node))| {
        let ranges = server.of::<FakeIpDnsServer>().map(|fake| [fake.inet4_range, fake.inet6_range]);
        let whose = format!("the fake addresses of {}", told("dns.servers", index, &server.tag, node));
        let taken = |prefix| Taken { prefix, whose: whose.clone() };
        ranges.into_iter().flatten().flatten().map(taken).collect::<Vec<_>>()
    };
    servers.flat_map(of).collect()
}

/// What two devices in one network namespace cannot both have.
fn check_device(device: &Device<'_>, earlier: &[Device<'_>], cx: &mut Cx<'_>) {
    let same_place = |other: &&Device<'_>| other.options.netns == device.options.netns;
    for other in earlier.iter().filter(same_place) {
        let name = &device.options.interface_name;
        if !name.is_empty() && *name == other.options.interface_name {
            let message = format!("the name `{name}` is taken by {} already", other.whose);
            cx.warn(device.node.place_of("interface_name"), message);
        }
        for (own, item) in device.addresses() {
            let taken = other.options.address.iter().find(|other| overlap(own, **other));
            if let Some(prefix) = taken {
                let (own, there, whose) = (text(own), text(*prefix), &other.whose);
                let message = format!("{own} overlaps {there} of {whose}; give each a network of its own");
                cx.warn(item.place, message);
            }
        }
    }
}

/// Routes that are taken back, and fake addresses that lead past the device.
fn check_routes(device: &Device<'_>, fake: &[Taken], cx: &mut Cx<'_>) {
    let TunInbound { route_address, route_exclude_address, .. } = device.options;
    if !device.options.auto_route {
        return;
    }
    let holder = |prefix: Prefix, of: &[Prefix]| of.iter().copied().find(|holder| holds(*holder, prefix));
    for (prefix, item) in device.prefixes("route_address", route_address) {
        if let Some(holder) = holder(prefix, route_exclude_address) {
            let message = format!(
                "{} is not routed, as {} is among the `route_exclude_address`",
                text(prefix),
                text(holder)
            );
            cx.warn(item.place, message);
        }
    }
    let has_family =
        |prefix: Prefix| device.addresses().any(|(own, _)| own.ip.is_ipv4() == prefix.ip.is_ipv4());
    for Taken { prefix, whose } in fake.iter().filter(|range| has_family(range.prefix)) {
        let range = text(*prefix);
        for (excluded, item) in device.prefixes("route_exclude_address", route_exclude_address) {
            if holds(excluded, *prefix) {
                let message = format!(
                    "{range}, {whose}, would not come into this device; leave that out of what is excluded"
                );
                cx.warn(item.place, message);
            }
        }
        let named = !route_address.is_empty() && device.options.route_address_set.is_empty();
        if named && !route_address.iter().any(|route| overlap(*route, *prefix)) {
            let message = format!(
                "{range}, {whose}, would not come into this device; add \"{range}\" to `route_address`"
            );
            cx.warn(device.node.place_of("route_address"), message);
        }
    }
}

/// Whether two networks have an address in common.
fn overlap(one: Prefix, other: Prefix) -> bool {
    holds(one, other) || holds(other, one)
}

/// Whether one network is all in another.
fn holds(outer: Prefix, inner: Prefix) -> bool {
    let shortened = Prefix { length: outer.length, ..inner };
    matches!((outer.ip, inner.ip), (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)))
        && outer.length <= inner.length
        && outer.network().ip == shortened.network().ip
}

#[cfg(test)]
mod tests {
    use crate::check::advice::tests::expect;

    fn config(devices: &str, more: &str) -> String {
        format!(r#"{{"inbounds": [{devices}]{more}}}"#)
    }

    fn device(address: &str, more: &str) -> String {
        format!(r#"{{"type": "tun", "tag": "in", "address": [{address}]{more}}}"#)
    }

    const FAKE: &str = r#", "dns": {"servers": [{"type": "local", "tag": "l"},
        {"type": "fakeip", "tag": "f", "inet4_range": "198.18.0.0/15", "inet6_range": "fc00::/18"}]}"#;

    #[test]
    fn devices_with_one_network_or_one_name_are_told() {
        let pair = |first: &str, second: &str| {
            config(
                &format!("{}, {}", device("\"172.19.0.1/30\"", first), second.replace("\"in\"", "\"b\"")),
                "",
            )
        };
        expect(
            &pair("", &device("\"fd00::1/126\", \"172.19.0.2/16\"", "")),
            &[".address[1]: 172.19.0.2/16 overlaps 172.19.0.1/30 of inbounds[0] \"in\"; give each"],
        );
        let named = r#", "interface_name": "t""#;
        expect(
            &pair(named, &device("\"172.20.0.1/30\"", named)),
            &[".interface_name: the name `t` is taken by inbounds[0] \"in\""],
        );
        let elsewhere = r#", "interface_name": "t", "netns": "blue""#;
        expect(&pair(named, &device("\"172.19.0.1/30\"", elsewhere)), &[]);
        expect(&pair("", &device("\"172.19.0.5/30\", \"fd00::1/126\"", "")), &[]);
    }

    #[test]
    fn devices_in_the_network_of_a_tunnel_or_of_fake_addresses_are_told() {
        let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        let tunnel = format!(
            r#", "endpoints": [{{"type": "wireguard", "tag": "wg", "address": ["10.9.0.2/32"], "private_key": "{key}",
                "peers": [{{"public_key": "{key}", "allowed_ips": ["0.0.0.0/0"]}}]}}]"#
        );
        expect(
            &config(&device("\"10.9.0.1/24\"", ""), &tunnel),
            &[".address[0]: 10.9.0.1/24 overlaps 10.9.0.2/32 of endpoints[0] \"wg\""],
        );
        expect(&config(&device("\"172.19.0.1/30\"", ""), &tunnel), &[]);
        expect(
            &config(&device("\"198.18.0.1/16\"", ""), FAKE),
            &["overlaps 198.18.0.0/15 of the fake addresses of dns.servers[1] \"f\""],
        );
        expect(&config(&device("\"172.19.0.1/30\"", ""), FAKE), &[]);
    }

    #[test]
    fn routes_that_are_taken_back_and_fake_addresses_that_pass_by_are_told() {
        let routed = |more: &str| device("\"172.19.0.1/30\"", &format!(", \"auto_route\": true, {more}"));
        expect(
            &config(
                &routed(
                    r#""route_address": ["10.1.0.0/16", "1.1.1.0/24"], "route_exclude_address": "10.0.0.0/8""#,
                ),
                "",
            ),
            &["route_address[0]: 10.1.0.0/16 is not routed, as 10.0.0.0/8 is among"],
        );
        expect(
            &config(
                &routed(r#""route_address": ["10.0.0.0/8"], "route_exclude_address": "10.1.0.0/16""#),
                "",
            ),
            &[],
        );
        expect(
            &config(&routed(r#""route_exclude_address": ["192.168.0.0/16", "198.18.0.0/15"]"#), FAKE),
            &[
                "route_exclude_address[1]: 198.18.0.0/15, the fake addresses of dns.servers[1] \"f\", would not come",
            ],
        );
        expect(
            &config(&routed(r#""route_address": ["1.0.0.0/8"]"#), FAKE),
            &["route_address: 198.18.0.0/15, the fake addresses of dns.servers[1] \"f\", would not come"],
        );
        for fine in [
            r#""route_address": ["0.0.0.0/1", "128.0.0.0/1"]"#,
            r#""route_address": ["198.18.0.0/15"]"#,
            r#""route_exclude_address": ["fc00::/7"]"#,
        ] {
            expect(&config(&routed(fine), FAKE), &[]);
        }
    }
}
