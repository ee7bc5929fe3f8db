//! Folders a capsule declares: checked as text, before anything is made.

use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{Capsule, Role, check_scope, check_segment};

/// Scopes stay inside the work folder, read-only paths too, and a state store is one path segment: every fault.
pub fn faults(capsule: &Capsule) -> Vec<Diagnostic> {
    let filesystem = &capsule.capabilities.filesystem;
    let mut faults = Vec::new();
    if let Some(scope) = &filesystem.scope {
        faults.extend(check_scope("capabilities.filesystem.scope", scope).err());
    }
    for (index, path) in filesystem.read_only.iter().enumerate() {
        let field = format!("capabilities.filesystem.read_only[{index}]");
        faults.extend(check_scope(&field, path).err().map(|fault| {
            Diagnostic::new(codes::E_CAP_012, fault.message()).hint("a path relative to the work folder is meant")
        }));
    }
    for (index, entry) in capsule.artifacts.iter().enumerate() {
        let Some(own) = &entry.capabilities else { continue };
        let at = format!("artifacts[{index}].capabilities");
        if let Some(scope) = &own.filesystem_scope {
            faults.extend(check_scope(&format!("{at}.filesystem.scope"), scope).err());
        }
        if let Some(state) = &own.state {
            faults.extend(check_segment(&state.store).err().map(|why| {
                Diagnostic::new(codes::E_CAP_009, format!("{at}.state.store '{}' names no store: {why}", state.store))
                    .hint("a store's name is one path segment without a leading dot")
            }));
        }
    }
    faults
}

/// Refuses the first fault; the warnings are of what is written and grants or narrows nothing.
pub fn check(capsule: &Capsule) -> Result<Vec<Diagnostic>> {
    if let Some(fault) = faults(capsule).into_iter().next() {
        return Err(fault);
    }
    let mut warnings = Vec::new();
    for (index, entry) in capsule.artifacts.iter().enumerate() {
        let Some(own) = &entry.capabilities else { continue };
        let at = format!("artifacts[{index}].capabilities");
        if !own.inert.is_empty() {
            let code = if entry.runtime == Role::Hook { codes::W_SEC_006 } else { codes::W_SEC_008 };
            let what = own.inert.join(", ");
            warnings.push(Diagnostic::new(code, format!("{at}: {what} does nothing on a {}", entry.runtime.as_str())));
        }
    }
    if capsule.capabilities.state_declared {
        warnings.push(Diagnostic::new(
            codes::W_SEC_014,
            "capabilities.state grants nothing capsule-wide; declare it on the artifact that keeps the state",
        ));
    }
    if capsule.capabilities.conversation_declared {
        warnings.push(Diagnostic::new(
            codes::W_SEC_016,
            "capabilities.conversation grants nothing capsule-wide; declare it on the hook that reads it",
        ));
    }
    Ok(warnings)
}
