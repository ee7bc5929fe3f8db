//! A process named by a pidfd: signals and waits that can never reach another process.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::signal::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// With an exit status.
    Status(i32),
    /// By a signal.
    Signal(i32),
}

impl Exit {
    /// The status as a shell reports it: 128 + N for signal N.
    pub fn shell_status(self) -> i32 {
        match self {
            Self::Status(status) => status,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// A process, by descriptor.
#[derive(Debug)]
pub struct Pidfd {
    fd: OwnedFd,
    pid: i32,
}

impl Pidfd {
    /// Opens a process by pid. For a child that has not been reaped this cannot name another process; for any other
    /// process compare [`process_start`] after opening.
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: pidfd_open takes a pid and flags and returns a descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made this descriptor (close-on-exec by itself); nothing else owns it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, pid })
    }

    /// From a pidfd received over a socket; `pid` is for messages only.
    pub fn from_fd(fd: OwnedFd, pid: i32) -> Self {
        Self { fd, pid }
    }

    /// The pid, for messages and records. Never signal by it.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a signal to the process. A process that has ended is `ESRCH`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        // SAFETY: pidfd_send_signal with a null siginfo behaves as kill(2) on the process the descriptor names.
        let result = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.fd.as_raw_fd(), signal as i32, std::ptr::null::<u8>(), 0)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends a signal to the process group this process leads. Call it before the leader is reaped: until then its pid,
    /// which is the group's id, cannot be reused.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        nix::sys::signal::killpg(nix::unistd::Pid::from_raw(self.pid), signal).map_err(io::Error::from)
    }

    /// The process itself, from inside.
    pub fn of_self() -> io::Result<Self> {
        Self::open(i32::try_from(std::process::id()).unwrap_or_default())
    }

    /// From a pidfd received over a socket; its number is read from the kernel, as this process sees it.
    pub fn received(fd: OwnedFd) -> io::Result<Self> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok());
        // -1 is a process that has ended, 0 one that is out of sight; a file that is no pidfd has no such line.
        match pid.filter(|pid| *pid > 0) {
            Some(pid) => Ok(Self { fd, pid }),
            None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }

    /// Whether the process has ended (reaped or not), without waiting.
    pub fn has_ended(&self) -> bool {
        self.has_ended_within(std::time::Duration::ZERO)
    }

    /// Whether the process ends within a time (or has); blocks for as long.
    pub fn has_ended_within(&self, time: std::time::Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let millis = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one valid pollfd.
        let ready = unsafe { libc::poll(&raw mut poll, 1, millis) };
        ready > 0 && poll.revents != 0
    }

    /// Waits until the process has ended. Does not reap.
    pub async fn ended(&self) -> io::Result<()> {
        // SAFETY: the descriptor is owned by `self`, which this future borrows, so it stays open until `watched` is gone.
        let watched = unsafe { AsyncFd::register_with_interest(self.fd.as_fd(), Interest::READABLE) }?;
        let _ready = watched.readable().await?;
        Ok(())
    }

    /// Reaps a child of this process; blocks until it has ended.
    pub fn reap(&self) -> io::Result<Exit> {
        loop {
            match self.wait_id(libc::WEXITED) {
                Ok(Some(exit)) => return Ok(exit),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reaps a child of this process if it has ended.
    pub fn try_reap(&self) -> io::Result<Option<Exit>> {
        self.wait_id(libc::WEXITED | libc::WNOHANG)
    }

    /// How a child of this process ended, if it has; it stays to be reaped, so that its number stays its own.
    pub fn ended_as(&self) -> io::Result<Option<Exit>> {
        self.wait_id(libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)
    }

    /// Waits for a child's end and reaps it.
    pub async fn wait(&self) -> io::Result<Exit> {
        self.ended().await?;
        self.reap()
    }

    fn wait_id(&self, options: i32) -> io::Result<Option<Exit>> {
        // SAFETY: siginfo_t is plain data for which all zeroes is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let id = self.fd.as_raw_fd().cast_unsigned();
        // SAFETY: `info` outlives the call. __WALL also reaps children made with clone and no SIGCHLD.
        let result = unsafe { libc::waitid(libc::P_PIDFD, id, &raw mut info, options | libc::__WALL) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: waitid filled the fields of a child event, or left zero in si_pid when none was ready.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        if pid == 0 {
            return Ok(None);
        }
        Ok(Some(if info.si_code == libc::CLD_EXITED { Exit::Status(status) } else { Exit::Signal(status) }))
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// When a process started: field 22 of `/proc/<pid>/stat` as text, `None` when it cannot be read or the process is a
/// zombie.
pub fn process_start(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold spaces and parentheses; fields are counted from its last closing one.
    let rest = stat.get(stat.rfind(')')? + 2..)?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18).map(str::to_owned)
}
