//! A formation's directory under `~/.murmur/formations/`, its ownership marker, and the peers' directories.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ids::FormationId;
use crate::paths::{MurmurHome, make_new_private, make_private, write_atomic};
use crate::process::process_start;

/// The marker's file name.
pub const MARKER: &str = "formation.json";

/// `formation.json`: which project a formation's directory belongs to, and which launcher made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// The roster's project directory, symlinks resolved.
    pub project_dir: PathBuf,
    /// The launcher's process id.
    pub launcher_pid: i32,
    /// When the launcher's process started, as the host reports it; empty when it could not be read.
    pub launcher_start: String,
}

impl Marker {
    /// The marker of a formation this process launches.
    pub fn own(project_dir: &Path) -> Self {
        let pid = std::process::id().cast_signed();
        Self {
            project_dir: project_dir.to_owned(),
            launcher_pid: pid,
            launcher_start: process_start(pid).unwrap_or_default(),
        }
    }

    /// Reads the marker of a formation's directory; `None` when there is none that parses.
    pub fn read(formation_dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(formation_dir.join(MARKER)).ok()?).ok()
    }
}

/// Makes `~/.murmur/formations/<frm_id>/`, new and owner-only, and writes the marker before any peer's directory.
/// The outer error is a directory that cannot be made; the inner one a marker that cannot be written.
pub fn make(home: &MurmurHome, id: &FormationId, marker: &Marker) -> io::Result<(PathBuf, io::Result<()>)> {
    make_private(&home.formations())?;
    let dir = home.formations().join(id.as_str());
    make_new_private(&dir)?;
    let written = serde_json::to_vec(marker)
        .map_err(io::Error::from)
        .and_then(|text| write_atomic(&dir.join(MARKER), &text, 0o600));
    Ok((dir, written))
}

/// Makes one peer's directory; a path already there is never reused.
pub fn make_peer(formation_dir: &Path, member: &str) -> Result<PathBuf, String> {
    let dir = formation_dir.join(member);
    match make_new_private(&dir) {
        Ok(()) => Ok(dir),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(format!("its directory {} is already there and is never reused", dir.display()))
        }
        Err(error) => Err(format!("its directory {} could not be made: {error}", dir.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_formation_directory_is_private_and_marked_before_peers() {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        let marker = Marker::own(Path::new("/project"));
        let (made, written) = make(&home, &FormationId::mint(), &marker).unwrap();
        written.unwrap();
        assert_eq!(Marker::read(&made), Some(marker));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&made), mode(&made.join(MARKER))), (0o700, 0o600));
        let peer = make_peer(&made, "coder").unwrap();
        assert_eq!(mode(&peer), 0o700);
        assert!(make_peer(&made, "coder").unwrap_err().contains("never reused"));
    }
}
