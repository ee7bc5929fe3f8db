//! Hooks of a session: which events reach them, what their answers do, what they may reach, and what their faults change.

use std::fs;

use mur_tests::hooked::{Ran, entry, run, writes};
use mur_tests::{Agent, World};
use serde_json::{Value, json};

/// A capsule that calls a tool once and then answers.
fn agent() -> Agent {
    let call = json!({"call": "text-stats", "input": {"text": "a b c"}});
    Agent::scripted("agent", json!({"rules": [{"turns": [[call], [{"say": "{{last}}"}]]}]})).tool("text-stats")
}

#[test]
fn every_event_of_a_session_reaches_a_hook_in_order_and_its_instance_is_kept() {
    let world = World::new();
    let hook = entry(world.install_hook("watcher", &json!({})), writes(), Value::Null);
    let ran = run(&world, &agent().artifact(hook));
    assert_eq!(ran.done.code(), Some(0), "{}", ran.done.stderr);
    let expected = [
        // Staging has an instance of its own.
        ("on-stage", 0),
        ("on-session-start", 0),
        ("on-task-start", 1),
        ("on-inference", 2),
        ("on-tool-call", 3),
        ("on-inference", 4),
        ("on-task-end", 5),
        ("on-session-end", 6),
    ];
    assert_eq!(ran.events(), expected.map(|(event, count)| (event.to_owned(), count)));
    let start = ran.line("on-session-start");
    assert_eq!((&start["capsule_name"], &start["model"]), (&json!("agent"), &json!("scripted")));
    assert_eq!(start["session_id"], ran.trace.session());
    let call = ran.line("on-tool-call");
    assert_eq!((&call["tool_name"], &call["outcome"]["status"]), (&json!("text-stats"), &json!("ok")));
    assert_eq!(serde_json::from_str::<Value>(call["input"].as_str().unwrap()).unwrap(), json!({"text": "a b c"}));
    let inference = ran.line("on-inference");
    assert_eq!((&inference["decision"], &inference["tool_name"]), (&json!("tool_call"), &json!("text-stats")));
    assert_eq!(ran.line("on-task-end")["exit_status"], "ok");
    let end = ran.line("on-session-end");
    assert_eq!((&end["total_tool_calls"], &end["total_turns"]), (&json!(1), &json!(2)));
    assert_eq!(end["exit_status"], "ok");
    assert!(ran.trace.all("hook_dispatch_error").is_empty(), "{:?}", ran.trace.kinds());
    // A call of a hook that goes well leaves no line, and the model is not offered it.
    assert_eq!(ran.trace.one("session_start")["tools_declared"], json!(["session-status", "text-stats"]));
}

#[test]
fn a_denied_call_is_not_made_and_the_model_and_the_trace_are_told_why() {
    let world = World::new();
    let contract = json!({"binding": "on-tool-call", "commit_policy": "deny"});
    let rules = json!({"answers": {"on-tool-call": {"deny": "no counting here", "when": "text-stats"}}});
    let hook = entry(world.install_hook("guard", &contract), writes(), rules);
    let watcher = world.install_hook("watcher", &json!({"binding": "on-tool-call"}));
    let ran = run(&world, &agent().artifact(hook).artifact(watcher));
    assert_eq!(ran.done.code(), Some(0), "{}", ran.done.stderr);
    let denied = ran.trace.one("call_denied");
    assert_eq!((&denied["hook_name"], &denied["target"]), (&json!("guard"), &json!("text-stats")));
    assert_eq!((&denied["event"], &denied["reason"]), (&json!("on-tool-call"), &json!("no counting here")));
    assert!(ran.trace.all("tool_call").is_empty(), "{:?}", ran.trace.kinds());
    let told = ran.trace.result().unwrap();
    assert!(told.contains("guard") && told.contains("no counting here"), "{told}");
    // The decision was asked for before the call; nobody was told of an outcome.
    assert_eq!(ran.events(), [("on-tool-call".to_owned(), 0)]);
    assert_eq!(ran.line("on-tool-call")["outcome"], Value::Null);
}

#[test]
fn a_call_that_no_hook_denies_is_made() {
    let world = World::new();
    let contract = json!({"binding": "on-tool-call", "commit_policy": "deny"});
    let rules = json!({"answers": {"on-tool-call": {"deny": "no", "when": "another tool"}}});
    let hook = entry(world.install_hook("guard", &contract), writes(), rules);
    let ran = run(&world, &agent().artifact(hook));
    assert_eq!(ran.trace.one("tool_call")["status"], "ok");
    assert!(ran.trace.all("call_denied").is_empty());
}

