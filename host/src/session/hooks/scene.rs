//! What a hook may see of the running task while it is called.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::egress::TrustClass;
use crate::ids::EventId;
use crate::session::agent::Refused;
use crate::session::agent::conversation::Conversation;
use crate::worker::hook::{InputForm, IoError, TaskIo, TaskIoReply};

/// Most bytes of one window of a task's input or output.
const WINDOW: u64 = 4 << 20;

/// The moment of an event.
#[derive(Clone, Default)]
pub struct Scene {
    /// The running task; `None` outside of one.
    pub task: Option<TaskScene>,
    /// Whether the task's input and output may be asked for: not before its first turn.
    pub readable: bool,
    /// The turn it happens in.
    pub turn: u32,
    /// What its records hang off.
    pub parent: Option<EventId>,
    /// Whether a conversation is being shortened: completions then have bounds and settings of their own.
    pub compacting: bool,
}

/// The running task.
#[derive(Clone)]
pub struct TaskScene {
    /// `tsk_…`.
    pub id: String,
    /// Its text.
    pub original: Arc<str>,
    /// Its text with the feedback of reopens.
    pub given: Arc<str>,
    /// What the attempt came to.
    pub output: Option<Arc<str>>,
    /// The record of its conversation, when one is kept.
    pub record: Option<Arc<Conversation>>,
    /// Whose request it is.
    pub trust: TrustClass,
    /// What hooks have used in it.
    pub uses: Arc<Uses>,
    /// Turns the loop itself has used, and may use.
    pub turns: (u32, Option<u64>),
}

/// What hooks' own completions cost a task.
#[derive(Debug, Default)]
pub struct Uses {
    turns: AtomicU32,
    input: AtomicU64,
    output: AtomicU64,
    refused: Mutex<Option<Refused>>,
}

impl Uses {
    /// One more completion.
    pub fn add(&self, input: u64, output: u64) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.input.fetch_add(input, Ordering::Relaxed);
        self.output.fetch_add(output, Ordering::Relaxed);
    }

    /// A completion that did not fit under a ceiling.
    pub fn refuse(&self, refused: Refused) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(refused);
    }

    /// The last completion that did not fit since this was asked, if any.
    pub fn take_refused(&self) -> Option<Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Completions so far.
    pub fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Tokens in and out so far.
    pub fn tokens(&self) -> (u64, u64) {
        (self.input.load(Ordering::Relaxed), self.output.load(Ordering::Relaxed))
    }
}

impl Scene {
    /// Whose request it is.
    pub fn trust(&self) -> TrustClass {
        self.task.as_ref().map_or(TrustClass::Trusted, |task| task.trust)
    }

    /// Answers `murmur:task-io/read` of a hook that was granted it.
    pub(super) fn read(&self, question: TaskIo) -> Result<TaskIoReply, IoError> {
        let task = self.task.as_ref().filter(|_| self.readable).ok_or(IoError::NoTask)?;
        let input = |form| match form {
            InputForm::AsGiven => &task.given,
            InputForm::Original => &task.original,
        };
        let output = || task.output.as_ref().ok_or(IoError::NoOutput);
        match question {
            TaskIo::InputLen(form) => Ok(TaskIoReply::Len(input(form).len() as u64)),
            TaskIo::OutputLen => output().map(|text| TaskIoReply::Len(text.len() as u64)),
            TaskIo::ReadInput(form, offset, most) => window(input(form), offset, most).map(TaskIoReply::Text),
            TaskIo::ReadOutput(offset, most) => window(output()?, offset, most).map(TaskIoReply::Text),
        }
    }
}

/// At most `most` bytes from `offset` on, ending on a character.
fn window(text: &str, offset: u64, most: u64) -> Result<String, IoError> {
    let offset = usize::try_from(offset).map_err(|_| IoError::OutOfRange)?;
    let rest = text.get(offset..).ok_or(IoError::OutOfRange)?;
    let most = usize::try_from(most.min(WINDOW)).unwrap_or(usize::MAX);
    Ok(rest[..rest.floor_char_boundary(most)].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_on_a_character_and_begins_on_one() {
        assert_eq!(window("aéb", 0, 2).unwrap(), "a");
        assert_eq!(window("aéb", 1, 100).unwrap(), "éb");
        assert_eq!(window("aéb", 4, 1).unwrap(), "", "the end is a place");
        assert_eq!(window("aéb", 0, 0).unwrap(), "");
        assert_eq!(window("aéb", 2, 1), Err(IoError::OutOfRange));
        assert_eq!(window("aéb", 5, 1), Err(IoError::OutOfRange));
    }

    #[test]
    fn outside_of_a_task_there_is_nothing_to_read() {
        let scene = Scene::default();
        for question in [TaskIo::OutputLen, TaskIo::InputLen(InputForm::AsGiven), TaskIo::ReadOutput(0, 1)] {
            assert_eq!(scene.read(question), Err(IoError::NoTask));
        }
    }
}
