//! The course of a formation from its first member to the launcher's exit: one state machine, without clocks, processes
//! or descriptors of its own.
//!
//! The launcher tells it what happened and does what it answers, in that order (`drive`). There is no way to tell a
//! member anything but to close its lifeline, and in the end to kill it: the launcher sends no member SIGTERM.
//! `exploration` tries every order of events on it, together with its members' own machines.

use std::time::Duration;

use crate::process::Exit;

/// How long a member may take from the closing of its lifeline to its end.
pub const KILL_AFTER: Duration = Duration::from_secs(25);

/// How long after the formation's deadline the lifelines close: members have ended themselves by then or never will, and
/// their clocks may be a little behind the launcher's.
pub const AFTER_DEADLINE: Duration = Duration::from_secs(1);

/// How long a killed member may take to be gone before the launcher leaves without it.
pub const AFTER_KILL: Duration = Duration::from_secs(5);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The roster is admitted, its edges are signed, its directories made.
    Prepared,
    /// A member could not be prepared or started.
    NotStarted(usize),
    /// A member's process runs.
    Started(usize),
    /// A peer's door answers as its session.
    Ready(usize),
    /// A peer did not come up and is still there.
    NotReady(usize),
    /// A member's process ended.
    Ended(usize, Exit),
    /// The launcher received one of the signals that end a formation.
    Signal(u8),
    /// A look at the clock.
    Clock,
}

/// What is to be done about it, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Start a member.
    Start(usize),
    /// Send the peers their callees' addresses and announce the formation.
    HandOut,
    /// Say that a peer has ended and the formation goes on.
    NamePeer(usize, Exit),
    /// Close a member's lifeline.
    CloseLifeline(usize),
    /// Kill a member that is still there.
    Kill(usize, Target),
    /// The launcher is done.
    Finish(Verdict),
}

/// What a kill reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A peer's process group, which it leads.
    Group,
    /// The entry member alone: it shares the launcher's group.
    Process,
}

/// What the launcher exits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The entry member's own ending.
    Entry(Exit),
    /// The signal that ended the formation, and whether the entry member had been started.
    Signalled {
        /// Its number.
        signal: u8,
        /// Whether every peer was ready by then.
        launched: bool,
    },
    /// `E-RUN-045`.
    NotLaunched,
    /// `E-RUN-053`: the deadline fell before the entry member started.
    DeadlineFell,
}

impl Verdict {
    /// The launcher's exit status.
    pub fn exit(self) -> u8 {
        match self {
            Self::Entry(exit) => u8::try_from(exit.shell_status()).unwrap_or(1),
            Self::Signalled { signal, .. } => 128 + signal,
            Self::NotLaunched | Self::DeadlineFell => 1,
        }
    }
}

/// A member as the launcher knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Seat {
    /// Not started.
    Empty,
    /// Its process runs; a peer's door is not known to answer.
    Started,
    /// Its door answered.
    Ready,
    /// Its process has ended.
    Ended(Exit),
}

impl Seat {
    fn runs(self) -> bool {
        matches!(self, Self::Started | Self::Ready)
    }
}

/// Why a formation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Why {
    /// The entry member ended, or will have at the deadline: its exit is the verdict.
    Entry,
    /// Something else decided.
    Decided(Verdict),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Peers are started and waited for.
    Launching,
    /// The entry member runs.
    Running,
    /// Lifelines are closed, since when and why.
    Ending { since: Duration, why: Why, signals: u8, killed: Option<Duration> },
    /// The verdict is given.
    Over,
}

/// The state of a formation's course. Moments are counted from the launcher's start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Launcher {
    phase: Phase,
    seats: Vec<Seat>,
    entry: usize,
    deadline: Option<Duration>,
}

impl Launcher {
    /// A launch of so many members, one of them the entry member.
    pub fn new(members: usize, entry: usize, deadline: Option<Duration>) -> Self {
        Self { phase: Phase::Launching, seats: vec![Seat::Empty; members], entry, deadline }
    }

    /// Takes one event at the moment it was seen.
    pub fn on(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let unready = matches!(event, Event::Ended(index, _) if self.seats[index] != Seat::Ready);
        if let Event::Ended(index, exit) = event {
            self.seats[index] = Seat::Ended(exit);
        }
        match self.phase {
            Phase::Launching if unready => self.while_launching(Event::NotReady(self.entry), now),
            Phase::Launching => self.while_launching(event, now),
            Phase::Running => self.while_running(event, now),
            Phase::Ending { .. } => self.while_ending(event, now),
            Phase::Over => Vec::new(),
        }
    }

    /// When to look at the clock next.
    pub fn wake_at(&self) -> Option<Duration> {
        match self.phase {
            Phase::Launching => self.deadline,
            Phase::Running => self.deadline.map(|deadline| deadline + AFTER_DEADLINE),
            Phase::Ending { since, killed, .. } => Some(killed.map_or(since + KILL_AFTER, |at| at + AFTER_KILL)),
            Phase::Over => None,
        }
    }

