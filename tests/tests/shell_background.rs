//! Commands that outlive their grace: moved to the background, asked about, reported once, ended with the session.

use std::fs;
use std::path::PathBuf;

use mur_tests::commands::{CLASSES, TWO, launch};
use mur_tests::live::proc;
use mur_tests::{Agent, Door, Running, Trace, World, wait_until};
use nix::sys::signal::Signal::{SIGKILL, SIGTERM};
use serde_json::{Value, json};

/// Writes its number, then waits to be let go; says so and ends with 4.
const HELD: &str = "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done; echo finished; exit 4";

fn agent(rules: Value) -> Agent {
    Agent::scripted("agent", json!({"rules": rules}))
        .with(&["capabilities", "shell", "allow"], json!(["sh", "sleep", "cat"]))
        .with(&["lifecycle", "shell_grace_secs"], 0)
}

fn sh(command: &str) -> Value {
    json!({"call": "sh", "input": {"command": command}})
}

/// A session that goes on after a task.
fn served(agent: Agent) -> Agent {
    agent.with(&["lifecycle", "task_acceptance"], "queue").with(&["lifecycle", "after_task"], "sleep")
}

fn work(world: &World) -> PathBuf {
    world.project().join("work")
}

/// The number of the command that [`HELD`] is, as the host counts: under a process namespace it says another.
fn runs(world: &World) -> bool {
    let marked = format!("{}", work(world).display());
    proc::parents().into_iter().any(|(pid, _)| {
        let cwd = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        cwd.to_string_lossy() == marked && proc::command_line(pid).contains("exit 4") && proc::runs(pid)
    })
}

fn trace(world: &World) -> Trace {
    world.traces().pop().expect("a trace")
}

fn ended_tasks(world: &World) -> usize {
    world.traces().first().map_or(0, |trace| trace.all("task_end").len())
}

#[track_caller]
fn door(session: &Running) -> Door {
    let ready = session.json_line(0);
    Door::at(ready["url"].as_str().expect("an address"))
}

#[test]
fn a_command_still_running_at_the_end_of_its_session_is_recorded_and_ended_with_it() {
    for class in CLASSES {
        let world = World::new();
        let rules = json!([{"turns": [[sh(HELD)], [{"say": "{{result}}"}]]}]);
        let done = launch(&world, &agent(rules), class).args(["--task", "go"]).run();
        assert_eq!(done.code(), Some(0), "{class}: {}", done.stderr);
        let trace = trace(&world);
        let detached = trace.one("shell_detached");
        let id = detached["work_id"].as_str().unwrap();
        assert!(id.starts_with("wrk_"));
        assert_eq!(detached["command"], HELD);
        let told = trace.result().unwrap();
        assert!(told.contains(id) && told.contains(&format!("logs/{id}.log")), "{told}");
        assert!(trace.all("shell").is_empty() && trace.all("shell_completed").is_empty());
        let abandoned = trace.one("shell_abandoned");
        assert_eq!(abandoned["work_id"], id);
        assert!(abandoned["running_ms"].is_u64() && abandoned["exit_code"].is_null());
        assert_eq!(trace.one("task_end")["running_commands"], json!([id]));
        assert_eq!(trace.one("session_end")["total_shell_calls"], 1);
        assert!(
            done.stderr.contains(&format!("{id} was still running and is ended with the session")),
            "{}",
            done.stderr
        );
        wait_until("the command is gone", || !runs(&world));
        assert!(trace.directory().join(format!("logs/{id}.log")).is_file());
    }
}

