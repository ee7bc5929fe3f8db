//! `mur schema`: the JSON Schema of a file an operator writes.

use crate::cli::Outcome;
use crate::diagnostics::output;
use crate::schema::File;

/// Flags of `mur schema`.
#[derive(clap::Args)]
pub struct Args {
    /// Whose schema
    #[arg(value_enum)]
    file: File,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let _ = output::stdout_text(&args.file.text());
    Ok(0)
}
