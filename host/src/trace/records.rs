//! Records with a type of their own. Field order is the order on the line; `Option` fields marked `skip` are absent
//! when they do not apply, the others are written as `null`.

use serde::Serialize;
use serde_json::{Map, Value};

use super::Record;

macro_rules! record {
    ($(#[$doc:meta])* $name:ident $event:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Serialize)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl Record for $name {
            const TYPE: &'static str = $event;
        }
    };
}

/// Where a session's deadline lies, as `session_start` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct DeadlineView {
    /// RFC 3339.
    pub at: String,
    /// Seconds from the start of the process.
    pub secs: u64,
    /// Seconds before it in which tool results carry the notice.
    pub notice_secs: u64,
    /// `own` or `inherited`.
    pub source: &'static str,
}

/// A gateway of the session, without its key.
#[derive(Clone, Debug, Serialize)]
pub struct GatewayView {
    /// Full name of the artifact it belongs to.
    pub artifact: String,
    /// Host and port requests go to.
    pub host: String,
    /// Where the key came from.
    pub credential_source: String,
    /// Whether its use counts toward spend ceilings.
    pub metered: bool,
}

record! {
    /// The first line of a session.
    SessionStart "session_start" {
        /// Capsule name.
        capsule_name: String,
        /// Capsule version.
        capsule_version: String,
        /// The model asked for.
        model: String,
        /// `inference.max_turns`.
        max_turns: Option<u32>,
        /// The served choice's limits.
        model_limits: Option<Value>,
        /// `inference.max_session_tokens`.
        max_session_tokens: Option<u64>,
        /// The machine's ceiling.
        machine_tokens_per_day: Option<u64>,
        /// The session's deadline.
        deadline: Option<DeadlineView>,
        /// Of `network`, `filesystem`, `shell`.
        capabilities: Vec<&'static str>,
        /// Names offered to the model.
        tools_declared: Vec<String>,
        /// The floor.
        containment_declared: String,
        /// The class in force.
        containment_achieved: String,
        /// Whether files of the work folder may be executed.
        workdir_exec: bool,
        /// How the host grants user namespaces.
        userns_grant: Option<String>,
        /// What `--explain-scope --json` prints.
        effective_grants: Value,
        /// `manifest`, `cli` or `none`.
        system_prompt_source: &'static str,
        /// Of the prompt before the `[Capsule]` block.
        system_prompt_sha256: Option<String>,
        /// Where the driver's key came from.
        credential_source: String,
        /// The driver's first.
        gateways: Vec<GatewayView>,
        /// Always null here.
        tool_refresh: Option<String>,
        /// Artifacts pulled at run time.
        runtime_artifacts: Vec<Value>,
        /// Host programs that were identified.
        host_facts: Vec<Value>,
        /// The session this one goes on from.
        resumed_from: Option<String>,
        /// The context this launch was given.
        context_id: Option<String>,
        /// The spawner of a delegated child.
        #[serde(skip_serializing_if = "Option::is_none")]
        spawned_by: Option<String>,
        /// The delegation of a delegated child.
        #[serde(skip_serializing_if = "Option::is_none")]
        delegation_id: Option<String>,
        /// Of a member, and of a member's delegated child.
        #[serde(skip_serializing_if = "Option::is_none")]
        formation_id: Option<String>,
        /// Roster name of a session holding a formation channel.
        #[serde(skip_serializing_if = "Option::is_none")]
        formation_member: Option<String>,
        /// Members it may call, in roster order; empty when it may call nobody.
        #[serde(skip_serializing_if = "Option::is_none")]
        formation_callees: Option<Vec<String>>,
    }
}

record! {
    /// The last line of a session.
    SessionEnd "session_end" {
        /// Sum over `task_end`.
        total_turns: u64,
        /// Sum over `task_end`.
        total_input_tokens: u64,
        /// Sum over `task_end`.
        total_output_tokens: u64,
        /// Count of `tool_call`.
        total_tool_calls: u64,
        /// Count of `shell` and `shell_detached`.
        total_shell_calls: u64,
        /// Since the process started.
        duration_ms: u64,
        /// How the session ended.
        exit_status: String,
    }
}

record! {
    /// What a best-effort sink lost.
    SinkDropped "sink_dropped" {
        /// The sink's configured name.
        sink: String,
        /// Lines it did not take.
        dropped: u64,
    }
}

record! {
    /// The lifeline of a member closed.
    FormationEnded "formation_ended" {
        /// The formation.
        formation_id: String,
    }
}

record! {
    /// The session's deadline passed.
    DeadlineReached "deadline_reached" {
        /// RFC 3339.
        deadline_at: String,
        /// Seconds from the start of the process.
        deadline_secs: u64,
        /// `own` or `inherited`.
        source: &'static str,
    }
}

