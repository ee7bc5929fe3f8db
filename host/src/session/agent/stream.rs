//! The running task as others see it: its status texts and frames.

use std::sync::Arc;

use crate::ids::TaskId;
use crate::session::tasks::{ArtifactFrame, Frame, InputWait, TaskRegistry};

/// Writes to one task's stream; clones write to the same one.
#[derive(Clone)]
pub struct TaskStream {
    tasks: TaskRegistry,
    task: TaskId,
}

impl TaskStream {
    /// For a task that runs.
    pub fn new(tasks: TaskRegistry, task: TaskId) -> Self {
        Self { tasks, task }
    }

    /// The task.
    pub fn task(&self) -> &TaskId {
        &self.task
    }

    /// A status text while the task works.
    pub fn status(&self, text: &str) {
        self.tasks.status(&self.task, text);
    }

    /// Text of the model, or of a tool that streams.
    pub fn text(&self, text: &str, last: bool) {
        self.frame(Frame::Text { text: text.into(), last });
    }

    /// Thinking of the model.
    pub fn thinking(&self, text: &str) {
        self.frame(Frame::Thinking { text: text.into() });
    }

    /// The model began to write a tool call.
    pub fn tool_call_started(&self, id: &str, name: &str) {
        self.frame(Frame::ToolCallStarted { tool_call_id: id.into(), tool_name: name.into() });
    }

    /// A tool call's input grew.
    pub fn tool_call_progress(&self, id: &str, input_bytes: u64) {
        self.frame(Frame::ToolCallProgress { tool_call_id: Arc::from(id), input_bytes });
    }

    /// What a tool gave the model.
    pub fn artifact(&self, frame: ArtifactFrame) {
        self.frame(Frame::Artifact(frame));
    }

    /// Parks the task until somebody answers; `None` when it is cancelled.
    pub fn require_input(&self, prompt: &str) -> Option<InputWait> {
        self.tasks.require_input(&self.task, prompt)
    }

    /// Nobody answered in time: the task works on.
    pub fn input_expired(&self) {
        self.tasks.input_expired(&self.task);
    }

    fn frame(&self, frame: Frame) {
        self.tasks.frame(Some(&self.task), frame);
    }
}
