//! A completion for a hook: one request to the capsule's own driver, in the driver's worker, without tools. Ceilings,
//! retries and the task's turn budget hold for it as for the loop's own requests.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::host_calls::ArtifactCall;
use super::retry::{self, Decision, Policy};
use super::wire::{self, Request, Response, reserved};
use super::{hook_messages, members, tokens};
use crate::egress::secret::redact;
use crate::session::context::SessionContext;
use crate::session::hooks::Scene;
use crate::trace::records::{self, Inference};
use crate::worker::hook::{InferenceRequest, InferenceResponse};
use crate::worker::{CallError, Kind, Status, ToolInput};

/// The variable a driver finds its configuration in.
const DRIVER_CONFIG: &str = "MURMUR_INFERENCE_DRIVER_CONFIG";

/// Completes a hook's conversation. An error is the hook's, word for word.
pub async fn run(
    ctx: &Arc<SessionContext>,
    hook: &str,
    scene: &Scene,
    request: InferenceRequest,
) -> Result<InferenceResponse, String> {
    let call = Completion { ctx, origin: format!("hook:{hook}"), scene };
    call.check_turns()?;
    let model = request.model.clone().unwrap_or_else(|| ctx.driver.model.clone());
    let payload = call.payload(&model, &request)?;
    let input = tokens::count(payload.clone()).await;
    call.admit(&model, input)?;
    let (response, body, attempts) = call.ask(&model, &payload, input).await?;
    let output = tokens::count(body).await;
    call.record(&model, Some((&response, output)), input, attempts, None)?;
    let usage = response.usage;
    let (paid_input, paid_output) = usage.input_tokens.zip(usage.output_tokens).unwrap_or((input, output));
    call.settle(paid_input, paid_output)?;
    if let Some(task) = &scene.task {
        task.uses.add(input, output);
    }
    Ok(InferenceResponse { text: response.text, model_used: model, input_tokens: input, output_tokens: output })
}

/// One completion under way.
struct Completion<'a> {
    ctx: &'a Arc<SessionContext>,
    origin: String,
    scene: &'a Scene,
}

