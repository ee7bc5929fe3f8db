//! `inference`: which driver and model answer, within which bounds.

use serde_json::{Map, Value};

/// How the driver is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A WASM driver that speaks to a provider.
    Http,
    /// A harness program driven as a process.
    Process,
}

/// The `inference` block, defaults applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Inference {
    /// `http` unless written.
    pub transport: Transport,
    /// Required under http; empty under process leaves the choice to the harness.
    pub model: String,
    /// The primary choice.
    pub driver: DriverChoice,
    /// Inference calls one task may make; absent = no cap.
    pub max_turns: Option<u64>,
    /// Output cap a turn; absent = the driver's table decides.
    pub max_tokens: Option<u64>,
    /// Spend ceiling of the session in tokens.
    pub max_session_tokens: Option<u64>,
    /// Where the system prompt comes from.
    pub system_prompt: Prompt,
    /// Retries of a provider call.
    pub retry: Retry,
    /// `tool_refresh: immediate`.
    pub tool_refresh_immediate: bool,
    /// When and how the conversation is compacted.
    pub compaction: Compaction,
    /// Further choices a control surface may switch to.
    pub alternates: Vec<Alternate>,
    /// The harness executable, under process.
    pub command: Option<String>,
}

/// A driver and what it is configured with.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverChoice {
    /// Full name of an `artifacts` entry with `runtime: driver`.
    pub artifact: String,
    /// Delivered as compact JSON.
    pub config: Option<Map<String, Value>>,
}

/// Where a prompt comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prompt {
    /// None is given.
    #[default]
    None,
    /// Written in the manifest, trimmed.
    Inline(String),
    /// A file relative to the manifest's directory.
    File(String),
    /// The text of a declared skill, by its name as declared.
    Artifact(String),
}

/// `inference.retry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// 0 disables.
    pub max_retries: u32,
    /// Doubled per retry.
    pub initial_delay_ms: u64,
    /// Bound of the delay, and of a wait the provider asks for.
    pub max_delay_ms: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_retries: 6, initial_delay_ms: 1000, max_delay_ms: 60_000 }
    }
}

/// `inference.compaction`.
#[derive(Clone, Debug, PartialEq)]
pub struct Compaction {
    /// Fraction of the input budget at which compaction fires, in (0, 1].
    pub threshold: f64,
    /// Absent = the primary model.
    pub model: Option<String>,
    /// Inline or from a file; `None` = the hook's own.
    pub system_prompt: Prompt,
    /// Append each commit to `out/compaction-summaries.jsonl`.
    pub dump_summaries: bool,
    /// Output cap of the compaction call.
    pub max_tokens: Option<u64>,
    /// Merged key by key over the driver's `config` for those calls.
    pub driver_config: Option<Map<String, Value>>,
}

impl Default for Compaction {
    fn default() -> Self {
        Self {
            threshold: 0.98,
            model: None,
            system_prompt: Prompt::None,
            dump_summaries: false,
            max_tokens: None,
            driver_config: None,
        }
    }
}

/// One entry of `inference.alternates`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternate {
    /// Unique, never `primary`.
    pub name: String,
    /// The model.
    pub model: String,
    /// Full name of a driver entry.
    pub driver: String,
}
