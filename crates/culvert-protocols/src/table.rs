//! The table of protocols. The program builds inbounds and outbounds by it, and the fuzz runner finds its targets in it.

use std::sync::Arc;

use culvert_config::KindOf;
use culvert_config::options::dial::DialOptions;
use culvert_config::options::endpoint::EndpointKind;
use culvert_config::options::inbound::InboundKind;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::outbound::OutboundKind;
use culvert_core::{Dialer, Inbound, Outbound, Tag};
use culvert_rules::ip::IpSet;
use thiserror::Error;
use tokio::sync::watch;

use crate::{
    anytls, block, carrier, direct, http, hysteria, hysteria2, mixed, mux, mux_cool, packetaddr, shadowsocks,
    shadowtls, socks, trojan, tuic, uot, vless, vmess,
};

/// All protocols. Groups of outbounds are no protocols: the program makes them.
pub const TABLE: &[&Protocol] = &[
    &direct::PROTOCOL,
    &block::PROTOCOL,
    &socks::PROTOCOL,
    &http::PROTOCOL,
    &mixed::PROTOCOL,
    &trojan::PROTOCOL,
    &anytls::PROTOCOL,
    &vless::PROTOCOL,
    &shadowsocks::PROTOCOL,
    &shadowtls::PROTOCOL,
    &vmess::PROTOCOL,
    &hysteria2::PROTOCOL,
    &hysteria::PROTOCOL,
    &tuic::PROTOCOL,
    &uot::PROTOCOL,
    &mux_cool::PROTOCOL,
    &packetaddr::PROTOCOL,
    &carrier::PROTOCOL,
    #[cfg(target_os = "linux")]
    &crate::transparent::REDIRECT,
    #[cfg(target_os = "linux")]
    &crate::transparent::TPROXY,
    #[cfg(target_os = "linux")]
    &crate::tun::PROTOCOL,
    &mux::PROTOCOL,
    #[cfg(target_os = "linux")]
    &crate::wireguard::PROTOCOL,
];

/// What is inbound and outbound at once.
pub const ENDPOINTS: &[EndpointEntry] = &[
    #[cfg(target_os = "linux")]
    endpoint::<culvert_config::options::endpoint::wireguard::WireGuardEndpoint>("wireguard"),
];

/// One protocol.
pub struct Protocol {
    /// Its `type` in the config.
    pub name: &'static str,
    /// Its inbound, if it has one.
    pub inbound: Option<InboundEntry>,
    /// Its outbound, if it has one.
    pub outbound: Option<OutboundEntry>,
    /// What to feed with random bytes: each function asserts what must hold.
    pub fuzz: &'static [fn(&[u8])],
}

impl Protocol {
    /// The protocol with this `type`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        TABLE.iter().copied().find(|protocol| protocol.name == name)
    }
}

/// How an inbound is built from its options.
#[expect(clippy::type_complexity, reason = "said once, and plainer than a name for it")]
pub struct InboundEntry {
    /// Its listen fields, if it has them (`None` also for options of another type).
    pub listen: fn(&InboundKind) -> Option<&ListenOptions>,
    /// Builds it.
    pub build: fn(&InboundKind, InboundCx) -> Result<Arc<dyn Inbound>, BuildError>,
}

/// How an outbound is built from its options.
#[expect(clippy::type_complexity, reason = "as above")]
pub struct OutboundEntry {
    /// Its dial fields, if it has them (`None` also for options of another type); see [`crate::fields::dial::dialer`].
    pub dial: fn(&OutboundKind) -> Option<&DialOptions>,
    /// Builds it.
    pub build: fn(&OutboundKind, OutboundCx) -> Result<Arc<dyn Outbound>, BuildError>,
}

/// How an endpoint is built from its options.
pub struct EndpointEntry {
    /// Its `type` in the config.
    pub name: &'static str,
    /// Its dial fields (`None` for options of another type).
    pub dial: fn(&EndpointKind) -> Option<&DialOptions>,
    /// Builds it.
    pub build: fn(&EndpointKind, OutboundCx) -> Result<BuiltEndpoint, BuildError>,
}

impl EndpointEntry {
    /// The one with this `type`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        ENDPOINTS.iter().find(|entry| entry.name == name)
    }
}

/// One object, seen from both sides.
pub struct BuiltEndpoint {
    /// It is started and stopped by this.
    pub inbound: Arc<dyn Inbound>,
    /// It dials by this, once it is started.
    pub outbound: Arc<dyn Outbound>,
}

/// What an inbound is given besides its options.
pub struct InboundCx<'a> {
    /// Its type and tag.
    pub tag: Tag,
    /// Makes the dialers of those that dial by themselves.
    pub dialer: MakeDialer<'a>,
    /// The networks of rule-sets, for those that route by them.
    pub networks: Option<&'a Arc<dyn Networks>>,
    /// The firewall marks that sockets of the configuration have.
    pub marks: &'a [u32],
}

/// The networks that rule-sets speak of.
pub trait Networks: Send + Sync {
    /// All networks in the rule-sets with these tags, as they are at this moment.
    fn of(&self, tags: &[String]) -> IpSet;

    /// Changes whenever a rule-set does.
    fn changes(&self) -> watch::Receiver<()>;
}

