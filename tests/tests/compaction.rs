//! Conversations that become too long: when hooks are asked, what becomes of their answers, and what is sent and kept after.

use std::fs;

use mur_tests::conversation::{APIS, newest, ok, record};
use mur_tests::hooked::{Ran, entry, run, writes};
use mur_tests::{Agent, Provider, World, bundled_version};
use serde_json::{Value, json};

/// A response that calls a tool; the driver says the conversation takes so many tokens.
fn calls(tokens: u64) -> Value {
    json!([{"usage": {"input_tokens": tokens, "output_tokens": 0}}, {"call": "text-stats", "input": {"text": "a b"}}])
}

/// An agent whose window is looked at from 750 tokens on. It says what it was left with once its conversation is another.
fn agent(script: Value) -> Agent {
    Agent::scripted("agent", script)
        .tool("text-stats")
        .with(&["context", "max_tokens"], 2000)
        .with(&["inference", "max_tokens"], 500)
        .with(&["inference", "compaction", "threshold"], 0.5)
}

/// The script of most tests: two calls, of which the second fills the window.
fn script() -> Value {
    let left = json!([[{"say": "{{task}}|{{text}}|{{messages}} messages"}]]);
    json!({"rules": [
        {"when": {"contains": "[compaction] Summarise"}, "turns": [[{"say": "SUMMARY"}]]},
        {"when": {"any": [{"contains": "[compaction] The"}, {"equals": "short"}]}, "turns": left, "repeat": true},
        {"turns": [calls(100), calls(900), [{"say": "as it was: {{messages}} messages"}]]},
    ]})
}

/// The bundled hook, which keeps the newest exchange alone.
fn compact() -> Value {
    json!({
        "name": "murmur/compact", "version": bundled_version("compact"), "runtime": "hook", "config": {"keep": 0},
    })
}

/// The debug hook as one that may replace a conversation, with an answer.
fn replacing(world: &World, name: &str, answer: Value) -> Value {
    let contract = json!({"binding": "on-compaction", "commit_policy": "replace-context"});
    entry(world.install_hook(name, &contract), json!({}), json!({"answers": {"on-compaction": answer}}))
}

