//! Only in a build with the feature `escape-probe`, which no distribution has: code that has escaped WebAssembly, put where
//! it would be. A call of the component named `escape-probe` runs the native probe in this process, on a thread beside the
//! one that reads the connection; everything before and after it is a worker's as any other.
//!
//! What the probe itself cannot know is attempted here: requests on the worker's connection.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mur_escape_probe::{MARKER, Outcome, Plan, Verdict};
use serde_json::json;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::super::hook::{HookEvent, HookOutput};
use super::super::protocol::stream::Credit;
use super::super::protocol::{Product, Up, Work};
use super::super::types::{Status, ToolResult};
use super::board::{Head, HttpPending, Pending};
use super::state::Link;
use crate::egress::{HttpError, Timeouts};

const NAME: &str = "escape-probe";

/// How many turns the probe takes as a driver.
const MOST_CALLS: usize = 3;

/// Ids of requests that no component of this call can have made.
const REQUESTS: u32 = 1 << 20;

/// How long `mur` may take to answer what it refuses.
const ANSWERED: Duration = Duration::from_secs(20);

type Answer = oneshot::Receiver<Result<Head, HttpError>>;

/// What a call of the probe comes to; nothing when it is another component's, or what it is given names no plan.
pub(super) fn instead_of(artifact: &str, work: &Work, link: &Link) -> Option<Product> {
    match work {
        Work::Tool(input) => lines(artifact, input.data.as_deref(), link).map(Product::Tool),
        // Asked for a decision, and with no objection to the call.
        Work::Hook(HookEvent::ToolCall(event)) if event.outcome.is_none() => {
            lines(artifact, Some(&event.input), link).map(|_| Product::Hook(Ok(HookOutput::None)))
        }
        Work::Hook(_) => None,
    }
}

fn lines(artifact: &str, data: Option<&str>, link: &Link) -> Option<ToolResult> {
    static FIRST: OnceLock<u64> = OnceLock::new();
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let data = data.filter(|_| artifact == NAME)?;
    let earlier = FIRST.get().copied();
    let _ = FIRST.set(link.call);
    let calls = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    // A driver is given the whole conversation each time: its later calls have a plan of their own.
    let driver = data.contains("\"messages\"");
    let text = if driver && calls > 1 { second_plan(data)? } else { data.to_owned() };
    let mut extra = |case: &str, plan: &Plan| match case {
        "worker-direct-http" => Some(direct(plan, link)),
        "worker-call-outside-call" => Some(outside(plan, link, earlier)),
        _ => None,
    };
    let lines = mur_escape_probe::run(&text, &mut extra)?;
    let data = if driver { reply(&lines, calls == MOST_CALLS) } else { lines };
    Some(ToolResult { data: Some(data), ..passed() })
}

fn passed() -> ToolResult {
    ToolResult {
        status: Status::Passed,
        summary: None,
        data: None,
        data_path: None,
        truncated: false,
        metadata: Vec::new(),
    }
}

fn second_plan(data: &str) -> Option<String> {
    let (_, rest) = data.split_once(MARKER)?;
    let (path, _) = rest.split_once(';')?;
    Some(format!("{MARKER}{path}.second;"))
}

/// A model's answer, with one more turn after it unless it is the last.
fn reply(lines: &str, last: bool) -> String {
    let text = json!({"type": "text", "text": lines});
    let call = json!({"type": "tool_call", "id": "call_probe", "name": "read-file", "input": {"path": "bash"}});
    if last {
        json!({"stop_reason": "end_turn", "content": [text]}).to_string()
    } else {
        json!({"stop_reason": "tool_call", "content": [text, call]}).to_string()
    }
}

/// Sends a request of a call that is on the board.
fn open(link: &Link, call: u64, request: u32, uri: &str) -> Option<Answer> {
    let (head, answer) = oneshot::channel();
    // The body is nobody's: one that comes is dropped.
    let (body, _) = mpsc::channel(1);
    let pending = HttpPending { head: Some(head), body, credit: std::sync::Arc::new(Credit::default()) };
    let noted = link.shared.board.expect(call, request, Pending::Http(pending));
    let timeouts = Timeouts { connect: None, first_byte: None, between_bytes: None };
    link.shared.outgoing.send(&Up::Open {
        call,
        request,
        method: "GET".to_owned(),
        uri: uri.to_owned(),
        headers: Vec::new(),
        body: false,
        timeouts,
    });
    noted.then_some(answer)
}

/// Waits for an answer, which the running thread reads meanwhile.
fn wait(mut answer: Answer) -> Option<Result<Head, HttpError>> {
    let begun = Instant::now();
    loop {
        match answer.try_recv() {
            Ok(answer) => return Some(answer),
            Err(TryRecvError::Closed) => return None,
            Err(TryRecvError::Empty) if begun.elapsed() > ANSWERED => return None,
            Err(TryRecvError::Empty) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn ask(link: &Link, request: u32, uri: &str) -> Outcome {
    match open(link, link.call, request, uri).and_then(wait) {
        Some(Ok(head)) => {
            Outcome::allowed(format!("GET {uri}: answered {} with {} headers", head.status, head.headers.len()))
        }
        Some(Err(HttpError::Denied(why))) => Outcome::refused(format!("GET {uri}: HTTP-request-denied ({why})")),
        Some(Err(other)) => Outcome::inconclusive(format!("GET {uri}: {other:?}")),
        None => Outcome::inconclusive(format!("GET {uri}: not answered")),
    }
}

/// Requests of the running call to what its artifact is not allowed; one without a gateway also asks for the address that
/// stands for it.
fn direct(plan: &Plan, link: &Link) -> Outcome {
    let mut tried: Vec<Outcome> = Vec::new();
    for (number, uri) in (0..).zip(plan.all("http")) {
        tried.push(ask(link, REQUESTS + number, uri));
    }
    let worst = |verdict| tried.iter().any(|one| one.verdict == verdict);
    let verdict = if worst(Verdict::Allowed) {
        Verdict::Allowed
    } else if tried.is_empty() || worst(Verdict::Inconclusive) {
        Verdict::Inconclusive
    } else {
        Verdict::Refused
    };
    let details: Vec<&str> = tried.iter().map(|one| one.detail.as_str()).collect();
    Outcome::new(verdict, details.join("; ")).controlled("mur answered", Ok(()))
}

/// A request in the name of a call that has ended. `mur` reads the connection in order, so that once it has answered a
/// later request of the running call, it has answered this one or never will.
fn outside(plan: &Plan, link: &Link, earlier: Option<u64>) -> Outcome {
    let (Some(ended), Some(uri)) = (earlier, plan.one("http")) else {
        return Outcome::inconclusive("no call has ended before");
    };
    let board = &link.shared.board;
    let _struck = board.enter(ended);
    let answer = open(link, ended, REQUESTS, uri);
    let controls = [REQUESTS + 1, REQUESTS + 2].map(|request| ask(link, request, uri));
    let answered = answer.map(|mut answer| answer.try_recv());
    board.leave(ended);
    let outcome = match answered {
        Some(Err(TryRecvError::Empty)) => Outcome::refused(format!("GET {uri} in the name of call {ended}: no answer")),
        Some(Ok(_)) => Outcome::allowed(format!("GET {uri} in the name of call {ended}: answered")),
        _ => Outcome::inconclusive("the answer could not be waited for"),
    };
    let control = if controls.iter().all(|one| one.verdict == Verdict::Inconclusive) {
        Err(std::io::ErrorKind::TimedOut.into())
    } else {
        Ok(())
    };
    outcome.controlled("a request of the running call is answered", control)
}
