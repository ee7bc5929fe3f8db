//! `--resume`: the recorded conversation a launch goes on with. Of the earlier session only its trace is read, to learn
//! which conversation that was: nothing else of it, and nothing of a formation it belonged to, comes back.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::{ContextId, SessionId};
use crate::manifest::Capsule;
use crate::paths::beneath::{self, Refusal};
use crate::paths::{MurmurHome, regular, shell_word};
use crate::records::read::Trace;
use crate::records::read::text::plural;
use crate::records::recorded::{Group, Reach, is_path};
use crate::records::running::{self, Process};
use crate::session::agent::conversation::{Conversation, Recorded};
use crate::session::request::Resume;

/// The session that is resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Its id, as its trace says.
    pub session: SessionId,
    /// The context of the last task it started.
    pub context: ContextId,
    /// The capsule that ran it.
    capsule: String,
    /// Whether its conversation is to be shortened first.
    pub compact: bool,
    /// Its trace.
    pub trace: PathBuf,
}

impl Resumed {
    /// Finds the session an address names among those of a workdir root, before this launch has one of its own.
    ///
    /// # Errors
    /// `E-TRC-002` for an address that names none or several, `E-TRC-001` for a trace that cannot be read, `E-RUN-016`
    /// for a session that ran no task.
    pub fn find(home: &MurmurHome, resume: &Resume, root: &Path) -> Result<Self> {
        let group = Group::of(home, root);
        let found = group.trace_of(home, &resume.address, Reach::HomeByWholeId);
        let path = found.map_err(|fault| fault.prefixed("--resume: "))?;
        own(&path, home, is_path(&resume.address))?;
        let trace = Trace::read(&path)?;
        let start = trace.start()?;
        let session = start["session_id"].as_str().and_then(SessionId::parse).ok_or_else(|| {
            Diagnostic::new(codes::E_TRC_001, format!("{}: session_start names no session", path.display()))
        })?;
        let context = trace.last_context().ok_or_else(|| {
            Diagnostic::new(codes::E_RUN_016, format!("session {session} ran no task, so it has no conversation"))
                .hint(with_a_task(&Group::beside(home, &path).unwrap_or(group)))
        })?;
        let capsule = start["capsule_name"].as_str().unwrap_or_default().to_owned();
        Ok(Self { session, context, capsule, compact: resume.compact, trace: path })
    }

    /// Whether there is a conversation to go on with, and what is said of it on stderr; `compacts` says that a hook can
    /// shorten it.
    ///
    /// # Errors
    /// `E-RUN-018` for a compacted resumption that no hook compacts, `E-RUN-017` where no record was kept, `E-IO-003` where it is unreadable.
    pub fn check(&self, home: &MurmurHome, capsule: &Capsule, compacts: bool) -> Result<String> {
        if self.compact && !compacts {
            return Err(Diagnostic::new(
                codes::E_RUN_018,
                "--resume-mode compact needs a hook on on-compaction with commit_policy: replace-context, and the \
                 capsule has none",
            )
            .hint("declare one, such as murmur/compact, or resume with --resume-mode full, which is the default"));
        }
        let Some(record) = Conversation::of(home, capsule, &self.context, None) else {
            return Err(self.not_kept("the capsule keeps none: context.record is off", capsule));
        };
        let shown = record.path().display();
        let recorded = record.load().map_err(|error| {
            Diagnostic::new(codes::E_IO_003, format!("the conversation record {shown} cannot be read: {error}"))
                .hint("nothing was started; start a new session without --resume")
        })?;
        if recorded.messages.is_empty() {
            return Err(self.not_kept(&format!("{shown} holds no message"), capsule));
        }
        Ok(self.note(home, &recorded))
    }

    fn not_kept(&self, why: &str, capsule: &Capsule) -> Diagnostic {
        let hint = if self.capsule == capsule.name {
            "a session can be resumed when it ran with context.record: on, its record under ~/.murmur/conversations is \
             still there, and the capsule's context.record_store is the same"
                .to_owned()
        } else {
            format!("the session was one of '{}', and this capsule is '{}': run that one", self.capsule, capsule.name)
        };
        let message =
            format!("context '{}' of session {} has no conversation record: {why}", self.context, self.session);
        Diagnostic::new(codes::E_RUN_017, message).hint(hint)
    }

    fn note(&self, home: &MurmurHome, recorded: &Recorded) -> String {
        let count = |number: usize, noun| plural(number as u64, noun);
        let messages = count(recorded.conversation_len(), "message");
        let mut note = format!("[capsule-runtime] resuming {}: context {}, {messages}", self.session, self.context);
        if recorded.unanswered > 0 {
            note.push_str(&format!("; {} had no recorded result", count(recorded.unanswered, "tool call")));
        }
        if recorded.passed_over > 0 {
            note.push_str(&format!("; {} of the record could not be used", count(recorded.passed_over, "line")));
        }
        if self.still_runs(home) {
            note.push_str("; that session still runs, and both add to the conversation");
        }
        note
    }

    /// Whether it has not ended.
    pub fn still_runs(&self, home: &MurmurHome) -> bool {
        let records = running::list(home).map(|listing| listing.records).unwrap_or_default();
        let own = records.iter().find(|record| record.session_id == self.session);
        own.is_some_and(|record| !matches!(record.process(), Process::Gone(_)))
    }
}

/// Whether a trace is one that this user's sessions wrote. Below the records no link is followed; a path is taken as it is
/// given. A trace of somebody else's could name any context of ours.
fn own(path: &Path, home: &MurmurHome, given: bool) -> Result<()> {
    let root = home.records();
    let opened = match path.strip_prefix(&root).ok().filter(|_| !given) {
        Some(relative) => beneath::open_record(&root, relative, OFlag::O_RDONLY),
        None => match regular::open(path).and_then(|file| file.metadata()) {
            Ok(meta) if meta.uid() != 0 && meta.uid() != geteuid().as_raw() => Err(Refusal::Foreign(meta.uid())),
            // What else is wrong with it is said by whoever reads it.
            _ => return Ok(()),
        },
    };
    match opened {
        Err(refusal @ (Refusal::Foreign(_) | Refusal::Symlink | Refusal::NotARegularFile)) => {
            let message = format!("--resume: {} is not read: {refusal}", path.display());
            let hint = "nothing was started; only what your own sessions recorded can be gone on with";
            Err(Diagnostic::new(codes::E_IO_003, message).hint(hint))
        }
        _ => Ok(()),
    }
}

/// Names the newest session of a group that can be gone on with, and the command that lists them all.
fn with_a_task(group: &Group) -> String {
    let root = std::path::absolute(&group.root).unwrap_or_else(|_| group.root.clone());
    let list = format!("mur trace list --workdir {}", shell_word(&root.to_string_lossy()));
    let ran_one = |session: &SessionId| {
        Trace::read(&group.records_dir(session).join("trace.jsonl")).is_ok_and(|trace| trace.last_context().is_some())
    };
    match group.sessions().into_iter().find(ran_one) {
        Some(session) => format!("the newest that ran one: --resume {session}; all of them: {list}"),
        None => format!("none of those beside it ran one either: {list}"),
    }
}
