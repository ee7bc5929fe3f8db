//! What commands of a session may reach, as one request whatever the class: a class that cannot hold a row leaves it out.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mur_plugin_api::{Access, Grant, ProcessKind, ProcessLimits, ProfileRequest};

use super::{Made, folders};
use crate::containment::closure::{self, Closure, Reason, Rights};
use crate::containment::{Class, RUNTIME_TREE};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::Resources;
use crate::session::grants::Mapping;
use crate::session::staging::{Part, Plan};

/// The session's folders, as commands see them.
#[derive(Clone, Debug)]
struct Folders {
    /// The part of the work folder the capsule sees, where commands start.
    work: PathBuf,
    runtime: PathBuf,
    records: PathBuf,
    tmp: PathBuf,
    home: PathBuf,
}

/// The part of the work folder that the capsule sees: where its commands start and what they may change.
pub fn work_folder(plan: &Plan, made: &Made) -> Result<PathBuf> {
    folders::accessible(&made.dirs.work, plan.capsule.capabilities.filesystem.scope.as_deref())
}

/// Where commands find the session's folder for temporary files: what `TMPDIR` says.
pub fn temporary_folder(plan: &Plan, made: &Made) -> Result<PathBuf> {
    let own = made.private("tmp")?;
    Ok(if Mapping::of(&plan.in_force, plan.place.root()).is_mapped() { PathBuf::from("/tmp") } else { own })
}

/// What shell commands may reach.
pub fn profile(plan: &Plan, made: &Made) -> Result<ProfileRequest> {
    let folders = Folders::of(made, work_folder(plan, made)?)?;
    let mut grants = shared(plan, &folders);
    if let Some(closure) = &plan.closure {
        grants.extend(of_closure(closure, plan.in_force.class, |program| folders.are_written(program)));
    }
    Ok(request(plan, folders, grants))
}

/// What a tool that is a program may reach: `program` is its file in the runtime folder and `bytes` what was written
/// there. It alone may be executed, and what the kernel and the loader start it with.
pub fn native_profile(plan: &Plan, made: &Made, part: &Part, program: &Path, bytes: &[u8]) -> Result<ProfileRequest> {
    let own = part.entry.capabilities.as_ref().and_then(|own| own.filesystem_scope.as_deref());
    let scope = own.or(plan.capsule.capabilities.filesystem.scope.as_deref());
    let folders = Folders::of(made, folders::accessible(&made.dirs.work, scope)?)?;
    let meta = fs::metadata(program).map_err(|error| {
        Diagnostic::new(codes::E_IO_003, format!("the program {} cannot be used: {error}", program.display()))
    })?;
    let mut grants = shared(plan, &folders);
    grants.push(Grant { identity: Some((meta.dev(), meta.ino())), ..Grant::required(program, Access::Execute) });
    let closure = Closure { grants: closure::native_tool(bytes), ..Closure::default() };
    grants.extend(of_closure(&closure, plan.in_force.class, |program| folders.are_written(program)));
    Ok(request(plan, folders, grants))
}

impl Folders {
    fn of(made: &Made, work: PathBuf) -> Result<Self> {
        Ok(Self {
            work,
            runtime: made.dirs.runtime.clone(),
            records: made.dirs.records.clone(),
            tmp: made.private("tmp")?,
            home: made.private("home")?,
        })
    }

    /// Whether commands could have written a file.
    fn are_written(&self, file: &Path) -> bool {
        [&self.work, &self.tmp, &self.home].iter().any(|folder| file.starts_with(folder))
    }
}

fn request(plan: &Plan, folders: Folders, grants: Vec<Grant>) -> ProfileRequest {
    let capabilities = &plan.capsule.capabilities;
    ProfileRequest {
        grants,
        tmp: Some(folders.tmp),
        home: Some(folders.home),
        own: written(capabilities.filesystem.workdir_exec),
        unix_sockets: capabilities.network.unix_sockets,
        ..ProfileRequest::new(ProcessKind::Command, limits(&capabilities.resources))
    }
}

fn limits(resources: &Resources) -> ProcessLimits {
    ProcessLimits {
        open_files: resources.max_open_files,
        file_size: resources.max_file_size_bytes,
        cpu_seconds: Some(resources.cpu_seconds),
        address_space: Some(resources.memory_bytes),
    }
}

