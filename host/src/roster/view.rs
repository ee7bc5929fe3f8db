//! A roster as `mur roster show` shows it: text, JSON, Mermaid, DOT and SVG of one [`View`].

mod graph;
mod layout;
mod svg;
mod text;

use std::path::Path;

use serde_json::{Value, json};

use super::Roster;
use super::admission::{AdmittedMember, Reach};
use super::survey::{Declared, Survey};
use crate::diagnostics::{Diagnostic, Result};

/// The forms a roster is shown in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a reader
    Text,
    /// A Mermaid flow chart
    Mermaid,
    /// A Graphviz digraph
    Dot,
    /// A picture, laid out by mur itself
    Svg,
    /// One object
    Json,
}

/// A roster and what is known of it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The roster's file.
    pub file: &'a Path,
    /// As written.
    pub roster: &'a Roster,
    /// As admission sees it.
    pub survey: &'a Survey,
}

impl View<'_> {
    /// Renders it, with a final newline.
    ///
    /// # Errors
    /// `E-IO-003` for a roster too large to be drawn.
    pub fn render(&self, format: Format) -> Result<String> {
        Ok(match format {
            Format::Text => text::render(self),
            Format::Mermaid => graph::mermaid(self),
            Format::Dot => graph::dot(self),
            Format::Svg => svg::render(self)?,
            Format::Json => format!("{}\n", self.json()),
        })
    }

    fn members(&self) -> &[AdmittedMember] {
        &self.survey.seen.members
    }

    fn name(&self, index: usize) -> &str {
        &self.members()[index].name
    }

    /// What the member's capsule declares, when it is known.
    fn declared(&self, index: usize) -> Option<&Declared> {
        self.survey.declared[index].as_ref().ok()
    }

    /// Whether more members may call it than it holds tasks.
    fn crowded(&self, index: usize) -> bool {
        self.survey.seen.warnings.iter().any(|crowded| crowded.member == index)
    }

    /// `all`, `rules` or `none`.
    fn reachability(&self) -> &'static str {
        match (&self.survey.seen.reach, self.survey.seen.has_edges()) {
            (Reach::All, _) => "all",
            (Reach::Rules(_), true) => "rules",
            (Reach::Rules(_), false) => "none",
        }
    }

    fn json(&self) -> Value {
        let lines = self.roster.lines();
        let edges: Vec<Value> = self
            .survey
            .seen
            .edges()
            .map(|(from, to)| {
                let (from, to) = (self.name(from), self.name(to));
                json!({"from": from, "to": to, "line": lines.get(&(from, to))})
            })
            .collect();
        let warnings: Vec<Value> = self
            .survey
            .seen
            .warnings
            .iter()
            .map(|crowded| {
                json!({
                    "code": "W-ROS-001",
                    "member": self.name(crowded.member),
                    "callers": crowded.callers,
                    "holds": self.members()[crowded.member].holds,
                    "queue_depth": crowded.queue_depth,
                    "message": crowded.message,
                })
            })
            .collect();
        json!({
            "roster": self.file.to_string_lossy(),
            "admitted": self.survey.refusal.is_none(),
            "refusal": self.survey.refusal.as_ref().map(refusal_json),
            "reachability": self.reachability(),
            "members": (0..self.members().len()).map(|index| self.member_json(index)).collect::<Vec<_>>(),
            "edges": edges,
            "warnings": warnings,
        })
    }

    fn member_json(&self, index: usize) -> Value {
        let member = &self.members()[index];
        let declared = self.declared(index);
        let known = |value: Value| if declared.is_some() { value } else { Value::Null };
        json!({
            "name": member.name,
            "capsule": member.capsule,
            "version": member.version,
            "entry": member.entry,
            "sha256": known(json!(member.sha256)),
            "serves_peers": known(json!(member.serves_peers)),
            "authenticated": known(json!(member.authenticated)),
            "credentials": declared.map(|declared| &declared.credentials),
            "holds": known(json!(member.holds)),
            "task_acceptance": declared.map(|declared| declared.task_acceptance),
            "after_task": declared.map(|declared| declared.after_task),
            "queue_depth": declared.map(|declared| declared.queue_depth),
            "reaches_doors": declared.map(|declared| declared.reaches_doors),
            "refusal": self.survey.declared[index].as_ref().err().map(refusal_json),
        })
    }
}

/// A refusal as the JSON forms have it.
pub(super) fn refusal_json(refusal: &Diagnostic) -> Value {
    json!({
        "code": refusal.code().as_str(),
        "message": refusal.message(),
        "hint": refusal.hint_text(),
        "line": refusal.place().map(|place| place.line),
        "column": refusal.place().map(|place| place.column),
    })
}

#[cfg(test)]
mod tests;
