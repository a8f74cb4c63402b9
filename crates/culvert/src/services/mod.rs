//! The `services` section at work.

mod resolved;

use std::sync::Arc;

use culvert_config::Tagged;
use culvert_config::options::service::ServiceKind;
use culvert_core::{Inbound, Tag};

use crate::dns::Dns;
use crate::instance::BuildErrors;

/// Builds all services, which are started and stopped as inbounds are. What is not built yet or can never work is noted
/// in `errors`.
pub(crate) fn build(
    options: &[Tagged<ServiceKind>],
    dns: &Arc<Dns>,
    errors: &mut BuildErrors,
) -> Vec<Arc<dyn Inbound>> {
    let mut built = Vec::new();
    for (index, one) in options.iter().enumerate() {
        let (kind, place) = (one.kind.name(), format!("services[{index}] \"{}\"", one.tag));
        let tag = Tag::new(kind, one.tag.as_str());
        match &one.kind {
            ServiceKind::Resolved(options) => match resolved::build(tag, options, dns) {
                Ok(service) => built.push(service),
                Err(error) => errors.invalid(place, error),
            },
            _ => errors.not_built(format!("service type `{kind}` ({place})")),
        }
    }
    built
}
