//! What `mur run --roster PATH` names: the project directory and the roster's bytes, read once.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::diagnostics::{Diagnostic, Result, codes};

/// The one name a roster file has.
pub const ROSTER_FILE: &str = "roster.yaml";
/// A larger roster is refused before it is read.
pub const MAX_ROSTER_BYTES: u64 = 16 << 20;

/// A roster's project: stores, lock and marker belong to the resolved directory the operator named, even when
/// `roster.yaml` itself is a link to elsewhere.
#[derive(Clone, Debug)]
pub struct Project {
    /// The directory, symlinks resolved.
    pub dir: PathBuf,
    /// The roster's bytes; everything later works on these.
    pub text: Vec<u8>,
}

impl Project {
    /// Opens a directory that holds `roster.yaml`, or a file of exactly that name (`E-ROS-001`).
    pub fn open(path: &Path) -> Result<Self> {
        let (dir, file) = if path.is_dir() {
            (path.to_owned(), path.join(ROSTER_FILE))
        } else if path.file_name().is_some_and(|name| name == ROSTER_FILE) {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            (parent.unwrap_or_else(|| Path::new(".")).to_owned(), path.to_owned())
        } else {
            return Err(refused(format!("{} is neither a directory nor a file named {ROSTER_FILE}", path.display()))
                .hint("name the directory that holds the roster, or the roster.yaml in it"));
        };
        let text = read_bounded(&file)?;
        let dir = fs::canonicalize(&dir).map_err(|error| refused(format!("{}: {error}", dir.display())))?;
        Ok(Self { dir, text })
    }
}

fn read_bounded(file: &Path) -> Result<Vec<u8>> {
    let unreadable = |error: std::io::Error| {
        // Named by its directory, or by nothing but its name, which begins the message.
        let which = if file.strip_prefix(".").unwrap_or(file) == Path::new(ROSTER_FILE) {
            "it".to_owned()
        } else {
            file.display().to_string()
        };
        refused(format!("{which} cannot be read: {error}"))
            .hint("write one with mur new --roster <NAME>, or name the directory that holds it")
    };
    // Without blocking: opening a pipe would wait for its writer.
    let mut source = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file).map_err(unreadable)?;
    let meta = source.metadata().map_err(unreadable)?;
    if !meta.is_file() {
        return Err(refused(format!("{} is not a regular file", file.display())));
    }
    let mut text = Vec::new();
    source.by_ref().take(MAX_ROSTER_BYTES + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_ROSTER_BYTES {
        return Err(refused(format!("{} is larger than {MAX_ROSTER_BYTES} bytes", file.display())));
    }
    Ok(text)
}

fn refused(what: String) -> Diagnostic {
    Diagnostic::new(codes::E_ROS_001, format!("{ROSTER_FILE}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_the_rosters_place_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mode = nix::sys::stat::Mode::S_IRUSR;
        nix::unistd::mkfifo(&dir.path().join(ROSTER_FILE), mode).unwrap();
        let refusal = Project::open(dir.path()).unwrap_err();
        assert_eq!(refusal.code(), codes::E_ROS_001);
        assert!(refusal.message().contains("is not a regular file"), "{refusal}");
    }

    #[test]
    fn a_project_is_a_directory_or_its_roster_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ROSTER_FILE), b"x").unwrap();
        fs::write(dir.path().join("other.yaml"), b"x").unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(Project::open(dir.path()).unwrap().dir, real);
        assert_eq!(Project::open(&dir.path().join(ROSTER_FILE)).unwrap().dir, real);
        for bad in ["other.yaml", "missing"] {
            assert_eq!(Project::open(&dir.path().join(bad)).unwrap_err().code(), codes::E_ROS_001);
        }
    }

    #[test]
    fn a_linked_roster_belongs_to_the_directory_named() {
        let dir = tempfile::tempdir().unwrap();
        let (named, elsewhere) = (dir.path().join("named"), dir.path().join("elsewhere"));
        fs::create_dir(&named).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("r.yaml"), b"x").unwrap();
        std::os::unix::fs::symlink(elsewhere.join("r.yaml"), named.join(ROSTER_FILE)).unwrap();
        assert_eq!(Project::open(&named).unwrap().dir, fs::canonicalize(&named).unwrap());
    }
}
