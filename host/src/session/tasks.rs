//! The task registry: the one owner of a session's tasks.
//!
//! It decides whether there is room, which task runs next, who reaches a task, what a caller reads of it, and the one
//! sequence of events. The decisions are a plain state machine (`book`); this handle locks it, tells the time and wakes
//! whoever waits.

mod book;
mod events;
mod list;
mod model;
mod progress;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{oneshot, watch};

use book::{Book, Take};
pub use book::{KEPT_ANSWER_BYTES, KEPT_ENDED};
pub use events::{ArtifactFrame, Event, EventKind, Frame, KEPT_EVENTS, READER_LAG};
pub use list::{DEFAULT_PAGE, LARGEST_PAGE, ListQuery, PageToken, StateFilter, TaskPage, UnknownPage};
pub use model::{
    ActiveTask, Answer, Attachment, BUSY, CLOSING, CancelSignal, Closing, EndNotes, Lane, MemberStatus, NewTask,
    Origin, Owner, PartKind, RunningCommand, Source, State, TASK_CANCELED, TaskEnd, TaskFacts, TaskObserver, TaskView,
    Trust, Unobserved,
};

use crate::ids::TaskId;

/// How many tasks the door may bring (`lifecycle.task_acceptance`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// None.
    None,
    /// One in the session's life.
    Single,
    /// One after another.
    Queue {
        /// How many may wait.
        depth: usize,
    },
}

/// What became of a new task.
#[derive(Debug)]
pub enum Submitted {
    /// It waits for its turn.
    Accepted {
        /// As it stands.
        view: TaskView,
        /// The id of the first event that can be about it.
        next_event: u64,
    },
    /// It was not taken; nothing of it is kept.
    Rejected(TaskView),
}

/// Why a message does not reach a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliverRefusal {
    /// There is none, or it is not the caller's.
    NotFound,
    /// It has ended.
    Ended(State),
    /// It does not wait for one.
    NotWaiting(State),
    /// It waits in another context.
    OtherContext,
}

/// Why a task is not canceled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelRefusal {
    /// There is none, or it is not the caller's.
    NotFound,
    /// It has ended.
    Ended(State),
}

/// Why a task cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscribeRefusal {
    /// There is none, or it is not the caller's.
    NotFound,
    /// It has ended.
    Ended(State),
}

/// How much is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Tasks waiting for their turn.
    pub waiting: usize,
    /// Whether one runs.
    pub running: bool,
    /// Tasks that have begun to run in this session.
    pub started: u64,
    /// Tasks that ran to their end.
    pub finished: u64,
}

/// A handle on the registry; clones share it.
#[derive(Clone)]
pub struct TaskRegistry(Arc<Inner>);

struct Inner {
    book: Mutex<Book>,
    /// The newest event's id: wakes readers.
    events: watch::Sender<u64>,
    /// The newest change's number: wakes the runner and callers that hold for an answer.
    changes: watch::Sender<u64>,
}

impl TaskRegistry {
    /// An empty registry. `observer` is told what happens outside a task's runner.
    pub fn new(capacity: Capacity, observer: Box<dyn TaskObserver>) -> Self {
        Self(Arc::new(Inner {
            book: Mutex::new(Book::new(capacity, observer)),
            events: watch::channel(0).0,
            changes: watch::channel(0).0,
        }))
    }

    /// Runs a change under the lock and wakes whom it concerns.
    fn change<T>(&self, change: impl FnOnce(&mut Book, u64) -> T) -> T {
        let mut book = self.lock();
        let before = (book.log.next_id(), book.revision);
        let result = change(&mut book, now_ms());
        let after = (book.log.next_id(), book.revision);
        drop(book);
        if after.0 != before.0 {
            self.0.events.send_replace(after.0);
        }
        if after.1 != before.1 {
            self.0.changes.send_replace(after.1);
        }
        result
    }

    /// A panic under the lock leaves a book that is whole but for its last step.
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Accepting.

    /// Takes a task in, or refuses it for want of room or because the session closes.
    pub fn submit(&self, new: NewTask) -> Submitted {
        self.change(|book, now| book.submit(new, now))
    }