/// Makes a dialer of dial fields, with what the configuration says around them.
pub type MakeDialer<'a> = &'a (dyn Fn(&DialOptions) -> Result<Dialer, BuildError> + 'a);

/// What an outbound is given besides its options.
pub struct OutboundCx {
    /// Its type and tag.
    pub tag: Tag,
    /// Its dial fields, made ready.
    pub dialer: Dialer,
    /// Whom to trust where TLS is spoken and no authority is named.
    pub store: Arc<culvert_tls::Store>,
}

/// Why an object of the config cannot be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// The option or type is known but has no engine yet.
    #[error("{feature} is not built yet")]
    NotBuilt {
        /// What it is, and whose.
        feature: String,
    },
    /// An option's value can never work.
    #[error("{option}: {reason}")]
    Invalid {
        /// The option.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The options belong to another type.
    #[error("options of type {found} given to {wanted}")]
    Mismatch {
        /// The type of the options.
        found: &'static str,
        /// The type that was to be built.
        wanted: &'static str,
    },
}

impl InboundCx<'_> {
    /// The error for an option without an engine.
    pub(crate) fn not_built(&self, option: &str) -> BuildError {
        BuildError::NotBuilt { feature: format!("{option} for inbound/{}", self.tag.kind) }
    }
}

impl OutboundCx {
    /// The error for an option without an engine.
    pub(crate) fn not_built(&self, option: &str) -> BuildError {
        BuildError::NotBuilt { feature: format!("{option} for outbound/{}", self.tag.kind) }
    }
}

/// Options from which an inbound is built.
pub(crate) trait BuildInbound: KindOf<InboundKind> + 'static {
    /// The listen fields among them.
    fn listen(&self) -> Option<&ListenOptions>;

    fn build(&self, cx: InboundCx) -> Result<Arc<dyn Inbound>, BuildError>;
}

/// Options from which an outbound is built.
pub(crate) trait BuildOutbound: KindOf<OutboundKind> + 'static {
    /// The dial fields among them.
    fn dial(&self) -> Option<&DialOptions>;

    fn build(&self, cx: OutboundCx) -> Result<Arc<dyn Outbound>, BuildError>;
}

/// Options from which an endpoint is built.
pub(crate) trait BuildEndpoint: KindOf<EndpointKind> + 'static {
    /// The dial fields among them.
    fn dial(&self) -> &DialOptions;

    fn build(&self, cx: OutboundCx) -> Result<BuiltEndpoint, BuildError>;
}

/// The table's entry for an endpoint with options `O`.
const fn endpoint<O: BuildEndpoint>(name: &'static str) -> EndpointEntry {
    EndpointEntry {
        name,
        dial: |kind| O::of(kind).map(O::dial),
        build: |kind, cx| match O::of(kind) {
            Some(options) => options.build(cx),
            None => Err(BuildError::Mismatch { found: kind.name(), wanted: cx.tag.kind }),
        },
    }
}

/// The table's entry for an inbound with options `O`.
pub(crate) const fn inbound<O: BuildInbound>() -> Option<InboundEntry> {
    Some(InboundEntry {
        listen: |kind| O::of(kind).and_then(O::listen),
        build: |kind, cx| match O::of(kind) {
            Some(options) => options.build(cx),
            None => Err(BuildError::Mismatch { found: kind.name(), wanted: cx.tag.kind }),
        },
    })
}

/// The table's entry for an outbound with options `O`.
pub(crate) const fn outbound<O: BuildOutbound>() -> Option<OutboundEntry> {
    Some(OutboundEntry {
        dial: |kind| O::of(kind).and_then(O::dial),
        build: |kind, cx| match O::of(kind) {
            Some(options) => options.build(cx),
            None => Err(BuildError::Mismatch { found: kind.name(), wanted: cx.tag.kind }),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use culvert_config::options::inbound::mixed::HttpInbound;
    use culvert_config::options::outbound::direct::DirectOutbound;
    use culvert_config::options::tls::InboundTls;
    use culvert_config::options::tls::inbound::InboundEch;

    use super::*;

    #[test]
    fn names_are_unique_and_known_to_the_config() {
        let names: HashSet<_> = TABLE.iter().map(|protocol| protocol.name).collect();
        assert_eq!(names.len(), TABLE.len());
        assert_eq!(Protocol::find("socks").map(|protocol| protocol.name), Some("socks"));
        assert!(Protocol::find("nothing").is_none());
    }

    #[test]
    fn options_without_an_engine_are_named() {
        let cx = || InboundCx {
            tag: Tag::new("mixed", "in"),
            dialer: &crate::testing::no_dialer,
            networks: None,
            marks: &[],
        };
        let ech = Some(InboundEch { enabled: true, ..InboundEch::default() });
        let mut tls = Box::new(InboundTls { enabled: true, insecure: true, ech, ..InboundTls::default() });
        let options =
            |tls: &InboundTls| HttpInbound { tls: Some(Box::new(tls.clone())), ..HttpInbound::default() };
        let error = options(&tls).build(cx()).err().unwrap();
        assert_eq!(error.to_string(), "`tls.ech` is not built yet");
        tls.enabled = false;
        assert!(options(&tls).build(cx()).is_ok(), "tls that is not enabled");
    }

    #[test]
    fn options_of_another_type_are_a_mismatch() {
        let entry = Protocol::find("socks").and_then(|protocol| protocol.outbound.as_ref()).unwrap();
        let kind = OutboundKind::Direct(Box::<DirectOutbound>::default());
        assert!((entry.dial)(&kind).is_none());
        let entry = Protocol::find("direct").and_then(|protocol| protocol.outbound.as_ref()).unwrap();
        assert!((entry.dial)(&kind).is_some());
    }
}
