//! Matching: items in groups, groups in rules, rules in rules and in rule-sets.
//!
//! A default rule is an AND of groups, each an OR of its items:
//!
//! ```text
//! (domain* | ip_cidr | ip_is_private)  AND  (port | port_range)  AND  (source_ip_cidr | source_ip_is_private)
//! AND  (source_port | source_port_range)  AND  every other item  AND  (any of the rule-sets)      invert flips it
//! ```
//!
//! A rule-set of exactly one default rule that is not inverted is *merged* into the rule that refers to it: the four
//! groups join the rule's own by OR, the other items by AND. Any other rule-set is one more condition. Each tag is
//! judged by itself. (`SURFACE.md` 12.2; with `rule_set_ip_cidr_match_source` the set's `ip_cidr` belongs to the
//! source group, as probed with 1.14.4.)
//!
//! While the addresses of a DNS answer are not there yet, what hangs on them alone is open ([`Verdict::Open`]), and so is
//! what is made of it, unless the rest decides. A rule matches for the time being unless it cannot match any more.
//! Conditions on names beside those on addresses, in one group, decide that group then, also where the addresses would
//! have passed it (probed with 1.14.4 by some hundred rules).

use std::{fmt, sync::Arc};

use super::{
    explain::{Event, Visitor},
    facts::Facts,
    item::{Item, Test, View},
    options::{MatchResponse, Mode},
};
use crate::ip::IpSet;

/// A compiled rule, without its action.
#[derive(Clone, Debug)]
pub struct Rule(pub(super) Kind);

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Default(Box<Default>),
    Logical(Logical),
}

#[derive(Clone, Debug)]
pub(super) struct Logical {
    pub(super) mode: Mode,
    pub(super) parts: Box<[Rule]>,
    pub(super) invert: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Default {
    pub(super) groups: Groups,
    pub(super) others: Box<[Item]>,
    pub(super) rule_sets: Option<Box<SetReference>>,
    pub(super) response: Option<Box<MatchResponse>>,
    pub(super) invert: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Groups {
    pub(super) source_address: Box<[Item]>,
    pub(super) source_port: Box<[Item]>,
    pub(super) destination_address: Box<[Item]>,
    /// One group with `destination_address`, apart because it may have to wait for a DNS answer.
    pub(super) destination_ip: Box<[Item]>,
    pub(super) destination_port: Box<[Item]>,
}

#[derive(Clone, Debug)]
pub(super) struct SetReference {
    pub(super) sets: Box<[RuleSetId]>,
    pub(super) match_source: bool,
    pub(super) accept_empty: bool,
    pub(super) text: Box<str>,
}

/// Position of a rule-set in [`RuleSets`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RuleSetId(pub u32);

/// All rule-sets of a configuration at one moment, by [`RuleSetId`]. Cheap to clone and to replace as a whole, so one
/// decision sees one state even while sets reload.
#[derive(Clone, Debug, Default)]
pub struct RuleSets(pub Vec<Arc<RuleSet>>);

/// The rules of one rule-set.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    tag: Box<str>,
    rules: Box<[Rule]>,
}

impl RuleSet {
    /// A set of rules built with [`Rule::headless`]. One without rules matches nothing.
    pub fn new(tag: impl Into<String>, rules: Vec<Rule>) -> Self {
        Self { tag: tag.into().into(), rules: rules.into() }
    }

    /// The tag it was given.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Its rules.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The addresses of every `ip_cidr` condition in it, however it is joined with others: what `route_address_set` of a
    /// TUN inbound takes from a rule-set.
    pub fn ip_sets(&self) -> Vec<&IpSet> {
        let mut sets = Vec::new();
        for rule in &self.rules {
            rule.for_each_item(&mut |item| {
                if let Test::Ip(set) = &item.test {
                    sets.push(set);
                }
            });
        }
        sets
    }

    /// Whether any rule matches.
    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        let view = View::new(facts);
        let cx = Context { view, sets: &[] };
        judge_any(&self.rules, cx, &mut ()).may_match()
    }

    /// Heap bytes held by names, AdGuard rules, addresses and descriptions.
    pub fn heap_size(&self) -> usize {
        self.tag.len() + size_of_val(&*self.rules) + self.rules.iter().map(Rule::heap_size).sum::<usize>()
    }

    /// The rule that merges into the rule referring to this set.
    fn merged(&self) -> Option<&Default> {
        match &*self.rules {
            [Rule(Kind::Default(rule))] if !rule.invert => Some(rule),
            _ => None,
        }
    }

    fn judge<V: Visitor>(&self, cx: Context<'_>, outer: [State; 4], visitor: &mut V) -> Verdict {
        visitor.event(|| Event::EnterRuleSet { tag: &self.tag, merged: self.merged().is_some() });
        let verdict = match self.merged() {
            Some(rule) => rule.holds(cx, outer, visitor),
            None if outer.contains(&State::Missed) => Verdict::No,
            None => match judge_any(&self.rules, cx, visitor) {
                // A name that has matched outside stands for the addresses in here.
                Verdict::Open if outer[DESTINATION_ADDRESS] == State::Hit => Verdict::Yes,
                verdict => verdict,
            },
        };
        visitor.event(|| Event::LeaveRuleSet { tag: &self.tag, matched: verdict.may_match() });
        verdict
    }
}

