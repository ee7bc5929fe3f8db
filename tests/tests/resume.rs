//! `mur run --resume`: what the resumed model is really sent, by which names a session is found, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use mur_tests::{Agent, Answer, Done, Door, Invocation, Provider, Seen, Trace, World, anthropic, openai, wait_until};
use nix::sys::signal::Signal::{SIGKILL, SIGTERM};
use serde_json::{Value, json};

/// A capsule that says what it was sent: the first task, how many messages, how often it has answered before.
fn witness() -> Agent {
    let say = json!([[{"say": "{{task}}|{{text}}|{{messages}} messages|{{turns}} answers"}]]);
    Agent::scripted("witness", json!({"rules": [{"turns": say, "repeat": true}]}))
}

fn project(agent: &Agent) -> World {
    let world = World::new();
    world.write("murmur.yaml", agent.manifest());
    world
}

/// The sessions of the project, oldest first.
fn sessions(world: &World) -> Vec<String> {
    world.traces().iter().map(|trace| trace.session().to_owned()).collect()
}

fn newest(world: &World) -> Trace {
    world.traces().pop().expect("a session")
}

/// The conversation record of a capsule: there has to be exactly one.
fn record(world: &World, capsule: &str) -> PathBuf {
    let contexts: Vec<_> =
        fs::read_dir(world.murmur().join("conversations").join(capsule)).expect("a record").flatten().collect();
    assert_eq!(contexts.len(), 1, "{contexts:?}");
    contexts[0].path().join("conversation.jsonl")
}

fn roles(record: &Path) -> Vec<String> {
    let lines = fs::read_to_string(record).expect("a record");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter_map(|line| line["role"].as_str().map(str::to_owned)).collect()
}

/// One of the two provider APIs.
#[derive(Clone, Copy)]
struct Api {
    agent: fn(&str, &str, &str) -> Agent,
    text: fn(&[&str]) -> Answer,
    call: fn(&str, &str, &[&str]) -> Answer,
    /// Ids of the calls and of the results in a request's messages, in order.
    calls: fn(&Seen) -> (Vec<String>, Vec<String>),
}

const APIS: [Api; 2] = [
    Api { agent: Agent::anthropic, text: anthropic::stream_text, call: anthropic::stream_call, calls: anthropic_calls },
    Api { agent: Agent::openai, text: openai::stream_text, call: openai::stream_call, calls: openai_calls },
];

fn texts(values: impl Iterator<Item = Value>) -> Vec<String> {
    values.filter_map(|value| value.as_str().map(str::to_owned)).collect()
}

fn anthropic_calls(seen: &Seen) -> (Vec<String>, Vec<String>) {
    let messages = seen.body["messages"].as_array().cloned().unwrap_or_default();
    let blocks: Vec<Value> =
        messages.iter().flat_map(|message| message["content"].as_array().cloned().unwrap_or_default()).collect();
    let of = |kind: &str, key: &str| {
        texts(blocks.iter().filter(|block| block["type"] == kind).map(|block| block[key].clone()))
    };
    (of("tool_use", "id"), of("tool_result", "tool_use_id"))
}

fn openai_calls(seen: &Seen) -> (Vec<String>, Vec<String>) {
    let messages = seen.body["messages"].as_array().cloned().unwrap_or_default();
    let calls = messages.iter().flat_map(|message| message["tool_calls"].as_array().cloned().unwrap_or_default());
    let results = messages.iter().filter(|message| message["role"] == "tool");
    (texts(calls.map(|call| call["id"].clone())), texts(results.map(|message| message["tool_call_id"].clone())))
}

/// The messages of a request without what a driver adds for the provider's cache.
fn messages(seen: &Seen) -> Vec<Value> {
    fn plain(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                map.iter().filter(|(key, _)| *key != "cache_control").map(|(k, v)| (k.clone(), plain(v))).collect()
            }
            Value::Array(items) => items.iter().map(plain).collect(),
            other => other.clone(),
        }
    }
    let messages = seen.body["messages"].as_array().cloned().unwrap_or_default();
    messages.iter().filter(|message| message["role"] != "system").map(plain).collect()
}

