//! What a session's commands are given: programs, environment, and what they enter.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mur_plugin_api::ProfileRequest;

use super::{Made, runtime_names};
use crate::containment::Commands as Starter;
use crate::containment::{Class, CommandProfile};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::Shell;
use crate::session::commands::background::Board;
use crate::session::commands::capture::Logs;
use crate::session::commands::scope::Scope;
use crate::session::commands::{Commands, Environment, Native};
use crate::session::environment::{self, command::Folders};
use crate::session::folder_size::{self, FolderSize};
use crate::session::grants::Mapping;
use crate::session::staging::Plan;
use crate::worker::WorkerSet;

/// Makes ready what the capsule may run. A capsule that runs nothing gets no folders for it.
pub fn prepare(plan: &Plan, made: &Made, workers: &WorkerSet, url: &str) -> Result<Commands> {
    let capabilities = &plan.capsule.capabilities;
    let none = Shell::default();
    let declared = capabilities.shell.as_ref();
    let lists = declared.unwrap_or(&none);
    let natives: Vec<_> = plan.parts.iter().filter(|part| part.native.is_some()).collect();
    let runs = declared.is_some() || !natives.is_empty();
    let folder = |name: &str| if runs { made.private(name) } else { Ok(made.dirs.records.join(name)) };
    let (home, tmp) = (folder("home")?, folder("tmp")?);
    let maps_tmp = Mapping::of(&plan.in_force, plan.place.root()).is_mapped();
    let names = runtime_names(plan, &made.session, url);
    let starter = match workers.enclosure() {
        Some(helper) => Starter::within(helper),
        None => Starter::unconfined(),
    };
    let shell = match declared {
        Some(_) => Some(profile(&starter, super::commands::profile(plan, made)?)?),
        None => None,
    };
    let mut staged = BTreeMap::new();
    for part in natives {
        let name = part.entry.bare();
        let program = made.dirs.tool(name).join(name);
        let bytes = part.native.as_deref().unwrap_or_default();
        let profile = profile(&starter, super::commands::native_profile(plan, made, part, &program, bytes)?)?;
        staged.insert(name.to_owned(), Native { program, profile });
    }
    Ok(Commands {
        allow: lists.allow.clone(),
        shell,
        programs: programs(plan),
        natives: staged,
        environment: Environment {
            baseline: lists.baseline_env.clone(),
            strip: lists.strip_env.clone(),
            // A command reaches no member: the addresses are the components' alone.
            names: environment::guest(&plan.host, &[], None, None, &environment::RuntimeNames { peers: None, ..names }),
            folders: Folders {
                home,
                runtime: made.dirs.runtime.clone(),
                records: made.dirs.records.clone(),
                tmp: if maps_tmp { PathBuf::from("/tmp") } else { tmp },
            },
        },
        work: if runs { super::commands::work_folder(plan, made)? } else { made.dirs.work.clone() },
        logs: Arc::new(Logs::new(made.dirs.logs())),
        folder_size: FolderSize::new(
            folder_size::folders(&made.dirs.work, &made.dirs.records),
            capabilities.resources.workdir_max_bytes,
        ),
        resources: capabilities.resources,
        grace: Duration::from_secs(plan.capsule.lifecycle.shell_grace_secs),
        scope: Arc::new(Scope::new(workers.clone())),
        board: Board::default(),
        unheld: (runs && plan.in_force.class == Class::Unconfined).then(|| made.session.to_string()),
        closed: false.into(),
    })
}

fn profile(starter: &Starter, request: ProfileRequest) -> Result<CommandProfile> {
    starter.profile(request).map_err(|why| {
        let code = if why.contains("sealed-root:") { codes::E_RUN_014 } else { codes::E_RUN_007 };
        Diagnostic::new(code, format!("the session's commands cannot be confined: {why}"))
            .hint("nothing was run; 'mur doctor' says what this host can back")
    })
}

/// The first match of each name on the search path.
fn programs(plan: &Plan) -> BTreeMap<String, PathBuf> {
    let found = plan.closure.iter().flat_map(|closure| &closure.programs);
    found.filter_map(|(binary, matches)| Some((binary.clone(), matches.first()?.clone()))).collect()
}
