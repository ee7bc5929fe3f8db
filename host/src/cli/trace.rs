//! `mur trace`: what sessions and formations recorded.

mod compare;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};

use crate::artifacts::project::holds;
use crate::cli::Outcome;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::ids::{FormationId, SessionId};
use crate::paths::{MurmurHome, tree};
use crate::records::read::{Trace, formation, show, steps};
use crate::records::recorded::{self, Group, Reach, is_path};
use crate::records::running::{self, Process};
use crate::records::{elsewhere, members};
use crate::roster;
use crate::session::runtime_dir;

/// Flags of `mur trace`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Summarise one session, or a whole formation (frm_…)
    Show {
        /// @N, an id, a suffix, a path, or a formation id [default: @1]
        session: Option<String>,
        #[command(flatten)]
        root: Root,
    },
    /// Show the events of a session as a tree
    Steps {
        /// @N, an id, a suffix or a path [default: @1]
        session: Option<String>,
        /// Also show what each tool was given
        #[arg(long)]
        verbose: bool,
        #[command(flatten)]
        root: Root,
    },
    /// Compare two ended sessions
    Diff {
        /// The earlier and the later session, as for show [default: @2 @1]
        #[arg(value_name = "SESSION")]
        sessions: Vec<String>,
        #[command(flatten)]
        root: Root,
    },
    /// Sum up ended sessions: each by itself, then mean, deviation, least and most
    Report {
        /// As for show; every recorded session when none is named
        #[arg(value_name = "SESSION")]
        sessions: Vec<String>,
        /// The newest N alone
        #[arg(long, value_name = "N")]
        last: Option<String>,
        /// Those that started within this time: 30m, 2h, 7d
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        #[command(flatten)]
        root: Root,
    },
    /// List the recorded sessions, newest first
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        root: Root,
    },
    /// Remove what an ended session recorded
    Rm {
        /// @N, an id or a suffix
        session: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        root: Root,
    },
}

/// Where `mur run` makes work folders, in the project.
const WORKDIR: &str = "workdir";

#[derive(clap::Args)]
struct Root {
    /// The workdir root whose sessions are meant [default: ./workdir; beside a roster.yaml also .]
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
}

impl Root {
    /// The one that was named, else `./workdir`; in a roster's project, where nothing is recorded under that, the
    /// project itself, which is where its entry member works.
    fn group(&self, home: &MurmurHome) -> Group {
        let group = Group::of(home, self.workdir.as_deref().unwrap_or(Path::new(WORKDIR)));
        let in_a_project = self.workdir.is_none() && holds(Path::new("."), roster::FILE_NAME);
        if in_a_project && group.sessions().is_empty() { Group::of(home, Path::new(".")) } else { group }
    }

