//! `mur trace show <session>`: one trace as sections. The fixed sections are always there; the others only when they
//! have something to say.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::Trace;
use super::text::{brief, columns, duration, heading, joined, number, plural, string};
use crate::diagnostics::Result;

/// The sections of one trace, without the formation's. `running` says that its session has not ended.
pub fn session(trace: &Trace, running: bool) -> Result<String> {
    let start = trace.start()?;
    let mut text = heading("Session");
    text.push_str(&session_lines(trace, start, running));
    let optional = |text: &mut String, title: &str, rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            let _ = write!(text, "\n{}{}", heading(title), columns(&rows, ""));
        }
    };
    optional(
        &mut text,
        "Retention",
        rows(trace, "retention", |r| {
            vec![string(r, "store").into(), string(r, "reason").into(), format!("removed {}", number(r, "removed"))]
        }),
    );
    let _ = write!(text, "\n{}{}", heading("Turns"), turns(trace));
    let _ = write!(text, "\n{}{}", heading("Tokens"), tokens(trace));
    let _ = write!(text, "\n{}{}", heading("Tool calls"), tool_calls(trace));
    let _ = write!(text, "\n{}{}", heading("Redundant calls"), redundant(trace));
    let _ = write!(text, "\n{}{}", heading("Skill calls"), counted(trace, "skill_call", "skill_name"));
    let _ = write!(text, "\n{}{}", heading("Shell calls"), counted(trace, "shell", "binary"));
    let _ = write!(text, "\n{}{}", heading("Compaction"), compaction(trace));
    optional(
        &mut text,
        "Formation ended",
        rows(trace, "formation_ended", |r| {
            vec![
                "formation_ended".into(),
                string(r, "formation_id").into(),
                "the formation ended; this session wound down".into(),
            ]
        }),
    );
    optional(
        &mut text,
        "Session status and deadline",
        rows(trace, "deadline_reached", |r| {
            vec!["deadline_reached".into(), string(r, "deadline_at").into(), string(r, "source").into()]
        }),
    );
    optional(
        &mut text,
        "Cancelled",
        rows(trace, "task_canceled", |r| vec![string(r, "task_id").into(), format!("in {}", string(r, "phase"))]),
    );
    optional(
        &mut text,
        "Rejected",
        rows(trace, "task_rejected", |r| {
            vec![string(r, "task_id").into(), string(r, "cause").into(), string(r, "reason").into()]
        }),
    );
    optional(
        &mut text,
        "Failed",
        rows(trace, "task_failed", |r| {
            vec![string(r, "task_id").into(), string(r, "cause").into(), brief(string(r, "reason"), 200)]
        }),
    );
    optional(
        &mut text,
        "Reopens",
        rows(trace, "task_reopened", |r| {
            vec![string(r, "task_id").into(), string(r, "hook_name").into(), brief(string(r, "reason"), 120)]
        }),
    );
    optional(
        &mut text,
        "Denied calls",
        rows(trace, "call_denied", |r| {
            vec![string(r, "target").into(), string(r, "hook_name").into(), brief(string(r, "reason"), 120)]
        }),
    );
    optional(
        &mut text,
        "Delegations",
        rows(trace, "delegation", |r| {
            vec![string(r, "delegation_id").into(), string(r, "capsule").into(), string(r, "outcome").into()]
        }),
    );
    optional(&mut text, "Member calls", member_calls(trace));
    let sent = rows(trace, "a2a_send", |r| {
        let to = format!("to {}", string(r, "peer_url"));
        vec!["sent".into(), string(r, "task_id").into(), string(r, "context_id").into(), to]
    });
    optional(
        &mut text,
        "A2A",
        rows(trace, "a2a_task_received", |r| {
            let from = r["caller_member"].as_str().map(|member| format!("from member {member}")).unwrap_or_default();
            vec!["received".into(), string(r, "task_id").into(), string(r, "context_id").into(), from]
        })
        .into_iter()
        .chain(sent)
        .collect(),
    );
    optional(&mut text, "Tasks", tasks(trace));
    Ok(text)
}

fn rows(trace: &Trace, event: &str, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    trace.of(event).map(row).collect()
}

