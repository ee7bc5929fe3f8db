//! `mur run --resume`: what the resumed model is really sent, and which of the session's tasks go on with it.

use std::path::PathBuf;

use mur_tests::conversation::{APIS, asking, messages, newest, ok, position, project, record, roles, witness};
use mur_tests::{Agent, Door, Invocation, Provider, Trace, World, wait_until};
use nix::sys::signal::Signal::SIGTERM;
use serde_json::{Value, json};

/// The sessions of the project, oldest first.
fn sessions(world: &World) -> Vec<String> {
    world.traces().iter().map(|trace| trace.session().to_owned()).collect()
}

fn task(world: &World, more: &[&str]) -> Invocation {
    world.mur(["run", "--workdir"]).arg(world.project().join("work")).args(more)
}

#[test]
fn a_resumed_session_sends_a_provider_the_recorded_conversation_verbatim_and_the_new_task_after_it() {
    for api in APIS {
        let provider = Provider::play([
            (api.call)("call_1", "read-file", &["{\"path\": \"notes.txt\"}"]),
            (api.text)(&["It says one ", "two three."]),
            (api.text)(&["It said three words."]),
        ]);
        let world = asking(api, &provider);
        ok(&task(&world, &["--task", "What is in notes.txt?"]).run());
        let first = newest(&world);
        let done = task(&world, &["--resume", "--task", "How many words?"]).run();
        ok(&done);
        let second = newest(&world);
        assert_ne!(first.session(), second.session());
        assert_eq!(second.result().as_deref(), Some("It said three words."));

        let seen = provider.seen();
        let (before, resumed) = (messages(&seen[1]), messages(&seen[2]));
        assert_eq!(resumed[..before.len()], before, "what was sent then is sent again");
        let rest = json!(resumed[before.len()..]).to_string();
        assert!(position(&rest, "It says one two three.") < position(&rest, "How many words?"), "{rest}");
        assert_eq!((api.calls)(&seen[2]), (vec!["call_1".to_owned()], vec!["call_1".to_owned()]));

        let start = second.one("session_start");
        assert_eq!(start["resumed_from"], first.session());
        assert_eq!(start["context_id"], first.one("task_start")["context_id"]);
        assert_eq!(second.one("task_start")["context_id"], first.one("task_start")["context_id"]);
        // Messages keep their ids; only the new task's is new.
        let ids = |trace: &Trace| trace.all("inference").last().expect("one")["message_ids"].clone();
        let (old, new) = (ids(&first), ids(&second));
        let (old, new) = (old.as_array().expect("ids"), new.as_array().expect("ids"));
        assert_eq!(new[..old.len()], old[..]);
        assert!(done.stderr.contains(&format!("[capsule-runtime] resuming {}: context ", first.session())));
    }
}

#[test]
fn a_resumed_session_sends_the_scripted_driver_the_recorded_conversation() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    ok(&world.mur(["run", "--resume", "--task", "beta"]).run());
    assert_eq!(newest(&world).result().as_deref(), Some("alpha|beta|3 messages|1 answers"));
}

#[test]
fn a_session_that_was_resumed_can_be_resumed_and_nothing_is_recorded_twice() {
    let world = project(&witness());
    for text in ["alpha", "beta", "gamma", "delta"] {
        let resume: &[&str] = if text == "alpha" { &[] } else { &["--resume"] };
        ok(&world.mur(["run", "--task", text]).args(resume).run());
    }
    assert_eq!(newest(&world).result().as_deref(), Some("alpha|delta|7 messages|3 answers"));
    let expected: Vec<&str> = ["user", "assistant"].repeat(4);
    assert_eq!(roles(&record(&world, "witness")), expected, "loaded messages are not written again");
    let traces = world.traces();
    for pair in traces.windows(2) {
        assert_eq!(pair[1].one("session_start")["resumed_from"], pair[0].session());
    }
    assert!(traces[0].one("session_start")["resumed_from"].is_null());
}

