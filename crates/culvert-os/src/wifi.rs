//! The wireless network that this host is in, by nl80211.
//!
//! ```text
//! netlink message   header, then command 1, version 1, reserved 2, attributes     (generic netlink)
//! GET_FAMILY        "nl80211" -> the number of its messages
//! GET_INTERFACE     all -> index, type, SSID            GET_STATION  of an interface -> MAC of the access point
//! ```
//!
//! sing-box asks a program that manages the network for this; the kernel knows it whoever manages it.
//!
//! Source: linux/genetlink.h, linux/nl80211.h.

use std::io;

use crate::netlink::{DUMP, Message, REQUEST, attributes, half_at, word_at};

/// Bytes before the attributes of a message.
const HEAD: usize = 4;
const NETLINK_GENERIC: i32 = 16;

/// Who numbers the parts of generic netlink.
mod control {
    pub(super) const ID: u16 = 16;
    pub(super) const GET_FAMILY: u8 = 3;
    pub(super) const FAMILY_ID: u16 = 1;
    pub(super) const FAMILY_NAME: u16 = 2;
}

mod nl80211 {
    pub(super) const NAME: &[u8] = b"nl80211\0";
    pub(super) const GET_INTERFACE: u8 = 5;
    pub(super) const GET_STATION: u8 = 17;
    pub(super) const IFINDEX: u16 = 3;
    pub(super) const IFTYPE: u16 = 5;
    pub(super) const MAC: u16 = 6;
    pub(super) const SSID: u16 = 52;
    /// `IFTYPE` of a client of an access point.
    pub(super) const STATION: u32 = 2;
}

/// A wireless network.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Wifi {
    /// Its name.
    pub ssid: String,
    /// The address of the access point, as `AA:BB:CC:DD:EE:FF`; empty if that is not known.
    pub bssid: String,
}

/// The network that the first wireless interface is in; `None` if there is none.
///
/// # Errors
/// The kernel's; NotFound where it knows nothing of wireless networks.
pub fn current() -> io::Result<Option<Wifi>> {
    let family = family()?;
    let mut found = None;
    request(family, nl80211::GET_INTERFACE, None).dump(NETLINK_GENERIC, |body| {
        if found.is_none() {
            found = station(body);
        }
    })?;
    let Some((link, ssid)) = found else { return Ok(None) };
    let mut bssid = None;
    request(family, nl80211::GET_STATION, Some(link)).dump(NETLINK_GENERIC, |body| {
        bssid = bssid.take().or_else(|| access_point(body));
    })?;
    Ok(Some(Wifi { ssid, bssid: bssid.unwrap_or_default() }))
}

/// The number of nl80211's messages.
fn family() -> io::Result<u16> {
    let mut message = Message::new(control::ID, REQUEST);
    message.bytes(&[control::GET_FAMILY, 1, 0, 0]);
    message.attribute(control::FAMILY_NAME, nl80211::NAME);
    let mut family = None;
    message.dump(NETLINK_GENERIC, |body| {
        let attributes = attributes(body.get(HEAD..).unwrap_or_default());
        let mut ids = attributes.filter(|(kind, _)| *kind == control::FAMILY_ID);
        family = ids.find_map(|(_, data)| half_at(data, 0));
    })?;
    family.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn request(family: u16, command: u8, link: Option<u32>) -> Message {
    let mut message = Message::new(family, REQUEST | DUMP);
    message.bytes(&[command, 0, 0, 0]);
    if let Some(link) = link {
        message.attribute(nl80211::IFINDEX, &link.to_ne_bytes());
    }
    message
}

/// The index and the network of an interface that is a client in one.
fn station(body: &[u8]) -> Option<(u32, String)> {
    let (mut link, mut kind, mut ssid) = (None, None, None);
    for (attribute, data) in attributes(body.get(HEAD..)?) {
        match attribute {
            nl80211::IFINDEX => link = word_at(data, 0),
            nl80211::IFTYPE => kind = word_at(data, 0),
            nl80211::SSID => ssid = Some(String::from_utf8_lossy(data).into_owned()),
            _ => {}
        }
    }
    (kind? == nl80211::STATION).then_some((link?, ssid?))
}

fn access_point(body: &[u8]) -> Option<String> {
    let mut all = attributes(body.get(HEAD..)?).filter(|(attribute, _)| *attribute == nl80211::MAC);
    let mac: [u8; 6] = all.find_map(|(_, data)| data.try_into().ok())?;
    Some(mac.map(|byte| format!("{byte:02X}")).join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(attribute: u16, data: &[u8], to: &mut Vec<u8>) {
        to.extend((4 + data.len() as u16).to_ne_bytes());
        to.extend(attribute.to_ne_bytes());
        to.extend(data);
        to.resize(to.len().next_multiple_of(4), 0);
    }

    fn interface(kind: u32, ssid: Option<&[u8]>) -> Vec<u8> {
        let mut body = vec![7, 1, 0, 0];
        put(nl80211::IFINDEX, &3u32.to_ne_bytes(), &mut body);
        put(4, b"wlan0\0", &mut body);
        put(nl80211::IFTYPE, &kind.to_ne_bytes(), &mut body);
        put(nl80211::MAC, &[2, 0, 0, 0, 0, 1], &mut body);
        if let Some(ssid) = ssid {
            put(nl80211::SSID, ssid, &mut body);
        }
        body
    }

    #[test]
    fn a_client_of_a_network_is_told_from_all_others() {
        assert_eq!(station(&interface(2, Some(b"home net"))), Some((3, "home net".to_owned())));
        assert_eq!(station(&interface(2, None)), None, "in no network");
        assert_eq!(station(&interface(3, Some(b"home net"))), None, "an access point itself");
        let body = interface(2, Some(b"x"));
        for cut in 0..body.len() {
            station(&body[..cut]);
        }
    }

    #[test]
    fn the_access_point_is_the_station_that_is_heard() {
        let mut body = vec![19, 1, 0, 0];
        put(nl80211::IFINDEX, &3u32.to_ne_bytes(), &mut body);
        put(nl80211::MAC, &[0xaa, 0, 1, 0x2b, 0xff, 9], &mut body);
        assert_eq!(access_point(&body).as_deref(), Some("AA:00:01:2B:FF:09"));
        assert_eq!(access_point(&[19, 1, 0, 0]), None);
    }

    #[test]
    fn a_host_without_wireless_interfaces_is_in_no_network() {
        match current() {
            Ok(found) => assert!(found.is_none_or(|wifi| !wifi.ssid.is_empty())),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}"),
        }
    }
}