/// What the rules of one decision share.
#[derive(Clone, Copy)]
struct Context<'a> {
    view: View<'a>,
    sets: &'a [Arc<RuleSet>],
}

/// What a rule says. The worst decides what all have to say, the best what any may.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Verdict {
    No,
    /// The addresses will tell.
    Open,
    Yes,
}

impl Verdict {
    fn may_match(self) -> bool {
        self != Self::No
    }

    fn inverted(self, invert: bool) -> Self {
        match self {
            Self::No if invert => Self::Yes,
            Self::Yes if invert => Self::No,
            verdict => verdict,
        }
    }
}

impl From<bool> for Verdict {
    fn from(matched: bool) -> Self {
        if matched { Self::Yes } else { Self::No }
    }
}

/// One of the four groups, of a rule or of a rule and a rule-set merged into it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Nothing asked.
    Absent,
    /// Nothing asked but addresses, which are not there yet.
    Open,
    /// Asked, not matched.
    Missed,
    /// Matched.
    Hit,
}

impl Rule {
    /// Whether the rule matches. Allocates nothing (patterns do on their first use).
    pub fn matches(&self, facts: &Facts<'_>, sets: &RuleSets) -> bool {
        self.judge(Context { view: View::new(facts), sets: &sets.0 }, &mut ()).may_match()
    }

    /// The same verdict by the same code, telling `visitor` what was looked at on the way.
    pub fn explain<V: Visitor>(&self, facts: &Facts<'_>, sets: &RuleSets, visitor: &mut V) -> bool {
        self.judge(Context { view: View::new(facts), sets: &sets.0 }, visitor).may_match()
    }

    /// Calls `visit` with every item, those of parts included.
    pub(super) fn for_each_item<'a>(&'a self, visit: &mut dyn FnMut(&'a Item)) {
        match &self.0 {
            Kind::Default(rule) => rule.items().for_each(visit),
            Kind::Logical(rule) => rule.parts.iter().for_each(|part| part.for_each_item(visit)),
        }
    }

    /// Calls `visit` with every default rule.
    pub(super) fn for_each_default<'a>(&'a self, visit: &mut dyn FnMut(&'a Default)) {
        match &self.0 {
            Kind::Default(rule) => visit(rule),
            Kind::Logical(rule) => rule.parts.iter().for_each(|part| part.for_each_default(visit)),
        }
    }

    fn judge<V: Visitor>(&self, cx: Context<'_>, visitor: &mut V) -> Verdict {
        match &self.0 {
            Kind::Default(rule) => rule.judge(cx, visitor),
            Kind::Logical(rule) => {
                // Its parts know nothing of it (sing-box 1.14.4).
                let cx = Context { view: View { accept_empty: false, ..cx.view }, ..cx };
                let verdict = match rule.mode {
                    Mode::And => judge_all(&rule.parts, cx, visitor),
                    Mode::Or => judge_any(&rule.parts, cx, visitor),
                };
                verdict.inverted(rule.invert)
            }
        }
    }

    fn judge_part<V: Visitor>(&self, index: usize, cx: Context<'_>, visitor: &mut V) -> Verdict {
        visitor.event(|| Event::EnterPart { index, rule: self });
        let verdict = self.judge(cx, visitor);
        visitor.event(|| Event::LeavePart { index, matched: verdict.may_match() });
        verdict
    }

    fn heap_size(&self) -> usize {
        let mut size = 0;
        self.for_each_default(&mut |rule| size += size_of_val(rule));
        self.for_each_item(&mut |item| size += size_of_val(item) + item.heap_size());
        size
    }
}

fn judge_all<V: Visitor>(rules: &[Rule], cx: Context<'_>, visitor: &mut V) -> Verdict {
    let mut all = Verdict::Yes;
    for (index, rule) in (0..).zip(rules) {
        all = all.min(rule.judge_part(index, cx, visitor));
        if all == Verdict::No {
            break;
        }
    }
    all
}

fn judge_any<V: Visitor>(rules: &[Rule], cx: Context<'_>, visitor: &mut V) -> Verdict {
    let mut any = Verdict::No;
    for (index, rule) in (0..).zip(rules) {
        any = any.max(rule.judge_part(index, cx, visitor));
        if any == Verdict::Yes {
            break;
        }
    }
    any
}

impl Default {
    fn judge<V: Visitor>(&self, mut cx: Context<'_>, visitor: &mut V) -> Verdict {
        if self.matches_everything() {
            return Verdict::Yes;
        }
        if let Some(which) = &self.response {
            match cx.view.of_response(which) {
                Some(view) => cx.view = view,
                // Not even an inverted rule matches on an answer that is not there.
                None => return Verdict::No,
            }
        }
        self.holds(cx, [State::Absent; 4], visitor).inverted(self.invert)
    }

