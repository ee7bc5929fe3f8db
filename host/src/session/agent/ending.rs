//! How an attempt can end, and what each ending means for the result, the trace, the registry and the session.

use super::results::{self, CANCELED};
use super::spend::{Limit, Refused};
use crate::diagnostics::{Diagnostic, codes};
use crate::session::tasks::{EndNotes, TaskEnd};
use crate::session::{ExitStatus, TaskOutcome};

/// How an attempt ended.
#[derive(Debug)]
pub enum Ended {
    /// The model's answer.
    Answered(String),
    /// It failed; the session goes on.
    Failed {
        /// `task_failed.cause`.
        cause: &'static str,
        /// In words.
        reason: String,
        /// The turn it failed in, where one did.
        turn: Option<u32>,
    },
    /// All turns are used.
    MaxTurns(u64),
    /// A hook asked for another attempt, and there is none left.
    ReopensSpent(String),
    /// A call did not fit under the session's ceiling.
    Spend(Refused),
    /// The task was cancelled.
    Canceled {
        /// Where it was.
        phase: &'static str,
    },
    /// The model ended the task without an answer, for a reason.
    NoAnswer(String),
    /// The session cannot go on.
    Fatal(Diagnostic),
}

impl From<Diagnostic> for Ended {
    fn from(error: Diagnostic) -> Self {
        Self::Fatal(error)
    }
}

/// The cause of a wait for input that timed out; its final status is the word alone.
pub const INPUT_TIMEOUT: &str = "input_timeout";

impl Ended {
    /// `task_end.exit_status`.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Answered(_) => ExitStatus::Ok,
            Self::Failed { .. } | Self::Fatal(_) => ExitStatus::Failed,
            Self::MaxTurns(_) => ExitStatus::MaxTurnsReached,
            Self::ReopensSpent(_) => ExitStatus::ReopenBudgetExhausted,
            Self::Spend(_) => ExitStatus::SpendCeilingReached,
            Self::Canceled { .. } => ExitStatus::Canceled,
            Self::NoAnswer(_) => ExitStatus::NoAnswer,
        }
    }

    /// What `out/result.txt` holds.
    pub fn result_text(&self) -> String {
        match self {
            Self::Answered(text) => text.clone(),
            Self::Failed { reason, .. } | Self::ReopensSpent(reason) => format!("error: {reason}"),
            Self::MaxTurns(turns) => format!("error: {}", results::turns_spent(*turns)),
            Self::Spend(refused) => format!("stopped: {}", spent(refused)),
            Self::Canceled { .. } => CANCELED.to_owned(),
            Self::NoAnswer(reason) => format!("no answer: {reason}"),
            Self::Fatal(error) => format!("error: {}", account(error)),
        }
    }

    /// `task_failed` of a failed attempt: cause and reason.
    pub fn failure(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Failed { cause, reason, .. } => Some((cause, reason.clone())),
            Self::ReopensSpent(reason) => Some(("reopen_budget_exhausted", reason.clone())),
            Self::Fatal(error) if error.code() == codes::E_RUN_050 => Some(("workdir_path_refused", account(error))),
            Self::Fatal(error) => Some(("runtime_error", account(error))),
            _ => None,
        }
    }

    /// What the registry is told.
    pub fn task_end(&self, notes: EndNotes) -> TaskEnd {
        let mut end = match self {
            Self::Answered(text) => TaskEnd::completed(text.clone()),
            Self::Failed { cause, .. } if *cause == INPUT_TIMEOUT => TaskEnd::failed(super::host_calls::INPUT_TIMEOUT),
            Self::Failed { .. } | Self::Fatal(_) | Self::ReopensSpent(_) => {
                let (cause, reason) = self.failure().unwrap_or_default();
                TaskEnd::failed(results::failure_status(cause, &reason))
            }
            Self::MaxTurns(turns) => TaskEnd::failed(results::turns_spent(*turns)),
            Self::Spend(refused) => TaskEnd::failed(spent(refused)),
            Self::Canceled { .. } => TaskEnd::canceled(),
            Self::NoAnswer(reason) => TaskEnd::failed(reason.clone()),
        };
        end.notes = EndNotes { no_answer: matches!(self, Self::NoAnswer(_)), ..notes };
        end
    }

    /// What the session makes of it.
    pub fn outcome(self) -> TaskOutcome {
        let status = self.exit_status();
        let reason = match &self {
            Self::Answered(_) => String::new(),
            Self::Failed { reason, .. } | Self::NoAnswer(reason) | Self::ReopensSpent(reason) => reason.clone(),
            Self::MaxTurns(turns) => results::turns_spent(*turns),
            Self::Spend(refused) => spent(refused),
            Self::Canceled { .. } => "it was canceled".to_owned(),
            Self::Fatal(_) => String::new(),
        };
        match self {
            Self::Fatal(error) => TaskOutcome::fatal(error),
            _ => TaskOutcome::ended(status, reason),
        }
    }
}

/// An error of the runtime as a failed task tells it.
fn account(error: &Diagnostic) -> String {
    format!("[{}] {}", error.code(), error.message())
}

fn spent(refused: &Refused) -> String {
    let Refused { limit, ceiling, used, requested } = refused;
    let whose = match limit {
        Limit::Session => "the session's",
        Limit::Machine => "the machine's daily",
    };
    format!(
        "spend ceiling reached: {used} of {whose} {ceiling} tokens are used and the next call may take {requested}; it was \
         not sent"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ending_has_its_words() {
        let failed = |cause| Ended::Failed { cause, reason: "why".into(), turn: None };
        let refused = Refused { limit: Limit::Session, ceiling: 10, used: 8, requested: 5 };
        let lost = || Diagnostic::new(codes::E_RUN_065, "the tools worker was lost");
        let linked = || Diagnostic::new(codes::E_RUN_050, "a link");
        for (ended, exit, result, status) in [
            (Ended::Answered("42".into()), "ok", "42", "task completed"),
            (failed("driver_error"), "failed", "error: why", "task failed (driver_error): why"),
            (failed(INPUT_TIMEOUT), "failed", "error: why", "input-timeout"),
            (
                Ended::MaxTurns(3),
                "max_turns_reached",
                "error: max_turns exceeded: the task used all 3 inference turns",
                "max_turns exceeded: the task used all 3 inference turns",
            ),
            (
                Ended::Spend(refused),
                "spend_ceiling_reached",
                "stopped: spend ceiling reached: ",
                "spend ceiling reached: ",
            ),
            (Ended::Canceled { phase: "turn" }, "canceled", CANCELED, "task canceled"),
            (Ended::NoAnswer("no data".into()), "no_answer", "no answer: no data", "no data"),
            (Ended::Fatal(lost()), "failed", "error: [E-RUN-065] ", "task failed (runtime_error): [E-RUN-065] "),
            (
                Ended::Fatal(linked()),
                "failed",
                "error: [E-RUN-050] ",
                "task failed (workdir_path_refused): [E-RUN-050] ",
            ),
        ] {
            assert_eq!(ended.exit_status().as_str(), exit);
            assert!(ended.result_text().starts_with(result), "{}", ended.result_text());
            let end = ended.task_end(EndNotes::default());
            assert!(end.text.starts_with(status), "{}", end.text);
            assert_eq!(end.notes.no_answer, exit == "no_answer");
        }
    }

    #[test]
    fn only_a_fatal_ending_ends_the_session() {
        assert!(Ended::Fatal(Diagnostic::new(codes::E_RUN_065, "x")).outcome().ends_session);
        assert!(!Ended::Failed { cause: "driver_error", reason: "x".into(), turn: None }.outcome().ends_session);
    }
}