fn notes(ran: &Ran, capsule: &str, world: &World) -> Vec<Value> {
    assert_eq!(ran.done.code(), Some(0), "{}", ran.done.stderr);
    let text = fs::read_to_string(record(world, capsule)).expect("a record");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn the_bundled_hook_summarises_the_older_part_and_the_task_goes_on_with_the_rest() {
    let world = World::new();
    let dumping = agent(script()).artifact(compact()).with(&["inference", "compaction", "dump_summaries"], true);
    let ran = run(&world, &dumping);
    let answer = ran.trace.result().unwrap_or_else(|| panic!("{}", ran.done.stderr));
    let (task, rest) = answer.split_once('|').unwrap();
    assert_eq!(task, "work", "the task's own message is the first");
    assert!(rest.starts_with("[compaction] The conversation up to here"), "{answer}");
    assert!(
        rest.ends_with("SUMMARY\n</untrusted-content>|4 messages"),
        "the task, the summary, the newest call and its result: {answer}"
    );

    let compaction = ran.trace.one("compaction");
    assert_eq!((&compaction["turn"], &compaction["tokens_before_source"]), (&json!(1), &json!("actual")));
    assert_eq!(compaction["task_id"], ran.trace.one("task_end")["task_id"]);
    let (before, after) = (&compaction["tokens_before"], &compaction["tokens_after"]);
    // What joined after the response is in it.
    assert!(before.as_u64().unwrap() > 900 && after.as_u64().unwrap() > 0, "{compaction:?}");
    let inferences = ran.trace.all("inference");
    let origins: Vec<&Value> = inferences.iter().map(|one| &one["origin"]).collect();
    assert_eq!(origins, [&Value::Null, &Value::Null, &json!("hook:compact"), &Value::Null]);
    assert_eq!(compaction["parent_id"], inferences[1]["event_id"], "it hangs off the turn that filled the window");
    let sent = |at: usize| inferences[at]["message_ids"].as_array().unwrap().clone();
    assert_eq!(sent(3).len(), 4);
    assert_eq!((&sent(3)[0], &sent(3)[2..]), (&sent(1)[0], &notes_ids(&ran, &world)[4..6]));
    assert!(ran.trace.all("hook_dispatch_error").is_empty() && ran.trace.all("compaction_declined").is_empty());

    let dumped = fs::read_to_string(ran.trace.directory().join("out/compaction-summaries.jsonl")).unwrap();
    let line: Value = serde_json::from_str(dumped.trim()).unwrap();
    assert_eq!((&line["turn"], &line["tokens_before"], &line["tokens_after"]), (&json!(1), before, after));
    assert!(line["summary"].as_str().unwrap().contains("\nSUMMARY\n"), "{line}");
    let shown = world.mur(["trace", "show"]).arg(ran.trace.directory().join("trace.jsonl")).ok().stdout;
    assert!(shown.contains(&format!("turn 1  {before} → {after}")), "{shown}");

    // The originals stay on record, the summary beside them.
    let notes = notes(&ran, "agent", &world);
    let roles: Vec<&str> = notes.iter().filter_map(|line| line["role"].as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant", "tool", "user", "assistant"]);
    assert_eq!(notes[6]["inserted_by"], "replace-context");
    assert_eq!(notes[7]["type"], "murmur.compaction");
}

fn notes_ids(ran: &Ran, world: &World) -> Vec<Value> {
    notes(ran, "agent", world).iter().map(|line| line["id"].clone()).collect()
}

#[test]
fn both_apis_take_the_conversation_that_is_left() {
    for api in APIS {
        // A response takes 23 tokens by the provider's word, and the budget is 40.
        let provider = Provider::answer(move |_, seen| {
            let body = seen.body.to_string();
            if body.contains("[compaction] Summarise") {
                (api.text)(&["SUMMARY"])
            } else if body.contains("SUMMARY") {
                (api.text)(&["done"])
            } else if body.contains("call_1") {
                (api.call)("call_2", "read-file", &["{\"path\": \"notes.txt\"}"])
            } else {
                (api.call)("call_1", "read-file", &["{\"path\": \"notes.txt\"}"])
            }
        });
        let world = World::new();
        world.write("work/notes.txt", "one two three\n");
        let agent = (api.agent)("asks", &provider.url(), "sk-test")
            .tool("read-file")
            .artifact(compact())
            .with(&["context", "max_tokens"], 100)
            .with(&["inference", "max_tokens"], 60)
            .with(&["inference", "compaction", "threshold"], 0.5);
        world.write("murmur.yaml", agent.manifest());
        let done = world.mur(["run", "--task", "What is in notes.txt?", "--workdir"]).arg(world.project().join("work"));
        ok(&done.run());
        let trace = newest(&world);
        assert_eq!(trace.result().as_deref(), Some("done"));
        // With one exchange there was nothing to summarise yet.
        assert_eq!(trace.one("compaction_declined")["reason"], "no_hook_replacement");
        assert_eq!(trace.one("compaction")["turn"], 1);

        let seen = provider.seen();
        assert_eq!(seen.len(), 4);
        for request in &seen {
            assert_eq!((api.fault)(request), None, "{}", request.body);
        }
        let transcript = seen[2].body.to_string();
        assert!(transcript.contains("call_1") && !transcript.contains("call_2"), "{transcript}");
        assert!((api.calls)(&seen[2]).0.is_empty() && seen[2].body["tools"].as_array().is_none_or(Vec::is_empty));
        let last = seen[3].body.to_string();
        assert!(last.contains("What is in notes.txt?") && last.contains("SUMMARY"), "{last}");
        assert_eq!((api.calls)(&seen[3]), (vec!["call_2".to_owned()], vec!["call_2".to_owned()]));
    }
}

#[test]
fn a_compaction_asks_with_the_model_prompt_cap_and_settings_of_its_own() {
    let world = World::new();
    world.write("brief.md", "Be brief.");
    let own = json!({"rules": [{"turns": [[{"say": "{{model}}|{{system}}|{{max_tokens}}"}]]}]});
    let agent = agent(script())
        .artifact(compact())
        .with(&["inference", "compaction", "model"], "small")
        .with(&["inference", "compaction", "system_prompt_file"], "brief.md")
        .with(&["inference", "compaction", "max_tokens"], 77)
        .with(&["inference", "compaction", "driver_config"], own.clone());
    let ran = run(&world, &agent);
    let answer = ran.trace.result().unwrap_or_else(|| panic!("{}", ran.done.stderr));
    assert!(answer.contains("small|Be brief.|77"), "{answer}");
    let inferences = ran.trace.all("inference");
    let of_hook = inferences.iter().find(|one| one["origin"] == "hook:compact").unwrap();
    assert_eq!((&of_hook["model"], &of_hook["max_output_tokens"]), (&json!("small"), &json!(77)));
    assert_eq!(of_hook["driver_config"], own, "its keys stand over the driver's own");
    assert_eq!(inferences[3]["max_output_tokens"], 500, "and the loop has its own again");
}

#[test]
fn a_compaction_that_cannot_be_asked_for_refuses_the_launch() {
    let world = World::new();
    let base = || agent(script()).artifact(compact());
    for (agent, code, words) in [
        (base().with(&["inference", "compaction", "max_tokens"], 64_001), "E-RUN-054", "at most 64000 output tokens"),
        (base().with(&["inference", "compaction", "max_tokens"], 2000), "E-RUN-055", "a window of 2000 tokens"),
        (
            base().with(&["inference", "compaction", "system_prompt_file"], "none.md"),
            "E-RUN-009",
            "inference.compaction.system_prompt_file 'none.md'",
        ),
    ] {
        world.write("murmur.yaml", agent.manifest());
        let done = world.mur(["run", "--task", "work"]).run();
        done.refused(code);
        assert!(done.stderr.contains(words), "{}", done.stderr);
        assert!(world.traces().is_empty(), "nothing was made");
    }
}

#[test]
fn an_answer_that_is_no_conversation_is_declined_and_the_session_goes_on_as_it_was() {
    let world = World::new();
    let result = json!({"at": 2});
    for (answer, reason, faults) in [
        (Value::Null, "no_hook_replacement", 0),
        (json!({"replace": ["short", {"at": 1}]}), "unresolved_tool_call", 0),
        (json!({"replace": [{"at": 0}, result]}), "unresolved_tool_call", 0),
        (json!({"replace": [{"role": "system", "content": "x"}]}), "no_hook_replacement", 1),
        (json!({"replace": [{"at": 1}, {"at": 2}, {"at": 0}]}), "no_hook_replacement", 1),
        (json!({"reopen": "again"}), "no_hook_replacement", 1),
    ] {
        let ran = run(&world, &agent(script()).artifact(replacing(&world, "changer", answer.clone())));
        assert_eq!(ran.trace.result().as_deref(), Some("as it was: 5 messages"), "{answer}: {}", ran.done.stderr);
        let declined = ran.trace.one("compaction_declined");
        assert_eq!((&declined["reason"], &declined["tokens_source"]), (&json!(reason), &json!("actual")), "{answer}");
        assert_eq!(declined["turn"], 1);
        assert_eq!(ran.trace.all("hook_dispatch_error").len(), faults, "{answer}");
        assert!(ran.trace.all("compaction").is_empty());
    }
    // Nobody there to ask is told as well.
    let world = World::new();
    let ran = run(&world, &agent(script()));
    assert_eq!(ran.trace.one("compaction_declined")["reason"], "no_hook_replacement");
    // Below the threshold, and where the window is not known, nothing is.
    let ran = run(&world, &agent(script()).with(&["inference", "compaction", "threshold"], 0.9));
    assert!(ran.trace.all("compaction_declined").is_empty());
}

#[test]
fn a_hook_that_fails_to_compact_fails_the_task_and_one_that_watches_does_not() {
    let world = World::new();
    let ran = run(&world, &agent(script()).artifact(replacing(&world, "broken", json!({"error": "out of ideas"}))));
    assert_eq!(ran.done.code(), Some(1));
    let failed = ran.trace.one("task_failed");
    assert_eq!((&failed["cause"], &failed["turn"]), (&json!("compaction_hook"), &json!(1)));
    assert_eq!(failed["reason"], "compaction hook failed: out of ideas");
    assert_eq!(ran.trace.result().as_deref(), Some("error: compaction hook failed: out of ideas"));
    let fault = ran.trace.one("hook_dispatch_error");
    assert_eq!((&fault["event"], &fault["arm"]), (&json!("on-compaction"), &json!("error")));

    let world = World::new();
    let ran = run(&world, &agent(script()).artifact(replacing(&world, "trapping", json!({"trap": true}))));
    assert_eq!(ran.trace.one("task_failed")["cause"], "compaction_hook");

    let world = World::new();
    let watching = json!({"answers": {"on-compaction": {"error": "not mine"}}});
    let watcher = entry(world.install_hook("watcher", &json!({})), json!({}), watching);
    let ran = run(&world, &agent(script()).artifact(watcher));
    assert_eq!(ran.trace.result().as_deref(), Some("as it was: 5 messages"), "{}", ran.done.stderr);
    assert_eq!(ran.trace.one("hook_dispatch_error")["hook_name"], "watcher");
}

#[test]
fn of_several_hooks_the_first_that_replaces_is_heard_and_watchers_are_told() {
    let world = World::new();
    let silent = replacing(&world, "silent", Value::Null);
    let first = replacing(&world, "first", json!({"replace": ["short"]}));
    let second = replacing(&world, "second", json!({"error": "asked after all"}));
    let watcher = entry(world.install_hook("watcher", &json!({"binding": "on-compaction"})), writes(), Value::Null);
    let agent = [silent, first, second, watcher].into_iter().fold(agent(script()), Agent::artifact);
    let ran = run(&world, &agent);
    assert_eq!(ran.trace.result().as_deref(), Some("work|short|2 messages"), "{}", ran.done.stderr);
    assert!(ran.trace.all("hook_dispatch_error").is_empty());
    let line = ran.line("on-compaction");
    assert_eq!(line["messages"].as_array().unwrap().len(), 5, "the whole history: {line}");
    assert_eq!(line["threshold"], 0.5);
    assert!(line["session_tokens"].as_u64().unwrap() > 900);
}

#[test]
fn a_replacement_uses_no_turn_and_the_driver_is_sent_all_of_it() {
    let world = World::new();
    let first = json!([
        {"metadata": {"continuation_id": "known"}}, {"usage": {"input_tokens": 900, "output_tokens": 0}},
        {"call": "text-stats", "input": {"text": "a"}},
    ]);
    let script = json!({"rules": [
        {"when": {"equals": "short"}, "turns": [[{"say": "{{messages}} messages"}]]},
        {"turns": [first]},
    ]});
    let hook = replacing(&world, "changer", json!({"replace": ["short"]}));
    let ran = run(&world, &agent(script).artifact(hook).with(&["inference", "max_turns"], 2));
    // A continuation would have sent the tool's result alone.
    assert_eq!(ran.trace.result().as_deref(), Some("2 messages"), "{}", ran.done.stderr);
    assert_eq!(ran.trace.one("task_end")["turns"], 2);
}

#[test]
fn a_summary_that_does_not_fit_under_the_ceiling_ends_the_task_as_any_call_does() {
    let world = World::new();
    let agent = agent(script()).artifact(compact()).with(&["inference", "max_session_tokens"], 1700);
    let ran = run(&world, &agent);
    assert_eq!(ran.done.code(), Some(1));
    let refused = ran.trace.one("spend_ceiling_reached");
    assert_eq!((&refused["origin"], &refused["limit"]), (&json!("hook:compact"), &json!("session")));
    assert_eq!(ran.trace.one("task_end")["exit_status"], "spend_ceiling_reached", "{}", ran.done.stderr);
    assert!(ran.trace.all("task_failed").is_empty());
}

#[test]
fn a_hooks_completions_count_toward_the_turns_of_the_task() {
    let world = World::new();
    let agent = agent(script()).artifact(compact()).with(&["inference", "max_turns"], 3);
    let ran = run(&world, &agent);
    // Two turns and the summary: the third request of the loop is not made.
    assert_eq!(ran.trace.one("task_end")["exit_status"], "max_turns_reached", "{}", ran.done.stderr);
    assert_eq!(ran.trace.all("inference").len(), 3);
}

#[test]
fn without_the_drivers_counts_the_conversation_is_counted() {
    let world = World::new();
    let words = "word ".repeat(800);
    let script = json!({"rules": [
        {"when": {"equals": "short"}, "turns": [[{"say": "{{messages}} messages"}]]},
        {"turns": [[{"call": "text-stats", "input": {"text": words}}], [{"say": "as it was"}]]},
    ]});
    let hook = replacing(&world, "changer", json!({"replace": ["short"]}));
    let ran = run(&world, &agent(script).artifact(hook));
    assert_eq!(ran.trace.result().as_deref(), Some("2 messages"), "{}", ran.done.stderr);
    assert_eq!(ran.trace.one("compaction")["tokens_before_source"], "estimate");
}

#[test]
fn a_resumed_conversation_goes_on_as_the_compaction_left_it() {
    let world = World::new();
    let mut script = script();
    let say = json!({"when": {"equals": "more"}, "turns": [[{"say": "{{task}}|{{messages}} messages"}]]});
    script["rules"].as_array_mut().unwrap().insert(0, say);
    let hook = replacing(&world, "changer", json!({"replace": ["short", {"at": 3}, {"at": 4}]}));
    let agent = agent(script).artifact(hook);
    let ran = run(&world, &agent);
    assert_eq!(ran.trace.result().as_deref(), Some("work|short|4 messages"), "{}", ran.done.stderr);
    let done = world.mur(["run", "--resume", "--task", "more"]).run();
    ok(&done);
    // The task, the summary, a call and its result, the answer, and the new task.
    assert!(done.stderr.contains("5 messages"), "{}", done.stderr);
    assert_eq!(newest(&world).result().as_deref(), Some("work|6 messages"));
}

#[test]
fn a_compacted_resumption_shortens_the_conversation_before_the_task() {
    let world = World::new();
    let script = json!({"rules": [
        {"when": {"contains": "[compaction] Summarise"}, "turns": [[{"say": "SUMMARY"}]]},
        {"when": {"equals": "more"}, "turns": [[{"say": "{{task}}|{{messages}} messages"}]]},
        {"turns": [[{"call": "text-stats", "input": {"text": "a"}}], [{"say": "one"}]]},
    ]});
    let plain = Agent::scripted("agent", script).tool("text-stats");
    world.write("murmur.yaml", plain.manifest());
    ok(&world.mur(["run", "--task", "work"]).run());
    let watcher = entry(world.install_hook("watcher", &json!({})), writes(), Value::Null);
    world.write("murmur.yaml", plain.artifact(compact()).artifact(watcher).manifest());
    let done = world.mur(["run", "--resume", "--resume-mode", "compact", "--task", "more"]).run();
    ok(&done);
    let trace = newest(&world);
    let answer = trace.result().unwrap();
    assert!(answer.starts_with("[compaction] The conversation up to here"), "{answer}");
    assert!(
        answer.ends_with("SUMMARY\n</untrusted-content>|3 messages"),
        "the summary, the last answer, the task: {answer}"
    );
    let compaction = trace.one("compaction");
    assert_eq!((&compaction["turn"], &compaction["tokens_before_source"]), (&json!(0), &json!("estimate")));
    assert!(trace.position("compaction") < trace.records().iter().rposition(|one| one.kind() == "inference").unwrap());
    let ran = Ran { done, trace };
    let events: Vec<String> = ran.events().into_iter().map(|(event, _)| event).collect();
    let place = |event: &str| events.iter().position(|one| one == event).unwrap();
    assert!(place("on-compaction") < place("on-task-start"), "{events:?}");

    // What was shortened once goes on shortened.
    ok(&world.mur(["run", "--resume", "--task", "more"]).run());
    assert!(newest(&world).result().unwrap().ends_with("SUMMARY\n</untrusted-content>|5 messages"));
}

#[test]
fn a_seed_far_over_its_budget_is_summarised_where_a_hook_does_that_and_else_cut() {
    let long = "word ".repeat(15);
    let seeds = |count: usize| {
        let texts: Vec<String> = (0..count).map(|at| format!("{at} {long}")).collect();
        json!({"answers": {"on-task-start": {"seed": texts}}})
    };
    let script = json!({"rules": [
        {"when": {"contains": "[compaction] Summarise"}, "turns": [[{"say": "SUMMARY"}]]},
        {"turns": [[{"say": "{{messages}} messages, the first: {{task | head 14}}"}]]},
    ]});
    let seeded = |world: &World, count: usize, margin: f64, hook: Option<Value>| {
        let contract = json!({"binding": "on-task-start", "commit_policy": "seed-context"});
        let seeder = entry(world.install_hook("memory", &contract), json!({}), seeds(count));
        let agent = Agent::scripted("agent", script.clone())
            .artifact(seeder)
            .with(&["inference", "max_tokens"], 1000)
            .with(&["context", "max_tokens"], 4000)
            .with(&["context", "seed_overflow_margin"], margin);
        run(world, &hook.into_iter().fold(agent, Agent::artifact))
    };
    let outcome = |ran: &Ran| ran.trace.one("context_seed")["outcome"].as_str().unwrap().to_owned();

    let world = World::new();
    let ran = seeded(&world, 14, 0.1, Some(compact()));
    assert_eq!(outcome(&ran), "compacted", "{}", ran.done.stderr);
    assert_eq!(ran.trace.result().as_deref(), Some("3 messages, the first: [compaction] T"), "summary, newest, task");
    let record = ran.trace.one("context_seed");
    assert_eq!(record["message_ids"].as_array().unwrap().len(), 2);
    assert!(record["tokens"].as_u64() < record["proposed_tokens"].as_u64(), "{record:?}");
    assert!(ran.trace.all("compaction").is_empty(), "it is no compaction of the conversation");

    let world = World::new();
    let ran = seeded(&world, 14, 0.1, None);
    assert_eq!(outcome(&ran), "trimmed");
    for (answer, margin, faults) in [
        // Within the margin nobody is asked.
        (json!({"error": "asked"}), 1.0, 0),
        (json!({"error": "asked"}), 0.1, 1),
        (json!({"replace": [{"at": 0}, {"at": 1}, long.repeat(30)]}), 0.1, 1),
        (json!({"replace": [{"role": "assistant", "content": "x"}]}), 0.1, 1),
    ] {
        let world = World::new();
        let hook = replacing(&world, "changer", answer.clone());
        let ran = seeded(&world, 14, margin, Some(hook));
        assert_eq!(outcome(&ran), "trimmed", "{answer}: {}", ran.done.stderr);
        assert_eq!(ran.trace.all("hook_dispatch_error").len(), faults, "{answer}");
        assert_eq!(ran.done.code(), Some(0), "it never fails a task");
    }
}

#[test]
fn what_was_shortened_once_is_shortened_again() {
    let world = World::new();
    let go_on = json!([calls(900)]);
    let script = json!({"rules": [
        {"when": {"matches": "(?s)\\[compaction\\] Summarise.*SUMMARY ONE"}, "turns": [[{"say": "SUMMARY TWO"}]]},
        {"when": {"contains": "[compaction] Summarise"}, "turns": [[{"say": "SUMMARY ONE"}]]},
        {"when": {"contains": "SUMMARY TWO"}, "turns": [[{"say": "{{task}}|{{messages}} messages"}]], "repeat": true},
        {"turns": go_on, "repeat": true},
    ]});
    let ran = run(&world, &agent(script).artifact(compact()));
    assert_eq!(ran.trace.result().as_deref(), Some("work|4 messages"), "{}", ran.done.stderr);
    let turns: Vec<&Value> = ran.trace.all("compaction").iter().map(|one| &one["turn"]).collect();
    assert_eq!(turns, [&json!(1), &json!(2)]);
    // The first response found nothing to summarise but the task.
    assert_eq!(ran.trace.one("compaction_declined")["turn"], 0);
    let notes = notes(&ran, "agent", &world);
    assert_eq!(notes.iter().filter(|line| line["type"] == "murmur.compaction").count(), 2);
}
