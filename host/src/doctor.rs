//! `mur doctor`: everything a launch would be refused for or warned of, collected instead of stopping at the first; what
//! this host can back; and what dead launches left behind. Creates and launches nothing.

mod artifacts;
mod host;
mod leftovers;
mod models;
mod project;
mod report;
mod roster;
mod surroundings;

use std::path::{Path, PathBuf};

pub use report::Report;

use surroundings::Surroundings;

use crate::artifacts::project::holds as has;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest;
use crate::paths::MurmurHome;
use crate::roster as rosters;

/// What is checked, by what lies around.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    /// A directory with a roster and no manifest.
    Formation(PathBuf),
    /// The nearest directory at or above with a manifest, and whether a roster lies beside it.
    Project { dir: PathBuf, roster: bool },
}

/// Checks what lies in or above a directory. `bind` is the address a door would be bound to.
///
/// # Errors
/// `E-IO-001` when there is nothing to check, the manifest's own fault, `E-IO-004` for a `HOME` that cannot be used. What
/// was found before stays in the report.
pub fn check(cwd: &Path, bind: &str, home: Result<MurmurHome>, report: &mut Report) -> Result<()> {
    match subject(cwd)? {
        Subject::Formation(dir) => {
            report.out(format!(
                "No murmur.yaml in {}: checking its roster.yaml. Run mur doctor in a member's source directory to check that \
                 member's artifacts.",
                dir.display()
            ));
            report.out("");
            let around = home.as_ref().ok().map(|home| Surroundings::read(&dir, home, report));
            roster::block(&dir, around.as_ref(), report);
            if let Some(warning) = crate::containment::host::warning() {
                report.warning(&warning);
            }
            if let Ok(home) = home {
                leftovers::block(&home, report);
            }
            Ok(())
        }
        Subject::Project { dir, roster } => project::check(&dir, roster, bind, home, report),
    }
}

fn subject(cwd: &Path) -> Result<Subject> {
    if has(cwd, rosters::FILE_NAME) && !has(cwd, manifest::FILE_NAME) {
        return Ok(Subject::Formation(cwd.to_owned()));
    }
    let Some(dir) = cwd.ancestors().find(|dir| has(dir, manifest::FILE_NAME)) else {
        return Err(Diagnostic::new(
            codes::E_IO_001,
            format!("no murmur.yaml in {} or above it, and no roster.yaml in it", cwd.display()),
        )
        .hint(
            "run mur doctor in a capsule's directory to check the capsule, or in a directory that holds a roster.yaml to \
             check the formation",
        ));
    };
    Ok(Subject::Project { dir: dir.to_owned(), roster: has(dir, rosters::FILE_NAME) })
}

#[cfg(test)]
mod tests;
