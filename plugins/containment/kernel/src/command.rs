//! One command: what its process does between the fork and the program, and how its server learns of a failure.
//!
//! The server is in scope, namespaces, mounts and filter already; a command adds what is its own: a process group, its
//! standard streams, Landlock and limits.

use std::ffi::{CString, NulError};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use mur_plugin_api::{CommandRequest, ProcessLimits};

use crate::step::{Done, Step, StepError, check, run};
use crate::{Tier, landlock, process};

/// A command on its way.
#[derive(Debug)]
pub struct Starting<'a> {
    words: &'a Words,
    stdio: [RawFd; 3],
    ruleset: Option<&'a OwnedFd>,
    limits: &'a ProcessLimits,
}

/// A request as the kernel takes it.
#[derive(Debug)]
pub(crate) struct Words {
    program: CString,
    args: Vec<CString>,
    env: Vec<CString>,
    cwd: CString,
}

/// What went wrong.
#[derive(Debug)]
pub(crate) enum Failed {
    /// A step.
    Step(StepError),
    /// The program itself, or its folder.
    Program(i32),
}

type CommandStep = Step<Starting<'static>>;

const PARENT_DEATH: CommandStep = Step {
    name: "parent-death signal",
    effect: "it is killed when the server of commands ends",
    // The server is outside the namespace, where it has no number.
    run: |_| Ok(process::die_with(0)?),
};
const PARENT_DEATH_INSIDE: CommandStep = Step {
    name: "parent-death signal",
    effect: "it is killed when the process that waits for it ends",
    run: |_| {
        // SAFETY: no arguments.
        let parent = unsafe { libc::getppid() };
        // The first process of the namespace takes over what has lost its parent.
        if parent == 1 {
            return Err(io::Error::from_raw_os_error(libc::ESRCH).into());
        }
        Ok(process::die_with(parent)?)
    },
};
const GROUP: CommandStep = Step {
    name: "process group",
    effect: "it leads a group of its own, which is signalled as one",
    run: |_| Ok(process::own_group()?),
};
const MEMORY: CommandStep = Step {
    name: "out-of-memory preference",
    effect: "when the session's memory is used up, commands are killed before workers",
    run: |_| Ok(process::prefer_when_out_of_memory()),
};
const STREAMS: CommandStep = Step {
    name: "standard streams",
    effect: "descriptors 0, 1 and 2 are what the session gave",
    run: |on| {
        for (number, fd) in (0..).zip(on.stdio) {
            // SAFETY: plain numbers; the sources are all above 2.
            check(unsafe { libc::dup2(fd, number) })?;
        }
        Ok(Done::Enforced)
    },
};
const DESCRIPTORS: CommandStep = Step {
    name: "descriptors",
    effect: "no descriptor above stderr reaches the program",
    run: |_| Ok(process::close_on_exec()?),
};
const LANDLOCK: CommandStep = Step {
    name: "landlock",
    effect: "only granted paths can be opened, changed or executed",
    run: |on| {
        let ruleset = on.ruleset.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        Ok(landlock::restrict(ruleset.as_fd())?)
    },
};
const LIMITS: CommandStep = Step {
    name: "resource limits",
    effect: "open files, file size, processor time, memory and core dumps are limited",
    run: |on| Ok(process::limit_all(on.limits)?),
};

/// What a command's process does before the program under `advisory`.
pub const ADVISORY_COMMAND: &[CommandStep] = &[PARENT_DEATH, GROUP, MEMORY, STREAMS, DESCRIPTORS, LIMITS];

/// What it does under `scoped` and `sealed`.
pub const COMMAND: &[CommandStep] = &[PARENT_DEATH, GROUP, MEMORY, STREAMS, DESCRIPTORS, LANDLOCK, LIMITS];

/// What it does where a program composed its root: its parent has entered the rest, for both.
pub const INSIDE_COMMAND: &[CommandStep] = &[PARENT_DEATH_INSIDE, GROUP, STREAMS, DESCRIPTORS];

/// The steps of a command in a class.
pub fn of_command(tier: Tier) -> &'static [CommandStep] {
    match tier {
        Tier::Advisory => ADVISORY_COMMAND,
        Tier::Scoped | Tier::Sealed => COMMAND,
    }
}

