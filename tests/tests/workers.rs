//! Guest workers of a session: which there are and when they start, what a lost one ends, whenever it is lost.

use std::fs;
use std::path::{Path, PathBuf};

use mur_tests::live::proc;
use mur_tests::{Agent, Answer, Done, Provider, Running, Trace, World, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// A capsule with an artifact of each kind named, that waits for a task for as long as it takes.
fn agent(world: &World, tools: bool, hooks: bool) -> Agent {
    let script = json!({"rules": [{"turns": [[{"say": "done"}]]}]});
    let mut agent = Agent::scripted("agent", script)
        .with(&["lifecycle", "task_acceptance"], "queue")
        .with(&["lifecycle", "after_task"], "sleep");
    if tools {
        agent = agent.tool("text-stats");
    }
    if hooks {
        agent = agent.artifact(world.install_hook("watcher", &json!({})));
    }
    agent
}

/// The processes that run a kind of worker under a session, innermost last: a relay and its worker, where there is one.
fn chain(session: u32, kind: &str) -> Vec<i32> {
    let session = i32::try_from(session).expect("a pid");
    let line = format!("mur __guest-worker {kind}");
    let mut found: Vec<i32> =
        proc::descendants(session).into_iter().filter(|pid| proc::command_line(*pid) == line).collect();
    let parents = proc::parents();
    // A relay stands before its child.
    found.sort_by_key(|pid| parents.iter().any(|(one, above)| one == pid && found_parent(&parents, *above, &line)));
    found
}

fn found_parent(parents: &[(i32, i32)], above: i32, line: &str) -> bool {
    parents.iter().any(|(pid, _)| *pid == above) && proc::command_line(above) == line
}

/// The process that runs the code of a kind.
#[track_caller]
fn worker(session: u32, kind: &str) -> i32 {
    *chain(session, kind).last().unwrap_or_else(|| panic!("no {kind} worker"))
}

fn kinds(session: u32) -> Vec<&'static str> {
    ["driver", "tools", "hooks"].into_iter().filter(|kind| !chain(session, kind).is_empty()).collect()
}

/// Starts a session and waits for its readiness line; gives its records directory too.
fn start(world: &World, agent: &Agent, args: &[&str]) -> (Running, PathBuf) {
    world.write("murmur.yaml", agent.manifest());
    let running = world.mur(["run", "--json"]).args(args).start();
    let records = PathBuf::from(running.json_line(0)["records_dir"].as_str().expect("a path"));
    (running, records)
}

fn trace(records: &Path) -> Trace {
    Trace::read(&records.join("trace.jsonl"))
}

fn stop(running: Running) {
    running.signal(Signal::SIGTERM);
    running.wait();
}

#[test]
fn a_worker_is_started_for_each_kind_of_artifact_there_is_and_for_no_other() {
    let world = World::new();
    for (tools, hooks, expected) in [
        (false, false, &["driver"][..]),
        (true, false, &["driver", "tools"]),
        (false, true, &["driver", "hooks"]),
        (true, true, &["driver", "tools", "hooks"]),
    ] {
        let (running, _) = start(&world, &agent(&world, tools, hooks), &[]);
        let session = running.pid();
        assert_eq!(kinds(session), expected);
        let mut pids = Vec::new();
        for kind in expected {
            let chain = chain(session, kind);
            let worker = *chain.last().unwrap();
            // Nothing but its kind on the command line, nothing in the environment, and the root as its directory.
            assert_eq!(proc::command_line(worker), format!("mur __guest-worker {kind}"));
            assert!(fs::read(format!("/proc/{worker}/environ")).unwrap_or_default().is_empty(), "{kind}");
            let own = nix::unistd::getpgid(Some(Pid::from_raw(chain[0]))).unwrap().as_raw();
            assert_eq!(own, chain[0], "a process group of its own");
            pids.extend(chain);
        }
        // No two kinds share a process.
        let mut once = pids.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), pids.len());
        stop(running);
        proc::wait_gone(&pids);
    }
}

/// A capsule that pulls the counting tool in its first turn, calls it in the next, and then waits to be stopped.
fn puller(install: &Value, artifact: &str) -> Agent {
    let script = json!({"rules": [{"turns": [
        [{"call": "pull-artifact", "input": {"artifact": artifact}}],
        [{"ask": "go on?"}, {"call": "counter", "input": {"text": "a b c"}}],
        [{"say": "{{last}}"}],
    ]}]});
    Agent::scripted("agent", script).with(&["capabilities", "install"], install.clone())
}

