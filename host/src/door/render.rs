//! Tasks and events as the JSON clients read.

use std::borrow::Cow;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::card::STREAM_EXTENSION;
use crate::ids::{ContextId, MessageId, TaskId};
use crate::session::tasks::{Answer, ArtifactFrame, Attachment, EndNotes, Event, EventKind, Frame, State, TaskView};

/// Most members below a task that are named.
const NAMED_BELOW: usize = 8;
/// Characters of a running command that are shown.
const COMMAND_CHARS: usize = 200;
/// Most bytes of an answer read back from its file.
const MAX_ANSWER_FILE: u64 = 64 << 20;

/// A task object.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TaskJson<'a> {
    id: &'a TaskId,
    context_id: &'a ContextId,
    status: StatusJson<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifacts: Option<Vec<ArtifactJson<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Value>,
}

#[derive(Serialize)]
struct StatusJson<'a> {
    state: &'static str,
    timestamp: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<MessageJson<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MessageJson<'a> {
    message_id: String,
    context_id: &'a ContextId,
    task_id: &'a TaskId,
    role: &'static str,
    parts: [PartJson<'a>; 1],
}

#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum PartJson<'a> {
    Text { text: &'a str, media_type: &'static str },
    File { raw: String, filename: &'a str, media_type: &'static str },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ArtifactJson<'a> {
    artifact_id: Cow<'static, str>,
    name: Cow<'static, str>,
    parts: [PartJson<'a>; 1],
}

impl<'a> TaskJson<'a> {
    /// The whole object, as `GetTask` answers it.
    pub(super) fn of(view: &'a TaskView) -> Self {
        let artifacts = artifacts(view);
        Self { artifacts: (!artifacts.is_empty()).then_some(artifacts), ..Self::bare(view) }
    }

    /// In a list: no artifacts unless asked for, and then always the key.
    pub(super) fn in_list(view: &'a TaskView, with_artifacts: bool) -> Self {
        Self { artifacts: with_artifacts.then(|| artifacts(view)), ..Self::bare(view) }
    }

    /// Id and state alone, as `CancelTask` answers it.
    pub(super) fn canceled(view: &'a TaskView) -> Self {
        let status = StatusJson { state: view.state.wire(), timestamp: timestamp(view.changed_ms), message: None };
        Self { id: &view.id, context_id: &view.context, status, artifacts: None, metadata: None }
    }

    fn bare(view: &'a TaskView) -> Self {
        let message = view.message.as_deref().filter(|_| view.state.is_terminal());
        Self {
            id: &view.id,
            context_id: &view.context,
            status: status(view.state, message, view.changed_ms, &view.id, &view.context),
            artifacts: None,
            metadata: view
                .notes
                .as_deref()
                .map(notes_json)
                .filter(|notes| *notes != json!({}))
                .map(|notes| json!({ "murmur": notes })),
        }
    }
}

fn status<'a>(
    state: State,
    text: Option<&'a str>,
    at_ms: u64,
    task: &'a TaskId,
    context: &'a ContextId,
) -> StatusJson<'a> {
    let message = text.map(|text| MessageJson {
        message_id: format!("msg_{task}_status"),
        context_id: context,
        task_id: task,
        role: "ROLE_AGENT",
        parts: [plain(text)],
    });
    StatusJson { state: state.wire(), timestamp: timestamp(at_ms), message }
}

fn plain(text: &str) -> PartJson<'_> {
    PartJson::Text { text, media_type: "text/plain" }
}

fn artifact<'a>(name: &'static str, text: &'a str) -> ArtifactJson<'a> {
    ArtifactJson { artifact_id: name.into(), name: name.into(), parts: [plain(text)] }
}

/// A file that a tool attached; `number` is from 1.
fn attached(number: usize, attachment: &Attachment) -> ArtifactJson<'_> {
    let id = format!("attachment-{number}");
    let raw = BASE64.encode(&attachment.bytes);
    let part = PartJson::File { raw, filename: &attachment.name, media_type: attachment.media_type };
    ArtifactJson { artifact_id: id.clone().into(), name: id.into(), parts: [part] }
}

fn artifacts(view: &TaskView) -> Vec<ArtifactJson<'_>> {
    let mut artifacts = Vec::new();
    if let Some(Answer::Text(text)) = &view.response {
        artifacts.push(artifact("response", text));
    }
    let attachments = view.notes.as_deref().map(|notes| notes.attachments.as_slice()).unwrap_or_default();
    artifacts.extend(attachments.iter().enumerate().map(|(index, attachment)| attached(index + 1, attachment)));
    if let Some(prompt) = view.prompt.as_deref().filter(|_| view.state == State::InputRequired) {
        artifacts.push(artifact("prompt", prompt));
    }
    artifacts
}

