//! Directories of scopes whose makers, and the watchers of those, were all killed at once: removed when the next scope is
//! made. Only what is empty goes, so nothing alive can lose its scope.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// A scope is joined within milliseconds. One that is empty and older than this is nobody's, also where its maker's number
/// was counted in another process namespace than ours.
const SETTLED: Duration = Duration::from_secs(3);

/// Removes stale neighbours of a directory that is about to be made.
pub(super) fn sweep(of: &Path) {
    let Some(entries) = of.parent().and_then(|base| fs::read_dir(base).ok()) else { return };
    for entry in entries.flatten() {
        let Some(maker) = entry.file_name().to_str().and_then(maker) else { continue };
        let made = entry.metadata().and_then(|meta| meta.modified());
        let settled = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > SETTLED));
        if settled && !is_alive(maker) {
            // The kernel refuses where a process or a further directory is left in it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The maker's process number in the name of a scope: `murmur-<session>-<pid>-<count>`.
fn maker(name: &str) -> Option<libc::pid_t> {
    let mut parts = name.strip_prefix("murmur-")?.rsplit('-');
    let (count, pid) = (parts.next()?, parts.next()?);
    parts.next()?;
    count.parse::<u32>().ok()?;
    pid.parse().ok().filter(|pid| *pid > 0)
}

fn is_alive(pid: libc::pid_t) -> bool {
    // SAFETY: signal 0 is none.
    let asked = unsafe { libc::kill(pid, 0) };
    asked == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maker_is_read_from_the_name_of_a_scope_and_from_no_other() {
        assert_eq!(maker("murmur-ses_a-b-17-0"), Some(17));
        assert_eq!(maker("murmur-probe-9-0"), Some(9));
        for other in ["murmur-supervisor", "murmur-1-2", "murmur-x-1-", "murmur-x-0-1", "other-x-1-2", "murmur-x-a-1"] {
            assert_eq!(maker(other), None, "{other}");
        }
    }
}
