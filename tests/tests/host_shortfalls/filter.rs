//! A system call filter around a program, as a container's: calls that answer an error instead of doing anything.

#![allow(clippy::disallowed_methods, reason = "mur is started as a container would start it")]
#![allow(unsafe_code, reason = "a filter is installed between fork and exec")]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// A call that answers an error.
#[derive(Clone, Copy, Debug)]
pub struct Denied {
    /// Its number.
    pub call: i64,
    /// The value its second argument must have, if only one use of it is meant.
    pub second: Option<u32>,
    /// The error.
    pub errno: i32,
}

/// A call, whatever it is asked for.
pub fn denied(call: i64, errno: i32) -> Denied {
    Denied { call, second: None, errno }
}

/// Where the kernel puts the number and the lower half of the second argument (`struct seccomp_data`).
const NUMBER: u32 = 0;
const SECOND: u32 = 24;

/// Lets a program run under a filter, with all it starts.
pub fn under(command: &mut Command, denied: &[Denied]) {
    let mut program = Vec::new();
    for one in denied {
        program.push(load(NUMBER));
        let number = u32::try_from(one.call).expect("a number of a system call");
        match one.second {
            None => program.push(unless(number, 1)),
            Some(second) => program.extend([unless(number, 3), load(SECOND), unless(second, 1)]),
        }
        program.push(answer(libc::SECCOMP_RET_ERRNO | one.errno.unsigned_abs()));
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    let install = move || {
        let filter = libc::sock_fprog {
            len: u16::try_from(program.len()).expect("a short program"),
            filter: program.as_ptr().cast_mut(),
        };
        // SAFETY: plain integers, and a program that outlives the call.
        let result = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
        };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec it makes two system calls and allocates nothing.
    unsafe { command.pre_exec(install) };
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

/// Goes on when the value is this one, else skips so many statements.
fn unless(value: u32, skipped: u8) -> libc::sock_filter {
    libc::sock_filter { jf: skipped, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value) }
}

fn answer(value: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).expect("a code"), jt: 0, jf: 0, k }
}
