//! Files that are opened beneath a folder somebody else can write in: no link is followed, none leads out.
//!
//! The kernel resolves the whole path at once (`openat2`), so nothing can be swapped between a check and the open.
//! Where a kernel or a filter lacks that call, each component is opened from the descriptor of the one before.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;

/// How often a lookup that raced with a rename is made again.
const RACES_MAX: u32 = 16;

/// Why a path is not used.
#[derive(Debug)]
pub enum Refusal {
    /// Absolute, empty, or with a `..` or NUL in it.
    InvalidComponent,
    /// A symbolic or magic link lies on the path.
    Symlink,
    /// The file has another name elsewhere.
    HardLink,
    /// Not a regular file, or a directory is missing where one must be.
    NotARegularFile,
    /// The file belongs to another user, whose id this is.
    Foreign(u32),
    /// The file is larger than the caller takes.
    TooLarge(u64),
    /// Anything else.
    Io(io::Error),
}

impl Refusal {
    /// The word of the trace, where it has one.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidComponent => "invalid_component",
            Self::Symlink => "symlink",
            Self::HardLink => "hard_link",
            Self::NotARegularFile | Self::Foreign(_) | Self::TooLarge(_) | Self::Io(_) => "not_a_regular_file",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidComponent => f.write_str("it is not a plain path inside the folder"),
            Self::Symlink => f.write_str("a link stands on the path"),
            Self::HardLink => f.write_str("it is a hard link: the file has another name elsewhere"),
            Self::NotARegularFile => f.write_str("it is not a regular file"),
            Self::Foreign(user) => write!(f, "it belongs to another user (uid {user})"),
            Self::TooLarge(max) => write!(f, "it is larger than {max} bytes"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

/// Opens a regular file beneath `root` for reading.
pub fn open(root: &Path, relative: &Path) -> Result<File, Refusal> {
    check(relative)?;
    let root = directory(root)?;
    // A pipe put in the file's place must not make the open wait.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    let file = File::from(resolve(&root, relative, flags, Mode::empty())?);
    let meta = file.metadata().map_err(Refusal::Io)?;
    if !meta.is_file() {
        return Err(Refusal::NotARegularFile);
    }
    if meta.nlink() > 1 {
        return Err(Refusal::HardLink);
    }
    Ok(file)
}

/// Opens a record of ours beneath `root`, with flags of one's own; it is made at mode 0600 where the flags say so. One that
/// belongs to another user, root aside, is refused: who may have written it is not known.
pub fn open_record(root: &Path, relative: &Path, flags: OFlag) -> Result<File, Refusal> {
    check(relative)?;
    let flags = flags | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    let mode = if flags.contains(OFlag::O_CREAT) { Mode::S_IRUSR | Mode::S_IWUSR } else { Mode::empty() };
    let file = File::from(resolve(&directory(root)?, relative, flags, mode)?);
    let meta = file.metadata().map_err(Refusal::Io)?;
    if !meta.is_file() {
        return Err(Refusal::NotARegularFile);
    }
    if meta.uid() != 0 && meta.uid() != nix::unistd::geteuid().as_raw() {
        return Err(Refusal::Foreign(meta.uid()));
    }
    Ok(file)
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Io(error) => error,
            other => Self::other(other.to_string()),
        }
    }
}

/// Opens a folder beneath `root` for listing.
pub fn open_directory(root: &Path, relative: &Path) -> Result<OwnedFd, Refusal> {
    check(relative)?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    resolve(&directory(root)?, relative, flags, Mode::empty())
}

/// Reads a whole regular file beneath `root`, of at most `max` bytes.
pub fn read(root: &Path, relative: &Path, max: u64) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    open(root, relative)?.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(Refusal::Io)?;
    if bytes.len() as u64 > max {
        return Err(Refusal::TooLarge(max));
    }
    Ok(bytes)
}

/// Writes `root/dir/name` whole: a reader sees the old content or the new, and a link in the file's place is replaced,
/// never followed. `dir` is made when it is missing. Nothing is synced to the disk.
pub fn write(root: &Path, dir: &str, name: &str, bytes: &[u8]) -> Result<(), Refusal> {
    let root = directory(root)?;
    check(Path::new(dir))?;
    match nix::sys::stat::mkdirat(&root, dir, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(refusal(errno)),
    }
    let folder =
        resolve(&root, Path::new(dir), OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty())?;
    let temporary = format!(".{name}.{}.tmp", uuid::Uuid::now_v7().simple());
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let mode = Mode::from_bits_truncate(0o666);
    let mut file = File::from(openat(&folder, temporary.as_str(), flags, mode).map_err(refusal)?);
    let result = file
        .write_all(bytes)
        .and_then(|()| nix::fcntl::renameat(&folder, temporary.as_str(), &folder, name).map_err(io::Error::from));
    if result.is_err() {
        let _ = nix::unistd::unlinkat(&folder, temporary.as_str(), nix::unistd::UnlinkatFlags::NoRemoveDir);
    }
    result.map_err(Refusal::Io)
}

