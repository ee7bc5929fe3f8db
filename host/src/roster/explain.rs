//! Whether one member may call another, by which rule, and what else a call needs.
//!
//! The edge is the one tokens are signed for ([`super::admission::Admitted::may_call`]); the needs are read from what
//! admission read. Nothing here decides anything of its own.

use serde_json::{Value, json};

use super::admission::Reach;
use super::survey::{Declared, Survey};
use super::{FILE_NAME, Roster, Written};
use crate::diagnostics::{Code, Diagnostic, Result, codes, nearest};

/// The answer to "may `from` call `to`?".
#[derive(Debug)]
pub struct Explanation {
    /// The calling member's name.
    pub from: String,
    /// The called member's name.
    pub to: String,
    /// Whether there is an edge, and why.
    pub edge: Edge,
    /// What a call needs beside the edge; empty without one.
    pub needs: Vec<Need>,
    /// Why admission refuses the roster.
    pub refusal: Option<Diagnostic>,
}

/// Whether there is an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Rules write it, here.
    Rules(Vec<Written>),
    /// `reachability: all`.
    All,
    /// None, for this reason.
    None(&'static str, String),
}

/// One thing a call needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// A word that stays.
    pub what: &'static str,
    /// Whether it is there.
    pub state: State,
    /// In words.
    pub text: String,
    /// The diagnostic that says the same elsewhere.
    pub code: Option<Code>,
}

/// Whether a need is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is.
    Met,
    /// It is, within limits the text names.
    Limited,
    /// It is not: every call fails.
    Missing,
    /// The capsule that would tell is not installed.
    Unknown,
}

impl State {
    /// The word of the JSON form.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Limited => "limited",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        }
    }

    fn mark(self) -> &'static str {
        match self {
            Self::Met => "✓",
            Self::Limited => "!",
            Self::Missing => "✗",
            Self::Unknown => "?",
        }
    }
}

impl Explanation {
    /// Explains the calls of one member to another.
    ///
    /// # Errors
    /// `E-ROS-009` for a name no member has.
    pub fn of(roster: &Roster, survey: &Survey, from: &str, to: &str) -> Result<Self> {
        let (from, to) = (index(survey, from)?, index(survey, to)?);
        let name = |index: usize| survey.seen.members[index].name.clone();
        let edge = edge(roster, survey, from, to);
        let needs = match edge {
            Edge::None(..) => Vec::new(),
            Edge::All | Edge::Rules(_) => needs(survey, from, to),
        };
        Ok(Self { from: name(from), to: name(to), edge, needs, refusal: survey.refusal.clone() })
    }

    /// The roster gives the edge.
    pub fn may_call(&self) -> bool {
        !matches!(self.edge, Edge::None(..))
    }

    /// The roster gives the edge and nothing a call needs is missing.
    pub fn can_call(&self) -> bool {
        let lacking = |need: &Need| matches!(need.state, State::Missing | State::Unknown);
        self.may_call() && !self.needs.iter().any(lacking)
    }

    /// For a reader.
    pub fn text(&self) -> String {
        let Self { from, to, .. } = self;
        let verdict = match (self.may_call(), self.can_call()) {
            (false, _) => "no",
            (true, true) => "yes",
            (true, false) => "yes by the roster, but see what is missing",
        };
        let mut out = format!("May {from} call {to}? {verdict}\n");
        let mut row = |mark: &str, what: &str, text: &str| out.push_str(&format!("  {mark} {what:<15} {text}\n"));
        match &self.edge {
            Edge::Rules(places) => {
                for Written { rule, position, line } in places {
                    row("✓", "rule", &format!("{FILE_NAME}:{line}: reachability[{rule}].to[{position}]"));
                }
            }
            Edge::All => row("✓", "rule", "reachability: all, and both members serve peers"),
            Edge::None(_, why) => row("✗", "rule", why),
        }
        for need in &self.needs {
            let code = need.code.map(|code| format!(" [{code}]")).unwrap_or_default();
            row(need.state.mark(), need.what, &format!("{}{code}", need.text));
        }
        out
    }

    /// For a program: one object.
    pub fn json(&self) -> Value {
        let (kind, places, why): (&str, &[Written], _) = match &self.edge {
            Edge::Rules(places) => ("rule", places, None),
            Edge::All => ("all", &[], None),
            Edge::None(kind, why) => (kind, &[], Some(why)),
        };
        let places: Vec<Value> = places
            .iter()
            .map(|Written { rule, position, line }| json!({"rule": rule, "position": position, "line": line}))
            .collect();
        let needs: Vec<Value> = self
            .needs
            .iter()
            .map(|need| {
                json!({
                    "what": need.what, "state": need.state.as_str(), "text": need.text,
                    "code": need.code.map(Code::as_str),
                })
            })
            .collect();
        json!({
            "from": self.from,
            "to": self.to,
            "may_call": self.may_call(),
            "can_call": self.can_call() && self.refusal.is_none(),
            "by": kind,
            "rules": places,
            "why": why,
            "needs": needs,
            "refusal": self.refusal.as_ref().map(super::view::refusal_json),
        })
    }
}

fn index(survey: &Survey, name: &str) -> Result<usize> {
    let members = &survey.seen.members;
    members.iter().position(|member| member.name == name).ok_or_else(|| {
        let hint = match nearest(&name.to_lowercase(), members.iter().map(|member| member.name.as_str())) {
            Some(near) => format!("did you mean '{near}'? mur roster show lists the members"),
            None => "mur roster show lists the members; a member has a name of its own beside its capsule's".to_owned(),
        };
        Diagnostic::new(codes::E_ROS_009, format!("{FILE_NAME}: no member is named '{name}'")).hint(hint)
    })
}

