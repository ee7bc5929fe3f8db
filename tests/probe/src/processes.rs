//! Attempts on other processes: reading them, tracing them, signalling them. Only signal 0 is ever sent.

use std::fs::File;
use std::io::{self, Read};

use crate::outcome::{Outcome, all, words};
use crate::plan::Plan;

pub(crate) fn attempt(case: &str, plan: &Plan) -> Option<Outcome> {
    (case == "worker-peek-mur").then(|| peek(plan))
}

fn peek(plan: &Plan) -> Outcome {
    let pids: Vec<i32> = plan.all("peek").filter_map(|text| text.parse().ok()).collect();
    if pids.is_empty() {
        return Outcome::inconclusive("the plan names no process");
    }
    all(pids.into_iter().flat_map(on_process)).controlled("kill(itself, 0)", own_signal())
}

fn own_signal() -> io::Result<()> {
    // SAFETY: signal 0 to this process.
    crate::files::call(|| unsafe { libc::kill(libc::getpid(), 0) })
}

fn on_process(pid: i32) -> Vec<Outcome> {
    let mut found = vec![
        // SAFETY: signal 0 is not delivered.
        by_call(pid, "kill", i64::from(unsafe { libc::kill(pid, 0) })),
        by_call(pid, "ptrace", attach(pid)),
        by_call(pid, "process_vm_readv", read_memory(pid)),
    ];
    found.extend(["mem", "environ", "maps"].map(|file| by_file(pid, file)));
    found
}

fn attach(pid: i32) -> i64 {
    const PTRACE_SEIZE: libc::c_uint = 0x4206;
    // SAFETY: seizing stops nothing; a tracee is let go at once.
    let result = unsafe { libc::ptrace(PTRACE_SEIZE, pid, 0, 0) };
    if result == 0 {
        // SAFETY: as above.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0) };
    }
    result
}

fn read_memory(pid: i32) -> i64 {
    let mut here = [0_u8; 8];
    // Where a program of this machine is likely to have something; EFAULT says that it was looked for.
    let there = std::ptr::from_ref(&crate::MARKER).cast_mut().cast::<libc::c_void>();
    let local = libc::iovec { iov_base: here.as_mut_ptr().cast(), iov_len: here.len() };
    let remote = libc::iovec { iov_base: there, iov_len: 8 };
    // SAFETY: one buffer of our own; the other address is not ours and is only named.
    let result = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    let reached = result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
    if reached { 0 } else { result as i64 }
}

fn by_call(pid: i32, call: &str, result: i64) -> Outcome {
    if result >= 0 {
        return Outcome::allowed(format!("{call}({pid}) went through"));
    }
    let error = io::Error::last_os_error();
    let detail = format!("{call}({pid}): {}", words(&error));
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ESRCH) => Outcome::refused(detail),
        _ => Outcome::inconclusive(detail),
    }
}

fn by_file(pid: i32, file: &str) -> Outcome {
    let path = format!("/proc/{pid}/{file}");
    let read = File::open(&path).and_then(|mut file| {
        let mut first = [0; 1];
        match file.read(&mut first) {
            // The first page is mapped nowhere: that the file was opened is what counts.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(0),
            other => other,
        }
    });
    crate::outcome::judge(&format!("open({path})"), read, true)
}
