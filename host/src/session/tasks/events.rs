//! The session's one sequence of events, what it keeps of them, and where a reader stands.

use std::collections::VecDeque;
use std::sync::Arc;

use super::model::State;
use crate::ids::{ContextId, TaskId};

/// Events kept for replay.
pub const KEPT_EVENTS: usize = 512;
/// Bytes of text the kept events may hold; the oldest go first. Tool results are large and a door may have no reader.
pub const KEPT_BYTES: usize = 16 << 20;
/// Events a live reader may fall behind before it loses the oldest.
pub const READER_LAG: usize = 128;

/// One event of the session.
#[derive(Clone, Debug)]
pub struct Event {
    /// From 1, one a step.
    pub id: u64,
    /// The task it is about.
    pub task: Option<TaskId>,
    /// That task's context.
    pub context: Option<ContextId>,
    /// When, in Unix milliseconds.
    pub at_ms: u64,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum EventKind {
    /// A status of a task: every plain stream carries it.
    Status {
        /// The state.
        state: State,
        /// What it says.
        text: Option<Arc<str>>,
        /// How often a hook has reopened the task, on that status.
        reopen: Option<u32>,
    },
    /// The answer of a completed task, just before its final status.
    Response(Arc<str>),
    /// More than A2A says; carried to readers that asked for it.
    Frame(Frame),
}

/// A frame of the stream extension.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// Text of the model.
    Text {
        /// The piece, or all of it.
        text: Arc<str>,
        /// Whether the call's text is complete.
        last: bool,
    },
    /// Thinking of the model.
    Thinking {
        /// The piece.
        text: Arc<str>,
    },
    /// The model began to call a tool.
    ToolCallStarted {
        /// The provider's id.
        tool_call_id: Arc<str>,
        /// The tool.
        tool_name: Arc<str>,
    },
    /// The call's input grows.
    ToolCallProgress {
        /// The provider's id.
        tool_call_id: Arc<str>,
        /// Bytes so far.
        input_bytes: u64,
    },
    /// What a tool gave the model.
    Artifact(ArtifactFrame),
}

/// A tool's result as the model received it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ArtifactFrame {
    /// The tool.
    pub tool_name: Option<String>,
    /// Exactly what the model received, fence included.
    pub content: Arc<str>,
    /// `tool:<name>`, or none for a result without a fence.
    pub fence_source: Option<String>,
    /// The provider's id.
    pub tool_call_id: Option<String>,
    /// Whether the model was told of an error.
    pub is_error: Option<bool>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// A command's exit status.
    pub exit_code: Option<i32>,
    /// Whether it was cut.
    pub truncated: Option<bool>,
}

impl EventKind {
    /// Roughly what it holds.
    fn bytes(&self) -> usize {
        let text = match self {
            Self::Status { text, .. } => text.as_ref().map_or(0, |text| text.len()),
            Self::Response(text) => text.len(),
            Self::Frame(Frame::Text { text, .. } | Frame::Thinking { text }) => text.len(),
            Self::Frame(Frame::Artifact(artifact)) => artifact.content.len(),
            Self::Frame(Frame::ToolCallStarted { .. } | Frame::ToolCallProgress { .. }) => 0,
        };
        text + 256
    }
}

/// The newest events.
#[derive(Default)]
pub(super) struct EventLog {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    issued: u64,
}

impl EventLog {
    pub(super) fn push(&mut self, task: Option<(&TaskId, &ContextId)>, at_ms: u64, kind: EventKind) {
        self.issued += 1;
        self.bytes += kind.bytes();
        self.events.push_back(Arc::new(Event {
            id: self.issued,
            task: task.map(|(id, _)| id.clone()),
            context: task.map(|(_, context)| context.clone()),
            at_ms,
            kind,
        }));
        // The newest stays, however large.
        while self.events.len() > KEPT_EVENTS || (self.bytes > KEPT_BYTES && self.events.len() > 1) {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.kind.bytes();
        }
    }

    /// The id the next event will have.
    pub(super) fn next_id(&self) -> u64 {
        self.issued + 1
    }

    /// What a reader that has seen everything up to `after` is given first.
    pub(super) fn replay(&self, after: u64, task: Option<&TaskId>) -> Replay {
        let Some(first) = self.events.front().map(|event| event.id) else { return Replay::default() };
        let unknown = after.saturating_add(1) < first || after >= self.next_id();
        let from = if unknown { first } else { after + 1 };
        Replay { gap: unknown.then_some(first), events: self.from(from, task).collect() }
    }

