//! Shortening a conversation that fills the model's window: when that is due, what a hook makes of it, what is recorded.
//!
//! It is looked at before a request, once a response and the results of its calls have joined: there every call is
//! answered. What a hook gives is taken as a whole or not at all.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::fcntl::OFlag;
use serde::Deserialize;
use serde_json::{Value, json};

use super::hook_messages::{from_hook, to_hook};
use super::pairs::{self, Unfit};
use super::run::{Ended, TaskRun};
use super::seed::{Seeded, TooLong};
use super::tokens;
use super::wire::Message;
use crate::diagnostics::output;
use crate::manifest::HookBinding;
use crate::paths::beneath;
use crate::session::hooks::{Compacted, Hooks, Scene};
use crate::worker::hook::{CompactionEvent, HookMessage};

/// Where `inference.compaction.dump_summaries` keeps them, in the records directory.
const SUMMARIES: &str = "out/compaction-summaries.jsonl";

/// How much the conversation takes.
#[derive(Clone, Copy)]
struct Held {
    tokens: u64,
    /// Whether the driver counted what it was last sent.
    actual: bool,
}

impl Held {
    /// The word of the trace.
    fn source(self) -> &'static str {
        if self.actual { "actual" } else { "estimate" }
    }
}

/// Why a hook's list does not become the conversation.
#[derive(Debug, PartialEq, Eq)]
enum Misfit {
    /// A call without a result, or a result without its call.
    Unpaired,
    /// In words.
    Other(String),
}

