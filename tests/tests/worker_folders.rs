//! Folders beyond the work folder: state stores, the runtime directory, the host's own paths, and who sees which of them,
//! under every class.

use std::fs;
use std::path::Path;

use mur_tests::{Agent, Trace, World};
use serde_json::{Value, json};

const CLASSES: [&str; 4] = ["unconfined", "advisory", "scoped", "sealed"];

/// A capsule that makes these calls and answers with whether each failed, and what it said.
fn calling(calls: &Value) -> Agent {
    let said = "{{results | each \"{{it.is_error}} {{it.text}}\n\"}}";
    Agent::scripted("agent", json!({"rules": [{"turns": [calls, [{"say": said}]]}]}))
        .tool("read-file")
        .tool("write-file")
}

/// Runs it under a class; each call's line.
#[track_caller]
fn run(world: &World, agent: &Agent, class: &str) -> (Vec<String>, Trace) {
    world.write("murmur.yaml", agent.manifest());
    let work = world.project().join("work");
    fs::create_dir_all(&work).unwrap();
    let done = world.mur(["run", "--containment", class, "--task", "x", "--workdir"]).arg(&work).run();
    assert_eq!(done.code(), Some(0), "{class}: {}", done.stderr);
    let trace = world.traces().pop().expect("a trace");
    let result = trace.result().expect("a result");
    (
        result
            .lines()
            .filter(|line| line.starts_with("true ") || line.starts_with("false "))
            .map(str::to_owned)
            .collect(),
        trace,
    )
}

fn read(path: &Path) -> Value {
    json!({"call": "read-file", "input": {"path": path}})
}

fn write(path: impl AsRef<Path>) -> Value {
    json!({"call": "write-file", "input": {"path": path.as_ref(), "content": "new"}})
}

#[track_caller]
fn failed(lines: &[String], expected: &[bool]) {
    let seen: Vec<bool> = lines.iter().map(|line| line.starts_with("true ")).collect();
    assert_eq!(seen, expected, "{lines:#?}");
}

#[test]
fn every_tool_sees_the_hosts_own_paths_and_changes_those_it_may() {
    for class in CLASSES {
        let world = World::new();
        let [shown, given, other] = ["shown", "given", "other"].map(|name| world.home().join(name));
        for folder in [&shown, &given, &other] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file.txt"), "from the host").unwrap();
        }
        world.config(&json!({"host_paths": [shown, {"path": given, "write": true}]}).to_string());
        let agent = calling(&json!([
            read(&shown.join("file.txt")),
            write(shown.join("made.txt")),
            read(&given.join("file.txt")),
            write(given.join("made.txt")),
            read(&other.join("file.txt")),
        ]));
        let (lines, _) = run(&world, &agent, class);
        failed(&lines, &[false, true, false, false, true]);
        assert!(lines[0].contains("from the host"), "{class}: {lines:?}");
        assert!(!shown.join("made.txt").exists(), "{class}");
        assert_eq!(fs::read_to_string(given.join("made.txt")).unwrap(), "new", "{class}");
    }
}

#[test]
fn no_driver_and_no_hook_sees_the_hosts_own_paths() {
    let world = World::new();
    let given = world.home().join("given");
    fs::create_dir(&given).unwrap();
    world.config(&json!({"host_paths": [{"path": given, "write": true}]}).to_string());
    let mut hook = world.install_hook("watcher", &json!({"binding": "on-session-start"}));
    hook["capabilities"] = json!({"filesystem": {"records": true}});
    hook["config"] = json!({"look_up": {"on-session-start": ["folders"]}});
    let script = json!({"rules": [{"turns": [[{"count": given.join("n")}, {"say": "counted {{count}}"}]]}]});
    let agent = Agent::scripted("agent", script).artifact(hook);
    world.write("murmur.yaml", agent.manifest());
    let done = world.mur(["run", "--task", "x"]).run();
    let trace = world.traces().pop().unwrap();
    assert_eq!(done.code(), Some(1), "{}", done.stderr);
    assert!(trace.one("task_failed")["reason"].as_str().unwrap().contains("outside"), "{}", done.stderr);
    assert!(!given.join("n").exists());
    let lines = fs::read_to_string(trace.directory().join("hooks/events.jsonl")).unwrap();
    let line: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(line["folders"], json!(["."]));
}

