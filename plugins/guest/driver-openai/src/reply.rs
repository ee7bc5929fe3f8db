//! The provider's answer.

use mur_guest_kit::provider::{Events, Failure, Reply, Stop, count};
use mur_guest_kit::sse::Event;
use serde_json::{Map, Value, json};

use crate::stream_failure;

/// More calls than any answer has.
const MAX_CALLS: usize = 1024;

/// A whole answer.
pub fn whole(value: &Value) -> Result<Reply, Failure> {
    if !value["error"].is_null() {
        return Err(stream_failure(&value["error"]));
    }
    let choice = &value["choices"][0];
    let message = &choice["message"];
    if !message.is_object() {
        return Err(Failure::fixed("the provider's answer has no choice with a message"));
    }
    let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
    let thinking = reasoning(message).unwrap_or_default().to_owned();
    let (text, refusal) = (text("content"), text("refusal"));
    let mut reader = StreamReader { text, thinking, refusal, ..StreamReader::default() };
    for call in message["tool_calls"].as_array().into_iter().flatten().take(MAX_CALLS) {
        let arguments = match &call["function"]["arguments"] {
            Value::String(text) => text.clone(),
            // Some servers send the arguments as what they are.
            other => other.to_string(),
        };
        reader.calls.push(Growing {
            index: reader.calls.len() as u64,
            id: call["id"].as_str().unwrap_or_default().to_owned(),
            name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
            arguments,
            announced: true,
        });
    }
    reader.finish = choice["finish_reason"].as_str().map(str::to_owned);
    reader.take_usage(&value["usage"]);
    reader.finish()
}

fn reasoning(delta: &Value) -> Option<&str> {
    ["reasoning_content", "reasoning"].iter().find_map(|key| delta[*key].as_str())
}

/// An answer that grows chunk by chunk.
#[derive(Default)]
pub struct StreamReader {
    text: String,
    thinking: String,
    refusal: String,
    calls: Vec<Growing>,
    finish: Option<String>,
    usage: Map<String, Value>,
}

struct Growing {
    index: u64,
    id: String,
    name: String,
    arguments: String,
    announced: bool,
}

impl StreamReader {
    /// Takes an event; true at the end of the answer.
    pub fn take(&mut self, event: &Event, events: &mut dyn Events) -> Result<bool, Failure> {
        if event.data.trim() == "[DONE]" {
            return Ok(true);
        }
        let data: Value = serde_json::from_str(&event.data)
            .map_err(|fault| Failure::fixed(format!("the provider sent an event that is not JSON ({fault})")))?;
        if !data["error"].is_null() {
            return Err(stream_failure(&data["error"]));
        }
        self.take_usage(&data["usage"]);
        let choice = &data["choices"][0];
        let delta = &choice["delta"];
        if let Some(text) = delta["content"].as_str().filter(|text| !text.is_empty()) {
            self.text.push_str(text);
            events.text(text);
        }
        if let Some(text) = reasoning(delta).filter(|text| !text.is_empty()) {
            self.thinking.push_str(text);
            events.thinking(text);
        }
        if let Some(text) = delta["refusal"].as_str() {
            self.refusal.push_str(text);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.take_call(call, events)?;
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
        }
        Ok(false)
    }

    fn take_call(&mut self, piece: &Value, events: &mut dyn Events) -> Result<(), Failure> {
        let id = piece["id"].as_str().unwrap_or_default();
        // Servers that leave the index out mark a new call by its id.
        let index = piece["index"].as_u64();
        let known = self.calls.iter().rposition(|call| match index {
            Some(index) => call.index == index,
            None => id.is_empty() || call.id == id,
        });
        let at = match known {
            Some(at) => at,
            None if self.calls.len() == MAX_CALLS => {
                return Err(Failure::fixed("the provider's answer has too many tool calls"));
            }
            None => {
                let index = index.unwrap_or(self.calls.len() as u64);
                let (id, name, arguments) = (String::new(), String::new(), String::new());
                self.calls.push(Growing { index, id, name, arguments, announced: false });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[at];
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        if !call.announced {
            call.name.push_str(piece["function"]["name"].as_str().unwrap_or_default());
        }
        if !call.announced && !call.id.is_empty() && !call.name.is_empty() {
            call.announced = true;
            events.call_started(&call.id, &call.name);
        }
        if let Some(text) = piece["function"]["arguments"].as_str().filter(|text| !text.is_empty()) {
            call.arguments.push_str(text);
            events.call_bytes(&call.id, call.arguments.len() as u64);
        }
        Ok(())
    }

    fn take_usage(&mut self, given: &Value) {
        let cached = &given["prompt_tokens_details"]["cached_tokens"];
        // The provider counts cached tokens among the prompt's; the host wants them beside each other.
        if let Some(prompt) = given["prompt_tokens"].as_u64() {
            let fresh = prompt.saturating_sub(cached.as_u64().unwrap_or(0));
            self.usage.insert("input_tokens".into(), fresh.into());
        }
        count(&mut self.usage, "output_tokens", &given["completion_tokens"]);
        count(&mut self.usage, "cached_tokens", cached);
        count(&mut self.usage, "thinking_tokens", &given["completion_tokens_details"]["reasoning_tokens"]);
    }

    /// Whether the provider said why it ended.
    pub fn ended(&self) -> bool {
        self.finish.is_some()
    }

    /// The whole answer.
    pub fn finish(self) -> Result<Reply, Failure> {
        let stop = match self.finish.as_deref() {
            // Servers differ on how an answer with calls ends; the calls are what counts.
            Some("stop" | "tool_calls" | "function_call" | "eos") if !self.calls.is_empty() => Stop::ToolCall,
            Some("stop" | "tool_calls" | "function_call" | "eos") => Stop::EndTurn,
            Some("length") => Stop::MaxTokens,
            Some("content_filter") => return Err(Failure::fixed("the provider's filter withheld the answer")),
            Some(other) => {
                return Err(Failure::fixed(format!("the provider ended with '{other}', which is not known here")));
            }
            None => return Err(Failure::transient("the provider's answer does not say why it ended")),
        };
        if self.text.is_empty() && self.calls.is_empty() && !self.refusal.is_empty() {
            return Err(Failure::fixed(format!("the model declined to answer: {}", self.refusal)));
        }
        let mut content = Vec::new();
        if !self.thinking.is_empty() {
            content.push(json!({"type": "thinking", "text": self.thinking}));
        }
        if !self.text.is_empty() {
            content.push(json!({"type": "text", "text": self.text}));
        }
        // A call that will not be run has no result, and the API refuses a call without one.
        let calls = if stop == Stop::MaxTokens { Vec::new() } else { self.calls };
        for (at, call) in calls.into_iter().enumerate() {
            content.push(call.block(at)?);
        }
        Ok(Reply { stop, content, usage: self.usage })
    }
}

impl Growing {
    fn block(self, at: usize) -> Result<Value, Failure> {
        let arguments = self.arguments.trim();
        let input = match arguments {
            "" | "null" => json!({}),
            text => match serde_json::from_str(text) {
                Ok(input @ Value::Object(_)) => input,
                // The model's slip, not the request's: asked again it may write it well.
                Ok(_) => return Err(Failure::transient(format!("the model's input for '{}' is no object", self.name))),
                Err(fault) => {
                    let reason = format!("the model's input for '{}' is not JSON ({fault})", self.name);
                    return Err(Failure::transient(reason));
                }
            },
        };
        let id = if self.id.is_empty() { format!("call_{at}") } else { self.id };
        Ok(json!({"type": "tool_call", "id": id, "name": self.name, "input": input}))
    }
}
