//! A sink as the rest of the host sees it: deadlines, and no call after a fault.

use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use mur_plugin_api::sink::SinkModuleRef;
use mur_plugin_api::{PluginError, SinkObject};

use super::call::{Caller, detach};
use super::library::Library;
use super::{SessionHeader, Sink};
use crate::diagnostics::Result;

/// Opening, writing a batch, closing.
const LIMIT: Duration = Duration::from_secs(30);
/// What a flush may take beyond the time it was given, before it counts as overrun.
const GRACE: Duration = Duration::from_secs(1);

struct Guarded {
    caller: Caller,
    object: Option<Arc<Mutex<SinkObject>>>,
    faulty: bool,
}

/// Makes a sink of a loaded plugin.
pub(super) fn open(library: &Library, config: &serde_json::Value) -> Result<Box<dyn Sink>> {
    let module: SinkModuleRef = library.module()?;
    let caller = Caller::new(&library.info);
    let config = config.to_string();
    let object = caller.call("new", LIMIT, move || module.open()(config.as_str().into()).into_result())?;
    Ok(Box::new(Guarded { caller, object: Some(Arc::new(Mutex::new(object))), faulty: false }))
}

impl Guarded {
    fn call(
        &mut self,
        what: &'static str,
        within: Duration,
        body: impl FnOnce(&mut SinkObject) -> std::result::Result<(), PluginError> + Send + 'static,
    ) -> Result<()> {
        let object = match (&self.object, self.faulty) {
            (Some(object), false) => Arc::clone(object),
            _ => return Err(self.caller.fault("is not called again after it failed")),
        };
        // One call at a time (`&mut self`), so the lock is free; a call that overran holds it, and none follows.
        let outcome =
            self.caller.call(what, within, move || body(&mut object.lock().unwrap_or_else(PoisonError::into_inner)));
        self.faulty = outcome.is_err();
        outcome
    }
}

impl Sink for Guarded {
    fn name(&self) -> &str {
        self.caller.name()
    }

    fn open(&mut self, session: &SessionHeader) -> Result<()> {
        let header = mur_plugin_api::SessionHeader {
            session_id: session.session_id.as_str().into(),
            capsule: session.capsule.as_str().into(),
            version: session.version.as_str().into(),
            formation_id: session.formation_id.as_deref().unwrap_or_default().into(),
            records_dir: session.records_dir.as_os_str().as_bytes().to_vec().into(),
        };
        self.call("open", LIMIT, move |sink| sink.open(&header))
    }

    fn write(&mut self, records: &[Bytes]) -> Result<()> {
        let records = records.to_vec();
        self.call("write", LIMIT, move |sink| {
            let slices: Vec<_> = records.iter().map(|record| record.as_ref().into()).collect();
            sink.write(&slices)
        })
    }

    fn flush(&mut self, within: Duration) -> Result<()> {
        self.call("flush", within.saturating_add(GRACE), move |sink| sink.flush(within))
    }

    fn close(&mut self) -> Result<()> {
        let outcome = self.call("close", LIMIT, SinkObject::close);
        let object = self.object.take();
        detach(move || drop(object));
        outcome
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let object = self.object.take();
        detach(move || drop(object));
    }
}
