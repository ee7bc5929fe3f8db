//! "Giving a member work" of the roster seed where a call does not simply succeed: waits that are cut short, members that
//! are silent, gone or too late. A member that asks a question is one that works for as long as the test wants.

use mur_tests::live::calling::{asking, at_work, call_to, formed, go_on, sent_until, state, traced};
use mur_tests::live::capsule::Capsule;
use mur_tests::live::door::{answer_text, message};
use mur_tests::live::formation::{Launched, lead, standard, worker};
use mur_tests::live::{Door, Home, proc, run, trace};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// The lead and its two workers, each of them asking; the lead's task waits for both.
struct Waiting {
    home: Home,
    formation: Launched,
    lead: Door,
    task: String,
    peers: [(Door, String); 2],
}

impl Waiting {
    fn new(home: Home) -> Self {
        standard(&home, &asking());
        let formation = Launched::open(&home);
        let lead = formation.door(&home);
        let task = sent_until(&lead, "waiting on call-member: 2 call(s) outstanding");
        let peers = ["coder", "reviewer"].map(|name| {
            let door = formation.peer_door(&home, name);
            let task = at_work(&door, "TASK_STATE_INPUT_REQUIRED");
            (door, task)
        });
        Self { home, formation, lead, task, peers }
    }

    fn close(self) -> Home {
        self.formation.launcher.signal(Signal::SIGTERM);
        self.formation.launcher.finish().expect(143);
        self.home
    }
}

#[test]
fn a_task_works_on_while_it_waits_and_its_stream_says_for_whom() {
    let home = Home::new();
    standard(&home, &asking());
    let formation = Launched::open(&home);
    let mut stream = formation.door(&home).stream("SendStreamingMessage", message("work", false), &[]);
    for name in ["coder", "reviewer"] {
        let door = formation.peer_door(&home, name);
        let task = at_work(&door, "TASK_STATE_INPUT_REQUIRED");
        go_on(&door, &task);
    }
    let (mut texts, mut states) = (Vec::new(), Vec::new());
    while let Some(event) = stream.next_event() {
        let Some(status) = event.data.pointer("/result/statusUpdate/status") else { continue };
        states.push(status["state"].as_str().unwrap_or_default().to_owned());
        texts.extend(status.pointer("/message/parts/0/text").and_then(Value::as_str).map(str::to_owned));
    }
    let at = |text: &str| texts.iter().position(|one| one == text);
    assert!(at("continuing with 2 member answer(s)").is_some(), "{texts:?}");
    // Both may have answered before the turn ended, and then nothing was waited for.
    if let Some(waits) = texts.iter().position(|text| text.starts_with("waiting on call-member: ")) {
        assert!(Some(waits) < at("continuing with 2 member answer(s)"), "{texts:?}");
    }
    let (last, before) = states.split_last().expect("states");
    assert_eq!(last, "TASK_STATE_COMPLETED");
    assert!(before.iter().all(|state| state == "TASK_STATE_WORKING" || state == "TASK_STATE_SUBMITTED"), "{states:?}");
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
}

