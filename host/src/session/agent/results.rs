//! What a task leaves in the records directory, and the words for each way it can end.

use std::path::Path;

use crate::diagnostics::{Diagnostic, codes};
use crate::paths::beneath;

/// The last ended task's result.
pub const LAST: &str = "result.txt";

/// What a cancelled task leaves in place of a result.
pub const CANCELED: &str = "canceled: the task was canceled before it completed, so it has no result";
/// Most bytes of a reason in a status text.
const REASON_MAX: usize = 2000;

/// Writes the task's result to `out/<name>`; nothing in its place is followed.
pub fn write(records: &Path, name: &str, text: &str) -> Result<(), Diagnostic> {
    beneath::write(records, "out", name, text.as_bytes()).map_err(|refusal| match refusal {
        beneath::Refusal::Io(error) => Diagnostic::new(
            codes::E_RUN_007,
            format!("the result could not be written to {}: {error}", records.join("out").join(name).display()),
        ),
        refusal => Diagnostic::new(
            codes::E_RUN_050,
            format!("writing {}: {refusal}", records.join("out").join(name).display()),
        )
        .hint("remove what stands there; the records directory is written by mur alone"),
    })
}

/// The mark at the end of an answer that the output cap cut.
pub fn truncation_mark(cap: u64) -> String {
    format!(
        "[truncated at the inference.max_tokens output cap of {cap} tokens — the model had more to say; raise the cap to \
         get it]"
    )
}

/// What is said of a spent turn budget, in the result and as the final status.
pub fn turns_spent(turns: u64) -> String {
    format!("max_turns exceeded: the task used all {turns} inference turns and had not finished")
}

/// The final status of a failed task.
pub fn failure_status(cause: &str, reason: &str) -> String {
    format!("task failed ({cause}): {}", super::wire::cut(reason, REASON_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_replaces_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), LAST, "one").unwrap();
        write(dir.path(), LAST, "two").unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("out/result.txt")).unwrap(), "two");
    }

    #[test]
    fn a_linked_result_folder_is_refused_by_code() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", dir.path().join("out")).unwrap();
        assert_eq!(write(dir.path(), LAST, "x").unwrap_err().code(), codes::E_RUN_050);
    }

    #[test]
    fn a_long_reason_is_cut_in_the_status_only() {
        let status = failure_status("driver_error", &"é".repeat(2000));
        assert_eq!(status.len(), "task failed (driver_error): ".len() + 2000);
    }
}
