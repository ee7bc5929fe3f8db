//! How a session comes to its end: one state machine, without clocks or descriptors of its own.
//!
//! Whoever watches signals, lifelines and the deadline tells it what happened and does what it answers. Only the first
//! cause acts; a deadline that has passed beats any cause seen after it; nothing but a second SIGTERM shortens a
//! wind-down, and nothing lengthens it past its bound.

use std::time::{Duration, Instant};

/// From the first cause to the last line of the trace; past it the session ends wherever it is, with status 143.
pub const BOUND: Duration = Duration::from_secs(20);

/// Exit status of a session that was ended by a signal, or ran into [`BOUND`].
pub const TERMINATED: u8 = 143;

/// Why a session winds down before its work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A first SIGTERM.
    Term,
    /// The formation's lifeline closed.
    Formation,
    /// The spawner's lifeline closed.
    Spawner,
    /// The session's own moment passed.
    Deadline,
}

impl Cause {
    /// What the operator reads on stderr, after `[capsule-runtime] `.
    pub fn note(self) -> &'static str {
        match self {
            Self::Term => "SIGTERM received — cancelling live tasks and ending the session",
            Self::Formation => {
                "formation lifeline closed — the formation has ended; cancelling live tasks and ending the session"
            }
            Self::Spawner => "spawner lifeline closed — cancelling live tasks and ending the session",
            Self::Deadline => "session deadline reached — cancelling live tasks and ending the session",
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A SIGTERM arrived.
    Term,
    /// End of file on the formation's lifeline.
    FormationClosed,
    /// End of file on the spawner's lifeline.
    SpawnerClosed,
    /// The deadline's moment, or any later look at the clock.
    Clock,
    /// `session_start` is in the trace: from here on the session has an ending to record.
    Started,
    /// The work is done, or nothing came: the session closes by itself.
    WorkDone,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Undo the staging and leave with this status; nothing was recorded.
    Abandon(u8),
    /// Record the cause, then cancel what runs and refuse what waits.
    Begin(Cause),
    /// Kill what the session started and leave with 143 now.
    Kill,
    /// The bound has passed: write `session_end`, kill, leave with 143.
    CutShort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before `session_start`.
    Staging,
    /// Taking and running tasks.
    Live,
    /// Ending, since when and for which cause; none when the work was simply done.
    Ending(Instant, Option<Cause>),
}

/// The state of a session's end.
#[derive(Clone, Debug)]
pub struct WindDown {
    phase: Phase,
    terms: u32,
    deadline: Option<Instant>,
    cut: bool,
}

impl WindDown {
    /// A session that is being staged.
    pub fn new(deadline: Option<Instant>) -> Self {
        Self { phase: Phase::Staging, terms: 0, deadline, cut: false }
    }

    /// Takes one event at the moment it was seen.
    pub fn on(&mut self, event: Event, now: Instant) -> Step {
        if event == Event::Term {
            self.terms = self.terms.saturating_add(1);
            if self.terms >= 2 {
                return Step::Kill;
            }
        }
        match self.phase {
            Phase::Staging => self.while_staging(event, now),
            Phase::Live => self.while_live(event, now),
            Phase::Ending(since, _) => self.while_ending(since, now),
        }
    }

