//! One command, from its start to its end: its pipes are read until its leader has ended, whoever else holds them.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sys::signal::Signal;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;

use super::capture::{Capture, Stream};
use super::scope::{Scope, Ticket};
use crate::containment::commands::CommandRequest;
use crate::containment::{Command, CommandProfile, Ended, StartError};
use crate::process::fds;
use crate::session::folder_size::FolderSize;

/// Bytes read at once.
const CHUNK: usize = 64 << 10;

/// Most bytes taken from a pipe after the leader has ended: what it left there fits twice, and a descendant that goes on
/// writing is not followed.
const LEFT: usize = 2 << 20;

/// A command to start.
pub struct Order {
    /// The program, absolute.
    pub program: PathBuf,
    /// Its arguments, the name it sees as its own first.
    pub argv: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Where it starts.
    pub cwd: PathBuf,
    /// What it reads; nothing is `/dev/null`.
    pub stdin: Option<Bytes>,
    /// Where its output goes.
    pub capture: Capture,
    /// Whether it is a shell, whose own status tells the signal of what it ran.
    pub is_shell: bool,
}

/// A command that was started; clones are about the same one.
#[derive(Clone)]
pub struct Run {
    /// Until it has ended: then its number may be another's.
    command: Arc<Mutex<Option<Arc<Command>>>>,
    /// Its output so far.
    pub capture: Arc<Capture>,
    /// When it was started.
    pub began: Instant,
    finished: watch::Receiver<Option<Finish>>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// With a status, by a signal, or unknown.
    pub ended: Ended,
    /// From start to end.
    pub duration: Duration,
    /// The limit of `capabilities.resources` it met.
    pub limit: Option<&'static str>,
}

impl Finish {
    /// As a shell says it: 128 + N for signal N, and -1 when nobody knows.
    pub fn exit_code(&self) -> i32 {
        match self.ended {
            Ended::Exited(status) => status,
            Ended::Signalled(signal) => 128 + signal,
            Ended::Lost(_) => -1,
        }
    }
}

impl Run {
    /// How it ended, if it has.
    pub fn finish(&self) -> Option<Finish> {
        self.finished.borrow().clone()
    }

    /// Waits for its end, whatever its descendants do.
    pub async fn finished(&self) -> Finish {
        let mut finished = self.finished.clone();
        match finished.wait_for(Option::is_some).await.map(|finish| finish.clone()) {
            Ok(Some(finish)) => finish,
            // Whoever watched it is gone with the session.
            _ => Finish {
                ended: Ended::Lost("the session ended".to_owned()),
                duration: self.began.elapsed(),
                limit: None,
            },
        }
    }

    /// Sends a signal to it and what it started in its process group. Nothing is said about one that has ended.
    pub fn signal(&self, signal: Signal) {
        if let Some(command) = &*self.command.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = command.signal_group(signal);
        }
    }
}

/// A command whose group is killed when nobody looks after it any more.
struct Kept(Arc<Command>);

impl Drop for Kept {
    fn drop(&mut self) {
        if self.0.try_wait().is_none() {
            let _ = self.0.signal_group(Signal::SIGKILL);
        }
    }
}

