//! What a running session consists of, shared by its loop, its door and the calls it answers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::agent::Meters;
use super::commands::Commands;
use super::deadline::{Deadline, Start};
use super::folder_size::FolderSize;
use super::hooks::Hooks;
use super::pulls::Pulls;
use super::tasks::TaskRegistry;
use crate::credentials::channel::Membership;
use crate::egress::{Egress, Gateway, Peers, RuleSet, Secret, Sender, TrustClass};
use crate::ids::{ContextId, FormationId, SessionId};
use crate::manifest::{Capsule, Inference};
use crate::paths::MurmurHome;
use crate::trace::Trace;
use crate::worker::{BoxFuture, WorkerSet};

/// One session of an agent capsule, from its announcement to its end.
pub struct SessionContext {
    /// Its id.
    pub session_id: SessionId,
    /// The manifest as launched: flags that replace a key of it are applied.
    pub capsule: Arc<Capsule>,
    /// The operator's `~/.murmur`.
    pub home: MurmurHome,
    /// When the process began.
    pub start: Start,
    /// Its folders.
    pub dirs: Directories,
    /// What the model may call.
    pub inventory: Inventory,
    /// The driver that is asked.
    pub driver: Driver,
    /// Which artifact may send where.
    pub senders: BTreeMap<String, ArtifactNetwork>,
    /// Where the capsule as a whole may send: the runtime's own calls to members are checked against it.
    pub rules: RuleSet,
    /// The way out.
    pub egress: Arc<Egress>,
    /// Of a formation member.
    pub membership: Option<Arc<Membership>>,
    /// The doors of the members it may call, as the egress knows them.
    pub peers: Option<Arc<dyn Peers>>,
    /// The guest workers.
    pub workers: WorkerSet,
    /// What it may run beside them.
    pub commands: Arc<Commands>,
    /// How much its folders hold.
    pub folder_size: FolderSize,
    /// What may be pulled, and was; `None` without a grant.
    pub pulls: Option<Arc<Pulls>>,
    /// The hooks.
    pub hooks: Hooks,
    /// What has been used so far.
    pub used: Mutex<Meters>,
    /// The tasks.
    pub tasks: TaskRegistry,
    /// The record of the run.
    pub trace: Trace,
    /// Of a member, and of a member's delegated child.
    pub formation: Option<FormationId>,
    /// The prompt of the manifest or the command line.
    pub system_prompt: SystemPrompt,
    /// When the session has to be over.
    pub deadline: Option<Deadline>,
    /// `--context`, or the context of the session that is resumed.
    pub launch_context: Option<ContextId>,
    /// Whether an earlier session is resumed: then every task loads what its context holds.
    pub resumed: bool,
    /// Whether its conversation is to be shortened first.
    pub resume_compact: bool,
    /// `localhost:<port>`.
    pub url: String,
    /// `spend.machine_tokens_per_day`.
    pub machine_tokens_per_day: Option<u64>,
}

/// The folders of a session, each absolute with links resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories {
    /// The work folder: `.` of tools.
    pub work: PathBuf,
    /// The records directory, kept after the session.
    pub records: PathBuf,
    /// The runtime directory, `murmur-runtime` of tools, removed at the end.
    pub runtime: PathBuf,
}

impl Directories {
    /// The last ended task's answer.
    pub fn result(&self) -> PathBuf {
        self.records.join("out/result.txt")
    }

    /// The running task's text.
    pub fn task(&self) -> PathBuf {
        self.runtime.join("task.md")
    }

    /// The folder of a staged tool.
    pub fn tool(&self, name: &str) -> PathBuf {
        self.runtime.join("tools").join(name)
    }

    /// Diagnostics of the session.
    pub fn logs(&self) -> PathBuf {
        self.records.join("logs")
    }
}

/// The prompt before the `[Capsule]` block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemPrompt {
    /// The text; `None` when there is none or it was cleared.
    pub text: Option<String>,
    /// Whether `--system-prompt` gave it.
    pub from_cli: bool,
}

