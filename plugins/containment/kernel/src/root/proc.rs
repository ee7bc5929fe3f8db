//! The `/proc` of a composed root: of the session's process namespace, other users' processes hidden, and what reaches
//! beyond the session masked or read only.

use std::fs;
use std::io;
use std::path::Path;

use super::mount::{self, Tree};
use crate::step::{Done, StepError};

/// Tried in order; older kernels know fewer.
const OPTIONS: [&str; 3] = ["hidepid=2", "hidepid=invisible", ""];

/// What changes the kernel for everybody: read only.
pub const READ_ONLY: [&str; 5] = ["sys", "sysrq-trigger", "irq", "bus", "fs"];

/// What tells of everybody: covered.
pub const MASKED: [&str; 8] =
    ["kcore", "kmsg", "keys", "key-users", "latency_stats", "timer_list", "sched_debug", "kallsyms"];

pub(super) fn make(base: &Path) -> Result<Done, StepError> {
    let proc = base.join("proc");
    fs::create_dir(&proc)?;
    fresh(&proc)?;
    for name in READ_ONLY {
        let path = proc.join(name);
        cover(&path, || Tree::clone(&path, false)).map_err(|error| StepError::new(name, error))?;
    }
    for name in MASKED {
        cover(&proc.join(name), || Tree::device(Path::new("/dev/null")))
            .map_err(|error| StepError::new(name, error))?;
    }
    Ok(Done::Enforced)
}

fn cover(path: &Path, with: impl FnOnce() -> io::Result<Tree>) -> io::Result<()> {
    if path.exists() { with()?.attach(path) } else { Ok(()) }
}

fn fresh(proc: &Path) -> Result<(), StepError> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for options in OPTIONS {
        match mount::file_system(c"proc", proc, flags, options) {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    // A host whose own `/proc` is covered in part allows no fresh one: then the host's, as it is.
    let host = Tree::clone(Path::new("/proc"), false).and_then(|tree| tree.attach(proc));
    host.map_err(|_| last.into())
}
