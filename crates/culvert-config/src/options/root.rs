//! The document itself: its sections.

use super::dns::DnsOptions;
use super::inbound::InboundKind;
use super::log::LogOptions;
use super::outbound::OutboundKind;
use super::route::RouteOptions;
use crate::table::{Tagged, options};

options! {
    /// A whole configuration.
    pub struct Options {
        /// Where the schema of this file is to be found; ignored.
        schema: String = "$schema",
        /// What is logged, and where to.
        log: LogOptions,
        /// How names are resolved, and what DNS clients are told.
        dns: DnsOptions,
        /// Where connections come in.
        inbounds: Vec<Tagged<InboundKind>>,
        /// Where connections go out.
        outbounds: Vec<Tagged<OutboundKind>>,
        /// Which connection goes where.
        route: RouteOptions,
    }
}

impl Options {
    /// Gives every object without a tag its index as tag, as references expect it.
    pub(crate) fn name_untagged(&mut self) {
        name(&mut self.dns.servers);
        name(&mut self.inbounds);
        name(&mut self.outbounds);
    }
}

fn name<K>(objects: &mut [Tagged<K>]) {
    for (index, object) in objects.iter_mut().enumerate() {
        if object.tag.is_empty() {
            object.tag = index.to_string();
        }
    }
}
