//! Rosters: parsing, checking and admission.
//!
//! Parsing and checks 1 to 5 read no store; [`admission`] does the rest. Everything stops at the first fault. The order
//! of faults is part of the contract: by check, within a check by roster order, within a block by key.

pub mod admission;
pub mod admit;
mod check;
pub mod explain;
pub mod keys;
mod read;
pub mod scaffold;
pub mod survey;
pub mod view;
mod warning;

use std::collections::HashMap;

use crate::artifacts::name::{ArtifactName, Version};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::yaml::{self, Doc, Mark};

/// The one name a roster file has.
pub const FILE_NAME: &str = "roster.yaml";

/// A roster larger than this is refused before it is read.
pub const MAX_BYTES: u64 = 16 << 20;

/// A roster of the right shape (check 1). Whether it means something is for [`Roster::check`].
#[derive(Debug)]
pub struct Roster {
    /// At least one, in roster order.
    pub members: Vec<Member>,
    /// Who may call whom, as written.
    pub reachability: Reachability,
    doc: Doc,
}

/// One entry of `members`.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Matches `^[a-z][a-z0-9-]{0,31}$`.
    pub name: String,
    /// The installed capsule.
    pub capsule: ArtifactName,
    /// Exact, as written.
    pub version: Version,
    /// `entry: true`.
    pub entry: bool,
    mark: Mark,
    version_mark: Mark,
    entry_mark: Mark,
}

impl Member {
    /// `<capsule>@<version>`.
    pub fn coordinate(&self) -> String {
        format!("{}@{}", self.capsule, self.version)
    }
}

/// `reachability` as written.
#[derive(Clone, Debug, PartialEq)]
pub enum Reachability {
    /// Every pair of members that serve peers, except into the entry member.
    All,
    /// Rules; none when the key is absent or the list empty.
    Rules(Vec<Rule>),
}

/// One entry of `reachability`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The calling member's name.
    pub from: String,
    /// The called members' names; at least one, never `from`.
    pub to: Vec<String>,
    from_mark: Mark,
    to_marks: Vec<Mark>,
}

/// One place that writes an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Index into `reachability`.
    pub rule: usize,
    /// Index into the rule's `to`.
    pub position: usize,
    /// 1-based line of the file.
    pub line: u32,
}

/// What checks 2 to 5 settle: names are members, and who is the entry member.
#[derive(Debug)]
pub struct Checked {
    /// The entry member's index.
    pub entry: usize,
    /// The rules' edges as indices, sorted, each once; `None` for `all`.
    pub edges: Option<Vec<(u32, u32)>>,
}

/// Check 1: the file reads and has the shape of a roster.
///
/// # Errors
/// `E-ROS-001` with the place of the fault.
pub fn parse(text: &[u8]) -> Result<Roster> {
    let doc =
        yaml::parse(FILE_NAME, text, MAX_BYTES).map_err(|fault| fault.into_diagnostic(codes::E_ROS_001, FILE_NAME))?;
    read::roster(doc)
}

impl Roster {
    /// Checks 2 to 5.
    ///
    /// # Errors
    /// `E-ROS-003`, `E-ROS-002`, `E-ROS-004`, `E-ROS-008`.
    pub fn check(&self) -> Result<Checked> {
        check::check(self)
    }

    /// Where the rules write the edge from one member to another: every place, in the order written.
    pub fn written(&self, from: &str, to: &str) -> Vec<Written> {
        let Reachability::Rules(rules) = &self.reachability else { return Vec::new() };
        let own = rules.iter().enumerate().filter(|(_, rule)| rule.from == from);
        own.flat_map(|(index, rule)| {
            let names = rule.to.iter().zip(&rule.to_marks).enumerate();
            names.filter(|(_, (name, _))| *name == to).map(move |(position, (_, mark))| Written {
                rule: index,
                position,
                line: mark.line,
            })
        })
        .collect()
    }

    /// The line of every edge the rules write, by its members' names; an edge written twice by its first line.
    pub fn lines(&self) -> HashMap<(&str, &str), u32> {
        let Reachability::Rules(rules) = &self.reachability else { return HashMap::new() };
        let mut lines = HashMap::new();
        for rule in rules {
            for (to, mark) in rule.to.iter().zip(&rule.to_marks) {
                lines.entry((rule.from.as_str(), to.as_str())).or_insert(mark.line);
            }
        }
        lines
    }

    /// A diagnostic about this roster, placed in it.
    fn refused(&self, code: crate::diagnostics::Code, mark: Mark, message: &str) -> Diagnostic {
        Diagnostic::new(code, format!("{FILE_NAME}: {message}")).at(self.doc.place(mark))
    }

    /// A diagnostic about one member.
    fn refused_member(&self, code: crate::diagnostics::Code, member: usize, message: &str) -> Diagnostic {
        self.refused(code, self.members[member].mark, message)
    }
}

/// Whether a text can name a member.
pub fn is_member_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    text.len() <= 32
        && bytes.next().is_some_and(|b| b.is_ascii_lowercase())
        && bytes.all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Entry of the fuzz target: no bytes make the reader or checks 2 to 5 panic.
pub fn fuzz(bytes: &[u8]) {
    if let Ok(roster) = parse(bytes) {
        let _ = roster.check();
    }
}

#[cfg(test)]
mod tests;
