//! Commands inside an enclosure: asked for over its connection, each with a connection of its own afterwards.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use mur_plugin_api::{CommandRequest, ProfileRequest};
use nix::sys::signal::Signal;

use super::{Ended, StartError};
use crate::containment::helper::{Connection, nonsense};
use crate::containment::message::{Answer, Ask, NotSpawned};
use crate::process::fds;

/// A kind of command, by its number in the enclosure.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    connection: Arc<Connection>,
    number: u32,
    pub(super) tmp_mapped: bool,
}

impl Profile {
    pub(super) fn new(connection: &Arc<Connection>, request: ProfileRequest) -> Result<Self, String> {
        match connection.ask(&Ask::Commands(request), &[])? {
            (Answer::Commands(number, tmp_mapped), _) => {
                Ok(Self { connection: Arc::clone(connection), number, tmp_mapped })
            }
            _ => Err(nonsense()),
        }
    }

    pub(super) fn start(&self, command: &CommandRequest, stdio: &[OwnedFd; 3]) -> Result<Child, StartError> {
        let failed = |error: io::Error| StartError::SetUp(format!("making its connection failed: {error}"));
        let (ours, theirs) = fds::message_pair().map_err(failed)?;
        let [stdin, stdout, stderr] = stdio;
        let handed = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd(), theirs.as_fd()];
        match self.connection.ask(&Ask::Spawn(self.number, command.clone()), &handed) {
            Ok((Answer::Spawned(pid), _)) => Ok(Child { pid, control: ours, ended: Mutex::new(None) }),
            Ok((Answer::NotSpawned(why), _)) => Err(match why {
                NotSpawned::Program(number) => StartError::Program(io::Error::from_raw_os_error(number)),
                NotSpawned::SetUp(why) => StartError::SetUp(why),
                NotSpawned::Gone(why) => StartError::Gone(format!("the session's enclosure: {why}")),
            }),
            Ok(_) => Err(StartError::Gone(format!("the session's enclosure: {}", nonsense()))),
            Err(why) => Err(StartError::Gone(format!("the session's enclosure: {why}"))),
        }
    }
}

/// One command. As long as this end of its connection is open it is not reaped, and its group's number is its own.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: i32,
    control: OwnedFd,
    ended: Mutex<Option<Ended>>,
}

impl Child {
    pub(super) fn signal_group(&self, signal: Signal) -> io::Result<()> {
        let sent = fds::send_now(self.control.as_fd(), &(signal as i32).to_ne_bytes());
        sent.map_err(|error| match error.raw_os_error() {
            Some(libc::EPIPE | libc::ECONNRESET) => io::Error::from_raw_os_error(libc::ESRCH),
            _ => error,
        })
    }

    pub(super) async fn wait(&self) -> io::Result<Ended> {
        loop {
            if let Some(ended) = self.try_wait() {
                return Ok(ended);
            }
            fds::readable(self.control.as_fd()).await?;
        }
    }

    pub(super) fn try_wait(&self) -> Option<Ended> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.is_none() {
            *ended = self.received();
        }
        ended.clone()
    }

    fn received(&self) -> Option<Ended> {
        let mut message = [0_u8; 8];
        let lost = || Some(Ended::Lost("the session's enclosure ended before the command did".to_owned()));
        match fds::receive_now(self.control.as_fd(), &mut message) {
            Ok(8) => {
                let [a, b, c, d, status @ ..] = message;
                let status = i32::from_ne_bytes(status);
                Some(if i32::from_ne_bytes([a, b, c, d]) == 0 {
                    Ended::Exited(status)
                } else {
                    Ended::Signalled(status)
                })
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => None,
            Ok(_) | Err(_) => lost(),
        }
    }
}
