//! The calls of one task: at most one pending call a member, all answers together, nothing left behind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::client::{self, Fault, Redactor};
use super::pace;
use super::protocol::{self, Below, Ending, Polled, Sent, Status};
use crate::egress::{Egress, Sender};
use crate::ids::{CallId, TaskId};
use crate::trace::{Trace, records};

/// How long one request to a door may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// How much longer the first one may, for an address that is still on its way.
const ADDRESS_WAIT: Duration = Duration::from_secs(10);
/// How long the end of a task waits for an offer that is on its way, its taking back included.
const ABANDON_LIMIT: Duration = Duration::from_secs(12);
/// How long an offer already on its way is waited for once its task has ended.
const IN_FLIGHT_LIMIT: Duration = Duration::from_secs(6);
/// Requests in a row that may fail to reach a door.
const FAILURES_MAX: u32 = 2;

/// What the calls of one task are made with.
pub struct Caller {
    /// The way out.
    pub egress: Arc<Egress>,
    /// On whose behalf: the capsule's own rules and the calling task's trust.
    pub sender: Sender,
    /// The record.
    pub trace: Trace,
    /// The calling task.
    pub task: TaskId,
    /// Whom it may call, in roster order.
    pub callees: Vec<String>,
    /// From the tool call, for offering and answering together.
    pub deadline: Duration,
    /// Cleans what the model and the trace see.
    pub redactor: Redactor,
}

/// One call that has ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The call.
    pub call: CallId,
    /// The callee.
    pub member: String,
    /// The callee's own task, when it took one.
    pub member_task: Option<String>,
    /// How it ended.
    pub ending: Ending,
    /// Since the tool call.
    pub duration: Duration,
}

/// What the tool returns.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// Whether the call is under way.
    pub passed: bool,
    /// JSON.
    pub data: String,
    /// What the runtime adds, after the fence.
    pub note: String,
}

/// The calls of one task.
pub struct Calls(Arc<Shared>);

struct Shared {
    caller: Caller,
    state: Mutex<State>,
    /// Calls that have not ended.
    open: watch::Sender<usize>,
    /// Set when the task ends.
    stop: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    open: Vec<(CallId, String, Instant)>,
    arrived: Vec<Outcome>,
    unanswered: Vec<Below>,
}

impl Calls {
    /// For one task.
    pub fn new(caller: Caller) -> Self {
        Self(Arc::new(Shared {
            caller,
            state: Mutex::default(),
            open: watch::Sender::new(0),
            stop: watch::Sender::new(false),
        }))
    }

    /// Makes a call; returns once the member's door holds the task, is busy, or refuses. The error is the tool's.
    pub async fn call(&self, member: &str, task: &str) -> Result<Reply, String> {
        let call = self.register(member)?;
        let (first, answered) = oneshot::channel();
        let job = Job {
            shared: Arc::clone(&self.0),
            call: call.clone(),
            member: member.to_owned(),
            task: task.to_owned(),
            started: Instant::now(),
            stop: self.0.stop.subscribe(),
        };
        tokio::spawn(job.run(first));
        match answered.await {
            Ok(First::Started(task_id)) => Ok(started(&call, member, &task_id)),
            Ok(First::Busy) => Ok(busy(&call, member, self.0.caller.deadline)),
            Ok(First::Ended(status, output)) => Ok(refused(&call, member, status, &output)),
            Err(_) => Err(format!("call-member: the call to {member} was given up because the task is ending")),
        }
    }

    fn register(&self, member: &str) -> Result<CallId, String> {
        let callees = &self.0.caller.callees;
        if !callees.iter().any(|callee| callee == member) {
            return Err(format!(
                "call-member: '{member}' is no member this one may call; it may call: {}",
                callees.join(", ")
            ));
        }
        let mut state = self.0.state();
        if state.open.iter().any(|(_, open, _)| open == member) {
            return Err(format!(
                "call-member: a call to {member} is still open; its answer comes after this turn ends, and then it can be \
                 called again"
            ));
        }
        if state.arrived.iter().any(|outcome| outcome.member == member) {
            return Err(format!("call-member: {member} has answered already; its answer comes when this turn ends"));
        }
        let call = CallId::mint();
        state.open.push((call.clone(), member.to_owned(), Instant::now()));
        self.0.open.send_replace(state.open.len());
        Ok(call)
    }

