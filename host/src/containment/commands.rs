//! Commands of a session: started under the class in force, waited for, signalled.
//!
//! Where there is an enclosure, its server forks them and tells how each ended; under `unconfined` they are plain children.
//! Either way a command leads a process group of its own, whose number is not given to another process before its
//! [`Command`] is dropped.

mod enclosed;
mod plain;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use mur_plugin_api::CommandRequest;
use mur_plugin_api::ProfileRequest;
use nix::sys::signal::Signal;

use super::Helper;
use super::helper::Connection;

/// How a session starts commands under the class in force.
#[derive(Clone, Debug)]
pub struct Commands(Option<Arc<Connection>>);

impl Commands {
    /// Of a session whose processes nothing holds.
    pub fn unconfined() -> Self {
        Self(None)
    }

    /// Of a session with an enclosure, until that is closed.
    pub fn within(helper: &Helper) -> Self {
        Self(Some(helper.connection()))
    }

    /// Makes ready what commands enter; under `unconfined` the request means nothing.
    pub fn profile(&self, request: ProfileRequest) -> Result<CommandProfile, String> {
        match &self.0 {
            None => Ok(CommandProfile::unconfined()),
            Some(connection) => CommandProfile::within(connection, request),
        }
    }
}

/// What one kind of command enters: one ruleset, one set of limits.
#[derive(Clone, Debug)]
pub struct CommandProfile(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Plain,
    Enclosed(enclosed::Profile),
}

impl CommandProfile {
    /// Plain children of this process, in process groups of their own: no limits, no confinement.
    pub fn unconfined() -> Self {
        Self(Kind::Plain)
    }

    pub(super) fn within(connection: &Arc<Connection>, request: ProfileRequest) -> Result<Self, String> {
        enclosed::Profile::new(connection, request).map(|profile| Self(Kind::Enclosed(profile)))
    }

    /// Whether `/tmp` is the session's folder for temporary files for these commands; else it is the host's, or denied.
    pub fn tmp_is_mapped(&self) -> bool {
        match &self.0 {
            Kind::Plain => false,
            Kind::Enclosed(profile) => profile.tmp_mapped,
        }
    }

    /// Starts a command with its standard input, output and error; it holds no other descriptor. Blocks for a few
    /// milliseconds. On an error nothing runs.
    pub fn start(&self, command: &CommandRequest, stdio: [OwnedFd; 3]) -> Result<Command, StartError> {
        let running = match &self.0 {
            Kind::Plain => Running::Plain(plain::Child::start(command, stdio)?),
            Kind::Enclosed(profile) => Running::Enclosed(profile.start(command, &stdio)?),
        };
        Ok(Command(running))
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
pub struct Command(Running);

#[derive(Debug)]
enum Running {
    Plain(plain::Child),
    Enclosed(enclosed::Child),
}

impl Command {
    /// Its process number, as the host counts: for records, never for a signal.
    pub fn pid(&self) -> i32 {
        match &self.0 {
            Running::Plain(child) => child.pid(),
            Running::Enclosed(child) => child.pid,
        }
    }

    /// Sends a signal to its process group. What the command left behind in it is reached too, after its own end; the signal
    /// never reaches another group. An error says that nothing of it is left.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        match &self.0 {
            Running::Plain(child) => child.signal_group(signal),
            Running::Enclosed(child) => child.signal_group(signal),
        }
    }

    /// Waits for its end; not for the end of what it started. May be dropped half way, and called any number of times.
    pub async fn wait(&self) -> io::Result<Ended> {
        match &self.0 {
            Running::Plain(child) => child.wait().await,
            Running::Enclosed(child) => child.wait().await,
        }
    }

    /// How it ended, if it has.
    pub fn try_wait(&self) -> Option<Ended> {
        match &self.0 {
            Running::Plain(child) => child.try_wait(),
            Running::Enclosed(child) => child.try_wait(),
        }
    }
}
