//! Watching for the session's end: signals, lifelines and the clock, from the first step of staging to the last.
//!
//! The watcher has a thread of its own, so that a session whose loop is held up (by a terminal that takes no more output,
//! say) is ended at its bound all the same. It tells the state machine what happened; whoever tells it does what it
//! answers, one event after another.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::context::SessionContext;
use super::deadline::Deadline;
use super::order::{Lifelines, Spawner};
use super::outcome::{About, Decided, ExitStatus, TaskOutcome};
use super::tasks::Closing;
use super::wind_down::{Action, Cause, Event, Leaving, WindDown};
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::process::Lifeline;
use crate::trace::Record;
use crate::trace::records::{DeadlineReached, FormationEnded, SpawnerEnded};

/// How long a session that is to be dropped where it is may take to undo what it made; then the process exits.
const UNDO: Duration = Duration::from_secs(2);

/// How long a session that is left by force waits for its last lines to be written.
const LAST_LINES: Duration = Duration::from_millis(200);

/// Stack of the watcher's thread: it writes records and wakes whoever waits.
const STACK: usize = 1 << 20;

/// The session's end, as the watcher and the session share it.
pub struct End {
    zero: Instant,
    state: Mutex<State>,
    /// Wakes the watcher after the machine's next moment has changed.
    changed: watch::Sender<u64>,
    /// Set once the session is ending before its work is done.
    begun: watch::Sender<Option<Cause>>,
    /// Set once the session is to be left by force.
    leaving: watch::Sender<Option<Leaving>>,
    live: OnceLock<Live>,
}

struct State {
    machine: WindDown,
    decided: Decided,
    /// Why `session_end` could not be written.
    lost: Option<Diagnostic>,
    done: Option<ExitStatus>,
}

/// What an ending session is told through, once it is recorded.
struct Live {
    context: Arc<SessionContext>,
    deadline: Option<Deadline>,
    spawner: Option<Spawner>,
}

/// What a session that ended in order came to.
pub struct Conclusion {
    /// `session_end.exit_status` and `status:`.
    pub status: ExitStatus,
    /// What is printed as the last error, if the run is one.
    pub error: Option<Diagnostic>,
}

impl End {
    /// Of a session that is about to be staged; `zero` is the start of its process.
    pub fn new(zero: Instant, deadline: Option<Instant>) -> Arc<Self> {
        let deadline = deadline.map(|at| at.saturating_duration_since(zero));
        let state = State { machine: WindDown::new(deadline), decided: Decided::default(), lost: None, done: None };
        Arc::new(Self {
            zero,
            state: Mutex::new(state),
            changed: watch::Sender::new(0),
            begun: watch::Sender::new(None),
            leaving: watch::Sender::new(None),
            live: OnceLock::new(),
        })
    }

    /// `session_start` is written: from here on an end is recorded. A moment that has already passed begins it now.
    pub fn started(&self, context: &Arc<SessionContext>, deadline: Option<Deadline>, spawner: Option<Spawner>) {
        let _ = self.live.set(Live { context: Arc::clone(context), deadline, spawner });
        self.tell(Event::Started);
    }

    /// A task begins to run.
    pub fn task_began(&self) {
        self.tell(Event::TaskBegan);
    }

    /// It has ended; `decides` says whether the launch brought it.
    pub fn task_ended(&self, outcome: TaskOutcome, decides: bool) {
        let event = Event::TaskEnded { status: outcome.exit_status, decides, fatal: outcome.ends_session };
        self.tell_of(event, Some(outcome));
    }

    /// The session itself failed.
    pub fn failed(&self, error: Diagnostic) {
        self.tell_of(Event::Failed, Some(TaskOutcome::fatal(error)));
    }

    /// The session closes by itself.
    pub fn work_done(&self) {
        self.tell(Event::WorkDone);
    }

    /// Nothing it started runs any more: the last line of the trace is due.
    pub fn emptied(&self) {
        self.tell(Event::Emptied);
    }

    /// All of it is closed. What it came to.
    pub fn closed(&self) -> Conclusion {
        self.tell(Event::Closed);
        let mut state = self.lock();
        // Unset only when the session is being left by force, and then nobody hears this.
        let status = state.done.unwrap_or(ExitStatus::Failed);
        let about = self.live.get().map(|live| about(&live.context)).unwrap_or_default();
        let error = state.decided.error(status, &about).or(state.lost.take());
        Conclusion { status, error }
    }

    /// What the session has come to so far.
    pub fn status(&self) -> ExitStatus {
        self.lock().machine.conclusion()
    }

    /// Why the session is ending, if something made it.
    pub fn cause(&self) -> Option<Cause> {
        self.lock().machine.cause()
    }

    /// Returns when something has made the session end.
    pub async fn begun(&self) -> Cause {
        some(&self.begun).await
    }

    /// Returns when the session is to be left by force.
    pub async fn leaving(&self) -> Leaving {
        some(&self.leaving).await
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: Event) {
        self.tell_of(event, None);
    }

