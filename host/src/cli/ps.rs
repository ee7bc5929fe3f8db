//! `mur ps`.

use crate::cli::Outcome;
use crate::diagnostics::{Diagnostic, codes};

/// Flags of `mur ps`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> Outcome {
    Err(Diagnostic::new(codes::E_IO_003, "this command is not built yet"))
}
