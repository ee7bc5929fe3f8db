//! The cgroup scope of a session: one directory below the maker's own in every hierarchy that serves.
//!
//! Limits are set wherever the kernel keeps the controller, in the v2 tree or in a v1 hierarchy; a hybrid host has both.
//! Membership and the kill are the v2 tree's where it has `cgroup.kill`, else the freezer's.

mod hierarchy;
mod io_limit;
mod stale;

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mur_plugin_api::{IoLimit, IoStatus, ScopeEvents, ScopeLimits, Usage};
use nix::errno::Errno;

use crate::step::{Done, StepError, check};
pub use hierarchy::{Hierarchies, Version};

/// The kernel's period of processor quotas, in microseconds.
const PERIOD: u64 = 100_000;

/// How often an ending scope is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// The directories of a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directories(pub Vec<PathBuf>);

/// A session's scope. Dropping it does not remove it.
#[derive(Debug)]
pub struct Scope {
    directories: Directories,
    procs: Vec<OwnedFd>,
    /// The v2 directory itself, whose joining file is the first of `procs`.
    tree: Option<OwnedFd>,
    memory: PathBuf,
    pids: PathBuf,
    cpu: Option<PathBuf>,
    /// Where reading and writing can be bounded.
    io: Option<(PathBuf, Version)>,
}

impl Scope {
    /// Makes the directories of a scope below this process's own place and sets its limits. What was made is removed again
    /// when a step fails.
    pub fn create(name: &str, limits: &ScopeLimits) -> Result<Self, StepError> {
        let hierarchies = Hierarchies::of_this_process()?;
        let mut scope = Self {
            directories: Directories::default(),
            procs: Vec::new(),
            tree: None,
            memory: PathBuf::new(),
            pids: PathBuf::new(),
            cpu: None,
            io: None,
        };
        let made = scope.make(&hierarchies, name, limits);
        if let Err(error) = made {
            scope.directories.remove();
            return Err(error);
        }
        Ok(scope)
    }

    fn make(&mut self, hierarchies: &Hierarchies, name: &str, limits: &ScopeLimits) -> Result<(), StepError> {
        let unified = hierarchies.unified()?;
        if let Some(base) = &unified {
            let dir = base.join(name);
            self.add(&dir)?;
            let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
            self.tree = fs::OpenOptions::new().read(true).custom_flags(flags).open(dir).ok().map(OwnedFd::from);
        }
        for controller in ["memory", "pids", "cpu"] {
            let found = hierarchies.place_of(controller);
            let Some((base, version)) = found else {
                if controller == "cpu" {
                    continue;
                }
                return Err(StepError::new(format!("finding the {controller} controller"), Errno::ENOENT));
            };
            let dir = base.join(name);
            self.add(&dir)?;
            match controller {
                "memory" => limit_memory(&dir, version, limits.memory)?,
                "pids" => set(&dir, "pids.max", limits.pids)?,
                _ => limit_cpu(&dir, version, limits.cpu_percent)?,
            }
            match controller {
                "memory" => self.memory = dir.join(memory_usage(version)),
                "pids" => self.pids = dir.join("pids.current"),
                _ => {}
            }
        }
        // The kill: without cgroup.kill the freezer's.
        let kills = unified.as_ref().is_some_and(|base| base.join(name).join("cgroup.kill").exists());
        if let Some(base) = &unified {
            self.cpu = Some(base.join(name).join("cpu.stat"));
        }
        if !kills
            && !unified.as_ref().is_some_and(|base| base.join(name).join("cgroup.freeze").exists())
            && let Some(base) = hierarchies.legacy("freezer")
        {
            self.add(&base.join(name))?;
        }
        if let Some(base) = hierarchies.legacy("cpuacct").filter(|_| self.cpu.is_none()) {
            self.add(&base.join(name))?;
            self.cpu = Some(base.join(name).join("cpuacct.usage"));
        }
        if let Some((base, version)) = hierarchies.place_of_io() {
            let dir = base.join(name);
            if self.add(&dir).is_ok() {
                self.io = Some((dir, version));
            }
        }
        Ok(())
    }

