//! One task, from its activation to its terminal state: attempts, waits for other members, ending.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub(super) use super::ending::Ended;
use super::ending::INPUT_TIMEOUT;
use super::fence::fenced;
use super::host_calls::InputState;
use super::members::{Caller, Calls, Redactor, continuation};
use super::provided::Report;
use super::results;
use super::stream::TaskStream;
use super::wire::Message;
use super::{Agent, conversation};
use serde_json::json;
use tokio::sync::watch;

use crate::diagnostics::{Diagnostic, codes};
use crate::egress::{Sender, TrustClass};
use crate::ids::EventId;
use crate::manifest::{Acceptance, Conversation};
use crate::paths::beneath;
use crate::session::TaskOutcome;
use crate::session::context::SessionContext;
use crate::session::hooks::Uses;
use crate::session::tasks::{ActiveTask, Attachment, EndNotes, MemberStatus, Owner, Trust};
use crate::trace::{Record, records};
use crate::worker::LostWorker;

/// One task while it runs.
pub(super) struct TaskRun<'a> {
    pub(super) agent: &'a Agent,
    pub(super) task: ActiveTask,
    pub(super) stream: TaskStream,
    pub(super) calls: Arc<Calls>,
    pub(super) history: Vec<Message>,
    pub(super) record: Option<conversation::Conversation>,
    /// The same record, for hooks that may read it.
    pub(super) reader: Option<Arc<conversation::Conversation>>,
    /// The task's text, and the same with the feedback of reopens.
    pub(super) original: Arc<str>,
    pub(super) given: Arc<str>,
    pub(super) reopens: u32,
    /// What hooks have used.
    pub(super) uses: Arc<Uses>,
    /// What the driver remembers: its id, and how many messages it knows.
    pub(super) continuation: Option<(String, usize)>,
    /// The task's own message.
    pub(super) task_message: Option<Message>,
    /// It goes on with a conversation whose length was not looked at yet.
    pub(super) loaded: bool,
    /// Messages the last response and its request consist of.
    pub(super) counted: usize,
    /// Turns used, over all attempts.
    pub(super) turns: u32,
    pub(super) sums: Sums,
    /// Set by an accepted `end-without-answer`.
    pub(super) without_answer: Option<String>,
    pub(super) input: Arc<InputState>,
    /// What its tools attached to the answer.
    pub(super) attachments: Vec<Attachment>,
    started: Instant,
    continuations: u32,
    /// How often `keep_working` sent its message, and which budget ended that.
    kept_working: (u64, Option<&'static str>),
    /// The `task_start` line.
    task_node: Option<EventId>,
    /// The `inference` line of the running turn.
    pub(super) turn_node: Option<EventId>,
}

/// What `task_end` sums up, and what `session-status` shows of the last request.
#[derive(Default)]
pub(super) struct Sums {
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) tool_calls: u32,
    pub(super) shell_calls: u32,
    /// Tokens the conversation took when it was last sent, and whether the driver counted them.
    pub(super) occupancy: (u64, bool),
}

/// Whose conversations a task may go on with, as records name it; `None` for the operator's. A member is one of its
/// formation: another launch may give its name to anything.
fn owner_of(ctx: &SessionContext, task: &ActiveTask) -> Option<String> {
    match &task.owner {
        Owner::Operator => None,
        Owner::Credential(name) => Some(format!("credential:{name}")),
        Owner::Member(member) => {
            let formation = ctx.formation.as_ref().map(ToString::to_string).unwrap_or_default();
            Some(format!("member:{member}@{formation}"))
        }
    }
}

