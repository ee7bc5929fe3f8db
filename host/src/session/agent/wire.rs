//! The driver's wire: the request a driver is called with, the response it returns, and the message list between them.
//!
//! A message is serialised once, when it joins the conversation: the same text goes over the wire turn after turn, is
//! hashed for the trace and counted for the budget. Runtime bookkeeping (ids, marks) lives beside that text, never in
//! it. An assistant's blocks are kept byte for byte as the driver wrote them.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{hex, sha256};
use crate::ids::MessageId;
use crate::manifest::Capsule;

/// Longest `prompt_cache_key`, in bytes.
const CACHE_KEY_MAX: usize = 64;
/// Bytes of a longer key that are kept before the hash.
const CACHE_KEY_KEPT: usize = 47;

/// One message of a conversation.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its id, which no driver sees.
    pub id: MessageId,
    /// What goes over the wire.
    pub wire: Box<RawValue>,
    sha: OnceLock<String>,
    mark: Option<Mark>,
    /// A hook's own name for it, carried as given.
    source_id: Option<String>,
}

/// What only the record says of a message.
#[derive(Clone, Debug)]
enum Mark {
    /// The fence its text stands in.
    Fence(String),
    /// The task was cancelled here.
    Canceled,
    /// The answer was cut at the output cap.
    Truncated,
    /// A hook gave it for the conversation to begin with.
    Seed,
    /// A hook gave it in place of what was there.
    Replacement,
}

impl Message {
    fn of(wire: Box<RawValue>) -> Self {
        Self { id: MessageId::mint(), wire, sha: OnceLock::new(), mark: None, source_id: None }
    }

    /// SHA-256 of what goes over the wire, in hex.
    pub fn sha(&self) -> &str {
        self.sha.get_or_init(|| sha256(self.wire.get().as_bytes()))
    }

