//! Staging up to the point where something is created: everything a launch can be refused for on what it declares,
//! what is installed and what the host can back. A refusal here leaves nothing behind.

mod artifacts;
mod bounds;
mod commands;
mod driver;
mod enclosure;
mod folders;
mod hooks;
mod native;
mod network;
mod resume;
mod source;
mod task;
mod unserved;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

pub use artifacts::Part;
pub(crate) use artifacts::required_of;
pub(crate) use bounds::named as bound_named;
pub(crate) use commands::{declared as declared_for_commands, read_only_advisory_for};
pub(crate) use driver::{check_compaction, settle};
pub(crate) use hooks::of as hooks_of;
use mur_plugin_api::IoStatus;
pub(crate) use native::judge as judge_native;
pub use network::Networks;
pub use resume::Resumed;
pub use source::{Loaded, load};

use super::context::{Driver, SystemPrompt};
use super::deadline::Deadline;
use super::environment::{HostEnvironment, check_allow};
use super::grants::Facts;
use super::ledger::Ledger;
use super::order::{Joined, Spawner};
use super::request::RunRequest;
use crate::artifacts::Forms;
use crate::artifacts::lock::Lock;
use crate::artifacts::store::Stores;
use crate::containment::closure::Closure;
use crate::containment::{Class, Floors, Helper, Host, InForce, check_cgroup, class_in_force, parse_flag};
use crate::credentials::channel::Membership;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::ids::{ContextId, FormationId, SessionId};
use crate::manifest::{Capsule, HookContract, NetworkRule, covers_loopback_http};
use crate::paths::MurmurHome;
use crate::plugins::Registry;

/// A launch that nothing stands in the way of; nothing is created yet.
pub struct Plan {
    /// The session's id; its enclosure bears it already.
    pub session: SessionId,
    /// What was asked for.
    pub request: RunRequest,
    /// The operator's `~/.murmur`.
    pub home: MurmurHome,
    /// The formation it belongs to.
    pub formation: Option<FormationId>,
    /// Who delegated to it.
    pub spawner: Option<Spawner>,
    /// What the formation channel said.
    pub membership: Option<Arc<Membership>>,
    /// The manifest as launched.
    pub capsule: Arc<Capsule>,
    /// The manifest's text.
    pub manifest: Vec<u8>,
    /// The plugins.
    pub registry: Registry,
    /// `sinks:` of the global configuration.
    pub sinks: Vec<crate::config::PluginConfig>,
    /// `host_paths:` of the global configuration.
    pub host_paths: Vec<crate::config::HostPath>,
    /// `spend.machine_tokens_per_day`.
    pub machine_tokens_per_day: Option<u64>,
    /// Variables of the host, for `env.allow`.
    pub host: HostEnvironment,
    /// The class in force.
    pub in_force: InForce,
    /// Holds the session's enclosure, which is open; none under `unconfined`.
    pub helper: Option<Helper>,
    /// What shell commands use of the host; none without a grant of any.
    pub closure: Option<Closure>,
    /// What became of the bound of reading and writing.
    pub io: IoStatus,
    /// The checked library of that class.
    pub confinement: OwnedFd,
    /// Every artifact of the manifest.
    pub parts: Vec<Part>,
    /// The driver choice.
    pub driver: Driver,
    /// Who may send where.
    pub networks: Networks,
    /// The prompt.
    pub prompt: SystemPrompt,
    /// The launch's own text, and whether it came from `--task`.
    pub task: Option<Vec<u8>>,
    /// The deadline.
    pub deadline: Option<Deadline>,
    /// `--context`, or that of the session that is resumed.
    pub context: Option<ContextId>,
    /// The session that is resumed.
    pub resumed: Option<Resumed>,
    /// The work folder, when it is given; else the parent of the one to be made.
    pub place: WorkPlace,
    /// Where artifacts come from, for pulls while the session runs.
    pub stores: Option<Stores>,
    /// The project whose lock binds the launch.
    pub lock_project: Option<PathBuf>,
    /// A lock to be written once staging has succeeded, and the project it belongs to.
    pub new_lock: Option<(PathBuf, Lock)>,
    /// Warnings said on stderr, for the log.
    pub warnings: Vec<Diagnostic>,
}

