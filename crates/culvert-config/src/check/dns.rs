//! What DNS servers and DNS rules need from each other.

use crate::cx::Cx;
use crate::json::Node;
use crate::options::Options;
use crate::options::dial::DomainStrategy;
use crate::options::dns::rule::{DnsAction, DnsEvaluate, DnsMatch, MatchResponse};
use crate::options::dns::server::DnsServerKind;
use crate::options::rule::Condition;
use crate::table::KindOf;

pub(super) fn check(options: &Options, root: &Node, cx: &mut Cx<'_>) {
    let Some(dns) = root.get("dns") else { return };
    let nodes = |key| dns.get(key).and_then(Node::as_array).unwrap_or_default();
    check_fakeip(options, nodes("servers"), cx);
    check_server_detours(options, nodes("servers"), cx);
    let rules = options.dns.rules.iter().zip(nodes("rules"));
    let evaluates = options.dns.rules.iter().any(|rule| {
        matches!(rule.action, DnsAction::Evaluate(_))
            || any_fields(&rule.condition, &|fields| fields.match_response.is_some())
    });
    let mut evaluated = Evaluated::default();
    for (rule, node) in rules {
        let looks = any_fields(&rule.condition, &|fields| {
            !matches!(fields.match_response, None | Some(MatchResponse::No))
        });
        check_condition(&rule.condition, node, evaluates, &evaluated, cx);
        if rule.action.is_race() && !looks {
            cx.error(node.place_of("race"), "`race` is only for rules with `match_response`");
        }
        if matches!(rule.action, DnsAction::Respond(_)) {
            check_respond(&rule.condition, node, &evaluated, cx);
        }
        let strategy = rule.action.query_options().map(|options| options.strategy).unwrap_or_default();
        if strategy != DomainStrategy::AsIs {
            let place = node.place_of("strategy");
            if evaluates {
                cx.error(place, "`strategy` of a rule cannot be used beside `evaluate` and `match_response`");
            } else {
                cx.warn(
                    place,
                    "`strategy` of a DNS rule is old; use `ip_version` and a rule with `predefined`",
                );
            }
        }
        if let Some(action) = DnsEvaluate::of(&rule.action) {
            evaluated.add(&action.tag, node, cx);
        }
    }
}

/// Answers that rules so far have evaluated.
#[derive(Default)]
struct Evaluated {
    untagged: bool,
    tags: Vec<String>,
}

impl Evaluated {
    fn add(&mut self, tag: &str, node: &Node, cx: &mut Cx<'_>) {
        if tag.is_empty() {
            self.untagged = true;
        } else if self.tags.iter().any(|known| known == tag) {
            cx.error(node.place_of("tag"), format!("duplicate evaluate tag `{tag}`"));
        } else {
            self.tags.push(tag.to_owned());
        }
    }
}

/// Checks what the fields of a rule say about answers, also inside logical rules.
fn check_condition(
    condition: &Condition<DnsMatch>,
    node: &Node,
    evaluates: bool,
    evaluated: &Evaluated,
    cx: &mut Cx<'_>,
) {
    let fields = match condition {
        Condition::Fields(fields) => fields,
        Condition::Logical(logical) => {
            let nodes = node.get("rules").and_then(Node::as_array).unwrap_or_default();
            for (rule, node) in logical.rules.iter().zip(nodes) {
                check_condition(rule, node, evaluates, evaluated, cx);
            }
            return;
        }
    };
    match &fields.match_response {
        Some(MatchResponse::Latest) if !evaluated.untagged => {
            let message = "`match_response` needs an `evaluate` rule without a tag before it";
            cx.error(node.place_of("match_response"), message);
        }
        Some(MatchResponse::Tag(tag)) if !evaluated.tags.contains(tag) => {
            let message = format!("no `evaluate` rule before this one has the tag `{tag}`");
            cx.error(node.place_of("match_response"), message);
        }
        Some(MatchResponse::Latest | MatchResponse::Tag(_)) => {}
        None | Some(MatchResponse::No) => check_without_response(fields, node, evaluates, cx),
    }
}