    /// The line of the conversation record.
    pub fn record_line(&self) -> String {
        let wire = self.wire.get();
        let mark = match &self.mark {
            None => String::new(),
            Some(Mark::Fence(source)) => format!(r#","fence":{}"#, Value::from(source.as_str())),
            Some(Mark::Canceled) => r#","canceled":true"#.to_owned(),
            Some(Mark::Truncated) => r#","truncated":true"#.to_owned(),
            Some(Mark::Seed) => r#","inserted_by":"seed-context""#.to_owned(),
            Some(Mark::Replacement) => r#","inserted_by":"replace-context""#.to_owned(),
        };
        let source = match &self.source_id {
            None => String::new(),
            Some(source) => format!(r#","source_id":{}"#, Value::from(source.as_str())),
        };
        format!(r#"{},"id":"{}"{source}{mark}}}"#, wire.strip_suffix('}').unwrap_or(wire), self.id)
    }

    /// Marks a message whose text stands in a fence.
    #[must_use]
    pub fn fenced_by(self, source: &str) -> Self {
        Self { mark: Some(Mark::Fence(source.to_owned())), ..self }
    }

    /// Marks an answer that the output cap cut.
    #[must_use]
    pub fn truncated(self) -> Self {
        Self { mark: Some(Mark::Truncated), ..self }
    }

    /// Marks what a hook gave for the conversation to begin with.
    #[must_use]
    pub fn seeded(self) -> Self {
        Self { mark: Some(Mark::Seed), ..self }
    }

    /// Whether a hook gave it for the conversation to begin with.
    pub fn is_seed(&self) -> bool {
        matches!(self.mark, Some(Mark::Seed))
    }

    /// Marks what a hook gave in place of what was there.
    #[must_use]
    pub fn replacing(self) -> Self {
        Self { mark: Some(Mark::Replacement), ..self }
    }

    /// Whether a hook gave it in place of what was there.
    pub fn is_replacement(&self) -> bool {
        matches!(self.mark, Some(Mark::Replacement))
    }

    /// Whether it is a user's.
    pub fn is_user(&self) -> bool {
        self.wire.get().starts_with(r#"{"role":"user""#)
    }

    /// Gives it a hook's own name.
    #[must_use]
    pub fn named(self, source_id: Option<String>) -> Self {
        Self { source_id, ..self }
    }

    /// A hook's own name for it.
    pub fn source_id(&self) -> Option<&str> {
        self.source_id.as_deref()
    }

    /// What the record holds where a task was cancelled.
    pub fn canceled(text: &str) -> Self {
        let wire = raw(&json!({"role": "assistant", "content": [{"type": "text", "text": text}]}));
        Self { mark: Some(Mark::Canceled), ..Self::of(wire) }
    }

    /// A message read from a record.
    pub fn recorded(
        id: Option<MessageId>,
        role: &str,
        tool_call_id: Option<&str>,
        is_error: bool,
        content: &[Box<RawValue>],
    ) -> Self {
        #[derive(Serialize)]
        struct Recorded<'a> {
            role: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            tool_call_id: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            is_error: Option<bool>,
            content: &'a [Box<RawValue>],
        }
        let is_error = (role == "tool").then_some(is_error);
        let tool_call_id = tool_call_id.filter(|_| role == "tool");
        let message = Self::of(to_raw_value(&Recorded { role, tool_call_id, is_error, content }).unwrap_or_default());
        Self { id: id.unwrap_or_else(MessageId::mint), ..message }
    }

    /// A user's text.
    pub fn user(text: &str) -> Self {
        Self::of(raw(&json!({"role": "user", "content": [{"type": "text", "text": text}]})))
    }

    /// An assistant's answer, in the driver's own blocks.
    pub fn assistant(content: &[Box<RawValue>]) -> Self {
        #[derive(Serialize)]
        struct Assistant<'a> {
            role: &'static str,
            content: &'a [Box<RawValue>],
        }
        let wire = to_raw_value(&Assistant { role: "assistant", content }).unwrap_or_else(|_| raw(&Value::Null));
        Self::of(wire)
    }

    /// The result of one tool call.
    pub fn tool(tool_call_id: &str, is_error: bool, text: &str) -> Self {
        Self::of(raw(&json!({
            "role": "tool", "tool_call_id": tool_call_id, "is_error": is_error,
            "content": [{"type": "text", "text": text}],
        })))
    }
}

fn raw(value: &Value) -> Box<RawValue> {
    // A `Value` always serialises.
    to_raw_value(value).unwrap_or_default()
}

/// One entry of the request's `tools`.
#[derive(Serialize)]
pub struct ToolEntry<'a> {
    /// The bare name.
    pub name: &'a str,
    /// The manifest's description, if it says something.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub description: &'a str,
    /// The input schema.
    pub parameters: &'a Value,
}

/// What a driver is called with: `tool-input.data`.
#[derive(Serialize)]
pub struct Request<'a> {
    /// The model's name, passed on.
    pub model: &'a str,
    /// The output cap.
    pub max_tokens: u64,
    /// The conversation, or what the driver does not know of it yet.
    pub messages: Vec<&'a RawValue>,
    /// The tool array, serialised once.
    pub tools: &'a RawValue,
    params: Empty,
    /// The system prompt.
    pub system: &'a str,
    /// Only while the driver holds the earlier messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuation_id: Option<&'a str>,
    /// Groups requests that share a prefix; not sent when empty.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub prompt_cache_key: &'a str,
}

#[derive(Default, Serialize)]
struct Empty {}

impl<'a> Request<'a> {
    /// A request for the whole conversation.
    pub fn new(model: &'a str, max_tokens: u64, system: &'a str, tools: &'a RawValue, cache_key: &'a str) -> Self {
        Self {
            model,
            max_tokens,
            messages: Vec::new(),
            tools,
            params: Empty {},
            system,
            continuation_id: None,
            prompt_cache_key: cache_key,
        }
    }

