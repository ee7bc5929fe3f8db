//! A worker at work: one thread reads the connection and ticks, one runs the artifacts.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::{mpsc, oneshot};
use wasmtime::Engine;

use super::super::protocol::{Down, Fault, Up, Work, reason};
use super::super::types::{CallLimits, Kind};
use super::board::Board;
use super::connection::{self, Incoming, Outgoing};
use super::load::{Artifact, Loader};
use super::{Settings, call, code};

/// How often a running artifact yields and its deadline is looked at.
const TICK: Duration = Duration::from_millis(100);

/// Most loads and calls that wait to be begun. `mur` makes fewer at a time.
const MAX_JOBS: usize = 1024;

/// Threads for file access that the kernel may block: a guest can open a FIFO.
const BLOCKING_THREADS: usize = 16;

/// Idle ones end soon: a worker is mostly idle.
const BLOCKING_KEPT: Duration = Duration::from_secs(2);

/// Stack of the reading thread, which keeps its buffers elsewhere.
const READER_STACK: usize = 256 << 10;

/// What every call of the worker uses.
pub(super) struct Shared {
    pub(super) engine: Engine,
    pub(super) outgoing: Outgoing,
    pub(super) board: Board,
}

/// What the reading thread hands over.
pub(super) enum Job {
    Load(Load),
    Call(Call),
}

/// A [`Down::Load`] with its descriptors.
pub(super) struct Load {
    pub(super) load: u32,
    pub(super) id: String,
    pub(super) full: String,
    pub(super) code: OwnedFd,
    pub(super) folders: Result<Vec<(OwnedFd, String, bool)>, String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) limits: CallLimits,
}

/// A [`Down::Call`], entered on the board.
pub(super) struct Call {
    pub(super) call: u64,
    pub(super) artifact: String,
    pub(super) work: Work,
    pub(super) env: Vec<(String, String)>,
    pub(super) cancelled: oneshot::Receiver<()>,
}

/// The engine of this worker, made before it says ready.
pub(super) fn prepare(settings: &Settings) -> Result<Engine, String> {
    for stream in [std::io::stdout().as_fd(), std::io::stderr().as_fd()] {
        // A full log pipe must not stop the worker: what does not fit is dropped.
        let _ = nix::fcntl::fcntl(stream, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK));
    }
    code::engine(settings.reservation)
}

