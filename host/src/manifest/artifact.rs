//! The artifact reader: what build, install and the stores read of `murmur.yaml`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::{Block, Stem};
use super::{FILE_NAME, keys};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::yaml::{Doc, Node};

/// What an artifact says about itself. Keys of other kinds are ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct ArtifactManifest {
    /// As written; the name rule is checked by who files it.
    pub name: String,
    /// Text, as written.
    pub version: String,
    /// `driver`, `tool`, `hook`, `skill`, `capsule`; not checked against that list.
    pub runtime: String,
    /// How it is packed.
    pub execution: Execution,
    /// Packed files beside the manifest, as written.
    pub requires_files: Vec<String>,
    /// Shown to the model, cut to 200 characters by whoever shows it.
    pub description: Option<String>,
    /// Free words.
    pub tags: Vec<String>,
    /// JSON Schema of a tool's input; `Err` text says why it is malformed (`W-RUN-004`).
    pub input_schema: Option<std::result::Result<Value, String>>,
    /// JSON Schema of a tool's output.
    pub output_schema: Option<std::result::Result<Value, String>>,
    /// A driver's table; `Err` text says what is wrong, whoever reads it gives the code.
    pub models: std::result::Result<BTreeMap<String, ModelLimits>, String>,
    /// A `models` key is written at all.
    pub models_declared: bool,
    /// How its gateway key is attached; `Err` text says why it is unusable (`E-RUN-025`).
    pub upstream_auth: Option<std::result::Result<UpstreamAuth, String>>,
    /// The retired `inference_auth` is written.
    pub inference_auth_declared: bool,
    /// A hook's contract; `Err` text is the reason of `hook <name>@<version> invalid config: …`.
    pub hook: std::result::Result<HookContract, String>,
}

/// How an artifact is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// A WASM component.
    Wasm,
    /// A program for one platform.
    Native,
    /// No code.
    Static,
}

impl Execution {
    /// The word of the store's metadata.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Native => "native",
            Self::Static => "static",
        }
    }
}

/// One row of a driver's `models` table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLimits {
    /// Most tokens one answer can have.
    pub max_output_tokens: u32,
    /// Input and output together.
    pub context_window: u32,
    /// At most the window.
    pub max_input_tokens: Option<u32>,
}

/// How a gateway key is attached to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAuth {
    /// Header name as written.
    pub header: String,
    /// Holds `{key}` exactly once.
    pub value: String,
}

impl UpstreamAuth {
    /// The header's value with the key in its place.
    pub fn value_with(&self, key: &str) -> String {
        self.value.replacen("{key}", key, 1)
    }
}

/// When a hook is called and what it may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookContract {
    /// Absent = every session event except `on-stage`.
    pub binding: Option<HookBinding>,
    /// `execution_mode: async`.
    pub asynchronous: bool,
    /// `commit_policy` as written; `none` by default.
    pub commit_policy: String,
}

impl HookContract {
    /// Whether it may put another conversation in the place of one that has become too long.
    pub fn compacts(&self) -> bool {
        self.commit_policy == "replace-context"
    }
}

/// The events a hook can be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are the manifest's words")]
pub enum HookBinding {
    OnStage,
    OnSessionStart,
    OnTaskStart,
    OnInference,
    OnToolCall,
    OnShell,
    OnCompaction,
    OnTaskEnd,
    OnSessionEnd,
}

impl HookBinding {
    /// Every binding, in the order events come.
    pub const ALL: [Self; 9] = [
        Self::OnStage,
        Self::OnSessionStart,
        Self::OnTaskStart,
        Self::OnInference,
        Self::OnToolCall,
        Self::OnShell,
        Self::OnCompaction,
        Self::OnTaskEnd,
        Self::OnSessionEnd,
    ];

    /// Every word, in that order.
    pub const WORDS: &[&str] = &[
        Self::OnStage.as_str(),
        Self::OnSessionStart.as_str(),
        Self::OnTaskStart.as_str(),
        Self::OnInference.as_str(),
        Self::OnToolCall.as_str(),
        Self::OnShell.as_str(),
        Self::OnCompaction.as_str(),
        Self::OnTaskEnd.as_str(),
        Self::OnSessionEnd.as_str(),
    ];

