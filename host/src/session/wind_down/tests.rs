//! The machine by table: every cause by phase, and how tasks fold into one ending.

use super::*;

const NEVER: Option<u64> = None;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Feeds events at whole seconds and returns every action, with its second.
fn run(deadline: Option<u64>, events: &[(u64, Event)]) -> Vec<(u64, Action)> {
    let mut machine = WindDown::new(deadline.map(secs));
    let mut actions = Vec::new();
    for (second, event) in events {
        actions.extend(machine.on(*event, secs(*second)).into_iter().map(|action| (*second, action)));
    }
    actions
}

fn begun(second: u64, cause: Cause) -> Vec<(u64, Action)> {
    vec![(second, Action::Record(cause)), (second, Action::Cancel)]
}

fn left(second: u64, leaving: Leaving) -> Vec<(u64, Action)> {
    vec![(second, Action::Leave(leaving))]
}

fn cut_short(second: u64, status: ExitStatus) -> Vec<(u64, Action)> {
    vec![(second, Action::WriteEnd(status)), (second, Action::Leave(Leaving::CutShort))]
}

#[test]
fn every_cause_by_phase() {
    use Event::{Clock, FormationClosed, SpawnerClosed, Started, TaskBegan, Term, WorkDone};
    type Row<'a> = (&'a str, Option<u64>, &'a [(u64, Event)], Vec<Vec<(u64, Action)>>);
    let table: &[Row<'_>] = &[
        ("a signal while staging", NEVER, &[(1, Term)], vec![left(1, Leaving::Abandoned(143))]),
        ("a lifeline while staging", NEVER, &[(1, FormationClosed)], vec![left(1, Leaving::Abandoned(0))]),
        ("a spawner while staging", NEVER, &[(1, SpawnerClosed)], vec![left(1, Leaving::Abandoned(143))]),
        (
            "a moment that passed while staging begins the end at once",
            Some(1),
            &[(1, Clock), (2, Started)],
            vec![begun(2, Cause::Deadline)],
        ),
        (
            "a lifeline that closes after the moment, while staging, is the deadline",
            Some(1),
            &[(2, FormationClosed)],
            vec![left(2, Leaving::TooLate)],
        ),
        (
            "staging is not waited for past the moment and the bound",
            Some(1),
            &[(20, Clock), (21, Clock), (22, Started)],
            vec![left(21, Leaving::TooLate)],
        ),
        ("a signal", NEVER, &[(0, Started), (1, Term)], vec![begun(1, Cause::Term)]),
        (
            "a second signal kills",
            NEVER,
            &[(0, Started), (1, Term), (2, Term), (3, Clock)],
            vec![begun(1, Cause::Term), left(2, Leaving::Killed)],
        ),
        (
            "a signal after the lifeline changes nothing, a second one kills",
            NEVER,
            &[(0, Started), (1, FormationClosed), (2, Term), (3, Term)],
            vec![begun(1, Cause::Formation), left(3, Leaving::Killed)],
        ),
        (
            "a lifeline after a signal changes nothing",
            NEVER,
            &[(0, Started), (1, Term), (2, FormationClosed)],
            vec![begun(1, Cause::Term)],
        ),
        (
            "a lifeline seen after the moment is the deadline",
            Some(5),
            &[(0, Started), (6, FormationClosed)],
            vec![begun(6, Cause::Deadline)],
        ),
        (
            "a signal seen at the moment is the deadline",
            Some(5),
            &[(0, Started), (5, Term)],
            vec![begun(5, Cause::Deadline)],
        ),
        (
            "the clock before and at the moment",
            Some(5),
            &[(0, Started), (4, Clock), (5, Clock), (6, Clock)],
            vec![begun(5, Cause::Deadline)],
        ),
        (
            "the bound is counted from the first cause",
            NEVER,
            &[(0, Started), (10, Term), (29, Clock), (30, Clock), (31, Clock)],
            vec![begun(10, Cause::Term), cut_short(30, ExitStatus::Ok)],
        ),
        (
            "a task that still runs at the bound was cut short",
            NEVER,
            &[(0, Started), (1, TaskBegan), (2, FormationClosed), (22, Clock)],
            vec![begun(2, Cause::Formation), cut_short(22, ExitStatus::FormationEnded)],
        ),
        (
            "done work ends without a cause and is still bounded",
            NEVER,
            &[(0, Started), (1, WorkDone), (2, FormationClosed), (3, Term), (21, Clock)],
            vec![cut_short(21, ExitStatus::Ok)],
        ),
        (
            "two signals while closing kill",
            NEVER,
            &[(0, Started), (1, WorkDone), (2, Term), (3, Term)],
            vec![left(3, Leaving::Killed)],
        ),
    ];
    for (name, deadline, events, expected) in table {
        assert_eq!(run(*deadline, events), expected.concat(), "{name}");
    }
}

