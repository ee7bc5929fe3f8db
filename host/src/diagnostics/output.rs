//! The only place that writes to stdout and stderr: a closed stream never changes what a run does.

pub mod behind;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use super::{Diagnostic, codes, shown};

/// Where refused stderr and stdout lines go once a session has a records directory.
static FALLBACK: OnceLock<Mutex<File>> = OnceLock::new();

/// Why stdout first refused a write, a reader that went away aside.
static REFUSED: OnceLock<String> = OnceLock::new();

/// Sends lines that stderr refuses to this file from now on (`logs/bootstrap.log` of a session).
pub fn set_fallback(path: &Path) -> io::Result<()> {
    let file = File::options().create(true).append(true).open(path)?;
    let _ = FALLBACK.set(Mutex::new(file));
    Ok(())
}

/// Appends one line to the fallback file only, if there is one.
pub fn log(line: &str) {
    if let Some(file) = FALLBACK.get()
        && let Ok(mut file) = file.lock()
    {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// Writes one line of talk to stderr in a single write; to the fallback file when stderr refuses it. What it quotes
/// from outside cannot command the terminal.
pub fn stderr_line(line: &str) {
    if let Err(Some(whole)) = behind::offer(format!("{}\n", shown(line)), None) {
        write_line(&whole);
    }
}

/// The same for a line of somebody else's, of whom there may be many: waits while too many of them are not yet written.
pub async fn relayed_line(line: &str) {
    let permit = behind::room().await;
    if let Err(Some(whole)) = behind::offer(format!("{}\n", shown(line)), permit) {
        write_line(&whole);
    }
}

fn write_line(whole: &str) {
    if io::stderr().write_all(whole.as_bytes()).is_err() {
        log(whole.trim_end_matches('\n'));
    }
}

/// Writes data to stdout. A closed pipe is an error like any other; the caller decides what it means. Any other refusal is
/// remembered, for the command to end with.
pub fn stdout_text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = &written {
        note_refusal(error);
    }
    written
}

/// Remembers that stdout refused a write; a reader that went away is no fault.
pub fn note_refusal(error: &io::Error) {
    if error.kind() != io::ErrorKind::BrokenPipe {
        let _ = REFUSED.set(error.to_string());
    }
}

/// What a command whose output was refused ends with, after its work is done.
pub fn refusal() -> Option<Diagnostic> {
    let cause = REFUSED.get()?;
    Some(Diagnostic::new(codes::E_IO_003, format!("failed to write to standard output: {cause}")))
}

/// Writes one line of data to stdout; a refused line goes to the fallback file.
pub fn stdout_line(line: &str) {
    if stdout_text(&format!("{line}\n")).is_err() {
        log(line);
    }
}

/// Writes one line that carries a secret to stdout; a refused line is dropped.
pub fn stdout_secret_line(line: &str) {
    let _ = stdout_text(&format!("{line}\n"));
}

/// Prints an error as the last thing a failing command prints.
pub fn error(diagnostic: &Diagnostic) {
    stderr_line(&diagnostic.to_string());
}

/// Prints a warning of a running session: `[capsule-runtime] warning[…]: … (link)`.
pub fn runtime_warning(diagnostic: &Diagnostic) {
    stderr_line(&format!("[capsule-runtime] {}", diagnostic.warning_line()));
}
