//! Reading traces back: one file as records, and what `mur trace` shows of them. Writes, prunes and signals nothing.

pub mod diff;
pub mod formation;
pub mod measures;
pub mod report;
pub mod show;
pub mod steps;
pub mod text;

use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::ContextId;
use crate::paths::regular;

/// A trace as its records, in file order.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The file.
    pub path: PathBuf,
    /// One JSON object a line.
    pub records: Vec<Value>,
    /// The number of the last line when that line is torn: a writer was killed inside it.
    pub torn: Option<usize>,
}

/// Longest trace that is read: as records it takes several times its size in memory.
const MAX_TRACE: u64 = 1 << 30;

/// A trace's bytes; a pipe, device or endless file in its place is refused.
pub(crate) fn whole(path: &Path) -> io::Result<Vec<u8>> {
    let file = regular::open(path)?;
    if file.metadata()?.len() > MAX_TRACE {
        return Err(io::Error::other(format!("it is larger than {MAX_TRACE} bytes")));
    }
    let mut bytes = Vec::new();
    // One that is being written may grow past the bound while it is read.
    file.take(MAX_TRACE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Trace {
    /// Reads a whole trace. A torn last line is skipped and remembered; a fault elsewhere is `E-TRC-001`.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = whole(path).map_err(|error| {
            let code = if error.kind() == ErrorKind::NotFound { codes::E_IO_001 } else { codes::E_IO_003 };
            Diagnostic::new(code, format!("{}: {error}", path.display()))
        })?;
        let lines: Vec<(usize, &[u8])> = (1..).zip(bytes.split(|byte| *byte == b'\n')).collect();
        let lines: Vec<_> = lines.into_iter().filter(|(_, line)| !line.is_empty()).collect();
        let mut trace = Self { path: path.to_owned(), records: Vec::with_capacity(lines.len()), torn: None };
        for (index, (number, line)) in lines.iter().enumerate() {
            match serde_json::from_slice::<Value>(line) {
                Ok(record) if record.is_object() => trace.records.push(record),
                _ if index + 1 == lines.len() => trace.torn = Some(*number),
                Ok(_) => return Err(malformed(path, *number, "not a JSON object")),
                Err(error) => return Err(malformed(path, *number, &error.to_string())),
            }
        }
        if trace.records.is_empty() {
            return Err(Diagnostic::new(codes::E_TRC_001, format!("{} holds no record", path.display()))
                .hint("the session was refused before it started, or is only starting"));
        }
        Ok(trace)
    }

    /// Records of one type, in order.
    pub fn of<'a>(&'a self, event_type: &'a str) -> impl Iterator<Item = &'a Value> + 'a {
        self.records.iter().filter(move |record| record["event_type"] == event_type)
    }

    /// The first record of a type.
    pub fn first<'a>(&'a self, event_type: &'a str) -> Option<&'a Value> {
        self.of(event_type).next()
    }

    /// The context of the last task it started: the conversation the session had when it ended.
    pub fn last_context(&self) -> Option<ContextId> {
        self.of("task_start").filter_map(|task| ContextId::parse(task["context_id"].as_str()?)).last()
    }

    /// The session's `session_start`, or `E-TRC-001`.
    pub fn start(&self) -> Result<&Value> {
        self.first("session_start")
            .ok_or_else(|| Diagnostic::new(codes::E_TRC_001, format!("{} has no session_start", self.path.display())))
    }
}

fn malformed(path: &Path, line: usize, cause: &str) -> Diagnostic {
    Diagnostic::new(codes::E_TRC_001, format!("{}:{line}: {cause}", path.display()))
        .hint("the rest of the file is unharmed; every other line is one JSON object")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.jsonl");
        fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn a_torn_last_line_is_skipped_and_named() {
        let (_dir, path) = write("{\"event_type\":\"session_start\"}\n{\"event_ty");
        let trace = Trace::read(&path).unwrap();
        assert_eq!((trace.records.len(), trace.torn), (1, Some(2)));
    }

    #[test]
    fn a_fault_elsewhere_is_refused_with_its_line() {
        let (_dir, path) = write("{\"event_type\":\"session_start\"}\nnonsense\n{}\n");
        let refusal = Trace::read(&path).unwrap_err();
        assert_eq!(refusal.code(), codes::E_TRC_001);
        assert!(refusal.message().contains("trace.jsonl:2:"), "{refusal}");
    }

    #[test]
    fn an_empty_trace_and_a_missing_one_differ() {
        let (dir, path) = write("");
        assert_eq!(Trace::read(&path).unwrap_err().code(), codes::E_TRC_001);
        assert_eq!(Trace::read(&dir.path().join("no")).unwrap_err().code(), codes::E_IO_001);
    }
}
