//! `mur`'s side of its workers.

use std::sync::Arc;

use tokio::sync::watch;

use super::types::{ArtifactSpec, CallError, HostCalls, Kind, LostWorker, ToolInput, ToolResult, WorkerSetup};
use crate::diagnostics::{Diagnostic, Result, codes};

/// The workers of one session. Cheap to clone; the last clone's end closes the connections, and with them the workers.
#[derive(Clone)]
pub struct WorkerSet {
    lost: Arc<watch::Sender<Option<LostWorker>>>,
}

impl Default for WorkerSet {
    fn default() -> Self {
        Self::new()
    }
}

impl WorkerSet {
    /// A set without workers; each is started when it is first needed.
    pub fn new() -> Self {
        Self { lost: Arc::new(watch::Sender::new(None)) }
    }

    /// Starts the worker of a kind and waits until it is confined and ready (`E-RUN-066`). A kind already started is
    /// left as it is.
    pub async fn start(&self, kind: Kind, _setup: WorkerSetup) -> Result<()> {
        Err(Diagnostic::new(codes::E_RUN_066, format!("the {kind} worker could not be started: not built yet")))
    }

    /// Loads an artifact into a worker; one of the same id is replaced.
    pub async fn load(&self, _kind: Kind, _artifact: ArtifactSpec) -> std::result::Result<(), CallError> {
        Err(CallError::Refused("not built yet".into()))
    }

    /// Calls `murmur:tool/run` of a loaded artifact in a fresh instance. `env` is added to the artifact's environment,
    /// replacing equal names. Dropping the future cancels the call.
    pub async fn call_tool(
        &self,
        _kind: Kind,
        _artifact: &str,
        _input: ToolInput,
        _env: Vec<(String, String)>,
        _host: Arc<dyn HostCalls>,
    ) -> std::result::Result<ToolResult, CallError> {
        Err(CallError::Refused("not built yet".into()))
    }

    /// The first worker that was lost, if any.
    pub fn lost(&self) -> watch::Receiver<Option<LostWorker>> {
        self.lost.subscribe()
    }

    /// Ends every worker and reaps it.
    pub async fn close(&self) {}
}
