//! Thins out how a tool call's input grows: at most one number a quarter of a second a call, never a smaller one, and
//! the last one always.

use std::collections::VecDeque;
use std::sync::Arc;

/// At most one number of a call in this time.
const INTERVAL_MS: u64 = 250;
/// Calls followed at once; the oldest is let go beyond that.
const MAX_CALLS: usize = 32;

/// The calls of the running task whose input grows.
#[derive(Default)]
pub(super) struct Progress(VecDeque<Call>);

struct Call {
    id: Arc<str>,
    told_ms: u64,
    told: u64,
    latest: u64,
}

impl Progress {
    /// A call's input has grown to `bytes`. Answers what is to be told now.
    pub(super) fn grew(&mut self, id: &Arc<str>, bytes: u64, now_ms: u64) -> Option<u64> {
        let Some(call) = self.0.iter_mut().find(|call| call.id == *id) else {
            if self.0.len() >= MAX_CALLS {
                self.0.pop_front();
            }
            self.0.push_back(Call { id: id.clone(), told_ms: now_ms, told: bytes, latest: bytes });
            return Some(bytes);
        };
        call.latest = call.latest.max(bytes);
        if now_ms.saturating_sub(call.told_ms) < INTERVAL_MS || call.latest == call.told {
            return None;
        }
        (call.told_ms, call.told) = (now_ms, call.latest);
        Some(call.told)
    }

    /// Ends every call: what was held back of each.
    pub(super) fn finish(&mut self) -> impl Iterator<Item = (Arc<str>, u64)> + use<> {
        let calls = std::mem::take(&mut self.0).into_iter();
        calls.filter(|call| call.latest > call.told).map(|call| (call.id, call.latest))
    }
}
