//! `mur`'s side of its workers: starts them, loads artifacts, makes calls and answers what they ask.
//!
//! Every byte of a worker is treated as hostile. What a call asks is answered only while that call runs on that worker;
//! a frame that breaks the protocol, a death, and silence well past a call's deadline all lose the worker, once and for
//! all: it is killed, every call on it fails, and it is not started again.

mod calls;
mod logs;
mod requests;
mod start;
mod traffic;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::protocol::{Down, Fault, Frame, MAX_PREOPENS};
use super::types::{
    ArtifactSpec, CallError, CallLimits, HostCalls, Kind, LostWorker, PreopenSource, ToolInput, ToolResult, WorkerSetup,
};
use crate::diagnostics::Result;
use calls::Worker;

/// How long a worker has to load an artifact: milliseconds, unless it computes for another call.
const LOAD_LIMIT: Duration = Duration::from_secs(60);

/// The workers of one session. Cheap to clone; the last clone's end closes the connections, and with them the workers.
#[derive(Clone)]
pub struct WorkerSet {
    inner: Arc<Inner>,
}

struct Inner {
    program: Option<PathBuf>,
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
        Self::of(None)
    }
}

impl WorkerSet {
    /// A set without workers; each is started when it is first needed. Use it on the runtime it will be used on.
    pub fn new() -> Self {
        Self::default()
    }

    /// A set whose workers run another file than this process's own: for tests, which are not `mur`.
    pub fn with_program(program: impl Into<PathBuf>) -> Self {
        Self::of(Some(program.into()))
    }

    fn of(program: Option<PathBuf>) -> Self {
        let lost = watch::Sender::new(None);
        Self { inner: Arc::new(Inner { program, workers: Mutex::default(), starting: Default::default(), lost }) }
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

    /// The process id of a started worker (of its relay, where the class has one).
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
            fds.push(match preopen.source {
                PreopenSource::Directory(fd) => fd,
                PreopenSource::Path(path) => start::open_folder(&path)
                    .map_err(|error| CallError::Refused(format!("{}: {error}", path.display())))?,
            });
            names.push((preopen.guest, preopen.write));
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
        worker.call(artifact, input, env, host).await
    }

    /// The first worker that was lost, if any.
    pub fn lost(&self) -> watch::Receiver<Option<LostWorker>> {
        self.inner.lost.subscribe()
    }

    /// Ends every worker and reaps it.
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
    }

    fn worker(&self, kind: Kind) -> Option<Arc<Worker>> {
        self.inner.workers.lock().unwrap_or_else(PoisonError::into_inner).get(&kind).cloned()
    }

    fn ready(&self, kind: Kind) -> std::result::Result<Arc<Worker>, CallError> {
        self.worker(kind).ok_or_else(|| CallError::Refused(format!("the {kind} worker has not been started")))
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
