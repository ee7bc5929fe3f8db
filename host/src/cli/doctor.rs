//! `mur doctor`.

use std::path::{Path, PathBuf};

use crate::cli::Outcome;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::doctor::{self, Report};
use crate::manifest;
use crate::roster;
use crate::paths::MurmurHome;

/// Flags of `mur doctor`.
#[derive(clap::Args)]
pub struct Args {
    /// The directory to check, or a murmur.yaml or roster.yaml in it
    #[arg(default_value = ".")]
    path: PathBuf,
    /// The address a door would be bound to, for the warning of a door that others reach
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    bind: String,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let dir = directory(&args.path)?;
    let mut report = Report::default();
    let result = doctor::check(&dir, &args.bind, MurmurHome::from_env(), &mut report);
    let status = if result.is_ok() { report.tally() } else { 1 };
    report.print();
    result.map(|()| status)
}

/// The directory a path names: itself, or the one of a file that is checked.
fn directory(path: &Path) -> Result<PathBuf> {
    let resolved = std::fs::canonicalize(path)
        .map_err(|error| Diagnostic::new(codes::E_IO_001, format!("'{}': {error}", path.display())).hint(NAME_ONE))?;
    let known = [manifest::FILE_NAME, roster::FILE_NAME];
    let named = path.file_name().is_some_and(|name| known.iter().any(|known| name == *known));
    match resolved.parent() {
        _ if resolved.is_dir() => Ok(resolved),
        Some(parent) if named => Ok(parent.to_owned()),
        _ => Err(Diagnostic::new(codes::E_IO_001, format!("'{}' is nothing to check", path.display())).hint(NAME_ONE)),
    }
}

const NAME_ONE: &str = "name a directory, or a murmur.yaml or roster.yaml in it";
