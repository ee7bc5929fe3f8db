//! What a session recorded.

use std::ops::Index;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// One line of a trace.
#[derive(Debug, Clone)]
pub struct Record(pub Value);

impl Record {
    /// Its `event_type`.
    pub fn kind(&self) -> &str {
        self.0["event_type"].as_str().unwrap_or_default()
    }
}

impl Index<&str> for Record {
    type Output = Value;

    fn index(&self, key: &str) -> &Value {
        &self.0[key]
    }
}

/// A session's `trace.jsonl`.
#[derive(Debug, Clone)]
pub struct Trace {
    path: PathBuf,
    records: Vec<Record>,
}

impl Trace {
    /// Reads a trace; a torn last line, as a killed writer leaves it, is left out.
    ///
    /// # Panics
    /// When it cannot be read, or a whole line of it is no JSON object.
    #[track_caller]
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
        let records = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n') && line.len() > 1)
            .map(|line| {
                let value: Value =
                    serde_json::from_str(line).unwrap_or_else(|fault| panic!("{}: {fault}: {line}", path.display()));
                assert!(value.is_object(), "{}: {line}", path.display());
                Record(value)
            })
            .collect();
        Self { path: path.to_owned(), records }
    }

    /// The records directory it lies in.
    pub fn directory(&self) -> &Path {
        self.path.parent().expect("a trace lies in a folder")
    }

    /// The session's id, by its directory's name.
    pub fn session(&self) -> &str {
        self.directory().file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// All records.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// All records of a kind.
    pub fn all(&self, kind: &str) -> Vec<&Record> {
        self.records.iter().filter(|record| record.kind() == kind).collect()
    }

    /// The first record of a kind.
    pub fn first(&self, kind: &str) -> Option<&Record> {
        self.records.iter().find(|record| record.kind() == kind)
    }

    /// The only record of a kind.
    ///
    /// # Panics
    /// When there is none, or more.
    #[track_caller]
    pub fn one(&self, kind: &str) -> &Record {
        match self.all(kind).as_slice() {
            [record] => record,
            other => panic!("{} records '{kind}' in {:?}", other.len(), self.kinds()),
        }
    }

    /// The kinds of all records, in order.
    pub fn kinds(&self) -> Vec<&str> {
        self.records.iter().map(Record::kind).collect()
    }

    /// Where a kind first comes, to compare orders.
    ///
    /// # Panics
    /// When it never comes.
    #[track_caller]
    pub fn position(&self, kind: &str) -> usize {
        let found = self.records.iter().position(|record| record.kind() == kind);
        found.unwrap_or_else(|| panic!("no '{kind}' in {:?}", self.kinds()))
    }

    /// `out/result.txt` of the session.
    pub fn result(&self) -> Option<String> {
        std::fs::read_to_string(self.directory().join("out/result.txt")).ok()
    }
}
