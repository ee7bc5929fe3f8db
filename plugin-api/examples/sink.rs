//! A sink that counts: how many records of each type a session wrote, as one line of JSON when it ends.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use mur_plugin_api::abi_stable::std_types::RSlice;
use mur_plugin_api::{About, ErrorKind, PluginError, SessionHeader, TraceSink, export_plugin};

struct Tally {
    path: PathBuf,
    /// The session that is open, and its counts.
    open: Option<(String, BTreeMap<String, u64>)>,
}

impl TraceSink for Tally {
    const ABOUT: About = About {
        summary: "counts the records of each session by their type",
        vendor: "example",
        config_schema: r#"{"type":"object","required":["path"],"properties":{"path":{"type":"string"}},"examples":[{"path":"{scratch}/tally.jsonl"}]}"#,
    };

    fn new(config: &str) -> Result<Self, PluginError> {
        let invalid = |what: String| PluginError::new(ErrorKind::Invalid, what);
        let config: serde_json::Value = serde_json::from_str(config).map_err(|error| invalid(error.to_string()))?;
        let path = config["path"].as_str().ok_or_else(|| invalid("'path' must be a path".to_owned()))?;
        Ok(Self { path: path.into(), open: None })
    }

    fn open(&mut self, session: &SessionHeader) -> Result<(), PluginError> {
        self.open = Some((session.session_id.to_string(), BTreeMap::new()));
        Ok(())
    }

    fn write(&mut self, records: &[RSlice<'_, u8>]) -> Result<(), PluginError> {
        let Some((_, counts)) = &mut self.open else {
            return Err(PluginError::new(ErrorKind::Invalid, "no session is open"));
        };
        for record in records {
            let record: serde_json::Value = serde_json::from_slice(record.as_slice()).unwrap_or_default();
            let kind = record["event_type"].as_str().unwrap_or("unknown");
            *counts.entry(kind.to_owned()).or_default() += 1;
        }
        Ok(())
    }

    fn flush(&mut self, _within: Duration) -> Result<(), PluginError> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), PluginError> {
        let Some((session, counts)) = self.open.take() else { return Ok(()) };
        let line = format!("{}\n", serde_json::json!({ "session": session, "records": counts }));
        let file = OpenOptions::new().append(true).create(true).open(&self.path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|error| PluginError::io(self.path.display(), &error))
    }
}

export_plugin!(sink "tally", env!("CARGO_PKG_VERSION"), Tally);
