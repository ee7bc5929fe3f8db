//! Running records: `~/.murmur/running/<ses_id>.json`, one for every session that opened a door.
//!
//! A record is a hint, never proof: a process is believed to be the recorded one only when its start time agrees, and
//! its door only when it serves the recorded session.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::{FormationId, SessionId};
use crate::paths::{MurmurHome, make_private, write_atomic};
use crate::process::{Pidfd, process_start};

/// Largest record read; one holds a few hundred bytes and a token a credential.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// A formation's launcher as the channel named it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launcher {
    /// Its process id.
    pub pid: i32,
    /// When it started, as `/proc` reports it; empty when it could not be read.
    pub process_start: String,
}

/// One running record. It has no `Debug`: it holds the door's tokens.
#[derive(Clone, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the keys are the file format's own and are described in the book")]
pub struct Record {
    pub session_id: SessionId,
    /// `localhost:<port>`.
    pub url: String,
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`, opaque.
    pub process_start: String,
    pub capsule_name: String,
    pub capsule_version: String,
    pub workdir: PathBuf,
    pub records_dir: PathBuf,
    /// Whether it was launched without a controlling terminal.
    pub outlives_launcher: bool,
    /// RFC 3339 UTC.
    pub started_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub door_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formation_id: Option<FormationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formation_member: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub formation_entry: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub formation_lifeline: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formation_launcher: Option<Launcher>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawned_by: Option<SessionId>,
}

/// What the process a record names turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process {
    /// The recorded process runs.
    Alive,
    /// Some process has that pid, but when it started cannot be read: never signalled.
    Unknown,
    /// It has ended; the words say how that is known.
    Gone(String),
}

/// What the running directory held, newest session first.
#[derive(Default)]
pub struct Listing {
    /// Readable records.
    pub records: Vec<Record>,
    /// Files that are no record.
    pub unreadable: Vec<PathBuf>,
    /// Records of an older `mur`: left alone.
    pub older: Vec<PathBuf>,
}

impl Record {
    /// Whether the recorded process still runs, by pid and start time.
    pub fn process(&self) -> Process {
        if self.pid <= 0 {
            return Process::Gone("its record names no process".to_owned());
        }
        match process_start(self.pid) {
            Some(start) if start == self.process_start => Process::Alive,
            Some(_) => Process::Gone(format!("pid {} belongs to another process", self.pid)),
            None if Path::new(&format!("/proc/{}", self.pid)).exists() && !is_zombie(self.pid) => Process::Unknown,
            None => Process::Gone(format!("pid {} has ended", self.pid)),
        }
    }

    /// The recorded process by pidfd, when it runs: the descriptor is opened first and the start time compared after,
    /// so that it can name no other process.
    pub fn pidfd(&self) -> io::Result<Option<Pidfd>> {
        open_checked(self.pid, &self.process_start)
    }
}

/// Opens a process by pidfd and compares its start time after; `None` when the process meant is gone.
pub fn open_checked(pid: i32, start: &str) -> io::Result<Option<Pidfd>> {
    let pidfd = match Pidfd::open(pid) {
        Ok(pidfd) => pidfd,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok((process_start(pid).as_deref() == Some(start)).then_some(pidfd))
}

fn is_zombie(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| stat.rfind(')').and_then(|at| stat[at..].chars().nth(2)))
        .is_some_and(|state| matches!(state, 'Z' | 'X'))
}

/// The path of a session's record.
pub fn path(home: &MurmurHome, session: &SessionId) -> PathBuf {
    home.running().join(format!("{session}.json"))
}

/// Writes a record: owner-only, by temporary file, fsync and rename.
pub fn write(home: &MurmurHome, record: &Record) -> io::Result<()> {
    make_private(&home.running())?;
    let mut text = serde_json::to_vec_pretty(record)?;
    text.push(b'\n');
    write_atomic(&path(home, &record.session_id), &text, 0o600)
}

/// Removes a session's record and control token; a missing one is no error.
pub fn remove(home: &MurmurHome, session: &SessionId) {
    let _ = fs::remove_file(path(home, session));
    let _ = fs::remove_file(home.running().join(format!("{session}.control")));
}

/// Reads every record. A directory that is not there holds none; one that cannot be read is `E-RUN-028`.
pub fn list(home: &MurmurHome) -> Result<Listing> {
    let dir = home.running();
    let unreadable = |error: io::Error| {
        Diagnostic::new(codes::E_RUN_028, format!("{} cannot be read: {error}", dir.display()))
            .hint("make it a directory that you own and can read; nothing was listed or removed")
    };
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Listing::default()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut listing = Listing::default();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match read(&path) {
            Read::Record(record) => listing.records.push(*record),
            Read::Older => listing.older.push(path),
            Read::Unreadable => listing.unreadable.push(path),
            Read::Vanished => {}
        }
    }
    listing.records.sort_by(|a, b| b.session_id.cmp(&a.session_id));
    listing.unreadable.sort();
    listing.older.sort();
    Ok(listing)
}

enum Read {
    Record(Box<Record>),
    Older,
    Unreadable,
    Vanished,
}

fn read(path: &Path) -> Read {
    // A link planted here must not make this process read some other file.
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() && meta.len() <= MAX_RECORD_BYTES => {}
        Ok(_) => return Read::Unreadable,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Read::Vanished,
        Err(_) => return Read::Unreadable,
    }
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Read::Vanished,
        Err(_) => return Read::Unreadable,
    };
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(&bytes) else { return Read::Unreadable };
    let names_session = value.get("session_id").is_some_and(serde_json::Value::is_string);
    match serde_json::from_value::<Record>(value.clone()) {
        Ok(record) => Read::Record(Box::new(record)),
        Err(_) if names_session && value.get("records_dir").is_none() => Read::Older,
        Err(_) => Read::Unreadable,
    }
}

/// Unlinks what no longer stands for a running session: records of ended processes and files that are no record.
/// Returns the removed records, each with the reason, and the removed files.
pub fn prune(home: &MurmurHome, listing: &mut Listing) -> (Vec<(Record, String)>, Vec<PathBuf>) {
    let mut gone = Vec::new();
    listing.records.retain(|record| match record.process() {
        Process::Gone(reason) => {
            remove(home, &record.session_id);
            gone.push((record.clone(), reason));
            false
        }
        Process::Alive | Process::Unknown => true,
    });
    let files = std::mem::take(&mut listing.unreadable);
    for file in &files {
        let _ = fs::remove_file(file);
    }
    (gone, files)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(pid: i32, start: &str) -> Record {
        Record {
            session_id: SessionId::mint(),
            url: "localhost:1".into(),
            pid,
            process_start: start.into(),
            capsule_name: "c".into(),
            capsule_version: "1".into(),
            workdir: "/w".into(),
            records_dir: "/r".into(),
            outlives_launcher: false,
            started_at: "2026-01-01T00:00:00Z".into(),
            door_token: None,
            credentials: None,
            formation_id: None,
            formation_member: None,
            formation_entry: false,
            formation_lifeline: false,
            formation_launcher: None,
            spawned_by: None,
        }
    }

    #[test]
    fn a_record_is_believed_only_with_its_start_time() {
        let me = std::process::id().cast_signed();
        let start = process_start(me).unwrap();
        assert_eq!(record(me, &start).process(), Process::Alive);
        assert!(matches!(record(me, "1").process(), Process::Gone(_)));
        assert!(record(me, "1").pidfd().unwrap().is_none());
        assert!(record(me, &start).pidfd().unwrap().is_some());
    }

    #[test]
    fn pruning_removes_the_gone_and_the_unreadable_and_keeps_an_older_one() {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        let me = std::process::id().cast_signed();
        let alive = record(me, &process_start(me).unwrap());
        let gone = record(me, "1");
        write(&home, &alive).unwrap();
        write(&home, &gone).unwrap();
        fs::write(home.running().join("x.json"), b"no").unwrap();
        fs::write(home.running().join("old.json"), br#"{"session_id":"ses_x"}"#).unwrap();
        let mut listing = list(&home).unwrap();
        let (records, files) = prune(&home, &mut listing);
        assert_eq!((records.len(), files.len()), (1, 1));
        assert_eq!(listing.records.len(), 1);
        assert!(home.running().join("old.json").exists());
        assert!(!path(&home, &gone.session_id).exists());
    }

    #[test]
    fn a_record_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        let record = record(1, "1");
        write(&home, &record).unwrap();
        let mode = fs::metadata(path(&home, &record.session_id)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
