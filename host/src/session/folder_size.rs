//! How much a session's folders hold, against `workdir_max_bytes`: looked at before anything is started that could write,
//! after it has ended, and now and then meanwhile, off the async thread.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::stat::FileStat;
use tokio::sync::watch;

use crate::diagnostics::{Diagnostic, codes};
use crate::paths::tree::{self, Look};

/// Longest time between two looks while something runs.
const PACE: Duration = Duration::from_secs(10);

/// Folders of so many entries are looked at whenever there is a reason to.
const SMALL: u64 = 5_000;

/// Larger ones at most so often that looking takes a small part of the time: this much apart for each entry.
const APART: Duration = Duration::from_micros(20);

/// Entries looked at after too much was found, for the number that is told.
const BEYOND_MAX: u64 = 1 << 20;

/// Files with several names that are told apart.
const LINKED_MAX: usize = 1 << 20;

/// Watches the folders of one session; clones watch the same ones.
#[derive(Clone)]
pub struct FolderSize(Arc<Shared>);

struct Shared {
    folders: Vec<PathBuf>,
    max: u64,
    state: Mutex<State>,
    looking: watch::Sender<bool>,
}

struct State {
    /// What a look found that found too much.
    breach: Option<Found>,
    /// When the last look began, and how many entries it saw.
    began: Instant,
    entries: u64,
    /// Something ended while a look was under way.
    again: bool,
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Found {
    bytes: u64,
    entries: u64,
    /// There is more than was counted.
    more: bool,
}

impl FolderSize {
    /// For the folders that commands and tools write in.
    pub fn new(folders: Vec<PathBuf>, max: u64) -> Self {
        let state = State { breach: None, began: Instant::now(), entries: 0, again: false };
        Self(Arc::new(Shared { folders, max, state: Mutex::new(state), looking: watch::Sender::new(false) }))
    }

    /// Whether they hold too much, as of the last look; starts another when the last is long ago.
    ///
    /// # Errors
    /// `E-RUN-013`.
    pub fn check(&self) -> Result<(), Diagnostic> {
        let long_ago = self.0.lock().began.elapsed() >= PACE;
        if long_ago {
            self.look();
        }
        self.0.breach()
    }

    /// Before something starts that could write: looks, and waits for what it finds.
    ///
    /// # Errors
    /// `E-RUN-013`.
    pub async fn before_start(&self) -> Result<(), Diagnostic> {
        self.look();
        self.settled().await;
        self.0.breach()
    }

    /// Starts a look, where it is due: now, or when the one under way has ended.
    pub fn look(&self) {
        {
            let mut state = self.0.lock();
            if state.breach.is_some() {
                return;
            }
            if *self.0.looking.borrow() {
                state.again = true;
                return;
            }
            if !state.is_due() {
                return;
            }
            self.0.looking.send_replace(true);
        }
        let shared = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || while shared.look_once() {});
    }

    /// Waits for the look that is under way.
    pub async fn settled(&self) {
        let mut looking = self.0.looking.subscribe();
        let _ = looking.wait_for(|looking| !looking).await;
    }
}

impl Shared {
    /// One look; whether another follows.
    fn look_once(&self) -> bool {
        let began = Instant::now();
        {
            let mut state = self.lock();
            state.began = began;
            state.again = false;
        }
        let found = measure(&self.folders, self.max);
        let mut state = self.lock();
        state.entries = found.entries;
        if found.bytes > self.max {
            state.breach = Some(found);
        }
        let again = state.again && state.breach.is_none() && state.is_due();
        if !again {
            self.looking.send_replace(false);
        }
        again
    }

