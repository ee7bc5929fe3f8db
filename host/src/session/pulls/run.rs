//! A pulled tool in its worker: loaded at its first call, into a worker that is started for it where none runs.

use std::sync::PoisonError;

use super::{Pulls, SeenFolder};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::session::context::SessionContext;
use crate::worker::{ArtifactSpec, CallError, Kind, Preopen, PreopenSource};

impl Pulls {
    /// Makes a pulled tool callable. An error ends the session: the worker could not be started, or is lost. What is wrong
    /// with the tool alone is told by its call.
    pub async fn ready(&self, ctx: &SessionContext, name: &str) -> Result<()> {
        let _turn = self.turn.lock().await;
        let taken = {
            let mut state = self.state();
            let pulled = state.held.get_mut(name);
            pulled.and_then(|pulled| {
                let full = format!("{}@{}", pulled.name, pulled.tool.version);
                pulled.compiled.take().map(|compiled| (compiled, full))
            })
        };
        let Some((compiled, full)) = taken else { return Ok(()) };
        if !ctx.workers.is_started(Kind::Tools) {
            let setup = self.setup.lock().unwrap_or_else(PoisonError::into_inner).take();
            // Never without the confinement that was prepared for it.
            let setup = setup.ok_or_else(|| {
                Diagnostic::new(codes::E_RUN_066, "the tools worker could not be started: it had been tried before")
            })?;
            ctx.workers.start(Kind::Tools, setup).await?;
        }
        let spec = ArtifactSpec {
            id: name.to_owned(),
            full,
            compiled: compiled.fd,
            preopens: self.ground.folders.iter().map(preopen).collect(),
            env: self.ground.env.clone(),
            limits: self.ground.limits,
        };
        match ctx.workers.load(Kind::Tools, spec).await {
            Err(CallError::Lost(lost)) => Err(lost.diagnostic()),
            // A tool that does not load tells every call why.
            _ => Ok(()),
        }
    }
}

fn preopen(folder: &SeenFolder) -> Preopen {
    Preopen { source: PreopenSource::Path(folder.path.clone()), guest: folder.guest.clone(), write: folder.write }
}
