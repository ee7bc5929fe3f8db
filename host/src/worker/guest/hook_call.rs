//! One call of a hook: the function of the event, in the instance that the hook keeps from call to call.
//!
//! While a call runs the instance is taken out of its place. One that traps, outruns its deadline or is cancelled does
//! not come back, and the next call begins with a fresh one, without what the hook had kept in memory.

use std::time::Instant;

use wasmtime::Store;
use wasmtime::component::{ComponentNamedList, Instance, Lower};

use super::super::hook::{HookEvent, HookResult, LIFECYCLE};
use super::super::protocol::Fault;
use super::super::protocol::Up;
use super::call::{NOTICEABLE, Seed, fault, store_of};
use super::load::{Artifact, Linked};
use super::run::Shared;
use super::state::State;

/// A hook's instance.
pub(super) struct Live {
    store: Store<State>,
    instance: Instance,
}

/// Runs a call to the component's answer. A function that a hook need not export answers `none`.
pub(super) async fn run(
    shared: &Shared,
    artifact: &Artifact,
    linked: &Linked,
    seed: Seed,
    event: HookEvent,
) -> Result<HookResult, Fault> {
    let (name, required) = HookEvent::FUNCTIONS[event.index()];
    let Some(function) = linked.functions.get(event.index()).cloned().flatten() else {
        return if required {
            Err(Fault::MissingExport(format!("{LIFECYCLE}#{name}")))
        } else {
            Ok(Ok(super::super::hook::HookOutput::None))
        };
    };
    // What is bound to staging gets an instance of its own: a session begins without its state.
    let keeps = !matches!(event, HookEvent::Stage(_));
    let mut place = artifact.live.lock().await;
    let mut live = match place.take().filter(|_| keeps) {
        Some(mut live) => {
            live.store.data_mut().turn_to(seed.link, seed.clock);
            live.store.set_epoch_deadline(1);
            live
        }
        None => instantiate(shared, artifact, linked, seed).await?,
    };
    live.store.data().clock.restart(artifact.limits.deadline);
    let called = match event {
        HookEvent::Stage(event) => call(&mut live, function, event).await,
        HookEvent::SessionStart(event) => call(&mut live, function, event).await,
        HookEvent::TaskStart(event) => call(&mut live, function, event).await,
        HookEvent::Inference(event) => call(&mut live, function, event).await,
        HookEvent::ToolCall(event) => call(&mut live, function, event).await,
        HookEvent::Shell(event) => call(&mut live, function, event).await,
        HookEvent::Compaction(event) => call(&mut live, function, event).await,
        HookEvent::TaskEnd(event) => call(&mut live, function, event).await,
        HookEvent::SessionEnd(event) => call(&mut live, function, event).await,
    };
    match called {
        Ok(Ok(result)) => {
            if keeps {
                *place = Some(live);
            }
            match &result {
                Ok(output) if !output.fits() => {
                    Err(Fault::Refused(format!("its {} has too many entries", output.arm())))
                }
                _ => Ok(result),
            }
        }
        Ok(Err(())) => Err(Fault::MissingExport(format!("{LIFECYCLE}#{name} with the types of that version"))),
        Err(error) => Err(fault(&error, &live.store)),
    }
}

async fn instantiate(shared: &Shared, artifact: &Artifact, linked: &Linked, seed: Seed) -> Result<Live, Fault> {
    let begun = Instant::now();
    let mut store = store_of(shared, State::new(seed.artifact, &seed.env, seed.link, seed.clock));
    match linked.pre.instantiate_async(&mut store).await {
        Ok(instance) => {
            if begun.elapsed() > NOTICEABLE {
                let link = &store.data().link;
                link.shared.outgoing.send(&Up::Running { call: link.call });
            }
            store.data().clock.restart(artifact.limits.deadline);
            Ok(Live { store, instance })
        }
        Err(error) => Err(fault(&error, &store)),
    }
}

/// `Err(())`: the function has other types.
async fn call<E>(
    live: &mut Live,
    function: wasmtime::component::ComponentExportIndex,
    event: E,
) -> wasmtime::Result<Result<HookResult, ()>>
where
    (E,): ComponentNamedList + Lower + Send + Sync,
{
    let Ok(function) = live.instance.get_typed_func::<(E,), (HookResult,)>(&mut live.store, &function) else {
        return Ok(Err(()));
    };
    let (result,) = function.call_async(&mut live.store, (event,)).await?;
    Ok(Ok(result))
}
