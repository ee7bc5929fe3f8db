//! What every `mur` process does first, single-threaded, before a runtime or a logger exists.

#![allow(unsafe_code)]

/// Makes the process non-dumpable and every inherited descriptor above stderr close-on-exec, so that a member, worker
/// or tool keeps none of them. Says on stderr when it cannot.
pub fn harden() {
    // SAFETY: prctl with plain integers.
    if unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) } != 0 {
        crate::diagnostics::output::stderr_line("[mur] note: this process could not make itself non-dumpable");
    }
    close_on_exec_all();
}

/// Lets a write past `RLIMIT_FSIZE` fail with `EFBIG`, as a write to a full disk fails, instead of ending the process
/// without a word. What is started from here gets every signal's default action back.
pub fn ignore_file_size_signal() {
    // SAFETY: setting a disposition to "ignore" runs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Makes every descriptor above stderr close-on-exec.
pub fn close_on_exec_all() {
    // SAFETY: close_range with the close-on-exec flag closes nothing now.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result != 0 {
        close_on_exec_one_by_one();
    }
}

/// For kernels before 5.11.
fn close_on_exec_one_by_one() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    for number in entries.flatten().filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok()) {
        if number > 2 {
            // SAFETY: setting a flag on any number is defined; a closed one answers EBADF.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// Asks the kernel to send SIGKILL when the parent thread ends: a belt; the guarantee is the lifeline.
pub fn die_with_parent() {
    // SAFETY: prctl with plain integers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
}
