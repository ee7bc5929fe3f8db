//! The task loop: which tasks are waited for, and when the session has done its work.

use std::sync::Arc;
use std::time::Duration;

use super::agent::Agent;
use super::context::SessionContext;
use super::outcome::TaskOutcome;
use super::tasks::{ActiveTask, Closing, Source};
use super::watch::End;
use crate::diagnostics::output;
use crate::manifest::{Acceptance, Lifecycle};
use crate::worker::LostWorker;

/// The variable that sets the idle timeout, in seconds.
pub const IDLE_VARIABLE: &str = "MURMUR_A2A_TIMEOUT_SECS";

/// How long a session waits for a first task.
const IDLE: Duration = Duration::from_secs(30);

/// How long a task may take to end by itself after a worker is lost.
const LOSS_GRACE: Duration = Duration::from_secs(10);

/// What the loop does, settled at launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Whether a first task is waited for, and for how long; `None` without an end.
    pub wait: Wait,
    /// Whether the session goes on after a task.
    pub sleeps: bool,
}

/// How a first task is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It is there already.
    Not,
    /// None will come.
    Never,
    /// For so long.
    Until(Duration),
    /// As long as it takes.
    Forever,
}

impl Mode {
    /// By the lifecycle, whether the launch brought a task, and whether a formation lifeline is held.
    pub fn of(lifecycle: &Lifecycle, has_task: bool, member: bool, idle: Duration) -> Self {
        let sleeps = lifecycle.goes_on();
        let wait = if has_task {
            Wait::Not
        } else if lifecycle.task_acceptance == Acceptance::None {
            Wait::Never
        } else if sleeps || member {
            Wait::Forever
        } else {
            Wait::Until(idle)
        };
        Self { wait, sleeps }
    }
}

/// The idle timeout of this process.
pub fn idle_timeout(variable: Option<&str>) -> Duration {
    match variable.and_then(|text| text.trim().parse::<u64>().ok()) {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds),
        _ => IDLE,
    }
}

/// Runs tasks until the session has done its work or is made to end. How each ended is told to `end`.
pub async fn run(context: &Arc<SessionContext>, mode: Mode, end: &End) {
    let mut lost = context.workers.lost();
    let agent = Agent::new(Arc::clone(context));
    // What a killed session left is reported in every mode, beside whatever the session is there for.
    let reports = || context.tasks.has_waiting(Source::DetachedLost);
    let (mut first, mut served) = (true, mode.wait == Wait::Never);
    loop {
        if served && !mode.sleeps && !reports() {
            return;
        }
        let next = tokio::select! {
            biased;
            gone = loss(&mut lost) => {
                end.failed(gone.diagnostic());
                return;
            }
            next = next_task(context, mode, first) => next,
        };
        let Some(task) = next else { return };
        let report = task.source == Source::DetachedLost;
        first &= report;
        served |= !report;
        // Under queue and sleep door tasks report to whoever sent them; only the launch's own decides.
        let decides = !report && (!mode.sleeps || task.source == Source::TaskMd);
        let id = task.id.clone();
        end.task_began();
        let outcome = run_one(&agent, task, &mut lost).await;
        // Whoever stops a session tells its door first, then its process: between the two the task has ended already, and
        // the session's end cut it short all the same.
        let decides = decides || context.tasks.was_stopped(&id);
        let ends_session = outcome.ends_session;
        end.task_ended(outcome, decides);
        if ends_session || end.cause().is_some() {
            return;
        }
    }
}

async fn next_task(context: &SessionContext, mode: Mode, first: bool) -> Option<ActiveTask> {
    let Wait::Until(idle) = mode.wait else { return context.tasks.next().await };
    if !first {
        return context.tasks.next().await;
    }
    match tokio::time::timeout(idle, context.tasks.next()).await {
        Ok(next) => next,
        Err(_) => {
            output::stderr_line(&format!(
                "[capsule-runtime] no task came within {} s; ending the session",
                idle.as_secs()
            ));
            // A message that arrives from here on is told that the session closes.
            context.tasks.close(Closing::Ended);
            None
        }
    }
}

/// One task; a worker that is lost meanwhile ends the session even when the task's own calls did not notice.
async fn run_one(
    agent: &Agent,
    task: ActiveTask,
    lost: &mut tokio::sync::watch::Receiver<Option<LostWorker>>,
) -> TaskOutcome {
    let id = task.id.clone();
    let running = agent.run_task(task);
    tokio::pin!(running);
    let gone = tokio::select! {
        biased;
        outcome = &mut running => return outcome,
        gone = loss(lost) => gone,
    };
    match tokio::time::timeout(LOSS_GRACE, &mut running).await {
        Ok(outcome) if outcome.ends_session => outcome,
        Ok(_) => TaskOutcome::fatal(gone.diagnostic()),
        Err(_) => {
            output::stderr_line(&format!("[capsule-runtime] task {id} did not end after its worker was lost"));
            TaskOutcome::fatal(gone.diagnostic())
        }
    }
}

async fn loss(lost: &mut tokio::sync::watch::Receiver<Option<LostWorker>>) -> LostWorker {
    let gone = lost.wait_for(Option::is_some).await.ok().and_then(|gone| gone.clone());
    match gone {
        Some(gone) => gone,
        // The workers were closed in order: nothing is lost any more.
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_in_every_mode() {
        use crate::manifest::AfterTask::{Exit, Sleep};
        use Acceptance::{None as Nothing, Queue, Single};
        let idle = Duration::from_secs(3);
        // Acceptance, after, has a task, member: how it waits, and whether it goes on.
        let table = [
            (Nothing, Exit, false, false, Wait::Never, false),
            (Nothing, Sleep, true, false, Wait::Not, false),
            (Single, Exit, false, false, Wait::Until(idle), false),
            (Single, Sleep, false, false, Wait::Until(idle), false),
            (Single, Exit, true, false, Wait::Not, false),
            (Single, Exit, false, true, Wait::Forever, false),
            (Queue, Exit, false, false, Wait::Until(idle), false),
            (Queue, Exit, false, true, Wait::Forever, false),
            (Queue, Sleep, false, false, Wait::Forever, true),
            (Queue, Sleep, true, false, Wait::Not, true),
            (Queue, Sleep, false, true, Wait::Forever, true),
        ];
        for (task_acceptance, after_task, has_task, member, wait, sleeps) in table {
            let lifecycle = Lifecycle { task_acceptance, after_task, ..Lifecycle::default() };
            let mode = Mode::of(&lifecycle, has_task, member, idle);
            assert_eq!(mode, Mode { wait, sleeps }, "{task_acceptance:?} {after_task:?} {has_task} {member}");
        }
    }

    #[test]
    fn the_idle_timeout_is_a_positive_number_of_seconds() {
        assert_eq!(idle_timeout(Some("5")), Duration::from_secs(5));
        for other in [None, Some("0"), Some("-1"), Some("x"), Some("")] {
            assert_eq!(idle_timeout(other), IDLE);
        }
    }
}
