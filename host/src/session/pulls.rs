//! Artifacts the model installs while the session runs: the grant, the order of checks, and what a pulled tool runs as.
//!
//! Only tools and skills can be pulled, by the patterns of `capabilities.install`. A pulled tool gains no grant of its
//! own: it runs on what the capsule as a whole is granted, without a gateway and without a state store, in a `tools`
//! worker that is started for it where none runs yet.

mod fetch;
mod run;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::context::{Inventory, SessionContext, Tool, ToolKind};
use super::murmur_md::{self, Facts};
use crate::artifacts::compiled::CompiledForm;
use crate::artifacts::lock::Lock;
use crate::artifacts::store::Stores;
use crate::artifacts::{ArtifactName, Forms};
use crate::diagnostics::output;
use crate::ids::SessionId;
use crate::manifest::Install;
use crate::paths::{beneath, tree};
use crate::worker::{CallLimits, WorkerSetup};

/// A folder a pulled tool sees.
#[derive(Clone, Debug)]
pub struct SeenFolder {
    /// The folder on the host.
    pub path: PathBuf,
    /// The name the tool sees it under.
    pub guest: String,
    /// Whether it may be changed.
    pub write: bool,
}

/// What a launch hands over for later pulls.
pub struct Ground {
    /// The patterns.
    pub grant: Install,
    /// Where artifacts come from.
    pub stores: Stores,
    /// Where machine code is kept.
    pub forms: Forms,
    /// The project whose lock pins what is pulled.
    pub project: Option<PathBuf>,
    /// The session.
    pub session: SessionId,
    /// Its runtime directory.
    pub runtime: PathBuf,
    /// What a pulled tool sees.
    pub folders: Vec<SeenFolder>,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// Its limits.
    pub limits: CallLimits,
    /// How the `tools` worker is started, where none runs yet.
    pub setup: Option<WorkerSetup>,
}

/// The pulls of a session.
pub struct Pulls {
    ground: Ground,
    setup: Mutex<Option<WorkerSetup>>,
    /// One pull, removal or start at a time.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: BTreeMap<String, Pulled>,
    /// Raised with every change.
    version: u64,
}

struct Pulled {
    name: ArtifactName,
    tool: Tool,
    /// Until it is loaded.
    compiled: Option<CompiledForm>,
}

