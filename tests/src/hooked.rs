//! Capsules with the debug hook: its entry, a run, and what it wrote down.

use std::fs;

use serde_json::{Value, json};

use crate::{Agent, Done, Trace, World};

/// A hook's entry with its grants and configuration.
pub fn entry(hook: Value, capabilities: Value, config: Value) -> Value {
    let mut entry = hook;
    entry["capabilities"] = capabilities;
    if !config.is_null() {
        entry["config"] = config;
    }
    entry
}

/// Grants of a hook that writes what it hears.
pub fn writes() -> Value {
    json!({"filesystem": {"records": true}})
}

/// A run.
pub struct Ran {
    /// What it said.
    pub done: Done,
    /// What it recorded.
    pub trace: Trace,
}

impl Ran {
    /// The lines the hook wrote.
    pub fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.trace.directory().join("hooks/events.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Which events it heard, and the place of each among those of its instance.
    pub fn events(&self) -> Vec<(String, u64)> {
        let pair = |line: &Value| {
            (line["event"].as_str().unwrap_or_default().to_owned(), line["count"].as_u64().unwrap_or(u64::MAX))
        };
        self.lines().iter().map(pair).collect()
    }

    /// The first line of an event.
    #[track_caller]
    pub fn line(&self, event: &str) -> Value {
        let found = self.lines().into_iter().find(|line| line["event"] == event);
        found.unwrap_or_else(|| panic!("no {event} in {:?}\n{}", self.events(), self.done.stderr))
    }
}

/// Runs one task in the world's project.
pub fn run(world: &World, agent: &Agent) -> Ran {
    world.write("murmur.yaml", agent.manifest());
    let done = world.mur(["run", "--task", "work"]).run();
    let trace = world.traces().pop().unwrap_or_else(|| panic!("no trace\n{}", done.stderr));
    Ran { done, trace }
}
