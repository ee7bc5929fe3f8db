//! What a hook gives a conversation to begin with: taken whole, cut from its front, summarised by a hook that does that, or
//! refused. It never fails a task.

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
    /// `seeded`, `trimmed`, `compacted` or `rejected`.
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

/// A seed as it was looked at.
pub(super) enum Settled {
    /// Taken, cut or refused.
    Done(Seeded),
    /// Too long to be merely cut.
    TooLong(TooLong),
}

/// A seed past its margin: to be summarised where a hook does that, and cut where none does.
pub(super) struct TooLong {
    pub(super) messages: Vec<Message>,
    /// Of each message.
    costs: Vec<u64>,
    pub(super) tokens: u64,
    budget: u64,
}

/// Settles a seed. One that is over its budget by no more than `margin` of it is cut.
pub(super) async fn settle(budget: Option<u64>, margin: f64, proposed: &[HookMessage]) -> Settled {
    let mut messages = Vec::with_capacity(proposed.len());
    let mut costs = Vec::with_capacity(proposed.len());
    for message in proposed {
        match from_hook(message) {
            Ok(message) => {
                costs.push(cost(&message).await);
                messages.push(message.seeded());
            }
            Err(why) => return Settled::Done(refused(0, why)),
        }
    }
    let whole: u64 = costs.iter().sum();
    let Some(budget) = budget else {
        return Settled::Done(refused(whole, "the model's window is not known".to_owned()));
    };
    if let Some(cost) = costs.iter().find(|cost| **cost > budget) {
        return Settled::Done(refused(whole, format!("one message takes {cost} tokens, and the budget is {budget}")));
    }
    if whole > budget.saturating_mul(TOO_MUCH) {
        return Settled::Done(refused(whole, format!("it takes {whole} tokens, and the budget is {budget}")));
    }
    #[expect(clippy::cast_precision_loss, reason = "budgets are far below 2^52")]
    let within = whole.saturating_sub(budget) as f64 <= budget as f64 * margin;
    let seed = TooLong { messages, costs, tokens: whole, budget };
    if within { Settled::Done(seed.cut()) } else { Settled::TooLong(seed) }
}

impl TooLong {
    /// Without its oldest messages, as many as it takes for the rest to fit.
    pub(super) fn cut(mut self) -> Seeded {
        let mut left = self.tokens;
        let mut first = 0;
        while left > self.budget {
            left -= self.costs[first];
            first += 1;
        }
        // A conversation begins with a user, and no result stands without its call.
        while first > 0 && first < self.messages.len() && !self.messages[first].is_user() {
            left -= self.costs[first];
            first += 1;
        }
        let kept = self.messages.split_off(first);
        if kept.first().is_some_and(|message| !message.is_user()) {
            return refused(self.tokens, "it does not begin with a user's message".to_owned());
        }
        let outcome = if first == 0 { "seeded" } else { "trimmed" };
        Seeded { messages: kept, tokens: left, proposed_tokens: self.tokens, outcome, reason: None }
    }

    /// What a hook made of it; `None` when that does not fit either.
    pub(super) async fn summarised(&self, messages: Vec<Message>) -> Option<Seeded> {
        let mut tokens = 0;
        for message in &messages {
            tokens += cost(message).await;
        }
        let outcome = "compacted";
        (tokens <= self.budget).then_some(Seeded {
            messages,
            tokens,
            proposed_tokens: self.tokens,
            outcome,
            reason: None,
        })
    }
}

async fn cost(message: &Message) -> u64 {
    tokens::count(message.wire.get().to_owned()).await
}

fn refused(proposed_tokens: u64, reason: String) -> Seeded {
    Seeded { messages: Vec::new(), tokens: 0, proposed_tokens, outcome: "rejected", reason: Some(reason) }
}
