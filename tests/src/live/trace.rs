//! Traces read back.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Every record of a trace. Each line must be whole JSON.
///
/// # Panics
/// When a line is not JSON or the file cannot be read.
#[track_caller]
pub fn read(records_dir: impl AsRef<Path>) -> Vec<Value> {
    let path = records_dir.as_ref().join("trace.jsonl");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The records of one type.
pub fn of<'a>(records: &'a [Value], event: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["event_type"] == event).collect()
}

/// The types in order.
pub fn types(records: &[Value]) -> Vec<&str> {
    records.iter().filter_map(|record| record["event_type"].as_str()).collect()
}

/// Every records directory of a session below a directory.
pub fn sessions(below: impl AsRef<Path>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![below.as_ref().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name().to_string_lossy().starts_with("ses_") {
                found.push(entry.path());
            } else {
                dirs.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// The text of every regular file below a directory, with its path.
pub fn files(below: impl AsRef<Path>) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut dirs = vec![below.as_ref().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push((entry.path(), fs::read(entry.path()).unwrap_or_default())),
                _ => {}
            }
        }
    }
    found
}

/// Unix seconds now.
pub fn now() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}