    /// Peers that have not become ready.
    pub fn not_ready(&self) -> impl Iterator<Item = usize> {
        self.seats
            .iter()
            .enumerate()
            .filter(|(index, seat)| *index != self.entry && !matches!(seat, Seat::Ready | Seat::Ended(_)))
            .map(|(index, _)| index)
    }

    /// Whether the formation is being ended, or has been.
    pub fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. } | Phase::Over)
    }

    fn while_launching(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let late = self.is_late(now);
        match event {
            Event::Signal(signal) => self.end(Why::Decided(Verdict::Signalled { signal, launched: false }), now),
            Event::NotReady(_) | Event::NotStarted(_) => self.end(Why::Decided(Verdict::NotLaunched), now),
            Event::Prepared | Event::Started(_) | Event::Ready(_) | Event::Ended(..) | Event::Clock if late => {
                self.note(event);
                if event == Event::Started(self.entry) {
                    self.phase = Phase::Running;
                    return self.while_running(Event::Clock, now);
                }
                self.end(Why::Decided(Verdict::DeadlineFell), now)
            }
            Event::Prepared | Event::Started(_) | Event::Ready(_) => {
                self.note(event);
                self.go_on()
            }
            Event::Ended(index, exit) => vec![Action::NamePeer(index, exit)],
            Event::Clock => Vec::new(),
        }
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Started(index) => self.seats[index] = Seat::Started,
            Event::Ready(index) if self.seats[index] == Seat::Started => self.seats[index] = Seat::Ready,
            _ => {}
        }
    }

    /// The next step of a launch that goes well: the peers one after another, then all doors, then the entry member.
    fn go_on(&mut self) -> Vec<Action> {
        if self.seats[self.entry] == Seat::Started {
            self.phase = Phase::Running;
            return Vec::new();
        }
        let peers = || self.seats.iter().enumerate().filter(|(index, _)| *index != self.entry);
        if let Some((next, _)) = peers().find(|(_, seat)| **seat == Seat::Empty) {
            return vec![Action::Start(next)];
        }
        if peers().any(|(_, seat)| *seat == Seat::Started) {
            return Vec::new();
        }
        vec![Action::HandOut, Action::Start(self.entry)]
    }

    fn while_running(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Ended(index, _) if index == self.entry => self.end(Why::Entry, now),
            // At the deadline everybody ends; that is no news.
            Event::Ended(index, exit) if !self.is_late(now) => vec![Action::NamePeer(index, exit)],
            Event::Signal(signal) => self.end(Why::Decided(Verdict::Signalled { signal, launched: true }), now),
            Event::Clock if self.deadline.is_some_and(|deadline| now >= deadline + AFTER_DEADLINE) => {
                self.end(Why::Entry, now)
            }
            _ => Vec::new(),
        }
    }

    fn while_ending(&mut self, event: Event, now: Duration) -> Vec<Action> {
        let Phase::Ending { since, why, mut signals, mut killed } = self.phase else { return Vec::new() };
        let mut actions = Vec::new();
        match event {
            Event::Started(index) => {
                // Its start was under way when the end came.
                self.seats[index] = Seat::Started;
                actions.push(Action::CloseLifeline(index));
            }
            Event::Signal(_) => signals = signals.saturating_add(1),
            _ => {}
        }
        if killed.is_none() && (signals >= 2 || now >= since + KILL_AFTER) {
            killed = Some(now);
            actions.extend(self.running().map(|index| Action::Kill(index, self.target(index))));
        }
        self.phase = Phase::Ending { since, why, signals, killed };
        let given_up = killed.is_some_and(|at| now >= at + AFTER_KILL);
        if given_up || self.running().next().is_none() {
            actions.extend(self.finish(why));
        }
        actions
    }

    fn end(&mut self, why: Why, now: Duration) -> Vec<Action> {
        // The signal that ends a formation is the first of two.
        let signals = u8::from(matches!(why, Why::Decided(Verdict::Signalled { .. })));
        self.phase = Phase::Ending { since: now, why, signals, killed: None };
        let mut actions: Vec<Action> = self.running().map(Action::CloseLifeline).collect();
        if actions.is_empty() {
            actions.extend(self.finish(why));
        }
        actions
    }

    fn finish(&mut self, why: Why) -> Vec<Action> {
        self.phase = Phase::Over;
        let verdict = match (why, self.seats[self.entry]) {
            (Why::Decided(verdict), _) => verdict,
            (Why::Entry, Seat::Ended(exit)) => Verdict::Entry(exit),
            // It was killed and is still there.
            (Why::Entry, _) => Verdict::Entry(Exit::Signal(9)),
        };
        vec![Action::Finish(verdict)]
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        self.seats.iter().enumerate().filter(|(_, seat)| seat.runs()).map(|(index, _)| index)
    }

    fn target(&self, index: usize) -> Target {
        if index == self.entry { Target::Process } else { Target::Group }
    }

    fn is_late(&self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }
}

#[cfg(test)]
mod tests;
