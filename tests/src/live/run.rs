//! A started `mur`: its lines as they come, and its end, each wait bounded.

#![allow(clippy::disallowed_methods, reason = "suites start the binary under test with the standard library")]

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lines::Lines;
pub use crate::process::{PATIENCE, wait_until as until};

/// What a command left behind.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// The exit status, or `128 + N` for signal N.
    pub fn code(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Asserts the exit status and returns itself.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "\n--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr);
        self
    }

    /// Asserts that it failed with a code: exit status 1 and `error[CODE]` on stderr.
    #[track_caller]
    pub fn refused(self, code: &str) -> Self {
        let output = self.expect(1);
        assert!(output.stderr.contains(&format!("error[{code}]")), "no {code} in:\n{}", output.stderr);
        output
    }
}

/// A running command. Dropped while it runs, it is killed.
pub struct Running {
    child: Child,
    stdout: Lines,
    stderr: Lines,
    ended: Option<ExitStatus>,
}

impl Running {
    /// Starts a command with no standard input.
    pub fn start(command: Command) -> Self {
        Self::start_with(command, Stdio::piped())
    }

    /// The same with another standard error; of one that is no new pipe nothing is read here.
    pub fn start_with(mut command: Command, stderr: Stdio) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("mur starts");
        let stdout = Lines::of(child.stdout.take().expect("a pipe"));
        let stderr = child.stderr.take().map_or_else(Lines::none, Lines::of);
        Self { child, stdout, stderr, ended: None }
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("a signal is sent");
    }

    /// Waits for a line on stdout.
    #[track_caller]
    pub fn stdout_line(&self, wanted: impl Fn(&str) -> bool) -> String {
        self.stdout.first(wanted).unwrap_or_else(|| panic!("the line did not come\n{}", self.so_far()))
    }

    /// Waits for a line on stderr.
    #[track_caller]
    pub fn stderr_line(&self, wanted: impl Fn(&str) -> bool) -> String {
        self.stderr.first(wanted).unwrap_or_else(|| panic!("the line did not come\n{}", self.so_far()))
    }

    /// The first JSON line on stdout that has this key.
    #[track_caller]
    pub fn json_line(&self, key: &str) -> serde_json::Value {
        let parse = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok();
        let line = self.stdout_line(|line| parse(line).is_some_and(|value| value.get(key).is_some()));
        parse(&line).expect("a JSON line")
    }

    /// What it has printed so far.
    pub fn so_far(&self) -> String {
        format!("--- stdout\n{}--- stderr\n{}", self.stdout.text(), self.stderr.text())
    }

    /// Waits for its end without reading the rest of its output.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        if let Some(status) = self.ended {
            return status;
        }
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                self.ended = Some(status);
                return status;
            }
            assert!(Instant::now() < until, "it did not end\n{}", self.so_far());
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Waits for its end and takes its output.
    #[track_caller]
    pub fn finish(mut self) -> Output {
        let status = self.wait();
        self.stdout.closed();
        self.stderr.closed();
        Output { status, stdout: self.stdout.text(), stderr: self.stderr.text() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