#[test]
fn a_state_store_outlives_its_session_and_is_its_artifacts_own() {
    for class in CLASSES {
        let world = World::new();
        // The writer keeps a store; the reader is given none, and 'state' is nothing special to it.
        let keeps =
            |calls: &Value| calling(calls).artifact_capability("write-file", json!({"state": {"store": "kept"}}));
        let path = Path::new("state/note.txt");
        let (lines, _) = run(&world, &keeps(&json!([write(path), read(path)])), class);
        failed(&lines, &[false, true]);
        assert_eq!(fs::read_to_string(world.murmur().join("state/kept/note.txt")).unwrap(), "new", "{class}");
        assert!(!world.project().join("work/state").exists(), "{class}");
        // Another session, and the reader is given the store.
        let agent = calling(&json!([read(path)])).artifact_capability("read-file", json!({"state": {"store": "kept"}}));
        let (lines, trace) = run(&world, &agent, class);
        failed(&lines, &[false]);
        let stores = &trace.one("session_start")["effective_grants"]["state_stores"];
        assert_eq!(stores[0]["store"], "kept");
    }
}

#[test]
fn a_driver_keeps_a_store_of_its_own() {
    for class in CLASSES {
        let world = World::new();
        let script = json!({"rules": [{"turns": [[{"count": "state/n"}, {"say": "counted {{count}}"}]]}]});
        let agent = Agent::scripted("agent", script)
            .artifact_capability("driver-scripted", json!({"state": {"store": "of-the-driver"}}));
        world.write("murmur.yaml", agent.manifest());
        for expected in ["counted 0", "counted 1"] {
            world.mur(["run", "--containment", class, "--task", "x"]).ok();
            assert_eq!(world.traces().pop().unwrap().result().as_deref(), Some(expected), "{class}");
        }
        assert!(world.murmur().join("state/of-the-driver/n").is_file());
    }
}

#[test]
fn the_runtime_directory_is_read_by_tools_that_see_the_whole_work_folder_and_changed_by_none() {
    for class in CLASSES {
        let world = World::new();
        let calls = json!([read(Path::new("murmur-runtime/MURMUR.md")), write("murmur-runtime/MURMUR.md")]);
        let (lines, _) = run(&world, &calling(&calls), class);
        failed(&lines, &[false, true]);
        let narrowed = calling(&calls).artifact_capability("read-file", json!({"filesystem": {"scope": "part"}}));
        let (lines, _) = run(&world, &narrowed, class);
        failed(&lines, &[true, true]);
    }
    // A driver never does.
    let world = World::new();
    let script = json!({"rules": [{"turns": [[{"count": "murmur-runtime/n"}, {"say": "{{count}}"}]]}]});
    world.write("murmur.yaml", Agent::scripted("agent", script).manifest());
    let work = world.project().join("work");
    fs::create_dir(&work).unwrap();
    world.mur(["run", "--task", "x", "--workdir"]).arg(&work).ok();
    assert!(work.join("murmur-runtime/n").is_file(), "a name like any other in its work folder");
}

#[test]
fn a_hook_writes_to_its_folder_of_the_records_under_every_class() {
    for class in CLASSES {
        let world = World::new();
        let mut hook = world.install_hook("watcher", &json!({"binding": "on-task-end"}));
        hook["capabilities"] = json!({"filesystem": {"records": true}, "state": {"store": "of-the-hook"}});
        hook["config"] = json!({"look_up": {"on-task-end": ["folders"]}});
        let script = json!({"rules": [{"turns": [[{"say": "done"}]]}]});
        world.write("murmur.yaml", Agent::scripted("agent", script).artifact(hook).manifest());
        let done = world.mur(["run", "--containment", class, "--task", "x"]).run();
        assert_eq!(done.code(), Some(0), "{class}: {}", done.stderr);
        let trace = world.traces().pop().unwrap();
        let text = fs::read_to_string(trace.directory().join("hooks/events.jsonl")).unwrap_or_default();
        let line: Value = serde_json::from_str(text.trim()).unwrap_or_else(|_| panic!("{class}: {text}"));
        assert_eq!(line["folders"], json!([".", "state"]), "{class}");
        assert!(line["above"].as_str().unwrap().starts_with("refused"), "{class}: {line}");
        assert!(!trace.directory().join("above.txt").exists(), "{class}");
    }
}
