//! The relay of a process in a process namespace: outside, without rights, waiting to end as the process does.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use crate::process;
use crate::seccomp::{self, Filter};
use crate::step::Done;

/// Forks: the child goes on inside the process namespace that was joined before, the parent becomes its relay and never
/// returns.
///
/// The child goes on once its relay has given up every right and nearly every system call.
pub(crate) fn fork() -> io::Result<Done> {
    let (confined, held) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    match process::fork() {
        Ok(0) => {
            drop(held);
            // The end of the pipe, which a relay that could not confine itself reaches too: by its own end, which the
            // next step notices.
            while let Err(nix::errno::Errno::EINTR) = nix::unistd::read(&confined, &mut [0]) {}
            Ok(Done::Enforced)
        }
        Ok(child) => wait(child, held.as_raw_fd()),
        // What the kernel says of a namespace whose first process has ended.
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
            Err(io::Error::other("the session's process namespace is gone"))
        }
        Err(error) => Err(error),
    }
}

fn wait(child: libc::pid_t, held: RawFd) -> ! {
    if confine(held).is_err() {
        // A relay that kept its rights would be a way out: without one the child ends too.
        process::leave(1);
    }
    match process::reap(child) {
        Ok(info) => end_as(&info),
        Err(_) => process::leave(1),
    }
}

fn confine(held: RawFd) -> io::Result<()> {
    process::name(c"mur-relay");
    process::keep_only(held)?;
    process::drop_capabilities()?;
    process::no_new_privileges()?;
    process::no_core()?;
    process::not_dumpable()?;
    seccomp::load(Filter::Relay)?;
    // SAFETY: the one descriptor left, which nothing else owns.
    unsafe { libc::close(0) };
    Ok(())
}

fn end_as(info: &libc::siginfo_t) -> ! {
    // SAFETY: waitid filled in a child's end.
    let status = unsafe { info.si_status() };
    if info.si_code == libc::CLD_EXITED {
        process::leave(status);
    }
    // SAFETY: the default action instead of any handler, no signal blocked, then the signal itself.
    unsafe {
        libc::signal(status, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::kill(libc::getpid(), status);
    }
    // A signal that ends no process cannot have ended the child.
    process::leave(128 + status)
}
