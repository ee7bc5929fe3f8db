//! The `murmur:` interfaces of tools and http drivers, each forwarded to `mur`. Their shapes are those of `host/wit`.

use bytes::Bytes;
use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentType, Lift, Linker, Lower};

use super::super::protocol::wire::MAX_LIST;
use super::super::protocol::{Answer, Ask, Event, MAX_FRAGMENT, MAX_PROCESS, MAX_TEXT, Up, fragments};
use super::super::types::{ProcessOutcome, ProcessRequest, Status, ToolResult};
use super::state::State;
use crate::egress::{PeerAnswer, PeerMessage};

const EVENTS: &str = "murmur:stream/events@0.1.0";
const TASK: &str = "murmur:task/task@0.1.0";
const PROCESS: &str = "murmur:process/exec@0.1.0";
const MESSAGE: &str = "murmur:message/send@0.1.0";

/// Packages of WASI that are linked, in any version the definitions satisfy.
const WASI: [&str; 6] = ["wasi:cli/", "wasi:clocks/", "wasi:filesystem/", "wasi:io/", "wasi:random/", "wasi:sockets/"];

/// Whether an import is given to tools and http drivers.
pub(super) fn is_served(name: &str) -> bool {
    [EVENTS, TASK, PROCESS, MESSAGE].contains(&name) || is_wasi(name)
}

/// Whether an import is of the system that every artifact is given.
pub(super) fn is_wasi(name: &str) -> bool {
    WASI.iter().any(|package| name.starts_with(package))
        || name.starts_with("wasi:http/types@")
        || name.starts_with("wasi:http/outgoing-handler@")
}

/// `tool-input`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(super) struct WitInput {
    pub(super) data: Option<String>,
    #[component(name = "log-path")]
    pub(super) log_path: Option<String>,
}

/// `status`.
#[derive(Clone, Copy, ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
#[allow(dead_code, reason = "made by lifting only")]
pub(super) enum WitStatus {
    #[component(name = "passed")]
    Passed,
    #[component(name = "failed")]
    Failed,
    #[component(name = "error")]
    Error,
}

/// `tool-result`.
#[derive(ComponentType, Lift)]
#[component(record)]
pub(super) struct WitResult {
    status: WitStatus,
    summary: Option<String>,
    data: Option<String>,
    #[component(name = "data-path")]
    data_path: Option<String>,
    truncated: bool,
    metadata: Vec<(String, String)>,
}

impl From<WitResult> for ToolResult {
    fn from(result: WitResult) -> Self {
        let status = match result.status {
            WitStatus::Passed => Status::Passed,
            WitStatus::Failed => Status::Failed,
            WitStatus::Error => Status::Error,
        };
        let WitResult { summary, data, data_path, truncated, metadata, .. } = result;
        Self { status, summary, data, data_path, truncated, metadata }
    }
}

/// `murmur:process/exec` `request`.
#[derive(ComponentType, Lift)]
#[component(record)]
struct WitRequest {
    binary: String,
    args: Vec<String>,
    stdin: Option<Vec<u8>>,
    env: Vec<(String, String)>,
    #[component(name = "timeout-ms")]
    timeout_ms: Option<u64>,
}

impl WitRequest {
    /// Whether it fits a frame.
    fn fits(&self) -> bool {
        let texts =
            self.args.iter().map(String::len).chain(self.env.iter().map(|(name, value)| name.len() + value.len()));
        let size = texts.sum::<usize>() + self.binary.len() + self.stdin.as_ref().map_or(0, Vec::len);
        let count = self.args.len().max(self.env.len());
        count <= MAX_LIST && size + 8 * (self.args.len() + 2 * self.env.len()) < MAX_PROCESS
    }
}

/// `murmur:process/exec` `outcome`.
#[derive(ComponentType, Lower)]
#[component(record)]
struct WitOutcome {
    #[component(name = "exit-code")]
    exit_code: Option<i32>,
    signal: Option<i32>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
}

impl From<ProcessOutcome> for WitOutcome {
    fn from(outcome: ProcessOutcome) -> Self {
        let ProcessOutcome { exit_code, signal, stdout, stderr, truncated } = outcome;
        Self { exit_code, signal, stdout: stdout.into(), stderr: stderr.into(), truncated }
    }
}

/// `murmur:message/send` `message`.
#[derive(ComponentType, Lift)]
#[component(record)]
struct WitMessage {
    #[component(name = "message-id")]
    message_id: String,
    #[component(name = "context-id")]
    context_id: Option<String>,
    text: String,
}

