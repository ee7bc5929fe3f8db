//! A launcher that is stopped exactly where a test wants it: at a system call, or at the birth or the exec of a child.
//!
//! By ptrace, so that no stage is met by luck. The thread that starts a [`Traced`] has to be the one that uses it.

#![allow(clippy::disallowed_methods, reason = "suites start the binary under test with the standard library")]
#![allow(unsafe_code, reason = "ptrace has no safe face for all of this")]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use libc::{c_int, c_long, c_void};

/// A stopped process under the tracer.
pub struct Traced {
    child: Child,
    options: c_long,
}

/// What a stop is.
enum Stop {
    Call,
    Signal(c_int),
    Event(c_int),
    Gone,
}

impl Traced {
    /// Starts a command, whose output goes nowhere, and stops it before its first instruction.
    #[track_caller]
    pub fn start(command: Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    /// The same with another standard error.
    #[track_caller]
    pub fn start_with(mut command: Command, stderr: Stdio) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        // SAFETY: ptrace(TRACEME) between fork and exec touches nothing of this process.
        unsafe {
            command.pre_exec(|| request(libc::PTRACE_TRACEME, 0, 0, 0).map(drop));
        }
        let child = command.spawn().expect("mur starts");
        let traced = Self { child, options: c_long::from(libc::PTRACE_O_TRACESYSGOOD) };
        assert!(matches!(wait(traced.pid()), Stop::Signal(libc::SIGTRAP)), "it stops at its exec");
        traced.set_options();
        traced
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Runs it until it has made a system call that names a path like this; false when it ended before.
    #[track_caller]
    pub fn until_call_on(&self, wanted: impl Fn(&str) -> bool) -> bool {
        let mut entered = false;
        let mut matches = false;
        let mut signal = 0;
        loop {
            request(libc::PTRACE_SYSCALL, self.pid(), 0, signal.into()).expect("it goes on");
            signal = 0;
            match wait(self.pid()) {
                Stop::Call => {
                    entered = !entered;
                    if entered {
                        matches = self.paths().iter().any(|path| wanted(path));
                    } else if std::mem::take(&mut matches) {
                        return true;
                    }
                }
                Stop::Signal(number) => signal = number,
                Stop::Event(_) => {}
                Stop::Gone => return false,
            }
        }
    }

    /// Runs it until a child is born, and returns the child, stopped before its first instruction.
    #[track_caller]
    pub fn until_birth(&mut self) -> Newborn {
        self.options |= c_long::from(libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK);
        self.set_options();
        let mut signal = 0;
        loop {
            request(libc::PTRACE_CONT, self.pid(), 0, signal.into()).expect("it goes on");
            signal = 0;
            match wait(self.pid()) {
                Stop::Event(libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK) => {
                    let mut pid: c_long = 0;
                    let at = (&raw mut pid) as c_long;
                    request(libc::PTRACE_GETEVENTMSG, self.pid(), 0, at).expect("the child's pid");
                    let newborn = Newborn(i32::try_from(pid).expect("a pid"));
                    assert!(matches!(wait(newborn.0), Stop::Signal(libc::SIGSTOP) | Stop::Event(_)), "it is stopped");
                    return newborn;
                }
                Stop::Signal(number) => signal = number,
                Stop::Call | Stop::Event(_) => {}
                Stop::Gone => panic!("it ended before a child was born"),
            }
        }
    }

    /// Kills it where it is.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lets it run on, no longer traced, and waits for its end.
    pub fn let_go(mut self) -> std::process::ExitStatus {
        let _ = request(libc::PTRACE_DETACH, self.pid(), 0, 0);
        self.child.wait().expect("it ends")
    }

    fn set_options(&self) {
        request(libc::PTRACE_SETOPTIONS, self.pid(), 0, self.options).expect("options are set");
    }

    /// What the arguments of the call it enters point at, where that is text.
    fn paths(&self) -> Vec<String> {
        // SAFETY: plain data for which all zeroes is a value.
        let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
        let size = c_long::try_from(std::mem::size_of_val(&info)).expect("a size");
        let at = (&raw mut info) as c_long;
        if request(libc::PTRACE_GET_SYSCALL_INFO, self.pid(), size, at).is_err()
            || info.op != libc::PTRACE_SYSCALL_INFO_ENTRY
        {
            return Vec::new();
        }
        // SAFETY: `op` says that the kernel filled this variant.
        let arguments = unsafe { info.u.entry.args };
        arguments.iter().take(4).filter_map(|address| self.text_at(*address)).collect()
    }

    /// Text of at most 1,024 bytes, read page by page: what lies behind its last page may not be mapped.
    fn text_at(&self, address: u64) -> Option<String> {
        let mut text = Vec::new();
        while text.len() < 1024 {
            let at = address + text.len() as u64;
            let mut page = [0_u8; 4096];
            let room = usize::try_from(4096 - (at % 4096)).ok()?;
            let local = libc::iovec { iov_base: page.as_mut_ptr().cast(), iov_len: room };
            let remote = libc::iovec { iov_base: usize::try_from(at).ok()? as *mut c_void, iov_len: room };
            // SAFETY: the local buffer outlives the call; the kernel checks the remote address.
            let read = unsafe { libc::process_vm_readv(self.pid(), &raw const local, 1, &raw const remote, 1, 0) };
            let read = usize::try_from(read).ok()?;
            if let Some(end) = page[..read].iter().position(|byte| *byte == 0) {
                text.extend_from_slice(&page[..end]);
                return String::from_utf8(text).ok();
            }
            text.extend_from_slice(&page[..read]);
        }
        None
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One thread of a process, held where it is while the others run.
pub struct HeldThread(i32);

impl HeldThread {
    /// Holds a process's first thread. It is let go by [`HeldThread::let_go`], its process's end or that of the calling
    /// thread.
    #[track_caller]
    pub fn first_of(pid: i32) -> Self {
        request(libc::PTRACE_SEIZE, pid, 0, 0).expect("it is traced");
        request(libc::PTRACE_INTERRUPT, pid, 0, 0).expect("it is interrupted");
        assert!(!matches!(wait(pid), Stop::Gone), "it is stopped");
        Self(pid)
    }

    /// Lets it run on.
    pub fn let_go(self) {
        let _ = request(libc::PTRACE_DETACH, self.0, 0, 0);
    }
}

/// A child that has not run yet.
pub struct Newborn(i32);

impl Newborn {
    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.0
    }

    /// Runs it to its exec, and stops it before the first instruction of the new program.
    #[track_caller]
    pub fn until_exec(&self) {
        let options = c_long::from(libc::PTRACE_O_TRACEEXEC);
        request(libc::PTRACE_SETOPTIONS, self.0, 0, options).expect("options are set");
        let mut signal = 0;
        loop {
            request(libc::PTRACE_CONT, self.0, 0, signal.into()).expect("it goes on");
            signal = 0;
            match wait(self.0) {
                Stop::Event(libc::PTRACE_EVENT_EXEC) => return,
                Stop::Signal(number) => signal = number,
                Stop::Call | Stop::Event(_) => {}
                Stop::Gone => panic!("it ended before its exec"),
            }
        }
    }

    /// Lets it run.
    pub fn let_go(self) {
        let _ = request(libc::PTRACE_DETACH, self.0, 0, 0);
    }
}

fn request(what: libc::c_uint, pid: i32, address: c_long, data: c_long) -> io::Result<c_long> {
    // SAFETY: addresses passed here are of values that outlive the call, or plain numbers.
    let result = unsafe { libc::ptrace(what, pid, address as *mut c_void, data as *mut c_void) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn wait(pid: i32) -> Stop {
    let mut status = 0;
    loop {
        // SAFETY: `status` outlives the call.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) } == pid {
            break;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Stop::Gone;
        }
    }
    if !libc::WIFSTOPPED(status) {
        return Stop::Gone;
    }
    match (libc::WSTOPSIG(status), status >> 16) {
        (signal, 0) if signal == libc::SIGTRAP | 0x80 => Stop::Call,
        (libc::SIGTRAP, event) if event != 0 => Stop::Event(event),
        (signal, _) => Stop::Signal(signal),
    }
}
