//! One capsule run, from the command line to the exit status.

pub mod agent;
pub mod context;
pub mod deadline;
pub mod outcome;
pub mod tasks;
pub mod wind_down;

pub use context::SessionContext;
pub use outcome::{ExitStatus, TaskOutcome};
