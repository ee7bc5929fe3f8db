//! Machines that are broken on purpose. The exploration must notice each; one it missed would be a rule nobody checks.

use std::time::Duration;

use crate::formation::machine::{self, Launcher, Target, Verdict};
use crate::process::Exit;
use crate::session::ExitStatus;
use crate::session::wind_down::{Action, Cause, Event, Leaving, WindDown};

use super::explore;
use super::world::{Budget, ENTRY, Rules, Setup};

type MemberActions = Vec<Action>;
type LauncherActions = Vec<machine::Action>;

/// A small world in which a mutant can do its harm.
fn setup(deadline: Option<u16>, members: usize) -> Setup {
    let alone = members == 1;
    let budget = Budget { signals: 1, terms: 2 * u8::from(alone), stops: 1, ..Budget::default() };
    Setup { members, entry_task: true, deadline, start_fails: None, budget }
}

fn caught(name: &str, rules: &Rules, setup: &Setup, words: &str) {
    let explored = explore(setup, rules);
    println!("{:>9} states until noticed: {name}", explored.states);
    let found = explored.violation.unwrap_or_else(|| panic!("{name} was not noticed"));
    assert!(found.contains(words), "{name}: {found}");
}

fn member(rule: fn(&mut WindDown, Event, Duration) -> MemberActions) -> Rules {
    Rules { member: rule, ..Rules::real() }
}

fn launcher(rule: fn(&mut Launcher, machine::Event, Duration) -> LauncherActions) -> Rules {
    Rules { launcher: rule, ..Rules::real() }
}

#[test]
fn a_broken_member_is_noticed() {
    let alone = setup(None, 1);
    let dated = setup(Some(3), 1);
    caught(
        "one that never looks at its bound",
        &member(|machine, event, now| if event == Event::Clock { Vec::new() } else { machine.on(event, now) }),
        &alone,
        "nothing comes of it",
    );
    caught(
        "one that leaves at its bound without a last line",
        &member(|machine, event, now| {
            let mut actions = machine.on(event, now);
            if actions.contains(&Action::Leave(Leaving::CutShort)) {
                actions.retain(|action| !matches!(action, Action::WriteEnd(_)));
            }
            actions
        }),
        &alone,
        "session_end is lost",
    );
    caught(
        "one that writes its last line again at its bound",
        &member(|machine, event, now| {
            let mut actions = machine.on(event, now);
            if actions == [Action::Leave(Leaving::CutShort)] {
                actions.insert(0, Action::WriteEnd(ExitStatus::Ok));
            }
            actions
        }),
        &alone,
        "session_end twice",
    );
    caught(
        "one that records the formation's end though a SIGTERM came first",
        &member(|machine, event, now| {
            let ending = machine.cause().is_some();
            let mut actions = machine.on(event, now);
            if event == Event::FormationClosed && ending {
                actions.push(Action::Record(Cause::Formation));
            }
            actions
        }),
        &alone,
        "it recorded",
    );
    caught(
        "one that takes the formation's end for it after the deadline",
        &member(|machine, event, now| {
            let mut actions = machine.on(event, now);
            if event == Event::FormationClosed {
                for action in &mut actions {
                    if *action == Action::Record(Cause::Deadline) {
                        *action = Action::Record(Cause::Formation);
                    }
                }
            }
            actions
        }),
        &dated,
        "came first",
    );
    caught(
        "one that ends at the first SIGTERM of a wind-down",
        &member(|machine, event, now| {
            if event == Event::Term && machine.cause().is_some() {
                return vec![Action::Leave(Leaving::Killed)];
            }
            machine.on(event, now)
        }),
        &alone,
        "session_end is lost",
    );
    caught(
        "one that calls a task the formation cut short canceled",
        &member(|machine, event, now| {
            let mut actions = machine.on(event, now);
            for action in &mut actions {
                if *action == Action::WriteEnd(ExitStatus::FormationEnded) {
                    *action = Action::WriteEnd(ExitStatus::Canceled);
                }
            }
            actions
        }),
        &alone,
        "instead of FormationEnded",
    );
    caught(
        "one that leaves its staging with an error when the formation ends",
        &member(|machine, event, now| {
            let mut actions = machine.on(event, now);
            for action in &mut actions {
                if *action == Action::Leave(Leaving::Abandoned(0)) {
                    *action = Action::Leave(Leaving::Abandoned(1));
                }
            }
            actions
        }),
        &alone,
        "left its staging with 1",
    );
    caught(
        "one that cancels before it records why",
        &member(|machine, event, now| {
            let mut actions = machine.on(event, now);
            if let Some(at) = actions.iter().position(|action| *action == Action::Record(Cause::Formation)) {
                actions.remove(at);
            }
            if matches!(event, Event::TaskEnded { .. }) && machine.cause() == Some(Cause::Formation) {
                actions.push(Action::Record(Cause::Formation));
            }
            actions
        }),
        &alone,
        "recorded after what it made end",
    );
}

