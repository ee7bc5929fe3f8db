//! A session's side of its enclosure: the helper process, what it is asked, and its end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mur_plugin_api::{Class, EnclosureBounds, EnclosureRequest, IoStatus, ProfileRequest, ScopeEvents};
use nix::sys::signal::Signal;

use super::commands::CommandProfile;
use super::delegation;
use super::message::{Answer, Ask, DESCRIPTOR, Report, receive, send};
use crate::process::{Pidfd, Spawn, Stream, fds};

/// How long any answer may take. A loaded machine takes a second.
const ANSWER: Duration = Duration::from_secs(30);

/// How long what is inside has to end when the session closes its enclosure.
const CLOSING: Duration = Duration::from_secs(5);

/// How long the helper has to end by itself after its connection did.
const LEAVING: Duration = Duration::from_secs(12);

/// The process that holds a session's enclosure. Dropping it takes the enclosure down and waits for that.
#[derive(Debug)]
pub struct Helper {
    connection: Arc<Connection>,
    pidfd: Arc<Pidfd>,
}

/// What is asked over; shared with those who start commands.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Mutex<Option<UnixStream>>,
    stderr: Option<OwnedFd>,
}

/// A profile as a worker enters it.
#[derive(Debug)]
pub struct Prepared {
    /// The bytes.
    pub request: Vec<u8>,
    /// The descriptors.
    pub fds: Vec<OwnedFd>,
}

impl Helper {
    /// Starts the helper.
    pub fn start() -> io::Result<Self> {
        Self::start_as(Spawn::mur())
    }

    /// Starts it from another file than this process's own: for tests, which are not `mur`.
    pub fn with_program(program: impl Into<std::path::PathBuf>) -> io::Result<Self> {
        Self::start_as(Spawn::program(program))
    }

    fn start_as(mur: Spawn) -> io::Result<Self> {
        let (ours, theirs) = fds::stream_pair()?;
        let child = mur
            .arg("__enclosure")
            .cwd("/")
            .stdio(Stream::Null, Stream::Null, Stream::Pipe)
            .pass(theirs, DESCRIPTOR)
            .own_group()
            .spawn()?;
        let socket = UnixStream::from(ours);
        socket.set_read_timeout(Some(ANSWER))?;
        let connection = Arc::new(Connection { socket: Mutex::new(Some(socket)), stderr: child.stderr });
        let helper = Self { connection, pidfd: Arc::new(child.pidfd) };
        let buses = delegation::addresses();
        if !buses.is_empty() {
            // Before anything else, so that it is where the session's scope is made. A helper that is gone says so later.
            let _ = helper.connection.ask(&Ask::Delegate(buses), &[]);
        }
        Ok(helper)
    }

