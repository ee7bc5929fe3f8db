//! `mur doctor`.

use crate::cli::Outcome;
use crate::diagnostics::{Diagnostic, codes};
use crate::doctor::{self, Report};
use crate::paths::MurmurHome;

/// Flags of `mur doctor`.
#[derive(clap::Args)]
pub struct Args {
    /// The address a door would be bound to, for the warning of a door that others reach
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    bind: String,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let cwd = std::env::current_dir().map_err(|error| {
        Diagnostic::new(codes::E_IO_003, format!("the current directory cannot be read: {error}"))
    })?;
    let mut report = Report::default();
    let result = doctor::check(&cwd, &args.bind, MurmurHome::from_env(), &mut report);
    let status = if result.is_ok() { report.tally() } else { 1 };
    report.print();
    result.map(|()| status)
}
