//! The folders an artifact sees.

use std::fs;
use std::path::{Path, PathBuf};

use super::Made;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{EntryCapabilities, Role};
use crate::paths::make_private;
use crate::session::pulls::SeenFolder;
use crate::session::staging::{Part, Plan};
use crate::worker::{Preopen, PreopenSource};

/// Of one tool or driver: its part of the work folder, its state store, and for tools the runtime directory, when they
/// see the whole work folder, and the host's own paths.
pub fn of(plan: &Plan, made: &Made, part: &Part) -> Result<Vec<Preopen>> {
    let own = part.entry.capabilities.as_ref();
    if part.entry.runtime == Role::Hook {
        return of_hook(plan, made, own);
    }
    let work = &made.dirs.work;
    let ceiling = plan.capsule.capabilities.filesystem.scope.as_deref();
    let scope = own.and_then(|own| own.filesystem_scope.as_deref()).or(ceiling);
    let mut all = vec![preopen(accessible(work, scope)?, ".", true)];
    if let Some(state) = own.and_then(|own| own.state.as_ref()) {
        all.push(preopen(state_store(plan, &state.store)?, "state", true));
    }
    if part.entry.runtime == Role::Tool {
        let shared = of_every_tool(plan, made, scope.is_none());
        all.extend(shared.into_iter().map(|folder| preopen(folder.path, &folder.guest, folder.write)));
    }
    Ok(all)
}

/// Of every tool: the runtime directory where it sees the whole work folder, and the host's own paths.
fn of_every_tool(plan: &Plan, made: &Made, unscoped: bool) -> Vec<SeenFolder> {
    let runtime = unscoped.then(|| SeenFolder {
        path: made.dirs.runtime.clone(),
        guest: "murmur-runtime".to_owned(),
        write: false,
    });
    let host = plan.host_paths.iter().map(|host| SeenFolder {
        path: host.path.clone(),
        guest: host.path.to_string_lossy().into_owned(),
        write: host.write,
    });
    runtime.into_iter().chain(host).collect()
}

/// Of a tool that is pulled while the session runs: what the capsule as a whole is granted, and never a state store.
pub fn of_pulled(plan: &Plan, made: &Made) -> Result<Vec<SeenFolder>> {
    let scope = plan.capsule.capabilities.filesystem.scope.as_deref();
    let path = match scope {
        Some(scope) => narrowed(&made.dirs.work, scope)?,
        None => made.dirs.work.clone(),
    };
    let mut all = vec![SeenFolder { path, guest: ".".to_owned(), write: true }];
    all.extend(of_every_tool(plan, made, scope.is_none()));
    Ok(all)
}

/// Of one hook: what its entry grants, and nothing else.
fn of_hook(plan: &Plan, made: &Made, own: Option<&EntryCapabilities>) -> Result<Vec<Preopen>> {
    let Some(own) = own else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    if own.filesystem_records {
        all.push(preopen(made.private("hooks")?, ".", true));
    } else if let Some(scope) = &own.filesystem_scope {
        all.push(preopen(narrowed(&made.dirs.work, scope)?, ".", true));
    }
    if let Some(state) = &own.state {
        all.push(preopen(state_store(plan, &state.store)?, "state", true));
    }
    Ok(all)
}

/// The part of the work folder that a scope names, made when it is not there; all of it without one.
pub fn accessible(work: &Path, scope: Option<&str>) -> Result<PathBuf> {
    match scope {
        Some(scope) => narrowed(work, scope),
        None => Ok(work.to_owned()),
    }
}

fn preopen(path: PathBuf, guest: &str, write: bool) -> Preopen {
    Preopen { source: PreopenSource::Path(path), guest: guest.to_owned(), write }
}

/// A directory below the work folder, made when it is not there. A link that leads out of the folder is refused.
fn narrowed(work: &Path, scope: &str) -> Result<PathBuf> {
    let refused = |why: &dyn std::fmt::Display| {
        Diagnostic::new(
            codes::E_CAP_002,
            format!("the scope '{scope}' cannot be used as a folder of the work folder: {why}"),
        )
        .hint("a scope is a relative path that stays inside the work folder")
    };
    let path = work.join(scope);
    fs::create_dir_all(&path).map_err(|error| refused(&error))?;
    let resolved = fs::canonicalize(&path).map_err(|error| refused(&error))?;
    if resolved.starts_with(work) { Ok(resolved) } else { Err(refused(&"a link in it leads out")) }
}

fn state_store(plan: &Plan, store: &str) -> Result<PathBuf> {
    let path = plan.home.state().join(store);
    make_private(&path).map_err(|error| {
        Diagnostic::new(
            codes::E_CAP_009,
            format!("the state store '{store}' cannot be kept at {}: {error}", path.display()),
        )
        .hint("it has to be a directory that you own")
    })?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_made_and_never_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let work = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(narrowed(&work, "a/b").unwrap(), work.join("a/b"));
        assert_eq!(narrowed(&work, "a/../a").unwrap(), work.join("a"));
        std::os::unix::fs::symlink("/tmp", work.join("out")).unwrap();
        assert_eq!(narrowed(&work, "out").unwrap_err().code(), codes::E_CAP_002);
        fs::write(work.join("file"), "x").unwrap();
        assert_eq!(narrowed(&work, "file/x").unwrap_err().code(), codes::E_CAP_002);
    }
}