impl<'a> TaskRun<'a> {
    pub(super) fn new(agent: &'a Agent, task: ActiveTask) -> Self {
        let ctx = &agent.ctx;
        let callees = agent.callees();
        let sender = Sender {
            artifact: super::provided::CALL_MEMBER.to_owned(),
            rules: ctx.rules.clone(),
            gateway: None,
            trust: trust_class(task.trust),
            traceparent: None,
        };
        let calls = Calls::new(Caller {
            egress: Arc::clone(&ctx.egress),
            sender,
            trace: ctx.trace.clone(),
            task: task.id.clone(),
            redactor: Redactor::new(ctx.peers.clone(), callees.clone()),
            callees,
            deadline: agent.call_deadline(),
        });
        Self {
            agent,
            stream: TaskStream::new(ctx.tasks.clone(), task.id.clone()),
            calls: Arc::new(calls),
            history: Vec::new(),
            record: conversation::Conversation::of(&ctx.home, &ctx.capsule, &task.context, owner_of(ctx, &task)),
            reader: conversation::Conversation::of(&ctx.home, &ctx.capsule, &task.context, owner_of(ctx, &task))
                .map(Arc::new),
            original: task.text.as_str().into(),
            given: task.text.as_str().into(),
            reopens: 0,
            uses: Arc::default(),
            continuation: None,
            task_message: None,
            loaded: false,
            counted: 0,
            turns: 0,
            sums: Sums::default(),
            without_answer: None,
            input: Arc::default(),
            attachments: Vec::new(),
            started: Instant::now(),
            continuations: 0,
            kept_working: (0, None),
            task_node: None,
            turn_node: None,
            task,
        }
    }

    pub(super) async fn run(mut self) -> TaskOutcome {
        let mut ended = match self.begin().await {
            Ok(()) => self.all_attempts().await,
            Err(ended) => ended,
        };
        self.calls.abandon().await;
        // A cancel accepted meanwhile has been answered as one. From here to the registry nothing waits, so no other
        // can come between what is recorded and what callers are told.
        if self.task.canceled.is_set() && !matches!(ended, Ended::Canceled { .. } | Ended::Fatal(_)) {
            ended = Ended::Canceled { phase: "member_call" };
        }
        if let Ended::Canceled { .. } = ended {
            self.join(Message::canceled(results::CANCELED));
        }
        // What goes wrong while ending a task cannot be told twice.
        let ended = match self.record_end(&ended) {
            Err(error) if !matches!(ended, Ended::Fatal(_)) => Ended::Fatal(error),
            _ => ended,
        };
        if self.agent.ctx.capsule.lifecycle.task_acceptance == Acceptance::Queue {
            // The next task writes its own; none is left lying about in between.
            let _ = std::fs::remove_file(self.agent.ctx.dirs.task());
        }
        let mut end = ended.task_end(self.notes(&ended));
        end.answer_file = self.own_result().map(|name| self.agent.ctx.dirs.records.join("out").join(name));
        self.agent.ctx.tasks.finish(&self.task.id, end);
        ended.outcome()
    }

    /// Activation: the text lies in the runtime directory, the trace knows of the task.
    async fn begin(&mut self) -> Result<(), Ended> {
        let ctx = &self.agent.ctx;
        let record = records::TaskStart {
            task_id: self.task.id.to_string(),
            context_id: self.task.context.to_string(),
            source: self.task.source.as_str(),
            origin: self.task.origin.as_str().to_owned(),
            trust: self.task.trust.as_str().to_owned(),
            lane: self.task.origin.lane().as_str().to_owned(),
            message_parts_bytes: self.task.text_bytes,
            part_kinds: (!self.task.part_kinds.is_empty())
                .then(|| self.task.part_kinds.iter().map(|kind| kind.as_str().to_owned()).collect()),
            reference_task_ids: (!self.task.reference_task_ids.is_empty())
                .then(|| self.task.reference_task_ids.clone()),
        };
        self.task_node = Some(ctx.trace.write(None, &record)?);
        beneath::write(&ctx.dirs.runtime, ".", "task.md", self.task.text.as_bytes()).map_err(|refusal| {
            let path = ctx.dirs.task();
            Diagnostic::new(codes::E_RUN_007, format!("the task could not be written to {}: {refusal}", path.display()))
        })?;
        if self.task.text.trim().is_empty() {
            return Err(Ended::Failed {
                cause: "runtime_error",
                reason: "the task is blank, so nothing was asked of the model".into(),
                turn: None,
            });
        }
        self.load_conversation()?;
        self.compact_resumed().await?;
        self.tell_task_start().await?;
        let source = format!("task:{}", self.task.origin.as_str());
        self.join(match self.task.trust {
            Trust::Trusted => Message::user(&self.task.text),
            Trust::Untrusted => Message::user(&fenced(&source, &self.task.text)).fenced_by(&source),
        });
        self.task_message = self.history.last().cloned();
        Ok(())
    }