fn position(text: &str, part: &str) -> usize {
    text.find(part).unwrap_or_else(|| panic!("no '{part}' in {text}"))
}

/// A world whose capsule asks a provider, with the tools of these tests.
fn asking(api: Api, provider: &Provider) -> World {
    let agent = (api.agent)("asks", &provider.url(), "sk-test").tool("read-file").tool("fetch").network(&["127.0.0.1"]);
    let world = project(&agent);
    world.write("work/notes.txt", "one two three\n");
    world
}

fn task(world: &World, more: &[&str]) -> Invocation {
    world.mur(["run", "--workdir"]).arg(world.project().join("work")).args(more)
}

#[track_caller]
fn ok(done: &Done) {
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
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
fn a_session_to_resume_is_named_by_rank_id_suffix_or_path_and_a_bare_resume_is_the_newest() {
    let world = project(&witness());
    for text in ["first", "second"] {
        ok(&world.mur(["run", "--task", text]).run());
    }
    let ids = sessions(&world);
    let (first, second) = (&ids[0], &ids[1]);
    let dir = world.traces()[0].directory().to_path_buf();
    let rows: Vec<(Vec<String>, &str)> = vec![
        (vec!["--resume".into()], second),
        (vec!["--resume".into(), "@1".into()], second),
        (vec!["--resume".into(), "@2".into()], first),
        (vec!["--resume".into(), first.clone()], first),
        (vec!["--resume".into(), first[20..].to_uppercase()], first),
        (vec![format!("--resume={}", second)], second),
        (vec!["--resume".into(), dir.display().to_string()], first),
        (vec!["--resume".into(), format!("{}/", dir.display())], first),
        (vec!["--resume".into(), dir.join("trace.jsonl").display().to_string()], first),
    ];
    for (args, expected) in rows {
        ok(&world.mur(["run", "--task", "again"]).args(&args).run());
        let resumed = newest(&world);
        let start = resumed.one("session_start");
        assert_eq!(start["resumed_from"], *expected, "{args:?}");
        // The next row counts from the same two.
        ok(&world.mur(["trace", "rm", resumed.session()]).run());
    }
    // From elsewhere the records of the workdir root that is named are meant.
    let elsewhere = world.home().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder");
    let manifest = world.project().join("murmur.yaml");
    ok(&world.mur(["run", "--task", "x", "--resume", "@2", "--manifest"]).arg(&manifest).cwd(&elsewhere).run());
    assert_eq!(newest(&world).one("session_start")["resumed_from"], *first);
}

#[test]
fn the_session_resumed_is_never_the_launch_itself() {
    let world = project(&witness());
    let before = world.files();
    let done = world.mur(["run", "--resume", "--task", "x"]).run();
    done.refused("E-TRC-002");
    assert!(done.stderr.contains("error[E-TRC-002]: --resume: '@1': no session is recorded under "), "{}", done.stderr);
    assert_eq!(world.files(), before, "the refused launch left something");
}

#[test]
fn a_session_is_resolved_before_the_project_is_read_and_after_the_formation_is() {
    let world = World::new();
    // Neither the manifest nor the project's file is there to be read.
    world.mur(["run", "--resume", "--task", "x"]).run().refused("E-TRC-002");
    world.write("murmur.yaml", "no manifest: [");
    world.write(".env", "no line\n");
    world.mur(["run", "--resume", "--task", "x"]).run().refused("E-TRC-002");
    world.mur(["run", "--resume"]).env("MURMUR_FORMATION_ID", "frm_X").run().refused("E-RUN-044");
    world.mur(["run", "--resume"]).env("MURMUR_FORMATION_PEERS", "").run().refused("E-RUN-046");
    let id = "frm_0199c4e2f1b7712a9d3e4f5061728394";
    let done = world.mur(["run", "--resume"]).env("MURMUR_FORMATION_ID", id).run();
    done.refused("E-TRC-002");
    assert!(done.stderr.starts_with("warning[W-RUN-007]"), "{}", done.stderr);
}

/// Everything under the world and what it holds.
fn contents(world: &World) -> Vec<(PathBuf, Vec<u8>)> {
    world.files().into_iter().map(|path| (path.clone(), fs::read(&path).unwrap_or_default())).collect()
}

#[test]
fn an_address_that_names_no_session_or_several_is_refused_with_the_flags_name() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let own = sessions(&world).remove(0);
    // A second session whose id ends alike.
    let records = world.traces()[0].directory().to_path_buf();
    let twin = records.with_file_name(format!("ses_0000{}", &own[8..]));
    fs::create_dir(&twin).expect("a folder");
    fs::copy(records.join("trace.jsonl"), twin.join("trace.jsonl")).expect("a copy");
    let before = contents(&world);
    for address in ["@0", "@3", "@x", "abc", "zzzz", &own[20..], "ses_00000000000000000000000000000000"] {
        let done = world.mur(["run", "--task", "x", "--resume", address]).run();
        done.refused("E-TRC-002");
        assert!(done.stderr.contains("error[E-TRC-002]: --resume: "), "{address}: {}", done.stderr);
        assert!(done.stdout.ends_with("status:  failed\n"), "{}", done.stdout);
    }
    let several = world.mur(["run", "--task", "x", "--resume", &own[20..]]).run().stderr;
    assert!(several.contains(&own) && several.contains(&format!("ses_0000{}", &own[8..])), "{several}");
    let missing = world.mur(["run", "--json", "--task", "x", "--resume", "./none.jsonl"]).run();
    missing.refused("E-IO-001");
    assert_eq!(missing.stdout, "");
    assert_eq!(contents(&world), before, "a refused launch left something");
}

