//! One turn: a request to the driver, made again where that may help, and what follows from its response.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::ending::INPUT_TIMEOUT;
use super::host_calls::ArtifactCall;
use super::retry::{self, Decision, Failure, Policy, Stopped};
use super::run::{Ended, TaskRun};
use super::wire::{self, Fault, Message, Request, Response, StopReason, reserved};
use super::{members, results, sha256, tokens};
use crate::diagnostics::{Diagnostic, codes, output};
use crate::egress::secret::redact;
use crate::manifest::Capture;
use crate::session::hooks::Scene;
use crate::trace::records::{self, Inference};
use crate::worker::{CallError, Kind, Status, ToolInput, ToolResult};

/// A request as it is sent, once or several times.
struct Payload {
    json: String,
    /// Tokens of the whole conversation, whatever part of it is sent.
    input_tokens: u64,
    /// The first message it embeds.
    from: usize,
}

/// A failed driver call.
struct Failed {
    cause: &'static str,
    error_code: &'static str,
    reason: String,
    seen: Failure,
}

/// A driver call that was answered.
struct Answered {
    response: Response,
    /// The response as the driver returned it.
    body: String,
    continuation: Option<String>,
}

/// How often a request was made, and why no more.
#[derive(Clone, Copy)]
struct Attempts {
    made: u32,
    stopped: Option<Stopped>,
}