fn edge(roster: &Roster, survey: &Survey, from: usize, to: usize) -> Edge {
    let seen = &survey.seen;
    let (caller, callee) = (&seen.members[from], &seen.members[to]);
    if seen.may_call(from, to) {
        return match seen.reach {
            Reach::All => Edge::All,
            Reach::Rules(_) => Edge::Rules(roster.written(&caller.name, &callee.name)),
        };
    }
    let none = |kind, why: String| Edge::None(kind, why);
    if from == to {
        return none("itself", "no member calls itself".to_owned());
    }
    if callee.entry {
        return none("entry", format!("{} is the entry member, which no member calls", callee.name));
    }
    match &seen.reach {
        Reach::Rules(edges) if edges.is_empty() => {
            none("no_reachability", "the roster has no reachability: no member may call another".to_owned())
        }
        Reach::Rules(_) => none("no_rule", format!("no rule from {} lists {} in to", caller.name, callee.name)),
        Reach::All => {
            let silent = [from, to].into_iter().find(|index| !seen.members[*index].serves_peers).unwrap_or(to);
            let name = &seen.members[silent].name;
            let why = match &survey.declared[silent] {
                Ok(_) => format!("{name} does not declare exports.peer_tasks.accept: true, so all leaves it out"),
                Err(_) => format!("{name} is not installed, so it is not known whether all includes it"),
            };
            none("no_peer_tasks", why)
        }
    }
}

/// What a call needs beside its edge, in the order it would meet it.
fn needs(survey: &Survey, from: usize, to: usize) -> Vec<Need> {
    let (caller, callee) = (&survey.seen.members[from].name, &survey.seen.members[to].name);
    let mut needs = Vec::new();
    match &survey.declared[from] {
        Ok(declared) => of_caller(caller, declared, &mut needs),
        Err(refusal) => needs.push(unknown("caller", caller, refusal)),
    }
    match &survey.declared[to] {
        Ok(declared) => of_callee(survey, to, declared, &mut needs),
        Err(refusal) => needs.push(unknown("callee", callee, refusal)),
    }
    needs
}

fn unknown(what: &'static str, name: &str, refusal: &Diagnostic) -> Need {
    let text = format!("{name}'s capsule cannot be read, so what it declares is not known");
    Need { what, state: State::Unknown, text, code: Some(refusal.code()) }
}

fn of_caller(name: &str, declared: &Declared, needs: &mut Vec<Need>) {
    let mut need = |what, state, text: String, code| needs.push(Need { what, state, text, code });
    match declared.has_model {
        true => need("tool", State::Met, format!("{name}'s model is offered call-member"), None),
        false => {
            let text = format!("{name} has no inference, so no model is offered call-member");
            need("tool", State::Missing, text, None);
        }
    }
    match declared.max_turns {
        Some(1) => {
            let text = format!("{name}'s inference.max_turns: 1 leaves no turn in which an answer could come back");
            need("turns", State::Limited, text, None);
        }
        Some(turns) => need("turns", State::Met, format!("{name} has {turns} turns a task, answers included"), None),
        None => need("turns", State::Met, format!("{name} has no cap on its turns"), None),
    }
    match declared.reaches_doors {
        true => need("network", State::Met, format!("{name}'s capabilities.network.allow has localhost"), None),
        false => {
            let text = format!(
                "{name}'s capabilities.network.allow reaches no member's door, so every call fails; declare the bare entry \
                 localhost"
            );
            need("network", State::Missing, text, Some(codes::W_RUN_008));
        }
    }
    let text =
        format!("a call is given up after {} s (lifecycle.delegation_deadline_secs)", declared.call_deadline_secs);
    need("time", State::Met, text, None);
}

fn of_callee(survey: &Survey, to: usize, declared: &Declared, needs: &mut Vec<Need>) {
    let member = &survey.seen.members[to];
    let name = &member.name;
    let mut need = |what, state, text: String, code| needs.push(Need { what, state, text, code });
    match member.serves_peers {
        true => need("peer_tasks", State::Met, format!("{name} declares exports.peer_tasks.accept: true"), None),
        false => {
            let text = format!("{name} does not declare exports.peer_tasks.accept: true");
            need("peer_tasks", State::Missing, text, Some(codes::E_ROS_005));
        }
    }
    match member.authenticated {
        true => {
            let text =
                format!("{name}'s door asks for a token; the launcher signs the one of this edge, and mur sends it");
            need("authentication", State::Met, text, None);
        }
        false => {
            let text = format!("{name} does not declare network.authentication");
            need("authentication", State::Missing, text, Some(codes::E_ROS_006));
        }
    }
    let crowded = survey.seen.warnings.iter().find(|crowded| crowded.member == to);
    match (member.holds, crowded) {
        (0, _) => {
            let text = format!("{name} declares task_acceptance: none, so its door takes no task");
            need("room", State::Missing, text, Some(codes::W_ROS_001));
        }
        (_, Some(crowded)) => {
            let text = format!(
                "{name} holds {} and {} members may call it: a call that finds it full is offered again until its time is \
                 up; queue_depth: {} would hold one of each",
                member.room(),
                crowded.callers,
                crowded.queue_depth
            );
            need("room", State::Limited, text, Some(codes::W_ROS_001));
        }
        (_, None) => {
            let text = format!("{name} holds {}", member.room());
            need("room", State::Met, text, None);
        }
    }
    match declared.goes_on {
        true => need("lifecycle", State::Met, format!("{name} goes on after each task"), None),
        false => {
            let text = format!(
                "{name} ends after its first task, so later calls find nobody; declare task_acceptance: queue and \
                 after_task: sleep"
            );
            need("lifecycle", State::Limited, text, None);
        }
    }
}

#[cfg(test)]
mod tests;
