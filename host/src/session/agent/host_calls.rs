//! What one running driver or tool call may ask of the session, and what the session learns from it.

mod process;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use serde_json::json;

use super::retry::{Connection, Failure, asked_wait};
use super::stream::TaskStream;
use crate::egress::{HttpError, HttpRequest, HttpResponse, PeerAnswer, PeerMessage, TrustClass};
use crate::ids::EventId;
use crate::session::SessionContext;
use crate::session::hooks::Scene;
use crate::worker::{BoxFuture, HostCalls, ProcessOutcome, ProcessRequest};

/// Tool calls of one response whose progress is followed.
const PROGRESS_CALLS_MAX: usize = 256;

/// The error text of a wait for input that took too long; a protocol string.
pub const INPUT_TIMEOUT: &str = "input-timeout";
/// The error text of a wait for input whose task was cancelled; a protocol string.
const TASK_CANCELED: &str = "task-canceled";

/// What calls of the running task tell it: whether it waits, or waited too long, for input, and how many commands they ran.
#[derive(Default)]
pub struct InputState {
    /// The turn that runs.
    pub turn: AtomicU32,
    /// Commands that artifacts ran.
    pub commands: AtomicU32,
    /// A call waits at this moment.
    pub waiting: AtomicBool,
    /// A wait has timed out in this attempt.
    pub timed_out: AtomicBool,
}

/// The host calls of one artifact call.
pub struct ArtifactCall {
    ctx: Arc<SessionContext>,
    /// The running task's; none for what a hook asked for.
    stream: Option<TaskStream>,
    trust: TrustClass,
    /// Only the loop's own driver may announce tool calls.
    announces: bool,
    input: Arc<InputState>,
    /// What its records hang off.
    parent: Option<EventId>,
    /// For hooks that hear of the commands it runs; none for what a hook asked for itself.
    scene: Option<Scene>,
    seen: Mutex<Seen>,
}

/// What was seen of the call so far.
#[derive(Default)]
struct Seen {
    streamed: bool,
    credential_rejected: bool,
    connection: Option<Connection>,
    status: Option<u16>,
    retry_after: Option<Duration>,
    progress: Progress,
}

impl ArtifactCall {
    /// For the loop's own driver call.
    pub fn of_driver(
        ctx: &Arc<SessionContext>,
        stream: &TaskStream,
        scene: Scene,
        input: &Arc<InputState>,
    ) -> Arc<Self> {
        Self::of_task(ctx, stream, scene, input, true)
    }

    /// For a tool's call.
    pub fn of_tool(ctx: &Arc<SessionContext>, stream: &TaskStream, scene: Scene, input: &Arc<InputState>) -> Arc<Self> {
        Self::of_task(ctx, stream, scene, input, false)
    }

    fn of_task(
        ctx: &Arc<SessionContext>,
        stream: &TaskStream,
        scene: Scene,
        input: &Arc<InputState>,
        announces: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            ctx: Arc::clone(ctx),
            stream: Some(stream.clone()),
            trust: scene.trust(),
            announces,
            input: Arc::clone(input),
            parent: scene.parent.clone(),
            scene: Some(scene),
            seen: Mutex::default(),
        })
    }

    /// For a driver's call that a hook asked for: nothing of it is streamed, and it cannot ask for input.
    pub fn of_hook(ctx: &Arc<SessionContext>, trust: TrustClass, parent: Option<&EventId>) -> Arc<Self> {
        Arc::new(Self {
            ctx: Arc::clone(ctx),
            stream: None,
            trust,
            announces: false,
            input: Arc::default(),
            parent: parent.cloned(),
            scene: None,
            seen: Mutex::default(),
        })
    }

    /// Ends the call's part of the stream: `reply` is the whole text when nothing was streamed.
    pub fn finish_stream(&self, reply: Option<&str>) {
        let streamed = self.seen().streamed;
        match (&self.stream, streamed, reply) {
            (Some(stream), true, _) => stream.text("", true),
            (Some(stream), false, Some(text)) if !text.is_empty() => stream.text(text, true),
            _ => {}
        }
    }

    /// The name under which the driver announced a call, if it did.
    pub fn announced(&self, id: &str) -> Option<String> {
        self.seen().progress.calls.get(id).map(|(name, _)| name.clone())
    }

    /// What the provider connection says about a failed call.
    pub fn failure(&self, transient: Option<bool>) -> Failure {
        let seen = self.seen();
        Failure {
            credential_rejected: seen.credential_rejected,
            transient,
            connection: seen.connection,
            status: seen.status,
            retry_after: seen.retry_after,
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// The last request decides.
    fn answered(&mut self, response: &HttpResponse) {
        self.connection = None;
        self.status = Some(response.status.as_u16());
        self.credential_rejected = response.credential_rejected;
        self.retry_after = retry_after(&response.headers);
    }

    fn failed(&mut self, error: &HttpError) {
        self.status = None;
        self.retry_after = None;
        self.credential_rejected = false;
        self.connection = Some(if error.is_transient() { Connection::Broken } else { Connection::Impossible });
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    asked_wait(text("retry-after-ms"), text("retry-after"), SystemTime::now())
}

impl HostCalls for ArtifactCall {
    fn http<'a>(&'a self, artifact: &'a str, request: HttpRequest) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            let sender = self.ctx.sender(artifact, self.trust, None);
            let result = self.ctx.egress.send(&sender, request).await;
            let mut seen = self.seen();
            match &result {
                Ok(response) => seen.answered(response),
                Err(error) => seen.failed(error),
            }
            result
        })
    }

    fn process_run<'a>(
        &'a self,
        artifact: &'a str,
        request: ProcessRequest,
    ) -> BoxFuture<'a, Result<ProcessOutcome, String>> {
        Box::pin(self.run_process(artifact, request))
    }

    fn message_send<'a>(
        &'a self,
        artifact: &'a str,
        peer_url: &'a str,
        message: PeerMessage,
    ) -> BoxFuture<'a, Result<PeerAnswer, String>> {
        Box::pin(async move {
            let sender = self.ctx.sender(artifact, self.trust, None);
            let message_id = message.message_id.clone();
            let answer = self.ctx.egress.message_send(&sender, peer_url, message).await?;
            // The address as the artifact knows it: of a member that is the virtual one.
            let record = json!({
                "peer_url": peer_url, "message_id": message_id, "task_id": answer.task_id,
                "context_id": answer.context_id, "traceparent": sender.traceparent, "trust": self.trust.as_str(),
            });
            self.ctx.trace.record_aside("a2a_send", self.parent.as_ref(), record);
            Ok(answer)
        })
    }

    fn emit_chunk(&self, text: &str) {
        self.seen().streamed = true;
        if let Some(stream) = &self.stream {
            stream.text(text, false);
        }
    }

    fn emit_thinking(&self, text: &str) {
        if let Some(stream) = &self.stream {
            stream.thinking(text);
        }
    }

    fn tool_call_started(&self, id: &str, name: &str) {
        if self.announces
            && self.seen().progress.start(id, name)
            && let Some(stream) = &self.stream
        {
            stream.tool_call_started(id, name);
        }
    }

    fn tool_call_input_bytes(&self, id: &str, bytes: u64) {
        if !self.announces {
            return;
        }
        let grew = self.seen().progress.grow(id, bytes);
        if grew && let Some(stream) = &self.stream {
            stream.tool_call_progress(id, bytes);
        }
    }

    fn request_input<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async move {
            if self.stream.is_none() {
                return Err("request-input is not available outside an A2A task context".to_owned());
            }
            self.input.waiting.store(true, Ordering::Relaxed);
            let waited = self.wait_for_input(prompt).await;
            // A cancel leaves the mark: it tells in which phase the task was.
            if waited.as_ref().err().is_none_or(|error| error != TASK_CANCELED) {
                self.input.waiting.store(false, Ordering::Relaxed);
            }
            waited
        })
    }
}

