//! The agent loop: a task is asked of the model turn by turn, its tools are run, and its answer is handed back.
//!
//! [`Agent`] holds what stays the same for a session; a `TaskRun` is one task from its activation to its terminal state
//! (`run`), its turns (`turn`), its tool calls (`dispatch`) and the calls it makes to other members (`members`).

mod command_event;
mod compaction;
pub mod conversation;
mod dispatch;
mod ending;
mod fence;
pub mod hook_inference;
pub mod hook_messages;
mod hooked;
mod host_calls;
mod members;
mod native;
mod pairs;
mod prompt;
pub mod provided;
mod read_only;
mod recipe;
mod results;
mod retry;
mod run;
mod seed;
mod shell;
mod spend;
mod stream;
pub mod tokens;
mod turn;
mod wire;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::value::{RawValue, to_raw_value};
use sha2::{Digest, Sha256};

pub use fence::fenced;
pub use prompt::member_line;
pub use spend::Refused;
pub use wire::Message;

use super::context::{Tool, ToolKind};
use super::ledger::Ledger;
use super::tasks::ActiveTask;
use super::{SessionContext, TaskOutcome};
use crate::diagnostics::{Diagnostic, codes};
use crate::manifest::Capture;
use crate::paths::beneath;
use provided::Tokens;
use spend::Spend;

/// Replaces `lifecycle.delegation_deadline_secs` when it holds a positive number.
const DELEGATION_TIMEOUT: &str = "MURMUR_DELEGATION_TIMEOUT_SECS";

/// The agent of one session.
pub struct Agent {
    ctx: Arc<SessionContext>,
    /// The whole system prompt, the same for every request.
    system: Hashed<String>,
    /// The request's tool array, and how many pulls and removals it knows of.
    tools: Mutex<(Arc<ToolArray>, u64)>,
    notice_given: AtomicBool,
    /// The conversation of the resumed session was looked at for `--resume-mode compact`.
    resumed: AtomicBool,
}

/// What the model is offered, as it is sent.
struct ToolArray {
    text: Box<RawValue>,
    sha: String,
    names: Vec<String>,
}

/// A text and its SHA-256 in hex.
struct Hashed<T> {
    text: T,
    sha: String,
}

/// What the session has used.
pub struct Meters {
    spend: Spend,
    tokens: Tokens,
    /// Digests whose bodies are in `blobs/`.
    blobs: HashSet<String>,
}

impl Meters {
    /// Under the session's ceiling and the machine's, each if there is one.
    pub fn new(ceiling: Option<u64>, machine: Option<(u64, Ledger)>) -> Self {
        Self { spend: Spend::new(ceiling, machine), tokens: Tokens::default(), blobs: HashSet::new() }
    }
}

impl Agent {
    /// Prepares what every request of the session shares.
    pub fn new(ctx: Arc<SessionContext>) -> Self {
        let prompt = ctx.system_prompt.text.as_deref().unwrap_or_default();
        let system = prompt::system_prompt(&facts(&ctx), prompt);
        let tools = tool_array(&ctx);
        Self {
            system: Hashed { sha: sha256(system.as_bytes()), text: system },
            tools: Mutex::new((Arc::new(tools), 0)),
            notice_given: AtomicBool::new(false),
            resumed: AtomicBool::new(false),
            ctx,
        }
    }

    /// The tool array of the next request.
    fn tools(&self) -> Arc<ToolArray> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Takes up what was pulled and removed since: names added, names removed, and all there are now. `None` when nothing
    /// was.
    fn refresh_tools(&self) -> Option<(Vec<String>, Vec<String>, Vec<String>)> {
        let version = self.ctx.pulls.as_ref()?.version();
        let mut current = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        if current.1 == version {
            return None;
        }
        let fresh = tool_array(&self.ctx);
        let missing =
            |from: &[String], of: &[String]| of.iter().filter(|name| !from.contains(name)).cloned().collect::<Vec<_>>();
        let added = missing(&current.0.names, &fresh.names);
        let removed = missing(&fresh.names, &current.0.names);
        let all = fresh.names.clone();
        *current = (Arc::new(fresh), version);
        Some((added, removed, all))
    }

