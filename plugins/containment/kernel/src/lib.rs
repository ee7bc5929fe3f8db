//! Kernel means that the containment classes share: capabilities, resource limits, descriptors, seccomp and Landlock.
//!
//! A privileged sequence is data: an ordered table of named steps, which the process that runs it, `--explain-scope`, the
//! book and the tests read alike. A step that fails says its name and error number, and the sequence stops: nothing runs
//! half confined.

#![allow(unsafe_code)]

pub mod landlock;
pub mod process;
pub mod seccomp;
pub mod syscalls;

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// What a confinement is to hold; steps read what concerns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Most open files (`RLIMIT_NOFILE`).
    pub open_files: u64,
    /// Largest file written, in bytes (`RLIMIT_FSIZE`).
    pub file_size: u64,
    /// Processor time, in seconds; absent for workers, whose calls have deadlines of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<u64>,
    /// Address space, in bytes; absent for workers, whose runtime reserves far more than it uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_space: Option<u64>,
}

/// How a step ended when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It is in force.
    Enforced,
    /// This kernel does not have it and the sequence holds without it.
    Absent,
}

/// One step of a sequence.
pub struct Step {
    /// The name that refusals and reports use.
    pub name: &'static str,
    /// What holds after it, one line.
    pub effect: &'static str,
    run: fn(&Settings) -> io::Result<Done>,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The step that failed, and with what.
#[derive(Debug)]
pub struct StepError {
    /// Name of the step.
    pub step: &'static str,
    /// The error of the operating system.
    pub error: io::Error,
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.step, self.error)
    }
}

impl std::error::Error for StepError {}

const GROUP: Step =
    Step { name: "process group", effect: "the process leads a group of its own", run: process::own_group };
const DESCRIPTORS: Step = Step {
    name: "descriptors",
    effect: "no descriptor above stderr survives an exec",
    run: |_| process::close_on_exec(),
};
const CAPABILITIES: Step = Step {
    name: "capabilities",
    effect: "no capability is held, and none can be had again",
    run: |_| process::drop_capabilities(),
};
const NO_NEW_PRIVILEGES: Step = Step {
    name: "no new privileges",
    effect: "no program started can gain rights by its mode or owner",
    run: |_| process::no_new_privileges(),
};
const NOT_DUMPABLE: Step = Step {
    name: "not dumpable",
    effect: "no other process of the user can read its memory",
    run: |_| process::not_dumpable(),
};
const LIMITS: Step = Step {
    name: "resource limits",
    effect: "open files, file size and core dumps are limited, and what else the request names",
    run: process::limits,
};
const WORKER_SECCOMP: Step = Step {
    name: "system call filter",
    effect: "system calls outside the list answer EPERM, programs cannot be executed",
    run: |_| seccomp::load(seccomp::Filter::Worker),
};
const DENY_ALL_LANDLOCK: Step = Step {
    name: "landlock",
    effect: "no path can be opened, made or executed, no TCP port used, no abstract socket reached",
    run: |_| landlock::deny_all(),
};
const DENY_ALL_SECCOMP: Step = Step {
    name: "system call filter",
    effect: "only reading, writing, memory, clocks and ending are left",
    run: |_| seccomp::load(seccomp::Filter::DenyAll),
};

/// What a worker enters under `advisory`: no kernel claim on files. Limits come after what needs descriptors, the filter
/// last.
pub const ADVISORY_WORKER: &[Step] =
    &[GROUP, DESCRIPTORS, CAPABILITIES, NO_NEW_PRIVILEGES, NOT_DUMPABLE, LIMITS, WORKER_SECCOMP];

/// What a process enters that needs nothing but the descriptors it holds, whatever the class in force.
pub const DENY_ALL: &[Step] =
    &[DESCRIPTORS, CAPABILITIES, NO_NEW_PRIVILEGES, NOT_DUMPABLE, LIMITS, DENY_ALL_LANDLOCK, DENY_ALL_SECCOMP];

/// Runs a sequence in the calling, single-threaded process. Returns the names of the steps this kernel does not have;
/// on an error the process is partly confined and must end.
pub fn enter(steps: &[Step], settings: &Settings) -> Result<Vec<&'static str>, StepError> {
    let mut absent = Vec::new();
    for step in steps {
        match (step.run)(settings) {
            Ok(Done::Enforced) => {}
            Ok(Done::Absent) => absent.push(step.name),
            Err(error) => return Err(StepError { step: step.name, error }),
        }
    }
    Ok(absent)
}

/// Confines a process such as `mur __compile` for good: afterwards it can compute, read and write the descriptors it holds,
/// and end. It must be single-threaded. Returns the names of the steps this kernel does not have; without Landlock the
/// filter alone still keeps every path out of reach.
pub fn deny_all(settings: &Settings) -> Result<Vec<&'static str>, StepError> {
    enter(DENY_ALL, settings)
}