    /// A threaded task, and every task of a resumed session, goes on where the last one of its context ended.
    fn load_conversation(&mut self) -> Result<(), Ended> {
        let ctx = &self.agent.ctx;
        let goes_on = ctx.resumed || ctx.capsule.lifecycle.conversation == Conversation::Threaded;
        let Some(record) = self.record.as_ref().filter(|_| goes_on) else { return Ok(()) };
        let recorded = record.load().map_err(|error| Ended::Failed {
            cause: "runtime_error",
            reason: format!("the conversation of context '{}' could not be loaded: {error}", self.task.context),
            turn: None,
        })?;
        self.history = recorded.conversation();
        self.loaded = !self.history.is_empty();
        Ok(())
    }

    /// A message joins the conversation, and its record.
    pub(super) fn join(&mut self, message: Message) {
        if let Some(record) = &mut self.record {
            record.append(&message);
        }
        self.history.push(message);
    }

    /// Attempts, and those that hooks ask for after them.
    async fn all_attempts(&mut self) -> Ended {
        loop {
            let ended = self.attempts().await;
            if matches!(ended, Ended::Fatal(_)) {
                return ended;
            }
            self.calls.abandon().await;
            match self.tell_task_end(&ended).await {
                Ok(true) => self.calls.resume(),
                Ok(false) => return ended,
                Err(ended) => return ended,
            }
        }
    }

    /// Attempts until the task has its last answer, or ends without.
    async fn attempts(&mut self) -> Ended {
        let mut earlier = None;
        loop {
            let answer = match self.attempt().await {
                Ok(answer) => answer,
                // What `keep_working` asked for on top ran out of budget: the answer before it stands.
                Err(ended) => return self.stop_kept_working(ended, earlier),
            };
            let goes_on = if !self.has_turn_left() {
                Ok(false)
            } else if self.calls.pending() {
                self.wait_for_members().await.map(|()| true)
            } else {
                let kept = self.keep_working();
                if let Ok(true) = kept {
                    earlier = Some(answer.clone());
                }
                kept
            };
            match goes_on {
                Ok(true) => {}
                Ok(false) => return Ended::Answered(answer),
                Err(ended) => return self.stop_kept_working(ended, earlier),
            }
        }
    }

    fn stop_kept_working(&mut self, ended: Ended, earlier: Option<String>) -> Ended {
        let (stopped_by, answer) = match (&ended, earlier) {
            (Ended::MaxTurns(_), Some(answer)) => ("max_turns", answer),
            (Ended::Spend(_), Some(answer)) => ("spend_ceiling", answer),
            _ => return ended,
        };
        self.kept_working.1 = Some(stopped_by);
        Ended::Answered(answer)
    }

    /// Sends the capsule's own next message, as often as its manifest says. Whether it did.
    fn keep_working(&mut self) -> Result<bool, Ended> {
        let Some(keep) = self.agent.ctx.capsule.lifecycle.keep_working.clone() else { return Ok(false) };
        if self.kept_working.0 >= keep.limit || self.task.canceled.is_set() {
            return Ok(false);
        }
        self.kept_working.0 += 1;
        let number = self.kept_working.0;
        let record = json!({
            "task_id": self.task.id, "number": number, "limit": keep.limit,
            "turns_remaining": self.turns_remaining(), "message_bytes": keep.message.len(),
        });
        self.agent.ctx.trace.record("keep_working", self.task_node(), record)?;
        self.stream.status(&format!("keep working {number} of {}", keep.limit));
        self.join(Message::user(&keep.message));
        Ok(true)
    }

    /// Turns until the model answers.
    async fn attempt(&mut self) -> Result<String, Ended> {
        self.without_answer = None;
        self.input.timed_out.store(false, Ordering::Relaxed);
        loop {
            // What the last call left is looked at by then.
            self.agent.ctx.folder_size.settled().await;
            self.boundary()?;
            if let Some(answer) = self.turn().await? {
                return Ok(answer);
            }
        }
    }

    /// What is looked at before each turn, in this order.
    fn boundary(&self) -> Result<(), Ended> {
        if self.task.canceled.is_set() {
            return Err(Ended::Canceled { phase: "turn" });
        }
        if let Some(lost) = &*self.agent.ctx.workers.lost().borrow() {
            return Err(Ended::Fatal(lost.diagnostic()));
        }
        if self.input.timed_out.load(Ordering::Relaxed) {
            let reason = "a request for input was not answered in time".to_owned();
            return Err(Ended::Failed { cause: INPUT_TIMEOUT, reason, turn: Some(self.turns.saturating_sub(1)) });
        }
        if let Some(reason) = &self.without_answer {
            return Err(Ended::NoAnswer(reason.clone()));
        }
        self.agent.ctx.folder_size.check()?;
        match self.max_turns() {
            Some(max) if u64::from(self.turns_used()) >= max => Err(Ended::MaxTurns(max)),
            _ => Ok(()),
        }
    }

