//! A message as `SendMessage` takes it: the checks in their order, and the one text the agent reads.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::card::DOOR_EXTENSION;
use super::rpc::RpcError;
use crate::ids::ContextId;
use crate::session::tasks::{Answer, PartKind, State, TaskView};

/// Most distinct tasks a message may refer to.
const MAX_REFERENCES: usize = 16;
/// Bytes of referenced answers a text carries in all; models read no more.
const MAX_REFERENCED: usize = 1 << 20;
/// Longest context id: it names a file.
const MAX_CONTEXT: usize = 200;

/// A message that passed its checks.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) message_id: String,
    pub(super) text: String,
    pub(super) part_kinds: Vec<PartKind>,
    pub(super) task_id: Option<String>,
    pub(super) context: Option<ContextId>,
    /// Distinct, in the order given.
    pub(super) references: Vec<String>,
    /// Whether its metadata used the door extension.
    pub(super) used_door_extension: bool,
    pub(super) return_immediately: bool,
}

/// Checks `params` of a message method.
pub(super) fn read(params: &Map<String, Value>) -> Result<Message, RpcError> {
    let message = params
        .get("message")
        .and_then(Value::as_object)
        .ok_or_else(|| RpcError::params("params.message must be an object"))?;
    let message_id = match message.get("messageId") {
        Some(Value::String(id)) if !id.is_empty() => id.clone(),
        _ => return Err(RpcError::params("message.messageId must be a non-empty string")),
    };
    if message.get("role").and_then(Value::as_str) != Some("ROLE_USER") {
        return Err(RpcError::params("message.role must be ROLE_USER"));
    }
    let parts = match message.get("parts") {
        Some(Value::Array(parts)) if !parts.is_empty() => parts,
        _ => return Err(RpcError::params("message.parts must be a non-empty array")),
    };
    let parts = check_parts(parts)?;
    let task_id = optional_text(message, "taskId")?.filter(|id| !id.is_empty()).map(str::to_owned);
    let context = context_of(message)?;
    let references = references_of(message)?;
    let (used_door_extension, forget) = door_metadata(message)?;
    if forget && task_id.is_some() {
        return Err(RpcError::params("message.metadata forgetSession begins anew and names no taskId"));
    }
    let configuration = params.get("configuration").and_then(Value::as_object);
    let return_immediately = match configuration.and_then(|it| it.get("returnImmediately")) {
        None | Some(Value::Null) => false,
        Some(Value::Bool(immediately)) => *immediately,
        Some(_) => return Err(RpcError::params("configuration.returnImmediately must be a boolean")),
    };
    let unreadable = parts.iter().enumerate().find(|(_, part)| matches!(part.kind, "raw" | "url"));
    if let Some((index, part)) = unreadable {
        return Err(RpcError::content_type(index, part.kind, part.media_type));
    }
    if configuration.and_then(|it| it.get("taskPushNotificationConfig")).is_some_and(|config| !config.is_null()) {
        return Err(RpcError::push_notifications());
    }
    if forget {
        return Err(RpcError::params("message.metadata forgetSession needs a capsule on transport process"));
    }
    let part_kinds =
        parts.iter().map(|part| if part.kind == "text" { PartKind::Text } else { PartKind::Data }).collect();
    let text = parts.iter().map(Part::text).collect::<Vec<String>>().join("\n");
    Ok(Message { message_id, text, part_kinds, task_id, context, references, used_door_extension, return_immediately })
}

struct Part<'a> {
    kind: &'static str,
    content: &'a Value,
    media_type: Option<&'a str>,
    filename: Option<&'a str>,
}