/// Installs the bundled counting tool under a name of its own.
fn install_counter(world: &World, runtime: &str) {
    let keys = json!({
        "runtime": runtime, "description": "Counts.",
        "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    });
    world.install_artifact("counter", &keys, &mur_tests::bundled_component("text-stats"));
}

#[test]
fn the_tools_worker_starts_at_a_pulled_tools_first_call_and_not_before() {
    let world = World::new();
    install_counter(&world, "tool");
    let agent = puller(&json!({"tool": ["local/*"]}), "local/counter");
    world.write("murmur.yaml", agent.manifest());
    let running = world.mur(["run", "--json", "--task", "go"]).start();
    let ready = running.json_line(0);
    let records = PathBuf::from(ready["records_dir"].as_str().unwrap());
    wait_until("it was pulled", || trace(&records).first("artifact_pulled").is_some());
    wait_until("the model has its answer", || trace(&records).all("tool_call").len() == 1);
    // The next turn waits for input in the driver: the tool is here, and nothing runs it yet.
    assert_eq!(kinds(running.pid()), ["driver"]);
    let door = mur_tests::Door::ready(&ready);
    let task = trace(&records).one("task_start")["task_id"].as_str().unwrap().to_owned();
    door.wait_for(&task, "TASK_STATE_INPUT_REQUIRED");
    assert_eq!(kinds(running.pid()), ["driver"]);
    let reply =
        json!({"message": {"messageId": "m2", "role": "ROLE_USER", "taskId": task, "parts": [{"text": "go on"}]}});
    door.call("SendMessage", reply).result();
    let done = running.wait();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    let trace = trace(&records);
    let calls = trace.all("tool_call");
    assert_eq!((calls.len(), &calls[1]["status"]), (2, &json!("ok")), "{:?}", calls);
    assert!(trace.result().unwrap().contains("source=tool:counter"), "{:?}", trace.result());
    let record = trace.one("artifact_pulled");
    assert_eq!((&record["name"], &record["version"]), (&json!("local/counter"), &json!("1.0.0")));
    assert_eq!((&record["origin"], &record["runtime"]), (&json!("runtime"), &json!("tool")));
    assert_eq!(record["session"], trace.session());
    let refreshed = trace.one("tools_refreshed");
    assert_eq!((&refreshed["trigger"], &refreshed["added"]), (&json!("agent"), &json!(["counter"])));
    let lock = fs::read_to_string(world.project().join("murmur.lock")).unwrap();
    assert!(lock.contains("local/counter") && lock.contains("origin: runtime"), "{lock}");
}

/// Runs a capsule that pulls or removes one artifact and answers with what it was told.
fn told(world: &World, agent: Agent, calls: &[(&str, &str)]) -> (Done, String, Trace) {
    let mut turns: Vec<Value> =
        calls.iter().map(|(tool, artifact)| json!([{"call": tool, "input": {"artifact": artifact}}])).collect();
    turns.push(json!([{"say": "{{last}}"}]));
    let agent = agent.with(&["inference", "driver", "config"], json!({"rules": [{"turns": turns}]}));
    world.write("murmur.yaml", agent.manifest());
    let done = world.mur(["run", "--task", "go"]).run();
    let trace = world.traces().pop().unwrap_or_else(|| panic!("no trace\n{}", done.stderr));
    let result = trace.result().unwrap_or_default();
    (done, result, trace)
}

#[test]
fn what_the_grant_does_not_cover_is_refused_and_changes_nothing() {
    let world = World::new();
    install_counter(&world, "tool");
    world.install_hook("spy", &json!({}));
    let base = || Agent::scripted("agent", Value::Null);
    for (install, artifact, words) in [
        (json!({"tool": ["other/*"]}), "local/counter", "not-granted: 'local/counter' is covered by no pattern"),
        // A tool is not covered by the list of skills.
        (json!({"skill": ["local/*"]}), "local/counter", "not-granted: local/counter@1.0.0 is a tool"),
        (json!({"tool": ["*"]}), "local/spy", "not-granted: local/spy@1.0.0 is a hook"),
        (json!({"tool": ["*"]}), "local/nothing", "not-fetched: 'local/nothing' is in no store"),
        (json!({"tool": ["*"]}), "local/counter@9.9", "not-fetched: 'local/counter' is in no store"),
        (json!({"tool": ["*"]}), "counter", "not-found: "),
    ] {
        let agent = base().with(&["capabilities", "install"], install.clone());
        let (done, told, trace) = told(&world, agent, &[("pull-artifact", artifact)]);
        assert_eq!(done.code(), Some(0), "{}", done.stderr);
        assert!(told.contains(words), "{install} {artifact}: {told}");
        assert!(trace.all("artifact_pulled").is_empty());
        let lock = fs::read_to_string(world.project().join("murmur.lock")).unwrap_or_default();
        assert!(!lock.contains("counter") && !lock.contains("spy"), "{lock}");
    }
    // Without the grant there is no such tool.
    let (_, told, _) = told(&world, base(), &[("pull-artifact", "local/counter")]);
    assert!(told.contains("not declared in manifest allowlist"), "{told}");
}

#[test]
fn what_was_pulled_can_be_removed_and_what_was_declared_cannot() {
    let world = World::new();
    install_counter(&world, "tool");
    let agent = Agent::scripted("agent", Value::Null)
        .tool("text-stats")
        .with(&["capabilities", "install"], json!({"tool": ["local/*"]}));
    let calls = [("pull-artifact", "local/counter"), ("remove-artifact", "local/counter")];
    let (done, told_last, trace) = told(&world, agent.clone(), &calls);
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    assert!(told_last.contains(r#""removed":true"#), "{told_last}");
    let refreshed = trace.all("tools_refreshed");
    assert_eq!(refreshed.len(), 2);
    assert_eq!(refreshed[1]["removed"], json!(["counter"]));
    let lock = fs::read_to_string(world.project().join("murmur.lock")).unwrap_or_default();
    assert!(!lock.contains("counter"), "{lock}");
    let (_, told_last, _) = told(&world, agent, &[("remove-artifact", "murmur/text-stats")]);
    assert!(told_last.contains("not-granted"), "{told_last}");
}

#[test]
fn a_pulled_skill_is_fenced_and_a_declared_one_is_not() {
    let world = World::new();
    let source = world.project().join("guide");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("murmur.yaml"), "name: guide\nversion: \"1.0.0\"\nruntime: skill\n").unwrap();
    fs::write(source.join("skill.md"), "Do it well.").unwrap();
    world.mur(["build"]).arg(&source).ok();
    world.mur(["install", "-g"]).arg(source.join("guide-1.0.0.mur.zip")).ok();
    let turns = json!([
        [{"call": "pull-artifact", "input": {"artifact": "local/guide"}}],
        [{"call": "guide"}],
        [{"say": "{{last}}"}],
    ]);
    let agent = Agent::scripted("agent", json!({"rules": [{"turns": turns}]}))
        .with(&["capabilities", "install"], json!({"skill": ["local/guide"]}));
    world.write("murmur.yaml", agent.manifest());
    world.mur(["run", "--task", "go"]).ok();
    let trace = world.traces().pop().unwrap();
    assert_eq!(
        trace.result().as_deref(),
        Some("<untrusted-content source=skill:guide>\nDo it well.\n</untrusted-content>")
    );
    let call = trace.one("skill_call");
    assert_eq!((&call["origin"], &call["trust"]), (&json!("runtime"), &json!("untrusted")));
}

#[test]
fn a_pulled_tool_sees_what_the_capsule_is_granted_and_no_state_store() {
    let world = World::new();
    world.install_artifact("writer", &json!({"runtime": "tool"}), &mur_tests::bundled_component("write-file"));
    // The only declared tool is narrowed; what is pulled runs on the ceiling, in the same worker.
    let turns = json!([
        [{"call": "pull-artifact", "input": {"artifact": "local/writer"}}],
        [{"call": "writer", "input": {"path": "here.txt", "content": "x"}},
         {"call": "writer", "input": {"path": "state/there.txt", "content": "x"}}],
        [{"say": "{{results | each \"{{it.is_error}} \"}}"}],
    ]);
    let agent = Agent::scripted("agent", json!({"rules": [{"turns": turns}]}))
        .tool("text-stats")
        .artifact_capability("text-stats", json!({"filesystem": {"scope": "narrow"}, "state": {"store": "kept"}}))
        .with(&["capabilities", "install"], json!({"tool": ["local/*"]}));
    let work = world.project().join("work");
    fs::create_dir(&work).unwrap();
    world.write("murmur.yaml", agent.manifest());
    let done = world.mur(["run", "--task", "go", "--workdir"]).arg(&work).ok();
    assert!(work.join("here.txt").is_file(), "{}", done.stderr);
    assert!(!world.murmur().join("state/kept/there.txt").exists());
    // 'state' is no folder of its own: the file lies in the work folder.
    assert!(work.join("state/there.txt").is_file());
}

/// How a lost worker's session ended.
struct Lost {
    done: Done,
    trace: Trace,
    pid: i32,
}

impl Lost {
    /// Checks what holds whenever a worker is lost. `call` is what was running.
    #[track_caller]
    fn check(&self, kind: &str, call: Option<&str>, how: &str, in_task: bool) {
        self.done.refused("E-RUN-065");
        let during = call.map_or("while no call was running".to_owned(), |call| format!("during {call}"));
        let words = format!("the {kind} worker (pid {}) was lost {during}: ", self.pid);
        assert!(self.done.stderr.contains(&words), "{words}\n{}", self.done.stderr);
        assert!(self.done.stderr.contains(how), "{how}\n{}", self.done.stderr);
        if in_task {
            let failed = self.trace.one("task_failed");
            assert_eq!(failed["cause"], "runtime_error");
            let reason = failed["reason"].as_str().unwrap();
            assert!(reason.contains("E-RUN-065") && reason.contains(&words), "{reason}");
            assert_eq!(self.trace.one("task_end")["exit_status"], "failed");
        }
        assert_eq!(self.trace.one("session_end")["exit_status"], "failed");
        assert_eq!(self.trace.kinds().last(), Some(&"session_end"));
    }
}

/// Signals a session's worker and waits for the session's end. Nothing is started in its place.
fn lose(running: Running, records: &Path, kind: &str, signal: Signal) -> Lost {
    let pid = worker(running.pid(), kind);
    let all: Vec<i32> = ["driver", "tools", "hooks"].iter().flat_map(|kind| chain(running.pid(), kind)).collect();
    kill(Pid::from_raw(pid), signal).expect("a signal");
    let session = running.pid();
    let done = running.wait();
    proc::wait_gone(&all);
    assert!(kinds(session).is_empty(), "nothing is started again");
    Lost { done, trace: trace(records), pid }
}

const KILLED: &str = "killed by signal 9 (SIGKILL)";

#[test]
fn a_worker_lost_before_its_first_call_ends_the_run_whatever_its_kind() {
    for kind in ["driver", "tools", "hooks"] {
        let world = World::new();
        let (running, records) = start(&world, &agent(&world, true, true), &[]);
        let lost = lose(running, &records, kind, Signal::SIGKILL);
        lost.check(kind, None, KILLED, false);
        assert!(lost.trace.all("task_start").is_empty());
    }
}

/// A task that waits in its second turn, with a tool and a hook called before.
fn between_calls(world: &World) -> Agent {
    let script = json!({"rules": [{"turns": [
        [{"call": "text-stats", "input": {"text": "a"}}],
        [{"ask": "go on?"}, {"say": "done"}],
    ]}]});
    Agent::scripted("agent", script).tool("text-stats").artifact(world.install_hook("watcher", &json!({})))
}

#[test]
fn a_worker_lost_between_its_calls_fails_the_task_in_flight() {
    for kind in ["tools", "hooks"] {
        let world = World::new();
        let (running, records) = start(&world, &between_calls(&world), &["--task", "go"]);
        wait_until("the tool was called", || !trace(&records).all("tool_call").is_empty());
        let lost = lose(running, &records, kind, Signal::SIGKILL);
        lost.check(kind, None, KILLED, true);
    }
}

#[test]
fn a_driver_worker_lost_during_its_call_is_named_with_it() {
    let silent = Provider::play([Answer::text(200, "text/plain", "never").held()]);
    let world = World::new();
    let script = json!({"rules": [{"turns": [[{"http": format!("{}/x", silent.url())}, {"say": "late"}]]}]});
    let agent = Agent::scripted("agent", script).network(&["127.0.0.1"]);
    let ends = [(Signal::SIGKILL, KILLED), (Signal::SIGTERM, "signal 15"), (Signal::SIGABRT, "signal 6")];
    for (before, (signal, how)) in ends.into_iter().enumerate() {
        let (running, records) = start(&world, &agent, &["--task", "go"]);
        wait_until("the driver asks", || silent.seen().len() > before);
        lose(running, &records, "driver", signal).check("driver", Some("driver 'driver-scripted'"), how, true);
    }
}

#[test]
fn a_tools_worker_lost_during_a_call_is_named_with_it() {
    let silent = Provider::play([Answer::text(200, "text/plain", "never").held()]);
    let world = World::new();
    let call = json!({"call": "fetch", "input": {"url": format!("{}/x", silent.url())}});
    let agent = Agent::scripted("agent", json!({"rules": [{"turns": [[call], [{"say": "done"}]]}]}))
        .tool("fetch")
        .network(&["127.0.0.1"]);
    let (running, records) = start(&world, &agent, &["--task", "go"]);
    wait_until("the tool asks", || !silent.seen().is_empty());
    lose(running, &records, "tools", Signal::SIGKILL).check("tools", Some("tool 'fetch'"), KILLED, true);
}

/// A capsule whose hook never comes back from an event, under a long deadline.
fn spinning(world: &World, event: &str) -> Agent {
    let mut hook = world.install_hook("spinner", &json!({"binding": event}));
    hook["capabilities"] = json!({"filesystem": {"records": true}, "limits": {"deadline_seconds": 600}});
    hook["config"] = json!({"answers": {event: {"spin": true}}});
    Agent::scripted("agent", json!({"rules": [{"turns": [[{"say": "done"}]]}]})).tool("text-stats").artifact(hook)
}

fn has_heard(records: &Path, event: &str) -> bool {
    fs::read_to_string(records.join("hooks/events.jsonl")).is_ok_and(|text| text.contains(event))
}

#[test]
fn a_hooks_worker_lost_during_a_call_is_named_with_it() {
    let world = World::new();
    let (running, records) = start(&world, &spinning(&world, "on-task-start"), &["--task", "go"]);
    wait_until("the hook is called", || has_heard(&records, "on-task-start"));
    lose(running, &records, "hooks", Signal::SIGKILL).check("hooks", Some("hook 'spinner'"), KILLED, true);
}

#[test]
fn a_worker_lost_while_the_session_ends_makes_it_a_failed_one() {
    for (kind, call) in [("hooks", Some("hook 'spinner'")), ("tools", None)] {
        let world = World::new();
        let (running, records) = start(&world, &spinning(&world, "on-session-end"), &["--task", "go"]);
        wait_until("the hook is called", || has_heard(&records, "on-session-end"));
        assert_eq!(trace(&records).one("task_end")["exit_status"], "ok");
        let lost = lose(running, &records, kind, Signal::SIGKILL);
        lost.check(kind, call, KILLED, false);
    }
}

#[test]
fn a_stopped_worker_is_lost_well_past_its_calls_deadline() {
    let silent = Provider::play([Answer::text(200, "text/plain", "never").held()]);
    let world = World::new();
    let call = json!({"call": "fetch", "input": {"url": format!("{}/x", silent.url())}});
    let agent = Agent::scripted("agent", json!({"rules": [{"turns": [[call], [{"say": "done"}]]}]}))
        .tool("fetch")
        .network(&["127.0.0.1"])
        .with(&["capabilities", "limits", "deadline_seconds"], 3);
    let (running, records) = start(&world, &agent, &["--task", "go"]);
    wait_until("the tool asks", || !silent.seen().is_empty());
    let lost = lose(running, &records, "tools", Signal::SIGSTOP);
    lost.check("tools", Some("tool 'fetch'"), "nothing came from it for 10 s after its deadline passed", true);
}

#[test]
fn a_worker_that_cannot_be_started_refuses_the_launch() {
    let world = World::new();
    // Its scope has room for the session's first processes and for no more.
    let agent = agent(&world, true, true).with(&["capabilities", "resources", "cgroup_pids_max"], 2);
    world.write("murmur.yaml", agent.manifest());
    let done = world.mur(["run", "--task", "go"]).run();
    done.refused("E-RUN-066");
    assert!(done.stderr.contains("worker could not be started: "), "{}", done.stderr);
    assert!(done.stderr.contains("capabilities.resources.cgroup_pids_max is 2, and "), "{}", done.stderr);
    for trace in world.traces() {
        assert!(trace.records().is_empty(), "nothing was recorded: {:?}", trace.kinds());
    }
    let left: Vec<_> = fs::read_dir(world.murmur().join("sessions")).into_iter().flatten().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_routes_of_workers_are_shown_under_the_installed_tier() {
    let world = World::new();
    world.write("murmur.yaml", agent(&world, true, true).manifest());
    for (class, tier) in
        [("unconfined", "none"), ("scoped", "landlock+seccomp"), ("sealed", "mountns+pivot_root+landlock+seccomp")]
    {
        let shown = world.mur(["run", "--explain-scope", "--containment", class]).ok().stdout;
        let routes = shown.split("Routes").nth(1).expect("the block");
        for route in ["wasm-tools", "drivers", "hooks"] {
            assert!(routes.contains(&format!("\n  {route}: {tier}\n")), "{class}: {shown}");
        }
        let json = world.mur(["run", "--explain-scope", "--json", "--containment", class]).ok().stdout;
        let object: Value = serde_json::from_str(&json).expect("one object");
        let named: Vec<&str> = object["routes"]
            .as_array()
            .expect("a list")
            .iter()
            .filter(|route| route["mechanism"] == tier)
            .filter_map(|route| route["route"].as_str())
            .collect();
        assert!(["wasm-tools", "drivers", "hooks"].iter().all(|route| named.contains(route)), "{class}: {json}");
    }
}
