//! One tool call of the model: checked, run where it belongs, recorded, and turned into the text the model gets.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::fence::fenced;
use super::host_calls::ArtifactCall;
use super::members::Reply;
use super::provided::{
    BACKGROUND_COMMAND, CALL_MEMBER, END_WITHOUT_ANSWER, PULL_ARTIFACT, REMOVE_ARTIFACT, SESSION_STATUS,
};
use super::read_only::{self, Denied};
use super::run::{Ended, TaskRun};
use super::shell::ShellRecord;
use super::wire::{Message, ToolCall, reserved};
use crate::diagnostics::codes;
use crate::manifest::Capture;
use crate::paths::beneath;
use crate::session::commands::line;
use crate::session::context::{Tool, ToolKind};
use crate::session::deadline::rfc3339;
use crate::session::tasks::{ArtifactFrame, Attachment};
use crate::trace::records;
use crate::worker::hook::ShellOutcome;
use crate::worker::{CallError, Kind, Status, ToolInput, ToolResult};

/// Most bytes of a result file or a skill.
const FILE_MAX: u64 = 16 << 20;
/// Files a task may have attached.
const ATTACHMENTS_MAX: usize = 16;
/// Bytes of them together: the door holds them in memory.
const ATTACHED_BYTES_MAX: u64 = 16 << 20;

/// What a call came to.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// What the tool or the runtime says, unfenced.
    pub(super) text: String,
    pub(super) is_error: bool,
    /// Whether `text` came from outside and is fenced.
    pub(super) fenced: bool,
    /// A runtime line after the fence.
    pub(super) note: Option<String>,
    /// Why the call could not be made, for the trace.
    pub(super) error: Option<String>,
    pub(super) truncated: Option<bool>,
    /// Of a command.
    pub(super) exit_code: Option<i32>,
    /// What a command leaves in the trace.
    pub(super) shell: Option<ShellRecord>,
    /// How a command ended, for hooks.
    pub(super) observed: Option<ShellOutcome>,
    /// The task was cancelled meanwhile: where it was.
    pub(super) canceled: Option<&'static str>,
    pub(super) state_effect: Option<String>,
    pub(super) resource_id: Option<String>,
}

impl Done {
    /// A call that could not be made.
    pub(super) fn failed(text: String) -> Self {
        Self { error: Some(text.clone()), text, is_error: true, ..Self::default() }
    }

    /// An answer of the runtime's own.
    pub(super) fn answered(text: String) -> Self {
        Self { text, fenced: true, ..Self::default() }
    }
}

