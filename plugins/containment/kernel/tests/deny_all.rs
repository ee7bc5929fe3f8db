//! A process that needs nothing but its descriptors, and one with Landlock alone.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, clippy::disallowed_methods)]

mod support;

use std::io::Write;

use mur_containment_kernel::entry::{Entering, Entry};
use mur_containment_kernel::sequence::{DENY_ALL, enter};
use support::{LIMITS, errno, start};

type Attempt = (&'static str, fn() -> i64, i32);

/// What is tried, and what the filter answers. All of them work before.
const ATTEMPTS: &[Attempt] = &[
    ("open", || i64::from(unsafe { libc::open(c"/etc/passwd".as_ptr(), libc::O_RDONLY) }), libc::EPERM),
    ("socket", || i64::from(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) }), libc::EPERM),
    ("unix", || i64::from(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) }), libc::EPERM),
    ("fork", || i64::from(unsafe { libc::fork() }), libc::EPERM),
    ("unshare", || i64::from(unsafe { libc::unshare(libc::CLONE_FS) }), libc::EPERM),
    ("signal", || i64::from(unsafe { libc::kill(libc::getppid(), 0) }), libc::EPERM),
    ("stat", || i64::from(unsafe { libc::access(c"/etc/passwd".as_ptr(), libc::R_OK) }), libc::EPERM),
];

/// Runs an attempt after the first `steps` steps; 0 when it works.
fn outcome(steps: usize, attempt: fn() -> i64) -> i32 {
    let (said, _) = start(None, |out| {
        let entry: &'static Entry = Box::leak(Box::new(Entry::of(LIMITS)));
        if let Err(error) = enter(&DENY_ALL[..steps], Entering::new(entry, &[]).unwrap()) {
            let _ = write!(out, "{error}");
            return;
        }
        let result = attempt();
        let number = if result < 0 { errno() } else { 0 };
        let _ = write!(out, "{number} ");
    })
    .said();
    // A child that was forked says the same once more.
    said.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{said}"))
}

#[test]
fn a_process_under_deny_all_is_refused_every_path_program_and_socket() {
    let _turn = support::turn();
    for (name, attempt, expected) in ATTEMPTS {
        assert_eq!(outcome(0, *attempt), 0, "{name} before");
        assert_eq!(outcome(DENY_ALL.len(), *attempt), *expected, "{name}");
    }
    println!("deny-all: {} refusals seen", ATTEMPTS.len());
}

#[test]
fn landlock_alone_already_keeps_every_path_out_of_reach() {
    let _turn = support::turn();
    let abi = mur_containment_kernel::landlock::kernel_abi();
    assert!(abi.is_some(), "this kernel has no Landlock, so this cannot be shown here");
    // The filter comes last; without it Landlock must hold alone.
    assert_eq!(outcome(DENY_ALL.len() - 1, ATTEMPTS[0].1), libc::EACCES);
}
