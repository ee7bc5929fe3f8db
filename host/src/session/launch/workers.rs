//! Starting the workers a capsule needs, and loading its artifacts into them.

use std::time::Duration;

use super::{Made, folders, guest_environment};
use crate::containment::{WorkerLimits, worker_request};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{Capsule, Limits, Role};
use crate::session::staging::{Part, Plan};
use crate::worker::{ArtifactSpec, CallError, CallLimits, Confinement, Kind, WorkerSet, WorkerSetup};

/// Starts a worker for each kind of artifact there is, all at once, and loads every artifact.
pub async fn start(plan: &mut Plan, made: &Made, url: &str) -> Result<WorkerSet> {
    let workers = WorkerSet::new();
    let needed: Vec<Kind> = [Kind::Driver, Kind::Tools]
        .into_iter()
        .filter(|kind| plan.parts.iter().any(|part| part.compiled.is_some() && kind_of(part) == *kind))
        .collect();
    let mut starting = Vec::new();
    for kind in needed {
        starting.push(workers.start(kind, setup(plan, made)?));
    }
    for started in futures_util::future::join_all(starting).await {
        started?;
    }
    for index in 0..plan.parts.len() {
        let Some(compiled) = plan.parts[index].compiled.take() else { continue };
        let part = &plan.parts[index];
        let spec = ArtifactSpec {
            id: part.entry.bare().to_owned(),
            full: format!("{}@{}", part.entry.name, part.version),
            compiled: compiled.fd,
            preopens: folders::of(plan, made, part)?,
            env: guest_environment(plan, &made.session, url, part),
            limits: limits(&plan.capsule),
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

fn kind_of(part: &Part) -> Kind {
    match part.entry.runtime {
        Role::Driver => Kind::Driver,
        Role::Hook => Kind::Hooks,
        Role::Tool | Role::Skill => Kind::Tools,
    }
}

fn setup(plan: &Plan, made: &Made) -> Result<WorkerSetup> {
    // Every class is entered through its library, `unconfined` too: which one serves it is configuration.
    let library = plan.confinement.try_clone().map_err(|error| {
        Diagnostic::new(codes::E_RUN_066, format!("the containment library cannot be handed to a worker: {error}"))
    })?;
    let resources = &plan.capsule.capabilities.resources;
    let limits = WorkerLimits { open_files: resources.max_open_files, file_size: resources.max_file_size_bytes };
    let request = worker_request(plan.in_force.class, &limits);
    let confinement = Some(Confinement { library, request, fds: Vec::new() });
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

fn not_loaded(full: &str, error: CallError) -> Diagnostic {
    match error {
        CallError::Lost(lost) => lost.diagnostic(),
        CallError::MissingImport(name) => Diagnostic::new(
            codes::E_RUN_002,
            format!("{full} imports {name}, which is not given to artifacts of its kind"),
        )
        .hint("declare the capability, or use another artifact"),
        other => Diagnostic::new(codes::E_RUN_001, format!("{full} cannot be loaded: {other}")),
    }
}
