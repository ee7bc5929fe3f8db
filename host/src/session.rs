//! One capsule run, from the command line to the exit status.
//!
//! The order: what the process was started with is read (`order`); a runtime is made and the end is watched for
//! (`watch`); the launch is planned and refused without a trace (`staging`); directories, workers and the door are made
//! (`launch`); tasks are run (`lifecycle`, `agent`); the session closes and says how it went (`outcome`).

pub mod agent;
pub mod announce;
pub mod commands;
pub mod context;
pub mod deadline;
pub mod environment;
pub mod explain;
pub mod folder_size;
pub mod grants;
pub mod hooks;
pub mod launch;
pub mod ledger;
pub mod lifecycle;
pub mod murmur_md;
pub mod observer;
pub mod order;
pub mod outcome;
pub mod peers;
pub mod pulls;
pub mod records_dir;
pub mod request;
pub mod retention;
pub mod runtime_dir;
pub mod staging;
pub mod tasks;
pub mod watch;
pub mod wind_down;

use std::sync::Arc;

pub use context::SessionContext;
pub use outcome::{ExitStatus, TaskOutcome};

use crate::cli::Outcome;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use deadline::Deadline;
use hooks::Hooks;
use launch::Running;
use order::Surroundings;
use request::RunRequest;
use tasks::Closing;
use watch::{Conclusion, End};
use wind_down::Leaving;

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
    let holds_lifeline = lifelines.formation.is_some();
    let deadline = Deadline::earliest(request.start, request.deadline, request.inherited_deadline, None);
    let end = End::new(request.start.instant, deadline.map(|deadline| deadline.at));
    watch::start(&end, lifelines)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Diagnostic::new(codes::E_RUN_007, format!("no event loop could be made: {error}")))?;
    let left = runtime.block_on(watched(request, surroundings, holds_lifeline, deadline, &end));
    // A blocking call that does not come back must not hold the end up.
    runtime.shutdown_background();
    left
}

async fn watched(
    request: RunRequest,
    surroundings: Surroundings,
    holds_lifeline: bool,
    deadline: Option<Deadline>,
    end: &Arc<End>,
) -> Result<Left> {
    let mut noted = false;
    let left = {
        let work = session(request, surroundings, holds_lifeline, end);
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                leaving = end.leaving() => break Err(leaving),
                cause = end.begun(), if !noted => {
                    noted = true;
                    output::stderr_line(&format!("[capsule-runtime] {}", cause.note()));
                }
                left = &mut work => break Ok(left),
            }
        }
        // Leaving this block drops the session where it is: what it made and must not stay is undone.
    };
    left.unwrap_or_else(|leaving| Ok(leave(leaving, deadline)))
}

/// Leaves a session that is not done. What can be recorded of it is recorded already.
fn leave(leaving: Leaving, deadline: Option<Deadline>) -> Left {
    match leaving {
        Leaving::TooLate => {
            let words = deadline.as_ref().map(Deadline::words).unwrap_or_default();
            let status = ExitStatus::DeadlineReached;
            return Left { status: Some(status), exit: status.exit(), error: Some(outcome::deadline_error(&words)) };
        }
        Leaving::CutShort => {
            output::stderr_line("[capsule-runtime] the session did not wind down in time and is ended where it is");
        }
        Leaving::Abandoned(_) | Leaving::Killed | Leaving::Done(_) => {}
    }
    Left::silently(leaving.exit())
}

async fn session(
    request: RunRequest,
    surroundings: Surroundings,
    holds_lifeline: bool,
    end: &Arc<End>,
) -> Result<Left> {
    let joined = surroundings.join().await?;
    if let Some(warning) = order::by_hand(&joined, holds_lifeline) {
        output::stderr_line(&warning.warning_line());
    }
    if request.explain_scope {
        // The host is tried and interpreters are asked.
        context::blocking(move || explain::print(&request, &joined)).await?;
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
    match opened {
        Ok(()) => lifecycle::run(&context, running.mode, end).await,
        Err(fault) => end.failed(fault),
    }
    Ok(close(running, end).await)
}

/// The orderly end: no more work, no more processes, the last line of the trace, the door.
async fn close(running: Running, end: &End) -> Left {
    let context = Arc::clone(&running.context);
    end.work_done();
    context.tasks.close(Closing::Ended);
    let told = Hooks::session_ended(&context, end.status().as_str()).await;
    // A worker that is lost here has no task to fail: the run ends with it all the same.
    let lost = told.err().or_else(|| context.workers.lost().borrow().clone());
    if let Some(lost) = lost.filter(|_| end.status() != ExitStatus::Failed) {
        end.failed(lost.diagnostic());
    }
    context.commands.end(&context.trace).await;
    context.workers.close().await;
    end.emptied();
    running.close().await;
    context.trace.close();
    let Conclusion { status, error } = end.closed();
    Left { status: Some(status), exit: status.exit(), error }
}
