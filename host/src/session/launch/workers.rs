//! Starting the workers a capsule needs, and loading its artifacts into them.

use std::path::Path;
use std::time::Duration;

use mur_plugin_api::{Access, Grant, ProcessKind, ProfileRequest};

use super::{Made, folders, guest_environment};
use crate::containment::{Class, Prepared, WorkerLimits};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{Capsule, HookBinding, Limits, Role};
use crate::session::pulls::SeenFolder;
use crate::session::staging::{Part, Plan, bound_named};
use crate::worker::{
    ArtifactSpec, CallError, CallLimits, Confinement, Kind, Preopen, PreopenSource, WorkerSet, WorkerSetup,
};

/// Starts a worker for each kind of artifact there is, all at once, and loads every artifact.
pub async fn start(plan: &mut Plan, made: &Made, url: &str) -> Result<WorkerSet> {
    let workers = match plan.helper.take() {
        Some(helper) => WorkerSet::within(helper),
        None => WorkerSet::new(),
    };
    let mut seen = Vec::with_capacity(plan.parts.len());
    for part in &plan.parts {
        seen.push(if part.compiled.is_some() { folders::of(plan, made, part)? } else { Vec::new() });
    }
    let mut starting = Vec::new();
    for kind in Kind::ALL {
        let own = || plan.parts.iter().zip(&seen).filter(move |(part, _)| kind_of(part) == kind);
        if own().any(|(part, _)| part.compiled.is_some()) {
            let mut grants = grants(own().flat_map(|(_, folders)| folders));
            if kind == Kind::Tools && may_pull(&plan.capsule) {
                // A tool that is pulled later runs in this worker, whose reach is settled now.
                widen(&mut grants, &folders::of_pulled(plan, made)?);
            }
            starting.push(workers.start(kind, setup(plan, made, &workers, grants)?));
        }
    }
    for started in futures_util::future::join_all(starting).await {
        started.map_err(|fault| bound_named(fault, &plan.capsule.capabilities.resources))?;
    }
    for (index, preopens) in seen.into_iter().enumerate() {
        let Some(compiled) = plan.parts[index].compiled.take() else { continue };
        let part = &plan.parts[index];
        let spec = ArtifactSpec {
            id: part.entry.bare().to_owned(),
            full: format!("{}@{}", part.entry.name, part.version),
            compiled: compiled.fd,
            preopens,
            env: guest_environment(plan, &made.session, url, part),
            limits: match part.entry.runtime {
                Role::Hook => hook_limits(&plan.capsule, part),
                _ => limits(&plan.capsule),
            },
        };
        let full = spec.full.clone();
        let kind = kind_of(part);
        match workers.load(kind, spec).await {
            // A tool that does not link is staged all the same: each of its calls tells the model why.
            Err(CallError::MissingImport(_) | CallError::Instantiate(_)) if kind == Kind::Tools => {}
            loaded => loaded.map_err(|error| not_loaded(&full, error))?,
        }
    }
    Ok(workers)
}

fn may_pull(capsule: &Capsule) -> bool {
    capsule.capabilities.install.as_ref().is_some_and(|install| !install.tool.is_empty())
}

/// How the `tools` worker is started for the first pulled tool.
pub fn setup_of_pulled(plan: &Plan, made: &Made, workers: &WorkerSet, seen: &[SeenFolder]) -> Result<WorkerSetup> {
    let mut grants = Vec::new();
    widen(&mut grants, seen);
    setup(plan, made, workers, grants)
}

fn widen(grants: &mut Vec<Grant>, seen: &[SeenFolder]) {
    for folder in seen {
        grant(grants, &folder.path, folder.write);
    }
}

/// What a kind of worker reaches: the folders of all its artifacts, and nothing else.
fn grants<'a>(folders: impl Iterator<Item = &'a Preopen>) -> Vec<Grant> {
    let mut grants: Vec<Grant> = Vec::new();
    for folder in folders {
        let PreopenSource::Path(path) = &folder.source else { continue };
        grant(&mut grants, path, folder.write);
    }
    grants
}

