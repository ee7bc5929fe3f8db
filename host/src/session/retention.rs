//! `trace.retain`: which earlier sessions of the launch's records group are removed, right after `session_start`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::ids::SessionId;
use crate::manifest::Retain;
use crate::paths::{MurmurHome, tree};
use crate::trace::records::Retention;

/// Where a launch's earlier sessions lie.
pub struct Group<'a> {
    /// The operator's `~/.murmur`.
    pub home: &'a MurmurHome,
    /// The records group.
    pub records: &'a Path,
    /// The folder whose `ses_…` work folders the runtime makes, when it makes them.
    pub work_root: Option<&'a Path>,
    /// The launch itself, counted and kept.
    pub current: &'a SessionId,
}

/// Removes what is over a limit and says what was removed, one record a reason. A removal that fails is skipped.
pub fn apply(group: &Group<'_>, retain: Retain, now_ms: u64) -> Vec<Retention> {
    let (mut by_age, mut by_count) = (Vec::new(), Vec::new());
    for (rank, session) in sessions(group).into_iter().enumerate() {
        let age = now_ms.saturating_sub(session.minted_ms());
        let old = retain.max_age.is_some_and(|limit| u128::from(age) > limit.as_millis());
        let surplus = retain.max_sessions.is_some_and(|limit| rank as u64 >= limit);
        if !(old || surplus) || session == *group.current || is_running(group.home, &session) {
            continue;
        }
        if remove(group, &session) {
            // Over both limits counts as age.
            if old { by_age.push(session.to_string()) } else { by_count.push(session.to_string()) }
        }
    }
    [("max_sessions", by_count), ("max_age", by_age)]
        .into_iter()
        .filter(|(_, targets)| !targets.is_empty())
        .map(|(reason, targets)| Retention {
            store: "sessions",
            reason,
            removed: u32::try_from(targets.len()).unwrap_or(u32::MAX),
            targets,
            messages_dropped: None,
        })
        .collect()
}

/// The group's sessions up to the current one, newest first.
fn sessions(group: &Group<'_>) -> Vec<SessionId> {
    let Ok(entries) = fs::read_dir(group.records) else { return Vec::new() };
    let mut all: Vec<SessionId> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().to_str().and_then(SessionId::parse))
        .filter(|session| session <= group.current)
        .collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}

/// Whether the session still holds its runtime directory's lock.
fn is_running(home: &MurmurHome, session: &SessionId) -> bool {
    File::open(home.sessions().join(session.as_str()).join(".lock")).is_ok_and(|lock| lock.try_lock().is_err())
}

fn remove(group: &Group<'_>, session: &SessionId) -> bool {
    let removed = tree::remove(&group.records.join(session.as_str())).is_ok();
    if removed && let Some(root) = group.work_root {
        let work: PathBuf = root.join(session.as_str());
        // Made by the runtime, so a link in its place is somebody else's.
        if fs::symlink_metadata(&work).is_ok_and(|meta| meta.is_dir()) {
            let _ = tree::remove(&work);
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct World {
        _dir: tempfile::TempDir,
        home: MurmurHome,
        records: PathBuf,
        work: PathBuf,
        ids: Vec<SessionId>,
    }

    /// Five sessions an hour apart; the fourth is the current one.
    fn world() -> World {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        home.prepare().unwrap();
        let (records, work) = (dir.path().join("group"), dir.path().join("work"));
        let ids: Vec<SessionId> = (1..=5_u64)
            .map(|hour| SessionId::parse(&format!("ses_{:012x}{}", hour * 3_600_000, "0".repeat(20))).unwrap())
            .collect();
        for id in &ids {
            fs::create_dir_all(records.join(id.as_str()).join("out")).unwrap();
            fs::create_dir_all(work.join(id.as_str())).unwrap();
        }
        World { _dir: dir, home, records, work, ids }
    }

    fn run(world: &World, max_sessions: Option<u64>, max_age: Option<Duration>) -> (Vec<usize>, Vec<Retention>) {
        let group =
            Group { home: &world.home, records: &world.records, work_root: Some(&world.work), current: &world.ids[3] };
        let said = apply(&group, Retain { max_sessions, max_age }, 4 * 3_600_000 + 1);
        let left = (0..5).filter(|index| world.records.join(world.ids[*index].as_str()).exists()).collect();
        (left, said)
    }

    #[test]
    fn the_newest_are_kept_the_current_one_counted_and_later_ones_untouched() {
        let world = world();
        let (left, said) = run(&world, Some(2), None);
        assert_eq!(left, [2, 3, 4]);
        assert_eq!((said.len(), said[0].reason, said[0].removed), (1, "max_sessions", 2));
        assert!(!world.work.join(world.ids[0].as_str()).exists());
    }

    #[test]
    fn age_is_taken_from_the_id_and_wins_over_count() {
        let world = world();
        let (left, said) = run(&world, Some(2), Some(Duration::from_secs(9000)));
        assert_eq!(left, [2, 3, 4]);
        let reasons: Vec<_> = said.iter().map(|one| (one.reason, one.removed)).collect();
        assert_eq!(reasons, [("max_sessions", 1), ("max_age", 1)]);
    }

    #[test]
    fn a_running_session_and_the_current_one_stay() {
        let world = world();
        let dir = world.home.sessions().join(world.ids[0].as_str());
        fs::create_dir_all(&dir).unwrap();
        let lock = File::create(dir.join(".lock")).unwrap();
        lock.lock().unwrap();
        let (left, _) = run(&world, Some(1), Some(Duration::from_millis(1)));
        assert_eq!(left, [0, 3, 4]);
    }
}