    pub(super) fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection)
    }

    /// The helper's process.
    pub fn pidfd(&self) -> Arc<Pidfd> {
        Arc::clone(&self.pidfd)
    }

    /// Hands it the library of a class.
    pub fn load(&self, class: Class, library: &OwnedFd) -> Result<(), String> {
        self.connection.ask(&Ask::Load(class), &[library.as_fd()]).map(drop)
    }

    /// Tries what the host can back of a class whose library was loaded.
    pub fn probe(&self, class: Class) -> Result<Report, String> {
        match self.connection.ask(&Ask::Probe(class), &[])? {
            (Answer::Report(report), _) => Ok(*report),
            _ => Err(nonsense()),
        }
    }

    /// Makes the session's enclosure, and says what the host was seen to back meanwhile.
    pub fn open(&self, class: Class, request: EnclosureRequest) -> Result<Report, String> {
        match self.connection.ask(&Ask::Open(class, request), &[])? {
            (Answer::Report(report), _) => Ok(*report),
            _ => Err(nonsense()),
        }
    }

    /// The sockets inside the session's network that were asked for when it was opened: a TCP listener for each port, in
    /// their order, then the one for names.
    pub fn network(&self) -> Result<Vec<OwnedFd>, String> {
        match self.connection.ask(&Ask::Network, &[])? {
            (Answer::Network, sockets) => Ok(sockets),
            _ => Err(nonsense()),
        }
    }

    /// Makes ready what one kind of process enters.
    pub fn prepare(&self, request: ProfileRequest) -> Result<Prepared, String> {
        match self.connection.ask(&Ask::Prepare(request), &[])? {
            (Answer::Profile(request), fds) => Ok(Prepared { request, fds }),
            _ => Err(nonsense()),
        }
    }

    /// Makes ready what commands enter: once a session, and once for each native tool. Cheap to keep; commands can be started
    /// from it until the enclosure is closed.
    pub fn commands(&self, request: ProfileRequest) -> Result<CommandProfile, String> {
        CommandProfile::within(&self.connection, request)
    }

    /// How often the scope's bounds were met so far; 0 where the host does not count.
    pub fn events(&self) -> Result<ScopeEvents, String> {
        self.bounds().map(|bounds| bounds.events)
    }

    /// What became of the bound of reading and writing that [`Helper::open`] asked for.
    pub fn io_status(&self) -> Result<IoStatus, String> {
        self.bounds().map(|bounds| bounds.io)
    }

    fn bounds(&self) -> Result<EnclosureBounds, String> {
        match self.connection.ask(&Ask::Bounds, &[])? {
            (Answer::Bounds(bounds), _) => Ok(bounds),
            _ => Err(nonsense()),
        }
    }

    /// Bytes of memory, nanoseconds of processor time and processes of what is inside.
    pub fn usage(&self) -> Result<(u64, u64, u64), String> {
        match self.connection.ask(&Ask::Usage, &[])? {
            (Answer::Usage(memory, cpu, pids), _) => Ok((memory, cpu, pids)),
            _ => Err(nonsense()),
        }
    }

    /// Ends what is inside, removes what was made, and waits for the helper's end. May be called again.
    pub fn close(&self) {
        let within = u64::try_from(CLOSING.as_millis()).unwrap_or(u64::MAX);
        // One that somebody stopped cannot take anything down.
        let _ = self.pidfd.signal(Signal::SIGCONT);
        let open = match &*self.connection.socket.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(socket) => socket.set_read_timeout(Some(CLOSING * 2)).is_ok(),
            None => false,
        };
        if open {
            let _ = self.connection.ask(&Ask::Close(within), &[]);
        }
        self.hang_up();
    }

    fn hang_up(&self) {
        let Some(socket) = self.connection.socket.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        drop(socket);
        let _ = self.pidfd.signal(Signal::SIGCONT);
        let until = Instant::now() + LEAVING;
        while !self.pidfd.has_ended_within(until.saturating_duration_since(Instant::now())) {
            if Instant::now() >= until {
                // Its watcher takes the scope down in its place.
                let _ = self.pidfd.signal(Signal::SIGKILL);
                break;
            }
        }
        let _ = self.pidfd.reap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl Connection {
    /// Asks one thing and waits for the answer.
    pub(super) fn ask(&self, ask: &Ask, handed: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), String> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = socket.as_ref().ok_or("the enclosure is closed")?;
        let answered = send(socket, ask, handed).and_then(|()| receive::<Answer>(socket));
        match answered {
            Ok(Some((Answer::Failed(why), _))) => Err(why),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(self.ended("it ended")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(format!("it did not answer within {} s", ANSWER.as_secs()))
            }
            Err(error) => Err(self.ended(&error.to_string())),
        }
    }

    /// Why there is no answer, with the last words of the helper.
    fn ended(&self, how: &str) -> String {
        let said = self.stderr.as_ref().map(last_words).unwrap_or_default();
        if said.is_empty() { how.to_owned() } else { format!("{how} and said: {said}") }
    }
}

/// What an answer to something else is.
pub(super) fn nonsense() -> String {
    "it answered something else than it was asked".to_owned()
}

/// What is in a pipe, on one line, without waiting.
fn last_words(pipe: &OwnedFd) -> String {
    let _ = nix::fcntl::fcntl(pipe, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK));
    let mut buffer = [0; 1024];
    let count = nix::unistd::read(pipe, &mut buffer).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..count]).split_whitespace().collect::<Vec<_>>().join(" ")
}
