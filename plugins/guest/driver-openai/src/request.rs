//! The provider's request.

use mur_guest_kit::provider::{Config, Failure, Message, Request, text_of};
use serde_json::{Map, Value, json};

/// What the runtime alone sets.
const RESERVED: &[&str] = &["model", "messages", "tools", "stream"];

/// The body of a request.
pub fn body(request: &Request, config: &Config) -> Result<Value, Failure> {
    let own = match config.text("dialect")? {
        None | Some("openai") => true,
        Some("plain") => false,
        Some(other) => {
            return Err(Failure::fixed(format!(
                "inference.driver.config.dialect must be 'openai' or 'plain', not '{other}'"
            )));
        }
    };
    let stream = config.flag("stream", true)?;
    let mut body = Map::new();
    body.insert("model".into(), request.model.clone().into());
    if let Some(cap) = request.max_tokens {
        // Reasoning models refuse the old name; other servers know no other.
        body.insert(if own { "max_completion_tokens" } else { "max_tokens" }.into(), cap.into());
    }
    let mut messages = Vec::new();
    if !request.system.is_empty() {
        messages.push(json!({"role": "system", "content": request.system}));
    }
    messages.extend(request.messages.iter().filter_map(message));
    body.insert("messages".into(), messages.into());
    if !request.tools.is_empty() {
        body.insert("tools".into(), request.tools.iter().map(tool).collect());
    }
    body.insert("stream".into(), stream.into());
    if stream {
        body.insert("stream_options".into(), json!({"include_usage": true}));
    }
    if let Some(key) = request.cache_key.as_ref().filter(|_| own) {
        body.insert("prompt_cache_key".into(), key.clone().into());
    }
    config.lay_over(&mut body, RESERVED)?;
    Ok(Value::Object(body))
}

fn tool(entry: &Value) -> Value {
    let mut function = json!({"name": entry["name"], "parameters": entry["parameters"]});
    if entry["description"].is_string() {
        function["description"] = entry["description"].clone();
    }
    json!({"type": "function", "function": function})
}

fn message(message: &Message) -> Option<Value> {
    match message {
        Message::User(content) => Some(json!({"role": "user", "content": text_of(content)})),
        Message::Tool { id, text, .. } => Some(json!({"role": "tool", "tool_call_id": id, "content": text})),
        Message::Assistant(content) => {
            let text = text_of(content);
            let calls: Vec<Value> = content.iter().filter(|block| block["type"] == "tool_call").map(call).collect();
            if text.is_empty() && calls.is_empty() {
                return None;
            }
            let mut message = json!({"role": "assistant"});
            // With calls, no text is null and not empty: servers tell the two apart.
            message["content"] = if text.is_empty() { Value::Null } else { text.into() };
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            Some(message)
        }
    }
}

fn call(block: &Value) -> Value {
    let arguments = if block["input"].is_object() { block["input"].to_string() } else { "{}".to_owned() };
    json!({"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": arguments}})
}