    /// Turns of the loop and completions of hooks.
    fn turns_used(&self) -> u32 {
        self.turns.saturating_add(self.uses.turns())
    }

    pub(super) fn max_turns(&self) -> Option<u64> {
        self.agent.ctx.inference().max_turns
    }

    pub(super) fn has_turn_left(&self) -> bool {
        self.max_turns().is_none_or(|max| u64::from(self.turns_used()) < max)
    }

    pub(super) fn turns_remaining(&self) -> Option<u32> {
        self.max_turns().map(|max| u32::try_from(max.saturating_sub(u64::from(self.turns_used()))).unwrap_or(u32::MAX))
    }

    /// Waits for every call together, then goes on with all outcomes in one message.
    async fn wait_for_members(&mut self) -> Result<(), Ended> {
        let waiting = Instant::now();
        let outstanding = self.calls.outstanding();
        if outstanding > 0 {
            self.stream.status(&format!("waiting on call-member: {outstanding} call(s) outstanding"));
        }
        let calls = Arc::clone(&self.calls);
        self.unless_ended("member_call", calls.all_ended()).await?;
        let outcomes = self.calls.deliver();
        self.continuations += 1;
        let record = records::TaskContinued {
            task_id: self.task.id.to_string(),
            continuation_number: self.continuations,
            member_calls: outcomes.iter().map(|outcome| outcome.call.to_string()).collect(),
            delegations: Vec::new(),
            waited_ms: u64::try_from(waiting.elapsed().as_millis()).unwrap_or(u64::MAX),
            turns_remaining: self.turns_remaining(),
        };
        self.agent.ctx.trace.write(self.task_node.as_ref(), &record)?;
        self.stream.status(&format!("continuing with {} member answer(s)", outcomes.len()));
        self.join(Message::user(&continuation(&outcomes)));
        Ok(())
    }

    /// Waits for `work` unless the task is cancelled or a worker is lost first; the work is then dropped.
    pub(super) async fn unless_ended<T>(&self, phase: &'static str, work: impl Future<Output = T>) -> Result<T, Ended> {
        let lost = self.agent.ctx.workers.lost();
        tokio::select! {
            biased;
            result = work => Ok(result),
            () = self.task.canceled.set() => {
                let waits = self.input.waiting.load(Ordering::Relaxed);
                Err(Ended::Canceled { phase: if waits { "input" } else { phase } })
            }
            lost = first_lost(lost) => Err(Ended::Fatal(lost.diagnostic())),
        }
    }

    pub(super) fn trust(&self) -> TrustClass {
        trust_class(self.task.trust)
    }

    /// The parent of records of the running turn.
    pub(super) fn turn_node(&self) -> Option<&EventId> {
        self.turn_node.as_ref().or(self.task_node.as_ref())
    }

    pub(super) fn task_node(&self) -> Option<&EventId> {
        self.task_node.as_ref()
    }

    pub(super) fn record_in_turn<R: Record>(&self, record: &R) -> Result<(), Ended> {
        self.agent.ctx.trace.write(self.turn_node(), record)?;
        Ok(())
    }

