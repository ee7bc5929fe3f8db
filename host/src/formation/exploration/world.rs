//! The world the machines are explored in: what can happen next, and what it does.

use std::time::Duration;

use crate::formation::machine::{self, Launcher};
use crate::process::Exit;
use crate::session::ExitStatus;
use crate::session::wind_down::{self, Leaving, WindDown};

use super::oracle::{Account, Course};

/// Signals the operator sends the launcher in an exploration; one of them stands for all three.
const SIGNAL: u8 = 15;

/// How much of each thing may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Signals to the launcher.
    pub signals: u8,
    /// SIGTERMs to members.
    pub terms: u8,
    /// Members killed.
    pub kills: u8,
    /// Members stopped.
    pub stops: u8,
    /// Whether the launcher may be killed.
    pub launcher_kills: u8,
    /// Moments at which nothing was due.
    pub pauses: u8,
    /// Stagings, readinesses and tasks that fail.
    pub failures: u8,
}

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Members; the first is the entry member.
    pub members: usize,
    /// Whether the entry member is launched with a task.
    pub entry_task: bool,
    /// Seconds from the launcher's start.
    pub deadline: Option<u16>,
    /// A member whose process cannot be started.
    pub start_fails: Option<usize>,
    /// What may happen.
    pub budget: Budget,
}

type MemberRule = fn(&mut WindDown, wind_down::Event, Duration) -> Vec<wind_down::Action>;
type LauncherRule = fn(&mut Launcher, machine::Event, Duration) -> Vec<machine::Action>;

/// The machines under exploration: the real ones, or ones that are broken on purpose.
pub struct Rules {
    /// How a member answers.
    pub member: MemberRule,
    /// How the launcher answers.
    pub launcher: LauncherRule,
}

impl Rules {
    /// The machines as they are.
    pub fn real() -> Self {
        Self { member: WindDown::on, launcher: Launcher::on }
    }
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Time passes to the next moment something is due, or for a while.
    Wait(u16),
    /// The operator's signal reaches the launcher.
    Signal,
    /// The launcher is killed.
    KillLauncher,
    /// The launcher looks at its clock.
    LauncherClock,
    /// The launcher sees that a member's process ended.
    SeeEnd(usize),
    /// The launcher sees a peer's door answer.
    SeeReady(usize),
    /// It gives up on it.
    SeeNotReady(usize),
    /// A member has been staged: `session_start` is written.
    Stage(usize),
    /// It cannot be staged.
    Refuse(usize),
    /// A task begins.
    Begin(usize),
    /// It ends by itself.
    End(usize, ExitStatus),
    /// It ends because it was cancelled.
    EndCanceled(usize),
    /// The work is done.
    WorkDone(usize),
    /// Everything it started is gone.
    Empty(usize),
    /// Everything is closed.
    Close(usize),
    /// It sees its lifeline's end of file.
    SeeEof(usize),
    /// It sees a SIGTERM.
    SeeTerm(usize),
    /// It looks at its clock.
    Clock(usize),
    /// The operator's SIGTERM.
    Term(usize),
    /// The operator's SIGKILL.
    Kill(usize),
    /// The operator's SIGSTOP.
    Stop(usize),
    /// The operator's SIGCONT.
    Continue(usize),
}

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Its process is not there yet.
    Absent,
    /// Before `session_start`.
    Staging,
    /// No task runs.
    Idle,
    /// One runs.
    Working,
    /// One runs and was told to end.
    Canceling,
    /// It closes.
    Closing,
    /// Nothing it started runs any more.
    Emptied,
    /// Its process has ended.
    Gone(Exit),
}

/// A member's process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its machine.
    pub machine: WindDown,
    /// What it does.
    pub stage: Stage,
    /// It was sent SIGSTOP.
    pub stopped: bool,
    lifeline_open: bool,
    eof_seen: bool,
    term_pending: bool,
    tasks: u8,
    ready_seen: bool,
    end_seen: bool,
    /// What must hold of it.
    pub account: Account,
}

impl Node {
    pub fn is_alive(&self) -> bool {
        !matches!(self.stage, Stage::Absent | Stage::Gone(_))
    }
}

/// Everything there is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    now: u16,
    deadline: Option<u16>,
    entry_task: bool,
    start_fails: Option<usize>,
    budget: Budget,
    launcher: Launcher,
    launcher_alive: bool,
    course: Course,
    nodes: Vec<Node>,
}

/// The entry member.
pub const ENTRY: usize = 0;
/// How long a pause is: no moment anything is due at.
const PAUSE: u16 = 2;

