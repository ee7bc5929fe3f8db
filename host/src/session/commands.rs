//! The commands of a session: the programs of `capabilities.shell.allow`, native tools, and what artifacts run through
//! `murmur:process`.
//!
//! A command is an argument vector (`line`) started in an environment made for it, whose output is captured (`capture`)
//! until it ends (`run`); one that takes too long goes to the background (`background`). What holds it is the class's.

pub mod background;
pub mod capture;
mod leftovers;
pub mod line;
pub mod lost;
pub mod run;
pub mod scope;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::Signal;
use serde_json::json;

use super::environment::command::{self, Folders, Lists};
use super::order::NEVER_FROM_HOST;
use crate::containment::{CommandProfile, StartError};
use crate::diagnostics::{Diagnostic, codes, output};
use crate::manifest::Resources;
use crate::session::folder_size::FolderSize;
use crate::trace::Trace;
use background::Board;
use capture::{Capture, Logs};
pub use lost::reconcile;
use run::{Order, Run};
use scope::Scope;

/// How long killed commands have to be seen ending.
const ENDING: Duration = Duration::from_secs(2);

/// What the commands of a session have in common.
pub struct Commands {
    /// The bare names of `capabilities.shell.allow`.
    pub allow: Vec<String>,
    /// What commands enter; `None` without any.
    pub shell: Option<CommandProfile>,
    /// The first match of each allowed name on the `PATH`.
    pub programs: BTreeMap<String, PathBuf>,
    /// By bare name.
    pub natives: BTreeMap<String, Native>,
    /// What they are given.
    pub environment: Environment,
    /// Where they start.
    pub work: PathBuf,
    /// Where their whole output is kept.
    pub logs: Arc<Logs>,
    /// How much the folders hold that they write in.
    pub folder_size: FolderSize,
    /// `capabilities.resources`.
    pub resources: Resources,
    /// How long a shell command runs before it goes to the background.
    pub grace: Duration,
    /// Which limits they met.
    pub scope: Arc<Scope>,
    /// Those in the background.
    pub board: Board,
    /// The session, where nothing but `mur` ends what commands leave behind.
    pub unheld: Option<String>,
    /// Set once the session ends.
    pub closed: AtomicBool,
}

/// A tool that is a program.
pub struct Native {
    /// Where it was staged.
    pub program: PathBuf,
    /// What it enters.
    pub profile: CommandProfile,
}

/// What the environment of a session's commands is made of.
#[derive(Clone, Debug)]
pub struct Environment {
    /// `shell.baseline_env`.
    pub baseline: Vec<String>,
    /// `shell.strip_env`.
    pub strip: Vec<String>,
    /// What the runtime tells.
    pub names: Vec<(String, String)>,
    /// The session's folders.
    pub folders: Folders,
}

impl Environment {
    /// The environment of one command; `own` is what its caller sets, where the runtime sets nothing.
    pub fn of_call(&self, own: &[(String, String)]) -> Vec<(OsString, OsString)> {
        let own = own.iter().filter(|(name, _)| !NEVER_FROM_HOST.contains(&name.as_str()));
        let overrides: Vec<(OsString, OsString)> =
            own.chain(&self.names).map(|(name, value)| (name.into(), value.into())).collect();
        let lists = Lists { baseline: &self.baseline, strip: &self.strip };
        command::command(|name| std::env::var_os(name), &overrides, lists, &self.folders)
    }
}

/// Why a command was not started.
#[derive(Debug)]
pub enum NotStarted {
    /// In words; the session goes on.
    Refused(String),
    /// The session cannot go on.
    Fatal(Diagnostic),
}

/// What a caller asks to be run.
pub struct Call<'a> {
    /// The program.
    pub program: &'a Path,
    /// The arguments, its name first.
    pub argv: Vec<String>,
    /// Variables of the caller's.
    pub env: &'a [(String, String)],
    /// What it reads.
    pub stdin: Option<Bytes>,
    /// Bytes of each stream that are kept in memory.
    pub shown: usize,
    /// Whether longer output is kept in a file.
    pub logged: bool,
    /// `shell` or `native tool`, for messages.
    pub kind: &'static str,
}

impl Commands {
    /// Whether a shell takes `-c` lines that read the runtime directory.
    pub fn has_shell(&self) -> bool {
        self.allow.iter().any(|binary| line::is_shell(binary))
    }

    /// The program of an allowed name.
    ///
    /// # Errors
    /// In words, when the search path has none.
    pub fn program(&self, binary: &str) -> Result<&Path, String> {
        self.programs
            .get(binary)
            .map(PathBuf::as_path)
            .ok_or_else(|| format!("'{binary}' is allowed, and no program of that name is on the PATH of mur run"))
    }

