//! The artifact reader: what build, install and the stores read of `murmur.yaml`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::diagnostics::Result;

/// What an artifact says about itself. Keys of other kinds are ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct ArtifactManifest {
    /// As written; [`super::name::check_part`] decides.
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

/// Reads an artifact's manifest.
///
/// # Errors
/// `E-MAN-001`, `E-MAN-002`, `E-MAN-003`. Faults that only some readers refuse are values of the result.
pub fn read_artifact(text: &[u8], file: &str) -> Result<ArtifactManifest> {
    let _ = (text, file);
    Err(super::not_yet())
}

/// Checks an `upstream_auth` pair.
///
/// # Errors
/// The reason in words.
pub fn upstream_auth(header: &str, value: &str) -> std::result::Result<UpstreamAuth, String> {
    Ok(UpstreamAuth { header: header.to_owned(), value: value.to_owned() })
}
