//! A sound roster looked at whole, admitted or not: what `mur roster show` and `mur roster explain` speak of.
//!
//! Admission stops at the first fault; a survey goes on, takes what it can of every member, and keeps the refusal
//! admission would give. Edges, warnings and checks are admission's own.

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::admission::{self, Admitted, AdmittedMember, Installed, Lookup, Source};
use super::{Checked, Member, Roster, warning};
use crate::diagnostics::{Diagnostic, Result};
use crate::manifest::{Acceptance, AfterTask, covers_loopback_http};

/// What can be said of a roster that has passed checks 2 to 5.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Survey {
    /// As admission would have it. A member that is not there stands in it as one that serves nobody, without a digest.
    pub seen: Admitted,
    /// By member: what its capsule declares, or why that is not known.
    pub declared: Vec<std::result::Result<Declared, Diagnostic>>,
    /// Why admission refuses the roster; `None` when it is admitted.
    pub refusal: Option<Diagnostic>,
}

/// What of a capsule decides whether calls to and from it work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Declared {
    /// Its packed manifest's text.
    pub manifest: String,
    /// `lifecycle.task_acceptance`.
    pub task_acceptance: Acceptance,
    /// `lifecycle.after_task`.
    pub after_task: AfterTask,
    /// `lifecycle.queue_depth`.
    pub queue_depth: u32,
    /// It takes tasks after its first.
    pub goes_on: bool,
    /// `lifecycle.delegation_deadline_secs`: how long a call of its own may take.
    pub call_deadline_secs: u64,
    /// `inference.max_turns`.
    pub max_turns: Option<u64>,
    /// It has a model, to which `call-member` can be offered.
    pub has_model: bool,
    /// `capabilities.network.allow` reaches members' doors (else `W-RUN-008`).
    pub reaches_doors: bool,
    /// Names of the credentials its door knows beside the operator's.
    pub credentials: Vec<String>,
}

impl Survey {
    /// The members that may call `to`, in roster order.
    pub fn callers(&self, to: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.seen.members.len()).filter(move |from| self.seen.may_call(*from, to))
    }
}

/// Looks at every member. Nothing is refused: what admission would refuse is in the survey.
pub fn survey(roster: &Roster, checked: Checked, source: &mut dyn Source) -> Survey {
    let mut lookup = Lookup::new(roster, source);
    let found: Vec<Result<Rc<Installed>>> =
        (0..roster.members.len()).map(|index| lookup.member(roster, index)).collect();
    let members = roster.members.iter().zip(&found).map(|(member, found)| match found {
        Ok(installed) => admission::admitted(member, installed),
        Err(_) => absent(member),
    });
    let retain = found[checked.entry].as_ref().ok().and_then(|entry| entry.capsule.trace.retain);
    let members = members.collect();
    // Whoever looks at a survey compares sources whole, files and all.
    let mut seen = Admitted { members, reach: checked.reach(), warnings: Vec::new(), retain, stale: Vec::new() };
    let lifecycles: Vec<_> =
        found.iter().map(|found| found.as_ref().ok().map(|member| &member.capsule.lifecycle)).collect();
    seen.warnings = warning::crowded(&seen, &lifecycles);
    let refusal = match found.iter().find_map(|found| found.as_ref().err()) {
        Some(refusal) => Some(refusal.clone()),
        None => admission::formed(roster, &seen).err(),
    };
    let declared = found.into_iter().map(|found| found.map(|member| declared(&member))).collect();
    Survey { seen, declared, refusal }
}

fn absent(member: &Member) -> AdmittedMember {
    AdmittedMember {
        name: member.name.clone(),
        capsule: member.capsule.as_str().to_owned(),
        version: member.version.as_str().to_owned(),
        sha256: String::new(),
        entry: member.entry,
        serves_peers: false,
        authenticated: false,
        holds: 0,
    }
}

fn declared(member: &Installed) -> Declared {
    let capsule = &member.capsule;
    let lifecycle = &capsule.lifecycle;
    let authentication = capsule.network.authentication.as_ref();
    Declared {
        manifest: member.manifest.clone(),
        task_acceptance: lifecycle.task_acceptance,
        after_task: lifecycle.after_task,
        queue_depth: lifecycle.queue_depth,
        goes_on: lifecycle.goes_on(),
        call_deadline_secs: lifecycle.delegation_deadline_secs,
        max_turns: capsule.inference.as_ref().and_then(|inference| inference.max_turns),
        has_model: capsule.inference.is_some(),
        reaches_doors: capsule.capabilities.network_rules().is_ok_and(|rules| covers_loopback_http(&rules)),
        credentials: authentication
            .map(|declared| declared.credentials.iter().map(|credential| credential.name.clone()).collect())
            .unwrap_or_default(),
    }
}