fn notes_json(notes: &EndNotes) -> Value {
    let mut murmur = Map::new();
    if notes.no_answer {
        murmur.insert("noAnswer".to_owned(), Value::Bool(true));
    }
    if !notes.no_answer_below.is_empty() {
        let below = notes.no_answer_below.iter().take(NAMED_BELOW);
        let below = below.map(|below| json!({ "member": below.member, "status": below.status }));
        murmur.insert("noAnswerBelow".to_owned(), below.collect());
    }
    if !notes.running_commands.is_empty() {
        let commands = notes.running_commands.iter().map(|command| {
            json!({
                "workId": command.work_id,
                "binary": command.binary,
                "command": cut(&command.command),
                "runningMs": command.running_ms,
            })
        });
        murmur.insert("runningCommands".to_owned(), commands.collect());
    }
    Value::Object(murmur)
}

fn cut(command: &str) -> String {
    match command.char_indices().nth(COMMAND_CHARS) {
        Some((end, _)) => format!("{}…", &command[..end]),
        None => command.to_owned(),
    }
}

/// Reads an answer back that the registry has let go of; a file that is gone leaves the task without one. Off the
/// async thread: answers are large.
pub(super) async fn with_answer(mut view: TaskView) -> TaskView {
    if let Some(Answer::File(path)) = &view.response {
        let path = path.clone();
        let read = tokio::task::spawn_blocking(move || read_answer(&path)).await;
        view.response = read.ok().flatten().map(Answer::Text);
    }
    view
}

fn read_answer(path: &Path) -> Option<Arc<str>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(MAX_ANSWER_FILE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into())
}

/// An event as the `result` of its stream line; `None` when this reader does not get it.
pub(super) fn event(event: &Event, activated: bool) -> Option<Value> {
    let (Some(task), Some(context)) = (&event.task, &event.context) else {
        let EventKind::Frame(frame) = &event.kind else { return None };
        return activated.then(|| frame_message(frame_json(frame)));
    };
    match &event.kind {
        EventKind::Status { state, text, reopen } => {
            let mut update = status_update(*state, text.as_deref(), event.at_ms, task, context);
            if let Some(reopen) = reopen.filter(|_| activated) {
                update["statusUpdate"]["metadata"] = json!({ STREAM_EXTENSION: { "reopen": reopen } });
            }
            Some(update)
        }
        EventKind::Response(text) => Some(response_update(text, task, context)),
        EventKind::Frame(frame) => {
            activated.then(|| frame_update(frame_json(frame), State::Working, event.at_ms, task, context))
        }
    }
}

/// A `statusUpdate`.
pub(super) fn status_update(state: State, text: Option<&str>, at_ms: u64, task: &TaskId, context: &ContextId) -> Value {
    let status = status(state, text, at_ms, task, context);
    json!({ "statusUpdate": { "taskId": task, "contextId": context, "status": status } })
}

/// The `artifactUpdate` of an answer.
pub(super) fn response_update(text: &str, task: &TaskId, context: &ContextId) -> Value {
    let artifact = artifact("response", text);
    json!({ "artifactUpdate": { "taskId": task, "contextId": context, "artifact": artifact, "lastChunk": true } })
}

/// A frame of a task: a `statusUpdate` that repeats its state.
pub(super) fn frame_update(frame: Value, state: State, at_ms: u64, task: &TaskId, context: &ContextId) -> Value {
    let mut update = status_update(state, None, at_ms, task, context);
    update["statusUpdate"]["metadata"] = json!({ STREAM_EXTENSION: frame });
    update
}

/// A frame of no task: a `message`.
pub(super) fn frame_message(frame: Value) -> Value {
    let name = frame["frame"].clone();
    json!({ "message": {
        "messageId": MessageId::mint(),
        "role": "ROLE_AGENT",
        "parts": [{ "text": name, "mediaType": "text/plain" }],
        "metadata": { STREAM_EXTENSION: frame },
    } })
}

/// `gap`: replay starts later than the reader asked.
pub(super) fn gap(first_available: u64) -> Value {
    json!({ "frame": "gap", "firstAvailableId": first_available })
}

/// `lagged`: the reader was too slow.
pub(super) fn lagged(missed: u64) -> Value {
    json!({ "frame": "lagged", "missed": missed })
}

/// `connection-ack`: an observer is let in.
pub(super) fn connection_ack(threaded: bool) -> Value {
    let mode = if threaded { "threaded" } else { "stateless" };
    json!({ "frame": "connection-ack", "role": "observer", "conversationMode": mode })
}

fn frame_json(frame: &Frame) -> Value {
    match frame {
        Frame::Text { text, last } => json!({ "frame": "text", "text": text, "final": last }),
        Frame::Thinking { text } => json!({ "frame": "thinking", "text": text, "final": false }),
        Frame::ToolCallStarted { tool_call_id, tool_name } => {
            json!({ "frame": "tool-call-started", "toolCallId": tool_call_id, "toolName": tool_name })
        }
        Frame::ToolCallProgress { tool_call_id, input_bytes } => {
            json!({ "frame": "tool-call-progress", "toolCallId": tool_call_id, "inputBytes": input_bytes })
        }
        Frame::Artifact(ArtifactFrame {
            tool_name,
            content,
            fence_source,
            tool_call_id,
            is_error,
            duration_ms,
            exit_code,
            truncated,
        }) => json!({
            "frame": "artifact",
            "toolName": tool_name,
            "content": content,
            "fenceSource": fence_source,
            "toolCallId": tool_call_id,
            "isError": is_error,
            "durationMs": duration_ms,
            "exitCode": exit_code,
            "truncated": truncated,
        }),
    }
}

