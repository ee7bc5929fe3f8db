//! The part of the effective grants that the host had to be asked for: what `capabilities.shell` leads to.

use serde_json::{Value, json};

use crate::containment::closure::{Closure, Grant, Reason};
use crate::manifest::Capsule;
use crate::session::staging::read_only_advisory_for;

/// Puts what commands may use into the object; its keys keep their places.
pub fn with_commands(mut object: Value, capsule: &Capsule, closure: &Closure) -> Value {
    object["read_only_advisory_for"] = json!(read_only_advisory_for(capsule));
    for (key, kind) in [
        ("interpreter_runtime_grants", Kind::Declared),
        ("derived_interpreter_runtime", Kind::Derived),
        ("trust_store", Kind::Trust),
        ("staged_runtime_grants", Kind::Staged),
    ] {
        let shown: Vec<String> = closure.grants.iter().filter(|grant| kind_of(grant) == Some(kind)).map(show).collect();
        object[key] = json!(shown);
    }
    object
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Declared,
    Derived,
    Staged,
    Trust,
}

/// Programs and their libraries are not listed: `shell_allow` names what they come from.
fn kind_of(grant: &Grant) -> Option<Kind> {
    match grant.reason {
        Reason::Program | Reason::Library => None,
        Reason::InterpreterRuntime { .. } => Some(Kind::Declared),
        Reason::DerivedRuntime { .. } => Some(Kind::Derived),
        Reason::StagedRuntime { .. } => Some(Kind::Staged),
        Reason::TrustStore => Some(Kind::Trust),
    }
}

fn show(grant: &Grant) -> String {
    let path = grant.path.to_string_lossy();
    let list = if grant.rights.list { " (list_dir)" } else { "" };
    match &grant.reason {
        Reason::StagedRuntime { binary, pin } => format!("{binary}: {path} (pin: {pin})"),
        Reason::InterpreterRuntime { binary } | Reason::DerivedRuntime { binary } => format!("{binary}: {path}{list}"),
        Reason::Program | Reason::Library | Reason::TrustStore => format!("{path}{list}"),
    }
}
