//! The launch's announcement: once, when every peer is ready and before the entry member starts.

use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::diagnostics::output;
use crate::ids::FormationId;

use super::member::Plan;
use super::readiness::Ready;

/// The one moment every member of a launch ends at.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// Unix milliseconds.
    pub at_ms: u64,
    /// Seconds after the launcher's start.
    pub secs: u64,
}

impl Deadline {
    /// The moment as RFC 3339, UTC.
    pub fn at(&self) -> String {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.at_ms) * 1_000_000)
            .ok()
            .and_then(|at| at.format(&Rfc3339).ok())
            .unwrap_or_default()
    }
}

/// A ready peer, as it is announced.
pub struct Peer<'a> {
    /// What it runs and where.
    pub plan: &'a Plan,
    /// Its process id.
    pub pid: i32,
    /// Its session and door.
    pub ready: &'a Ready,
}

/// Prints the announcement: one JSON line on stdout, or text on stderr, where stdout belongs to the entry member.
pub fn print(json: bool, id: &FormationId, entry: &Plan, deadline: Option<Deadline>, peers: &[Peer<'_>]) {
    if json {
        output::stdout_line(&json_line(id, entry, deadline, peers));
    } else {
        output::stderr_line(&text(id, entry, deadline, peers));
    }
}

fn json_line(id: &FormationId, entry: &Plan, deadline: Option<Deadline>, peers: &[Peer<'_>]) -> String {
    let peers: Vec<_> = peers
        .iter()
        .map(|peer| {
            json!({
                "name": peer.plan.name,
                "pid": peer.pid,
                "session_id": peer.ready.session,
                "url": format!("http://{}", peer.ready.address),
                "workdir": peer.plan.dir,
            })
        })
        .collect();
    let deadline = deadline.map(|deadline| json!({"at": deadline.at(), "secs": deadline.secs}));
    json!({"formation_id": id, "entry": entry.name, "deadline": deadline, "peers": peers}).to_string()
}

fn text(id: &FormationId, entry: &Plan, deadline: Option<Deadline>, peers: &[Peer<'_>]) -> String {
    let width = peers.iter().map(|peer| peer.plan.name.len()).chain([entry.name.len()]).max().unwrap_or(0);
    let mut lines = vec![format!("formation: {id}")];
    if let Some(deadline) = deadline {
        lines.push(format!("  deadline {}  ({}s after mur run started)", deadline.at(), deadline.secs));
    }
    for peer in peers {
        lines.push(format!(
            "  peer   {:width$}  {}@{}  pid {}  {}  http://{}",
            peer.plan.name, peer.plan.capsule, peer.plan.version, peer.pid, peer.ready.session, peer.ready.address
        ));
        lines.push(format!("         {:width$}  workdir {}", "", peer.plan.dir.display()));
    }
    lines.push(format!("  entry  {:width$}  starting", entry.name));
    lines.join("\n")
}
