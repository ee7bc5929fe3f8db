//! Whole folders that somebody else filled: measured and removed by descriptors, however deep they are.
//!
//! Each step down opens a name beneath the folder above, without following a link. The first folders of the way are held
//! open, so a bounded number of descriptors is; a step up to a deeper one opens `..`, and is taken only when that is the
//! folder the way down came from. No path is ever built, so none is too long, and nothing recurses.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// How often a folder that somebody still fills is begun anew.
const REFILLED_MAX: u32 = 64;

const FOLDER: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);

/// Folders of the way that are held open: few trees are deeper, and moving things about meanwhile costs only those.
const HELD: usize = 64;

/// Which folder, whatever its name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    fn of(folder: BorrowedFd<'_>) -> nix::Result<Self> {
        fstat(folder).map(|stat| Self(stat.st_dev, stat.st_ino))
    }
}

/// A folder on the way down.
struct Above {
    /// It, among the first [`HELD`]; below them only which it is.
    folder: Result<OwnedFd, Identity>,
    /// The name in it that leads down.
    name: CString,
    /// Folders in it that are still to be looked at.
    rest: Vec<CString>,
}

/// The folder that is looked at, and the way to it.
struct Walk {
    at: OwnedFd,
    above: Vec<Above>,
}

impl Walk {
    fn begin(at: OwnedFd) -> Self {
        Self { at, above: Vec::new() }
    }

    /// To a folder below; `rest` is what waits until the walk is back, and is emptied when the step was made.
    fn down(
        &mut self,
        name: &CStr,
        rest: &mut Vec<CString>,
        open: impl Fn(&OwnedFd, &CStr) -> nix::Result<OwnedFd>,
    ) -> nix::Result<()> {
        let below = open(&self.at, name)?;
        let identity = Identity::of(self.at.as_fd())?;
        let folder = std::mem::replace(&mut self.at, below);
        let folder = if self.above.len() < HELD { Ok(folder) } else { Err(identity) };
        self.above.push(Above { folder, name: name.to_owned(), rest: std::mem::take(rest) });
        Ok(())
    }

    /// Back to the folder above: the name in it that led down, and what waits there. `None` at the top.
    fn up(&mut self) -> nix::Result<Option<(CString, Vec<CString>)>> {
        let Some(Above { folder, name, rest }) = self.above.pop() else { return Ok(None) };
        self.at = match folder {
            Ok(folder) => folder,
            Err(identity) => {
                let parent = openat(&self.at, c"..", FOLDER, Mode::empty())?;
                // Moved meanwhile: what lies above it now was never part of the tree.
                if Identity::of(parent.as_fd())? != identity {
                    return Err(Errno::ESTALE);
                }
                parent
            }
        };
        Ok(Some((name, rest)))
    }

    /// The entries of the folder, and whether each is a folder, where the file system says so.
    fn entries(&self) -> nix::Result<impl Iterator<Item = nix::Result<(CString, Option<bool>)>> + use<>> {
        // A descriptor of its own: reading moves the position.
        let dir = Dir::from_fd(openat(&self.at, c".", FOLDER, Mode::empty())?)?;
        Ok(dir.into_iter().filter_map(|entry| match entry {
            Err(errno) => Some(Err(errno)),
            Ok(entry) => {
                let name = entry.file_name();
                let kind = entry.file_type().map(|kind| kind == Type::Directory);
                (name != c"." && name != c"..").then(|| Ok((name.to_owned(), kind)))
            }
        }))
    }
}

fn open_folder(above: &OwnedFd, name: &CStr) -> nix::Result<OwnedFd> {
    openat(above, name, FOLDER, Mode::empty())
}

