//! From a plan to a session that can be reached: directories, workers, artifacts, door, trace, announcement.
//!
//! Until `session_start` is written everything made here is undone when it is dropped; the records directory stays, with
//! its empty trace.

pub mod commands;
mod folders;
mod network;
mod opening;
mod shell;
mod workers;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::announce::{Announcement, Manner};
use super::context::{Directories, Inventory, SessionContext, Tool, ToolKind};
use super::hooks::{Hooks, StagingCalls};
use super::ledger::Ledger;
use super::lifecycle::{self, Mode};
use super::murmur_md::{self, Facts};
use super::observer::Recorder;
use super::peers::Members;
use super::pulls::{Ground, Pulls};
use super::runtime_dir::{self, RuntimeDir};
use super::staging::{Plan, WorkPlace, hooks_of, say};
use super::tasks::{Capacity, NewTask, Origin, Source, Submitted, TaskRegistry};
use super::watch::End;
use super::{agent, environment, records_dir, retention};
use crate::artifacts::Forms;
use crate::credentials::door::{DoorTokens, Scope};
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::door::{self, CapsuleFacts, Door, DoorConfig, ExportedFiles};
use crate::egress::proxy::Proxy;
use crate::egress::{Egress, Peers};
use crate::ids::SessionId;
use crate::manifest::{Acceptance, Conversation, Role};
use crate::paths::make_private;
use crate::plugins::SessionHeader;
use crate::records::running;
use crate::trace::records::Retention;
use crate::trace::{Record as _, Trace};
use crate::worker::Kind;

/// A session whose `session_start` is written.
pub struct Running {
    /// What it consists of.
    pub context: Arc<SessionContext>,
    /// How it waits for tasks.
    pub mode: Mode,
    door: Option<Door>,
    record: Option<RunningRecord>,
    runtime: RuntimeDir,
    /// The way out of the session's network namespace, to the end of the session.
    proxy: Option<Proxy>,
}

/// Launches a planned session. `holds_lifeline` says whether a formation lifeline is held.
///
/// An error means that nothing was recorded. Once `session_start` is written the session is returned with whatever then
/// went wrong, so that its end is recorded too.
pub async fn launch(plan: Plan, holds_lifeline: bool, end: &End) -> Result<(Running, Result<()>)> {
    let made = Made::new(&plan)?;
    for warning in &plan.warnings {
        output::log(&format!("[capability-policy] {}", warning.warning_line()));
    }
    let mut plan = plan;
    if let Some(files) = &plan.capsule.exports.files {
        ExportedFiles::check(&made.dirs.work, &files.root)?;
    }
    let trace = open_trace(&mut plan, &made)?;
    let bound = door::bind(&plan.request.bind.to_string(), plan.capsule.network.internal_port)?;
    let url = bound.address();
    let (inventory, warnings) = inventory(&plan, &made)?;
    say(&warnings);
    let workers = workers::start(&mut plan, &made, &url).await?;
    let proxy = network::serve(&plan, &workers)?;
    let commands = shell::prepare(&plan, &made, &workers, &url)?;
    let hooks = Hooks::new(hooks_of(&plan.parts));
    stage(&plan, &made, &workers, &hooks).await?;
    write_murmur_md(&plan, &made, &inventory, &url);
    if let Some((project, lock)) = &plan.new_lock {
        lock.write(project)?;
    }
    let tokens = door_tokens(&plan)?.map(Arc::new);
    let facts = capsule_facts(&plan, &inventory);
    if tokens.is_none()
        && let Some(warning) = door::exposure_warning(&plan.request.bind.to_string(), &facts, accepts(&plan))
    {
        output::stderr_line(&warning.warning_line());
    }
    let task = plan.task.take().map(|bytes| launch_text(&made, bytes)).transpose()?;
    let pulls = pulls(&mut plan, &made, &workers, &url)?;
    let mut context = context(&plan, &made, inventory, workers, commands, trace, &url);
    (context.pulls, context.hooks) = (pulls, hooks);
    let context = Arc::new(context);
    let idle = lifecycle::idle_timeout(std::env::var(lifecycle::IDLE_VARIABLE).ok().as_deref());
    let mode = Mode::of(&plan.capsule.lifecycle, task.is_some(), holds_lifeline, idle);
    context.trace.start(&opening::session_start(&plan, &context))?;
    let Made { runtime, work_made, .. } = made;
    work_made.keep();
    retain(&plan, &context);
    end.started(&context, plan.deadline, plan.spawner.clone());
    Hooks::begin(&context);
    let told = Hooks::session_started(&context, &opening::capabilities(&plan.capsule)).await;
    let mut running = Running { context, mode, door: None, record: None, runtime, proxy };
    let opened = match told {
        Ok(()) => running.open(&plan, bound, facts, tokens, task, holds_lifeline),
        Err(lost) => Err(lost.diagnostic()),
    };
    Ok((running, opened))
}

