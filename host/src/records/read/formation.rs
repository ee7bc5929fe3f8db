//! `mur trace show frm_…`: the members of a formation, the calls between them, and how each ended, from their traces.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use serde_json::Value;

use crate::ids::{FormationId, SessionId};
use crate::records::members::Found;

use super::Trace;
use super::show::notes;
use super::text::{columns, duration, heading, joined, number, string};

/// One call between members, joined from both sides.
struct Call<'a> {
    id: &'a str,
    caller: &'a str,
    callee: &'a str,
    /// The task of the caller it was made from.
    from_task: &'a str,
    /// The task of the callee it started.
    member_task: Option<&'a str>,
    started_ms: u64,
    ending: Option<&'a Value>,
    notes: Vec<String>,
}

/// The formation's section. `running` are the sessions of this machine that have not ended.
pub fn section(formation: &FormationId, found: &Found, running: &[SessionId]) -> String {
    let traces: Vec<(&str, Option<Trace>)> = found
        .sessions
        .iter()
        .map(|session| (session.member().unwrap_or("-"), Trace::read(&session.trace()).ok()))
        .collect();
    let mut text = heading("Formation");
    let _ = writeln!(text, "formation:  {formation}");
    for root in &found.searched {
        let _ = writeln!(text, "searched:   {}", root.display());
    }
    for (root, why) in &found.unreadable {
        let _ = writeln!(text, "searched:   {}  could not be read: {why}", root.display());
    }
    text.push_str(&members(found, running));
    let delegated: usize =
        traces.iter().flat_map(|(_, trace)| trace).map(|trace| trace.of("delegation_start").count()).sum();
    if delegated > 0 {
        let _ = writeln!(
            text,
            "delegated children not under these roots: {delegated} — `mur trace show <member>` names each child trace"
        );
    }
    let calls = calls(&traces);
    let _ = writeln!(text, "calls:      {}", calls.len());
    text.push_str(&call_lines(&calls));
    text
}

fn members(found: &Found, running: &[SessionId]) -> String {
    let rows: Vec<Vec<String>> = found
        .sessions
        .iter()
        .map(|session| {
            let start = &session.start;
            let mut row = vec![
                session.session.to_string(),
                session.member().unwrap_or("-").to_owned(),
                format!("{}@{}", string(start, "capsule_name"), string(start, "capsule_version")),
                match &session.exit_status {
                    Some(status) => status.clone(),
                    None if running.contains(&session.session) => "running".to_owned(),
                    None => "no session_end: it was killed".to_owned(),
                },
            ];
            if let Some(by) = start["spawned_by"].as_str() {
                row.push(format!("spawned by {by}"));
            }
            let callees = joined(&start["formation_callees"]);
            if !callees.is_empty() {
                row.push(format!("may call {callees}"));
            }
            row
        })
        .collect();
    columns(&rows, "")
}

