//! What launches that were killed left behind. Nothing here blocks a later launch; it is named so that it can go.

use std::fs;
use std::path::Path;

use super::Report;
use crate::ids::FormationId;
use crate::paths::MurmurHome;
use crate::process::process_start;
use crate::records::formations::{MARKER, Marker};
use crate::records::running::{self, Process};
use crate::session::runtime_dir;

/// Most things that are named one by one.
const MAX_NAMED: usize = 50;

/// Names what is left, if anything is.
pub(super) fn block(home: &MurmurHome, report: &mut Report) {
    let mut lines = formations(home);
    lines.extend(records(home));
    lines.extend(runtime_dir::left(home).iter().map(|dir| {
        format!("  {}: its session was killed; the next launch removes it, and so does mur trace rm", dir.display())
    }));
    if lines.is_empty() {
        return;
    }
    let more = lines.len().saturating_sub(MAX_NAMED);
    lines.truncate(MAX_NAMED);
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    report.block("Left by launches that ended early", lines);
}

/// Formation directories that no launch holds and in which no member ever ran.
fn formations(home: &MurmurHome) -> Vec<String> {
    let Ok(entries) = fs::read_dir(home.formations()) else { return Vec::new() };
    let mut dirs: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    dirs.sort();
    let named = |dir: &Path| {
        dir.file_name().and_then(|name| name.to_str()).is_some_and(|name| FormationId::parse(name).is_some())
    };
    dirs.iter().filter(|dir| named(dir)).filter_map(|dir| formation(home, dir)).collect()
}

fn formation(home: &MurmurHome, dir: &Path) -> Option<String> {
    let what = match Marker::read(dir) {
        None => format!("it has no readable {MARKER}"),
        Some(marker) if process_start(marker.launcher_pid).is_some_and(|start| start == marker.launcher_start) => {
            return None;
        }
        Some(marker) => format!("its launcher (pid {}) is gone", marker.launcher_pid),
    };
    // A member that ran has records; such a directory is an ended formation's, and trace.retain decides about it.
    if fs::read_dir(dir).ok()?.flatten().any(|entry| home.records_group(&entry.path()).is_dir()) {
        return None;
    }
    Some(format!("  {}: {what} and no member of it ever ran; safe to delete", dir.display()))
}

/// Running records whose process has ended.
fn records(home: &MurmurHome) -> Vec<String> {
    let Ok(listing) = running::list(home) else { return Vec::new() };
    let gone = listing.records.iter().filter_map(|record| match record.process() {
        Process::Gone(why) => {
            Some(format!("  {}: {why}; mur ps removes it", running::path(home, &record.session_id).display()))
        }
        Process::Alive | Process::Unknown => None,
    });
    let unreadable = listing
        .unreadable
        .iter()
        .map(|path| format!("  {}: it is no running record; mur ps removes it", path.display()));
    gone.chain(unreadable).collect()
}
