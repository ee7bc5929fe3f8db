//! The `murmur:` interfaces of hooks, each forwarded to `mur`, which knows the grants. Linking them is unconditional: an
//! ungranted hook links, and each of its calls is answered with the refusal.

use wasmtime::StoreContextMut;
use wasmtime::component::Linker;

use super::super::hook::{InferenceRequest, InferenceResponse, InputForm, IoError, MessagePage, TaskIo, TaskIoReply};
use super::super::protocol::wire::MAX_LIST;
use super::super::protocol::{Answer, Ask};
use super::imports;
use super::state::State;

const INFERENCE: &str = "murmur:runtime/inference@0.4.0";
const TOKENS: &str = "murmur:runtime/tokens@0.4.0";
const TASK_IO: &str = "murmur:task-io/read@0.1.0";
const CONVERSATION: &str = "murmur:conversation/read@0.2.0";

/// What a hook imports for its types alone.
const TYPES: &str = super::super::hook::LIFECYCLE;

const UNANSWERED: &str = "the request was not answered";

/// Whether an import is given to hooks.
pub(super) fn is_served(name: &str) -> bool {
    [INFERENCE, TOKENS, TASK_IO, CONVERSATION, TYPES].contains(&name) || imports::is_wasi(name)
}

/// Links them.
pub(super) fn link(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    // The packages share the record `message`, which lies in the exported interface: it is imported too, without a
    // function.
    linker.instance(TYPES)?;
    linker.instance(INFERENCE)?.func_wrap_async("run-inference", |store, (request,): (InferenceRequest,)| {
        Box::new(async move { Ok((run_inference(store, request).await,)) })
    })?;
    linker.instance(TOKENS)?.func_wrap_async("count", |store, (text,): (String,)| {
        Box::new(async move {
            let bytes = text.len() as u64;
            match ask(store, Ask::Count(text)).await {
                Some(Answer::Count(tokens)) => Ok((tokens,)),
                // Too long to be sent: the estimate that `mur` itself makes of such texts.
                _ => Ok((bytes.div_ceil(4),)),
            }
        })
    })?;
    link_task_io(linker)?;
    linker.instance(CONVERSATION)?.func_wrap_async("read-messages", |store, (cursor, most): (Option<String>, u32)| {
        Box::new(async move { Ok((read_messages(store, cursor, most).await,)) })
    })
}

fn link_task_io(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut task_io = linker.instance(TASK_IO)?;
    task_io.func_wrap_async("input-len", |store, (form,): (InputForm,)| {
        Box::new(async move { Ok((length(store, TaskIo::InputLen(form)).await,)) })
    })?;
    task_io.func_wrap_async("read-input", |store, (form, offset, most): (InputForm, u64, u64)| {
        Box::new(async move { Ok((window(store, TaskIo::ReadInput(form, offset, most)).await,)) })
    })?;
    task_io.func_wrap_async("output-len", |store, (): ()| {
        Box::new(async move { Ok((length(store, TaskIo::OutputLen).await,)) })
    })?;
    task_io.func_wrap_async("read-output", |store, (offset, most): (u64, u64)| {
        Box::new(async move { Ok((window(store, TaskIo::ReadOutput(offset, most)).await,)) })
    })
}

async fn ask(store: StoreContextMut<'_, State>, question: Ask) -> Option<Answer> {
    let link = store.data().link.clone();
    link.ask(question).await
}

async fn run_inference(
    store: StoreContextMut<'_, State>,
    request: InferenceRequest,
) -> Result<InferenceResponse, String> {
    if request.messages.len() > MAX_LIST {
        return Err(format!("{} messages are too many", request.messages.len()));
    }
    match ask(store, Ask::Inference(request)).await {
        Some(Answer::Inference(answer)) => answer,
        _ => Err(UNANSWERED.to_owned()),
    }
}

async fn length(store: StoreContextMut<'_, State>, question: TaskIo) -> Result<u64, IoError> {
    match ask(store, Ask::TaskIo(question)).await {
        Some(Answer::TaskIo(Ok(TaskIoReply::Len(len)))) => Ok(len),
        Some(Answer::TaskIo(Err(error))) => Err(error),
        _ => Err(IoError::NoTask),
    }
}

async fn window(store: StoreContextMut<'_, State>, question: TaskIo) -> Result<String, IoError> {
    match ask(store, Ask::TaskIo(question)).await {
        Some(Answer::TaskIo(Ok(TaskIoReply::Text(text)))) => Ok(text),
        Some(Answer::TaskIo(Err(error))) => Err(error),
        _ => Err(IoError::NoTask),
    }
}

async fn read_messages(
    store: StoreContextMut<'_, State>,
    cursor: Option<String>,
    most: u32,
) -> Result<MessagePage, String> {
    match ask(store, Ask::Conversation(cursor, most)).await {
        Some(Answer::Conversation(page)) => page,
        _ => Err(format!("unavailable: {UNANSWERED}")),
    }
}