#[test]
fn a_session_ends_once_in_order() {
    use Event::{Closed, Emptied, Started, WorkDone};
    let events = [(0, Started), (1, WorkDone), (2, Emptied), (3, Emptied), (4, Closed)];
    let done = vec![(4, Action::Leave(Leaving::Done(ExitStatus::Ok)))];
    assert_eq!(run(NEVER, &events), [vec![(2, Action::WriteEnd(ExitStatus::Ok))], done].concat());
    // What hangs after the last line of the trace is still bounded, and the line is not written twice.
    let hangs = [(0, Started), (1, WorkDone), (2, Emptied), (21, Event::Clock)];
    let expected = [vec![(2, Action::WriteEnd(ExitStatus::Ok))], left(21, Leaving::CutShort)];
    assert_eq!(run(NEVER, &hangs), expected.concat());
    // A trace that is lost with its last line is a failed session.
    let lost = [(0, Started), (1, WorkDone), (2, Emptied), (2, Event::EndLost), (3, Closed)];
    assert_eq!(run(NEVER, &lost).last(), Some(&(3, Action::Leave(Leaving::Done(ExitStatus::Failed)))));
}

/// How a session ends whose tasks ended so, when `cause` came during the last of them.
fn folded(tasks: &[(ExitStatus, bool)], cause: Option<Event>) -> ExitStatus {
    let mut machine = WindDown::new(Some(secs(100)));
    let moment = if cause == Some(Event::Clock) { secs(100) } else { secs(1) };
    machine.on(Event::Started, secs(0));
    if tasks.is_empty()
        && let Some(cause) = cause
    {
        machine.on(cause, moment);
    }
    for (index, (status, decides)) in tasks.iter().enumerate() {
        machine.on(Event::TaskBegan, secs(0));
        if index + 1 == tasks.len()
            && let Some(cause) = cause
        {
            machine.on(cause, moment);
        }
        machine.on(Event::TaskEnded { status: *status, decides: *decides, fatal: false }, moment);
    }
    machine.on(Event::WorkDone, moment);
    match machine.on(Event::Emptied, moment)[..] {
        [Action::WriteEnd(status)] => status,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn tasks_fold_into_one_ending() {
    use Event::{Clock, FormationClosed, SpawnerClosed, Term};
    use ExitStatus::{
        Canceled, DeadlineReached, Failed, FormationEnded, MaxTurnsReached, NoAnswer, Ok, ReopenBudgetExhausted,
    };
    let own = |status| (status, true);
    let of_door = |status| (status, false);
    type Row = (Vec<(ExitStatus, bool)>, Option<Event>, ExitStatus, u8);
    let table: Vec<Row> = vec![
        (vec![], None, Ok, 0),
        (vec![], Some(Term), Ok, 0),
        (vec![], Some(FormationClosed), Ok, 0),
        (vec![], Some(Clock), DeadlineReached, 1),
        (vec![own(Ok)], None, Ok, 0),
        (vec![own(NoAnswer)], None, Ok, 0),
        (vec![own(Failed), own(Ok)], None, Failed, 1),
        (vec![own(Ok), own(MaxTurnsReached), own(Failed)], None, MaxTurnsReached, 1),
        (vec![own(ReopenBudgetExhausted)], None, Failed, 1),
        (vec![own(Canceled)], None, Canceled, 1),
        (vec![own(Canceled)], Some(Term), Canceled, 1),
        (vec![own(Canceled)], Some(SpawnerClosed), Canceled, 1),
        (vec![own(Canceled)], Some(FormationClosed), FormationEnded, 0),
        (vec![own(Failed), own(Canceled)], Some(FormationClosed), Failed, 1),
        (vec![own(Canceled)], Some(Clock), DeadlineReached, 1),
        (vec![own(Ok)], Some(FormationClosed), Ok, 0),
        // Tasks of the door report to whoever sent them, but for one the session's end cut short.
        (vec![of_door(Failed)], None, Ok, 0),
        (vec![of_door(Canceled)], None, Ok, 0),
        (vec![of_door(Failed), of_door(Canceled)], Some(FormationClosed), FormationEnded, 0),
        (vec![of_door(Canceled)], Some(Term), Canceled, 1),
        (vec![of_door(Failed)], Some(Term), Ok, 0),
    ];
    for (tasks, cause, status, exit) in table {
        assert_eq!(folded(&tasks, cause), status, "{tasks:?} {cause:?}");
        assert_eq!(status.exit(), exit);
    }
}

#[test]
fn a_failure_of_the_session_decides_over_every_task() {
    let mut machine = WindDown::new(None);
    machine.on(Event::Started, secs(0));
    machine.on(Event::TaskBegan, secs(0));
    let fatal = Event::TaskEnded { status: ExitStatus::Failed, decides: false, fatal: true };
    machine.on(Event::FormationClosed, secs(1));
    assert_eq!(machine.on(fatal, secs(1)), [Action::Keep]);
    assert_eq!(machine.on(Event::Emptied, secs(1)), [Action::WriteEnd(ExitStatus::Failed)]);
}

#[test]
fn the_clock_is_looked_at_when_something_is_due() {
    let deadline = secs(5);
    let mut machine = WindDown::new(Some(deadline));
    assert_eq!(machine.wake_at(), Some(deadline + BOUND));
    machine.on(Event::Started, secs(0));
    assert_eq!(machine.wake_at(), Some(deadline));
    machine.on(Event::Clock, deadline);
    assert_eq!(machine.wake_at(), Some(deadline + BOUND));
    assert_eq!(machine.cause(), Some(Cause::Deadline));
    machine.on(Event::Clock, deadline + BOUND);
    assert_eq!(machine.wake_at(), None);
    let mut machine = WindDown::new(None);
    assert_eq!(machine.wake_at(), None);
    machine.on(Event::Started, secs(0));
    assert_eq!(machine.wake_at(), None);
}