#[test]
fn full_is_the_default_mode_of_resuming() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    ok(&world.mur(["run", "--resume", "--resume-mode", "full", "--task", "beta"]).run());
    assert_eq!(newest(&world).result().as_deref(), Some("alpha|beta|3 messages|1 answers"));
}

#[test]
fn every_task_of_a_resumed_session_has_its_history_even_when_conversations_are_stateless() {
    let credentials = json!({"helper": {"scopes": ["SendMessage", "GetTask"]}});
    let agent = witness().authenticated().with(&["network", "authentication", "credentials"], credentials);
    let world = project(&agent);
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let context = newest(&world).one("task_start")["context_id"].as_str().expect("an id").to_owned();
    let earlier = world.mur(["run", "--json", "--readiness-tokens", "--task", "beta"]).args(["--resume"]).run().json();
    let old_token = earlier["tokens"]["operator"].as_str().expect("a token").to_owned();

    let flags = ["--lifecycle-task-acceptance", "queue", "--lifecycle-after-task", "sleep"];
    let running = world.mur(["run", "--json", "--readiness-tokens", "--resume"]).args(flags).start();
    let line = running.json_line(0);
    let door = Door::ready(&line);
    let answer = |door: &Door, message: Value| {
        let task = door.call("SendMessage", json!({"message": message})).result()["task"].clone();
        let text = task["artifacts"][0]["parts"][0]["text"].as_str().unwrap_or_default().to_owned();
        (text, task["contextId"].as_str().unwrap_or_default().to_owned())
    };
    let message = |id: &str, text: &str| json!({"messageId": id, "role": "ROLE_USER", "parts": [{"text": text}]});
    // The operator's tasks go on with the resumed conversation, whether they name it or not.
    let (text, of) = answer(&door, message("m1", "gamma"));
    assert_eq!(
        (text.starts_with("alpha|"), text.contains("|5 messages|2 answers"), &of),
        (true, true, &context),
        "{text}"
    );
    let mut named = message("m2", "delta");
    named["contextId"] = context.clone().into();
    let (text, of) = answer(&door, named);
    assert_eq!((text.contains("|7 messages|3 answers"), &of), (true, &context), "{text}");
    // Anybody else begins anew, and cannot reach it by naming it.
    let helper = door.token(line["tokens"]["helper"].as_str().expect("a token"));
    let (text, of) = answer(&helper, message("m3", "epsilon"));
    assert_eq!((text.contains("|1 messages|0 answers"), of != context), (true, true), "{text}");
    let mut named = message("m4", "zeta");
    named["contextId"] = context.clone().into();
    let (text, _) = answer(&helper, named);
    assert!(text.contains("|1 messages|0 answers"), "{text}");

    // Tasks and tokens of the earlier sessions are not restored.
    let listed = door.call("ListTasks", json!({})).result();
    assert_eq!(listed["totalSize"], 4, "{listed}");
    assert_eq!(door.token(&old_token).call("ListTasks", json!({})).status, 401);
    assert_eq!(newest(&world).one("session_start")["context_id"], *context);
    running.signal(SIGTERM);
    ok(&running.wait());
}

#[test]
fn at_a_public_door_nobody_is_known_to_be_the_operator_so_each_task_begins_anew() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let context = newest(&world).one("task_start")["context_id"].as_str().expect("an id").to_owned();
    let running = world.mur(["run", "--json", "--resume"]).start();
    let task = Door::ready(&running.json_line(0)).ask("beta");
    assert_ne!(task["contextId"], *context);
    ok(&running.wait());
    assert_eq!(newest(&world).result().as_deref(), Some("beta|beta|1 messages|0 answers"));
}

