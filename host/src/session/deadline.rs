//! The session's deadline: one moment, fixed when the process started or handed down by whoever started it.

use std::time::{Duration, Instant};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::trace::records::{DeadlineReached, DeadlineView};
use crate::trace::unix_ms;

/// Most seconds `--deadline` takes: ten years.
pub const MAX_SECONDS: u64 = 315_360_000;

/// The moment the process began, on both clocks; taken first thing.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// For measuring.
    pub instant: Instant,
    /// Unix milliseconds, for what is told to others.
    pub unix_ms: u64,
}

impl Start {
    /// Now.
    pub fn now() -> Self {
        Self { instant: Instant::now(), unix_ms: unix_ms() }
    }

    /// Milliseconds since then.
    pub fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.instant.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// When a session has to be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// On the clock that is waited on.
    pub at: Instant,
    /// Unix milliseconds.
    pub at_ms: u64,
    /// Seconds from the start of the process, rounded up; 0 when it had passed by then.
    pub secs: u64,
    /// Whether it was this session's own flag; otherwise it was handed down.
    pub own: bool,
    /// From this many seconds before it tool results carry the notice; 0 never.
    pub notice_secs: u64,
}

impl Deadline {
    /// The earlier of the session's own and the inherited one.
    pub fn earliest(
        start: Start,
        own_secs: Option<u64>,
        inherited_ms: Option<u64>,
        notice_secs: Option<u64>,
    ) -> Option<Self> {
        let own_ms = own_secs.map(|secs| start.unix_ms.saturating_add(secs.saturating_mul(1000)));
        let (at_ms, own) = match (own_ms, inherited_ms) {
            (Some(own), Some(inherited)) if own <= inherited => (own, true),
            (_, Some(inherited)) => (inherited, false),
            (Some(own), None) => (own, true),
            (None, None) => return None,
        };
        let left = at_ms.saturating_sub(start.unix_ms).min(MAX_SECONDS * 1000);
        let secs = left.div_ceil(1000);
        let derived = (secs / 10).clamp(1, 300);
        Some(Self {
            at: start.instant + Duration::from_millis(left),
            at_ms,
            secs,
            own,
            notice_secs: notice_secs.unwrap_or(derived),
        })
    }

    /// RFC 3339 in UTC, to the second.
    pub fn rfc3339(&self) -> String {
        rfc3339(self.at_ms)
    }

    /// `own` or `inherited`.
    pub fn source(&self) -> &'static str {
        if self.own { "own" } else { "inherited" }
    }

    /// Time left; zero when it has passed.
    pub fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// For `session_start`.
    pub fn view(&self) -> DeadlineView {
        DeadlineView { at: self.rfc3339(), secs: self.secs, notice_secs: self.notice_secs, source: self.source() }
    }

    /// The record of its passing.
    pub fn reached(&self) -> DeadlineReached {
        DeadlineReached { deadline_at: self.rfc3339(), deadline_secs: self.secs, source: self.source() }
    }

    /// In words, for the closing message.
    pub fn words(&self) -> String {
        if self.own {
            format!("{} s after it started ({})", self.secs, self.rfc3339())
        } else {
            format!("{}, which was set by whoever started it", self.rfc3339())
        }
    }
}

/// A Unix time in milliseconds as RFC 3339 in UTC, to the second.
pub fn rfc3339(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds)
        .ok()
        .and_then(|moment| moment.format(&Rfc3339).ok())
        .unwrap_or_else(|| format!("{seconds}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_moment_wins() {
        let start = Start { instant: Instant::now(), unix_ms: 1_700_000_000_000 };
        assert_eq!(Deadline::earliest(start, None, None, None), None);
        let own = Deadline::earliest(start, Some(60), None, None).unwrap();
        assert_eq!((own.secs, own.source(), own.notice_secs), (60, "own", 6));
        assert_eq!(own.rfc3339(), "2023-11-14T22:14:20Z");
        let inherited = Deadline::earliest(start, Some(60), Some(1_700_000_030_500), Some(0)).unwrap();
        assert_eq!((inherited.secs, inherited.source(), inherited.notice_secs), (31, "inherited", 0));
        let own = Deadline::earliest(start, Some(10), Some(1_700_000_030_000), None).unwrap();
        assert_eq!((own.secs, own.source(), own.notice_secs), (10, "own", 1));
    }

    #[test]
    fn a_moment_long_past_or_absurdly_far_is_no_panic() {
        let start = Start { instant: Instant::now(), unix_ms: 1_700_000_000_000 };
        let past = Deadline::earliest(start, None, Some(5), None).unwrap();
        assert_eq!((past.secs, past.left()), (0, Duration::ZERO));
        let far = Deadline::earliest(start, None, Some(u64::MAX), None).unwrap();
        assert_eq!(far.secs, MAX_SECONDS);
        assert!(!far.rfc3339().is_empty());
    }
}
