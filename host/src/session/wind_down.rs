//! How a session comes to its end: one state machine, without clocks or descriptors of its own.
//!
//! Whoever watches signals, lifelines and the clock, and whoever runs the tasks, tells it what happened and does what it
//! answers, in that order. Only the first cause acts; a deadline that has passed beats any cause seen after it; nothing
//! but a second SIGTERM shortens a wind-down, and nothing lengthens it past its bound. `formation::exploration` tries
//! every order of events on it.

use std::time::Duration;

use super::outcome::ExitStatus;

/// From the first cause to the last line of the trace; past it the session ends wherever it is, with status 143.
pub const BOUND: Duration = Duration::from_secs(20);

/// Exit status of a session that was ended by a signal, or ran into [`BOUND`].
pub const TERMINATED: u8 = 143;

/// Why a session winds down before its work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// A task runs.
    TaskBegan,
    /// It has ended, its own ending recorded.
    TaskEnded {
        /// How.
        status: ExitStatus,
        /// Whether the launch brought it, so that it decides the session's outcome.
        decides: bool,
        /// Whether the session cannot go on after it.
        fatal: bool,
    },
    /// The session itself failed, whatever its tasks did.
    Failed,
    /// The work is done, or nothing came: the session closes by itself.
    WorkDone,
    /// Nothing the session started runs any more.
    Emptied,
    /// `session_end` could not be written.
    EndLost,
    /// The door is closed and what must not stay is removed.
    Closed,
}

/// What is to be done about it, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Write the cause's own record (a SIGTERM has none).
    Record(Cause),
    /// Refuse the tasks that wait and cancel the one that runs.
    Cancel,
    /// Keep the words of the ending just told: it decides the session's.
    Keep,
    /// Write `session_end`.
    WriteEnd(ExitStatus),
    /// Leave.
    Leave(Leaving),
}

/// How a session is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leaving {
    /// Before `session_start`: undo the staging, record nothing.
    Abandoned(u8),
    /// The same after the deadline had passed, which is an error (`E-RUN-053`).
    TooLate,
    /// In order.
    Done(ExitStatus),
    /// At once, by a second SIGTERM.
    Killed,
    /// At the bound, wherever it is.
    CutShort,
}

impl Leaving {
    /// The process's exit status.
    pub fn exit(self) -> u8 {
        match self {
            Self::Abandoned(status) => status,
            Self::TooLate => ExitStatus::DeadlineReached.exit(),
            Self::Done(status) => status.exit(),
            Self::Killed | Self::CutShort => TERMINATED,
        }
    }

