//! The launcher's side: starts `mur __admit`, hands it the roster, and waits for its answer without trusting it to come.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::super::admission::Admitted;
use super::super::survey::Survey;
use super::{Answer, MAX_ANSWER, MAX_REQUEST, Request, frame};
use crate::artifacts::archive::CEILING_VARIABLE;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::process::{Child, Exit, Spawn, Stream};

/// Longest an admission may take. A store answers within its own deadline; this ends what does not keep to it.
const MAX_SECONDS: u64 = 120;

/// What begins a line of the child that says what it is about to do.
pub(super) const PROGRESS: &str = "admitting: ";

/// Most of the child's standard error that is kept: its end.
const MAX_ACCOUNT: usize = 16 << 10;

/// Admits a roster in a process of its own.
///
/// # Errors
/// The diagnostic of admission; `E-ROS-007` naming what was being asked when the process died or overran.
pub fn admit_in_child(project: &Path, text: &[u8]) -> Result<Admitted> {
    match ask(child(), &Request::new(project, text, false), Duration::from_secs(MAX_SECONDS))? {
        Answer::Admitted(admitted) => Ok(admitted),
        Answer::Refused(refusal) => Err(refusal),
        Answer::Surveyed(_) => Err(no_answer("answered another question", "")),
    }
}

/// Looks at the whole of a roster in a process of its own, whether it is admitted or not.
///
/// # Errors
/// Checks 1 to 5, `E-IO-003` for a configuration that cannot be read, and as [`admit_in_child`] when no answer came.
pub fn survey_in_child(project: &Path, text: &[u8]) -> Result<Survey> {
    match ask(child(), &Request::new(project, text, true), Duration::from_secs(MAX_SECONDS))? {
        Answer::Surveyed(survey) => Ok(survey),
        Answer::Refused(refusal) => Err(refusal),
        Answer::Admitted(_) => Err(no_answer("answered another question", "")),
    }
}

fn child() -> Spawn {
    with_environment(Spawn::mur().arg("__admit").stdio(Stream::Pipe, Stream::Pipe, Stream::Pipe).cwd("/"))
}

/// The two variables admission reads; nothing else of the environment is its business.
fn with_environment(mut spawn: Spawn) -> Spawn {
    for name in ["HOME", CEILING_VARIABLE] {
        if let Some(value) = std::env::var_os(name) {
            spawn = spawn.env(name, value);
        }
    }
    spawn
}

fn ask(spawn: Spawn, request: &Request, bound: Duration) -> Result<Answer> {
    let could_not = |error: io::Error| {
        Diagnostic::new(
            codes::E_ROS_007,
            format!("roster.yaml: the process that admits it could not be started: {error}"),
        )
    };
    let request = serde_json::to_vec(request).map_err(|error| could_not(error.into()))?;
    if request.len() > MAX_REQUEST {
        return Err(could_not(io::Error::other("the roster is too large")));
    }
    let mut framed = Vec::with_capacity(request.len() + 4);
    frame::write(&mut framed, &request).map_err(could_not)?;
    drop(request);
    let child = spawn.spawn().map_err(could_not)?;
    let mut exchange = Exchange::new(child, framed, Instant::now() + bound);
    let outcome = exchange.run();
    exchange.finish(outcome)
}

/// Why no answer came.
enum Failure {
    Overran(Duration),
    Io(io::Error),
    /// End of file before a whole answer.
    Ended,
}

/// The pipes of one admission.
struct Exchange {
    child: Child,
    request: Vec<u8>,
    sent: usize,
    answer: Vec<u8>,
    account: Vec<u8>,
    started: Instant,
    deadline: Instant,
}

impl Exchange {
    fn new(child: Child, request: Vec<u8>, deadline: Instant) -> Self {
        let started = Instant::now();
        Self { child, request, sent: 0, answer: Vec::new(), account: Vec::new(), started, deadline }
    }

