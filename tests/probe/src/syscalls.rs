//! Raw system calls outside the surface a class gives. A call that fails for its arguments has reached the kernel.

use std::io;

use crate::outcome::{Outcome, words};
use crate::plan::Plan;

const KEYCTL_GET_KEYRING_ID: libc::c_long = 0;
const KEY_SPEC_SESSION_KEYRING: libc::c_long = -3;
const BPF_PROG_LOAD: libc::c_long = 5;
/// The first published size of `perf_event_attr`.
const PERF_ATTR_SIZE: usize = 64;

pub(crate) fn attempt(case: &str, plan: &Plan) -> Option<Outcome> {
    let noted = |outcome: Outcome, key: &str| Outcome {
        detail: format!("{}; {key}={}", outcome.detail, plan.one(key).unwrap_or("unknown")),
        ..outcome
    };
    Some(match case {
        "syscall-io-uring-setup" => raw("io_uring_setup", || {
            // SAFETY: no memory is given; a call that is reached answers EFAULT.
            unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, std::ptr::null::<u8>()) }
        }),
        "syscall-userfaultfd" => noted(
            raw("userfaultfd", || {
                // SAFETY: flags only.
                unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) }
            }),
            "vm.unprivileged_userfaultfd",
        ),
        "syscall-bpf" => raw("bpf", || {
            // SAFETY: attributes of no size.
            unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, std::ptr::null::<u8>(), 0) }
        }),
        "syscall-open-by-handle-at" => raw("open_by_handle_at", open_by_handle),
        "syscall-perf-event-open" => noted(raw("perf_event_open", perf_event_open), "kernel.perf_event_paranoid"),
        "syscall-keyctl" => raw("keyctl", || {
            // SAFETY: plain numbers.
            unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0) }
        }),
        _ => return None,
    })
}

fn open_by_handle() -> libc::c_long {
    // A handle of no kind and no bytes: whoever may use handles is told that it is stale or invalid.
    let handle = [0_u32; 8];
    // SAFETY: a handle header that says it holds no bytes, in more memory than that.
    unsafe { libc::syscall(libc::SYS_open_by_handle_at, libc::AT_FDCWD, handle.as_ptr(), libc::O_RDONLY) }
}

fn perf_event_open() -> libc::c_long {
    let mut attributes = [0_u32; PERF_ATTR_SIZE / 4];
    // A software clock, of this thread alone.
    attributes[0] = 1;
    attributes[1] = u32::try_from(PERF_ATTR_SIZE).unwrap_or(0);
    // SAFETY: attributes of the size they name.
    unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0) }
}

fn raw(name: &str, make: impl FnOnce() -> libc::c_long) -> Outcome {
    let result = make();
    let outcome = if result >= 0 {
        if name != "keyctl" {
            // SAFETY: the descriptor the call just gave, which nothing owns.
            unsafe { libc::close(i32::try_from(result).unwrap_or(-1)) };
        }
        Outcome::allowed(format!("{name} went through"))
    } else {
        let error = io::Error::last_os_error();
        let detail = format!("{name}: {}", words(&error));
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Outcome::refused(detail),
            Some(libc::ENOSYS) => Outcome::inconclusive(format!("{detail}, this kernel does not have it")),
            _ => Outcome::allowed(format!("{detail}, so the kernel was reached")),
        }
    };
    // SAFETY: no arguments.
    let permitted =
        if unsafe { libc::syscall(libc::SYS_getppid) } >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    outcome.controlled("getppid", permitted)
}
