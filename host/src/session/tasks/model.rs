//! The words of tasks: where one came from, whose it is, what state it is in, and what others may read of it.

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::credentials::MemberName;
use crate::ids::{ContextId, TaskId};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$item])* $variant,)* }

        impl $name {
            /// The word records and headers use.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

words! {
    /// Where a task came from.
    Origin {
        /// The launch itself.
        User "user",
        /// Another member or capsule.
        Peer "peer",
        /// A schedule of the runtime.
        Schedule "schedule",
        /// A client that stated no origin.
        Event "event",
        /// Work handed off earlier that reports back.
        Completion "completion",
        /// The runtime.
        System "system",
    }
}

impl Origin {
    /// The lane a task of this origin waits in.
    pub fn lane(self) -> Lane {
        match self {
            Self::User => Lane::User,
            Self::Peer => Lane::Peer,
            Self::Schedule | Self::Event | Self::Completion | Self::System => Lane::Background,
        }
    }
}

words! {
    /// Where a task waits; lanes are emptied in this order.
    Lane {
        /// The operator's.
        User "user",
        /// Other members'.
        Peer "peer",
        /// Everything else.
        Background "bg",
    }
}

words! {
    /// Whether a task's text may instruct the model, or is fenced as data.
    Trust {
        /// It may instruct.
        Trusted "trusted",
        /// It is fenced.
        Untrusted "untrusted",
    }
}

words! {
    /// What brought a task into the session.
    Source {
        /// A message at the door.
        A2a "a2a",
        /// The launch's own text.
        TaskMd "task_md",
        /// A command that went to the background and ended.
        DetachedShell "detached_shell",
        /// A command an earlier session lost.
        DetachedLost "detached_lost",
    }
}

words! {
    /// What a part of a message was.
    PartKind {
        /// Text.
        Text "text",
        /// Any JSON.
        Data "data",
    }
}

/// Whose a task is, and who asks for one. Both the caller of a public door and the operator's token are the operator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The operator: sees every task.
    Operator,
    /// A declared credential of the door.
    Credential(Arc<str>),
    /// A member of the formation.
    Member(MemberName),
}

impl Owner {
    /// The one rule of who reaches a task.
    pub fn reaches(&self, owner: &Self) -> bool {
        *self == Self::Operator || self == owner
    }
}

/// A task's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Accepted and waiting.
    Submitted,
    /// Running.
    Working,
    /// Running, and waiting for a reply.
    InputRequired,
    /// Ended with an answer.
    Completed,
    /// Ended without.
    Failed,
    /// Never started, by the session's decision.
    Rejected,
    /// Stopped by a caller or the session's end.
    Canceled,
}

impl State {
    /// Every state a task can be in.
    pub const ALL: [Self; 7] = [
        Self::Submitted,
        Self::Working,
        Self::InputRequired,
        Self::Completed,
        Self::Failed,
        Self::Rejected,
        Self::Canceled,
    ];

    /// The name on the wire.
    pub fn wire(self) -> &'static str {
        match self {
            Self::Submitted => "TASK_STATE_SUBMITTED",
            Self::Working => "TASK_STATE_WORKING",
            Self::InputRequired => "TASK_STATE_INPUT_REQUIRED",
            Self::Completed => "TASK_STATE_COMPLETED",
            Self::Failed => "TASK_STATE_FAILED",
            Self::Rejected => "TASK_STATE_REJECTED",
            Self::Canceled => "TASK_STATE_CANCELED",
        }
    }

    /// The word in output, the trace and texts for a model.
    pub fn word(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Working => "working",
            Self::InputRequired => "input-required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Canceled => "canceled",
        }
    }

    /// Whether nothing can follow.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Rejected | Self::Canceled)
    }
}