    /// The JSON text.
    pub fn to_json(&self) -> String {
        // Strings, numbers and raw JSON always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The `prompt_cache_key` of a context.
pub fn cache_key(capsule: &Capsule, context: &str) -> String {
    shorten_cache_key(format!("{}:{}:{context}", capsule.name, capsule.version))
}

fn shorten_cache_key(key: String) -> String {
    if key.len() <= CACHE_KEY_MAX {
        return key;
    }
    let hash = hex(&Sha256::digest(key.as_bytes())[..8]);
    format!("{}:{hash}", cut(&key, CACHE_KEY_KEPT))
}

/// The longest prefix of `text` within `max` bytes that ends on a character boundary.
pub fn cut(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Why a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The text is the answer.
    EndTurn,
    /// Tools are to be called.
    ToolCall,
    /// The answer was cut at the output cap.
    MaxTokens,
}

impl StopReason {
    /// The word of the trace and of hooks for what the loop does next.
    pub fn decision(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::ToolCall => "tool_call",
            Self::MaxTokens => "text",
        }
    }

    /// The driver's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::ToolCall => "tool_call",
            Self::MaxTokens => "max_tokens",
        }
    }
}

/// The counts a driver reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Fresh input.
    pub input_tokens: Option<u64>,
    /// Output, thinking included.
    pub output_tokens: Option<u64>,
    /// Read from the provider's cache, beside `input_tokens`.
    pub cached_tokens: Option<u64>,
    /// Written to the provider's cache, beside `input_tokens`.
    pub cache_write_tokens: Option<u64>,
    /// Spent on thinking, within `output_tokens`.
    pub thinking_tokens: Option<u64>,
}

impl Usage {
    /// Reads what is readable; a bad member is dropped alone.
    fn read(value: Option<&Value>) -> Self {
        let count = |name: &str| value?.get(name)?.as_u64();
        Self {
            input_tokens: count("input_tokens"),
            output_tokens: count("output_tokens"),
            cached_tokens: count("cached_tokens"),
            cache_write_tokens: count("cache_write_tokens"),
            thinking_tokens: count("thinking_tokens"),
        }
    }
}

/// One `tool_call` block.
#[derive(Clone, Debug)]
pub struct ToolCall {
    /// The provider's id, verbatim.
    pub id: String,
    /// The tool's bare name.
    pub name: String,
    /// The input as the model wrote it; `{}` when it wrote none.
    pub input: Box<RawValue>,
}

/// A response that can be acted on.
#[derive(Debug)]
pub struct Response {
    /// Why it ended.
    pub stop_reason: StopReason,
    /// The blocks, verbatim.
    pub content: Vec<Box<RawValue>>,
    /// Its `text` blocks joined with line feeds.
    pub text: String,
    /// Its `tool_call` blocks, in order.
    pub calls: Vec<ToolCall>,
    /// What it cost.
    pub usage: Usage,
}

/// Why a driver's result is no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The driver reports a failed call.
    Driver(String),
    /// The driver returned something that is no response.
    Malformed(String),
}

