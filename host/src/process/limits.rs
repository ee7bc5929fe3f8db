//! The one limit of the caller's that a launch cannot do without: how many files may be open at once.

use nix::sys::resource::{Resource, getrlimit};

use crate::diagnostics::{Diagnostic, Result, codes};

/// For a command that starts nothing: standard streams, an event loop, the plugins' libraries and locks, a file or two.
pub const COMMAND: u64 = 20;
/// For one session: some twenty when idle, a dozen for the confinement of each worker while it starts, its workers'
/// connections and pipes, a few clients of its door.
pub const SESSION: u64 = 64;

/// For the launcher of so many members: each keeps a lifeline, a channel, a pidfd and a pipe.
pub fn for_members(count: usize) -> u64 {
    let own = 24 + 4 * count as u64;
    own.max(SESSION)
}

/// Refuses to begin what would fail half way for want of descriptors (`E-IO-002`). `what` is who needs them.
pub fn require_open_files(needed: u64, what: &str) -> Result<()> {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((limit, _)) if limit < needed => Err(Diagnostic::new(
            codes::E_IO_002,
            format!("at most {limit} files may be open at once here (RLIMIT_NOFILE), and {what} needs {needed}"),
        )
        .hint(format!(
            "raise the limit: ulimit -n {needed} in the shell, or LimitNOFILE= of the unit that starts mur"
        ))),
        // Where the limit cannot be read, what is missing will say so itself.
        _ => Ok(()),
    }
}
