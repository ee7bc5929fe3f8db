//! Starting a worker: the process, its greeting, and the tasks that keep it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use tokio::sync::watch;

use super::super::engine::Reservation;
use super::super::protocol::{self, Decoder, Down, Frame, Up};
use super::super::types::{Kind, LostWorker, WorkerSetup};
use super::calls::{Started, Worker};
use super::logs::Logs;
use super::socket::Socket;
use super::traffic;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::process::fds::{self, MAX_PASSED};
use crate::process::{Exit, Pidfd, Spawn, Stream};

/// How long a worker has from its start until it is confined and ready. A loaded machine takes a second.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long a process that closed its connection has until it is killed.
pub(super) const LAST_MOMENTS: Duration = Duration::from_secs(1);

/// How the account of a composed root that could not be made begins.
const SEALED_ROOT: &str = "sealed-root: ";

/// Starts a worker and waits until it is ready.
pub(super) async fn start(
    kind: Kind,
    setup: WorkerSetup,
    program: Option<&Path>,
    lost: watch::Sender<Option<LostWorker>>,
) -> Result<Arc<Worker>> {
    let failed = |why: String| {
        // A root that the probe could compose and the worker could not ends the session under a code of its own.
        let (code, why) = match why.find(SEALED_ROOT) {
            Some(at) => (codes::E_RUN_014, &why[at..]),
            None => (codes::E_RUN_066, why.as_str()),
        };
        Diagnostic::new(code, format!("the {kind} worker could not be started: {why}"))
            .hint("nothing was run; 'mur doctor' says what this host can back")
    };
    let own_root = setup.confinement.as_ref().is_some_and(|confinement| confinement.own_root);
    let logs = Logs::open(setup.logs.as_deref(), kind);
    let (socket, child) = spawn(kind, program).map_err(|error| failed(error.to_string()))?;
    let pidfd = Arc::new(child.pidfd);
    for stream in [child.stdout, child.stderr].into_iter().flatten() {
        tokio::spawn(logs.clone().follow(stream));
    }
    let mut decoder = Decoder::default();
    let greeted = tokio::time::timeout(START_LIMIT, greet(&socket, pidfd.pid(), setup, &mut decoder)).await;
    let why = match greeted {
        Ok(Ok(inside)) => {
            let worker = Worker::new(Started { kind, pidfd, inside, own_root }, lost);
            traffic::run(&worker, socket, decoder);
            return Ok(worker);
        }
        Ok(Err(Trouble::Refused(reason))) => reason,
        Ok(Err(Trouble::Broken(what))) => {
            let end = end(&pidfd).await;
            match logs.said() {
                Some(said) => format!("{what}; it {end} and said: {said}"),
                None => format!("{what}; it {end}"),
            }
        }
        Err(_) => format!("it was not ready after {} s", START_LIMIT.as_secs()),
    };
    drop(socket);
    end(&pidfd).await;
    Err(failed(why))
}

fn spawn(kind: Kind, program: Option<&Path>) -> io::Result<(Socket, crate::process::Child)> {
    let (ours, theirs) = fds::stream_pair()?;
    let socket = Socket::new(ours)?;
    let mur = match program {
        Some(program) => Spawn::program(program),
        None => Spawn::mur(),
    };
    let child = mur
        .args(["__guest-worker", kind.as_str()])
        .cwd("/")
        .stdio(Stream::Null, Stream::Pipe, Stream::Pipe)
        .pass(theirs, protocol::DESCRIPTOR)
        .own_group()
        .spawn()?;
    Ok((socket, child))
}

/// Waits until a process has ended, kills it when it takes too long, reaps it, and says how it ended.
pub(super) async fn end(pidfd: &Pidfd) -> String {
    if tokio::time::timeout(LAST_MOMENTS, pidfd.ended()).await.is_err() {
        // Its group too, before the leader is reaped.
        let _ = pidfd.signal_group(Signal::SIGKILL);
        let _ = pidfd.signal(Signal::SIGKILL);
    }
    match pidfd.wait().await {
        Ok(Exit::Status(status)) => format!("exited with status {status}"),
        Ok(Exit::Signal(signal)) => match Signal::try_from(signal) {
            Ok(name) => format!("was killed by signal {signal} ({name})"),
            Err(_) => format!("was killed by signal {signal}"),
        },
        Err(_) => "ended".to_owned(),
    }
}

enum Trouble {
    /// The worker says why.
    Refused(String),
    /// The connection, or what came over it.
    Broken(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Broken(format!("its connection failed: {error}"))
    }
}

async fn greet(
    socket: &Socket,
    child: i32,
    setup: WorkerSetup,
    decoder: &mut Decoder,
) -> std::result::Result<Option<Pidfd>, Trouble> {
    let (confined, request, handed) = match setup.confinement {
        Some(confinement) => {
            let mut handed = vec![confinement.library];
            handed.extend(confinement.fds);
            (true, confinement.request, handed)
        }
        None => (false, Vec::new(), Vec::new()),
    };
    let hello = Down::Hello {
        version: protocol::VERSION,
        // The parent-death signal follows the thread: only the main thread lives as long as the process.
        die_with_parent: nix::unistd::gettid() == nix::unistd::getpid(),
        small: Reservation::of_this_host() == Reservation::Small,
        confined,
        descriptors: u32::try_from(handed.len()).unwrap_or(u32::MAX),
        request: request.into(),
    };
    let bytes = hello.encode().map_err(|error| Trouble::Broken(format!("the confinement request is {error}")))?;
    // A worker that died at once may still have said why: what it sent is read whether or not it can be written to.
    let mut sent = socket.send(&bytes, &[]).await;
    for batch in handed.chunks(MAX_PASSED) {
        let frame = Down::Descriptors { count: u32::try_from(batch.len()).unwrap_or(u32::MAX) };
        let bytes = frame.encode().map_err(|error| Trouble::Broken(error.to_string()))?;
        if sent.is_ok() {
            sent = socket.send(&bytes, batch).await;
        }
    }
    if let Err(error) = sent
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        return Err(error.into());
    }
    let (greeting, handed) = read_one(socket, decoder).await?;
    match greeting {
        // One that did not fork names the process that is known already.
        Up::Ready { version: protocol::VERSION, .. } => {
            let named = handed.into_iter().next().and_then(|fd| Pidfd::received(fd).ok());
            Ok(named.filter(|named| named.pid() != child))
        }
        Up::Ready { version, .. } => Err(Trouble::Broken(format!("it speaks version {version} of the protocol"))),
        Up::Refused { reason } => Err(Trouble::Refused(reason)),
        _ => Err(Trouble::Broken("it began with something other than its greeting".to_owned())),
    }
}

async fn read_one(socket: &Socket, decoder: &mut Decoder) -> std::result::Result<(Up, Vec<OwnedFd>), Trouble> {
    let mut handed = Vec::new();
    let mut buffer = Socket::buffer();
    loop {
        let frame = decoder.next_frame().map_err(|error| Trouble::Broken(format!("it broke the protocol: {error}")))?;
        if let Some(frame) = frame {
            return Ok((frame, handed));
        }
        let (count, received) = socket.receive(&mut buffer, decoder).await?;
        handed.extend(received);
        if count == 0 {
            return Err(Trouble::Broken("it closed its connection before it was ready".to_owned()));
        }
    }
}

/// Opens a folder to be handed to a worker.
pub(super) fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(path, flags, Mode::empty())?)
}