#[test]
fn a_broken_launcher_is_noticed() {
    let pair = setup(None, 2);
    let dated = setup(Some(3), 1);
    caught(
        "one that forgets a lifeline",
        &launcher(|machine, event, now| {
            let mut actions = machine.on(event, now);
            actions.retain(|action| *action != machine::Action::CloseLifeline(ENTRY));
            actions
        }),
        &pair,
        "never told to end",
    );
    caught(
        "one that never kills",
        &launcher(|machine, event, now| {
            let mut actions = machine.on(event, now);
            actions.retain(|action| !matches!(action, machine::Action::Kill(..)));
            actions
        }),
        &pair,
        "25 s",
    );
    caught(
        "one that kills its own group",
        &launcher(|machine, event, now| {
            let mut actions = machine.on(event, now);
            for action in &mut actions {
                if let machine::Action::Kill(_, target) = action {
                    *target = Target::Group;
                }
            }
            actions
        }),
        &pair,
        "the kill of member 0 reaches Group",
    );
    caught(
        "one that kills at the first signal",
        &launcher(|machine, event, now| {
            let mut actions = machine.on(event, now);
            if matches!(event, machine::Event::Signal(_)) && actions.contains(&machine::Action::CloseLifeline(ENTRY)) {
                actions.push(machine::Action::Kill(ENTRY, Target::Process));
            }
            actions
        }),
        &pair,
        "killed before its time",
    );
    caught(
        "one that does not wait for its members",
        &launcher(|machine, event, now| {
            let mut actions = machine.on(event, now);
            if let machine::Event::Ended(ENTRY, exit) = event
                && !actions.is_empty()
            {
                actions.push(machine::Action::Finish(Verdict::Entry(exit)));
            }
            actions
        }),
        &pair,
        "leaves members behind",
    );
    caught(
        "one that reports a signalled formation as its entry member",
        &launcher(|machine, event, now| {
            let mut actions = machine.on(event, now);
            for action in &mut actions {
                if matches!(action, machine::Action::Finish(Verdict::Signalled { .. })) {
                    *action = machine::Action::Finish(Verdict::Entry(Exit::Status(0)));
                }
            }
            actions
        }),
        &pair,
        "instead of 143",
    );
    caught(
        "one that starts the entry member after the deadline",
        &launcher(|machine, event, now| {
            let mut actions = machine.on(event, now);
            if actions == [machine::Action::Finish(Verdict::DeadlineFell)] {
                actions.insert(0, machine::Action::Start(ENTRY));
            }
            actions
        }),
        &setup(Some(3), 2),
        "started after the end began",
    );
    caught(
        "one that waits for a second bound after the deadline",
        &launcher(|machine, event, now| {
            if event == machine::Event::Clock && now < Duration::from_secs(28) {
                return Vec::new();
            }
            machine.on(event, now)
        }),
        &dated,
        "nothing comes of it",
    );
}
