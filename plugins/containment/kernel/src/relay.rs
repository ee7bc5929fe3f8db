//! The relay of a process in a process namespace: outside, without rights, waiting to end as the process does.

use std::io;

use crate::process;
use crate::seccomp::{self, Filter};
use crate::step::Done;

/// Forks: the child goes on inside the process namespace that was joined before, the parent becomes its relay and never
/// returns.
pub(crate) fn fork() -> io::Result<Done> {
    match process::fork() {
        Ok(0) => Ok(Done::Enforced),
        Ok(child) => wait(child),
        // What the kernel says of a namespace whose first process has ended.
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
            Err(io::Error::other("the session's process namespace is gone"))
        }
        Err(error) => Err(error),
    }
}

fn wait(child: libc::pid_t) -> ! {
    if confine().is_err() {
        // A relay that kept its rights would be a way out: without one the child ends too.
        process::leave(1);
    }
    match process::reap(child) {
        Ok(info) => end_as(&info),
        Err(_) => process::leave(1),
    }
}

fn confine() -> io::Result<()> {
    process::name(c"mur-relay");
    // SAFETY: plain numbers; nothing in this process uses them from here on.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, 0_u32) };
    crate::step::check(closed)?;
    process::drop_capabilities()?;
    process::no_new_privileges()?;
    process::no_core()?;
    process::not_dumpable()?;
    seccomp::load(Filter::Relay)?;
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