    /// Hands a message to a task that waits for one. Answers the task and the id of the first event after it.
    pub fn deliver(
        &self,
        caller: &Owner,
        id: &str,
        context: Option<&str>,
        text: String,
    ) -> Result<(TaskView, u64), DeliverRefusal> {
        self.change(|book, now| book.deliver(caller, id, context, text, now))
    }

    // The runner's side.

    /// The next task to run, by lane and arrival; waits for one. `None` once the registry is closed and empty. Dropping
    /// the future loses nothing.
    pub async fn next(&self) -> Option<ActiveTask> {
        let mut changes = self.0.changes.subscribe();
        loop {
            changes.mark_unchanged();
            match self.try_next() {
                Take::Task(task) => return Some(*task),
                Take::Closed => return None,
                Take::Nothing => {}
            }
            // The sender lives in `self`, so this ends only by a change.
            let _ = changes.changed().await;
        }
    }

    fn try_next(&self) -> Take {
        self.change(Book::take)
    }

    /// A status text of the running task (`inference turn 1`, …).
    pub fn status(&self, id: &TaskId, text: &str) {
        self.change(|book, now| book.status(id, text, None, now));
    }

    /// The status of a task a hook has reopened for the `n`th time.
    pub fn reopened(&self, id: &TaskId, hook: &str, n: u32) {
        self.change(|book, now| book.status(id, &format!("reopened by hook {hook}"), Some(n), now));
    }

    /// A frame of the running task, or of none.
    pub fn frame(&self, id: Option<&TaskId>, frame: Frame) {
        self.change(|book, now| book.frame(id, frame, now));
    }

    /// Puts the running task to wait for a message with this question. `None` when it is canceled or does not run.
    pub fn require_input(&self, id: &TaskId, prompt: &str) -> Option<InputWait> {
        self.change(|book, now| book.require_input(id, prompt, now)).map(InputWait)
    }

    /// Ends the wait without a message: the task works again. False when it no longer waited.
    pub fn input_expired(&self, id: &TaskId) -> bool {
        self.change(|book, now| book.input_expired(id, now))
    }

    /// Records how a task ended: its answer and its final status, on every stream. Answers the state it ended in: a
    /// cancel accepted before wins.
    pub fn finish(&self, id: &TaskId, end: TaskEnd) -> State {
        self.change(|book, now| book.finish(id, end, now))
    }

    /// Takes no more tasks; those that wait end here, each told why. Answers their ids.
    pub fn close(&self, closing: Closing) -> Vec<TaskId> {
        let refused = self.change(|book, now| book.close(closing, now));
        // The runner may wait though nothing changed.
        self.0.changes.send_modify(|_| {});
        refused
    }

    /// How much is going on.
    pub fn counts(&self) -> Counts {
        let book = self.lock();
        Counts {
            waiting: book.waiting(),
            running: book.running().is_some(),
            started: book.started,
            finished: book.finished,
        }
    }

    /// Whether a task of this source waits for its turn.
    pub fn has_waiting(&self, source: Source) -> bool {
        self.lock().has_waiting(source)
    }

    /// Whether [`TaskRegistry::close`] has been called.
    pub fn is_closing(&self) -> bool {
        self.lock().is_closing()
    }

    // The callers' side.

    /// A task, as this caller may read it.
    pub fn view(&self, caller: &Owner, id: &str) -> Option<TaskView> {
        self.lock().reach(caller, id).map(book::Record::view)
    }

    /// A page of the tasks this caller reaches.
    pub fn list(&self, caller: &Owner, query: &ListQuery) -> Result<TaskPage, UnknownPage> {
        list::list(&self.lock(), caller, query)
    }

    /// Stops a task this caller reaches.
    pub fn cancel(&self, caller: &Owner, id: &str) -> Result<TaskView, CancelRefusal> {
        self.change(|book, now| book.cancel(caller, id, now))
    }

    /// Stops every live task. Answers the ids of those this call stopped, sorted.
    pub fn cancel_all(&self) -> Vec<TaskId> {
        self.change(Book::cancel_all)
    }

    /// Whether a task was running when all were stopped at once, and not cancelled by itself.
    pub fn was_stopped(&self, id: &TaskId) -> bool {
        self.lock().was_stopped(id)
    }

