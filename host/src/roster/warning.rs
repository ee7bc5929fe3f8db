//! `W-ROS-001`: members that more members may call than they hold tasks at once.

use super::admission::{Admitted, AdmittedMember, Crowded, Reach};
use crate::manifest::{Acceptance, Lifecycle};

/// Most callers a message names.
const MAX_NAMED: usize = 10;

/// Compares every called member's callers with the tasks it holds, where its lifecycle is known. Linear in members and
/// edges.
pub(super) fn crowded(admitted: &Admitted, lifecycles: &[Option<&Lifecycle>]) -> Vec<Crowded> {
    let callers = callers(admitted);
    let crowded = |(index, member): (usize, &AdmittedMember)| {
        let (callers, lifecycle) = (&callers[index], lifecycles[index]?);
        (callers.count > member.holds).then(|| warning(admitted, index, callers, lifecycle))
    };
    admitted.members.iter().enumerate().filter_map(crowded).collect()
}

/// Who may call a member: how many, and the first few in roster order.
#[derive(Clone, Default)]
struct Callers {
    count: usize,
    named: Vec<usize>,
}

fn callers(admitted: &Admitted) -> Vec<Callers> {
    let mut all = vec![Callers::default(); admitted.members.len()];
    match &admitted.reach {
        Reach::All => {
            let members = admitted.members.iter().enumerate();
            let serving: Vec<usize> = members.filter(|(_, member)| member.serves_peers).map(|(at, _)| at).collect();
            for (index, member) in admitted.members.iter().enumerate() {
                if member.serves_peers && !member.entry {
                    let named = serving.iter().copied().filter(|from| *from != index).take(MAX_NAMED).collect();
                    all[index] = Callers { count: serving.len() - 1, named };
                }
            }
        }
        // Sorted by caller, so the first few seen are the first few in roster order.
        Reach::Rules(edges) => {
            for (from, to) in edges {
                let callers = &mut all[*to as usize];
                callers.count += 1;
                if callers.named.len() < MAX_NAMED {
                    callers.named.push(*from as usize);
                }
            }
        }
    }
    all
}

fn warning(admitted: &Admitted, index: usize, callers: &Callers, lifecycle: &Lifecycle) -> Crowded {
    let member = &admitted.members[index];
    let names: Vec<&str> = callers.named.iter().map(|from| admitted.members[*from].name.as_str()).collect();
    let callers = callers.count;
    let more = if callers > names.len() { format!(" and {} more", callers - names.len()) } else { String::new() };
    let why = match lifecycle.task_acceptance {
        Acceptance::None => "task_acceptance: none".to_owned(),
        Acceptance::Single => "task_acceptance: single".to_owned(),
        Acceptance::Queue => format!("task_acceptance: queue with queue_depth: {}", lifecycle.queue_depth),
    };
    let depth = (callers - 1).max(1);
    let setting = match lifecycle.task_acceptance {
        Acceptance::Queue => format!("lifecycle.queue_depth: {depth}"),
        _ => format!("lifecycle.task_acceptance: queue and lifecycle.queue_depth: {depth}"),
    };
    Crowded {
        member: index,
        callers,
        queue_depth: depth,
        message: format!(
            "roster.yaml: member '{}' may be called by {callers} member{} ({}{more}) and holds {} task{} at once ({why}); \
             {setting} holds one of each",
            member.name,
            if callers == 1 { "" } else { "s" },
            names.join(", "),
            member.holds,
            if member.holds == 1 { "" } else { "s" },
        ),
        fix: format!("{} ({}@{}): set {setting}", member.name, member.capsule, member.version),
    }
}
