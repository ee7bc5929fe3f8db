//! `capabilities`: what the capsule, and each of its artifacts, may reach.

use super::network_rule::NetworkRule;
use crate::diagnostics::Result;
use mur_plugin_api::Class;

/// The capsule-wide block; absent keys grant nothing but the work folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Capabilities {
    /// Where HTTP requests may go.
    pub network: NetworkGrant,
    /// `peer_fetch.allow`, entries as written.
    pub peer_fetch: Vec<String>,
    /// What of the work folder is reachable.
    pub filesystem: Filesystem,
    /// Commands the model may run; absent = none.
    pub shell: Option<Shell>,
    /// Host variables handed on.
    pub env: EnvGrant,
    /// What the model may install while running.
    pub install: Option<Install>,
    /// Full names of capsules this one may delegate to.
    pub spawn_allow: Vec<String>,
    /// Bounds of each component call.
    pub limits: Limits,
    /// Bounds of native processes.
    pub resources: Resources,
    /// The floor the capsule declares; never `unconfined`.
    pub containment: Option<Class>,
    /// `plan.submit`.
    pub plan_submit: bool,
    /// `state` was written here, where it grants nothing (`W-SEC-014`).
    pub state_declared: bool,
    /// `conversation` was written here, where it grants nothing (`W-SEC-016`).
    pub conversation_declared: bool,
}

/// `capabilities.network`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkGrant {
    /// Allow entries as written; [`Capabilities::network_rules`] parses them.
    pub allow: Vec<String>,
    /// Commands may create `AF_UNIX` sockets.
    pub unix_sockets: bool,
}

impl Capabilities {
    /// The parsed allow list of the capsule.
    ///
    /// # Errors
    /// `E-CAP-001` naming the first entry that cannot be parsed.
    pub fn network_rules(&self) -> Result<Vec<NetworkRule>> {
        self.network.allow.iter().map(|entry| NetworkRule::parse(entry)).collect()
    }
}

/// `capabilities.filesystem`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filesystem {
    /// Absent = the whole work folder. As written; see [`super::check_scope`].
    pub scope: Option<String>,
    /// Paths that may not be written, as written, blank entries dropped.
    pub read_only: Vec<String>,
    /// Files in the work folder may be executed.
    pub workdir_exec: bool,
}

/// `capabilities.shell`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shell {
    /// Bare binary names; at least one.
    pub allow: Vec<String>,
    /// Patterns stripped beside the credential patterns.
    pub strip_env: Vec<String>,
    /// Further host variables for commands.
    pub baseline_env: Vec<String>,
    /// Directories an interpreter may read.
    pub interpreter_runtime: Vec<InterpreterRuntime>,
    /// Runtimes staged into a composed root.
    pub staged_runtime: Vec<StagedRuntime>,
}

/// One entry of `capabilities.shell.interpreter_runtime`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterpreterRuntime {
    /// A binary of `allow`.
    pub binary: String,
    /// At least one.
    pub dirs: Vec<RuntimeDir>,
}

/// One directory of an interpreter's runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir {
    /// Absolute.
    pub path: String,
    /// Whether it may be listed.
    pub list_dir: bool,
}

/// One entry of `capabilities.shell.staged_runtime`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedRuntime {
    /// A binary of `allow`.
    pub binary: String,
    /// Absolute; need not exist yet.
    pub source_path: String,
    /// Non-empty.
    pub pin: String,
}

/// `capabilities.env`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvGrant {
    /// Names of host variables, in the order written.
    pub allow: Vec<String>,
}

/// `capabilities.install`: patterns as written, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Install {
    /// Tools that may be pulled.
    pub tool: Vec<String>,
    /// Skills that may be pulled.
    pub skill: Vec<String>,
    /// `from` names sources beside the stores.
    pub from_sources: bool,
}

/// `capabilities.limits`, defaults applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Linear memory of one call.
    pub memory_bytes: u64,
    /// Elements of all tables.
    pub table_elements: u64,
    /// Instances one call may make.
    pub instances: u64,
    /// Written capsule-wide value; absent = [`Limits::DEADLINE_SECONDS`] (hooks: [`Limits::HOOK_DEADLINE_SECONDS`]).
    pub deadline_seconds: Option<u64>,
}

impl Limits {
    /// Deadline of a tool's or driver's call when none is declared.
    pub const DEADLINE_SECONDS: u64 = 600;
    /// Deadline of a hook's call when none is declared.
    pub const HOOK_DEADLINE_SECONDS: u64 = 30;
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory_bytes: 536_870_912, table_elements: 100_000, instances: 1000, deadline_seconds: None }
    }
}

/// `capabilities.resources`, defaults applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the manifest's keys; units are in their names")]
pub struct Resources {
    pub max_processes: u64,
    pub max_open_files: u64,
    pub max_file_size_bytes: u64,
    pub cpu_seconds: u64,
    pub memory_bytes: u64,
    pub cgroup_memory_bytes: u64,
    pub cgroup_pids_max: u64,
    pub cgroup_cpu_percent: u64,
    pub cgroup_io_bytes_per_sec: u64,
    pub workdir_max_bytes: u64,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            max_processes: 128,
            max_open_files: 1024,
            max_file_size_bytes: 4_294_967_296,
            cpu_seconds: 3600,
            memory_bytes: 2_147_483_648,
            cgroup_memory_bytes: 4_294_967_296,
            cgroup_pids_max: 256,
            cgroup_cpu_percent: 200,
            cgroup_io_bytes_per_sec: 104_857_600,
            workdir_max_bytes: 10_737_418_240,
        }
    }
}

/// The block of one `artifacts` entry. What is absent depends on the role: a hook gets nothing, a tool or driver the
/// capsule-wide ceiling.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EntryCapabilities {
    /// `Some` when `network` was written with a value: entries as written, `[]` = none at all.
    pub network_allow: Option<Vec<String>>,
    /// One directory below the work folder.
    pub filesystem_scope: Option<String>,
    /// A hook's `.` is the records folder's `hooks/`.
    pub filesystem_records: bool,
    /// A state store.
    pub state: Option<State>,
    /// `task_io.read` of a hook.
    pub task_io_read: bool,
    /// `conversation.read` of a hook.
    pub conversation_read: bool,
    /// `limits.deadline_seconds` of a hook.
    pub deadline_seconds: Option<u64>,
    /// `shell.allow` of a tool or driver: what of the capsule's it may run through `murmur:process`.
    pub shell_allow: Option<Vec<String>>,
    /// Sub-keys that do nothing on this role, in the order `W-SEC-006`/`W-SEC-008` names them.
    pub inert: Vec<&'static str>,
}

/// `state`: a store of its own under `~/.murmur/state/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// As written, the capsule's name by default; see [`super::check_segment`].
    pub store: String,
}