fn check_parts(parts: &[Value]) -> Result<Vec<Part<'_>>, RpcError> {
    let mut checked = Vec::with_capacity(parts.len().min(64));
    for (index, part) in parts.iter().enumerate() {
        let one_of =
            || RpcError::params(format!("message.parts[{index}] must set exactly one of text, raw, url, data"));
        let part = part.as_object().ok_or_else(one_of)?;
        let mut set = ["text", "raw", "url", "data"].into_iter().filter_map(|kind| Some((kind, part.get(kind)?)));
        let (kind, content) = set.next().ok_or_else(one_of)?;
        if set.next().is_some() {
            return Err(one_of());
        }
        checked.push((kind, content, part));
    }
    let mut read = Vec::with_capacity(checked.len());
    for (index, (kind, content, part)) in checked.into_iter().enumerate() {
        let text = |key: &str| match part.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(RpcError::params(format!("message.parts[{index}].{key} must be a string"))),
        };
        for key in ["text", "raw", "url"] {
            text(key)?;
        }
        read.push(Part { kind, content, media_type: text("mediaType")?, filename: text("filename")? });
    }
    Ok(read)
}

impl Part<'_> {
    fn text(&self) -> String {
        if let Value::String(text) = self.content
            && self.kind == "text"
        {
            return text.clone();
        }
        let mut label = "data".to_owned();
        for (key, value) in [("media-type", self.media_type), ("filename", self.filename)] {
            if let Some(value) = value {
                let plain = value.replace(|c: char| c.is_whitespace() || matches!(c, '`' | '='), "_");
                let _ = write!(label, " {key}={plain}");
            }
        }
        let content = serde_json::to_string_pretty(self.content).unwrap_or_default();
        fenced(&label, &content)
    }
}

/// A code fence one backtick longer than the longest run inside, and at least three.
fn fenced(label: &str, content: &str) -> String {
    let longest = content.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat((longest + 1).max(3));
    format!("{fence}{label}\n{content}\n{fence}")
}

fn optional_text<'a>(message: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, RpcError> {
    match message.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(RpcError::params(format!("message.{key} must be a string"))),
    }
}

fn context_of(message: &Map<String, Value>) -> Result<Option<ContextId>, RpcError> {
    match optional_text(message, "contextId")? {
        None | Some("") => Ok(None),
        Some(text) => ContextId::parse(text)
            .filter(|_| text.len() <= MAX_CONTEXT && !text.contains(char::is_control))
            .map(Some)
            .ok_or_else(|| {
                RpcError::params(format!(
                    "message.contextId must be one path segment of at most {MAX_CONTEXT} bytes: no '/', no leading '.'"
                ))
            }),
    }
}

fn references_of(message: &Map<String, Value>) -> Result<Vec<String>, RpcError> {
    let wrong = || RpcError::params("message.referenceTaskIds must be an array of non-empty strings");
    let mut distinct: Vec<String> = Vec::new();
    let listed = match message.get("referenceTaskIds") {
        None => return Ok(distinct),
        Some(Value::Array(listed)) => listed,
        Some(_) => return Err(wrong()),
    };
    for id in listed {
        let id = id.as_str().filter(|id| !id.is_empty()).ok_or_else(wrong)?;
        if distinct.iter().any(|known| known == id) {
            continue;
        }
        if distinct.len() == MAX_REFERENCES {
            return Err(RpcError::params(format!(
                "message.referenceTaskIds names more than {MAX_REFERENCES} different tasks"
            )));
        }
        distinct.push(id.to_owned());
    }
    Ok(distinct)
}

/// Whether the message used the door extension, and whether it asks to forget its session.
fn door_metadata(message: &Map<String, Value>) -> Result<(bool, bool), RpcError> {
    let Some(metadata) = message.get("metadata").and_then(Value::as_object).and_then(|it| it.get(DOOR_EXTENSION))
    else {
        return Ok((false, false));
    };
    let metadata = metadata
        .as_object()
        .ok_or_else(|| RpcError::params(format!("message.metadata['{DOOR_EXTENSION}'] must be an object")))?;
    match metadata.get("forgetSession") {
        None => Ok((true, false)),
        Some(Value::Bool(forget)) => Ok((true, *forget)),
        Some(_) => Err(RpcError::params("message.metadata forgetSession must be a boolean")),
    }
}