    /// Whether the session is to be dropped where it is.
    pub fn is_forced(self) -> bool {
        !matches!(self, Self::Done(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Before `session_start`.
    Staging,
    /// Taking and running tasks.
    Live,
    /// Ending, since when and for which cause; none when the work was simply done.
    Ending(Duration, Option<Cause>),
    /// Left by force: nothing that happens matters any more.
    Left,
}

/// The state of a session's end. Moments are counted from the start of the process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WindDown {
    phase: Phase,
    /// A first SIGTERM has come.
    terminated: bool,
    deadline: Option<Duration>,
    /// A task runs.
    running: bool,
    /// The ending that decides the session's outcome.
    decided: Option<ExitStatus>,
    /// What `session_end` says.
    written: Option<ExitStatus>,
}

impl WindDown {
    /// A session that is being staged.
    pub fn new(deadline: Option<Duration>) -> Self {
        Self { phase: Phase::Staging, terminated: false, deadline, running: false, decided: None, written: None }
    }

    /// Takes one event at the moment it was seen.
    pub fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        if self.phase == Phase::Left {
            return Vec::new();
        }
        if event == Event::Term && std::mem::replace(&mut self.terminated, true) {
            return self.leave(Leaving::Killed);
        }
        match self.phase {
            Phase::Staging => self.while_staging(event, now),
            Phase::Live => self.while_live(event, now),
            Phase::Ending(since, _) => self.while_ending(event, since, now),
            Phase::Left => Vec::new(),
        }
    }

    /// When to look at the clock next.
    pub fn wake_at(&self) -> Option<Duration> {
        match self.phase {
            Phase::Staging => self.deadline.map(|deadline| deadline + BOUND),
            Phase::Live => self.deadline,
            Phase::Ending(since, _) => Some(since + BOUND),
            Phase::Left => None,
        }
    }

    /// The cause the session is ending for; none while it runs and when its work was done.
    pub fn cause(&self) -> Option<Cause> {
        match self.phase {
            Phase::Ending(_, cause) => cause,
            Phase::Staging | Phase::Live | Phase::Left => None,
        }
    }

    fn while_staging(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let late = self.is_late(now);
        match event {
            Event::FormationClosed | Event::SpawnerClosed | Event::Term if late => self.leave(Leaving::TooLate),
            Event::FormationClosed => self.leave(Leaving::Abandoned(0)),
            Event::Term | Event::SpawnerClosed => self.leave(Leaving::Abandoned(TERMINATED)),
            // A moment that passes while staging is recorded by the session that has just started, before any task.
            Event::Started => {
                self.phase = Phase::Live;
                if late { self.begin(Cause::Deadline, now) } else { Vec::new() }
            }
            // One that never starts is not waited for longer than one that does not end.
            Event::Clock if self.deadline.is_some_and(|deadline| now >= deadline + BOUND) => {
                self.leave(Leaving::TooLate)
            }
            _ => Vec::new(),
        }
    }

    fn while_live(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let late = self.is_late(now);
        match event {
            Event::WorkDone => {
                self.phase = Phase::Ending(now, None);
                Vec::new()
            }
            Event::Clock | Event::Term | Event::FormationClosed | Event::SpawnerClosed if late => {
                self.begin(Cause::Deadline, now)
            }
            Event::Term => self.begin(Cause::Term, now),
            Event::FormationClosed => self.begin(Cause::Formation, now),
            Event::SpawnerClosed => self.begin(Cause::Spawner, now),
            other => self.work(other),
        }
    }

    fn while_ending(&mut self, event: Event, since: Duration, now: Duration) -> Vec<Action> {
        if now >= since + BOUND {
            let mut actions = self.write_end();
            actions.extend(self.leave(Leaving::CutShort));
            return actions;
        }
        match event {
            Event::Emptied => self.write_end(),
            Event::EndLost => {
                self.written = Some(ExitStatus::Failed);
                Vec::new()
            }
            // What is left of the process is bounded as before.
            Event::Closed => vec![Action::Leave(Leaving::Done(self.written.unwrap_or(ExitStatus::Failed)))],
            other => self.work(other),
        }
    }

    /// What tasks do, while they are taken and while they are cancelled alike.
    fn work(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::TaskBegan => self.running = true,
            Event::TaskEnded { status, decides, fatal } => {
                self.running = false;
                // A task the session's own end cut short decides whoever sent it: the seed's table of ends says so.
                let cut = self.cause().is_some() && status == ExitStatus::Canceled;
                let counts = !matches!(status, ExitStatus::Ok | ExitStatus::NoAnswer);
                if fatal {
                    self.decided = Some(ExitStatus::Failed);
                    return vec![Action::Keep];
                }
                // The first one that did not complete; a later success never hides it.
                if counts && (decides || cut) && self.decided.is_none() {
                    self.decided = Some(status);
                    return vec![Action::Keep];
                }
            }
            Event::Failed => {
                self.decided = Some(ExitStatus::Failed);
                return vec![Action::Keep];
            }
            _ => {}
        }
        Vec::new()
    }

    fn begin(&mut self, cause: Cause, now: Duration) -> Vec<Action> {
        // The deadline is a moment, not the first look at the clock after it.
        let since = self.deadline.filter(|_| cause == Cause::Deadline).unwrap_or(now);
        self.phase = Phase::Ending(since, Some(cause));
        vec![Action::Record(cause), Action::Cancel]
    }

    /// `session_end`, once.
    fn write_end(&mut self) -> Vec<Action> {
        if self.written.is_some() {
            return Vec::new();
        }
        let status = self.conclusion();
        self.written = Some(status);
        vec![Action::WriteEnd(status)]
    }

    /// What the session came to, as far as it is known.
    pub fn conclusion(&self) -> ExitStatus {
        if self.cause() == Some(Cause::Deadline) {
            return ExitStatus::DeadlineReached;
        }
        // A task that still runs at the bound was cut short as one that obeyed.
        let cut = self.running.then_some(ExitStatus::Canceled);
        match self.decided.or(cut) {
            None => ExitStatus::Ok,
            Some(ExitStatus::Canceled) if self.cause() == Some(Cause::Formation) => ExitStatus::FormationEnded,
            // A session knows no reopen budget: it failed.
            Some(ExitStatus::ReopenBudgetExhausted) => ExitStatus::Failed,
            Some(other) => other,
        }
    }

    fn leave(&mut self, leaving: Leaving) -> Vec<Action> {
        self.phase = Phase::Left;
        vec![Action::Leave(leaving)]
    }

    fn is_late(&self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }
}

#[cfg(test)]
mod tests;
