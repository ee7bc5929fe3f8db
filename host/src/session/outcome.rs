//! How tasks and sessions end, in words: exit statuses, and the one error a session is left with.
//!
//! Which outcome decides is the state machine's business (`wind_down`); here its words are kept.

use serde::{Serialize, Serializer};

use crate::diagnostics::{Code, Diagnostic, codes};
use crate::paths::shell_word;

/// How a task or a session ended, as the trace and the `status:` line spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// The exit status of a process whose session ended so.
    pub fn exit(self) -> u8 {
        match self {
            Self::Ok | Self::NoAnswer | Self::FormationEnded => 0,
            Self::Failed
            | Self::MaxTurnsReached
            | Self::SpendCeilingReached
            | Self::ReopenBudgetExhausted
            | Self::Canceled
            | Self::DeadlineReached => 1,
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

/// The words of the ending that decides the session's outcome.
#[derive(Clone, Debug, Default)]
pub struct Decided(Option<TaskOutcome>);

impl Decided {
    /// Keeps one; the machine asks for a second only when it decides over the first.
    pub fn keep(&mut self, outcome: TaskOutcome) {
        self.0 = Some(outcome);
    }

    /// The error a session that ended with `status` is left with.
    pub fn error(&self, status: ExitStatus, about: &About) -> Option<Diagnostic> {
        match status {
            ExitStatus::DeadlineReached => Some(deadline_error(&about.deadline)),
            _ if status.exit() == 0 => None,
            _ => self.0.as_ref().map(|decided| decided.error.clone().unwrap_or_else(|| task_error(decided, about))),
        }
    }
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

/// `E-RUN-053`, of a deadline in words.
pub fn deadline_error(deadline: &str) -> Diagnostic {
    Diagnostic::new(codes::E_RUN_053, format!("the session reached its deadline, {deadline}"))
        .hint("raise --deadline, or give the task less to do")
}

/// Codes whose error ends the session when a task ends with it.
pub fn is_fatal(code: Code) -> bool {
    [codes::E_RUN_065, codes::E_RUN_066, codes::E_RUN_050, codes::E_RUN_014].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(decided: Option<TaskOutcome>, status: ExitStatus) -> Option<&'static str> {
        let mut kept = Decided::default();
        if let Some(outcome) = decided {
            kept.keep(outcome);
        }
        kept.error(status, &About::default()).map(|error| error.code().as_str())
    }

    #[test]
    fn an_ending_is_left_with_its_error_or_none() {
        use ExitStatus::{Canceled, DeadlineReached, Failed, FormationEnded, Ok};
        let canceled = || Some(TaskOutcome::ended(Canceled, "why"));
        assert_eq!(code(None, Ok), None);
        assert_eq!(code(canceled(), Canceled), Some("E-RUN-040"));
        assert_eq!(code(canceled(), FormationEnded), None);
        assert_eq!(code(canceled(), DeadlineReached), Some("E-RUN-053"));
        assert_eq!(code(None, DeadlineReached), Some("E-RUN-053"));
        let lost = TaskOutcome::fatal(Diagnostic::new(codes::E_RUN_065, "the tools worker died"));
        assert_eq!(code(Some(lost), Failed), Some("E-RUN-065"));
    }
}
