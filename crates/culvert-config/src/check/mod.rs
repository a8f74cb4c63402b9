//! What can only be judged once everything is decoded: tags, references and what they lead to.
//!
//! These checks see the options together with the tree they came from, to name places. Lists in both have the same
//! order, so they are walked side by side.

mod advice;
mod dns;
mod networks;
mod references;
mod resolver;
mod route;
mod server;
mod service;

use crate::cx::Cx;
use crate::json::Node;
use crate::options::Options;
use crate::options::outbound::OutboundKind;
use crate::options::outbound::direct::DirectOutbound;
use crate::table::Tagged;

/// Checks a decoded configuration.
pub(crate) fn check(options: &Options, root: &Node, cx: &mut Cx<'_>) {
    references::check(cx);
    dns::check(options, root, cx);
    resolver::check(options, root, cx);
    route::check(options, root, cx);
    server::check(options, root, cx);
    service::check(options, root, cx);
    advice::check(options, root, cx);
}

/// Whether an outbound does nothing but dial.
fn is_plain_direct(outbound: &Tagged<OutboundKind>) -> bool {
    outbound.of::<DirectOutbound>().is_some_and(|direct| *direct == DirectOutbound::default())
}
