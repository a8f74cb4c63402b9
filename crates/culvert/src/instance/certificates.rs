//! Certificate providers: those of `certificate_providers`, and those that inbounds describe in place. Options that name
//! or describe one get the running object put in.

use std::collections::HashMap;
use std::sync::Arc;

use culvert_acme::{Challenges, OptionsError, Provider};
use culvert_config::Options;
use culvert_config::options::certificate_provider::{
    AcmeProvider, CertificateProviderKind, CertificateProviderReference,
};
use culvert_config::options::inbound::InboundKind;
use culvert_config::options::tls::InboundTls;
use culvert_core::Tag;
use culvert_tls::CertificateSource;

use super::BuildErrors;
use super::http_clients::{Base, HttpClients};

/// Builds providers, and keeps all of them.
pub(super) struct Certificates<'a> {
    clients: HttpClients<'a>,
    challenges: Arc<Challenges>,
    by_tag: HashMap<&'a str, Option<Arc<Provider>>>,
    all: Vec<Arc<Provider>>,
}

impl<'a> Certificates<'a> {
    /// Those with a tag, whether anybody uses them or not.
    pub(super) fn new(options: &'a Options, base: &'a Base, errors: &mut BuildErrors) -> Self {
        let clients = HttpClients::new(options, base);
        let mut this =
            Self { clients, challenges: Challenges::new(), by_tag: HashMap::new(), all: Vec::new() };
        for (index, one) in options.certificate_providers.iter().enumerate() {
            let place = format!("certificate_providers[{index}] \"{}\"", one.tag);
            let provider = this.build(&one.kind, &one.tag, &place, errors);
            this.by_tag.insert(&one.tag, provider);
        }
        this
    }

    /// Puts the provider into the TLS options of an inbound that has one. False if it cannot be built, which is noted. One
    /// that is described in place goes by the tag of its inbound.
    pub(super) fn put_into(
        &mut self,
        kind: &mut InboundKind,
        tag: &str,
        place: &str,
        errors: &mut BuildErrors,
    ) -> bool {
        let tls = tls_of(kind).filter(|tls| tls.enabled);
        let Some((tls, reference)) = tls.and_then(|tls| asked(tls).map(|reference| (tls, reference))) else {
            return true;
        };
        let provider = match reference {
            CertificateProviderReference::Tag(named) => match self.by_tag.get(named.as_str()) {
                Some(provider) => provider.clone(),
                None => {
                    errors
                        .invalid(place, format!("certificate provider `{}` does not exist", named.as_str()));
                    None
                }
            },
            CertificateProviderReference::Inline(kind) => {
                self.build(&kind, tag, &format!("{place}.tls.certificate_provider"), errors)
            }
            CertificateProviderReference::Made(_) => return true,
        };
        let Some(provider) = provider else { return false };
        tls.acme = None;
        tls.certificate_provider =
            Some(culvert_tls::options::provided(provider as Arc<dyn CertificateSource>));
        true
    }

    /// All that were built, to be run.
    pub(super) fn into_providers(self) -> Vec<Arc<Provider>> {
        self.all
    }

    fn build(
        &mut self,
        kind: &CertificateProviderKind,
        tag: &str,
        place: &str,
        errors: &mut BuildErrors,
    ) -> Option<Arc<Provider>> {
        let CertificateProviderKind::Acme(options) = kind else {
            errors.not_built(format!("certificate provider type `{}` ({place})", kind.name()));
            return None;
        };
        let client = self.clients.get(&options.http_client, place, errors);
        let settings = match culvert_acme::options::settings(options) {
            Ok(settings) => settings,
            Err(OptionsError::NotBuilt(option)) => {
                errors.not_built(format!("`{option}` ({place})"));
                return None;
            }
            Err(error) => {
                errors.invalid(place, error);
                return None;
            }
        };
        let tag = Tag::new(kind.name(), tag);
        let provider = Provider::new(tag, settings, client?, Arc::clone(&self.challenges));
        self.all.push(Arc::clone(&provider));
        Some(provider)
    }
}

/// The provider that is asked for, in the new form or the old one.
fn asked(tls: &InboundTls) -> Option<CertificateProviderReference> {
    if let Some(acme) = tls.acme.as_ref().filter(|acme| !acme.domain.is_empty()) {
        let options: AcmeProvider = culvert_acme::options::from_inline(acme);
        return Some(CertificateProviderReference::Inline(CertificateProviderKind::Acme(Box::new(options))));
    }
    tls.certificate_provider.clone()
}

fn tls_of(kind: &mut InboundKind) -> Option<&mut InboundTls> {
    let tls = match kind {
        InboundKind::Mixed(options) => &mut options.tls,
        InboundKind::Http(options) => &mut options.tls,
        InboundKind::Vmess(options) => &mut options.tls,
        InboundKind::Vless(options) => &mut options.tls,
        InboundKind::Trojan(options) => &mut options.tls,
        InboundKind::Naive(options) => &mut options.tls,
        InboundKind::Hysteria(options) => &mut options.tls,
        InboundKind::Hysteria2(options) => &mut options.tls,
        InboundKind::Tuic(options) => &mut options.tls,
        InboundKind::AnyTls(options) => &mut options.tls,
        _ => return None,
    };
    tls.as_deref_mut()
}