/// What the agent is told of the tasks a message refers to; `tasks` are those the caller reaches, in order.
pub(super) fn referenced(tasks: &[(String, Option<TaskView>)]) -> String {
    let mut text = "\n\nReferenced tasks:".to_owned();
    let mut room = MAX_REFERENCED;
    for (id, task) in tasks {
        let Some(task) = task else {
            let _ = write!(text, "\n- {}: not a task this capsule holds", one_line(id));
            continue;
        };
        let _ = write!(text, "\n- {id}: {}", task.state.word());
        match (&task.response, &task.message) {
            (Some(Answer::Text(response)), _) if task.state == State::Completed => {
                let _ = if response.len() <= room {
                    room -= response.len();
                    write!(text, "\n{}", fenced("response", response))
                } else {
                    write!(text, " (its answer of {} bytes is too long to repeat here)", response.len())
                };
            }
            (_, Some(message)) if task.state.is_terminal() && task.state != State::Completed => {
                let _ = write!(text, ": {}", one_line(message));
            }
            _ => {}
        }
    }
    text
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<&str>>().join(" ")
}

/// Entry for a fuzzer: any JSON as the parameters of a message.
pub fn fuzz_message(bytes: &[u8]) {
    if let Ok(Value::Object(params)) = serde_json::from_slice(bytes)
        && let Ok(message) = read(&params)
    {
        assert!(!message.message_id.is_empty() && !message.part_kinds.is_empty());
        assert!(message.references.len() <= MAX_REFERENCES);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ids::TaskId;

    fn params(message: Value) -> Map<String, Value> {
        json!({ "message": message }).as_object().unwrap().clone()
    }

    fn message(change: impl FnOnce(&mut Map<String, Value>)) -> Map<String, Value> {
        let mut message = json!({ "messageId": "m1", "role": "ROLE_USER", "parts": [{ "text": "a" }] });
        change(message.as_object_mut().unwrap());
        params(message)
    }

    fn refusal(params: &Map<String, Value>) -> (i32, String) {
        let error = read(params).unwrap_err();
        (error.code, error.message)
    }

    #[test]
    fn parts_are_read_in_order_as_one_text() {
        let message = read(&message(|it| {
            it["parts"] = json!([
                { "text": "Count." },
                { "data": { "a": "``" }, "mediaType": "application/json; x=1", "filename": "a b.json" },
                { "data": null },
                { "data": "```" },
            ]);
        }))
        .unwrap();
        assert_eq!(
            message.text,
            "Count.\n```data media-type=application/json;_x_1 filename=a_b.json\n{\n  \"a\": \"``\"\n}\n```\n\
             ```data\nnull\n```\n````data\n\"```\"\n````"
        );
        assert_eq!(message.part_kinds, [PartKind::Text, PartKind::Data, PartKind::Data, PartKind::Data]);
    }

    #[test]
    fn each_check_names_its_parameter() {
        type Change = fn(&mut Map<String, Value>);
        let cases: [(&str, Change); 21] = [
            ("message.messageId", |it| it["messageId"] = json!("")),
            ("message.messageId", |it| it["messageId"] = json!(1)),
            ("message.role", |it| it["role"] = json!("user")),
            ("message.role", |it| {
                it.remove("role");
            }),
            ("message.parts must", |it| it["parts"] = json!([])),
            ("message.parts must", |it| it["parts"] = json!("a")),
            ("message.parts[0]", |it| it["parts"] = json!([{}])),
            ("message.parts[0]", |it| it["parts"] = json!(["a"])),
            ("message.parts[1]", |it| it["parts"] = json!([{ "text": "a" }, { "text": "a", "data": null }])),
            ("message.parts[0].text", |it| it["parts"] = json!([{ "text": null }])),
            ("message.parts[0].mediaType", |it| it["parts"] = json!([{ "text": "a", "mediaType": 1 }])),
            ("message.taskId", |it| it.extend([("taskId".to_owned(), json!(null))])),
            ("message.contextId", |it| it.extend([("contextId".to_owned(), json!("../x"))])),
            ("message.contextId", |it| it.extend([("contextId".to_owned(), json!("x".repeat(201)))])),
            ("message.referenceTaskIds", |it| it.extend([("referenceTaskIds".to_owned(), json!([""]))])),
            ("message.referenceTaskIds", |it| it.extend([("referenceTaskIds".to_owned(), json!("a"))])),
            ("message.referenceTaskIds", |it| {
                let many: Vec<String> = (0..17).map(|index| index.to_string()).collect();
                it.extend([("referenceTaskIds".to_owned(), json!(many))]);
            }),
            ("message.metadata", |it| it.extend([("metadata".to_owned(), json!({ DOOR_EXTENSION: 1 }))])),
            ("forgetSession", |it| {
                it.extend([("metadata".to_owned(), json!({ DOOR_EXTENSION: { "forgetSession": "x" } }))]);
            }),
            ("forgetSession", |it| {
                it.extend([("metadata".to_owned(), json!({ DOOR_EXTENSION: { "forgetSession": true } }))]);
            }),
            ("forgetSession", |it| {
                let metadata = json!({ DOOR_EXTENSION: { "forgetSession": true } });
                it.extend([("metadata".to_owned(), metadata), ("taskId".to_owned(), json!("t"))]);
            }),
        ];
        for (named, change) in cases {
            let (code, text) = refusal(&message(change));
            assert_eq!(code, -32602, "{text}");
            assert!(text.starts_with("Invalid params: ") && text.contains(named), "{named}: {text}");
        }
        let bare = json!({ "messageId": "m1", "role": "ROLE_USER", "parts": [{ "text": "a" }] });
        assert!(refusal(bare.as_object().unwrap()).1.contains("params.message"));
    }

    #[test]
    fn a_part_that_cannot_be_read_is_named_after_the_other_checks() {
        let raw = json!([{ "text": "a" }, { "raw": "AA==", "mediaType": "image/png" }]);
        let error = read(&message(|it| it["parts"] = raw.clone())).unwrap_err();
        assert_eq!(error.code, -32005);
        let expected = "message.parts[1] is a raw part; this agent reads text and data parts only";
        assert_eq!(error.message, expected);
        assert_eq!(error.data.unwrap()[0]["metadata"], json!({ "partIndex": "1", "mediaType": "image/png" }));
        let mut earlier = message(|it| it["parts"] = raw);
        earlier.insert("configuration".to_owned(), json!({ "returnImmediately": 1 }));
        assert_eq!(refusal(&earlier).0, -32602);
    }

    #[test]
    fn the_configuration_is_read_and_what_is_not_known_is_ignored() {
        let with = |configuration: Value| {
            let mut params = message(|it| it.extend([("metadata".to_owned(), json!(7))]));
            params.insert("configuration".to_owned(), configuration);
            read(&params)
        };
        assert!(with(json!({ "returnImmediately": true })).unwrap().return_immediately);
        assert!(!with(json!({ "returnImmediately": null })).unwrap().return_immediately);
        assert!(!with(json!("text")).unwrap().return_immediately);
        assert!(with(json!({ "taskPushNotificationConfig": null })).is_ok());
        assert_eq!(with(json!({ "taskPushNotificationConfig": {} })).unwrap_err().code, -32003);
    }

    #[test]
    fn referenced_tasks_are_told_with_what_they_said() {
        let view = |state, response: Option<&str>, message: Option<&str>| TaskView {
            id: TaskId::mint(),
            context: ContextId::mint(),
            state,
            changed_ms: 0,
            message: message.map(Into::into),
            response: response.map(|text| Answer::Text(text.into())),
            prompt: None,
            notes: None,
            ended: true,
        };
        let text = referenced(&[
            ("a".to_owned(), Some(view(State::Completed, Some("42"), Some("task completed")))),
            ("b".to_owned(), Some(view(State::Failed, None, Some("no\nluck")))),
            ("c".to_owned(), Some(view(State::Working, None, None))),
            ("d".to_owned(), None),
            ("e".to_owned(), Some(view(State::Completed, Some(&"x".repeat(MAX_REFERENCED)), None))),
        ]);
        assert_eq!(
            text,
            "\n\nReferenced tasks:\n- a: completed\n```response\n42\n```\n- b: failed: no luck\n- c: working\n\
             - d: not a task this capsule holds\n\
             - e: completed (its answer of 1048576 bytes is too long to repeat here)"
        );
    }

    proptest::proptest! {
        #[test]
        fn any_parameters_are_read_without_a_panic(text in "[\\[\\]{}\",:a-z0-9 ]{0,200}") {
            fuzz_message(text.as_bytes());
        }
    }
}
