//! Checks 2 to 5: what a roster of the right shape must also say.

use std::collections::HashMap;

use super::{Checked, Reachability, Roster};
use crate::diagnostics::{Result, codes, nearest};

pub(super) fn check(roster: &Roster) -> Result<Checked> {
    let indices = unique_names(roster)?;
    let entry = one_entry(roster)?;
    let edges = match &roster.reachability {
        Reachability::All => None,
        Reachability::Rules(_) => Some(edges(roster, &indices, entry)?),
    };
    Ok(Checked { entry, edges })
}

fn unique_names(roster: &Roster) -> Result<HashMap<&str, u32>> {
    let mut indices = HashMap::with_capacity(roster.members.len());
    for (index, member) in (0_u32..).zip(&roster.members) {
        if let Some(first) = indices.insert(member.name.as_str(), index) {
            let line = roster.members[first as usize].mark.line;
            let message = format!("two members are named '{}', the first on line {line}", member.name);
            return Err(roster
                .refused(codes::E_ROS_003, member.mark, &message)
                .hint("rename one of them; two members may run the same capsule"));
        }
    }
    Ok(indices)
}

/// Most claimants a message names.
const MAX_CLAIMANTS: usize = 10;

fn one_entry(roster: &Roster) -> Result<usize> {
    let mut claimants = roster.members.iter().enumerate().filter(|(_, member)| member.entry);
    match (claimants.next(), claimants.next()) {
        (Some((index, _)), None) => Ok(index),
        (None, _) => Err(roster
            .refused_member(codes::E_ROS_002, 0, "no member has entry: true")
            .hint("mark the one member that takes the formation's task with entry: true")),
        (Some(first), Some(second)) => {
            let count = claimants.count() + 2;
            let claiming = roster.members.iter().filter(|member| member.entry);
            let names: Vec<String> = claiming.take(MAX_CLAIMANTS).map(|member| format!("'{}'", member.name)).collect();
            let more = if count > names.len() { format!(" and {} more", count - names.len()) } else { String::new() };
            let message = format!("{count} members have entry: true: {}{more}", names.join(", "));
            Err(roster
                .refused(codes::E_ROS_002, second.1.entry_mark, &message)
                .hint(format!("keep it on one member, '{}' for one", first.1.name)))
        }
    }
}

/// Checks 4 and 5, each over the whole list, then the edges.
fn edges(roster: &Roster, indices: &HashMap<&str, u32>, entry: usize) -> Result<Vec<(u32, u32)>> {
    let Reachability::Rules(rules) = &roster.reachability else { return Ok(Vec::new()) };
    let entry = u32::try_from(entry).unwrap_or(u32::MAX);
    let mut edges = Vec::with_capacity(rules.iter().map(|rule| rule.to.len()).sum());
    let mut into_entry = None;
    for (index, rule) in rules.iter().enumerate() {
        let unknown = |key: &str, name: &str, mark| {
            let message = format!(
                "reachability[{index}].{key}: the rule from '{}' names '{name}', which is no member",
                rule.from
            );
            let names = roster.members.iter().map(|member| member.name.as_str());
            let capsule = roster.members.iter().find(|member| member.capsule.as_str() == name);
            let hint = match (nearest(&name.to_lowercase(), names), capsule) {
                (Some(near), _) => format!("did you mean '{near}'?"),
                (None, Some(member)) => format!("rules name members, not capsules: '{}' runs it", member.name),
                (None, None) => {
                    "add a member of that name, or correct the rule; rules name members, not capsules".into()
                }
            };
            roster.refused(codes::E_ROS_004, mark, &message).hint(hint)
        };
        let from = *indices.get(rule.from.as_str()).ok_or_else(|| unknown("from", &rule.from, rule.from_mark))?;
        for (position, (name, mark)) in rule.to.iter().zip(&rule.to_marks).enumerate() {
            let to = *indices.get(name.as_str()).ok_or_else(|| unknown(&format!("to[{position}]"), name, *mark))?;
            if to == entry && into_entry.is_none() {
                into_entry = Some((index, position, *mark));
            }
            edges.push((from, to));
        }
    }
    if let Some((index, position, mark)) = into_entry {
        let rule = &rules[index];
        let message = format!(
            "reachability[{index}].to[{position}]: the rule from '{}' lists the entry member '{}', which nobody calls",
            rule.from, rule.to[position]
        );
        let hint = format!(
            "write the edge the other way: from: {}, to: [{}]; the answer comes back into the entry member's task",
            rule.to[position], rule.from
        );
        return Err(roster.refused(codes::E_ROS_008, mark, &message).hint(hint));
    }
    edges.sort_unstable();
    edges.dedup();
    Ok(edges)
}
