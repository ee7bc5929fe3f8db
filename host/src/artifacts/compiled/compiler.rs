//! Running `mur __compile`: one confined process a component, bounded in time and memory.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;

use super::super::compile::{COMPONENT_FD, OUTPUT_FD, UNWRITTEN};
use super::super::level::Interfaces;
use super::super::name::Digest;
use super::CompiledForm;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::process::{Child, Exit, Spawn, Stream};
use crate::worker::engine::Reservation;

/// Longest one compilation may take by the clock. Its processor time has a bound of its own in the child.
pub(super) const DEADLINE: Duration = Duration::from_secs(300);

/// Most of the compiler's own account that is kept.
const MAX_ACCOUNT: usize = 4096;

/// `MFD_NOEXEC_SEAL`, which kernels before 6.3 answer with `EINVAL`.
const NOEXEC_SEAL: MFdFlags = MFdFlags::from_bits_retain(0x8);

/// Compiles into a sealed memory file, for a host whose cache cannot be used.
pub(super) fn into_memory(component: &[u8], name: &str) -> Result<CompiledForm> {
    let form = memory("mur-compiled").map_err(|error| failed(name, &format!("no memory file: {error}")))?;
    let output = form.try_clone().map_err(|error| failed(name, &error.to_string()))?;
    if let Written::Refused(account) = run(component, output.into(), name)? {
        return Err(failed(name, &format!("the compiled form cannot be written: {account}")));
    }
    let fault = |error: io::Error| failed(name, &format!("the compiled form cannot be read: {error}"));
    let mut form = seal(form).map_err(fault)?;
    let mut bytes = Vec::new();
    form.rewind().and_then(|()| form.read_to_end(&mut bytes)).map_err(fault)?;
    Ok(CompiledForm { fd: form.into(), digest: Digest::of(&bytes), interfaces: Interfaces::of(component) })
}

/// A sealed copy of a form that cannot be mapped where it lies.
pub(super) fn copy_to_memory(mut form: File) -> io::Result<OwnedFd> {
    let mut copy = memory("mur-compiled")?;
    io::copy(&mut form, &mut copy)?;
    Ok(seal(copy)?.into())
}

/// What became of machine code that was made.
pub(super) enum Written {
    /// It is in its place.
    Whole,
    /// The place did not take it (a full disk), in the system's words.
    Refused(String),
}

/// Compiles one component in a process of its own, which writes the machine code to `output`.
pub(super) fn run(component: &[u8], output: OwnedFd, name: &str) -> Result<Written> {
    let fault = |error: io::Error| failed(name, &format!("the compiler could not be started: {error}"));
    let mut input = memory("mur-component").map_err(fault)?;
    input.write_all(component).map_err(fault)?;
    let input = seal(input).map_err(fault)?;
    let child = Spawn::mur()
        .arg("__compile")
        .arg(Reservation::of_this_host().as_str())
        .cwd("/")
        .pass(input.into(), COMPONENT_FD)
        .pass(output, OUTPUT_FD)
        .stdio(Stream::Null, Stream::Null, Stream::Pipe)
        .own_group()
        .spawn()
        .map_err(fault)?;
    let (exit, account) = wait(child, DEADLINE).map_err(fault)?;
    match exit {
        Some(Exit::Status(0)) => Ok(Written::Whole),
        Some(Exit::Status(status)) if status == i32::from(UNWRITTEN) => Ok(Written::Refused(account)),
        Some(Exit::Status(1)) if !account.is_empty() => Err(failed(name, &account)),
        Some(exit) if account.is_empty() => Err(failed(name, &format!("the compiler ended with {exit}"))),
        Some(exit) => Err(failed(name, &format!("the compiler ended with {exit}: {account}"))),
        None => Err(failed(name, &format!("it took more than {} seconds", DEADLINE.as_secs()))),
    }
}

fn failed(name: &str, reason: &str) -> Diagnostic {
    Diagnostic::new(codes::E_RUN_001, format!("'{name}' could not be compiled: {reason}"))
        .hint("its payload must be a WASM component; rebuild the artifact, or install another version of it")
}

/// Waits for a child's end, reading what it says meanwhile; `None` when it had to be killed at the deadline.
fn wait(mut child: Child, within: Duration) -> io::Result<(Option<Exit>, String)> {
    let end = Instant::now() + within;
    let mut said = child.stderr.take().map(File::from);
    let mut account = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let _ = child.pidfd.signal(Signal::SIGKILL);
            child.pidfd.reap()?;
            return Ok((None, shown(&account)));
        }
        let timeout = PollTimeout::try_from(left.min(Duration::from_secs(60))).unwrap_or(PollTimeout::MAX);
        let mut watched = vec![PollFd::new(child.pidfd.as_fd(), PollFlags::POLLIN)];
        watched.extend(said.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        match poll(&mut watched, timeout) {
            Err(nix::errno::Errno::EINTR) | Ok(0) => continue,
            Err(error) => return Err(error.into()),
            Ok(_) => {}
        }
        let (ended, readable) = (watched[0].any() == Some(true), watched.get(1).and_then(PollFd::any) == Some(true));
        if readable {
            let mut chunk = [0; 1024];
            match said.as_mut().map(|pipe| pipe.read(&mut chunk)) {
                // Everything is read so that the child never blocks; what is past the bound is dropped.
                Some(Ok(read)) if read > 0 => {
                    account.extend(&chunk[..read.min(MAX_ACCOUNT - account.len().min(MAX_ACCOUNT))]);
                }
                _ => said = None,
            }
        } else if ended {
            return Ok((Some(child.pidfd.reap()?), shown(&account)));
        }
    }
}

/// The compiler's account as part of a message: one line.
fn shown(account: &[u8]) -> String {
    let text = String::from_utf8_lossy(account);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A new memory file that can be sealed and never executed as a program.
fn memory(name: &str) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = match memfd_create(name, flags | NOEXEC_SEAL) {
        Err(nix::errno::Errno::EINVAL) => memfd_create(name, flags),
        other => other,
    };
    Ok(fd?.into())
}

/// Ends all writing to a memory file and gives a read-only descriptor of it, at its start.
fn seal(file: File) -> io::Result<File> {
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    match File::open(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        Ok(read_only) => Ok(read_only),
        // Without /proc the sealed descriptor itself serves: it can be written no more.
        Err(_) => {
            let mut file = file;
            file.rewind()?;
            Ok(file)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_memory_file_reads_from_its_start_and_is_written_no_more() {
        let mut file = memory("t").unwrap();
        file.write_all(b"component").unwrap();
        let mut sealed = seal(file).unwrap();
        let mut text = String::new();
        sealed.read_to_string(&mut text).unwrap();
        assert_eq!(text, "component");
        assert!(sealed.write_all(b"x").is_err());
    }

    fn shell(script: &str) -> Child {
        Spawn::program("/bin/sh").args(["-c", script]).stdio(Stream::Null, Stream::Null, Stream::Pipe).spawn().unwrap()
    }

    #[test]
    fn a_child_that_says_much_is_read_to_its_end_and_cut() {
        let script = "i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789 >&2; i=$((i+1)); done; exit 1";
        let (exit, account) = wait(shell(script), Duration::from_secs(60)).unwrap();
        assert_eq!(exit, Some(Exit::Status(1)));
        assert!(account.len() <= MAX_ACCOUNT);
    }

    #[test]
    fn a_child_past_its_deadline_is_killed() {
        let (exit, _) = wait(shell("exec sleep 600"), Duration::from_millis(30)).unwrap();
        assert_eq!(exit, None);
    }
}
