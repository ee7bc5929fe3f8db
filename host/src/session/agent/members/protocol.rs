//! What a member call says to a door and how a door's answers are read. Pure: every answer is bytes from outside.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::credentials::MemberName;
use crate::ids::CallId;

/// The one rejection that asks for another offer.
pub const BUSY: &str = "task rejected: capsule is busy";
/// Most bytes of an answer that the caller is given.
pub const OUTPUT_MAX: usize = 65_536;
/// What stands at the end of a cut answer.
pub const CUT_MARK: &str = " […]";
/// Most entries of `noAnswerBelow` that are believed.
pub const BELOW_MAX: usize = 8;
/// Longest task id taken from a door.
const TASK_ID_MAX: usize = 128;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The member answered.
    Completed,
    /// The member's task failed, or the call could not be made.
    Failed,
    /// The member's task was cancelled.
    Canceled,
    /// The member never took the task.
    Rejected,
    /// The deadline passed before an answer came.
    TimedOut,
    /// The member's door is gone.
    Unreachable,
    /// The calling task ended first.
    Abandoned,
    /// The member ended its task without an answer.
    NoAnswer,
}

impl Status {
    /// The word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::Rejected => "rejected",
            Self::TimedOut => "timed_out",
            Self::Unreachable => "unreachable",
            Self::Abandoned => "abandoned",
            Self::NoAnswer => "no_answer",
        }
    }

    /// Reads the word of a call that brought no answer.
    fn parse_without_answer(word: &str) -> Option<Self> {
        use Status::{Abandoned, Canceled, Failed, NoAnswer, Rejected, TimedOut, Unreachable};
        [Failed, Canceled, Rejected, TimedOut, Unreachable, Abandoned, NoAnswer]
            .into_iter()
            .find(|status| status.as_str() == word)
    }
}

/// A member further down that gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Below {
    /// Its roster name.
    pub member: String,
    /// How its call ended.
    pub status: Status,
}

/// What a `SendMessage` was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The member holds the task under this id.
    Held(String),
    /// No room now.
    Busy,
    /// No, for good.
    Refused(Status, String),
}

/// What a `GetTask` was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Polled {
    /// Still at work.
    Live,
    /// Ended.
    Ended(Ending),
}

/// How a member's task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// How.
    pub status: Status,
    /// The answer, or the account of why there is none.
    pub output: String,
    /// Whether `output` was cut.
    pub truncated: bool,
    /// Members below it without an answer.
    pub below: Vec<Below>,
}

impl Ending {
    /// An ending that brings no answer.
    pub fn without_answer(status: Status, output: impl Into<String>) -> Self {
        let (output, truncated) = cut_output(output.into());
        Self { status, output, truncated, below: Vec::new() }
    }
}

/// The body of offer `offer` (from 1) of a call.
pub fn send_message(call: &CallId, offer: u32, task: &str) -> Vec<u8> {
    let id = if offer == 1 { call.to_string() } else { format!("{call}-{offer}") };
    let params = json!({
        "message": {"messageId": format!("msg_{call}"), "role": "ROLE_USER", "parts": [{"text": task}]},
        "configuration": {"returnImmediately": true},
    });
    request(&id, "SendMessage", &params)
}

/// The body that asks after a call's task.
pub fn get_task(call: &CallId, task_id: &str) -> Vec<u8> {
    request(&format!("{call}-get"), "GetTask", &json!({"id": task_id}))
}

/// The body that takes a call's task back.
pub fn cancel_task(call: &CallId, task_id: &str) -> Vec<u8> {
    request(&format!("{call}-cancel"), "CancelTask", &json!({"id": task_id}))
}

fn request(id: &str, method: &str, params: &Value) -> Vec<u8> {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string().into_bytes()
}

/// Reads the answer to a `SendMessage`.
pub fn read_sent(http_status: u16, body: &[u8]) -> Sent {
    let result = match read_result(http_status, body) {
        Ok(result) => result,
        Err(reason) => return Sent::Refused(Status::Failed, reason),
    };
    let Ok(Sending { task }) = serde_json::from_value(result) else {
        return Sent::Refused(Status::Failed, "its door answered without a task".into());
    };
    let text = task.status.text();
    match task.status.state.as_str() {
        "TASK_STATE_REJECTED" if text == BUSY => Sent::Busy,
        "TASK_STATE_REJECTED" => Sent::Refused(Status::Rejected, or(text, "the task was rejected")),
        // A task that has ended by now was taken all the same: its ending is read as any other.
        "TASK_STATE_SUBMITTED"
        | "TASK_STATE_WORKING"
        | "TASK_STATE_INPUT_REQUIRED"
        | "TASK_STATE_COMPLETED"
        | "TASK_STATE_FAILED"
        | "TASK_STATE_CANCELED"
            if !task.id.is_empty() && task.id.len() <= TASK_ID_MAX =>
        {
            Sent::Held(task.id)
        }
        state => {
            Sent::Refused(Status::Failed, format!("its door answered with an unknown task state '{}'", word(state)))
        }
    }
}

