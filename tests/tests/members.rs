//! `call-member` between real members: work handed on, busy members, silence, and what each trace tells.

use mur_tests::{Agent, Done, Record, Roster, Trace, World};
use serde_json::{Value, json};

/// A member that answers with a text.
fn saying(name: &str, text: &str) -> Agent {
    Agent::scripted(name, json!({"rules": [{"turns": [[{"say": text}]], "repeat": true}]})).peer()
}

/// A member that makes these calls, ends its turn, and answers with everything that came back.
fn calling(name: &str, calls: Value) -> Agent {
    let script = json!({"rules": [
        {"when": {"contains": "[call-member] call "}, "turns": [[{"say": "{{text_whole}}"}]]},
        {"turns": [calls, [{"say": "waiting"}]]},
    ]});
    // The whole message, fences and the runtime's own lines included.
    let script = script.to_string().replace("{{text_whole}}", "{{last}}");
    Agent::scripted(name, serde_json::from_str(&script).expect("JSON")).peer().network(&["localhost"])
}

fn call(member: &str, task: &str) -> Value {
    json!({"call": "call-member", "input": {"member": member, "task": task}})
}

struct Formation {
    done: Done,
    world: World,
}

impl Formation {
    fn run(roster: &Roster) -> Self {
        Self::run_with(roster, &[])
    }

    fn run_with(roster: &Roster, env: &[(&str, &str)]) -> Self {
        let world = World::new();
        world.roster(roster);
        let mut command = world.mur(["run", "--roster", "--task", "do the work"]);
        for (name, value) in env {
            command = command.env(name, value);
        }
        let done = command.run();
        Self { done, world }
    }

    #[track_caller]
    fn succeeded(&self) {
        assert_eq!(self.done.code(), Some(0), "{}", self.done.stderr);
    }

    fn trace(&self, member: &str) -> Trace {
        self.world.trace(member)
    }

    fn result(&self, member: &str) -> String {
        self.trace(member).result().expect("a result")
    }
}

#[track_caller]
fn one<'a>(trace: &'a Trace, kind: &str, member: &str) -> &'a Record {
    let found: Vec<&Record> = trace.all(kind).into_iter().filter(|record| record["member"] == member).collect();
    assert_eq!(found.len(), 1, "{kind} of {member} in {:?}", trace.kinds());
    found[0]
}

#[test]
fn two_members_are_called_and_both_answers_come_back_together() {
    let lead = calling("lead", json!([call("coder", "write"), call("tester", "test")]));
    let roster = Roster::new()
        .member("boss", lead)
        .member("coder", saying("coder", "code for: {{text}}"))
        .member("tester", saying("tester", "tests for: {{text}}"))
        .rule("boss", &["coder", "tester"]);
    let formation = Formation::run(&roster);
    formation.succeeded();

    let boss = formation.trace("boss");
    let continued = boss.one("task_continued");
    assert_eq!(
        (&continued["continuation_number"], continued["member_calls"].as_array().map(Vec::len)),
        (&json!(1), Some(2))
    );
    for (member, answer) in [("coder", "code for: write"), ("tester", "tests for: test")] {
        let started = one(&boss, "member_call_start", member);
        let ended = one(&boss, "member_call", member);
        assert_eq!(
            (&ended["status"], &ended["delivered"], &ended["call_id"]),
            (&json!("completed"), &json!(true), &started["call_id"])
        );
        assert_eq!(ended["output"], answer);
        // The callee's own trace knows the caller by name, and the task by the id the caller recorded.
        let callee = formation.trace(member);
        let received = callee.one("a2a_task_received");
        assert_eq!((&received["caller_member"], &received["task_id"]), (&json!("boss"), &started["member_task_id"]));
        let start = callee.one("task_start");
        assert_eq!(
            (&start["origin"], &start["trust"]),
            (&json!("peer"), &json!("trusted")),
            "the entry member's trust"
        );
    }
    // The wait is over before the next turn, and comes after the calls' own records.
    assert!(boss.position("member_call") < boss.position("task_continued"));

    let told = formation.result("boss");
    assert!(told.contains("<untrusted-content source=member:coder>\ncode for: write\n</untrusted-content>"), "{told}");
    assert!(told.contains("<untrusted-content source=member:tester>\ntests for: test\n</untrusted-content>"), "{told}");
    assert_eq!(told.matches(" ended completed:\n").count(), 2, "{told}");
    assert!(!told.contains("No answer came from"), "{told}");
    let last = told.lines().last().unwrap_or_default();
    assert!(last.starts_with("[call-member] "), "after all fences: {told}");
}

