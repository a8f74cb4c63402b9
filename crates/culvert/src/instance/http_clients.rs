//! HTTP clients for the program's own requests: those of `http_clients`, those described in place, and one for everybody
//! who names none.

use std::collections::HashMap;
use std::sync::Arc;

use culvert_config::Options;
use culvert_config::options::dial::DialOptions;
use culvert_config::options::http_client::{HttpClientOptions, HttpClientReference};
use culvert_config::options::rule_set::RemoteRuleSet;
use culvert_config::value::OutboundTag;
use culvert_core::{Chain, Dialer, Tag};
use culvert_http::Client;
use culvert_os::iface::Outward;
use culvert_protocols::BuildError;
use culvert_protocols::fields::dial::dialer;

use super::{BuildErrors, leading_out, with_defaults};
use crate::dns::Names;
use crate::groups::Member;

/// What they are built with.
pub(super) struct Base {
    pub(super) outbounds: HashMap<String, Member>,
    /// Where requests go that nobody has named a client for.
    pub(super) default: Member,
    pub(super) names: Names,
    pub(super) outward: Outward,
    pub(super) store: Arc<culvert_tls::Store>,
}

impl Base {
    /// The dialer that these dial fields describe.
    pub(super) fn dialer(&self, dial: &DialOptions, options: &Options) -> Result<Dialer, BuildError> {
        let dial = with_defaults(dial.clone(), &options.route, &options.network_namespaces);
        let missing =
            |tag: &str| BuildError::Invalid { option: "detour", reason: format!("`{tag}` does not exist") };
        let find = |tag: &str| self.outbounds.get(tag).map(Member::outbound).ok_or_else(|| missing(tag));
        let detour = dial.detour.get().map(find).transpose()?;
        let resolver = self.names.resolver(dial.domain_resolver.as_ref());
        let dialer = dialer(&dial, false, resolver, detour)?;
        Ok(leading_out(dialer, &options.route, &self.outward))
    }
}

/// Builds clients as they are asked for, those with a tag once.
pub(super) struct HttpClients<'a> {
    options: &'a Options,
    base: &'a Base,
    by_tag: HashMap<&'a str, Option<Client>>,
}

impl<'a> HttpClients<'a> {
    pub(super) fn new(options: &'a Options, base: &'a Base) -> Self {
        Self { options, base, by_tag: HashMap::new() }
    }

    /// The client that is meant; `place` is where. `None` if it cannot be built, which is noted once.
    pub(super) fn get(
        &mut self,
        reference: &HttpClientReference,
        place: &str,
        errors: &mut BuildErrors,
    ) -> Option<Client> {
        let tag = match reference {
            HttpClientReference::Inline(options) => {
                return self.build(options, "", &format!("{place}.http_client"), errors);
            }
            HttpClientReference::Tag(tag) => tag.get(),
        };
        let all = &self.options.http_clients;
        let default = self.options.route.default_http_client.get().or(all.first().map(|one| &*one.tag));
        let Some(tag) = tag.or(default) else {
            return self.build(&HttpClientOptions::default(), "", place, errors);
        };
        let Some((index, one)) = all.iter().enumerate().find(|(_, one)| one.tag == tag) else {
            errors.invalid(place, format!("HTTP client `{tag}` does not exist"));
            return None;
        };
        if let Some(built) = self.by_tag.get(&*one.tag) {
            return built.clone();
        }
        let built = self.build(&one.options, tag, &format!("http_clients[{index}] \"{tag}\""), errors);
        self.by_tag.insert(&one.tag, built.clone());
        built
    }

    /// The client of a rule-set. Without any clients in the configuration it goes by the outbound that the rule-set
    /// names, or by the default one (sing-box before 1.14).
    pub(super) fn of_rule_set(
        &mut self,
        remote: &RemoteRuleSet,
        place: &str,
        errors: &mut BuildErrors,
    ) -> Option<Client> {
        let mut options = HttpClientOptions::default();
        match (&remote.http_client, remote.download_detour.get()) {
            (Some(reference), _) => return self.get(reference, place, errors),
            (None, Some(_)) => options.dial.detour.clone_from(&remote.download_detour),
            (None, None) if !self.options.http_clients.is_empty() => {
                return self.get(&HttpClientReference::default(), place, errors);
            }
            (None, None) => options.dial.detour = OutboundTag(self.base.default.tag().name.to_string()),
        }
        self.build(&options, "", place, errors)
    }

    fn build(
        &self,
        options: &HttpClientOptions,
        tag: &str,
        place: &str,
        errors: &mut BuildErrors,
    ) -> Option<Client> {
        let settings = culvert_http::options::settings(options);
        let settings = settings.map_err(|error| errors.invalid(place, Chain(&error))).ok()?;
        let dialer = self.base.dialer(&options.dial, self.options);
        let dialer = dialer.map_err(|error| errors.invalid(place, error)).ok()?;
        let client = Client::new(Tag::new("http-client", tag), settings, dialer, &self.base.store);
        client.map_err(|error| errors.invalid(place, Chain(&error))).ok()
    }
}
