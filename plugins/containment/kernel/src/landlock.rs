//! Landlock: what the kernel has, rulesets made beforehand, and entering one.
//!
//! A ruleset handles every filesystem right of the kernel's version (as far as the crate knows it), so that whatever no rule
//! grants is denied. It is made where the granted paths are at hand and passed on as a descriptor: rules follow inodes,
//! also into a composed root, and a process that enters it opens nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, make_bitflags,
};
use mur_plugin_api::{Access, Grant, ProcessKind};

use crate::Done;
use crate::step::check;

/// The kernel's Landlock version; `None` where there is none, or it was not enabled at boot.
pub fn kernel_abi() -> Option<i32> {
    version().ok()
}

/// The same, or why there is none: `ENOSYS` in a kernel without it, `EOPNOTSUPP` where it was not enabled.
fn version() -> io::Result<i32> {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the call reads nothing and makes nothing.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) };
    let abi = i32::try_from(crate::step::check(abi)?).unwrap_or_default();
    if abi > 0 { Ok(abi) } else { Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)) }
}

/// Devices every confined process may use, and how.
const DEVICES: [(&str, BitFlags<AccessFs>); 3] = [
    ("/dev/null", DEVICE),
    ("/dev/zero", make_bitflags!(AccessFs::{ReadFile})),
    ("/dev/urandom", make_bitflags!(AccessFs::{ReadFile})),
];

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
/// No device, no block device, no socket is ever made; nothing is executed.
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | RemoveDir | RemoveFile | MakeDir | MakeReg | MakeFifo | MakeSym | Refer
});
const EXECUTE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | Execute});
const DEVICE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate});
/// What the kernel takes for a path that is no directory.
const ON_FILES: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | Execute | Truncate});

/// A path a ruleset could not be given, and why.
#[derive(Debug)]
pub struct Ungranted {
    /// The path.
    pub path: std::path::PathBuf,
    /// The error of the operating system.
    pub error: io::Error,
}

/// Makes the ruleset of a kind of process. A path that is not there is left out, unless it is required.
pub fn ruleset(process: ProcessKind, grants: &[Grant]) -> Result<OwnedFd, Ungranted> {
    let other = |error: io::Error| Ungranted { path: "the ruleset".into(), error };
    let abi = version().map_err(other)?;
    let abi = ABI::from(abi);
    let handled = AccessFs::from_all(abi);
    let mut ruleset = begin(process, abi).map_err(|error| other(io::Error::other(error)))?;
    for (path, rights) in DEVICES {
        if let Ok(fd) = PathFd::new(path) {
            let rule = PathBeneath::new(fd, rights & handled);
            ruleset = ruleset.add_rule(rule).map_err(|error| other(io::Error::other(error)))?;
        }
    }
    for grant in grants {
        let error = |error| Ungranted { path: grant.path.clone(), error };
        let fd = match open_path(&grant.path) {
            Ok(fd) => fd,
            Err(_) if !grant.required => continue,
            Err(found) => return Err(error(found)),
        };
        if let Some(identity) = grant.identity {
            let stat = nix::sys::stat::fstat(&fd).map_err(|found| error(found.into()))?;
            if (stat.st_dev, stat.st_ino) != identity {
                return Err(error(io::Error::from_raw_os_error(libc::ESTALE)));
            }
        }
        let mut rights = rights_of(grant.access) & handled;
        if !is_directory(&fd).map_err(error)? {
            rights &= ON_FILES;
        }
        if rights.is_empty() {
            continue;
        }
        let added = ruleset.add_rule(PathBeneath::new(fd, rights));
        ruleset = added.map_err(|found| error(io::Error::other(found)))?;
    }
    Option::<OwnedFd>::from(ruleset).ok_or_else(|| other(io::Error::from_raw_os_error(libc::EOPNOTSUPP)))
}

fn rights_of(access: Access) -> BitFlags<AccessFs> {
    match access {
        Access::Visible => BitFlags::empty(),
        Access::ReadFiles => AccessFs::ReadFile.into(),
        Access::Read => READ,
        Access::Write => WRITE,
        Access::WriteExecute => WRITE | AccessFs::Execute,
        Access::Execute => EXECUTE,
        Access::ExecuteRead => EXECUTE | READ,
        Access::Device => DEVICE,
    }
}

fn begin(process: ProcessKind, abi: ABI) -> Result<RulesetCreated, RulesetError> {
    let mut ruleset =
        Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::from_all(abi))?;
    // A command signals its own children and nobody else; its jobs span several domains, so only workers are scoped so.
    let scope = match process {
        ProcessKind::Worker => Scope::from_all(abi),
        ProcessKind::Command => Scope::from_all(abi) & Scope::AbstractUnixSocket,
    };
    if !scope.is_empty() {
        ruleset = ruleset.scope(scope)?;
    }
    ruleset.create()
}

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let flags = nix::fcntl::OFlag::O_PATH | nix::fcntl::OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty())?)
}

fn is_directory(fd: impl AsFd) -> io::Result<bool> {
    let mode = nix::sys::stat::fstat(fd)?.st_mode;
    Ok(mode & libc::S_IFMT == libc::S_IFDIR)
}

#[repr(C, packed)]
struct PathRule {
    allowed: u64,
    parent: i32,
}

/// Adds one file that may be read to a ruleset that was made before the file was.
pub(crate) fn add_readable(ruleset: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    const PATH_BENEATH: libc::c_uint = 1;
    let fd = open_path(path)?;
    let rule = PathRule { allowed: BitFlags::from(AccessFs::ReadFile).bits(), parent: fd.as_raw_fd() };
    let ruleset = ruleset.as_raw_fd();
    // SAFETY: descriptors, and a structure of the kernel's layout that outlives the call.
    check(unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset, PATH_BENEATH, &raw const rule, 0_u32) })?;
    Ok(())
}

/// Enters a ruleset for good. Needs no_new_privs.
pub(crate) fn restrict(ruleset: BorrowedFd<'_>) -> io::Result<Done> {
    // SAFETY: a descriptor and flags.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0_u32) };
    if result == 0 { Ok(Done::Enforced) } else { Err(io::Error::last_os_error()) }
}

/// Enters a domain that handles everything the kernel can handle and grants nothing. Absent without Landlock; with it,
/// anything less than full enforcement is an error.
pub(crate) fn deny_all() -> io::Result<Done> {
    let Some(abi) = kernel_abi() else { return Ok(Done::Absent) };
    let made = nothing(ABI::from(abi)).map_err(io::Error::other)?;
    let fd = Option::<OwnedFd>::from(made).ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
    restrict(fd.as_fd())
}

fn nothing(abi: ABI) -> Result<RulesetCreated, RulesetError> {
    let mut ruleset =
        Ruleset::default().set_compatibility(CompatLevel::HardRequirement).handle_access(AccessFs::from_all(abi))?;
    let (net, scope) = (AccessNet::from_all(abi), Scope::from_all(abi));
    if !net.is_empty() {
        ruleset = ruleset.handle_access(net)?;
    }
    if !scope.is_empty() {
        ruleset = ruleset.scope(scope)?;
    }
    ruleset.create()
}
