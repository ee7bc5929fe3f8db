//! Commands of a backend that is a program: its prefix, `mur __enter`, the command.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use mur_containment_kernel::wrapped::{Outcome, Program, said, words_of};
use mur_plugin_api::{CommandRequest, Profile, Spawned};
use serde::{Deserialize, Serialize};

use super::message::{Answer, NotSpawned, send};
use crate::plugins;
use crate::process::fds;

/// What `mur __enter` is told. Beside it come the library, the three standard streams, the command's connection, and the
/// descriptors of the profile.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entering {
    /// The profile's bytes.
    pub(super) profile: Vec<u8>,
    /// The command.
    pub(super) command: CommandRequest,
}

/// Programs that were started and are not reaped.
#[derive(Debug, Default)]
pub(super) struct Programs(Vec<Program>);

impl Programs {
    /// Starts a command by its program.
    pub(super) fn start(
        &mut self,
        library: &OwnedFd,
        spawned: &Spawned,
        profile: &Profile,
        command: &CommandRequest,
        handed: &[OwnedFd],
    ) -> Answer {
        self.0.retain(|program| !program.has_ended());
        let program =
            || spawned.wrap.first().map(|word| String::from_utf8_lossy(word).into_owned()).unwrap_or_default();
        let started = Starting::new(library, spawned, profile)
            .and_then(|starting| starting.tell(library, profile, command, handed));
        match started {
            Ok((running, pid)) => {
                self.0.push(running);
                Answer::Spawned(pid)
            }
            Err(Fault::Command(errno)) => Answer::NotSpawned(NotSpawned::Program(errno)),
            Err(Fault::SetUp(why)) => Answer::NotSpawned(NotSpawned::SetUp(why)),
            Err(Fault::System(error)) => {
                Answer::NotSpawned(NotSpawned::SetUp(format!("starting {} failed: {error}", program())))
            }
            Err(Fault::Said(why)) => Answer::NotSpawned(NotSpawned::SetUp(format!("{} failed: {why}", program()))),
        }
    }

    /// Ends them all, and what is inside them.
    pub(super) fn end(&mut self) {
        self.0.drain(..).for_each(Program::end);
    }
}

enum Fault {
    System(io::Error),
    /// By the command's own program, or its folder.
    Command(i32),
    /// By a step inside.
    SetUp(String),
    /// By the program, or by what it was to be confined with first.
    Said(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

struct Starting {
    program: Program,
    connection: UnixStream,
    says: OwnedFd,
}

impl Starting {
    fn new(library: &OwnedFd, spawned: &Spawned, profile: &Profile) -> Result<Self, Fault> {
        let (ours, theirs) = fds::stream_pair()?;
        let (says, output) = fds::pipe()?;
        let mur = OwnedFd::from(File::open("/proc/self/exe")?);
        let prefix = spawned.wrap.iter().map(|word| word.to_vec()).collect();
        let enter = || plugins::enter_in_root(library.as_fd(), &spawned.outside, &profile.fds);
        let program = Program::start(&words_of(prefix, &[]), enter, mur, theirs, output)?;
        Ok(Self { program, connection: ours.into(), says })
    }

    fn tell(
        mut self,
        library: &OwnedFd,
        profile: &Profile,
        command: &CommandRequest,
        handed: &[OwnedFd],
    ) -> Result<(Program, i32), Fault> {
        let owned = plugins::profile_copies(profile)?;
        let beside: Vec<BorrowedFd<'_>> =
            std::iter::once(library).chain(handed).chain(&owned).map(AsFd::as_fd).collect();
        let telling = Entering { profile: profile.request.to_vec(), command: command.clone() };
        // One that has ended takes nothing, and has said why.
        let told = send(&self.connection, &telling, &beside);
        let outcome = match told {
            Ok(()) => self.program.started(&OwnedFd::from(self.connection)),
            Err(_) => Outcome::Silent,
        };
        if let Outcome::Started(pid) = outcome {
            return Ok((self.program, pid));
        }
        self.program.end();
        let words = said(self.says);
        Err(match outcome {
            Outcome::Step(why) => Fault::SetUp(why),
            Outcome::Program(errno) => Fault::Command(errno),
            _ => Fault::Said(words),
        })
    }
}