#[test]
fn nothing_is_told_before_the_last_answer_and_then_everything_once() {
    let waiting = Waiting::new(Home::new());
    let [(coder, first), (reviewer, second)] = &waiting.peers;
    // The one that was called last answers first.
    go_on(reviewer, second);
    assert_eq!(reviewer.ended(second)["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(state(&waiting.lead, &waiting.task), "TASK_STATE_WORKING");
    assert!(trace::of(&traced(&waiting.home, "lead"), "task_continued").is_empty());
    go_on(coder, first);
    let text = answer_text(&waiting.lead.ended(&waiting.task));
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["coder said: done: work for coder", "reviewer said: done: work for reviewer"], "each once");
    let records = traced(&waiting.close(), "lead");
    let continued = trace::of(&records, "task_continued");
    assert_eq!(continued.len(), 1);
    assert_eq!(continued[0]["member_calls"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_cancelled_wait_gives_its_calls_up_and_leaves_the_members_at_work() {
    let waiting = Waiting::new(Home::new());
    waiting.lead.call("CancelTask", json!({"id": waiting.task}));
    let ended = waiting.lead.ended(&waiting.task);
    assert_eq!(ended["status"]["state"], "TASK_STATE_CANCELED");
    for (door, task) in &waiting.peers {
        assert_eq!(state(door, task), "TASK_STATE_INPUT_REQUIRED", "nobody cancelled it");
        go_on(door, task);
        assert_eq!(door.ended(task)["status"]["state"], "TASK_STATE_COMPLETED");
    }
    let records = traced(&waiting.close(), "lead");
    assert_eq!(trace::of(&records, "task_canceled")[0]["phase"], "member_call");
    for member in ["coder", "reviewer"] {
        let call = call_to(&records, member);
        assert_eq!((&call["status"], &call["delivered"]), (&json!("abandoned"), &json!(false)));
    }
    assert!(trace::of(&records, "task_continued").is_empty());
}

#[test]
fn a_formation_that_ends_gives_the_calls_up_before_the_session_ends() {
    let waiting = Waiting::new(Home::new());
    let records = traced(&waiting.close(), "lead");
    let types = trace::types(&records);
    assert_eq!(types.iter().filter(|kind| **kind == "member_call").count(), 2, "{types:?}");
    let call = types.iter().rposition(|kind| *kind == "member_call");
    let end = types.iter().position(|kind| *kind == "session_end");
    assert!(call < end, "{types:?}");
    assert_eq!(trace::of(&records, "task_canceled")[0]["phase"], "member_call");
}

fn port_of(door: &Door) -> u16 {
    door.address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

/// Bytes and connections that wait at a listening port of this machine.
fn unread_at(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let local = fields[1].rsplit(':').next().and_then(|port| u16::from_str_radix(port, 16).ok());
        // State 01 is a connection; the second half of the queues is what the receiver has not read.
        local == Some(port) && fields[3] == "01" && !fields[4].ends_with(":00000000")
    })
}

#[test]
fn a_task_taken_just_after_the_calling_task_ended_is_taken_back() {
    let home = Home::new();
    standard(&home, &asking());
    let formation = Launched::open(&home);
    let (lead, coder) = (formation.door(&home), formation.peer_door(&home, "coder"));
    let pid = Pid::from_raw(formation.peer("coder"));
    // The offer lies at the member's door, unread, when the caller's task is cancelled.
    kill(pid, Signal::SIGSTOP).unwrap();
    let task = lead.send("work");
    run::until("the offer lies at the door", || unread_at(port_of(&coder)));
    lead.call("CancelTask", json!({"id": task}));
    for _ in 0..3 {
        lead.call("GetTask", json!({"id": task}));
    }
    kill(pid, Signal::SIGCONT).unwrap();
    assert_eq!(lead.ended(&task)["status"]["state"], "TASK_STATE_CANCELED");
    run::until("the member's task is cancelled", || {
        coder.call("ListTasks", json!({})).pointer("/result/tasks/0/status/state")
            == Some(&json!("TASK_STATE_CANCELED"))
    });
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
    let records = traced(&home, "lead");
    let call = call_to(&records, "coder");
    assert_eq!((&call["status"], &call["delivered"]), (&json!("abandoned"), &json!(false)));
    let taken = trace::of(&traced(&home, "coder"), "a2a_task_received")[0]["task_id"].clone();
    assert_eq!(call["member_task_id"], taken);
}

#[test]
fn an_offer_that_no_door_answers_is_given_up_with_its_task() {
    let home = Home::new();
    standard(&home, &asking());
    let formation = Launched::open(&home);
    let (lead, coder) = (formation.door(&home), formation.peer_door(&home, "coder"));
    let pid = Pid::from_raw(formation.peer("coder"));
    kill(pid, Signal::SIGSTOP).unwrap();
    let task = lead.send("work");
    run::until("the offer lies at the door", || unread_at(port_of(&coder)));
    lead.call("CancelTask", json!({"id": task}));
    // The state is told at once; the record of the end comes when nothing is on its way any more.
    run::until("the task has ended", || !trace::of(&traced(&home, "lead"), "task_end").is_empty());
    kill(pid, Signal::SIGCONT).unwrap();
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
    let call = call_to(&traced(&home, "lead"), "coder");
    assert_eq!((&call["status"], &call["delivered"]), (&json!("abandoned"), &json!(false)));
    assert!(call["member_task_id"].is_null(), "{call}");
}

#[test]
fn a_task_cancelled_at_the_member_is_canceled_to_its_caller() {
    let waiting = Waiting::new(Home::new());
    let [(coder, first), (reviewer, second)] = &waiting.peers;
    coder.call("CancelTask", json!({"id": first}));
    go_on(reviewer, second);
    assert_eq!(waiting.lead.ended(&waiting.task)["status"]["state"], "TASK_STATE_COMPLETED");
    let records = traced(&waiting.close(), "lead");
    assert_eq!(call_to(&records, "coder")["status"], "canceled");
    assert_eq!(call_to(&records, "reviewer")["status"], "completed");
}

#[test]
fn a_member_that_dies_under_a_call_is_unreachable() {
    let waiting = Waiting::new(Home::new());
    kill(Pid::from_raw(waiting.formation.peer("coder")), Signal::SIGKILL).unwrap();
    let [_, (reviewer, second)] = &waiting.peers;
    go_on(reviewer, second);
    let ended = waiting.lead.ended(&waiting.task);
    assert_eq!(ended["status"]["state"], "TASK_STATE_COMPLETED", "{ended}");
    assert_eq!(
        ended.pointer("/metadata/murmur/noAnswerBelow"),
        Some(&json!([{"member": "coder", "status": "unreachable"}]))
    );
    let call = call_to(&traced(&waiting.close(), "lead"), "coder");
    assert_eq!((&call["status"], &call["delivered"]), (&json!("unreachable"), &json!(true)));
    let output = call["output"].as_str().unwrap_or_default();
    assert!(!output.contains("localhost") && !output.contains("127.0.0.1"), "no address is shown: {output}");
}

#[test]
fn a_call_to_a_member_that_is_gone_is_unreachable_at_once_and_holds_nobody_up() {
    let home = Home::new();
    let lead = lead().with(json!({"trace": {"capture": "content"}}));
    formed(
        &home,
        &[("lead", &lead), ("coder", &worker()), ("reviewer", &worker())],
        json!([{"from": "lead", "to": ["coder", "reviewer"]}]),
    );
    let formation = Launched::open(&home);
    let pid = formation.peer("coder");
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    run::until("it is gone", || !proc::runs(pid));
    let lead = formation.door(&home);
    let ended = lead.ended(&lead.send("work"));
    assert_eq!(answer_text(&ended), "reviewer said: done: work for reviewer\n");
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
    let records = traced(&home, "lead");
    let call = call_to(&records, "coder");
    assert_eq!((&call["status"], &call["delivered"]), (&json!("unreachable"), &json!(true)));
    let told = trace::of(&records, "tool_call")[0]["output"].as_str().unwrap_or_default().to_owned();
    assert!(told.contains("\"status\":\"unreachable\""), "{told}");
    assert!(told.contains("Do not present anything as coder's answer"), "{told}");
    assert!(!told.contains("127.0.0.1") && !told.contains("localhost"), "no address is shown: {told}");
}

#[test]
fn the_built_in_script_says_plainly_which_member_gave_no_answer() {
    let home = Home::new();
    let mut lead = Capsule::scripted("lead", Value::Null).member();
    lead.manifest["inference"]["driver"].as_object_mut().expect("a driver").remove("config");
    let rules = json!([{"from": "lead", "to": ["coder", "reviewer"]}]);
    formed(&home, &[("lead", &lead), ("coder", &worker()), ("reviewer", &worker())], rules);
    let formation = Launched::open(&home);
    let gone = |name: &str| {
        let pid = formation.peer(name);
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        run::until("it is gone", || !proc::runs(pid));
    };
    let lead = formation.door(&home);
    gone("coder");
    let one = answer_text(&lead.ended(&lead.send("work")));
    assert_eq!(one, "reviewer answered: done: work\nNo answer from coder: it did not take the task.");
    gone("reviewer");
    let none = answer_text(&lead.ended(&lead.send("work")));
    let lines: Vec<&str> = none.lines().collect();
    assert_eq!(lines.len(), 2, "{none}");
    for (line, name) in lines.iter().zip(["coder", "reviewer"]) {
        assert!(
            line.starts_with(&format!("No answer from {name} (unreachable): its door could not be reached")),
            "{line}"
        );
    }
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
}

#[test]
fn a_full_member_is_offered_the_task_again_and_takes_it_when_it_has_room() {
    let home = Home::new();
    let lead = lead().with(json!({"trace": {"capture": "content"}}));
    let mut full = asking();
    full.manifest["lifecycle"]["queue_depth"] = json!(1);
    formed(&home, &[("lead", &lead), ("coder", &full)], json!([{"from": "lead", "to": ["coder"]}]));
    let formation = Launched::open(&home);
    let (lead, coder) = (formation.door(&home), formation.peer_door(&home, "coder"));
    let asks = |task: &str| {
        run::until("it asks", || state(&coder, task) == "TASK_STATE_INPUT_REQUIRED");
        go_on(&coder, task);
    };
    // One at work and one that waits: no room for a third.
    let running = coder.send("first");
    run::until("it is at work", || state(&coder, &running) == "TASK_STATE_INPUT_REQUIRED");
    let waiting = coder.send("second");
    let task = sent_until(&lead, "waiting on call-member: 1 call(s) outstanding");
    run::until("it was offered twice", || trace::of(&traced(&home, "lead"), "member_call_busy").len() >= 2);
    asks(&running);
    asks(&waiting);
    let taken = || {
        let records = traced(&home, "lead");
        let start = trace::of(&records, "member_call_start");
        start.first().map(|start| start["member_task_id"].as_str().unwrap_or_default().to_owned())
    };
    run::until("it took the task", || taken().is_some());
    asks(&taken().expect("it was taken"));
    assert_eq!(answer_text(&lead.ended(&task)), "coder said: done: work for coder\n");
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
    let records = traced(&home, "lead");
    let told = trace::of(&records, "tool_call")[0]["output"].as_str().unwrap_or_default().to_owned();
    assert!(told.contains("\"status\":\"busy\"") && told.contains("did not take the task"), "{told}");
    let offers: Vec<u64> =
        trace::of(&records, "member_call_busy").iter().filter_map(|record| record["offer"].as_u64()).collect();
    assert_eq!(offers, (1..=offers.len() as u64).collect::<Vec<_>>());
    assert_eq!(call_to(&records, "coder")["status"], "completed");
}

#[test]
fn a_call_past_its_deadline_is_timed_out_and_the_member_works_on() {
    let mut home = Home::new();
    home.set("MURMUR_DELEGATION_TIMEOUT_SECS", "1");
    standard(&home, &asking());
    let formation = Launched::open(&home);
    let lead = formation.door(&home);
    let task = lead.send("work");
    assert_eq!(lead.ended(&task)["status"]["state"], "TASK_STATE_COMPLETED");
    for name in ["coder", "reviewer"] {
        let door = formation.peer_door(&home, name);
        let late = at_work(&door, "TASK_STATE_INPUT_REQUIRED");
        go_on(&door, &late);
        assert_eq!(door.ended(&late)["status"]["state"], "TASK_STATE_COMPLETED", "it was not cancelled");
    }
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
    let records = traced(&home, "lead");
    for member in ["coder", "reviewer"] {
        let call = call_to(&records, member);
        assert_eq!((&call["status"], &call["delivered"]), (&json!("timed_out"), &json!(true)));
    }
}

#[test]
fn a_task_that_fails_gives_its_calls_up() {
    let home = Home::new();
    let broken = Capsule::scripted(
        "lead",
        json!({"rules": [{"turns": [
            [{"call": "call-member", "input": {"member": "coder", "task": "work"}}],
            [{"error": "broken", "transient": false}],
        ]}]}),
    );
    formed(&home, &[("lead", &broken.member()), ("coder", &asking())], json!([{"from": "lead", "to": ["coder"]}]));
    let formation = Launched::open(&home);
    let lead = formation.door(&home);
    let task = lead.send("work");
    assert_eq!(lead.ended(&task)["status"]["state"], "TASK_STATE_FAILED");
    let coder = formation.peer_door(&home, "coder");
    let held = at_work(&coder, "TASK_STATE_INPUT_REQUIRED");
    assert_eq!(state(&coder, &held), "TASK_STATE_INPUT_REQUIRED");
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
    let call = call_to(&traced(&home, "lead"), "coder");
    assert_eq!((&call["status"], &call["delivered"]), (&json!("abandoned"), &json!(false)));
}

#[test]
fn a_member_is_called_again_once_its_answer_was_given() {
    let home = Home::new();
    let call = |task: &str| json!([{"call": "call-member", "input": {"member": "coder", "task": task}}]);
    let twice = Capsule::scripted(
        "lead",
        json!({"rules": [
            {"when": {"contains": "done: second"}, "turns": [[{"say": "{{answers.0.text}} at last"}]]},
            {"when": {"contains": "done: first"}, "turns": [call("second"), [{"say": "waiting again"}]]},
            {"turns": [call("first"), [{"say": "waiting"}]]},
        ]}),
    );
    formed(&home, &[("lead", &twice.member()), ("coder", &worker())], json!([{"from": "lead", "to": ["coder"]}]));
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let records = traced(&home, "lead");
    let numbers: Vec<&Value> =
        trace::of(&records, "task_continued").iter().map(|record| &record["continuation_number"]).collect();
    assert_eq!(numbers, [&json!(1), &json!(2)]);
    let calls = trace::of(&records, "member_call");
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0]["call_id"], calls[1]["call_id"]);
    assert!(calls.iter().all(|call| call["status"] == "completed" && call["delivered"] == true));
}

#[test]
fn an_answer_longer_than_the_limit_is_cut_and_marked() {
    let home = Home::new();
    standard(&home, &Capsule::saying("worker", "{{\"é\" | repeat 40000}}").member());
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let call = call_to(&traced(&home, "lead"), "coder");
    let output = call["output"].as_str().unwrap_or_default();
    assert_eq!(call["truncated"], true);
    assert_eq!((output.len(), output.ends_with("é […]")), (65_536 + " […]".len(), true));
}

#[test]
fn an_untrusted_task_is_handed_on_untrusted() {
    let home = Home::new();
    standard(&home, &worker());
    let formation = Launched::open(&home);
    let lead = formation.door(&home);
    let sent = lead.ask("SendMessage", message("x", true), &[("x-murmur-task-origin", "event")]).json();
    let task = sent["result"]["task"]["id"].as_str().expect("a task");
    lead.ended(task);
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
    for (member, origin) in [("lead", "event"), ("coder", "peer"), ("reviewer", "peer")] {
        let records = traced(&home, member);
        let start = trace::of(&records, "task_start")[0];
        assert_eq!((&start["origin"], &start["trust"]), (&json!(origin), &json!("untrusted")), "{member}");
    }
}

#[test]
fn only_a_member_that_may_call_somebody_is_offered_the_tool() {
    let home = Home::new();
    standard(&home, &worker());
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    for (member, expected) in [("lead", true), ("reviewer", true), ("coder", false)] {
        let start = traced(&home, member).remove(0);
        let tools = start["tools_declared"].as_array().expect("tools");
        for tool in ["call-member", "end-without-answer"] {
            assert_eq!(tools.contains(&json!(tool)), expected, "{tool} of {member}");
        }
    }
}

#[test]
fn an_ending_without_an_answer_is_refused_while_calls_are_open_or_without_a_reason() {
    let home = Home::new();
    let end = |reason: &str| json!({"call": "end-without-answer", "input": {"reason": reason}});
    let call = json!({"call": "call-member", "input": {"member": "leaf", "task": "x"}});
    let middle = Capsule::scripted(
        "middle",
        json!({"rules": [
            {"when": {"contains": "[call-member] call "},
                "turns": [[end("  "), end("nothing came"), end("again"), call], [{"say": "never said"}]]},
            {"turns": [[call, end("too early")], [{"say": "waiting"}]]},
        ]}),
    )
    .member()
    .with(json!({"trace": {"capture": "content"}}));
    let members = [("lead", &lead()), ("middle", &middle), ("leaf", &worker())];
    formed(&home, &members, json!([{"from": "lead", "to": ["middle"]}, {"from": "middle", "to": ["leaf"]}]));
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let records = traced(&home, "middle");
    let outputs: Vec<(&Value, &str)> = trace::of(&records, "tool_call")
        .iter()
        .map(|record| (&record["status"], record["output"].as_str().unwrap_or_default()))
        .collect();
    let expected = [
        ("ok", "\"status\":\"started\""),
        ("error", "calls of yours have not been answered yet"),
        ("error", "say in 'reason' why there is no answer"),
        ("ok", "\"status\":\"ending\""),
        ("error", "this task is ending already"),
        ("error", "this task is ending without an answer, so no call is made"),
    ];
    assert_eq!(outputs.len(), expected.len(), "{outputs:?}");
    for ((status, output), (wanted, text)) in outputs.iter().zip(expected) {
        assert!(**status == wanted && output.contains(text), "{status} {output}; wanted {wanted} {text}");
    }
    assert_eq!(call_to(&traced(&home, "lead"), "middle")["output"], "nothing came");
}
