//! Outbounds, each after those it dials through.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use culvert_config::Tagged;
use culvert_config::options::dial::DialOptions;
use culvert_config::options::endpoint::EndpointKind;
use culvert_config::options::namespace::NamespaceKind;
use culvert_config::options::outbound::OutboundKind;
use culvert_config::options::outbound::group::{
    BalanceStrategy, FallbackOutbound, LoadBalanceOutbound, SelectorOutbound, UrlTestOutbound,
};
use culvert_config::options::route::RouteOptions;
use culvert_config::value::{Dur, Mark, OutboundTag};
use culvert_core::{Dialer, Flows, Inbound, Tag};
use culvert_os::iface::Outward;
use culvert_protocols::fields::dial::dialer;
use culvert_protocols::table::{
    BuildError, BuiltEndpoint, EndpointEntry, OutboundCx, OutboundEntry, Protocol,
};

use super::{BuildErrors, namespaces};
use crate::dns::Names;
use crate::groups::{Balance, Group, History, Member, Order, Probe, UrlTest};

/// What outbounds are built with.
pub(super) struct Around<'a> {
    pub(super) route: &'a RouteOptions,
    pub(super) namespaces: &'a [Tagged<NamespaceKind>],
    pub(super) names: &'a Names,
    /// The interface that leads out, for those who are to leave by it.
    pub(super) outward: &'a Outward,
    pub(super) flows: &'a Arc<Flows>,
    /// Whom to trust where a URL test uses TLS.
    pub(super) store: &'a Arc<culvert_tls::Store>,
    pub(super) history: &'a Arc<History>,
}

/// All outbounds of a configuration.
pub(super) struct Outbounds {
    pub(super) by_tag: HashMap<String, Member>,
    /// Where connections go that no rule sends elsewhere.
    pub(super) default: Member,
    /// Those of the outbounds that are inbounds too.
    pub(super) endpoints: Vec<Arc<dyn Inbound>>,
}

/// Builds all of them. `None` if the default one could not be built.
pub(super) fn build(
    options: &[Tagged<OutboundKind>],
    endpoints: &[Tagged<EndpointKind>],
    around: Around<'_>,
    errors: &mut BuildErrors,
) -> Option<Outbounds> {
    // Without outbounds there is a direct one.
    let implied = [Tagged { tag: "direct".to_owned(), kind: OutboundKind::Direct(Box::default()) }];
    let options = if options.is_empty() { &implied[..] } else { options };
    let route = around.route;
    let (built, inbounds) = (HashMap::new(), Vec::new());
    let mut builder = Builder { options, endpoints, around, errors, built, inbounds };
    for index in 0..options.len() + endpoints.len() {
        builder.build(index);
    }
    let (by_tag, endpoints) = builder.finish();
    let default = route.final_outbound.get().unwrap_or(&options[0].tag);
    let default = by_tag.get(default).cloned()?;
    Some(Outbounds { by_tag, default, endpoints })
}

struct Builder<'a> {
    options: &'a [Tagged<OutboundKind>],
    endpoints: &'a [Tagged<EndpointKind>],
    around: Around<'a>,
    errors: &'a mut BuildErrors,
    /// By position, endpoints behind outbounds. `None`: being built, or impossible.
    built: HashMap<usize, Option<Member>>,
    inbounds: Vec<Arc<dyn Inbound>>,
}

