//! The launcher's course by table.

use super::*;

/// A formation of an entry member (0) and two peers, fed events at whole seconds; every action with its second.
fn run(deadline: Option<u64>, events: &[(u64, Event)]) -> Vec<(u64, Action)> {
    let mut machine = Launcher::new(3, 0, deadline.map(Duration::from_secs));
    let mut actions = Vec::new();
    for (second, event) in events {
        let answered = machine.on(*event, Duration::from_secs(*second));
        actions.extend(answered.into_iter().map(|action| (*second, action)));
    }
    actions
}

fn launch() -> Vec<(u64, Event)> {
    use Event::{Prepared, Ready, Started};
    vec![(0, Prepared), (0, Started(1)), (0, Started(2)), (1, Ready(2)), (1, Ready(1)), (1, Started(0))]
}

fn launched(more: &[(u64, Event)]) -> Vec<(u64, Action)> {
    let events = [launch(), more.to_vec()].concat();
    let actions = run(None, &events);
    let (first, rest) = actions.split_at(4);
    assert_eq!(first, [(0, Action::Start(1)), (0, Action::Start(2)), (1, Action::HandOut), (1, Action::Start(0)),]);
    rest.to_vec()
}

#[test]
fn a_course_from_first_to_last() {
    use Action::{CloseLifeline, Finish, NamePeer};
    let ok = Exit::Status(0);
    assert_eq!(launched(&[]), []);
    assert_eq!(
        launched(&[(2, Event::Ended(2, ok)), (3, Event::Ended(0, Exit::Status(7))), (4, Event::Ended(1, ok))]),
        [(2, NamePeer(2, ok)), (3, CloseLifeline(1)), (4, Finish(Verdict::Entry(Exit::Status(7))))]
    );
}

#[test]
fn the_first_signal_closes_the_second_kills() {
    use Action::{CloseLifeline, Finish, Kill};
    let killed = Exit::Signal(9);
    let verdict = Verdict::Signalled { signal: 2, launched: true };
    assert_eq!(
        launched(&[
            (2, Event::Signal(2)),
            (3, Event::Ended(1, Exit::Status(0))),
            (4, Event::Signal(15)),
            (5, Event::Signal(15)),
            (5, Event::Ended(0, killed)),
            (5, Event::Ended(2, killed)),
        ]),
        [
            (2, CloseLifeline(0)),
            (2, CloseLifeline(1)),
            (2, CloseLifeline(2)),
            (4, Kill(0, Target::Process)),
            (4, Kill(2, Target::Group)),
            (5, Finish(verdict)),
        ]
    );
    // One signal while the peers of an ended entry member wind down is no second one.
    assert_eq!(
        launched(&[(2, Event::Ended(0, Exit::Status(0))), (3, Event::Signal(2)), (4, Event::Signal(2))]),
        [(2, CloseLifeline(1)), (2, CloseLifeline(2)), (4, Kill(1, Target::Group)), (4, Kill(2, Target::Group)),]
    );
}

#[test]
fn what_does_not_end_in_time_is_killed_and_given_up_at_last() {
    use Action::{CloseLifeline, Finish, Kill};
    assert_eq!(
        launched(&[(2, Event::Ended(0, Exit::Status(0))), (26, Event::Clock), (27, Event::Clock), (32, Event::Clock)]),
        [
            (2, CloseLifeline(1)),
            (2, CloseLifeline(2)),
            (27, Kill(1, Target::Group)),
            (27, Kill(2, Target::Group)),
            (32, Finish(Verdict::Entry(Exit::Status(0)))),
        ]
    );
}

#[test]
fn a_launch_is_refused_by_the_first_peer_that_does_not_come_up() {
    use Action::{CloseLifeline, Finish, Start};
    use Event::{Ended, NotReady, NotStarted, Prepared, Started};
    let not_started = run(None, &[(0, Prepared), (0, Started(1)), (0, NotStarted(2)), (1, Ended(1, Exit::Status(0)))]);
    let expected = [(0, Start(1)), (0, Start(2)), (0, CloseLifeline(1)), (1, Finish(Verdict::NotLaunched))];
    assert_eq!(not_started, expected);
    let exited = run(
        None,
        &[
            (0, Prepared),
            (0, Started(1)),
            (0, Started(2)),
            (1, Ended(2, Exit::Status(1))),
            (2, Ended(1, Exit::Status(0))),
        ],
    );
    let expected = [(0, Start(1)), (0, Start(2)), (1, CloseLifeline(1)), (2, Finish(Verdict::NotLaunched))];
    assert_eq!(exited, expected);
    let silent = run(None, &[(0, Prepared), (0, Started(1)), (0, Started(2)), (180, NotReady(1))]);
    assert_eq!(silent[2..], [(180, CloseLifeline(1)), (180, CloseLifeline(2))]);
    assert_eq!(run(None, &[(0, NotStarted(1))]), [(0, Finish(Verdict::NotLaunched))], "nothing was prepared");
}

#[test]
fn the_deadline_before_and_after_the_entry_member_started() {
    use Action::{CloseLifeline, Finish, Start};
    use Event::{Clock, Ended, Prepared, Started};
    assert_eq!(run(Some(5), &[(5, Prepared)]), [(5, Finish(Verdict::DeadlineFell))]);
    let fell = run(Some(5), &[(0, Prepared), (0, Started(1)), (0, Started(2)), (5, Clock)]);
    assert_eq!(fell[2..], [(5, CloseLifeline(1)), (5, CloseLifeline(2))]);
    let events = [
        launch(),
        vec![
            (5, Clock),
            (5, Ended(1, Exit::Status(1))),
            (6, Clock),
            (7, Ended(2, Exit::Status(1))),
            (8, Ended(0, Exit::Status(1))),
        ],
    ];
    let reached = run(Some(5), &events.concat());
    assert_eq!(
        reached[4..],
        [(6, CloseLifeline(0)), (6, CloseLifeline(2)), (8, Finish(Verdict::Entry(Exit::Status(1)))),]
    );
    assert_eq!(reached[0], (0, Start(1)));
}