    /// Starts a command.
    pub async fn start(&self, profile: &CommandProfile, call: Call<'_>) -> Result<Run, NotStarted> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(NotStarted::Refused("the session is ending, so nothing is started any more".to_owned()));
        }
        let held = self.folder_size.before_start().await;
        held.map_err(|breach| NotStarted::Refused(format!("[{}] {}", breach.code(), breach.message())))?;
        let is_shell = call.argv.first().is_some_and(|name| line::is_shell(name));
        let order = Order {
            program: call.program.to_owned(),
            env: self.environment.of_call(call.env),
            argv: call.argv.into_iter().map(OsString::from).collect(),
            cwd: self.work.clone(),
            stdin: call.stdin,
            capture: Capture::new(call.shown, call.logged.then(|| Arc::clone(&self.logs))),
            is_shell,
        };
        let started = run::start(profile, order, &self.scope, &self.folder_size).await;
        started.map_err(|error| not_started(&error, call.kind, call.program))
    }

    /// The end of the session: what still runs in the background is recorded, killed and waited for. Says what is left
    /// where nothing else ends it.
    pub async fn end(&self, trace: &Trace) {
        self.closed.store(true, Ordering::Relaxed);
        let running = self.board.abandon();
        for work in &running {
            trace.record_aside("shell_abandoned", None, work.abandoned());
            output::stderr_line(&format!(
                "[capsule-runtime] {} was still running and is ended with the session: {}",
                work.id,
                line::shown(&work.binary, &work.command)
            ));
            work.run.signal(Signal::SIGKILL);
        }
        let ended = futures_util::future::join_all(running.iter().map(|work| work.run.finished()));
        let _ = tokio::time::timeout(ENDING, ended).await;
        if let Some(session) = self.unheld.clone() {
            let found = tokio::task::spawn_blocking(move || leftovers::find(&session)).await.unwrap_or_default();
            if !found.is_empty() {
                let line = format!("[capsule-runtime] {}", leftovers::told(&found));
                output::stderr_line(&line);
                output::log(&line);
            }
        }
    }
}

fn not_started(error: &StartError, kind: &str, program: &Path) -> NotStarted {
    match error {
        StartError::SetUp(why) => match why.find("sealed-root:") {
            Some(at) => NotStarted::Fatal(
                Diagnostic::new(codes::E_RUN_014, why[at..].to_owned())
                    .hint("'mur run --explain-scope' probes the host again"),
            ),
            None => NotStarted::Refused(format!("sandbox: {kind} enforcement setup failed before exec: {why}")),
        },
        StartError::Gone(why) => NotStarted::Refused(format!("nothing can be started any more: {why}")),
        StartError::Program(error) => {
            NotStarted::Refused(format!("{} could not be executed: {error}", program.display()))
        }
    }
}

/// The keys a record of a command begins with: the program and what it was given.
pub fn named(program: &Path, command: &str) -> serde_json::Map<String, serde_json::Value> {
    let mut record = serde_json::Map::new();
    record.insert("binary".into(), json!(program.to_string_lossy()));
    record.insert("command".into(), json!(command));
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_runtime_sets_wins_over_a_caller_and_peers_are_nobodys_to_set() {
        let environment = Environment {
            baseline: Vec::new(),
            strip: vec!["GONE_*".to_owned()],
            names: vec![("MURMUR_SESSION_ID".into(), "ses_1".into())],
            folders: Folders { home: "/h".into(), runtime: "/r".into(), records: "/c".into(), tmp: "/t".into() },
        };
        let own = [("MURMUR_SESSION_ID", "forged"), ("MURMUR_FORMATION_PEERS", "forged"), ("A", "1"), ("GONE_X", "1")];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let all: BTreeMap<OsString, OsString> = environment.of_call(&own).into_iter().collect();
        let get = |name: &str| all.get(std::ffi::OsStr::new(name)).and_then(|value| value.to_str());
        assert_eq!((get("MURMUR_SESSION_ID"), get("A"), get("HOME")), (Some("ses_1"), Some("1"), Some("/h")));
        assert_eq!((get("MURMUR_FORMATION_PEERS"), get("GONE_X")), (None, None));
    }

    #[test]
    fn a_root_that_cannot_be_composed_ends_the_session_and_other_steps_only_the_call() {
        let of = |error| not_started(&error, "shell", Path::new("/bin/sh"));
        let root = StartError::SetUp("the root: sealed-root: mounting failed: EPERM".into());
        assert!(
            matches!(of(root), NotStarted::Fatal(fault) if fault.message() == "sealed-root: mounting failed: EPERM")
        );
        for (error, words) in [
            (
                StartError::SetUp("landlock failed with EPERM".into()),
                "sandbox: shell enforcement setup failed before exec",
            ),
            (StartError::Gone("it ended".into()), "it ended"),
            (StartError::Program(std::io::Error::from_raw_os_error(libc::EACCES)), "/bin/sh could not be executed"),
        ] {
            let NotStarted::Refused(text) = of(error) else { panic!("the session goes on") };
            assert!(text.contains(words), "{text}");
        }
    }
}
