//! Which system calls each kind of process may make.

use std::io;

use seccompiler::BpfProgram;

use crate::Done;
use crate::filter::{Answer, assemble};
use crate::syscalls;

/// Which list is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// For guest workers: the common surface, without starting programs.
    Worker,
    /// For commands: the common surface; memory files only such that can never be executed.
    Command,
    /// The same, with sockets of family `AF_UNIX` (`capabilities.network.unix_sockets`).
    UnixCommand,
    /// For a process that needs only the descriptors it holds.
    DenyAll,
    /// For one that waits for another and then ends as it did.
    Relay,
    /// For one that waits for the end of a pipe.
    Wait,
}

impl Filter {
    /// All filters.
    pub const ALL: [Self; 6] = [Self::Worker, Self::Command, Self::UnixCommand, Self::DenyAll, Self::Relay, Self::Wait];
}

const CLONE_NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned();

const MFD_NOEXEC_SEAL: u32 = 8;

/// Set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;

/// Calls that give a file a mode, and which of their arguments it is. 452 is `fchmodat2`.
const MODES: &[(i64, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (452, 2),
    (libc::SYS_openat, 3),
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
];

/// Calls that take what decides over them from memory, where no filter sees it.
const IN_MEMORY: &[i64] = &[libc::SYS_clone3, libc::SYS_openat2];

/// What Landlock does not look at: owner, mode and extended attributes of a path. No worker's file system interface has them.
const ATTRIBUTES: &[i64] = &[
    libc::SYS_fchmodat,
    452,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
];

const REFUSED: Answer = Answer::Errno(libc::EPERM);

/// Loads a filter for the calling thread and what it starts. Needs no_new_privs.
pub(crate) fn load(filter: Filter) -> io::Result<Done> {
    seccompiler::apply_filter(&program(filter)).map_err(|error| match error {
        seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
        other => io::Error::other(other),
    })?;
    Ok(Done::Enforced)
}

/// The program of a filter.
pub fn program(filter: Filter) -> BpfProgram {
    assemble(table(filter), REFUSED)
}

fn table(filter: Filter) -> Vec<(i64, Answer)> {
    match filter {
        Filter::Worker | Filter::Command | Filter::UnixCommand => common(filter),
        Filter::DenyAll => with_own_signals(syscalls::DENY_ALL),
        Filter::Relay => with_own_signals(syscalls::RELAY),
        Filter::Wait => allowed(syscalls::WAIT),
    }
}

fn common(filter: Filter) -> Vec<(i64, Answer)> {
    let mut table = allowed(syscalls::COMMON);
    // No file is left that gives whoever runs it another's rights.
    for (call, argument) in MODES {
        table.retain(|(known, _)| known != call);
        let (any, none) = (Box::new(REFUSED), Box::new(Answer::Allow));
        table.push((*call, Answer::ByBits { argument: *argument, bits: SET_ID, any, none }));
    }
    if filter == Filter::Worker {
        table.retain(|(call, _)| ![libc::SYS_execve, libc::SYS_execveat].contains(call) && !ATTRIBUTES.contains(call));
    } else {
        table.extend(allowed(syscalls::LANDLOCK));
        let sealed = Answer::ByBits {
            argument: 1,
            bits: MFD_NOEXEC_SEAL,
            any: Box::new(Answer::Allow),
            none: Box::new(REFUSED),
        };
        table.push((libc::SYS_memfd_create, sealed));
    }
    // Callers fall back to calls whose flags and modes a filter can see.
    for call in IN_MEMORY {
        table.retain(|(known, _)| known != call);
        table.push((*call, Answer::Errno(libc::ENOSYS)));
    }
    table.push((
        libc::SYS_clone,
        Answer::ByBits {
            argument: 0,
            bits: CLONE_NEW_NAMESPACES,
            any: Box::new(REFUSED),
            none: Box::new(Answer::Allow),
        },
    ));
    let family = |family: i32, answer: Answer| (family.unsigned_abs(), answer);
    let denied = Answer::Errno(libc::EACCES);
    let families = vec![
        family(libc::AF_INET, Answer::Allow),
        family(libc::AF_INET6, Answer::Allow),
        family(libc::AF_UNIX, if filter == Filter::UnixCommand { Answer::Allow } else { denied.clone() }),
        family(libc::AF_NETLINK, denied.clone()),
        family(libc::AF_PACKET, denied),
    ];
    table.push((libc::SYS_socket, Answer::ByValue(0, families, Box::new(REFUSED))));
    table
}

fn allowed(calls: &[i64]) -> Vec<(i64, Answer)> {
    calls.iter().map(|call| (*call, Answer::Allow)).collect()
}

/// A process may still end itself by a signal, and no other.
fn with_own_signals(calls: &[i64]) -> Vec<(i64, Answer)> {
    let mut table = allowed(calls);
    for call in [libc::SYS_kill, libc::SYS_tgkill] {
        let own = vec![(std::process::id(), Answer::Allow)];
        table.push((call, Answer::ByValue(0, own, Box::new(REFUSED))));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_fits_the_budget() {
        for filter in Filter::ALL {
            let length = program(filter).len();
            assert!(length < 512, "{filter:?}: {length}");
        }
    }

    #[test]
    fn calls_whose_arguments_lie_in_memory_are_answered_as_if_the_kernel_had_none() {
        for filter in [Filter::Worker, Filter::Command, Filter::UnixCommand] {
            for call in IN_MEMORY {
                let all = table(filter);
                let answers: Vec<&Answer> =
                    all.iter().filter(|(known, _)| known == call).map(|(_, answer)| answer).collect();
                assert_eq!(answers, [&Answer::Errno(libc::ENOSYS)], "{filter:?}: {call}");
            }
        }
    }

    #[test]
    fn a_worker_is_given_no_call_that_starts_a_program() {
        let table = table(Filter::Worker);
        assert!(!table.iter().any(|(call, _)| [libc::SYS_execve, libc::SYS_execveat].contains(call)));
    }

    #[test]
    fn no_filter_allows_what_none_may() {
        for filter in Filter::ALL {
            for (call, answer) in table(filter) {
                assert!(!syscalls::NEVER.contains(&call), "{filter:?}: {call} {answer:?}");
            }
        }
    }
}