/// Reads the answer to a `GetTask`.
pub fn read_polled(http_status: u16, body: &[u8]) -> Polled {
    let failed = |reason: String| Polled::Ended(Ending::without_answer(Status::Failed, reason));
    let task: Task = match read_result(http_status, body).map(serde_json::from_value) {
        Ok(Ok(task)) => task,
        Ok(Err(_)) => return failed("its door answered without a task".into()),
        Err(reason) => return failed(reason),
    };
    let murmur = task.metadata.get("murmur");
    let no_answer = murmur.and_then(|murmur| murmur.get("noAnswer")) == Some(&Value::Bool(true));
    let status = match task.status.state.as_str() {
        "TASK_STATE_SUBMITTED" | "TASK_STATE_WORKING" | "TASK_STATE_INPUT_REQUIRED" => return Polled::Live,
        "TASK_STATE_COMPLETED" => Status::Completed,
        "TASK_STATE_FAILED" if no_answer => Status::NoAnswer,
        "TASK_STATE_FAILED" => Status::Failed,
        "TASK_STATE_CANCELED" => Status::Canceled,
        "TASK_STATE_REJECTED" => Status::Rejected,
        state => return failed(format!("its door answered with an unknown task state '{}'", word(state))),
    };
    let output = match status {
        Status::Completed => task.response(),
        _ => task.status.text(),
    };
    let (output, truncated) = cut_output(output);
    let below = read_below(murmur.and_then(|murmur| murmur.get("noAnswerBelow")));
    Polled::Ended(Ending { status, output, truncated, below })
}

#[derive(Deserialize)]
struct Sending {
    task: Task,
}

#[derive(Deserialize)]
struct Task {
    id: String,
    status: TaskStatus,
    #[serde(default)]
    artifacts: Vec<Artifact>,
    #[serde(default)]
    metadata: Value,
}

#[derive(Deserialize)]
struct TaskStatus {
    state: String,
    #[serde(default)]
    message: Option<Parts>,
}

#[derive(Deserialize)]
struct Artifact {
    #[serde(default)]
    name: String,
    #[serde(default)]
    parts: Vec<Part>,
}

#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    parts: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    text: Option<String>,
}

fn texts(parts: &[Part]) -> String {
    parts.iter().filter_map(|part| part.text.as_deref()).collect::<Vec<_>>().join("\n")
}

impl TaskStatus {
    fn text(&self) -> String {
        self.message.as_ref().map(|message| texts(&message.parts)).unwrap_or_default()
    }
}

impl Task {
    fn response(&self) -> String {
        self.artifacts.iter().find(|artifact| artifact.name == "response").map(|a| texts(&a.parts)).unwrap_or_default()
    }
}

/// The `result` of a JSON-RPC answer, or in words why there is none.
fn read_result(http_status: u16, body: &[u8]) -> Result<Value, String> {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
        message: String,
    }
    #[derive(Deserialize)]
    struct Reply {
        result: Option<Value>,
        error: Option<RpcError>,
    }
    #[derive(Deserialize)]
    struct RpcError {
        code: i64,
        message: String,
    }
    if http_status != 200 {
        return Err(match serde_json::from_slice(body) {
            Ok(Refusal { error, message }) => {
                format!("its door answered HTTP {http_status} ({}): {}", word(&error), cut_output(message).0)
            }
            Err(_) => format!("its door answered HTTP {http_status}"),
        });
    }
    match serde_json::from_slice(body) {
        Ok(Reply { error: Some(error), .. }) => {
            Err(format!("its door answered error {}: {}", error.code, cut_output(error.message).0))
        }
        Ok(Reply { result: Some(result), .. }) => Ok(result),
        _ => Err("its door did not answer in JSON-RPC".into()),
    }
}

fn read_below(value: Option<&Value>) -> Vec<Below> {
    let entries = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let read = |entry: &Value| {
        let member = entry.get("member")?.as_str().filter(|name| MemberName::parse(name).is_some())?.to_owned();
        let status = Status::parse_without_answer(entry.get("status")?.as_str()?)?;
        Some(Below { member, status })
    };
    entries.iter().take(BELOW_MAX).filter_map(read).collect()
}

/// A short word from outside, shown within a sentence.
fn word(text: &str) -> String {
    super::super::wire::cut(text, 64).chars().filter(|c| !c.is_control()).collect()
}

fn or(text: String, instead: &str) -> String {
    if text.is_empty() { instead.to_owned() } else { text }
}