#[test]
fn nobody_sees_an_address_or_a_token() {
    let lead = calling("lead", json!([call("coder", "write")]));
    let roster =
        Roster::new().member("boss", lead).member("coder", saying("coder", "{{env}}")).rule("boss", &["coder"]);
    let formation = Formation::run(&roster);
    formation.succeeded();
    for file in formation.world.files() {
        let text = String::from_utf8_lossy(&std::fs::read(&file).unwrap_or_default()).into_owned();
        assert!(!text.contains("mft1."), "{}", file.display());
    }
    // The member tells its own address, and what comes back names it by its virtual one.
    let boss = formation.trace("boss");
    let output = one(&boss, "member_call", "coder")["output"].as_str().unwrap_or_default().to_owned();
    assert!(output.contains("http://coder.formation.invalid"), "{output}");
    for text in [output, formation.result("boss")] {
        assert!(!text.contains("localhost:"), "{text}");
    }
}

#[test]
fn a_call_that_cannot_be_made_is_the_tools_error_and_leaves_no_record() {
    let calls = json!([
        call("coder", "write"),
        call("coder", "again"),
        call("stranger", "x"),
        call("coder", "  "),
        {"call": "call-member", "input": {"member": "coder"}},
        {"call": "end-without-answer", "input": {"reason": "none"}},
    ]);
    let script = json!({"rules": [
        {"when": {"contains": "[call-member] call "}, "turns": [[{"say": "done"}]]},
        {"turns": [calls, [{"say": "{{results | each \"{{it.is_error}} {{it.raw}}\n\"}}"}]]},
    ]});
    let lead = Agent::scripted("lead", script).peer().network(&["localhost"]).with(&["trace", "capture"], "content");
    let roster = Roster::new().member("boss", lead).member("coder", saying("coder", "ok")).rule("boss", &["coder"]);
    let formation = Formation::run(&roster);
    formation.succeeded();
    let boss = formation.trace("boss");
    assert_eq!(boss.all("member_call").len(), 1, "only the call that was made");
    let outputs: Vec<String> =
        boss.all("tool_call").iter().map(|record| record["output"].as_str().unwrap_or_default().to_owned()).collect();
    assert!(outputs[0].contains(r#""status":"started""#), "{outputs:?}");
    assert!(outputs[1].contains("coder is still open") || outputs[1].contains("has answered already"), "{outputs:?}");
    assert!(outputs[2].contains("'stranger'") && outputs[2].contains("it may call: coder"), "{outputs:?}");
    assert!(outputs[5].contains("no member of the formation sent this task"), "{outputs:?}");
    let errors: Vec<&Value> = boss.all("tool_call").iter().map(|record| &record["status"]).collect();
    assert_eq!(errors, ["ok", "error", "error", "error", "error", "error"].map(Value::from).iter().collect::<Vec<_>>());
}

#[test]
fn a_member_that_stays_busy_never_takes_the_task() {
    // One task in its life, and that one is long.
    let slow = Agent::scripted(
        "slow",
        json!({"rules": [{"turns": [[{"wait_ms": 20_000}, {"say": "late"}]], "repeat": true}]}),
    )
    .peer()
    .with(&["lifecycle", "task_acceptance"], "single");
    let roster = Roster::new()
        .member("boss", calling("lead", json!([call("first", "hand on"), call("slow", "mine")])))
        .member("first", calling("first", json!([call("slow", "long")])))
        .member("slow", slow)
        .rule("boss", &["first", "slow"])
        .rule("first", &["slow"]);
    let formation = Formation::run_with(&roster, &[("MURMUR_DELEGATION_TIMEOUT_SECS", "3")]);
    formation.succeeded();
    // Whoever came second was told busy until its deadline; whoever came first ran out of time waiting.
    let (boss, first) = (formation.trace("boss"), formation.trace("first"));
    let calls = [one(&boss, "member_call", "slow"), one(&first, "member_call", "slow")];
    let mut statuses: Vec<&str> = calls.iter().filter_map(|call| call["status"].as_str()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, ["rejected", "timed_out"]);
    let busy: Vec<&Record> = [&boss, &first].into_iter().flat_map(|trace| trace.all("member_call_busy")).collect();
    assert!(busy.len() >= 2, "{}", busy.len());
    assert_eq!((&busy[0]["offer"], &busy[1]["offer"]), (&json!(1), &json!(2)));
    assert!(busy.iter().all(|record| record["message"] == "task rejected: capsule is busy"));
    let told = formation.result("boss");
    let silence = told.lines().find(|line| line.starts_with("[call-member] No answer came from: ")).unwrap_or_default();
    assert!(silence.contains("slow (call mcl_"), "{told}");
}

#[test]
fn a_member_that_ends_without_an_answer_says_so_to_its_caller() {
    let silent = json!({"rules": [{"turns": [
        [{"call": "end-without-answer", "input": {"reason": "the data is gone"}}], [{"say": "never said"}],
    ]}]});
    let roster = Roster::new()
        .member("boss", calling("lead", json!([call("middle", "find it")])))
        .member("middle", Agent::scripted("middle", silent).peer().network(&["localhost"]))
        .member("leaf", saying("leaf", "x"))
        .rule("boss", &["middle"])
        .rule("middle", &["leaf"]);
    let formation = Formation::run(&roster);
    formation.succeeded();
    let boss = formation.trace("boss");
    let ended = one(&boss, "member_call", "middle");
    assert_eq!((&ended["status"], &ended["output"]), (&json!("no_answer"), &json!("the data is gone")));
    let told = formation.result("boss");
    assert!(told.contains(" to middle ended no_answer, with no answer from middle:\n"), "{told}");
    let middle = formation.trace("middle");
    assert_eq!(middle.one("task_end")["exit_status"], "no_answer");
    assert_eq!(formation.result("middle"), "no answer: the data is gone");
    assert_eq!(middle.one("task_end")["turns"], 1, "nothing is asked after it");
}

#[test]
fn silence_further_down_reaches_the_top() {
    let failing = Agent::scripted(
        "leaf",
        json!({"rules": [{"turns": [[{"error": "broken", "transient": false}]], "repeat": true}]}),
    )
    .peer();
    let roster = Roster::new()
        .member("boss", calling("lead", json!([call("middle", "ask leaf")])))
        .member("middle", calling("middle", json!([call("leaf", "try")])))
        .member("leaf", failing)
        .rule("boss", &["middle"])
        .rule("middle", &["leaf"]);
    let formation = Formation::run(&roster);
    formation.succeeded();
    let boss = formation.trace("boss");
    let ended = one(&boss, "member_call", "middle");
    assert_eq!(ended["status"], "completed");
    assert_eq!(ended["no_answer_below"], json!([{"member": "leaf", "status": "failed"}]));
    assert!(
        formation.result("boss").contains("[call-member] middle answered, but without an answer from: leaf (failed)")
    );
}

#[test]
fn a_caller_without_the_network_grant_is_told_that_no_answer_came() {
    let lead = calling("lead", json!([call("coder", "write")])).network(&["https://example.com"]);
    let script_end = "waiting";
    let roster = Roster::new().member("boss", lead).member("coder", saying("coder", "x")).rule("boss", &["coder"]);
    let formation = Formation::run(&roster);
    formation.succeeded();
    assert!(formation.done.stderr.contains("W-RUN-008"), "{}", formation.done.stderr);
    let boss = formation.trace("boss");
    let ended = one(&boss, "member_call", "coder");
    assert_eq!((&ended["status"], &ended["delivered"]), (&json!("failed"), &json!(true)));
    assert!(ended["member_task_id"].is_null());
    // The tool's own result told it, so there is nothing to wait for.
    assert_eq!(formation.result("boss"), script_end);
    assert!(boss.all("task_continued").is_empty());
}

#[test]
fn a_task_with_no_turn_left_does_not_wait() {
    let lead = calling("lead", json!([call("coder", "write")])).with(&["inference", "max_turns"], 2);
    let slow = Agent::scripted("coder", json!({"rules": [{"turns": [[{"wait_ms": 60_000}, {"say": "late"}]]}]})).peer();
    let roster = Roster::new().member("boss", lead).member("coder", slow).rule("boss", &["coder"]);
    let formation = Formation::run(&roster);
    formation.succeeded();
    let boss = formation.trace("boss");
    let ended = one(&boss, "member_call", "coder");
    assert_eq!((&ended["status"], &ended["delivered"]), (&json!("abandoned"), &json!(false)));
    assert_eq!(formation.result("boss"), "waiting");
    assert!(boss.all("task_continued").is_empty());
    // The member was at work when the formation ended.
    let coder = formation.trace("coder");
    assert_eq!(coder.one("task_end")["exit_status"], "canceled");
}