fn calls<'a>(traces: &'a [(&'a str, Option<Trace>)]) -> Vec<Call<'a>> {
    let mut calls: Vec<Call<'a>> = Vec::new();
    for (caller, trace) in traces.iter().filter_map(|(member, trace)| Some((*member, trace.as_ref()?))) {
        for record in &trace.records {
            let event = string(record, "event_type");
            if !matches!(event, "member_call_busy" | "member_call_start" | "member_call") {
                continue;
            }
            let id = string(record, "call_id");
            let index = calls.iter().position(|call| call.id == id).unwrap_or_else(|| {
                calls.push(Call {
                    id,
                    caller,
                    callee: string(record, "member"),
                    from_task: string(record, "task_id"),
                    member_task: None,
                    started_ms: number(record, "timestamp"),
                    ending: None,
                    notes: Vec::new(),
                });
                calls.len() - 1
            });
            let call = &mut calls[index];
            call.member_task = call.member_task.or(record["member_task_id"].as_str());
            if event == "member_call" {
                call.ending = Some(record);
            }
        }
        for call in calls.iter_mut().filter(|call| call.caller == caller) {
            call.notes.extend(notes(trace, call.id, call.ending.unwrap_or(&Value::Null)));
        }
    }
    received_only(traces, &mut calls);
    for call in &mut calls {
        callee_notes(traces, call);
    }
    calls.sort_by_key(|call| call.started_ms);
    calls
}

/// Tasks a formation token let in whose caller's trace was not found.
fn received_only<'a>(traces: &'a [(&'a str, Option<Trace>)], calls: &mut Vec<Call<'a>>) {
    let known: HashSet<&str> = calls.iter().filter_map(|call| call.member_task).collect();
    for (member, trace) in traces.iter().filter_map(|(member, trace)| Some((*member, trace.as_ref()?))) {
        for received in trace.of("a2a_task_received").filter(|record| record["caller_member"].is_string()) {
            let (task, caller) = (string(received, "task_id"), string(received, "caller_member"));
            let caller_has_trace = traces.iter().any(|(name, trace)| *name == caller && trace.is_some());
            if known.contains(task) || caller_has_trace {
                continue;
            }
            calls.push(Call {
                id: "(no call id)",
                caller,
                callee: member,
                from_task: "-",
                member_task: Some(task),
                started_ms: number(received, "timestamp"),
                ending: None,
                notes: vec![format!("{caller}'s trace not found")],
            });
        }
    }
}

/// What the callee's side says of a call's task, where it disagrees or is missing.
fn callee_notes(traces: &[(&str, Option<Trace>)], call: &mut Call<'_>) {
    let Some(task) = call.member_task else {
        call.notes.insert(0, format!("never held by {}", call.callee));
        return;
    };
    let Some(trace) = traces.iter().find(|(name, _)| *name == call.callee).and_then(|(_, trace)| trace.as_ref()) else {
        call.notes.push(format!("{}'s trace not found", call.callee));
        return;
    };
    let ended = trace.of("task_end").find(|record| record["task_id"] == task).map(|end| string(end, "exit_status"));
    let caller_says = call.ending.map(|ending| string(ending, "status"));
    match ended {
        None if trace.of("task_canceled").chain(trace.of("task_rejected")).any(|record| record["task_id"] == task) => {}
        None => call.notes.push(format!("{}'s task has no task_end", call.callee)),
        Some("ok") if caller_says == Some("completed") => {}
        Some(status) if Some(status) == caller_says => {}
        Some(status) => call.notes.push(format!("{}'s task ended {status}", call.callee)),
    }
}

/// One line a call, indented below the call that handed the calling task over.
fn call_lines(calls: &[Call<'_>]) -> String {
    let handed: HashMap<&str, usize> =
        calls.iter().enumerate().filter_map(|(index, call)| Some((call.member_task?, index))).collect();
    let parent = |call: &Call<'_>| handed.get(call.from_task).copied();
    let mut order = Vec::new();
    let mut seen = vec![false; calls.len()];
    for index in 0..calls.len() {
        // A call whose parent comes later, or in a circle, is drawn at the top rather than lost.
        if parent(&calls[index]).is_none_or(|above| above == index) {
            descend(index, 0, calls, &parent, &mut seen, &mut order);
        }
    }
    for index in 0..calls.len() {
        descend(index, 0, calls, &parent, &mut seen, &mut order);
    }
    let rows: Vec<Vec<String>> = order.into_iter().map(|(index, depth)| row(&calls[index], depth)).collect();
    columns(&rows, "")
}

fn descend(
    index: usize,
    depth: usize,
    calls: &[Call<'_>],
    parent: &impl Fn(&Call<'_>) -> Option<usize>,
    seen: &mut [bool],
    order: &mut Vec<(usize, usize)>,
) {
    if std::mem::replace(&mut seen[index], true) {
        return;
    }
    order.push((index, depth));
    for below in 0..calls.len() {
        if parent(&calls[below]) == Some(index) {
            descend(below, depth + 1, calls, parent, seen, order);
        }
    }
}

fn row(call: &Call<'_>, depth: usize) -> Vec<String> {
    let mut row = vec![format!("{}{}", "  ".repeat(depth), call.id), format!("{} → {}", call.caller, call.callee)];
    match call.ending {
        Some(ending) => {
            row.push(string(ending, "status").to_owned());
            row.push(duration(number(ending, "duration_ms")));
            row.push(if ending["delivered"] == false { "not delivered" } else { "delivered" }.to_owned());
        }
        None if call.id.starts_with('(') => row.extend(["unknown", "-", "-"].map(String::from)),
        None => row.extend(["outstanding", "-", "-"].map(String::from)),
    }
    row.push(call.notes.join("; "));
    row
}
