//! `mur ps`: the running capsules, each door asked who it is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::Outcome;
use crate::diagnostics::output;
use crate::ids::FormationId;
use crate::paths::MurmurHome;
use crate::records::members::{self, MemberSession};
use crate::records::running::{self, Listing, Process, Record};
use crate::records::probe;

/// Flags of `mur ps`.
#[derive(clap::Args)]
pub struct Args {
    /// Name each record that was removed and why
    #[arg(long, conflicts_with = "json")]
    verbose: bool,
    /// Print one JSON object; nothing is removed
    #[arg(long)]
    json: bool,
}

/// A record with what its door answered.
struct Row {
    record: Record,
    running: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let home = MurmurHome::from_env()?;
    let mut listing = running::list(&home)?;
    let mut gone = Vec::new();
    if args.json {
        listing.records.retain(|record| !matches!(record.process(), Process::Gone(_)));
    } else {
        gone = report_pruned(&home, &mut listing, args.verbose);
    }
    let rows = probe_all(listing.records);
    let formations = formations_of(&home, &rows, if args.verbose { &gone } else { &[] });
    let text = if args.json { json_text(&rows, &formations) } else { table(&rows, &formations) };
    let _ = output::stdout_text(&text);
    Ok(0)
}

fn report_pruned(home: &MurmurHome, listing: &mut Listing, verbose: bool) -> Vec<Record> {
    let (gone, files) = running::prune(home, listing);
    for path in &listing.older {
        output::stderr_line(&format!("skipped: {} — written by an older mur; left alone", path.display()));
    }
    let count = gone.len() + files.len();
    if verbose {
        for (record, reason) in &gone {
            let formation = record.formation_id.as_ref().map(|id| format!(" (formation {id})")).unwrap_or_default();
            output::stderr_line(&format!("pruned: {} — {reason}{formation}", record.session_id));
        }
        for file in &files {
            output::stderr_line(&format!("pruned: {} — not a readable record", file.display()));
        }
    } else if count == 1 {
        output::stderr_line("pruned 1 stale record; mur ps --verbose names each");
    } else if count > 1 {
        output::stderr_line(&format!("pruned {count} stale records; mur ps --verbose names each"));
    }
    gone.into_iter().map(|(record, _)| record).collect()
}

/// Asks all doors at once: a silent one costs its time-out only once.
fn probe_all(records: Vec<Record>) -> Vec<Row> {
    let probes: Vec<_> = records
        .into_iter()
        .map(|record| {
            std::thread::spawn(move || {
                let known = record.process() == Process::Alive;
                let answered = probe::session_at(&record.url, record.door_token.as_deref());
                let running = known && answered.is_ok_and(|session| session == record.session_id.as_str());
                Row { record, running }
            })
        })
        .collect();
    let mut rows: Vec<Row> = probes.into_iter().filter_map(|probe| probe.join().ok()).collect();
    // Newest first, the members of one formation together where its newest stands.
    let newest: BTreeMap<FormationId, _> = rows
        .iter()
        .rev()
        .filter_map(|row| Some((row.record.formation_id.clone()?, row.record.session_id.clone())))
        .collect();
    rows.sort_by(|a, b| {
        let rank = |row: &Row| {
            let group = row.record.formation_id.as_ref().and_then(|id| newest.get(id));
            group.unwrap_or(&row.record.session_id).clone()
        };
        rank(b).cmp(&rank(a)).then_with(|| b.record.session_id.cmp(&a.record.session_id))
    });
    rows
}

/// What is known of one formation beside its listed records.
struct FormationSummary {
    id: FormationId,
    entry: Option<String>,
    running: usize,
    unreachable: usize,
    pruned: usize,
    not_listed: Vec<MemberSession>,
    searched: Vec<PathBuf>,
    unreadable: Vec<PathBuf>,
}

fn formations_of(home: &MurmurHome, rows: &[Row], pruned: &[Record]) -> Vec<FormationSummary> {
    let mut ids: Vec<&FormationId> = Vec::new();
    for record in rows.iter().map(|row| &row.record).chain(pruned) {
        if let Some(id) = &record.formation_id
            && !ids.contains(&id)
        {
            ids.push(id);
        }
    }
    ids.into_iter().map(|id| summary(home, id, rows, pruned)).collect()
}

fn summary(home: &MurmurHome, id: &FormationId, rows: &[Row], pruned: &[Record]) -> FormationSummary {
    let own = |record: &Record| record.formation_id.as_ref() == Some(id);
    let listed: Vec<&Row> = rows.iter().filter(|row| own(&row.record)).collect();
    let pruned: Vec<&Record> = pruned.iter().filter(|record| own(record)).collect();
    let groups = listed
        .iter()
        .map(|row| &row.record)
        .chain(pruned.iter().copied())
        .filter_map(|record| record.records_dir.parent().map(PathBuf::from))
        .chain(members::peer_groups(home, id));
    let found = members::find(id, groups);
    let entry = listed
        .iter()
        .map(|row| &row.record)
        .chain(pruned.iter().copied())
        .find(|record| record.formation_entry)
        .and_then(|record| record.formation_member.clone());
    let is_listed = |session: &MemberSession| listed.iter().any(|row| row.record.session_id == session.session);
    FormationSummary {
        id: id.clone(),
        entry,
        running: listed.iter().filter(|row| row.running).count(),
        unreachable: listed.iter().filter(|row| !row.running).count(),
        pruned: pruned.len(),
        not_listed: found.sessions.into_iter().filter(|session| !is_listed(session)).collect(),
        searched: found.searched,
        unreadable: found.unreadable.into_iter().map(|(root, _)| root).collect(),
    }
}

