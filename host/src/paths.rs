//! The layout under `~/.murmur` and safe handling of paths beneath it.
//!
//! `HOME` must be absolute and able to hold `~/.murmur` (`E-IO-004`); every directory made here is owner-only.

pub mod beneath;
pub mod regular;
pub mod tree;
pub mod work_folder;

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use crate::diagnostics::{Diagnostic, Result, codes};

/// The operator's `~/.murmur`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MurmurHome {
    home: PathBuf,
    root: PathBuf,
}

impl MurmurHome {
    /// From `HOME`; nothing is created.
    pub fn from_env() -> Result<Self> {
        let home = std::env::var_os("HOME")
            .filter(|home| !home.is_empty())
            .ok_or_else(|| refused("HOME is not set, so there is no place for ~/.murmur"))?;
        let home = PathBuf::from(home);
        if !home.is_absolute() {
            return Err(refused(format!("HOME is '{}', which is not an absolute path", home.display())));
        }
        Ok(Self::at(home))
    }

    /// For a given home directory.
    pub fn at(home: PathBuf) -> Self {
        let root = home.join(".murmur");
        Self { home, root }
    }

    /// Makes sure `~/.murmur` and the directories a launch writes can be held: owner-only, ours, writable.
    pub fn prepare(&self) -> Result<()> {
        // A home that is not there is a mistake, not a wish: nothing is made in its place.
        if !self.home.is_dir() {
            return Err(refused(format!("HOME is '{}', which is not a directory", self.home.display())));
        }
        for dir in [self.root.clone(), self.sessions(), self.records(), self.running()] {
            make_private(&dir).map_err(|error| refused(format!("{}: {error}", dir.display())))?;
            let meta = fs::symlink_metadata(&dir).map_err(|error| refused(format!("{}: {error}", dir.display())))?;
            let uid = nix::unistd::geteuid().as_raw();
            if meta.uid() != uid {
                return Err(refused(format!("{} belongs to user {}, not to you ({uid})", dir.display(), meta.uid())));
            }
            if nix::unistd::access(&dir, nix::unistd::AccessFlags::W_OK).is_err() {
                return Err(refused(format!("{} cannot be written", dir.display())));
            }
        }
        Ok(())
    }

    /// The home directory itself.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// `~/.murmur`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The global artifact store.
    pub fn artifacts(&self) -> PathBuf {
        self.root.join("artifacts")
    }

    /// Runtime-private session directories.
    pub fn sessions(&self) -> PathBuf {
        self.root.join("sessions")
    }

    /// Records of all sessions.
    pub fn records(&self) -> PathBuf {
        self.root.join("records")
    }

    /// Running records.
    pub fn running(&self) -> PathBuf {
        self.root.join("running")
    }

    /// Formation directories.
    pub fn formations(&self) -> PathBuf {
        self.root.join("formations")
    }

    /// Conversation records.
    pub fn conversations(&self) -> PathBuf {
        self.root.join("conversations")
    }

    /// State stores.
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// Compiled forms of components.
    pub fn compiled(&self) -> PathBuf {
        self.root.join("compiled")
    }

    /// The global configuration file.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.yaml")
    }

    /// The operator's plugin pins.
    pub fn plugins_lock(&self) -> PathBuf {
        self.root.join("plugins.lock")
    }

    /// The publishers whose plugins the operator trusts.
    pub fn publishers(&self) -> PathBuf {
        self.root.join("plugin-publishers")
    }

    /// The records group of a workdir root: `records/<root without its leading />`, symlinks resolved through the
    /// nearest ancestor that exists.
    pub fn records_group(&self, workdir_root: &Path) -> PathBuf {
        let resolved = resolve_through_existing(workdir_root);
        self.records().join(resolved.strip_prefix("/").unwrap_or(&resolved))
    }
}

fn refused(what: impl Into<String>) -> Diagnostic {
    Diagnostic::new(codes::E_IO_004, what)
        .hint("set HOME to an absolute path that you own and can write; nothing was written")
}

/// Where first-party plugins and bundled artifacts lie, relative to the running executable, never by environment or
/// working directory: `<dir of the executable>/../lib/mur`.
pub fn install_dir() -> io::Result<PathBuf> {
    let exe = fs::read_link("/proc/self/exe")?;
    let bin = exe.parent().ok_or_else(|| io::Error::other("the executable has no directory"))?;
    let prefix = bin.parent().unwrap_or(bin);
    Ok(prefix.join("lib/mur"))
}

/// Makes a directory and its missing ancestors, each at mode 0700; an existing directory is left as it is, a link or
/// another kind of file in its place is refused.
pub fn make_private(dir: &Path) -> io::Result<()> {
    match fs::symlink_metadata(dir) {
        Ok(meta) if meta.is_dir() => return Ok(()),
        Ok(meta) if meta.file_type().is_symlink() && fs::metadata(dir).is_ok_and(|target| target.is_dir()) => {
            return Ok(());
        }
        Ok(_) => return Err(io::Error::new(io::ErrorKind::NotADirectory, "exists and is not a directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Some(parent) = dir.parent() {
        make_private(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        other => other,
    }
}

/// Makes exactly this directory at mode 0700 and fails when anything is there already.
pub fn make_new_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(dir)
}

/// Writes a whole file so that a reader sees the old content or all of the new: temporary file beside it, fsync,
/// rename. `mode` is the file's mode before the umask. The temporary name does not end in the file's extension.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let dir = path.parent().ok_or_else(|| io::Error::other("a path without a directory"))?;
    let name = path.file_name().ok_or_else(|| io::Error::other("a path without a name"))?.to_string_lossy();
    let mut seed = [0_u8; 8];
    getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
    let temporary = dir.join(format!(".{name}.{:016x}.tmp", u64::from_ne_bytes(seed)));
    let result = (|| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}

/// The canonical form of a path of which only the first part need exist; the rest is appended with `.` and `..` resolved.
pub fn resolve_through_existing(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut missing: Vec<std::ffi::OsString> = Vec::new();
    let mut existing = absolute.as_path();
    loop {
        if let Ok(mut resolved) = fs::canonicalize(existing) {
            for part in missing.iter().rev() {
                if part == ".." {
                    resolved.pop();
                } else {
                    resolved.push(part);
                }
            }
            return resolved;
        }
        match (existing.parent(), existing.components().next_back()) {
            (Some(parent), Some(Component::Normal(name))) => {
                missing.push(name.to_owned());
                existing = parent;
            }
            (Some(parent), Some(Component::ParentDir)) => {
                missing.push("..".into());
                existing = parent;
            }
            _ => return absolute,
        }
    }
}

/// A text as one word of a shell's command line, quoted where it must be: for commands that messages print.
pub fn shell_word(text: &str) -> std::borrow::Cow<'_, str> {
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', "'\\''")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_word_is_quoted_where_a_shell_would_split_or_read_it() {
        for (text, word) in
            [("/a/b-c.d", "/a/b-c.d"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("", "''"), ("$x", "'$x'")]
        {
            assert_eq!(shell_word(text), word);
        }
    }

    #[test]
    fn a_records_group_mirrors_the_resolved_root() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("réal");
        fs::create_dir(&real).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        let by_link = home.records_group(&link.join("workdir"));
        let by_name = home.records_group(&fs::canonicalize(&real).unwrap().join("workdir"));
        assert_eq!(by_link, by_name);
    }

    #[test]
    fn an_atomic_write_leaves_nothing_beside_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        write_atomic(&path, b"one", 0o600).unwrap();
        write_atomic(&path, b"two", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
