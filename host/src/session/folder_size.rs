//! How much a session's folders hold: looked at now and then, off the async thread, against `workdir_max_bytes`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::diagnostics::{Diagnostic, codes};

/// Least time between two looks.
const PACE: Duration = Duration::from_secs(10);

/// Watches the folders of one session.
pub struct FolderSize {
    folders: Vec<PathBuf>,
    max: u64,
    /// Bytes found by a look that found too many; 0 while none did.
    over: Arc<AtomicU64>,
    looking: Arc<AtomicBool>,
    last: Mutex<Instant>,
}

impl FolderSize {
    /// For the folders that commands and tools write in.
    pub fn new(folders: Vec<PathBuf>, max: u64) -> Self {
        Self { folders, max, over: Arc::default(), looking: Arc::default(), last: Mutex::new(Instant::now()) }
    }

    /// Whether they hold too much, as of the last look; starts another look when it is time.
    ///
    /// # Errors
    /// `E-RUN-013`.
    pub fn check(&self) -> Result<(), Diagnostic> {
        let found = self.over.load(Ordering::Relaxed);
        if found > 0 {
            return Err(Diagnostic::new(
                codes::E_RUN_013,
                format!(
                    "work folder, $HOME and $TMPDIR together grew to {found} bytes, past the {} byte ceiling \
                     (capabilities.resources.workdir_max_bytes)",
                    self.max
                ),
            )
            .hint("remove what is not needed, or raise capabilities.resources.workdir_max_bytes"));
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= PACE && !self.looking.swap(true, Ordering::Relaxed) {
            *last = Instant::now();
            let (folders, max) = (self.folders.clone(), self.max);
            let (over, looking) = (Arc::clone(&self.over), Arc::clone(&self.looking));
            tokio::task::spawn_blocking(move || {
                let found = size(&folders, max);
                if found > max {
                    over.store(found, Ordering::Relaxed);
                }
                looking.store(false, Ordering::Relaxed);
            });
        }
        Ok(())
    }
}

/// Bytes of the files below, links not followed, a file with several names once a name; stops soon after `enough`.
fn size(folders: &[PathBuf], enough: u64) -> u64 {
    let mut sum = 0_u64;
    let mut open: Vec<PathBuf> = folders.to_vec();
    while let Some(folder) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                open.push(entry.path());
            } else if meta.is_file() {
                sum = sum.saturating_add(on_disk(&meta));
            }
            if sum > enough {
                return sum;
            }
        }
    }
    sum
}

/// What a file takes: the holes of a sparse one take nothing.
fn on_disk(meta: &std::fs::Metadata) -> u64 {
    meta.blocks().saturating_mul(512).min(meta.len())
}

/// The folders of a session that its limits speak of.
pub fn folders(work: &Path, records: &Path) -> Vec<PathBuf> {
    vec![work.to_owned(), records.join("home"), records.join("tmp")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_through_folders_but_not_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        std::fs::create_dir_all(work.join("a/b")).unwrap();
        std::fs::write(work.join("a/b/x"), vec![1; 5000]).unwrap();
        std::fs::write(dir.path().join("outside"), vec![1; 9000]).unwrap();
        std::os::unix::fs::symlink(dir.path(), work.join("up")).unwrap();
        let found = size(&[work.clone(), dir.path().join("absent")], u64::MAX);
        assert_eq!(found, 5000);
        assert!(size(&[work], 100) > 100);
    }

    #[tokio::test]
    async fn a_breach_is_refused_by_code_at_the_next_look() {
        let watch = FolderSize::new(Vec::new(), 10);
        assert!(watch.check().is_ok());
        watch.over.store(11, Ordering::Relaxed);
        let error = watch.check().unwrap_err();
        assert_eq!(error.code(), codes::E_RUN_013);
        assert!(error.message().contains("11 bytes, past the 10 byte ceiling"), "{}", error.message());
    }
}
