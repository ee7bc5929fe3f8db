//! The capsule reader: the top level and the order of checks.

mod entry;
mod grants;
mod inference;
mod settings;

use super::fields::{Block, Stem};
use super::{Capsule, FILE_NAME, known};
use crate::diagnostics::{Diagnostic, Result, codes, is_hidden, revealed};
use crate::yaml::Doc;

/// Keys of older manifests that are refused by name, even without a value, and what takes their place.
const RETIRED: [(&str, &str); 3] = [
    ("registry", "registry.sources in ~/.murmur/config.yaml says where artifacts come from"),
    ("mur_version", "remove it; 'mur version' says what this mur serves"),
    ("config", "set config on the artifacts entry it is meant for"),
];

/// Reads a parsed manifest: the capsule, and a warning for every key it does not know.
pub(super) fn capsule(doc: &Doc) -> Result<(Capsule, Vec<Diagnostic>)> {
    let top = Block::top(doc, Stem::Field)?;
    for (key, instead) in RETIRED {
        let field = top.key(key);
        if field.is_written() {
            let message = format!("{FILE_NAME}: '{key}' is not a manifest key");
            return Err(field.place_on(Diagnostic::new(codes::E_MAN_003, message)).hint(instead));
        }
    }
    let name = required(&top, "name")?;
    let version = required(&top, "version")?;
    let mut notes = Vec::new();
    let artifacts = entry::artifacts(&top, &name, &mut notes)?;
    grants::refuse_misplaced(&top)?;
    let capabilities = grants::capabilities(&top)?;
    let inference = inference::inference(&top, &artifacts)?;
    inference::across_entries(&top, inference.as_ref(), &artifacts, &capabilities)?;
    let context = settings::context(&top)?;
    let trace = settings::trace(&top)?;
    let observability = settings::observability(&top)?;
    let network = settings::network(&top, !capabilities.spawn_allow.is_empty())?;
    let lifecycle = settings::lifecycle(&top, capabilities.shell.as_ref())?;
    let exports = settings::exports(&top)?;
    let control = settings::control(&top, inference.as_ref())?;
    let capsule = Capsule {
        name,
        version,
        artifacts,
        capabilities,
        inference,
        context,
        trace,
        network,
        lifecycle,
        exports,
        observability,
        control,
        notes,
    };
    Ok((capsule, known::unknown_keys(doc)))
}

/// A top-level text that must be there and not blank (`E-MAN-001`), and show all it holds (`E-MAN-003`).
pub(super) fn required(top: &Block<'_>, key: &str) -> Result<String> {
    let field = top.key(key);
    let text = field.nonblank()?.ok_or_else(|| {
        let message = format!("{FILE_NAME}: missing required field '{key}'");
        let example = if key == "version" { "version: \"0.1.0\"" } else { "name: my-capsule" };
        field
            .place_on(Diagnostic::new(codes::E_MAN_001, message))
            .hint(format!("write it at the top level, as in {example}"))
    })?;
    if text.contains(is_hidden) {
        let why = format!("holds a character that cannot be seen: {}", revealed(&text));
        return Err(field.fault(&why).hint("type it again without that character"));
    }
    Ok(text)
}
