//! What goes wrong with a hook: one line in its log, one record in the trace.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde_json::json;

use crate::diagnostics::output;
use crate::paths::{make_private, regular};
use crate::session::context::SessionContext;
use crate::trace::{records, unix_ms};
use crate::worker::CallError;

/// Notes a fault in the trace and in the hook's log.
pub(super) fn record(ctx: &SessionContext, hook: &str, event: &str, arm: &str, what: &str) {
    ctx.trace.record_aside("hook_dispatch_error", None, json!({ "hook_name": hook, "event": event, "arm": arm }));
    log(&ctx.dirs.logs(), hook, event, &format!("{arm}: {what}"));
}

/// The word of a call that did not return.
pub(super) fn word(error: &CallError) -> &'static str {
    match error {
        CallError::Deadline(_) => "timeout",
        _ => "error",
    }
}

/// One line in `logs/hook-<name>.log`; a log that cannot be written costs the log only.
pub(super) fn log(logs: &Path, hook: &str, event: &str, what: &str) {
    let what = records::cut(what, records::REASON_LIMIT).replace('\n', " ");
    let line = format!("[{}] {event} {what}\n", unix_ms() / 1000);
    let written = make_private(logs).and_then(|()| {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600);
        let path = logs.join(format!("hook-{hook}.log"));
        regular::open_with(&path, &mut options, libc::O_NOFOLLOW)?.write_all(line.as_bytes())
    });
    if let Err(error) = written {
        output::log(&format!("[capsule-runtime] the log of hook '{hook}' was not written: {error}"));
    }
}
