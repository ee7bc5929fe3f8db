//! One test's world: a home of its own, a project directory, nothing shared with another test.

#![allow(clippy::disallowed_methods, reason = "suites start the binary under test with the standard library")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::live::run::{Output, Running};

/// A temporary home and project.
pub struct Home {
    dir: tempfile::TempDir,
    env: Vec<(String, String)>,
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Home {
    /// A fresh home; it is removed with the value.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("mur-test-").tempdir().expect("a temporary directory");
        fs::create_dir(dir.path().join("home")).expect("a home");
        fs::create_dir(dir.path().join("project")).expect("a project");
        Self { dir, env: Vec::new() }
    }

    /// Adds a variable to every command run here.
    pub fn set(&mut self, name: &str, value: &str) -> &mut Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The home directory, resolved.
    pub fn home(&self) -> PathBuf {
        fs::canonicalize(self.dir.path().join("home")).expect("a home")
    }

    /// `~/.murmur`.
    pub fn murmur(&self) -> PathBuf {
        self.home().join(".murmur")
    }

    /// The project directory, resolved.
    pub fn project(&self) -> PathBuf {
        fs::canonicalize(self.dir.path().join("project")).expect("a project")
    }

    /// A directory beside home and project.
    pub fn scratch(&self, name: &str) -> PathBuf {
        let dir = self.dir.path().join(name);
        fs::create_dir_all(&dir).expect("a directory");
        fs::canonicalize(dir).expect("a directory")
    }

    /// Writes a file of the project.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.project().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(&path, text).expect("a file");
        path
    }

    /// A `mur` command in the project directory, with this home and no other variable than `PATH`.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        self.command_in(&self.project(), args)
    }

    /// The same in another directory.
    pub fn command_in<S: AsRef<OsStr>>(&self, cwd: &Path, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(crate::mur_binary());
        command.args(args).env_clear().env("HOME", self.home()).env("PATH", "/usr/bin:/bin").current_dir(cwd);
        for (name, value) in &self.env {
            command.env(name, value);
        }
        command
    }

    /// Runs `mur` to its end.
    pub fn mur<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        Running::start(self.command(args)).finish()
    }

    /// Starts `mur` and leaves it running.
    pub fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        Running::start(self.command(args))
    }

    /// The formation directories there are, oldest first.
    pub fn formations(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = fs::read_dir(self.murmur().join("formations"))
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        dirs.sort();
        dirs
    }

    /// The running records there are, as JSON.
    pub fn running(&self) -> Vec<serde_json::Value> {
        let entries = fs::read_dir(self.murmur().join("running")).into_iter().flatten().flatten();
        let records = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "json"));
        records.filter_map(|entry| serde_json::from_slice(&fs::read(entry.path()).ok()?).ok()).collect()
    }
}