    /// Moves bytes until the answer is whole and its pipe closed.
    fn run(&mut self) -> std::result::Result<Vec<u8>, Failure> {
        for pipe in [&self.child.stdin, &self.child.stdout, &self.child.stderr].into_iter().flatten() {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| Failure::Io(errno.into()))?;
        }
        while self.child.stdout.is_some() || self.child.stderr.is_some() {
            let ready = self.wait()?;
            if ready[0] {
                self.send()?;
            }
            if ready[1] {
                self.receive()?;
            }
            if ready[2] {
                self.listen()?;
            }
        }
        let header: [u8; 4] = self.answer.get(..4).and_then(|b| b.try_into().ok()).ok_or(Failure::Ended)?;
        let length = frame::checked(header, MAX_ANSWER).map_err(Failure::Io)?;
        if self.answer.len() != length + 4 {
            return Err(Failure::Ended);
        }
        Ok(self.answer.split_off(4))
    }

    /// Waits for any pipe, at most until the deadline.
    fn wait(&self) -> std::result::Result<[bool; 3], Failure> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::Overran(self.started.elapsed()));
        }
        let pipes = [
            (&self.child.stdin, PollFlags::POLLOUT),
            (&self.child.stdout, PollFlags::POLLIN),
            (&self.child.stderr, PollFlags::POLLIN),
        ];
        let mut watched = Vec::with_capacity(3);
        let mut which = Vec::with_capacity(3);
        for (index, (pipe, flags)) in pipes.iter().enumerate() {
            if let Some(pipe) = pipe {
                watched.push(PollFd::new(pipe.as_fd(), *flags));
                which.push(index);
            }
        }
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut watched, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(Failure::Io(errno.into())),
        }
        let mut ready = [false; 3];
        for (fd, index) in watched.iter().zip(which) {
            ready[index] = fd.any().unwrap_or(false);
        }
        Ok(ready)
    }

    fn send(&mut self) -> std::result::Result<(), Failure> {
        let Some(pipe) = self.child.stdin.take() else { return Ok(()) };
        let mut pipe = std::fs::File::from(pipe);
        match pipe.write(&self.request[self.sent..]) {
            Ok(count) => self.sent += count,
            Err(error) if would_wait(&error) => {}
            // The child has closed its end: what it says on the others tells why.
            Err(_) => self.sent = self.request.len(),
        }
        if self.sent < self.request.len() {
            self.child.stdin = Some(OwnedFd::from(pipe));
        } else {
            self.request = Vec::new();
            self.sent = 0;
        }
        Ok(())
    }

    fn receive(&mut self) -> std::result::Result<(), Failure> {
        let open = read_some(&mut self.child.stdout, &mut self.answer)?;
        if self.answer.len() > MAX_ANSWER + 4 {
            return Err(Failure::Io(io::Error::other("its answer is too long")));
        }
        if !open {
            self.child.stdout = None;
        }
        Ok(())
    }

    fn listen(&mut self) -> std::result::Result<(), Failure> {
        let open = read_some(&mut self.child.stderr, &mut self.account)?;
        let surplus = self.account.len().saturating_sub(MAX_ACCOUNT);
        self.account.drain(..surplus);
        if !open {
            self.child.stderr = None;
        }
        Ok(())
    }

    /// Ends the child, whatever happened, and says what came of it.
    fn finish(self, outcome: std::result::Result<Vec<u8>, Failure>) -> Result<Answer> {
        if outcome.is_err() {
            let _ = self.child.pidfd.signal(Signal::SIGKILL);
        }
        let exit = self.child.pidfd.reap();
        let failure = match outcome {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(answer) => return Ok(answer),
                Err(error) => Failure::Io(error.into()),
            },
            Err(failure) => failure,
        };
        let how = match (failure, exit) {
            (Failure::Overran(time), _) => format!("took longer than {} s", time.as_secs()),
            (Failure::Ended, Ok(Exit::Status(status))) => format!("ended with status {status} before it answered"),
            (Failure::Ended, Ok(Exit::Signal(signal))) => format!("was ended by signal {signal} before it answered"),
            (Failure::Ended, Err(error)) | (Failure::Io(error), _) => format!("gave no answer: {error}"),
        };
        Err(no_answer(&how, &String::from_utf8_lossy(&self.account)))
    }
}

fn would_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Reads what is there; `false` at end of file.
fn read_some(pipe: &mut Option<OwnedFd>, into: &mut Vec<u8>) -> std::result::Result<bool, Failure> {
    let Some(fd) = pipe.take() else { return Ok(false) };
    let mut file = std::fs::File::from(fd);
    let mut buffer = vec![0; 64 << 10];
    let open = match file.read(&mut buffer) {
        Ok(count) => {
            into.extend_from_slice(&buffer[..count]);
            count > 0
        }
        Err(error) if would_wait(&error) => true,
        Err(error) => return Err(Failure::Io(error)),
    };
    *pipe = Some(OwnedFd::from(file));
    Ok(open)
}

/// Most lines of the child's own words that a message repeats.
const MAX_LINES: usize = 8;

fn no_answer(how: &str, account: &str) -> Diagnostic {
    let doing = account.lines().filter_map(|line| line.strip_prefix(PROGRESS)).next_back();
    let mut message = match doing {
        Some(doing) => format!("roster.yaml: {doing}: the process that asks the stores {how}"),
        None => format!("roster.yaml: the process that admits it {how}"),
    };
    let words: Vec<&str> = account.lines().filter(|line| !line.starts_with(PROGRESS)).collect();
    for line in &words[words.len().saturating_sub(MAX_LINES)..] {
        message.push_str("\n  ");
        message.push_str(line);
    }
    Diagnostic::new(codes::E_ROS_007, message)
        .hint("see which plugins serve the stores with 'mur plugin list', and check them with 'mur plugin check'")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(script: &str, bound: Duration) -> Diagnostic {
        let spawn = Spawn::program("/bin/sh").args(["-c", script]).stdio(Stream::Pipe, Stream::Pipe, Stream::Pipe);
        ask(spawn, &Request::new(Path::new("/"), &vec![b'x'; 1 << 20], false), bound).map(|_| ()).unwrap_err()
    }

    #[test]
    fn a_process_that_dies_is_named_with_what_it_was_asking() {
        let script = "echo 'admitting: member a (s/b@1): asking mine' >&2; echo boom >&2; kill -9 $$";
        let error = child(script, Duration::from_secs(60));
        assert_eq!(error.code(), codes::E_ROS_007);
        let message = error.message();
        assert!(
            message.contains("asking mine") && message.contains("signal 9") && message.contains("boom"),
            "{message}"
        );
    }

    #[test]
    fn a_process_that_overruns_is_ended() {
        let error = child("cat >/dev/null; exec sleep 600", Duration::from_millis(200));
        assert!(error.message().contains("took longer"), "{}", error.message());
    }

    #[test]
    fn an_answer_that_is_none_is_refused() {
        for script in ["printf 'abc'", r"printf '\377\377\377\377'", r"printf '\003\000\000\000{}}'", "exit 3"] {
            assert_eq!(child(script, Duration::from_secs(60)).code(), codes::E_ROS_007, "{script}");
        }
    }
}
