//! One call: an outcome, and exactly one frame that says it. A tool's or driver's call has a fresh store and instance; a
//! hook keeps its own.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use wasmtime::{Store, Trap, UpdateDeadline, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::super::clock::Clock;
use super::super::protocol::wire::MAX_LIST;
use super::super::protocol::{Fault, Frame, Product, Up, Work, reason};
use super::super::types::ToolResult;
use super::hook_call;
use super::imports::{WitInput, WitResult};
use super::load::{Artifact, Linked, RUN_INTERFACE};
use super::run::{Call, Shared};
use super::state::{Exhausted, Link, State};

/// Instantiation that took longer is told to `mur`, whose own clock runs since the call was sent.
pub(super) const NOTICEABLE: std::time::Duration = std::time::Duration::from_millis(50);

/// The deadline passed while the guest computed.
#[derive(Debug)]
struct Expired;

impl std::fmt::Display for Expired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("deadline")
    }
}

impl std::error::Error for Expired {}

/// What a store is made of.
pub(super) struct Seed {
    pub(super) artifact: Arc<Artifact>,
    pub(super) env: Vec<(String, String)>,
    pub(super) link: Arc<Link>,
    pub(super) clock: Arc<Clock>,
}

/// Runs a call to its end and answers it.
pub(super) async fn run(shared: Arc<Shared>, artifact: Arc<Artifact>, job: Call) {
    let call = job.call;
    let outcome = AssertUnwindSafe(watch(&shared, artifact, job)).catch_unwind().await;
    let outcome =
        outcome.unwrap_or_else(|_| Err(Fault::Refused("the worker itself failed during the call".to_owned())));
    // Struck before it is answered: whatever it still waited for is dropped, and nothing of it follows the answer.
    shared.board.leave(call);
    let frame = Up::Returned { call, outcome };
    let bytes = frame.encode().or_else(|error| {
        let fault = Fault::Refused(format!("its result is too large: {error}"));
        Up::Returned { call, outcome: Err(fault) }.encode()
    });
    if let Ok(bytes) = bytes {
        shared.outgoing.send_bytes(&bytes);
    }
}

fn checked(result: ToolResult) -> Result<ToolResult, Fault> {
    if result.metadata.len() > MAX_LIST {
        return Err(Fault::Refused(format!("its result has {} metadata entries", result.metadata.len())));
    }
    Ok(result)
}

/// The call itself, against its clock and its cancellation. A guest that waits in a host call is ended by dropping it;
/// one that computes looks up at every tick.
async fn watch(shared: &Arc<Shared>, artifact: Arc<Artifact>, mut job: Call) -> Result<Product, Fault> {
    let clock = Arc::new(Clock::start(artifact.limits.deadline));
    let link = Arc::new(Link::new(job.call, shared.clone()));
    #[cfg(feature = "escape-probe")]
    {
        let (name, work, link) = (job.artifact.clone(), job.work.clone(), link.clone());
        let probe = move || super::probe::instead_of(&name, &work, &link);
        if let Ok(Some(product)) = tokio::task::spawn_blocking(probe).await {
            return Ok(product);
        }
    }
    let seed = Seed { artifact: artifact.clone(), env: std::mem::take(&mut job.env), link, clock: clock.clone() };
    tokio::select! {
        biased;
        _ = &mut job.cancelled => Err(Fault::Cancelled),
        // Before the clock: a call that ends without waiting sets no timer.
        outcome = execute(shared, &artifact, seed, job.work) => outcome,
        () = clock.over() => Err(Fault::Deadline),
    }
}

async fn execute(shared: &Shared, artifact: &Artifact, seed: Seed, work: Work) -> Result<Product, Fault> {
    let linked = artifact.linked.as_ref().map_err(Clone::clone)?;
    let input = match work {
        Work::Hook(event) => return hook_call::run(shared, artifact, linked, seed, event).await.map(Product::Hook),
        Work::Tool(input) => WitInput { data: input.data, log_path: input.log_path },
    };
    let mut store = store_of(shared, State::new(seed.artifact, &seed.env, seed.link, seed.clock));
    match call(&mut store, linked, artifact, input).await {
        Ok(Ok(result)) => checked(result.into()).map(Product::Tool),
        Ok(Err(fault)) => Err(fault),
        Err(error) => Err(fault(&error, &store)),
    }
}

/// A store under its limits, which looks at its clock at every tick.
pub(super) fn store_of(shared: &Shared, state: State) -> Store<State> {
    let mut store = Store::new(&shared.engine, state);
    store.limiter(|state| &mut state.limits);
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(|store| {
        if store.data().clock.is_over() { Err(Expired.into()) } else { Ok(UpdateDeadline::Yield(1)) }
    });
    store
}

async fn call(
    store: &mut Store<State>,
    linked: &Linked,
    artifact: &Artifact,
    input: WitInput,
) -> wasmtime::Result<Result<WitResult, Fault>> {
    let Some(run) = linked.run.as_ref() else {
        return Ok(Err(Fault::MissingExport(RUN_INTERFACE.to_owned())));
    };
    let begun = Instant::now();
    let instance = linked.pre.instantiate_async(&mut *store).await?;
    if begun.elapsed() > NOTICEABLE {
        let link = &store.data().link;
        link.shared.outgoing.send(&Up::Running { call: link.call });
    }
    store.data().clock.restart(artifact.limits.deadline);
    let Ok(run) = instance.get_typed_func::<(WitInput,), (WitResult,)>(&mut *store, run) else {
        return Ok(Err(Fault::MissingExport(format!("{RUN_INTERFACE} with the types of that version"))));
    };
    let (result,) = run.call_async(&mut *store, (input,)).await?;
    Ok(Ok(result))
}

/// Names what ended a call.
pub(super) fn fault(error: &wasmtime::Error, store: &Store<State>) -> Fault {
    if error.downcast_ref::<Expired>().is_some() {
        return Fault::Deadline;
    }
    // Whatever trap follows a denied growth is that denial's doing.
    match store.data().limits.exhausted {
        Some(Exhausted::Memory) => return Fault::Memory,
        Some(Exhausted::Tables) => return Fault::Tables,
        None => {}
    }
    if let Some(exit) = error.downcast_ref::<I32Exit>() {
        return Fault::Trap(format!("it exited with status {} instead of returning", exit.0));
    }
    let Some(trap) = error.downcast_ref::<Trap>() else {
        let text = error.root_cause().to_string();
        // Wasmtime has no type for this one.
        if text.contains("instance count too high") {
            return Fault::Instances;
        }
        return Fault::Trap(reason(text));
    };
    let place = error.downcast_ref::<WasmBacktrace>().and_then(|trace| trace.frames().first());
    let place = place.and_then(|frame| frame.func_name()).map(|name| format!(" in {name}")).unwrap_or_default();
    Fault::Trap(reason(format!("{trap}{place}")))
}
