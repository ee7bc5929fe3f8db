//! Steps on the process itself: its group, descriptors, capabilities and limits.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use mur_plugin_api::ProcessLimits;

use crate::step::{Done, check};

/// Leads a process group of its own; already doing so is fine, as the leader of a session does.
pub(crate) fn own_group() -> io::Result<Done> {
    // SAFETY: plain integers.
    if unsafe { libc::getpgrp() == libc::getpid() } {
        return Ok(Done::Enforced);
    }
    // SAFETY: plain integers.
    check(unsafe { libc::setpgid(0, 0) })?;
    Ok(Done::Enforced)
}

/// Marks every descriptor above stderr close-on-exec.
pub(crate) fn close_on_exec() -> io::Result<Done> {
    // SAFETY: with this flag nothing is closed now; flags of plain numbers are set.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(Done::Enforced) } else { Err(io::Error::last_os_error()) }
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// Used when the kernel does not tell its last capability; unknown ones answer `EINVAL`.
const LAST_CAPABILITY: libc::c_int = 63;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Empties the bounding and ambient sets, then the process's own three.
pub(crate) fn drop_capabilities() -> io::Result<Done> {
    for capability in 0..=LAST_CAPABILITY {
        // SAFETY: plain integers.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } == 0 {
            continue;
        }
        match io::Error::last_os_error().raw_os_error() {
            // Past the kernel's last capability.
            Some(libc::EINVAL) => break,
            // Not ours to drop: an unprivileged process holds none, and no_new_privs keeps it from gaining any.
            Some(libc::EPERM) if !holds_any()? => break,
            _ => return Err(io::Error::last_os_error()),
        }
    }
    // SAFETY: plain integers. A kernel without ambient capabilities (before 4.3) answers EINVAL.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let none = [CapabilityData::default(); 2];
    // SAFETY: both point to structures of the kernel's layout for version 3.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    if result == 0 { Ok(Done::Enforced) } else { Err(io::Error::last_os_error()) }
}

fn holds_any() -> io::Result<bool> {
    let mut header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let mut held = [CapabilityData::default(); 2];
    // SAFETY: both point to structures of the kernel's layout for version 3.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, held.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(held.iter().any(|part| part.permitted != 0))
}

/// For good, and for everything started from here.
pub(crate) fn no_new_privileges() -> io::Result<Done> {
    // SAFETY: plain integers.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    Ok(Done::Enforced)
}

/// Memory and `/proc` entries are out of reach of other processes of the same user.
pub(crate) fn not_dumpable() -> io::Result<Done> {
    // SAFETY: plain integers.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })?;
    Ok(Done::Enforced)
}

/// Sets every limit hard; one above the inherited hard limit is clamped to it. A write past the file size answers `EFBIG`
/// to the one guest that made it, instead of a signal to the whole process.
pub(crate) fn limits(settings: &ProcessLimits) -> io::Result<Done> {
    // SAFETY: ignoring a signal installs no handler.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    limit_all(settings)
}

/// Sets every limit hard, and leaves what a signal does as it is: a command ends by `SIGXFSZ`, as programs expect.
pub(crate) fn limit_all(settings: &ProcessLimits) -> io::Result<Done> {
    limit(libc::RLIMIT_NOFILE, settings.open_files, 0)?;
    limit(libc::RLIMIT_FSIZE, settings.file_size, 0)?;
    limit(libc::RLIMIT_CORE, 0, 0)?;
    if let Some(seconds) = settings.cpu_seconds {
        // SIGXCPU at the soft limit, SIGKILL a second later.
        limit(libc::RLIMIT_CPU, seconds, 1)?;
    }
    if let Some(bytes) = settings.address_space {
        limit(libc::RLIMIT_AS, bytes, 0)?;
    }
    Ok(Done::Enforced)
}

fn limit(resource: libc::__rlimit_resource_t, soft: u64, above: u64) -> io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid structure for the kernel to fill.
    check(unsafe { libc::getrlimit(resource, &raw mut now) })?;
    let hard = soft.saturating_add(above).min(now.rlim_max);
    let new = libc::rlimit { rlim_cur: soft.min(hard), rlim_max: hard };
    // SAFETY: a valid structure.
    check(unsafe { libc::setrlimit(resource, &raw const new) })?;
    Ok(())
}

/// No core dump of this process, whatever was asked otherwise.
pub(crate) fn no_core() -> io::Result<()> {
    limit(libc::RLIMIT_CORE, 0, 0)
}

/// A name for listings of processes.
pub(crate) fn name(text: &std::ffi::CStr) {
    // SAFETY: the kernel copies at most sixteen bytes of a terminated string.
    unsafe { libc::prctl(libc::PR_SET_NAME, text.as_ptr()) };
}

