//! The sessions of a formation, found by what they recorded: a session belongs to a formation when the first line of
//! its trace is a `session_start` that names it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::ids::{FormationId, SessionId};
use crate::paths::{MurmurHome, regular};

/// Longest first line read: a `session_start` with all its grants has a few kilobytes.
const MAX_FIRST_LINE: u64 = 4 << 20;
/// How much of a trace's end is read for its `session_end`.
const TAIL: u64 = 64 << 10;

/// One session of a formation.
#[derive(Clone, Debug)]
pub struct MemberSession {
    /// Its id.
    pub session: SessionId,
    /// Its records directory.
    pub dir: PathBuf,
    /// Its `session_start` line.
    pub start: Value,
    /// `exit_status` of its `session_end`, when there is one.
    pub exit_status: Option<String>,
}

impl MemberSession {
    /// Its roster name; absent for a delegated child and a member started by hand.
    pub fn member(&self) -> Option<&str> {
        self.start["formation_member"].as_str()
    }

    /// Its trace file.
    pub fn trace(&self) -> PathBuf {
        self.dir.join("trace.jsonl")
    }
}

/// What a search of records groups found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// By session id, ascending.
    pub sessions: Vec<MemberSession>,
    /// Groups that were read.
    pub searched: Vec<PathBuf>,
    /// Groups that could not be read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// The records groups of a formation's peers: one for each directory in `~/.murmur/formations/<frm_id>/`.
pub fn peer_groups(home: &MurmurHome, formation: &FormationId) -> Vec<PathBuf> {
    let dir = home.formations().join(formation.as_str());
    let Ok(entries) = fs::read_dir(&dir) else { return Vec::new() };
    let mut groups: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| home.records_group(&entry.path()))
        .collect();
    groups.sort();
    groups
}

/// Searches records groups for sessions of a formation. A group that does not exist holds none.
pub fn find(formation: &FormationId, groups: impl IntoIterator<Item = PathBuf>) -> Found {
    let mut found = Found::default();
    for group in groups {
        if found.searched.contains(&group) {
            continue;
        }
        match fs::read_dir(&group) {
            Ok(entries) => {
                let dirs = entries.flatten().map(|entry| entry.path());
                found.sessions.extend(dirs.filter_map(|dir| read_session(&dir, formation)));
                found.searched.push(group);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => found.searched.push(group),
            Err(error) => found.unreadable.push((group, error.to_string())),
        }
    }
    found.sessions.sort_by(|a, b| a.session.cmp(&b.session));
    found.sessions.dedup_by(|a, b| a.session == b.session);
    found
}

fn read_session(dir: &Path, formation: &FormationId) -> Option<MemberSession> {
    let session = SessionId::parse(dir.file_name()?.to_str()?)?;
    let start = first_record(&dir.join("trace.jsonl"))?;
    let belongs = start["event_type"] == "session_start" && start["formation_id"] == formation.as_str();
    belongs.then(|| MemberSession {
        session,
        dir: dir.to_owned(),
        exit_status: ending(&dir.join("trace.jsonl")),
        start,
    })
}

/// The first line of a trace as JSON.
pub fn first_record(trace: &Path) -> Option<Value> {
    let mut line = Vec::new();
    BufReader::new(regular::open(trace).ok()?.take(MAX_FIRST_LINE)).read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}

/// The `exit_status` of a trace's `session_end`, read from its end so that a long trace costs nothing.
pub fn ending(trace: &Path) -> Option<String> {
    let mut file = regular::open(trace).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    let lines = tail.split(|byte| *byte == b'\n').rev();
    let records = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    records
        .filter(|record| record["event_type"] == "session_end")
        .find_map(|record| record["exit_status"].as_str().map(str::to_owned))
}