/// Starts a command and looks after it until its end, in a task of its own.
///
/// # Errors
/// Nothing runs then.
pub async fn start(
    profile: &CommandProfile,
    order: Order,
    scope: &Arc<Scope>,
    folders: &FolderSize,
) -> Result<Run, StartError> {
    let Order { program, argv, env, cwd, stdin, capture, is_shell } = order;
    let request = CommandRequest {
        program,
        args: argv.iter().map(Into::into).collect(),
        env: env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        cwd,
    };
    let ends = Ends::make(stdin.is_some()).map_err(StartError::Program)?;
    let (profile, ticket) = (profile.clone(), scope.enter());
    let stdio = ends.theirs;
    let starting = tokio::task::spawn_blocking(move || {
        let began = Instant::now();
        // Whoever waited for it may be gone: then it is killed where it is dropped.
        profile.start(&request, stdio).map(|command| (Kept(Arc::new(command)), began))
    });
    let started = match starting.await {
        Ok(started) => started,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    let (kept, began) = match started {
        Ok(started) => started,
        Err(error) => {
            scope.left(&ticket);
            return Err(error);
        }
    };
    let (tell, finished) = watch::channel(None);
    let command = Arc::new(Mutex::new(Some(Arc::clone(&kept.0))));
    let run = Run { command, capture: Arc::new(capture), began, finished };
    if let (Some(pipe), Some(bytes)) = (ends.stdin, stdin) {
        feed(pipe, bytes);
    }
    let (out, err) = (receiver(ends.stdout), receiver(ends.stderr));
    let met = Met { scope: Arc::clone(scope), ticket, is_shell, folders: folders.clone() };
    tokio::spawn(look_after(kept, run.clone(), [out, err], met, tell));
    Ok(run)
}

/// Both ends of a command's standard streams.
struct Ends {
    theirs: [OwnedFd; 3],
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Ends {
    fn make(feeds: bool) -> std::io::Result<Self> {
        let (input, stdin) = if feeds {
            let (read, write) = fds::pipe()?;
            (read, Some(write))
        } else {
            (OpenOptions::new().read(true).open("/dev/null")?.into(), None)
        };
        let (stdout, out) = fds::pipe()?;
        let (stderr, err) = fds::pipe()?;
        Ok(Self { theirs: [input, out, err], stdin, stdout, stderr })
    }
}

/// Writes a command's input and closes it. One that does not read holds up a thread until it ends, and nothing else.
fn feed(pipe: OwnedFd, bytes: Bytes) {
    tokio::task::spawn_blocking(move || {
        let _ = std::fs::File::from(pipe).write_all(&bytes);
    });
}

/// `None` where the event loop cannot watch the pipe: then its output is lost.
fn receiver(pipe: OwnedFd) -> Option<Receiver> {
    Receiver::from_owned_fd(pipe).ok()
}

/// What finds out which limit a command met, and looks at what it wrote.
struct Met {
    scope: Arc<Scope>,
    ticket: Ticket,
    is_shell: bool,
    folders: FolderSize,
}

async fn look_after(
    kept: Kept,
    run: Run,
    [out, err]: [Option<Receiver>; 2],
    met: Met,
    tell: watch::Sender<Option<Finish>>,
) {
    let Run { command, capture, began, .. } = run;
    let (end, ended) = watch::channel(false);
    let waiting = async {
        let how = kept.0.wait().await.unwrap_or_else(|error| Ended::Lost(error.to_string()));
        let duration = began.elapsed();
        end.send_replace(true);
        (how, duration)
    };
    let pumps = async {
        tokio::join!(pump(out, Stream::Out, &capture, ended.clone()), pump(err, Stream::Err, &capture, ended.clone()))
    };
    let ((ended, duration), (out, err)) = tokio::join!(waiting, pumps);
    command.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(kept);
    let limit = met.scope.leave(met.ticket, &ended, met.is_shell).await;
    // Before its end is told, so that whoever goes on can wait for what is found.
    met.folders.look();
    tell.send_replace(Some(Finish { ended, duration, limit }));
    // What it left running may go on writing: it is not to fail for want of a reader.
    for pipe in [out, err].into_iter().flatten() {
        tokio::spawn(discard(pipe));
    }
}

/// Reads until the end of the pipe, or until the leader has ended and what it wrote is read. Gives the pipe back when
/// somebody else still holds it.
async fn pump(
    pipe: Option<Receiver>,
    stream: Stream,
    capture: &Capture,
    mut ended: watch::Receiver<bool>,
) -> Option<Receiver> {
    let pipe = pipe?;
    let mut buffer = vec![0; CHUNK];
    loop {
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => break,
            ready = pipe.readable() => ready.ok()?,
        }
        match pipe.try_read(&mut buffer) {
            Ok(0) => return None,
            Ok(count) => capture.push(stream, &buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
    // The event loop may not have heard of the last bytes yet, so the pipe itself is asked.
    let mut left = LEFT;
    while left > 0 {
        match nix::unistd::read(&pipe, &mut buffer) {
            Ok(0) => return None,
            Ok(count) => {
                capture.push(stream, &buffer[..count]);
                left = left.saturating_sub(count);
            }
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => break,
        }
    }
    Some(pipe)
}

async fn discard(pipe: Receiver) {
    let mut buffer = vec![0; CHUNK];
    while pipe.readable().await.is_ok() {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
            _ => {}
        }
    }
}
