//! Admission: the checks that read the stores, and what an admitted roster is.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::{Checked, Member, Roster, warning};
use crate::artifacts::lock::{Bound, Lock};
use crate::artifacts::name::{Digest, how_to_get};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{Capsule, Retain};

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
    /// `W-REG-004` of every capsule whose manifest is another beside the roster than in the store.
    pub stale: Vec<Diagnostic>,
}

impl Admitted {
    /// The entry member's index.
    pub fn entry(&self) -> usize {
        self.members.iter().position(|member| member.entry).unwrap_or(0)
    }

    /// The members `from` may call, in roster order.
    pub fn callees(&self, from: usize) -> Box<dyn Iterator<Item = usize> + '_> {
        match &self.reach {
            Reach::All => Box::new((0..self.members.len()).filter(move |to| self.may_call(from, *to))),
            Reach::Rules(edges) => {
                let first = edges.partition_point(|edge| (edge.0 as usize) < from);
                Box::new(
                    edges[first..].iter().take_while(move |edge| edge.0 as usize == from).map(|edge| edge.1 as usize),
                )
            }
        }
    }

    /// Whether there is an edge.
    pub fn may_call(&self, from: usize, to: usize) -> bool {
        match &self.reach {
            Reach::All => {
                let serves = |index: usize| self.members.get(index).is_some_and(|member| member.serves_peers);
                from != to && serves(from) && serves(to) && !self.members[to].entry
            }
            Reach::Rules(edges) => {
                edges.binary_search_by(|edge| (edge.0 as usize, edge.1 as usize).cmp(&(from, to))).is_ok()
            }
        }
    }

    /// Every edge `from`, `to`, sorted.
    pub fn edges(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.members.len()).flat_map(|from| self.callees(from).map(move |to| (from, to)))
    }

    /// Says which members `reachability: all` leaves on no edge. Those `known` says no to are passed over: what they
    /// declare cannot be told.
    pub fn left_out(&self, known: impl Fn(usize) -> bool) -> Option<String> {
        if !matches!(self.reach, Reach::All) {
            return None;
        }
        let silent = self.members.iter().enumerate().filter(|(at, member)| !member.serves_peers && known(*at));
        let mut names = silent.map(|(_, member)| match member.entry {
            true => format!("{} (the entry member)", member.name),
            false => member.name.clone(),
        });
        let shown: Vec<String> = names.by_ref().take(MAX_LEFT_OUT).collect();
        let more = match names.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!shown.is_empty()).then(|| {
            format!(
                "reachability: all leaves out {}{more}: without exports.peer_tasks.accept: true a member neither calls nor \
                 is called",
                shown.join(", ")
            )
        })
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

/// Most members that are named as left out.
const MAX_LEFT_OUT: usize = 10;

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

impl AdmittedMember {
    /// What it holds, in words: how many tasks run and how many wait.
    pub fn room(&self) -> String {
        match self.holds {
            0 => "no task".to_owned(),
            1 => "one task, none waiting".to_owned(),
            holds => format!("one task running and {} waiting", holds - 1),
        }
    }
}

/// A member more members may call than it holds tasks at once (`W-ROS-001`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crowded {
    /// Its index.
    pub member: usize,
    /// How many members may call it.
    pub callers: usize,
    /// The `lifecycle.queue_depth` that holds one task of each.
    pub queue_depth: usize,
    /// The message, without code, prefix and link.
    pub message: String,
    /// What to change, for `mur doctor`.
    pub fix: String,
}

/// What admission needs of one member's artifact.
#[derive(Clone, Debug)]
pub struct Installed {
    /// SHA-256 of the bytes that were read, by the host.
    pub sha256: Digest,
    /// Its packed manifest's text.
    pub manifest: String,
    /// What it declares.
    pub capsule: Capsule,
    /// What a lock would have to pin.
    pub bound: Bound,
}

/// Where admission looks members up. Only `mur __admit` has real stores behind it.
pub trait Source {
    /// Told once and first: what will be asked for, in this order. A source may look ahead.
    fn expect(&mut self, _members: &[&Member]) {}
    /// The installed capsule; the error is the reason in words, and a hint where the usual one does not serve.
    fn installed(&mut self, member: &Member) -> std::result::Result<Installed, Reason>;
    /// What of it is not as the project's sources have it.
    fn stale(&self) -> Vec<Diagnostic> {
        Vec::new()
    }
    /// The project's lock, read when the first member is there.
    fn lock(&mut self) -> Result<Option<Lock>>;
}

/// Why a member cannot be taken from a store.
#[derive(Clone, Debug)]
pub struct Reason {
    /// A clause after `'<member>' (<capsule>@<version>): `.
    pub text: String,
    /// Instead of installing the capsule.
    pub hint: Option<String>,
    /// The capsule is there in other versions: it is the version that is wrong.
    pub other_version: bool,
}

/// Checks 6 to 8 of a roster that has passed 2 to 5.
///
/// # Errors
/// `E-ROS-007`, `E-REG-005`, `E-ROS-005`, `E-ROS-006`: the first fault in the order of checks; `E-RUN-003` for a lock
/// that cannot be read.
pub fn admit(roster: &Roster, checked: Checked, source: &mut dyn Source) -> Result<Admitted> {
    let mut lookup = Lookup::new(roster, source);
    let installed: Vec<Rc<Installed>> =
        (0..roster.members.len()).map(|index| lookup.member(roster, index)).collect::<Result<_>>()?;
    let members = roster.members.iter().zip(&installed).map(|(member, found)| admitted(member, found)).collect();
    let retain = installed[checked.entry].capsule.trace.retain;
    let stale = lookup.source.stale();
    let mut admitted = Admitted { members, reach: checked.reach(), warnings: Vec::new(), retain, stale };
    formed(roster, &admitted)?;
    let lifecycles: Vec<_> = installed.iter().map(|member| Some(&member.capsule.lifecycle)).collect();
    admitted.warnings = warning::crowded(&admitted, &lifecycles);
    Ok(admitted)
}