impl Running {
    /// Enqueues the launch's task, writes the running record, answers at the door, and says so.
    fn open(
        &mut self,
        plan: &Plan,
        bound: door::Bound,
        facts: CapsuleFacts,
        tokens: Option<Arc<DoorTokens>>,
        task: Option<String>,
        holds_lifeline: bool,
    ) -> Result<()> {
        let context = &self.context;
        if let Some(text) = task {
            context.tasks.submit(NewTask::of_launch(text, plan.context.clone()));
        }
        report_lost(plan, context);
        self.record = Some(RunningRecord::write(plan, context, tokens.as_deref(), holds_lifeline));
        let config = DoorConfig {
            capsule: facts,
            session: context.session_id.clone(),
            tokens: tokens.clone(),
            formation: plan.membership.as_ref().map(|membership| membership.verifier()),
            accepts_peers: plan.capsule.exports.peer_tasks,
            accepts_tasks: accepts(plan),
            threaded: plan.capsule.lifecycle.conversation == Conversation::Threaded,
            context: plan.context.clone(),
            files: exported_files(plan, context),
        };
        self.door = Some(bound.serve(config, context.tasks.clone())?);
        announce(plan, context, tokens.as_deref());
        let home = plan.home.clone();
        // What killed sessions left is not this one's business to wait for.
        drop(tokio::task::spawn_blocking(move || runtime_dir::sweep(&home)));
        Ok(())
    }

    /// Closes the door, takes the running record and the runtime directory away.
    pub async fn close(self) {
        let Self { door, record, runtime, proxy, .. } = self;
        drop(proxy);
        if let Some(door) = door {
            door.close().await;
        }
        drop(record);
        drop(runtime);
    }
}

/// Tells of commands that the resumed session was killed over.
fn report_lost(plan: &Plan, context: &SessionContext) {
    let Some(resumed) = plan.resumed.as_ref().filter(|resumed| !resumed.still_runs(&plan.home)) else { return };
    let submit = |text| {
        let new = NewTask {
            origin: Origin::Completion,
            source: Source::DetachedLost,
            ..NewTask::of_launch(text, Some(resumed.context.clone()))
        };
        match context.tasks.submit(new) {
            Submitted::Accepted { view, .. } => Some(view.id),
            Submitted::Rejected(_) => None,
        }
    };
    if let Err(error) = super::commands::reconcile(&resumed.trace, &resumed.session, &context.session_id, submit) {
        output::stderr_line(&format!(
            "[capsule-runtime] background commands of {} were not looked for: {error}",
            resumed.session
        ));
    }
}

/// Removes earlier sessions over the limits of `trace.retain`, and records it. Nothing about it fails a launch.
fn retain(plan: &Plan, context: &SessionContext) {
    let Some(retain) = plan.capsule.trace.retain else { return };
    let group = retention::Group {
        home: &plan.home,
        records: &plan.home.records_group(plan.place.root()),
        work_root: match &plan.place {
            WorkPlace::Under(root) => Some(root),
            WorkPlace::Given(_) => None,
        },
        current: &context.session_id,
    };
    for record in retention::apply(&group, retain, crate::trace::unix_ms()) {
        context.trace.record_aside(Retention::TYPE, None, record);
    }
}

