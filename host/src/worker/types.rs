//! The words of the worker seam: what a session hands to a worker, what it gets back, and what it answers.

use std::fmt;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use super::hook::{InferenceRequest, InferenceResponse, IoError, MessagePage, TaskIo, TaskIoReply};
use crate::diagnostics::{Diagnostic, codes};
use crate::egress::{self, HttpError, HttpRequest, HttpResponse, PeerAnswer, PeerMessage};

/// A boxed future that a task of the session can run.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Which artifacts a worker runs: those with this `runtime:` in their manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `runtime: driver`, and a script capsule's own component.
    Driver,
    /// `runtime: tool`.
    Tools,
    /// `runtime: hook`.
    Hooks,
}

impl Kind {
    /// Every kind, in the order workers are started.
    pub const ALL: [Self; 3] = [Self::Driver, Self::Tools, Self::Hooks];

    /// The word on the worker's command line and in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Tools => "tools",
            Self::Hooks => "hooks",
        }
    }

    /// Reads the word of a command line.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a worker is started under.
#[derive(Debug, Default)]
pub struct WorkerSetup {
    /// The confinement to enter before any artifact is loaded; `None` only under class `unconfined`.
    pub confinement: Option<Confinement>,
    /// The session's logs directory: the worker's stdout and stderr are kept there, bounded. `None` drops them.
    pub logs: Option<PathBuf>,
}

/// A containment library and the request it is entered with.
#[derive(Debug)]
pub struct Confinement {
    /// The library, checked and hashed by `mur`; the worker loads it from this descriptor.
    pub library: OwnedFd,
    /// The request in the library's own form.
    pub request: Vec<u8>,
    /// The descriptors the request speaks of, in its order: scope, namespaces, ruleset.
    pub fds: Vec<OwnedFd>,
    /// Whether the worker gets a root of its own. A descriptor of a folder outside of it would lead back out, so such a
    /// worker opens its folders itself, inside.
    pub own_root: bool,
}

/// One artifact to load into a worker.
#[derive(Debug)]
pub struct ArtifactSpec {
    /// How calls name it: the bare name.
    pub id: String,
    /// `<scope>/<name>@<version>`, for messages.
    pub full: String,
    /// The compiled form, read only.
    pub compiled: OwnedFd,
    /// Its folders.
    pub preopens: Vec<Preopen>,
    /// Its environment, names unique; nothing else is in it.
    pub env: Vec<(String, String)>,
    /// Its limits.
    pub limits: CallLimits,
}

/// A folder an artifact sees.
#[derive(Debug)]
pub struct Preopen {
    /// The folder on the host.
    pub source: PreopenSource,
    /// The name the artifact sees it under, such as `.` or `state`.
    pub guest: String,
    /// Whether it may be changed.
    pub write: bool,
}

/// How the folder of a [`Preopen`] is named.
#[derive(Debug)]
pub enum PreopenSource {
    /// An open directory, handed over as it is.
    Directory(OwnedFd),
    /// A path `mur` opens when the artifact is loaded; the folder must exist.
    Path(PathBuf),
}

/// What one call may use. Instantiation and the call each get the whole deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// Bytes of linear memory, all memories of the call together.
    pub memory: u64,
    /// Elements, all tables of the call together.
    pub table_elements: u64,
    /// Core instances.
    pub instances: u32,
    /// How long the artifact may run.
    pub deadline: Duration,
}

impl Default for CallLimits {
    /// The values of a manifest without `capabilities.limits`.
    fn default() -> Self {
        Self { memory: 512 << 20, table_elements: 100_000, instances: 1000, deadline: Duration::from_secs(600) }
    }
}

/// `murmur:tool/run` `tool-input`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolInput {
    /// The call's input as JSON text.
    pub data: Option<String>,
    /// Always `None` from the runtime.
    pub log_path: Option<String>,
}

/// `murmur:tool/run` `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The tool did what was asked.
    Passed,
    /// It ran, and what it checked did not hold.
    Failed,
    /// It could not run.
    Error,
}

/// `murmur:tool/run` `tool-result`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult {
    /// How it went.
    pub status: Status,
    /// A short text, seen when there is no `data`.
    pub summary: Option<String>,
    /// The result.
    pub data: Option<String>,
    /// A file in the work folder that holds the result; to be opened beneath it only.
    pub data_path: Option<String>,
    /// Whether the tool cut its output.
    pub truncated: bool,
    /// Keys and values for the host, in the order given.
    pub metadata: Vec<(String, String)>,
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The component trapped; the text names the trap.
    Trap(String),
    /// The call outran its deadline.
    Deadline(Duration),
    /// The call reached its memory limit and could not go on (bytes).
    Memory(u64),
    /// The call reached its table or instance limit (which, and the limit).
    Limit(&'static str, u64),
    /// The component imports something its kind is not given (the interface).
    MissingImport(String),
    /// The component lacks the export that was called.
    MissingExport(String),
    /// The compiled form could not be loaded or instantiated.
    Instantiate(String),
    /// The worker is gone.
    Lost(LostWorker),
    /// The call was cancelled.
    Cancelled,
    /// The session asked for something the worker does not have, or sent more than a frame may hold.
    Refused(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trap(text) => write!(f, "trap: {text}"),
            Self::Deadline(limit) => write!(f, "it ran longer than its deadline of {} s", limit.as_secs_f64()),
            Self::Memory(limit) => write!(f, "it reached its memory limit of {limit} bytes"),
            Self::Limit(what, limit) => write!(f, "it reached its limit of {limit} {what}"),
            Self::MissingImport(name) => write!(f, "it imports {name}, which is not given to artifacts of its kind"),
            Self::MissingExport(name) => write!(f, "it does not export {name}"),
            Self::Instantiate(text) | Self::Refused(text) => f.write_str(text),
            Self::Lost(lost) => write!(f, "{lost}"),
            Self::Cancelled => f.write_str("the call was cancelled"),
        }
    }
}

