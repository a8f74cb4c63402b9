//! Looking on while a rule is judged. The data path looks on with `()`, which the compiler removes.

use super::{Rule, item::Item};

/// Told of every step of a verdict, in order. Only what was really looked at is told: judging stops where the result
/// is certain.
pub trait Visitor {
    /// A step. Implementations that do not look must not call `event`, so that it costs nothing.
    fn event<'a>(&mut self, event: impl FnOnce() -> Event<'a>);
}

impl Visitor for () {
    fn event<'a>(&mut self, _: impl FnOnce() -> Event<'a>) {}
}

/// Any closure over events is a visitor.
impl<F: FnMut(Event<'_>)> Visitor for F {
    fn event<'a>(&mut self, event: impl FnOnce() -> Event<'a>) {
        self(event());
    }
}

/// One step of a verdict.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A condition was tested.
    Item {
        /// Which.
        item: &'a Item,
        /// Its result. One match is enough for the items of an address or port group.
        matched: bool,
    },
    /// All rule-sets of a rule were judged as one condition.
    RuleSets {
        /// The condition as written: `rule_set=[a b]`.
        text: &'a str,
        /// Whether one of them matched.
        matched: bool,
    },
    /// The following steps are inside a rule-set.
    EnterRuleSet {
        /// Its tag.
        tag: &'a str,
        /// Whether its only rule is merged into the rule around it.
        merged: bool,
    },
    /// The end of a rule-set.
    LeaveRuleSet {
        /// Its tag.
        tag: &'a str,
        /// Whether it matched; for a merged one, together with the rule around it.
        matched: bool,
    },
    /// The following steps are inside a part of a logical rule, or a rule of a rule-set.
    EnterPart {
        /// Its position, from 0.
        index: usize,
        /// The part.
        rule: &'a Rule,
    },
    /// The end of that part.
    LeavePart {
        /// Its position, from 0.
        index: usize,
        /// Whether it matched.
        matched: bool,
    },
}