impl Completion<'_> {
    fn task_id(&self) -> Option<&str> {
        self.scene.task.as_ref().map(|task| task.id.as_str())
    }

    fn payload(&self, model: &str, request: &InferenceRequest) -> Result<String, String> {
        let messages = request.messages.iter().map(hook_messages::from_hook).collect::<Result<Vec<_>, _>>()?;
        let tools = RawValue::from_string("[]".to_owned()).unwrap_or_default();
        let system = request.system_prompt.as_deref().unwrap_or_default();
        let mut sent = Request::new(model, self.cap(model), system, &tools, "");
        sent.messages = messages.iter().map(|message| &*message.wire).collect();
        Ok(sent.to_json())
    }

    /// The output cap: the compaction's own inside of one, else that of a turn, and never above the model's ceiling.
    fn cap(&self, model: &str) -> u64 {
        let driver = &self.ctx.driver;
        let own = self.ctx.inference().compaction.max_tokens.filter(|_| self.scene.compacting);
        let cap = own.unwrap_or(driver.limits.max_output_tokens);
        driver.ceilings.get(model).map_or(cap, |ceiling| cap.min(*ceiling))
    }

    /// The driver's configuration, with the compaction's own keys inside of one.
    fn config(&self) -> Option<&str> {
        let driver = &self.ctx.driver;
        let own = driver.compaction.config_json.as_deref().filter(|_| self.scene.compacting);
        own.or(driver.config_json.as_deref())
    }

    fn check_turns(&self) -> Result<(), String> {
        let Some(task) = &self.scene.task else { return Ok(()) };
        match task.turns {
            (own, Some(most)) if u64::from(own) + u64::from(task.uses.turns()) >= most => {
                Err(format!("the task has used all {most} inference turns"))
            }
            _ => Ok(()),
        }
    }

    fn admit(&self, model: &str, input: u64) -> Result<(), String> {
        let output = self.cap(model);
        let admitted = self.ctx.meters().spend.admit(input, output).map_err(|fault| fault.message().to_owned())?;
        let Err(refused) = admitted else { return Ok(()) };
        if let Some(task) = &self.scene.task {
            task.uses.refuse(refused);
        }
        let record = json!({
            "turn": self.scene.turn, "task_id": self.task_id(), "limit": refused.limit.as_str(),
            "ceiling": refused.ceiling, "used": refused.used, "requested": refused.requested, "origin": self.origin,
        });
        self.ctx.trace.record_aside("spend_ceiling_reached", self.scene.parent.as_ref(), record);
        Err(format!("spend ceiling reached: {} of {} tokens are used", refused.used, refused.ceiling))
    }

    fn settle(&self, input: u64, output: u64) -> Result<(), String> {
        self.ctx.meters().spend.settle(input, output).map_err(|fault| fault.message().to_owned())
    }

    /// Asks the driver until it answers or no further attempt may help.
    async fn ask(&self, model: &str, payload: &str, input: u64) -> Result<(Response, String, u32), String> {
        let retry = self.ctx.inference().retry;
        let policy = Policy {
            max_retries: retry.max_retries,
            initial_delay: Duration::from_millis(retry.initial_delay_ms),
            max_delay: Duration::from_millis(retry.max_delay_ms),
        };
        for attempt in 1.. {
            let (reason, seen) = match self.attempt(model, payload).await? {
                Ok((response, body)) => return Ok((response, body, attempt)),
                Err(failed) => failed,
            };
            if seen.is_charged() {
                self.settle(input, 0)?;
            }
            let left = self.ctx.deadline.map(|deadline| deadline.left());
            match retry::decide(&policy, &seen, attempt, members::jitter(), left) {
                Decision::Again { wait, reason: why } => {
                    let record = json!({
                        "turn": self.scene.turn, "task_id": self.task_id(), "attempt": attempt,
                        "max_retries": policy.max_retries, "reason": why.as_str(),
                        "error": records::cut(&reason, records::REASON_LIMIT),
                        "delay_ms": u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                        "charged_tokens": if seen.is_charged() { input } else { 0 }, "origin": self.origin,
                    });
                    self.ctx.trace.record_aside("inference_retry", self.scene.parent.as_ref(), record);
                    tokio::time::sleep(wait).await;
                }
                Decision::Stop(stopped) => {
                    let reason = format!("{reason}{}", retry::suffix(attempt, stopped));
                    self.record(model, None, input, attempt, Some(&reason))?;
                    return Err(reason);
                }
            }
        }
        unreachable!("retries are bounded")
    }

    /// One attempt; a lost worker ends the session, and the hook's call with it.
    async fn attempt(
        &self,
        model: &str,
        payload: &str,
    ) -> Result<Result<(Response, String), (String, retry::Failure)>, String> {
        let host = ArtifactCall::of_hook(self.ctx, self.scene.trust(), self.scene.parent.as_ref());
        let input = ToolInput { data: Some(payload.to_owned()), log_path: None };
        let mut env = vec![("MURMUR_INFERENCE_MODEL".to_owned(), model.to_owned())];
        if self.scene.compacting
            && let Some(config) = &self.ctx.driver.compaction.config_json
        {
            env.push((DRIVER_CONFIG.to_owned(), config.clone()));
        }
        let called = self.ctx.workers.call_tool(Kind::Driver, &self.ctx.driver.bare, input, env, host.clone()).await;
        let result = match called {
            Ok(result) => result,
            Err(CallError::Lost(lost)) => return Err(lost.to_string()),
            Err(error) => return Ok(Err((format!("driver invocation failed: {error}"), host.failure(None)))),
        };
        let transient = match reserved(&result.metadata, "transient") {
            Some("true") => Some(true),
            Some("false") => Some(false),
            _ => None,
        };
        let body = result.data.or(result.summary);
        let secrets = self.ctx.secrets();
        Ok(match wire::read_response(result.status == Status::Passed, body.as_deref()) {
            Ok(response) => Ok((response, body.unwrap_or_default())),
            Err(wire::Fault::Driver(reason)) => Err((redact(&reason, &secrets), host.failure(transient))),
            Err(wire::Fault::Malformed(reason)) => Err((redact(&reason, &secrets), retry::Failure::default())),
        })
    }

    fn record(
        &self,
        model: &str,
        answered: Option<(&Response, u64)>,
        input: u64,
        attempts: u32,
        error: Option<&str>,
    ) -> Result<(), String> {
        let mut record = Map::new();
        let mut set = |key: &str, value: Value| record.insert(key.to_owned(), value);
        set("turn", json!(self.scene.turn));
        set("task_id", json!(self.task_id()));
        set("input_tokens", json!(input));
        if let Some((_, output)) = answered {
            set("output_tokens", json!(output));
        }
        let reason = answered.map_or("error", |(response, _)| response.stop_reason.as_str());
        set("decision", json!(if answered.is_some() { "text" } else { "error" }));
        set("stop_reason", json!(reason));
        set("tool_name", Value::Null);
        if let Some((response, _)) = answered {
            let usage = &response.usage;
            for (key, value) in
                [("input_tokens_actual", usage.input_tokens), ("output_tokens_actual", usage.output_tokens)]
            {
                if let Some(value) = value {
                    set(key, json!(value));
                }
            }
        }
        set("origin", json!(self.origin));
        set("model", json!(model));
        set("max_output_tokens", json!(self.cap(model)));
        set("input_budget", json!(self.ctx.driver.limits.input_budget()));
        let config = self.config().map(|config| redact(config, &self.ctx.secrets()));
        set("driver_config", config.and_then(|config| serde_json::from_str(&config).ok()).unwrap_or(Value::Null));
        if let Some(error) = error {
            set("error_code", json!("driver_error"));
            set("error", json!(records::cut(error, records::REASON_LIMIT)));
        }
        if attempts > 1 {
            set("attempts", json!(attempts));
        }
        let written = self.ctx.trace.write(self.scene.parent.as_ref(), &Inference(record));
        written.map(drop).map_err(|fault| fault.message().to_owned())
    }
}