    /// Calls that have not ended.
    pub fn outstanding(&self) -> usize {
        self.0.state().open.len()
    }

    /// Whether anything is being sent, outstanding or not yet delivered.
    pub fn pending(&self) -> bool {
        let state = self.0.state();
        !state.open.is_empty() || !state.arrived.is_empty()
    }

    /// Waits until every call has ended.
    pub async fn all_ended(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.open.subscribe().wait_for(|open| *open == 0).await;
    }

    /// Hands over what has arrived, in the order it arrived, and records each as delivered.
    pub fn deliver(&self) -> Vec<Outcome> {
        let outcomes = std::mem::take(&mut self.0.state().arrived);
        for outcome in &outcomes {
            self.0.settle(outcome, true);
        }
        outcomes
    }

    /// Gives up what is open and records everything not delivered. An offer on its way is waited for, and taken back
    /// when it was accepted.
    pub async fn abandon(&self) {
        self.0.stop.send_replace(true);
        let _ = tokio::time::timeout(ABANDON_LIMIT, self.all_ended()).await;
        let (arrived, open) = {
            let mut state = self.0.state();
            (std::mem::take(&mut state.arrived), std::mem::take(&mut state.open))
        };
        for outcome in &arrived {
            self.0.settle(outcome, false);
        }
        for (call, member, started) in open {
            let ending = Ending::without_answer(Status::Abandoned, ABANDONED);
            self.0.settle(&Outcome { call, member, member_task: None, ending, duration: started.elapsed() }, false);
        }
    }

    /// Lets calls be made again, for another attempt.
    pub fn resume(&self) {
        self.0.stop.send_replace(false);
    }

    /// Members without an answer so far, those further down included, for the task's own metadata.
    pub fn unanswered(&self) -> Vec<Below> {
        let state = self.0.state();
        state.unanswered.iter().take(protocol::BELOW_MAX).cloned().collect()
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.0.stop.send_replace(true);
    }
}

const ABANDONED: &str = "the calling task ended before the answer came";

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an ended call and remembers who did not answer; a later answer of the same member clears it.
    fn settle(&self, outcome: &Outcome, delivered: bool) {
        {
            let mut state = self.state();
            state.unanswered.retain(|below| below.member != outcome.member);
            if outcome.ending.status != Status::Completed {
                state.unanswered.push(Below { member: outcome.member.clone(), status: outcome.ending.status });
            }
            // One that two callees could not reach is named once.
            for below in &outcome.ending.below {
                if !state.unanswered.contains(below) {
                    state.unanswered.push(below.clone());
                }
            }
        }
        let below = outcome.ending.below.iter().map(|b| json!({"member": b.member, "status": b.status.as_str()}));
        let record = records::MemberCall {
            task_id: self.caller.task.to_string(),
            call_id: outcome.call.to_string(),
            member: outcome.member.clone(),
            member_task_id: outcome.member_task.clone(),
            status: outcome.ending.status.as_str().to_owned(),
            duration_ms: millis(outcome.duration),
            output: outcome.ending.output.clone(),
            truncated: outcome.ending.truncated,
            delivered,
            no_answer_below: (!outcome.ending.below.is_empty()).then(|| below.collect()),
        };
        self.caller.trace.record_aside("member_call", None, record);
    }

    /// An ended call leaves the open ones; `outcome` is what the task is still to be told.
    fn close(&self, call: &CallId, outcome: Option<Outcome>) {
        let mut state = self.state();
        state.open.retain(|(open, _, _)| open != call);
        state.arrived.extend(outcome);
        self.open.send_replace(state.open.len());
    }
}

/// Returns once the task has ended.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How the first offer went.
enum First {
    Started(String),
    Busy,
    Ended(Status, String),
}

/// One call, from its first offer to its ending.
struct Job {
    shared: Arc<Shared>,
    call: CallId,
    member: String,
    task: String,
    started: Instant,
    stop: watch::Receiver<bool>,
}