/// What was made before `session_start`, undone when it is dropped.
pub struct Made {
    session: SessionId,
    dirs: Directories,
    runtime: RuntimeDir,
    work_made: WorkFolder,
}

impl Made {
    fn new(plan: &Plan) -> Result<Self> {
        let session = plan.session.clone();
        let work_made = WorkFolder::of(&plan.place, &session)?;
        let work = work_made.path().to_path_buf();
        let records = records_dir::make(&plan.home, plan.place.root(), &session)?;
        let runtime = RuntimeDir::make(&plan.home, &session)?;
        let dirs = Directories { work, records, runtime: runtime.path().to_path_buf() };
        let written = runtime.write(crate::manifest::FILE_NAME, &plan.manifest);
        written.map_err(|error| not_written(&dirs.runtime, &error))?;
        Ok(Self { session, dirs, runtime, work_made })
    }
}

impl Made {
    /// A folder of the session's own in its records directory, made when it is first needed.
    fn private(&self, name: &str) -> Result<PathBuf> {
        let path = self.dirs.records.join(name);
        make_private(&path).map_err(|error| not_written(&path, &error))?;
        Ok(path)
    }
}

fn not_written(path: &Path, error: &std::io::Error) -> Diagnostic {
    Diagnostic::new(codes::E_IO_003, format!("{} cannot be written: {error}", path.display()))
}

/// The work folder; one that was made for a session that never started is removed again.
struct WorkFolder {
    path: PathBuf,
    remove: bool,
}

