//! How tasks end, and what that makes of the session: the folding of task outcomes into one exit status.

use serde::{Serialize, Serializer};

use super::wind_down::Cause;
use crate::diagnostics::{Code, Diagnostic, codes};
use crate::paths::shell_word;

/// How a task or a session ended, as the trace and the `status:` line spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// Completed, or nothing ran.
    Ok,
    /// Failed.
    Failed,
    /// The turn budget is spent.
    MaxTurnsReached,
    /// A spend ceiling refused a call.
    SpendCeilingReached,
    /// A hook asked for more reopens than there were.
    ReopenBudgetExhausted,
    /// Cancelled.
    Canceled,
    /// The task said that it has no answer.
    NoAnswer,
    /// Sessions only: the formation ended while a task ran.
    FormationEnded,
    /// Sessions only: the deadline passed.
    DeadlineReached,
}

impl ExitStatus {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::MaxTurnsReached => "max_turns_reached",
            Self::SpendCeilingReached => "spend_ceiling_reached",
            Self::ReopenBudgetExhausted => "reopen_budget_exhausted",
            Self::Canceled => "canceled",
            Self::NoAnswer => "no_answer",
            Self::FormationEnded => "formation_ended",
            Self::DeadlineReached => "deadline_reached",
        }
    }
}

impl Serialize for ExitStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// How one task ended.
#[derive(Clone, Debug)]
pub struct TaskOutcome {
    /// Its `task_end.exit_status`.
    pub exit_status: ExitStatus,
    /// Why, in words; empty for a completed task.
    pub reason: String,
    /// The loop's own error, when it returned one: its code is the session's.
    pub error: Option<Diagnostic>,
    /// Whether the session cannot go on (a lost worker, a lost trace).
    pub ends_session: bool,
}

impl TaskOutcome {
    /// A task that ended as the loop meant it to.
    pub fn ended(exit_status: ExitStatus, reason: impl Into<String>) -> Self {
        Self { exit_status, reason: reason.into(), error: None, ends_session: false }
    }

    /// A task that failed with an error of the runtime; the session takes further tasks.
    pub fn failed(error: Diagnostic) -> Self {
        let reason = error.message().to_owned();
        Self { exit_status: ExitStatus::Failed, reason, error: Some(error), ends_session: false }
    }

    /// A task that failed with an error after which the session cannot go on.
    pub fn fatal(error: Diagnostic) -> Self {
        Self { ends_session: true, ..Self::failed(error) }
    }
}

/// The first task that did not complete; a later success never hides it.
#[derive(Clone, Debug, Default)]
pub struct Fold {
    decided: Option<TaskOutcome>,
}

impl Fold {
    /// Takes one task's outcome.
    pub fn add(&mut self, outcome: &TaskOutcome) {
        let decides = !matches!(outcome.exit_status, ExitStatus::Ok | ExitStatus::NoAnswer);
        if decides && self.decided.is_none() {
            self.decided = Some(outcome.clone());
        }
    }

    /// A failure of the session itself decides over every task.
    pub fn fail(&mut self, error: Diagnostic) {
        self.decided = Some(TaskOutcome::fatal(error));
    }
}

/// What the session reports of itself.
#[derive(Clone, Debug)]
pub struct Conclusion {
    /// `session_end.exit_status` and `status:`.
    pub status: ExitStatus,
    /// The process's exit status.
    pub exit: u8,
    /// What is printed as the last error, if the run is one.
    pub error: Option<Diagnostic>,
}

/// Facts the closing message needs.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The records directory, which names the session from any directory.
    pub records: String,
    /// Where the answer lies.
    pub result: String,
    /// The deadline, in words.
    pub deadline: String,
}