impl Plan {
    /// What the effective grants are made from.
    pub fn facts(&self) -> Facts<'_> {
        Facts {
            capsule: &self.capsule,
            in_force: &self.in_force,
            home: &self.home,
            work_root: self.place.root(),
            closure: self.closure.as_ref(),
            io: &self.io,
        }
    }

    /// Whether the session may start programs, not only components.
    pub fn starts_commands(&self) -> bool {
        self.capsule.grants_commands() || self.parts.iter().any(|part| part.native.is_some())
    }
}

/// The work folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkPlace {
    /// Given and there: resolved.
    Given(PathBuf),
    /// `<root>/<ses_id>` is to be made.
    Under(PathBuf),
}

impl WorkPlace {
    /// The directory whose records group the session's records go to.
    pub fn root(&self) -> &PathBuf {
        match self {
            Self::Given(root) | Self::Under(root) => root,
        }
    }
}

/// Checks everything, in the order of refusals.
pub fn plan(request: RunRequest, joined: Joined, loaded: Loaded) -> Result<Plan> {
    let closure = loaded.closure(&joined.home);
    let Loaded {
        session,
        source,
        capsule,
        config,
        mut registry,
        stores,
        project,
        host,
        warnings: said,
        in_force,
        helper,
        io,
        place,
        resumed,
    } = loaded;
    unserved::check(&capsule)?;
    let mut warnings = Vec::new();
    let stores = match stores {
        Some(stores) => stores,
        None => Stores::open(&joined.home, project.as_deref(), &config, &mut registry)?,
    };
    let parts = artifacts::resolve(&capsule, &source, &stores, Forms::open(&joined.home, Some(place.root())))?;
    if capsule.starts_processes() {
        check_cgroup(&in_force)?;
    }
    warnings.extend(parts.warnings);
    let natives = parts.parts.iter().filter_map(|part| Some((part.entry.reference(), part.native.as_ref()?)));
    warnings.extend(natives.filter_map(|(reference, bytes)| native::hopeless(&reference, bytes, in_force.class)));
    let mut driver = driver::choose(&capsule, &parts.parts, &mut warnings)?;
    driver.compaction.system_prompt = source.compaction_prompt(&capsule)?;
    let networks = network::plan(&capsule, &parts.parts, &config, &joined.home, &host, &mut warnings)?;
    let prompt = source.prompt(&capsule, &request, &parts.parts)?;
    let task = task::of_launch(request.task.as_deref(), &place, joined.membership.is_some())?;
    let lifecycle = &capsule.lifecycle;
    let deadline =
        Deadline::earliest(request.start, request.deadline, request.inherited_deadline, lifecycle.deadline_notice_secs);
    let context = match &resumed {
        Some(resumed) => Some(resumed.context.clone()),
        None => request.context.as_deref().and_then(ContextId::parse),
    };
    if let Some(warning) = unreachable_peers(&capsule, joined.membership.as_ref()) {
        warnings.push(warning);
    }
    if config.machine_tokens_per_day.is_some() {
        // Under a ceiling nothing is sent without the ledger, so a launch without it would do nothing.
        Ledger::new(&joined.home, &SessionId::mint()).used()?;
    }
    let compacts = parts.parts.iter().filter_map(|part| part.hook.as_ref()).any(HookContract::compacts);
    let resuming = resumed.as_ref().map(|resumed| resumed.check(&joined.home, &capsule, compacts)).transpose()?;
    say(&warnings);
    warnings.splice(0..0, said);
    // A class whose library cannot be had is refused before anything is created.
    let confinement = registry.containment_library(in_force.class)?;
    if let Some(note) = resuming {
        output::stderr_line(&note);
    }
    Ok(Plan {
        session,
        home: joined.home,
        formation: joined.formation,
        spawner: joined.spawner,
        membership: joined.membership.map(Arc::new),
        manifest: source.manifest,
        capsule: Arc::new(capsule),
        registry,
        sinks: config.sinks,
        host_paths: config.host_paths,
        machine_tokens_per_day: config.machine_tokens_per_day,
        host,
        in_force,
        helper,
        closure,
        io,
        confinement,
        parts: parts.parts,
        driver,
        networks,
        prompt,
        task,
        deadline,
        context,
        resumed,
        place,
        new_lock: parts.new_lock,
        lock_project: source.locked_by,
        stores: Some(stores),
        warnings,
        request,
    })
}

