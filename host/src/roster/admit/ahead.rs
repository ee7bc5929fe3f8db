//! Looking ahead: while one member's archive is read and checked, a thread asks the stores for the members after it.
//!
//! The stores are asked by one thread, in roster order, one member at a time, and answers are taken in that order: what is
//! refused, and which refusal is first, is the same as without it.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, sync_channel};

use super::super::Member;
use super::stores::Fetched;

/// Fewer members are asked for one after the other: a thread is not worth its start.
const LEAST: usize = 8;

/// Answers that wait to be taken. Each holds an archive.
const WAITING: usize = 8;

/// Answers that come, in the order asked; none by default.
#[derive(Default)]
pub(super) struct Ahead {
    expected: VecDeque<Member>,
    answers: Option<Receiver<Fetched>>,
}

impl Ahead {
    /// Begins to ask for these members.
    pub(super) fn of(members: &[&Member], fetch: impl Fn(&Member) -> Fetched + Send + 'static) -> Self {
        if members.len() < LEAST {
            return Self::default();
        }
        let expected: VecDeque<Member> = members.iter().map(|member| (*member).clone()).collect();
        let asked = expected.clone();
        let (sender, answers) = sync_channel(WAITING);
        let asking = move || {
            for member in &asked {
                // Whoever wanted the answers has come to an end: a refusal.
                if sender.send(fetch(member)).is_err() {
                    return;
                }
            }
        };
        match std::thread::Builder::new().name("ahead".to_owned()).spawn(asking) {
            Ok(_) => Self { expected, answers: Some(answers) },
            Err(_) => Self::default(),
        }
    }

    /// The answer for a member, if it is the next that was asked for. Waits for it.
    pub(super) fn take(&mut self, member: &Member) -> Option<Fetched> {
        let next = self.expected.front()?;
        if next.capsule != member.capsule || next.version != member.version {
            return None;
        }
        self.expected.pop_front();
        self.answers.as_ref()?.recv().ok()
    }
}