#[test]
fn a_hook_that_cannot_decide_lets_no_call_pass() {
    let world = World::new();
    let contract = json!({"binding": "on-tool-call", "commit_policy": "deny"});
    let guard = world.install_hook("guard", &contract);
    for (answer, arm, word) in [
        (json!({"error": "out of order"}), "error", "out of order"),
        (json!({"trap": true}), "error", "trap"),
        (json!({"spin": true}), "timeout", "deadline"),
        (json!({"artifact": {"a": 1}}), "artifact", "artifact"),
        (json!({"deny": "  "}), "deny", "without a reason"),
    ] {
        let grants = json!({"limits": {"deadline_seconds": 1}});
        let hook = entry(guard.clone(), grants, json!({"answers": {"on-tool-call": answer}}));
        let ran = run(&world, &agent().artifact(hook));
        assert_eq!(ran.done.code(), Some(0), "{}", ran.done.stderr);
        assert!(ran.trace.all("tool_call").is_empty(), "{answer}: {:?}", ran.trace.kinds());
        let denied = ran.trace.one("call_denied");
        assert!(denied["reason"].as_str().unwrap().contains(word), "{answer}: {denied:?}");
        assert_eq!(ran.trace.one("hook_dispatch_error")["arm"], arm, "{answer}");
    }
}

#[test]
fn a_fault_of_a_watching_hook_is_told_and_the_next_one_is_called() {
    let world = World::new();
    let faulty = json!({"answers": {
        "on-task-start": {"trap": true}, "on-inference": {"error": "not now"},
        "on-tool-call": {"deny": "not mine to decide"}, "on-session-end": {"reopen": "too late"},
    }});
    let first = entry(world.install_hook("faulty", &json!({})), json!({}), faulty);
    let second = entry(world.install_hook("watcher", &json!({})), writes(), Value::Null);
    let ran = run(&world, &agent().artifact(first).artifact(second));
    assert_eq!(ran.done.code(), Some(0), "{}", ran.done.stderr);
    let faults = ran.trace.all("hook_dispatch_error");
    let told: Vec<(&str, &str)> =
        faults.iter().map(|fault| (fault["event"].as_str().unwrap(), fault["arm"].as_str().unwrap())).collect();
    let expected = [
        ("on-task-start", "error"),
        ("on-inference", "error"),
        ("on-tool-call", "deny"),
        ("on-inference", "error"),
        ("on-session-end", "reopen-task"),
    ];
    assert_eq!(told, expected);
    assert!(faults.iter().all(|fault| fault["hook_name"] == "faulty"));
    let log = fs::read_to_string(ran.trace.directory().join("logs/hook-faulty.log")).unwrap();
    assert_eq!(log.lines().count(), 5, "{log}");
    assert!(log.contains("not now"), "{log}");
    assert_eq!(ran.events().len(), 8, "{:?}", ran.events());
    assert_eq!(ran.trace.one("tool_call")["status"], "ok");
}

#[test]
fn a_task_is_reopened_as_often_as_its_capsule_allows() {
    let world = World::new();
    let contract = json!({"binding": "on-task-end", "commit_policy": "reopen-task"});
    let reopener = world.install_hook("checker", &contract);
    let script = json!({"rules": [
        {"when": {"contains": "look again"}, "turns": [[{"say": "second"}]]},
        {"turns": [[{"say": "first"}]]},
    ]});
    let once = json!({"answers": {"on-task-end": {"reopen": "look again", "times": 1}}});
    let agent = Agent::scripted("agent", script);
    let hook = entry(reopener.clone(), json!({"filesystem": {"records": true}, "task_io": {"read": true}}), once);
    let mut hook = hook;
    hook["config"]["look_up"] = json!({"on-task-end": ["task"]});
    let ran = run(&world, &agent.clone().artifact(hook));
    assert_eq!((ran.done.code(), ran.trace.result().as_deref()), (Some(0), Some("second")), "{}", ran.done.stderr);
    let reopened = ran.trace.one("task_reopened");
    assert_eq!((&reopened["hook_name"], &reopened["reason"]), (&json!("checker"), &json!("look again")));
    assert_eq!(reopened["reopen_number"], 1);
    assert_eq!(ran.trace.one("task_end")["reopen_count"], 1);
    let outputs: Vec<Value> = ran.lines().iter().map(|line| line["output"].clone()).collect();
    assert_eq!(outputs, [json!("first"), json!("second")]);
    let given = ran.lines()[1]["given"].as_str().unwrap().to_owned();
    assert!(
        given.starts_with("work") && given.contains("# Reopen feedback") && given.ends_with("look again"),
        "{given}"
    );
    assert_eq!(ran.lines()[1]["original"], "work");

    let always = json!({"answers": {"on-task-end": {"reopen": "look again"}}});
    let ran = run(&world, &agent.artifact(entry(reopener, json!({}), always)));
    assert_eq!(ran.done.code(), Some(1));
    let end = ran.trace.one("task_end");
    assert_eq!((&end["exit_status"], &end["reopen_count"]), (&json!("reopen_budget_exhausted"), &json!(1)));
    assert_eq!(ran.trace.one("task_failed")["cause"], "reopen_budget_exhausted");
    assert!(ran.trace.result().unwrap().starts_with("error: task reopen budget exhausted"));
    assert_eq!(ran.trace.one("session_end")["exit_status"], "failed");
}