    /// Everything a task leaves behind but its terminal state, which comes last.
    fn record_end(&self, ended: &Ended) -> Result<(), Diagnostic> {
        let ctx = &self.agent.ctx;
        let parent = self.task_node.as_ref();
        let task_id = self.task.id.to_string();
        if let Some((cause, reason)) = ended.failure() {
            let turn = match ended {
                Ended::Failed { turn, .. } => *turn,
                _ => None,
            };
            let reason = records::cut(&reason, records::REASON_LIMIT).to_owned();
            let record = records::TaskFailed { task_id: Some(task_id.clone()), turn, cause: cause.to_owned(), reason };
            ctx.trace.write(parent, &record)?;
        }
        if let Ended::Canceled { phase } = ended {
            let record = records::TaskCanceled {
                task_id: task_id.clone(),
                turn: Some(self.turns),
                phase: (*phase).to_owned(),
                detached_work_ids: self.left_running(),
                delegation_ids: Vec::new(),
            };
            ctx.trace.write(parent, &record)?;
        }
        // The result before the record that says the task has ended; a result that cannot be written fails the task,
        // whose records are written all the same.
        let written = self.write_result(ended);
        let running = self.left_running();
        let exit_status = match &written {
            Ok(()) => ended.exit_status().as_str(),
            Err(_) => "failed",
        };
        let record = records::TaskEnd {
            task_id,
            exit_status: exit_status.to_owned(),
            duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            turns: self.turns_used(),
            input_tokens: self.sums.input_tokens + self.uses.tokens().0,
            output_tokens: self.sums.output_tokens + self.uses.tokens().1,
            tool_calls: self.sums.tool_calls,
            shell_calls: self.sums.shell_calls.saturating_add(self.input.commands.load(Ordering::Relaxed)),
            reopen_count: self.reopens,
            running_commands: (!running.is_empty()).then_some(running),
            keep_working: ctx.capsule.lifecycle.keep_working.as_ref().map(
                |keep| json!({"used": self.kept_working.0, "limit": keep.limit, "stopped_by": self.kept_working.1}),
            ),
        };
        ctx.trace.write(parent, &record)?;
        ctx.trace.flush()?;
        written
    }

    fn write_result(&self, ended: &Ended) -> Result<(), Diagnostic> {
        let ctx = &self.agent.ctx;
        let text = ended.result_text();
        results::write(&ctx.dirs.records, results::LAST, &text)?;
        if let Some(name) = self.own_result() {
            results::write(&ctx.dirs.records, &name, &text)?;
        }
        Ok(())
    }

    /// The result file of this task alone, where a conversation keeps one for each.
    fn own_result(&self) -> Option<String> {
        let threaded = self.agent.ctx.capsule.lifecycle.conversation == Conversation::Threaded;
        threaded.then(|| format!("result_{}.txt", self.task.id))
    }

    /// What the task's ending says beside its state; files belong to an answer.
    fn notes(&self, ended: &Ended) -> EndNotes {
        let attachments = match ended {
            Ended::Answered(_) => self.attachments.clone(),
            _ => Vec::new(),
        };
        let below = self.calls.unanswered().into_iter();
        let no_answer_below = below
            .map(|below| MemberStatus { member: below.member, status: below.status.as_str().to_owned() })
            .collect();
        let running_commands = self.agent.ctx.commands.board.running_of(&self.task.id);
        EndNotes { no_answer_below, attachments, running_commands, ..EndNotes::default() }
    }

    /// Commands it leaves running in the background, oldest first.
    fn left_running(&self) -> Vec<String> {
        let running = self.agent.ctx.commands.board.running_of(&self.task.id);
        running.into_iter().map(|command| command.work_id).collect()
    }

    /// What `session-status` tells.
    pub(super) fn report(&self) -> Report {
        let ctx = &self.agent.ctx;
        let limits = &ctx.driver.limits;
        let meters = self.agent.meters();
        Report {
            elapsed_secs: ctx.start.elapsed_ms() / 1000,
            task_elapsed_secs: self.started.elapsed().as_secs(),
            deadline: ctx.deadline.map(|deadline| (deadline.rfc3339(), deadline.left().as_secs())),
            turns_used: self.turns_used(),
            turns_cap: self.max_turns(),
            keep_working: ctx.capsule.lifecycle.keep_working.as_ref().map(|keep| (self.kept_working.0, keep.limit)),
            context_used: self.sums.occupancy.0,
            window: limits.context_window,
            budget: limits.input_budget().zip(limits.input_budget_basis()),
            measured_by: if self.sums.occupancy.1 { "driver" } else { "estimate" },
            tokens: meters.tokens,
            spend: (meters.spend.used(), meters.spend.ceiling()),
            machine: ctx.machine_tokens_per_day,
        }
    }
}

/// The first worker that is lost, however long that takes.
pub(super) async fn first_lost(mut lost: watch::Receiver<Option<LostWorker>>) -> LostWorker {
    loop {
        if let Some(lost) = lost.borrow_and_update().clone() {
            return lost;
        }
        if lost.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn trust_class(trust: Trust) -> TrustClass {
    match trust {
        Trust::Trusted => TrustClass::Trusted,
        Trust::Untrusted => TrustClass::Untrusted,
    }
}
