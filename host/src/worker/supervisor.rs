//! `mur`'s side of its workers: starts them, loads artifacts, makes calls and answers what they ask.
//!
//! Every byte of a worker is treated as hostile. What a call asks is answered only while that call runs on that worker;
//! a frame that breaks the protocol, a death, and silence well past a call's deadline all lose the worker, once and for
//! all: it is killed, every call on it fails, and it is not started again.

mod calls;
mod fuzz;
mod logs;
mod requests;
mod socket;
mod start;
mod traffic;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::hook::{HookEvent, HookResult};
use super::protocol::{Down, Fault, Frame, MAX_PREOPENS, Product, Work};
use super::types::{
    ArtifactSpec, CallError, CallLimits, HostCalls, Kind, LostWorker, PreopenSource, ToolInput, ToolResult, WorkerSetup,
};
use crate::containment::Helper;
use crate::diagnostics::Result;
use crate::process::Pidfd;
use calls::Worker;
pub use fuzz::fuzz;

/// How long a worker has to load an artifact: milliseconds, unless it computes for another call.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

/// The workers of one session. Cheap to clone; the last clone's end closes the connections, and with them the workers.
#[derive(Clone)]
pub struct WorkerSet {
    inner: Arc<Inner>,
}

struct Inner {
    program: Option<PathBuf>,
    enclosure: Option<Arc<Helper>>,
    workers: Mutex<HashMap<Kind, Arc<Worker>>>,
    /// Held while the worker of a kind is started, so that none is started twice.
    starting: [tokio::sync::Mutex<()>; Kind::ALL.len()],
    lost: watch::Sender<Option<LostWorker>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for worker in self.workers.get_mut().unwrap_or_else(PoisonError::into_inner).values() {
            worker.hang_up();
        }
    }
}

impl Default for WorkerSet {
    fn default() -> Self {
        Self::of(None, None)
    }
}

impl WorkerSet {
    /// A set without workers; each is started when it is first needed. Use it on the runtime it will be used on.
    pub fn new() -> Self {
        Self::default()
    }

    /// A set whose workers run another file than this process's own: for tests, which are not `mur`.
    pub fn with_program(program: impl Into<PathBuf>) -> Self {
        Self::of(Some(program.into()), None)
    }

    /// A set whose workers enter an enclosure, which closes with it. When the enclosure ends before, they are lost.
    pub fn within(enclosure: Helper) -> Self {
        Self::of(None, Some(enclosure))
    }

    /// Both: for tests.
    pub fn with_program_within(program: impl Into<PathBuf>, enclosure: Helper) -> Self {
        Self::of(Some(program.into()), Some(enclosure))
    }

    fn of(program: Option<PathBuf>, enclosure: Option<Helper>) -> Self {
        let lost = watch::Sender::new(None);
        let enclosure = enclosure.map(Arc::new);
        let pidfd = enclosure.as_deref().map(Helper::pidfd);
        let inner = Inner { program, enclosure, workers: Mutex::default(), starting: Default::default(), lost };
        let set = Self { inner: Arc::new(inner) };
        if let Some(pidfd) = pidfd {
            tokio::spawn(watch_enclosure(pidfd, Arc::downgrade(&set.inner)));
        }
        set
    }

    /// The enclosure the workers enter.
    pub fn enclosure(&self) -> Option<&Helper> {
        self.inner.enclosure.as_deref()
    }

    /// Starts the worker of a kind and waits until it is confined and ready (`E-RUN-066`). A kind already started is
    /// left as it is, also when it has been lost since.
    pub async fn start(&self, kind: Kind, setup: WorkerSetup) -> Result<()> {
        let _one = self.inner.starting[kind as usize].lock().await;
        if self.worker(kind).is_some() {
            return Ok(());
        }
        let worker = start::start(kind, setup, self.inner.program.as_deref(), self.inner.lost.clone()).await?;
        self.inner.workers.lock().unwrap_or_else(PoisonError::into_inner).insert(kind, worker);
        Ok(())
    }

    /// Whether the worker of a kind has been started.
    pub fn is_started(&self, kind: Kind) -> bool {
        self.worker(kind).is_some()
    }

    /// The process id of a started worker; of the worker itself, where it has a relay.
    pub fn pid(&self, kind: Kind) -> Option<i32> {
        self.worker(kind).map(|worker| worker.pid())
    }