#[test]
fn what_a_hook_seeds_begins_the_conversation() {
    let world = World::new();
    let contract = json!({"binding": "on-task-start", "commit_policy": "seed-context"});
    let seeder = world.install_hook("memory", &contract);
    let script = json!({"rules": [{"turns": [[{"say": "{{messages}} messages, the first: {{task}}"}]]}]});
    let agent = Agent::scripted("agent", script);
    let seed = |texts: Value| json!({"answers": {"on-task-start": {"seed": texts}}});
    let ran = run(&world, &agent.clone().artifact(entry(seeder.clone(), writes(), seed(json!(["remember this"])))));
    assert_eq!(ran.trace.result().as_deref(), Some("2 messages, the first: remember this"), "{}", ran.done.stderr);
    let record = ran.trace.one("context_seed");
    assert_eq!((&record["outcome"], &record["hook_name"]), (&json!("seeded"), &json!("memory")));
    assert!(ran.line("on-task-start")["budget_tokens"].as_u64().unwrap() > 0);

    // Larger than its budget: refused, told, and the task goes on.
    let long = "word ".repeat(200);
    let small = agent.with(&["context", "max_tokens"], 1000).with(&["inference", "max_tokens"], 500);
    let ran = run(&world, &small.artifact(entry(seeder, json!({}), seed(json!([long])))));
    assert_eq!(ran.trace.result().as_deref(), Some("1 messages, the first: work"), "{}", ran.done.stderr);
    assert_eq!(ran.trace.one("context_seed")["outcome"], "rejected");
    assert_eq!(ran.trace.one("hook_dispatch_error")["arm"], "seed-rejected");
}

