//! Commands that were started, as their parent keeps them: each with a connection on which it is signalled and its end is
//! told. A command is reaped once it has ended and nobody holds the other end, so its group's number stays its own until
//! then, and a signal for the group can reach no other.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::process;
use crate::step::check;

/// The commands of one parent.
#[derive(Debug, Default)]
pub struct Children(Vec<Child>);

#[derive(Debug)]
struct Child {
    pid: libc::pid_t,
    pidfd: OwnedFd,
    /// `None` once the session has no interest any more.
    control: Option<OwnedFd>,
    told: bool,
}

impl Children {
    /// Takes over a child that has not been reaped, which leads a process group, with its end of the connection.
    pub fn add(&mut self, pid: libc::pid_t, control: OwnedFd) -> io::Result<()> {
        // SAFETY: plain integers; the child has not been reaped, so the number is its own.
        let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
        // SAFETY: the kernel has just made this descriptor.
        let pidfd = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) };
        self.0.push(Child { pid, pidfd, control: Some(control), told: false });
        Ok(())
    }

    /// What to wait for before [`Children::serve`] has anything to do.
    pub fn waits(&self) -> impl Iterator<Item = libc::pollfd> + '_ {
        let readable = |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        self.0.iter().flat_map(move |child| {
            let ended = (!child.told).then(|| readable(&child.pidfd));
            ended.into_iter().chain(child.control.as_ref().map(readable))
        })
    }

    /// Does whatever there is to do, without waiting.
    pub fn serve(&mut self) {
        self.0.retain_mut(|child| {
            child.listen();
            if !child.told
                && let Some(message) = ended(child.pid)
            {
                child.told = true;
                child.tell(message);
            }
            let done = child.told && child.control.is_none();
            if done {
                let _ = process::reap(child.pid);
            }
            !done
        });
    }

    /// Kills every group that is left, and reaps its leader.
    pub fn end(&mut self) {
        for child in &self.0 {
            child.signal(libc::SIGKILL);
        }
        for child in self.0.drain(..) {
            let _ = process::reap(child.pid);
        }
    }
}

impl Child {
    /// Passes signals on, and notices that the session has closed its end.
    fn listen(&mut self) {
        while let Some(control) = &self.control {
            let mut signal = [0_u8; 4];
            // SAFETY: a buffer of the size given.
            let count = unsafe { libc::recv(control.as_raw_fd(), signal.as_mut_ptr().cast(), 4, libc::MSG_DONTWAIT) };
            match count {
                4 => self.signal(i32::from_ne_bytes(signal)),
                count if count < 0 => match io::Error::last_os_error().kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => {}
                    _ => self.control = None,
                },
                _ => self.control = None,
            }
        }
    }

    /// The leader is not reaped, so the group's number is its own, whether or not the leader has ended.
    fn signal(&self, signal: i32) {
        // SAFETY: plain integers.
        unsafe { libc::kill(-self.pid, signal) };
    }

    fn tell(&mut self, message: [u8; 8]) {
        let Some(control) = &self.control else { return };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: a buffer of the size given.
        let sent = unsafe { libc::send(control.as_raw_fd(), message.as_ptr().cast(), message.len(), flags) };
        if sent < 0 {
            self.control = None;
        }
    }
}

/// How a child ended, if it has, as the message about it; it is not reaped.
fn ended(pid: libc::pid_t) -> Option<[u8; 8]> {
    // SAFETY: all zeroes is a value of this plain structure.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: a structure that outlives the call.
    check(unsafe { libc::waitid(libc::P_PID, pid.unsigned_abs(), &raw mut info, options) }).ok()?;
    // SAFETY: waitid filled in a child's end, or left zeroes.
    let (found, status) = unsafe { (info.si_pid(), info.si_status()) };
    if found == 0 {
        return None;
    }
    let how = i32::from(info.si_code != libc::CLD_EXITED);
    let mut message = [0; 8];
    message[..4].copy_from_slice(&how.to_ne_bytes());
    message[4..].copy_from_slice(&status.to_ne_bytes());
    Some(message)
}
