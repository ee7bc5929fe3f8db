//! The `Roster` block: the roster of a directory, admitted or not.

use std::path::Path;

use super::Report;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::roster::admission::{Admitted, Reach};
use crate::roster::admit::admit_in_child;
use crate::roster::{FILE_NAME, MAX_BYTES};
use crate::yaml::{self, ReadFault};

/// Most edges that are listed.
const MAX_EDGES: usize = 500;

/// Admits the roster of a directory and shows what came of it.
pub(super) fn block(dir: &Path, report: &mut Report) {
    let file = dir.join(FILE_NAME);
    report.out("Roster");
    report.out(format!("  file: {}", file.display()));
    match admitted(dir, &file) {
        Ok(admitted) => show(&admitted, report),
        Err(refusal) => {
            for (index, line) in refusal.message().lines().enumerate() {
                report.out(format!("  {}  {line}", if index == 0 { "✗" } else { " " }));
            }
            report.error(&refusal);
        }
    }
    report.out("");
}

fn admitted(dir: &Path, file: &Path) -> Result<Admitted> {
    let text = yaml::read_file(file, MAX_BYTES).map_err(|fault| {
        let why = match fault {
            ReadFault::Missing => "not found".to_owned(),
            ReadFault::Other(why) => format!("cannot be read: {why}"),
        };
        Diagnostic::new(codes::E_ROS_001, format!("{FILE_NAME}: {} {why}", file.display()))
    })?;
    let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    admit_in_child(&dir, &text)
}

fn show(admitted: &Admitted, report: &mut Report) {
    let coordinates: Vec<String> =
        admitted.members.iter().map(|member| format!("{}@{}", member.capsule, member.version)).collect();
    let names = admitted.members.iter().map(|member| member.name.len()).max().unwrap_or(0);
    let width = coordinates.iter().map(|coordinate| coordinate.chars().count()).max().unwrap_or(0);
    for (member, coordinate) in admitted.members.iter().zip(&coordinates) {
        report.out(format!(
            "  {:<names$}   {coordinate:<width$}   {:<5}   {}   {}",
            member.name,
            if member.entry { "entry" } else { "" },
            if member.serves_peers { "serves peers " } else { "refuses peers" },
            if member.authenticated { "authenticated door" } else { "public door" },
        ));
    }
    report.out(reachability(admitted));
    if let Some(notice) = admitted.left_out(|_| true) {
        report.out(format!("  {notice}"));
    }
    for crowded in &admitted.warnings {
        let warning = Diagnostic::new(codes::W_ROS_001, crowded.message.clone());
        report.out(format!("  {}", warning.warning_line()));
        report.count_warning(&crowded.fix);
    }
}

fn reachability(admitted: &Admitted) -> String {
    let name = |index: usize| admitted.members[index].name.as_str();
    let mut edges = admitted.edges();
    let shown: Vec<String> =
        edges.by_ref().take(MAX_EDGES).map(|(from, to)| format!("{} → {}", name(from), name(to))).collect();
    if shown.is_empty() {
        return "  reachability: none".to_owned();
    }
    let kind = if matches!(admitted.reach, Reach::All) { " (all)" } else { "" };
    let more = match edges.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("  reachability{kind}: {}{more}", shown.join(", "))
}
