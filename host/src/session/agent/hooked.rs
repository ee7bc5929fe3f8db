//! Where a running task meets its session's hooks: what each event says, and what becomes of the answers.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;

use super::fence::fenced;
use super::run::{Ended, TaskRun};
use super::seed::{self, Settled};
use super::wire::{Message, Response, ToolCall};
use crate::manifest::HookBinding;
use crate::session::hooks::{Committed, Denial, Hooks, Scene, TaskScene};
use crate::session::tasks::{ArtifactFrame, Trust};
use crate::worker::hook::{
    HookEvent, HookOutput, InferenceEvent, TaskEndEvent, TaskStartEvent, ToolEvent, ToolOutcome,
};

/// How long the hooks of a cancelled task have to hear of its end: whoever cancelled it waits.
const CANCELED_LIMIT: Duration = Duration::from_secs(5);

impl TaskRun<'_> {
    /// The moment of an event; `output` is what the attempt came to.
    pub(super) fn scene(&self, turn: u32, readable: bool, output: Option<Arc<str>>) -> Scene {
        let task = TaskScene {
            id: self.task.id.to_string(),
            original: self.original.clone(),
            given: self.given.clone(),
            output,
            record: self.reader.clone(),
            trust: self.trust(),
            uses: self.uses.clone(),
            turns: (self.turns, self.max_turns()),
        };
        Scene { task: Some(task), readable, turn, parent: self.turn_node().cloned(), compacting: false }
    }

    async fn observe(&self, event: HookEvent, scene: &Scene) -> Result<Vec<Committed>, Ended> {
        let ctx = &self.agent.ctx;
        match self.unless_ended("turn", Hooks::dispatch(ctx, event, scene)).await? {
            Ok(committed) => Ok(committed),
            Err(lost) => Err(Ended::Fatal(lost.diagnostic())),
        }
    }

    /// Before the first turn. A hook may give what the conversation begins with; the first that does is heard.
    pub(super) async fn tell_task_start(&mut self) -> Result<(), Ended> {
        let ctx = Arc::clone(&self.agent.ctx);
        if !ctx.hooks.any_for(HookBinding::OnTaskStart) {
            return Ok(());
        }
        let budget = seed::budget(&ctx);
        let prior: usize = self.history.iter().map(|message| message.wire.get().len()).sum();
        let event = HookEvent::TaskStart(TaskStartEvent {
            task_id: self.task.id.to_string(),
            context_id: self.task.context.to_string(),
            source: self.task.source.as_str().to_owned(),
            input_bytes: self.task.text.len() as u64,
            budget_tokens: budget.unwrap_or(0),
            context_window: ctx.driver.limits.context_window.unwrap_or(0),
            prior_tokens: super::tokens::estimate_bytes(prior),
        });
        let committed = self.observe(event, &self.scene(0, false, None)).await?;
        let Some(first) = committed.into_iter().next() else { return Ok(()) };
        let HookOutput::SeedContext(proposed) = first.output else { return Ok(()) };
        let seeded = match seed::settle(budget, ctx.capsule.context.seed_overflow_margin, &proposed).await {
            Settled::Done(seeded) => seeded,
            Settled::TooLong(seed) => self.shorten_seed(seed).await?,
        };
        let record = json!({
            "task_id": self.task.id, "hook_name": first.hook, "tokens": seeded.tokens,
            "proposed_tokens": seeded.proposed_tokens, "budget_tokens": budget.unwrap_or(0),
            "outcome": seeded.outcome, "reason": seeded.reason,
            "message_ids": seeded.messages.iter().map(|message| message.id.as_str()).collect::<Vec<_>>(),
        });
        ctx.trace.record_aside("context_seed", self.task_node(), record);
        if let Some(reason) = &seeded.reason {
            Hooks::fault(&ctx, &first.hook, "on-task-start", "seed-rejected", reason);
        }
        for message in seeded.messages {
            self.join(message);
        }
        Ok(())
    }

    /// After a response. What a hook makes of it goes to the task's stream.
    pub(super) async fn tell_inference(
        &self,
        turn: u32,
        response: &Response,
        tokens: (u64, u64),
        from: usize,
    ) -> Result<(), Ended> {
        let ctx = &self.agent.ctx;
        if !ctx.hooks.any_for(HookBinding::OnInference) {
            return Ok(());
        }
        let sent: Vec<&RawValue> = self.history[from..].iter().map(|message| &*message.wire).collect();
        let event = HookEvent::Inference(InferenceEvent {
            turn,
            input_tokens: tokens.0,
            output_tokens: tokens.1,
            decision: response.stop_reason.decision().to_owned(),
            tool_name: response.calls.first().map(|call| call.name.clone()),
            prompt: serde_json::to_string(&sent).ok(),
            output: Some(response.text.clone()),
            tools: Some(self.agent.tools().text.get().to_owned()),
        });
        for Committed { hook, output } in self.observe(event, &self.scene(turn, true, None)).await? {
            let HookOutput::Artifact(text) = output else { continue };
            if serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text).is_err() {
                Hooks::fault(ctx, &hook, "on-inference", "artifact", "it is no JSON object");
                continue;
            }
            self.stream.artifact(ArtifactFrame {
                tool_name: None,
                content: text.as_str().into(),
                fence_source: None,
                tool_call_id: None,
                is_error: None,
                duration_ms: None,
                exit_code: None,
                truncated: None,
            });
        }
        Ok(())
    }

    /// Before a call runs: whether it may. A refusal stands in the trace and goes to the model in the call's place.
    pub(super) async fn ask_about_call(&self, turn: u32, call: &ToolCall) -> Result<Option<Message>, Ended> {
        let ctx = &self.agent.ctx;
        if !ctx.hooks.any_for(HookBinding::OnToolCall) {
            return Ok(None);
        }
        let event = HookEvent::ToolCall(tool_event(turn, call, None));
        let scene = self.scene(turn, true, None);
        let asked = self.unless_ended("turn", Hooks::decide(ctx, event, &scene)).await?;
        let denial = asked.map_err(|lost| Ended::Fatal(lost.diagnostic()))?;
        let Some(Denial { hook, reason }) = denial else { return Ok(None) };
        self.denied_by_hook(turn, "on-tool-call", &call.name, &hook, &reason)?;
        let told = format!("tool '{}' was not called: hook '{hook}' denied it: {reason}", call.name);
        Ok(Some(Message::tool(&call.id, true, &told)))
    }

    /// The trace of a denied call, which leaves no other line.
    pub(super) fn denied_by_hook(
        &self,
        turn: u32,
        event: &str,
        target: &str,
        hook: &str,
        reason: &str,
    ) -> Result<(), Ended> {
        let record = json!({ "turn": turn, "event": event, "hook_name": hook, "target": target, "reason": reason });
        self.agent.ctx.trace.record("call_denied", self.turn_node(), record)?;
        Ok(())
    }

    /// After a call: how it went.
    pub(super) async fn tell_call(
        &self,
        turn: u32,
        call: &ToolCall,
        output_bytes: usize,
        is_error: bool,
        duration_ms: u64,
    ) -> Result<(), Ended> {
        if !self.agent.ctx.hooks.any_for(HookBinding::OnToolCall) {
            return Ok(());
        }
        let outcome = ToolOutcome {
            output_bytes: output_bytes as u64,
            duration_ms,
            status: if is_error { "error" } else { "ok" }.to_owned(),
        };
        let event = HookEvent::ToolCall(tool_event(turn, call, Some(outcome)));
        self.observe(event, &self.scene(turn, true, None)).await.map(drop)
    }

    /// After an attempt. A hook may have the task go on, for a reason that the model is told: whether it does.
    pub(super) async fn tell_task_end(&mut self, ended: &Ended) -> Result<bool, Ended> {
        let ctx = Arc::clone(&self.agent.ctx);
        if !ctx.hooks.any_for(HookBinding::OnTaskEnd) {
            return Ok(false);
        }
        let event = HookEvent::TaskEnd(TaskEndEvent {
            task_id: self.task.id.to_string(),
            exit_status: ended.exit_status().as_str().to_owned(),
        });
        let output = match ended {
            Ended::Answered(text) => Some(Arc::from(text.as_str())),
            _ => None,
        };
        let scene = self.scene(self.turns.saturating_sub(1), true, output);
        if matches!(ended, Ended::Canceled { .. }) {
            let told = tokio::time::timeout(CANCELED_LIMIT, Hooks::dispatch(&ctx, event, &scene)).await;
            return match told {
                Ok(Err(lost)) => Err(Ended::Fatal(lost.diagnostic())),
                _ => Ok(false),
            };
        }
        let committed = self.observe(event, &scene).await?;
        let Some(Committed { hook, output: HookOutput::ReopenTask(reason) }) = committed.into_iter().next() else {
            return Ok(false);
        };
        self.reopen(&hook, &reason)
    }

    fn reopen(&mut self, hook: &str, reason: &str) -> Result<bool, Ended> {
        let ctx = &self.agent.ctx;
        let most = ctx.capsule.lifecycle.max_task_reopens;
        if self.reopens >= most {
            return Err(Ended::ReopensSpent(format!(
                "task reopen budget exhausted: hook '{hook}' asked again after {most} reopen(s): {reason}"
            )));
        }
        if !self.has_turn_left() {
            return Err(Ended::ReopensSpent(format!(
                "task turn budget exhausted: hook '{hook}' asked for more and no turn is left: {reason}"
            )));
        }
        self.reopens += 1;
        let record = json!({
            "task_id": self.task.id, "hook_name": hook, "reason": reason, "reopen_number": self.reopens,
            "attempt_context": "continued", "turns_remaining": self.turns_remaining(),
        });
        ctx.trace.record("task_reopened", self.task_node(), record)?;
        self.given = format!("{}\n\n# Reopen feedback\n\n{reason}", self.given).into();
        let source = format!("task:{}", self.task.origin.as_str());
        let message = match self.task.trust {
            Trust::Trusted => Message::user(reason),
            Trust::Untrusted => Message::user(&fenced(&source, reason)).fenced_by(&source),
        };
        self.join(message);
        Ok(true)
    }
}

fn tool_event(turn: u32, call: &ToolCall, outcome: Option<ToolOutcome>) -> ToolEvent {
    let input = call.input.get().to_owned();
    ToolEvent { turn, tool_name: call.name.clone(), input_bytes: input.len() as u64, input, outcome }
}
