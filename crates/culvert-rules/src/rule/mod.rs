//! Rules: conditions on a connection or a DNS query, compiled so that a verdict allocates nothing.
//!
//! Write a [`DefaultRule`] or [`LogicalRule`] with the keys of sing-box, build a [`Rule`] from it, and ask it about
//! [`Facts`]:
//!
//! ```
//! use culvert_rules::rule::{DefaultRule, Facts, Rule, RuleSets};
//!
//! let options = DefaultRule { domain_suffix: vec!["example.com".into()], port: vec![443], ..Default::default() };
//! let rule = Rule::new(options.into(), &mut |_tag| None)?;
//! let facts = Facts { domain: Some("www.example.com"), port: 443, ..Default::default() };
//! assert!(rule.matches(&facts, &RuleSets::default()));
//! # Ok::<(), culvert_rules::rule::RuleError>(())
//! ```
//!
//! Rule-sets live outside of rules, in [`RuleSets`], so that they can be replaced while rules stay. The semantics are
//! drawn in the module that matches; actions are the router's.

mod build;
mod explain;
mod facts;
mod index;
mod item;
mod matcher;
mod options;
pub mod query_type;

pub use build::RuleError;
pub(crate) use build::ip_set;
pub use explain::{Event, Visitor};
pub use facts::{
    Environment, Facts, Interface, IpVersion, Network, NetworkType, Preferences, Process, Query, Response,
    Responses, Section,
};
pub use index::{Candidates, RuleIndex};
pub use item::Item;
pub use matcher::{Rule, RuleSet, RuleSetId, RuleSets};
pub use options::{DefaultRule, LogicalRule, MatchResponse, Mode, Record, RuleOptions};

use build::Builder;
use item::Test;

impl Rule {
    /// Builds a route or DNS rule. `rule_set` finds the rule-sets it refers to; without conditions it matches
    /// everything.
    ///
    /// # Errors
    /// For values without meaning, unknown rule-sets, and logical rules without parts.
    pub fn new(
        options: RuleOptions,
        rule_set: &mut dyn FnMut(&str) -> Option<RuleSetId>,
    ) -> Result<Self, RuleError> {
        Builder { headless: false, environment: true, rule_set }.rule(options)
    }

    /// Builds a rule of a rule-set.
    ///
    /// # Errors
    /// For values without meaning and rules without conditions.
    pub fn headless(options: RuleOptions) -> Result<Self, RuleError> {
        Builder { headless: true, environment: true, rule_set: &mut |_| None }.rule(options)
    }

    /// Builds a rule of a rule-set for `rule-set match`, which knows no interfaces and leaves out conditions on them.
    ///
    /// # Errors
    /// As [`headless`](Self::headless).
    pub fn headless_without_environment(options: RuleOptions) -> Result<Self, RuleError> {
        Builder { headless: true, environment: false, rule_set: &mut |_| None }.rule(options)
    }

    /// What must be looked up before the rule can be judged.
    pub fn needs(&self, sets: &RuleSets) -> Needs {
        let mut needs = Needs::default();
        self.for_each_item(&mut |item| needs.add(item));
        self.for_each_default(&mut |rule| {
            needs.destination_addresses |= rule.waits_for_addresses();
            let Some(reference) = &rule.rule_sets else { return };
            for id in &reference.sets {
                let Some(set) = sets.0.get(id.0 as usize) else { continue };
                for rule in set.rules() {
                    rule.for_each_item(&mut |item| needs.add(item));
                    let waits = &mut needs.destination_addresses;
                    rule.for_each_default(&mut |rule| {
                        *waits |= rule.waits_for_addresses() && !reference.match_source
                    });
                }
            }
        });
        needs
    }
}

/// Facts that cost something to find.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Needs {
    /// The program behind the connection.
    pub process: bool,
    /// Hardware address or host name of the source.
    pub neighbor: bool,
    /// State of the Wi-Fi.
    pub wifi: bool,
    /// Addresses of the destination: `ip_cidr` and its like, also in rule-sets.
    pub destination_addresses: bool,
}

impl Needs {
    fn add(&mut self, item: &Item) {
        match item.test {
            Test::ProcessName(_)
            | Test::ProcessPath(_)
            | Test::ProcessPathRegex(_)
            | Test::PackageName(_)
            | Test::PackageNameRegex(_)
            | Test::User(_)
            | Test::UserId(_) => self.process = true,
            Test::SourceMac(_) | Test::SourceHostname(_) => self.neighbor = true,
            Test::WifiSsid(_) | Test::WifiBssid(_) => self.wifi = true,
            _ => {}
        }
    }
}

impl std::ops::BitOr for Needs {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            process: self.process || other.process,
            neighbor: self.neighbor || other.neighbor,
            wifi: self.wifi || other.wifi,
            destination_addresses: self.destination_addresses || other.destination_addresses,
        }
    }
}

#[cfg(test)]
mod tests;
