//! Records of what happens to tasks outside their runner: accepted at the door, canceled or refused while waiting.

use super::tasks::{Closing, TaskFacts, TaskObserver};
use crate::trace::Trace;
use crate::trace::records::{A2aTaskReceived, TaskCanceled, TaskRejected};

/// Writes them into the session's trace. A record that is refused is said on stderr; the session's own writer finds out
/// with its next record and ends the session.
pub struct Recorder(pub Trace);

impl TaskObserver for Recorder {
    fn received(&self, task: &TaskFacts) {
        let record = A2aTaskReceived {
            task_id: task.id.to_string(),
            context_id: task.context.to_string(),
            message_id: task.message_id.clone().unwrap_or_default(),
            traceparent_from_caller: task.traceparent.clone(),
            caller_member: task.caller_member().map(ToString::to_string),
        };
        self.0.record_aside("a2a_task_received", None, record);
    }

    fn canceled_in_queue(&self, task: &TaskFacts) {
        let record = TaskCanceled {
            task_id: task.id.to_string(),
            turn: None,
            phase: "queued".to_owned(),
            detached_work_ids: Vec::new(),
            delegation_ids: Vec::new(),
        };
        self.0.record_aside("task_canceled", None, record);
    }

    fn rejected_in_queue(&self, task: &TaskFacts, closing: Closing) {
        let record = TaskRejected {
            task_id: task.id.to_string(),
            context_id: task.context.to_string(),
            source: task.source.as_str(),
            cause: closing.cause(),
            reason: closing.refusal().to_owned(),
        };
        self.0.record_aside("task_rejected", None, record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tasks::{Capacity, NewTask, Owner, Source, TaskRegistry};
    use crate::trace::testing::trace;

    #[test]
    fn tasks_that_never_run_leave_exactly_one_record_behind_their_acceptance() {
        let (trace, kept) = trace();
        let tasks = TaskRegistry::new(Capacity::Queue { depth: 3 }, Box::new(Recorder(trace)));
        let submit = || {
            let new =
                NewTask { source: Source::A2a, message_id: Some("m".into()), ..NewTask::of_launch("x".into(), None) };
            match tasks.submit(new) {
                crate::session::tasks::Submitted::Accepted { view, .. } => view.id,
                crate::session::tasks::Submitted::Rejected(_) => panic!("there is room"),
            }
        };
        let (first, _second) = (submit(), submit());
        tasks.cancel(&Owner::Operator, first.as_str()).unwrap();
        tasks.close(Closing::Stopped);
        let types: Vec<String> =
            kept.lines().iter().map(|line| line["event_type"].as_str().unwrap().to_owned()).collect();
        assert_eq!(types, ["a2a_task_received", "a2a_task_received", "task_canceled", "task_rejected"]);
        assert_eq!(kept.lines()[2]["phase"], "queued");
        assert_eq!(kept.lines()[3]["cause"], "session_stopped");
    }
}
