//! The sequences of a guest worker in each class, and of a process that needs nothing but its descriptors.

use std::io;
use std::path::Path;

use mur_plugin_api::ProcessLimits;

use crate::Tier;
use crate::entry::{Entering, Entry};
use crate::step::{Done, Step, StepError, run};
use crate::{landlock, namespaces, process, relay, root, scope, seccomp};

type EnterStep = Step<Entering<'static>>;

const SCOPE: EnterStep = Step {
    name: "cgroup scope",
    effect: "it counts against the session's limits and is killed with the session",
    run: |on| Ok(scope::join(on.scope())?),
};
const USER: EnterStep = Step {
    name: "user namespace",
    effect: "what rights it gains hold inside the session's namespaces only",
    run: |on| Ok(namespaces::join(on.namespace(0), libc::CLONE_NEWUSER)?),
};
const NETWORK: EnterStep = Step {
    name: "network namespace",
    effect: "it has the session's loopback and no other network",
    run: |on| Ok(namespaces::join(on.namespace(1), libc::CLONE_NEWNET)?),
};
const IPC: EnterStep = Step {
    name: "ipc namespace",
    effect: "shared memory and message queues of the host are out of sight",
    run: |on| Ok(namespaces::join(on.namespace(2), libc::CLONE_NEWIPC)?),
};
const PID: EnterStep = Step {
    name: "process namespace",
    effect: "what it starts sees the session's processes only",
    run: |on| Ok(namespaces::join(on.namespace(3), libc::CLONE_NEWPID)?),
};
const RELAY: EnterStep = Step {
    name: "relay",
    effect: "the process proper goes on inside the process namespace; outside waits one that ends as it does",
    run: |_| Ok(relay::fork()?),
};
const PARENT_DEATH: EnterStep = Step {
    name: "parent-death signal",
    effect: "it is killed when its relay ends",
    // The relay is outside the namespace, where it has no number: a number says that it is gone.
    run: |_| Ok(process::die_with(0)?),
};
const GROUP: EnterStep =
    Step { name: "process group", effect: "it leads a group of its own", run: |_| Ok(process::own_group()?) };
const ROOT: EnterStep = Step {
    name: "sealed-root",
    effect: "its root holds what it was granted; everything else is absent",
    run: |on| run(root::COMPOSE, on).map(|_| Done::Enforced),
};
const DESCRIPTORS: EnterStep = Step {
    name: "descriptors",
    effect: "no descriptor above stderr survives an exec",
    run: |_| Ok(process::close_on_exec()?),
};
const CAPABILITIES: EnterStep = Step {
    name: "capabilities",
    effect: "no capability is held, and none can be had again",
    run: |_| Ok(process::drop_capabilities()?),
};
const NO_NEW_PRIVILEGES: EnterStep = Step {
    name: "no new privileges",
    effect: "no program started can gain rights by its mode or owner",
    run: |_| Ok(process::no_new_privileges()?),
};
const LANDLOCK: EnterStep = Step {
    name: "landlock",
    effect: "only granted paths can be opened or changed, nothing is executed, no process outside is signalled",
    run: |on| {
        let ruleset = on.ruleset().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        Ok(landlock::restrict(ruleset)?)
    },
};
const NOT_DUMPABLE: EnterStep = Step {
    name: "not dumpable",
    effect: "no other process of the user can read its memory",
    run: |_| Ok(process::not_dumpable()?),
};
const LIMITS: EnterStep = Step {
    name: "resource limits",
    effect: "open files, file size and core dumps are limited, and what else the request names",
    run: |on| Ok(process::limits(&on.entry.limits)?),
};
const WORKER_FILTER: EnterStep = Step {
    name: "system call filter",
    effect: "system calls outside the list answer EPERM, programs cannot be executed",
    run: |_| Ok(seccomp::load(seccomp::Filter::Worker)?),
};
const DENY_ALL_LANDLOCK: EnterStep = Step {
    name: "landlock",
    effect: "no path can be opened, made or executed, no TCP port used, no abstract socket reached",
    run: |_| Ok(landlock::deny_all()?),
};
const DENY_ALL_FILTER: EnterStep = Step {
    name: "system call filter",
    effect: "only reading, writing, memory, clocks and ending are left",
    run: |_| Ok(seccomp::load(seccomp::Filter::DenyAll)?),
};