impl std::error::Error for CallError {}

/// A worker that ended or fell silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostWorker {
    /// Which worker.
    pub kind: Kind,
    /// Its process id.
    pub pid: i32,
    /// The call that was running, such as `tool 'echo'`; `None` when none was.
    pub call: Option<String>,
    /// How it ended, in words.
    pub how: String,
}

impl LostWorker {
    /// The diagnostic that ends the run: `E-RUN-065`.
    pub fn diagnostic(&self) -> Diagnostic {
        Diagnostic::new(codes::E_RUN_065, self.to_string())
            .hint("a worker is not started again within a session; run the capsule again")
    }
}

impl fmt::Display for LostWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} worker (pid {}) was lost ", self.kind, self.pid)?;
        match &self.call {
            Some(call) => write!(f, "during {call}: {}", self.how),
            None => write!(f, "while no call was running: {}", self.how),
        }
    }
}

/// `murmur:process/exec` `request`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRequest {
    /// The bare name of a program of `capabilities.shell.allow`.
    pub binary: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Bytes for its standard input.
    pub stdin: Option<Bytes>,
    /// Variables set for it.
    pub env: Vec<(String, String)>,
    /// How long it may run, in milliseconds.
    pub timeout_ms: Option<u64>,
}

/// `murmur:process/exec` `outcome`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessOutcome {
    /// The exit code of a program that exited.
    pub exit_code: Option<i32>,
    /// The signal of one that was killed.
    pub signal: Option<i32>,
    /// What it wrote to its standard output.
    pub stdout: Bytes,
    /// What it wrote to its standard error.
    pub stderr: Bytes,
    /// Whether either was cut.
    pub truncated: bool,
}

/// What a running call may ask of `mur`. One value serves one call; every policy check is made behind it.
pub trait HostCalls: Send + Sync {
    /// One HTTP request of the artifact.
    fn http<'a>(&'a self, artifact: &'a str, request: HttpRequest) -> BoxFuture<'a, Result<HttpResponse, HttpError>>;

    /// A fragment of text for the task's stream.
    fn emit_chunk(&self, _text: &str) {}

    /// A fragment of reasoning for the task's stream.
    fn emit_thinking(&self, _text: &str) {}

    /// The model began to write a tool call.
    fn tool_call_started(&self, _id: &str, _name: &str) {}

    /// How many bytes of a tool call's input the model has written so far.
    fn tool_call_input_bytes(&self, _id: &str, _bytes: u64) {}

    /// Parks the task until somebody answers the prompt. An error becomes the artifact's trap, word for word.
    fn request_input<'a>(&'a self, _prompt: &'a str) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async { Err("request-input is not available outside an A2A task context".to_owned()) })
    }

    /// Runs a program of the shell allow-list. Refusals start with `not-granted:`.
    fn process_run<'a>(
        &'a self,
        _artifact: &'a str,
        request: ProcessRequest,
    ) -> BoxFuture<'a, Result<ProcessOutcome, String>> {
        Box::pin(async move { Err(format!("not-granted: '{}' may not be run by this artifact", request.binary)) })
    }

    /// Sends one message to the door at an address, real or virtual. An error is the artifact's, word for word.
    fn message_send<'a>(
        &'a self,
        _artifact: &'a str,
        peer_url: &'a str,
        _message: PeerMessage,
    ) -> BoxFuture<'a, Result<PeerAnswer, String>> {
        Box::pin(async move { Err(egress::message_refused(peer_url)) })
    }

    /// One completion for a hook. An error is the hook's, word for word.
    fn run_inference(&self, _request: InferenceRequest) -> BoxFuture<'_, Result<InferenceResponse, String>> {
        Box::pin(async { Err(NO_DRIVER.to_owned()) })
    }

    /// The tokens of a text.
    fn count_tokens(&self, text: String) -> BoxFuture<'_, u64> {
        Box::pin(async move { (text.len() as u64).div_ceil(4) })
    }

    /// A hook's look at the running task.
    fn task_io(&self, _question: TaskIo) -> Result<TaskIoReply, IoError> {
        Err(IoError::NotGranted)
    }

    /// A hook's look at the conversation: messages newest first, from a cursor on.
    fn read_conversation(&self, _cursor: Option<String>, _most: u32) -> BoxFuture<'_, Result<MessagePage, String>> {
        Box::pin(async { Err("not-granted".to_owned()) })
    }
}

/// What a hook is told that asks for a completion where there is no driver to ask.
pub const NO_DRIVER: &str = "inference driver is not configured; add inference.driver.artifact to murmur.yaml";
