//! The words of `murmur:hook/lifecycle` and of what a hook imports, as they lie in `host/wit`: one shape for the session,
//! the connection and the component.

use wasmtime::component::{ComponentType, Lift, Lower};

use super::protocol::wire::{MAX_LIST, wire_enum, wire_struct};

/// The interface every hook exports.
pub const LIFECYCLE: &str = "murmur:hook/lifecycle@0.9.0";

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
pub struct HookMessage {
    /// `user`, `assistant` or `tool`.
    pub role: String,
    /// A block list as JSON text, or plain text.
    pub content: String,
    /// `msg_…`.
    pub id: Option<String>,
    /// What a hook says of where it is from.
    #[component(name = "source-id")]
    pub source_id: Option<String>,
    /// Set by the host only.
    #[component(name = "inserted-by")]
    pub inserted_by: Option<ContextInsertion>,
}

/// The arm a message came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(enum)]
#[repr(u8)]
pub enum ContextInsertion {
    /// Of a compaction.
    #[component(name = "replace-context")]
    ReplaceContext,
    /// Of a task's start.
    #[component(name = "seed-context")]
    SeedContext,
}

/// A manifest for a name the model may call.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
pub struct ToolManifest {
    /// Whose.
    #[component(name = "binary-name")]
    pub binary_name: String,
    /// The text of its `murmur.yaml`.
    pub content: String,
}

/// What a hook answers.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(variant)]
pub enum HookOutput {
    /// Nothing.
    #[component(name = "none")]
    None,
    /// The conversation from here on.
    #[component(name = "replace-context")]
    ReplaceContext(Vec<HookMessage>),
    /// Manifests to be written while staging.
    #[component(name = "write-manifests")]
    WriteManifests(Vec<ToolManifest>),
    /// A JSON object for the task's stream.
    #[component(name = "artifact")]
    Artifact(String),
    /// The task goes on, for this reason.
    #[component(name = "reopen-task")]
    ReopenTask(String),
    /// What the conversation begins with.
    #[component(name = "seed-context")]
    SeedContext(Vec<HookMessage>),
    /// The call is not made, for this reason.
    #[component(name = "deny")]
    Deny(String),
}

impl HookOutput {
    /// The arm's word, which is also that of the policy that commits it.
    pub fn arm(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ReplaceContext(_) => "replace-context",
            Self::WriteManifests(_) => "write-manifests",
            Self::Artifact(_) => "artifact",
            Self::ReopenTask(_) => "reopen-task",
            Self::SeedContext(_) => "seed-context",
            Self::Deny(_) => "deny",
        }
    }

    /// Whether its lists are ones the connection carries.
    pub(super) fn fits(&self) -> bool {
        match self {
            Self::ReplaceContext(list) | Self::SeedContext(list) => list.len() <= MAX_LIST,
            Self::WriteManifests(list) => list.len() <= MAX_LIST,
            _ => true,
        }
    }
}

/// What a call of a hook comes to when the component returns.
pub type HookResult = Result<HookOutput, String>;

/// `session-context`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
#[expect(missing_docs, reason = "the fields are the interface's own")]
pub struct SessionFacts {
    #[component(name = "capsule-name")]
    pub capsule_name: String,
    #[component(name = "capsule-version")]
    pub capsule_version: String,
    #[component(name = "session-id")]
    pub session_id: String,
    pub model: String,
    pub capabilities: Vec<String>,
}

/// `stage-event`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
#[expect(missing_docs, reason = "the fields are the interface's own")]
pub struct StageEvent {
    #[component(name = "shell-allow")]
    pub shell_allow: Vec<String>,
}

/// `task-start-event`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
#[expect(missing_docs, reason = "the fields are the interface's own")]
pub struct TaskStartEvent {
    #[component(name = "task-id")]
    pub task_id: String,
    #[component(name = "context-id")]
    pub context_id: String,
    pub source: String,
    #[component(name = "input-bytes")]
    pub input_bytes: u64,
    #[component(name = "budget-tokens")]
    pub budget_tokens: u64,
    #[component(name = "context-window")]
    pub context_window: u64,
    #[component(name = "prior-tokens")]
    pub prior_tokens: u64,
}

/// `task-end-event`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
#[expect(missing_docs, reason = "the fields are the interface's own")]
pub struct TaskEndEvent {
    #[component(name = "task-id")]
    pub task_id: String,
    #[component(name = "exit-status")]
    pub exit_status: String,
}

/// `inference-event`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
#[expect(missing_docs, reason = "the fields are the interface's own")]
pub struct InferenceEvent {
    pub turn: u32,
    #[component(name = "input-tokens")]
    pub input_tokens: u64,
    #[component(name = "output-tokens")]
    pub output_tokens: u64,
    pub decision: String,
    #[component(name = "tool-name")]
    pub tool_name: Option<String>,
    pub prompt: Option<String>,
    pub output: Option<String>,
    pub tools: Option<String>,
}

