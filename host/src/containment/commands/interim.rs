//! Commands that nothing holds: plain children of this process, each leading a process group of its own.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;

use mur_plugin_api::{Bytes, CommandRequest};
use nix::sys::signal::Signal;

use super::Ended;
use crate::process::{Exit, Pidfd, Spawn, Stream};

/// A child. It is reaped when this is dropped, so that until then neither its number nor that of its group is another's.
#[derive(Debug)]
pub(super) struct Plain(Pidfd);

impl Plain {
    /// Starts a child.
    pub(super) fn start(command: &CommandRequest, stdio: [OwnedFd; 3]) -> io::Result<Self> {
        let words = |bytes: &Bytes| OsString::from_vec(bytes.0.clone());
        let [stdin, stdout, stderr] = stdio.map(Stream::Fd);
        let mut spawn = Spawn::program(&command.program).cwd(&command.cwd).stdio(stdin, stdout, stderr).own_group();
        if let Some((name, rest)) = command.args.split_first() {
            spawn = spawn.arg0(words(name)).args(rest.iter().map(words));
        }
        for (name, value) in &command.env {
            spawn = spawn.env(words(name), words(value));
        }
        spawn.spawn().map(|child| Self(child.pidfd))
    }

    pub(super) fn pid(&self) -> i32 {
        self.0.pid()
    }

    pub(super) fn signal_group(&self, signal: Signal) -> io::Result<()> {
        self.0.signal_group(signal)
    }

    pub(super) async fn wait(&self) -> io::Result<Ended> {
        loop {
            if let Some(ended) = self.try_wait() {
                return Ok(ended);
            }
            self.0.ended().await?;
        }
    }

    pub(super) fn try_wait(&self) -> Option<Ended> {
        match self.0.exit() {
            Ok(None) => None,
            Ok(Some(Exit::Status(status))) => Some(Ended::Exited(status)),
            Ok(Some(Exit::Signal(signal))) => Some(Ended::Signalled(signal)),
            Err(error) => Some(Ended::Lost(error.to_string())),
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if self.0.has_ended() {
            let _ = self.0.reap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Plain {
        let command = CommandRequest {
            program: "/bin/sh".into(),
            args: vec!["sh".into(), "-c".into(), script.into()],
            env: vec![("A".into(), "1".into())],
            cwd: "/".into(),
        };
        let null = || OwnedFd::from(std::fs::File::options().read(true).write(true).open("/dev/null").unwrap());
        Plain::start(&command, [null(), null(), null()]).unwrap()
    }

    #[tokio::test]
    async fn an_end_is_told_any_number_of_times_and_the_child_reaped_at_last() {
        let child = start("[ \"$A$PWD\" = 1/ ] && exit 7");
        for _ in 0..2 {
            assert_eq!(child.wait().await.unwrap(), Ended::Exited(7));
        }
        let (pid, stat) = (child.pid(), format!("/proc/{}/stat", child.pid()));
        assert!(std::fs::read_to_string(&stat).unwrap().contains(") Z "), "its number is kept");
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        assert_eq!(start("kill -9 $$").wait().await.unwrap(), Ended::Signalled(9));
    }

    #[tokio::test]
    async fn a_signal_reaches_the_whole_group() {
        let child = start("sleep 60 & wait");
        child.signal_group(Signal::SIGKILL).unwrap();
        assert_eq!(child.wait().await.unwrap(), Ended::Signalled(9));
    }
}
