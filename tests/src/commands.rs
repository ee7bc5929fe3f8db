//! Capsules that run commands: a script of calls, and what each returned.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::{Agent, Done, Invocation, Trace, World};

/// Every class a host with Landlock runs, weakest first: there the floor `advisory` runs under `scoped`.
pub const CLASSES: [&str; 3] = ["unconfined", "scoped", "sealed"];

/// One class that holds nothing and one that holds most, where that is enough.
pub const TWO: [&str; 2] = ["unconfined", "scoped"];

/// The classes under which the kernel holds something of a command.
pub const HELD: [&str; 2] = ["scoped", "sealed"];

/// A capsule that makes calls, one after another in one turn, and answers with what they returned as JSON.
pub fn caller(name: &str, allow: &[&str], calls: &[(&str, Value)]) -> Agent {
    let calls: Vec<Value> = calls.iter().map(|(tool, input)| json!({"call": tool, "input": input})).collect();
    let agent = Agent::scripted(name, json!({"rules": [{"turns": [calls, [{"say": "{{results | quote}}"}]]}]}));
    if allow.is_empty() { agent } else { agent.with(&["capabilities", "shell", "allow"], json!(allow)) }
}

/// The input of a shell command.
pub fn line(command: &str) -> Value {
    json!({"command": command})
}

/// A run and what its calls returned.
pub struct Ran {
    /// The run.
    pub done: Done,
    /// What it recorded.
    pub trace: Trace,
    /// Of each call: `tool`, `text` without the fence, `is_error`, `raw`.
    pub results: Vec<Value>,
    /// The work folder.
    pub work: PathBuf,
}

impl Ran {
    /// What a call returned.
    #[track_caller]
    pub fn text(&self, index: usize) -> &str {
        self.results[index]["text"].as_str().expect("a text")
    }
}

/// The command line that runs an agent in `work` of the project.
pub fn launch(world: &World, agent: &Agent, class: &str) -> Invocation {
    let name = world.install(agent);
    let work = world.project().join("work");
    std::fs::create_dir_all(&work).expect("a work folder");
    world
        .mur(["run", "--capsule", &name, "--capsule-version", agent.version(), "--containment", class, "--workdir"])
        .arg(&work)
}

/// Runs it once to its end, which is to be a good one.
#[track_caller]
pub fn run(world: &World, agent: &Agent, class: &str) -> Ran {
    ran(world, launch(world, agent, class).args(["--task", "go"]))
}

/// The same, of a command line of the test's own.
#[track_caller]
pub fn ran(world: &World, invocation: Invocation) -> Ran {
    let done = invocation.run();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    let trace = world.traces().pop().expect("a trace");
    let answer = trace.result().expect("an answer");
    let results = serde_json::from_str(&answer).unwrap_or_else(|fault| panic!("{fault}: {answer}"));
    Ran { done, trace, results, work: world.project().join("work") }
}
