//! Outbounds, each after those it dials through.

use std::collections::HashMap;
use std::sync::Arc;

use culvert_config::Tagged;
use culvert_config::options::dial::DialOptions;
use culvert_config::options::outbound::OutboundKind;
use culvert_config::options::route::RouteOptions;
use culvert_config::value::Mark;
use culvert_core::{Outbound, Resolver, Tag};
use culvert_protocols::fields::dial::dialer;
use culvert_protocols::table::{OutboundCx, OutboundEntry, Protocol};

use super::BuildErrors;

/// All outbounds of a configuration.
pub(super) struct Outbounds {
    pub(super) by_tag: HashMap<String, Arc<dyn Outbound>>,
    /// Where connections go that no rule sends elsewhere.
    pub(super) default: Arc<dyn Outbound>,
}

/// Builds all of them. `None` if the default one could not be built.
pub(super) fn build(
    options: &[Tagged<OutboundKind>],
    route: &RouteOptions,
    resolver: &Arc<dyn Resolver>,
    errors: &mut BuildErrors,
) -> Option<Outbounds> {
    // Without outbounds there is a direct one.
    let implied = [Tagged { tag: "direct".to_owned(), kind: OutboundKind::Direct(Box::default()) }];
    let options = if options.is_empty() { &implied[..] } else { options };
    let mut builder = Builder { options, route, resolver, errors, built: HashMap::new() };
    for index in 0..options.len() {
        builder.build(index);
    }
    let by_tag = builder.finish();
    let default = route.final_outbound.get().unwrap_or(&options[0].tag);
    let default = by_tag.get(default).cloned()?;
    Some(Outbounds { by_tag, default })
}

struct Builder<'a> {
    options: &'a [Tagged<OutboundKind>],
    route: &'a RouteOptions,
    resolver: &'a Arc<dyn Resolver>,
    errors: &'a mut BuildErrors,
    /// By position. `None`: being built, or impossible.
    built: HashMap<usize, Option<Arc<dyn Outbound>>>,
}

impl Builder<'_> {
    /// The outbound at this position, built if it is not yet.
    fn build(&mut self, index: usize) -> Option<Arc<dyn Outbound>> {
        if let Some(built) = self.built.get(&index) {
            return built.clone();
        }
        // Cycles are found when the configuration is checked; this entry makes one end here all the same.
        self.built.insert(index, None);
        let outbound = self.make(index);
        self.built.insert(index, outbound.clone());
        outbound
    }

    fn make(&mut self, index: usize) -> Option<Arc<dyn Outbound>> {
        let one = &self.options[index];
        let (kind, place) = (one.kind.name(), format!("outbounds[{index}] \"{}\"", one.tag));
        let Some(entry) = Protocol::find(kind).and_then(|protocol| protocol.outbound.as_ref()) else {
            self.errors.not_built(format!("outbound type `{kind}` ({place})"));
            return None;
        };
        let dial = self.dial_fields(entry, &one.kind);
        let detour = match dial.detour.get() {
            None => None,
            Some(tag) => Some(self.by_tag(tag, &place)?),
        };
        // A direct outbound's datagrams are the clients' own and may be of any size.
        let udp_fragment = kind == "direct";
        let made = dialer(&dial, udp_fragment, Arc::clone(self.resolver), detour).and_then(|dialer| {
            let cx = OutboundCx { tag: Tag::new(kind, one.tag.as_str()), dialer };
            (entry.build)(&one.kind, cx)
        });
        made.map_err(|error| self.errors.invalid(place, error)).ok()
    }

    /// The dial fields, with what `route` says for all outbounds where they say nothing.
    fn dial_fields(&self, entry: &OutboundEntry, kind: &OutboundKind) -> DialOptions {
        let mut dial = (entry.dial)(kind).cloned().unwrap_or_default();
        if dial.bind_interface.is_empty() {
            dial.bind_interface.clone_from(&self.route.default_interface);
        }
        if dial.routing_mark == Mark::default() {
            dial.routing_mark = self.route.default_mark;
        }
        dial
    }

    fn by_tag(&mut self, tag: &str, place: &str) -> Option<Arc<dyn Outbound>> {
        match self.options.iter().position(|one| one.tag == tag) {
            Some(index) => self.build(index),
            None => {
                self.errors.invalid(place, format!("detour `{tag}` does not exist"));
                None
            }
        }
    }

    fn finish(self) -> HashMap<String, Arc<dyn Outbound>> {
        let built = self.built.into_iter();
        built.filter_map(|(index, outbound)| Some((self.options[index].tag.clone(), outbound?))).collect()
    }
}
