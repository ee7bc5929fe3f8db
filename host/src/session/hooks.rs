//! The hooks of a session: which are called for an event, what becomes of their answers, and how their faults are told.
//!
//! A fault of a hook never ends anything but the call it was asked to decide. A blocking hook is called and waited for, in
//! manifest order; an async one has a queue of its own and is drained at the session's end. Both are called in the
//! `hooks` worker alone, one call of a hook at a time.

mod calls;
mod faults;
mod queue;
mod scene;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use calls::StagingCalls;
pub use scene::{Scene, TaskScene, Uses};

use super::context::SessionContext;
use crate::manifest::{HookBinding, HookContract};
use crate::worker::hook::{
    CompactionEvent, HookEvent, HookMessage, HookOutput, SessionEndEvent, SessionFacts, StageEvent, ToolManifest,
};
use crate::worker::{CallError, HostCalls, LostWorker, WorkerSet};
use calls::HookCall;
use queue::Queue;

/// How long the hooks of a session have at its end, all of them together: for `on-session-end`, then for what their queues
/// still hold.
const END_LIMIT: Duration = Duration::from_secs(15);

/// What the log says of an answer that does nothing.
const NOT_HONOURED: &str = "this answer is not honoured from it here";

/// One hook, as its own manifest and the capsule's entry describe it.
pub struct Hook {
    /// The bare name: its id in the `hooks` worker.
    pub name: String,
    /// `<scope>/<name>@<version>`.
    pub full: String,
    /// When it is called, and what it may change.
    pub contract: HookContract,
    /// `capabilities.task_io.read` of its entry.
    pub reads_task: bool,
    /// `capabilities.conversation.read` of its entry.
    pub reads_conversation: bool,
    queue: Option<Queue>,
}

/// All hooks, in manifest order.
#[derive(Default)]
pub struct Hooks(Vec<Arc<Hook>>);

/// An answer that is honoured.
pub struct Committed {
    /// The hook's bare name.
    pub hook: String,
    /// What it said.
    pub output: HookOutput,
}

/// What became of a conversation that was to be shortened.
pub enum Compacted {
    /// A hook gave another in its place.
    Replaced {
        /// The hook's bare name.
        hook: String,
        /// The conversation from here on.
        messages: Vec<HookMessage>,
    },
    /// Nobody did.
    Kept,
    /// A hook that was to do it failed, in words.
    Failed(String),
}

/// Why a call is not made.
pub struct Denial {
    /// The hook's bare name.
    pub hook: String,
    /// In words.
    pub reason: String,
}

impl Hook {
    /// A hook of a session; `blocks` says that an event waits while its queue is full.
    pub fn new(name: String, full: String, contract: HookContract, blocks: bool) -> Self {
        let queue = contract.asynchronous.then(|| Queue::new(blocks));
        Self { name, full, contract, reads_task: false, reads_conversation: false, queue }
    }

    /// Whether it decides about calls rather than watching them.
    fn decides(&self) -> bool {
        self.contract.commit_policy == "deny"
    }

    /// Whether an event is for it.
    fn hears(&self, event: &HookEvent) -> bool {
        match self.contract.binding {
            Some(binding) => binding.as_str() == event.name(),
            // Everything; staging only where an answer can be waited for.
            None => !matches!(event, HookEvent::Stage(_)) || !self.contract.asynchronous,
        }
    }

    /// Whether an arm is honoured from it at this event.
    fn honours(&self, event: &str, arm: &str) -> bool {
        let honoured = match event {
            "on-stage" => "write-manifests",
            "on-task-start" => "seed-context",
            "on-compaction" => "replace-context",
            "on-task-end" => "reopen-task",
            // Needs no policy.
            "on-inference" => return arm == "artifact",
            _ => return false,
        };
        arm == honoured && self.contract.commit_policy == arm
    }
}

impl Hooks {
    /// In manifest order.
    pub fn new(all: Vec<Hook>) -> Self {
        Self(all.into_iter().map(Arc::new).collect())
    }