#[test]
fn resume_together_with_context_is_refused() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let before = contents(&world);
    world.mur(["run", "--resume", "--context", "c", "--task", "x"]).run().refused("E-RUN-015");
    assert_eq!(world.mur(["run", "--resume", "--forget-session", "--context", "c"]).run().code(), Some(2));
    assert_eq!(world.mur(["run", "--resume-mode", "full", "--task", "x"]).run().code(), Some(2));
    assert_eq!(world.mur(["run", "--resume", "--resume-mode", "half", "--task", "x"]).run().code(), Some(2));
    assert_eq!(contents(&world), before);
}

#[test]
fn a_session_that_ran_no_task_cannot_be_resumed() {
    let world = project(&witness());
    ok(&world.mur(["run"]).env("MURMUR_A2A_TIMEOUT_SECS", "1").run());
    let before = contents(&world);
    let done = world.mur(["run", "--resume", "--task", "x"]).run();
    done.refused("E-RUN-016");
    assert!(done.stderr.contains(&sessions(&world)[0]), "{}", done.stderr);
    assert_eq!(contents(&world), before);
}

#[test]
fn a_context_that_would_leave_the_conversations_is_none() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let trace = newest(&world).directory().join("trace.jsonl");
    let context = newest(&world).one("task_start")["context_id"].as_str().expect("an id").to_owned();
    let text = fs::read_to_string(&trace).expect("a trace").replace(&context, "../../config");
    fs::write(world.project().join("forged.jsonl"), text).expect("a file");
    world.mur(["run", "--resume", "./forged.jsonl", "--task", "x"]).run().refused("E-RUN-016");
}

