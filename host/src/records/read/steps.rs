//! `mur trace steps`: the events of one trace as the tree their `parent_id` spans.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::Trace;
use super::text::{brief, duration, number, plural, string};

/// Column the detail of a row starts after.
const TYPE_WIDTH: usize = 11;

/// The tree as text. `verbose` adds what each tool was given.
pub fn tree(trace: &Trace, verbose: bool) -> String {
    let tasks = trace.of("task_start").count() as u64;
    let turns = trace.of("inference").filter(|record| record.get("origin").is_none()).count() as u64;
    let session = trace.records.first().map_or("-", |record| string(record, "session_id"));
    let mut text = if tasks > 1 {
        format!("Session {session}  ({}, {})\n", plural(tasks, "task"), plural(turns, "turn"))
    } else {
        format!("Session {session}  ({})\n", plural(turns, "turn"))
    };
    let mut children: HashMap<&str, Vec<&Value>> = HashMap::new();
    let mut roots = Vec::new();
    let tasks: HashMap<&str, &str> =
        trace.of("task_start").map(|start| (string(start, "task_id"), string(start, "event_id"))).collect();
    for record in &trace.records {
        match parent(record, &tasks) {
            Some(parent) => children.entry(parent).or_default().push(record),
            None => roots.push(record),
        }
    }
    for root in roots {
        branch(&mut text, root, &children, 0, verbose);
    }
    text
}

/// What a record is drawn below. A call of a task outlasts turns and hangs off the session in the file; a reader looks for it
/// in its task.
fn parent<'a>(record: &'a Value, tasks: &HashMap<&str, &'a str>) -> Option<&'a str> {
    let of_task = if string(record, "event_type").starts_with("member_call") {
        tasks.get(string(record, "task_id")).copied()
    } else {
        None
    };
    of_task.or(record["parent_id"].as_str())
}

/// Deepest nesting drawn: a parent is always an earlier line, so this only bounds a hostile file.
const MAX_DEPTH: usize = 16;

fn branch(text: &mut String, record: &Value, children: &HashMap<&str, Vec<&Value>>, depth: usize, verbose: bool) {
    let event = string(record, "event_type");
    if event == "task_start" {
        text.push('\n');
    }
    let row = format!("{}{event:TYPE_WIDTH$} {}", "  ".repeat(depth), detail(record, verbose));
    let _ = writeln!(text, "{}", row.trim_end());
    if depth >= MAX_DEPTH {
        return;
    }
    for child in children.get(string(record, "event_id")).into_iter().flatten() {
        branch(text, child, children, depth + 1, verbose);
    }
}

fn detail(record: &Value, verbose: bool) -> String {
    let key = |name: &str| string(record, name).to_owned();
    match string(record, "event_type") {
        "session_start" => format!("{} v{}", key("capsule_name"), key("capsule_version")),
        "session_end" => format!("{} after {}", key("exit_status"), duration(number(record, "duration_ms"))),
        "task_start" => format!("{}  {} {}", key("task_id"), key("trust"), key("origin")),
        "task_end" => {
            format!("{}  {} in {}", key("task_id"), key("exit_status"), duration(number(record, "duration_ms")))
        }
        "task_continued" => {
            let count = |key: &str| record[key].as_array().map_or(0, Vec::len) as u64;
            let answers = plural(count("member_calls") + count("delegations"), "answer");
            format!("{}  with {answers} after {}", key("task_id"), duration(number(record, "waited_ms")))
        }
        "task_failed" => format!("{}: {}", key("cause"), brief(string(record, "reason"), 120)),
        "inference" => {
            let tool = record["tool_name"].as_str().map(|name| format!(" → {name}")).unwrap_or_default();
            format!("turn {}  {}{tool}", number(record, "turn"), key("decision"))
        }
        "tool_call" => {
            let input = if verbose { format!("  {}", brief(&record["input"].to_string(), 120)) } else { String::new() };
            format!("{}  {} in {}{input}", key("tool_name"), key("status"), duration(number(record, "duration_ms")))
        }
        "member_call_start" => format!("{}  {} has it as {}", key("call_id"), key("member"), key("member_task_id")),
        "member_call_busy" => format!("{}  {} is busy", key("call_id"), key("member")),
        "member_call" => {
            format!(
                "{}  {}  {} in {}",
                key("call_id"),
                key("member"),
                key("status"),
                duration(number(record, "duration_ms"))
            )
        }
        "a2a_task_received" => {
            let from = record["caller_member"].as_str().map(|member| format!("  from {member}")).unwrap_or_default();
            format!("{}{from}", key("task_id"))
        }
        "formation_ended" => key("formation_id"),
        _ => String::new(),
    }
}