fn grant(grants: &mut Vec<Grant>, path: &Path, write: bool) {
    let access = if write { Access::Write } else { Access::Read };
    match grants.iter_mut().find(|known| known.path == path) {
        Some(known) if write => known.access = Access::Write,
        Some(_) => {}
        None => grants.push(Grant::required(path, access)),
    }
}

fn kind_of(part: &Part) -> Kind {
    match part.entry.runtime {
        Role::Driver => Kind::Driver,
        Role::Hook => Kind::Hooks,
        Role::Tool | Role::Skill => Kind::Tools,
    }
}

fn setup(plan: &Plan, made: &Made, workers: &WorkerSet, grants: Vec<Grant>) -> Result<WorkerSetup> {
    let failed = |why: String| Diagnostic::new(codes::E_RUN_066, format!("a worker cannot be confined: {why}"));
    // Every class is entered through its library, `unconfined` too: which one serves it is configuration.
    let library = plan.confinement.try_clone().map_err(|error| failed(error.to_string()))?;
    let resources = &plan.capsule.capabilities.resources;
    let limits = WorkerLimits { open_files: resources.max_open_files, file_size: resources.max_file_size_bytes };
    let sealed = plan.in_force.class == Class::Sealed;
    let own = |name: &str| sealed.then(|| made.private(name)).transpose();
    let request = ProfileRequest {
        grants,
        tmp: own("tmp")?,
        home: own("home")?,
        ..ProfileRequest::new(ProcessKind::Worker, limits.into())
    };
    let Prepared { request, fds } = match workers.enclosure() {
        Some(enclosure) => enclosure.prepare(request).map_err(failed)?,
        None => Prepared { request: b"{}".to_vec(), fds: Vec::new() },
    };
    let confinement = Some(Confinement { library, request, fds, own_root: sealed });
    Ok(WorkerSetup { confinement, logs: Some(made.dirs.logs()) })
}

/// The limits of a tool's or driver's call.
pub fn limits(capsule: &Capsule) -> CallLimits {
    let limits = &capsule.capabilities.limits;
    CallLimits {
        memory: limits.memory_bytes,
        table_elements: limits.table_elements,
        instances: u32::try_from(limits.instances).unwrap_or(u32::MAX),
        deadline: Duration::from_secs(limits.deadline_seconds.unwrap_or(Limits::DEADLINE_SECONDS)),
    }
}

/// The limits of a hook's call: its own deadline before the capsule's.
fn hook_limits(capsule: &Capsule, part: &Part) -> CallLimits {
    let own = part.entry.capabilities.as_ref().and_then(|own| own.deadline_seconds);
    // One that compacts waits for a model, as a driver's call does.
    let waits = part.hook.as_ref().is_some_and(|hook| hook.binding == Some(HookBinding::OnCompaction));
    let default = if waits { Limits::DEADLINE_SECONDS } else { Limits::HOOK_DEADLINE_SECONDS };
    let seconds = own.or(capsule.capabilities.limits.deadline_seconds).unwrap_or(default);
    CallLimits { deadline: Duration::from_secs(seconds), ..limits(capsule) }
}

fn not_loaded(full: &str, error: CallError) -> Diagnostic {
    match error {
        CallError::Lost(lost) => lost.diagnostic(),
        CallError::MissingImport(name) => Diagnostic::new(
            codes::E_RUN_002,
            format!("{full} imports {name}, which is not given to artifacts of its kind"),
        )
        .hint("declare the capability, or use another artifact"),
        CallError::MissingExport(name) => {
            Diagnostic::new(codes::E_IO_003, format!("{full} does not export {name}, which hooks are called by"))
                .hint("use another release of the artifact")
        }
        other => Diagnostic::new(codes::E_RUN_001, format!("{full} cannot be loaded: {other}")),
    }
}