    /// How far a session is looked for: a root that is named is the one that is meant.
    fn reach(&self, beyond: Reach) -> Reach {
        if self.workdir.is_some() { Reach::Root } else { beyond }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let home = MurmurHome::from_env()?;
    let text = match args.command {
        Command::Show { session: Some(id), root } if id.starts_with(FormationId::PREFIX) => {
            show_formation(&home, &id, &root)?
        }
        Command::Show { session, root } => show_session(&home, session.as_deref(), &root)?,
        Command::Steps { session: Some(id), .. } if id.starts_with(FormationId::PREFIX) => {
            return Err(Diagnostic::new(codes::E_TRC_001, "steps shows one session, not a formation")
                .hint(format!("mur trace show {id} names its sessions")));
        }
        Command::Steps { session, verbose, root } => {
            steps::tree(&Trace::read(&locate(&home, session.as_deref(), &root)?)?, verbose)
        }
        Command::Diff { sessions, root } => compare::diff(&home, &sessions, &root)?,
        Command::Report { sessions, last, since, root } => {
            compare::report(&home, &sessions, last.as_deref(), since.as_deref(), &root)?
        }
        Command::List { json, root } => list(&home, json, &root)?,
        Command::Rm { session, json, root } => remove(&home, &session, json, &root)?,
    };
    let _ = output::stdout_text(&text);
    Ok(0)
}

/// The trace file an address names.
fn locate(home: &MurmurHome, address: Option<&str>, root: &Root) -> Result<PathBuf> {
    root.group(home).trace_of(home, address.unwrap_or("@1"), root.reach(Reach::Home))
}

fn show_session(home: &MurmurHome, address: Option<&str>, root: &Root) -> Result<String> {
    let trace = Trace::read(&locate(home, address, root)?)?;
    let start = trace.start()?;
    let running = running_sessions(home)?.iter().any(|session| start["session_id"] == session.as_str());
    let mut text = show::session(&trace, running)?;
    let id = start["formation_id"].as_str().and_then(FormationId::parse);
    if let Some(id) = id {
        let own = trace.path.parent().and_then(Path::parent).map(Path::to_owned);
        text.push('\n');
        let found = members::find(&id, groups(home, &id, root, own));
        text.push_str(&formation::section(&id, &found, &running_sessions(home)?));
    }
    Ok(text)
}

fn show_formation(home: &MurmurHome, address: &str, root: &Root) -> Result<String> {
    let id = FormationId::parse(address).ok_or_else(|| {
        Diagnostic::new(codes::E_TRC_002, format!("'{address}' is not a formation id"))
            .hint("a formation id is frm_ and 32 hex digits, as the launch printed it")
    })?;
    let found = members::find(&id, groups(home, &id, root, None));
    if found.sessions.is_empty() {
        let roots: Vec<String> = found.searched.iter().map(|root| root.display().to_string()).collect();
        return Err(Diagnostic::new(
            codes::E_TRC_002,
            format!("no session under {} belongs to formation {id}", roots.join(", ")),
        )
        .hint("run it in the roster's project directory, where the entry member records"));
    }
    Ok(formation::section(&id, &found, &running_sessions(home)?))
}

/// Where a formation's sessions are looked for: the root given, or `./workdir` and the current directory (an entry
/// member records there), the project its marker names, and every peer's own.
fn groups(home: &MurmurHome, id: &FormationId, root: &Root, own: Option<PathBuf>) -> Vec<PathBuf> {
    let mut groups = vec![root.group(home).dir];
    if root.workdir.is_none() {
        groups.push(Group::of(home, Path::new(".")).dir);
    }
    groups.extend(own);
    groups.extend(elsewhere::of_formation(home, id));
    groups
}

fn list(home: &MurmurHome, json: bool, root: &Root) -> Result<String> {
    let group = root.group(home);
    let running: Vec<SessionId> = running_sessions(home)?;
    let rows: Vec<Value> = group
        .sessions()
        .into_iter()
        .map(|session| {
            let dir = group.records_dir(&session);
            let trace = dir.join("trace.jsonl");
            let started = members::first_record(&trace).and_then(|start| start["timestamp"].as_u64());
            json!({
                "session_id": session,
                "records_dir": dir,
                "started_at": started.map(rfc3339),
                "context_id": Trace::read(&trace).ok().and_then(|trace| trace.last_context()),
                "running": running.contains(&session),
                "exit_status": members::ending(&trace),
            })
        })
        .collect();
    if json {
        let all = json!({"workdir_root": group.root, "records_group": group.dir, "sessions": rows});
        return Ok(format!("{}\n", serde_json::to_string_pretty(&all).unwrap_or_default()));
    }
    if rows.is_empty() {
        // Nothing recorded is no error, but this may be the wrong place: the hint is that of the other commands.
        return Ok(format!(
            "no sessions in workdir at {} (records in {})\n  hint: {}\n",
            group.root.display(),
            group.dir.display(),
            recorded::ELSEWHERE
        ));
    }
    let mut text = list_row(["SESSION", "STARTED", "STATUS", "EXIT", "CONTEXT"]);
    for row in &rows {
        let cell = |key: &str| row[key].as_str().unwrap_or("-");
        let (status, exit) = match (row["running"] == true, row["exit_status"].as_str()) {
            (true, _) => ("running", "-"),
            (false, Some(exit)) => ("ended", exit),
            (false, None) => ("ended", "no session_end"),
        };
        text.push_str(&list_row([cell("session_id"), cell("started_at"), status, exit, cell("context_id")]));
    }
    text.push_str(&format!("records: {}\n", group.dir.display()));
    Ok(text)
}

fn list_row([session, started, status, exit, context]: [&str; 5]) -> String {
    format!("{session:36}  {started:24}  {status:7}  {exit:21}  {context}\n")
}

fn running_sessions(home: &MurmurHome) -> Result<Vec<SessionId>> {
    let alive = |record: &running::Record| !matches!(record.process(), Process::Gone(_));
    Ok(running::list(home)?.records.into_iter().filter(alive).map(|record| record.session_id).collect())
}

fn rfc3339(ms: u64) -> String {
    time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000)
        .ok()
        .and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_default()
}

fn remove(home: &MurmurHome, address: &str, json: bool, root: &Root) -> Result<String> {
    if is_path(address) {
        return Err(Diagnostic::new(codes::E_TRC_002, format!("'{address}' is a path; rm takes @N, an id or a suffix")));
    }
    let (group, session) = root.group(home).find_beyond(home, address, root.reach(Reach::HomeByWholeId))?;
    let records = running::list(home)?.records;
    if let Some(record) = records.iter().find(|record| record.session_id == session)
        && !matches!(record.process(), Process::Gone(_))
    {
        let pid = record.pid;
        return Err(Diagnostic::new(
            codes::E_RUN_024,
            format!("session {session} is still running (pid {pid}); nothing was removed"),
        )
        .hint(format!("end it first with mur stop {session}")));
    }
    // Only a work folder the runtime made has the session's name; a --workdir is never touched.
    let made_here = root.workdir.is_none() && group.root == Path::new(WORKDIR);
    let folder = made_here.then(|| group.root.join(session.as_str())).filter(|dir| dir.exists());
    let dir = group.records_dir(&session);
    let record = Some(running::path(home, &session)).filter(|path| path.exists());
    for dir in folder.iter().chain([&dir]) {
        remove_dir(dir)?;
    }
    running::remove(home, &session);
    let left = runtime_dir::remove_left(home, &session);
    if json {
        let mut all = json!({"session_id": session, "records_dir": dir, "session_dir": folder, "running_record": record});
        if let Some(left) = left {
            all["runtime_dir"] = json!(left);
        }
        return Ok(format!("{}\n", serde_json::to_string_pretty(&all).unwrap_or_default()));
    }
    let mut text = String::new();
    for (what, path) in
        [("work folder", folder), ("records", Some(dir)), ("running record", record), ("runtime directory", left)]
    {
        if let Some(path) = path {
            text.push_str(&format!("removed {what} {}\n", path.display()));
        }
    }
    Ok(text)
}

fn remove_dir(dir: &Path) -> Result<()> {
    let kind = fs::symlink_metadata(dir).map_err(|error| io_fault(dir, &error))?;
    if !kind.is_dir() {
        return Err(Diagnostic::new(codes::E_RUN_050, format!("{} is not a directory of its own", dir.display()))
            .hint("remove what stands there by hand; nothing was removed"));
    }
    tree::remove(dir).map_err(|error| io_fault(dir, &error))
}

fn io_fault(path: &Path, error: &std::io::Error) -> Diagnostic {
    Diagnostic::new(codes::E_IO_003, format!("{}: {error}", path.display()))
}
