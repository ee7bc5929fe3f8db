//! The artifacts of a launch: found in the stores, compared with the lock, read, and brought into the form they run in.

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use serde_json::{Value, json};

use super::hooks;
use super::native;
use super::source::Origin;
use crate::artifacts::archive::Payload;
use crate::artifacts::compiled::{CompiledForm, Forms};
use crate::artifacts::level::{self, Driving, Interfaces};
use crate::artifacts::lock::{self, Lock};
use crate::artifacts::name::how_to_get;
use crate::artifacts::store::{Found, Place, Stores, Verified};
use crate::artifacts::{ArtifactName, Version};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{ArtifactEntry, Capsule, Execution, HookContract, ModelLimits, Prompt, Role, UpstreamAuth};
use crate::session::context::{Tool, ToolKind};

/// Largest local skill.
const MAX_SKILL: u64 = 16 << 20;

/// One artifact of the manifest, ready.
pub struct Part {
    /// The capsule's entry.
    pub entry: ArtifactEntry,
    /// The version that runs.
    pub version: String,
    /// Its packed manifest's text.
    pub manifest: Vec<u8>,
    /// Its component's machine code.
    pub compiled: Option<CompiledForm>,
    /// A native tool's program.
    pub native: Option<Bytes>,
    /// A skill's text.
    pub skill: Option<String>,
    /// What it says of itself.
    pub description: String,
    /// A tool's input schema; the text says why it is malformed.
    pub input_schema: Option<std::result::Result<Value, String>>,
    /// A driver's model table.
    pub models: std::result::Result<std::collections::BTreeMap<String, ModelLimits>, String>,
    /// How its gateway's key is attached.
    pub upstream_auth: Option<std::result::Result<UpstreamAuth, String>>,
    /// Whether it still uses the retired block.
    pub inference_auth: bool,
    /// `config` as compact JSON.
    pub config: Option<String>,
    /// A hook's contract.
    pub hook: Option<HookContract>,
}

/// The parts, and the lock to be written when the project has none.
pub struct Resolved {
    /// In manifest order.
    pub parts: Vec<Part>,
    /// The project and its first lock.
    pub new_lock: Option<(PathBuf, Lock)>,
    /// Of what is written and does nothing.
    pub warnings: Vec<Diagnostic>,
}

/// Resolves every artifact: lock first, then presence of all, then bytes, then machine code.
pub fn resolve(capsule: &Capsule, source: &Origin, stores: &Stores, forms: Forms) -> Result<Resolved> {
    let lock = source.lock()?;
    let found = find_all(capsule, lock.as_ref(), stores)?;
    let mut new_lock = (lock.is_none() && source.may_lock).then(Lock::default);
    let mut parts = Vec::with_capacity(capsule.artifacts.len());
    for (entry, found) in capsule.artifacts.iter().zip(found) {
        let part = match found {
            None => local_skill(entry, source)?,
            Some(found) => {
                let verified = stores.read(&found)?;
                check_pin(lock.as_ref(), &verified)?;
                if let Some(new) = new_lock.as_mut().filter(|_| found.place != Place::Bundled) {
                    new.upsert(verified.bound());
                }
                ready(entry, &verified, capsule, &forms)?
            }
        };
        parts.push(part);
    }
    let new_lock = match (new_lock, &source.locked_by) {
        (Some(new), Some(project)) if !new.pins().is_empty() => Some((project.clone(), new)),
        _ => None,
    };
    let natives = parts.iter().filter(|part| part.native.is_some());
    let warnings = natives.flat_map(|part| native::inert(&part.entry)).collect();
    Ok(Resolved { parts, new_lock, warnings })
}

/// Where each artifact is; `None` for one that lies in the project itself. What is missing is said once, all together.
fn find_all(capsule: &Capsule, lock: Option<&Lock>, stores: &Stores) -> Result<Vec<Option<Found>>> {
    let mut found = Vec::with_capacity(capsule.artifacts.len());
    let (mut missing, mut known, mut first) = (Vec::new(), Vec::new(), None);
    for entry in &capsule.artifacts {
        if entry.source.is_some() {
            found.push(None);
            continue;
        }
        let name = ArtifactName::parse(&entry.name).map_err(|fault| fault.diagnostic(codes::E_MAN_003, "artifacts"))?;
        let declared = Version::parse(&entry.version).map_err(|fault| fault.diagnostic())?;
        let pin = lock.and_then(|lock| lock.pin(&name));
        if let Some(pin) = pin {
            refuse_pulled(entry, pin, capsule)?;
        }
        // The pinned version is the one that runs.
        let version = pin.map_or(&declared, |pin| &pin.version);
        match stores.find(&name, version)? {
            Some(at) => {
                // What is bundled comes with the host itself and needs no pin.
                if let (Some(lock), true) = (lock, at.place != Place::Bundled) {
                    lock.require(&name)?.hash_here()?;
                }
                found.push(Some(at));
            }
            None => {
                if let Some(lock) = lock {
                    lock.require(&name)?;
                }
                missing.push(format!("{name}@{version}"));
                first.get_or_insert_with(|| how_to_get(&name, version));
                let others = stores.others(&name);
                if !others.is_empty() {
                    known.push(format!("{name}{}", others.replacen("; installed:", "", 1)));
                }
            }
        }
    }
    if missing.is_empty() {
        return Ok(found);
    }
    let first_missing = first.unwrap_or_default();
    let hint = match known.as_slice() {
        [] => first_missing,
        known => format!("name a version that is there ({}), or {first_missing}", known.join("; ")),
    };
    Err(Diagnostic::new(codes::E_RUN_008, format!("missing artifacts: {}", missing.join(", "))).hint(hint))
}