    /// Whether any hook hears an event, or decides it.
    pub fn any_for(&self, binding: HookBinding) -> bool {
        self.0.iter().any(|hook| hook.contract.binding.is_none_or(|own| own == binding))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls `on-stage` of every hook that hears it, each in an instance of its own. Nothing it does fails a launch but
    /// the loss of its worker: what goes wrong is told in the log.
    pub async fn stage(
        &self,
        workers: &WorkerSet,
        host: Arc<dyn HostCalls>,
        logs: &std::path::Path,
        shell_allow: &[String],
    ) -> Result<Vec<ToolManifest>, LostWorker> {
        let event = HookEvent::Stage(StageEvent { shell_allow: shell_allow.to_vec() });
        let mut written = Vec::new();
        for hook in self.0.iter().filter(|hook| hook.hears(&event)) {
            match workers.call_hook(&hook.name, event.clone(), host.clone()).await {
                Err(CallError::Lost(lost)) => return Err(lost),
                Err(error) => faults::log(logs, &hook.name, event.name(), &error.to_string()),
                Ok(Err(text)) => faults::log(logs, &hook.name, event.name(), &text),
                Ok(Ok(HookOutput::None)) => {}
                Ok(Ok(HookOutput::WriteManifests(list))) if hook.honours(event.name(), "write-manifests") => {
                    written.extend(list);
                }
                Ok(Ok(other)) => {
                    faults::log(logs, &hook.name, event.name(), &format!("its {} is not honoured here", other.arm()));
                }
            }
        }
        Ok(written)
    }

    /// Starts the queues of async hooks.
    pub fn begin(ctx: &Arc<SessionContext>) {
        for hook in &ctx.hooks.0 {
            if let Some(queue) = &hook.queue {
                queue.begin(ctx.clone(), hook.clone());
            }
        }
    }

    /// Hands an event to everybody who watches it, and returns what of their answers is honoured. Hooks that decide are
    /// asked by [`Self::decide`] and hear nothing here.
    pub async fn dispatch(
        ctx: &Arc<SessionContext>,
        event: HookEvent,
        scene: &Scene,
    ) -> Result<Vec<Committed>, LostWorker> {
        let mut committed = Vec::new();
        for hook in ctx.hooks.0.iter().filter(|hook| hook.hears(&event) && !hook.decides()) {
            committed.extend(Self::watch(ctx, hook, &event, scene).await?);
        }
        Ok(committed)
    }

    /// Asks those who decide, in manifest order; the first refusal is the answer. Whatever is not a plain `none` refuses:
    /// a hook that cannot decide lets nothing pass.
    pub async fn decide(
        ctx: &Arc<SessionContext>,
        event: HookEvent,
        scene: &Scene,
    ) -> Result<Option<Denial>, LostWorker> {
        for hook in ctx.hooks.0.iter().filter(|hook| hook.hears(&event) && hook.decides()) {
            let answer = ctx.workers.call_hook(&hook.name, event.clone(), HookCall::of(ctx, hook, scene)).await;
            let reason = match answer {
                Err(CallError::Lost(lost)) => return Err(lost),
                Ok(Ok(HookOutput::None)) => continue,
                Ok(Ok(HookOutput::Deny(reason))) if !reason.trim().is_empty() => reason,
                Ok(Ok(HookOutput::Deny(_))) => undecided(ctx, hook, &event, "deny", "it denied without a reason"),
                Ok(Ok(other)) => {
                    let arm = other.arm();
                    undecided(ctx, hook, &event, arm, &format!("it answered {arm}, which decides nothing"))
                }
                Ok(Err(text)) => undecided(ctx, hook, &event, "error", &text),
                Err(error) => undecided(ctx, hook, &event, faults::word(&error), &error.to_string()),
            };
            return Ok(Some(Denial { hook: hook.name.clone(), reason }));
        }
        Ok(None)
    }

    /// Hands a conversation that is to be shortened to everybody who hears of it. Those that may replace it are asked in
    /// manifest order until one does; the rest merely watch.
    pub async fn compact(
        ctx: &Arc<SessionContext>,
        event: CompactionEvent,
        scene: &Scene,
    ) -> Result<Compacted, LostWorker> {
        let event = HookEvent::Compaction(event);
        let mut compacted = Compacted::Kept;
        for hook in ctx.hooks.0.iter().filter(|hook| hook.hears(&event)) {
            if !hook.contract.compacts() {
                Self::watch(ctx, hook, &event, scene).await?;
                continue;
            }
            if !matches!(compacted, Compacted::Kept) {
                continue;
            }
            let answer = ctx.workers.call_hook(&hook.name, event.clone(), HookCall::of(ctx, hook, scene)).await;
            let (arm, what) = match answer {
                Err(CallError::Lost(lost)) => return Err(lost),
                Err(CallError::Cancelled) | Ok(Ok(HookOutput::None)) => continue,
                Ok(Ok(HookOutput::ReplaceContext(messages))) => {
                    compacted = Compacted::Replaced { hook: hook.name.clone(), messages };
                    continue;
                }
                Ok(Ok(other)) => {
                    faults::record(ctx, &hook.name, event.name(), other.arm(), NOT_HONOURED);
                    continue;
                }
                Ok(Err(text)) => ("error", text),
                Err(error) => (faults::word(&error), error.to_string()),
            };
            faults::record(ctx, &hook.name, event.name(), arm, &what);
            return Ok(Compacted::Failed(what));
        }
        Ok(compacted)
    }

    /// Hands an event to one that watches.
    async fn watch(
        ctx: &Arc<SessionContext>,
        hook: &Arc<Hook>,
        event: &HookEvent,
        scene: &Scene,
    ) -> Result<Option<Committed>, LostWorker> {
        if let Some(queue) = &hook.queue {
            if !queue.offer(event.clone(), scene.clone()).await {
                faults::record(ctx, &hook.name, event.name(), "queue-overflow", "its queue is full");
            }
            return Ok(None);
        }
        let answer = call(ctx, hook, event.clone(), scene).await?;
        Ok(answer.map(|output| Committed { hook: hook.name.clone(), output }))
    }

    /// Whether any hook decides about an event.
    pub fn decide_about(&self, binding: HookBinding) -> bool {
        self.0.iter().any(|hook| hook.decides() && hook.contract.binding == Some(binding))
    }

    /// Whether any hook may shorten a conversation.
    pub fn can_compact(&self) -> bool {
        self.0.iter().any(|hook| hook.contract.compacts())
    }

    /// Tells a fault of an answer that could not be used after all.
    pub fn fault(ctx: &SessionContext, hook: &str, event: &str, arm: &str, what: &str) {
        faults::record(ctx, hook, event, arm, what);
    }

    /// `on-session-start`.
    pub async fn session_started(ctx: &Arc<SessionContext>, capabilities: &[&str]) -> Result<(), LostWorker> {
        let event = HookEvent::SessionStart(SessionFacts {
            capsule_name: ctx.capsule.name.clone(),
            capsule_version: ctx.capsule.version.clone(),
            session_id: ctx.session_id.to_string(),
            model: ctx.driver.model.clone(),
            capabilities: capabilities.iter().map(|word| (*word).to_owned()).collect(),
        });
        Self::dispatch(ctx, event, &Scene::default()).await.map(drop)
    }

    /// `on-session-end`, and the end of all queues. What is not done within the bound is told and left.
    pub async fn session_ended(ctx: &Arc<SessionContext>, exit_status: &str) -> Result<(), LostWorker> {
        if ctx.hooks.is_empty() {
            return Ok(());
        }
        let until = Instant::now() + END_LIMIT;
        let totals = ctx.trace.totals();
        let count = |sum: u64| u32::try_from(sum).unwrap_or(u32::MAX);
        let event = HookEvent::SessionEnd(SessionEndEvent {
            total_turns: count(totals.turns),
            total_input_tokens: totals.input_tokens,
            total_output_tokens: totals.output_tokens,
            total_tool_calls: count(totals.tool_calls),
            total_shell_calls: count(totals.shell_calls),
            duration_ms: ctx.start.elapsed_ms(),
            exit_status: exit_status.to_owned(),
        });
        let told = tokio::time::timeout_at(until.into(), Self::dispatch(ctx, event, &Scene::default())).await;
        if told.is_err() {
            let blocking = ctx.hooks.0.iter().filter(|hook| hook.queue.is_none());
            let names: Vec<&str> = blocking.map(|hook| hook.name.as_str()).collect();
            let what = format!("not answered within {} s of the session's end", END_LIMIT.as_secs());
            faults::record(ctx, &names.join(", "), "on-session-end", "timeout", &what);
        }
        for hook in &ctx.hooks.0 {
            if let Some(queue) = &hook.queue
                && let Some(left) = queue.drain(until).await
            {
                faults::record(ctx, &hook.name, "drain", "timeout", &format!("{left} of its events were not handled"));
            }
        }
        match told {
            Ok(Err(lost)) => Err(lost),
            _ => Ok(()),
        }
    }
}

/// Calls a hook and sorts its answer: what is honoured comes back, what is not is told.
async fn call(
    ctx: &Arc<SessionContext>,
    hook: &Arc<Hook>,
    event: HookEvent,
    scene: &Scene,
) -> Result<Option<HookOutput>, LostWorker> {
    let name = event.name();
    match ctx.workers.call_hook(&hook.name, event, HookCall::of(ctx, hook, scene)).await {
        Err(CallError::Lost(lost)) => return Err(lost),
        // The session takes its workers down.
        Err(CallError::Cancelled) => {}
        Err(error) => faults::record(ctx, &hook.name, name, faults::word(&error), &error.to_string()),
        Ok(Err(text)) => faults::record(ctx, &hook.name, name, "error", &text),
        Ok(Ok(HookOutput::None)) => {}
        Ok(Ok(output)) if hook.honours(name, output.arm()) => return Ok(Some(output)),
        Ok(Ok(output)) => {
            faults::record(ctx, &hook.name, name, output.arm(), NOT_HONOURED);
        }
    }
    Ok(None)
}

/// A decision that could not be taken, told and put in words for the model.
fn undecided(ctx: &SessionContext, hook: &Hook, event: &HookEvent, arm: &str, why: &str) -> String {
    faults::record(ctx, &hook.name, event.name(), arm, why);
    format!("the hook did not decide, so the call is not made: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::hook::{TaskEndEvent, ToolEvent};

    fn hook(binding: Option<HookBinding>, asynchronous: bool, policy: &str) -> Hook {
        let contract = HookContract { binding, asynchronous, commit_policy: policy.to_owned() };
        Hook::new("h".into(), "local/h@1".into(), contract, false)
    }

    #[test]
    fn a_hook_hears_its_event_and_an_unbound_one_hears_all() {
        let stage = HookEvent::Stage(StageEvent { shell_allow: vec![] });
        let end = HookEvent::TaskEnd(TaskEndEvent { task_id: "t".into(), exit_status: "ok".into() });
        let tool = HookEvent::ToolCall(ToolEvent {
            turn: 0,
            tool_name: "t".into(),
            input_bytes: 2,
            input: "{}".into(),
            outcome: None,
        });
        let bound = hook(Some(HookBinding::OnToolCall), false, "deny");
        assert!(bound.hears(&tool) && !bound.hears(&end) && !bound.hears(&stage));
        assert!(bound.decides());
        let all = hook(None, false, "none");
        assert!(all.hears(&tool) && all.hears(&end) && all.hears(&stage) && !all.decides());
        assert!(!hook(None, true, "none").hears(&stage));
    }

    #[test]
    fn an_arm_is_honoured_at_its_event_under_its_policy_alone() {
        let reopen = hook(None, false, "reopen-task");
        assert!(reopen.honours("on-task-end", "reopen-task"));
        assert!(!reopen.honours("on-task-start", "reopen-task"));
        assert!(!reopen.honours("on-task-end", "deny"));
        assert!(!hook(None, false, "none").honours("on-task-end", "reopen-task"));
        assert!(hook(None, false, "none").honours("on-inference", "artifact"));
        assert!(!hook(None, false, "none").honours("on-session-end", "artifact"));
    }
}