impl TaskRun<'_> {
    /// Runs one turn; the answer, if it brought one.
    pub(super) async fn turn(&mut self) -> Result<Option<String>, Ended> {
        let turn = self.turns;
        self.input.turn.store(turn, Ordering::Relaxed);
        self.stream.status(&format!("inference turn {}", turn + 1));
        self.compact_if_due().await?;
        self.refresh_tools(turn)?;
        let payload = self.payload().await;
        self.admit(turn, &payload)?;
        let Answered { response, continuation, .. } = self.infer(turn, &payload).await?;
        self.turns += 1;
        let assistant = Message::assistant(&response.content);
        match response.stop_reason {
            StopReason::EndTurn => {
                self.remember(assistant, continuation);
                Ok(Some(response.text))
            }
            StopReason::MaxTokens => {
                self.remember(assistant.truncated(), continuation);
                Ok(Some(self.truncated(turn, &response.text)))
            }
            StopReason::ToolCall => {
                // On record before its tools run: of a session that is killed meanwhile it is known what it had begun.
                self.remember(assistant, continuation);
                for call in &response.calls {
                    if self.task.canceled.is_set() {
                        return Err(Ended::Canceled { phase: "turn" });
                    }
                    let answer = self.dispatch(turn, call).await?;
                    self.join(answer);
                }
                Ok(None)
            }
        }
    }

    /// What the model pulled or removed reaches it with its next request.
    fn refresh_tools(&self, turn: u32) -> Result<(), Ended> {
        let Some((added, removed, tools)) = self.agent.refresh_tools() else { return Ok(()) };
        let record = json!({
            "turn": turn, "task_id": self.task.id, "trigger": "agent", "added": added, "removed": removed, "tools": tools,
        });
        self.agent.ctx.trace.record("tools_refreshed", self.task_node(), record)?;
        Ok(())
    }

    fn remember(&mut self, assistant: Message, continuation: Option<String>) {
        self.join(assistant);
        self.counted = self.history.len();
        self.continuation = continuation.map(|id| (id, self.history.len()));
    }

    /// An answer that the output cap cut is an answer.
    fn truncated(&self, turn: u32, text: &str) -> String {
        let cap = self.agent.ctx.driver.limits.max_output_tokens;
        output::runtime_warning(&Diagnostic::new(
            codes::W_RUN_001,
            format!("the answer of inference turn {} was cut at inference.max_tokens ({cap})", turn + 1),
        ));
        format!("{text}\n\n{}", results::truncation_mark(cap))
    }

    async fn payload(&self) -> Payload {
        let from = self.continuation.as_ref().map_or(0, |(_, known)| *known);
        let json = self.request(from, self.continuation.as_ref().map(|(id, _)| id.as_str()));
        let counted = self.agent.meters().spend.has_ceiling();
        let input_tokens = if !counted {
            let unsent: usize = self.history[..from].iter().map(|message| message.wire.get().len()).sum();
            tokens::estimate_bytes(json.len() + unsent)
        } else if from == 0 {
            tokens::count(json.clone()).await
        } else {
            tokens::count(self.whole_request()).await
        };
        Payload { json, input_tokens, from }
    }

    /// The request that sends the whole conversation, whatever the driver knows of it.
    pub(super) fn whole_request(&self) -> String {
        self.request(0, None)
    }

    fn request(&self, from: usize, continuation: Option<&str>) -> String {
        let ctx = &self.agent.ctx;
        let cache_key = wire::cache_key(&ctx.capsule, self.task.context.as_str());
        let cap = ctx.driver.limits.max_output_tokens;
        let tools = self.agent.tools();
        let mut request = Request::new(&ctx.driver.model, cap, &self.agent.system.text, &tools.text, &cache_key);
        request.messages = self.history[from..].iter().map(|message| &*message.wire).collect();
        request.continuation_id = continuation;
        request.to_json()
    }

    fn admit(&self, turn: u32, payload: &Payload) -> Result<(), Ended> {
        let cap = self.agent.ctx.driver.limits.max_output_tokens;
        let admitted = self.agent.meters().spend.admit(payload.input_tokens, cap)?;
        let Err(refused) = admitted else { return Ok(()) };
        let record = json!({
            "turn": turn, "task_id": self.task.id, "limit": refused.limit.as_str(), "ceiling": refused.ceiling,
            "used": refused.used, "requested": refused.requested,
        });
        self.agent.ctx.trace.record("spend_ceiling_reached", self.turn_node(), record)?;
        Err(Ended::Spend(refused))
    }

    /// Asks the driver until it answers or no further attempt may help.
    async fn infer(&mut self, turn: u32, payload: &Payload) -> Result<Answered, Ended> {
        let retry = self.agent.ctx.inference().retry;
        let policy = Policy {
            max_retries: retry.max_retries,
            initial_delay: Duration::from_millis(retry.initial_delay_ms),
            max_delay: Duration::from_millis(retry.max_delay_ms),
        };
        for attempt in 1.. {
            let failed = match self.call_driver(turn, payload).await? {
                Ok(answered) => {
                    self.record_answer(turn, payload, &answered, attempt).await?;
                    return Ok(answered);
                }
                Err(failed) => failed,
            };
            let charged = if failed.seen.is_charged() { payload.input_tokens } else { 0 };
            self.agent.meters().spend.settle(charged, 0)?;
            if self.input.timed_out.load(Ordering::Relaxed) {
                // The driver itself had asked: another attempt would ask again.
                let failed = Failed { cause: INPUT_TIMEOUT, ..failed };
                return Err(self.give_up(turn, payload, failed, Attempts { made: attempt, stopped: None }));
            }
            let left = self.agent.ctx.deadline.map(|deadline| deadline.left());
            match retry::decide(&policy, &failed.seen, attempt, members::jitter(), left) {
                Decision::Again { wait, reason } => {
                    self.record_retry(turn, attempt, policy.max_retries, &failed, reason, wait, charged)?;
                    self.unless_ended("inference", tokio::time::sleep(wait)).await?;
                }
                Decision::Stop(stopped) => {
                    return Err(self.give_up(turn, payload, failed, Attempts { made: attempt, stopped }));
                }
            }
        }
        unreachable!("retries are bounded")
    }

    async fn call_driver(&self, turn: u32, payload: &Payload) -> Result<Result<Answered, Failed>, Ended> {
        let ctx = &self.agent.ctx;
        let scene = Scene { parent: self.task_node().cloned(), ..self.scene(turn, true, None) };
        let host = ArtifactCall::of_driver(ctx, &self.stream, scene, &self.input);
        let input = ToolInput { data: Some(payload.json.clone()), log_path: None };
        let calling = ctx.workers.call_tool(Kind::Driver, &ctx.driver.bare, input, Vec::new(), host.clone());
        let result = self.unless_ended("inference", calling).await?;
        let read = match result {
            Ok(result) => self.read(result, &host),
            Err(CallError::Lost(lost)) => return Err(Ended::Fatal(lost.diagnostic())),
            Err(error) => Err(Failed {
                cause: "driver_error",
                error_code: "driver_failed",
                reason: format!("driver invocation failed: {error}"),
                seen: host.failure(None),
            }),
        };
        host.finish_stream(read.as_ref().ok().map(|answered| answered.response.text.as_str()));
        Ok(read.map_err(|failed| self.cleaned(failed)))
    }

    fn read(&self, result: ToolResult, host: &ArtifactCall) -> Result<Answered, Failed> {
        let transient = match reserved(&result.metadata, "transient") {
            Some("true") => Some(true),
            Some("false") => Some(false),
            _ => None,
        };
        let continuation = reserved(&result.metadata, "continuation_id").filter(|id| !id.is_empty()).map(str::to_owned);
        let body = result.data.or(result.summary);
        let fault = match wire::read_response(result.status == Status::Passed, body.as_deref()) {
            Ok(response) => {
                for call in &response.calls {
                    warn_renamed(host, &call.id, &call.name);
                }
                return Ok(Answered { response, body: body.unwrap_or_default(), continuation });
            }
            Err(fault) => fault,
        };
        let (cause, reason, seen) = match fault {
            Fault::Driver(reason) => ("driver_error", reason, host.failure(transient)),
            // What the provider said about a call does not explain an unreadable answer to it.
            Fault::Malformed(reason) => ("malformed_response", reason, Failure::default()),
        };
        Err(Failed { cause, error_code: cause, reason, seen })
    }

    /// The failure as it may be told: a standing rejection has words of its own, and no key is in any.
    fn cleaned(&self, mut failed: Failed) -> Failed {
        if failed.seen.credential_rejected {
            failed.cause = "credential_rejected";
            failed.error_code = failed.cause;
            failed.reason = format!(
                "[{}] the provider rejects the credential of driver '{}' (HTTP 401), and reading it again brought no other: \
                 {}",
                codes::E_RUN_027,
                self.agent.ctx.driver.full,
                failed.reason
            );
        }
        if failed.seen.connection.is_some() {
            let driver = &self.agent.ctx.driver;
            failed.reason = format!("{} (gateway.endpoint {} of '{}')", failed.reason, driver.endpoint, driver.full);
        }
        failed.reason = redact(&failed.reason, &self.agent.ctx.secrets());
        failed
    }

    fn give_up(&mut self, turn: u32, payload: &Payload, failed: Failed, attempts: Attempts) -> Ended {
        let reason = format!("{}{}", failed.reason, retry::suffix(attempts.made, attempts.stopped));
        let mut record = self.inference_head(turn, payload, None);
        record.insert("decision".into(), json!("error"));
        record.insert("stop_reason".into(), json!("error"));
        record.insert("tool_name".into(), Value::Null);
        self.inference_limits(&mut record, payload);
        if let Err(error) = self.inference_hashes(&mut record, payload, None) {
            return Ended::Fatal(error);
        }
        record.insert("error_code".into(), json!(failed.error_code));
        record.insert("error".into(), json!(records::cut(&failed.reason, records::REASON_LIMIT)));
        if let Some(status) = failed.seen.status {
            record.insert("provider_status".into(), json!(status));
        }
        attempts.write_into(&mut record);
        if let Err(error) = self.agent.ctx.trace.write(self.task_node(), &Inference(record)) {
            return Ended::Fatal(error);
        }
        Ended::Failed { cause: failed.cause, reason, turn: Some(turn) }
    }

    async fn record_answer(
        &mut self,
        turn: u32,
        payload: &Payload,
        answered: &Answered,
        attempt: u32,
    ) -> Result<(), Ended> {
        let Answered { response, body, .. } = answered;
        let counted = self.agent.meters().spend.has_ceiling();
        let output_tokens =
            if counted { tokens::count(body.clone()).await } else { tokens::estimate_bytes(body.len()) };
        let mut record = self.inference_head(turn, payload, Some(output_tokens));
        record.insert("decision".into(), json!(response.stop_reason.decision()));
        record.insert("stop_reason".into(), json!(response.stop_reason.as_str()));
        record.insert("tool_name".into(), json!(response.calls.first().map(|call| &call.name)));
        let usage = &response.usage;
        for (key, value) in [
            ("input_tokens_actual", usage.input_tokens),
            ("output_tokens_actual", usage.output_tokens),
            ("cached_tokens", usage.cached_tokens),
            ("cache_write_tokens", usage.cache_write_tokens),
            ("thinking_tokens", usage.thinking_tokens),
        ] {
            if let Some(value) = value {
                record.insert(key.into(), json!(value));
            }
        }
        self.inference_limits(&mut record, payload);
        self.inference_hashes(&mut record, payload, Some(body))?;
        Attempts { made: attempt, stopped: None }.write_into(&mut record);
        self.turn_node = Some(self.agent.ctx.trace.write(self.task_node(), &Inference(record))?);
        self.meter(payload.input_tokens, output_tokens, usage)?;
        self.tell_inference(turn, response, (payload.input_tokens, output_tokens), payload.from).await
    }

    /// Adds a served call to the sums of the task and the session.
    fn meter(&mut self, input: u64, output: u64, usage: &wire::Usage) -> Result<(), Diagnostic> {
        self.sums.input_tokens += input;
        self.sums.output_tokens += output;
        let reported = usage.input_tokens.zip(usage.output_tokens);
        let cached = usage.cached_tokens.unwrap_or(0).saturating_add(usage.cache_write_tokens.unwrap_or(0));
        self.sums.occupancy = match reported {
            Some((fresh, written)) => (fresh.saturating_add(cached).saturating_add(written), true),
            None => (input.saturating_add(output), false),
        };
        let mut meters = self.agent.meters();
        let (paid_input, paid_output) = reported.unwrap_or((input, output));
        meters.spend.settle(paid_input, paid_output)?;
        let sums = &mut meters.tokens;
        sums.input = sums.input.saturating_add(usage.input_tokens.unwrap_or(0));
        sums.output = sums.output.saturating_add(usage.output_tokens.unwrap_or(0));
        sums.cached = sums.cached.saturating_add(usage.cached_tokens.unwrap_or(0));
        sums.cache_write = sums.cache_write.saturating_add(usage.cache_write_tokens.unwrap_or(0));
        sums.unreported_calls += u64::from(reported.is_none());
        Ok(())
    }

    fn inference_head(&self, turn: u32, payload: &Payload, output_tokens: Option<u64>) -> Map<String, Value> {
        let mut record = Map::new();
        record.insert("turn".into(), json!(turn));
        record.insert("task_id".into(), json!(self.task.id));
        record.insert("input_tokens".into(), json!(payload.input_tokens));
        if let Some(output_tokens) = output_tokens {
            record.insert("output_tokens".into(), json!(output_tokens));
        }
        record
    }

    fn inference_limits(&self, record: &mut Map<String, Value>, payload: &Payload) {
        let driver = &self.agent.ctx.driver;
        let config = driver.config_json.as_deref().map(|config| redact(config, &self.agent.ctx.secrets()));
        let config = config.and_then(|config| serde_json::from_str(&config).ok()).unwrap_or(Value::Null);
        record.insert("max_output_tokens".into(), json!(driver.limits.max_output_tokens));
        record.insert("input_budget".into(), json!(driver.limits.input_budget()));
        record.insert("driver_config".into(), config);
        let ids: Vec<&str> = self.history[payload.from..].iter().map(|message| message.id.as_str()).collect();
        record.insert("message_ids".into(), json!(ids));
    }

    /// Digests of what was sent and returned; none for a failed call.
    fn inference_hashes(
        &self,
        record: &mut Map<String, Value>,
        payload: &Payload,
        body: Option<&str>,
    ) -> Result<(), Diagnostic> {
        let Some(body) = body.filter(|_| self.agent.ctx.capsule.trace.capture != Capture::None) else { return Ok(()) };
        let agent = self.agent;
        agent.keep_blob(&agent.system.sha, &agent.system.text)?;
        let tools = agent.tools();
        agent.keep_blob(&tools.sha, tools.text.get())?;
        let response_sha = sha256(body.as_bytes());
        agent.keep_blob(&response_sha, body)?;
        let mut message_shas = Vec::with_capacity(self.history.len() - payload.from);
        for message in &self.history[payload.from..] {
            agent.keep_blob(message.sha(), message.wire.get())?;
            message_shas.push(message.sha());
        }
        record.insert("system_sha".into(), json!(agent.system.sha));
        record.insert("tools_sha".into(), json!(tools.sha));
        record.insert("response_sha".into(), json!(response_sha));
        record.insert("message_shas".into(), json!(message_shas));
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "each is one key of the record")]
    fn record_retry(
        &self,
        turn: u32,
        attempt: u32,
        max_retries: u32,
        failed: &Failed,
        reason: retry::Reason,
        wait: Duration,
        charged: u64,
    ) -> Result<(), Ended> {
        let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let mut record = Map::new();
        record.insert("turn".into(), json!(turn));
        record.insert("task_id".into(), json!(self.task.id));
        record.insert("attempt".into(), json!(attempt));
        record.insert("max_retries".into(), json!(max_retries));
        record.insert("reason".into(), json!(reason.as_str()));
        if let Some(status) = failed.seen.status {
            record.insert("provider_status".into(), json!(status));
        }
        record.insert("error".into(), json!(records::cut(&failed.reason, records::REASON_LIMIT)));
        record.insert("delay_ms".into(), json!(millis(wait)));
        if let Some(asked) = failed.seen.retry_after {
            record.insert("retry_after_ms".into(), json!(millis(asked)));
        }
        record.insert("charged_tokens".into(), json!(charged));
        self.agent.ctx.trace.record("inference_retry", self.task_node(), record)?;
        Ok(())
    }
}

impl Attempts {
    fn write_into(self, record: &mut Map<String, Value>) {
        if self.made > 1 {
            record.insert("attempts".into(), json!(self.made));
        }
        if let Some(stopped) = self.stopped {
            record.insert("retry_stopped".into(), json!(stopped.as_str()));
        }
    }
}

/// A call returned under another name than it was announced with is told; the returned name counts.
fn warn_renamed(host: &ArtifactCall, id: &str, name: &str) {
    if let Some(announced) = host.announced(id).filter(|announced| announced != name) {
        output::stderr_line(&format!(
            "[capsule-runtime] the driver announced tool call '{id}' as '{announced}' and returned it as '{name}'"
        ));
    }
}
