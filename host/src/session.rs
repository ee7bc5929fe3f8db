//! One capsule run, from the command line to the exit status.
//!
//! The order: what the process was started with is read (`order`); a runtime is made and the end is watched for
//! (`watch`); the launch is planned and refused without a trace (`staging`); directories, workers and the door are made
//! (`launch`); tasks are run (`lifecycle`, `agent`); the session closes and says how it went (`outcome`).

pub mod agent;
pub mod announce;
pub mod context;
pub mod deadline;
pub mod environment;
pub mod explain;
pub mod grants;
pub mod launch;
pub mod ledger;
pub mod lifecycle;
pub mod murmur_md;
pub mod observer;
pub mod order;
pub mod outcome;
pub mod peers;
pub mod records_dir;
pub mod request;
pub mod retention;
pub mod runtime_dir;
pub mod staging;
pub mod tasks;
pub mod watch;
pub mod wind_down;

use std::sync::{Arc, Mutex, PoisonError};

pub use context::SessionContext;
pub use outcome::{ExitStatus, TaskOutcome};

use crate::cli::Outcome;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use deadline::Deadline;
use launch::Running;
use order::{Lifelines, Surroundings};
use outcome::{About, Conclusion, Fold};
use request::RunRequest;
use tasks::Closing;
use watch::{End, Signals};
use wind_down::{Step, TERMINATED};

/// Runs one session and returns its exit status; an error is printed by the caller as the last thing.
pub fn run(request: RunRequest) -> Outcome {
    let manner = launch::manner(request.json, request.verbose);
    let explain = request.explain_scope;
    let left = match run_inside(request) {
        Ok(left) => left,
        // Nothing was launched, and nothing is left.
        Err(refusal) => Left { status: Some(ExitStatus::Failed), exit: 1, error: Some(refusal) },
    };
    if let Some(status) = left.status.filter(|_| !explain) {
        announce::status(manner, status);
    }
    match left.error {
        Some(error) => Err(error),
        None => Ok(left.exit),
    }
}

/// How a session was left.
struct Left {
    /// What is printed; nothing for a session that was cut short.
    status: Option<ExitStatus>,
    exit: u8,
    error: Option<Diagnostic>,
}

impl Left {
    fn silently(exit: u8) -> Self {
        Self { status: None, exit, error: None }
    }
}

fn run_inside(request: RunRequest) -> Result<Left> {
    let mut surroundings = Surroundings::read(&request)?;
    let lifelines = surroundings.take_lifelines();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Diagnostic::new(codes::E_RUN_007, format!("no event loop could be made: {error}")))?;
    let left = runtime.block_on(watched(request, surroundings, lifelines));
    // A blocking call that does not come back must not hold the end up.
    runtime.shutdown_background();
    left
}

/// What a session has come to, kept where it can be found when the session itself has to be left.
#[derive(Default)]
struct Ground {
    running: Mutex<Option<Arc<SessionContext>>>,
    fold: Mutex<Fold>,
}

async fn watched(request: RunRequest, surroundings: Surroundings, lifelines: Lifelines) -> Result<Left> {
    let signals = Signals::take(lifelines.formation.is_some())?;
    let own = Deadline::earliest(request.start, request.deadline, request.inherited_deadline, None);
    let end = End::new(own.map(|deadline| deadline.at));
    let ground = Ground::default();
    let holds_lifeline = lifelines.formation.is_some();
    let step = {
        let work = session(request, surroundings, holds_lifeline, &end, &ground);
        tokio::pin!(work);
        tokio::select! {
            biased;
            step = watch::watch(&end, signals, lifelines) => step,
            left = &mut work => return left,
        }
        // Leaving this block drops the session where it is: what it made and must not stay is undone.
    };
    Ok(leave(step, &end, &ground))
}

/// Leaves a session that is not done.
fn leave(step: Step, end: &End, ground: &Ground) -> Left {
    let context = ground.running.lock().unwrap_or_else(PoisonError::into_inner).take();
    match step {
        Step::Abandon(0) => Left::silently(0),
        Step::Abandon(status) => Left::silently(status),
        Step::Kill => Left::silently(TERMINATED),
        Step::CutShort | Step::Nothing | Step::Begin(_) => {
            if let Some(context) = context {
                let fold = ground.fold.lock().unwrap_or_else(PoisonError::into_inner);
                let conclusion = fold.conclude(end.cause(), &about(&context));
                let _ = context.trace.end(context.start.elapsed_ms(), conclusion.status.as_str());
                output::stderr_line("[capsule-runtime] the session did not wind down in time and is ended where it is");
            }
            Left::silently(TERMINATED)
        }
    }
}

async fn session(
    request: RunRequest,
    surroundings: Surroundings,
    holds_lifeline: bool,
    end: &Arc<End>,
    ground: &Ground,
) -> Result<Left> {
    let joined = surroundings.join().await?;
    if let Some(warning) = order::by_hand(&joined, holds_lifeline) {
        output::stderr_line(&warning.warning_line());
    }
    if request.explain_scope {
        explain::print(&request, &joined)?;
        return Ok(Left::silently(0));
    }
    let plan = context::blocking(move || {
        let loaded = staging::load(&request, &joined)?;
        staging::say(&loaded.warnings);
        staging::plan(request, joined, loaded)
    })
    .await?;
    let (running, opened) = launch::launch(plan, holds_lifeline, end).await?;
    let context = Arc::clone(&running.context);
    *ground.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&context));
    match opened {
        Ok(()) => lifecycle::run(&context, running.mode, end, &ground.fold).await,
        Err(fault) => ground.fold.lock().unwrap_or_else(PoisonError::into_inner).fail(fault),
    }
    Ok(close(running, end, ground).await)
}

/// The orderly end: no more work, no more processes, the last line of the trace, the door.
async fn close(running: Running, end: &End, ground: &Ground) -> Left {
    let context = Arc::clone(&running.context);
    end.work_done();
    context.tasks.close(Closing::Ended);
    context.workers.close().await;
    let Conclusion { status, exit, mut error } =
        ground.fold.lock().unwrap_or_else(PoisonError::into_inner).conclude(end.cause(), &about(&context));
    let mut left = Left { status: Some(status), exit, error: None };
    if let Err(lost) = context.trace.end(context.start.elapsed_ms(), status.as_str()) {
        left = Left { status: Some(ExitStatus::Failed), exit: 1, error: None };
        error.get_or_insert(lost);
    }
    running.close().await;
    context.trace.close();
    left.error = error;
    left
}

fn about(context: &SessionContext) -> About {
    About {
        records: context.dirs.records.display().to_string(),
        result: context.dirs.result().display().to_string(),
        deadline: context.deadline.as_ref().map(Deadline::words).unwrap_or_default(),
    }
}