#[test]
fn a_hook_reaches_what_its_entry_grants_and_nothing_else() {
    let world = World::new();
    let watcher = world.install_hook("watcher", &json!({"binding": "on-session-start"}));
    let look = json!({"look_up": {"on-session-start": ["folders", "environment"]}});
    let grants = json!({"filesystem": {"records": true}, "state": {"store": "kept"}});
    let agent = agent().with(&["capabilities", "env", "allow"], json!(["LANG"]));
    let hook = entry(watcher.clone(), grants, look.clone());
    world.write("murmur.yaml", agent.clone().artifact(hook).manifest());
    world.mur(["run", "--task", "work"]).env("LANG", "C").ok();
    let trace = world.traces().pop().unwrap();
    let ran = Ran { done: world.mur(["version"]).ok(), trace };
    let line = ran.line("on-session-start");
    assert_eq!(line["folders"], json!([".", "state"]));
    // Neither the host's variables nor those of tools and drivers.
    assert_eq!(line["environment"], json!(["MURMUR_ARTIFACT_CONFIG"]));
    assert!(line["above"].as_str().unwrap().starts_with("refused"), "{line}");
    assert!(!ran.trace.directory().join("above.txt").exists());
    assert!(world.murmur().join("state/kept").is_dir());

    // A part of the work folder, when that is what is granted.
    let hook = entry(watcher.clone(), json!({"filesystem": {"scope": "notes"}}), look.clone());
    let work = world.project().join("work");
    fs::create_dir(&work).unwrap();
    world.write("murmur.yaml", agent.clone().artifact(hook).manifest());
    world.mur(["run", "--task", "work", "--workdir"]).arg(&work).ok();
    let text = fs::read_to_string(work.join("notes/events.jsonl")).unwrap();
    let line: Value = serde_json::from_str(text.trim()).unwrap();
    assert_eq!(line["folders"], json!(["."]));
    assert!(line["above"].as_str().unwrap().starts_with("refused"), "{line}");
    assert!(!work.join("above.txt").exists());

    // Without a grant there is no folder at all.
    let ran = run(&world, &agent.artifact(entry(watcher, json!({}), look)));
    let log = fs::read_to_string(ran.trace.directory().join("logs/worker-hooks.log")).unwrap();
    assert!(log.contains(r#""folders":[]"#), "{log}");
    assert!(!ran.trace.directory().join("hooks").exists());
}

#[test]
fn what_a_hook_reads_is_what_its_entry_grants() {
    let world = World::new();
    let watcher = world.install_hook("watcher", &json!({"binding": "on-task-end"}));
    let look = json!({"look_up": {"on-task-end": ["task", "conversation", "tokens"]}});
    let granted = json!({
        "filesystem": {"records": true}, "task_io": {"read": true}, "conversation": {"read": true},
    });
    let script = json!({"rules": [{"turns": [[{"say": "the answer"}]]}]});
    let agent = Agent::scripted("agent", script);
    let line = run(&world, &agent.clone().artifact(entry(watcher.clone(), granted, look.clone()))).line("on-task-end");
    assert_eq!((&line["given"], &line["output"]), (&json!("work"), &json!("the answer")));
    assert_eq!(line["tokens"], 2);
    let page = &line["conversation"];
    assert_eq!((&page["total"], &page["more"]), (&json!(2), &json!(false)));
    let newest = page["messages"][0].as_str().unwrap();
    assert!(newest.contains("the answer"), "{page}");

    let line = run(&world, &agent.artifact(entry(watcher, writes(), look))).line("on-task-end");
    for field in ["given", "original", "output"] {
        assert!(line[field].as_str().unwrap().contains("not-granted"), "{field}: {line}");
    }
    assert_eq!(line["conversation"], json!({"error": "not-granted"}));
    assert_eq!(line["tokens"], 2, "counting needs no grant");
}

#[test]
fn a_hooks_completion_is_the_drivers_work_and_counts_toward_the_task() {
    let world = World::new();
    let watcher = world.install_hook("critic", &json!({"binding": "on-tool-call"}));
    let look = json!({"look_up": {"on-tool-call": ["inference"]}, "ask": "is this fine?"});
    let script = json!({"rules": [
        {"when": {"contains": "is this fine?"}, "turns": [[{"say": "it is"}]]},
        {"turns": [[{"call": "text-stats", "input": {"text": "a"}}], [{"say": "done"}]]},
    ]});
    let agent = Agent::scripted("agent", script).tool("text-stats");
    let hook = entry(watcher.clone(), writes(), look.clone());
    let ran = run(&world, &agent.clone().artifact(hook));
    assert_eq!(ran.trace.result().as_deref(), Some("done"), "{}", ran.done.stderr);
    assert_eq!(ran.line("on-tool-call")["inference"], json!({"text": "it is", "model": "scripted"}));
    let calls = ran.trace.all("inference");
    let of_hook: Vec<_> = calls.iter().filter(|call| call["origin"] == "hook:critic").collect();
    assert_eq!((calls.len(), of_hook.len()), (3, 1));
    assert_eq!(of_hook[0]["turn"], 0, "the turn it ran in");
    assert_eq!(ran.trace.one("task_end")["turns"], 3);

    // The turn budget holds for both together.
    let capped = agent.with(&["inference", "max_turns"], 2);
    let ran = run(&world, &capped.artifact(entry(watcher, writes(), look)));
    assert_eq!(ran.trace.one("task_end")["exit_status"], "max_turns_reached");
}

#[test]
fn a_hook_cannot_use_the_capsules_network() {
    let world = World::new();
    let provider = mur_tests::Provider::play([mur_tests::Answer::text(200, "text/plain", "reached")]);
    let call = json!({"call": "fetch", "input": {"url": format!("{}/x", provider.url())}});
    let agent = Agent::scripted("agent", json!({"rules": [{"turns": [[call], [{"say": "{{last}}"}]]}]}))
        .tool("fetch")
        .network(&["127.0.0.1"]);
    let hook = entry(world.install_hook("watcher", &json!({})), json!({}), Value::Null);
    let ran = run(&world, &agent.artifact(hook));
    // The tool may, by the capsule's own list.
    assert!(ran.trace.result().unwrap().contains("reached"), "{}", ran.done.stderr);
    let preopens = ran.trace.one("session_start")["effective_grants"]["preopens"].clone();
    let own = preopens.as_array().unwrap().iter().find(|entry| entry["artifact"] == "watcher").cloned().unwrap();
    assert_eq!((&own["role"], &own["surface"]), (&json!("hook"), &json!("nothing")));
}

#[test]
fn an_async_hook_handles_its_events_in_order_beside_the_session() {
    let world = World::new();
    let contract = json!({"execution_mode": "async"});
    let hook = entry(world.install_hook("sink", &contract), writes(), Value::Null);
    let ran = run(&world, &agent().artifact(hook));
    assert_eq!(ran.done.code(), Some(0), "{}", ran.done.stderr);
    let events: Vec<String> = ran.events().into_iter().map(|(event, _)| event).collect();
    let expected = [
        "on-session-start",
        "on-task-start",
        "on-inference",
        "on-tool-call",
        "on-inference",
        "on-task-end",
        "on-session-end",
    ];
    assert_eq!(events, expected, "drained before the session ended");
    assert!(ran.trace.all("hook_dispatch_error").is_empty());
}

#[test]
fn an_answer_for_the_stream_must_be_a_json_object() {
    let world = World::new();
    let watcher = world.install_hook("watcher", &json!({"binding": "on-inference"}));
    for (artifact, faults) in [(json!({"score": 1}), 0), (json!("plain text"), 1)] {
        let hook = entry(watcher.clone(), json!({}), json!({"answers": {"on-inference": {"artifact": artifact}}}));
        let script = json!({"rules": [{"turns": [[{"say": "hi"}]]}]});
        let ran = run(&world, &Agent::scripted("agent", script).artifact(hook));
        assert_eq!(ran.done.code(), Some(0), "{}", ran.done.stderr);
        assert_eq!(ran.trace.all("hook_dispatch_error").len(), faults, "{artifact}");
    }
}

#[test]
fn a_hook_that_could_never_do_what_it_declares_refuses_the_launch() {
    let world = World::new();
    for (name, contract, words) in [
        ("hasty", json!({"commit_policy": "replace-context", "execution_mode": "async"}), "invalid config"),
        ("wrong", json!({"binding": "on-session-start", "commit_policy": "deny"}), "invalid config"),
        ("rude", json!({"commit_policy": "deny"}), "invalid config"),
        ("late", json!({"binding": "on-stage", "execution_mode": "async"}), "invalid config"),
        ("odd", json!({"binding": "on-full-moon"}), "on-full-moon"),
    ] {
        let hook = world.install_hook(name, &contract);
        world.write("murmur.yaml", agent().artifact(hook).manifest());
        let done = world.mur(["run", "--task", "work"]).run();
        done.refused("E-MAN-003");
        assert!(done.stderr.contains(words) && done.stderr.contains(name), "{}", done.stderr);
        assert!(world.traces().is_empty(), "nothing was made");
    }
}

#[test]
fn what_is_no_hook_is_refused_by_what_it_lacks() {
    let world = World::new();
    let component = mur_tests::bundled_component("text-stats");
    let entry = world.install_artifact("tool", &json!({"runtime": "hook"}), &component);
    world.write("murmur.yaml", agent().artifact(entry).manifest());
    let done = world.mur(["run", "--task", "work"]).run();
    done.refused("E-IO-003");
    assert!(done.stderr.contains("murmur:hook/lifecycle@0.9.0"), "{}", done.stderr);
    assert!(world.traces().is_empty());
}

#[test]
fn a_hook_that_ends_late_is_left_behind_and_the_session_ends_in_order() {
    let world = World::new();
    let hook = world.install_hook("slow", &json!({"binding": "on-session-end"}));
    let grants = json!({"limits": {"deadline_seconds": 2}});
    let hook = entry(hook, grants, json!({"answers": {"on-session-end": {"spin": true}}}));
    let ran = run(&world, &agent().artifact(hook));
    assert_eq!(ran.done.code(), Some(0), "{}", ran.done.stderr);
    let fault = ran.trace.one("hook_dispatch_error");
    assert_eq!((&fault["event"], &fault["arm"]), (&json!("on-session-end"), &json!("timeout")));
    assert_eq!(ran.trace.kinds().last(), Some(&"session_end"));
}
