//! Every order of events on the launcher's and the members' state machines together, and what must hold in each.
//!
//! The world (`world`) is a launcher, its members, their lifelines, the kernel that closes them, a clock, and an operator
//! who sends signals, stops and kills whom he likes. Members may take any time for anything but seeing what they watch
//! for. What must hold is written down apart from the machines (`oracle`), in the words of the seed; machines that break
//! it on purpose (`mutants`) show that the exploration would notice.

mod mutants;
mod oracle;
mod world;

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use proptest::prelude::*;

use world::{Budget, Move, Rules, Setup, World};

/// What an exploration found.
struct Explored {
    states: usize,
    /// What did not hold, and the moves that led there.
    violation: Option<String>,
}

/// Breadth first, so that a violation is shown with the fewest moves.
fn explore(setup: &Setup, rules: &Rules) -> Explored {
    let mut seen: HashSet<(u64, u64)> = HashSet::new();
    let mut trail: Vec<(usize, Option<Move>)> = Vec::new();
    let mut layer: Vec<(usize, World)> = Vec::new();
    let told = |trail: &[(usize, Option<Move>)], mut at: usize, what: &str| {
        let mut moves = Vec::new();
        while let Some(step) = trail[at].1 {
            moves.push(format!("{step:?}"));
            at = trail[at].0;
        }
        moves.reverse();
        format!("{what}\n  after {}", moves.join(", "))
    };
    let (first, begun) = World::new(setup, rules);
    trail.push((0, None));
    if let Err(what) = begun {
        return Explored { states: 1, violation: Some(what) };
    }
    seen.insert(fingerprint(&first));
    layer.push((0, first));
    while !layer.is_empty() {
        let mut next = Vec::new();
        for (index, world) in layer {
            for step in world.moves() {
                let mut after = world.clone();
                let held = after.take(step, rules);
                if let Err(what) = held {
                    trail.push((index, Some(step)));
                    return Explored { states: seen.len(), violation: Some(told(&trail, trail.len() - 1, &what)) };
                }
                if seen.insert(fingerprint(&after)) {
                    trail.push((index, Some(step)));
                    next.push((trail.len() - 1, after));
                }
            }
        }
        layer = next;
    }
    Explored { states: seen.len(), violation: None }
}

/// 128 bits, so that two states are not taken for one.
fn fingerprint(world: &World) -> (u64, u64) {
    let hash = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        world.hash(&mut hasher);
        hasher.finish()
    };
    (hash(1), hash(2))
}

/// The small worlds that are explored whole.
fn setups() -> Vec<(&'static str, Setup)> {
    let none = Budget::default();
    let pair = Setup { members: 2, entry_task: true, deadline: None, start_fails: None, budget: none };
    let three = Setup { members: 3, ..pair };
    let with = |budget| Setup { budget, ..pair };
    let dated = |budget| Setup { deadline: Some(3), budget, ..pair };
    vec![
        ("a task that runs to its end", with(Budget { pauses: 2, failures: 1, ..none })),
        ("signals to the launcher", with(Budget { signals: 2, pauses: 1, ..none })),
        ("signals to members", with(Budget { terms: 2, ..none })),
        ("signals to both", with(Budget { terms: 1, signals: 1, ..none })),
        ("a killed launcher", with(Budget { launcher_kills: 1, terms: 1, ..none })),
        ("a killed member", with(Budget { kills: 1, signals: 1, ..none })),
        ("a stopped member", with(Budget { stops: 1, signals: 1, ..none })),
        ("a stopped member of a killed launcher", with(Budget { stops: 1, launcher_kills: 1, ..none })),
        ("a deadline", dated(Budget { failures: 1, pauses: 1, ..none })),
        ("a deadline and a signal to the launcher", dated(Budget { signals: 1, ..none })),
        ("a deadline and a signal to a member", dated(Budget { terms: 1, ..none })),
        ("a deadline and a stopped member", dated(Budget { stops: 1, ..none })),
        ("a deadline and a killed launcher", dated(Budget { launcher_kills: 1, ..none })),
        (
            "a formation that waits at its door",
            Setup { entry_task: false, budget: Budget { signals: 1, kills: 1, ..none }, ..pair },
        ),
        (
            "an entry member alone",
            Setup {
                members: 1,
                deadline: Some(3),
                budget: Budget { signals: 2, terms: 2, stops: 1, launcher_kills: 1, ..none },
                ..pair
            },
        ),
        ("three members", Setup { budget: Budget { signals: 1, ..none }, ..three }),
        (
            "three members and a peer that cannot start",
            Setup { start_fails: Some(2), budget: Budget { signals: 2, kills: 1, ..none }, ..three },
        ),
        (
            "an entry member that cannot start",
            Setup { start_fails: Some(0), budget: Budget { signals: 1, ..none }, ..three },
        ),
    ]
}

#[test]
fn no_order_of_events_breaks_a_formations_end() {
    let rules = Rules::real();
    let mut total = 0;
    for (name, setup) in setups() {
        let explored = explore(&setup, &rules);
        if let Some(violation) = explored.violation {
            panic!("{name}: {violation}");
        }
        println!("{:>9} states  {name}", explored.states);
        total += explored.states;
    }
    println!("{total:>9} states explored, in none of which a rule is broken");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn long_random_courses_of_larger_formations_break_no_rule(
        members in 1_usize..7,
        entry_task in any::<bool>(),
        deadline in proptest::option::of(1_u16..40),
        start_fails in proptest::option::weighted(0.1, 0_usize..7),
        choices in proptest::collection::vec(any::<u16>(), 20..400),
    ) {
        let budget = Budget { signals: 3, terms: 4, kills: 2, stops: 2, launcher_kills: 1, pauses: 20, failures: 2 };
        let setup = Setup { members, entry_task, deadline, start_fails: start_fails.filter(|at| *at < members), budget };
        let rules = Rules::real();
        let (mut world, begun) = World::new(&setup, &rules);
        prop_assert_eq!(begun, Ok(()));
        for choice in choices {
            // An operator who does something at every moment would make every course a short one.
            let own = world.moves_of_its_own();
            let moves = if choice % 8 == 0 || own.is_empty() { world.moves() } else { own };
            let choice = choice / 8;
            let Some(step) = moves.get(usize::from(choice) % moves.len().max(1)) else { break };
            let held = world.take(*step, &rules);
            prop_assert!(held.is_ok(), "{:?}: {:?}", step, held);
        }
    }
}
