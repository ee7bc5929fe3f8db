//! `mur trace diff` and `mur trace report`: which sessions are compared.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Root, locate};
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::paths::MurmurHome;
use crate::records::members::first_record;
use crate::records::read::measures::Measures;
use crate::records::read::{Trace, diff as differences, report as summary};

/// Two sessions side by side.
pub(super) fn diff(home: &MurmurHome, sessions: &[String], root: &Root) -> Result<String> {
    let (before, after) = match sessions {
        [] => ("@2", "@1"),
        [before, after] => (before.as_str(), after.as_str()),
        _ => return Err(refused("diff compares two sessions").hint("name both, or neither for @2 and @1")),
    };
    let read = |label: &str, address: &str| {
        locate(home, Some(address), root).map_err(|refusal| labelled(label, &refusal)).and_then(|path| Trace::read(&path))
    };
    differences::text(&read("before", before)?, &read("after", after)?)
}

/// Several sessions together.
pub(super) fn report(
    home: &MurmurHome,
    sessions: &[String],
    last: Option<&str>,
    since: Option<&str>,
    root: &Root,
) -> Result<String> {
    if !sessions.is_empty() && (last.is_some() || since.is_some()) {
        return Err(refused("sessions are named, and --last or --since as well").hint("name them, or have them chosen"));
    }
    let last = last.map(parse_last).transpose()?;
    let since = since.map(parse_since).transpose()?;
    let paths = if sessions.is_empty() {
        let group = root.group(home);
        let all = group.sessions().into_iter().map(|id| group.records_dir(&id).join("trace.jsonl"));
        let from = since.map(|since| SystemTime::now().checked_sub(since).unwrap_or(UNIX_EPOCH));
        let recent = |path: &std::path::PathBuf| {
            let Some(from) = from else { return true };
            let started = first_record(path).and_then(|start| start["timestamp"].as_u64()).unwrap_or(0);
            UNIX_EPOCH + Duration::from_millis(started) >= from
        };
        all.filter(recent).take(last.unwrap_or(usize::MAX)).collect()
    } else {
        sessions.iter().map(|address| locate(home, Some(address), root)).collect::<Result<Vec<_>>>()?
    };
    let (mut complete, mut skipped) = (Vec::new(), 0_usize);
    for path in &paths {
        match Trace::read(path).and_then(|trace| Measures::of(&trace)) {
            Ok(measures) => complete.push(measures),
            Err(_) => skipped += 1,
        }
    }
    if skipped > 0 {
        output::stderr_line(&format!("note: skipped {skipped} incomplete session(s)"));
    }
    if complete.is_empty() {
        let dir = root.group(home).dir;
        return Err(Diagnostic::new(codes::E_TRC_001, format!("no complete session to report under {}", dir.display()))
            .hint("mur trace list shows what is recorded; --workdir DIR reads another workdir root"));
    }
    Ok(summary::text(&complete))
}

fn parse_last(text: &str) -> Result<usize> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| {
        refused(&format!("--last '{text}' is no number of sessions")).hint("give a whole number from 1")
    })
}

fn parse_since(text: &str) -> Result<Duration> {
    let bad = || refused(&format!("--since '{text}' is no time")).hint("give minutes, hours or days: 30m, 2h, 7d");
    let (unit_at, unit) = text.char_indices().next_back().ok_or_else(bad)?;
    let seconds: u64 = match unit {
        'm' => 60,
        'h' => 3600,
        'd' => 86400,
        _ => return Err(bad()),
    };
    let digits = &text[..unit_at];
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    let count = digits.parse::<u64>().ok().filter(|count| *count > 0).and_then(|count| count.checked_mul(seconds));
    count.map(Duration::from_secs).ok_or_else(bad)
}

fn refused(what: &str) -> Diagnostic {
    Diagnostic::new(codes::E_TRC_002, what)
}

fn labelled(label: &str, refusal: &Diagnostic) -> Diagnostic {
    let with = Diagnostic::new(refusal.code(), format!("{label}: {}", refusal.message()));
    match refusal.hint_text() {
        Some(hint) => with.hint(hint),
        None => with,
    }
}