impl SystemPrompt {
    /// `manifest`, `cli` or `none`.
    pub fn source(&self) -> &'static str {
        match (self.from_cli, &self.text) {
            (true, _) => "cli",
            (false, Some(_)) => "manifest",
            (false, None) => "none",
        }
    }
}

/// How a tool is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolKind {
    /// A component in the `tools` worker, by its bare name.
    Wasm,
    /// The text of `skill.md` in its runtime folder.
    Skill,
    /// By a program of the artifact's own.
    Native,
    /// By a program of `capabilities.shell.allow`.
    Shell,
    /// By the runtime itself.
    Provided,
}

/// One name the model may call, or an artifact shown in `MURMUR.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The bare name.
    pub name: String,
    /// `<scope>/<name>`; the bare name for what the runtime provides.
    pub full: String,
    /// Its version; `0.0.0` for what the runtime provides.
    pub version: String,
    /// How it is answered.
    pub kind: ToolKind,
    /// What it says of itself; empty when nothing.
    pub description: String,
    /// JSON Schema of its input.
    pub input_schema: Value,
    /// Fields every input must have; `None` when the schema is malformed and calls go unchecked (`W-RUN-004`).
    pub required: Option<Vec<String>>,
}

/// What the model may call, by name in ascending order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory(Vec<Tool>);

impl Inventory {
    /// Sorts what was staged.
    pub fn new(mut tools: Vec<Tool>) -> Self {
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        Self(tools)
    }

    /// In name order.
    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.0.iter()
    }

    /// By bare name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.binary_search_by(|tool| tool.name.as_str().cmp(name)).ok().map(|index| &self.0[index])
    }

    /// The names, in order.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|tool| tool.name.clone()).collect()
    }
}

/// The driver choice of the session.
#[derive(Clone, Debug, PartialEq)]
pub struct Driver {
    /// Full name.
    pub full: String,
    /// Bare name: its id in the `driver` worker.
    pub bare: String,
    /// Version.
    pub version: String,
    /// Where its gateway's requests go.
    pub endpoint: String,
    /// The model asked for.
    pub model: String,
    /// `inference.driver.config` as compact JSON.
    pub config_json: Option<String>,
    /// What the model takes.
    pub limits: ModelBudget,
    /// Most output tokens of each model in the driver's table.
    pub ceilings: BTreeMap<String, u64>,
    /// What a compaction asks with.
    pub compaction: CompactionChoice,
}

/// What `inference.compaction` comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionChoice {
    /// The prompt, inline or read from its file.
    pub system_prompt: Option<String>,
    /// The driver's configuration with the compaction's keys over it, as compact JSON; `None` without such keys.
    pub config_json: Option<String>,
}

/// What one request to the model may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelBudget {
    /// Output cap of a turn, sent as `max_tokens`.
    pub max_output_tokens: u64,
    /// Where the cap came from: `manifest` or `driver`.
    pub max_output_tokens_source: &'static str,
    /// Input and output together.
    pub context_window: Option<u64>,
    /// `manifest` or `driver`.
    pub context_window_source: Option<&'static str>,
    /// The driver's input ceiling.
    pub max_input_tokens: Option<u64>,
}

impl ModelBudget {
    /// The window less the output cap, or the driver's input ceiling if that is smaller.
    pub fn input_budget(&self) -> Option<u64> {
        let rest = self.context_window.map(|window| window.saturating_sub(self.max_output_tokens));
        match (rest, self.max_input_tokens) {
            (Some(rest), Some(ceiling)) => Some(rest.min(ceiling)),
            (one, other) => one.or(other),
        }
    }

