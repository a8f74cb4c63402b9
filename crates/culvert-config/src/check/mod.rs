//! What can only be judged once everything is decoded: tags, references and what they lead to.

mod references;

use crate::cx::Cx;
use crate::json::Node;
use crate::options::Options;

/// Checks a decoded configuration.
pub(crate) fn check(_options: &Options, _root: &Node, cx: &mut Cx<'_>) {
    references::check(cx);
}