impl World {
    /// A launcher that has just been admitted.
    pub fn new(setup: &Setup, rules: &Rules) -> (Self, Result<(), String>) {
        let deadline = setup.deadline.map(|at| Duration::from_secs(u64::from(at)));
        let node = Node {
            machine: WindDown::new(deadline),
            stage: Stage::Absent,
            stopped: false,
            lifeline_open: false,
            eof_seen: false,
            term_pending: false,
            tasks: 1,
            ready_seen: false,
            end_seen: false,
            account: Account::default(),
        };
        let mut world = Self {
            now: 0,
            deadline: setup.deadline,
            entry_task: setup.entry_task,
            start_fails: setup.start_fails,
            budget: setup.budget,
            launcher: Launcher::new(setup.members, ENTRY, deadline),
            launcher_alive: true,
            course: Course::default(),
            nodes: vec![node; setup.members],
        };
        let begun = world.tell_launcher(machine::Event::Prepared, rules);
        (world, begun)
    }

    fn now(&self) -> Duration {
        Duration::from_secs(u64::from(self.now))
    }

    /// What can happen next.
    pub fn moves(&self) -> Vec<Move> {
        let mut moves = self.moves_of_its_own();
        self.operator(&mut moves);
        moves
    }

    /// The same without what the operator may do.
    pub fn moves_of_its_own(&self) -> Vec<Move> {
        let mut moves = self.due();
        // Whoever watches sees at once what he watches for: time passes only when there is nothing to be seen.
        let nothing_is_due = moves.is_empty();
        self.progress(&mut moves);
        if nothing_is_due {
            let next = self.next_wake();
            moves.extend(next.map(|at| Move::Wait(at - self.now)));
            if self.budget.pauses > 0 && next.is_none_or(|at| at - self.now > PAUSE) {
                moves.push(Move::Wait(PAUSE));
            }
        }
        moves
    }

