//! Attempts to start programs that nothing allows.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::files::work_control;
use crate::outcome::{Outcome, all, errno, words};
use crate::plan::Plan;

/// Exit status of the child whose exec failed.
const NOT_STARTED: i32 = 117;

const MFD_NOEXEC_SEAL: libc::c_uint = 8;

pub(crate) fn attempt(case: &str, plan: &Plan) -> Option<Outcome> {
    Some(match case {
        "exec-renamed-disallowed-binary" => renamed(plan),
        "exec-memfd" => memory_file(plan),
        "exec-through-loader" => through_loader(plan),
        "worker-exec-any" => any(plan),
        _ => return None,
    })
}

/// How a child went that was to become a program.
enum Ended {
    Failed(i32),
    Ran(String),
}

/// Forks, lets `exec` become a program in the child, and says how that went.
fn start(exec: impl Fn() -> i32) -> io::Result<Ended> {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: two new descriptors that nothing else owns.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: the child makes only calls that are safe after a fork of a process with threads: dup2, exec, write, _exit.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        let number = exec();
        let bytes = number.to_ne_bytes();
        // SAFETY: an open pipe and the bytes it is given; `_exit` runs nothing.
        unsafe {
            libc::write(write.as_raw_fd(), bytes.as_ptr().cast(), bytes.len());
            libc::_exit(NOT_STARTED);
        }
    }
    drop(write);
    let mut bytes = [0_u8; 4];
    // SAFETY: room for as many bytes as are asked for.
    let got = unsafe { libc::read(read.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    let mut status = 0;
    // SAFETY: a child that has not been waited for.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(match got {
        4 => Ended::Failed(i32::from_ne_bytes(bytes)),
        _ if libc::WIFEXITED(status) => Ended::Ran(format!("it ran and exited with {}", libc::WEXITSTATUS(status))),
        _ => Ended::Ran(format!("it ran until signal {}", libc::WTERMSIG(status))),
    })
}

fn exec(program: &CStr, args: &[&CStr]) -> io::Result<Ended> {
    let mut argv: Vec<*const libc::c_char> = args.iter().map(|arg| arg.as_ptr()).collect();
    argv.push(std::ptr::null());
    let env = [std::ptr::null()];
    start(|| {
        silence();
        // SAFETY: terminated strings and lists that outlive the call, which returns only on failure.
        unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
        last_errno()
    })
}

/// In the child: what the program prints is of no interest, and there may be nowhere to print it to.
fn silence() {
    // SAFETY: a terminated string and plain numbers, in a forked child that uses nothing else.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
        if null >= 0 {
            libc::dup2(null, 1);
            libc::dup2(null, 2);
        }
    }
}

fn last_errno() -> i32 {
    // SAFETY: the calling thread's own error number.
    unsafe { *libc::__errno_location() }
}

fn judge(call: &str, ended: io::Result<Ended>, absent: bool) -> Outcome {
    match ended {
        Ok(Ended::Ran(how)) => Outcome::allowed(format!("{call}: {how}")),
        Ok(Ended::Failed(number)) => {
            let detail = format!("{call}: {}", errno(number));
            match number {
                libc::EACCES | libc::EPERM => Outcome::refused(detail),
                libc::ENOENT if absent => Outcome::refused(detail),
                _ => Outcome::inconclusive(detail),
            }
        }
        Err(error) => Outcome::inconclusive(format!("{call}: a child cannot be made: {}", words(&error))),
    }
}

/// A child that only ends: making and waiting for one is permitted.
fn fork_control() -> io::Result<()> {
    match start(|| 0)? {
        Ended::Failed(0) => Ok(()),
        Ended::Failed(number) => Err(io::Error::from_raw_os_error(number)),
        Ended::Ran(how) => Err(io::Error::other(how)),
    }
}

fn c_path(path: &Path) -> CString {
    // Paths of plans are lines of text: they hold no zero byte.
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

fn renamed(plan: &Plan) -> Outcome {
    let staged = c_path(&plan.work().join("bash"));
    judge("execve(./bash, a copy of an unlisted program)", exec(&staged, &[c"bash"]), false)
        .controlled("fork", fork_control())
}

fn memory_file(plan: &Plan) -> Outcome {
    let program = match fs::read(plan.work().join("bash")) {
        Ok(program) => program,
        Err(error) => return Outcome::inconclusive(format!("the staged program: {}", words(&error))),
    };
    let tried = [("memfd_create(0)", 0), ("memfd_create(MFD_NOEXEC_SEAL)", MFD_NOEXEC_SEAL)];
    all(tried.map(|(name, flags)| memory_file_with(name, flags, &program))).controlled("fork", fork_control())
}

fn memory_file_with(name: &str, flags: libc::c_uint, program: &[u8]) -> Outcome {
    // SAFETY: a terminated name and flags.
    let fd = unsafe { libc::memfd_create(c"ec".as_ptr(), flags | libc::MFD_CLOEXEC) };
    if fd < 0 {
        return crate::outcome::judge::<()>(name, Err(io::Error::last_os_error()), false);
    }
    // SAFETY: a new descriptor that nothing else owns.
    let file = fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    if let Err(error) = io::Write::write_all(&mut &file, program) {
        return Outcome::inconclusive(format!("{name}: it cannot be filled: {}", words(&error)));
    }
    let (argv, env) = ([c"echo".as_ptr(), std::ptr::null()], [std::ptr::null::<libc::c_char>()]);
    let number = file.as_raw_fd();
    let ended = start(|| {
        silence();
        // SAFETY: an open descriptor, a terminated empty path and lists that outlive the call.
        unsafe {
            libc::syscall(libc::SYS_execveat, number, c"".as_ptr(), argv.as_ptr(), env.as_ptr(), libc::AT_EMPTY_PATH)
        };
        last_errno()
    });
    judge(&format!("{name}, execveat"), ended, false)
}

fn through_loader(plan: &Plan) -> Outcome {
    let Some(loader) = plan.one("loader") else { return Outcome::inconclusive("the plan names no dynamic loader") };
    let staged = c_path(&plan.work().join("bash"));
    judge("execve(the dynamic loader, ./bash)", exec(&c_path(Path::new(loader)), &[c"ld.so", &staged]), false)
        .controlled("fork", fork_control())
}

/// Whatever a worker reaches: the shell, itself, and a program it wrote.
fn any(plan: &Plan) -> Outcome {
    let own = plan.scratch("program");
    let written = fs::copy(plan.work().join("bash"), &own).and_then(|_| {
        // The mode is asked for again: a copy keeps it where the source's can be read.
        fs::File::options().write(true).mode(0o755).open(&own).map(|_| ())
    });
    let shell = judge("execve(/bin/sh)", exec(c"/bin/sh", &[c"sh", c"-c", c"exit 0"]), plan.sealed());
    let itself = judge("execve(/proc/self/exe)", exec(c"/proc/self/exe", &[c"mur", c"version"]), plan.sealed());
    let mine = match written {
        Ok(()) => judge("execve(a file it wrote)", exec(&c_path(&own), &[c"echo"]), false),
        Err(error) => Outcome::inconclusive(format!("a file of the work folder: {}", words(&error))),
    };
    let _ = fs::remove_file(&own);
    all([shell, itself, mine]).controlled("fork", fork_control()).and_also("work folder", work_control(plan))
}

impl Outcome {
    /// A second control.
    fn and_also(self, what: &str, control: io::Result<()>) -> Self {
        let first = self.control.clone();
        let mut both = self.controlled(what, control);
        both.control = format!("{first}, {}", both.control);
        both
    }
}
