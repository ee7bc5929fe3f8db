//! Commands whose root and process namespace a program makes: how that program is started, what the first process inside it
//! does, and how the enclosure learns of both.
//!
//! Inside there are two processes beside the command: the first of the process namespace, which waits until nothing is left
//! there, and its child, which waits for the command and is its parent.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

use mur_plugin_api::{CommandRequest, ErrorKind, PluginError, ProcessLimits};
use serde::{Deserialize, Serialize};

use crate::children::Children;
use crate::command::{self, Failed, INSIDE_COMMAND, Words};
use crate::enclosure::failed;
use crate::entry::{Entering, Entry};
use crate::sequence::{self, INSIDE_PROGRAM, OUTSIDE_PROGRAM};
use crate::server::{Answer, answered, read_answer};
use crate::step::{StepError, check};
use crate::{pass, process};

/// Where the program and what it starts find the connection to the enclosure.
pub const CONNECTION: RawFd = 3;
/// Where they find `mur`, which the program executes by this number: it need not be in the root.
pub const EXECUTABLE: RawFd = 4;
/// Descriptors that a prefix names are at or above this number.
pub const NAMED: RawFd = 10;

/// Where descriptors wait for their numbers; far above what this process has open.
const ASIDE: RawFd = 500;

/// How long what is inside one program has to end once it was killed.
const ENDING: Duration = Duration::from_secs(2);

/// A profile's bytes, for the one side of the program or the other.
#[derive(Debug, Serialize, Deserialize)]
pub enum Side {
    /// Before the process becomes the program.
    Outside(Entry),
    /// In the first process inside.
    Inside(Entry),
}

impl Side {
    /// Enters it. The process is single-threaded.
    pub fn enter(self, fds: &[i32]) -> Result<(), PluginError> {
        let (steps, entry) = match self {
            Self::Outside(entry) => (OUTSIDE_PROGRAM, entry),
            Self::Inside(entry) => (INSIDE_PROGRAM, entry),
        };
        if !entry.namespaces || entry.scope == 0 || !entry.landlock || entry.root.is_none() {
            return Err(PluginError::new(ErrorKind::Invalid, "the profile is none of class 'sealed'"));
        }
        // Leaked, as the process is confined by them to its end.
        let (entry, fds): (&'static Entry, &'static [i32]) = (Box::leak(Box::new(entry)), fds.to_vec().leak());
        let entering = Entering::new(entry, fds)
            .ok_or_else(|| PluginError::new(ErrorKind::Invalid, "the profile and its descriptors do not match"))?;
        let absent = sequence::enter(steps, entering).map_err(|error| failed(&error))?;
        match absent.first() {
            None => Ok(()),
            Some(step) => Err(PluginError::new(ErrorKind::Failed, format!("{step}: this kernel does not have it"))),
        }
    }
}

/// A program that was started and has not been reaped.
#[derive(Debug)]
pub struct Program {
    pid: libc::pid_t,
    /// Of the first process inside, once it has said that the command runs.
    first: Option<OwnedFd>,
}

impl Program {
    /// Forks the process that becomes the program: `enter` confines it first, `words` are the program and its arguments,
    /// `executable` and `connection` are what it finds as [`EXECUTABLE`] and [`CONNECTION`], `says` is its output.
    pub fn start(
        words: &[Vec<u8>],
        enter: impl FnOnce() -> Result<(), String>,
        executable: OwnedFd,
        connection: OwnedFd,
        says: OwnedFd,
    ) -> io::Result<Self> {
        let words: Vec<CString> = words.iter().cloned().map(CString::new).collect::<Result<_, _>>()?;
        let null = OwnedFd::from(File::open("/dev/null")?);
        let pid = process::fork()?;
        if pid == 0 {
            let why = match enter() {
                Ok(()) => {
                    let error = become_program(&words, [&null, &says, &says, &connection, &executable]);
                    format!("executing the program failed with {error}")
                }
                Err(why) => why,
            };
            if !refuse_in_words(&connection, &why) {
                let _ = nix::unistd::write(&says, why.as_bytes());
            }
            process::leave(125);
        }
        Ok(Self { pid, first: None })
    }

    /// Whether it has ended; then it is reaped and is to be dropped.
    pub fn has_ended(&self) -> bool {
        // SAFETY: a child that has not been reaped, and no status asked for.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) != 0 }
    }

