//! What a running call asks of `mur`: HTTP requests whose bodies stream, a person's input, a program's run. Each is a
//! task of its own, dropped when the call ends, reaches its deadline or lets go of it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use http_body_util::{BodyExt, Empty};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::super::hook::IoError;
use super::super::protocol::stream::{self, Credit, Delivery, Receipt};
use super::super::protocol::{Answer, Ask, Down, Frame, MAX_REQUESTS, reason};
use super::super::types::HostCalls;
use super::calls::{Call, Worker};
use crate::egress::{HttpBody, HttpError, HttpRequest, HttpResponse, Timeouts};

/// Something a call has asked.
pub(super) struct Request {
    task: AbortHandle,
    /// Where its body is delivered, until it has ended.
    body: Option<mpsc::Sender<Delivery>>,
    credit: Arc<Credit>,
    /// Waits for a person: the call's clock stands still.
    waits: bool,
}

impl Request {
    /// Drops the task.
    pub(super) fn abort(self) {
        self.task.abort();
    }
}

/// The head of a request.
pub(super) struct Head {
    pub(super) method: String,
    pub(super) uri: String,
    pub(super) headers: Vec<(String, Bytes)>,
    pub(super) body: bool,
    pub(super) timeouts: Timeouts,
}

/// Says to the worker what its body may send, and what it need not.
struct Upload {
    worker: Arc<Worker>,
    call: u64,
    request: u32,
}

impl Receipt for Upload {
    fn consumed(&self, amount: u32) {
        let (worker, call, request) = (self.worker.clone(), self.call, self.request);
        // Consuming happens inside the connection's own poll; credit may wait for its turn.
        tokio::spawn(async move { worker.send(&Down::Credit { call, request, amount }).await });
    }

    fn dropped(&self) {}
}

/// A new id, and room for it. An error is a breach; `Ok(false)` means that the call is no longer answered.
fn admit(entry: &Call, request: u32) -> Result<bool, String> {
    if entry.requests.contains_key(&request) {
        return Err(format!("request {request} was made twice"));
    }
    if entry.requests.len() >= 2 * MAX_REQUESTS {
        return Err(format!("more than {} requests at once", 2 * MAX_REQUESTS));
    }
    Ok(entry.running)
}

/// A question of a call.
pub(super) fn ask(worker: &Arc<Worker>, call: u64, entry: &mut Call, request: u32, ask: Ask) -> Result<(), String> {
    if !admit(entry, request)? {
        return Ok(());
    }
    let (host, artifact, worker) = (entry.host.clone(), entry.artifact.clone(), worker.clone());
    let waits = matches!(ask, Ask::Input(_));
    let left = if waits { Some(entry.clock.stop()) } else { None };
    let clock = entry.clock.clone();
    let task = tokio::spawn(async move {
        let answer = answer(&*host, &artifact, ask).await;
        if let Some(left) = left {
            clock.restart(left);
        }
        worker.with_call(call, |entry| entry.requests.remove(&request));
        let frame = Down::Answer { call, request, answer };
        let too_large = frame.encode().is_err();
        let frame = match frame {
            Down::Answer { answer, .. } if too_large => Down::Answer { call, request, answer: refused(&answer) },
            whole => whole,
        };
        worker.send(&frame).await;
    });
    let request_entry = Request { task: task.abort_handle(), body: None, credit: Arc::default(), waits };
    entry.requests.insert(request, request_entry);
    Ok(())
}

/// Answers a question.
async fn answer(host: &dyn HostCalls, artifact: &str, ask: Ask) -> Answer {
    match ask {
        Ask::Input(prompt) => Answer::Input(host.request_input(&prompt).await.map_err(reason)),
        Ask::Process(asked) => Answer::Process(host.process_run(artifact, asked).await.map_err(reason)),
        Ask::Message(peer_url, message) => {
            Answer::Message(host.message_send(artifact, &peer_url, message).await.map_err(reason))
        }
        Ask::Inference(asked) => Answer::Inference(host.run_inference(asked).await.map_err(reason)),
        Ask::Count(text) => Answer::Count(host.count_tokens(text).await),
        Ask::TaskIo(question) => Answer::TaskIo(host.task_io(question)),
        Ask::Conversation(cursor, most) => {
            Answer::Conversation(host.read_conversation(cursor, most).await.map_err(reason))
        }
    }
}

/// What stands in for an answer that no frame holds.
fn refused(answer: &Answer) -> Answer {
    match answer {
        Answer::Input(_) => Answer::Input(Err("the answer is too large".into())),
        Answer::Process(_) => Answer::Process(Err("the output is too large".into())),
        Answer::Message(_) => Answer::Message(Err("the peer's answer is too large".into())),
        Answer::Inference(_) => Answer::Inference(Err("the model's answer is too large".into())),
        Answer::Count(tokens) => Answer::Count(*tokens),
        Answer::TaskIo(_) => Answer::TaskIo(Err(IoError::OutOfRange)),
        Answer::Conversation(_) => Answer::Conversation(Err("unavailable: the page is too large".into())),
    }
}

