//! `mur run --resume` after a crash: wherever a conversation breaks off, what is sent is one that providers take.

use std::fs;

use mur_tests::conversation::{APIS, asking, messages, newest, ok, position, project, record, roles, witness};
use mur_tests::{Agent, Answer, Invocation, Provider, World};
use nix::sys::signal::Signal::{SIGKILL, SIGTERM};
use serde_json::json;

fn task(world: &World, more: &[&str]) -> Invocation {
    world.mur(["run", "--workdir"]).arg(world.project().join("work")).args(more)
}

#[test]
fn a_call_that_was_running_when_the_session_was_killed_is_answered_so_that_providers_accept_the_conversation() {
    for api in APIS {
        // The tool waits for a server that does not answer.
        let silent = Provider::play([Answer::text(200, "text/plain", "never").held()]);
        let url = format!("{{\"url\": \"{}/x\"}}", silent.url());
        let provider = Provider::play([
            (api.call)("call_1", "read-file", &["{\"path\": \"notes.txt\"}"]),
            (api.call)("call_2", "fetch", &[&url]),
            (api.text)(&["Noted."]),
        ]);
        let world = asking(api, &provider);
        let running = task(&world, &["--json", "--task", "Read, then fetch."]).start();
        silent.wait_for(1);
        running.signal(SIGKILL);
        assert_eq!(running.wait().signal(), Some(9));
        let killed = newest(&world);
        assert!(killed.first("session_end").is_none(), "{:?}", killed.kinds());

        let done = task(&world, &["--resume", "--task", "Where were we?"]).run();
        ok(&done);
        assert_eq!(newest(&world).result().as_deref(), Some("Noted."));
        let seen = provider.seen();
        let both = vec!["call_1".to_owned(), "call_2".to_owned()];
        assert_eq!((api.calls)(&seen[2]), (both.clone(), both), "each call has its one result, in order");
        let text = json!(messages(&seen[2])).to_string();
        assert!(text.contains("one two three"), "a result that was recorded stands: {text}");
        assert!(position(&text, "No result of this call was recorded") < position(&text, "Where were we?"), "{text}");
        assert!(done.stderr.contains("1 tool call had no recorded result"), "{}", done.stderr);
    }
}

#[test]
fn of_several_calls_of_one_turn_only_the_unanswered_are_answered_by_the_runtime() {
    let silent = Provider::play([Answer::text(200, "text/plain", "never").held()]);
    let script = json!({"rules": [
        {"when": {"contains": "go on"}, "turns": [[{"say": "{{messages}} messages"}]]},
        {"turns": [[
            {"call": "read-file", "input": {"path": "notes.txt"}},
            {"call": "fetch", "input": {"url": format!("{}/x", silent.url())}},
            {"call": "read-file", "input": {"path": "notes.txt"}},
        ], [{"say": "never"}]]},
    ]});
    let agent = Agent::scripted("three", script).tool("read-file").tool("fetch").network(&["127.0.0.1"]);
    let world = project(&agent);
    world.write("work/notes.txt", "one two three\n");
    let running = task(&world, &["--json", "--task", "start"]).start();
    silent.wait_for(1);
    running.signal(SIGKILL);
    running.wait();
    assert_eq!(roles(&record(&world, "three")), ["user", "assistant", "tool"]);
    let done = task(&world, &["--resume", "--task", "go on"]).run();
    ok(&done);
    // The task, the three calls in one message, three results, the new task.
    assert_eq!(newest(&world).result().as_deref(), Some("6 messages"));
    assert!(done.stderr.contains("2 tool calls had no recorded result"), "{}", done.stderr);
    // The runtime's own answers are made anew each time, never recorded.
    assert_eq!(roles(&record(&world, "three")), ["user", "assistant", "tool", "user", "assistant"]);
}

#[test]
fn a_session_killed_while_the_model_was_asked_is_resumed_with_the_task_it_had() {
    for api in APIS {
        let provider = Provider::play([(api.text)(&["late"]).held(), (api.text)(&["Both done."])]);
        let world = asking(api, &provider);
        let running = task(&world, &["--json", "--task", "the first task"]).start();
        provider.wait_for(1);
        running.signal(SIGKILL);
        running.wait();
        ok(&task(&world, &["--resume", "--task", "the second task"]).run());
        let text = json!(messages(&provider.seen()[1])).to_string();
        assert!(position(&text, "the first task") < position(&text, "the second task"), "{text}");
    }
}