record! {
    /// A tool result carried the deadline's notice.
    DeadlineNotice "deadline_notice" {
        /// The task it was told to.
        #[serde(skip_serializing_if = "Option::is_none")]
        task_id: Option<String>,
        /// The tool whose result carried it.
        tool_name: String,
        /// RFC 3339.
        deadline_at: String,
        /// Seconds left.
        left_secs: u64,
        /// Seconds before the deadline from which it is told.
        notice_secs: u64,
    }
}

record! {
    /// The spawner of a delegated child is gone.
    SpawnerEnded "spawner_ended" {
        /// Its session.
        #[serde(skip_serializing_if = "Option::is_none")]
        spawned_by: Option<String>,
        /// The delegation.
        #[serde(skip_serializing_if = "Option::is_none")]
        delegation_id: Option<String>,
    }
}

record! {
    /// Old records were removed.
    Retention "retention" {
        /// `sessions` or `records`.
        store: &'static str,
        /// `max_sessions`, `max_age` or `max_messages`.
        reason: &'static str,
        /// How many, never zero.
        removed: u32,
        /// What.
        targets: Vec<String>,
        /// Messages dropped, for `max_messages`.
        #[serde(skip_serializing_if = "Option::is_none")]
        messages_dropped: Option<u64>,
    }
}

record! {
    /// A message was accepted at the door.
    A2aTaskReceived "a2a_task_received" {
        /// The task.
        task_id: String,
        /// Its context.
        context_id: String,
        /// The message.
        message_id: String,
        /// The caller's trace context.
        traceparent_from_caller: Option<String>,
        /// Roster name of the member whose formation token let it in.
        #[serde(skip_serializing_if = "Option::is_none")]
        caller_member: Option<String>,
    }
}

record! {
    /// A task is about to run.
    TaskStart "task_start" {
        /// The task.
        task_id: String,
        /// Its context.
        context_id: String,
        /// `a2a`, `task_md`, `detached_shell` or `detached_lost`.
        source: &'static str,
        /// Who it came from.
        origin: String,
        /// `trusted` or `untrusted`.
        trust: String,
        /// `user`, `peer` or `bg`.
        lane: String,
        /// Bytes of the message's parts.
        message_parts_bytes: u64,
        /// `text` or `data`, one a part.
        #[serde(skip_serializing_if = "Option::is_none")]
        part_kinds: Option<Vec<String>>,
        /// Tasks the message refers to.
        #[serde(skip_serializing_if = "Option::is_none")]
        reference_task_ids: Option<Vec<String>>,
    }
}

record! {
    /// A task ended; exactly one for each `task_start`.
    TaskEnd "task_end" {
        /// The task.
        task_id: String,
        /// How it ended.
        exit_status: String,
        /// Since `task_start`.
        duration_ms: u64,
        /// Turns used.
        turns: u32,
        /// Input tokens of its turns.
        input_tokens: u64,
        /// Output tokens of its turns.
        output_tokens: u64,
        /// Tool calls made.
        tool_calls: u32,
        /// Shell commands run.
        shell_calls: u32,
        /// Reopens used.
        reopen_count: u32,
        /// Commands still running, oldest first.
        #[serde(skip_serializing_if = "Option::is_none")]
        running_commands: Option<Vec<String>>,
        /// `{used, limit, stopped_by}` of a capsule that keeps working.
        #[serde(skip_serializing_if = "Option::is_none")]
        keep_working: Option<Value>,
    }
}

record! {
    /// An attempt failed.
    TaskFailed "task_failed" {
        /// The task.
        #[serde(skip_serializing_if = "Option::is_none")]
        task_id: Option<String>,
        /// The turn, where one failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        turn: Option<u32>,
        /// The kind of failure.
        cause: String,
        /// The account, cut to 2000 bytes.
        reason: String,
    }
}

record! {
    /// A task was cancelled.
    TaskCanceled "task_canceled" {
        /// The task.
        task_id: String,
        /// The turn, where one ran.
        #[serde(skip_serializing_if = "Option::is_none")]
        turn: Option<u32>,
        /// Where it was.
        phase: String,
        /// Commands left in the background.
        detached_work_ids: Vec<String>,
        /// Delegations it had.
        delegation_ids: Vec<String>,
    }
}

record! {
    /// A queued task was refused because the session ended.
    TaskRejected "task_rejected" {
        /// The task.
        task_id: String,
        /// Its context.
        context_id: String,
        /// `a2a` or `task_md`.
        source: &'static str,
        /// `session_ended` or `session_stopped`.
        cause: &'static str,
        /// The final status text.
        reason: String,
    }
}

record! {
    /// A task goes on with the answers it waited for.
    TaskContinued "task_continued" {
        /// The task.
        task_id: String,
        /// From 1.
        continuation_number: u32,
        /// Calls answered, in arrival order.
        member_calls: Vec<String>,
        /// Delegations ended, in id order.
        delegations: Vec<String>,
        /// How long it waited.
        waited_ms: u64,
        /// Turns left, when they are capped.
        turns_remaining: Option<u32>,
    }
}