impl Checked {
    /// The edges as an admitted roster has them.
    pub(super) fn reach(self) -> Reach {
        self.edges.map_or(Reach::All, Reach::Rules)
    }
}

/// Checks 7 and 8, which take the members together.
pub(super) fn formed(roster: &Roster, admitted: &Admitted) -> Result<()> {
    called_members_serve(roster, admitted)?;
    doors_authenticate(roster, admitted)
}

/// Check 6, one member at a time. Members of one coordinate share what was read.
pub(super) struct Lookup<'r, 's> {
    source: &'s mut dyn Source,
    seen: HashMap<(&'r str, &'r str), Rc<Installed>>,
    lock: Option<Option<Lock>>,
}

impl<'r, 's> Lookup<'r, 's> {
    pub(super) fn new(roster: &'r Roster, source: &'s mut dyn Source) -> Self {
        let mut known = HashSet::with_capacity(roster.members.len());
        let distinct: Vec<&Member> = roster.members.iter().filter(|member| known.insert(coordinate(member))).collect();
        source.expect(&distinct);
        Self { source, seen: HashMap::with_capacity(distinct.len()), lock: None }
    }

    /// The member is installed and agrees with the lock.
    pub(super) fn member(&mut self, roster: &'r Roster, index: usize) -> Result<Rc<Installed>> {
        let member = &roster.members[index];
        let coordinate = coordinate(member);
        if let Some(known) = self.seen.get(&coordinate) {
            return Ok(Rc::clone(known));
        }
        let installed = self.source.installed(member).map_err(|reason| not_installed(roster, index, &reason))?;
        if self.lock.is_none() {
            self.lock = Some(self.source.lock()?);
        }
        if let Some(Some(lock)) = &self.lock {
            lock.agrees(&installed.bound).map_err(|conflict| unlike_lock(roster, index, &conflict))?;
        }
        let installed = Rc::new(installed);
        self.seen.insert(coordinate, Rc::clone(&installed));
        Ok(installed)
    }
}

fn coordinate(member: &Member) -> (&str, &str) {
    (member.capsule.as_str(), member.version.as_str())
}

fn not_installed(roster: &Roster, index: usize, reason: &Reason) -> Diagnostic {
    let member = &roster.members[index];
    let message = format!("member '{}' ({}): {}", member.name, member.coordinate(), reason.text);
    let usual = || {
        let get = how_to_get(&member.capsule, &member.version);
        match reason.other_version {
            true => format!("change the member's version to one that is installed, or {get}"),
            false => format!("{get}, or change the member's capsule or version"),
        }
    };
    let mark = if reason.other_version { member.version_mark } else { member.mark };
    roster.refused(codes::E_ROS_007, mark, &message).hint(reason.hint.clone().unwrap_or_else(usual))
}

fn unlike_lock(roster: &Roster, index: usize, conflict: &Diagnostic) -> Diagnostic {
    let member = &roster.members[index];
    let message = format!("member '{}' ({}): {}", member.name, member.coordinate(), conflict.message());
    roster
        .refused_member(codes::E_REG_005, index, &message)
        .hint("change the member's version, or remove the stale entry from murmur.lock and install again")
}

pub(super) fn admitted(member: &Member, installed: &Installed) -> AdmittedMember {
    AdmittedMember {
        name: member.name.clone(),
        capsule: member.capsule.as_str().to_owned(),
        version: member.version.as_str().to_owned(),
        sha256: installed.sha256.hex(),
        entry: member.entry,
        serves_peers: installed.capsule.exports.peer_tasks,
        authenticated: installed.capsule.network.authentication.is_some(),
        holds: installed.capsule.lifecycle.holds(),
    }
}

/// Check 7: every member a rule calls serves peers.
fn called_members_serve(roster: &Roster, admitted: &Admitted) -> Result<()> {
    let Reach::Rules(edges) = &admitted.reach else { return Ok(()) };
    let refusing = edges.iter().map(|(_, to)| *to as usize).filter(|to| !admitted.members[*to].serves_peers).min();
    let Some(index) = refusing else { return Ok(()) };
    let member = &roster.members[index];
    let message = format!(
        "member '{}' ({}) is called by a rule and does not declare exports.peer_tasks.accept: true",
        member.name,
        member.coordinate()
    );
    Err(roster.refused_member(codes::E_ROS_005, index, &message).hint(format!(
        "declare it in the capsule's murmur.yaml, rebuild and install it, or drop '{}' from to",
        member.name
    )))
}

/// Check 8: with any edge, every door asks who calls.
fn doors_authenticate(roster: &Roster, admitted: &Admitted) -> Result<()> {
    if !admitted.has_edges() {
        return Ok(());
    }
    let Some(index) = admitted.members.iter().position(|member| !member.authenticated) else { return Ok(()) };
    let member = &roster.members[index];
    let message = format!(
        "member '{}' ({}) does not declare network.authentication, which every member of a roster with edges needs",
        member.name,
        member.coordinate()
    );
    Err(roster.refused_member(codes::E_ROS_006, index, &message).hint(
        "declare network.authentication: {scheme: bearer}, rebuild and install the capsule, or remove the reachability; it \
         cannot stand beside capabilities.spawn.allow",
    ))
}