const SESSION: EnterStep = Step {
    name: "session",
    effect: "it has no terminal, and no signal is ignored or blocked",
    run: |_| Ok(process::own_session()?),
};
const PARENT_DEATH_OF_SERVER: EnterStep = Step {
    name: "parent-death signal",
    effect: "it is killed when the enclosure's process ends",
    run: |on| Ok(process::die_with(on.parent)?),
};
const TMP: EnterStep = Step {
    name: "private /tmp",
    effect: "/tmp is the session's folder for temporary files; granted folders below the host's stay",
    run: |on| {
        if on.entry.tmp.is_some() {
            run(root::COVER, on)?;
        }
        std::env::set_current_dir("/")?;
        Ok(Done::Enforced)
    },
};
const ROOT_FROM_OUTSIDE: EnterStep = Step {
    name: "sealed-root",
    effect: "the root of commands holds what they were granted; everything else is absent",
    run: root::compose_from_outside,
};
const ACCOUNTS: EnterStep = Step {
    name: "landlock: accounts",
    effect: "the composed root's own /etc/passwd and /etc/group can be read",
    run: |on| {
        let ruleset = on.ruleset().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        for path in ["/etc/passwd", "/etc/group"] {
            landlock::add_readable(ruleset, Path::new(path))?;
        }
        Ok(Done::Enforced)
    },
};
const KEEP: EnterStep = Step {
    name: "descriptors",
    effect: "nothing of the enclosure's is held but the connection to it and the ruleset",
    run: |on| Ok(process::close_all_but(&on.kept)?),
};
const COMMAND_FILTER: EnterStep = Step {
    name: "system call filter",
    effect: "system calls outside the list answer EPERM, sockets outside it EACCES",
    run: |on| {
        process::name(c"mur-commands");
        let filter = if on.entry.unix_sockets { seccomp::Filter::UnixCommand } else { seccomp::Filter::Command };
        Ok(seccomp::load(filter)?)
    },
};

/// What the server of commands enters under `advisory` and `scoped`; each command adds
/// [`command::COMMAND`](crate::command::COMMAND).
pub const SERVER: &[EnterStep] = &[
    SESSION,
    SCOPE,
    USER,
    NETWORK,
    IPC,
    PID,
    PARENT_DEATH_OF_SERVER,
    TMP,
    KEEP,
    CAPABILITIES,
    NO_NEW_PRIVILEGES,
    NOT_DUMPABLE,
    COMMAND_FILTER,
];

/// What it enters under `sealed`.
pub const SEALED_SERVER: &[EnterStep] = &[
    SESSION,
    SCOPE,
    USER,
    NETWORK,
    IPC,
    PID,
    PARENT_DEATH_OF_SERVER,
    ROOT_FROM_OUTSIDE,
    ACCOUNTS,
    KEEP,
    CAPABILITIES,
    NO_NEW_PRIVILEGES,
    NOT_DUMPABLE,
    COMMAND_FILTER,
];

const MEMORY: EnterStep = Step {
    name: "out-of-memory preference",
    effect: "when the session's memory is used up, commands are killed before workers",
    run: |_| Ok(process::prefer_when_out_of_memory()),
};
const GRANTED: EnterStep =
    Step { name: "sealed-root", effect: "each folder in the root is the one that was granted", run: root::verify };
const COMMAND_LIMITS: EnterStep = Step {
    name: "resource limits",
    effect: "open files, file size, processor time, memory and core dumps are limited",
    run: |on| Ok(process::limit_all(&on.entry.limits)?),
};

