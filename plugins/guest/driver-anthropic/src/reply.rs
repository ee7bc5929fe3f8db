//! The provider's answer.

use mur_guest_kit::provider::{Events, Failure, Reply, Stop, count};
use mur_guest_kit::sse::Event;
use serde_json::{Map, Value, json};

use crate::stream_failure;

/// More blocks than any answer has.
const MAX_BLOCKS: usize = 4096;

/// A whole answer.
pub fn whole(value: &Value) -> Result<Reply, Failure> {
    if value["type"] == "error" {
        return Err(stream_failure(&value["error"]));
    }
    let blocks = value["content"].as_array().ok_or_else(|| Failure::fixed("the provider's answer has no content"))?;
    let mut usage = Map::new();
    take_usage(&mut usage, &value["usage"]);
    reply(value["stop_reason"].as_str(), blocks.iter().cloned().map(block).collect(), usage)
}

/// An answer that grows event by event.
#[derive(Default)]
pub struct StreamReader {
    blocks: Vec<Growing>,
    stop: Option<String>,
    usage: Map<String, Value>,
}

struct Growing {
    index: u64,
    value: Value,
    /// Text of a call's input, not yet JSON.
    input: String,
    done: bool,
}

impl StreamReader {
    /// Takes an event; true at the end of the answer.
    pub fn take(&mut self, event: &Event, events: &mut dyn Events) -> Result<bool, Failure> {
        let data: Value = serde_json::from_str(&event.data)
            .map_err(|fault| Failure::fixed(format!("the provider sent an event that is not JSON ({fault})")))?;
        match data["type"].as_str().unwrap_or(&event.name) {
            "message_start" => take_usage(&mut self.usage, &data["message"]["usage"]),
            "content_block_start" => self.start(&data, events)?,
            "content_block_delta" => self.delta(&data, events)?,
            "content_block_stop" => {
                if let Some(block) = self.block(&data) {
                    block.done = true;
                }
            }
            "message_delta" => {
                if let Some(stop) = data["delta"]["stop_reason"].as_str() {
                    self.stop = Some(stop.to_owned());
                }
                take_usage(&mut self.usage, &data["usage"]);
            }
            "message_stop" => return Ok(true),
            "error" => return Err(stream_failure(&data["error"])),
            // `ping`, and whatever comes to be.
            _ => {}
        }
        Ok(false)
    }

    fn start(&mut self, data: &Value, events: &mut dyn Events) -> Result<(), Failure> {
        if self.blocks.len() == MAX_BLOCKS {
            return Err(Failure::fixed("the provider's answer has too many blocks"));
        }
        let value = data["content_block"].clone();
        if value["type"] == "tool_use" {
            let (id, name) = (value["id"].as_str().unwrap_or_default(), value["name"].as_str().unwrap_or_default());
            events.call_started(id, name);
        }
        if let Some(text) = value["text"].as_str().filter(|text| !text.is_empty()) {
            events.text(text);
        }
        let index = data["index"].as_u64().unwrap_or_default();
        self.blocks.push(Growing { index, value, input: String::new(), done: false });
        Ok(())
    }

    fn delta(&mut self, data: &Value, events: &mut dyn Events) -> Result<(), Failure> {
        let delta = data["delta"].clone();
        let Some(block) = self.block(data) else {
            return Err(Failure::fixed("the provider sent a piece of a block it never began"));
        };
        let text = |key: &str| delta[key].as_str().unwrap_or_default();
        match delta["type"].as_str() {
            Some("text_delta") => {
                grow(&mut block.value, "text", text("text"));
                events.text(text("text"));
            }
            Some("thinking_delta") => {
                grow(&mut block.value, "thinking", text("thinking"));
                events.thinking(text("thinking"));
            }
            Some("signature_delta") => grow(&mut block.value, "signature", text("signature")),
            Some("input_json_delta") => {
                block.input.push_str(text("partial_json"));
                events.call_bytes(block.value["id"].as_str().unwrap_or_default(), block.input.len() as u64);
            }
            Some("citations_delta") => {
                if !block.value["citations"].is_array() {
                    block.value["citations"] = json!([]);
                }
                if let Some(citations) = block.value["citations"].as_array_mut() {
                    citations.push(delta["citation"].clone());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn block(&mut self, data: &Value) -> Option<&mut Growing> {
        let index = data["index"].as_u64().unwrap_or_default();
        self.blocks.iter_mut().rev().find(|block| block.index == index)
    }

    /// The whole answer.
    pub fn finish(self) -> Result<Reply, Failure> {
        let cut_off = self.stop.as_deref() == Some("max_tokens");
        let mut content = Vec::new();
        for mut growing in self.blocks {
            if growing.value["type"] == "tool_use" {
                if cut_off && !growing.done {
                    continue;
                }
                if !growing.input.trim().is_empty() {
                    growing.value["input"] = match serde_json::from_str(&growing.input) {
                        Ok(input) => input,
                        Err(_) if cut_off => continue,
                        // The model's slip, not the request's: asked again it may write it well.
                        Err(fault) => {
                            let name = growing.value["name"].as_str().unwrap_or_default();
                            let reason = format!("the model's input for '{name}' is not JSON ({fault})");
                            return Err(Failure::transient(reason));
                        }
                    };
                }
            }
            content.push(block(growing.value));
        }
        reply(self.stop.as_deref(), content, self.usage)
    }
}

fn grow(value: &mut Value, key: &str, more: &str) {
    match &mut value[key] {
        Value::String(text) => text.push_str(more),
        other => *other = more.into(),
    }
}

fn reply(stop: Option<&str>, mut content: Vec<Value>, usage: Map<String, Value>) -> Result<Reply, Failure> {
    let stop = match stop {
        Some("end_turn" | "stop_sequence" | "pause_turn") => Stop::EndTurn,
        Some("tool_use") => Stop::ToolCall,
        Some("max_tokens" | "model_context_window_exceeded") => Stop::MaxTokens,
        Some("refusal") => return Err(Failure::fixed("the model declined to answer")),
        Some(other) => {
            return Err(Failure::fixed(format!("the provider ended with '{other}', which is not known here")));
        }
        None => return Err(Failure::transient("the provider's answer does not say why it ended")),
    };
    if stop == Stop::MaxTokens {
        // A call that will not be run has no result, and the API refuses a call without one.
        content.retain(|block| block["type"] != "tool_call");
    }
    Ok(Reply { stop, content, usage })
}

/// A block as the host knows it. What only the provider understands is wrapped, and goes back to it as it came.
fn block(value: Value) -> Value {
    match value["type"].as_str() {
        Some("text") => match value["citations"].is_array() {
            true => json!({"type": "text", "text": value["text"], "anthropic": value}),
            false => json!({"type": "text", "text": value["text"]}),
        },
        Some("tool_use") => {
            let input = if value["input"].is_object() { value["input"].clone() } else { json!({}) };
            json!({"type": "tool_call", "id": value["id"], "name": value["name"], "input": input})
        }
        Some("thinking" | "redacted_thinking") => json!({"type": "thinking", "anthropic": value}),
        _ => json!({"type": value["type"], "anthropic": value}),
    }
}

fn take_usage(usage: &mut Map<String, Value>, given: &Value) {
    count(usage, "input_tokens", &given["input_tokens"]);
    count(usage, "output_tokens", &given["output_tokens"]);
    count(usage, "cached_tokens", &given["cache_read_input_tokens"]);
    count(usage, "cache_write_tokens", &given["cache_creation_input_tokens"]);
}
