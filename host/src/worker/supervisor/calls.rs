//! One worker as `mur` knows it: what is loaded, which calls run, and how it was lost.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use super::super::clock::Clock;
use super::super::protocol::{Down, Fault, Frame, Product, Work};
use super::super::types::{CallError, CallLimits, HostCalls, Kind, LostWorker};
use super::requests::Request;
use super::{call_error, start};
use crate::process::Pidfd;

/// A worker from which nothing came for this long, past a call's deadline or its cancellation, is lost.
const SILENCE: Duration = Duration::from_secs(10);

/// One that keeps talking and never answers the call is lost too.
const TALK: Duration = Duration::from_secs(60);

/// Frames that wait to be written. The largest common one is a chunk of a body.
pub(super) const MAX_WAITING: usize = 64;

/// Most calls at once on one worker.
const MAX_CALLS: usize = 256;

type Outcome = Result<Product, CallError>;

/// One frame to write.
pub(super) struct Written {
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// What a worker is made of once it is ready.
pub(super) struct Started {
    pub(super) kind: Kind,
    pub(super) pidfd: Arc<Pidfd>,
    pub(super) inside: Option<Pidfd>,
    pub(super) own_root: bool,
}

/// A started worker.
pub(super) struct Worker {
    pub(super) kind: Kind,
    pidfd: Arc<Pidfd>,
    /// The process that runs the code, where `pidfd` is its relay.
    inside: Option<Pidfd>,
    own_root: bool,
    state: Mutex<State>,
    lost: watch::Sender<Option<LostWorker>>,
    /// Set once the process is gone and reaped.
    gone: watch::Sender<bool>,
}

struct State {
    queue: Option<mpsc::Sender<Written>>,
    next: u64,
    calls: HashMap<u64, Call>,
    loads: HashMap<u32, oneshot::Sender<Option<Fault>>>,
    limits: HashMap<String, CallLimits>,
    heard: Instant,
    lost: Option<LostWorker>,
    closing: bool,
    tasks: Vec<AbortHandle>,
}

/// A call that has not been answered.
pub(super) struct Call {
    pub(super) artifact: Arc<str>,
    pub(super) host: Arc<dyn HostCalls>,
    pub(super) clock: Arc<Clock>,
    pub(super) requests: HashMap<u32, Request>,
    /// What it asks is answered.
    pub(super) running: bool,
    /// It was told to end because its deadline had passed.
    overdue: bool,
    /// It has said that its instantiation is over.
    restarted: bool,
    limits: CallLimits,
    done: Option<oneshot::Sender<Outcome>>,
    /// Its end is this sender's: whoever watches the call sees it close.
    ended: watch::Sender<()>,
}

impl Worker {
    pub(super) fn new(started: Started, lost: watch::Sender<Option<LostWorker>>) -> Arc<Self> {
        let Started { kind, pidfd, inside, own_root } = started;
        let state = State {
            queue: None,
            next: 1,
            calls: HashMap::new(),
            loads: HashMap::new(),
            limits: HashMap::new(),
            heard: Instant::now(),
            lost: None,
            closing: false,
            tasks: Vec::new(),
        };
        Arc::new(Self {
            kind,
            pidfd,
            inside,
            own_root,
            state: Mutex::new(state),
            lost,
            gone: watch::Sender::new(false),
        })
    }

    pub(super) fn pid(&self) -> i32 {
        self.inside.as_ref().unwrap_or(&self.pidfd).pid()
    }

    /// Whether it runs in a root of its own.
    pub(super) fn own_root(&self) -> bool {
        self.own_root
    }

