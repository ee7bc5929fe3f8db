//! The bound of reading and writing: `io.max` of the v2 tree, throttling of the v1 hierarchy. Best effort: many file
//! systems have no disk of their own, and many hosts no controller.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mur_plugin_api::{IoHeld, IoLimit, IoStatus};

use super::Version;

/// Sets the bound for the disk a path is on.
pub(super) fn set(place: Option<&(PathBuf, Version)>, limit: Option<&IoLimit>) -> IoStatus {
    let Some(limit) = limit else { return IoStatus { status: IoHeld::NotRequired, reason: None } };
    let unavailable = |reason: String| IoStatus { status: IoHeld::Unavailable, reason: Some(reason) };
    let Some((dir, version)) = place else { return unavailable("this host has no io controller for mur".to_owned()) };
    let disk = match disk_of(&limit.path) {
        Ok(Some(disk)) => disk,
        Ok(None) => return unavailable(format!("{} is on no disk of its own", limit.path.display())),
        Err(error) => return unavailable(format!("the disk of {}: {error}", limit.path.display())),
    };
    let bytes = limit.bytes_per_second;
    let written = match version {
        Version::Two => fs::write(dir.join("io.max"), format!("{disk} rbps={bytes} wbps={bytes}")),
        Version::One => ["read", "write"].into_iter().try_for_each(|way| {
            fs::write(dir.join(format!("blkio.throttle.{way}_bps_device")), format!("{disk} {bytes}"))
        }),
    };
    match written {
        Ok(()) => IoStatus { status: IoHeld::Enforced, reason: None },
        Err(error) => unavailable(format!("the kernel refused the bound for disk {disk}: {error}")),
    }
}

/// `major:minor` of the whole disk that holds a path; `None` where a file system has none.
fn disk_of(path: &Path) -> io::Result<Option<String>> {
    let device = fs::metadata(path)?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    if major == 0 {
        return Ok(None);
    }
    let dir = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !dir.join("partition").exists() {
        return Ok(dir.exists().then(|| format!("{major}:{minor}")));
    }
    let whole = fs::canonicalize(&dir)?.parent().map(|disk| disk.join("dev"));
    whole.map(|file| Ok(fs::read_to_string(file)?.trim().to_owned())).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_bounded_says_why() {
        let limit = IoLimit { bytes_per_second: 1 << 20, path: "/proc".into() };
        assert_eq!(set(None, None).status, IoHeld::NotRequired);
        let none = set(None, Some(&limit));
        assert_eq!(none.status, IoHeld::Unavailable);
        let place = (PathBuf::from("/nowhere"), Version::Two);
        let odd = set(Some(&place), Some(&limit));
        assert_eq!(odd.reason.as_deref(), Some("/proc is on no disk of its own"));
        let gone = set(Some(&place), Some(&IoLimit { path: "/none/x".into(), ..limit }));
        assert!(gone.reason.unwrap().starts_with("the disk of /none/x: "));
    }
}