/// A pin a session pulled for itself was never the operator's choice of a driver or of anything with a key.
fn refuse_pulled(entry: &ArtifactEntry, pin: &lock::Pin, capsule: &Capsule) -> Result<()> {
    let lock::Origin::Runtime { session } = &pin.origin else { return Ok(()) };
    let prompt = capsule.inference.as_ref().map(|inference| &inference.system_prompt);
    let role = match entry.runtime {
        Role::Driver => "a driver",
        Role::Hook => "a hook",
        Role::Tool | Role::Skill if entry.gateway.is_some() => "an artifact with a gateway",
        Role::Tool | Role::Skill => match prompt {
            Some(Prompt::Artifact(name)) if *name == entry.name => "the system prompt",
            _ => return Ok(()),
        },
    };
    Err(Diagnostic::new(
        codes::E_RUN_043,
        format!("'{}' was pulled by session {session} while it ran, and is declared as {role}", entry.reference()),
    )
    .hint(format!("adopt it with `mur install {}`, or drop that role", entry.reference())))
}

fn check_pin(lock: Option<&Lock>, verified: &Verified) -> Result<()> {
    let Some(pin) = lock.and_then(|lock| lock.pin(&verified.name)) else { return Ok(()) };
    let pinned = pin.hash_here()?;
    if pinned == verified.sha256 {
        return Ok(());
    }
    Err(Diagnostic::new(
        codes::E_REG_002,
        format!(
            "{} is not what murmur.lock pins: the lock has sha256 {pinned}, the stored bytes have {}",
            verified.reference(),
            verified.sha256
        ),
    )
    .hint("install the artifact again, or remove its entry from murmur.lock"))
}

/// An artifact from a store, compiled where it has a component.
fn ready(entry: &ArtifactEntry, verified: &Verified, capsule: &Capsule, forms: &Forms) -> Result<Part> {
    let reference = verified.reference();
    let fault = |error: crate::artifacts::ArchiveError| error.diagnostic(&reference);
    let manifest = verified.archive.manifest_text().map_err(fault)?.into_bytes();
    let own = &verified.manifest;
    let hook = (entry.runtime == Role::Hook).then(|| hooks::contract(verified)).transpose()?;
    let (mut compiled, mut skill, mut program) = (None, None, None);
    match (entry.runtime, own.execution) {
        (Role::Skill, _) => match verified.payload()? {
            Payload::Static(Some(text)) => skill = Some(text),
            _ => {
                return Err(Diagnostic::new(
                    codes::E_IO_003,
                    format!("{reference} is declared as a skill and holds no skill.md"),
                ));
            }
        },
        (_, Execution::Wasm) => {
            let form = forms.of(verified)?;
            check_interfaces(entry, verified, capsule, &form.interfaces)?;
            compiled = Some(form);
        }
        (Role::Tool, Execution::Native) => program = Some(native::program(entry, verified)?),
        (_, Execution::Native | Execution::Static) => {
            return Err(Diagnostic::new(
                codes::E_RUN_001,
                format!("{reference} is declared as a {} and holds no component", entry.runtime.as_str()),
            ));
        }
    }
    Ok(Part {
        entry: entry.clone(),
        version: verified.version.as_str().to_owned(),
        manifest,
        compiled,
        native: program,
        skill,
        description: own.description.clone().unwrap_or_default(),
        input_schema: own.input_schema.clone(),
        models: own.models.clone(),
        upstream_auth: own.upstream_auth.clone(),
        inference_auth: own.inference_auth_declared,
        config: entry.config_json()?,
        hook,
    })
}

