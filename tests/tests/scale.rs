//! Rosters and formations of a size nobody writes by hand, and a formation that works for long.

use std::fmt::Write as _;

use mur_tests::live::capsule::{Capsule, roster};
use mur_tests::live::formation::{lead, worker};
use mur_tests::live::soak::{Held, Stream};
use mur_tests::live::{Home, trace};
use serde_json::{Value, json};

/// A thousand members, each but the entry member called by a hundred others.
fn thousand(home: &Home, depth: u64, flaw: Option<&str>) -> String {
    let capsule = worker().with(json!({"lifecycle": {"queue_depth": depth}}));
    capsule.install(home);
    let names: Vec<String> = (0..1000).map(|number| format!("m{number}")).collect();
    let members: Vec<(&str, &Capsule)> = names.iter().map(|name| (name.as_str(), &capsule)).collect();
    let mut rules: Vec<Value> = (0..1000)
        .map(|from| {
            let to = (1..=101).map(|step| 1 + (from + step) % 999).filter(|to| *to != from).take(100);
            json!({"from": names[from], "to": to.map(|to| names[to].clone()).collect::<Vec<_>>()})
        })
        .collect();
    if let (Some(flaw), Some(Value::Array(to))) = (flaw, rules.last_mut().and_then(|rule| rule.get_mut("to"))) {
        to.push(flaw.into());
    }
    roster(&members, json!(rules))
}

#[test]
fn a_thousand_members_and_a_hundred_thousand_rule_edges_are_admitted() {
    let home = Home::new();
    home.write("roster.yaml", thousand(&home, 2000, None));
    let report = home.mur(["doctor"]);
    let edges = report.stdout.lines().find(|line| line.contains("reachability: ")).unwrap_or_default();
    assert!(edges.ends_with(" and 99500 more"), "{}", report.stdout);
    assert!(!report.stdout.contains("W-ROS-001"), "every member holds all its callers");
}

#[test]
fn one_flaw_among_a_hundred_thousand_edges_is_found_and_named() {
    let home = Home::new();
    for (flaw, code) in [("nobody", "E-ROS-004"), ("m0", "E-ROS-008")] {
        home.write("roster.yaml", thousand(&home, 2000, Some(flaw)));
        let refused = home.mur(["run", "--roster", "--task", "x"]).refused(code);
        assert!(refused.stderr.contains(&format!("'{flaw}'")), "{}", refused.stderr);
    }
    // Members that hold fewer tasks than they have callers are named, each once, and the roster is still admitted.
    home.write("roster.yaml", thousand(&home, 8, None));
    let report = home.mur(["doctor"]);
    assert!(report.stdout.contains(" and 99500 more"), "{}", report.stdout);
    assert_eq!(report.stdout.matches("W-ROS-001").count(), 999);
}

#[test]
fn sixty_four_members_work_as_one_formation() {
    let home = Home::new();
    let (lead, worker) = (lead(), worker());
    lead.install(&home);
    worker.install(&home);
    let names: Vec<String> = (1..64).map(|number| format!("m{number}")).collect();
    let mut members = vec![("lead", &lead)];
    members.extend(names.iter().map(|name| (name.as_str(), &worker)));
    home.write("roster.yaml", roster(&members, json!([{"from": "lead", "to": names}])));
    home.mur(["run", "--roster", "--task", "x"]).expect(0);
    let sessions = trace::sessions(home.murmur().join("records"));
    assert_eq!(sessions.len(), 64);
    for session in &sessions {
        let records = trace::read(session);
        let end = records.last().expect("records");
        assert_eq!((&end["event_type"], &end["exit_status"]), (&json!("session_end"), &json!("ok")), "{session:?}");
        if records[0]["formation_member"] == "lead" {
            let text = std::fs::read_to_string(session.join("out/result.txt")).expect("a result");
            for name in &names {
                assert!(text.contains(&format!("{name} said: done: x for {name}\n")), "{name} is missing in {text}");
            }
        } else {
            assert_eq!(trace::of(&records, "a2a_task_received").len(), 1);
        }
    }
    assert!(home.running().is_empty());
}

/// What a process may hold more of after hundreds of tasks than after dozens: pools fill up, a leak would be far above.
const MORE: Held = Held { private: 8 << 10, pss: 8 << 10, descriptors: 8, threads: 8 };

#[test]
fn a_formation_under_a_stream_of_tasks_keeps_its_processes_and_their_size() {
    let mut stream = Stream::new();
    while stream.given < 60 {
        stream.give();
    }
    let before = stream.held();
    while stream.given < 360 {
        stream.give();
    }
    let after = stream.held();
    stream.close();
    let mut grown = String::new();
    for ((label, before), (_, after)) in before.iter().zip(&after) {
        if after.private > before.private + MORE.private
            || after.pss > before.pss + MORE.pss
            || after.descriptors > before.descriptors + MORE.descriptors
            || after.threads > before.threads + MORE.threads
        {
            let _ = writeln!(grown, "{label}: {before:?} → {after:?}");
        }
    }
    assert!(grown.is_empty(), "{grown}");
}