    /// When to look at the clock next.
    pub fn wake_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Staging => None,
            Phase::Live => self.deadline,
            Phase::Ending(since, _) => (!self.cut).then(|| since + BOUND),
        }
    }

    /// The cause the session is ending for; none while it runs and when its work was done.
    pub fn cause(&self) -> Option<Cause> {
        match self.phase {
            Phase::Ending(_, cause) => cause,
            Phase::Staging | Phase::Live => None,
        }
    }

    /// Whether the session takes no more work.
    pub fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending(..))
    }

    fn while_staging(&mut self, event: Event, now: Instant) -> Step {
        match event {
            Event::Term => Step::Abandon(TERMINATED),
            Event::FormationClosed => Step::Abandon(0),
            Event::SpawnerClosed => Step::Abandon(TERMINATED),
            // A moment that passes while staging is recorded by the session that has just started, before any task.
            Event::Started => {
                self.phase = Phase::Live;
                if self.is_late(now) { self.begin(Cause::Deadline, now) } else { Step::Nothing }
            }
            Event::Clock | Event::WorkDone => Step::Nothing,
        }
    }

    fn while_live(&mut self, event: Event, now: Instant) -> Step {
        let late = self.is_late(now);
        match event {
            Event::WorkDone => {
                self.phase = Phase::Ending(now, None);
                Step::Nothing
            }
            Event::Clock if late => self.begin(Cause::Deadline, now),
            Event::Clock | Event::Started => Step::Nothing,
            Event::Term | Event::FormationClosed | Event::SpawnerClosed if late => self.begin(Cause::Deadline, now),
            Event::Term => self.begin(Cause::Term, now),
            Event::FormationClosed => self.begin(Cause::Formation, now),
            Event::SpawnerClosed => self.begin(Cause::Spawner, now),
        }
    }

    fn while_ending(&mut self, since: Instant, now: Instant) -> Step {
        if !self.cut && now.saturating_duration_since(since) >= BOUND {
            self.cut = true;
            return Step::CutShort;
        }
        Step::Nothing
    }

    fn begin(&mut self, cause: Cause, now: Instant) -> Step {
        self.phase = Phase::Ending(now, Some(cause));
        Step::Begin(cause)
    }

    fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Option<u64> = None;

    /// Feeds events at whole seconds and returns every step that was not `Nothing`, with its second.
    fn run(deadline: Option<u64>, events: &[(u64, Event)]) -> Vec<(u64, Step)> {
        let zero = Instant::now();
        let mut machine = WindDown::new(deadline.map(|at| zero + Duration::from_secs(at)));
        let mut steps = Vec::new();
        for (second, event) in events {
            let step = machine.on(*event, zero + Duration::from_secs(*second));
            if step != Step::Nothing {
                steps.push((*second, step));
            }
        }
        steps
    }

    #[test]
    fn every_cause_by_phase() {
        use Event::{Clock, FormationClosed, SpawnerClosed, Started, Term, WorkDone};
        let table: &[(&str, Option<u64>, &[(u64, Event)], &[(u64, Step)])] = &[
            ("a signal while staging", NEVER, &[(1, Term)], &[(1, Step::Abandon(143))]),
            ("a lifeline while staging", NEVER, &[(1, FormationClosed)], &[(1, Step::Abandon(0))]),
            ("a spawner while staging", NEVER, &[(1, SpawnerClosed)], &[(1, Step::Abandon(143))]),
            (
                "a moment that passed while staging begins the end at once",
                Some(1),
                &[(1, Clock), (2, Started)],
                &[(2, Step::Begin(Cause::Deadline))],
            ),
            ("a signal", NEVER, &[(0, Started), (1, Term)], &[(1, Step::Begin(Cause::Term))]),
            (
                "a second signal kills",
                NEVER,
                &[(0, Started), (1, Term), (2, Term)],
                &[(1, Step::Begin(Cause::Term)), (2, Step::Kill)],
            ),
            (
                "a signal after the lifeline changes nothing, a second one kills",
                NEVER,
                &[(0, Started), (1, FormationClosed), (2, Term), (3, Term)],
                &[(1, Step::Begin(Cause::Formation)), (3, Step::Kill)],
            ),
            (
                "a lifeline after a signal changes nothing",
                NEVER,
                &[(0, Started), (1, Term), (2, FormationClosed)],
                &[(1, Step::Begin(Cause::Term))],
            ),
            (
                "a lifeline seen after the moment is the deadline",
                Some(5),
                &[(0, Started), (6, FormationClosed)],
                &[(6, Step::Begin(Cause::Deadline))],
            ),
            (
                "a signal seen at the moment is the deadline",
                Some(5),
                &[(0, Started), (5, Term)],
                &[(5, Step::Begin(Cause::Deadline))],
            ),
            (
                "the clock before and at the moment",
                Some(5),
                &[(0, Started), (4, Clock), (5, Clock), (6, Clock)],
                &[(5, Step::Begin(Cause::Deadline))],
            ),
            (
                "the bound is counted from the first cause",
                NEVER,
                &[(0, Started), (10, Term), (29, Clock), (30, Clock), (31, Clock)],
                &[(10, Step::Begin(Cause::Term)), (30, Step::CutShort)],
            ),
            (
                "done work ends without a cause and is still bounded",
                NEVER,
                &[(0, Started), (1, WorkDone), (2, FormationClosed), (3, Term), (21, Clock)],
                &[(21, Step::CutShort)],
            ),
            (
                "two signals while closing kill",
                NEVER,
                &[(0, Started), (1, WorkDone), (2, Term), (3, Term)],
                &[(3, Step::Kill)],
            ),
        ];
        for (name, deadline, events, expected) in table {
            assert_eq!(run(*deadline, events), *expected, "{name}");
        }
    }

    #[test]
    fn the_clock_is_looked_at_when_something_is_due() {
        let zero = Instant::now();
        let deadline = zero + Duration::from_secs(5);
        let mut machine = WindDown::new(Some(deadline));
        assert_eq!(machine.wake_at(), None);
        machine.on(Event::Started, zero);
        assert_eq!(machine.wake_at(), Some(deadline));
        machine.on(Event::Clock, deadline);
        assert_eq!(machine.wake_at(), Some(deadline + BOUND));
        assert_eq!(machine.cause(), Some(Cause::Deadline));
        machine.on(Event::Clock, deadline + BOUND);
        assert_eq!(machine.wake_at(), None);
    }
}
