//! The document itself: its sections.

use super::certificate::CertificateOptions;
use super::certificate_provider::CertificateProviderKind;
use super::dns::DnsOptions;
use super::endpoint::EndpointKind;
use super::experimental::ExperimentalOptions;
use super::http_client::TaggedHttpClient;
use super::inbound::InboundKind;
use super::log::LogOptions;
use super::namespace::NamespaceKind;
use super::ntp::NtpOptions;
use super::outbound::OutboundKind;
use super::route::RouteOptions;
use super::service::ServiceKind;
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
        /// Where the time comes from.
        ntp: NtpOptions,
        /// Which authorities are trusted.
        certificate: CertificateOptions,
        /// Where certificates of servers come from, to refer to by tag.
        certificate_providers: Vec<Tagged<CertificateProviderKind>>,
        /// HTTP clients to refer to by tag.
        http_clients: Vec<TaggedHttpClient>,
        /// Network namespaces to refer to by tag (Linux).
        network_namespaces: Vec<Tagged<NamespaceKind>>,
        /// What is inbound and outbound at once.
        endpoints: Vec<Tagged<EndpointKind>>,
        /// Where connections come in.
        inbounds: Vec<Tagged<InboundKind>>,
        /// Where connections go out.
        outbounds: Vec<Tagged<OutboundKind>>,
        /// Which connection goes where.
        route: RouteOptions,
        /// What runs beside the proxy.
        services: Vec<Tagged<ServiceKind>>,
        /// The cache file, APIs and knobs for debugging.
        experimental: ExperimentalOptions,
    }
}

impl Options {
    /// Gives every object without a tag its index as tag, as references expect it.
    pub(crate) fn name_untagged(&mut self) {
        name(&mut self.dns.servers);
        name(&mut self.certificate_providers);
        name(&mut self.endpoints);
        name(&mut self.inbounds);
        name(&mut self.outbounds);
        name(&mut self.services);
    }
}

fn name<K>(objects: &mut [Tagged<K>]) {
    for (index, object) in objects.iter_mut().enumerate() {
        if object.tag.is_empty() {
            object.tag = index.to_string();
        }
    }
}
