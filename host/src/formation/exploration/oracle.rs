//! What must hold, written down apart from the machines: the seed's tables of how a formation and its members end.

use crate::formation::machine::{self, Target, Verdict};
use crate::process::Exit;
use crate::session::ExitStatus;
use crate::session::wind_down::{Action, Cause, Event};

use super::world::{ENTRY, Node, Stage};

/// "20 seconds after its lifeline closed, it exits with status 143 wherever its teardown is."
const MEMBER_BOUND: u16 = 20;
/// "25 seconds after the launcher closed the lifeline: SIGKILL."
const LAUNCHER_BOUND: u16 = 25;
/// After the deadline the launcher closes the lifelines of those that are still there, a second later.
const AFTER_DEADLINE: u16 = 1;

/// What happened to one member and what it wrote, as the seed looks at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Account {
    /// `session_start` is written.
    pub started: bool,
    /// It was sent SIGKILL.
    pub killed: bool,
    /// When its lifeline closed.
    pub closed_at: Option<u16>,
    /// Since when it has not been stopped.
    pub awake_since: u16,
    terms: u8,
    /// The first thing that made it end, and when; a cause seen after the deadline is the deadline.
    first: Option<(Cause, u16)>,
    work_done_at: Option<u16>,
    task: Option<(ExitStatus, bool)>,
    formation_ended: u8,
    deadline_reached: u8,
    ended: Option<ExitStatus>,
}

impl Account {
    /// Notes what it sees.
    pub fn sees(&mut self, event: Event, stage: Stage, now: u16, deadline: Option<u16>) {
        self.terms += u8::from(event == Event::Term);
        let cause = match event {
            Event::Term => Cause::Term,
            Event::FormationClosed => Cause::Formation,
            Event::Clock | Event::Started => Cause::Deadline,
            _ => return,
        };
        let late = deadline.is_some_and(|deadline| now >= deadline);
        let cause = if late { Cause::Deadline } else { cause };
        if cause == Cause::Deadline && !late {
            return;
        }
        // While it is staged the deadline alone is waited out.
        let waits = stage == Stage::Staging && matches!(event, Event::Clock);
        if self.first.is_none() && self.work_done_at.is_none() && !waits {
            let at = deadline.filter(|_| cause == Cause::Deadline).unwrap_or(now);
            self.first = Some((cause, at));
        }
    }

    /// Its work was done, perhaps because something made it end.
    pub fn work_done(&mut self, now: u16) {
        self.work_done_at = Some(now);
    }

    /// Its one task ended.
    pub fn task_ended(&mut self, status: ExitStatus, decides: bool) {
        self.task = Some((status, decides));
    }

    /// Notes what it does; an error says what it must not do.
    pub fn does(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Record(cause) => {
                let count = match cause {
                    Cause::Formation => &mut self.formation_ended,
                    Cause::Deadline => &mut self.deadline_reached,
                    Cause::Term | Cause::Spawner => return Ok(()),
                };
                *count += 1;
                if self.formation_ended + self.deadline_reached > 1 {
                    return Err("it recorded two causes".into());
                }
                if self.ended.is_some() || self.task.is_some_and(|(status, _)| status == ExitStatus::Canceled) {
                    return Err("its cause is recorded after what it made end".into());
                }
                if self.first.is_none_or(|(first, _)| first != cause) {
                    return Err(format!("it recorded {cause:?}, and {:?} came first", self.first));
                }
            }
            Action::WriteEnd(status) => {
                if let Some(before) = self.ended.replace(status) {
                    return Err(format!("it wrote session_end twice: {before:?}, then {status:?}"));
                }
            }
            Action::Cancel | Action::Keep | Action::Leave(_) => {}
        }
        Ok(())
    }

    /// Its process exits with this status by itself.
    pub fn left(&self, exit: u8, stage: Stage, cut_short: bool, now: u16) -> Result<(), String> {
        if self.terms >= 2 {
            return if exit == 143 { Ok(()) } else { Err(format!("a second SIGTERM ended it with {exit}")) };
        }
        if !self.started {
            let expected = match self.first {
                Some((Cause::Formation, _)) => 0,
                Some((Cause::Term | Cause::Spawner, _)) => 143,
                Some((Cause::Deadline, _)) | None => 1,
            };
            let silent = self.ended.is_none() && self.formation_ended == 0;
            return match exit == expected && silent && stage == Stage::Staging {
                true => Ok(()),
                false => Err(format!("it left its staging with {exit} instead of {expected}")),
            };
        }
        let Some(status) = self.ended else { return Err("its session_end is lost".into()) };
        if status != self.expected_status(stage) {
            return Err(format!("session_end says {status:?} instead of {:?}", self.expected_status(stage)));
        }
        let formation_ended = u8::from(self.first.is_some_and(|(cause, _)| cause == Cause::Formation));
        if self.formation_ended != formation_ended {
            return Err(format!("it wrote formation_ended {} times", self.formation_ended));
        }
        let since = self.first.map(|(_, at)| at).into_iter().chain(self.work_done_at).min();
        let overdue = since.is_some_and(|since| now >= since + MEMBER_BOUND);
        let expected = if overdue { 143 } else { exit_of(status) };
        if exit != expected || cut_short != overdue {
            return Err(format!("it left with {exit} instead of {expected}"));
        }
        Ok(())
    }

    /// The seed's table.
    fn expected_status(&self, stage: Stage) -> ExitStatus {
        let cause = self.first.map(|(cause, _)| cause);
        let cut = matches!(stage, Stage::Working | Stage::Canceling)
            || self.task.is_some_and(|(status, _)| status == ExitStatus::Canceled);
        match cause {
            Some(Cause::Deadline) => ExitStatus::DeadlineReached,
            Some(Cause::Formation) if cut => ExitStatus::FormationEnded,
            Some(Cause::Term) if cut => ExitStatus::Canceled,
            _ => match self.task {
                Some((ExitStatus::Failed, true)) => ExitStatus::Failed,
                _ => ExitStatus::Ok,
            },
        }
    }

    /// Looked at whenever time passes: who must not be alive any more?
    pub fn bounded(&self, node: &Node, now: u16, deadline: Option<u16>, launcher_alive: bool) -> Result<(), String> {
        if !node.is_alive() {
            return Ok(());
        }
        let awake = |at: u16| at.max(self.awake_since);
        if !node.stopped && self.closed_at.is_some_and(|at| now >= awake(at) + MEMBER_BOUND) {
            return Err("it is alive past 20 s after its lifeline closed".into());
        }
        if !node.stopped && deadline.is_some_and(|at| now >= awake(at) + MEMBER_BOUND) {
            return Err("it is alive past 20 s after the deadline".into());
        }
        if launcher_alive && self.closed_at.is_some_and(|at| now >= at + LAUNCHER_BOUND) {
            return Err("the launcher let it live past 25 s after it closed its lifeline".into());
        }
        if launcher_alive && deadline.is_some_and(|at| now >= at + AFTER_DEADLINE + LAUNCHER_BOUND) {
            return Err("the launcher let it live past one bound after the deadline".into());
        }
        Ok(())
    }
}

