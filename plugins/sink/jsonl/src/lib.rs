//! Trace sink `jsonl`: the record of a run, one JSON record a line, appended to one file.
//!
//! The file is opened for appending, every batch is one write, and a line that a killed process left torn is ended before
//! the first new one, so that a reader loses at most that line.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use mur_plugin_api::abi_stable::std_types::RSlice;
use mur_plugin_api::{About, ErrorKind, PluginError, SessionHeader, TraceSink, export_plugin};

/// The file's name when the configuration names no path: in the session's records directory.
const FILE: &str = "trace.jsonl";
/// A batch is gathered up to this size before it is written; a larger record is written on its own.
const BATCH: usize = 256 << 10;

struct Jsonl {
    path: Option<PathBuf>,
    file: Option<File>,
    lines: Vec<u8>,
    /// The last write failed and may have left part of a line.
    torn: bool,
}

impl TraceSink for Jsonl {
    const ABOUT: About = About {
        summary: "appends every trace record as one line of JSON to a file",
        vendor: "murmur",
        config_schema: r#"{"type":"object","properties":{"path":{"type":"string","description":"the file; default trace.jsonl in the session's records directory"}},"additionalProperties":false,"examples":[{"path":"{scratch}/trace.jsonl"}]}"#,
    };

    fn new(config: &str) -> Result<Self, PluginError> {
        let invalid = |what: String| PluginError::new(ErrorKind::Invalid, what);
        let config: serde_json::Map<String, serde_json::Value> = serde_json::from_str(config)
            .map_err(|error| invalid(format!("the configuration is no object: {error}")))?;
        let mut path = None;
        for (key, value) in &config {
            match (key.as_str(), value.as_str()) {
                ("path", Some(text)) if text.starts_with('/') => path = Some(PathBuf::from(text)),
                ("path", _) => return Err(invalid("'path' must be an absolute path".to_owned())),
                _ => return Err(invalid(format!("'{key}' is no key of this sink"))),
            }
        }
        Ok(Self { path, file: None, lines: Vec::new(), torn: false })
    }

    fn open(&mut self, session: &SessionHeader) -> Result<(), PluginError> {
        let path = self
            .path
            .clone()
            .unwrap_or_else(|| PathBuf::from(std::ffi::OsString::from_vec(session.records_dir.to_vec())).join(FILE));
        let file = open_whole(&path).map_err(|error| PluginError::io(path.display(), &error))?;
        self.file = Some(file);
        self.path = Some(path);
        Ok(())
    }

    fn write(&mut self, records: &[RSlice<'_, u8>]) -> Result<(), PluginError> {
        for record in records {
            if record.as_slice().contains(&b'\n') {
                return Err(PluginError::new(ErrorKind::Invalid, "a record holds a line end"));
            }
            if !self.lines.is_empty() && self.lines.len() + record.len() >= BATCH {
                self.send()?;
            }
            self.lines.extend_from_slice(record.as_slice());
            self.lines.push(b'\n');
        }
        self.send()
    }

    fn flush(&mut self, _within: Duration) -> Result<(), PluginError> {
        // Every batch is with the kernel as soon as it is written; a trace is never synced to the disk.
        self.file.as_ref().ok_or_else(not_open).map(|_| ())
    }

    fn close(&mut self) -> Result<(), PluginError> {
        self.file = None;
        Ok(())
    }
}

impl Jsonl {
    /// Hands the gathered lines to the kernel, normally in one write, so that lines of two writers never mix.
    fn send(&mut self) -> Result<(), PluginError> {
        let file = self.file.as_mut().ok_or_else(not_open)?;
        if self.torn {
            self.lines.insert(0, b'\n');
        }
        let outcome = file.write_all(&self.lines);
        self.torn = outcome.is_err();
        self.lines.clear();
        self.lines.shrink_to(BATCH);
        outcome.map_err(|error| self.fault(&error))
    }

    fn fault(&self, error: &io::Error) -> PluginError {
        match &self.path {
            Some(path) => PluginError::io(path.display(), error),
            None => PluginError::io(FILE, error),
        }
    }
}

fn not_open() -> PluginError {
    PluginError::new(ErrorKind::Invalid, "the sink is not open")
}

/// Opens for appending, owner-only, never through a link; ends a torn last line.
fn open_whole(path: &std::path::Path) -> io::Result<File> {
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)?;
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

export_plugin!(sink "jsonl", env!("CARGO_PKG_VERSION"), Jsonl);

#[cfg(test)]
mod tests {
    use super::*;

    fn records(texts: &[&'static str]) -> Vec<RSlice<'static, u8>> {
        texts.iter().map(|text| RSlice::from_slice(text.as_bytes())).collect()
    }

    fn opened(path: &std::path::Path) -> Jsonl {
        let mut sink = Jsonl::new(&serde_json::json!({ "path": path }).to_string()).unwrap();
        let session = SessionHeader {
            session_id: "ses_x".into(),
            capsule: "local/x".into(),
            version: "1".into(),
            formation_id: "".into(),
            records_dir: Vec::new().into(),
        };
        sink.open(&session).unwrap();
        sink
    }

    #[test]
    fn a_torn_last_line_is_ended_before_the_first_new_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.jsonl");
        std::fs::write(&path, "{\"a\":1}\n{\"b\":").unwrap();
        opened(&path).write(&records(&["{\"c\":3}", "{\"d\":4}"])).unwrap();
        opened(&path).write(&records(&["{}"])).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"a\":1}\n{\"b\":\n{\"c\":3}\n{\"d\":4}\n{}\n");
    }

    #[test]
    fn what_cannot_be_a_line_or_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.jsonl");
        let mut sink = opened(&path);
        assert_eq!(sink.write(&records(&["a\nb"])).unwrap_err().kind(), ErrorKind::Invalid);
        sink.close().unwrap();
        assert_eq!(sink.write(&records(&["{}"])).unwrap_err().kind(), ErrorKind::Invalid);
        for config in ["", "[]", "{\"path\":\"x\"}", "{\"path\":1}", "{\"paht\":\"/x\"}"] {
            assert!(Jsonl::new(config).is_err(), "{config}");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut sink = Jsonl::new(&serde_json::json!({ "path": link }).to_string()).unwrap();
        let session = SessionHeader {
            session_id: "".into(),
            capsule: "".into(),
            version: "".into(),
            formation_id: "".into(),
            records_dir: Vec::new().into(),
        };
        assert!(sink.open(&session).is_err());
    }
}