#[test]
fn a_cancelled_task_is_part_of_the_conversation_that_is_resumed() {
    let silent = Provider::play([Answer::text(200, "text/plain", "never").held()]);
    let script = json!({"rules": [
        {"when": {"contains": "go on"}, "turns": [[{"say": "{{messages}} messages"}]]},
        {"turns": [[{"call": "fetch", "input": {"url": format!("{}/x", silent.url())}}], [{"say": "never"}]]},
    ]});
    let world = project(&Agent::scripted("cut", script).tool("fetch").network(&["127.0.0.1"]));
    world.write("work/x", "");
    let running = task(&world, &["--json", "--task", "start"]).start();
    silent.wait_for(1);
    running.signal(SIGTERM);
    assert_eq!(running.wait().code(), Some(1));
    ok(&task(&world, &["--resume", "--task", "go on"]).run());
    // The task, the call, its answer by the runtime, the mark of the cancel, the new task.
    assert_eq!(newest(&world).result().as_deref(), Some("5 messages"));
}

#[test]
fn lines_of_a_record_that_cannot_be_used_are_left_out_and_told() {
    let world = project(&witness());
    for text in ["alpha", "beta"] {
        let resume: &[&str] = if text == "alpha" { &[] } else { &["--resume"] };
        ok(&world.mur(["run", "--task", text]).args(resume).run());
    }
    let kept = record(&world, "witness");
    let text = fs::read_to_string(&kept).expect("a record");
    let lines: Vec<&str> = text.lines().collect();
    // The second task's line is damaged, and the last one torn, as a killed writer leaves it.
    let damaged = [lines[0], lines[1], lines[2], &lines[3][..20], &lines[4][..lines[4].len() - 3]].join("\n");
    fs::write(&kept, damaged).expect("a file");
    let done = world.mur(["run", "--resume", "--task", "gamma"]).run();
    ok(&done);
    assert_eq!(newest(&world).result().as_deref(), Some("alpha|gamma|3 messages|1 answers"));
    assert!(done.stderr.contains("2 messages; 2 lines of the record could not be used"), "{}", done.stderr);
    // The torn line was ended before the next was written.
    ok(&world.mur(["run", "--resume", "--task", "delta"]).run());
    assert_eq!(newest(&world).result().as_deref(), Some("alpha|delta|5 messages|2 answers"));
}

#[test]
fn a_session_killed_at_any_moment_can_be_resumed_and_providers_accept_its_conversation() {
    for api in APIS {
        // As strict as the real ones: a conversation that is not whole fails the task.
        let provider = Provider::answer(move |number, seen| {
            if let Some(fault) = (api.fault)(seen) {
                return Answer::json(400, &json!({"error": {"type": "invalid_request_error", "message": fault}}));
            }
            match number % 3 {
                2 => (api.text)(&["So far."]),
                _ => (api.call)(&format!("call_{number}"), "read-file", &["{\"path\": \"notes.txt\"}"]),
            }
        });
        let world = asking(api, &provider);
        let mut resumed: Option<String> = None;
        let mut killed = 0;
        for round in 0_u64..12 {
            let address = resumed.iter().flat_map(|session| ["--resume", session.as_str()]).collect::<Vec<_>>();
            let running = task(&world, &["--json", "--task", "Go on."]).args(&address).start();
            let _ = running.json_line(0);
            // Some in the first request, some between tools, some after the end.
            std::thread::sleep(std::time::Duration::from_millis(round * 7 % 60));
            running.signal(SIGKILL);
            killed += u32::from(running.wait().signal() == Some(9));
            // One that was killed before its task joined the conversation has nothing to go on with.
            let trace = newest(&world);
            let context =
                trace.first("task_start").map(|task| task["context_id"].as_str().unwrap_or_default().to_owned());
            let kept =
                context.map(|context| world.murmur().join(format!("conversations/asks/{context}/conversation.jsonl")));
            if kept.is_some_and(|kept| kept.exists() && roles(&kept).first().is_some_and(|role| role == "user")) {
                resumed = Some(trace.session().to_owned());
            }
        }
        assert!(killed > 3, "{killed} were killed");
        let session = resumed.expect("one ran a task");
        let done = task(&world, &["--resume", &session, "--task", "And now the end."]).run();
        assert_eq!(done.code(), Some(0), "{}\n{:?}", done.stderr, newest(&world).result());
        let refused: Vec<String> = provider.seen().iter().filter_map(api.fault).collect();
        assert!(refused.is_empty(), "{refused:?}");
        let last = provider.seen().pop().expect("a request");
        assert!((api.calls)(&last).0.len() > 1, "the conversation goes back to the first session");
    }
}