impl TaskRun<'_> {
    /// Before a request: has the conversation shortened when the last response, and what came since, have filled it. One
    /// that was loaded is looked at before its first request too.
    pub(super) async fn compact_if_due(&mut self) -> Result<(), Ended> {
        let ctx = Arc::clone(&self.agent.ctx);
        let loaded = std::mem::take(&mut self.loaded) && ctx.hooks.can_compact();
        let Some(budget) = ctx.driver.limits.input_budget().filter(|_| self.turns > 0 || loaded) else { return Ok(()) };
        #[expect(clippy::cast_precision_loss, reason = "budgets are far below 2^52")]
        let limit = budget as f64 * ctx.inference().compaction.threshold;
        let held = self.held(limit).await;
        #[expect(clippy::cast_precision_loss, reason = "as above")]
        let due = held.tokens as f64 >= limit;
        if !due {
            return Ok(());
        }
        self.compact(self.turns.saturating_sub(1), held).await?;
        // A completion of the hook may have been the last turn.
        match self.max_turns().filter(|_| !self.has_turn_left()) {
            Some(most) => Err(Ended::MaxTurns(most)),
            None => Ok(()),
        }
    }

    /// `--resume-mode compact`: shortens what the first task of the launch goes on with.
    pub(super) async fn compact_resumed(&mut self) -> Result<(), Ended> {
        let ctx = Arc::clone(&self.agent.ctx);
        let own = ctx.launch_context.as_ref() == Some(&self.task.context);
        if !ctx.resume_compact || !own || self.history.is_empty() || self.agent.resumed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.loaded = false;
        let tokens = tokens::count(self.whole_request()).await;
        self.compact(0, Held { tokens, actual: false }).await
    }

    /// A seed past its margin: summarised by a hook where one does that and the summary fits, else cut from its front.
    pub(super) async fn shorten_seed(&mut self, seed: TooLong) -> Result<Seeded, Ended> {
        let ctx = Arc::clone(&self.agent.ctx);
        if !ctx.hooks.can_compact() {
            return Ok(seed.cut());
        }
        let event = self.compaction_event(&seed.messages, seed.tokens);
        let scene = Scene { compacting: true, ..self.scene(0, false, None) };
        let asked = self.unless_ended("turn", Hooks::compact(&ctx, event, &scene)).await?;
        let Compacted::Replaced { hook, messages } = asked.map_err(|lost| Ended::Fatal(lost.diagnostic()))? else {
            return Ok(seed.cut());
        };
        let summarised = match settle(&seed.messages, None, &messages) {
            Ok(settled) => seed.summarised(settled).await,
            Err(_) => None,
        };
        Ok(summarised.unwrap_or_else(|| {
            let why = "what it made of the seed is no conversation, or does not fit either";
            Hooks::fault(&ctx, &hook, "on-compaction", "replace-context", why);
            seed.cut()
        }))
    }

    fn compaction_event(&self, messages: &[Message], tokens: u64) -> CompactionEvent {
        let ctx = &self.agent.ctx;
        let compaction = &ctx.inference().compaction;
        CompactionEvent {
            messages: messages.iter().map(to_hook).collect(),
            session_tokens: tokens,
            threshold: compaction.threshold,
            model: compaction.model.clone(),
            system_prompt: ctx.driver.compaction.system_prompt.clone(),
        }
    }

    /// What the conversation takes now. Without the driver's own count it is counted, but only where it can have reached
    /// the limit: a token takes a byte at least.
    async fn held(&self, limit: f64) -> Held {
        let bytes = |messages: &[Message]| messages.iter().map(|message| message.wire.get().len()).sum::<usize>();
        let (last, actual) = self.sums.occupancy;
        if actual {
            let since = tokens::estimate_bytes(bytes(&self.history[self.counted.min(self.history.len())..]));
            return Held { tokens: last.saturating_add(since), actual };
        }
        let request = self.whole_request();
        #[expect(clippy::cast_precision_loss, reason = "lengths are far below 2^52")]
        let reaches = request.len() as f64 >= limit && self.agent.ctx.hooks.can_compact();
        let tokens = if reaches { tokens::count(request).await } else { tokens::estimate_bytes(request.len()) };
        Held { tokens, actual }
    }

    /// Asks the hooks, and goes on with what one of them gives.
    async fn compact(&mut self, turn: u32, held: Held) -> Result<(), Ended> {
        let ctx = Arc::clone(&self.agent.ctx);
        if !ctx.hooks.any_for(HookBinding::OnCompaction) {
            self.declined(turn, held, "no_hook_replacement");
            return Ok(());
        }
        let event = self.compaction_event(&self.history, held.tokens);
        let scene = Scene { compacting: true, ..self.scene(turn, true, None) };
        self.uses.take_refused();
        let asked = self.unless_ended("turn", Hooks::compact(&ctx, event, &scene)).await?;
        match asked.map_err(|lost| Ended::Fatal(lost.diagnostic()))? {
            Compacted::Kept => self.declined(turn, held, "no_hook_replacement"),
            Compacted::Failed(error) => {
                return Err(match self.uses.take_refused() {
                    Some(refused) => Ended::Spend(refused),
                    None => Ended::Failed {
                        cause: "compaction_hook",
                        reason: format!("compaction hook failed: {error}"),
                        turn: Some(turn),
                    },
                });
            }
            Compacted::Replaced { hook, messages } => {
                match settle(&self.history, self.task_message.as_ref(), &messages) {
                    Ok(settled) => self.replace(turn, held, settled).await,
                    Err(Misfit::Unpaired) => self.declined(turn, held, "unresolved_tool_call"),
                    Err(Misfit::Other(why)) => {
                        Hooks::fault(&ctx, &hook, "on-compaction", "replace-context", &why);
                        self.declined(turn, held, "no_hook_replacement");
                    }
                }
            }
        }
        Ok(())
    }

    fn declined(&self, turn: u32, held: Held, reason: &str) {
        let record = json!({
            "turn": turn, "task_id": self.task.id, "tokens": held.tokens, "tokens_source": held.source(),
            "reason": reason,
        });
        self.agent.ctx.trace.record_aside("compaction_declined", self.turn_node(), record);
    }

    /// Goes on with another conversation. The driver knows nothing of it.
    async fn replace(&mut self, turn: u32, held: Held, settled: Vec<Message>) {
        let earlier: HashSet<(&str, &str)> = self.history.iter().map(|one| (one.id.as_str(), one.wire.get())).collect();
        let is_new = |message: &&Message| !earlier.contains(&(message.id.as_str(), message.wire.get()));
        let new: Vec<&Message> = settled.iter().filter(is_new).collect();
        if let Some(record) = &mut self.record {
            record.compacted(&settled, &new);
        }
        let summary = new.iter().map(|message| text_of(message)).collect::<Vec<_>>().join("\n\n");
        self.history = settled;
        self.continuation = None;
        self.counted = self.history.len();
        let after = tokens::count(self.whole_request()).await;
        self.sums.occupancy = (after, false);
        let ctx = &self.agent.ctx;
        let record = json!({
            "turn": turn, "task_id": self.task.id, "tokens_before": held.tokens, "tokens_before_source": held.source(),
            "tokens_after": after,
        });
        ctx.trace.record_aside("compaction", self.turn_node(), record);
        if ctx.inference().compaction.dump_summaries {
            let line = json!({
                "turn": turn, "tokens_before": held.tokens, "tokens_after": after, "summary": summary,
            });
            dump(&ctx.dirs.records, &line);
        }
    }
}

/// The conversation that a hook's list comes to. Messages it left as they were stay what they are; the task's own comes
/// first when it is missing.
fn settle(history: &[Message], task: Option<&Message>, proposed: &[HookMessage]) -> Result<Vec<Message>, Misfit> {
    let mut taken = HashSet::new();
    let mut settled = Vec::with_capacity(proposed.len() + 1);
    for message in proposed {
        // An id is good for one message, and only one of this conversation has one.
        let known = message.id.as_deref().and_then(|id| history.iter().find(|own| own.id.as_str() == id));
        let known = known.filter(|own| taken.insert(own.id.clone()));
        settled.push(match known {
            Some(own) if is_unchanged(own, message) => own.clone(),
            Some(_) => from_hook(message).map_err(Misfit::Other)?.replacing(),
            None => {
                let anew = HookMessage { id: None, ..message.clone() };
                from_hook(&anew).map_err(Misfit::Other)?.replacing()
            }
        });
    }
    if let Some(task) = task.filter(|task| !taken.contains(&task.id)) {
        settled.insert(0, task.clone());
    }
    match pairs::check(&settled) {
        Ok(()) => Ok(settled),
        Err(Unfit::Unpaired) => Err(Misfit::Unpaired),
        Err(Unfit::Beginning) => Err(Misfit::Other("it does not begin with a user's message".to_owned())),
    }
}