    /// Waits until a task has ended, with its ending recorded, or waits for input. `None` when it is not known.
    pub async fn settled(&self, id: &TaskId) -> Option<TaskView> {
        let mut changes = self.0.changes.subscribe();
        loop {
            changes.mark_unchanged();
            let view = self.view(&Owner::Operator, id.as_str())?;
            if view.ended || view.state == State::InputRequired {
                return Some(view);
            }
            let _ = changes.changed().await;
        }
    }

    /// Follows one task from now on, or after the event the caller saw last.
    pub fn subscribe(
        &self,
        caller: &Owner,
        id: &str,
        last_event_id: Option<u64>,
    ) -> Result<(TaskView, Subscription), SubscribeRefusal> {
        let book = self.lock();
        let record = book.reach(caller, id).ok_or(SubscribeRefusal::NotFound)?;
        if record.state.is_terminal() {
            return Err(SubscribeRefusal::Ended(record.state));
        }
        let view = record.view();
        let subscription = self.reader(&book, Some(view.id.clone()), last_event_id, None);
        Ok((view, subscription))
    }

    /// Follows a task that was just accepted, from the event id its acceptance answered.
    pub fn follow(&self, id: &TaskId, next_event: u64, last_event_id: Option<u64>) -> Subscription {
        self.reader(&self.lock(), Some(id.clone()), last_event_id, Some(next_event))
    }

    /// Follows every task: what is buffered after the event the observer saw last, then what comes.
    pub fn watch(&self, last_event_id: Option<u64>) -> Subscription {
        self.reader(&self.lock(), None, Some(last_event_id.unwrap_or(0)), None)
    }

    fn reader(
        &self,
        book: &Book,
        task: Option<TaskId>,
        replay_after: Option<u64>,
        next_event: Option<u64>,
    ) -> Subscription {
        let replay = replay_after.map(|after| book.log.replay(after, task.as_ref())).unwrap_or_default();
        // What is replayed is not read again.
        let cursor = if replay_after.is_some() { book.log.next_id() } else { next_event.unwrap_or(book.log.next_id()) };
        Subscription {
            registry: self.clone(),
            wake: self.0.events.subscribe(),
            task,
            replay: Some(Batch { gap: replay.gap, missed: 0, events: replay.events.into(), replayed: true }),
            cursor,
        }
    }
}

/// A task's wait for a message.
pub struct InputWait(oneshot::Receiver<String>);

impl InputWait {
    /// The message; `None` when the task was canceled. To give up, drop this and call
    /// [`TaskRegistry::input_expired`].
    pub async fn message(&mut self) -> Option<String> {
        (&mut self.0).await.ok()
    }
}

/// A reader of events: replay first, then live. It holds no events itself, so a reader that stalls costs nothing.
pub struct Subscription {
    registry: TaskRegistry,
    wake: watch::Receiver<u64>,
    task: Option<TaskId>,
    replay: Option<Batch>,
    cursor: u64,
}

/// Events a reader is given at once.
#[derive(Debug, Default)]
pub struct Batch {
    /// Replay could not start where the reader left off: the first event that is there.
    pub gap: Option<u64>,
    /// Events this reader was too slow for, lost before `events`.
    pub missed: u64,
    /// In order.
    pub events: Vec<Arc<Event>>,
    /// Whether these had happened before the reader came.
    pub replayed: bool,
}

impl Subscription {
    /// What there is now, without waiting.
    pub fn take(&mut self) -> Batch {
        if let Some(replay) = self.replay.take() {
            return replay;
        }
        self.wake.mark_unchanged();
        let live = self.registry.lock().log.live(&mut self.cursor, self.task.as_ref());
        Batch { gap: None, missed: live.missed, events: live.events.into(), replayed: false }
    }

    /// Waits until there may be more.
    pub async fn changed(&mut self) {
        if self.replay.is_none() {
            let _ = self.wake.changed().await;
        }
    }

    /// The followed task as it stands, for a reader that lost events.
    pub fn current(&self) -> Option<TaskView> {
        self.registry.view(&Owner::Operator, self.task.as_ref()?.as_str())
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
