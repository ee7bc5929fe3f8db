//! Small processes that wait for the end of a pipe: the first process of a session's process namespace, and the one that
//! takes a scope down when whoever made it was killed.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::process;
use crate::scope::Directories;
use crate::seccomp::{self, Filter};

/// How long a watcher takes to end what is left in a scope.
const TAKING_DOWN: Duration = Duration::from_secs(10);

/// The first process of a process namespace, in the child: reaps what is orphaned and ends at the end of the lifeline,
/// with everything in the namespace. Says a byte on `ready` when it can no longer miss its maker's end. Never returns.
pub(crate) fn init(lifeline: &OwnedFd, ready: &OwnedFd) -> ! {
    let _ = be_init(lifeline, ready);
    process::leave(1)
}

fn be_init(lifeline: &OwnedFd, ready: &OwnedFd) -> io::Result<()> {
    process::name(c"mur-init");
    // SAFETY: plain integers. The maker is outside of this namespace: it has no number here.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
    // SAFETY: ignoring this signal makes the kernel reap every child of this process by itself, orphans included.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    nix::unistd::write(ready, &[1])?;
    process::keep_only(lifeline.as_raw_fd())?;
    process::drop_capabilities()?;
    process::no_new_privileges()?;
    process::no_core()?;
    process::not_dumpable()?;
    seccomp::load(Filter::Wait)?;
    until_end();
    Ok(())
}

/// Starts the watcher of a scope: it outlives its maker, in a session of its own, and takes the scope down when the pipe
/// whose read end it holds comes to its end. Returns its pid and the write end.
pub(crate) fn of_scope(directories: &Directories) -> io::Result<(libc::pid_t, OwnedFd)> {
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let pid = process::fork()?;
    if pid != 0 {
        return Ok((pid, write));
    }
    drop(write);
    process::name(c"mur-scope");
    // A signal for the maker's group is none for this process.
    let _ = nix::unistd::setsid();
    let _ = nix::unistd::chdir("/");
    if process::keep_only(read.as_raw_fd()).is_ok() {
        until_end();
        directories.take_down(TAKING_DOWN);
    }
    process::leave(0)
}

/// Reads number 0 to its end.
fn until_end() {
    let mut byte = 0_u8;
    loop {
        // SAFETY: one byte of this frame.
        let count = unsafe { libc::read(0, (&raw mut byte).cast(), 1) };
        let interrupted = count < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if count <= 0 && !interrupted {
            return;
        }
    }
}
