//! An enclosure, and processes that enter it and say what they got. Each process is a fork of the test's thread, which is
//! the only one it has.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, dead_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use mur_containment_kernel::enclosure::enter;
use mur_containment_kernel::{KernelEnclosure, Tier};
use mur_plugin_api::{
    Access, Enclosure, EnclosureRequest, Grant, ProcessKind, ProcessLimits, Profile, ProfileRequest, ScopeLimits,
};

/// Above what a fork of a process with several tests at work holds already.
pub const LIMITS: ProcessLimits =
    ProcessLimits { open_files: 512, file_size: 65536, cpu_seconds: None, address_space: None };

/// Folders of one session.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub work: PathBuf,
    pub runtime: PathBuf,
    pub other: PathBuf,
    pub tmp: PathBuf,
    pub home: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("file"), name).unwrap();
            path
        };
        let (work, runtime, other, tmp, home) = (at("work"), at("runtime"), at("other"), at("tmp"), at("home"));
        std::fs::create_dir(work.join("sub")).unwrap();
        Self { work, runtime, other, tmp, home, dir }
    }

    pub fn profile(&self) -> ProfileRequest {
        ProfileRequest {
            grants: vec![Grant::required(&self.work, Access::Write), Grant::required(&self.runtime, Access::Read)],
            tmp: Some(self.tmp.clone()),
            home: Some(self.home.clone()),
            ..ProfileRequest::new(ProcessKind::Worker, LIMITS)
        }
    }
}

pub fn request(session: &str) -> Vec<u8> {
    let scope = ScopeLimits { memory: 256 << 20, pids: 40, cpu_percent: 200 };
    let request = EnclosureRequest::new(session, scope);
    serde_json::to_vec(&request).unwrap()
}

pub fn open(tier: Tier, session: &str) -> KernelEnclosure {
    KernelEnclosure::open(tier, &request(session)).unwrap_or_else(|error| panic!("{tier:?}: {error}"))
}

/// A profile whose descriptors close with it.
pub struct Prepared(pub Profile);

impl Drop for Prepared {
    fn drop(&mut self) {
        for fd in self.0.fds.iter() {
            unsafe { libc::close(*fd) };
        }
    }
}

pub fn prepare(enclosure: &mut KernelEnclosure, profile: &ProfileRequest) -> Prepared {
    Prepared(enclosure.prepare(&serde_json::to_vec(profile).unwrap()).unwrap())
}

/// A started process: its number, and what it says until it ends.
pub struct Started {
    pub pid: libc::pid_t,
    says: File,
}

impl Started {
    /// Everything it said.
    pub fn said(mut self) -> (String, i32) {
        let mut text = String::new();
        self.says.read_to_string(&mut text).unwrap();
        (text, self.wait())
    }

    /// What it says next, one line.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while self.says.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
            line.push(byte[0]);
        }
        String::from_utf8(line).unwrap()
    }

    /// The first line it said, and how it ended; what it started may still hold its end of the pipe.
    pub fn line_and_end(mut self) -> (String, i32) {
        (self.line(), self.wait())
    }

    /// How it ended, as wait(2) tells it.
    pub fn wait(&self) -> i32 {
        let mut status = 0;
        assert_eq!(unsafe { libc::waitpid(self.pid, &raw mut status, 0) }, self.pid);
        status
    }
}

/// One test at a time: a child forked while another thread holds a lock would wait for it for ever.
pub fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Starts a process that enters a profile and then runs `then`; `None` enters nothing.
pub fn start(entered: Option<(Tier, &Prepared)>, then: impl FnOnce(&mut File)) -> Started {
    let (read, write): (OwnedFd, OwnedFd) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        drop(read);
        let mut out = File::from(write);
        if let Some((tier, profile)) = entered
            && let Err(error) = enter(tier, &profile.0.request, &profile.0.fds)
        {
            let _ = write!(out, "not entered: {error}");
            unsafe { libc::_exit(99) };
        }
        then(&mut out);
        unsafe { libc::_exit(0) };
    }
    Started { pid, says: File::from(read) }
}

/// The error number of the last system call.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(-1)
}

/// The session's cgroup directories that are there.
pub fn scopes(session: &str) -> Vec<PathBuf> {
    fn below(dir: &Path, name: &str, depth: u32, found: &mut Vec<PathBuf>) {
        let Ok(entries) = std::fs::read_dir(dir) else { return };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if entry.file_name().to_string_lossy().starts_with(name) {
                found.push(entry.path());
            } else if depth > 0 {
                below(&entry.path(), name, depth - 1, found);
            }
        }
    }
    let mut found = Vec::new();
    below(Path::new("/sys/fs/cgroup"), &format!("murmur-{session}-"), 5, &mut found);
    found
}
