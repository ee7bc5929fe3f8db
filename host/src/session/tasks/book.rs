//! The state machine of a session's tasks: plain data and decisions, called under the registry's lock.
//!
//! Every method takes the time from its caller, so a test decides what time it is.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use super::events::{EventKind, EventLog, Frame};
use super::model::{
    ActiveTask, Answer, BUSY, CANCELED_BEFORE_START, CLOSING, CancelSignal, Closing, EndNotes, Lane, NewTask, Owner,
    Source, State, TASK_CANCELED, TaskEnd, TaskFacts, TaskObserver, TaskView,
};
use super::progress::Progress;
use super::{CancelRefusal, Capacity, DeliverRefusal, Submitted};
use crate::ids::{ContextId, TaskId};

/// Ended tasks that stay readable; the oldest are forgotten beyond that. Each takes a kibibyte or two, so a member that
/// serves for weeks holds no more than a few MiB of them.
pub const KEPT_ENDED: usize = 1_000;
/// Bytes of answers held in memory; older ones are read from their files, or are gone when they have none.
pub const KEPT_ANSWER_BYTES: usize = 32 << 20;

pub(super) struct Book {
    capacity: Capacity,
    observer: Box<dyn TaskObserver>,
    closing: Option<Closing>,
    /// Tasks that have begun to run, reports of a resumed session aside.
    pub(super) started: u64,
    /// Tasks that ran to their end.
    pub(super) finished: u64,
    pub(super) records: HashMap<TaskId, Record>,
    /// By last change; newest last.
    pub(super) order: BTreeMap<u64, TaskId>,
    pub(super) revision: u64,
    waiting: [VecDeque<TaskId>; 3],
    running: Option<TaskId>,
    /// The running task that the session's own stop cancelled.
    stopped: Option<TaskId>,
    /// Whether the runner is waiting for a task right now: then the next one accepted is as good as running.
    pub(super) runner_waits: bool,
    /// In the order they ended.
    ended: VecDeque<TaskId>,
    /// Those of `ended` whose answer is held.
    answers: VecDeque<TaskId>,
    answer_bytes: usize,
    progress: Progress,
    pub(super) log: EventLog,
}

/// What is kept of one task.
pub(super) struct Record {
    pub(super) facts: TaskFacts,
    pub(super) state: State,
    pub(super) changed_ms: u64,
    pub(super) revision: u64,
    /// Taken when it begins to run.
    text: String,
    message: Option<Arc<str>>,
    response: Option<Answer>,
    answer_file: Option<PathBuf>,
    notes: Option<Arc<EndNotes>>,
    prompt: Option<Arc<str>>,
    pub(super) ended: bool,
    cancel: watch::Sender<bool>,
    reply: Option<oneshot::Sender<String>>,
}

/// What the runner is given.
pub(super) enum Take {
    Task(Box<ActiveTask>),
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    Closed,
}

impl Record {
    fn attached_bytes(&self) -> usize {
        self.notes.as_deref().map_or(0, EndNotes::attached_bytes)
    }

    pub(super) fn view(&self) -> TaskView {
        TaskView {
            id: self.facts.id.clone(),
            context: self.facts.context.clone(),
            state: self.state,
            changed_ms: self.changed_ms,
            message: self.message.clone(),
            response: self.response.clone(),
            prompt: self.prompt.clone(),
            notes: self.notes.clone(),
            ended: self.ended,
        }
    }
}