/// A task to be taken into the session.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// What is to be done.
    pub text: String,
    /// The caller's context; one is minted when there is none.
    pub context: Option<ContextId>,
    /// Where it came from.
    pub origin: Origin,
    /// Whether its text may instruct.
    pub trust: Trust,
    /// What brought it. Only [`Source::A2a`] asks for room; the rest is always taken while the session is open.
    pub source: Source,
    /// Whose it is.
    pub owner: Owner,
    /// The message's id.
    pub message_id: Option<String>,
    /// The caller's trace context, verbatim.
    pub traceparent: Option<String>,
    /// What the message's parts were, in order.
    pub part_kinds: Vec<PartKind>,
    /// Tasks the message named, as it named them.
    pub reference_task_ids: Vec<String>,
}

impl NewTask {
    /// The launch's own task: the operator's, trusted, in the first lane.
    pub fn of_launch(text: String, context: Option<ContextId>) -> Self {
        Self {
            text,
            context,
            origin: Origin::User,
            trust: Trust::Trusted,
            source: Source::TaskMd,
            owner: Owner::Operator,
            message_id: None,
            traceparent: None,
            part_kinds: Vec::new(),
            reference_task_ids: Vec::new(),
        }
    }
}

/// What is known of a task from its acceptance on.
#[derive(Clone, Debug)]
pub struct TaskFacts {
    /// Its id.
    pub id: TaskId,
    /// Its context.
    pub context: ContextId,
    /// Where it came from.
    pub origin: Origin,
    /// Whether its text may instruct.
    pub trust: Trust,
    /// What brought it.
    pub source: Source,
    /// Whose it is.
    pub owner: Owner,
    /// The message's id.
    pub message_id: Option<String>,
    /// The caller's trace context, verbatim.
    pub traceparent: Option<String>,
    /// What the message's parts were, in order.
    pub part_kinds: Vec<PartKind>,
    /// Tasks the message named.
    pub reference_task_ids: Vec<String>,
    /// Length of its text.
    pub text_bytes: u64,
}

impl TaskFacts {
    /// The member whose formation token let it in.
    pub fn caller_member(&self) -> Option<&MemberName> {
        match &self.owner {
            Owner::Member(member) => Some(member),
            Owner::Operator | Owner::Credential(_) => None,
        }
    }
}

/// A task that has been taken to be run. Its facts read as its own fields.
#[derive(Debug)]
pub struct ActiveTask {
    pub(super) facts: TaskFacts,
    /// What is to be done.
    pub text: String,
    /// Set when the task is canceled.
    pub canceled: CancelSignal,
}

impl Deref for ActiveTask {
    type Target = TaskFacts;

    fn deref(&self) -> &TaskFacts {
        &self.facts
    }
}

/// Whether a task has been canceled; clones watch the same task.
#[derive(Clone, Debug)]
pub struct CancelSignal(pub(super) watch::Receiver<bool>);