    /// Waits for its end: whether it was a success.
    pub fn succeeds(self) -> bool {
        let ended = process::reap(self.pid);
        // SAFETY: waitid has filled in a child's end.
        ended.is_ok_and(|info| info.si_code == libc::CLD_EXITED && unsafe { info.si_status() } == 0)
    }

    /// Ends everything inside, then the program, and reaps it.
    pub fn end(self) {
        if let Some(first) = &self.first {
            // SAFETY: plain integers, no information beside the signal.
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, first.as_raw_fd(), libc::SIGKILL, 0_usize, 0) };
            // The program reaps it, which nobody else in the session could, and ends.
            let until = std::time::Instant::now() + ENDING;
            while std::time::Instant::now() < until {
                if self.has_ended() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        process::kill(self.pid);
    }

    /// Waits until there is something to read, or the program has ended without it.
    fn speaks(&self, connection: &OwnedFd) -> bool {
        let Ok(own) = pidfd(self.pid) else { return true };
        let wait = |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            let mut waits = [wait(connection), wait(&own)];
            // SAFETY: two valid structures.
            if unsafe { libc::poll(waits.as_mut_ptr(), 2, -1) } > 0 {
                return waits[0].revents != 0;
            }
        }
    }

    /// Waits until the command runs: its number. Otherwise nothing of it is left.
    pub fn started(&mut self, connection: &OwnedFd) -> Outcome {
        // What is half made inside may hold the connection after the program's own end.
        if !self.speaks(connection) {
            return Outcome::Silent;
        }
        match pass::receive(connection) {
            Ok(Some((bytes, _))) if bytes.first() == Some(&3) => {
                Outcome::Step(String::from_utf8_lossy(bytes.get(5..).unwrap_or_default()).into_owned())
            }
            Ok(Some((bytes, fds))) => match (read_answer(&bytes), <[OwnedFd; 2]>::try_from(fds)) {
                (Answer::Started(_), Ok([first, command])) => {
                    self.first = Some(first);
                    number_of(&command).map_or(Outcome::Silent, Outcome::Started)
                }
                (Answer::Program(errno), _) => Outcome::Program(errno),
                (Answer::Step(error), _) => Outcome::Step(error.to_string()),
                _ => Outcome::Silent,
            },
            _ => Outcome::Silent,
        }
    }
}

/// What became of a command.
#[derive(Debug)]
pub enum Outcome {
    /// It runs, under this number of the host's.
    Started(i32),
    /// The program of the command could not be executed.
    Program(i32),
    /// A step failed.
    Step(String),
    /// Nothing was said; the program may have.
    Silent,
}

/// The number, in this process's namespace, of a process.
fn number_of(pidfd: &OwnedFd) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok().filter(|number| *number > 0)
}

/// Returns only why not.
fn become_program(words: &[CString], fds: [&OwnedFd; 5]) -> io::Error {
    // Out of the way of the numbers they get, and of those that the arguments name.
    for (number, fd) in (0..).zip(fds) {
        // SAFETY: plain integers; the copy is above every number of a descriptor that is named.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, ASIDE + number) } != ASIDE + number {
            return io::Error::from_raw_os_error(libc::EMFILE);
        }
    }
    for number in 0..5 {
        // SAFETY: plain integers; whatever had the number belongs to a process that ends with this exec.
        if unsafe { libc::dup2(ASIDE + number, number) } < 0 {
            return io::Error::last_os_error();
        }
    }
    let pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
    // SAFETY: terminated strings and arrays that end with a null pointer, all of which outlive the call.
    unsafe { libc::execve(pointers[0], pointers.as_ptr(), [std::ptr::null()].as_ptr()) };
    io::Error::last_os_error()
}

/// Says over the connection why nothing was started.
pub fn refuse(connection: &OwnedFd, step: &str, why: &str) {
    let error = StepError::new(step, io::Error::other(why.to_owned()));
    let _ = pass::send(connection, &answered(&Answer::Step(error)), &[]);
}

/// The same, where the words name the step already. Whether it could be said.
pub fn refuse_in_words(connection: &OwnedFd, why: &str) -> bool {
    pass::send(connection, &[&[3][..], &0_i32.to_ne_bytes(), why.as_bytes()].concat(), &[]).is_ok()
}