#[test]
fn the_conversation_of_the_last_task_is_the_one_that_is_resumed() {
    let agent = witness().authenticated();
    let world = project(&agent);
    let flags = ["--lifecycle-task-acceptance", "queue", "--lifecycle-after-task", "sleep"];
    let running = world.mur(["run", "--json", "--readiness-tokens", "--task", "alpha"]).args(flags).start();
    let door = Door::ready(&running.json_line(0));
    let last = door.ask("beta")["contextId"].clone();
    running.signal(SIGTERM);
    ok(&running.wait());
    ok(&world.mur(["run", "--resume", "--task", "gamma"]).run());
    assert_eq!(newest(&world).one("session_start")["context_id"], last);
    assert_eq!(newest(&world).result().as_deref(), Some("beta|gamma|3 messages|1 answers"));
    // What the listing shows of a session is what resuming it goes on with.
    let listed = world.mur(["trace", "list", "--json"]).ok().json();
    assert!(listed["sessions"].as_array().expect("rows").iter().all(|row| row["context_id"] == last), "{listed}");
}

#[test]
fn what_a_session_spent_does_not_count_in_the_session_that_resumes_it() {
    // Enough for one task, never for two.
    let say = json!([[{"usage": {"input_tokens": 400, "output_tokens": 400}}, {"say": "ok"}]]);
    let agent = Agent::scripted("thrifty", json!({"rules": [{"turns": say, "repeat": true}]}))
        .with(&["inference", "max_tokens"], 16)
        .with(&["inference", "max_session_tokens"], 1000);
    let world = project(&agent);
    ok(&world.mur(["run", "--task", "alpha"]).run());
    ok(&world.mur(["run", "--resume", "--task", "beta"]).run());
    assert_eq!(newest(&world).one("session_end")["exit_status"], "ok");
}

#[test]
fn a_session_that_still_runs_can_be_resumed_and_that_is_told() {
    let script = json!({"rules": [
        {"when": {"contains": "wait"}, "turns": [[{"wait_ms": 600_000}]]},
        {"turns": [[{"say": "{{task}}|{{messages}} messages"}]]},
    ]});
    let world = project(&Agent::scripted("busy", script));
    let running = world.mur(["run", "--json", "--task", "wait"]).start();
    let records = PathBuf::from(running.json_line(0)["records_dir"].as_str().expect("a path"));
    wait_until("the task has joined the conversation", || {
        world.murmur().join("conversations/busy").exists()
            && Trace::read(&records.join("trace.jsonl")).first("task_start").is_some()
            && roles(&record(&world, "busy")) == ["user"]
    });
    let done = world.mur(["run", "--resume", "--task", "beta"]).run();
    ok(&done);
    assert_eq!(newest(&world).result().as_deref(), Some("wait|2 messages"));
    assert!(done.stderr.contains("that session still runs"), "{}", done.stderr);
    running.signal(SIGTERM);
    running.wait();
}

#[test]
fn the_trace_of_a_resumed_session_says_so_to_a_reader() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    ok(&world.mur(["run", "--resume", "--task", "beta"]).run());
    let ids = sessions(&world);
    let shown = world.mur(["trace", "show"]).ok().stdout;
    assert!(shown.contains(&format!("resumed:     from {}, context ctx_", ids[0])), "{shown}");
    let shown = world.mur(["trace", "show", "@2"]).ok().stdout;
    assert!(!shown.contains("resumed:"), "{shown}");
}

#[test]
fn the_operators_tasks_belong_to_the_context_of_the_launch() {
    let world = project(&witness().authenticated());
    let flags = ["--lifecycle-task-acceptance", "queue", "--lifecycle-after-task", "sleep", "--context", "plan"];
    let running = world.mur(["run", "--json", "--readiness-tokens"]).args(flags).start();
    let door = Door::ready(&running.json_line(0));
    for text in ["alpha", "beta"] {
        let task = door.ask(text);
        assert_eq!(task["contextId"], "plan");
        // Named alike, and still each by itself: only a resumed session or threaded conversations load what was said.
        let told = task["artifacts"][0]["parts"][0]["text"].as_str().unwrap_or_default().to_owned();
        assert!(told.ends_with("|1 messages|0 answers"), "{told}");
    }
    running.signal(SIGTERM);
    ok(&running.wait());
}