impl WorkFolder {
    fn of(place: &WorkPlace, session: &SessionId) -> Result<Self> {
        match place {
            WorkPlace::Given(path) => Ok(Self { path: path.clone(), remove: false }),
            WorkPlace::Under(root) => {
                let path = root.join(session.as_str());
                fs::create_dir_all(&path).map_err(|error| not_written(&path, &error))?;
                Ok(Self { path, remove: true })
            }
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn keep(mut self) {
        self.remove = false;
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if self.remove {
            let _ = fs::remove_dir(&self.path);
            // The root too, when it was made for this one.
            if let Some(root) = self.path.parent() {
                let _ = fs::remove_dir(root);
            }
        }
    }
}

/// The required sink and the configured ones, opened.
fn open_trace(plan: &mut Plan, made: &Made) -> Result<Trace> {
    let header = SessionHeader {
        session_id: made.session.to_string(),
        capsule: plan.capsule.name.clone(),
        version: plan.capsule.version.clone(),
        formation_id: plan.formation.as_ref().map(ToString::to_string),
        records_dir: made.dirs.records.clone(),
    };
    let mut main = plan.registry.sink("jsonl", json!({}))?;
    main.open(&header)?;
    let mut side = Vec::new();
    for configured in &plan.sinks {
        // Best effort begins with the opening.
        let opened = plan.registry.sink(&configured.plugin, configured.config.clone()).and_then(|mut sink| {
            sink.open(&header)?;
            Ok(sink)
        });
        match opened {
            Ok(sink) => side.push(sink),
            Err(fault) => output::stderr_line(&format!(
                "[capsule-runtime] the sink '{}' takes no records: {}",
                configured.plugin,
                fault.message()
            )),
        }
    }
    Ok(Trace::new(made.session.clone(), main, side))
}

/// What the model may call, each written into the runtime directory.
fn inventory(plan: &Plan, made: &Made) -> Result<(Inventory, Vec<Diagnostic>)> {
    let prompt = plan.capsule.inference.as_ref().map(|inference| &inference.system_prompt);
    let written = |error: std::io::Error| not_written(&made.dirs.runtime, &error);
    let (mut tools, mut warnings) = (Vec::new(), Vec::new());
    for part in &plan.parts {
        let Some((tool, warning)) = part.tool(prompt) else { continue };
        made.runtime.write_tool(&tool.name, crate::manifest::FILE_NAME, &part.manifest).map_err(written)?;
        if let Some(skill) = &part.skill {
            made.runtime.write_tool(&tool.name, "skill.md", skill.as_bytes()).map_err(written)?;
        }
        if let Some(program) = &part.native {
            made.runtime.write_program(&tool.name, program).map_err(written)?;
        }
        tools.push(tool);
        warnings.extend(warning);
    }
    let callees: Vec<String> = plan
        .membership
        .iter()
        .flat_map(|membership| &membership.callees)
        .map(|callee| callee.name.to_string())
        .collect();
    let allow = plan.capsule.capabilities.shell.as_ref().map(|shell| shell.allow.as_slice()).unwrap_or_default();
    let provided = agent::provided::provided(&callees, allow);
    let mut all: Vec<_> = provided.into_iter().map(|tool| (tool, ToolKind::Provided)).collect();
    for binary in allow {
        // The runtime's own names come first, then programs of native tools, then these, then components and skills.
        let taken = all.iter().any(|(tool, _)| tool.name == *binary)
            || tools.iter().any(|tool| tool.name == *binary && tool.kind == ToolKind::Native);
        if !taken {
            tools.retain(|tool| tool.name != *binary);
            all.push((agent::provided::shell_tool(binary), ToolKind::Shell));
        }
    }
    let install = plan.capsule.capabilities.install.as_ref();
    let for_install = install.map(agent::provided::provided_for_install).unwrap_or_default();
    all.extend(for_install.into_iter().map(|tool| (tool, ToolKind::Provided)));
    for (provided, kind) in all {
        made.runtime
            .write_tool(&provided.name, crate::manifest::FILE_NAME, provided.manifest().as_bytes())
            .map_err(written)?;
        let required = provided.input_schema.get("required").and_then(|list| {
            list.as_array().map(|list| list.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
        });
        tools.push(Tool {
            full: provided.name.clone(),
            name: provided.name,
            version: "0.0.0".to_owned(),
            kind,
            description: provided.description,
            input_schema: provided.input_schema,
            required: Some(required.unwrap_or_default()),
        });
    }
    Ok((Inventory::new(tools), warnings))
}

/// Writes `MURMUR.md`; a failed write is only said.
fn write_murmur_md(plan: &Plan, made: &Made, inventory: &Inventory, url: &str) {
    let capsule = &plan.capsule;
    let formation = plan.membership.as_ref().map(|membership| membership.formation.to_string());
    let text = murmur_md::render(&Facts {
        name: &capsule.name,
        version: &capsule.version,
        member: plan.membership.as_ref().zip(formation.as_deref()).map(|(m, id)| (m.member.as_str(), id)),
        session: made.session.as_str(),
        url: Some(url),
        model: &plan.driver.model,
        driver: &plan.driver.full,
        network: &capsule.capabilities.network.allow,
        scope: capsule.capabilities.filesystem.scope.as_deref(),
        max_turns: capsule.inference.as_ref().and_then(|inference| inference.max_turns),
        call_seconds: workers::limits(capsule).deadline.as_secs(),
        call_memory: capsule.capabilities.limits.memory_bytes,
        inventory,
        grace_secs: capsule.capabilities.shell.is_some().then_some(capsule.lifecycle.shell_grace_secs),
    });
    if let Err(error) = made.runtime.write("MURMUR.md", text.as_bytes()) {
        output::stderr_line(&format!("[capsule-runtime] MURMUR.md was not written: {error}"));
    }
}

/// The launch's text, also kept where the loop and the model find it.
fn launch_text(made: &Made, bytes: Vec<u8>) -> Result<String> {
    made.runtime.write("task.md", &bytes).map_err(|error| not_written(&made.dirs.task(), &error))?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

fn door_tokens(plan: &Plan) -> Result<Option<DoorTokens>> {
    let Some(authentication) = &plan.capsule.network.authentication else { return Ok(None) };
    let declared: Vec<(&str, Vec<Scope>)> = authentication
        .credentials
        .iter()
        .map(|one| (one.name.as_str(), one.scopes.iter().filter_map(|scope| Scope::parse(scope)).collect()))
        .collect();
    DoorTokens::mint(declared.iter().map(|(name, scopes)| (*name, scopes.as_slice()))).map(Some)
}

/// What the operator may read at the door while the session runs.
fn exported_files(plan: &Plan, context: &SessionContext) -> Option<ExportedFiles> {
    plan.capsule.exports.files.as_ref().map(|files| ExportedFiles {
        work: context.dirs.work.clone(),
        root: files.root.clone(),
        max_bytes: files.max_bytes,
        containment: plan.in_force.achieved.as_str().to_owned(),
        trace: context.trace.clone(),
    })
}

fn accepts(plan: &Plan) -> bool {
    plan.capsule.lifecycle.task_acceptance != Acceptance::None
}

fn capsule_facts(plan: &Plan, inventory: &Inventory) -> CapsuleFacts {
    let capsule = &plan.capsule;
    let installed = inventory.iter().filter(|tool| !matches!(tool.kind, ToolKind::Provided | ToolKind::Shell));
    CapsuleFacts {
        name: capsule.name.clone(),
        version: capsule.version.clone(),
        tools: installed.map(|tool| tool.name.clone()).collect(),
        shell: capsule.capabilities.shell.is_some(),
        network: !capsule.capabilities.network.allow.is_empty(),
        exports_files: capsule.exports.files.is_some(),
        exports_peer_files: capsule.exports.peer_files.is_some(),
    }
}

fn context(
    plan: &Plan,
    made: &Made,
    inventory: Inventory,
    workers: crate::worker::WorkerSet,
    commands: super::commands::Commands,
    trace: Trace,
    url: &str,
) -> SessionContext {
    let lifecycle = &plan.capsule.lifecycle;
    let capacity = match lifecycle.task_acceptance {
        Acceptance::None => Capacity::None,
        Acceptance::Single => Capacity::Single,
        Acceptance::Queue => Capacity::Queue { depth: lifecycle.queue_depth as usize },
    };
    let peers = plan.membership.as_ref().map(|membership| {
        let peers: Arc<dyn Peers> = Arc::new(Members(Arc::clone(membership)));
        peers
    });
    SessionContext {
        session_id: made.session.clone(),
        capsule: Arc::clone(&plan.capsule),
        home: plan.home.clone(),
        start: plan.request.start,
        dirs: made.dirs.clone(),
        inventory,
        driver: plan.driver.clone(),
        senders: plan.networks.senders.clone(),
        rules: plan.networks.capsule.clone(),
        egress: Egress::new(peers.clone()),
        membership: plan.membership.clone(),
        peers,
        workers,
        folder_size: commands.folder_size.clone(),
        commands: Arc::new(commands),
        // Both are settled by whoever launches it.
        hooks: Hooks::default(),
        pulls: None,
        used: Mutex::new(used(plan, made)),
        tasks: TaskRegistry::new(capacity, Box::new(Recorder(trace.clone()))),
        trace,
        formation: plan.formation.clone(),
        system_prompt: plan.prompt.clone(),
        deadline: plan.deadline,
        launch_context: plan.context.clone(),
        resumed: plan.resumed.is_some(),
        resume_compact: plan.resumed.as_ref().is_some_and(|resumed| resumed.compact),
        url: url.to_owned(),
        machine_tokens_per_day: plan.machine_tokens_per_day,
    }
}

/// What the model may install, with nothing installed yet.
fn pulls(plan: &mut Plan, made: &Made, workers: &crate::worker::WorkerSet, url: &str) -> Result<Option<Arc<Pulls>>> {
    let (Some(grant), Some(stores)) = (plan.capsule.capabilities.install.clone(), plan.stores.take()) else {
        return Ok(None);
    };
    let folders = folders::of_pulled(plan, made)?;
    let setup = match grant.tool.is_empty() || workers.is_started(Kind::Tools) {
        true => None,
        false => Some(workers::setup_of_pulled(plan, made, workers, &folders)?),
    };
    Ok(Some(Arc::new(Pulls::new(Ground {
        grant,
        stores,
        forms: Forms::open(&plan.home, Some(plan.place.root())),
        project: plan.lock_project.clone(),
        session: made.session.clone(),
        runtime: made.dirs.runtime.clone(),
        folders,
        env: environment::guest(
            &plan.host,
            &plan.capsule.capabilities.env.allow,
            None,
            None,
            &runtime_names(plan, &made.session, url),
        ),
        limits: workers::limits(&plan.capsule),
        setup,
    }))))
}

/// What the session may use, with nothing used yet.
fn used(plan: &Plan, made: &Made) -> agent::Meters {
    let ceiling = plan.capsule.inference.as_ref().and_then(|inference| inference.max_session_tokens);
    let machine = plan.machine_tokens_per_day.map(|ceiling| (ceiling, Ledger::new(&plan.home, &made.session)));
    agent::Meters::new(ceiling, machine)
}

/// Lets the hooks write manifests for commands, the last step of staging. Other names are told and left.
async fn stage(plan: &Plan, made: &Made, workers: &crate::worker::WorkerSet, hooks: &Hooks) -> Result<()> {
    if hooks.is_empty() {
        return Ok(());
    }
    let host = Arc::new(StagingCalls { senders: plan.networks.senders.clone(), egress: Egress::new(None) });
    let allow = plan.capsule.capabilities.shell.as_ref().map(|shell| shell.allow.clone()).unwrap_or_default();
    let manifests = hooks.stage(workers, host, &made.dirs.logs(), &allow).await.map_err(|lost| lost.diagnostic())?;
    for manifest in manifests {
        if !allow.contains(&manifest.binary_name) {
            output::log(&format!(
                "[capsule-runtime] a hook wrote a manifest for '{}', which is no command of this capsule: it is left out",
                manifest.binary_name
            ));
            continue;
        }
        let written =
            made.runtime.write_tool(&manifest.binary_name, crate::manifest::FILE_NAME, manifest.content.as_bytes());
        written.map_err(|error| not_written(&made.dirs.runtime, &error))?;
    }
    Ok(())
}

fn announce(plan: &Plan, context: &SessionContext, tokens: Option<&DoorTokens>) {
    let tell = plan.request.readiness_tokens;
    let formation = context.formation.as_ref().map(ToString::to_string);
    let told = tokens.filter(|_| tell).map(|tokens| {
        let all = std::iter::once(tokens.operator()).chain(tokens.declared());
        all.map(|token| (token.credential().to_owned(), token.expose().to_owned())).collect()
    });
    Announcement {
        url: &context.url,
        session: context.session_id.as_str(),
        name: &context.capsule.name,
        version: &context.capsule.version,
        work: &context.dirs.work,
        records: &context.dirs.records,
        formation: formation.as_deref(),
        authenticated: tokens.is_some(),
        tokens: told,
        driver: (&context.driver.full, &context.driver.model),
        skills: plan.parts.iter().filter(|part| part.entry.runtime == Role::Skill).count(),
    }
    .print(manner(plan.request.json, plan.request.verbose));
}

/// How much is said on stdout.
pub fn manner(json: bool, verbose: bool) -> Manner {
    if json { Manner::Json } else { Manner::Text { verbose } }
}

/// The running record, removed when this is dropped.
struct RunningRecord {
    home: crate::paths::MurmurHome,
    session: SessionId,
}

impl RunningRecord {
    /// Writes it; one that cannot be written is only warned of.
    fn write(plan: &Plan, context: &SessionContext, tokens: Option<&DoorTokens>, holds_lifeline: bool) -> Self {
        let pid = std::process::id();
        let membership = plan.membership.as_deref();
        let credentials = tokens.filter(|tokens| !tokens.declared().is_empty()).map(|tokens| {
            let declared = tokens.declared().iter();
            declared.map(|token| (token.credential().to_owned(), token.expose().to_owned())).collect()
        });
        let record = running::Record {
            session_id: context.session_id.clone(),
            url: context.url.clone(),
            pid: i32::try_from(pid).unwrap_or(i32::MAX),
            process_start: crate::process::process_start(i32::try_from(pid).unwrap_or_default()).unwrap_or_default(),
            capsule_name: context.capsule.name.clone(),
            capsule_version: context.capsule.version.clone(),
            workdir: context.dirs.work.clone(),
            records_dir: context.dirs.records.clone(),
            outlives_launcher: fs::File::open("/dev/tty").is_err(),
            started_at: super::deadline::rfc3339(context.start.unix_ms),
            door_token: tokens.map(|tokens| tokens.operator().expose().to_owned()),
            credentials,
            formation_id: context.formation.clone(),
            formation_member: membership.map(|membership| membership.member.to_string()),
            formation_entry: membership.is_some_and(|membership| membership.entry),
            formation_lifeline: holds_lifeline,
            formation_launcher: membership.map(|membership| running::Launcher {
                pid: i32::try_from(membership.launcher.pid).unwrap_or_default(),
                process_start: membership.launcher.process_start.clone(),
            }),
            spawned_by: plan.spawner.as_ref().map(|spawner| spawner.session.clone()),
        };
        if let Err(error) = running::write(&plan.home, &record) {
            let warning = Diagnostic::new(
                codes::W_SEC_023,
                format!(
                    "the running record of {} was not written: {error}; no command finds this session",
                    record.session_id
                ),
            );
            output::runtime_warning(&warning);
            output::log(&format!("[running-record] {}", warning.warning_line()));
        }
        Self { home: plan.home.clone(), session: context.session_id.clone() }
    }
}

impl Drop for RunningRecord {
    fn drop(&mut self) {
        running::remove(&self.home, &self.session);
    }
}

/// The environment of one artifact.
fn guest_environment(
    plan: &Plan,
    session: &SessionId,
    url: &str,
    part: &super::staging::Part,
) -> Vec<(String, String)> {
    let names = runtime_names(plan, session, url);
    if part.entry.runtime == Role::Hook {
        let otel = plan.capsule.observability.otel_endpoint.as_deref();
        let formation = plan.formation.as_ref().map(ToString::to_string);
        return environment::hook(
            part.config.as_deref(),
            gateway_address(part).as_deref(),
            otel,
            formation.as_deref(),
            names.peers.as_deref(),
        );
    }
    let allow = &plan.capsule.capabilities.env.allow;
    environment::guest(&plan.host, allow, part.config.as_deref(), gateway_address(part).as_deref(), &names)
}

fn gateway_address(part: &super::staging::Part) -> Option<String> {
    part.entry.gateway.as_ref().map(|gateway| environment::gateway_address(&gateway.path))
}

/// What the runtime tells every tool, driver and command.
fn runtime_names(plan: &Plan, session: &SessionId, url: &str) -> environment::RuntimeNames {
    let driver = plan.parts.iter().find(|other| other.entry.name == plan.driver.full);
    environment::RuntimeNames {
        endpoint: driver.and_then(gateway_address).unwrap_or_default(),
        model: plan.driver.model.clone(),
        driver: plan.driver.full.clone(),
        driver_config: plan.driver.config_json.clone(),
        name: plan.capsule.name.clone(),
        version: plan.capsule.version.clone(),
        session: session.to_string(),
        url: url.to_owned(),
        peers: plan.membership.as_ref().and_then(|membership| membership.peers_variable()),
    }
}
