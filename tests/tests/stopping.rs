//! `mur stop` of a session that works on something: how the task ends, and what that says of the session.

use mur_tests::{Agent, Done, Door, Trace, World, wait_until};
use serde_json::json;

/// An agent whose every turn takes longer than any test, of a door with a token.
fn slow(acceptance: &str, after: &str) -> Agent {
    Agent::scripted("slow", json!({"rules": [{"turns": [[{"wait_ms": 600_000}, {"say": "late"}]], "repeat": true}]}))
        .authenticated()
        .with(&["lifecycle", "task_acceptance"], acceptance)
        .with(&["lifecycle", "after_task"], after)
}

/// Stops a session while it works on a task, which its launch brought or its door was given; what was printed, how the
/// session's process ended, and its trace.
fn stopped(agent: &Agent, from_the_door: bool) -> (Done, Done, Trace) {
    let world = World::new();
    world.write("murmur.yaml", agent.manifest());
    let task: &[&str] = if from_the_door { &[] } else { &["--task", "work"] };
    let running = world.mur(["run", "--json"]).args(task).start();
    let ready = running.json_line(0);
    if from_the_door {
        let token = world.mur(["token"]).ok().stdout;
        Door::ready(&ready).token(token.trim()).call(
            "SendMessage",
            json!({
                "message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "work"}]},
                "configuration": {"returnImmediately": true},
            }),
        );
    }
    wait_until("the task runs", || world.trace("slow").first("task_start").is_some());
    let said = world.mur(["stop", "@1"]).ok();
    (said, running.wait(), world.trace("slow"))
}

#[test]
fn a_task_that_is_stopped_with_its_session_ends_canceled_and_the_session_with_it() {
    for (agent, from_the_door) in [
        (slow("queue", "sleep"), false),
        (slow("single", "exit"), true),
        (slow("queue", "exit"), true),
        // Of a session that goes on after each task none but the launch's own decides, unless the end cut it short.
        (slow("queue", "sleep"), true),
    ] {
        let (said, ended, trace) = stopped(&agent, from_the_door);
        let task = trace.one("task_end");
        assert_eq!(task["exit_status"], "canceled");
        let id = task["task_id"].as_str().unwrap_or_default();
        assert!(said.stdout.contains(&format!("\ncanceled: {id}\n")), "{}", said.stdout);
        let case = format!("{} {from_the_door}", agent.manifest());
        assert_eq!(trace.one("session_end")["exit_status"], "canceled", "{case}");
        assert_eq!(ended.code(), Some(1), "{case}: {}", ended.stderr);
        assert!(ended.stderr.contains("error[E-RUN-040]"), "{case}: {}", ended.stderr);
    }
}