impl Pulls {
    /// With nothing pulled yet.
    pub fn new(mut ground: Ground) -> Self {
        let setup = Mutex::new(ground.setup.take());
        Self { ground, setup, turn: tokio::sync::Mutex::new(()), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pulled tool or skill by its bare name.
    pub fn get(&self, name: &str) -> Option<Tool> {
        self.state().held.get(name).map(|pulled| pulled.tool.clone())
    }

    /// Everything pulled so far.
    pub fn all(&self) -> Vec<Tool> {
        self.state().held.values().map(|pulled| pulled.tool.clone()).collect()
    }

    /// Changes with every pull and removal.
    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// Pulls an artifact, `<scope>/<name>` with or without `@<version>`. A refusal is the model's, word for word, and
    /// changes nothing.
    pub async fn pull(self: &Arc<Self>, ctx: &Arc<SessionContext>, reference: &str) -> Result<Value, String> {
        let _turn = self.turn.lock().await;
        let taken: Vec<String> = ctx.inventory.names();
        let (pulls, reference) = (Arc::clone(self), reference.to_owned());
        let fetched = super::context::blocking(move || {
            let held = |name: &ArtifactName| pulls.held(name);
            fetch::fetch(&pulls.ground, &reference, &taken, held)
        });
        let fetched = match fetched.await? {
            fetch::Answer::Held { name, version } => {
                return Ok(json!({
                    "artifact": name.as_str(), "version": version, "tool_name": name.bare(), "notes": "it is here already",
                }));
            }
            fetch::Answer::Fetched(fetched) => *fetched,
        };
        let runtime = if fetched.tool.kind == ToolKind::Skill { "skill" } else { "tool" };
        let mut record = json!({
            "name": fetched.name.as_str(), "version": fetched.tool.version, "runtime": runtime, "origin": "runtime",
            "session": self.ground.session.as_str(), "trust": "untrusted", "fetched_from": fetched.fetched_from,
        });
        if let Some(owner) = fetched.owner_id {
            record["owner_id"] = owner.into();
        }
        let answer = json!({
            "artifact": fetched.name.as_str(), "version": fetched.tool.version, "runtime": runtime,
            "tool_name": fetched.tool.name, "fetched_from": fetched.fetched_from,
        });
        {
            let mut state = self.state();
            let pulled = Pulled { name: fetched.name, tool: fetched.tool, compiled: fetched.compiled };
            state.held.insert(pulled.tool.name.clone(), pulled);
            state.version += 1;
        }
        ctx.trace.record_aside("artifact_pulled", None, record);
        self.rewrite_murmur_md(ctx);
        Ok(answer)
    }

    /// Removes what was pulled; `false` when it is not here.
    pub async fn remove(&self, ctx: &SessionContext, name: &str) -> Result<Value, String> {
        let _turn = self.turn.lock().await;
        let artifact = ArtifactName::parse_argument(name).map_err(|fault| format!("not-found: {}", fault.message()))?;
        if self.held(&artifact).is_none() {
            if ctx.inventory.iter().any(|tool| tool.full == artifact.as_str()) {
                return Err(format!(
                    "not-granted: '{artifact}' was declared by the operator and is not yours to remove"
                ));
            }
            return Ok(json!({"artifact": artifact.as_str(), "removed": false}));
        }
        if let Some(project) = &self.ground.project {
            let unpinned = Lock::update(project, |lock| {
                lock.remove_pulled(&artifact);
                Ok(())
            });
            unpinned.map_err(|fault| format!("not-removed: {}", fault.message()))?;
        }
        {
            let mut state = self.state();
            state.held.remove(artifact.bare());
            state.version += 1;
        }
        let _ = tree::remove(&self.ground.runtime.join("tools").join(artifact.bare()));
        self.rewrite_murmur_md(ctx);
        Ok(json!({"artifact": artifact.as_str(), "removed": true}))
    }

    /// The version of an artifact that is held.
    fn held(&self, name: &ArtifactName) -> Option<String> {
        let state = self.state();
        state.held.get(name.bare()).filter(|pulled| pulled.name == *name).map(|pulled| pulled.tool.version.clone())
    }

    /// `MURMUR.md` with what is here now.
    fn rewrite_murmur_md(&self, ctx: &SessionContext) {
        let mut tools: Vec<Tool> = ctx.inventory.iter().cloned().collect();
        tools.extend(self.all());
        let inventory = Inventory::new(tools);
        let formation = ctx.formation.as_ref().map(ToString::to_string);
        let text = murmur_md::render(&Facts {
            name: &ctx.capsule.name,
            version: &ctx.capsule.version,
            member: ctx.membership.as_ref().zip(formation.as_deref()).map(|(m, id)| (m.member.as_str(), id)),
            session: ctx.session_id.as_str(),
            url: Some(&ctx.url),
            model: &ctx.driver.model,
            driver: &ctx.driver.full,
            network: &ctx.capsule.capabilities.network.allow,
            scope: ctx.capsule.capabilities.filesystem.scope.as_deref(),
            max_turns: ctx.inference().max_turns,
            call_seconds: self.ground.limits.deadline.as_secs(),
            call_memory: self.ground.limits.memory,
            grace_secs: ctx.capsule.capabilities.shell.is_some().then_some(ctx.capsule.lifecycle.shell_grace_secs),
            inventory: &inventory,
        });
        if let Err(refusal) = beneath::write(&ctx.dirs.runtime, ".", "MURMUR.md", text.as_bytes()) {
            output::stderr_line(&format!("[capsule-runtime] MURMUR.md was not written: {refusal}"));
        }
    }
}
