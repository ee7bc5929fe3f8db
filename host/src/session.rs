//! One capsule run, from the command line to the exit status.

pub mod agent;
pub mod announce;
pub mod context;
pub mod deadline;
pub mod environment;
pub mod grants;
pub mod murmur_md;
pub mod observer;
pub mod order;
pub mod outcome;
pub mod peers;
pub mod records_dir;
pub mod request;
pub mod runtime_dir;
pub mod tasks;
pub mod wind_down;

pub use context::SessionContext;
pub use outcome::{ExitStatus, TaskOutcome};

use crate::cli::Outcome;
use crate::diagnostics::{Diagnostic, codes};

/// Runs one session.
pub fn run(_request: request::RunRequest) -> Outcome {
    Err(Diagnostic::new(codes::E_RUN_007, "sessions cannot be run yet"))
}