    /// Makes one directory, once, and opens what is written to join it.
    fn add(&mut self, dir: &Path) -> Result<(), StepError> {
        if self.directories.0.iter().any(|known| known == dir) {
            return Ok(());
        }
        let step = || "creating the session's cgroup directory";
        stale::sweep(dir);
        fs::create_dir(dir).map_err(|error| StepError::new(format!("{}: {}", step(), dir.display()), error))?;
        self.directories.0.push(dir.to_owned());
        let open = |name| fs::OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(dir.join(name));
        // A v1 directory has both files. Who joins has one thread, and for a thread that moves itself the kernel waits for
        // nobody (since 5.4), where the move of a process waits for every processor: milliseconds on a busy host.
        let joined = match open("tasks") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => open("cgroup.procs"),
            other => other,
        };
        let joined =
            joined.map_err(|error| StepError::new(format!("opening cgroup.procs: {}", dir.display()), error))?;
        self.procs.push(joined.into());
        Ok(())
    }

    /// The directories, for whoever takes the scope down.
    pub fn directories(&self) -> &Directories {
        &self.directories
    }

    /// What is written to join the scope: one descriptor a directory.
    pub fn procs(&self) -> Vec<BorrowedFd<'_>> {
        self.procs.iter().map(AsFd::as_fd).collect()
    }

    /// Bounds reading and writing of the disk a path is on, as far as this host can.
    pub fn limit_io(&self, limit: Option<&IoLimit>) -> IoStatus {
        io_limit::set(self.io.as_ref(), limit)
    }

    /// How often bounds were met.
    pub fn events(&self) -> ScopeEvents {
        let count = |beside: &Path, files: &[&str], key: &str| {
            let text = files.iter().find_map(|name| fs::read_to_string(beside.with_file_name(name)).ok())?;
            text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
        };
        ScopeEvents {
            oom_kills: count(&self.memory, &["memory.events", "memory.oom_control"], "oom_kill ").unwrap_or(0),
            pids_refused: count(&self.pids, &["pids.events"], "max ").unwrap_or(0),
        }
    }

    /// The v2 directory, whose joining file is the first of [`Self::procs`]: a process can be born there.
    pub fn tree(&self) -> Option<BorrowedFd<'_>> {
        self.tree.as_ref().map(AsFd::as_fd)
    }

    /// What is used so far.
    pub fn usage(&self) -> Usage {
        let number = |path: &Path| fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        let cpu_nanos = self.cpu.as_deref().and_then(|path| {
            let text = fs::read_to_string(path).ok()?;
            match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
                Some(micros) => micros.trim().parse::<u64>().ok().map(|micros| micros.saturating_mul(1000)),
                None => text.trim().parse().ok(),
            }
        });
        Usage {
            memory: number(&self.memory).unwrap_or(0),
            cpu_nanos: cpu_nanos.unwrap_or(0),
            pids: number(&self.pids).unwrap_or(0),
        }
    }
}

impl Directories {
    /// Kills everything in the scope and removes it. Returns whether it is gone.
    pub fn take_down(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        loop {
            self.kill();
            if self.remove() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn kill(&self) {
        if self.0.iter().any(|dir| fs::write(dir.join("cgroup.kill"), "1").is_ok()) {
            return;
        }
        // Frozen, so that nothing is forked meanwhile; a kill of what is frozen takes effect at once or with the thaw.
        self.freeze(true);
        for dir in &self.0 {
            for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
                if let Ok(pid) = pid.parse::<libc::pid_t>() {
                    // SAFETY: plain integers. The process is a member of a frozen scope, so its number is not reused.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
            }
        }
        self.freeze(false);
    }

    fn freeze(&self, frozen: bool) {
        for dir in &self.0 {
            let _ = fs::write(dir.join("cgroup.freeze"), if frozen { "1" } else { "0" });
            let _ = fs::write(dir.join("freezer.state"), if frozen { "FROZEN" } else { "THAWED" });
        }
    }

    /// Removes the empty ones. Returns whether none is left.
    fn remove(&self) -> bool {
        let mut gone = true;
        for dir in self.0.iter().rev() {
            match fs::remove_dir(dir) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(_) => gone = false,
            }
        }
        gone
    }
}

fn limit_memory(dir: &Path, version: Version, bytes: u64) -> Result<(), StepError> {
    match version {
        Version::Two => {
            set(dir, "memory.max", bytes)?;
            // Absent on a kernel without swap accounting.
            let _ = fs::write(dir.join("memory.swap.max"), "0");
        }
        Version::One => {
            set(dir, "memory.limit_in_bytes", bytes)?;
            let _ = fs::write(dir.join("memory.memsw.limit_in_bytes"), bytes.to_string());
        }
    }
    Ok(())
}

fn memory_usage(version: Version) -> &'static str {
    match version {
        Version::Two => "memory.current",
        Version::One => "memory.usage_in_bytes",
    }
}

fn limit_cpu(dir: &Path, version: Version, percent: u64) -> Result<(), StepError> {
    let quota = percent.saturating_mul(PERIOD / 100);
    match version {
        Version::Two => set(dir, "cpu.max", format!("{quota} {PERIOD}")),
        Version::One => {
            set(dir, "cpu.cfs_period_us", PERIOD)?;
            set(dir, "cpu.cfs_quota_us", quota)
        }
    }
}

fn set(dir: &Path, file: &str, value: impl ToString) -> Result<(), StepError> {
    fs::OpenOptions::new()
        .write(true)
        .open(dir.join(file))
        .and_then(|mut file| file.write_all(value.to_string().as_bytes()))
        .map_err(|error| StepError::new(format!("setting {file}: {}", dir.display()), error))
}

/// Joins a scope with the calling process, which has one thread.
pub(crate) fn join(procs: &[BorrowedFd<'_>]) -> io::Result<Done> {
    for fd in procs {
        // SAFETY: one byte; 0 is the writing process.
        check(unsafe { libc::write(fd.as_raw_fd(), c"0".as_ptr().cast(), 1) } as i64)?;
    }
    Ok(Done::Enforced)
}