/// `tool-outcome`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
#[expect(missing_docs, reason = "the fields are the interface's own")]
pub struct ToolOutcome {
    #[component(name = "output-bytes")]
    pub output_bytes: u64,
    #[component(name = "duration-ms")]
    pub duration_ms: u64,
    pub status: String,
}

/// `tool-event`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
pub struct ToolEvent {
    /// The turn, from 0.
    pub turn: u32,
    /// The bare name.
    #[component(name = "tool-name")]
    pub tool_name: String,
    /// Bytes of `input`.
    #[component(name = "input-bytes")]
    pub input_bytes: u64,
    /// The exact input, never cut.
    pub input: String,
    /// `None`: the call has not run, and a decision is asked for.
    pub outcome: Option<ToolOutcome>,
}

/// `shell-outcome`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
#[expect(missing_docs, reason = "the fields are the interface's own")]
pub struct ShellOutcome {
    #[component(name = "exit-code")]
    pub exit_code: i32,
    pub stdout: String,
    pub stderr: String,
    #[component(name = "stdout-bytes")]
    pub stdout_bytes: u64,
    #[component(name = "stderr-bytes")]
    pub stderr_bytes: u64,
    #[component(name = "duration-ms")]
    pub duration_ms: u64,
}

/// `shell-event`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
#[expect(missing_docs, reason = "the fields are the interface's own")]
pub struct ShellEvent {
    pub turn: u32,
    pub binary: String,
    pub command: String,
    pub argv: Vec<String>,
    pub script: Option<String>,
    pub recipe: Option<String>,
    pub outcome: Option<ShellOutcome>,
}

/// `compaction-event`.
#[derive(Clone, Debug, PartialEq, ComponentType, Lift, Lower)]
#[component(record)]
#[expect(missing_docs, reason = "the fields are the interface's own")]
pub struct CompactionEvent {
    pub messages: Vec<HookMessage>,
    #[component(name = "session-tokens")]
    pub session_tokens: u64,
    pub threshold: f64,
    pub model: Option<String>,
    #[component(name = "system-prompt")]
    pub system_prompt: Option<String>,
}

/// A threshold is a number: the manifest holds no other.
impl Eq for CompactionEvent {}

/// `session-end-event`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
#[expect(missing_docs, reason = "the fields are the interface's own")]
pub struct SessionEndEvent {
    #[component(name = "total-turns")]
    pub total_turns: u32,
    #[component(name = "total-input-tokens")]
    pub total_input_tokens: u64,
    #[component(name = "total-output-tokens")]
    pub total_output_tokens: u64,
    #[component(name = "total-tool-calls")]
    pub total_tool_calls: u32,
    #[component(name = "total-shell-calls")]
    pub total_shell_calls: u32,
    #[component(name = "duration-ms")]
    pub duration_ms: u64,
    #[component(name = "exit-status")]
    pub exit_status: String,
}

/// One event, with what the function of its name is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are the interface's functions")]
pub enum HookEvent {
    Stage(StageEvent),
    SessionStart(SessionFacts),
    TaskStart(TaskStartEvent),
    Inference(InferenceEvent),
    ToolCall(ToolEvent),
    Shell(ShellEvent),
    Compaction(CompactionEvent),
    TaskEnd(TaskEndEvent),
    SessionEnd(SessionEndEvent),
}

impl HookEvent {
    /// Every function, and whether a hook has to export it.
    pub const FUNCTIONS: [(&'static str, bool); 9] = [
        ("on-stage", false),
        ("on-session-start", true),
        ("on-task-start", false),
        ("on-inference", true),
        ("on-tool-call", true),
        ("on-shell", true),
        ("on-compaction", true),
        ("on-task-end", false),
        ("on-session-end", true),
    ];

    /// The place of its function in [`Self::FUNCTIONS`].
    pub fn index(&self) -> usize {
        match self {
            Self::Stage(_) => 0,
            Self::SessionStart(_) => 1,
            Self::TaskStart(_) => 2,
            Self::Inference(_) => 3,
            Self::ToolCall(_) => 4,
            Self::Shell(_) => 5,
            Self::Compaction(_) => 6,
            Self::TaskEnd(_) => 7,
            Self::SessionEnd(_) => 8,
        }
    }

    /// The function's name.
    pub fn name(&self) -> &'static str {
        Self::FUNCTIONS[self.index()].0
    }

    /// Whether its lists are ones the connection carries.
    pub(super) fn fits(&self) -> bool {
        match self {
            Self::Stage(event) => event.shell_allow.len() <= MAX_LIST,
            Self::SessionStart(event) => event.capabilities.len() <= MAX_LIST,
            Self::Shell(event) => event.argv.len() <= MAX_LIST,
            Self::Compaction(event) => event.messages.len() <= MAX_LIST,
            _ => true,
        }
    }
}

/// `murmur:runtime/inference` `inference-request`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
pub struct InferenceRequest {
    /// The conversation to complete.
    pub messages: Vec<HookMessage>,
    /// Its system prompt.
    #[component(name = "system-prompt")]
    pub system_prompt: Option<String>,
    /// Another model of the same driver.
    pub model: Option<String>,
}