/// What a process enters before it becomes a program that composes the root of one command. It stays outside the session's
/// process namespace: such a program looks for its own child by its number below the host's `/proc`.
pub const OUTSIDE_PROGRAM: &[EnterStep] = &[SESSION, MEMORY, SCOPE, USER, NETWORK, IPC];

/// What the first process inside that program's root enters; the command itself is its child.
pub const INSIDE_PROGRAM: &[EnterStep] = &[
    SESSION,
    GRANTED,
    ACCOUNTS,
    DESCRIPTORS,
    CAPABILITIES,
    NO_NEW_PRIVILEGES,
    LANDLOCK,
    NOT_DUMPABLE,
    COMMAND_LIMITS,
    COMMAND_FILTER,
];

/// The sequence of a class's server of commands.
pub(crate) fn of_server(tier: Tier) -> &'static [EnterStep] {
    match tier {
        Tier::Advisory | Tier::Scoped => SERVER,
        Tier::Sealed => SEALED_SERVER,
    }
}

/// What a worker enters under `advisory`. The filter comes last, limits after whatever needs descriptors.
pub const ADVISORY_WORKER: &[EnterStep] = &[
    SCOPE,
    USER,
    NETWORK,
    IPC,
    PID,
    RELAY,
    PARENT_DEATH,
    GROUP,
    DESCRIPTORS,
    CAPABILITIES,
    NO_NEW_PRIVILEGES,
    LIMITS,
    NOT_DUMPABLE,
    WORKER_FILTER,
];

/// What a worker enters under `scoped`.
pub const SCOPED_WORKER: &[EnterStep] = &[
    SCOPE,
    USER,
    NETWORK,
    IPC,
    PID,
    RELAY,
    PARENT_DEATH,
    GROUP,
    DESCRIPTORS,
    CAPABILITIES,
    NO_NEW_PRIVILEGES,
    LANDLOCK,
    LIMITS,
    NOT_DUMPABLE,
    WORKER_FILTER,
];

/// What a worker enters under `sealed`.
pub const SEALED_WORKER: &[EnterStep] = &[
    SCOPE,
    USER,
    NETWORK,
    IPC,
    PID,
    RELAY,
    PARENT_DEATH,
    GROUP,
    ROOT,
    DESCRIPTORS,
    CAPABILITIES,
    NO_NEW_PRIVILEGES,
    LANDLOCK,
    LIMITS,
    NOT_DUMPABLE,
    WORKER_FILTER,
];

/// What a process enters that needs nothing but the descriptors it holds, whatever the class in force.
pub const DENY_ALL: &[EnterStep] =
    &[DESCRIPTORS, CAPABILITIES, NO_NEW_PRIVILEGES, NOT_DUMPABLE, LIMITS, DENY_ALL_LANDLOCK, DENY_ALL_FILTER];

/// The sequence of a worker in a class.
pub fn of_worker(tier: Tier) -> &'static [EnterStep] {
    match tier {
        Tier::Advisory => ADVISORY_WORKER,
        Tier::Scoped => SCOPED_WORKER,
        Tier::Sealed => SEALED_WORKER,
    }
}

/// Runs a sequence in the calling, single-threaded process; with a relay among its steps it returns in the child. On an
/// error the process is partly confined and must end.
pub fn enter(steps: &'static [EnterStep], mut entering: Entering<'static>) -> Result<Vec<&'static str>, StepError> {
    run(steps, &mut entering)
}

/// Confines a process such as `mur __compile` for good: afterwards it can compute, read and write the descriptors it holds,
/// and end. It must be single-threaded. Returns the names of the steps this kernel does not have; without Landlock the
/// filter alone still keeps every path out of reach.
pub fn deny_all(limits: &ProcessLimits) -> Result<Vec<&'static str>, StepError> {
    // Leaked, as the process is confined by it to its end.
    let entry: &'static Entry = Box::leak(Box::new(Entry::of(*limits)));
    let entering = Entering::new(entry, &[]).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
    enter(DENY_ALL, entering)
}