fn session_lines(trace: &Trace, start: &Value, running: bool) -> String {
    let mut lines = format!("session:     {}\n", string(start, "session_id"));
    if let Some(by) = start["spawned_by"].as_str() {
        let _ = writeln!(lines, "Spawned by {by} (delegation {})", string(start, "delegation_id"));
    }
    if let Some(earlier) = start["resumed_from"].as_str() {
        let _ = writeln!(lines, "resumed:     from {earlier}, context {}", string(start, "context_id"));
    }
    if let Some(formation) = start["formation_id"].as_str() {
        let member = start["formation_member"].as_str().map(|name| format!("  as {name}")).unwrap_or_default();
        let _ = writeln!(lines, "formation:   {formation}{member}");
    }
    let _ = writeln!(lines, "capsule:     {} v{}", string(start, "capsule_name"), string(start, "capsule_version"));
    let _ = writeln!(lines, "model:       {}", string(start, "model"));
    let (status, suffix) = status(trace, running);
    let _ = writeln!(lines, "status:      {status}");
    let _ = writeln!(lines, "duration:    {}{suffix}", duration(span_ms(trace)));
    let none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    let _ = writeln!(lines, "capabilities: {}", none(joined(&start["capabilities"])));
    let _ = writeln!(lines, "tools:       {}", none(joined(&start["tools_declared"])));
    let (declared, achieved) = (string(start, "containment_declared"), string(start, "containment_achieved"));
    let _ = writeln!(lines, "containment: {declared} → {achieved}");
    if let Some(deadline) = start["deadline"].as_object() {
        let inherited = if start["deadline"]["source"] == "inherited" { "inherited; " } else { "" };
        let secs = deadline.get("secs").and_then(Value::as_u64).unwrap_or(0);
        let at = string(&start["deadline"], "at");
        let _ = writeln!(lines, "deadline:    {at}  ({inherited}{secs}s after mur run started)");
    }
    lines
}

/// The status line's text, and what follows the duration when the session has no ending.
fn status(trace: &Trace, running: bool) -> (String, &'static str) {
    if let Some(end) = trace.first("session_end") {
        return (string(end, "exit_status").to_owned(), "");
    }
    let last = trace.records.last().unwrap_or(&Value::Null);
    let at = rfc3339(number(last, "timestamp"));
    let torn = trace
        .torn
        .map(|line| format!("; line {line}, the last, is not valid JSON and was skipped"))
        .unwrap_or_default();
    let event = string(last, "event_type");
    let how = if running { "running" } else { "ended without a session_end" };
    (format!("{how} (last event: {event} at {at}{torn})"), " (first to last event)")
}

fn rfc3339(ms: u64) -> String {
    time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000)
        .ok()
        .and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_default()
}

fn span_ms(trace: &Trace) -> u64 {
    if let Some(end) = trace.first("session_end") {
        return number(end, "duration_ms");
    }
    let stamp = |record: Option<&Value>| record.map_or(0, |record| number(record, "timestamp"));
    stamp(trace.records.last()).saturating_sub(stamp(trace.records.first()))
}

fn turns(trace: &Trace) -> String {
    let rows: Vec<Vec<String>> = trace
        .of("inference")
        .map(|r| {
            let tool = r["tool_name"].as_str().map(|name| format!("→ {name}")).unwrap_or_default();
            let error = r["error"].as_str().map(|error| brief(error, 120)).unwrap_or_default();
            vec![format!("turn {}", number(r, "turn")), string(r, "decision").into(), tool, error]
        })
        .collect();
    if rows.is_empty() { "no turns\n".to_owned() } else { columns(&rows, "") }
}

/// The runtime's own count, as the session's ending sums it up and `report` and `diff` show it, then what the provider said
/// it counted.
fn tokens(trace: &Trace) -> String {
    let served: Vec<&Value> = trace.of("inference").filter(|call| string(call, "decision") != "error").collect();
    let end = trace.first("session_end");
    let counted = |total: &str, each: &str| {
        end.map_or_else(|| served.iter().map(|call| number(call, each)).sum::<u64>(), |end| number(end, total))
    };
    let input = counted("total_input_tokens", "input_tokens");
    let output = counted("total_output_tokens", "output_tokens");
    let mut lines = format!("input:  {input}\noutput: {output}\n");
    let told: Vec<_> = served.iter().filter(|call| call["input_tokens_actual"].is_u64()).collect();
    if !told.is_empty() {
        let sum = |key: &str| told.iter().map(|call| number(call, key)).sum::<u64>();
        let of = plural(served.len() as u64, "call");
        let _ = writeln!(
            lines,
            "the provider counted {} in, {} out, in {} of {of}",
            sum("input_tokens_actual"),
            sum("output_tokens_actual"),
            told.len()
        );
    }
    lines
}