impl Words {
    /// A request's words; one with a NUL byte cannot be said to the kernel.
    pub(crate) fn new(request: &CommandRequest) -> Result<Self, NulError> {
        let pair = |(name, value): &(mur_plugin_api::Bytes, mur_plugin_api::Bytes)| {
            CString::new([&name.0[..], b"=", &value.0].concat())
        };
        Ok(Self {
            program: CString::new(request.program.as_os_str().as_bytes())?,
            args: request.args.iter().map(|arg| CString::new(arg.0.clone())).collect::<Result<_, _>>()?,
            env: request.env.iter().map(pair).collect::<Result<_, _>>()?,
            cwd: CString::new(request.cwd.as_os_str().as_bytes())?,
        })
    }

    /// Enters the folder and becomes the program; returns only why not.
    fn execute(&self) -> i32 {
        let pointers =
            |words: &[CString]| words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>();
        let (args, env) = (pointers(&self.args), pointers(&self.env));
        // SAFETY: terminated strings and arrays that end with a null pointer, all of which outlive the calls.
        unsafe {
            if libc::chdir(self.cwd.as_ptr()) == 0 {
                libc::execve(self.program.as_ptr(), args.as_ptr(), env.as_ptr());
            }
        }
        io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    }
}

/// Forks a command and waits until it has become its program, or says what failed; then nothing is left of it.
pub(crate) fn start(
    steps: &'static [CommandStep],
    words: &Words,
    stdio: [RawFd; 3],
    ruleset: Option<&OwnedFd>,
    limits: &ProcessLimits,
) -> Result<libc::pid_t, Failed> {
    let forking = |error: io::Error| {
        // What the kernel says of a namespace whose first process has ended.
        let gone = error.raw_os_error() == Some(libc::ENOMEM);
        let error = if gone { io::Error::other("the session's process namespace is gone") } else { error };
        Failed::Step(StepError::new("fork", error))
    };
    let (told, tells) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(|error| forking(error.into()))?;
    let pid = process::fork().map_err(forking)?;
    if pid == 0 {
        let starting = Starting { words, stdio, ruleset, limits };
        // SAFETY: the steps name a lifetime that this process, which ends below, never leaves.
        let mut starting: Starting<'static> = unsafe { std::mem::transmute(starting) };
        let account = match run(steps, &mut starting) {
            Ok(_) => account(1, starting.words.execute(), ""),
            Err(error) => account(0, error.errno(), &error.step),
        };
        let _ = nix::unistd::write(&tells, &account);
        process::leave(126);
    }
    drop(tells);
    let mut account = Vec::new();
    let read = std::fs::File::from(told).read_to_end(&mut account);
    match (read, account.split_first_chunk::<5>()) {
        // The end of the pipe: closed by the exec.
        (Ok(0), _) => Ok(pid),
        (Ok(_), Some(([kind, number @ ..], step))) => {
            let _ = process::reap(pid);
            let number = i32::from_ne_bytes(*number);
            Err(match kind {
                1 => Failed::Program(number),
                _ => Failed::Step(StepError::new(
                    String::from_utf8_lossy(step).into_owned(),
                    io::Error::from_raw_os_error(number),
                )),
            })
        }
        (read, _) => {
            process::kill(pid);
            let error = read.err().unwrap_or_else(|| io::Error::from_raw_os_error(libc::ECHILD));
            Err(Failed::Step(StepError::new("starting a command", error)))
        }
    }
}

/// At most what a pipe takes at once.
fn account(kind: u8, number: i32, step: &str) -> Vec<u8> {
    let step = &step.as_bytes()[..step.len().min(1024)];
    [&[kind][..], &number.to_ne_bytes(), step].concat()
}

/// The descriptors of a command that came beside its request.
pub(crate) fn numbers(stdio: &[OwnedFd]) -> Option<[RawFd; 3]> {
    let numbers: Vec<RawFd> = stdio.iter().map(AsRawFd::as_raw_fd).collect();
    <[RawFd; 3]>::try_from(numbers).ok().filter(|numbers| numbers.iter().all(|number| *number > 2))
}