/// `respond` gives the answer that its own condition names, or else the latest one without a tag.
fn check_respond(condition: &Condition<DnsMatch>, node: &Node, evaluated: &Evaluated, cx: &mut Cx<'_>) {
    let names_answer = match condition {
        Condition::Fields(fields) => matches!(fields.match_response, Some(MatchResponse::Tag(_))),
        Condition::Logical(_) => false,
    };
    if !names_answer && !evaluated.untagged {
        let message = "`respond` needs an `evaluate` rule before it: one without a tag, or one whose tag \
                       `match_response` of this very rule names";
        cx.error(node.place_of("action"), message);
    }
}

/// Fields on the answer need `match_response`; a few of them may stand alone where no rule evaluates anything.
fn check_without_response(fields: &DnsMatch, node: &Node, evaluates: bool, cx: &mut Cx<'_>) {
    let new = [
        ("response_rcode", fields.response_rcode.is_some()),
        ("response_answer", !fields.response_answer.is_empty()),
        ("response_ns", !fields.response_ns.is_empty()),
        ("response_extra", !fields.response_extra.is_empty()),
    ];
    let old = [
        ("ip_cidr", !fields.ip_cidr.is_empty()),
        ("ip_is_private", fields.ip_is_private),
        ("ip_accept_any", fields.ip_accept_any),
        ("rule_set_ip_cidr_accept_empty", fields.rule_set_ip_cidr_accept_empty),
    ];
    for (key, _) in new.into_iter().filter(|(_, set)| *set) {
        cx.error(node.place_of(key), format!("`{key}` looks at an answer and needs `match_response`"));
    }
    for (key, _) in old.into_iter().filter(|(_, set)| *set) {
        let message = format!("`{key}` looks at an answer and needs `match_response`");
        if evaluates {
            cx.error(node.place_of(key), message);
        } else if key != "rule_set_ip_cidr_accept_empty" {
            cx.warn(
                node.place_of(key),
                format!("{message} with an `evaluate` rule before; without them it is slower"),
            );
        }
    }
}

fn any_fields(condition: &Condition<DnsMatch>, test: &dyn Fn(&DnsMatch) -> bool) -> bool {
    match condition {
        Condition::Fields(fields) => test(fields),
        Condition::Logical(logical) => logical.rules.iter().any(|rule| any_fields(rule, test)),
    }
}

/// There is at most one fake-ip server, and it never is the default.
fn check_fakeip(options: &Options, nodes: &[Node], cx: &mut Cx<'_>) {
    let servers = &options.dns.servers;
    let default = options.dns.final_server.get().or_else(|| servers.first().map(|server| &*server.tag));
    let is_fakeip = |kind: &DnsServerKind| kind.name() == "fakeip";
    let mut seen = false;
    for (server, node) in servers.iter().zip(nodes).filter(|(server, _)| is_fakeip(&server.kind)) {
        if seen {
            cx.error(node.place, "only one fakeip server is possible");
        }
        if default == Some(&*server.tag) {
            cx.error(
                node.place,
                "the default server cannot be the fakeip one; set `final` or list another one first",
            );
        }
        seen = true;
    }
}

/// Dialing through a direct outbound without options is the same as dialing; sing-box refuses to start with it.
fn check_server_detours(options: &Options, nodes: &[Node], cx: &mut Cx<'_>) {
    for node in nodes {
        let Some(detour) = node.get("detour").filter(|detour| detour.as_str().is_some()) else { continue };
        let target = options.outbounds.iter().find(|outbound| Some(&*outbound.tag) == detour.as_str());
        if target.is_some_and(super::is_plain_direct) {
            cx.error(
                detour.place,
                "a detour to a direct outbound without options has no effect; leave it out",
            );
        }
    }
}