    /// Tells the machine and does what it answers. The lock is held over both: what one event asks for is done before
    /// the next one is looked at, so that a cause's record stands before everything its wind-down writes.
    fn tell_of(&self, event: Event, outcome: Option<TaskOutcome>) {
        let mut state = self.lock();
        let mut outcome = outcome;
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in state.machine.on(event, self.zero.elapsed()) {
                if let Some(next) = self.act(&mut state, action, &mut outcome) {
                    events.push(next);
                }
            }
        }
        drop(state);
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Does one thing; returns what came of it, where that is news.
    fn act(&self, state: &mut State, action: Action, outcome: &mut Option<TaskOutcome>) -> Option<Event> {
        match action {
            Action::Record(cause) => {
                if let Some(live) = self.live.get() {
                    live.record(cause);
                }
                self.begun.send_replace(Some(cause));
            }
            Action::Cancel => {
                if let Some(live) = self.live.get() {
                    live.context.tasks.close(Closing::Stopped);
                    live.context.tasks.cancel_all();
                }
            }
            Action::Keep => {
                if let Some(outcome) = outcome.take() {
                    state.decided.keep(outcome);
                }
            }
            Action::WriteEnd(status) => {
                if let Some(Err(lost)) = self.live.get().map(|live| live.end_trace(status)) {
                    state.lost = Some(lost);
                    return Some(Event::EndLost);
                }
            }
            Action::Leave(Leaving::Done(status)) => state.done = Some(status),
            Action::Leave(leaving) => {
                self.leaving.send_replace(Some(leaving));
            }
        }
        None
    }

    fn wake_at(&self) -> Option<Instant> {
        self.lock().machine.wake_at().and_then(|at| self.zero.checked_add(at))
    }
}

impl Live {
    fn record(&self, cause: Cause) {
        let trace = &self.context.trace;
        match cause {
            Cause::Term => {}
            Cause::Formation => {
                if let Some(formation) = &self.context.formation {
                    let record = FormationEnded { formation_id: formation.to_string() };
                    trace.record_aside(FormationEnded::TYPE, None, record);
                }
            }
            Cause::Spawner => {
                let record = SpawnerEnded {
                    spawned_by: self.spawner.as_ref().map(|spawner| spawner.session.to_string()),
                    delegation_id: self
                        .spawner
                        .as_ref()
                        .and_then(|spawner| spawner.delegation.as_ref())
                        .map(ToString::to_string),
                };
                trace.record_aside(SpawnerEnded::TYPE, None, record);
            }
            Cause::Deadline => {
                if let Some(deadline) = &self.deadline {
                    trace.record_aside(DeadlineReached::TYPE, None, deadline.reached());
                }
            }
        }
    }

    fn end_trace(&self, status: ExitStatus) -> Result<()> {
        self.context.trace.end(self.context.start.elapsed_ms(), status.as_str())
    }
}

fn about(context: &SessionContext) -> About {
    About {
        records: context.dirs.records.display().to_string(),
        result: context.dirs.result().display().to_string(),
        deadline: context.deadline.as_ref().map(Deadline::words).unwrap_or_default(),
    }
}

async fn some<T: Copy>(sender: &watch::Sender<Option<T>>) -> T {
    let value = sender.subscribe().wait_for(Option::is_some).await.ok().and_then(|value| *value);
    match value {
        Some(value) => value,
        // The sender outlives whoever waits.
        None => std::future::pending().await,
    }
}

/// The signals of a session, taken over from their default action.
struct Signals {
    term: Signal,
    /// Held so that they have no effect: the launcher handles them for its members.
    _ignored: Vec<Signal>,
}

impl Signals {
    /// SIGTERM is watched; a member that holds a formation lifeline lets SIGINT and SIGHUP pass.
    fn take(member: bool) -> std::io::Result<Self> {
        let ignored =
            if member { vec![signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?] } else { Vec::new() };
        Ok(Self { term: signal(SignalKind::terminate())?, _ignored: ignored })
    }
}

/// Takes over the signals and starts watching.
pub fn start(end: &Arc<End>, lifelines: Lifelines) -> Result<()> {
    let refused = |error: std::io::Error| {
        Diagnostic::new(codes::E_RUN_007, format!("the end of the session cannot be watched for: {error}"))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(refused)?;
    let signals = {
        let _inside = runtime.enter();
        Signals::take(lifelines.formation.is_some()).map_err(refused)?
    };
    let end = Arc::clone(end);
    let watching = std::thread::Builder::new().name("end".to_owned()).stack_size(STACK);
    watching.spawn(move || watch(&runtime, &end, signals, lifelines)).map_err(refused)?;
    Ok(())
}

/// Watches until the session is to be left by force, and sees to it that it is.
fn watch(runtime: &Runtime, end: &End, signals: Signals, lifelines: Lifelines) {
    let leaving = runtime.block_on(forced(end, signals, lifelines));
    // Normally the session's own thread leaves long before.
    std::thread::park_timeout(UNDO);
    output::behind::settle(LAST_LINES);
    std::process::exit(i32::from(leaving.exit()));
}

async fn forced(end: &End, mut signals: Signals, lifelines: Lifelines) -> Leaving {
    let mut changed = end.changed.subscribe();
    let (mut formation, mut spawner) = (lifelines.formation, lifelines.spawner);
    loop {
        changed.mark_unchanged();
        if let Some(leaving) = *end.leaving.borrow() {
            return leaving;
        }
        let event = tokio::select! {
            biased;
            _ = signals.term.recv() => Event::Term,
            () = closed(formation.as_ref()) => {
                formation = None;
                Event::FormationClosed
            }
            () = closed(spawner.as_ref()) => {
                spawner = None;
                Event::SpawnerClosed
            }
            () = moment(end.wake_at()) => Event::Clock,
            _ = changed.changed() => continue,
        };
        end.tell(event);
    }
}

/// Returns at end of file; never for a lifeline that is not held. One that cannot be watched holds nobody up either.
async fn closed(lifeline: Option<&Lifeline>) {
    match lifeline {
        Some(lifeline) => {
            if let Err(error) = lifeline.closed().await {
                output::log(&format!("[capsule-runtime] a lifeline cannot be read and is taken as closed: {error}"));
            }
        }
        None => std::future::pending().await,
    }
}

async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