/// Everything a launch refuses on the manifest alone, whatever host it is made on.
pub(crate) fn refusals(capsule: &Capsule) -> Vec<Diagnostic> {
    let mut refusals = Vec::new();
    refusals.extend(source::check_names(capsule).err());
    refusals.extend(source::check_record_store(capsule).err());
    refusals.extend(check_allow(&capsule.capabilities.env.allow, source::strip(capsule)).err());
    refusals.extend(unserved::check(capsule).err());
    refusals.extend(folders::faults(capsule));
    refusals.extend(bounds::faults(capsule));
    let own =
        capsule.artifacts.iter().filter_map(|entry| entry.capabilities.as_ref()?.network_allow.as_ref()).flatten();
    let destinations = capsule.capabilities.network.allow.iter().chain(own);
    refusals.extend(destinations.filter_map(|entry| NetworkRule::parse(entry).err()));
    refusals.extend(capsule.artifacts.iter().filter_map(|entry| entry.config_json().err()));
    refusals
}

/// What a launch under that class says of the programs that commands are: refuses them, or warns of them.
pub(crate) fn judge_programs(capsule: &Capsule, class: Class) -> (Option<Diagnostic>, Vec<Diagnostic>) {
    let Some(shell) = &capsule.capabilities.shell else { return (None, Vec::new()) };
    let search = source::search_path();
    (commands::in_root(shell, class, &search).err(), commands::found(shell, class, &search))
}

/// The class in force for a launch.
fn class_of(
    request: &RunRequest,
    capsule: &Capsule,
    config: Option<Class>,
    inside: bool,
    host: &mut dyn Host,
) -> Result<InForce> {
    let flag = request.containment.as_deref().map(parse_flag).transpose()?;
    let floors = Floors {
        manifest: capsule.capabilities.containment,
        config,
        flag,
        workdir_exec: capsule.capabilities.filesystem.workdir_exec,
        records_in_workdir: inside,
    };
    class_in_force(&floors, host)
}

/// The warning of a member that may call others and cannot reach any door.
fn unreachable_peers(capsule: &Capsule, membership: Option<&Membership>) -> Option<Diagnostic> {
    let membership = membership.filter(|membership| !membership.callees.is_empty())?;
    let rules = capsule.capabilities.network_rules().ok()?;
    if covers_loopback_http(&rules) {
        return None;
    }
    let callees: Vec<&str> = membership.callees.iter().map(|callee| callee.name.as_str()).collect();
    Some(doors_out_of_reach(membership.member.as_str(), &callees))
}

/// `W-RUN-008`.
pub(crate) fn doors_out_of_reach(member: &str, callees: &[&str]) -> Diagnostic {
    Diagnostic::new(
        codes::W_RUN_008,
        format!(
            "member '{member}' may call {}, but capabilities.network.allow reaches no member's door: every call will fail; \
             declare the entry localhost",
            callees.join(", ")
        ),
    )
}

/// Prints warnings of the launch on stderr; those that have a log keep them there too.
pub fn say(warnings: &[Diagnostic]) {
    for warning in warnings {
        match warning.code() {
            codes::W_SEC_019 => output::stderr_line(&format!("[murmur-artifact] {}", warning.warning_line())),
            codes::W_SEC_032 | codes::W_RUN_007 => output::stderr_line(&warning.warning_line()),
            _ => output::runtime_warning(warning),
        }
    }
}

/// By bare name.
pub type ByName<T> = BTreeMap<String, T>;