    fn breach(&self) -> Result<(), Diagnostic> {
        let Some(found) = self.lock().breach else { return Ok(()) };
        let at_least = if found.more { "at least " } else { "" };
        Err(Diagnostic::new(
            codes::E_RUN_013,
            format!(
                "work folder, $HOME and $TMPDIR together grew to {at_least}{} bytes, past the {} byte ceiling \
                 (capabilities.resources.workdir_max_bytes)",
                found.bytes, self.max
            ),
        )
        .hint("remove what is not needed, or raise capabilities.resources.workdir_max_bytes"))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_due(&self) -> bool {
        let apart = APART.saturating_mul(u32::try_from(self.entries).unwrap_or(u32::MAX)).min(PACE);
        self.entries <= SMALL || self.began.elapsed() >= apart
    }
}

/// What lies below, links not followed, a file with several names once. Past `max` the rest is counted too, within reason,
/// so that the true number can be told.
fn measure(folders: &[PathBuf], max: u64) -> Found {
    let mut count = Count { max, found: Found::default(), beyond: 0, linked: HashSet::new() };
    for folder in folders {
        if !tree::visit(folder, &mut count) {
            count.found.more = true;
            break;
        }
    }
    count.found
}

struct Count {
    max: u64,
    found: Found,
    beyond: u64,
    linked: HashSet<(u64, u64)>,
}

impl Look for Count {
    fn entry(&mut self, stat: &FileStat) -> bool {
        self.found.entries += 1;
        let is_folder = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let has_names = stat.st_nlink > 1 && !is_folder && self.linked.len() < LINKED_MAX;
        if !has_names || self.linked.insert((stat.st_dev, stat.st_ino)) {
            self.found.bytes = self.found.bytes.saturating_add(on_disk(stat));
        }
        self.beyond += u64::from(self.found.bytes > self.max);
        self.beyond < BEYOND_MAX
    }
}

/// What an entry takes, a folder or a long link too: the holes of a sparse file take nothing.
fn on_disk(stat: &FileStat) -> u64 {
    let of = |number: i64| u64::try_from(number).unwrap_or(0);
    of(stat.st_blocks).saturating_mul(512).min(of(stat.st_size))
}

/// The folders of a session that its limits speak of.
pub fn folders(work: &Path, records: &Path) -> Vec<PathBuf> {
    vec![work.to_owned(), records.join("home"), records.join("tmp")]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What the folders themselves take differs from one file system to another.
    fn of_folder(path: &Path) -> u64 {
        on_disk(&nix::sys::stat::lstat(path).unwrap())
    }

    #[test]
    fn files_are_counted_through_folders_but_not_through_links_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        fs::create_dir_all(work.join("a/b")).unwrap();
        fs::write(work.join("a/b/x"), vec![1; 5000]).unwrap();
        fs::hard_link(work.join("a/b/x"), work.join("a/again")).unwrap();
        fs::write(dir.path().join("outside"), vec![1; 9000]).unwrap();
        std::os::unix::fs::symlink(dir.path(), work.join("up")).unwrap();
        let found = measure(&[work.clone(), dir.path().join("absent")], u64::MAX);
        let expected = 5000 + of_folder(&work.join("a")) + of_folder(&work.join("a/b")) + of_folder(&work.join("up"));
        assert_eq!((found.bytes, found.entries, found.more), (expected, 5, false));
        assert_eq!(measure(&[work], 100).bytes, expected, "the true number, past the limit too");
    }

    #[tokio::test]
    async fn what_was_written_just_before_is_seen_at_the_next_start_and_stays_a_breach() {
        let dir = tempfile::tempdir().unwrap();
        let watch = FolderSize::new(vec![dir.path().to_owned()], 10_000);
        watch.before_start().await.unwrap();
        fs::write(dir.path().join("big"), vec![1; 20_000]).unwrap();
        let error = watch.before_start().await.unwrap_err();
        assert_eq!(error.code(), codes::E_RUN_013);
        assert!(error.message().contains("grew to 20000 bytes, past the 10000 byte ceiling"), "{}", error.message());
        fs::remove_file(dir.path().join("big")).unwrap();
        assert!(watch.check().is_err() && watch.before_start().await.is_err());
    }

    #[tokio::test]
    async fn a_look_after_an_end_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let watch = FolderSize::new(vec![dir.path().to_owned()], 10_000);
        fs::write(dir.path().join("big"), vec![1; 20_000]).unwrap();
        watch.look();
        watch.settled().await;
        assert!(watch.check().is_err());
    }

    #[test]
    fn many_entries_are_looked_at_less_often() {
        let state = |entries, ago| State {
            breach: None,
            began: Instant::now().checked_sub(Duration::from_millis(ago)).unwrap(),
            entries,
            again: false,
        };
        assert!(state(SMALL, 0).is_due());
        assert!(!state(100_000, 1000).is_due() && state(100_000, 2000).is_due());
        assert!(!state(u64::MAX, 9000).is_due() && state(u64::MAX, 10_000).is_due());
    }
}
