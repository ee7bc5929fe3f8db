//! A worker at work: one thread reads the connection and runs the artifacts, and another watches over it (`watch`).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::sync::{mpsc, oneshot};
use wasmtime::Engine;

use super::super::protocol::{Down, Fault, Up, Work, reason};
use super::super::types::{CallLimits, Kind};
use super::board::Board;
use super::connection::{self, Incoming, Outgoing};
use super::load::{Artifact, Loader};
use super::watch::Watch;
use super::{Settings, call, code};
use crate::process::fds;

/// Most loads and calls that wait to be begun. `mur` makes fewer at a time.
const MAX_JOBS: usize = 1024;

/// Threads for file access that the kernel may block: a guest can open a FIFO.
const BLOCKING_THREADS: usize = 16;

/// Idle ones end soon: a worker is mostly idle.
const BLOCKING_KEPT: Duration = Duration::from_secs(2);

/// What every call of the worker uses.
pub(super) struct Shared {
    pub(super) engine: Engine,
    pub(super) outgoing: Outgoing,
    pub(super) board: Board,
}

/// What is read and then begun.
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
    let watch = Watch::start(incoming.socket().clone(), shared.engine.clone())
        .map_err(|error| format!("no thread can be started: {error}"))?;
    let (begins, rests) = (watch.clone(), watch);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_KEPT)
        // A guest that computes is polled for a whole tick at a time: timers get their turn after each.
        .event_interval(1)
        .on_thread_unpark(move || begins.begin())
        .on_thread_park(move || rests.rest())
        .build()
        .map_err(|error| format!("the event loop cannot be made: {error}"))?;
    // In one task, in this order: what was read is begun without another turn of the loop.
    let (_, ended) =
        runtime.block_on(futures_util::future::join(listen(incoming, &shared, &jobs), work(kind, &shared, queue)));
    ended
}

/// Reads what comes: delivers, hands over. Ends the process at end of file.
async fn listen(mut incoming: Incoming, shared: &Shared, jobs: &mpsc::Sender<Job>) {
    let reading = async {
        // Reading alone: the kernel would report every frame of ours that `mur` takes as room for the next.
        let socket = fds::on_runtime(incoming.socket().clone(), Interest::READABLE)
            .map_err(|error| format!("the connection cannot be waited for: {error}"))?;
        loop {
            while let Some(frame) = incoming.buffered()? {
                route(frame, &mut incoming, shared, jobs)?;
            }
            let mut ready =
                socket.readable().await.map_err(|error| format!("the connection cannot be waited for: {error}"))?;
            match incoming.fill_ready()? {
                None => ready.clear_ready(),
                Some(true) => {}
                Some(false) => return Ok(()),
            }
        }
    };
    let outcome: Result<(), String> = reading.await;
    match outcome {
        Ok(()) => connection::leave(),
        Err(why) => connection::end(&why),
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
            return shared.board.deliver(other);
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

/// Begins what was read.
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
    // Whoever listens holds the other end and ends the process with the connection.
    std::future::pending().await
}