impl Fold {
    /// Folds what the tasks did and why the session ended into its outcome.
    pub fn conclude(&self, cause: Option<Cause>, about: &About) -> Conclusion {
        if cause == Some(Cause::Deadline) {
            return Conclusion { status: ExitStatus::DeadlineReached, exit: 1, error: Some(deadline_error(about)) };
        }
        let Some(decided) = &self.decided else {
            return Conclusion { status: ExitStatus::Ok, exit: 0, error: None };
        };
        if cause == Some(Cause::Formation) && decided.exit_status == ExitStatus::Canceled {
            return Conclusion { status: ExitStatus::FormationEnded, exit: 0, error: None };
        }
        let error = decided.error.clone().unwrap_or_else(|| task_error(decided, about));
        // A session knows no reopen budget: it failed.
        let status = match decided.exit_status {
            ExitStatus::ReopenBudgetExhausted => ExitStatus::Failed,
            other => other,
        };
        Conclusion { status, exit: 1, error: Some(error) }
    }
}

fn task_error(decided: &TaskOutcome, about: &About) -> Diagnostic {
    let status = decided.exit_status.as_str();
    let message = if decided.reason.is_empty() {
        format!("the task ended {status}")
    } else {
        format!("the task ended {status}: {}", decided.reason)
    };
    Diagnostic::new(codes::E_RUN_040, message).hint(format!(
        "its result is {}; to see what led to it: mur trace show {}",
        about.result,
        shell_word(&about.records)
    ))
}

fn deadline_error(about: &About) -> Diagnostic {
    Diagnostic::new(codes::E_RUN_053, format!("the session reached its deadline, {}", about.deadline))
        .hint("raise --deadline, or give the task less to do")
}

/// Codes whose error ends the session when a task ends with it.
pub fn is_fatal(code: Code) -> bool {
    [codes::E_RUN_065, codes::E_RUN_050, codes::E_RUN_014].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conclude(outcomes: &[ExitStatus], cause: Option<Cause>) -> (&'static str, u8, Option<&'static str>) {
        let mut fold = Fold::default();
        for status in outcomes {
            fold.add(&TaskOutcome::ended(*status, "why"));
        }
        let end = fold.conclude(cause, &About::default());
        (end.status.as_str(), end.exit, end.error.map(|error| error.code().as_str()))
    }

    #[test]
    fn tasks_fold_into_one_ending() {
        use ExitStatus::{Canceled, Failed, MaxTurnsReached, NoAnswer, Ok, ReopenBudgetExhausted};
        type Row<'a> = (&'a [ExitStatus], Option<Cause>, (&'a str, u8, Option<&'a str>));
        let table: &[Row<'_>] = &[
            (&[], None, ("ok", 0, None)),
            (&[], Some(Cause::Term), ("ok", 0, None)),
            (&[], Some(Cause::Formation), ("ok", 0, None)),
            (&[], Some(Cause::Deadline), ("deadline_reached", 1, Some("E-RUN-053"))),
            (&[Ok], None, ("ok", 0, None)),
            (&[NoAnswer], None, ("ok", 0, None)),
            (&[Failed, Ok], None, ("failed", 1, Some("E-RUN-040"))),
            (&[Ok, MaxTurnsReached, Failed], None, ("max_turns_reached", 1, Some("E-RUN-040"))),
            (&[ReopenBudgetExhausted], None, ("failed", 1, Some("E-RUN-040"))),
            (&[Canceled], None, ("canceled", 1, Some("E-RUN-040"))),
            (&[Canceled], Some(Cause::Term), ("canceled", 1, Some("E-RUN-040"))),
            (&[Canceled], Some(Cause::Spawner), ("canceled", 1, Some("E-RUN-040"))),
            (&[Canceled], Some(Cause::Formation), ("formation_ended", 0, None)),
            (&[Failed, Canceled], Some(Cause::Formation), ("failed", 1, Some("E-RUN-040"))),
            (&[Canceled], Some(Cause::Deadline), ("deadline_reached", 1, Some("E-RUN-053"))),
        ];
        for (outcomes, cause, expected) in table {
            assert_eq!(conclude(outcomes, *cause), *expected, "{outcomes:?} {cause:?}");
        }
    }

    #[test]
    fn an_error_of_the_loop_keeps_its_code() {
        let mut fold = Fold::default();
        fold.add(&TaskOutcome::fatal(Diagnostic::new(codes::E_RUN_065, "the tools worker died")));
        let end = fold.conclude(None, &About::default());
        assert_eq!((end.status, end.exit), (ExitStatus::Failed, 1));
        assert_eq!(end.error.unwrap().code(), codes::E_RUN_065);
    }
}
