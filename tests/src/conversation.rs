//! Conversations and their records, as the suites about resuming look at them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{Agent, Answer, Done, Provider, Seen, Trace, World, anthropic, openai};

/// A capsule that says what it was sent: the first task, how many messages, how often it has answered before.
pub fn witness() -> Agent {
    let say = json!([[{"say": "{{task}}|{{text}}|{{messages}} messages|{{turns}} answers"}]]);
    Agent::scripted("witness", json!({"rules": [{"turns": say, "repeat": true}]}))
}

/// A world with this capsule as its project.
pub fn project(agent: &Agent) -> World {
    let world = World::new();
    world.write("murmur.yaml", agent.manifest());
    world
}

/// The trace of the newest session.
#[track_caller]
pub fn newest(world: &World) -> Trace {
    world.traces().pop().expect("a session")
}

/// The conversation record of a capsule: there has to be exactly one.
#[track_caller]
pub fn record(world: &World, capsule: &str) -> PathBuf {
    let contexts: Vec<_> =
        fs::read_dir(world.murmur().join("conversations").join(capsule)).expect("a record").flatten().collect();
    assert_eq!(contexts.len(), 1, "{contexts:?}");
    contexts[0].path().join("conversation.jsonl")
}

/// The roles of the messages in a record, in order.
#[track_caller]
pub fn roles(record: &Path) -> Vec<String> {
    let lines = fs::read_to_string(record).expect("a record");
    // A killed writer may have torn a line.
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line["role"].as_str().map(str::to_owned)).collect()
}

/// Asserts that a command succeeded.
#[track_caller]
pub fn ok(done: &Done) {
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
}

/// One of the two provider APIs, and what it takes for a conversation.
#[derive(Clone, Copy)]
pub struct Api {
    /// An agent on its driver.
    pub agent: fn(&str, &str, &str) -> Agent,
    /// A text.
    pub text: fn(&[&str]) -> Answer,
    /// A tool call.
    pub call: fn(&str, &str, &[&str]) -> Answer,
    /// Ids of the calls and of the results in a request's messages, in order.
    pub calls: fn(&Seen) -> (Vec<String>, Vec<String>),
    /// Why the provider refuses a conversation, if it does.
    pub fault: fn(&Seen) -> Option<String>,
}

/// Both.
pub const APIS: [Api; 2] = [
    Api {
        agent: Agent::anthropic,
        text: anthropic::stream_text,
        call: anthropic::stream_call,
        calls: anthropic_calls,
        fault: anthropic_fault,
    },
    Api {
        agent: Agent::openai,
        text: openai::stream_text,
        call: openai::stream_call,
        calls: openai_calls,
        fault: openai_fault,
    },
];

fn texts(values: impl Iterator<Item = Value>) -> Vec<String> {
    values.filter_map(|value| value.as_str().map(str::to_owned)).collect()
}

fn anthropic_calls(seen: &Seen) -> (Vec<String>, Vec<String>) {
    let messages = seen.body["messages"].as_array().cloned().unwrap_or_default();
    let blocks: Vec<Value> =
        messages.iter().flat_map(|message| message["content"].as_array().cloned().unwrap_or_default()).collect();
    let of = |kind: &str, key: &str| {
        texts(blocks.iter().filter(|block| block["type"] == kind).map(|block| block[key].clone()))
    };
    (of("tool_use", "id"), of("tool_result", "tool_use_id"))
}

fn openai_calls(seen: &Seen) -> (Vec<String>, Vec<String>) {
    let messages = seen.body["messages"].as_array().cloned().unwrap_or_default();
    let calls = messages.iter().flat_map(|message| message["tool_calls"].as_array().cloned().unwrap_or_default());
    let results = messages.iter().filter(|message| message["role"] == "tool");
    (texts(calls.map(|call| call["id"].clone())), texts(results.map(|message| message["tool_call_id"].clone())))
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// The first message is a user's; what an assistant calls, the next message answers, each call once and before anything else.
fn anthropic_fault(seen: &Seen) -> Option<String> {
    let messages = list(&seen.body["messages"]);
    if messages.first().is_none_or(|first| first["role"] != "user") {
        return Some("the first message is not a user's".to_owned());
    }
    let mut open: Vec<Value> = Vec::new();
    for message in &messages {
        let blocks = list(&message["content"]);
        let answered: Vec<Value> = blocks
            .iter()
            .take_while(|block| block["type"] == "tool_result")
            .map(|block| block["tool_use_id"].clone())
            .collect();
        let later = blocks.iter().skip(answered.len()).any(|block| block["type"] == "tool_result");
        if answered != open || later {
            return Some(format!("{open:?} was to be answered, and {answered:?} is: {message}"));
        }
        if blocks.is_empty() {
            return Some("an empty message".to_owned());
        }
        open = blocks.iter().filter(|block| block["type"] == "tool_use").map(|block| block["id"].clone()).collect();
    }
    (!open.is_empty()).then(|| format!("{open:?} is not answered"))
}

/// What an assistant calls, the messages right after it answer, each call once.
fn openai_fault(seen: &Seen) -> Option<String> {
    let mut open: Vec<Value> = Vec::new();
    for message in list(&seen.body["messages"]) {
        if message["role"] == "tool" {
            match open.iter().position(|id| *id == message["tool_call_id"]) {
                Some(at) => drop(open.remove(at)),
                None => return Some(format!("a result of no call: {message}")),
            }
            continue;
        }
        if !open.is_empty() {
            return Some(format!("{open:?} was to be answered before {message}"));
        }
        open = list(&message["tool_calls"]).iter().map(|call| call["id"].clone()).collect();
    }
    (!open.is_empty()).then(|| format!("{open:?} is not answered"))
}

/// The messages of a request without what a driver adds for the provider's cache.
pub fn messages(seen: &Seen) -> Vec<Value> {
    fn plain(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                map.iter().filter(|(key, _)| *key != "cache_control").map(|(k, v)| (k.clone(), plain(v))).collect()
            }
            Value::Array(items) => items.iter().map(plain).collect(),
            other => other.clone(),
        }
    }
    let messages = seen.body["messages"].as_array().cloned().unwrap_or_default();
    messages.iter().filter(|message| message["role"] != "system").map(plain).collect()
}

/// Where a text has a part.
#[track_caller]
pub fn position(text: &str, part: &str) -> usize {
    text.find(part).unwrap_or_else(|| panic!("no '{part}' in {text}"))
}

/// A world whose capsule asks a provider, with the tools of these tests.
pub fn asking(api: Api, provider: &Provider) -> World {
    let agent = (api.agent)("asks", &provider.url(), "sk-test").tool("read-file").tool("fetch").network(&["127.0.0.1"]);
    let world = project(&agent);
    world.write("work/notes.txt", "one two three\n");
    world
}