/// `murmur:runtime/inference` `inference-response`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
pub struct InferenceResponse {
    /// The answer.
    pub text: String,
    /// The model that gave it.
    #[component(name = "model-used")]
    pub model_used: String,
    /// The host's own count.
    #[component(name = "input-tokens")]
    pub input_tokens: u64,
    /// The host's own count.
    #[component(name = "output-tokens")]
    pub output_tokens: u64,
}

/// `murmur:task-io/read` `task-input-form`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(enum)]
#[repr(u8)]
pub enum InputForm {
    /// With the feedback of a reopen.
    #[component(name = "as-given")]
    AsGiven,
    /// Without it.
    #[component(name = "original")]
    Original,
}

/// `murmur:task-io/read` `io-error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(enum)]
#[repr(u8)]
pub enum IoError {
    /// The operator did not grant it.
    #[component(name = "not-granted")]
    NotGranted,
    /// No task runs.
    #[component(name = "no-task")]
    NoTask,
    /// The attempt has none yet.
    #[component(name = "no-output")]
    NoOutput,
    /// Past the end, or inside a character.
    #[component(name = "out-of-range")]
    OutOfRange,
}

/// A question about the running task's input and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskIo {
    /// Bytes of the input.
    InputLen(InputForm),
    /// A window of it: offset, most bytes.
    ReadInput(InputForm, u64, u64),
    /// Bytes of the output.
    OutputLen,
    /// A window of it.
    ReadOutput(u64, u64),
}

/// The answer to a [`TaskIo`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskIoReply {
    /// A length.
    Len(u64),
    /// A window.
    Text(String),
}

/// `murmur:conversation/read` `message-page`.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift, Lower)]
#[component(record)]
pub struct MessagePage {
    /// Newest first.
    pub messages: Vec<HookMessage>,
    /// Where to go on.
    #[component(name = "next-cursor")]
    pub next_cursor: Option<String>,
    /// Of the whole record.
    pub total: u32,
}

wire_struct!(HookMessage { role, content, id, source_id, inserted_by });
wire_enum!(ContextInsertion { 0 ReplaceContext, 1 SeedContext });
wire_struct!(ToolManifest { binary_name, content });
wire_enum!(HookOutput {
    0 None, 1 ReplaceContext(list), 2 WriteManifests(list), 3 Artifact(text), 4 ReopenTask(reason), 5 SeedContext(list),
    6 Deny(reason),
});
wire_struct!(SessionFacts { capsule_name, capsule_version, session_id, model, capabilities });
wire_struct!(StageEvent { shell_allow });
wire_struct!(TaskStartEvent { task_id, context_id, source, input_bytes, budget_tokens, context_window, prior_tokens });
wire_struct!(TaskEndEvent { task_id, exit_status });
wire_struct!(InferenceEvent { turn, input_tokens, output_tokens, decision, tool_name, prompt, output, tools });
wire_struct!(ToolOutcome { output_bytes, duration_ms, status });
wire_struct!(ToolEvent { turn, tool_name, input_bytes, input, outcome });
wire_struct!(ShellOutcome { exit_code, stdout, stderr, stdout_bytes, stderr_bytes, duration_ms });
wire_struct!(ShellEvent { turn, binary, command, argv, script, recipe, outcome });
wire_struct!(CompactionEvent { messages, session_tokens, threshold, model, system_prompt });
wire_struct!(SessionEndEvent {
    total_turns,
    total_input_tokens,
    total_output_tokens,
    total_tool_calls,
    total_shell_calls,
    duration_ms,
    exit_status,
});
wire_enum!(HookEvent {
    0 Stage(event), 1 SessionStart(event), 2 TaskStart(event), 3 Inference(event), 4 ToolCall(event), 5 Shell(event),
    6 Compaction(event), 7 TaskEnd(event), 8 SessionEnd(event),
});
wire_struct!(InferenceRequest { messages, system_prompt, model });
wire_struct!(InferenceResponse { text, model_used, input_tokens, output_tokens });
wire_enum!(InputForm { 0 AsGiven, 1 Original });
wire_enum!(IoError { 0 NotGranted, 1 NoTask, 2 NoOutput, 3 OutOfRange });
wire_enum!(TaskIo { 0 InputLen(form), 1 ReadInput(form, offset, most), 2 OutputLen, 3 ReadOutput(offset, most) });
wire_enum!(TaskIoReply { 0 Len(len), 1 Text(text) });
wire_struct!(MessagePage { messages, next_cursor, total });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_binding_of_a_manifest_has_its_function() {
        let words: Vec<&str> = HookEvent::FUNCTIONS.iter().map(|(name, _)| *name).collect();
        assert_eq!(words, crate::manifest::HookBinding::WORDS);
        let event = HookEvent::TaskEnd(TaskEndEvent { task_id: String::new(), exit_status: String::new() });
        assert_eq!(event.name(), "on-task-end");
    }
}