    /// What decides the input budget: `context_window` or `max_input_tokens`.
    pub fn input_budget_basis(&self) -> Option<&'static str> {
        let rest = self.context_window.map(|window| window.saturating_sub(self.max_output_tokens));
        match (rest, self.max_input_tokens) {
            (Some(rest), Some(ceiling)) if ceiling < rest => Some("max_input_tokens"),
            (Some(_), _) => Some("context_window"),
            (None, Some(_)) => Some("max_input_tokens"),
            (None, None) => None,
        }
    }

    /// As `session_start` shows it.
    pub fn view(&self) -> Value {
        let source = self.max_input_tokens.map(|_| "driver");
        serde_json::json!({
            "max_output_tokens": self.max_output_tokens,
            "max_output_tokens_source": self.max_output_tokens_source,
            "context_window": self.context_window,
            "context_window_source": self.context_window_source,
            "max_input_tokens": self.max_input_tokens,
            "max_input_tokens_source": source,
            "input_budget": self.input_budget(),
            "input_budget_basis": self.input_budget_basis(),
        })
    }
}

/// Where one artifact's requests may go.
#[derive(Clone, Default)]
pub struct ArtifactNetwork {
    /// Its rules, narrowed by its entry.
    pub rules: RuleSet,
    /// Its credential gateway.
    pub gateway: Option<Arc<Gateway>>,
}

impl SessionContext {
    /// The `inference` block; a session context is made for agent capsules only.
    pub fn inference(&self) -> &Inference {
        self.capsule.inference.as_ref().unwrap_or_else(|| unreachable!("sessions with a context are agent sessions"))
    }

    /// What has been used so far, for as long as nothing is waited for.
    pub fn meters(&self) -> MutexGuard<'_, Meters> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every provider key seen so far, to be taken out of texts with [`crate::egress::secret::redact`].
    pub fn secrets(&self) -> Vec<Secret> {
        self.senders
            .values()
            .filter_map(|network| network.gateway.as_ref())
            .flat_map(|gateway| gateway.secrets())
            .collect()
    }

    /// What a pulled tool may reach: what the capsule as a whole may, and no gateway.
    fn network_of_pulled(&self, artifact: &str) -> ArtifactNetwork {
        let pulled = self.pulls.as_ref().is_some_and(|pulls| pulls.get(artifact).is_some());
        if pulled { ArtifactNetwork { rules: self.rules.clone(), gateway: None } } else { ArtifactNetwork::default() }
    }

    /// A name the model may call: staged, or pulled since.
    pub fn tool(&self, name: &str) -> Option<Tool> {
        let staged = self.inventory.get(name).cloned();
        staged.or_else(|| self.pulls.as_ref().and_then(|pulls| pulls.get(name)))
    }

    /// Whether a name was pulled by the session itself.
    pub fn is_pulled(&self, name: &str) -> bool {
        self.inventory.get(name).is_none()
    }

    /// On whose behalf an artifact's request is sent; an artifact that is not of this session reaches nothing.
    pub fn sender(&self, artifact: &str, trust: TrustClass, traceparent: Option<String>) -> Sender {
        let network = self.senders.get(artifact).cloned().unwrap_or_else(|| self.network_of_pulled(artifact));
        Sender { artifact: artifact.to_owned(), rules: network.rules, gateway: network.gateway, trust, traceparent }
    }
}

/// Runs a blocking piece of work off the async thread.
pub fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> BoxFuture<'static, T> {
    Box::pin(async move {
        match tokio::task::spawn_blocking(work).await {
            Ok(value) => value,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    })
}

/// A path as text for JSON and messages.
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_budget_is_the_smaller_of_window_and_ceiling() {
        let budget = |window, ceiling| ModelBudget {
            max_output_tokens: 100,
            max_output_tokens_source: "manifest",
            context_window: window,
            context_window_source: None,
            max_input_tokens: ceiling,
        };
        let rows = [
            (Some(1000), None, Some(900), Some("context_window")),
            (Some(1000), Some(500), Some(500), Some("max_input_tokens")),
            (Some(1000), Some(950), Some(900), Some("context_window")),
            (None, Some(500), Some(500), Some("max_input_tokens")),
            (None, None, None, None),
            (Some(50), None, Some(0), Some("context_window")),
        ];
        for (window, ceiling, expected, basis) in rows {
            assert_eq!(budget(window, ceiling).input_budget(), expected);
            assert_eq!(budget(window, ceiling).input_budget_basis(), basis);
        }
    }
}