    /// The word of the manifest.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OnStage => "on-stage",
            Self::OnSessionStart => "on-session-start",
            Self::OnTaskStart => "on-task-start",
            Self::OnInference => "on-inference",
            Self::OnToolCall => "on-tool-call",
            Self::OnShell => "on-shell",
            Self::OnCompaction => "on-compaction",
            Self::OnTaskEnd => "on-task-end",
            Self::OnSessionEnd => "on-session-end",
        }
    }

    /// The commit policy it accepts besides `none`, if there is one.
    fn policy(self) -> Option<&'static str> {
        match self {
            Self::OnStage => Some("write-manifests"),
            Self::OnTaskStart => Some("seed-context"),
            Self::OnCompaction => Some("replace-context"),
            Self::OnTaskEnd => Some("reopen-task"),
            Self::OnShell | Self::OnToolCall => Some("deny"),
            Self::OnInference | Self::OnSessionStart | Self::OnSessionEnd => None,
        }
    }
}

/// Reads an artifact's manifest.
///
/// # Errors
/// `E-MAN-001`, `E-MAN-002`, `E-MAN-003`. Faults that only some readers refuse are values of the result.
pub fn read_artifact(text: &[u8], file: &str) -> Result<ArtifactManifest> {
    artifact_of(&super::parse(text, file)?)
}

/// [`read_artifact`] of a manifest that was parsed already.
///
/// # Errors
/// As there, but for what is no YAML.
pub fn artifact_of(doc: &Doc) -> Result<ArtifactManifest> {
    let top = Block::top(doc, Stem::Field)?;
    let registry = top.key("registry");
    if registry.is_written() {
        let message = format!("{FILE_NAME}: 'registry' is not a manifest key");
        return Err(registry.place_on(Diagnostic::new(codes::E_MAN_003, message)));
    }
    let [name, version, runtime] = ["name", "version", "runtime"].map(|key| string(&top, key));
    let (name, version, runtime) = (name?, version?, runtime?);
    let execution = execution(&top, &runtime)?;
    let requires = top.key("requires_files");
    let requires_files = match (requires.value(), runtime.as_str()) {
        (None, "skill") => vec!["skill.md".to_owned()],
        (None, _) => Vec::new(),
        (Some(_), _) => requires.texts()?,
    };
    let models = top.key("models");
    let upstream = top.key("upstream_auth");
    Ok(ArtifactManifest {
        execution,
        requires_files,
        description: top.key("description").text()?,
        tags: top.key("tags").texts()?,
        input_schema: top.key("input_schema").value().map(schema),
        output_schema: top.key("output_schema").value().map(schema),
        models_declared: models.is_written(),
        models: if models.is_written() { read_models(models.value(), &runtime) } else { Ok(BTreeMap::new()) },
        upstream_auth: upstream.value().map(read_upstream_auth),
        inference_auth_declared: top.key("inference_auth").is_written(),
        hook: hook_contract(&top),
        name,
        version,
        runtime,
    })
}

/// A required key that must be text: quoted where it would read as something else.
fn string(top: &Block<'_>, key: &str) -> Result<String> {
    let text = super::read::required(top, key)?;
    let field = top.key(key);
    match field.value() {
        Some(node) if node.string().is_none() => {
            let found = if node.boolean().is_some() { "boolean" } else { "number" };
            let message = format!("{FILE_NAME}: field '{key}' has invalid type (expected string, got {found})");
            let diagnostic = field.place_on(Diagnostic::new(codes::E_MAN_003, message));
            Err(diagnostic.hint(format!("write it in quotes: {key}: \"{text}\"")))
        }
        _ => Ok(text),
    }
}

fn execution(top: &Block<'_>, runtime: &str) -> Result<Execution> {
    let field = top.key("execution");
    match field.nonblank()?.map(|text| text.to_lowercase()).as_deref() {
        Some("wasm") => return Ok(Execution::Wasm),
        Some("native") => return Ok(Execution::Native),
        Some("static") => return Ok(Execution::Static),
        Some(other) => return Err(field.not_one_of(keys::EXECUTIONS, other)),
        None => {}
    }
    let native = top.key("implementation").value().and_then(Node::text) == Some("native");
    Ok(match runtime {
        "skill" => Execution::Static,
        "tool" if native => Execution::Native,
        _ => Execution::Wasm,
    })
}

/// A JSON Schema written as a mapping or as JSON text.
fn schema(node: &Node) -> std::result::Result<Value, String> {
    let value = match node.string() {
        Some(text) => serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"))?,
        None => node.to_json(),
    };
    let Value::Object(object) = &value else { return Err("it is no JSON object".to_owned()) };
    match object.get("required") {
        None => Ok(value),
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => Ok(value),
        Some(_) => Err("its 'required' is no list of names".to_owned()),
    }
}

fn read_models(node: Option<&Node>, runtime: &str) -> std::result::Result<BTreeMap<String, ModelLimits>, String> {
    if runtime != "driver" {
        return Err("models: is for drivers only".to_owned());
    }
    let Some(node) = node else { return Ok(BTreeMap::new()) };
    let map = node.map().ok_or_else(|| format!("models: expected a mapping, found {}", node.found()))?;
    map.iter().map(|entry| Ok((entry.key.to_string(), model_limits(&entry.key, &entry.value)?))).collect()
}