fn check(relative: &Path) -> Result<(), Refusal> {
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let nul = relative.as_os_str().as_encoded_bytes().contains(&0);
    if relative.as_os_str().is_empty() || !plain || nul {
        return Err(Refusal::InvalidComponent);
    }
    Ok(())
}

fn directory(root: &Path) -> Result<OwnedFd, Refusal> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    nix::fcntl::open(root, flags, Mode::empty()).map_err(|errno| Refusal::Io(errno.into()))
}

fn resolve(root: &OwnedFd, relative: &Path, flags: OFlag, mode: Mode) -> Result<OwnedFd, Refusal> {
    let how = OpenHow::new()
        .flags(flags)
        .mode(mode)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 0..RACES_MAX {
        match openat2(root, relative, how) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            // Old kernels have no such call; old container filters answer EPERM to it.
            Err(Errno::ENOSYS | Errno::EPERM) => return walk(root, relative, flags, mode),
            other => return other.map_err(refusal),
        }
    }
    Err(Refusal::Io(Errno::EAGAIN.into()))
}

/// The same, one component at a time.
fn walk(root: &OwnedFd, relative: &Path, flags: OFlag, mode: Mode) -> Result<OwnedFd, Refusal> {
    let mut names = relative.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let Some(last) = names.next_back() else { return Err(Refusal::InvalidComponent) };
    let mut folder = root.as_fd().try_clone_to_owned().map_err(Refusal::Io)?;
    for name in names {
        let step = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        folder = openat(&folder, name, step, Mode::empty()).map_err(refusal)?;
    }
    openat(&folder, last, flags | OFlag::O_NOFOLLOW, mode).map_err(refusal)
}

fn refusal(errno: Errno) -> Refusal {
    match errno {
        // A link is `ELOOP`; where a directory is wanted, a link in its place is `ENOTDIR`.
        Errno::ELOOP | Errno::EXDEV => Refusal::Symlink,
        Errno::ENOTDIR | Errno::EISDIR | Errno::ENXIO => Refusal::NotARegularFile,
        errno => Refusal::Io(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("in/sub")).unwrap();
        std::fs::write(dir.path().join("in/sub/file"), "inside").unwrap();
        std::fs::write(dir.path().join("secret"), "outside").unwrap();
        dir
    }

    fn reason(root: &Path, relative: &str) -> &'static str {
        read(root, Path::new(relative), 100).unwrap_err().reason()
    }

    #[test]
    fn a_plain_file_is_read_and_its_bound_holds() {
        let dir = folder();
        let root = dir.path().join("in");
        assert_eq!(read(&root, Path::new("sub/./file"), 6).unwrap(), b"inside");
        assert!(matches!(read(&root, Path::new("sub/file"), 5), Err(Refusal::TooLarge(5))));
    }

    #[test]
    fn nothing_that_leads_out_is_followed() {
        let dir = folder();
        let root = dir.path().join("in");
        symlink("../secret", root.join("link")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("sub/file", root.join("within")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        std::fs::hard_link(dir.path().join("secret"), root.join("hard")).unwrap();
        for (path, expected) in [
            ("link", "symlink"),
            ("up/secret", "symlink"),
            ("within", "symlink"),
            ("magic/etc/hostname", "symlink"),
            ("hard", "hard_link"),
            ("../secret", "invalid_component"),
            ("/etc/hostname", "invalid_component"),
            ("", "invalid_component"),
            ("sub", "not_a_regular_file"),
        ] {
            assert_eq!(reason(&root, path), expected, "{path}");
        }
    }

    #[test]
    fn a_pipe_does_not_make_a_read_wait() {
        let dir = folder();
        let root = dir.path().join("in");
        nix::unistd::mkfifo(&root.join("pipe"), Mode::S_IRWXU).unwrap();
        assert_eq!(reason(&root, "pipe"), "not_a_regular_file");
    }

    #[test]
    fn the_walk_agrees_with_the_kernel() {
        let dir = folder();
        let root_path = dir.path().join("in");
        symlink("..", root_path.join("up")).unwrap();
        symlink("sub/file", root_path.join("within")).unwrap();
        let root = directory(&root_path).unwrap();
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        assert!(walk(&root, Path::new("./sub/file"), flags, Mode::empty()).is_ok());
        assert!(walk(&root, Path::new("up/secret"), flags, Mode::empty()).is_err());
        assert!(matches!(walk(&root, Path::new("within"), flags, Mode::empty()), Err(Refusal::Symlink)));
    }

    #[test]
    fn a_write_replaces_a_link_and_refuses_a_linked_folder() {
        let dir = folder();
        let root = dir.path().join("in");
        std::fs::create_dir(root.join("out")).unwrap();
        symlink("../../secret", root.join("out/result.txt")).unwrap();
        write(&root, "out", "result.txt", b"answer").unwrap();
        assert_eq!(std::fs::read(root.join("out/result.txt")).unwrap(), b"answer");
        assert_eq!(std::fs::read(dir.path().join("secret")).unwrap(), b"outside");
        assert_eq!(std::fs::read_dir(root.join("out")).unwrap().count(), 1);

        symlink("..", root.join("away")).unwrap();
        assert!(write(&root, "away", "result.txt", b"x").is_err());
        assert!(!dir.path().join("result.txt").exists());
    }
}