    /// Takes over what keeps the connection.
    pub(super) fn attach(&self, queue: mpsc::Sender<Written>, tasks: Vec<AbortHandle>) {
        let mut state = self.lock();
        state.queue = Some(queue);
        state.tasks = tasks;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame; one to a worker that is gone is dropped.
    pub(super) async fn send(&self, frame: &Down) {
        if let Ok(bytes) = frame.encode() {
            self.send_with(bytes, Vec::new()).await;
        }
    }

    /// Sends an encoded frame with its descriptors.
    pub(super) async fn send_with(&self, bytes: Vec<u8>, fds: Vec<OwnedFd>) {
        let queue = self.lock().queue.clone();
        if let Some(queue) = queue {
            let _ = queue.send(Written { bytes, fds }).await;
        }
    }

    /// Notes a load that will be answered. Dropped unanswered when the worker is lost.
    pub(super) fn expect_load(&self) -> (u32, oneshot::Receiver<Option<Fault>>) {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        let load = u32::try_from(state.next).unwrap_or(u32::MAX);
        state.next += 1;
        if state.lost.is_none() {
            state.loads.insert(load, sender);
        }
        (load, receiver)
    }

    /// Keeps what a loaded artifact may use.
    pub(super) fn remember(&self, id: String, limits: CallLimits) {
        self.lock().limits.insert(id, limits);
    }

    /// Something came from the worker.
    pub(super) fn heard(&self) {
        self.lock().heard = Instant::now();
    }

    /// A load was answered. `false` when none was made.
    pub(super) fn loaded(&self, load: u32, fault: Option<Fault>) -> bool {
        let waiting = self.lock().loads.remove(&load);
        waiting.is_some_and(|waiting| {
            let _ = waiting.send(fault);
            true
        })
    }

    /// Looks at a call, under the lock. `None` when there is none of that id.
    pub(super) fn with_call<T>(&self, call: u64, then: impl FnOnce(&mut Call) -> T) -> Option<T> {
        self.lock().calls.get_mut(&call).map(then)
    }

    /// A call's instantiation is over: once, its clock begins anew. `false` when there is no such call.
    pub(super) fn restart(&self, call: u64) -> bool {
        let restarted = self.with_call(call, |call| {
            if call.running && !std::mem::replace(&mut call.restarted, true) {
                call.clock.restart(call.limits.deadline);
            }
        });
        restarted.is_some()
    }

    /// A call was answered. `false` when there is no such call.
    pub(super) fn returned(&self, call: u64, outcome: Result<Product, Fault>) -> bool {
        let Some(mut call) = self.lock().calls.remove(&call) else { return false };
        let outcome = match outcome {
            Err(Fault::Cancelled) if call.overdue => Err(CallError::Deadline(call.limits.deadline)),
            Err(fault) => Err(call_error(fault, &call.limits)),
            Ok(result) => Ok(result),
        };
        call.finish(outcome);
        true
    }

    /// Makes a call and waits for its end.
    pub(super) async fn call(
        self: &Arc<Self>,
        artifact: &str,
        work: Work,
        env: Vec<(String, String)>,
        host: Arc<dyn HostCalls>,
    ) -> Outcome {
        let (id, done) = self.enter(artifact, host)?;
        let frame = Down::Call { call: id, artifact: artifact.to_owned(), work, env };
        let bytes = match frame.encode() {
            Ok(bytes) => bytes,
            Err(error) => {
                self.lock().calls.remove(&id);
                return Err(CallError::Refused(format!("the input is too large: {error}")));
            }
        };
        let guard = Cancelling { worker: self, call: id, armed: true };
        // Before the frame is sent: a worker that reads nothing must not hold this call for ever.
        tokio::spawn(watch_over(self.clone(), id));
        self.send_with(bytes, Vec::new()).await;
        let outcome = done.await.unwrap_or_else(|_| Err(self.lost_error(Some(artifact))));
        guard.disarm();
        outcome
    }

    /// Enters a call in the books: its id, and its end.
    pub(super) fn enter(
        &self,
        artifact: &str,
        host: Arc<dyn HostCalls>,
    ) -> Result<(u64, oneshot::Receiver<Outcome>), CallError> {
        let mut state = self.lock();
        if let Some(lost) = &state.lost {
            return Err(CallError::Lost(LostWorker { call: Some(self.label(artifact)), ..lost.clone() }));
        }
        if state.calls.len() >= MAX_CALLS {
            return Err(CallError::Refused(format!("{MAX_CALLS} calls run on the {} worker already", self.kind)));
        }
        let Some(limits) = state.limits.get(artifact).copied() else {
            return Err(CallError::Refused(format!("'{artifact}' is not loaded")));
        };
        let id = state.next;
        state.next += 1;
        let (sender, done) = oneshot::channel();
        let call = Call {
            artifact: artifact.into(),
            host,
            clock: Arc::new(Clock::start(limits.deadline)),
            requests: HashMap::new(),
            running: true,
            overdue: false,
            restarted: false,
            limits,
            done: Some(sender),
            ended: watch::Sender::new(()),
        };
        state.calls.insert(id, call);
        Ok((id, done))
    }

    /// Stops answering a call and says so to the worker. `None` when it has ended.
    pub(super) fn stop(&self, call: u64, overdue: bool) -> Option<watch::Receiver<()>> {
        self.with_call(call, |call| {
            call.overdue |= overdue && call.running;
            call.stop();
            call.ended.subscribe()
        })
    }

    /// How a call of an artifact is named in messages.
    fn label(&self, artifact: &str) -> String {
        let word = match self.kind {
            Kind::Driver => "driver",
            Kind::Tools => "tool",
            Kind::Hooks => "hook",
        };
        format!("{word} '{artifact}'")
    }

    /// The error of a call on a worker that is lost.
    pub(super) fn lost_error(&self, artifact: Option<&str>) -> CallError {
        match &self.lock().lost {
            Some(lost) => {
                CallError::Lost(LostWorker { call: artifact.map(|artifact| self.label(artifact)), ..lost.clone() })
            }
            None => CallError::Cancelled,
        }
    }

    /// Whether the worker was told to end.
    pub(super) fn is_closing(&self) -> bool {
        self.lock().closing
    }

    /// Loses the worker: every call fails, and it is killed. Only the first reason counts.
    pub(super) fn lose(&self, how: impl Into<String>) {
        let mut state = self.lock();
        if state.lost.is_some() || state.closing {
            return;
        }
        let mut calls: Vec<(u64, Call)> = state.calls.drain().collect();
        calls.sort_by_key(|(id, _)| *id);
        let lost = LostWorker {
            kind: self.kind,
            pid: self.pid(),
            call: calls.first().map(|(_, call)| self.label(&call.artifact)),
            how: how.into(),
        };
        state.lost = Some(lost.clone());
        state.loads.clear();
        state.queue = None;
        drop(state);
        self.kill();
        for (_, mut call) in calls {
            let label = self.label(&call.artifact);
            call.finish(Err(CallError::Lost(LostWorker { call: Some(label), ..lost.clone() })));
        }
        self.lost.send_if_modified(|first| {
            let is_first = first.is_none();
            if is_first {
                *first = Some(lost);
            }
            is_first
        });
    }

    /// Kills the process and its group. Its reaping is the reader's.
    pub(super) fn kill(&self) {
        if !*self.gone.borrow() {
            if let Some(inside) = &self.inside {
                let _ = inside.signal(Signal::SIGKILL);
            }
            let _ = self.pidfd.signal_group(Signal::SIGKILL);
            let _ = self.pidfd.signal(Signal::SIGKILL);
        }
    }

    /// Waits for the process, ends it if it does not end, reaps it, and says how it ended.
    pub(super) async fn reap(&self) -> String {
        let how = start::end(&self.pidfd).await;
        self.gone.send_replace(true);
        how
    }

    /// Closes the connection; the worker ends at its end of file.
    pub(super) fn hang_up(&self) {
        let mut state = self.lock();
        state.closing = true;
        state.queue = None;
        state.loads.clear();
        let calls: Vec<Call> = state.calls.drain().map(|(_, call)| call).collect();
        let tasks = std::mem::take(&mut state.tasks);
        drop(state);
        for mut call in calls {
            call.finish(Err(CallError::Cancelled));
        }
        for task in tasks {
            task.abort();
        }
    }

    /// Waits until the process is gone and reaped, after [`Self::hang_up`].
    pub(super) async fn gone(&self) {
        if !*self.gone.borrow() {
            self.reap().await;
        }
    }
}

impl Call {
    /// Drops whatever it has asked.
    fn stop(&mut self) {
        self.running = false;
        for (_, request) in self.requests.drain() {
            request.abort();
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        self.stop();
        if let Some(done) = self.done.take() {
            let _ = done.send(outcome);
        }
    }
}

/// Cancels a call whose future is dropped before its end.
struct Cancelling<'a> {
    worker: &'a Arc<Worker>,
    call: u64,
    armed: bool,
}

impl Cancelling<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Cancelling<'_> {
    fn drop(&mut self) {
        if self.armed
            && let Some(ended) = self.worker.stop(self.call, false)
        {
            // A dropped future cannot wait; without a runtime the session is ending anyway.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(see_off(self.worker.clone(), self.call, ended, "it was cancelled"));
            }
        }
    }
}

