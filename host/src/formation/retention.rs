//! Removing formation directories: the entry member's `trace.retain` bounds those of its roster's project.
//!
//! The pass runs when every member of the launch has stopped. A directory is spared whenever there is doubt: another
//! project's, one without a marker that parses, one that may still run. A failed removal is skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::diagnostics::output;
use crate::ids::FormationId;
use crate::manifest::Retain;
use crate::paths::{MurmurHome, tree};
use crate::process::Pidfd;
use crate::records::formations::Marker;
use crate::records::running::{self, Process, Record, open_checked};

/// Removes what `retain` no longer keeps and says so on stderr, newest first.
pub fn pass(home: &MurmurHome, project: &Path, current: &FormationId, retain: Option<&Retain>) {
    let Some(retain) = retain else { return };
    // When the running records cannot be read, every formation counts as running.
    let Ok(listing) = running::list(home) else { return };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let candidates = of_project(home, project, current);
    for (id, reason) in over(&candidates, current, retain, u64::try_from(now).unwrap_or(u64::MAX)) {
        let dir = home.formations().join(id.as_str());
        if !may_still_run(&dir, id, &listing.records) && remove(home, &dir) {
            output::stderr_line(&format!("[mur run] retention: removed formation {id} ({reason})"));
        }
    }
}

/// The formation directories of a project, newest first; the current formation is counted whether it has one or not.
fn of_project(home: &MurmurHome, project: &Path, current: &FormationId) -> Vec<FormationId> {
    let entries = fs::read_dir(home.formations()).into_iter().flatten().flatten();
    let mut ids: Vec<FormationId> = entries
        // A link is never followed nor removed.
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| Some((FormationId::parse(entry.file_name().to_str()?)?, entry.path())))
        .filter(|(_, dir)| Marker::read(dir).is_some_and(|marker| marker.project_dir == project))
        .map(|(id, _)| id)
        .collect();
    if !ids.contains(current) {
        ids.push(current.clone());
    }
    ids.sort();
    ids.reverse();
    ids
}

/// Which of `ids` (newest first) are over a limit, with the reason: `max_age` for one over both.
fn over<'a>(
    ids: &'a [FormationId],
    current: &FormationId,
    retain: &Retain,
    now_ms: u64,
) -> Vec<(&'a FormationId, &'static str)> {
    ids.iter()
        .enumerate()
        .filter(|(_, id)| *id < current)
        .filter_map(|(rank, id)| {
            let age = now_ms.saturating_sub(id.minted_ms());
            if retain.max_age.is_some_and(|limit| u128::from(age) > limit.as_millis()) {
                return Some((id, "max_age"));
            }
            let kept = retain.max_sessions.and_then(|kept| usize::try_from(kept).ok());
            kept.is_some_and(|kept| rank >= kept).then_some((id, "max_sessions"))
        })
        .collect()
}

fn may_still_run(dir: &Path, id: &FormationId, records: &[Record]) -> bool {
    let launcher_runs = Marker::read(dir).is_none_or(|marker| {
        // Without its start any process of that pid may be it.
        let unknown = marker.launcher_start.is_empty() && Pidfd::open(marker.launcher_pid).is_ok();
        unknown || !matches!(open_checked(marker.launcher_pid, &marker.launcher_start), Ok(None))
    });
    let member_runs = records
        .iter()
        .filter(|record| record.formation_id.as_ref() == Some(id))
        .any(|record| !matches!(record.process(), Process::Gone(_)));
    launcher_runs || member_runs
}

/// Removes a formation's directory, whole, with its members' records groups.
fn remove(home: &MurmurHome, dir: &Path) -> bool {
    let records: PathBuf = home.records_group(dir);
    let gone = tree::remove(dir).is_ok();
    if gone {
        let _ = tree::remove(&records);
    }
    gone
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::records::formations;

    fn id(ms: u64) -> FormationId {
        FormationId::parse(&format!("frm_{ms:012x}{}", "0".repeat(20))).unwrap()
    }

    fn retain(max_sessions: Option<u64>, max_age: Option<u64>) -> Retain {
        Retain { max_sessions, max_age: max_age.map(Duration::from_secs) }
    }

    #[test]
    fn both_limits_apply_and_age_names_the_reason() {
        let ids = [id(5000), id(4000), id(3000), id(1000)];
        let removed = |retain: &Retain| {
            over(&ids, &ids[0], retain, 5000).into_iter().map(|(id, why)| (id.minted_ms(), why)).collect::<Vec<_>>()
        };
        assert_eq!(removed(&retain(Some(2), None)), [(3000, "max_sessions"), (1000, "max_sessions")]);
        assert_eq!(removed(&retain(None, Some(3))), [(1000, "max_age")]);
        assert_eq!(removed(&retain(Some(2), Some(3))), [(3000, "max_sessions"), (1000, "max_age")]);
        assert_eq!(removed(&retain(Some(1), None)).len(), 3);
    }

    #[test]
    fn one_minted_after_the_current_launch_is_never_removed() {
        let ids = [id(9000), id(5000)];
        assert!(over(&ids, &ids[1], &retain(Some(1), Some(1)), 90_000).is_empty());
    }

    #[test]
    fn only_ended_formations_of_this_project_with_a_marker_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        let project = Path::new("/project");
        let made = |id: &FormationId, marker: &Marker| formations::make(&home, id, marker).unwrap().0;
        let ended = Marker { launcher_start: "1".into(), ..Marker::own(project) };
        let old = made(&id(1000), &ended);
        fs::create_dir_all(home.records_group(&old).join("coder/ses_x")).unwrap();
        let alive = made(&id(1001), &Marker::own(project));
        let other = made(&id(1002), &Marker { project_dir: "/other".into(), ..ended.clone() });
        let unmarked = made(&id(1003), &ended);
        fs::remove_file(unmarked.join(formations::MARKER)).unwrap();
        pass(&home, project, &FormationId::mint(), Some(&retain(Some(1), None)));
        assert!(!old.exists() && !home.records_group(&old).exists());
        assert!(alive.exists() && other.exists() && unmarked.exists());
    }
}