#[test]
fn the_end_of_a_background_command_is_a_task_of_its_own_where_the_session_goes_on() {
    for class in TWO {
        let world = World::new();
        let rules = json!([
            {"when": {"contains": "has ended"}, "turns": [[{"say": "heard: {{text}}"}]]},
            {"turns": [[sh(HELD)], [{"say": "started"}]]},
        ]);
        let session = launch(&world, &served(agent(rules)), class).args(["--task", "go"]).start();
        wait_until("the first task has ended", || ended_tasks(&world) == 1);
        fs::write(work(&world).join("go"), "").unwrap();
        wait_until("the second task has ended", || ended_tasks(&world) == 2);
        session.signal(SIGTERM);
        assert_eq!(session.wait().code(), Some(0), "{class}");
        let trace = trace(&world);
        let completed = trace.one("shell_completed");
        let starts = trace.all("task_start");
        assert_eq!(completed["completion_task_id"], starts[1]["task_id"]);
        assert_eq!((&completed["exit_code"], &completed["status"]), (&json!(4), &json!("failed")));
        assert_eq!(completed["output_bytes"], "finished\n".len());
        let expected = [("source", "detached_shell"), ("origin", "completion"), ("lane", "bg"), ("trust", "trusted")];
        assert!(expected.iter().all(|(key, value)| starts[1][*key] == *value), "{:?}", starts[1]);
        assert_eq!(starts[0]["context_id"], starts[1]["context_id"]);
        let heard = trace.result().unwrap();
        for words in ["exit_code: 4", "output_shown: all", "finished\n\n</untrusted-content>", "source=tool:sh>"] {
            assert!(heard.contains(words), "{words}: {heard}");
        }
        assert!(trace.all("shell_abandoned").is_empty());
    }
}

#[test]
fn a_command_can_be_asked_about_and_waited_for() {
    for class in TWO {
        let world = World::new();
        let ask = |operation: &str| {
            json!({"call": "background-command", "input": {
                "operation": operation, "work_id": "{{results.0.text | find \"wrk_[0-9a-f]{32}\"}}",
            }})
        };
        let rules = json!([{"turns": [
            [sh(HELD)],
            [ask("status")],
            [{"call": "background-command", "input": {
                "operation": "wait", "work_id": "{{results.0.text | find \"wrk_[0-9a-f]{32}\"}}", "wait_secs": 60,
            }}],
            [{"say": "{{results | quote}}"}],
        ]}]);
        let session = launch(&world, &served(agent(rules)), class).args(["--task", "go"]).start();
        wait_until("it was asked about", || {
            world.traces().first().is_some_and(|trace| !trace.all("background_command").is_empty())
        });
        fs::write(work(&world).join("go"), "").unwrap();
        wait_until("the task has ended", || ended_tasks(&world) == 1);
        session.signal(SIGTERM);
        assert_eq!(session.wait().code(), Some(0), "{class}");
        let trace = trace(&world);
        let asked = trace.all("background_command");
        assert_eq!((&asked[0]["operation"], &asked[0]["state"]), (&json!("status"), &json!("running")));
        assert_eq!(
            (&asked[1]["operation"], &asked[1]["state"], &asked[1]["exit_code"]),
            (&json!("wait"), &json!("exited"), &json!(4))
        );
        assert!(asked[1]["waited_ms"].is_u64());
        let results: Value = serde_json::from_str(&trace.result().unwrap()).unwrap();
        let waited = results[0]["text"].as_str().unwrap();
        for line in ["state: exited", "exit_code: 4", "status: failed", "output_bytes: 9", "output_shown: all"] {
            assert!(waited.lines().any(|found| found == line), "{line}: {waited}");
        }
        assert!(waited.ends_with("\n\nfinished\n"), "{waited}");
    }
}

#[test]
fn a_command_that_does_not_heed_a_stop_is_killed_and_not_reported_again() {
    for class in TWO {
        let world = World::new();
        let rules = json!([{"turns": [
            [sh("trap 'echo asked' TERM; echo ready; while :; do sleep 0.02; done")],
            [{"call": "background-command", "input": {
                "operation": "stop", "work_id": "{{result | find \"wrk_[0-9a-f]{32}\"}}",
            }}],
            [{"say": "{{result}}"}],
        ]}]);
        let session = launch(&world, &served(agent(rules)), class).args(["--task", "go"]).start();
        wait_until("the task has ended", || ended_tasks(&world) == 1);
        session.signal(SIGTERM);
        assert_eq!(session.wait().code(), Some(0), "{class}");
        let trace = trace(&world);
        let told = trace.result().unwrap();
        for words in ["state: stopped", "exit_code: 137", "status: stopped"] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert_eq!(trace.one("shell_completed")["exit_code"], 137);
        assert!(trace.one("shell_completed")["completion_task_id"].is_null(), "whoever stopped it was told");
    }
}