/// An HTTP request of a call.
pub(super) fn open(worker: &Arc<Worker>, call: u64, entry: &mut Call, request: u32, head: Head) -> Result<(), String> {
    if !admit(entry, request)? {
        return Ok(());
    }
    let credit = Arc::new(Credit::default());
    let (deliver, body) = if head.body {
        let (deliver, body) = stream::body(Upload { worker: worker.clone(), call, request });
        (Some(deliver), body.boxed_unsync())
    } else {
        (None, Empty::new().map_err(|never| match never {}).boxed_unsync())
    };
    let (host, artifact) = (entry.host.clone(), entry.artifact.clone());
    let task = tokio::spawn({
        let (worker, credit) = (worker.clone(), credit.clone());
        async move {
            let answer = match read_head(head, body) {
                Ok(sent) => host.http(&artifact, sent).await,
                Err(error) => Err(error),
            };
            respond(&worker, call, request, credit, answer).await;
            worker.with_call(call, |entry| entry.requests.remove(&request));
        }
    });
    entry.requests.insert(request, Request { task: task.abort_handle(), body: deliver, credit, waits: false });
    Ok(())
}

fn read_head(head: Head, body: HttpBody) -> Result<HttpRequest, HttpError> {
    let invalid = |what: &str| HttpError::InvalidRequest(what.to_owned());
    let method = Method::from_bytes(head.method.as_bytes()).map_err(|_| invalid("its method is none"))?;
    let uri: Uri = head.uri.parse().map_err(|_| invalid("its address is no URL"))?;
    let mut headers = HeaderMap::with_capacity(head.headers.len());
    for (name, value) in head.headers {
        let name = HeaderName::try_from(name).map_err(|_| invalid("a header's name is none"))?;
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| invalid("a header's value is none"))?;
        headers.append(name, value);
    }
    Ok(HttpRequest { method, uri, headers, body, timeouts: head.timeouts })
}

async fn respond(
    worker: &Arc<Worker>,
    call: u64,
    request: u32,
    credit: Arc<Credit>,
    answer: Result<HttpResponse, HttpError>,
) {
    let response = match answer {
        Ok(response) => response,
        Err(error) => return worker.send(&Down::Failed { call, request, error: short(error) }).await,
    };
    let headers = response.headers.iter();
    let headers = headers.map(|(name, value)| (name.to_string(), Bytes::copy_from_slice(value.as_bytes()))).collect();
    let head = Down::Head { call, request, status: response.status.as_u16(), headers };
    if head.encode().is_err() {
        let error = HttpError::Protocol("the response's headers are too large".to_owned());
        return worker.send(&Down::Failed { call, request, error }).await;
    }
    worker.send(&head).await;
    let sent = stream::pump(response.body, credit, |bytes: Bytes| async move {
        worker.send(&Down::Chunk { call, request, bytes }).await;
        true
    });
    let error = sent.await.err().map(short);
    worker.send(&Down::End { call, request, error }).await;
}

/// An error cut to what a frame holds.
fn short(error: HttpError) -> HttpError {
    match error {
        HttpError::Denied(text) => HttpError::Denied(reason(text)),
        HttpError::Tls(text) => HttpError::Tls(reason(text)),
        HttpError::InvalidRequest(text) => HttpError::InvalidRequest(reason(text)),
        HttpError::Protocol(text) => HttpError::Protocol(reason(text)),
        HttpError::Other(text) => HttpError::Other(reason(text)),
        other => other,
    }
}

/// A part of a request's body. For a request that has ended it crossed that end on the way.
pub(super) fn chunk(entry: &mut Call, request: u32, bytes: Bytes) -> Result<(), String> {
    let Some(open) = entry.requests.get_mut(&request) else { return Ok(()) };
    let Some(body) = &open.body else { return Err(format!("request {request} has no body, or its body has ended")) };
    match body.try_send(Ok(Some(bytes))) {
        Err(mpsc::error::TrySendError::Full(_)) => Err("a request's body overran its credit".to_owned()),
        _ => Ok(()),
    }
}

/// The end of a request's body.
pub(super) fn end(entry: &mut Call, request: u32, whole: bool) {
    if let Some(body) = entry.requests.get_mut(&request).and_then(|open| open.body.take()) {
        let _ = body.try_send(if whole { Ok(None) } else { Err(HttpError::Cancelled) });
    }
}

/// Room for a response's body.
pub(super) fn credit(entry: &mut Call, request: u32, amount: u32) -> Result<(), String> {
    let Some(open) = entry.requests.get_mut(&request) else { return Ok(()) };
    if open.credit.add(amount) { Ok(()) } else { Err("it gave more credit than there is".to_owned()) }
}

/// The artifact let go.
pub(super) fn dropped(entry: &mut Call, request: u32) {
    // A person who is being asked is not un-asked: only requests by HTTP are let go of.
    if entry.requests.get(&request).is_some_and(|open| !open.waits)
        && let Some(open) = entry.requests.remove(&request)
    {
        open.abort();
    }
}