#[test]
fn a_trace_that_breaks_off_is_resumed_and_a_damaged_one_refused() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let text = fs::read_to_string(newest(&world).directory().join("trace.jsonl")).expect("a trace");
    let cut_in_last_line = &text[..text.trim_end().len() - 10];
    world.write("cut.jsonl", cut_in_last_line);
    ok(&world.mur(["run", "--resume", "./cut.jsonl", "--task", "beta"]).run());
    assert_eq!(newest(&world).result().as_deref(), Some("alpha|beta|3 messages|1 answers"));

    let lines: Vec<&str> = text.lines().collect();
    let garbage = [&lines[..1], &["{\"event_ty"], &lines[1..]].concat().join("\n");
    let headless = lines[1..].join("\n");
    let nameless = text.replace("\"session_id\":\"ses_", "\"session_id\":\"");
    for (name, damaged) in
        [("garbage", garbage), ("empty", String::new()), ("headless", headless), ("nameless", nameless)]
    {
        let file = world.write(format!("{name}.jsonl"), damaged);
        let done = world.mur(["run", "--task", "x", "--resume"]).arg(&file).run();
        done.refused("E-TRC-001");
        assert!(done.stderr.contains(&format!("{name}.jsonl")), "{name}: {}", done.stderr);
    }
}

#[test]
fn a_context_without_a_record_cannot_be_resumed_and_the_hint_says_what_can() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let kept = record(&world, "witness");
    let refused = |what: &str, hint: &str| {
        let before = contents(&world);
        let done = world.mur(["run", "--resume", "--task", "x"]).run();
        done.refused("E-RUN-017");
        assert!(done.stderr.contains(what) && done.stderr.contains(hint), "{}", done.stderr);
        assert_eq!(contents(&world), before);
    };
    // Another capsule has another record.
    world.write("murmur.yaml", Agent::scripted("other", json!({"rules": []})).manifest());
    refused("holds no message", "the session was one of 'witness'");
    world.write("murmur.yaml", witness().with(&["context", "record_store"], "elsewhere").manifest());
    refused("elsewhere", "context.record_store");
    world.write("murmur.yaml", witness().with(&["context", "record"], "off").manifest());
    refused("context.record is off", "context.record: on");
    world.write("murmur.yaml", witness().manifest());
    let text = fs::read_to_string(&kept).expect("a record");
    for damaged in [text.lines().next().expect("a header").to_owned(), String::new(), "nonsense\n\u{0}".to_owned()] {
        fs::write(&kept, damaged).expect("a file");
        refused("holds no message", "~/.murmur/conversations");
    }
    fs::remove_dir_all(kept.parent().expect("a folder")).expect("it is ours");
    refused("holds no message", "~/.murmur/conversations");
}

#[test]
fn a_record_that_is_no_file_of_its_own_or_too_long_is_not_read() {
    type Spoil = fn(&Path);
    let rows: [(&str, Spoil); 3] = [
        ("a link", |kept| {
            let elsewhere = kept.with_file_name("moved.jsonl");
            fs::rename(kept, &elsewhere).expect("a move");
            std::os::unix::fs::symlink(&elsewhere, kept).expect("a link");
        }),
        ("a folder", |kept| {
            fs::remove_file(kept).expect("it is ours");
            fs::create_dir(kept).expect("a folder");
        }),
        ("65 MiB", |kept| {
            fs::OpenOptions::new().write(true).open(kept).expect("a file").set_len(65 << 20).expect("a long file");
        }),
    ];
    for (what, spoil) in rows {
        let world = project(&witness());
        ok(&world.mur(["run", "--task", "alpha"]).run());
        let kept = record(&world, "witness");
        spoil(&kept);
        let before = world.files();
        let done = world.mur(["run", "--resume", "--task", "x"]).run();
        done.refused("E-IO-003");
        assert!(done.stderr.contains(&kept.display().to_string()), "{what}: {}", done.stderr);
        assert_eq!(world.files(), before, "{what}");
    }
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
fn a_compacted_resumption_needs_a_hook_that_compacts() {
    let world = project(&witness());
    ok(&world.mur(["run", "--task", "alpha"]).run());
    let before = contents(&world);
    let done = world.mur(["run", "--resume", "--resume-mode", "compact", "--task", "x"]).run();
    done.refused("E-RUN-018");
    assert!(done.stderr.contains("on-compaction") && done.stderr.contains("--resume-mode full"), "{}", done.stderr);
    assert_eq!(contents(&world), before);
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
        assert!(done.stderr.contains("1 tool calls had no recorded result"), "{}", done.stderr);
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
