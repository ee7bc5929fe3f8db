//! `mur trace diff` and `mur trace report`: sessions that ended, compared by what they recorded.

use std::fs;

use mur_tests::{Agent, Done, World};
use serde_json::json;

/// Three sessions of one project: a plain one, one that calls a tool twice (once wrongly), and one that fails.
fn recorded() -> World {
    let world = World::new();
    let calls =
        json!([{"call": "read-file", "input": {"path": "none"}}, {"call": "text-stats", "input": {"text": "a"}}]);
    for turns in
        [json!([[{"say": "done"}]]), json!([calls, [{"say": "done"}]]), json!([[{"error": "no", "status": "failed"}]])]
    {
        let agent = Agent::scripted("agent", json!({"rules": [{"turns": turns}]})).tool("text-stats").tool("read-file");
        world.write("murmur.yaml", agent.manifest());
        world.mur(["run", "--task", "go"]).run();
    }
    assert_eq!(world.traces().len(), 3);
    world
}

#[track_caller]
fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line[name.len()..].split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

fn trace(world: &World, args: &[&str]) -> Done {
    world.mur(["trace"].iter().chain(args)).run()
}

#[test]
fn two_sessions_are_compared_row_by_row() {
    let world = recorded();
    let text = trace(&world, &["diff", "@3", "@2"]).stdout;
    assert_eq!(row(&text, "turns"), ["1", "2", "+1 (A better)"]);
    assert_eq!(row(&text, "tool calls"), ["0", "2", "+2 (A better)"]);
    assert_eq!(row(&text, "tool success rate"), ["—", "50.0%", "—"]);
    assert_eq!(row(&text, "skill calls"), ["0", "0", "="]);
    assert_eq!(row(&text, "exit status"), ["ok", "ok", "="]);
    assert!(text.contains("── Prefix divergence"), "{text}");
    let header = text.lines().find(|line| line.starts_with("Metric")).unwrap();
    assert_eq!((header.find("Run A"), header.find("Run B"), header.find("Delta")), (Some(22), Some(38), Some(54)));
    let newest = trace(&world, &["diff"]).stdout;
    assert_eq!(row(&newest, "exit status"), ["ok", "failed", "—"]);
    assert_eq!(row(&newest, "tool calls"), ["2", "0", "-2 (B better)"]);
    // A session is like itself.
    let same = trace(&world, &["diff", "@2", "@2"]).stdout;
    assert!(same.contains("none: all 2 requests are alike"), "{same}");
}

#[test]
fn sessions_are_summed_up_and_incomplete_ones_left_out() {
    let world = recorded();
    let done = trace(&world, &["report"]);
    assert!(done.stderr.is_empty(), "{}", done.stderr);
    assert_eq!(done.stdout.matches("── ses_").count(), 3);
    let (_, together) = done.stdout.split_once("── 3 sessions").expect("all together");
    assert_eq!(row(together, "tool calls"), ["0.7", "1.2", "0", "2"]);
    assert_eq!(row(together, "tool success rate"), ["50.0%", "—", "50.0%", "50.0%"]);
    assert_eq!(row(together, "ok"), ["2", "66%"]);
    assert_eq!(row(together, "failed"), ["1", "33%"]);
    assert_eq!(trace(&world, &["report", "--last", "2"]).stdout.matches("── ses_").count(), 2);
    assert_eq!(trace(&world, &["report", "--since", "1h"]).stdout.matches("── ses_").count(), 3);
    assert_eq!(trace(&world, &["report", "@1", "@3"]).stdout.matches("── ses_").count(), 2);
    // The newest loses its end.
    let newest = world.traces().pop().unwrap().directory().join("trace.jsonl");
    let text = fs::read_to_string(&newest).unwrap();
    let kept: Vec<&str> = text.lines().filter(|line| !line.contains("\"session_end\"")).collect();
    fs::write(&newest, kept.join("\n") + "\n").unwrap();
    let done = trace(&world, &["report"]);
    assert_eq!(done.stderr, "note: skipped 1 incomplete session(s)\n");
    assert_eq!(done.stdout.matches("── ses_").count(), 2);
    trace(&world, &["report", "@1"]).refused("E-TRC-001");
    trace(&world, &["diff"]).refused("E-TRC-001");
}

#[test]
fn what_is_asked_wrongly_has_its_code() {
    let world = recorded();
    for args in [
        &["diff", "@1"][..],
        &["diff", "@1", "@2", "@3"],
        &["report", "@1", "--last", "1"],
        &["report", "@1", "--since", "1h"],
        &["report", "--last", "0"],
        &["report", "--last", "x"],
        &["report", "--since", "1"],
        &["report", "--since", "0m"],
        &["report", "--since", "m"],
        &["report", "--since", "99999999999999999999d"],
        &["report", "--since", "1ä"],
        &["report", "zzzz"],
    ] {
        trace(&world, args).refused("E-TRC-002");
    }
    let before = trace(&world, &["diff", "@9", "@1"]);
    assert!(before.stderr.starts_with("error[E-TRC-002]: before: '@9'"), "{}", before.stderr);
    let after = trace(&world, &["diff", "@1", "@9"]);
    assert!(after.stderr.starts_with("error[E-TRC-002]: after: '@9'"), "{}", after.stderr);
    trace(&World::new(), &["report"]).refused("E-TRC-001");
}