impl FormationSummary {
    fn ended(&self) -> usize {
        self.not_listed.iter().filter(|session| session.exit_status.is_some()).count()
    }

    fn line(&self) -> String {
        let listed = self.running + self.unreachable;
        let mut line = format!(
            "formation {}: {listed} listed ({} running, {} unreachable)",
            self.id, self.running, self.unreachable
        );
        if self.pruned > 0 {
            line.push_str(&format!(", {} pruned now", self.pruned));
        }
        if self.not_listed.is_empty() {
            line.push_str(&format!("; no other member found in {}", roots(self.searched.len())));
        } else {
            let ended = self.ended();
            line.push_str(&format!("; not listed: {ended} ended, {} with no record", self.not_listed.len() - ended));
        }
        if !self.unreadable.is_empty() {
            line.push_str(&format!("; {} could not be read", roots(self.unreadable.len())));
        }
        line
    }

    fn json(&self) -> Value {
        let not_listed: Vec<Value> = self
            .not_listed
            .iter()
            .map(|session| {
                let reason = if session.exit_status.is_some() { "ended" } else { "gone_without_ending" };
                json!({
                    "session_id": session.session,
                    "formation_member": session.member(),
                    "reason": reason,
                    "record_kept": true,
                })
            })
            .collect();
        json!({
            "formation_id": self.id,
            "entry_member": self.entry,
            "listed": self.running + self.unreachable,
            "ended": self.ended(),
            "gone_without_ending": self.not_listed.len() - self.ended(),
            "not_listed": not_listed,
            "searched_roots": self.searched,
            "unreadable_roots": self.unreadable,
        })
    }
}

fn roots(count: usize) -> String {
    if count == 1 { "1 session root".to_owned() } else { format!("{count} session roots") }
}

fn table(rows: &[Row], formations: &[FormationSummary]) -> String {
    if rows.is_empty() && formations.is_empty() {
        return "no running capsules\n".to_owned();
    }
    let with_formation = !formations.is_empty();
    let name = |row: &Row| row.record.formation_member.clone().unwrap_or_else(|| "-".to_owned());
    let names = rows.iter().map(|row| name(row).chars().count()).max().unwrap_or(0).max("MEMBER".len());
    let line = |cells: [&str; 8]| {
        let [session, capsule, status, detached, uptime, formation, member, url] = cells;
        let formation =
            if with_formation { format!("{formation:36}  {member:names$}  ") } else { String::new() };
        format!("{session:36}  {capsule:24}  {status:12}  {detached:8}  {uptime:9}  {formation}{url}\n")
    };
    let mut text = line(["SESSION", "CAPSULE", "STATUS", "DETACHED", "UPTIME", "FORMATION", "MEMBER", "URL"]);
    for row in rows {
        let record = &row.record;
        text.push_str(&line([
            record.session_id.as_str(),
            &format!("{}@{}", record.capsule_name, record.capsule_version),
            if row.running { "running" } else { "unreachable" },
            if record.outlives_launcher { "yes" } else { "no" },
            &uptime(&record.started_at),
            record.formation_id.as_ref().map_or("-", FormationId::as_str),
            &name(row),
            &record.url,
        ]));
    }
    if with_formation {
        text.push('\n');
        for formation in formations {
            text.push_str(&formation.line());
            text.push('\n');
        }
    }
    text
}

fn uptime(started_at: &str) -> String {
    let Ok(started) = OffsetDateTime::parse(started_at, &Rfc3339) else { return "-".to_owned() };
    let secs = (OffsetDateTime::now_utc() - started).whole_seconds().max(0);
    let (days, rest) = (secs / 86_400, secs % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest % 3600 / 60, rest % 60);
    if days > 0 { format!("{days}d {clock}") } else { clock }
}

fn json_text(rows: &[Row], formations: &[FormationSummary]) -> String {
    let capsules: Vec<Value> = rows
        .iter()
        .map(|row| {
            let record = &row.record;
            json!({
                "session_id": record.session_id,
                "status": if row.running { "running" } else { "unreachable" },
                "url": record.url,
                "pid": record.pid,
                "process_start": record.process_start,
                "capsule_name": record.capsule_name,
                "capsule_version": record.capsule_version,
                "workdir": record.workdir,
                "records_dir": record.records_dir,
                "outlives_launcher": record.outlives_launcher,
                "started_at": record.started_at,
                "formation_id": record.formation_id,
                "formation_member": record.formation_member,
                "formation_entry": record.formation_entry,
            })
        })
        .collect();
    let formations: Vec<Value> = formations.iter().map(FormationSummary::json).collect();
    let all = json!({"capsules": capsules, "formations": formations});
    format!("{}\n", serde_json::to_string_pretty(&all).unwrap_or_default())
}
