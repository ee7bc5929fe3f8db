//! The small blocks: `context`, `trace`, `observability`, `network`, `lifecycle`, `exports`, `control`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `context`.
#[derive(Clone, Debug, PartialEq)]
pub struct Context {
    /// Absent = the driver's window.
    pub max_tokens: Option<u64>,
    /// Fraction of the input budget a seed may take.
    pub seed_budget: f64,
    /// Slack within which a seed is trimmed.
    pub seed_overflow_margin: f64,
    /// Whether the conversation is recorded.
    pub record: bool,
    /// Absent = the capsule's name. As written; see [`super::check_segment`].
    pub record_store: Option<String>,
    /// What is trimmed of a record.
    pub retain: Option<ContextRetain>,
}

impl Default for Context {
    fn default() -> Self {
        Self {
            max_tokens: None,
            seed_budget: 0.10,
            seed_overflow_margin: 0.10,
            record: true,
            record_store: None,
            retain: None,
        }
    }
}

/// `context.retain`; at least one key is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextRetain {
    /// Oldest first are trimmed.
    pub max_messages: Option<u64>,
    /// Since the record's last write.
    pub max_age: Option<Duration>,
}

/// `trace`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceConfig {
    /// What of the content is captured.
    pub capture: Capture,
    /// Absent = nothing is ever removed.
    pub retain: Option<Retain>,
}

/// `trace.capture`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Capture {
    /// No content hashes.
    None,
    /// Hashes.
    #[default]
    Meta,
    /// Hashes, blobs and tool output.
    Content,
}

impl Capture {
    /// Every word, as the manifest writes it.
    pub const WORDS: &[&str] = &["none", "meta", "content"];
}

/// `trace.retain`; at least one key is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retain {
    /// At least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_sessions: Option<u64>,
    /// By the time in the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<Duration>,
}

/// `observability`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observability {
    /// OTLP/HTTP base URL; absent = nothing is exported.
    pub otel_endpoint: Option<String>,
    /// Handed to hooks as `MURMUR_EVAL_CONFIG`.
    pub eval: Option<serde_json::Value>,
}

/// `network`: the door.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Absent or 0 = the system picks.
    pub internal_port: Option<u16>,
    /// Absent = a public door.
    pub authentication: Option<Authentication>,
}

/// `network.authentication`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authentication {
    /// Declared credentials by name; `operator` comes on top at every launch.
    pub credentials: Vec<Credential>,
}

/// One declared credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// `^[a-z][a-z0-9_-]{0,31}$`, never `operator`.
    pub name: String,
    /// In the order written, each of [`SCOPES`], none twice.
    pub scopes: Vec<String>,
}

/// Every scope a credential can carry.
pub const SCOPES: [&str; 9] = [
    "SendMessage",
    "SendStreamingMessage",
    "murmur.WatchSession",
    "GetTask",
    "ListTasks",
    "CancelTask",
    "SubscribeToTask",
    "murmur.StopSession",
    "resources/files",
];

/// `lifecycle`, defaults applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// Which tasks are taken.
    pub task_acceptance: Acceptance,
    /// What follows the last task.
    pub after_task: AfterTask,
    /// Waiting tasks under `queue`.
    pub queue_depth: u32,
    /// Wait for the answer to a request for input; absent = for ever.
    pub input_timeout_secs: Option<u64>,
    /// Whether a task's context is loaded.
    pub conversation: Conversation,
    /// Reopens a hook may ask for, per task.
    pub max_task_reopens: u32,
    /// Foreground time of a command.
    pub shell_grace_secs: u64,
    /// From a delegated child's readiness.
    pub delegation_deadline_secs: u64,
    /// Absent = derived from the deadline.
    pub deadline_notice_secs: Option<u64>,
    /// Sent as the next user message at each turn's end.
    pub keep_working: Option<KeepWorking>,
    /// A command that decides whether a task is done.
    pub done_check: Option<DoneCheck>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            task_acceptance: Acceptance::Single,
            after_task: AfterTask::Exit,
            queue_depth: 1,
            input_timeout_secs: None,
            conversation: Conversation::Stateless,
            max_task_reopens: 1,
            shell_grace_secs: 10,
            delegation_deadline_secs: 600,
            deadline_notice_secs: None,
            keep_working: None,
            done_check: None,
        }
    }
}

impl Lifecycle {
    /// Whether a session goes on after a task.
    pub fn goes_on(&self) -> bool {
        self.task_acceptance == Acceptance::Queue && self.after_task == AfterTask::Sleep
    }

    /// Tasks held at once: none 0, single 1, queue its depth and one more.
    pub fn holds(&self) -> usize {
        match self.task_acceptance {
            Acceptance::None => 0,
            Acceptance::Single => 1,
            Acceptance::Queue => self.queue_depth as usize + 1,
        }
    }
}

/// `lifecycle.task_acceptance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Acceptance {
    /// Only what it was launched with.
    None,
    /// One at a time.
    Single,
    /// One and a queue behind it.
    Queue,
}

impl Acceptance {
    /// Every word.
    pub const WORDS: &[&str] = &[Self::None.as_str(), Self::Single.as_str(), Self::Queue.as_str()];

    /// The word of manifest and flag.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Single => "single",
            Self::Queue => "queue",
        }
    }

    /// Reads the word.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::None, Self::Single, Self::Queue].into_iter().find(|value| value.as_str() == text)
    }
}

/// `lifecycle.after_task`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AfterTask {
    /// Ends.
    Exit,
    /// Waits; acts only with `queue`.
    Sleep,
}

impl AfterTask {
    /// Every word.
    pub const WORDS: &[&str] = &[Self::Exit.as_str(), Self::Sleep.as_str()];

    /// The word of manifest and flag.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::Sleep => "sleep",
        }
    }

    /// Reads the word.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Exit, Self::Sleep].into_iter().find(|value| value.as_str() == text)
    }
}

/// `lifecycle.conversation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversation {
    /// Each task starts afresh.
    Stateless,
    /// A task with a context id loads that record.
    Threaded,
}

/// `lifecycle.keep_working`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepWorking {
    /// Sent verbatim.
    pub message: String,
    /// At least 1.
    pub limit: u64,
}

/// `lifecycle.done_check`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoneCheck {
    /// Its first word is a binary of `shell.allow`.
    pub command: String,
    /// 0 records without reopening.
    pub limit: u64,
    /// At least 1.
    pub timeout_secs: u64,
}

/// `exports`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exports {
    /// `peer_tasks.accept`: other members may send tasks.
    pub peer_tasks: bool,
    /// Files clients may read.
    pub files: Option<ExportedFiles>,
    /// Files peers may fetch.
    pub peer_files: Option<PeerFiles>,
}

/// `exports.files`; the mode is always read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedFiles {
    /// Relative, without `..`.
    pub root: String,
    /// A larger file is listed and refused on read.
    pub max_bytes: u64,
}

/// `exports.peer_files`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFiles {
    /// Relative, without `..`.
    pub root: String,
    /// Absent = the default of the lifecycle.
    pub max_ttl: Option<Duration>,
    /// Bytes a file.
    pub max_bytes: u64,
}

/// `control`; at least one list is non-empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Settings the operator may change.
    pub settings: Vec<String>,
    /// Settings the model may change.
    pub agent_settings: Vec<String>,
    /// Credentials the operator may replace.
    pub secrets: Vec<String>,
}
