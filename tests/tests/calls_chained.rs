//! "Giving a member work" of the roster seed where more than two take part: calls in a circle, in a long chain, in a wide
//! fan, and of two to one.

use mur_tests::live::calling::{asking, call_to, failing, formed, go_on, named, traced};
use mur_tests::live::capsule::Capsule;
use mur_tests::live::door::answer_text;
use mur_tests::live::formation::{Launched, lead, worker};
use mur_tests::live::{Home, proc, run, trace};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

#[test]
fn members_that_wait_for_each_other_are_freed_by_a_deadline() {
    let home = Home::new();
    // `there` calls back a member whose own task waits for it: no answer can come, and only `there` gives up early.
    let here = named(lead(), "here");
    let there = named(lead(), "there").with(json!({"lifecycle": {"delegation_deadline_secs": 2}}));
    formed(
        &home,
        &[("lead", &lead()), ("here", &here), ("there", &there)],
        json!([{"from": "lead", "to": ["here"]}, {"from": "here", "to": ["there"]}, {"from": "there", "to": ["here"]}]),
    );
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let lead = traced(&home, "lead");
    assert_eq!(call_to(&lead, "here")["status"], "completed");
    let below = &call_to(&lead, "here")["no_answer_below"];
    assert_eq!(below, &json!([{"member": "here", "status": "timed_out"}]));
    let back = traced(&home, "there");
    assert_eq!(trace::of(&back, "member_call")[0]["status"], "timed_out");
}

#[test]
fn a_member_that_is_silent_on_two_ways_is_named_once_at_the_top() {
    let home = Home::new();
    let (link, end) = (lead(), failing());
    let members = [("a", &link), ("b", &link), ("c", &link), ("d", &end)];
    let rules = json!([{"from": "a", "to": ["b", "c"]}, {"from": "b", "to": ["d"]}, {"from": "c", "to": ["d"]}]);
    formed(&home, &members, rules);
    let formation = Launched::open(&home);
    let door = formation.door(&home);
    let ended = door.ended(&door.send("x"));
    let silent = json!([{"member": "d", "status": "failed"}]);
    assert_eq!(ended.pointer("/metadata/murmur/noAnswerBelow"), Some(&silent), "{ended}");
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
    let records = traced(&home, "a");
    assert_eq!(
        [call_to(&records, "b"), call_to(&records, "c")].map(|call| call["no_answer_below"].clone()),
        [silent.clone(), silent]
    );
}

#[test]
fn silence_five_calls_down_reaches_the_top() {
    let home = Home::new();
    let link = lead();
    let end = failing();
    let names = ["a", "b", "c", "d", "e", "f"];
    let members: Vec<(&str, &Capsule)> =
        names.iter().map(|name| (*name, if *name == "f" { &end } else { &link })).collect();
    let rules: Vec<Value> = names.windows(2).map(|pair| json!({"from": pair[0], "to": [pair[1]]})).collect();
    formed(&home, &members, json!(rules));
    home.mur(["run", "--roster", "--task", "deep"]).expect(0);
    for pair in names.windows(2) {
        let call = call_to(&traced(&home, pair[0]), pair[1]);
        if pair[1] == "f" {
            assert_eq!((&call["status"], &call["no_answer_below"]), (&json!("failed"), &Value::Null));
        } else {
            assert_eq!(call["status"], "completed");
            assert_eq!(call["no_answer_below"], json!([{"member": "f", "status": "failed"}]), "{pair:?}");
        }
    }
}

#[test]
fn twenty_answers_come_back_in_one_message_and_eight_silent_members_are_named_further_up() {
    let home = Home::new();
    let (link, answering, silent) = (lead(), worker(), failing());
    let names: Vec<String> = (0..20).map(|number| format!("m{number}")).collect();
    let mut members: Vec<(&str, &Capsule)> = vec![("lead", &link), ("middle", &link)];
    // The first ten answer, the last ten fail.
    members
        .extend(names.iter().enumerate().map(|(at, name)| (name.as_str(), if at < 10 { &answering } else { &silent })));
    formed(&home, &members, json!([{"from": "lead", "to": ["middle"]}, {"from": "middle", "to": names}]));
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let middle = traced(&home, "middle");
    let continued = trace::of(&middle, "task_continued");
    assert_eq!(continued.len(), 1);
    assert_eq!(continued[0]["member_calls"].as_array().map(Vec::len), Some(20));
    for (at, name) in names.iter().enumerate() {
        let call = call_to(&middle, name);
        let wanted = if at < 10 { "completed" } else { "failed" };
        assert_eq!((&call["status"], &call["delivered"]), (&json!(wanted), &json!(true)), "{name}");
    }
    let call = call_to(&traced(&home, "lead"), "middle");
    let below = call["no_answer_below"].as_array().expect("silent members");
    assert_eq!(below.len(), 8, "{below:?}");
    assert!(below.iter().all(|entry| entry["status"] == "failed"));
    // Every answer stands once in what the middle member answered with.
    for name in &names[..10] {
        assert_eq!(call["output"].as_str().unwrap_or_default().matches(&format!("{name} said: ")).count(), 1);
    }
}

#[test]
fn members_called_by_two_work_one_task_after_another() {
    let home = Home::new();
    let (first, second) = (named(lead(), "first"), named(lead(), "second"));
    formed(
        &home,
        &[("lead", &lead()), ("one", &first), ("two", &second), ("shared", &asking())],
        json!([{"from": "lead", "to": ["one", "two"]}, {"from": "one", "to": ["shared"]}, {"from": "two", "to": ["shared"]}]),
    );
    let formation = Launched::open(&home);
    let (lead, shared) = (formation.door(&home), formation.peer_door(&home, "shared"));
    let task = lead.send("x");
    let listed = || shared.call("ListTasks", json!({}))["result"]["tasks"].as_array().cloned().unwrap_or_default();
    run::until("both tasks are held", || listed().len() == 2);
    for _ in 0..2 {
        let asking = || listed().into_iter().find(|task| task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED");
        run::until("one asks", || asking().is_some());
        assert_eq!(listed().iter().filter(|task| task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED").count(), 1);
        go_on(&shared, asking().expect("one asks")["id"].as_str().expect("an id"));
        // The next question is another task's.
        run::until("it has ended", || listed().iter().any(|task| task["status"]["state"] == "TASK_STATE_COMPLETED"));
    }
    let text = answer_text(&lead.ended(&task));
    assert_eq!(text.matches("shared said: done: ").count(), 2, "{text}");
    let pids = formation.members();
    formation.launcher.signal(Signal::SIGTERM);
    formation.launcher.finish().expect(143);
    run::until("all are gone", || pids.iter().all(|pid| !proc::runs(*pid)));
}