impl Job {
    async fn run(mut self, first: oneshot::Sender<First>) {
        let mut first = Some(first);
        let (ending, member_task) = self.drive(&mut first).await;
        let output = self.shared.caller.redactor.clean(ending.output).await;
        let ending = Ending { output, ..ending };
        let status = ending.status;
        let outcome = Outcome {
            call: self.call.clone(),
            member: self.member.clone(),
            member_task,
            ending,
            duration: self.started.elapsed(),
        };
        match first {
            // The tool is still waiting: it tells the model, so the call is over and delivered.
            Some(first) if status != Status::Abandoned && !first.is_closed() => {
                self.shared.settle(&outcome, true);
                let told = First::Ended(status, outcome.ending.output);
                self.shared.close(&self.call, None);
                let _ = first.send(told);
            }
            _ => self.shared.close(&self.call, Some(outcome)),
        }
    }

    /// Offers until the member takes the task or the offering ends, then watches. `first` is used up by the first
    /// answer that leaves the call under way.
    async fn drive(&mut self, first: &mut Option<oneshot::Sender<First>>) -> (Ending, Option<String>) {
        let deadline = self.started + self.shared.caller.deadline;
        let mut failures = 0;
        for offer in 1.. {
            let answer = self.offer(offer).await;
            let stopped = *self.stop.borrow();
            match answer {
                Ok(Sent::Held(task_id)) => {
                    self.record_start(&task_id);
                    if stopped {
                        self.take_back(&task_id).await;
                        return (Ending::without_answer(Status::Abandoned, ABANDONED), Some(task_id));
                    }
                    tell(first, First::Started(task_id.clone()));
                    return (self.watch(&task_id, deadline).await, Some(task_id));
                }
                Ok(Sent::Busy) => {
                    failures = 0;
                    self.record_busy(offer);
                    tell(first, First::Busy);
                }
                // Whatever else came back too late is the same to a task that has ended.
                _ if stopped => return (Ending::without_answer(Status::Abandoned, ABANDONED), None),
                Ok(Sent::Refused(status, output)) => return (Ending::without_answer(status, output), None),
                Err(Fault::NotSent(why)) => return (Ending::without_answer(Status::Failed, why), None),
                Err(Fault::Unreachable(why)) if offer == 1 => {
                    return (Ending::without_answer(Status::Unreachable, why), None);
                }
                Err(Fault::Unreachable(why)) => {
                    failures += 1;
                    if failures == FAILURES_MAX {
                        return (Ending::without_answer(Status::Unreachable, why), None);
                    }
                }
            }
            if let Some(ending) = self.rest(offer, deadline).await {
                return (ending, None);
            }
        }
        unreachable!("the deadline ends the offering")
    }

    /// One offer. When the task ends meanwhile, the offer is waited for all the same: it may be accepted.
    async fn offer(&mut self, offer: u32) -> Result<Sent, Fault> {
        let caller = &self.shared.caller;
        let limit = if offer == 1 { REQUEST_LIMIT + ADDRESS_WAIT } else { REQUEST_LIMIT };
        let body = protocol::send_message(&self.call, offer, &self.task);
        let mut sending = std::pin::pin!(client::post(&caller.egress, &caller.sender, &self.member, body, limit));
        let mut stop = self.stop.clone();
        let answer = tokio::select! {
            answer = &mut sending => answer,
            () = stopped(&mut stop) => match tokio::time::timeout(IN_FLIGHT_LIMIT, sending).await {
                Ok(answer) => answer,
                Err(_) => Err(Fault::NotSent(ABANDONED.to_owned())),
            },
        };
        answer.map(|(status, body)| protocol::read_sent(status, &body))
    }

    /// Rests before the next offer; an ending when there is none.
    async fn rest(&mut self, offer: u32, deadline: Instant) -> Option<Ending> {
        let next = Instant::now() + pace::rest_after(offer, pace::jitter());
        tokio::select! {
            () = tokio::time::sleep_until(next.min(deadline)) => {}
            () = stopped(&mut self.stop) => {
                return Some(Ending::without_answer(Status::Abandoned, ABANDONED));
            }
        }
        (next >= deadline).then(|| {
            let waited = self.shared.caller.deadline.as_secs();
            Ending::without_answer(
                Status::Rejected,
                format!("{} was busy for the whole {waited} s of the call and never took the task", self.member),
            )
        })
    }