impl TaskRun<'_> {
    /// Runs one call of turn `turn` and returns the message that answers it.
    pub(super) async fn dispatch(&mut self, turn: u32, call: &ToolCall) -> Result<Message, Ended> {
        let started = Instant::now();
        let tool = self.agent.ctx.tool(&call.name);
        let checked = tool.as_ref().filter(|tool| missing(tool, &call.input).is_empty());
        if let Some((kind, denied)) = checked.and_then(|tool| Some((tool.kind, self.denied(tool, call)?))) {
            return self.deny(turn, kind, call, &denied);
        }
        if checked.is_some()
            && let Some(denied) = self.ask_about_call(turn, call).await?
        {
            return Ok(denied);
        }
        if let Some(tool) = &checked
            && let Some(denied) = self.ask_about_command(turn, tool, call).await?
        {
            return Ok(denied);
        }
        let mut done = match &tool {
            None => Done::failed(format!("tool '{}' is not declared in manifest allowlist", call.name)),
            Some(tool) => match missing(tool, &call.input) {
                missing if missing.is_empty() => self.run_tool(turn, tool, call).await?,
                missing => self.refuse_input(turn, call, missing)?,
            },
        };
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (text, fence) = self.told(call, &done)?;
        if let (Some(tool), Some(outcome)) = (&tool, done.observed.take()) {
            self.tell_command(turn, tool, call, outcome).await?;
        }
        self.tell_call(turn, call, text.len(), done.is_error, duration_ms).await?;
        if tool.as_ref().is_some_and(|tool| tool.kind == ToolKind::Skill) {
            self.record_skill(turn, call, &done, duration_ms)?;
        } else {
            self.record_call(turn, call, &done, &text, duration_ms)?;
        }
        if let Some(record) = done.shell.take() {
            self.record_shell(turn, record)?;
        }
        self.stream.artifact(ArtifactFrame {
            tool_name: Some(call.name.clone()),
            content: text.as_str().into(),
            fence_source: fence.clone(),
            tool_call_id: (!call.id.is_empty()).then(|| call.id.clone()),
            is_error: Some(done.is_error),
            duration_ms: Some(duration_ms),
            exit_code: done.exit_code,
            truncated: done.truncated,
        });
        let message = Message::tool(&call.id, done.is_error, &text);
        let message = match fence {
            Some(source) => message.fenced_by(&source),
            None => message,
        };
        match done.canceled {
            None => Ok(message),
            Some(phase) => {
                self.join(message);
                Err(Ended::Canceled { phase })
            }
        }
    }

    async fn run_tool(&mut self, turn: u32, tool: &Tool, call: &ToolCall) -> Result<Done, Ended> {
        match tool.kind {
            ToolKind::Provided => self.provide(call).await,
            ToolKind::Skill => Ok(self.read_skill(tool)),
            ToolKind::Wasm => self.call_wasm(turn, tool, call).await,
            ToolKind::Native => self.call_native(tool, call).await,
            ToolKind::Shell => self.run_shell(&tool.name, call).await,
        }
    }

    /// A skill's text. The operator vouches for a declared one, so it is not fenced.
    fn read_skill(&self, tool: &Tool) -> Done {
        let folder = self.agent.ctx.dirs.tool(&tool.name);
        match beneath::read(&folder, Path::new("skill.md"), FILE_MAX) {
            Ok(bytes) => Done {
                text: String::from_utf8_lossy(&bytes).into_owned(),
                // Nobody vouches for what the session pulled by itself.
                fenced: self.agent.ctx.is_pulled(&tool.name),
                ..Done::default()
            },
            Err(refusal) => Done::failed(format!("skill '{}' could not be read: {refusal}", tool.name)),
        }
    }

    async fn call_wasm(&mut self, turn: u32, tool: &Tool, call: &ToolCall) -> Result<Done, Ended> {
        let scene = self.scene(turn, true, None);
        let host = ArtifactCall::of_tool(&self.agent.ctx, &self.stream, scene, &self.input);
        let input = ToolInput { data: Some(call.input.get().to_owned()), log_path: None };
        if let Some(pulls) = self.agent.ctx.pulls.as_ref().filter(|_| self.agent.ctx.is_pulled(&tool.name)) {
            let (pulls, ctx) = (pulls.clone(), self.agent.ctx.clone());
            let name = tool.name.clone();
            self.unless_ended("turn", async move { pulls.ready(&ctx, &name).await }).await??;
        }
        if let Err(breach) = self.agent.ctx.folder_size.before_start().await {
            return Ok(Done::failed(format!("[{}] {}", breach.code(), breach.message())));
        }
        let calling = self.agent.ctx.workers.call_tool(Kind::Tools, &tool.name, input, Vec::new(), host.clone());
        let result = self.unless_ended("turn", calling).await;
        self.agent.ctx.folder_size.look();
        let result = result?;
        host.finish_stream(None);
        match result {
            Ok(result) => Ok(self.read_result(tool, result)),
            Err(CallError::Lost(lost)) => Err(Ended::Fatal(lost.diagnostic())),
            Err(error) => Ok(Done::failed(dispatch_failure(&tool.name, &error))),
        }
    }

    fn read_result(&mut self, tool: &Tool, result: ToolResult) -> Done {
        let word = |key: &str| reserved(&result.metadata, key).filter(|value| !value.is_empty()).map(str::to_owned);
        let done = Done {
            is_error: result.status != Status::Passed,
            fenced: true,
            truncated: Some(result.truncated),
            state_effect: word("state_effect").filter(|effect| effect == "read" || effect == "mutate"),
            resource_id: word("resource_id"),
            ..Done::default()
        };
        if let Err(refused) = self.attach(tool, &result.metadata) {
            return Done::failed(refused);
        }
        let text = match (result.data, result.data_path, result.summary) {
            (Some(data), _, _) => data,
            (None, Some(path), _) => match self.read_beneath(tool, &path) {
                Ok(text) => text,
                Err(refused) => return Done::failed(refused),
            },
            (None, None, Some(summary)) => summary,
            (None, None, None) => "tool returned no data".to_owned(),
        };
        Done { text, ..done }
    }

    /// A file the tool names as its result, in the folder it sees as its own.
    fn read_beneath(&self, tool: &Tool, path: &str) -> Result<String, String> {
        let bytes = beneath::read(&self.folder_of(tool), Path::new(path), FILE_MAX);
        bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(|refusal| {
            format!(
                "[{}] tool '{}' named '{path}' as its result, which was not read: {refusal}",
                codes::E_RUN_001,
                tool.name
            )
        })
    }

    /// Files the tool attaches to the task's answer, read as they are now.
    fn attach(&mut self, tool: &Tool, metadata: &[(String, String)]) -> Result<(), String> {
        let folder = self.folder_of(tool);
        for (_, path) in metadata.iter().filter(|(key, _)| key == "attachment") {
            let refused = |why: String| {
                format!("[{}] tool '{}' attached '{path}', which was not taken: {why}", codes::E_RUN_001, tool.name)
            };
            let held: usize = self.attachments.iter().map(|attachment| attachment.bytes.len()).sum();
            let room = ATTACHED_BYTES_MAX.saturating_sub(held as u64);
            if self.attachments.len() >= ATTACHMENTS_MAX {
                return Err(refused(format!("the task has {ATTACHMENTS_MAX} attachments already")));
            }
            let path = Path::new(path);
            let bytes = beneath::read(&folder, path, room).map_err(|refusal| refused(refusal.to_string()))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.attachments.retain(|earlier| earlier.name != name);
            self.attachments.push(Attachment { media_type: media_type(path), name, bytes: bytes.into() });
        }
        Ok(())
    }

    /// `.` of a tool: the work folder, or the part of it the tool is narrowed to.
    fn folder_of(&self, tool: &Tool) -> std::path::PathBuf {
        let capsule = &self.agent.ctx.capsule;
        let entry = capsule.artifacts.iter().find(|entry| entry.bare() == tool.name);
        let own = entry.and_then(|entry| entry.capabilities.as_ref()).and_then(|own| own.filesystem_scope.as_ref());
        match own.or(capsule.capabilities.filesystem.scope.as_ref()) {
            Some(scope) => self.agent.ctx.dirs.work.join(scope),
            None => self.agent.ctx.dirs.work.clone(),
        }
    }

    async fn provide(&mut self, call: &ToolCall) -> Result<Done, Ended> {
        let input: Map<String, Value> = serde_json::from_str(call.input.get()).unwrap_or_default();
        match call.name.as_str() {
            SESSION_STATUS => {
                let report = self.report().json();
                let record = json!({"task_id": self.task.id, "status": report});
                self.agent.ctx.trace.record_aside("session_status", self.turn_node(), record);
                Ok(Done::answered(report.to_string()))
            }
            CALL_MEMBER => self.call_member(&input).await,
            END_WITHOUT_ANSWER => Ok(self.end_without_answer(&input)),
            BACKGROUND_COMMAND => self.background_command(&input).await,
            PULL_ARTIFACT | REMOVE_ARTIFACT => self.install(call.name.as_str(), &input).await,
            name => Ok(Done::failed(format!("tool '{name}' is not provided in this session"))),
        }
    }

    /// Installs or removes an artifact. A refusal is told as it is.
    async fn install(&mut self, name: &str, input: &Map<String, Value>) -> Result<Done, Ended> {
        let (Some(pulls), Some(artifact)) = (self.agent.ctx.pulls.clone(), text(input, "artifact")) else {
            return Ok(Done::failed(format!("{name} takes one text: artifact")));
        };
        let ctx = Arc::clone(&self.agent.ctx);
        let done = if name == PULL_ARTIFACT {
            self.unless_ended("turn", pulls.pull(&ctx, artifact)).await?
        } else {
            pulls.remove(&ctx, artifact).await
        };
        Ok(match done {
            Ok(answer) => Done::answered(answer.to_string()),
            Err(refused) => Done::failed(refused),
        })
    }

    async fn call_member(&mut self, input: &Map<String, Value>) -> Result<Done, Ended> {
        let (Some(member), Some(task)) = (text(input, "member"), text(input, "task")) else {
            return Ok(Done::failed("call-member takes two texts: member and task".into()));
        };
        if self.without_answer.is_some() {
            return Ok(Done::failed("call-member: this task is ending without an answer, so no call is made".into()));
        }
        if task.trim().is_empty() {
            return Ok(Done::failed("call-member: the task is blank; state it in full".into()));
        }
        let calls = std::sync::Arc::clone(&self.calls);
        match self.unless_ended("member_call", calls.call(member, task)).await? {
            Ok(Reply { passed, data, note }) => {
                Ok(Done { is_error: !passed, note: Some(note), ..Done::answered(data) })
            }
            Err(refused) => Ok(Done::failed(refused)),
        }
    }

    fn end_without_answer(&mut self, input: &Map<String, Value>) -> Done {
        let Some(caller) = self.task.caller_member().cloned() else {
            return Done::failed("end-without-answer: no member of the formation sent this task".into());
        };
        let reason = text(input, "reason").map(str::trim).unwrap_or_default();
        if reason.is_empty() {
            return Done::failed("end-without-answer: say in 'reason' why there is no answer".into());
        }
        if self.calls.pending() {
            return Done::failed(
                "end-without-answer: calls of yours have not been answered yet; end the turn first".into(),
            );
        }
        if self.without_answer.is_some() {
            return Done::failed("end-without-answer: this task is ending already".into());
        }
        self.without_answer = Some(reason.to_owned());
        Done::answered(json!({"status": "ending", "caller": caller.as_str()}).to_string())
    }

    /// A write that `read_only` covers.
    fn denied(&self, tool: &Tool, call: &ToolCall) -> Option<Denied> {
        let ctx = &self.agent.ctx;
        let read_only = &ctx.capsule.capabilities.filesystem.read_only;
        if read_only.is_empty() {
            return None;
        }
        let input: Value = serde_json::from_str(call.input.get()).ok()?;
        let work = &ctx.dirs.work;
        match tool.kind {
            ToolKind::Wasm => read_only::denied(read_only, work, &self.folder_of(tool), &tool.input_schema, &input),
            ToolKind::Native => read_only::denied(read_only, work, work, &tool.input_schema, &input),
            ToolKind::Shell => {
                let argv = line::argv(&tool.name, input.get("command")?.as_str()?).ok()?;
                read_only::denied_command(read_only, work, &argv)
            }
            ToolKind::Provided | ToolKind::Skill => None,
        }
    }

    /// The call is not made and leaves no `tool_call` line.
    fn deny(&mut self, turn: u32, tool: ToolKind, call: &ToolCall, denied: &Denied) -> Result<Message, Ended> {
        let reason = format!(
            "tool '{}' was not called: it would write to '{}', and '{}' is read-only here",
            call.name, denied.path, denied.rule
        );
        let record = json!({
            "turn": turn, "call": if tool == ToolKind::Shell { "shell" } else { "tool" }, "target": call.name, "path": denied.path, "rule": denied.rule,
            "signal": denied.signal, "reason": reason,
        });
        self.agent.ctx.trace.record("protected_path_denied", self.turn_node(), record)?;
        Ok(Message::tool(&call.id, true, &reason))
    }

    fn refuse_input(&mut self, turn: u32, call: &ToolCall, missing: Vec<String>) -> Result<Done, Ended> {
        let reason = format!("tool '{}' was not called: its input lacks {}", call.name, missing.join(", "));
        let record = records::ToolInputRefused {
            turn,
            tool_name: call.name.clone(),
            tool_call_id: (!call.id.is_empty()).then(|| call.id.clone()),
            missing,
            reason: reason.clone(),
        };
        self.record_in_turn(&record)?;
        Ok(Done::failed(reason))
    }

    /// The text the model gets, and the fence's name when there is one.
    fn told(&mut self, call: &ToolCall, done: &Done) -> Result<(String, Option<String>), Ended> {
        let tool = self.agent.ctx.tool(&call.name);
        let word = if tool.is_some_and(|tool| tool.kind == ToolKind::Skill) { "skill" } else { "tool" };
        let source = done.fenced.then(|| format!("{word}:{}", call.name));
        let mut text = match &source {
            Some(source) => fenced(source, &done.text),
            None => done.text.clone(),
        };
        let notice = self.deadline_notice(&call.name)?;
        for line in done.note.iter().chain(&notice) {
            text.push('\n');
            text.push_str(line);
        }
        Ok((text, source))
    }

    /// Once a session, when the deadline is near.
    fn deadline_notice(&mut self, tool: &str) -> Result<Option<String>, Ended> {
        let Some(deadline) = self.agent.ctx.deadline else { return Ok(None) };
        let left_secs = deadline.left().as_secs();
        if deadline.notice_secs == 0 || left_secs > deadline.notice_secs || !self.agent.notice_due() {
            return Ok(None);
        }
        let at = rfc3339(deadline.at_ms);
        let record = records::DeadlineNotice {
            task_id: Some(self.task.id.to_string()),
            tool_name: tool.to_owned(),
            deadline_at: at.clone(),
            left_secs,
            notice_secs: deadline.notice_secs,
        };
        self.agent.ctx.trace.record_aside("deadline_notice", None, record);
        Ok(Some(format!("Session deadline: the runtime ends this session at {at}, in {left_secs} seconds.")))
    }

    fn record_call(
        &mut self,
        turn: u32,
        call: &ToolCall,
        done: &Done,
        text: &str,
        duration_ms: u64,
    ) -> Result<(), Ended> {
        self.sums.tool_calls += 1;
        let record = records::ToolCall {
            turn,
            task_id: Some(self.task.id.to_string()),
            tool_name: call.name.clone(),
            tool_call_id: (!call.id.is_empty()).then(|| call.id.clone()),
            input: serde_json::from_str(call.input.get()).unwrap_or_default(),
            input_bytes: call.input.get().len() as u64,
            output: (self.agent.ctx.capsule.trace.capture == Capture::Content).then(|| text.to_owned()),
            output_bytes: text.len() as u64,
            duration_ms,
            status: if done.is_error { "error" } else { "ok" },
            error: done.error.as_deref().map(|error| records::cut(error, records::REASON_LIMIT).to_owned()),
            state_effect: done.state_effect.clone(),
            resource_id: done.resource_id.clone(),
        };
        self.record_in_turn(&record)
    }

    fn record_skill(&mut self, turn: u32, call: &ToolCall, done: &Done, duration_ms: u64) -> Result<(), Ended> {
        let pulled = self.agent.ctx.is_pulled(&call.name);
        let record = records::SkillCall {
            turn,
            task_id: Some(self.task.id.to_string()),
            skill_name: call.name.clone(),
            output_bytes: done.text.len() as u64,
            duration_ms,
            status: if done.is_error { "error" } else { "ok" },
            origin: if pulled { "runtime" } else { "operator" },
            trust: if pulled { "untrusted" } else { "trusted" },
        };
        self.record_in_turn(&record)
    }
}