/// Reads a driver's result: `passed` tells its status, `payload` is `data`, else `summary`.
pub fn read_response(passed: bool, payload: Option<&str>) -> Result<Response, Fault> {
    let Some(payload) = payload else {
        return Err(match passed {
            true => Fault::Malformed("driver returned no data".into()),
            false => Fault::Driver("driver returned no data".into()),
        });
    };
    if !passed {
        return Err(Fault::Driver(error_text(payload)));
    }
    #[derive(Deserialize)]
    struct Body {
        stop_reason: Option<Value>,
        content: Option<Vec<Box<RawValue>>>,
        usage: Option<Value>,
    }
    let body: Body = serde_json::from_str(payload)
        .map_err(|error| Fault::Malformed(format!("failed to parse driver response: {error}")))?;
    let named = match &body.stop_reason {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let stop_reason = match named.as_str() {
        "end_turn" => StopReason::EndTurn,
        "tool_call" => StopReason::ToolCall,
        "max_tokens" => StopReason::MaxTokens,
        "error" => return Err(Fault::Driver(error_text(payload))),
        _ => return Err(Fault::Malformed(format!("unsupported stop_reason '{named}'"))),
    };
    let content = body.content.unwrap_or_default();
    let (text, calls) = read_blocks(&content).map_err(Fault::Malformed)?;
    if stop_reason == StopReason::ToolCall && calls.is_empty() {
        return Err(Fault::Malformed("stop_reason 'tool_call' without a tool_call block".into()));
    }
    Ok(Response { stop_reason, content, text, calls, usage: Usage::read(body.usage.as_ref()) })
}

/// The payload's string `error`, else the payload itself.
fn error_text(payload: &str) -> String {
    #[derive(Deserialize)]
    struct Body {
        error: Option<Value>,
    }
    match serde_json::from_str(payload) {
        Ok(Body { error: Some(Value::String(text)) }) => text,
        _ => payload.to_owned(),
    }
}

fn read_blocks(content: &[Box<RawValue>]) -> Result<(String, Vec<ToolCall>), String> {
    #[derive(Deserialize)]
    struct Block<'a> {
        #[serde(rename = "type")]
        kind: Option<Value>,
        text: Option<Value>,
        id: Option<Value>,
        name: Option<Value>,
        #[serde(borrow)]
        input: Option<&'a RawValue>,
    }
    let mut texts = Vec::new();
    let mut calls = Vec::new();
    for (index, block) in content.iter().enumerate() {
        let block: Block<'_> = serde_json::from_str(block.get())
            .map_err(|_| format!("failed to parse driver response: content[{index}] is no block"))?;
        match block.kind.as_ref().and_then(Value::as_str) {
            Some("text") => texts.extend(block.text.as_ref().and_then(Value::as_str).map(str::to_owned)),
            Some("tool_call") => {
                let Some(Value::String(name)) = block.name else {
                    return Err(format!(
                        "failed to parse driver response: content[{index}] is a tool_call without a name"
                    ));
                };
                let id = block.id.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
                let input = match block.input {
                    Some(input) if input.get() != "null" => input.to_owned(),
                    _ => raw(&json!({})),
                };
                calls.push(ToolCall { id, name, input });
            }
            // Thinking, and kinds this host does not know, are kept and sent back.
            _ => {}
        }
    }
    Ok((texts.join("\n"), calls))
}

