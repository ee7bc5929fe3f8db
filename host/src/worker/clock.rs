//! The deadline of one call: a point in time that stands still while the call waits for a person.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// No deadline while the clock is stopped.
const STOPPED: u64 = u64::MAX;

/// Counts one call's time. Shared by whoever watches it.
#[derive(Debug)]
pub struct Clock {
    base: Instant,
    /// Nanoseconds after `base`, or [`STOPPED`].
    deadline: AtomicU64,
    changed: Notify,
}

impl Clock {
    /// Starts now.
    pub fn start(limit: Duration) -> Self {
        let clock = Self { base: Instant::now(), deadline: AtomicU64::new(0), changed: Notify::new() };
        clock.restart(limit);
        clock
    }

    /// Gives the whole limit again, from now on.
    pub fn restart(&self, limit: Duration) {
        let at = nanos(self.base.elapsed().saturating_add(limit));
        self.deadline.store(at, Ordering::Release);
        self.changed.notify_one();
    }

    /// Stops; what was left is handed out and given back with [`Self::restart`].
    pub fn stop(&self) -> Duration {
        let at = self.deadline.swap(STOPPED, Ordering::AcqRel);
        self.changed.notify_one();
        if at == STOPPED {
            return Duration::ZERO;
        }
        Duration::from_nanos(at).saturating_sub(self.base.elapsed())
    }

    /// Whether the deadline has passed.
    pub fn is_over(&self) -> bool {
        let at = self.deadline.load(Ordering::Acquire);
        at != STOPPED && nanos(self.base.elapsed()) >= at
    }

    /// Waits until the deadline has passed. For one waiter at a time.
    pub async fn over(&self) {
        loop {
            let at = self.deadline.load(Ordering::Acquire);
            if at == STOPPED {
                self.changed.notified().await;
                continue;
            }
            let sleep = tokio::time::sleep_until((self.base + Duration::from_nanos(at)).into());
            tokio::select! {
                () = sleep => if self.is_over() { return },
                () = self.changed.notified() => {}
            }
        }
    }
}

/// A hundred years are the most a clock counts.
fn nanos(time: Duration) -> u64 {
    const LONGEST: u64 = 100 * 365 * 86_400 * 1_000_000_000;
    u64::try_from(time.as_nanos()).unwrap_or(LONGEST).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stopped_clock_is_never_over_and_keeps_what_was_left() {
        let clock = Clock::start(Duration::from_secs(3600));
        let left = clock.stop();
        assert!(left > Duration::from_secs(3590), "{left:?}");
        assert!(!clock.is_over());
        clock.restart(Duration::ZERO);
        clock.over().await;
        assert!(clock.is_over());
    }

    #[tokio::test]
    async fn a_waiter_follows_a_shorter_deadline() {
        let clock = std::sync::Arc::new(Clock::start(Duration::MAX));
        let waiter = tokio::spawn({
            let clock = clock.clone();
            async move { clock.over().await }
        });
        tokio::task::yield_now().await;
        clock.restart(Duration::from_millis(1));
        waiter.await.unwrap();
    }
}