/// Watches a call's clock until it ends or its time is over.
async fn watch_over(worker: Arc<Worker>, call: u64) {
    let watched = worker.with_call(call, |call| (call.clock.clone(), call.ended.subscribe()));
    let Some((clock, mut ended)) = watched else { return };
    tokio::select! {
        _ = ended.changed() => return,
        () = clock.over() => {}
    }
    // One that was cancelled is seen off already.
    let overdue = worker.with_call(call, |call| call.running).unwrap_or(false);
    if overdue && let Some(ended) = worker.stop(call, true) {
        see_off(worker, call, ended, "its deadline passed").await;
    }
}

/// Tells the worker to end a call, and loses the worker when it does not.
async fn see_off(worker: Arc<Worker>, call: u64, mut ended: watch::Receiver<()>, since: &str) {
    let told = Instant::now();
    let cancel = Down::Cancel { call };
    let warned = worker.send(&cancel);
    // A worker that does not read what it is sent is no reason to wait longer.
    let _ = tokio::time::timeout(SILENCE, warned).await;
    loop {
        let quiet_since = worker.lock().heard.max(told);
        let until = (quiet_since + SILENCE).min(told + TALK);
        let timeout = tokio::time::timeout_at(until.into(), ended.changed()).await;
        if timeout.is_ok() || worker.with_call(call, |_| ()).is_none() {
            return;
        }
        let now = Instant::now();
        if now >= told + TALK {
            let seconds = TALK.as_secs();
            return worker.lose(format!("it kept talking and did not end the call within {seconds} s after {since}"));
        }
        if now >= worker.lock().heard.max(told) + SILENCE {
            return worker.lose(format!("nothing came from it for {} s after {since}", SILENCE.as_secs()));
        }
    }
}