    /// No conditions: `invert` has nothing to turn around.
    fn matches_everything(&self) -> bool {
        self.items().next().is_none() && self.rule_sets.is_none() && self.response.is_none()
    }

    /// The AND, with the groups of a rule that refers to this one's rule-set.
    fn holds<V: Visitor>(&self, cx: Context<'_>, outer: [State; 4], visitor: &mut V) -> Verdict {
        let view = &cx.view;
        if !self.others.iter().all(|item| test(item, view, visitor)) {
            return Verdict::No;
        }
        let mut states = outer;
        let mut own = Verdict::Yes;
        for (state, group) in states.iter_mut().zip(GROUPS) {
            *state = self.group(group, *state, view, visitor);
            match state {
                // A rule-set may still hit it.
                State::Missed if self.rule_sets.is_none() => return Verdict::No,
                State::Open => own = Verdict::Open,
                State::Missed | State::Absent | State::Hit => {}
            }
        }
        let Some(reference) = &self.rule_sets else { return own };
        let (match_source, accept_empty) = (reference.match_source, reference.accept_empty);
        let cx = Context { view: View { match_source, accept_empty, ..cx.view }, ..cx };
        let mut by_sets = Verdict::No;
        for set in reference.sets.iter().filter_map(|id| cx.sets.get(id.0 as usize)) {
            // What is open by itself is so with a set too, unless one that is merged decides it.
            let verdict = match set.judge(cx, states, visitor) {
                Verdict::Yes if set.merged().is_none() => own,
                verdict => verdict,
            };
            by_sets = by_sets.max(verdict);
            if by_sets == Verdict::Yes {
                break;
            }
        }
        visitor.event(|| Event::RuleSets { text: &reference.text, matched: by_sets.may_match() });
        by_sets
    }

    fn group<V: Visitor>(&self, group: Group, outer: State, view: &View<'_>, visitor: &mut V) -> State {
        if outer == State::Hit {
            return outer;
        }
        let groups = &self.groups;
        let pending = view.facts.addresses_pending;
        // `ip_cidr` looks at the source when told so, and then counts there.
        let (first, second): (&[Item], &[Item]) = match group {
            Group::DestinationPort => (&groups.destination_port, &[]),
            Group::SourcePort => (&groups.source_port, &[]),
            Group::SourceAddress if view.match_source => (&groups.source_address, &groups.destination_ip),
            Group::SourceAddress => (&groups.source_address, &[]),
            Group::DestinationAddress if view.match_source => (&groups.destination_address, &[]),
            Group::DestinationAddress if pending => {
                let is_open = groups.destination_address.is_empty()
                    && !groups.destination_ip.is_empty()
                    && outer == State::Absent;
                if is_open {
                    return State::Open;
                }
                (&groups.destination_address, &[])
            }
            Group::DestinationAddress => (&groups.destination_address, &groups.destination_ip),
        };
        if first.is_empty() && second.is_empty() {
            outer
        } else if first.iter().chain(second).any(|item| test(item, view, visitor)) {
            State::Hit
        } else {
            State::Missed
        }
    }

    /// The items in the order of sing-box's own descriptions.
    fn items(&self) -> impl Iterator<Item = &Item> {
        let groups = &self.groups;
        let lists: [&[Item]; 6] = [
            &self.others,
            &groups.destination_address,
            &groups.source_address,
            &groups.destination_ip,
            &groups.source_port,
            &groups.destination_port,
        ];
        lists.into_iter().flatten()
    }

    /// Whether it looks at destination addresses by itself.
    pub(super) fn waits_for_addresses(&self) -> bool {
        !self.groups.destination_ip.is_empty()
    }
}

/// The groups, cheapest first.
const GROUPS: [Group; 4] =
    [Group::DestinationPort, Group::SourcePort, Group::SourceAddress, Group::DestinationAddress];
/// Where the group of destination addresses is among them.
const DESTINATION_ADDRESS: usize = 3;

#[derive(Clone, Copy)]
enum Group {
    DestinationPort,
    SourcePort,
    SourceAddress,
    DestinationAddress,
}

fn test<V: Visitor>(item: &Item, view: &View<'_>, visitor: &mut V) -> bool {
    let matched = item.test.matches(view);
    visitor.event(|| Event::Item { item, matched });
    matched
}

/// As sing-box describes rules in its log and in `rule-set match`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (invert, text) = match &self.0 {
            Kind::Default(rule) => {
                let mut items: Vec<&Item> = rule.items().collect();
                items.sort_by_key(|item| item.rank);
                let sets = rule.rule_sets.iter().map(|sets| sets.text.to_string());
                let items = items.into_iter().map(Item::to_string).chain(sets);
                (rule.invert, items.collect::<Vec<_>>().join(" "))
            }
            Kind::Logical(rule) => {
                let joint = if rule.mode == Mode::And { " && " } else { " || " };
                (rule.invert, rule.parts.iter().map(Self::to_string).collect::<Vec<_>>().join(joint))
            }
        };
        if invert { write!(f, "!({text})") } else { f.write_str(&text) }
    }
}