/// Cuts an answer to [`OUTPUT_MAX`] bytes and marks the cut.
pub fn cut_output(mut text: String) -> (String, bool) {
    if text.len() <= OUTPUT_MAX {
        return (text, false);
    }
    text.truncate(super::super::wire::cut(&text, OUTPUT_MAX).len());
    text.push_str(CUT_MARK);
    (text, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent(state: &str, text: &str) -> Sent {
        let message = json!({"parts": [{"text": text}]});
        let task = json!({"id": "tsk_1", "status": {"state": state, "message": message}});
        read_sent(200, json!({"result": {"task": task}}).to_string().as_bytes())
    }

    fn polled(task: &Value) -> Polled {
        read_polled(200, json!({"result": task}).to_string().as_bytes())
    }

    #[test]
    fn offers_of_one_call_differ_in_the_request_id_only() {
        let call = CallId::mint();
        let read = |offer| serde_json::from_slice::<Value>(&send_message(&call, offer, "do")).unwrap();
        let (first, third) = (read(1), read(3));
        assert_eq!(first["id"], call.as_str());
        assert_eq!(third["id"], format!("{call}-3"));
        assert_eq!(first["params"], third["params"]);
        assert_eq!(first["params"]["message"]["messageId"], format!("msg_{call}"));
        assert_eq!(first["params"]["configuration"]["returnImmediately"], true);
    }

    #[test]
    fn a_send_is_held_busy_or_refused() {
        for state in ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED"] {
            assert_eq!(sent(state, ""), Sent::Held("tsk_1".into()));
        }
        assert_eq!(sent("TASK_STATE_REJECTED", BUSY), Sent::Busy);
        let closing = "task rejected: the session is closing";
        assert_eq!(sent("TASK_STATE_REJECTED", closing), Sent::Refused(Status::Rejected, closing.into()));
        assert!(matches!(sent("TASK_STATE_REJECTED", "task rejected: capsule is busy "), Sent::Refused(..)));
        assert!(matches!(sent("TASK_STATE_ODD", ""), Sent::Refused(Status::Failed, _)));
    }

    #[test]
    fn refusals_of_a_door_say_their_status_and_code() {
        let flat = br#"{"error":"peer_not_accepted","message":"this capsule does not accept tasks from peers"}"#;
        let Sent::Refused(Status::Failed, text) = read_sent(403, flat) else { panic!() };
        assert!(text.contains("403") && text.contains("peer_not_accepted"), "{text}");
        let rpc = br#"{"jsonrpc":"2.0","id":"x","error":{"code":-32001,"message":"Task not found"}}"#;
        let Polled::Ended(ending) = read_polled(200, rpc) else { panic!() };
        assert_eq!(ending.status, Status::Failed);
        assert!(ending.output.contains("-32001: Task not found"), "{}", ending.output);
        assert!(matches!(read_sent(500, b"<html>"), Sent::Refused(Status::Failed, _)));
    }

    #[test]
    fn an_answer_is_the_response_artifact() {
        let task = json!({"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [
            {"name": "residue", "parts": [{"data": {}}]},
            {"name": "response", "parts": [{"text": "forty"}, {"text": "two"}]}]});
        let Polled::Ended(ending) = polled(&task) else { panic!() };
        assert_eq!((ending.status, ending.output.as_str(), ending.truncated), (Status::Completed, "forty\ntwo", false));
    }

    #[test]
    fn only_a_true_no_answer_mark_counts() {
        for (mark, expected) in
            [(json!(true), Status::NoAnswer), (json!("true"), Status::Failed), (json!(1), Status::Failed)]
        {
            let task = json!({"id": "t", "status": {"state": "TASK_STATE_FAILED"}, "metadata": {"murmur": {"noAnswer": mark}}});
            let Polled::Ended(ending) = polled(&task) else { panic!() };
            assert_eq!(ending.status, expected);
        }
    }

    #[test]
    fn members_below_are_believed_only_by_name_and_status() {
        let mut entries = vec![
            json!({"member": "a", "status": "timed_out"}),
            json!({"member": "A", "status": "failed"}),
            json!({"member": "b", "status": "completed"}),
            json!({"member": "c"}),
            json!(7),
        ];
        entries.extend((0..10).map(|n| json!({"member": format!("m{n}"), "status": "failed"})));
        let below = read_below(Some(&json!(entries)));
        let names: Vec<_> = below.iter().map(|below| below.member.as_str()).collect();
        assert_eq!(names, ["a", "m0", "m1", "m2"], "the first eight entries, the readable ones of them");
    }

    #[test]
    fn an_answer_is_cut_on_a_character_and_marked() {
        let (text, cut) = cut_output(format!("{}é", "x".repeat(OUTPUT_MAX - 1)));
        assert!(cut);
        assert_eq!(text.len(), OUTPUT_MAX - 1 + CUT_MARK.len());
        assert!(!cut_output("x".repeat(OUTPUT_MAX)).1);
    }

    proptest! {
        #[test]
        fn no_answer_panics_the_readers(status in 100_u16..600, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_sent(status, &body);
            let _ = read_polled(status, &body);
        }

        #[test]
        fn no_json_panics_the_readers(a in ".*", b in ".*") {
            let body = json!({"result": {"task": {"id": a.clone(), "status": {"state": b}}, "id": a, "status": {}}}).to_string();
            let _ = read_sent(200, body.as_bytes());
            let _ = read_polled(200, body.as_bytes());
        }
    }
}
