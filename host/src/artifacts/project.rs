//! Which directory is the project: the nearest at or above a place that holds `murmur.yaml` or `roster.yaml`.

use std::path::{Path, PathBuf};

use crate::diagnostics::{Diagnostic, Result, codes};

/// The project at or above a directory, if there is one.
pub fn find_root(from: &Path) -> Option<PathBuf> {
    from.ancestors().find(|dir| holds(dir, "murmur.yaml") || holds(dir, "roster.yaml")).map(Path::to_owned)
}

/// Whether anything stands in a directory under that name: what is no regular file is refused by whoever reads it, and is
/// not as if it were not there.
pub fn holds(dir: &Path, file: &str) -> bool {
    dir.join(file).symlink_metadata().is_ok()
}

/// The project at or above the current directory, if there is one.
pub fn current() -> Result<Option<PathBuf>> {
    let here = std::env::current_dir()
        .map_err(|error| Diagnostic::new(codes::E_IO_001, format!("the current directory cannot be read: {error}")))?;
    Ok(find_root(&here))
}

/// The project at or above the current directory, `E-IO-001` when there is none.
pub fn require() -> Result<PathBuf> {
    current()?.ok_or_else(|| {
        Diagnostic::new(codes::E_IO_001, "no project root found (no murmur.yaml in current or parent directories)")
            .hint("run it inside a project, or use -g for the global store")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roster_makes_a_project_root_too() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        std::fs::create_dir_all(&below).unwrap();
        std::fs::write(dir.path().join("roster.yaml"), "").unwrap();
        assert_eq!(find_root(&below), Some(dir.path().to_owned()));
        std::fs::write(dir.path().join("a/murmur.yaml"), "").unwrap();
        assert_eq!(find_root(&below), Some(dir.path().join("a")));
    }
}
