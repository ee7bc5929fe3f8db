//! The server of commands: one process, already in scope, namespaces, mounts and filter, that forks what the session asks
//! for. It stays outside the process namespace, where no command can name it, and ends with its connection.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use mur_plugin_api::{CommandRequest, ProcessLimits};

use crate::children::Children;
use crate::command::{self, Failed, Words};
use crate::entry::{Entering, Entry};
use crate::sequence::of_server;
use crate::step::{StepError, check, run};
use crate::{Tier, pass, process};

/// How long a server has to end its commands and itself before its scope is killed.
const ENDING: Duration = Duration::from_secs(2);

/// A server, as the enclosure holds it.
#[derive(Debug)]
pub(crate) struct Server {
    pid: libc::pid_t,
    pidfd: OwnedFd,
    socket: Option<OwnedFd>,
}

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It runs.
    Started(libc::pid_t),
    /// The program could not be executed.
    Program(i32),
    /// A step of its confinement failed.
    Step(StepError),
    /// The server has ended.
    Gone,
}

impl Server {
    /// Forks the server. It has entered everything when this returns.
    pub(crate) fn start(
        tier: Tier,
        entry: &Entry,
        shared: &[BorrowedFd<'_>],
        ruleset: Option<&OwnedFd>,
    ) -> Result<Self, StepError> {
        let starting = |error: io::Error| StepError::new("starting the server of commands", error);
        let (ours, theirs) = pass::pair().map_err(starting)?;
        let parent = i32::try_from(std::process::id()).unwrap_or_default();
        let pid = process::fork().map_err(starting)?;
        if pid == 0 {
            drop(ours);
            let fds: Vec<RawFd> =
                shared.iter().map(AsRawFd::as_raw_fd).chain(ruleset.map(AsRawFd::as_raw_fd)).collect();
            let body = || be_server(tier, entry, fds, ruleset, &theirs, parent);
            // Nothing may return into a copy of the enclosure.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            process::leave(1);
        }
        drop(theirs);
        // SAFETY: plain integers; the child has not been reaped, so the number is its own.
        let pidfd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }).map_err(starting)?;
        // SAFETY: the kernel has just made this descriptor.
        let pidfd = unsafe { OwnedFd::from_raw_fd(i32::try_from(pidfd).unwrap_or(-1)) };
        let server = Self { pid, pidfd, socket: Some(ours) };
        match server.answer() {
            Answer::Started(_) => Ok(server),
            Answer::Step(error) => Err(error),
            Answer::Program(number) => Err(starting(io::Error::from_raw_os_error(number))),
            Answer::Gone => Err(starting(io::Error::from_raw_os_error(libc::ECHILD))),
        }
    }

    /// Has a command started.
    pub(crate) fn spawn(&self, command: &[u8], fds: &[BorrowedFd<'_>]) -> Answer {
        match &self.socket {
            Some(socket) if pass::send(socket, command, fds).is_ok() => self.answer(),
            _ => Answer::Gone,
        }
    }

    /// Becomes readable when the server has ended.
    pub(crate) fn pidfd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }

    fn answer(&self) -> Answer {
        match self.socket.as_ref().map(pass::receive) {
            Some(Ok(Some((bytes, _)))) => read_answer(&bytes),
            _ => Answer::Gone,
        }
    }
}