/// Serves until the connection ends, and with it the process.
pub(super) fn serve(kind: Kind, engine: Engine, incoming: Incoming) -> Result<(), String> {
    let shared = Arc::new(Shared { engine, outgoing: incoming.outgoing(), board: Board::default() });
    let (jobs, queue) = mpsc::channel(MAX_JOBS);
    let reader = std::thread::Builder::new().name("connection".to_owned()).stack_size(READER_STACK).spawn({
        let shared = shared.clone();
        move || match read(incoming, &shared, &jobs) {
            Ok(()) => connection::leave(),
            Err(why) => connection::end(&why),
        }
    });
    reader.map_err(|error| format!("no thread can be started: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_KEPT)
        // A guest that computes is polled for a whole tick at a time: timers get their turn after each.
        .event_interval(1)
        .build()
        .map_err(|error| format!("the event loop cannot be made: {error}"))?;
    runtime.block_on(work(kind, &shared, queue))
}

/// The reading thread: delivers, hands over, ticks. Returns at end of file.
fn read(mut incoming: Incoming, shared: &Shared, jobs: &mpsc::Sender<Job>) -> Result<(), String> {
    let mut ticked = Instant::now();
    loop {
        while let Some(frame) = incoming.buffered()? {
            route(frame, &mut incoming, shared, jobs)?;
        }
        let timeout = if shared.board.is_busy() {
            let left = TICK.saturating_sub(ticked.elapsed()).as_millis();
            PollTimeout::from(u16::try_from(left).unwrap_or(u16::MAX))
        } else {
            PollTimeout::NONE
        };
        let ready = {
            let mut fds = [PollFd::new(incoming.socket().as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(count) => count > 0,
                Err(nix::errno::Errno::EINTR) => false,
                Err(error) => return Err(format!("the connection cannot be waited for: {error}")),
            }
        };
        if ticked.elapsed() >= TICK {
            shared.engine.increment_epoch();
            ticked = Instant::now();
        }
        if ready && !incoming.fill()? {
            return Ok(());
        }
    }
}

fn route(frame: Down, incoming: &mut Incoming, shared: &Shared, jobs: &mpsc::Sender<Job>) -> Result<(), String> {
    let job = match frame {
        Down::Load { load, id, full, preopens, env, limits } => {
            let handed = preopens.iter().filter(|(_, (_, path))| path.is_none()).count();
            let mut fds = incoming.take_fds(1 + handed)?.into_iter();
            let code = fds.next().ok_or("a load without code")?;
            let mut folders = Ok(Vec::with_capacity(preopens.len()));
            for (guest, (write, path)) in preopens {
                let opened = match path {
                    Some(path) => open_folder(&path),
                    None => fds.next().ok_or_else(|| "it did not come".to_owned()),
                };
                folders = folders.and_then(|mut all: Vec<(OwnedFd, String, bool)>| {
                    all.push((opened.map_err(|why| format!("its folder '{guest}': {why}"))?, guest, write));
                    Ok(all)
                });
            }
            Job::Load(Load { load, id, full, code, folders, env, limits })
        }
        Down::Call { call, artifact, work, env } => {
            let cancelled = shared.board.enter(call);
            Job::Call(Call { call, artifact, work, env, cancelled })
        }
        other => {
            let cancel = matches!(other, Down::Cancel { .. });
            shared.board.deliver(other)?;
            if cancel {
                // A guest that computes looks up at the next tick: let it be now.
                shared.engine.increment_epoch();
            }
            return Ok(());
        }
    };
    jobs.try_send(job).map_err(|_| "more loads and calls at once than were agreed".to_owned())
}

/// Opens a folder in this worker's own root.
fn open_folder(path: &[u8]) -> Result<OwnedFd, String> {
    let flags = nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_DIRECTORY | nix::fcntl::OFlag::O_CLOEXEC;
    let path = std::path::Path::new(OsStr::from_bytes(path));
    nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty()).map_err(|error| error.to_string())
}

/// The running thread.
async fn work(kind: Kind, shared: &Arc<Shared>, mut queue: mpsc::Receiver<Job>) -> Result<(), String> {
    let loader = Loader::new(&shared.engine, kind)?;
    let mut artifacts: HashMap<String, Arc<Artifact>> = HashMap::new();
    let mut loaded = 0_usize;
    while let Some(job) = queue.recv().await {
        match job {
            Job::Load(load) => {
                loaded += 1;
                let number = load.load;
                if loaded > code::MAX_LOADED {
                    let fault = Fault::Refused("this worker has loaded too many artifacts".to_owned());
                    shared.outgoing.send(&Up::Loaded { load: number, fault: Some(fault) });
                    continue;
                }
                let id = load.id.clone();
                let artifact = loader.load(load);
                shared.outgoing.send(&Up::Loaded { load: number, fault: artifact.fault() });
                artifacts.insert(id, Arc::new(artifact));
            }
            Job::Call(job) => match artifacts.get(&job.artifact) {
                Some(artifact) => {
                    tokio::spawn(call::run(shared.clone(), artifact.clone(), job));
                }
                None => {
                    shared.board.leave(job.call);
                    let fault = Fault::Refused(reason(format!("'{}' is not loaded", job.artifact)));
                    shared.outgoing.send(&Up::Returned { call: job.call, outcome: Err(fault) });
                }
            },
        }
    }
    // The reading thread holds the other end and ends the process with the connection.
    std::future::pending().await
}
