//! What a script can see: the request, seen from the last message that came from outside.

use mur_guest_kit::fence;
use mur_guest_kit::provider::{Message, Request};
use serde_json::{Map, Value, json};

/// The request as a script sees it.
pub struct Scene {
    /// How often the driver answered since the last message from outside.
    pub turn: usize,
    /// How often it answered in the whole conversation.
    pub turns: usize,
    /// Text of the last message from outside.
    pub text: String,
    /// Names of the tools on offer.
    pub tools: Vec<String>,
    /// The model that was asked for.
    pub model: String,
    /// Everything a template can name.
    pub values: Map<String, Value>,
}

impl Scene {
    /// Looks at a request.
    pub fn of(request: &Request, env: &[(String, String)]) -> Self {
        let user = request.messages.iter().rposition(|message| matches!(message, Message::User(_)));
        let since = &request.messages[user.map_or(0, |at| at + 1)..];
        let assistant =
            |messages: &[Message]| messages.iter().filter(|message| matches!(message, Message::Assistant(_))).count();
        let message = user.map(|at| request.messages[at].text()).unwrap_or_default();
        // A task from outside comes fenced as a whole; what it says is what a script is about.
        let text = fence::content(&message).to_owned();
        let results = last_results(since);
        let tools: Vec<String> =
            request.tools.iter().filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect();
        let (turn, turns) = (assistant(since), assistant(&request.messages));
        let first = request.messages.iter().find(|message| matches!(message, Message::User(_)));
        let mut values = Map::new();
        values.insert("text".into(), text.clone().into());
        values.insert("task".into(), first.map(|first| fence::content(&first.text()).to_owned()).into());
        values.insert("last".into(), request.messages.last().map(Message::text).into());
        values.insert("result".into(), results.last().map(|result| result["text"].clone()).unwrap_or_default());
        values.insert("results".into(), results.into());
        values.insert("answers".into(), answers(&message).into());
        values.insert("peers".into(), peers(&request.tools).into());
        values.insert("tools".into(), json!(tools));
        values.insert("turn".into(), turn.into());
        values.insert("turns".into(), turns.into());
        values.insert("messages".into(), request.messages.len().into());
        values.insert("model".into(), request.model.clone().into());
        values.insert("system".into(), request.system.clone().into());
        values.insert("max_tokens".into(), request.max_tokens.into());
        values
            .insert("env".into(), env.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect());
        Self { turn, turns, text, tools, model: request.model.clone(), values }
    }
}

/// The results of the last turn's calls: text without its fence, the tool's name, whether it went wrong.
fn last_results(since: &[Message]) -> Vec<Value> {
    let Some(at) = since.iter().rposition(|message| matches!(message, Message::Assistant(_))) else {
        return Vec::new();
    };
    let Message::Assistant(content) = &since[at] else { return Vec::new() };
    since[at..]
        .iter()
        .filter_map(|message| match message {
            Message::Tool { id, is_error, text } => {
                let call = content.iter().find(|block| block["type"] == "tool_call" && block["id"] == id.as_str());
                let name = call.map_or(Value::Null, |call| call["name"].clone());
                Some(json!({"tool": name, "text": fence::content(text), "is_error": is_error, "raw": text}))
            }
            _ => None,
        })
        .collect()
}

/// What members answered, from the message that brings their answers.
fn answers(text: &str) -> Vec<Value> {
    fence::blocks(text)
        .into_iter()
        .filter_map(|block| {
            let member = block.source.strip_prefix("member:")?;
            Some(json!({"member": member, "text": block.text}))
        })
        .collect()
}

/// The members that may be called: the choices of the tool that calls them.
fn peers(tools: &[Value]) -> Vec<Value> {
    tools
        .iter()
        .find(|tool| tool["name"] == "call-member")
        .and_then(|tool| tool["parameters"]["properties"]["member"]["enum"].as_array())
        .cloned()
        .unwrap_or_default()
}