impl CancelSignal {
    /// Whether it has been.
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when it has been; never for a task that ends otherwise.
    pub async fn set(&self) {
        let mut receiver = self.0.clone();
        if receiver.wait_for(|canceled| *canceled).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// How a task ended, as its runner reports it.
#[derive(Clone, Debug, Default)]
pub struct TaskEnd {
    /// The terminal state; a cancel accepted before wins over it.
    pub state: Option<State>,
    /// The final status text.
    pub text: String,
    /// The answer of a completed task.
    pub response: Option<String>,
    /// Where the answer also lies: lets the registry forget an old answer and still give it.
    pub answer_file: Option<PathBuf>,
    /// What else its reader is to know.
    pub notes: EndNotes,
}

impl TaskEnd {
    /// Ended with an answer.
    pub fn completed(response: String) -> Self {
        let response = (!response.is_empty()).then_some(response);
        Self { state: Some(State::Completed), text: "task completed".to_owned(), response, ..Self::default() }
    }

    /// Ended without one, for a reason.
    pub fn failed(text: impl Into<String>) -> Self {
        Self { state: Some(State::Failed), text: text.into(), ..Self::default() }
    }

    /// Stopped.
    pub fn canceled() -> Self {
        Self { state: Some(State::Canceled), text: TASK_CANCELED.to_owned(), ..Self::default() }
    }
}

/// Final text of a task canceled while it ran.
pub const TASK_CANCELED: &str = "task canceled";
/// Final text of a task canceled while it waited.
pub const CANCELED_BEFORE_START: &str = "task canceled before it started";
/// What a caller that will offer again reads; a protocol string.
pub const BUSY: &str = "task rejected: capsule is busy";
/// What a caller reads that must not offer again.
pub const CLOSING: &str = "task rejected: the session is closing";

/// What a terminal task's `metadata.murmur` says beside its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndNotes {
    /// It ended without an answer, by its own decision.
    pub no_answer: bool,
    /// Members below it whose calls brought none.
    pub no_answer_below: Vec<MemberStatus>,
    /// Commands it left running.
    pub running_commands: Vec<RunningCommand>,
    /// Files its tools attached to the answer.
    pub attachments: Vec<Attachment>,
}

impl EndNotes {
    /// Bytes of its attachments.
    pub fn attached_bytes(&self) -> usize {
        self.attachments.iter().map(|attachment| attachment.bytes.len()).sum()
    }
}

/// A file attached to a task's answer, as it was when its tool named it.
#[derive(Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its name, without folders.
    pub name: String,
    /// Its media type.
    pub media_type: &'static str,
    /// Its content.
    pub bytes: Arc<[u8]>,
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attachment({}, {}, {} bytes)", self.name, self.media_type, self.bytes.len())
    }
}

/// A member and how its call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub member: String,
    /// The call's status.
    pub status: String,
}

/// A command still running in the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningCommand {
    /// Its id.
    pub work_id: String,
    /// The program.
    pub binary: String,
    /// Its arguments.
    pub command: String,
    /// For how long it has run.
    pub running_ms: u64,
}

/// What a caller may read of a task.
#[derive(Clone, Debug)]
pub struct TaskView {
    /// Its id.
    pub id: TaskId,
    /// Its context.
    pub context: ContextId,
    /// Its state.
    pub state: State,
    /// When it last changed, in Unix milliseconds.
    pub changed_ms: u64,
    /// What its ending said.
    pub message: Option<Arc<str>>,
    /// Its answer.
    pub response: Option<Answer>,
    /// The question it waits on.
    pub prompt: Option<Arc<str>>,
    /// What else its ending said.
    pub notes: Option<Arc<EndNotes>>,
    /// Whether its ending has been recorded; a canceled task whose runner still works has none yet.
    pub ended: bool,
}

/// An answer: held, or where it lies once the registry let go of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The text.
    Text(Arc<str>),
    /// The file that holds it.
    File(PathBuf),
}

/// Why the session takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// It came to its end.
    Ended,
    /// It was told to stop.
    Stopped,
}

impl Closing {
    /// What a task that waited is told.
    pub fn refusal(self) -> &'static str {
        match self {
            Self::Ended => "task rejected: the session ended before this task started",
            Self::Stopped => "task rejected: the session was stopped before this task started",
        }
    }

    /// The cause in a `task_rejected` record.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Ended => "session_ended",
            Self::Stopped => "session_stopped",
        }
    }
}

/// Writes down what happens to tasks outside their runner. Called while the registry is locked, so that the order of
/// records is the order of events: it must not call the registry.
pub trait TaskObserver: Send {
    /// A message at the door became a task.
    fn received(&self, task: &TaskFacts) {
        let _ = task;
    }

    /// A waiting task was canceled: it never starts.
    fn canceled_in_queue(&self, task: &TaskFacts) {
        let _ = task;
    }

    /// A waiting task was refused because the session closes.
    fn rejected_in_queue(&self, task: &TaskFacts, closing: Closing) {
        let _ = (task, closing);
    }
}

/// An observer that writes nothing down.
pub struct Unobserved;

impl TaskObserver for Unobserved {}
