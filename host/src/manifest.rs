//! The manifest `murmur.yaml`: what a capsule declares, and what an artifact says about itself.
//!
//! Two readers read one file name. [`read_capsule`] reads what a run is governed by; [`read_artifact`] reads what build,
//! install and the stores need. Both stop at the first fault and launch nothing. Values here carry their defaults, so
//! nobody else decides what an absent key means.

mod artifact;
mod fields;
mod gateway;
mod grants;
mod inference;
pub mod keys;
mod known;
mod network_rule;
mod read;
mod settings;

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

pub use artifact::{
    ArtifactManifest, Execution, HookBinding, HookContract, ModelLimits, UpstreamAuth, artifact_of, read_artifact,
    upstream_auth,
};
pub use gateway::{ApiKey, Gateway, gateway_warnings};
pub(crate) use gateway::{check_endpoint, is_credential_name};
pub use grants::{
    Capabilities, EntryCapabilities, EnvGrant, Filesystem, Install, InterpreterRuntime, Limits, NetworkGrant,
    Resources, RuntimeDir, Shell, StagedRuntime, State,
};
pub use inference::{Alternate, Compaction, DriverChoice, Inference, Prompt, Retry, Transport};
pub use mur_plugin_api::Class;
pub use network_rule::{NetworkRule, covers_loopback_http};
pub use settings::{
    Acceptance, AfterTask, Authentication, Capture, Context, ContextRetain, Control, Conversation, Credential,
    DoneCheck, ExportedFiles, Exports, KeepWorking, Lifecycle, Network, Observability, PeerFiles, Retain, SCOPES,
    TraceConfig,
};

use crate::diagnostics::{Diagnostic, Result, codes};
use crate::yaml;

/// The file a capsule and every artifact carry.
pub const FILE_NAME: &str = "murmur.yaml";

/// A manifest larger than this is refused before it is read.
pub const MAX_BYTES: u64 = 1 << 20;

/// A capsule's manifest with every default applied; fields are named as their keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Capsule {
    /// Non-blank.
    pub name: String,
    /// Non-blank, as written.
    pub version: String,
    /// In manifest order.
    pub artifacts: Vec<ArtifactEntry>,
    /// What the capsule as a whole may reach.
    pub capabilities: Capabilities,
    /// Absent: a script capsule, whose own component runs.
    pub inference: Option<Inference>,
    /// How the conversation is kept and seeded.
    pub context: Context,
    /// What the trace captures and how long it is kept.
    pub trace: TraceConfig,
    /// The door.
    pub network: Network,
    /// Which tasks are taken and when the session ends.
    pub lifecycle: Lifecycle,
    /// What other members and clients may ask for.
    pub exports: Exports,
    /// Where spans are exported to.
    pub observability: Observability,
    /// What `mur control` may change; absent without a non-empty list.
    pub control: Option<Control>,
    /// Warnings without a code, as complete lines for stderr.
    pub notes: Vec<String>,
}

impl Capsule {
    /// Whether a session of it starts processes: a worker for any component, or a command.
    pub fn starts_processes(&self) -> bool {
        let components = self.artifacts.iter().any(|entry| entry.runtime != Role::Skill);
        let granted = &self.capabilities;
        let pulled = granted.install.as_ref().is_some_and(|install| !install.tool.is_empty());
        components || self.inference.is_none() || granted.shell.is_some() || !granted.spawn_allow.is_empty() || pulled
    }

    /// Whether a session of it is granted programs, not only components: shell commands, or tools that are pulled.
    pub fn grants_commands(&self) -> bool {
        let pulled = self.capabilities.install.as_ref().is_some_and(|install| !install.tool.is_empty());
        pulled || self.capabilities.shell.is_some()
    }
}

/// What an artifact does for the capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Visible to the model and called by it.
    Tool,
    /// Talks to the provider.
    Driver,
    /// Called at session events.
    Hook,
    /// Text the model can read.
    Skill,
}

impl Role {
    /// The word of the manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Driver => "driver",
            Self::Hook => "hook",
            Self::Skill => "skill",
        }
    }

    /// Whether the model sees the artifact.
    pub fn visible(self) -> bool {
        matches!(self, Self::Tool | Self::Skill)
    }
}

/// One entry of `artifacts`.
#[derive(Clone, Debug, PartialEq)]
pub struct ArtifactEntry {
    /// Full name `<scope>/<name>`; with a `source` the bare name.
    pub name: String,
    /// Exact version; `local` with a `source`.
    pub version: String,
    /// The entry's role.
    pub runtime: Role,
    /// A local skill's file or directory, relative to the manifest's directory.
    pub source: Option<String>,
    /// May be named by `inference.system_prompt_artifact`.
    pub prompt_payload: bool,
    /// The entry's own grants.
    pub capabilities: Option<EntryCapabilities>,
    /// Delivered to this artifact alone. The value as written, checked at staging by [`ArtifactEntry::config_json`].
    pub config: Option<serde_json::Value>,
    /// Where its requests to the gateway address go, and with which key.
    pub gateway: Option<Gateway>,
    /// A hook's full queue makes the event wait instead of dropping.
    pub on_overflow_block: bool,
}

/// Most bytes of an entry's `config` as compact JSON.
pub const MAX_CONFIG_BYTES: usize = 65_536;

