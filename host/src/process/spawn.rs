//! The one function that starts a process.
//!
//! `posix_spawn`, so no copy of this process's memory and no code of ours runs between fork and exec. The environment is
//! exactly what is listed; of the descriptors only stdio and those passed explicitly survive, because every descriptor
//! of `mur` is close-on-exec.

#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::fds;
use super::pidfd::Pidfd;

/// Passed descriptors are first moved above this number, so that no source is overwritten by a target.
const PARKING: RawFd = 512;

/// What one of a child's standard streams is.
#[derive(Debug)]
pub enum Stream {
    /// `/dev/null`.
    Null,
    /// The parent's own.
    Inherit,
    /// A new pipe whose other end [`Child`] holds.
    Pipe,
    /// This descriptor.
    Fd(OwnedFd),
}

/// A process to start.
#[derive(Debug)]
pub struct Spawn {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: Option<PathBuf>,
    stdio: [Stream; 3],
    passed: Vec<(OwnedFd, RawFd)>,
    own_group: bool,
}

/// A started process. Dropping it neither kills nor reaps.
#[derive(Debug)]
pub struct Child {
    /// The process.
    pub pidfd: Pidfd,
    /// Write end of its standard input, when that is a pipe.
    pub stdin: Option<OwnedFd>,
    /// Read end of its standard output, when that is a pipe.
    pub stdout: Option<OwnedFd>,
    /// Read end of its standard error, when that is a pipe.
    pub stderr: Option<OwnedFd>,
}

impl Spawn {
    /// The running executable itself, from `/proc/self/exe`, with an empty environment and null stdio.
    pub fn mur() -> Self {
        Self::program("/proc/self/exe").arg0("mur")
    }

    /// A program by path, with an empty environment and null stdio.
    pub fn program(path: impl Into<PathBuf>) -> Self {
        let program: PathBuf = path.into();
        let arg0 = program.clone().into_os_string();
        Self {
            program,
            args: vec![arg0],
            env: Vec::new(),
            cwd: None,
            stdio: [Stream::Null, Stream::Null, Stream::Null],
            passed: Vec::new(),
            own_group: false,
        }
    }

    /// The name the process sees as its own.
    #[must_use]
    pub fn arg0(mut self, name: impl Into<OsString>) -> Self {
        self.args[0] = name.into();
        self
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Adds one environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let name = name.as_ref().to_owned();
        self.env.retain(|(known, _)| *known != name);
        self.env.push((name, value.as_ref().to_owned()));
        self
    }

    /// Adds this process's own environment, less the names given.
    #[must_use]
    pub fn inherit_env(mut self, without: &[&str]) -> Self {
        for (name, value) in std::env::vars_os() {
            if !without.iter().any(|refused| name == *refused) && !self.env.iter().any(|(known, _)| *known == name) {
                self.env.push((name, value));
            }
        }
        self
    }

    /// The working directory.
    #[must_use]
    pub fn cwd(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cwd = Some(dir.into());
        self
    }

    /// Standard input, output and error.
    #[must_use]
    pub fn stdio(mut self, stdin: Stream, stdout: Stream, stderr: Stream) -> Self {
        self.stdio = [stdin, stdout, stderr];
        self
    }

    /// Hands a descriptor to the child under the given number (3 or above). The parent's copy closes with the spawn.
    #[must_use]
    pub fn pass(mut self, fd: OwnedFd, number: RawFd) -> Self {
        self.passed.push((fd, number));
        self
    }

    /// Puts the child in a process group of its own.
    #[must_use]
    pub fn own_group(mut self) -> Self {
        self.own_group = true;
        self
    }

    /// Starts the process. On an error nothing was started.
    pub fn spawn(self) -> io::Result<Child> {
        let mut actions = FileActions::new()?;
        let mut child_ends = Vec::new();
        let mut parent_ends: [Option<OwnedFd>; 3] = [None, None, None];
        for (number, stream) in (0..).zip(self.stdio) {
            let fd = match stream {
                Stream::Inherit => continue,
                Stream::Null => open_null()?,
                Stream::Fd(fd) => fd,
                Stream::Pipe => {
                    let (read, write) = fds::pipe()?;
                    let (ours, theirs) = if number == 0 { (write, read) } else { (read, write) };
                    parent_ends[number as usize] = Some(ours);
                    theirs
                }
            };
            child_ends.push((park(fd)?, number));
        }
        for (fd, number) in self.passed {
            child_ends.push((park(fd)?, number));
        }
        for (fd, number) in &child_ends {
            actions.dup2(fd.as_raw_fd(), *number)?;
        }
        if let Some(cwd) = &self.cwd {
            actions.chdir(cwd)?;
        }
        let pid = posix_spawn(&self.program, &self.args, &self.env, &actions, self.own_group)?;
        drop(child_ends);
        let pidfd = Pidfd::open(pid)?;
        let [stdin, stdout, stderr] = parent_ends;
        Ok(Child { pidfd, stdin, stdout, stderr })
    }
}

/// Moves a descriptor out of the way of the target numbers.
fn park(fd: OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC on an owned descriptor returns a new one or an error.
    let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, PARKING) };
    if high < 0 {
        // Under a small descriptor limit the parking space does not exist; any number past stdio still does.
        // SAFETY: as above.
        let low = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 16) };
        if low < 0 {
            let error = io::Error::last_os_error();
            // What the kernel calls an invalid number is one past the limit.
            return Err(if error.raw_os_error() == Some(libc::EINVAL) { Errno::EMFILE.into() } else { error });
        }
        // SAFETY: the kernel has just made this descriptor.
        return Ok(unsafe { OwnedFd::from_raw_fd(low) });
    }
    // SAFETY: the kernel has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(high) })
}

