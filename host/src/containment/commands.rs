//! Commands of a session: started under the class in force, waited for, signalled.
//!
//! Where there is an enclosure, its server forks them and tells how each ended; under `unconfined` they are plain children.
//! Either way a command leads a process group of its own, whose number is not given to another process before the last
//! [`Command`] of it is dropped.

mod interim;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

pub use mur_plugin_api::CommandRequest;
use mur_plugin_api::ProfileRequest;
use nix::sys::signal::Signal;

use super::Helper;

/// How a session starts commands under the class in force.
#[derive(Clone, Debug)]
pub struct Commands(bool);

impl Commands {
    /// Of a session whose processes nothing holds.
    pub fn unconfined() -> Self {
        Self(false)
    }

    /// Of a session with an enclosure.
    pub fn within(_helper: &Helper) -> Self {
        Self(true)
    }

    /// Makes ready what commands enter; under `unconfined` the request means nothing.
    pub fn profile(&self, _request: ProfileRequest) -> Result<CommandProfile, String> {
        match self.0 {
            true => Err("commands are started under class 'unconfined' only yet".to_owned()),
            false => Ok(CommandProfile::unconfined()),
        }
    }
}

/// What one kind of command enters: one ruleset, one set of limits.
#[derive(Clone, Debug)]
pub struct CommandProfile(());

impl CommandProfile {
    /// Plain children of this process, in process groups of their own: no limits, no confinement.
    pub fn unconfined() -> Self {
        Self(())
    }

    /// Starts a command with its standard input, output and error; it holds no other descriptor. Blocks for a few
    /// milliseconds. On an error nothing runs.
    pub fn start(&self, command: &CommandRequest, stdio: [OwnedFd; 3]) -> Result<Command, StartError> {
        interim::Plain::start(command, stdio).map(Command).map_err(StartError::Program)
    }
}

/// Why a command was not started.
#[derive(Debug)]
pub enum StartError {
    /// A step of its confinement failed, in words that begin with the step's name: `<step> failed with …`.
    SetUp(String),
    /// The enclosure has ended, or is closed, in words.
    Gone(String),
    /// The program itself could not be executed, or its folder not be entered.
    Program(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetUp(why) | Self::Gone(why) => f.write_str(why),
            Self::Program(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With an exit status.
    Exited(i32),
    /// By a signal.
    Signalled(i32),
    /// Whoever knew has ended, in words.
    Lost(String),
}

/// A command that was started. Dropping it neither ends nor waits for it; whoever is its parent reaps it.
#[derive(Debug)]
pub struct Command(interim::Plain);

impl Command {
    /// Its process number, as the host counts: for records, never for a signal.
    pub fn pid(&self) -> i32 {
        self.0.pid()
    }

    /// Sends a signal to its process group, which may outlive it: what it left behind in the group is reached too. A group
    /// that is empty is `ESRCH`.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        self.0.signal_group(signal)
    }

    /// Waits for its end; not for the end of what it started. May be dropped half way and called any number of times.
    pub async fn wait(&self) -> io::Result<Ended> {
        self.0.wait().await
    }

    /// How it ended, if it has.
    pub fn try_wait(&self) -> Option<Ended> {
        self.0.try_wait()
    }
}
