//! What a hook gives a conversation to begin with: taken whole, cut from its front, or refused. It never fails a task.

use super::hook_messages::from_hook;
use super::tokens;
use super::wire::Message;
use crate::session::context::SessionContext;
use crate::worker::hook::HookMessage;

/// A seed this many times its budget is a mistake and not cut.
const TOO_MUCH: u64 = 3;

/// What became of a seed.
pub(super) struct Seeded {
    pub(super) messages: Vec<Message>,
    pub(super) tokens: u64,
    pub(super) proposed_tokens: u64,
    /// `seeded`, `trimmed` or `rejected`.
    pub(super) outcome: &'static str,
    /// Why it was refused.
    pub(super) reason: Option<String>,
}

/// Tokens a seed may take; `None` where the model's window is not known.
pub(super) fn budget(ctx: &SessionContext) -> Option<u64> {
    let input = ctx.driver.limits.input_budget()?;
    // A fraction between 0 and 1 of a count: it fits.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "as above"
    )]
    let tokens = (input as f64 * ctx.capsule.context.seed_budget).floor() as u64;
    Some(tokens)
}

/// Settles a seed. Beyond its margin it would be summarised by an `on-compaction` hook; without one the oldest messages go
/// until the rest fits.
pub(super) async fn settle(budget: Option<u64>, proposed: &[HookMessage]) -> Seeded {
    let mut messages = Vec::with_capacity(proposed.len());
    let mut costs = Vec::with_capacity(proposed.len());
    for message in proposed {
        match from_hook(message) {
            Ok(message) => {
                costs.push(tokens::count(message.wire.get().to_owned()).await);
                messages.push(message.seeded());
            }
            Err(why) => return refused(0, why),
        }
    }
    let whole: u64 = costs.iter().sum();
    let Some(budget) = budget else { return refused(whole, "the model's window is not known".to_owned()) };
    if let Some(cost) = costs.iter().find(|cost| **cost > budget) {
        return refused(whole, format!("one message takes {cost} tokens, and the budget is {budget}"));
    }
    if whole > budget.saturating_mul(TOO_MUCH) {
        return refused(whole, format!("it takes {whole} tokens, and the budget is {budget}"));
    }
    let mut left = whole;
    let mut first = 0;
    while left > budget {
        left -= costs[first];
        first += 1;
    }
    // A conversation begins with a user, and no result stands without its call.
    while first > 0 && first < messages.len() && !messages[first].is_user() {
        left -= costs[first];
        first += 1;
    }
    let kept = messages.split_off(first);
    if kept.first().is_some_and(|message| !message.is_user()) {
        return refused(whole, "it does not begin with a user's message".to_owned());
    }
    let outcome = if first == 0 { "seeded" } else { "trimmed" };
    Seeded { messages: kept, tokens: left, proposed_tokens: whole, outcome, reason: None }
}

fn refused(proposed_tokens: u64, reason: String) -> Seeded {
    Seeded { messages: Vec::new(), tokens: 0, proposed_tokens, outcome: "rejected", reason: Some(reason) }
}
