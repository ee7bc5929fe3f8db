//! What this version reads and does not run: refused by name rather than ignored.

use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{Capsule, Transport};

/// Refuses a capsule that declares something this version cannot do.
pub fn check(capsule: &Capsule) -> Result<()> {
    let Some(inference) = &capsule.inference else {
        return Err(refused("a capsule without inference: (a script capsule)"));
    };
    if inference.transport == Transport::Process {
        return Err(refused("inference.transport: process"));
    }
    if !inference.alternates.is_empty() {
        return Err(refused("inference.alternates"));
    }
    let capabilities = &capsule.capabilities;
    let lifecycle = &capsule.lifecycle;
    let declared = [
        ("capabilities.spawn.allow", !capabilities.spawn_allow.is_empty()),
        ("capabilities.install.from: sources", capabilities.install.as_ref().is_some_and(|one| one.from_sources)),
        ("capabilities.plan.submit", capabilities.plan_submit),
        ("capabilities.peer_fetch", !capabilities.peer_fetch.is_empty()),
        ("exports.files", capsule.exports.files.is_some()),
        ("exports.peer_files", capsule.exports.peer_files.is_some()),
        ("control", capsule.control.is_some()),
        ("lifecycle.done_check", lifecycle.done_check.is_some()),
        ("observability.otel_endpoint", capsule.observability.otel_endpoint.is_some()),
    ];
    match declared.iter().find(|(_, given)| *given) {
        Some((key, _)) => Err(refused(key)),
        None => Ok(()),
    }
}

fn refused(what: &str) -> Diagnostic {
    Diagnostic::new(
        codes::E_MAN_003,
        format!("murmur.yaml: {what} is declared, and this version of mur does not run it"),
    )
    .hint("remove it, or run the capsule with a version that does")
}
