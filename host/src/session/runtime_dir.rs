//! The runtime directory: files only `mur` writes while a session runs, gone when it has ended.
//!
//! `~/.murmur/sessions/<ses_id>/` holds `.lock`, flocked for the session's life, and `runtime/`. What a killed session
//! left is recognised by its free lock and removed by a later one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::ids::SessionId;
use crate::paths::{MurmurHome, make_new_private, tree};
use crate::trace::unix_ms;

/// A directory younger than this may belong to a session that has not taken its lock yet.
const SETTLED_MS: u64 = 60_000;

/// A session's own directory, removed when this is dropped.
#[derive(Debug)]
pub struct RuntimeDir {
    session: PathBuf,
    runtime: PathBuf,
    #[expect(dead_code, reason = "held for its lock")]
    lock: File,
}

impl RuntimeDir {
    /// Makes and locks it.
    pub fn make(home: &MurmurHome, session: &SessionId) -> Result<Self> {
        let dir = home.sessions().join(session.as_str());
        Self::make_at(&dir).map_err(|error| {
            let _ = tree::remove(&dir);
            Diagnostic::new(codes::E_IO_003, format!("the runtime directory {} cannot be made: {error}", dir.display()))
        })
    }

    fn make_at(session: &Path) -> io::Result<Self> {
        make_new_private(session)?;
        let lock = File::options().write(true).create_new(true).open(session.join(".lock"))?;
        lock.lock()?;
        let runtime = session.join("runtime");
        make_new_private(&runtime)?;
        make_new_private(&runtime.join("tools"))?;
        Ok(Self { session: session.to_owned(), runtime, lock })
    }

    /// `murmur-runtime` of the session's tools.
    pub fn path(&self) -> &Path {
        &self.runtime
    }

    /// Writes one file of it.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        fs::write(self.runtime.join(name), bytes)
    }

    /// Makes a tool's folder and writes one file into it.
    pub fn write_tool(&self, tool: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        let dir = self.runtime.join("tools").join(tool);
        match make_new_private(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::write(dir.join(name), bytes)
    }

    /// Writes a tool's program, executable, as `tools/<tool>/<tool>`.
    pub fn write_program(&self, tool: &str, bytes: &[u8]) -> io::Result<()> {
        self.write_tool(tool, tool, bytes)?;
        let path = self.runtime.join("tools").join(tool).join(tool);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        if let Err(error) = tree::remove(&self.session)
            && error.kind() != io::ErrorKind::NotFound
        {
            output::log(&format!("[capsule-runtime] {} was not removed: {error}", self.session.display()));
        }
    }
}

/// Removes what sessions that were killed left behind.
pub fn sweep(home: &MurmurHome) {
    for dir in left(home) {
        let _ = tree::remove(&dir);
    }
}

/// What sessions that were killed left behind, and the next launch will remove.
pub fn left(home: &MurmurHome) -> Vec<PathBuf> {
    let now = unix_ms();
    let entries = fs::read_dir(home.sessions()).into_iter().flatten().flatten();
    let settled = entries.filter(|entry| {
        let id = entry.file_name().to_str().and_then(SessionId::parse);
        id.is_some_and(|id| now.saturating_sub(id.minted_ms()) > SETTLED_MS)
    });
    let plain = settled.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut left: Vec<PathBuf> = plain.map(|entry| entry.path()).filter(|dir| is_free(&dir.join(".lock"))).collect();
    left.sort();
    left
}

/// Removes what one session left, of which is known that it has ended; the directory when there was one.
pub fn remove_left(home: &MurmurHome, session: &SessionId) -> Option<PathBuf> {
    let dir = home.sessions().join(session.as_str());
    let plain = fs::symlink_metadata(&dir).is_ok_and(|meta| meta.is_dir());
    (plain && is_free(&dir.join(".lock")) && tree::remove(&dir).is_ok()).then_some(dir)
}

/// Whether nobody holds the lock; a missing one is free.
fn is_free(lock: &Path) -> bool {
    match File::open(lock) {
        Ok(file) => file.try_lock().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, MurmurHome) {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        home.prepare().unwrap();
        (dir, home)
    }

    #[test]
    fn it_is_gone_with_its_owner() {
        let (_dir, home) = home();
        let session = SessionId::mint();
        let made = RuntimeDir::make(&home, &session).unwrap();
        made.write("task.md", b"x").unwrap();
        made.write_tool("stats", "murmur.yaml", b"y").unwrap();
        made.write_tool("stats", "skill.md", b"z").unwrap();
        assert!(made.path().join("tools/stats/skill.md").is_file());
        drop(made);
        assert!(!home.sessions().join(session.as_str()).exists());
    }

    #[test]
    fn a_sweep_takes_old_unlocked_directories_only() {
        let (_dir, home) = home();
        let old = |hex: &str| SessionId::parse(&format!("ses_{hex}{}", "0".repeat(32 - hex.len()))).unwrap();
        let (dead, alive) = (old("0001"), old("0002"));
        for id in [&dead, &alive] {
            make_new_private(&home.sessions().join(id.as_str())).unwrap();
            fs::write(home.sessions().join(id.as_str()).join(".lock"), b"").unwrap();
        }
        let held = File::open(home.sessions().join(alive.as_str()).join(".lock")).unwrap();
        held.lock().unwrap();
        let young = SessionId::mint();
        make_new_private(&home.sessions().join(young.as_str())).unwrap();
        make_new_private(&home.sessions().join("other")).unwrap();
        let exists = |name: &str| home.sessions().join(name).exists();
        assert_eq!(left(&home), [home.sessions().join(dead.as_str())]);
        assert!(remove_left(&home, &alive).is_none() && exists(alive.as_str()), "its lock is held");
        sweep(&home);
        assert!(!exists(dead.as_str()));
        assert!(exists(alive.as_str()) && exists(young.as_str()) && exists("other"));
    }
}
