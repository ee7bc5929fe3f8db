//! Watching for the session's end: signals, lifelines and the clock, from the first step of staging to the last.
//!
//! The watcher holds the state machine, tells the session when its end has begun, and returns only when the session has
//! to be left where it is.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::context::SessionContext;
use super::deadline::Deadline;
use super::order::{Lifelines, Spawner};
use super::tasks::Closing;
use super::wind_down::{Cause, Event, Step, WindDown};
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::process::Lifeline;
use crate::trace::Record;
use crate::trace::records::{DeadlineReached, FormationEnded, SpawnerEnded};

/// The session's end, as the watcher and the session share it.
pub struct End {
    machine: Mutex<WindDown>,
    /// Wakes the watcher after the machine's next moment has changed.
    changed: watch::Sender<u64>,
    /// Set once the session is ending before its work is done.
    begun: watch::Sender<Option<Cause>>,
    live: OnceLock<Live>,
}

/// What an ending session is told through, once it is recorded.
struct Live {
    context: Arc<SessionContext>,
    deadline: Option<Deadline>,
    spawner: Option<Spawner>,
}

impl End {
    /// Of a session that is about to be staged.
    pub fn new(deadline: Option<Instant>) -> Arc<Self> {
        Arc::new(Self {
            machine: Mutex::new(WindDown::new(deadline)),
            changed: watch::Sender::new(0),
            begun: watch::Sender::new(None),
            live: OnceLock::new(),
        })
    }

    /// `session_start` is written: from here on an end is recorded. A moment that has already passed begins it now.
    pub fn started(&self, context: &Arc<SessionContext>, deadline: Option<Deadline>, spawner: Option<Spawner>) {
        let _ = self.live.set(Live { context: Arc::clone(context), deadline, spawner });
        self.tell(Event::Started);
    }

    /// The session closes by itself.
    pub fn work_done(&self) {
        self.tell(Event::WorkDone);
    }

    /// Why the session is ending, if something made it.
    pub fn cause(&self) -> Option<Cause> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).cause()
    }

    /// Returns when something has made the session end.
    pub async fn begun(&self) -> Cause {
        let mut begun = self.begun.subscribe();
        let cause = begun.wait_for(Option::is_some).await.ok().and_then(|cause| *cause);
        match cause {
            Some(cause) => cause,
            // The sender lives in `self`.
            None => std::future::pending().await,
        }
    }

    /// Tells the machine and does what can be done at once; what is left for the watcher is returned.
    fn tell(&self, event: Event) -> Step {
        let step = self.machine.lock().unwrap_or_else(PoisonError::into_inner).on(event, Instant::now());
        if let Step::Begin(cause) = step {
            self.begin(cause);
        }
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        step
    }

    /// The record first, so that it stands before everything the wind-down writes; then the note; then the tasks.
    fn begin(&self, cause: Cause) {
        if let Some(live) = self.live.get() {
            live.record(cause);
        }
        output::stderr_line(&format!("[capsule-runtime] {}", cause.note()));
        if let Some(live) = self.live.get() {
            live.context.tasks.close(Closing::Stopped);
            live.context.tasks.cancel_all();
        }
        self.begun.send_replace(Some(cause));
    }

    fn wake_at(&self) -> Option<Instant> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).wake_at()
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
}

/// The signals of a session, taken over from their default action.
pub struct Signals {
    term: Signal,
    /// Held so that they have no effect: the launcher handles them for its members.
    _ignored: Vec<Signal>,
}

impl Signals {
    /// SIGTERM is watched; a member that holds a formation lifeline lets SIGINT and SIGHUP pass.
    pub fn take(member: bool) -> Result<Self> {
        let take = |kind: SignalKind| {
            signal(kind)
                .map_err(|error| Diagnostic::new(codes::E_RUN_007, format!("signals cannot be watched: {error}")))
        };
        let ignored =
            if member { vec![take(SignalKind::interrupt())?, take(SignalKind::hangup())?] } else { Vec::new() };
        Ok(Self { term: take(SignalKind::terminate())?, _ignored: ignored })
    }
}

/// Watches until the session has to be left: [`Step::Abandon`], [`Step::Kill`] or [`Step::CutShort`].
pub async fn watch(end: &End, mut signals: Signals, lifelines: Lifelines) -> Step {
    let mut changed = end.changed.subscribe();
    let (mut formation, mut spawner) = (lifelines.formation, lifelines.spawner);
    loop {
        changed.mark_unchanged();
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
        match end.tell(event) {
            Step::Nothing | Step::Begin(_) => {}
            step => return step,
        }
    }
}

/// Returns at end of file; never for a lifeline that is not held. One that cannot be watched holds nobody up either.
async fn closed(lifeline: Option<&Lifeline>) {
    match lifeline {
        Some(lifeline) => {
            if let Err(error) = lifeline.closed().await {
                output::stderr_line(&format!(
                    "[capsule-runtime] a lifeline cannot be read and is taken as closed: {error}"
                ));
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