fn open_null() -> io::Result<OwnedFd> {
    Ok(std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into())
}

fn posix_spawn(
    program: &Path,
    args: &[OsString],
    env: &[(OsString, OsString)],
    actions: &FileActions,
    own_group: bool,
) -> io::Result<i32> {
    let program = c_string(program.as_os_str())?;
    let args = args.iter().map(|arg| c_string(arg)).collect::<io::Result<Vec<_>>>()?;
    let env = env
        .iter()
        .map(|(name, value)| {
            let mut pair = name.clone();
            pair.push("=");
            pair.push(value);
            c_string(&pair)
        })
        .collect::<io::Result<Vec<_>>>()?;
    let argv = pointers(&args);
    let envp = pointers(&env);
    let attributes = Attributes::new(own_group)?;
    let mut pid = 0;
    // SAFETY: every pointer is to a NUL-terminated string or a NULL-terminated array that outlives the call.
    let result = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            program.as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            argv.as_ptr().cast(),
            envp.as_ptr().cast(),
        )
    };
    if result == 0 { Ok(pid) } else { Err(io::Error::from_raw_os_error(result)) }
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a NUL byte in an argument"))
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

struct FileActions(libc::posix_spawn_file_actions_t);

impl FileActions {
    fn new() -> io::Result<Self> {
        // SAFETY: posix_spawn_file_actions_init fills the zeroed structure.
        let mut actions = Self(unsafe { std::mem::zeroed() });
        // SAFETY: as above.
        check(unsafe { libc::posix_spawn_file_actions_init(&raw mut actions.0) })?;
        Ok(actions)
    }

    fn dup2(&mut self, from: RawFd, to: RawFd) -> io::Result<()> {
        // SAFETY: the structure is initialised; numbers are only recorded.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut self.0, from, to) })
    }

    fn chdir(&mut self, dir: &Path) -> io::Result<()> {
        let dir = c_string(dir.as_os_str())?;
        // SAFETY: the structure is initialised; the path is copied.
        check(unsafe { libc::posix_spawn_file_actions_addchdir_np(&raw mut self.0, dir.as_ptr()) })
    }
}

impl Drop for FileActions {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, destroyed once.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    /// No blocked signals, default action for all of them (Rust ignores SIGPIPE, and exec would keep that).
    fn new(own_group: bool) -> io::Result<Self> {
        // SAFETY: posix_spawnattr_init fills the zeroed structure; signal sets are plain data.
        let (mut attributes, mut none, mut all): (Self, libc::sigset_t, libc::sigset_t) =
            unsafe { (Self(std::mem::zeroed()), std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: as above.
        check(unsafe { libc::posix_spawnattr_init(&raw mut attributes.0) })?;
        // SAFETY: both sets are valid for writing.
        unsafe {
            libc::sigemptyset(&raw mut none);
            libc::sigfillset(&raw mut all);
        }
        let mut flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF;
        if own_group {
            flags |= libc::POSIX_SPAWN_SETPGROUP;
        }
        // SAFETY: initialised above; values are copied.
        unsafe {
            check(libc::posix_spawnattr_setsigmask(&raw mut attributes.0, &raw const none))?;
            check(libc::posix_spawnattr_setsigdefault(&raw mut attributes.0, &raw const all))?;
            check(libc::posix_spawnattr_setpgroup(&raw mut attributes.0, 0))?;
            check(libc::posix_spawnattr_setflags(&raw mut attributes.0, flags as libc::c_short))?;
        }
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, destroyed once.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::process::Exit;

    fn output(spawn: Spawn) -> (String, Exit) {
        let child = spawn.stdio(Stream::Null, Stream::Pipe, Stream::Null).spawn().unwrap();
        let mut text = String::new();
        std::fs::File::from(child.stdout.unwrap()).read_to_string(&mut text).unwrap();
        (text, child.pidfd.reap().unwrap())
    }

    #[test]
    fn a_child_sees_exactly_the_environment_and_directory_given() {
        let (text, exit) = output(Spawn::program("/usr/bin/env").env("A", "1").cwd("/"));
        assert_eq!((text.as_str(), exit), ("A=1\n", Exit::Status(0)));
    }

    #[test]
    fn a_child_holds_stdio_and_what_was_passed_and_nothing_else() {
        // What the test runner was started with is not this test's business.
        crate::process::start::close_on_exec_all();
        let _kept = fds::pipe().unwrap();
        let (read, _write) = fds::pipe().unwrap();
        let script = "for f in /proc/self/fd/*; do echo ${f##*/}; done";
        let (text, _) = output(Spawn::program("/bin/sh").args(["-c", script]).pass(read, 7));
        let numbers: Vec<i32> = text.lines().map(|line| line.parse().unwrap()).collect();
        // The shell itself opens one descriptor to expand the glob.
        assert!(numbers.contains(&7), "{numbers:?}");
        assert!(numbers.iter().filter(|n| **n > 2 && **n != 7).count() <= 1, "{numbers:?}");
    }

    #[test]
    fn a_program_that_is_not_there_starts_nothing() {
        let error = Spawn::program("/proc/none/x").spawn().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_exit_status_and_a_signal_are_told_apart() {
        let (_, exit) = output(Spawn::program("/bin/sh").args(["-c", "exit 7"]));
        assert_eq!(exit, Exit::Status(7));
        let (_, exit) = output(Spawn::program("/bin/sh").args(["-c", "kill -9 $$"]));
        assert_eq!(exit, Exit::Signal(9));
    }
}
