//! The roster for a reader: one block a member.

use std::fmt::Write as _;

use super::View;
use crate::diagnostics::shown;
use crate::manifest::{Acceptance, AfterTask};

/// Most names a line lists.
const MAX_NAMED: usize = 20;

pub(super) fn render(view: &View<'_>) -> String {
    let mut out = String::new();
    let (members, edges) = (view.members().len(), view.survey.seen.edges().count());
    let verdict = match &view.survey.refusal {
        None => "admitted".to_owned(),
        Some(refusal) => format!("refused with {}", refusal.code()),
    };
    let by = match view.reachability() {
        "none" => String::new(),
        kind => format!(" by {kind}"),
    };
    let _ = writeln!(out, "{}: {verdict}", view.file.display());
    let _ = writeln!(out, "{}, {}{by}", counted(members, "member"), counted(edges, "edge"));
    if let Some(notice) = view.survey.seen.left_out(|index| view.declared(index).is_some()) {
        let _ = writeln!(out, "{notice}");
    }
    for index in 0..members {
        member(view, index, &mut out);
    }
    // What stores and paths say is outside text.
    shown(&out).into_owned()
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn member(view: &View<'_>, index: usize, out: &mut String) {
    let member = &view.members()[index];
    let entry = if member.entry { " (entry member)" } else { "" };
    let _ = writeln!(out, "\n{}{entry}", member.name);
    let mut row = |what: &str, text: &str| {
        let _ = writeln!(out, "  {what:<10} {text}");
    };
    row("capsule", &format!("{}@{}", member.capsule, member.version));
    match &view.survey.declared[index] {
        Ok(_) => row("sha256", &member.sha256),
        Err(refusal) => row("missing", &format!("{} [{}]", refusal.message(), refusal.code())),
    }
    row("calls", &calls(view, index));
    row("called by", &listed(view.survey.callers(index).map(|from| view.name(from).to_owned())));
    if let Some(declared) = view.declared(index) {
        row("tasks", &tasks(view, index));
        let peers = if member.serves_peers { "accepted" } else { "refused (exports.peer_tasks.accept is not true)" };
        row("peer tasks", peers);
        row("door", &door(view, index, &declared.credentials));
        let calls = view.survey.seen.callees(index).next().is_some();
        if calls && !declared.reaches_doors {
            row(
                "W-RUN-008",
                "capabilities.network.allow reaches no member's door: every call fails; declare localhost",
            );
        }
    }
    if let Some(crowded) = view.survey.seen.warnings.iter().find(|crowded| crowded.member == index) {
        row("W-ROS-001", &crowded.message);
        row("", "a call that finds it full is offered again until its time is up");
    }
}

/// The members it may call, each with the line that says so.
fn calls(view: &View<'_>, from: usize) -> String {
    let line = |to: usize| {
        let name = view.name(to);
        match view.roster.written(view.name(from), name).first() {
            Some(written) => format!("{name} (line {})", written.line),
            None => name.to_owned(),
        }
    };
    listed(view.survey.seen.callees(from).map(line))
}

fn listed(mut names: impl Iterator<Item = String>) -> String {
    let first: Vec<String> = names.by_ref().take(MAX_NAMED).collect();
    match (first.is_empty(), names.count()) {
        (true, _) => "nobody".to_owned(),
        (false, 0) => first.join(", "),
        (false, more) => format!("{} and {more} more", first.join(", ")),
    }
}

fn tasks(view: &View<'_>, index: usize) -> String {
    let (member, Some(declared)) = (&view.members()[index], view.declared(index)) else { return String::new() };
    if member.entry {
        return "as the launch sets it: one task with --task, else a queue of them".to_owned();
    }
    let how = match declared.task_acceptance {
        Acceptance::None => "task_acceptance: none".to_owned(),
        Acceptance::Single => "task_acceptance: single".to_owned(),
        Acceptance::Queue => format!("task_acceptance: queue, queue_depth: {}", declared.queue_depth),
    };
    let after = match (declared.goes_on, declared.after_task) {
        (true, _) => "waits for the next after each",
        (false, AfterTask::Sleep) => "ends after the first (after_task: sleep acts with queue)",
        (false, AfterTask::Exit) => "ends after the first",
    };
    format!("holds {} ({how}); {after}", member.room())
}

fn door(view: &View<'_>, index: usize, credentials: &[String]) -> String {
    if !view.members()[index].authenticated {
        return "public: takes a call from anybody who reaches it".to_owned();
    }
    let callers = view.survey.callers(index).map(|from| format!("member:{}", view.name(from)));
    let tokens = std::iter::once("operator".to_owned()).chain(credentials.iter().cloned()).chain(callers);
    format!("asks for a token of: {}", listed(tokens))
}
