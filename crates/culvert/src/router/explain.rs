//! A decision in words: every rule in order, with what of it matched and what did not. The rules are judged by the code
//! of the data path.

use std::net::IpAddr;
use std::sync::Arc;

use culvert_rules::rule as rules;

use culvert_core::duplex::duplex;
use culvert_core::{Chain, Decision, Incoming, Io, Network, ResolveError, Session, Sniffed};
use culvert_rules::rule::{Event, Facts, Process, RuleSets};
use culvert_wire::{BufChain, Domain};

use super::sniff::{Gone, Settings};
use super::{Router, Watch};
use crate::dns::Dns;
use crate::groups::Member;

impl Router {
    /// What the rules make of a session of this program, as lines. Its client says nothing; what sniffing would find is in
    /// the session, and known to the rules from the `sniff` action on that looks for it.
    pub(crate) async fn explain(&self, mut session: Session, process: Option<Process>) -> Vec<String> {
        let io = match session.network {
            Network::Tcp => Io::Stream(Box::new(duplex(1).0)),
            Network::Udp | Network::Icmp => Io::Packets(Box::new(Gone)),
        };
        let head = format!("{} connection to {}", session.network, session.target);
        let sniffed = session.sniffed.take();
        self.dns.tell();
        let dns = Arc::clone(&self.dns);
        let mut lines = Lines { process: process.map(Arc::new), sniffed, dns, lines: vec![head] };
        let mut incoming = Incoming { session, io, early: BufChain::new(), reply: None, udp_timeout: None };
        let decision = self.judge(&mut incoming, &mut lines).await;
        let (way, end) = match decision {
            Decision::Dial { outbound, way, udp_idle: _ } => {
                let target = &incoming.session.target;
                (way, format!("outbound {} dials {target}", outbound.tag()))
            }
            Decision::Refuse { error, way } => (way, format!("refused: {}", Chain(&error))),
            Decision::Serve { handler, way } => (way, format!("served by {}", handler.name())),
        };
        lines.lines.push(format!("decided by: {}", way.rule));
        if way.chain.len() > 1 {
            let chain: Vec<&str> = way.chain.iter().rev().map(|tag| &**tag).collect();
            lines.lines.push(format!("chain: {}", chain.join(" -> ")));
            let groups = chain.iter().filter_map(|tag| match self.outbounds.get(*tag) {
                Some(Member::Group(group)) => Some(group.why()),
                _ => None,
            });
            lines.lines.extend(groups);
        }
        lines.lines.push(end);
        lines.lines
    }
}

struct Lines {
    process: Option<Arc<Process>>,
    sniffed: Option<Sniffed>,
    dns: Arc<Dns>,
    lines: Vec<String>,
}

impl Watch for Lines {
    fn process(&self) -> Option<Arc<Process>> {
        self.process.clone()
    }

    fn sniffed(&mut self, settings: &Settings) -> Option<Option<Sniffed>> {
        Some(self.sniffed.take().filter(|sniffed| settings.looks_for(sniffed.protocol)))
    }

    fn resolved(&mut self, name: &Domain, found: &Result<Vec<IpAddr>, ResolveError>) {
        self.lines.extend(self.dns.told().into_iter().map(|line| format!("    {line}")));
        if let Ok(addresses) = found {
            let addresses: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
            self.lines.push(format!("    {name} is at {}", addresses.join(", ")));
        }
    }

    /// Every rule is looked at, those too that cannot match.
    fn first(&mut self, router: &Router, from: usize, facts: &Facts<'_>, sets: &RuleSets) -> Option<usize> {
        (from..router.rules.len()).find(|index| {
            let rule = &router.rules[*index];
            let head = format!("route.rules[{index}] {}", rule.text);
            let (matched, mut lines) = explained(head, &rule.matcher, facts, sets);
            self.lines.append(&mut lines);
            matched
        })
    }
}

/// Whether a rule matches, and why in lines, the first of which begins with `head`.
pub(crate) fn explained(
    head: String,
    rule: &rules::Rule,
    facts: &Facts<'_>,
    sets: &RuleSets,
) -> (bool, Vec<String>) {
    let (mut lines, mut depth) = (vec![head], 1);
    let said = |matched: bool| if matched { "yes" } else { "no" };
    let matched = rule.explain(facts, sets, &mut |event: Event<'_>| {
        let (here, text) = match event {
            Event::Item { item, matched } => (depth, format!("{item}: {}", said(matched))),
            Event::RuleSets { text, matched } => (depth, format!("{text}: {}", said(matched))),
            Event::EnterRuleSet { tag, merged } => {
                depth += 1;
                let how = if merged { ", merged into this rule" } else { "" };
                (depth - 1, format!("rule-set {tag}{how}"))
            }
            Event::EnterPart { index, rule } => {
                depth += 1;
                (depth - 1, format!("part {index}: {rule}"))
            }
            Event::LeaveRuleSet { tag, matched } => {
                depth -= 1;
                (depth, format!("rule-set {tag}: {}", said(matched)))
            }
            Event::LeavePart { index, matched } => {
                depth -= 1;
                (depth, format!("part {index}: {}", said(matched)))
            }
        };
        lines.push(format!("{}{text}", "    ".repeat(here)));
    });
    lines[0].push_str(": ");
    lines[0].push_str(said(matched));
    (matched, lines)
}
