//! Ending what runs: a session by its door and a signal, a formation by its launcher.
//!
//! Every signal goes through a pidfd that was opened first and whose start time was compared after.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::FormationId;
use crate::paths::MurmurHome;
use crate::process::Pidfd;
use crate::records::formations::Marker;

use super::members;
use super::probe;
use super::read;
use super::running::{self, Launcher, Process, Record};

/// How long canceled tasks may take to be recorded as ended.
const TASK_ENDINGS: Duration = Duration::from_secs(5);
/// How long a killed process may take to be gone.
const AFTER_KILL: Duration = Duration::from_secs(5);
/// How long members may take once their launcher is gone.
const MEMBERS_GONE: Duration = Duration::from_secs(25);
/// How often a process that cannot be waited for otherwise is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What the command prints.
pub struct Stopped {
    /// The report, ready for stdout.
    pub report: String,
}

/// Ends one session: its door is told first, then SIGTERM, then SIGKILL after `grace`. `E-RUN-024` when it is still
/// there after that.
pub fn session(home: &MurmurHome, record: &Record, grace: Duration) -> Result<Stopped> {
    let asked = ask_door(record);
    let canceled: Vec<String> = asked.as_ref().map(|answer| strings(&answer["canceled"])).unwrap_or_default();
    let trace = record.records_dir.join("trace.jsonl");
    wait_until(TASK_ENDINGS, || canceled.iter().all(|task| task_ended(&trace, task)));
    let signal = end_process(record, grace)?;
    running::remove(home, &record.session_id);
    let mut report = format!(
        "stopped: {}\ncapsule: {}@{}\nsignal:  {signal}\n",
        record.session_id, record.capsule_name, record.capsule_version
    );
    for task in &canceled {
        let _ = writeln!(report, "canceled: {task}");
    }
    for task in canceled.iter().filter(|task| !task_ended(&trace, task)) {
        let _ = writeln!(report, "unended: {task}  the trace does not record how this task ended");
    }
    report.push_str(&residue(&asked));
    Ok(Stopped { report })
}

fn ask_door(record: &Record) -> io::Result<Value> {
    let token = record.door_token.as_deref().unwrap_or_default();
    let answer = probe::call(&record.url, token, "murmur.StopSession", &json!({}))?;
    match answer.get("result") {
        Some(result) => Ok(result.clone()),
        None => Err(io::Error::other(answer["error"]["message"].as_str().unwrap_or("no result").to_owned())),
    }
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn residue(asked: &io::Result<Value>) -> String {
    let items = match asked {
        Ok(answer) => answer["residue"].as_array().cloned().unwrap_or_default(),
        Err(why) => return format!("residue: unknown — the capsule could not be asked: {why}\n"),
    };
    if items.is_empty() {
        return "residue: nothing else was left running\n".to_owned();
    }
    residue_lines(&items)
}

/// A line for each thing a session still runs, as its door names them.
pub(crate) fn residue_lines(items: &[Value]) -> String {
    let text = |item: &Value, key: &str| item[key].as_str().unwrap_or("-").to_owned();
    items.iter().fold(String::new(), |mut lines, item| {
        let _ = if item["kind"] == "delegation" {
            let (id, capsule, version) = (text(item, "delegation_id"), text(item, "capsule"), text(item, "version"));
            writeln!(lines, "ended:   {id}  delegation  {capsule}@{version}")
        } else {
            writeln!(lines, "running: {}  detached shell  {}", text(item, "work_id"), text(item, "command"))
        };
        lines
    })
}

/// Whether the trace records how a task ended.
fn task_ended(trace: &Path, task: &str) -> bool {
    let Ok(text) = read::whole(trace) else { return false };
    text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok()).any(|record| {
        record["task_id"] == task
            && (record["event_type"] == "task_end"
                || (record["event_type"] == "task_canceled" && record["phase"] == "queued"))
    })
}

fn end_process(record: &Record, grace: Duration) -> Result<&'static str> {
    let could_not = |why: String| {
        Diagnostic::new(codes::E_RUN_024, format!("{} could not be ended: {why}", record.session_id))
            .hint(format!("its record is kept; try mur stop {} again", record.session_id))
    };
    if record.process() == Process::Unknown {
        return Err(could_not("when its process started cannot be read, so it is not signalled".to_owned()));
    }
    let Some(pidfd) = record.pidfd().map_err(|error| could_not(error.to_string()))? else {
        return Ok("none — the process had already exited");
    };
    terminate(&pidfd, grace).map_err(could_not)
}

/// SIGTERM, then SIGKILL after `grace`; the words of the error say why the process is still there.
fn terminate(pidfd: &Pidfd, grace: Duration) -> std::result::Result<&'static str, String> {
    let refused = |error: io::Error| error.to_string();
    match pidfd.signal(Signal::SIGTERM) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok("none — the process had already exited"),
        other => other.map_err(refused)?,
    }
    if wait_until(grace, || pidfd.has_ended()) {
        return Ok("SIGTERM");
    }
    match pidfd.signal(Signal::SIGKILL) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok("SIGTERM"),
        other => other.map_err(refused)?,
    }
    if wait_until(AFTER_KILL, || pidfd.has_ended()) {
        return Ok("SIGKILL");
    }
    Err(format!("pid {} is still there after SIGKILL", pidfd.pid()))
}