    /// Loads an artifact into a started worker; one of the same id is replaced. An artifact that does not link (a
    /// missing import, say) answers with that fault and stays loaded with it: every call of it gets the same fault.
    pub async fn load(&self, kind: Kind, artifact: ArtifactSpec) -> std::result::Result<(), CallError> {
        let worker = self.ready(kind)?;
        if artifact.preopens.len() > MAX_PREOPENS {
            let count = artifact.preopens.len();
            return Err(CallError::Refused(format!("{count} folders are granted, and at most {MAX_PREOPENS} can be")));
        }
        let ArtifactSpec { id, full, compiled, preopens, env, limits } = artifact;
        let mut fds = vec![compiled];
        let mut names = Vec::with_capacity(preopens.len());
        for preopen in preopens {
            let path = match preopen.source {
                PreopenSource::Path(path) if worker.own_root() => {
                    Some(Bytes::from(path.into_os_string().into_encoded_bytes()))
                }
                PreopenSource::Directory(_) if worker.own_root() => {
                    return Err(CallError::Refused(
                        "an open folder cannot be handed into a root of its own".to_owned(),
                    ));
                }
                PreopenSource::Directory(fd) => {
                    fds.push(fd);
                    None
                }
                PreopenSource::Path(path) => {
                    let opened = start::open_folder(&path);
                    fds.push(opened.map_err(|error| CallError::Refused(format!("{}: {error}", path.display())))?);
                    None
                }
            };
            names.push((preopen.guest, (preopen.write, path)));
        }
        let (load, loaded) = worker.expect_load();
        let frame = Down::Load { load, id: id.clone(), full, preopens: names, env, limits };
        let bytes = frame.encode().map_err(|error| CallError::Refused(format!("its environment is {error}")))?;
        let answered = tokio::time::timeout(LOAD_LIMIT, async {
            worker.send_with(bytes, fds).await;
            loaded.await
        });
        let fault = match answered.await {
            Ok(fault) => fault.map_err(|_| worker.lost_error(None))?,
            Err(_) => {
                worker.lose(format!("it did not load '{id}' within {} s", LOAD_LIMIT.as_secs()));
                return Err(worker.lost_error(None));
            }
        };
        worker.remember(id, limits);
        fault.map_or(Ok(()), |fault| Err(call_error(fault, &limits)))
    }

    /// Calls `murmur:tool/run` of a loaded artifact in a fresh instance. `env` is added to the artifact's environment,
    /// replacing equal names. Dropping the future cancels the call: what it asked of `host` is dropped at once, and a
    /// worker that does not end it is lost.
    pub async fn call_tool(
        &self,
        kind: Kind,
        artifact: &str,
        input: ToolInput,
        env: Vec<(String, String)>,
        host: Arc<dyn HostCalls>,
    ) -> std::result::Result<ToolResult, CallError> {
        let worker = self.ready(kind)?;
        match worker.call(artifact, Work::Tool(input), env, host).await? {
            Product::Tool(result) => Ok(result),
            Product::Hook(_) => Err(CallError::Refused("a tool's call was answered as a hook's".to_owned())),
        }
    }

    /// Calls the function of an event of a loaded hook, in the instance the hook keeps. One call of a hook at a time; a
    /// call that does not return ends the instance, and the next one begins with a fresh one.
    pub async fn call_hook(
        &self,
        artifact: &str,
        event: HookEvent,
        host: Arc<dyn HostCalls>,
    ) -> std::result::Result<HookResult, CallError> {
        let worker = self.ready(Kind::Hooks)?;
        if !event.fits() {
            return Err(CallError::Refused("the event has more entries than can be passed".to_owned()));
        }
        match worker.call(artifact, Work::Hook(event), Vec::new(), host).await? {
            Product::Hook(result) => Ok(result),
            Product::Tool(_) => Err(CallError::Refused("a hook's call was answered as a tool's".to_owned())),
        }
    }

    /// The first worker that was lost, if any.
    pub fn lost(&self) -> watch::Receiver<Option<LostWorker>> {
        self.inner.lost.subscribe()
    }

    /// Ends every worker and reaps it, and closes the enclosure.
    pub async fn close(&self) {
        let workers: Vec<_> = {
            let mut workers = self.inner.workers.lock().unwrap_or_else(PoisonError::into_inner);
            workers.drain().map(|(_, worker)| worker).collect()
        };
        for worker in &workers {
            worker.hang_up();
        }
        for worker in workers {
            worker.gone().await;
        }
        if let Some(enclosure) = self.inner.enclosure.clone() {
            let _ = tokio::task::spawn_blocking(move || enclosure.close()).await;
        }
    }

    fn worker(&self, kind: Kind) -> Option<Arc<Worker>> {
        self.inner.workers.lock().unwrap_or_else(PoisonError::into_inner).get(&kind).cloned()
    }

    fn ready(&self, kind: Kind) -> std::result::Result<Arc<Worker>, CallError> {
        self.worker(kind).ok_or_else(|| CallError::Refused(format!("the {kind} worker has not been started")))
    }
}

/// Loses the workers of a session whose enclosure ends while they are in use.
async fn watch_enclosure(pidfd: Arc<Pidfd>, inner: Weak<Inner>) {
    if pidfd.ended().await.is_err() {
        return;
    }
    let Some(inner) = inner.upgrade() else { return };
    let workers: Vec<_> = inner.workers.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
    for worker in workers {
        worker.lose(format!("the session's enclosure (pid {}) ended", pidfd.pid()));
    }
}

/// A worker's fault in the session's words.
fn call_error(fault: Fault, limits: &CallLimits) -> CallError {
    match fault {
        Fault::Trap(text) => CallError::Trap(text),
        Fault::Deadline => CallError::Deadline(limits.deadline),
        Fault::Memory => CallError::Memory(limits.memory),
        Fault::Tables => CallError::Limit("table elements", limits.table_elements),
        Fault::Instances => CallError::Limit("instances", u64::from(limits.instances)),
        Fault::MissingImport(name) => CallError::MissingImport(name),
        Fault::MissingExport(name) => CallError::MissingExport(name),
        Fault::Instantiate(text) => CallError::Instantiate(text),
        Fault::Cancelled => CallError::Cancelled,
        Fault::Refused(text) => CallError::Refused(text),
    }
}