fn written(executable: bool) -> Access {
    if executable { Access::WriteExecute } else { Access::Write }
}

/// What every command may reach of the session's own. Devices, and what a composed root shows of the system, come with the
/// class.
fn shared(plan: &Plan, folders: &Folders) -> Vec<Grant> {
    vec![
        Grant::required(&folders.work, written(plan.capsule.capabilities.filesystem.workdir_exec)),
        Grant::required(&folders.runtime, Access::Read),
        Grant::required(&folders.records, Access::Read),
    ]
}

/// The grants of a closure. A program that commands could have written themselves is none of what is allowed, whatever its
/// name is; `are_written` tells.
fn of_closure(closure: &Closure, class: Class, are_written: impl Fn(&Path) -> bool) -> Vec<Grant> {
    let mut grants: Vec<Grant> = Vec::new();
    let mut add = |grant: Grant| {
        if !grants.contains(&grant) {
            grants.push(grant);
        }
    };
    for granted in &closure.grants {
        let file = matches!(granted.reason, Reason::Program | Reason::Library);
        if file && are_written(&granted.path) {
            continue;
        }
        let in_tree = RUNTIME_TREE.iter().any(|tree| granted.path.starts_with(tree));
        let parent = granted.path.parent().filter(|parent| parent.parent().is_some());
        if let Some(parent) = parent.filter(|_| class == Class::Sealed && file && !in_tree) {
            // What lies beside a program outside of the system's folders is there, and not opened.
            add(Grant::optional(parent, Access::Visible));
        }
        let required = matches!(granted.reason, Reason::StagedRuntime { .. });
        add(Grant { required, ..Grant::optional(&granted.path, access(granted.rights)) });
    }
    grants
}

fn access(rights: Rights) -> Access {
    match (rights.execute, rights.list) {
        (false, false) => Access::ReadFiles,
        (false, true) => Access::Read,
        (true, false) => Access::Execute,
        (true, true) => Access::ExecuteRead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(path: &str, rights: Rights, reason: Reason) -> closure::Grant {
        closure::Grant { path: path.into(), rights, reason }
    }

    fn example() -> Closure {
        let (read, list, execute) =
            (Rights::default(), Rights { execute: false, list: true }, Rights { execute: true, list: false });
        let staged = Reason::StagedRuntime { binary: "python3".into(), pin: "1".into() };
        Closure {
            grants: vec![
                granted("/usr/bin/bash", execute, Reason::Program),
                granted("/opt/tool/bin/x", execute, Reason::Program),
                granted("/opt/tool/lib/x.so", read, Reason::Library),
                granted("/work/mine", execute, Reason::Program),
                granted("/opt/modules", list, Reason::DerivedRuntime { binary: "x".into() }),
                granted("/srv/tree", Rights { execute: true, list: true }, staged),
                granted("/etc/ssl/cert.pem", read, Reason::TrustStore),
            ],
            ..Closure::default()
        }
    }

    #[test]
    fn every_kind_of_grant_keeps_its_rights_and_what_commands_wrote_is_not_among_them() {
        let grants = of_closure(&example(), Class::Scoped, |path| path.starts_with("/work"));
        let shown: Vec<(&str, Access, bool)> =
            grants.iter().map(|grant| (grant.path.to_str().unwrap(), grant.access, grant.required)).collect();
        assert_eq!(
            shown,
            [
                ("/usr/bin/bash", Access::Execute, false),
                ("/opt/tool/bin/x", Access::Execute, false),
                ("/opt/tool/lib/x.so", Access::ReadFiles, false),
                ("/opt/modules", Access::Read, false),
                ("/srv/tree", Access::ExecuteRead, true),
                ("/etc/ssl/cert.pem", Access::ReadFiles, false),
            ]
        );
    }

    #[test]
    fn a_composed_root_shows_the_folders_of_programs_outside_the_system_s() {
        let grants = of_closure(&example(), Class::Sealed, |_| false);
        let visible: Vec<&str> = grants
            .iter()
            .filter(|grant| grant.access == Access::Visible)
            .map(|grant| grant.path.to_str().unwrap())
            .collect();
        assert_eq!(visible, ["/opt/tool/bin", "/opt/tool/lib", "/work"]);
    }
}