/// RFC 3339, UTC, milliseconds, `Z`.
pub(super) fn timestamp(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let at = time::OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        ms % 1000
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tasks::{MemberStatus, RunningCommand};

    fn view() -> TaskView {
        TaskView {
            id: TaskId::parse("tsk_0198aa00000000000000000000000000").unwrap(),
            context: ContextId::parse("ctx_1").unwrap(),
            state: State::Completed,
            changed_ms: 1_791_963_082_045,
            message: Some("task completed".into()),
            response: Some(Answer::Text("42".into())),
            prompt: None,
            notes: None,
            ended: true,
        }
    }

    #[test]
    fn an_attachment_is_a_file_part_and_no_note() {
        let attachment = Attachment {
            name: "a.bin".into(),
            media_type: "application/octet-stream",
            bytes: Arc::from(&b"\0\xff"[..]),
        };
        let notes = EndNotes { attachments: vec![attachment], ..EndNotes::default() };
        let view = TaskView { notes: Some(Arc::new(notes)), ..view() };
        let task = serde_json::to_value(TaskJson::of(&view)).unwrap();
        let last = task["artifacts"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(
            last,
            json!({"artifactId": "attachment-1", "name": "attachment-1", "parts": [
                {"raw": "AP8=", "filename": "a.bin", "mediaType": "application/octet-stream"}]})
        );
        assert!(task.get("metadata").is_none(), "{task}");
    }

    #[test]
    fn a_completed_task_reads_as_the_page_shows_it() {
        let view = view();
        assert_eq!(
            serde_json::to_value(TaskJson::of(&view)).unwrap(),
            json!({
                "id": view.id, "contextId": "ctx_1",
                "status": {
                    "state": "TASK_STATE_COMPLETED", "timestamp": "2026-10-14T07:31:22.045Z",
                    "message": {
                        "messageId": format!("msg_{}_status", view.id), "contextId": "ctx_1", "taskId": view.id,
                        "role": "ROLE_AGENT", "parts": [{"text": "task completed", "mediaType": "text/plain"}],
                    },
                },
                "artifacts": [{
                    "artifactId": "response", "name": "response",
                    "parts": [{"text": "42", "mediaType": "text/plain"}],
                }],
            })
        );
        let listed = |with| serde_json::to_value(TaskJson::in_list(&view, with)).unwrap();
        assert!(listed(false).get("artifacts").is_none());
        assert_eq!(listed(true)["artifacts"].as_array().unwrap().len(), 1);
        let waiting = TaskView { state: State::Working, response: None, message: None, ..view.clone() };
        assert_eq!(serde_json::to_value(TaskJson::in_list(&waiting, true)).unwrap()["artifacts"], json!([]));
    }

    #[test]
    fn notes_are_bounded_and_named_only_when_there_are_any() {
        let below = MemberStatus { member: "a".to_owned(), status: "failed".to_owned() };
        let command = RunningCommand {
            work_id: "wrk_1".to_owned(),
            binary: "sh".to_owned(),
            command: "é".repeat(300),
            running_ms: 5,
        };
        let notes = EndNotes {
            no_answer: true,
            no_answer_below: vec![below; 9],
            running_commands: vec![command],
            ..EndNotes::default()
        };
        let json = notes_json(&notes);
        assert_eq!(json["noAnswer"], json!(true));
        assert_eq!(json["noAnswerBelow"].as_array().unwrap().len(), 8);
        assert_eq!(json["runningCommands"][0]["command"].as_str().unwrap().chars().count(), 201);
        assert_eq!(notes_json(&EndNotes { no_answer: true, ..EndNotes::default() }), json!({ "noAnswer": true }));
    }

    #[test]
    fn an_artifact_frame_has_every_key() {
        let frame = frame_json(&Frame::Artifact(ArtifactFrame { content: "x".into(), ..ArtifactFrame::default() }));
        assert_eq!(
            frame,
            json!({
                "frame": "artifact", "toolName": null, "content": "x", "fenceSource": null, "toolCallId": null,
                "isError": null, "durationMs": null, "exitCode": null, "truncated": null,
            })
        );
        assert_eq!(frame.as_object().unwrap().keys().next().unwrap(), "frame");
    }

    #[tokio::test]
    async fn an_answer_the_registry_let_go_of_is_read_from_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result.txt");
        std::fs::write(&path, "42").unwrap();
        let read = with_answer(TaskView { response: Some(Answer::File(path)), ..view() }).await;
        assert_eq!(read.response, Some(Answer::Text("42".into())));
        let gone = with_answer(TaskView { response: Some(Answer::File("/nowhere/x".into())), ..view() }).await;
        assert_eq!(gone.response, None);
    }
}