impl Drop for Server {
    /// At the end of its connection it ends its commands and reaps them, which nobody else could.
    fn drop(&mut self) {
        drop(self.socket.take());
        let mut wait = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let millis = i32::try_from(ENDING.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one valid structure.
        unsafe { libc::poll(&raw mut wait, 1, millis) };
        process::kill(self.pid);
    }
}

pub(crate) fn read_answer(bytes: &[u8]) -> Answer {
    let Some(([kind, number @ ..], step)) = bytes.split_first_chunk::<5>() else { return Answer::Gone };
    let number = i32::from_ne_bytes(*number);
    match kind {
        0 => Answer::Started(number),
        1 => Answer::Program(number),
        _ => {
            let text = String::from_utf8_lossy(step);
            let (step, why) = text.split_once('\n').unwrap_or((&text, "it failed"));
            let error = match number {
                0 => io::Error::other(why.to_owned()),
                number => io::Error::from_raw_os_error(number),
            };
            Answer::Step(StepError::new(step, error))
        }
    }
}

pub(crate) fn answered(answer: &Answer) -> Vec<u8> {
    let (kind, number, text) = match answer {
        Answer::Started(pid) => (0, *pid, String::new()),
        Answer::Program(number) => (1, *number, String::new()),
        Answer::Step(error) => (2, error.errno(), format!("{}\n{}", error.step, error.error)),
        Answer::Gone => (2, libc::ECHILD, "starting the server of commands".to_owned()),
    };
    [&[kind][..], &i32::to_ne_bytes(number), text.as_bytes()].concat()
}

/// In the child.
fn be_server(
    tier: Tier,
    entry: &Entry,
    fds: Vec<RawFd>,
    ruleset: Option<&OwnedFd>,
    socket: &OwnedFd,
    parent: libc::pid_t,
) {
    // Leaked, as the process is confined by them to its end.
    let (entry, fds): (&'static Entry, &'static [RawFd]) = (Box::leak(Box::new(entry.clone())), fds.leak());
    let entered = Entering::new(entry, fds)
        .ok_or_else(|| StepError::new("the profile", io::Error::from_raw_os_error(libc::EINVAL)))
        .and_then(|mut entering| {
            entering.parent = parent;
            entering.kept = [Some(socket.as_raw_fd()), ruleset.map(AsRawFd::as_raw_fd)].into_iter().flatten().collect();
            run(of_server(tier), &mut entering)
        });
    let entered = match entered {
        Ok(absent) => match absent.first() {
            None => Answer::Started(0),
            Some(step) => Answer::Step(StepError::new(*step, io::Error::other("this kernel does not have it"))),
        },
        Err(error) => Answer::Step(error),
    };
    if pass::send(socket, &answered(&entered), &[]).is_ok() && matches!(entered, Answer::Started(_)) {
        serve(tier, &entry.limits, ruleset, socket);
    }
}

/// Until the connection ends.
fn serve(tier: Tier, limits: &ProcessLimits, ruleset: Option<&OwnedFd>, socket: &OwnedFd) {
    let mut children = Children::default();
    loop {
        let own = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut waits: Vec<libc::pollfd> = std::iter::once(own).chain(children.waits()).collect();
        // SAFETY: as many valid structures as are counted.
        let ready = unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, -1) };
        if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break;
        }
        if waits[0].revents != 0 {
            let Ok(Some((request, fds))) = pass::receive(socket) else { break };
            let answer = start(tier, limits, ruleset, &request, fds, &mut children);
            if pass::send(socket, &answered(&answer), &[]).is_err() {
                break;
            }
        }
        children.serve();
    }
    children.end();
}

fn start(
    tier: Tier,
    limits: &ProcessLimits,
    ruleset: Option<&OwnedFd>,
    request: &[u8],
    mut fds: Vec<OwnedFd>,
    children: &mut Children,
) -> Answer {
    let invalid = |what: &str| Answer::Step(StepError::new("reading the request", io::Error::other(what.to_owned())));
    let control = fds.pop();
    let (Some(control), Some(stdio)) = (control, command::numbers(&fds)) else {
        return invalid("its descriptors did not come");
    };
    let request: CommandRequest = match serde_json::from_slice(request) {
        Ok(request) => request,
        Err(error) => return invalid(&error.to_string()),
    };
    let Ok(words) = Words::new(&request) else { return Answer::Program(libc::EINVAL) };
    match command::start(command::of_command(tier), &words, stdio, ruleset, limits) {
        Ok(pid) => match children.add(pid, control) {
            Ok(()) => Answer::Started(pid),
            Err(error) => {
                // SAFETY: the group of a child that has not been reaped.
                unsafe { libc::kill(-pid, libc::SIGKILL) };
                process::kill(pid);
                Answer::Step(StepError::new("pidfd_open", error))
            }
        },
        Err(Failed::Program(number)) => Answer::Program(number),
        Err(Failed::Step(error)) => Answer::Step(error),
    }
}
