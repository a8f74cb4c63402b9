//! `dns`: servers, rules, and what answers have in common.

pub mod record;
pub mod rule;
pub mod server;
pub mod types;

use self::rule::{DnsAction, DnsMatch};
use self::server::DnsServerKind;
use super::dial::DomainStrategy;
use super::rule::Rule;
use crate::cx::Cx;
use crate::json::Node;
use crate::schema::Schema;
use crate::table::{self, Tagged, options};
use crate::value::{DnsServerTag, Dur, OptionValue, Subnet};

options! {
    /// How names are resolved, and what DNS clients are told.
    pub struct DnsOptions {
        /// The servers.
        servers: Vec<Tagged<DnsServerKind>>,
        /// Rules, from first to last.
        rules: Vec<Rule<DnsMatch, DnsAction>>,
        /// Server when no rule decides; the first one when absent.
        final_server: DnsServerTag = "final",
        /// Remembers which name an address came from, for the rules on later connections.
        reverse_mapping: bool,
        /// Which address family is used.
        strategy: DomainStrategy,
        /// How long a query may take; 10s when absent.
        timeout: Dur,
        /// Always asks, and keeps no answer.
        disable_cache: bool,
        /// Kept answers never expire.
        disable_expire: bool,
        /// Without effect: answers are always kept by server.
        independent_cache: bool [hidden],
        /// How many answers are kept; 1024 when absent or less.
        cache_capacity: u32,
        /// Answers with what has expired while it asks again.
        optimistic: Option<Optimistic>,
        /// Client subnet sent along with every query.
        client_subnet: Option<Subnet>,
    }
    check = DnsOptions::check_cache;
}

impl DnsOptions {
    fn check_cache(&self, node: &Node, cx: &mut Cx<'_>) {
        let optimistic = self.optimistic.as_ref().is_some_and(|optimistic| optimistic.0.enabled);
        for (key, set) in [("disable_cache", self.disable_cache), ("disable_expire", self.disable_expire)] {
            if optimistic && set {
                cx.error(node.place_of("optimistic"), format!("`optimistic` and `{key}` exclude each other"));
            }
        }
        if self.independent_cache {
            let message =
                "`independent_cache` has no effect, since answers are always kept by server; remove it";
            cx.warn(node.place_of("independent_cache"), message);
        }
    }
}

/// Use of expired answers: `true`, or an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Optimistic(pub OptimisticOptions);

options! {
    /// Use of expired answers.
    pub struct OptimisticOptions {
        /// Whether they are used.
        enabled: bool,
        /// For how long after they expired; 3d when absent.
        timeout: Dur,
    }
}

impl OptionValue for Optimistic {
    fn decode(&mut self, node: &Node, cx: &mut Cx<'_>) {
        match node.as_bool() {
            Some(enabled) => self.0 = OptimisticOptions { enabled, ..Default::default() },
            None if node.as_object().is_some() => table::decode(&mut self.0, node, cx),
            None => cx.expected("true, false or an object", node),
        }
    }

    /// Without a time the boolean says it all.
    fn encode(&self) -> Node {
        if self.0.timeout.is_zero() { self.0.enabled.encode() } else { self.0.encode() }
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn schema(&self, schema: &mut Schema) -> Node {
        let forms = [Schema::typed("boolean"), self.0.schema(schema)];
        Schema::any_of(forms)
    }
}