fn is_unchanged(own: &Message, given: &HookMessage) -> bool {
    let own = to_hook(own);
    own.role == given.role && own.content == given.content
}

/// The text of a message, whoever wrote it.
fn text_of(message: &Message) -> String {
    #[derive(Deserialize)]
    struct Wire {
        content: Vec<Value>,
    }
    let wire: Option<Wire> = serde_json::from_str(message.wire.get()).ok();
    let blocks = wire.map(|wire| wire.content).unwrap_or_default();
    blocks.iter().filter_map(|block| block.get("text").and_then(Value::as_str)).collect::<Vec<_>>().join("\n")
}

/// Adds a line to the file of summaries; one that cannot be written costs itself only.
fn dump(records: &Path, line: &Value) {
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT;
    let written = beneath::open_record(records, Path::new(SUMMARIES), flags)
        .map_err(std::io::Error::from)
        .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    if let Err(error) = written {
        output::stderr_line(&format!("[capsule-runtime] {SUMMARIES} cannot be written: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calling(id: &str) -> Message {
        let block = json!({"type": "tool_call", "id": id, "name": "t", "input": {}});
        Message::assistant(&[serde_json::value::to_raw_value(&block).unwrap()])
    }

    fn plain(text: &str) -> HookMessage {
        let (role, content) = ("user".to_owned(), text.to_owned());
        HookMessage { role, content, id: None, source_id: None, inserted_by: None }
    }

    fn history() -> Vec<Message> {
        vec![
            Message::user("task").fenced_by("task:event"),
            calling("1"),
            Message::tool("1", false, "one"),
            calling("2"),
            Message::tool("2", false, "two"),
        ]
    }

    fn texts(messages: &[Message]) -> Vec<String> {
        messages.iter().map(text_of).collect()
    }

    #[test]
    fn what_a_hook_left_alone_stays_what_it_is_and_the_rest_is_marked() {
        let history = history();
        let given: Vec<HookMessage> =
            std::iter::once(plain("summary")).chain(history[3..].iter().map(to_hook)).collect();
        let settled = settle(&history, Some(&history[0]), &given).unwrap();
        assert_eq!(texts(&settled), ["task", "summary", "", "two"], "the task's message is put back first");
        assert_eq!(settled[0].record_line(), history[0].record_line(), "with its mark");
        let marks: Vec<bool> = settled.iter().map(Message::is_replacement).collect();
        assert_eq!(marks, [false, true, false, false]);
        assert!(history.iter().all(|message| message.id != settled[1].id));
    }

    #[test]
    fn a_changed_message_keeps_its_id_and_no_other_gets_one_that_is_taken() {
        let history = history();
        let mut shortened = to_hook(&history[2]);
        shortened.content = shortened.content.replace("one", "1");
        shortened.source_id = Some("mine".to_owned());
        let forged = HookMessage { id: Some(history[0].id.to_string()), ..plain("again") };
        let foreign = HookMessage { id: Some("msg_0123".into()), ..plain("foreign") };
        let given = [to_hook(&history[0]), to_hook(&history[1]), shortened, forged, foreign];
        let settled = settle(&history, Some(&history[0]), &given).unwrap();
        assert_eq!(texts(&settled), ["task", "", "1", "again", "foreign"]);
        assert_eq!((&settled[2].id, settled[2].source_id()), (&history[2].id, Some("mine")));
        assert!(settled[2].is_replacement());
        assert!(settled[3].id != history[0].id && settled[4].id.as_str() != "msg_0123");
    }

    #[test]
    fn what_no_provider_takes_is_refused() {
        let history = history();
        let of = |given: &[HookMessage]| settle(&history, Some(&history[0]), given).map(drop);
        assert_eq!(of(&[to_hook(&history[1])]), Err(Misfit::Unpaired));
        assert_eq!(of(&[to_hook(&history[2])]), Err(Misfit::Unpaired));
        let wrong = HookMessage { role: "system".into(), ..plain("x") };
        assert!(matches!(of(&[wrong]), Err(Misfit::Other(_))));
        let late = [to_hook(&history[1]), to_hook(&history[2]), to_hook(&history[0])];
        assert!(matches!(of(&late), Err(Misfit::Other(_))));
        assert_eq!(of(&[]), Ok(()), "the task alone");
        assert!(
            matches!(settle(&history, None, &[]), Err(Misfit::Other(_))),
            "before a task there has to be something"
        );
    }
}
