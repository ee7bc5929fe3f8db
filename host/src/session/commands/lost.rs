//! Background commands that a killed session left without an ending: told once to whoever resumes it, and marked in its
//! trace.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::line;
use crate::ids::{EventId, SessionId, TaskId};
use crate::paths::regular;
use crate::records::read::Trace;
use crate::trace::unix_ms;

/// A command whose end nobody saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Lost {
    work_id: String,
    binary: String,
    command: String,
    detached_at_ms: u64,
}

/// Looks for lost commands in an earlier session's trace. Where there are any, `submit` makes one task of the text, and
/// each is marked as reported by `session`. Two resumptions at once report them once.
///
/// # Errors
/// A trace that cannot be read, locked or added to; then nothing is marked.
pub fn reconcile(
    trace: &Path,
    earlier: &SessionId,
    session: &SessionId,
    submit: impl FnOnce(String) -> Option<TaskId>,
) -> io::Result<()> {
    let mut file = regular::open_with(trace, OpenOptions::new().read(true).append(true), libc::O_NOFOLLOW)?;
    file.lock()?;
    let read = Trace::read(trace).map_err(|fault| io::Error::other(fault.message().to_owned()))?;
    let lost = lost(&read);
    if lost.is_empty() {
        return Ok(());
    }
    let logs = trace.parent().map(|records| records.join("logs")).unwrap_or_default();
    let Some(task) = submit(told(earlier, &lost, &logs)) else { return Ok(()) };
    let root = read.first("session_start").map_or(Value::Null, |start| start["event_id"].clone());
    let mut lines = if ends_whole(&mut file, &read)? { String::new() } else { "\n".to_owned() };
    for one in &lost {
        let record = json!({
            "event_type": "shell_lost", "event_id": EventId::mint(), "parent_id": root, "session_id": earlier,
            "timestamp": unix_ms(), "work_id": one.work_id, "binary": one.binary, "command": one.command,
            "detached_at_ms": one.detached_at_ms, "reconciled_by_session": session, "reconciled_task_id": task,
        });
        lines.push_str(&format!("{record}\n"));
    }
    file.write_all(lines.as_bytes())
}

/// Commands that went to the background, less those whose end is recorded or was reported before.
fn lost(trace: &Trace) -> Vec<Lost> {
    let ended: Vec<&Value> = ["shell_completed", "shell_abandoned", "shell_lost"]
        .into_iter()
        .flat_map(|kind| trace.of(kind))
        .map(|record| &record["work_id"])
        .collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let detached = trace.of("shell_detached").filter(|record| !ended.contains(&&record["work_id"]));
    detached
        .map(|record| Lost {
            work_id: text(&record["work_id"]),
            binary: text(&record["binary"]),
            command: text(&record["command"]),
            detached_at_ms: record["timestamp"].as_u64().unwrap_or_default(),
        })
        .collect()
}

fn told(earlier: &SessionId, lost: &[Lost], logs: &Path) -> String {
    let mut text = format!(
        "Session {earlier}, which is resumed here, was ended while these commands of yours ran in the background. How they \
         ended is not known; they do not run any more as part of this session:\n"
    );
    for one in lost {
        let name = Path::new(&one.binary).file_name().unwrap_or_default().to_string_lossy();
        text.push_str(&format!("\nwork_id: {}\ncommand: {}\n", one.work_id, line::shown(&name, &one.command)));
        let log: PathBuf = logs.join(format!("{}.log", one.work_id));
        if log.is_file() {
            text.push_str(&format!("output: {}\n", log.display()));
        }
    }
    text
}

/// Takes a torn last line away: more lines after it would make it one in the middle. Whether the file then ends with a
/// whole line.
fn ends_whole(file: &mut File, trace: &Trace) -> io::Result<bool> {
    let bytes = std::fs::read(&trace.path)?;
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if end == bytes.len() {
        return Ok(true);
    }
    if trace.torn.is_none() {
        return Ok(false);
    }
    file.set_len(end as u64)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.jsonl");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn a_command_without_an_ending_is_told_once_and_marked_behind_a_torn_line() {
        let work = |id: &str| json!({"event_type": "shell_detached", "work_id": id, "binary": "/bin/sh", "command": "x y", "timestamp": 7});
        let lines = [
            json!({"event_type": "session_start", "event_id": "evt_root"}),
            work("wrk_done"),
            work("wrk_lost"),
            json!({"event_type": "shell_completed", "work_id": "wrk_done"}),
        ];
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        for tail in ["", "{\"event_ty", "{\"event_type\":\"whole\"}"] {
            let (_dir, path) = trace(&format!("{text}{tail}"));
            let (earlier, session, task) = (SessionId::mint(), SessionId::mint(), TaskId::mint());
            let mut told = Vec::new();
            for _ in 0..2 {
                reconcile(&path, &earlier, &session, |text| {
                    told.push(text);
                    Some(task.clone())
                })
                .unwrap();
            }
            assert_eq!(told.len(), 1, "{tail}");
            assert!(
                told[0].contains("work_id: wrk_lost\ncommand: x y\n") && !told[0].contains("wrk_done"),
                "{}",
                told[0]
            );
            let read = Trace::read(&path).unwrap();
            assert_eq!(read.torn, None);
            let marked: Vec<&Value> = read.of("shell_lost").collect();
            assert_eq!(marked.len(), 1, "{tail}");
            assert_eq!(marked[0]["detached_at_ms"], 7);
            assert_eq!(marked[0]["parent_id"], "evt_root");
            assert_eq!(marked[0]["reconciled_by_session"], session.as_str());
        }
    }

    #[test]
    fn what_cannot_be_told_is_not_marked() {
        let line = json!({"event_type": "shell_detached", "work_id": "wrk_1", "binary": "sh", "command": "x"});
        let (_dir, path) = trace(&format!("{line}\n"));
        reconcile(&path, &SessionId::mint(), &SessionId::mint(), |_| None).unwrap();
        assert_eq!(Trace::read(&path).unwrap().of("shell_lost").count(), 0);
        assert!(reconcile(Path::new("/dev/null"), &SessionId::mint(), &SessionId::mint(), |_| None).is_err());
    }
}