impl Book {
    pub(super) fn new(capacity: Capacity, observer: Box<dyn TaskObserver>) -> Self {
        Self {
            capacity,
            observer,
            closing: None,
            started: 0,
            finished: 0,
            records: HashMap::new(),
            order: BTreeMap::new(),
            revision: 0,
            waiting: Default::default(),
            running: None,
            stopped: None,
            runner_waits: false,
            ended: VecDeque::new(),
            answers: VecDeque::new(),
            answer_bytes: 0,
            progress: Progress::default(),
            log: EventLog::default(),
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    pub(super) fn has_waiting(&self, source: Source) -> bool {
        self.waiting.iter().flatten().any(|id| self.records.get(id).is_some_and(|record| record.facts.source == source))
    }

    pub(super) fn running(&self) -> Option<&TaskId> {
        self.running.as_ref()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// The record of a task this caller reaches: the one lookup that decides for every method.
    pub(super) fn reach(&self, caller: &Owner, id: &str) -> Option<&Record> {
        let record = self.records.get(&TaskId::parse(id)?)?;
        caller.reaches(&record.facts.owner).then_some(record)
    }

    // Accepting.

    pub(super) fn submit(&mut self, new: NewTask, now_ms: u64) -> Submitted {
        let context = new.context.clone().unwrap_or_else(ContextId::mint);
        let refusal = match self.closing {
            Some(_) => Some(CLOSING),
            None if new.source == Source::A2a && !self.has_room() => Some(BUSY),
            None => None,
        };
        if let Some(text) = refusal {
            return Submitted::Rejected(rejected(context, text, now_ms));
        }
        let facts = TaskFacts {
            id: TaskId::mint(),
            context,
            origin: new.origin,
            trust: new.trust,
            source: new.source,
            owner: new.owner,
            message_id: new.message_id,
            traceparent: new.traceparent,
            part_kinds: new.part_kinds,
            reference_task_ids: new.reference_task_ids,
            text_bytes: u64::try_from(new.text.len()).unwrap_or(u64::MAX),
        };
        if facts.source == Source::A2a {
            self.observer.received(&facts);
        }
        let id = facts.id.clone();
        self.waiting[lane_index(facts.origin.lane())].push_back(id.clone());
        let record = Record {
            facts,
            state: State::Submitted,
            changed_ms: now_ms,
            revision: 0,
            text: new.text,
            message: None,
            response: None,
            answer_file: None,
            notes: None,
            prompt: None,
            ended: false,
            cancel: watch::channel(false).0,
            reply: None,
        };
        self.records.insert(id.clone(), record);
        self.moved(&id, now_ms);
        Submitted::Accepted { view: self.records[&id].view(), next_event: self.log.next_id() }
    }

    fn has_room(&self) -> bool {
        match self.capacity {
            Capacity::None => false,
            Capacity::Single => {
                // A report of a resumed session is not the one task.
                let of_others =
                    |id: &TaskId| self.records.get(id).is_none_or(|record| record.facts.source != Source::DetachedLost);
                self.started == 0 && !self.waiting.iter().flatten().any(of_others)
            }
            // The place of the running task counts as free while the runner stands at the door.
            Capacity::Queue { depth } => self.waiting() < depth.saturating_add(usize::from(self.runner_waits)),
        }
    }

    // Running.

    pub(super) fn take(&mut self, now_ms: u64) -> Take {
        if self.running.is_some() {
            return Take::Nothing;
        }
        let Some(id) = self.waiting.iter_mut().find_map(VecDeque::pop_front) else {
            self.runner_waits = self.closing.is_none();
            return if self.closing.is_some() { Take::Closed } else { Take::Nothing };
        };
        self.runner_waits = false;
        self.running = Some(id.clone());
        let Some(record) = self.records.get_mut(&id) else { return Take::Nothing };
        self.started += u64::from(record.facts.source != Source::DetachedLost);
        record.state = State::Working;
        let active = ActiveTask {
            facts: record.facts.clone(),
            text: std::mem::take(&mut record.text),
            canceled: CancelSignal(record.cancel.subscribe()),
        };
        self.moved(&id, now_ms);
        Take::Task(Box::new(active))
    }

    /// A status of the running task; nothing once it is canceled or has ended.
    pub(super) fn status(&mut self, id: &TaskId, text: &str, reopen: Option<u32>, now_ms: u64) {
        if self.is_in(id, State::Working) {
            self.log_of(id, now_ms, EventKind::Status { state: State::Working, text: Some(text.into()), reopen });
        }
    }

    /// A frame of the running task, or of none. Progress is thinned out.
    pub(super) fn frame(&mut self, id: Option<&TaskId>, frame: Frame, now_ms: u64) {
        let Some(id) = id else {
            self.log.push(None, now_ms, EventKind::Frame(frame));
            return;
        };
        if self.records.get(id).is_none_or(|record| record.ended) {
            return;
        }
        if let Frame::ToolCallProgress { tool_call_id, input_bytes } = frame {
            self.tool_call_progress(id, tool_call_id, input_bytes, now_ms);
        } else {
            if !matches!(frame, Frame::ToolCallStarted { .. }) {
                self.flush_progress(id, now_ms);
            }
            self.log_of(id, now_ms, EventKind::Frame(frame));
        }
    }

    fn tool_call_progress(&mut self, id: &TaskId, tool_call_id: Arc<str>, bytes: u64, now_ms: u64) {
        if let Some(input_bytes) = self.progress.grew(&tool_call_id, bytes, now_ms) {
            self.log_of(id, now_ms, EventKind::Frame(Frame::ToolCallProgress { tool_call_id, input_bytes }));
        }
    }

    fn flush_progress(&mut self, id: &TaskId, now_ms: u64) {
        for (tool_call_id, input_bytes) in self.progress.finish() {
            self.log_of(id, now_ms, EventKind::Frame(Frame::ToolCallProgress { tool_call_id, input_bytes }));
        }
    }

    // Waiting for a reply.

    pub(super) fn require_input(
        &mut self,
        id: &TaskId,
        prompt: &str,
        now_ms: u64,
    ) -> Option<oneshot::Receiver<String>> {
        if !self.is_in(id, State::Working) {
            return None;
        }
        let record = self.records.get_mut(id)?;
        let prompt: Arc<str> = prompt.into();
        let (sender, receiver) = oneshot::channel();
        record.state = State::InputRequired;
        record.prompt = Some(prompt.clone());
        record.reply = Some(sender);
        self.moved(id, now_ms);
        self.log_of(id, now_ms, EventKind::Status { state: State::InputRequired, text: Some(prompt), reopen: None });
        Some(receiver)
    }

    /// Nobody replied: the task works on. False when it no longer waits.
    pub(super) fn input_expired(&mut self, id: &TaskId, now_ms: u64) -> bool {
        if !self.is_in(id, State::InputRequired) {
            return false;
        }
        self.work_on(id, now_ms);
        true
    }

    pub(super) fn deliver(
        &mut self,
        caller: &Owner,
        id: &str,
        context: Option<&str>,
        text: String,
        now_ms: u64,
    ) -> Result<(TaskView, u64), DeliverRefusal> {
        let record = self.reach(caller, id).ok_or(DeliverRefusal::NotFound)?;
        let id = record.facts.id.clone();
        if record.state.is_terminal() {
            return Err(DeliverRefusal::Ended(record.state));
        }
        if record.state != State::InputRequired {
            return Err(DeliverRefusal::NotWaiting(record.state));
        }
        if context.is_some_and(|context| context != record.facts.context.as_str()) {
            return Err(DeliverRefusal::OtherContext);
        }
        let reply = self.records.get_mut(&id).and_then(|record| record.reply.take());
        self.work_on(&id, now_ms);
        // A waiter that has just given up takes no reply.
        if reply.is_none_or(|reply| reply.send(text).is_err()) {
            return Err(DeliverRefusal::NotWaiting(State::Working));
        }
        let next_event = self.log.next_id();
        self.status(&id, "resumed", None, now_ms);
        Ok((self.records[&id].view(), next_event))
    }

    fn work_on(&mut self, id: &TaskId, now_ms: u64) {
        if let Some(record) = self.records.get_mut(id) {
            record.state = State::Working;
            record.prompt = None;
            record.reply = None;
            self.moved(id, now_ms);
        }
    }

    // Ending.

    /// Stops a task this caller reaches. A waiting one has ended with that; a running one ends when its runner says so.
    pub(super) fn cancel(&mut self, caller: &Owner, id: &str, now_ms: u64) -> Result<TaskView, CancelRefusal> {
        let record = self.reach(caller, id).ok_or(CancelRefusal::NotFound)?;
        if record.state.is_terminal() {
            return Err(CancelRefusal::Ended(record.state));
        }
        let id = record.facts.id.clone();
        self.cancel_live(&id, now_ms);
        Ok(self.records[&id].view())
    }

    /// Stops every live task and names them, sorted.
    pub(super) fn cancel_all(&mut self, now_ms: u64) -> Vec<TaskId> {
        let mut live: Vec<TaskId> = self.waiting.iter().flatten().cloned().collect();
        let running = self.running.clone().filter(|id| !self.records[id].state.is_terminal());
        if running.is_some() {
            self.stopped.clone_from(&running);
        }
        live.extend(running);
        for id in &live {
            self.cancel_live(id, now_ms);
        }
        live.sort();
        live
    }

    /// Whether a task was running when the session was told to stop, and was cancelled for that.
    pub(super) fn was_stopped(&self, id: &TaskId) -> bool {
        self.stopped.as_ref() == Some(id)
    }

    fn cancel_live(&mut self, id: &TaskId, now_ms: u64) {
        let queued = self.is_in(id, State::Submitted);
        let text: Arc<str> = if queued { CANCELED_BEFORE_START.into() } else { TASK_CANCELED.into() };
        let Some(record) = self.records.get_mut(id) else { return };
        record.state = State::Canceled;
        record.message = Some(text);
        record.prompt = None;
        record.reply = None;
        record.cancel.send_replace(true);
        if queued {
            let facts = record.facts.clone();
            for lane in &mut self.waiting {
                lane.retain(|waiting| waiting != id);
            }
            self.observer.canceled_in_queue(&facts);
            self.conclude(id, now_ms);
        } else {
            self.moved(id, now_ms);
        }
    }

    /// The runner's report. Answers the state the task ends in: a cancel accepted before wins.
    pub(super) fn finish(&mut self, id: &TaskId, end: TaskEnd, now_ms: u64) -> State {
        if self.running.as_ref() == Some(id) {
            self.running = None;
        }
        let Some(record) = self.records.get_mut(id) else { return State::Failed };
        if record.ended {
            return record.state;
        }
        let reported = end.state.filter(|state| state.is_terminal()).unwrap_or(State::Failed);
        let state = if record.state == State::Canceled { State::Canceled } else { reported };
        record.state = state;
        // The harness may say more about a cancel than the registry did; another ending says nothing about one.
        if reported == state {
            record.message = Some(end.text).filter(|text| !text.is_empty()).map(Into::into);
        }
        record.prompt = None;
        record.reply = None;
        if end.notes != EndNotes::default() {
            record.notes = Some(Arc::new(end.notes));
        }
        let response: Option<Arc<str>> = end.response.filter(|_| state == State::Completed).map(Into::into);
        record.response = response.clone().map(Answer::Text);
        record.answer_file = end.answer_file.filter(|_| response.is_some());
        self.finished += 1;
        self.flush_progress(id, now_ms);
        self.conclude(id, now_ms);
        let attached = self.records.get(id).map_or(0, Record::attached_bytes);
        if response.is_some() || attached > 0 {
            self.keep_answer(id, response.map_or(0, |text| text.len()) + attached);
        }
        state
    }

    /// Takes no more. Waiting tasks end here, each told why; the running one is left to its runner.
    pub(super) fn close(&mut self, closing: Closing, now_ms: u64) -> Vec<TaskId> {
        self.closing.get_or_insert(closing);
        self.runner_waits = false;
        let refused: Vec<TaskId> = self.waiting.iter_mut().flat_map(std::mem::take).collect();
        for id in &refused {
            let Some(record) = self.records.get_mut(id) else { continue };
            record.state = State::Rejected;
            record.message = Some(closing.refusal().into());
            let facts = record.facts.clone();
            self.observer.rejected_in_queue(&facts, closing);
            self.conclude(id, now_ms);
        }
        refused
    }

    /// Writes the ending: its events, and what stays readable.
    fn conclude(&mut self, id: &TaskId, now_ms: u64) {
        self.moved(id, now_ms);
        let Some(record) = self.records.get_mut(id) else { return };
        record.ended = true;
        record.text = String::new();
        let (state, text) = (record.state, record.message.clone());
        let response = match &record.response {
            Some(Answer::Text(text)) => Some(text.clone()),
            Some(Answer::File(_)) | None => None,
        };
        if let Some(response) = response {
            self.log_of(id, now_ms, EventKind::Response(response));
        }
        self.log_of(id, now_ms, EventKind::Status { state, text, reopen: None });
        self.ended.push_back(id.clone());
        while self.ended.len() > KEPT_ENDED {
            let Some(oldest) = self.ended.pop_front() else { break };
            self.forget(&oldest);
        }
    }

    /// Holds an answer, and lets go of the oldest beyond the bound. The newest stays, however large.
    fn keep_answer(&mut self, id: &TaskId, bytes: usize) {
        self.answer_bytes += bytes;
        self.answers.push_back(id.clone());
        while self.answer_bytes > KEPT_ANSWER_BYTES && self.answers.len() > 1 {
            let Some(oldest) = self.answers.pop_front() else { break };
            self.let_go_of_answer(&oldest);
        }
    }

    fn let_go_of_answer(&mut self, id: &TaskId) {
        let Some(record) = self.records.get_mut(id) else { return };
        let attached = record.attached_bytes();
        if attached > 0 {
            self.answer_bytes = self.answer_bytes.saturating_sub(attached);
            let notes = record.notes.as_deref().cloned().unwrap_or_default();
            record.notes = Some(Arc::new(EndNotes { attachments: Vec::new(), ..notes }));
        }
        if let Some(Answer::Text(text)) = &record.response {
            self.answer_bytes = self.answer_bytes.saturating_sub(text.len());
            record.response = record.answer_file.take().map(Answer::File);
        }
    }

    fn forget(&mut self, id: &TaskId) {
        self.let_go_of_answer(id);
        self.answers.retain(|held| held != id);
        if let Some(record) = self.records.remove(id) {
            self.order.remove(&record.revision);
        }
    }

    // Small steps.

    fn is_in(&self, id: &TaskId, state: State) -> bool {
        self.records.get(id).is_some_and(|record| record.state == state && !record.ended)
    }

    /// The task changed: it moves to the front of the list.
    fn moved(&mut self, id: &TaskId, now_ms: u64) {
        let Some(record) = self.records.get_mut(id) else { return };
        self.revision += 1;
        self.order.remove(&record.revision);
        self.order.insert(self.revision, id.clone());
        record.revision = self.revision;
        record.changed_ms = now_ms;
    }

    fn log_of(&mut self, id: &TaskId, now_ms: u64, kind: EventKind) {
        if let Some(record) = self.records.get(id) {
            self.log.push(Some((id, &record.facts.context)), now_ms, kind);
        }
    }
}

fn lane_index(lane: Lane) -> usize {
    match lane {
        Lane::User => 0,
        Lane::Peer => 1,
        Lane::Background => 2,
    }
}

fn rejected(context: ContextId, text: &str, now_ms: u64) -> TaskView {
    TaskView {
        id: TaskId::mint(),
        context,
        state: State::Rejected,
        changed_ms: now_ms,
        message: Some(text.into()),
        response: None,
        prompt: None,
        notes: None,
        ended: true,
    }
}