/// Removes a folder and everything in it; a link is removed, never followed. What its owner closed to itself is opened.
///
/// # Errors
/// The first entry that cannot be removed; what came before is gone.
pub fn remove(dir: &Path) -> io::Result<()> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = dir.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let name = CString::new(name.as_bytes())?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let parent = nix::fcntl::open(parent, flags, Mode::empty())?;
    let mut walk = Walk::begin(open_own(&parent, &name)?);
    let mut rest = unlink_files(&walk)?;
    let mut refilled = 0;
    loop {
        if let Some(folder) = rest.pop() {
            match walk.down(&folder, &mut rest, open_own) {
                Ok(()) => rest = unlink_files(&walk)?,
                // Somebody else removed it.
                Err(Errno::ENOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
            continue;
        }
        let Some((below, waiting)) = walk.up()? else {
            return remove_empty(&parent, &name).map_err(io::Error::from);
        };
        rest = waiting;
        match remove_empty(&walk.at, &below) {
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if refilled < REFILLED_MAX => {
                refilled += 1;
                rest.push(below);
            }
            other => other?,
        }
    }
}

/// Removes what is no folder, and gives the folders.
fn unlink_files(walk: &Walk) -> nix::Result<Vec<CString>> {
    let mut folders = Vec::new();
    for entry in walk.entries()? {
        let (name, folder) = entry?;
        if folder == Some(true) {
            folders.push(name);
            continue;
        }
        match unlinkat(&walk.at, name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(Errno::EISDIR) => folders.push(name),
            Err(errno) => return Err(errno),
        }
    }
    Ok(folders)
}

fn remove_empty(above: &OwnedFd, name: &CStr) -> nix::Result<()> {
    match unlinkat(above, name, UnlinkatFlags::RemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
    }
}

/// Opens a folder to empty it; one whose mode keeps its owner out is given the owner's rights first.
fn open_own(above: &OwnedFd, name: &CStr) -> nix::Result<OwnedFd> {
    let path = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let found = openat(above, name, path, Mode::empty())?;
    let stat = fstat(&found)?;
    let own = stat.st_uid == nix::unistd::geteuid().as_raw();
    if own && stat.st_mode & 0o700 != 0o700 {
        // By the descriptor's own entry: a name could be a link by now.
        let entry = format!("/proc/self/fd/{}", found.as_raw_fd());
        let _ = std::fs::set_permissions(entry, std::fs::Permissions::from_mode(stat.st_mode & 0o777 | 0o700));
    }
    openat(&found, c".", FOLDER, Mode::empty())
}

/// What a walk over a folder saw.
pub trait Look {
    /// One entry, a folder or anything else; `false` ends the walk.
    fn entry(&mut self, stat: &FileStat) -> bool;
}

/// Shows every entry below a folder, links themselves and not what they lead to. What cannot be read is passed over.
/// Says whether the walk came to its end.
pub fn visit(dir: &Path, look: &mut dyn Look) -> bool {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let Ok(top) = nix::fcntl::open(dir, flags, Mode::empty()) else { return true };
    let mut walk = Walk::begin(top);
    let Some(mut rest) = look_at(&walk, look) else { return false };
    loop {
        if let Some(name) = rest.pop() {
            // A folder that cannot be opened costs only what lies in it.
            if walk.down(&name, &mut rest, open_folder).is_ok() {
                let Some(found) = look_at(&walk, look) else { return false };
                rest = found;
            }
            continue;
        }
        match walk.up() {
            Ok(Some((_, waiting))) => rest = waiting,
            Ok(None) => return true,
            // On from the next folder above that is held open.
            Err(_) => {}
        }
    }
}

/// Shows the entries of one folder and gives the folders; `None` when the walk is to end.
fn look_at(walk: &Walk, look: &mut dyn Look) -> Option<Vec<CString>> {
    let mut folders = Vec::new();
    let Ok(entries) = walk.entries() else { return Some(folders) };
    for (name, _) in entries.flatten() {
        let Ok(stat) = fstatat(&walk.at, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
        if !look.entry(&stat) {
            return None;
        }
        if stat.st_mode & libc::S_IFMT == libc::S_IFDIR {
            folders.push(name);
        }
    }
    Some(folders)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use nix::sys::stat::mkdirat;

    use super::*;

    /// A chain of folders far longer than any path may be, with a file at its end.
    fn chain(dir: &Path, depth: usize) {
        let mut at: OwnedFd = fs::File::open(dir).unwrap().into();
        for _ in 0..depth {
            mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            at = openat(&at, "d", FOLDER, Mode::empty()).unwrap();
        }
        let file = openat(&at, "end", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRWXU).unwrap();
        nix::unistd::write(&file, &[1; 3000]).unwrap();
    }

    fn tree() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir(&top).unwrap();
        (dir, top)
    }

    #[test]
    fn a_chain_no_path_can_name_is_removed_whole() {
        let (_dir, top) = tree();
        chain(&top, 3000);
        remove(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn links_are_removed_and_what_they_lead_to_stays() {
        let (dir, top) = tree();
        let kept = dir.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        fs::create_dir(top.join("sub")).unwrap();
        std::os::unix::fs::symlink(&kept, top.join("sub/link")).unwrap();
        std::os::unix::fs::symlink("../..", top.join("sub/up")).unwrap();
        nix::unistd::mkfifo(&top.join("pipe"), Mode::S_IRWXU).unwrap();
        fs::create_dir(top.join("closed")).unwrap();
        fs::write(top.join("closed/file"), "x").unwrap();
        fs::set_permissions(top.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        remove(&top).unwrap();
        assert!(!top.exists() && kept.join("file").exists());

        std::os::unix::fs::symlink(&kept, &top).unwrap();
        assert!(remove(&top).is_err(), "a link is no folder");
        assert!(kept.join("file").exists());
        assert_eq!(remove(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    struct Names(u64, u64);

    impl Look for Names {
        fn entry(&mut self, stat: &FileStat) -> bool {
            self.0 += 1;
            self.1 += u64::from(stat.st_mode & libc::S_IFMT == libc::S_IFREG) * stat.st_size as u64;
            self.0 < 4000
        }
    }

    #[test]
    fn a_visit_sees_everything_once_and_ends_when_told() {
        let (_dir, top) = tree();
        chain(&top, 3000);
        std::os::unix::fs::symlink("/", top.join("root")).unwrap();
        let mut seen = Names(0, 0);
        assert!(visit(&top, &mut seen));
        assert_eq!((seen.0, seen.1), (3002, 3000));
        let mut seen = Names(3990, 0);
        assert!(!visit(&top, &mut seen));
        remove(&top).unwrap();
    }
}