/// The first value of a reserved metadata key.
pub fn reserved<'a>(metadata: &'a [(String, String)], key: &str) -> Option<&'a str> {
    metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn malformed(payload: &str) -> String {
        match read_response(true, Some(payload)) {
            Err(Fault::Malformed(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_has_its_keys_in_order_and_no_bookkeeping() {
        let user = Message::user("hi");
        let tools = to_raw_value(&[ToolEntry { name: "a", description: "", parameters: &json!({"type": "object"}) }]);
        let tools = tools.unwrap();
        let mut request = Request::new("m", 9, "sys", &tools, "k");
        request.messages.push(&user.wire);
        assert_eq!(
            request.to_json(),
            r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"tools":[{"name":"a","parameters":{"type":"object"}}],"params":{},"system":"sys","prompt_cache_key":"k"}"#
        );
        request.continuation_id = Some("c");
        assert!(request.to_json().contains(r#""continuation_id":"c""#));
    }

    #[test]
    fn a_tool_message_carries_its_error_mark() {
        assert_eq!(
            Message::tool("t1", true, "no").wire.get(),
            r#"{"role":"tool","tool_call_id":"t1","is_error":true,"content":[{"type":"text","text":"no"}]}"#
        );
    }

    #[test]
    fn assistant_blocks_are_sent_back_as_they_came() {
        let block = r#"{"type":"thinking","sig":1.0e+2,"x":123456789012345678901234567890}"#;
        let payload = format!(r#"{{"stop_reason":"end_turn","content":[ {block} ,{{"type":"text","text":"a"}}]}}"#);
        let response = read_response(true, Some(&payload)).unwrap();
        assert!(Message::assistant(&response.content).wire.get().contains(block));
        assert_eq!(response.text, "a");
    }

    #[test]
    fn a_cache_key_is_shortened_on_a_character() {
        assert_eq!(shorten_cache_key("a:1:c".into()), "a:1:c");
        let long = format!("{}é{}", "a".repeat(46), "b".repeat(30));
        let key = shorten_cache_key(long);
        assert_eq!(key.len(), 46 + 1 + 16);
        assert!(key.starts_with(&format!("{}:", "a".repeat(46))));
    }

    #[test]
    fn calls_are_read_in_order_and_an_absent_input_is_empty() {
        let payload = r#"{"stop_reason":"tool_call","content":[
            {"type":"text","text":"first"},
            {"type":"tool_call","id":"1","name":"a","input":{"x":1.50}},
            {"type":"text","text":"then"},
            {"type":"tool_call","id":"2","name":"b"},
            {"type":"tool_call","name":"c","input":null}],
            "usage":{"input_tokens":3,"output_tokens":-1,"cached_tokens":2.5,"thinking_tokens":"x"}}"#;
        let response = read_response(true, Some(payload)).unwrap();
        let calls: Vec<_> = response.calls.iter().map(|c| (c.id.as_str(), c.name.as_str(), c.input.get())).collect();
        assert_eq!(calls, [("1", "a", r#"{"x":1.50}"#), ("2", "b", "{}"), ("", "c", "{}")]);
        assert_eq!(response.text, "first\nthen");
        assert_eq!(response.usage, Usage { input_tokens: Some(3), ..Usage::default() });
    }

    #[test]
    fn what_is_no_response_says_why() {
        assert_eq!(malformed(r#"{"stop_reason":"pause","content":[]}"#), "unsupported stop_reason 'pause'");
        assert_eq!(malformed(r#"{"content":[]}"#), "unsupported stop_reason ''");
        assert_eq!(malformed(r#"{"stop_reason":7}"#), "unsupported stop_reason '7'");
        assert!(malformed("not json").starts_with("failed to parse driver response: "));
        assert!(
            malformed(r#"{"stop_reason":"end_turn","content":"text"}"#)
                .starts_with("failed to parse driver response: ")
        );
        assert!(malformed(r#"{"stop_reason":"end_turn","content":[7]}"#).contains("content[0]"));
        assert!(malformed(r#"{"stop_reason":"tool_call","content":[]}"#).contains("without a tool_call block"));
        assert!(
            malformed(r#"{"stop_reason":"tool_call","content":[{"type":"tool_call"}]}"#).contains("without a name")
        );
        assert_eq!(read_response(true, None).unwrap_err(), Fault::Malformed("driver returned no data".into()));
    }

    #[test]
    fn a_failed_call_gives_its_error_text_or_all_it_returned() {
        let fault = |passed, payload| read_response(passed, Some(payload)).unwrap_err();
        assert_eq!(fault(false, r#"{"error":"overloaded"}"#), Fault::Driver("overloaded".into()));
        assert_eq!(fault(false, r#"{"error":{"a":1}}"#), Fault::Driver(r#"{"error":{"a":1}}"#.into()));
        assert_eq!(fault(false, "plain"), Fault::Driver("plain".into()));
        assert_eq!(fault(true, r#"{"stop_reason":"error","error":"quota"}"#), Fault::Driver("quota".into()));
    }

    #[test]
    fn the_first_of_a_reserved_key_wins() {
        let metadata = [("a".to_owned(), "1".to_owned()), ("a".to_owned(), "2".to_owned())];
        assert_eq!(reserved(&metadata, "a"), Some("1"));
        assert_eq!(reserved(&metadata, "b"), None);
    }

    proptest! {
        #[test]
        fn no_payload_panics_the_reader(payload in ".*", passed: bool) {
            let _ = read_response(passed, Some(&payload));
        }

        #[test]
        fn a_cut_is_a_prefix_within_its_bound(text in ".*", max in 0_usize..40) {
            let kept = cut(&text, max);
            prop_assert!(kept.len() <= max && text.starts_with(kept));
        }
    }
}
