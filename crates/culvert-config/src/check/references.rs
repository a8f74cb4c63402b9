//! Tags are unique, references lead somewhere, and no chain of them comes back to its start.

use std::collections::{HashMap, HashSet};

use crate::cx::{Cx, Definition, Missing, Space};

type Key<'a> = (Space, &'a str);

pub(crate) fn check(cx: &mut Cx<'_>) {
    let definitions = std::mem::take(&mut cx.definitions);
    let references = std::mem::take(&mut cx.references);
    let mut known: HashMap<Key<'_>, usize> = HashMap::new();
    for (index, definition) in definitions.iter().enumerate() {
        let key = (definition.space, &*definition.tag);
        match known.get(&key).map(|&earlier| &definitions[earlier]) {
            Some(earlier) if definition.is_main && earlier.is_main => {
                cx.error(definition.place, duplicate(definition, earlier));
            }
            Some(earlier) if earlier.is_main => {}
            _ => drop(known.insert(key, index)),
        }
    }
    let mut edges: HashMap<usize, Vec<usize>> = HashMap::new();
    for reference in &references {
        let target = known.get(&(reference.space, &*reference.tag)).copied();
        match (target, reference.owner) {
            (Some(target), Some(owner)) if depends(&definitions[owner], reference.space) => {
                edges.entry(owner).or_default().push(target);
            }
            (Some(_), _) => {}
            (None, _) => {
                let same_space = definitions.iter().filter(|definition| definition.space == reference.space);
                let hint = cx.did_you_mean(&reference.tag, same_space.map(|definition| &*definition.tag));
                let message = format!("there is no {} `{}`{hint}", reference.space.noun(), reference.tag);
                match reference.missing {
                    Missing::Error => cx.error(reference.place, message),
                    Missing::Warning => cx.warn(reference.place, message),
                    Missing::Fine => {}
                }
            }
        }
    }
    check_cycles(&definitions, &edges, cx);
}

fn duplicate(definition: &Definition, earlier: &Definition) -> String {
    let (noun, tag) = (definition.space.noun(), &definition.tag);
    let unwritten = match (earlier.is_index, definition.is_index) {
        (_, true) => "; this one has none, so its index in the list is its tag",
        (true, false) => "; the earlier one has none, so its index in the list is its tag",
        (false, false) => "",
    };
    format!("duplicate {noun} tag `{tag}`{unwritten}")
}

/// Whether an object needs what it refers to before it can start: outbounds need outbounds, DNS servers need DNS
/// servers.
fn depends(owner: &Definition, space: Space) -> bool {
    owner.space == space && matches!(space, Space::Outbound | Space::DnsServer)
}

/// Reports every cycle once, at the object of it that stands first.
fn check_cycles(definitions: &[Definition], edges: &HashMap<usize, Vec<usize>>, cx: &mut Cx<'_>) {
    let mut done = HashSet::new();
    for start in 0..definitions.len() {
        if let Some(cycle) = find_cycle(start, edges, &mut done) {
            let names: Vec<&str> = cycle.iter().map(|&index| &*definitions[index].tag).collect();
            let noun = definitions[start].space.noun();
            cx.error(
                definitions[cycle[0]].place,
                format!("{noun} depends on itself: {}", names.join(" -> ")),
            );
        }
    }
}

/// Walks depth first from `start`, without recursion since chains can be long. The cycle ends where it begins.
fn find_cycle(
    start: usize,
    edges: &HashMap<usize, Vec<usize>>,
    done: &mut HashSet<usize>,
) -> Option<Vec<usize>> {
    let mut path: Vec<(usize, usize)> = vec![(start, 0)];
    let mut on_path = HashSet::from([start]);
    if done.contains(&start) {
        return None;
    }
    while let Some((node, next)) = path.last_mut() {
        let targets = edges.get(node).map_or(&[][..], Vec::as_slice);
        let Some(&target) = targets.get(*next) else {
            done.insert(*node);
            on_path.remove(node);
            path.pop();
            continue;
        };
        *next += 1;
        if on_path.contains(&target) {
            let from = path.iter().position(|(node, _)| *node == target).unwrap_or(0);
            let mut cycle: Vec<usize> = path[from..].iter().map(|(node, _)| *node).collect();
            cycle.push(target);
            done.extend(path.iter().map(|(node, _)| *node));
            return Some(cycle);
        }
        if !done.contains(&target) {
            on_path.insert(target);
            path.push((target, 0));
        }
    }
    None
}