    /// What a live reader standing before `cursor` gets, and where it stands then.
    pub(super) fn live(&self, cursor: &mut u64, task: Option<&TaskId>) -> Live {
        let first = self.events.front().map_or(self.next_id(), |event| event.id);
        let mut missed = first.saturating_sub(*cursor);
        let mut events: VecDeque<Arc<Event>> = self.from(*cursor, task).collect();
        while events.len() > READER_LAG {
            events.pop_front();
            missed += 1;
        }
        *cursor = self.next_id();
        Live { missed, events }
    }

    fn from<'a>(&'a self, id: u64, task: Option<&'a TaskId>) -> impl Iterator<Item = Arc<Event>> + 'a {
        // Ids are consecutive, so a place is found without a search.
        let first = self.events.front().map_or(id, |event| event.id);
        let skip = usize::try_from(id.saturating_sub(first)).unwrap_or(usize::MAX).min(self.events.len());
        self.events
            .range(skip..)
            .filter(move |event| task.is_none_or(|task| event.task.as_ref() == Some(task)))
            .cloned()
    }
}

/// Buffered events for a reader that comes back.
#[derive(Default)]
pub(super) struct Replay {
    pub(super) gap: Option<u64>,
    pub(super) events: VecDeque<Arc<Event>>,
}

/// Events since a reader last looked.
pub(super) struct Live {
    pub(super) missed: u64,
    pub(super) events: VecDeque<Arc<Event>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(events: u64) -> EventLog {
        let mut log = EventLog::default();
        for _ in 0..events {
            log.push(None, 0, EventKind::Frame(Frame::Thinking { text: "".into() }));
        }
        log
    }

    fn ids(events: &VecDeque<Arc<Event>>) -> Option<(u64, u64)> {
        Some((events.front()?.id, events.back()?.id))
    }

    #[test]
    fn a_reader_that_comes_back_gets_what_it_has_not_seen() {
        let log = log(10);
        assert_eq!(ids(&log.replay(0, None).events), Some((1, 10)));
        assert_eq!(ids(&log.replay(7, None).events), Some((8, 10)));
        let caught_up = log.replay(10, None);
        assert!(caught_up.events.is_empty() && caught_up.gap.is_none());
    }

    #[test]
    fn a_gap_is_said_when_events_are_gone_or_were_never_issued() {
        let log = log(600);
        let first = 600 - KEPT_EVENTS as u64 + 1;
        assert_eq!(log.replay(0, None).gap, Some(first));
        assert_eq!(log.replay(first - 1, None).gap, None);
        assert_eq!(log.replay(first - 2, None).gap, Some(first));
        for never in [601, u64::MAX] {
            let replay = log.replay(never, None);
            assert_eq!(replay.gap, Some(first));
            assert_eq!(ids(&replay.events), Some((first, 600)));
        }
        assert!(EventLog::default().replay(5, None).gap.is_none());
    }

    #[test]
    fn a_slow_reader_loses_the_oldest_and_is_told_how_many() {
        let mut log = log(130);
        let mut cursor = 1;
        let live = log.live(&mut cursor, None);
        assert_eq!((live.missed, ids(&live.events)), (2, Some((3, 130))));
        assert_eq!(cursor, 131);
        assert_eq!(log.live(&mut cursor, None).missed, 0);
        for _ in 0..1000 {
            log.push(None, 0, EventKind::Frame(Frame::Thinking { text: "".into() }));
        }
        let live = log.live(&mut cursor, None);
        assert_eq!((live.missed, live.events.len()), (1000 - READER_LAG as u64, READER_LAG));
    }

    #[test]
    fn large_events_push_out_old_ones_before_the_count_does() {
        let mut log = EventLog::default();
        let large: Arc<str> = "x".repeat(KEPT_BYTES / 4).into();
        for _ in 0..10 {
            log.push(None, 0, EventKind::Frame(Frame::Thinking { text: large.clone() }));
        }
        assert!(log.bytes <= KEPT_BYTES);
        assert_eq!(log.events.len(), 3);
        log.push(None, 0, EventKind::Response("x".repeat(KEPT_BYTES + 1).into()));
        assert_eq!(log.events.len(), 1);
    }
}
