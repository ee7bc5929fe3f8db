//! Mount calls by descriptor: a tree is cloned, given its attributes as a whole, and attached.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::step::{Done, check};

const OPEN_TREE_CLONE: libc::c_uint = 1;
const AT_RECURSIVE: libc::c_uint = 0x8000;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;

const ATTR_RDONLY: u64 = 1;
const ATTR_NOSUID: u64 = 2;
const ATTR_NODEV: u64 = 4;

#[repr(C)]
#[derive(Default)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A cloned tree of mounts that is attached nowhere yet.
#[derive(Debug)]
pub(super) struct Tree(OwnedFd);

impl Tree {
    /// Clones what is mounted at and below a path; devices and set-id bits have no effect in it.
    pub(super) fn clone(path: &Path, write: bool) -> io::Result<Self> {
        let tree = Self::plain(path)?;
        let only = if write { 0 } else { ATTR_RDONLY };
        tree.set(only | ATTR_NOSUID | ATTR_NODEV)?;
        Ok(tree)
    }

    /// Clones a single device. It can be written to all the same; its mode and times cannot be changed.
    pub(super) fn device(path: &Path) -> io::Result<Self> {
        let tree = Self::plain(path)?;
        tree.set(ATTR_RDONLY | ATTR_NOSUID)?;
        Ok(tree)
    }

    fn plain(path: &Path) -> io::Result<Self> {
        let path = terminated(path)?;
        let flags = OPEN_TREE_CLONE | AT_RECURSIVE | libc::O_CLOEXEC.cast_unsigned();
        // SAFETY: a terminated path and flags.
        let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })?;
        // SAFETY: the kernel has just made this descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) }))
    }

    fn set(&self, attributes: u64) -> io::Result<()> {
        set_attributes(self.0.as_raw_fd(), c"", libc::AT_EMPTY_PATH.cast_unsigned() | AT_RECURSIVE, attributes)
    }

    /// Device and inode of what it begins with.
    pub(super) fn identity(&self) -> io::Result<(u64, u64)> {
        let stat = nix::sys::stat::fstat(&self.0)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    pub(super) fn is_directory(&self) -> io::Result<bool> {
        Ok(nix::sys::stat::fstat(&self.0)?.st_mode & libc::S_IFMT == libc::S_IFDIR)
    }

    /// Attaches it to a path that is there. A link at the path's end is not followed.
    pub(super) fn attach(&self, target: &Path) -> io::Result<()> {
        let target = terminated(target)?;
        let (from, empty, flags) = (self.0.as_raw_fd(), c"".as_ptr(), MOVE_MOUNT_F_EMPTY_PATH);
        // SAFETY: descriptors, terminated paths and flags.
        check(unsafe { libc::syscall(libc::SYS_move_mount, from, empty, libc::AT_FDCWD, target.as_ptr(), flags) })?;
        Ok(())
    }
}

fn set_attributes(at: i32, path: &CStr, flags: libc::c_uint, set: u64) -> io::Result<()> {
    let attributes = Attributes { set, ..Attributes::default() };
    let (pointer, size) = (&raw const attributes, size_of::<Attributes>());
    // SAFETY: a descriptor, a terminated path, and a structure of the size given.
    check(unsafe { libc::syscall(libc::SYS_mount_setattr, at, path.as_ptr(), flags, pointer, size) })?;
    Ok(())
}

/// No mount of this namespace is passed on or taken over.
pub(super) fn make_private() -> io::Result<Done> {
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: terminated paths; the other pointers may be null here.
    check(unsafe { libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null()) })?;
    Ok(Done::Enforced)
}

/// Mounts an empty tmpfs.
pub(super) fn tmpfs(target: &Path, flags: libc::c_ulong, options: &str) -> io::Result<()> {
    file_system(c"tmpfs", target, flags, options)
}

/// Mounts a fresh file system of a kind.
pub(super) fn file_system(kind: &CStr, target: &Path, flags: libc::c_ulong, options: &str) -> io::Result<()> {
    let target = terminated(target)?;
    let options = CString::new(options).map_err(io::Error::other)?;
    // SAFETY: terminated strings that outlive the call.
    check(unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) })?;
    Ok(())
}

/// Makes everything that is mounted read only; devices go on to work.
pub(super) fn all_read_only() -> io::Result<Done> {
    set_attributes(libc::AT_FDCWD, c"/", AT_RECURSIVE, ATTR_RDONLY)?;
    Ok(Done::Enforced)
}

/// Makes one mount read only, without devices or set-id bits.
pub(super) fn read_only(target: &Path) -> io::Result<Done> {
    set_attributes(libc::AT_FDCWD, &terminated(target)?, 0, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)?;
    Ok(Done::Enforced)
}

/// Makes a mount read only that holds devices.
pub(super) fn read_only_devices(target: &Path) -> io::Result<()> {
    set_attributes(libc::AT_FDCWD, &terminated(target)?, 0, ATTR_RDONLY | ATTR_NOSUID)
}

/// Takes a mount and everything below it out of the tree.
pub(super) fn detach(target: &Path) -> io::Result<()> {
    let target = terminated(target)?;
    // SAFETY: a terminated path and a flag.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) })?;
    Ok(())
}

fn terminated(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
