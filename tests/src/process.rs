//! Running `mur` and watching it: every wait is bounded and says what it waited for.

// A harness starts the binary as an operator's shell would.
#![allow(clippy::disallowed_methods)]

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lines::Lines;

/// How long anything may take. Far above what it takes on an idle machine: a suite shares its cores.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Waits for a condition that nothing announces, such as a process that is to be gone.
///
/// # Panics
/// When it does not come true in [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A command line of `mur`, not yet run.
#[derive(Debug, Clone)]
pub struct Invocation {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: PathBuf,
    stdin: Option<Vec<u8>>,
}

impl Invocation {
    /// The binary in an environment of nothing but a path and a home.
    pub fn new(home: &Path, cwd: &Path) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self {
            program: crate::mur_binary(),
            args: Vec::new(),
            env: vec![("PATH".into(), path), ("HOME".into(), home.into())],
            cwd: cwd.to_owned(),
            stdin: None,
        }
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.retain(|(known, _)| known != name.as_ref());
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Takes a variable away, `HOME` included.
    pub fn without_env(mut self, name: &str) -> Self {
        self.env.retain(|(known, _)| known != name);
        self
    }

    /// Runs it elsewhere.
    pub fn cwd(mut self, cwd: impl AsRef<Path>) -> Self {
        self.cwd = cwd.as_ref().to_owned();
        self
    }

    /// Feeds its standard input, which is `/dev/null` otherwise.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Runs it through another program, whose last arguments it becomes.
    ///
    /// # Panics
    /// When there is no program.
    pub fn through(mut self, line: &[&str]) -> Self {
        let (program, args) = line.split_first().expect("a program");
        let mur = std::mem::replace(&mut self.program, program.into());
        let before = args.iter().map(|arg| OsString::from(*arg)).chain([mur.into_os_string()]);
        self.args.splice(0..0, before);
        self
    }

    /// The command as the standard library has it, for tests that need more control.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().envs(self.env.iter().cloned()).current_dir(&self.cwd);
        command
    }

    /// Starts it, in a process group of its own.
    #[track_caller]
    pub fn start(&self) -> Running {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.stdin(if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().unwrap_or_else(|fault| panic!("{self:?}: {fault}"));
        if let Some(bytes) = &self.stdin {
            let mut stdin = child.stdin.take().expect("stdin is a pipe");
            let bytes = bytes.clone();
            // A command that does not read its input must not hang the test.
            std::thread::spawn(move || drop(stdin.write_all(&bytes)));
        }
        let stdout = Lines::of(child.stdout.take().expect("stdout is a pipe"));
        let stderr = Lines::of(child.stderr.take().expect("stderr is a pipe"));
        Running { child, stdout, stderr, status: None }
    }

    /// Runs it to its end.
    #[track_caller]
    pub fn run(&self) -> Done {
        self.start().wait()
    }

    /// Runs it to its end, which must be a success.
    #[track_caller]
    pub fn ok(&self) -> Done {
        let done = self.run();
        assert_eq!(done.code(), Some(0), "{:?} failed\nstdout: {}\nstderr: {}", self.args, done.stdout, done.stderr);
        done
    }
}

/// What a command that ended left behind.
#[derive(Debug, Clone)]
pub struct Done {
    /// How it ended.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

impl Done {
    /// Its exit status, none when a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Asserts that it failed with a diagnostic code, exit status 1.
    #[track_caller]
    pub fn refused(&self, code: &str) -> &Self {
        let wanted = format!("error[{code}]");
        assert!(
            self.stderr.contains(&wanted) && self.code() == Some(1),
            "expected {wanted}, got {:?}\nstdout: {}\nstderr: {}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Its standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|fault| panic!("{fault}: {}", self.stdout))
    }
}

/// A running `mur`. Dropping it kills it and its process group.
pub struct Running {
    child: Child,
    stdout: Lines,
    stderr: Lines,
    status: Option<ExitStatus>,
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        // One that has just ended is no fault of the test.
        let _ = nix::sys::signal::kill(pid, signal);
    }

    /// Waits for a line of standard output.
    #[track_caller]
    pub fn stdout_line(&self, matches: impl Fn(&str) -> bool) -> String {
        self.line(&self.stdout, "stdout", matches)
    }

    /// Waits for a line of standard error.
    #[track_caller]
    pub fn stderr_line(&self, matches: impl Fn(&str) -> bool) -> String {
        self.line(&self.stderr, "stderr", matches)
    }

    #[track_caller]
    fn line(&self, lines: &Lines, name: &str, matches: impl Fn(&str) -> bool) -> String {
        lines.first(matches).unwrap_or_else(|| {
            panic!("no such line on {name}\nstdout: {}\nstderr: {}", self.stdout.text(), self.stderr.text())
        })
    }

    /// The `number`th line of standard output (from 0) as JSON: `--json` readiness lines and announcements.
    #[track_caller]
    pub fn json_line(&self, number: usize) -> Value {
        let line = self.stdout.nth(number);
        let line = line.unwrap_or_else(|| panic!("stdout has no line {number}\nstderr: {}", self.stderr.text()));
        serde_json::from_str(&line).unwrap_or_else(|fault| panic!("{fault}: {line}"))
    }

    /// What it has printed so far: standard output and standard error.
    pub fn so_far(&self) -> (String, String) {
        (self.stdout.text(), self.stderr.text())
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("it is our child");
        }
        self.status
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(mut self) -> Done {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.ended() {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "mur did not end in {PATIENCE:?}\nstdout: {}\nstderr: {}",
                self.stdout.text(),
                self.stderr.text()
            );
            std::thread::sleep(Duration::from_millis(2));
        };
        // A descendant may hold the pipes a moment longer; what it says then is no part of the command's output.
        self.stdout.closed();
        self.stderr.closed();
        Done { status, stdout: self.stdout.text(), stderr: self.stderr.text() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended().is_none() {
            let group = nix::unistd::Pid::from_raw(self.child.id() as i32);
            let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
            let _ = self.child.wait();
        }
    }
}
