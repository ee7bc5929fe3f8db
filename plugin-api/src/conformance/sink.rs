//! What every trace sink must do.

use std::time::Duration;

use super::{Report, refused, worked};
use crate::error::PluginError;
use crate::sink::{SessionHeader, SinkObject};

/// A record larger than any buffer a sink would have by accident.
const LARGE: usize = 3 << 20;

/// Runs the checks; `open` makes a new sink over a place that is scratch.
pub fn sink(report: &mut Report, open: &dyn Fn() -> Result<SinkObject, PluginError>) {
    let session = SessionHeader {
        session_id: "ses_0190a8f0-0000-7000-8000-000000000000".into(),
        capsule: "local/conformance".into(),
        version: "1.0.0".into(),
        formation_id: "".into(),
        records_dir: Vec::new().into(),
    };
    let opened = || -> Result<SinkObject, String> {
        let mut sink = worked("open", open())?;
        worked("the session's begin", sink.open(&session))?;
        Ok(sink)
    };
    report.check("a session is opened, written, flushed and closed", || {
        let mut sink = opened()?;
        worked("a write", sink.write(&[b"{\"n\":1}".as_slice().into(), b"{\"n\":2}".as_slice().into()]))?;
        worked("a flush", sink.flush(Duration::from_secs(5)))?;
        worked("the close", sink.close())
    });
    report.check("an empty batch and a large record are written", || {
        let mut sink = opened()?;
        worked("an empty batch", sink.write(&[]))?;
        let large = format!("{{\"text\":\"{}\"}}", "x".repeat(LARGE));
        worked("a large record", sink.write(&[large.as_bytes().into()]))?;
        worked("the close", sink.close())
    });
    report.check("a second session goes on where the first ended", || {
        let mut sink = opened()?;
        worked("a write", sink.write(&[b"{}".as_slice().into()]))?;
        worked("the close", sink.close())
    });
    report.check("a write before the session's begin is refused, not a panic", || {
        refused("it", worked("open", open())?.write(&[b"{}".as_slice().into()]))
    });
    report.check("a write after the close is refused, not a panic", || {
        let mut sink = opened()?;
        worked("the close", sink.close())?;
        refused("it", sink.write(&[b"{}".as_slice().into()]))
    });
}