    /// Looks at the member's task until it ends, the deadline passes or the calling task ends.
    async fn watch(&mut self, task_id: &str, deadline: Instant) -> Ending {
        let mut failures = 0;
        for rest in pace::looks() {
            let caller = &self.shared.caller;
            let look = async {
                tokio::time::sleep(rest).await;
                let body = protocol::get_task(&self.call, task_id);
                client::post(&caller.egress, &caller.sender, &self.member, body, REQUEST_LIMIT).await
            };
            let answer = tokio::select! {
                answer = look => answer,
                () = tokio::time::sleep_until(deadline) => {
                    let secs = caller.deadline.as_secs();
                    let late = format!("no answer came within {secs} s; {} may still be working on it", self.member);
                    return Ending::without_answer(Status::TimedOut, late);
                }
                () = stopped(&mut self.stop) => return Ending::without_answer(Status::Abandoned, ABANDONED),
            };
            match answer.map(|(status, body)| protocol::read_polled(status, &body)) {
                Ok(Polled::Live) => failures = 0,
                Ok(Polled::Ended(ending)) => return ending,
                Err(Fault::NotSent(why) | Fault::Unreachable(why)) => {
                    failures += 1;
                    if failures == FAILURES_MAX {
                        return Ending::without_answer(Status::Unreachable, why);
                    }
                }
            }
        }
        unreachable!("the rests never end")
    }

    /// The member took the task just as the calling task ended.
    async fn take_back(&self, task_id: &str) {
        let caller = &self.shared.caller;
        let body = protocol::cancel_task(&self.call, task_id);
        let _ = client::post(&caller.egress, &caller.sender, &self.member, body, REQUEST_LIMIT).await;
    }

    fn record_start(&self, member_task_id: &str) {
        let record = records::MemberCallStart {
            task_id: self.shared.caller.task.to_string(),
            call_id: self.call.to_string(),
            member: self.member.clone(),
            member_task_id: member_task_id.to_owned(),
        };
        self.shared.caller.trace.record_aside("member_call_start", None, record);
    }

    fn record_busy(&self, offer: u32) {
        let record = records::MemberCallBusy {
            task_id: self.shared.caller.task.to_string(),
            call_id: self.call.to_string(),
            member: self.member.clone(),
            offer,
            waited_ms: millis(self.started.elapsed()),
            message: protocol::BUSY.to_owned(),
        };
        self.shared.caller.trace.record_aside("member_call_busy", None, record);
    }
}

fn tell(first: &mut Option<oneshot::Sender<First>>, how: First) {
    if let Some(first) = first.take() {
        let _ = first.send(how);
    }
}

fn started(call: &CallId, member: &str, task_id: &str) -> Reply {
    Reply {
        passed: true,
        data: json!({"call_id": call, "member": member, "status": "started", "task_id": task_id}).to_string(),
        note: format!(
            "{member} is working on it. Its answer is not here yet: it comes to you after this turn ends. Call others if you \
             need them, then end the turn."
        ),
    }
}

fn busy(call: &CallId, member: &str, deadline: Duration) -> Reply {
    let output = format!("{member} is busy with other work and did not take the task");
    Reply {
        passed: true,
        data: json!({"call_id": call, "member": member, "status": "busy", "output": output}).to_string(),
        note: format!(
            "The runtime keeps offering it to {member} for up to {} s; the outcome comes to you after this turn ends. Do not \
             call {member} again for this.",
            deadline.as_secs()
        ),
    }
}

fn refused(call: &CallId, member: &str, status: Status, output: &str) -> Reply {
    Reply {
        passed: false,
        data: json!({"call_id": call, "member": member, "status": status.as_str(), "output": output}).to_string(),
        note: format!("No answer came from {member}. Do not present anything as {member}'s answer."),
    }
}