/// Ends a formation by signalling its launcher, which closes every lifeline. Returns the report and whether all its
/// members are gone.
pub fn formation(home: &MurmurHome, id: &FormationId, grace: Duration) -> Result<(String, Result<()>)> {
    let mut listing = running::list(home)?;
    let (gone, _) = running::prune(home, &mut listing);
    let of_formation = |record: &Record| record.formation_id.as_ref() == Some(id);
    let removed = gone.iter().filter(|(record, _)| of_formation(record)).count();
    let records: Vec<Record> = listing.records.into_iter().filter(of_formation).collect();
    let launcher = launcher_of(home, id, &records)?;
    let launcher_runs = launcher.as_ref().is_some_and(|launcher| {
        running::open_checked(launcher.pid, &launcher.process_start).is_ok_and(|pidfd| pidfd.is_some())
    });
    if records.is_empty() && !launcher_runs {
        let also =
            if removed > 0 { format!("; {removed} records of ended members were removed") } else { String::new() };
        return Err(Diagnostic::new(codes::E_RUN_022, format!("no member of {id} is running{also}"))
            .hint(format!("mur ps lists what runs; mur trace show {id} shows what it did")));
    }
    let signalled = match &launcher {
        Some(launcher) => end_launcher(id, launcher, grace)?,
        None => "none — no running member records one".to_owned(),
    };
    let mut report = format!("stopped:  {id}\nlauncher: {signalled}\n");
    let by_hand = |record: &&Record| !record.formation_lifeline && record.spawned_by.is_none();
    let held: Vec<&Record> = records.iter().filter(|record| !by_hand(record)).collect();
    wait_until(MEMBERS_GONE, || held.iter().all(|record| matches!(record.process(), Process::Gone(_))));
    let mut still = Vec::new();
    for record in &held {
        let ended = matches!(record.process(), Process::Gone(_));
        let ending = if ended { ending_of(record) } else { "still running".to_owned() };
        if ended {
            running::remove(home, &record.session_id);
        } else {
            still.push(record.session_id.to_string());
        }
        let _ = writeln!(
            report,
            "member:   {}  {}@{}  {ending}",
            record.session_id, record.capsule_name, record.capsule_version
        );
    }
    stop_by_hand(home, &records.iter().filter(by_hand).collect::<Vec<_>>(), &mut report);
    let result = if still.is_empty() {
        Ok(())
    } else {
        Err(Diagnostic::new(codes::E_RUN_024, format!("{id} still runs: {}", still.join(", ")))
            .hint("their records are kept; end each with mur stop <session>"))
    };
    Ok((report, result))
}

/// The launcher the members' records name, else the formation's marker. Two different ones are refused.
fn launcher_of(home: &MurmurHome, id: &FormationId, records: &[Record]) -> Result<Option<Launcher>> {
    let mut named: Vec<&Launcher> = records.iter().filter_map(|record| record.formation_launcher.as_ref()).collect();
    named.dedup();
    match named.as_slice() {
        [] => {}
        [one] => return Ok(Some((*one).clone())),
        several => {
            let pids: Vec<String> = several.iter().map(|launcher| launcher.pid.to_string()).collect();
            return Err(Diagnostic::new(
                codes::E_RUN_024,
                format!("the members of {id} name several launchers (pids {}); nothing was signalled", pids.join(", ")),
            )
            .hint("end each member with mur stop <session>"));
        }
    }
    let marker = Marker::read(&home.formations().join(id.as_str()));
    Ok(marker.map(|marker| Launcher { pid: marker.launcher_pid, process_start: marker.launcher_start }))
}

fn end_launcher(id: &FormationId, launcher: &Launcher, grace: Duration) -> Result<String> {
    let pid = launcher.pid;
    let could_not = |why: String| {
        Diagnostic::new(codes::E_RUN_024, format!("the launcher of {id} (pid {pid}) could not be ended: {why}"))
            .hint("end each member with mur stop <session>")
    };
    let already = format!("none — pid {pid} had already exited, so every lifeline was already closed");
    let pidfd = running::open_checked(pid, &launcher.process_start).map_err(|error| could_not(error.to_string()))?;
    let Some(pidfd) = pidfd else { return Ok(already) };
    match terminate(&pidfd, grace).map_err(could_not)? {
        "SIGTERM" => Ok(format!("pid {pid}, SIGTERM")),
        "SIGKILL" => Ok(format!("pid {pid}, SIGKILL after {}s", grace.as_secs())),
        _ => Ok(already),
    }
}

/// How a member that is gone ended, by its trace.
fn ending_of(record: &Record) -> String {
    let trace = record.records_dir.join("trace.jsonl");
    let recorded = |event: &str| {
        let start = format!("{{\"event_type\":\"{event}\"");
        read::whole(&trace)
            .is_ok_and(|text| text.split(|byte| *byte == b'\n').any(|line| line.starts_with(start.as_bytes())))
    };
    match members::ending(&trace) {
        Some(_) if recorded("formation_ended") => "formation_ended".to_owned(),
        Some(_) if recorded("spawner_ended") => "spawner_ended".to_owned(),
        Some(status) => format!("session_end {status}"),
        None => "no session_end".to_owned(),
    }
}

fn stop_by_hand(home: &MurmurHome, records: &[&Record], report: &mut String) {
    for record in records {
        let _ = writeln!(
            report,
            "member:   {}  {}@{}  started by hand — stopped as one session below",
            record.session_id, record.capsule_name, record.capsule_version
        );
    }
    for record in records {
        match session(home, record, Duration::from_secs(10)) {
            Ok(stopped) => {
                let _ = write!(report, "\n{}", stopped.report);
            }
            Err(refusal) => {
                let _ = writeln!(report, "\nerror: {}", refusal.message());
            }
        }
    }
}

/// Waits until `done` or the bound; says which.
fn wait_until(bound: Duration, done: impl Fn() -> bool) -> bool {
    let until = Instant::now() + bound;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}