    /// What somebody watches for and has not seen yet.
    fn due(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        let passed = |at: Option<Duration>| at.is_some_and(|at| at <= self.now());
        if self.launcher_alive {
            if passed(self.launcher.wake_at()) {
                moves.push(Move::LauncherClock);
            }
            let unseen = |node: &Node| matches!(node.stage, Stage::Gone(_)) && !node.end_seen;
            moves.extend(self.indices().filter(|index| unseen(&self.nodes[*index])).map(Move::SeeEnd));
        }
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_alive() && !node.stopped) {
            if node.term_pending {
                moves.push(Move::SeeTerm(index));
            }
            if !node.lifeline_open && !node.eof_seen {
                moves.push(Move::SeeEof(index));
            }
            if passed(node.machine.wake_at()) {
                moves.push(Move::Clock(index));
            }
        }
        moves
    }

    /// What members and the launcher get on with, in any time it takes.
    fn progress(&self, moves: &mut Vec<Move>) {
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_alive() && !node.stopped) {
            let fails = self.budget.failures > 0;
            match node.stage {
                Stage::Staging => {
                    moves.push(Move::Stage(index));
                    if fails {
                        moves.push(Move::Refuse(index));
                    }
                }
                Stage::Idle => {
                    let ending = node.machine.cause().is_some();
                    if node.tasks > 0 && !ending {
                        moves.push(Move::Begin(index));
                    }
                    // The task of the launch has run, or nothing more is taken.
                    if ending || (index == ENTRY && self.entry_task && node.tasks == 0) {
                        moves.push(Move::WorkDone(index));
                    }
                }
                Stage::Working => {
                    moves.push(Move::End(index, ExitStatus::Ok));
                    if fails {
                        moves.push(Move::End(index, ExitStatus::Failed));
                    }
                }
                Stage::Canceling => moves.push(Move::EndCanceled(index)),
                Stage::Closing => moves.push(Move::Empty(index)),
                Stage::Emptied => moves.push(Move::Close(index)),
                Stage::Absent | Stage::Gone(_) => {}
            }
            let waits = self.launcher_alive && index != ENTRY && !node.ready_seen && !self.launcher.is_ending();
            if waits && !matches!(node.stage, Stage::Staging) {
                moves.push(Move::SeeReady(index));
            }
            if waits && fails {
                moves.push(Move::SeeNotReady(index));
            }
        }
    }

    fn operator(&self, moves: &mut Vec<Move>) {
        if self.launcher_alive && self.budget.signals > 0 {
            moves.push(Move::Signal);
        }
        if self.launcher_alive && self.budget.launcher_kills > 0 {
            moves.push(Move::KillLauncher);
        }
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_alive()) {
            // A signal that waits to be seen is not doubled by another one.
            if self.budget.terms > 0 && !node.term_pending {
                moves.push(Move::Term(index));
            }
            if self.budget.kills > 0 {
                moves.push(Move::Kill(index));
            }
            if self.budget.stops > 0 && !node.stopped {
                moves.push(Move::Stop(index));
            }
            if node.stopped {
                moves.push(Move::Continue(index));
            }
        }
    }

    fn indices(&self) -> std::ops::Range<usize> {
        0..self.nodes.len()
    }

    /// The next moment at which anybody has something to do.
    fn next_wake(&self) -> Option<u16> {
        let launcher = self.launcher.wake_at().filter(|_| self.launcher_alive);
        let awake = self.nodes.iter().filter(|node| node.is_alive() && !node.stopped);
        let all = awake.filter_map(|node| node.machine.wake_at()).chain(launcher);
        let seconds = all.map(|at| u16::try_from(at.as_secs()).expect("a short course"));
        seconds.filter(|at| *at > self.now).min()
    }

    /// Lets one thing happen. An error says which rule was broken.
    pub fn take(&mut self, step: Move, rules: &Rules) -> Result<(), String> {
        use machine::Event as L;
        use wind_down::Event as M;
        match step {
            Move::Wait(seconds) => {
                if seconds == PAUSE {
                    self.budget.pauses = self.budget.pauses.saturating_sub(1);
                }
                self.before_time_passes()?;
                self.now += seconds;
                Ok(())
            }
            Move::Signal => {
                self.budget.signals -= 1;
                self.tell_launcher(L::Signal(SIGNAL), rules)
            }
            Move::KillLauncher => {
                self.budget.launcher_kills -= 1;
                self.launcher_gone();
                Ok(())
            }
            Move::LauncherClock => {
                let before = self.launcher.clone();
                self.tell_launcher(L::Clock, rules)?;
                came_of_it("the launcher", self.launcher != before)
            }
            Move::SeeEnd(index) => {
                self.nodes[index].end_seen = true;
                let Stage::Gone(exit) = self.nodes[index].stage else { return Err("it has not ended".into()) };
                self.tell_launcher(L::Ended(index, exit), rules)
            }
            Move::SeeReady(index) => {
                self.nodes[index].ready_seen = true;
                self.tell_launcher(L::Ready(index), rules)
            }
            Move::SeeNotReady(index) => {
                self.budget.failures -= 1;
                self.nodes[index].ready_seen = true;
                self.tell_launcher(L::NotReady(index), rules)
            }
            Move::Stage(index) => {
                self.nodes[index].stage = Stage::Idle;
                self.nodes[index].account.started = true;
                self.tell(index, M::Started, rules)
            }
            Move::Refuse(index) => {
                self.budget.failures -= 1;
                self.gone(index, Exit::Status(1));
                Ok(())
            }
            Move::Begin(index) => {
                self.nodes[index].tasks -= 1;
                self.nodes[index].stage = Stage::Working;
                self.tell(index, M::TaskBegan, rules)
            }
            Move::End(index, status) => {
                self.budget.failures -= u8::from(status == ExitStatus::Failed);
                self.task_ended(index, status, rules)
            }
            Move::EndCanceled(index) => self.task_ended(index, ExitStatus::Canceled, rules),
            Move::WorkDone(index) => {
                self.nodes[index].stage = Stage::Closing;
                self.nodes[index].account.work_done(self.now);
                self.tell(index, M::WorkDone, rules)
            }
            Move::Empty(index) => {
                self.nodes[index].stage = Stage::Emptied;
                self.tell(index, M::Emptied, rules)
            }
            Move::Close(index) => self.tell(index, M::Closed, rules),
            Move::SeeEof(index) => {
                self.nodes[index].eof_seen = true;
                self.tell(index, M::FormationClosed, rules)
            }
            Move::SeeTerm(index) => {
                self.nodes[index].term_pending = false;
                self.tell(index, M::Term, rules)
            }
            Move::Clock(index) => {
                let before = self.nodes[index].machine.clone();
                self.tell(index, M::Clock, rules)?;
                came_of_it("a member", self.nodes[index].machine != before)
            }
            Move::Term(index) => {
                self.budget.terms -= 1;
                self.nodes[index].term_pending = true;
                Ok(())
            }
            Move::Kill(index) => {
                self.budget.kills -= 1;
                self.killed(index);
                Ok(())
            }
            Move::Stop(index) => {
                self.budget.stops -= 1;
                self.nodes[index].stopped = true;
                Ok(())
            }
            Move::Continue(index) => {
                self.nodes[index].stopped = false;
                self.nodes[index].account.awake_since = self.now;
                Ok(())
            }
        }
    }

    fn before_time_passes(&self) -> Result<(), String> {
        for (index, node) in self.nodes.iter().enumerate() {
            node.account
                .bounded(node, self.now, self.deadline, self.launcher_alive)
                .map_err(|what| format!("member {index}: {what} (at {} s)", self.now))?;
        }
        let anybody = self.nodes.iter().any(Node::is_alive);
        if self.launcher_alive { self.course.bounded(self.now, anybody) } else { Ok(()) }
    }

    fn task_ended(&mut self, index: usize, status: ExitStatus, rules: &Rules) -> Result<(), String> {
        let decides = index == ENTRY && self.entry_task;
        self.nodes[index].stage = Stage::Idle;
        self.nodes[index].account.task_ended(status, decides);
        self.tell(index, wind_down::Event::TaskEnded { status, decides, fatal: false }, rules)
    }

    fn gone(&mut self, index: usize, exit: Exit) {
        let node = &mut self.nodes[index];
        node.stage = Stage::Gone(exit);
        node.stopped = false;
    }

    fn killed(&mut self, index: usize) {
        self.nodes[index].account.killed = true;
        self.gone(index, Exit::Signal(9));
    }

    /// The kernel closes what the launcher held.
    fn launcher_gone(&mut self) {
        self.launcher_alive = false;
        for index in self.indices() {
            self.close_lifeline(index);
        }
    }

    fn close_lifeline(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if std::mem::take(&mut node.lifeline_open) {
            node.account.closed_at.get_or_insert(self.now);
        }
    }

    /// A member's machine is told, and the member does what it answers.
    fn tell(&mut self, index: usize, event: wind_down::Event, rules: &Rules) -> Result<(), String> {
        let now = self.now();
        let node = &mut self.nodes[index];
        node.account.sees(event, node.stage, self.now, self.deadline);
        for action in (rules.member)(&mut node.machine, event, now) {
            let node = &mut self.nodes[index];
            node.account.does(action).map_err(|what| format!("member {index}: {what}"))?;
            match action {
                wind_down::Action::Cancel if node.stage == Stage::Working => node.stage = Stage::Canceling,
                wind_down::Action::Leave(leaving) => {
                    if !leaving.is_forced() && event != wind_down::Event::Closed {
                        return Err(format!("member {index} left in order before it had closed"));
                    }
                    let (stage, forced) = (node.stage, leaving == Leaving::CutShort);
                    let exit = leaving.exit();
                    node.account
                        .left(exit, stage, forced, self.now)
                        .map_err(|what| format!("member {index}: {what}, by {event:?}"))?;
                    self.gone(index, Exit::Status(i32::from(exit)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The launcher's machine is told, and the launcher does what it answers.
    fn tell_launcher(&mut self, event: machine::Event, rules: &Rules) -> Result<(), String> {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let late = self.deadline.is_some_and(|deadline| self.now >= deadline);
            let ready = |index: usize| self.nodes[index].ready_seen;
            self.course.sees(event, late, ready, self.now, self.deadline);
            let now = self.now();
            for action in (rules.launcher)(&mut self.launcher, event, now) {
                self.course.does(action, self.now)?;
                match action {
                    machine::Action::Start(index) if self.start_fails == Some(index) => {
                        events.push(machine::Event::NotStarted(index));
                    }
                    machine::Action::Start(index) => {
                        let node = &mut self.nodes[index];
                        node.stage = Stage::Staging;
                        node.lifeline_open = true;
                        node.account.awake_since = self.now;
                        events.push(machine::Event::Started(index));
                    }
                    machine::Action::CloseLifeline(index) => self.close_lifeline(index),
                    machine::Action::Kill(index, _) if self.nodes[index].lifeline_open => {
                        return Err(format!("member {index} is killed and was never told to end"));
                    }
                    machine::Action::Kill(index, _) if self.nodes[index].is_alive() => self.killed(index),
                    machine::Action::Finish(verdict) => {
                        let left = self.nodes.iter().any(Node::is_alive);
                        let entry = match self.nodes[ENTRY].stage {
                            Stage::Gone(exit) => Some(exit),
                            _ => None,
                        };
                        self.course.finished(verdict, left, entry)?;
                        self.launcher_gone();
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// A machine that asked for a moment does something at it, or it would ask for ever.
fn came_of_it(whose: &str, changed: bool) -> Result<(), String> {
    if changed { Ok(()) } else { Err(format!("the clock of {whose} is due and nothing comes of it")) }
}
