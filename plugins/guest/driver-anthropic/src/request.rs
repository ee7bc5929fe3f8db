//! The provider's request.

use mur_guest_kit::provider::{Config, Failure, Message, Request};
use serde_json::{Map, Value, json};

/// What the runtime alone sets.
const RESERVED: &[&str] = &["model", "messages", "system", "tools", "stream"];

/// The body of a request.
pub fn body(request: &Request, config: &Config) -> Result<Value, Failure> {
    let cache = config.flag("cache", true)? && request.cache_key.is_some();
    let mut body = Map::new();
    body.insert("model".into(), request.model.clone().into());
    let cap =
        request.max_tokens.ok_or_else(|| Failure::fixed("the request has no max_tokens, which this API needs"))?;
    body.insert("max_tokens".into(), cap.into());
    if !request.system.is_empty() {
        let mut block = json!({"type": "text", "text": request.system});
        mark(&mut block, cache);
        body.insert("system".into(), json!([block]));
    }
    let mut messages = messages(&request.messages);
    if cache {
        // Everything up to the last message is asked for again next turn.
        let last = messages.last_mut().and_then(|message| message["content"].as_array_mut()?.last_mut());
        if let Some(last) = last.filter(|block| block["type"] == "text" || block["type"] == "tool_result") {
            mark(last, true);
        }
    }
    body.insert("messages".into(), messages.into());
    if !request.tools.is_empty() {
        body.insert("tools".into(), request.tools.iter().map(tool).collect());
    }
    body.insert("stream".into(), config.flag("stream", true)?.into());
    config.lay_over(&mut body, RESERVED)?;
    Ok(Value::Object(body))
}

fn mark(block: &mut Value, cache: bool) {
    if cache {
        block["cache_control"] = json!({"type": "ephemeral"});
    }
}

fn tool(entry: &Value) -> Value {
    let mut tool = json!({"name": entry["name"], "input_schema": entry["parameters"]});
    if entry["description"].is_string() {
        tool["description"] = entry["description"].clone();
    }
    tool
}

/// Messages of one side that follow each other become one, as the API wants them; tool results are the user's side, and
/// come before its text.
fn messages(messages: &[Message]) -> Vec<Value> {
    let mut sides: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in messages {
        let (side, blocks) = match message {
            Message::User(content) => ("user", texts(content)),
            Message::Assistant(content) => ("assistant", content.iter().filter_map(assistant).collect()),
            Message::Tool { id, is_error, text } => ("user", vec![result(id, *is_error, text)]),
        };
        match sides.last_mut() {
            Some((last, all)) if *last == side => all.extend(blocks),
            _ => sides.push((side, blocks)),
        }
    }
    sides.retain(|(_, blocks)| !blocks.is_empty());
    sides.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

/// The API refuses empty texts.
fn texts(content: &[Value]) -> Vec<Value> {
    content
        .iter()
        .filter_map(|block| block["text"].as_str())
        .filter(|text| !text.trim().is_empty())
        .map(|text| json!({"type": "text", "text": text}))
        .collect()
}

fn result(id: &str, is_error: bool, text: &str) -> Value {
    let mut block = json!({"type": "tool_result", "tool_use_id": id});
    if !text.trim().is_empty() {
        block["content"] = text.into();
    }
    if is_error {
        block["is_error"] = true.into();
    }
    block
}

/// A block of the model's own, as the provider knows it.
fn assistant(block: &Value) -> Option<Value> {
    match block["type"].as_str()? {
        "text" => {
            let text = block["text"].as_str().filter(|text| !text.trim().is_empty())?;
            Some(json!({"type": "text", "text": text}))
        }
        "tool_call" => {
            let input = if block["input"].is_object() { block["input"].clone() } else { json!({}) };
            Some(json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": input}))
        }
        // A block this driver wrapped goes back as it came: reasoning carries a signature the provider checks.
        _ => block["anthropic"].is_object().then(|| block["anthropic"].clone()),
    }
}