impl ArtifactCall {
    async fn wait_for_input(&self, prompt: &str) -> Result<String, String> {
        let waiting = self.stream.as_ref().and_then(|stream| stream.require_input(prompt));
        let Some(mut wait) = waiting else { return Err(TASK_CANCELED.to_owned()) };
        let answer = match self.ctx.capsule.lifecycle.input_timeout_secs {
            None => wait.message().await,
            Some(secs) => match tokio::time::timeout(Duration::from_secs(secs), wait.message()).await {
                Ok(answer) => answer,
                Err(_) => {
                    drop(wait);
                    if let Some(stream) = &self.stream {
                        stream.input_expired();
                    }
                    self.input.timed_out.store(true, Ordering::Relaxed);
                    return Err(INPUT_TIMEOUT.to_owned());
                }
            },
        };
        answer.ok_or_else(|| TASK_CANCELED.to_owned())
    }
}

/// The tool calls a response announces while it is written.
#[derive(Default)]
struct Progress {
    /// By id: the announced name, and the bytes of input so far.
    calls: HashMap<String, (String, u64)>,
}

impl Progress {
    /// Whether the announcement is new.
    fn start(&mut self, id: &str, name: &str) -> bool {
        if id.is_empty() || self.calls.contains_key(id) || self.calls.len() >= PROGRESS_CALLS_MAX {
            return false;
        }
        self.calls.insert(id.to_owned(), (name.to_owned(), 0));
        true
    }

    /// Whether the count of a known call grew. The registry thins out what it passes on.
    fn grow(&mut self, id: &str, bytes: u64) -> bool {
        let Some((_, known)) = self.calls.get_mut(id) else { return false };
        let grew = bytes > *known;
        *known = bytes.max(*known);
        grew
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_announced_once_and_its_count_only_grows() {
        let mut progress = Progress::default();
        assert!(progress.start("a", "grep"));
        assert!(!progress.start("a", "other"), "a repeated id");
        assert!(!progress.start("", "grep"), "an empty id");
        assert!(!progress.grow("unknown", 5));
        assert!(progress.grow("a", 5));
        assert!(!progress.grow("a", 5) && !progress.grow("a", 4));
        assert!(progress.grow("a", 9));
    }

    #[test]
    fn the_last_request_decides_about_a_retry() {
        let mut seen = Seen::default();
        seen.failed(&HttpError::ConnectionLost);
        assert_eq!(seen.connection, Some(Connection::Broken));
        let body = http_body_util::BodyExt::boxed_unsync(http_body_util::BodyExt::map_err(
            http_body_util::Empty::<bytes::Bytes>::new(),
            |never| match never {},
        ));
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", "2".parse().unwrap());
        let status = http::StatusCode::TOO_MANY_REQUESTS;
        seen.answered(&HttpResponse { status, headers, body, credential_rejected: false });
        assert_eq!((seen.connection, seen.status), (None, Some(429)));
        assert_eq!(seen.retry_after, Some(Duration::from_secs(2)));
        seen.failed(&HttpError::ConnectionRefused);
        assert_eq!((seen.connection, seen.status), (Some(Connection::Impossible), None));
    }
}
