//! Admission: the checks that read the stores, and what an admitted roster is.

use serde::{Deserialize, Serialize};

use crate::manifest::Retain;

/// An admitted roster, bound to the bytes that were read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admitted {
    /// In roster order.
    pub members: Vec<AdmittedMember>,
    /// Who may call whom. Read it through [`Admitted::callees`] and [`Admitted::edges`].
    pub reach: Reach,
    /// Messages of `W-ROS-001`, in roster order.
    pub warnings: Vec<Crowded>,
    /// The entry member's `trace.retain`.
    pub retain: Option<Retain>,
}

impl Admitted {
    /// The entry member's index.
    pub fn entry(&self) -> usize {
        self.members.iter().position(|member| member.entry).unwrap_or(0)
    }

    /// The members `from` may call, in roster order.
    pub fn callees(&self, from: usize) -> Box<dyn Iterator<Item = usize> + '_> {
        match &self.reach {
            Reach::All if self.members.get(from).is_some_and(|member| member.serves_peers) => Box::new(
                self.members
                    .iter()
                    .enumerate()
                    .filter(move |(to, member)| *to != from && member.serves_peers && !member.entry)
                    .map(|(to, _)| to),
            ),
            Reach::All => Box::new(std::iter::empty()),
            Reach::Rules(edges) => {
                let first = edges.partition_point(|edge| (edge.0 as usize) < from);
                Box::new(
                    edges[first..].iter().take_while(move |edge| edge.0 as usize == from).map(|edge| edge.1 as usize),
                )
            }
        }
    }

    /// Every edge `from`, `to`, sorted.
    pub fn edges(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.members.len()).flat_map(|from| self.callees(from).map(move |to| (from, to)))
    }

    /// Whether anybody may call anybody.
    pub fn has_edges(&self) -> bool {
        match &self.reach {
            Reach::All => {
                let serving = self.members.iter().filter(|member| member.serves_peers);
                let (callers, callees) = serving.fold((0_usize, 0_usize), |(callers, callees), member| {
                    (callers + 1, callees + usize::from(!member.entry))
                });
                callers >= 2 && callees >= 1
            }
            Reach::Rules(edges) => !edges.is_empty(),
        }
    }
}

/// Who may call whom, as compact as the roster said it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// Every ordered pair of distinct members that serve peers, except into the entry member.
    All,
    /// `from`, `to` as indices into the members; sorted, each edge once.
    Rules(Vec<(u32, u32)>),
}

/// One member of an admitted roster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdmittedMember {
    /// Its name in the roster.
    pub name: String,
    /// Full name of its capsule.
    pub capsule: String,
    /// Exact version.
    pub version: String,
    /// SHA-256 of the artifact admission read, lower-case hex.
    pub sha256: String,
    /// Whether it is the entry member.
    pub entry: bool,
    /// `exports.peer_tasks.accept`.
    pub serves_peers: bool,
    /// `network.authentication` is declared.
    pub authenticated: bool,
    /// Tasks it holds at once.
    pub holds: usize,
}

/// A member more members may call than it holds tasks at once (`W-ROS-001`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crowded {
    /// The message, without code, prefix and link.
    pub message: String,
    /// What to change, for `mur doctor`.
    pub fix: String,
}

/// Admits a roster: the shape and checks 1 to 5 first, then the stores, the lock, who serves peers, who authenticates.
///
/// # Errors
/// `E-ROS-*` or `E-REG-005`: the first fault in the order of checks.
pub fn admit(
    text: &[u8],
    project: &std::path::Path,
    home: &crate::paths::MurmurHome,
) -> crate::diagnostics::Result<Admitted> {
    let _ = (text, project, home);
    Err(crate::diagnostics::Diagnostic::new(crate::diagnostics::codes::E_IO_003, "admission is not built yet"))
}
