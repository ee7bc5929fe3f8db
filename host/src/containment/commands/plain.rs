//! Commands that nothing holds: children of this process.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

use mur_plugin_api::{Bytes, CommandRequest};
use nix::sys::signal::Signal;

use super::{Ended, StartError};
use crate::process::{Exit, Pidfd, Spawn, Stream, fds};

/// Children nobody asks for any more, reaped with the next one.
static LEFT: Mutex<Vec<Pidfd>> = Mutex::new(Vec::new());

/// One child, not reaped before it is dropped: until then its number, and so its group's, is its own.
#[derive(Debug)]
pub(super) struct Child(Option<Pidfd>);

impl Child {
    pub(super) fn start(command: &CommandRequest, stdio: [OwnedFd; 3]) -> Result<Self, StartError> {
        reap_left();
        let text = |bytes: &Bytes| OsStr::from_bytes(&bytes.0).to_owned();
        let [stdin, stdout, stderr] = stdio.map(Stream::Fd);
        let mut spawn = Spawn::program(&command.program).cwd(&command.cwd).stdio(stdin, stdout, stderr).own_group();
        if let Some((own, args)) = command.args.split_first() {
            spawn = spawn.arg0(text(own)).args(args.iter().map(text));
        }
        for (name, value) in &command.env {
            spawn = spawn.env(text(name), text(value));
        }
        let child = spawn.spawn().map_err(StartError::Program)?;
        Ok(Self(Some(child.pidfd)))
    }

    fn pidfd(&self) -> io::Result<&Pidfd> {
        self.0.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
    }

    pub(super) fn pid(&self) -> i32 {
        self.0.as_ref().map_or(0, Pidfd::pid)
    }

    pub(super) fn signal_group(&self, signal: Signal) -> io::Result<()> {
        self.pidfd()?.signal_group(signal)
    }

    pub(super) async fn wait(&self) -> io::Result<Ended> {
        loop {
            if let Some(ended) = self.try_wait() {
                return Ok(ended);
            }
            fds::readable(self.pidfd()?.as_fd()).await?;
        }
    }

    pub(super) fn try_wait(&self) -> Option<Ended> {
        match self.pidfd().and_then(Pidfd::ended_as) {
            Ok(None) => None,
            Ok(Some(Exit::Status(status))) => Some(Ended::Exited(status)),
            Ok(Some(Exit::Signal(signal))) => Some(Ended::Signalled(signal)),
            Err(error) => Some(Ended::Lost(format!("its end could not be learnt: {error}"))),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(pidfd) = self.0.take() else { return };
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(pidfd);
        reap_left();
    }
}

fn reap_left() {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain(|pidfd| matches!(pidfd.try_reap(), Ok(None)));
}