record! {
    /// A tool call returned.
    ToolCall "tool_call" {
        /// The turn it was asked for in.
        turn: u32,
        /// The task.
        task_id: Option<String>,
        /// The name the model used.
        tool_name: String,
        /// The provider's id.
        tool_call_id: Option<String>,
        /// What the model gave it.
        input: Value,
        /// Its size.
        input_bytes: u64,
        /// What it returned, under `trace.capture: content`.
        #[serde(skip_serializing_if = "Option::is_none")]
        output: Option<String>,
        /// Its size.
        output_bytes: u64,
        /// How long it took.
        duration_ms: u64,
        /// `ok` or `error`.
        status: &'static str,
        /// Why the call could not be made, cut to 2000 bytes.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// `read` or `mutate`.
        #[serde(skip_serializing_if = "Option::is_none")]
        state_effect: Option<String>,
        /// What the tool acted on.
        #[serde(skip_serializing_if = "Option::is_none")]
        resource_id: Option<String>,
    }
}

record! {
    /// A skill's text was returned.
    SkillCall "skill_call" {
        /// The turn.
        turn: u32,
        /// The task.
        task_id: Option<String>,
        /// The skill.
        skill_name: String,
        /// Its size.
        output_bytes: u64,
        /// How long it took.
        duration_ms: u64,
        /// `ok` or `error`.
        status: &'static str,
        /// `operator` or `runtime`.
        origin: &'static str,
        /// `trusted` or `untrusted`.
        trust: &'static str,
    }
}

record! {
    /// A tool call lacked required fields and was not made.
    ToolInputRefused "tool_input_refused" {
        /// The turn.
        turn: u32,
        /// The tool.
        tool_name: String,
        /// The provider's id.
        tool_call_id: Option<String>,
        /// The fields.
        missing: Vec<String>,
        /// The answer the model got.
        reason: String,
    }
}

record! {
    /// A busy member did not take an offer.
    MemberCallBusy "member_call_busy" {
        /// The calling task.
        task_id: String,
        /// The call.
        call_id: String,
        /// The callee.
        member: String,
        /// From 1.
        offer: u32,
        /// Since the call was made.
        waited_ms: u64,
        /// The callee's answer.
        message: String,
    }
}

record! {
    /// A member took a call.
    MemberCallStart "member_call_start" {
        /// The calling task.
        task_id: String,
        /// The call.
        call_id: String,
        /// The callee.
        member: String,
        /// The callee's own task id.
        member_task_id: String,
    }
}

record! {
    /// A member call ended.
    MemberCall "member_call" {
        /// The calling task.
        task_id: String,
        /// The call.
        call_id: String,
        /// The callee.
        member: String,
        /// The callee's own task id, when it took the task.
        #[serde(skip_serializing_if = "Option::is_none")]
        member_task_id: Option<String>,
        /// How it ended.
        status: String,
        /// Since the call was made.
        duration_ms: u64,
        /// The answer, at most 64 KiB and the mark of a cut.
        output: String,
        /// Whether it was cut.
        truncated: bool,
        /// Whether the calling task was told.
        delivered: bool,
        /// Members further down that gave no answer: `{member, status}`.
        #[serde(skip_serializing_if = "Option::is_none")]
        no_answer_below: Option<Vec<Value>>,
    }
}

record! {
    /// A message went to another agent.
    A2aSend "a2a_send" {
        /// Where; for a formation callee its virtual address.
        peer_url: String,
        /// The message.
        message_id: String,
        /// The receiver's task.
        task_id: Option<String>,
        /// Its context.
        context_id: Option<String>,
        /// The trace context sent.
        traceparent: Option<String>,
        /// The trust class stamped on it.
        trust: String,
    }
}

/// The driver call record, built key by key because most of its keys are conditional.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Inference(pub Map<String, Value>);

impl Record for Inference {
    const TYPE: &'static str = "inference";
}

/// Cuts a text for a record: at most `limit` bytes, on a character boundary.
pub fn cut(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Most bytes of a failure's account in a record.
pub const REASON_LIMIT: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_never_splits_a_character() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
        assert_eq!(cut("", 0), "");
    }

    #[test]
    fn absent_and_null_are_told_apart() {
        let failed = TaskFailed { task_id: None, turn: None, cause: "driver_error".into(), reason: "x".into() };
        assert_eq!(serde_json::to_string(&failed).unwrap(), r#"{"cause":"driver_error","reason":"x"}"#);
        let received = A2aTaskReceived {
            task_id: "t".into(),
            context_id: "c".into(),
            message_id: "m".into(),
            traceparent_from_caller: None,
            caller_member: None,
        };
        assert!(serde_json::to_string(&received).unwrap().contains(r#""traceparent_from_caller":null"#));
    }
}