impl Builder<'_> {
    /// The outbound at this position, built if it is not yet.
    fn build(&mut self, index: usize) -> Option<Member> {
        if let Some(built) = self.built.get(&index) {
            return built.clone();
        }
        // Cycles are found when the configuration is checked; this entry makes one end here all the same.
        self.built.insert(index, None);
        let outbound = self.make(index);
        self.built.insert(index, outbound.clone());
        outbound
    }

    fn make(&mut self, index: usize) -> Option<Member> {
        let Some(one) = self.options.get(index) else { return self.endpoint(index - self.options.len()) };
        let (kind, place) = (one.kind.name(), format!("outbounds[{index}] \"{}\"", one.tag));
        match &one.kind {
            OutboundKind::Selector(options) => return self.selector(&one.tag, options, &place),
            OutboundKind::UrlTest(options) => return self.url_test(&one.tag, options, &place),
            OutboundKind::Fallback(options) => {
                let FallbackOutbound { outbounds, delay } = &**options;
                return self.ordered(
                    Tag::new(kind, one.tag.as_str()),
                    outbounds,
                    Balance::InOrder,
                    *delay,
                    &place,
                );
            }
            OutboundKind::LoadBalance(options) => {
                let LoadBalanceOutbound { outbounds, strategy, delay } = &**options;
                let balance = match strategy {
                    BalanceStrategy::RoundRobin => Balance::RoundRobin,
                    BalanceStrategy::Source => Balance::Source,
                    BalanceStrategy::Target => Balance::Target,
                };
                return self.ordered(Tag::new(kind, one.tag.as_str()), outbounds, balance, *delay, &place);
            }
            _ => {}
        }
        let Some(entry) = Protocol::find(kind).and_then(|protocol| protocol.outbound.as_ref()) else {
            self.errors.not_built(format!("outbound type `{kind}` ({place})"));
            return None;
        };
        let dial = self.dial_fields(entry, &one.kind);
        // A direct outbound's datagrams are the clients' own and may be of any size.
        let udp_fragment = kind == "direct";
        let tag = Tag::new(kind, one.tag.as_str());
        let made = self.with_dialer(tag, &dial, udp_fragment, &place, |cx| (entry.build)(&one.kind, cx))?;
        Some(Member::Outbound(made))
    }

    fn endpoint(&mut self, index: usize) -> Option<Member> {
        let one = &self.endpoints[index];
        let (kind, place) = (one.kind.name(), format!("endpoints[{index}] \"{}\"", one.tag));
        let Some(entry) = EndpointEntry::find(kind) else {
            self.errors.not_built(format!("endpoint type `{kind}` ({place})"));
            return None;
        };
        let dial = (entry.dial)(&one.kind).cloned().unwrap_or_default();
        let dial = with_defaults(dial, self.around.route, self.around.namespaces);
        let tag = Tag::new(kind, one.tag.as_str());
        let made = self.with_dialer(tag, &dial, false, &place, |cx| (entry.build)(&one.kind, cx))?;
        let BuiltEndpoint { inbound, outbound } = made;
        self.inbounds.push(inbound);
        Some(Member::Outbound(outbound))
    }

    /// Makes what dials as `dial` says. `None` if it cannot be made, which is noted.
    fn with_dialer<T>(
        &mut self,
        tag: Tag,
        dial: &DialOptions,
        udp_fragment: bool,
        place: &str,
        make: impl FnOnce(OutboundCx) -> Result<T, BuildError>,
    ) -> Option<T> {
        let detour = match dial.detour.get() {
            None => None,
            Some(tag) => Some(self.by_tag(tag, place)?.outbound()),
        };
        let resolver = self.around.names.resolver(dial.domain_resolver.as_ref());
        let made = dialer(dial, udp_fragment, resolver, detour)
            .map(|dialer| leading_out(dialer, self.around.route, self.around.outward))
            .and_then(|dialer| make(OutboundCx { tag, dialer, store: Arc::clone(self.around.store) }));
        made.map_err(|error| self.errors.invalid(place, error)).ok()
    }

    fn selector(&mut self, tag: &str, options: &SelectorOutbound, place: &str) -> Option<Member> {
        let members = self.members(&options.outbounds, place)?;
        let default = options.default.get();
        let chosen = default.and_then(|tag| members.iter().position(|member| *member.tag().name == *tag));
        let (tag, flows) = (Tag::new("selector", tag), Arc::clone(self.around.flows));
        let interrupt = options.interrupt_exist_connections;
        Some(Member::Group(Arc::new(Group::selector(tag, members, chosen.unwrap_or(0), interrupt, flows))))
    }

    fn url_test(&mut self, tag: &str, options: &UrlTestOutbound, place: &str) -> Option<Member> {
        let members = self.members(&options.outbounds, place)?;
        let probe = match Probe::new(&options.url, self.around.store) {
            Ok(probe) => probe,
            Err(error) => {
                self.errors.invalid(place, culvert_core::Chain(&error));
                return None;
            }
        };
        let test = UrlTest::new(
            probe,
            options.interval.or(UrlTestOutbound::DEFAULT_INTERVAL),
            options.idle_timeout.or(UrlTestOutbound::DEFAULT_IDLE_TIMEOUT),
            if options.tolerance == 0 { TOLERANCE } else { options.tolerance },
            Arc::clone(self.around.history),
        );
        let (tag, flows) = (Tag::new("urltest", tag), Arc::clone(self.around.flows));
        let interrupt = options.interrupt_exist_connections;
        Some(Member::Group(Arc::new(Group::url_test(tag, members, test, interrupt, flows))))
    }

    fn ordered(
        &mut self,
        tag: Tag,
        members: &[OutboundTag],
        balance: Balance,
        delay: Dur,
        place: &str,
    ) -> Option<Member> {
        let members = self.members(members, place)?;
        let order = Order::new(balance, delay.or(HEAD_START), members.len());
        Some(Member::Group(Arc::new(Group::ordered(tag, members, order, Arc::clone(self.around.flows)))))
    }

    /// All of them, or `None` if one cannot be built.
    fn members(&mut self, tags: &[OutboundTag], place: &str) -> Option<Vec<Member>> {
        tags.iter().map(|tag| self.by_tag(tag.as_str(), place)).collect()
    }

    /// The dial fields, with what `route` says for all outbounds where they say nothing.
    fn dial_fields(&self, entry: &OutboundEntry, kind: &OutboundKind) -> DialOptions {
        let dial = (entry.dial)(kind).cloned().unwrap_or_default();
        with_defaults(dial, self.around.route, self.around.namespaces)
    }

    fn by_tag(&mut self, tag: &str, place: &str) -> Option<Member> {
        let endpoints = self.endpoints.iter().map(|one| &one.tag);
        let mut tags = self.options.iter().map(|one| &one.tag).chain(endpoints);
        match tags.position(|one| one == tag) {
            Some(index) => self.build(index),
            None => {
                self.errors.invalid(place, format!("outbound `{tag}` does not exist"));
                None
            }
        }
    }

    fn finish(self) -> (HashMap<String, Member>, Vec<Arc<dyn Inbound>>) {
        let (options, endpoints) = (self.options, self.endpoints);
        let tag = |index: usize| match options.get(index) {
            Some(one) => one.tag.clone(),
            None => endpoints[index - options.len()].tag.clone(),
        };
        let built = self.built.into_iter();
        let by_tag = built.filter_map(|(index, outbound)| Some((tag(index), outbound?))).collect();
        (by_tag, self.inbounds)
    }
}