#[test]
fn a_command_of_nobody_is_an_error() {
    let world = World::new();
    let ask = |input: Value| json!({"call": "background-command", "input": input});
    let rules = json!([{"turns": [
        [
            ask(json!({"operation": "status", "work_id": "wrk_00000000000000000000000000000000"})),
            ask(json!({"operation": "pause", "work_id": "wrk_0"})),
            ask(json!({"operation": 1, "work_id": 2})),
        ],
        [{"say": "{{results | quote}}"}],
    ]}]);
    let done = launch(&world, &agent(rules), "unconfined").args(["--task", "go"]).run();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    let results: Value = serde_json::from_str(&trace(&world).result().unwrap()).unwrap();
    assert!(results.as_array().unwrap().iter().all(|result| result["is_error"] == true), "{results}");
    assert!(results[0]["text"].as_str().unwrap().contains("no command of this session is 'wrk_0000"));
}

#[test]
fn a_cancelled_task_lets_its_command_go_to_the_background() {
    for class in TWO {
        let world = World::new();
        let rules = json!([{"turns": [[sh(HELD)], [{"say": "never"}]]}]);
        let agent = served(agent(rules)).with(&["lifecycle", "shell_grace_secs"], 600);
        let session = launch(&world, &agent, class).arg("--json").start();
        let door = door(&session);
        let task = door.send("go");
        wait_until("the command runs", || work(&world).join("pid").exists());
        door.call("CancelTask", json!({"id": task["id"]}));
        wait_until("the task has ended", || ended_tasks(&world) == 1);
        session.signal(SIGTERM);
        let done = session.wait();
        assert_eq!(done.code(), Some(0), "{class}: {}", done.stderr);
        let trace = trace(&world);
        let id = &trace.one("shell_detached")["work_id"];
        let canceled = trace.one("task_canceled");
        assert_eq!((&canceled["phase"], &canceled["detached_work_ids"]), (&json!("shell"), &json!([id])));
        assert_eq!(trace.one("task_end")["exit_status"], "canceled");
        assert_eq!(&trace.one("shell_abandoned")["work_id"], id);
    }
}

#[test]
fn what_a_killed_session_left_is_told_once_to_whoever_resumes_it() {
    for class in TWO {
        let world = World::new();
        let rules = json!([
            {"when": {"contains": "is resumed here"}, "turns": [[{"say": "lost: {{text}}"}]]},
            {"when": {"contains": "again"}, "turns": [[{"say": "going on"}]]},
            {"turns": [[sh(HELD)], [{"say": "started"}]]},
        ]);
        let agent = served(agent(rules));
        let session = launch(&world, &agent, class).args(["--task", "go"]).start();
        wait_until("the first task has ended", || ended_tasks(&world) == 1);
        session.signal(SIGKILL);
        session.wait();
        fs::write(work(&world).join("go"), "").unwrap();
        let earlier = trace(&world);
        for (number, launched) in [(0, "single"), (1, "single")] {
            let resumed = launch(&world, &agent, class)
                .args(["--task", "again", "--resume", earlier.session()])
                .args(["--lifecycle-task-acceptance", launched, "--lifecycle-after-task", "exit"])
                .run();
            assert_eq!(resumed.code(), Some(0), "{class}: {}", resumed.stderr);
            let sources: Vec<Value> =
                trace(&world).all("task_start").iter().map(|start| start["source"].clone()).collect();
            let expected = if number == 0 { json!(["task_md", "detached_lost"]) } else { json!(["task_md"]) };
            assert_eq!(json!(sources), expected, "{class}");
        }
        let marked = Trace::read(&earlier.directory().join("trace.jsonl"));
        let lost = marked.one("shell_lost");
        assert_eq!(lost["work_id"], marked.one("shell_detached")["work_id"]);
        let by = world.traces()[1].session().to_owned();
        assert_eq!(lost["reconciled_by_session"], by);
        assert!(lost["detached_at_ms"].is_u64());
    }
}
