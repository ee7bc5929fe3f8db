//! Members that call members: capsules that answer late, badly or not at all, and what a caller's trace says of a call.

use serde_json::{Value, json};

use super::capsule::{Capsule, roster};
use super::door::message;
use super::{Door, Home, run, trace};

/// A worker that answers when it is told to.
pub fn asking() -> Capsule {
    let script = json!({"rules": [{"repeat": true, "turns": [[{"ask": "go on?"}, {"say": "done: {{text}}"}]]}]});
    Capsule::scripted("worker", script).member()
}

/// A worker whose every task fails.
pub fn failing() -> Capsule {
    let script = json!({"rules": [{"repeat": true, "turns": [[{"error": "broken", "transient": false}]]}]});
    Capsule::scripted("failing", script).member()
}

/// A capsule under another name.
pub fn named(mut capsule: Capsule, name: &str) -> Capsule {
    capsule.name = name.to_owned();
    capsule.with(json!({"name": name}))
}

/// Installs these and writes the roster; the first is the entry member.
pub fn formed(home: &Home, members: &[(&str, &Capsule)], rules: Value) {
    for (at, (_, capsule)) in members.iter().enumerate() {
        if members[..at].iter().all(|(_, earlier)| earlier.name != capsule.name) {
            capsule.install(home);
        }
    }
    home.write("roster.yaml", roster(members, rules));
}

/// The trace of a member's only session.
#[track_caller]
pub fn traced(home: &Home, member: &str) -> Vec<Value> {
    let mut all: Vec<Vec<Value>> = trace::sessions(home.murmur().join("records")).iter().map(trace::read).collect();
    all.retain(|records| records.first().is_some_and(|start| start["formation_member"] == member));
    assert_eq!(all.len(), 1, "sessions of {member}");
    all.remove(0)
}

/// The ended call to a member in a caller's trace.
#[track_caller]
pub fn call_to(records: &[Value], member: &str) -> Value {
    let calls = trace::of(records, "member_call");
    let mut calls = calls.into_iter().filter(|call| call["member"] == member);
    let call = calls.next().unwrap_or_else(|| panic!("no ended call to {member} in {:?}", trace::types(records)));
    assert!(calls.next().is_none(), "{member} was called twice");
    call.clone()
}

/// Waits until the only task at a member's door is in a state, and gives its id.
pub fn at_work(door: &Door, state: &str) -> String {
    let listed = || door.call("ListTasks", json!({}));
    run::until(state, || listed().pointer("/result/tasks/0/status/state") == Some(&json!(state)));
    listed().pointer("/result/tasks/0/id").and_then(Value::as_str).expect("an id").to_owned()
}

/// Sends a task and reads its stream up to a status text; gives the task's id.
pub fn sent_until(door: &Door, wanted: &str) -> String {
    let mut stream = door.stream("SendStreamingMessage", message("work", false), &[]);
    let mut seen = Vec::new();
    while let Some(event) = stream.next_event() {
        let update = &event.data["result"]["statusUpdate"];
        let text = update.pointer("/status/message/parts/0/text").and_then(Value::as_str).unwrap_or_default();
        if text == wanted {
            return update["taskId"].as_str().expect("a task").to_owned();
        }
        seen.push(event.data);
    }
    panic!("the stream never said '{wanted}': {seen:?}")
}

/// Answers the question a task asked.
pub fn go_on(door: &Door, task: &str) {
    let mut params = message("yes", true);
    params["message"]["taskId"] = task.into();
    let answer = door.call("SendMessage", params);
    assert!(answer.get("result").is_some(), "{answer}");
}

/// The state of a task, as its door says it.
pub fn state(door: &Door, task: &str) -> Value {
    door.call("GetTask", json!({"id": task}))["result"]["status"]["state"].take()
}