fn model_limits(model: &str, node: &Node) -> std::result::Result<ModelLimits, String> {
    let map = node.map().ok_or_else(|| format!("models: '{model}': expected a mapping, found {}", node.found()))?;
    let known = ["max_output_tokens", "context_window", "max_input_tokens"];
    if let Some(entry) = map.iter().find(|entry| !known.contains(&&*entry.key)) {
        return Err(format!("models: '{model}': unknown key '{}'; expected: {}", entry.key, known.join(", ")));
    }
    let number = |key: &str| {
        let Some(value) = node.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let number = value.integer().and_then(|value| u32::try_from(value).ok()).filter(|value| *value > 0);
        number.map(Some).ok_or_else(|| format!("models: '{model}': {key} must be a whole number, 1 to 4294967295"))
    };
    let required = |key: &str| number(key)?.ok_or_else(|| format!("models: '{model}': {key} is required"));
    let limits = ModelLimits {
        max_output_tokens: required("max_output_tokens")?,
        context_window: required("context_window")?,
        max_input_tokens: number("max_input_tokens")?,
    };
    if limits.max_input_tokens.is_some_and(|input| input > limits.context_window) {
        return Err(format!("models: '{model}': max_input_tokens is larger than context_window"));
    }
    Ok(limits)
}

/// Headers that belong to the connection or the message, never to a key.
const RESERVED_HEADERS: [&str; 14] = [
    "host",
    "origin",
    "referer",
    "cookie",
    "connection",
    "content-length",
    "content-type",
    "content-encoding",
    "expect",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

fn read_upstream_auth(node: &Node) -> std::result::Result<UpstreamAuth, String> {
    let text = |key: &str| node.get(key).and_then(Node::text).ok_or_else(|| format!("upstream_auth.{key} is missing"));
    upstream_auth(text("header")?, text("value")?)
}

/// Checks an `upstream_auth` pair.
///
/// # Errors
/// The reason in words.
pub fn upstream_auth(header: &str, value: &str) -> std::result::Result<UpstreamAuth, String> {
    if http::HeaderName::from_bytes(header.as_bytes()).is_err() {
        return Err(format!("upstream_auth.header '{header}' is no header name"));
    }
    if RESERVED_HEADERS.contains(&header.to_ascii_lowercase().as_str()) {
        return Err(format!("upstream_auth.header '{header}' cannot carry a key"));
    }
    if value.matches("{key}").count() != 1 {
        return Err("upstream_auth.value must hold {key} exactly once".to_owned());
    }
    if http::HeaderValue::from_str(value).is_err() {
        return Err("upstream_auth.value is no header value".to_owned());
    }
    Ok(UpstreamAuth { header: header.to_owned(), value: value.to_owned() })
}

fn hook_contract(top: &Block<'_>) -> std::result::Result<HookContract, String> {
    let word = |key: &str| match top.key(key).value() {
        None => Ok(None),
        Some(node) => node.text().map(Some).ok_or_else(|| format!("{key} must be text")),
    };
    let binding = match word("binding")? {
        None => None,
        Some(text) => Some(
            HookBinding::ALL
                .into_iter()
                .find(|binding| binding.as_str() == text)
                .ok_or_else(|| format!("binding '{text}' names no event"))?,
        ),
    };
    let asynchronous = match word("execution_mode")? {
        None | Some("blocking") => false,
        Some("async") => true,
        Some(other) => {
            return Err(format!("execution_mode must be one of: {}; got '{other}'", keys::HOOK_MODES.join(", ")));
        }
    };
    let policy = word("commit_policy")?.unwrap_or("none");
    if !keys::HOOK_POLICIES.contains(&policy) {
        return Err(format!("commit_policy must be one of: {}; got '{policy}'", keys::HOOK_POLICIES.join(", ")));
    }
    if policy != "none" {
        match binding {
            Some(binding) if binding.policy() != Some(policy) => {
                return Err(format!("binding {} does not accept commit_policy {policy}", binding.as_str()));
            }
            None if policy == "deny" => return Err("commit_policy deny needs a binding".to_owned()),
            _ if asynchronous => return Err(format!("execution_mode async does not accept commit_policy {policy}")),
            _ => {}
        }
    }
    if binding == Some(HookBinding::OnStage) && asynchronous {
        return Err("binding on-stage must be blocking".to_owned());
    }
    Ok(HookContract { binding, asynchronous, commit_policy: policy.to_owned() })
}
