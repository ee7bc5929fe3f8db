//! Messages as hooks see them: a role and a text that is either plain or a list of blocks, and for a tool's result an
//! envelope that says which call it answers.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::wire::Message;
use crate::ids::MessageId;
use crate::worker::hook::{ContextInsertion, HookMessage};

/// Tells the envelope of a tool's result from any other JSON.
const ENVELOPE: &str = "__murmur_tool_msg__";

/// A message of the conversation, for a hook.
pub fn to_hook(message: &Message) -> HookMessage {
    #[derive(Deserialize)]
    struct Wire<'a> {
        role: String,
        #[serde(borrow)]
        content: &'a RawValue,
        tool_call_id: Option<String>,
        is_error: Option<bool>,
    }
    let read = serde_json::from_str::<Wire<'_>>(message.wire.get());
    let (role, content) = match read {
        Ok(wire) if wire.role == "tool" => {
            let body = texts(wire.content.get()).unwrap_or_else(|| wire.content.get().to_owned());
            let envelope = json!({
                ENVELOPE: true, "tool_call_id": wire.tool_call_id, "is_error": wire.is_error.unwrap_or(false),
                "body": body,
            });
            (wire.role, envelope.to_string())
        }
        Ok(wire) => (wire.role, wire.content.get().to_owned()),
        // What the loop made always has these fields.
        Err(_) => ("user".to_owned(), message.wire.get().to_owned()),
    };
    HookMessage {
        role,
        content,
        id: Some(message.id.to_string()),
        source_id: message.source_id().map(str::to_owned),
        inserted_by: match message {
            message if message.is_seed() => Some(ContextInsertion::SeedContext),
            message if message.is_replacement() => Some(ContextInsertion::ReplaceContext),
            _ => None,
        },
    }
}

/// A message a hook gave. The text says why it is none.
pub fn from_hook(message: &HookMessage) -> Result<Message, String> {
    read(message).map(|read| read.named(message.source_id.clone()))
}

fn read(message: &HookMessage) -> Result<Message, String> {
    let id = message.id.as_deref().and_then(MessageId::parse);
    match message.role.as_str() {
        "tool" => {
            let envelope: Value = serde_json::from_str(&message.content).unwrap_or_default();
            let call = envelope.get("tool_call_id").and_then(Value::as_str);
            let (Some(true), Some(call)) = (envelope.get(ENVELOPE).and_then(Value::as_bool), call) else {
                return Err("a message of role tool is not the envelope of a call's result".to_owned());
            };
            let body = match envelope.get("body") {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => String::new(),
            };
            let is_error = envelope.get("is_error").and_then(Value::as_bool).unwrap_or(false);
            Ok(Message::recorded(id, "tool", Some(call), is_error, &[text_block(&body)]))
        }
        role @ ("user" | "assistant") => Ok(Message::recorded(id, role, None, false, &blocks(&message.content))),
        other => Err(format!("'{other}' is no role of a message")),
    }
}

/// The block list a content is, or one block with its text.
fn blocks(content: &str) -> Vec<Box<RawValue>> {
    match serde_json::from_str::<Vec<Box<RawValue>>>(content) {
        Ok(blocks) if blocks.iter().all(|block| block.get().starts_with('{')) => blocks,
        _ => vec![text_block(content)],
    }
}

fn text_block(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(&json!({"type": "text", "text": text})).unwrap_or_default()
}

/// The text of a list of text blocks.
fn texts(content: &str) -> Option<String> {
    let blocks: Vec<Value> = serde_json::from_str(content).ok()?;
    let texts = blocks.iter().map(|block| block.get("text").and_then(Value::as_str));
    texts.collect::<Option<Vec<_>>>().map(|texts| texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_as_it_was() {
        for message in [Message::user("hi"), Message::tool("c1", true, "no")] {
            let back = from_hook(&to_hook(&message)).unwrap();
            assert_eq!((back.wire.get(), back.id), (message.wire.get(), message.id));
        }
    }

    #[test]
    fn plain_text_becomes_one_block_and_other_roles_are_refused() {
        let message = |role: &str, content: &str| HookMessage {
            role: role.into(),
            content: content.into(),
            id: None,
            source_id: None,
            inserted_by: None,
        };
        let plain = from_hook(&message("user", "[1] is no block")).unwrap();
        let wire: serde_json::Value = serde_json::from_str(plain.wire.get()).unwrap();
        let block = serde_json::json!({ "type": "text", "text": "[1] is no block" });
        assert_eq!(wire, serde_json::json!({ "role": "user", "content": [block] }));
        assert!(from_hook(&message("system", "x")).is_err());
        assert!(from_hook(&message("tool", "x")).is_err());
    }
}