/// A driver must fit the level served and the transport; a tool that imports what is not linked fails its call. Both must
/// offer what they are called by.
fn check_interfaces(
    entry: &ArtifactEntry,
    verified: &Verified,
    capsule: &Capsule,
    interfaces: &Interfaces,
) -> Result<()> {
    if entry.runtime == Role::Driver {
        let inference = capsule.inference.as_ref();
        let chosen = inference.is_some_and(|inference| {
            let alternates = inference.alternates.iter().map(|alternate| &alternate.driver);
            std::iter::once(&inference.driver.artifact).chain(alternates).any(|name| *name == entry.name)
        });
        let driving = if chosen { Driving::Http } else { Driving::ByName };
        level::check_driver(&verified.name, &verified.version, interfaces, driving)?;
    }
    if entry.runtime == Role::Hook {
        return hooks::check_interfaces(verified, interfaces);
    }
    let exports = |prefix: &str| interfaces.exports.iter().any(|name| name.starts_with(prefix));
    if !exports("murmur:tool/run") {
        return Err(Diagnostic::new(
            codes::E_RUN_001,
            format!(
                "{} does not export murmur:tool/run, which a {} is called by",
                verified.reference(),
                entry.runtime.as_str()
            ),
        ));
    }
    Ok(())
}

/// A skill of the project itself: a file named `skill.md` in any case, or a directory that holds one.
fn local_skill(entry: &ArtifactEntry, source: &Origin) -> Result<Part> {
    let path = source.dir.join(entry.source.as_deref().unwrap_or_default());
    let missing = |what: &str| {
        Diagnostic::new(codes::E_IO_001, format!("artifact '{}': {} {what}", entry.name, path.display()))
            .hint("source: names a skill.md, or a directory that holds one")
    };
    let file = if path.is_dir() {
        let entries = fs::read_dir(&path).map_err(|error| missing(&format!("cannot be read: {error}")))?;
        let named = entries.flatten().find(|entry| entry.file_name().eq_ignore_ascii_case("skill.md"));
        named.map(|entry| entry.path()).ok_or_else(|| missing("holds no skill.md"))?
    } else if path.is_file() {
        path.clone()
    } else {
        return Err(missing("is not there"));
    };
    let size = fs::metadata(&file).map(|meta| meta.len()).map_err(|error| missing(&error.to_string()))?;
    if size > MAX_SKILL {
        return Err(missing(&format!("is larger than {MAX_SKILL} bytes")));
    }
    let text = fs::read_to_string(&file).map_err(|error| missing(&format!("cannot be read: {error}")))?;
    let manifest = format!("name: {}\nversion: local\nruntime: skill\n", entry.bare());
    Ok(Part {
        entry: entry.clone(),
        version: entry.version.clone(),
        manifest: manifest.into_bytes(),
        compiled: None,
        native: None,
        skill: Some(text),
        description: String::new(),
        input_schema: None,
        models: Ok(std::collections::BTreeMap::new()),
        upstream_auth: None,
        inference_auth: false,
        config: None,
        hook: None,
    })
}

impl Part {
    /// The part as the model sees it: nothing for drivers, hooks and the skill that is the system prompt.
    pub fn tool(&self, prompt: Option<&Prompt>) -> Option<(Tool, Option<Diagnostic>)> {
        if !self.entry.runtime.visible() {
            return None;
        }
        if let Some(Prompt::Artifact(name)) = prompt
            && *name == self.entry.name
        {
            return None;
        }
        let kind = match (self.entry.runtime, &self.native) {
            (Role::Skill, _) => ToolKind::Skill,
            (_, Some(_)) => ToolKind::Native,
            _ => ToolKind::Wasm,
        };
        let empty = || json!({"type": "object", "properties": {}});
        let (input_schema, required) = match &self.input_schema {
            None => (empty(), Ok(Vec::new())),
            Some(Ok(schema)) => (schema.clone(), required_of(schema)),
            Some(Err(why)) => (empty(), Err(why.clone())),
        };
        let warning = required.as_ref().err().map(|why| {
            Diagnostic::new(
                codes::W_RUN_004,
                format!(
                    "the input_schema of tool '{}' is malformed, so its calls go unchecked: {why}",
                    self.entry.bare()
                ),
            )
        });
        let tool = Tool {
            name: self.entry.bare().to_owned(),
            full: self.entry.name.clone(),
            version: self.version.clone(),
            kind,
            description: self.description.clone(),
            input_schema,
            required: required.ok(),
        };
        Some((tool, warning))
    }
}

/// The top-level `required` of a schema.
pub(crate) fn required_of(schema: &Value) -> std::result::Result<Vec<String>, String> {
    let object = schema.as_object().ok_or("it is not an object")?;
    let Some(required) = object.get("required") else { return Ok(Vec::new()) };
    let list = required.as_array().ok_or("'required' is not a list")?;
    list.iter()
        .map(|name| {
            name.as_str().map(str::to_owned).ok_or_else(|| "'required' holds something else than names".to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_fields_are_read_or_the_schema_is_malformed() {
        assert_eq!(required_of(&json!({})), Ok(vec![]));
        assert_eq!(required_of(&json!({"required": ["a", "b"]})), Ok(vec!["a".to_owned(), "b".to_owned()]));
        for bad in [json!([]), json!({"required": "a"}), json!({"required": [1]}), json!(null)] {
            assert!(required_of(&bad).is_err(), "{bad}");
        }
    }
}