/// How long a member of a fallback group may take before the next one is tried too.
const HEAD_START: Duration = Duration::from_secs(3);
/// How much better another member must be when nothing is said, in milliseconds (sing-box 1.14.4).
const TOLERANCE: u16 = 50;

/// The dialer, leaving by the interface of the default route if it names none and the options want that.
pub(crate) fn leading_out(mut dialer: Dialer, route: &RouteOptions, outward: &Outward) -> Dialer {
    let is_elsewhere = dialer.tcp.netns.is_some() || dialer.detour.is_some();
    if route.auto_detect_interface && !is_elsewhere {
        // It wins over `default_interface` (sing-box 1.14.4), but not over an interface of its own.
        let is_default = dialer.tcp.bind_interface.as_deref() == Some(&*route.default_interface);
        if is_default {
            (dialer.tcp.bind_interface, dialer.udp.bind_interface) = (None, None);
        }
        dialer.tcp.outward = Some(outward.clone());
        dialer.udp.outward = Some(outward.clone());
    }
    dialer
}

/// Dial fields with what `route` says for all sockets where they say nothing, and network namespaces by their paths.
pub(crate) fn with_defaults(
    mut dial: DialOptions,
    route: &RouteOptions,
    namespaces: &[Tagged<NamespaceKind>],
) -> DialOptions {
    namespaces::resolve(&mut dial.netns, namespaces);
    if dial.bind_interface.is_empty() {
        dial.bind_interface.clone_from(&route.default_interface);
    }
    if dial.routing_mark == Mark::default() {
        dial.routing_mark = route.default_mark;
    }
    if dial.domain_resolver.is_none() {
        dial.domain_resolver.clone_from(&route.default_domain_resolver);
    }
    dial
}
