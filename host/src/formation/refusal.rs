//! What a refused launch says: every member that did not come up, what was stopped, and what to do.

use std::fmt::Write as _;

use crate::diagnostics::{Diagnostic, codes};

use super::readiness::NotReady;

/// One member that did not come up.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Roster name.
    pub member: String,
    /// `<scope>/<name>@<version>`.
    pub coordinate: String,
    /// Why.
    pub reason: NotReady,
    /// The last lines of its stderr.
    pub last_lines: Vec<String>,
}

/// `E-RUN-045`, or `E-RUN-053` when the formation's deadline of `fell` seconds came first.
pub fn diagnostic(failed: &[Failed], formation: &str, stopped: &str, fell: Option<u64>) -> Diagnostic {
    let (code, mut message, hint) = match fell {
        Some(secs) => (
            codes::E_RUN_053,
            format!("the formation reached its --deadline of {secs} seconds before its entry member started"),
            "raise --deadline: it counts from the launcher's start; nothing is still running".to_owned(),
        ),
        None => (
            codes::E_RUN_045,
            "the formation could not be launched".to_owned(),
            format!(
                "put the member right; to see it fail by itself run it alone: {}; nothing is still running",
                alone(failed.first())
            ),
        ),
    };
    for failed in failed {
        let reason = reason_text(&failed.reason, formation);
        let _ = write!(message, "\n'{}' ({}): {reason}", failed.member, failed.coordinate);
        if matches!(failed.reason, NotReady::ExitedBefore(_) | NotReady::ExitedAfter(_)) {
            if failed.last_lines.is_empty() {
                message.push_str("; it wrote nothing on its standard error");
            } else {
                message.push_str("; the last it wrote:");
            }
            for line in &failed.last_lines {
                let _ = write!(message, "\n    {line}");
            }
        }
    }
    let _ = write!(message, "\nstopped: {stopped}");
    Diagnostic::new(code, message).hint(hint)
}

/// The command that runs a failed member's capsule by itself.
fn alone(failed: Option<&Failed>) -> String {
    let coordinate = failed.map_or("<capsule>@<version>", |failed| failed.coordinate.as_str());
    let (capsule, version) = coordinate.split_once('@').unwrap_or((coordinate, "<version>"));
    format!("mur run --capsule {capsule} --capsule-version {version}")
}

fn reason_text(reason: &NotReady, formation: &str) -> String {
    match reason {
        NotReady::NotStarted(why) => why.clone(),
        NotReady::ExitedBefore(exit) => format!("it exited with {exit} before it reported"),
        NotReady::ExitedAfter(exit) => format!("it reported, then exited with {exit} before its door answered"),
        NotReady::Silent(secs) => format!("it did not report within {secs} s"),
        NotReady::BadLine(why) => format!("the first line it printed is not a readiness line: {why}"),
        NotReady::NoDoor => "it reported no door, so no member could call it".to_owned(),
        NotReady::OtherFormation(Some(other)) => format!("it reported formation {other} instead of {formation}"),
        NotReady::OtherFormation(None) => format!("it reported no formation instead of {formation}"),
        NotReady::DoorSilent { address, session, last, secs } => {
            format!("the door at http://{address} did not answer as session {session} within {secs} s (last: {last})")
        }
        NotReady::DeadlineFell => "it was not ready when the deadline fell".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Exit;

    fn failed(reason: NotReady, last_lines: &[&str]) -> Failed {
        Failed {
            member: "coder".into(),
            coordinate: "local/coder@1.2.0".into(),
            reason,
            last_lines: last_lines.iter().map(|line| (*line).to_owned()).collect(),
        }
    }

    #[test]
    fn a_refusal_shows_members_their_last_words_and_what_was_stopped() {
        let failed = [failed(NotReady::ExitedBefore(Exit::Status(1)), &["error[E-RUN-047]: changed", "  hint: x"])];
        let text = diagnostic(&failed, "frm_x", "reviewer (pid 7)", None).to_string();
        assert!(
            text.starts_with(
                "error[E-RUN-045]: the formation could not be launched\n  'coder' (local/coder@1.2.0): it exited with \
             status 1 before it reported; the last it wrote:\n      error[E-RUN-047]: changed\n        hint: x\n  \
             stopped: reviewer (pid 7)\n  hint: "
            ),
            "{text}"
        );
    }

    #[test]
    fn a_deadline_that_fell_first_has_its_own_code() {
        let text = diagnostic(&[failed(NotReady::DeadlineFell, &[])], "frm_x", "none", Some(5)).to_string();
        assert!(
            text.starts_with("error[E-RUN-053]: the formation reached its --deadline of 5 seconds before"),
            "{text}"
        );
    }
}