/// Asks for SIGKILL at the parent's end, and makes sure that the parent had not ended before.
pub(crate) fn die_with(parent: libc::pid_t) -> io::Result<Done> {
    // SAFETY: plain integers.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
    // SAFETY: no arguments.
    if unsafe { libc::getppid() } == parent {
        Ok(Done::Enforced)
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Whether the process can be looked into; needed only while its own id maps are written.
pub(crate) fn set_dumpable(dumpable: bool) -> io::Result<()> {
    // SAFETY: plain integers.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(dumpable), 0, 0, 0) })?;
    Ok(())
}

/// Closes every descriptor but one, which becomes number 0; for a process that needs nothing else.
pub(crate) fn keep_only(fd: RawFd) -> io::Result<()> {
    if fd != 0 {
        // SAFETY: plain numbers; nothing in this process uses what they named.
        check(unsafe { libc::dup2(fd, 0) })?;
    }
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_close_range, 1_u32, u32::MAX, 0_u32) })?;
    Ok(())
}

/// Closes every descriptor above stderr but some.
pub(crate) fn close_all_but(kept: &[RawFd]) -> io::Result<Done> {
    let mut kept: Vec<u32> = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd > 2).collect();
    kept.sort_unstable();
    let mut from = 3_u32;
    for next in kept.into_iter().chain([u32::MAX]) {
        if from < next {
            let last = if next == u32::MAX { next } else { next - 1 };
            // SAFETY: plain numbers; nothing in this process uses what they named.
            check(unsafe { libc::syscall(libc::SYS_close_range, from, last, 0_u32) })?;
        }
        from = next.saturating_add(1);
    }
    Ok(Done::Enforced)
}

/// The kernel's last signal.
const SIGNALS: libc::c_int = 64;

/// Leads a session of its own, without a terminal; no signal is ignored or blocked.
pub(crate) fn own_session() -> io::Result<Done> {
    // SAFETY: no arguments.
    check(unsafe { libc::setsid() })?;
    // The kernel's own structure, all zeroes: the default action. The C library refuses the two signals it uses itself.
    let default = [0_u64; 4];
    for signal in 1..=SIGNALS {
        // SAFETY: a structure of the kernel's layout, a null pointer where nothing is asked, and the size of a signal set.
        // The two signals whose action cannot be set answer an error, and keep theirs.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u64>(), 8_usize) };
    }
    // SAFETY: an empty set is made and put in force.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    Ok(Done::Enforced)
}

/// Makes this process a likelier one to be killed when memory is used up; where the kernel takes no such preference, it goes
/// without.
pub(crate) fn prefer_when_out_of_memory() -> Done {
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    Done::Enforced
}

/// Leaves at once, without running anything that was registered for the end.
pub(crate) fn leave(status: i32) -> ! {
    // SAFETY: a status.
    unsafe { libc::_exit(status) }
}

/// Forks a single-threaded process: 0 in the child.
pub(crate) fn fork() -> io::Result<libc::pid_t> {
    // SAFETY: the process is single-threaded, so the child may run any code.
    Ok(i32::try_from(check(unsafe { libc::fork() })?).unwrap_or_default())
}

/// libc's own has not the width of the field.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks a single-threaded process into a directory of the v2 cgroup tree: 0 in the child. Nobody is moved, so nobody is
/// waited for. Kernels before 5.7 cannot.
pub(crate) fn fork_into(cgroup: BorrowedFd<'_>) -> io::Result<libc::pid_t> {
    // SAFETY: all zeroes is a value of this plain structure.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
    arguments.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    let size = std::mem::size_of::<libc::clone_args>();
    // SAFETY: like fork: no shared memory, no new stack; the process is single-threaded, so the child may run any code. The
    // structure outlives the call and has the size that is given.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) })?;
    Ok(i32::try_from(pid).unwrap_or_default())
}

/// Kills a child that has not been reaped, and reaps it.
pub(crate) fn kill(pid: libc::pid_t) {
    // SAFETY: the number is the child's own until it is reaped.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    let _ = reap(pid);
}

/// Waits for a child and reaps it.
pub(crate) fn reap(pid: libc::pid_t) -> io::Result<libc::siginfo_t> {
    loop {
        // SAFETY: all zeroes is a value of this plain structure.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let id = pid.unsigned_abs();
        // SAFETY: a structure that outlives the call.
        let result = unsafe { libc::waitid(libc::P_PID, id, &raw mut info, libc::WEXITED | libc::__WALL) };
        match check(result) {
            Ok(_) => return Ok(info),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