fn exit_of(status: ExitStatus) -> u8 {
    u8::from(!matches!(status, ExitStatus::Ok | ExitStatus::FormationEnded))
}

/// Why a formation ends, as the launcher saw it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum First {
    EntryEnded,
    Signal(u8),
    NotLaunched,
    DeadlineFell,
    Deadline,
}

/// What happened to the launcher.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Course {
    entry_started: bool,
    first: Option<(First, u16)>,
    signals: u8,
}

impl Course {
    /// Notes what it sees.
    pub fn sees(
        &mut self,
        event: machine::Event,
        late: bool,
        ready: impl Fn(usize) -> bool,
        now: u16,
        deadline: Option<u16>,
    ) {
        use machine::Event as L;
        self.entry_started |= event == L::Started(ENTRY);
        self.signals += u8::from(matches!(event, L::Signal(_)));
        let overdue = deadline.is_some_and(|at| now >= at + AFTER_DEADLINE);
        let first = match event {
            L::Signal(number) => First::Signal(number),
            L::NotStarted(_) | L::NotReady(_) => First::NotLaunched,
            L::Ended(ENTRY, _) => First::EntryEnded,
            L::Ended(index, _) if !self.entry_started && !ready(index) => First::NotLaunched,
            _ if late && !self.entry_started => First::DeadlineFell,
            _ if overdue && (event == L::Clock || event == L::Started(ENTRY)) => First::Deadline,
            _ => return,
        };
        self.first.get_or_insert((first, now));
    }

    /// What the launcher must not do.
    pub fn does(&mut self, action: machine::Action, now: u16) -> Result<(), String> {
        match action {
            machine::Action::Start(_) if self.first.is_some() => Err("a member is started after the end began".into()),
            machine::Action::Kill(index, target) => {
                let due = self.first.is_some_and(|(_, at)| now >= at + LAUNCHER_BOUND);
                let asked = self.signals >= 2;
                if !due && !asked {
                    return Err(format!("member {index} is killed before its time"));
                }
                match (index == ENTRY, target) {
                    (true, Target::Process) | (false, Target::Group) => Ok(()),
                    _ => Err(format!("the kill of member {index} reaches {target:?}")),
                }
            }
            machine::Action::CloseLifeline(_) if self.first.is_none() => {
                Err("a lifeline is closed though nothing ended the formation".into())
            }
            _ => Ok(()),
        }
    }

    /// The launcher's exit.
    pub fn finished(&self, verdict: Verdict, left: bool, entry: Option<Exit>) -> Result<(), String> {
        if left {
            return Err("the launcher leaves members behind".into());
        }
        let expected = match (self.first.map(|(first, _)| first), entry) {
            (Some(First::Signal(number)), _) => 128 + i32::from(number),
            (Some(First::NotLaunched | First::DeadlineFell), _) => 1,
            (Some(First::EntryEnded | First::Deadline), Some(Exit::Status(status))) => status,
            (Some(First::EntryEnded | First::Deadline), Some(Exit::Signal(signal))) => 128 + signal,
            (Some(First::EntryEnded | First::Deadline), None) => return Err("the entry member's end is unknown".into()),
            (None, _) => return Err("the launcher leaves though nothing ended the formation".into()),
        };
        let told = matches!((self.first, verdict), (Some((First::DeadlineFell, _)), Verdict::DeadlineFell))
            || !matches!(self.first, Some((First::DeadlineFell, _)));
        if i32::from(verdict.exit()) != expected || !told {
            return Err(format!("the launcher exits with {} ({verdict:?}) instead of {expected}", verdict.exit()));
        }
        Ok(())
    }

    /// Looked at whenever time passes.
    pub fn bounded(&self, now: u16, anybody: bool) -> Result<(), String> {
        let Some((_, since)) = self.first else { return Ok(()) };
        if anybody && now >= since + LAUNCHER_BOUND {
            return Err("members are alive 25 s after the formation's end began".into());
        }
        if !anybody {
            return Err("the launcher stays though every member is gone".into());
        }
        Ok(())
    }
}