fn tool_calls(trace: &Trace) -> String {
    let rows: Vec<Vec<String>> = trace
        .of("tool_call")
        .map(|r| {
            vec![
                string(r, "tool_name").into(),
                string(r, "status").into(),
                duration(number(r, "duration_ms")),
                format!("{} B in, {} B out", number(r, "input_bytes"), number(r, "output_bytes")),
                r["error"].as_str().map(|error| brief(error, 120)).unwrap_or_default(),
            ]
        })
        .collect();
    if rows.is_empty() { "none\n".to_owned() } else { columns(&rows, "") }
}

/// Calls of one tool with the same input, more than once.
fn redundant(trace: &Trace) -> String {
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    for call in trace.of("tool_call") {
        *seen.entry((string(call, "tool_name").to_owned(), call["input"].to_string())).or_default() += 1;
    }
    let rows: Vec<Vec<String>> = seen
        .into_iter()
        .filter(|(_, count)| *count > 1)
        .map(|((tool, input), count)| vec![tool, format!("×{count}"), brief(&input, 80)])
        .collect();
    if rows.is_empty() { "none\n".to_owned() } else { columns(&rows, "") }
}

fn counted(trace: &Trace, event: &str, key: &str) -> String {
    let rows: Vec<Vec<String>> =
        trace.of(event).map(|r| vec![string(r, key).into(), duration(number(r, "duration_ms"))]).collect();
    if rows.is_empty() { "none\n".to_owned() } else { columns(&rows, "") }
}

fn compaction(trace: &Trace) -> String {
    let rows: Vec<Vec<String>> = trace
        .of("compaction")
        .map(|r| {
            vec![
                format!("turn {}", number(r, "turn")),
                format!("{} → {}", number(r, "tokens_before"), number(r, "tokens_after")),
            ]
        })
        .collect();
    if rows.is_empty() { "none\n".to_owned() } else { columns(&rows, "") }
}

/// One row a call: how it ended, or that it is outstanding.
fn member_calls(trace: &Trace) -> Vec<Vec<String>> {
    let mut calls: Vec<(String, Vec<String>)> = Vec::new();
    let mut put = |id: &str, row: Vec<String>| match calls.iter_mut().find(|(known, _)| known == id) {
        Some((_, known)) => *known = row,
        None => calls.push((id.to_owned(), row)),
    };
    for record in &trace.records {
        let id = string(record, "call_id");
        match string(record, "event_type") {
            "member_call_busy" | "member_call_start" => {
                let task = record["member_task_id"].as_str().unwrap_or("(not started)");
                put(id, vec![id.into(), string(record, "member").into(), task.into(), "outstanding".into()]);
            }
            "member_call" => put(id, call_row(trace, record)),
            _ => {}
        }
    }
    calls.into_iter().map(|(_, row)| row).collect()
}

fn call_row(trace: &Trace, call: &Value) -> Vec<String> {
    let id = string(call, "call_id");
    let mut how = format!("{} in {}", string(call, "status"), duration(number(call, "duration_ms")));
    if call["delivered"] == false {
        how.push_str(", not delivered");
    }
    let mut row = vec![
        id.to_owned(),
        string(call, "member").to_owned(),
        call["member_task_id"].as_str().unwrap_or("(not started)").to_owned(),
        how,
    ];
    row.extend(notes(trace, id, call));
    row
}

/// Busy offers and members below without an answer.
pub(super) fn notes(trace: &Trace, id: &str, call: &Value) -> Vec<String> {
    let busy = trace.of("member_call_busy").filter(|record| record["call_id"] == id).count();
    let below: Vec<String> = call["no_answer_below"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|below| format!("{} ({})", string(below, "member"), string(below, "status")))
        .collect();
    let mut notes = Vec::new();
    if busy > 0 {
        notes.push(format!("busy ×{busy}"));
    }
    if !below.is_empty() {
        notes.push(format!("no answer below: {}", below.join(", ")));
    }
    notes
}

fn tasks(trace: &Trace) -> Vec<Vec<String>> {
    let ended: BTreeMap<&str, &Value> = trace.of("task_end").map(|end| (string(end, "task_id"), end)).collect();
    trace
        .of("task_start")
        .map(|start| {
            let id = string(start, "task_id");
            let how = ended.get(id).map_or("no task_end".to_owned(), |end| {
                format!(
                    "{} in {}  {}, {}",
                    string(end, "exit_status"),
                    duration(number(end, "duration_ms")),
                    plural(number(end, "turns"), "turn"),
                    plural(number(end, "tool_calls"), "tool call")
                )
            });
            vec![id.into(), string(start, "origin").into(), string(start, "trust").into(), how]
        })
        .collect()
}