/// By the name's ending; what is not known is bytes.
fn media_type(path: &Path) -> &'static str {
    let ending = path.extension().map(|ending| ending.to_ascii_lowercase()).unwrap_or_default();
    match ending.to_str().unwrap_or_default() {
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "json" => "application/json",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

pub(super) fn text<'a>(input: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    input.get(key).and_then(Value::as_str)
}

/// Required fields that the input does not have. Types are not looked at.
fn missing(tool: &Tool, input: &RawValue) -> Vec<String> {
    let Some(required) = &tool.required else { return Vec::new() };
    if required.is_empty() {
        return Vec::new();
    }
    let input: Map<String, Value> = serde_json::from_str(input.get()).unwrap_or_default();
    required.iter().filter(|field| !input.contains_key(field.as_str())).cloned().collect()
}

/// The error text of a call that could not be run to its end.
fn dispatch_failure(tool: &str, error: &CallError) -> String {
    match error {
        CallError::MissingImport(_) | CallError::MissingExport(_) | CallError::Instantiate(_) => {
            format!("failed to instantiate tool '{tool}': {error}")
        }
        CallError::Deadline(_) | CallError::Memory(_) | CallError::Limit(..) => {
            format!("[{}] tool '{tool}' was stopped: {error}", codes::E_RUN_001)
        }
        _ => format!("tool '{tool}' failed: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(required: Option<&[&str]>) -> Tool {
        Tool {
            name: "t".into(),
            full: "local/t".into(),
            version: "1".into(),
            kind: ToolKind::Wasm,
            description: String::new(),
            input_schema: json!({}),
            required: required.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
        }
    }

    #[test]
    fn required_fields_are_checked_by_presence_alone() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let needs = tool(Some(&["a", "b"]));
        assert_eq!(missing(&needs, &raw(r#"{"a":null,"b":7}"#)), Vec::<String>::new());
        assert_eq!(missing(&needs, &raw(r#"{"b":7}"#)), ["a"]);
        assert_eq!(missing(&needs, &raw(r#""text""#)), ["a", "b"]);
        assert!(missing(&tool(None), &raw("{}")).is_empty(), "a malformed schema checks nothing");
    }

    #[test]
    fn a_limit_is_named_as_what_it_is() {
        let text = dispatch_failure("t", &CallError::Memory(512));
        assert!(text.starts_with("[E-RUN-001] tool 't'") && text.contains("512"), "{text}");
        assert!(dispatch_failure("t", &CallError::Trap("unreachable".into())).contains("unreachable"));
        assert!(
            dispatch_failure("t", &CallError::MissingImport("x:y/z".into()))
                .starts_with("failed to instantiate tool 't': ")
        );
    }
}