/// In the first process inside, which has entered the profile: starts the command, and ends when nothing is left. `stdio`
/// and `control` are as for [`Enclosure::spawn`](mur_plugin_api::Enclosure::spawn).
pub fn run(command: &CommandRequest, stdio: [OwnedFd; 3], control: OwnedFd, connection: OwnedFd) -> ! {
    match process::fork() {
        Ok(0) => {
            supervise(command, stdio, control, connection);
            process::leave(0);
        }
        Ok(_) => {}
        Err(error) => {
            let _ = pass::send(&connection, &answered(&Answer::Step(StepError::new("fork", error))), &[]);
            process::leave(1);
        }
    }
    let _ = process::close_all_but(&[]);
    let _ = silence();
    loop {
        // SAFETY: no status is asked for.
        let reaped = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL) };
        if reaped < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            process::leave(0);
        }
    }
}

/// Standard output and error are where input is: nowhere.
fn silence() -> io::Result<()> {
    for number in [1, 2] {
        // SAFETY: plain integers.
        check(unsafe { libc::dup2(0, number) })?;
    }
    Ok(())
}

fn supervise(command: &CommandRequest, stdio: [OwnedFd; 3], control: OwnedFd, connection: OwnedFd) {
    let say = |answer: &Answer| drop(pass::send(&connection, &answered(answer), &[]));
    let kept: Vec<RawFd> = stdio.iter().chain([&control, &connection]).map(AsRawFd::as_raw_fd).collect();
    if let Err(error) = process::close_all_but(&kept).map(drop).and_then(|()| silence()) {
        return say(&Answer::Step(StepError::new("descriptors", error)));
    }
    let Ok(words) = Words::new(command) else { return say(&Answer::Program(libc::EINVAL)) };
    let Some(numbers) = command::numbers(&stdio) else { return say(&Answer::Program(libc::EBADF)) };
    let unused = ProcessLimits { open_files: 0, file_size: 0, cpu_seconds: None, address_space: None };
    let pid = match command::start(INSIDE_COMMAND, &words, numbers, None, &unused) {
        Ok(pid) => pid,
        Err(Failed::Program(number)) => return say(&Answer::Program(number)),
        Err(Failed::Step(error)) => return say(&Answer::Step(error)),
    };
    drop(stdio);
    let mut children = Children::default();
    let told = pidfd(1).and_then(|first| Ok((first, pidfd(pid)?))).and_then(|(first, own)| {
        children.add(pid, control)?;
        pass::send(&connection, &answered(&Answer::Started(pid)), &[first.as_fd(), own.as_fd()])
    });
    if let Err(error) = told {
        process::kill(pid);
        return say(&Answer::Step(StepError::new("telling of the command", error)));
    }
    drop(connection);
    loop {
        let mut waits: Vec<libc::pollfd> = children.waits().collect();
        if waits.is_empty() {
            return;
        }
        // SAFETY: as many valid structures as are counted.
        unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, -1) };
        children.serve();
    }
}

fn pidfd(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: plain integers.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}

/// Some text as a descriptor that a program inherits under its number.
pub fn text(text: &[u8]) -> io::Result<OwnedFd> {
    use std::io::{Seek, Write};
    let memory = nix::sys::memfd::memfd_create(c"text", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
    let mut file = File::from(memory);
    file.write_all(text)?;
    file.rewind()?;
    let file = OwnedFd::from(file);
    // SAFETY: plain integers; the result is a new descriptor.
    let fd = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, NAMED) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}

/// What a program said, without waiting.
pub fn said(pipe: OwnedFd) -> String {
    let mut text = Vec::new();
    let _ = nix::fcntl::fcntl(&pipe, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK));
    let _ = File::from(pipe).take(1024).read_to_end(&mut text);
    String::from_utf8_lossy(&text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The whole command line: a prefix, `mur` by its number, its hidden subcommand.
pub fn words_of(prefix: Vec<Vec<u8>>, args: &[&str]) -> Vec<Vec<u8>> {
    let mut words = prefix;
    words.push(format!("/proc/self/fd/{EXECUTABLE}").into_bytes());
    words.extend(["__enter"].iter().chain(args).map(|word| word.as_bytes().to_vec()));
    words
}

/// Descriptors' numbers, still owned.
pub fn given_to(fds: &[OwnedFd]) -> Vec<RawFd> {
    fds.iter().map(AsRawFd::as_raw_fd).collect()
}

/// A descriptor's number, no longer owned here.
pub fn given(fds: Vec<OwnedFd>) -> Vec<RawFd> {
    fds.into_iter().map(IntoRawFd::into_raw_fd).collect()
}
