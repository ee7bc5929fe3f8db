//! `on-shell`: which commands hooks are asked about and told of, what they are told, and what a denial does.

use mur_tests::commands::{TWO, caller, launch, line, ran, run};
use mur_tests::hooked::{entry, writes};
use mur_tests::{Trace, World};
use serde_json::{Value, json};

fn heard(trace: &Trace) -> Vec<Value> {
    let text = std::fs::read_to_string(trace.directory().join("hooks/events.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// A hook that decides about commands, and its answer.
fn guard(world: &World, answer: Value) -> Value {
    let contract = json!({"binding": "on-shell", "commit_policy": "deny"});
    entry(world.install_hook("guard", &contract), writes(), json!({"answers": {"on-shell": answer}}))
}

#[test]
fn a_command_is_told_of_once_it_has_ended_with_all_it_was_given() {
    for class in TWO {
        let world = World::new();
        world.write("work/Makefile", "build: dep\n\techo made\ndep:\n");
        let calls =
            [("sh", line("echo out; echo err >&2; exit 3")), ("printf", line("%s 'a b'")), ("make", line("build"))];
        let watcher = entry(world.install_hook("watcher", &json!({})), writes(), Value::Null);
        let ran = run(&world, &caller("agent", &["sh", "printf", "make"], &calls).artifact(watcher), class);
        let lines = heard(&ran.trace);
        let events: Vec<&str> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
        let of_calls: Vec<&&str> = events.iter().filter(|event| ["on-shell", "on-tool-call"].contains(event)).collect();
        assert_eq!(of_calls[..2], [&"on-shell", &"on-tool-call"], "{class}: {events:?}");
        let commands: Vec<&Value> = lines.iter().filter(|line| line["event"] == "on-shell").collect();
        let script = "echo out; echo err >&2; exit 3";
        let sh = std::fs::canonicalize("/bin/sh").unwrap();
        assert_eq!((&commands[0]["turn"], &commands[0]["binary"]), (&json!(0), &json!(sh)));
        assert_eq!(commands[0]["argv"], json!(["-c", script]));
        assert_eq!((&commands[0]["script"], &commands[0]["command"]), (&json!(script), &json!(format!("-c {script}"))));
        let expected =
            json!({"exit_code": 3, "stdout": "out\n", "stderr": "err\n", "stdout_bytes": 4, "stderr_bytes": 4});
        assert_eq!(commands[0]["outcome"], expected, "{class}");
        assert_eq!((&commands[1]["argv"], &commands[1]["script"]), (&json!(["%s", "a b"]), &Value::Null));
        assert_eq!(commands[2]["recipe"], "echo made");
        assert!(ran.trace.all("hook_dispatch_error").is_empty());
    }
}

#[test]
fn a_denied_command_is_not_run_and_the_model_and_the_trace_are_told_why() {
    let world = World::new();
    let calls = [("sh", line("echo run > made.txt")), ("sh", line("echo fine"))];
    let hook = guard(&world, json!({"deny": "nothing is made here", "when": "made.txt"}));
    let watcher = world.install_hook("watcher", &json!({}));
    let ran = run(&world, &caller("agent", &["sh"], &calls).artifact(hook).artifact(watcher), "unconfined");
    assert!(ran.text(0).contains("hook 'guard' denied it: nothing is made here"), "{}", ran.text(0));
    assert_eq!(ran.results[0]["is_error"], true);
    assert!(ran.text(1).contains("Stdout:\nfine\n"), "{}", ran.text(1));
    assert!(!ran.work.join("made.txt").exists());
    let denied = ran.trace.one("call_denied");
    assert_eq!((&denied["event"], &denied["target"]), (&json!("on-shell"), &json!("sh")));
    assert_eq!((&denied["hook_name"], &denied["reason"]), (&json!("guard"), &json!("nothing is made here")));
    assert_eq!((ran.trace.all("tool_call").len(), ran.trace.all("shell").len()), (1, 1));
    // Asked before each command, never told of one.
    let lines = heard(&ran.trace);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line["outcome"].is_null()));
    assert_eq!(lines[0]["script"], "echo run > made.txt");
}

#[test]
fn a_hook_that_cannot_decide_lets_no_command_pass() {
    let world = World::new();
    for answer in
        [json!({"error": "out of order"}), json!({"trap": true}), json!({"deny": " "}), json!({"reopen": "x"})]
    {
        let agent = caller("agent", &["sh"], &[("sh", line("touch made.txt"))]).artifact(guard(&world, answer.clone()));
        let ran = run(&world, &agent, "unconfined");
        assert!(ran.text(0).contains("hook 'guard' denied it"), "{answer}: {}", ran.text(0));
        assert!(!ran.work.join("made.txt").exists() && ran.trace.all("shell").is_empty());
        assert_eq!(ran.trace.one("hook_dispatch_error")["event"], "on-shell");
    }
}

#[test]
fn a_command_that_goes_to_the_background_is_asked_about_and_not_told_of() {
    let world = World::new();
    let hook = guard(&world, json!({"deny": "no", "when": "never"}));
    let watcher = entry(world.install_hook("watcher", &json!({"binding": "on-shell"})), writes(), Value::Null);
    let agent = caller("agent", &["sh"], &[("sh", line("read line < pipe"))])
        .artifact(hook)
        .artifact(watcher)
        .with(&["lifecycle", "shell_grace_secs"], 1);
    let invocation = launch(&world, &agent, "unconfined");
    nix::unistd::mkfifo(&world.project().join("work/pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let ran = ran(&world, invocation.args(["--task", "go"]));
    assert!(ran.text(0).contains("goes on in the background"), "{}", ran.text(0));
    let lines = heard(&ran.trace);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0]["outcome"].is_null(), "the decision alone");
}