/// `murmur:message/send` `task-result`.
#[derive(ComponentType, Lower)]
#[component(record)]
struct WitTaskResult {
    #[component(name = "task-id")]
    task_id: String,
    #[component(name = "context-id")]
    context_id: String,
    state: String,
}

impl From<PeerAnswer> for WitTaskResult {
    fn from(answer: PeerAnswer) -> Self {
        let PeerAnswer { task_id, context_id, state } = answer;
        Self { task_id, context_id, state }
    }
}

/// Links them.
pub(super) fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    link_events(linker)?;
    linker.instance(TASK)?.func_wrap_async("request-input", |store, (prompt,): (String,)| {
        Box::new(async move { request_input(store, prompt).await.map(|answer| (answer,)) })
    })?;
    linker.instance(PROCESS)?.func_wrap_async("run", |store, (request,): (WitRequest,)| {
        Box::new(async move { Ok((run_process(store, request).await,)) })
    })?;
    linker.instance(MESSAGE)?.func_wrap_async("send", |store, (peer_url, message): (String, WitMessage)| {
        Box::new(async move { Ok((send_message(store, peer_url, message).await,)) })
    })
}

fn link_events(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut events = linker.instance(EVENTS)?;
    events.func_wrap("emit-chunk", |store: StoreContextMut<'_, State>, (text,): (String,)| {
        fragments(&text).for_each(|part| emit(&store, Event::Chunk(part.to_owned())));
        Ok(())
    })?;
    events.func_wrap("emit-thinking-chunk", |store: StoreContextMut<'_, State>, (text,): (String,)| {
        fragments(&text).for_each(|part| emit(&store, Event::Thinking(part.to_owned())));
        Ok(())
    })?;
    events.func_wrap("tool-call-started", |store: StoreContextMut<'_, State>, (id, name): (String, String)| {
        // An id or a name this long belongs to no call.
        if id.len() + name.len() <= MAX_FRAGMENT {
            emit(&store, Event::ToolCallStarted(id, name));
        }
        Ok(())
    })?;
    events.func_wrap("tool-call-input-bytes", |store: StoreContextMut<'_, State>, (id, bytes): (String, u64)| {
        if id.len() <= MAX_FRAGMENT {
            emit(&store, Event::ToolCallInputBytes(id, bytes));
        }
        Ok(())
    })
}

fn emit(store: &StoreContextMut<'_, State>, event: Event) {
    let link = &store.data().link;
    link.shared.outgoing.send(&Up::Event { call: link.call, event });
}

/// Waits for a person, and the clock stands still meanwhile.
async fn request_input(store: StoreContextMut<'_, State>, prompt: String) -> wasmtime::Result<String> {
    if prompt.len() > MAX_TEXT {
        wasmtime::bail!("a prompt of {} bytes is too long to be asked", prompt.len());
    }
    let link = store.data().link.clone();
    let clock = store.data().clock.clone();
    let left = clock.stop();
    let answer = link.ask(Ask::Input(prompt)).await;
    clock.restart(left);
    match answer {
        Some(Answer::Input(Ok(text))) => Ok(text),
        Some(Answer::Input(Err(why))) => Err(wasmtime::Error::msg(why)),
        _ => Err(wasmtime::Error::msg("the request for input was not answered")),
    }
}

async fn run_process(store: StoreContextMut<'_, State>, request: WitRequest) -> Result<WitOutcome, String> {
    if !request.fits() {
        return Err("the request is too large".to_owned());
    }
    let link = store.data().link.clone();
    let WitRequest { binary, args, stdin, env, timeout_ms } = request;
    let request = ProcessRequest { binary, args, stdin: stdin.map(Bytes::from), env, timeout_ms };
    match link.ask(Ask::Process(request)).await {
        Some(Answer::Process(outcome)) => outcome.map(WitOutcome::from),
        _ => Err("the request was not answered".to_owned()),
    }
}

async fn send_message(
    store: StoreContextMut<'_, State>,
    peer_url: String,
    message: WitMessage,
) -> Result<WitTaskResult, String> {
    let WitMessage { message_id, context_id, text } = message;
    let size = peer_url.len() + message_id.len() + context_id.as_ref().map_or(0, String::len) + text.len();
    if size >= MAX_PROCESS {
        return Err("the message is too large".to_owned());
    }
    let link = store.data().link.clone();
    match link.ask(Ask::Message(peer_url, PeerMessage { message_id, context_id, text })).await {
        Some(Answer::Message(answer)) => answer.map(WitTaskResult::from),
        _ => Err("the message was not answered".to_owned()),
    }
}