    /// Runs one task from its activation to its terminal state. Its records are written and flushed, and its result lies
    /// in the records directory, before the registry is told.
    pub async fn run_task(&self, task: ActiveTask) -> TaskOutcome {
        run::TaskRun::new(self, task).run().await
    }

    fn meters(&self) -> MutexGuard<'_, Meters> {
        self.ctx.meters()
    }

    /// Whether the deadline notice is still to be given; only the first call answers yes.
    fn notice_due(&self) -> bool {
        !self.notice_given.swap(true, Ordering::Relaxed)
    }

    /// Members this one may call, in roster order.
    fn callees(&self) -> Vec<String> {
        let membership = self.ctx.membership.iter();
        membership.flat_map(|membership| &membership.callees).map(|callee| callee.name.to_string()).collect()
    }

    /// How long a call to a member may take, offering and answering together.
    fn call_deadline(&self) -> Duration {
        let own = std::env::var(DELEGATION_TIMEOUT).ok().and_then(|text| text.trim().parse().ok());
        let secs = own.filter(|secs| *secs > 0).unwrap_or(self.ctx.capsule.lifecycle.delegation_deadline_secs);
        Duration::from_secs(secs)
    }

    /// Keeps the body of a digest under `trace.capture: content`, once.
    fn keep_blob(&self, sha: &str, body: &str) -> Result<(), Diagnostic> {
        if self.ctx.capsule.trace.capture != Capture::Content || !self.meters().blobs.insert(sha.to_owned()) {
            return Ok(());
        }
        beneath::write(&self.ctx.dirs.records, "blobs", sha, body.as_bytes()).map_err(|refusal| {
            Diagnostic::new(
                codes::E_RUN_007,
                format!("a body of the trace could not be kept in blobs/{sha}: {refusal}"),
            )
        })
    }
}

fn facts(ctx: &SessionContext) -> prompt::Facts {
    let capsule = &ctx.capsule;
    let scoped = capsule.capabilities.filesystem.scope.is_some();
    prompt::Facts {
        name: capsule.name.clone(),
        version: capsule.version.clone(),
        member: ctx.membership.as_ref().map(|membership| membership.member.to_string()),
        read_only: capsule.capabilities.filesystem.read_only.clone(),
        network: capsule.capabilities.network.allow.clone(),
        max_turns: ctx.inference().max_turns,
        max_session_tokens: ctx.inference().max_session_tokens,
        tool_reads_runtime_dir: !scoped
            && ctx.inventory.iter().any(|tool| tool.kind == ToolKind::Wasm && unscoped(ctx, &tool.name)),
        commands: ctx.commands.shell.as_ref().map(|_| prompt::CommandFacts {
            grace_secs: capsule.lifecycle.shell_grace_secs,
            limits: ctx.commands.unheld.is_none().then(|| {
                let resources = &capsule.capabilities.resources;
                (resources.memory_bytes, resources.cpu_seconds)
            }),
            reads_runtime_dir: ctx.commands.has_shell(),
        }),
    }
}

/// Whether a tool sees the whole work folder, and with it the runtime directory.
fn unscoped(ctx: &SessionContext, tool: &str) -> bool {
    let entry = ctx.capsule.artifacts.iter().find(|entry| entry.bare() == tool);
    entry.and_then(|entry| entry.capabilities.as_ref()).is_none_or(|own| own.filesystem_scope.is_none())
}

/// In name order, as the inventory is.
fn tool_array(ctx: &SessionContext) -> ToolArray {
    let mut tools: Vec<Tool> = ctx.inventory.iter().cloned().collect();
    tools.extend(ctx.pulls.iter().flat_map(|pulls| pulls.all()));
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    let entries: Vec<wire::ToolEntry<'_>> = tools
        .iter()
        .map(|tool| wire::ToolEntry {
            name: &tool.name,
            description: &tool.description,
            parameters: &tool.input_schema,
        })
        .collect();
    // Texts and JSON values always serialise.
    let text = to_raw_value(&entries).unwrap_or_default();
    let names = tools.iter().map(|tool| tool.name.clone()).collect();
    ToolArray { sha: sha256(text.get().as_bytes()), text, names }
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Lowercase hex digits.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_can_run_on_any_thread() {
        fn sendable<T: Send>(_: impl Fn(&'static Agent, ActiveTask) -> T) {}
        sendable(|agent, task| agent.run_task(task));
    }
}
