//! Builds and loads system call filters.
//!
//! A filter has one answer for what it names and one for the rest, so that a different answer for a few calls (`ENOSYS` for
//! `clone3`, by which C libraries fall back to `clone`) is a filter of its own, loaded first: of two errors the newest
//! filter's wins, so the list lets those calls pass.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::Done;
use crate::syscalls;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Which list is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The list for guest workers: the common surface, without starting programs and without new sockets but IP ones.
    Worker,
    /// For a process that needs only the descriptors it holds.
    DenyAll,
}

const CLONE_NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// Loads a filter for the calling thread and what it starts. Needs no_new_privs.
pub(crate) fn load(filter: Filter) -> io::Result<Done> {
    for program in programs(filter)? {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(Done::Enforced)
}

/// The programs of a filter, in the order they are loaded.
pub fn programs(filter: Filter) -> io::Result<Vec<BpfProgram>> {
    match filter {
        Filter::DenyAll => {
            let mut rules = unconditional(syscalls::DENY_ALL);
            // A process may still abort: signals to itself only.
            rules.insert(libc::SYS_tgkill, own_process(0)?);
            rules.insert(libc::SYS_kill, own_process(0)?);
            Ok(vec![compile(rules, errno(libc::EPERM), SeccompAction::Allow)?])
        }
        Filter::Worker => {
            let mut answered = unconditional(&[libc::SYS_clone3]);
            let no_threads_fallback =
                compile(std::mem::take(&mut answered), SeccompAction::Allow, errno(libc::ENOSYS))?;
            let mut sockets = Rules::new();
            sockets.insert(libc::SYS_socket, families(&[libc::AF_UNIX, libc::AF_NETLINK, libc::AF_PACKET])?);
            let sockets = compile(sockets, SeccompAction::Allow, errno(libc::EACCES))?;
            let mut rules = unconditional(syscalls::COMMON);
            for denied in [libc::SYS_execve, libc::SYS_execveat] {
                rules.remove(&denied);
            }
            rules.insert(libc::SYS_clone, without_namespaces()?);
            // The earlier filter's EACCES must not be overruled by this one's EPERM.
            rules.insert(
                libc::SYS_socket,
                families(&[libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK, libc::AF_PACKET])?,
            );
            Ok(vec![no_threads_fallback, sockets, compile(rules, errno(libc::EPERM), SeccompAction::Allow)?])
        }
    }
}

fn errno(number: i32) -> SeccompAction {
    SeccompAction::Errno(number.unsigned_abs())
}

fn unconditional(names: &[i64]) -> Rules {
    names.iter().map(|name| (*name, Vec::new())).collect()
}

fn families(families: &[i32]) -> io::Result<Vec<SeccompRule>> {
    families
        .iter()
        .map(|family| rule(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(family.unsigned_abs())))
        .collect()
}

fn without_namespaces() -> io::Result<Vec<SeccompRule>> {
    Ok(vec![rule(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(CLONE_NEW_NAMESPACES), 0)?])
}

fn own_process(argument: u8) -> io::Result<Vec<SeccompRule>> {
    let pid = u64::from(std::process::id());
    Ok(vec![rule(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, pid)?])
}

fn rule(argument: u8, size: SeccompCmpArgLen, operator: SeccompCmpOp, value: u64) -> io::Result<SeccompRule> {
    let condition = SeccompCondition::new(argument, size, operator, value).map_err(io::Error::other)?;
    SeccompRule::new(vec![condition]).map_err(io::Error::other)
}

fn compile(rules: Rules, otherwise: SeccompAction, on_match: SeccompAction) -> io::Result<BpfProgram> {
    let machine = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, otherwise, on_match, machine).map_err(io::Error::other)?;
    filter.try_into().map_err(|error: seccompiler::BackendError| io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_compiles_and_fits_the_kernel() {
        for filter in [Filter::Worker, Filter::DenyAll] {
            for program in programs(filter).unwrap() {
                assert!(program.len() < 4096, "{filter:?}: {}", program.len());
            }
        }
    }
}