impl ArtifactEntry {
    /// The part after `/`: the tool's name and its folder.
    pub fn bare(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// `<name>@<version>`.
    pub fn reference(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }

    /// The entry's `config` as compact JSON in the order written; `None` without one.
    ///
    /// # Errors
    /// `E-CAP-010` when it is no mapping or larger than [`MAX_CONFIG_BYTES`].
    pub fn config_json(&self) -> Result<Option<String>> {
        let Some(config) = &self.config else { return Ok(None) };
        let refused = |what: String| {
            Diagnostic::new(codes::E_CAP_010, format!("artifact '{}': config: {what}", self.name)).hint(format!(
                "config takes a mapping with text keys, at most {MAX_CONFIG_BYTES} bytes as JSON; keys and tokens belong in \
                 gateway.api_key"
            ))
        };
        if !config.is_object() {
            return Err(refused("it is not a mapping with text keys".to_owned()));
        }
        let text = config.to_string();
        if text.len() > MAX_CONFIG_BYTES {
            return Err(refused(format!("it takes {} bytes as JSON", text.len())));
        }
        Ok(Some(text))
    }
}

/// Reads a capsule's manifest and the warnings it draws (`W-SEC-019`, print with the prefix `[murmur-artifact] `).
///
/// # Errors
/// `E-MAN-001`, `E-MAN-002`, `E-MAN-003`, `E-CAP-018`: the first fault in the order the keys are checked.
pub fn read_capsule(text: &[u8], file: &str) -> Result<(Capsule, Vec<Diagnostic>)> {
    capsule_of(&parse(text, file)?)
}

/// Parses a manifest, for whoever asks both readers. `file` is how places show it.
///
/// # Errors
/// `E-MAN-002`.
pub fn parse(text: &[u8], file: &str) -> Result<yaml::Doc> {
    yaml::parse(file, text, MAX_BYTES).map_err(|fault| fault.into_diagnostic(codes::E_MAN_002, FILE_NAME))
}

/// [`read_capsule`] of a manifest that was parsed already.
///
/// # Errors
/// As there, but for what is no YAML.
pub fn capsule_of(doc: &yaml::Doc) -> Result<(Capsule, Vec<Diagnostic>)> {
    read::capsule(doc).map_err(|refusal| misspelt(refusal, doc))
}

/// A refusal, with the first key that is no key and near one: what is missing may stand under it.
fn misspelt(refusal: Diagnostic, doc: &yaml::Doc) -> Diagnostic {
    let unknown = yaml::known::unknown(doc.root(), keys::TOP);
    let Some(key) = unknown.iter().find(|key| key.near.is_some()) else { return refusal };
    let line = key.mark.line;
    let hint = match refusal.hint_text() {
        Some(hint) => format!("{hint}; and see line {line}: {key}"),
        None => format!("see line {line}: {key}"),
    };
    refusal.hint(hint)
}

/// Reads a manifest file: refused unread when it is larger than [`MAX_BYTES`].
///
/// # Errors
/// `E-IO-001` when there is none, `E-IO-003` when it cannot be read.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    yaml::read_file(path, MAX_BYTES).map_err(|fault| match fault {
        yaml::ReadFault::Missing => Diagnostic::new(
            codes::E_IO_001,
            format!("{FILE_NAME} not found at {}", path.display()),
        )
        .hint(
            "run it in a capsule's directory, or name the capsule with --manifest or --capsule, or a formation with \
                 --roster",
        ),
        yaml::ReadFault::Other(why) => {
            let refusal = Diagnostic::new(codes::E_IO_003, format!("{} cannot be read: {why}", path.display()));
            match path.is_dir() {
                true => refusal.hint(format!("name the file in it: {}", path.join(FILE_NAME).display())),
                false => refusal,
            }
        }
    })
}

/// Checks a directory named by a `filesystem.scope`: relative, and never above the work folder.
///
/// # Errors
/// `E-CAP-002`.
pub fn check_scope(field: &str, scope: &str) -> Result<()> {
    let refused = |why: &str| {
        Err(Diagnostic::new(codes::E_CAP_002, format!("{field}: '{scope}' {why}"))
            .hint("a scope is a relative path that stays inside the work folder"))
    };
    if scope.contains('\0') {
        return refused("holds a NUL byte");
    }
    let mut depth = 0_usize;
    for part in Path::new(scope).components() {
        match part {
            Component::Prefix(_) | Component::RootDir => return refused("is an absolute path"),
            Component::CurDir => {}
            Component::Normal(_) => depth += 1,
            Component::ParentDir => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return refused("leads out of the work folder"),
            },
        }
    }
    Ok(())
}

/// Checks the name of a state or record store: one path segment without a leading dot.
///
/// # Errors
/// The reason in words.
pub fn check_segment(text: &str) -> std::result::Result<(), String> {
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.contains('/') || text.contains('\0') {
        return Err("it is not one path segment".to_owned());
    }
    if text.starts_with('.') {
        return Err("it begins with a dot".to_owned());
    }
    Ok(())
}

/// Entry of the fuzz target: no bytes make either reader panic.
pub fn fuzz(bytes: &[u8]) {
    let _ = read_capsule(bytes, FILE_NAME);
    let _ = read_artifact(bytes, FILE_NAME);
}

#[cfg(test)]
mod tests;
