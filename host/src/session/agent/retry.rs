//! Whether a failed driver call is made again, and after how long: pure decisions, and the reading of what the
//! provider said about it.

use std::time::{Duration, SystemTime};

/// `inference.retry` of the manifest.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Attempts after the first.
    pub max_retries: u32,
    /// The first own delay, doubled for each further one.
    pub initial_delay: Duration,
    /// The longest own delay, and the longest wait a provider may ask for.
    pub max_delay: Duration,
}

/// How the provider connection of a failed call ended, as `mur` saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Reset, aborted, timed out or closed before a response head: worth another try.
    Broken,
    /// Refused, not resolved or not trusted: the same again would meet the same.
    Impossible,
}

/// What is known about a failed call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Failure {
    /// The provider stands by its rejection of the credential.
    pub credential_rejected: bool,
    /// The driver's own judgement, metadata `transient`.
    pub transient: Option<bool>,
    /// The connection's end, when it ended without a response.
    pub connection: Option<Connection>,
    /// The provider's last status.
    pub status: Option<u16>,
    /// The wait the provider asked for.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// Whether the call got as far as the provider's model: only then does it cost.
    pub fn is_charged(&self) -> bool {
        self.connection.is_none() && self.status.is_none_or(|status| status < 400)
    }
}

/// Why a retry is made, as `inference_retry.reason` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The provider's status.
    Status,
    /// The connection broke.
    Connection,
    /// The driver said so.
    Driver,
}

impl Reason {
    /// The word of the trace.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Connection => "connection",
            Self::Driver => "driver",
        }
    }
}

/// Why a failure that could be retried is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All retries are used.
    MaxRetries,
    /// The provider asked for a longer wait than `max_delay_ms`.
    RetryAfter,
    /// The session's deadline falls within the wait.
    Deadline,
}

impl Stopped {
    /// The word of the trace and of the failure reason.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxRetries => "max_retries",
            Self::RetryAfter => "retry_after",
            Self::Deadline => "deadline",
        }
    }
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Wait and send the same payload again.
    Again {
        /// How long.
        wait: Duration,
        /// Why it may help.
        reason: Reason,
    },
    /// Give up; with a reason when the failure was one that another attempt might have cured.
    Stop(Option<Stopped>),
}

/// Decides about attempt `attempt` (from 1), which just failed. `jitter` is uniform in `[0, 1)`, `left` the time until
/// the session's deadline.
pub fn decide(policy: &Policy, failure: &Failure, attempt: u32, jitter: f64, left: Option<Duration>) -> Decision {
    let Some(reason) = retriable(failure) else {
        return Decision::Stop(None);
    };
    if attempt > policy.max_retries {
        return Decision::Stop(Some(Stopped::MaxRetries));
    }
    let wait = match failure.retry_after {
        Some(asked) if asked > policy.max_delay => return Decision::Stop(Some(Stopped::RetryAfter)),
        Some(asked) => asked,
        None => own_delay(policy, attempt, jitter),
    };
    if left.is_some_and(|left| wait >= left) {
        return Decision::Stop(Some(Stopped::Deadline));
    }
    Decision::Again { wait, reason }
}

fn retriable(failure: &Failure) -> Option<Reason> {
    if failure.credential_rejected {
        return None;
    }
    match failure.transient {
        Some(true) => return Some(Reason::Driver),
        Some(false) => return None,
        None => {}
    }
    match (failure.connection, failure.status) {
        (Some(Connection::Broken), _) => Some(Reason::Connection),
        (Some(Connection::Impossible), _) => None,
        (None, Some(status)) => retriable_status(status).then_some(Reason::Status),
        (None, None) => None,
    }
}

fn retriable_status(status: u16) -> bool {
    matches!(status, 408 | 429) || (matches!(status, 500..=599) && !matches!(status, 501 | 505))
}

/// Uniform in `[d/2, d]`, d = min(max, initial · 2^k).
fn own_delay(policy: &Policy, attempt: u32, jitter: f64) -> Duration {
    let doubled = policy.initial_delay.saturating_mul(1_u32.checked_shl(attempt - 1).unwrap_or(u32::MAX));
    let full = doubled.min(policy.max_delay);
    full / 2 + (full / 2).mul_f64(jitter.clamp(0.0, 1.0))
}

/// The wait a response asks for: `retry-after-ms`, else `retry-after` in seconds or as an HTTP date.
pub fn asked_wait(retry_after_ms: Option<&str>, retry_after: Option<&str>, now: SystemTime) -> Option<Duration> {
    if let Some(wait) = retry_after_ms.and_then(|text| number(text, 1000.0)) {
        return Some(wait);
    }
    let text = retry_after?.trim();
    number(text, 1.0).or_else(|| until(text, now))
}

/// A non-negative number of `per_second` parts of a second.
fn number(text: &str, per_second: f64) -> Option<Duration> {
    let value: f64 = text.trim().parse().ok()?;
    Duration::try_from_secs_f64(value / per_second).ok()
}

/// The time until an HTTP date; a date in the past asks for no wait.
fn until(text: &str, now: SystemTime) -> Option<Duration> {
    let at = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc2822).ok()?;
    Some(SystemTime::from(at).duration_since(now).unwrap_or_default())
}

/// The end of a failure's reason that tells how often it was tried; empty when it was tried once and never again for
/// want of retries.
pub fn suffix(attempts: u32, stopped: Option<Stopped>) -> String {
    match stopped {
        Some(Stopped::MaxRetries) if attempts == 1 => String::new(),
        Some(stopped) => format!(" ({attempts} attempts; retry stopped: {})", stopped.as_str()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy =
        Policy { max_retries: 2, initial_delay: Duration::from_secs(1), max_delay: Duration::from_secs(60) };

    fn status(status: u16) -> Failure {
        Failure { status: Some(status), ..Failure::default() }
    }

    fn again(failure: &Failure) -> bool {
        matches!(decide(&POLICY, failure, 1, 0.5, None), Decision::Again { .. })
    }

    #[test]
    fn the_status_decides() {
        for (code, expected) in [
            (400, false),
            (401, false),
            (404, false),
            (408, true),
            (409, false),
            (429, true),
            (500, true),
            (501, false),
            (503, true),
            (505, false),
            (529, true),
            (599, true),
            (600, false),
            (200, false),
        ] {
            assert_eq!(again(&status(code)), expected, "{code}");
        }
    }

    #[test]
    fn the_drivers_word_outranks_the_status_and_a_rejected_credential_outranks_it() {
        assert!(again(&Failure { transient: Some(true), ..status(400) }));
        assert!(!again(&Failure { transient: Some(false), ..status(503) }));
        assert!(!again(&Failure { transient: Some(true), credential_rejected: true, ..status(401) }));
    }

    #[test]
    fn a_broken_connection_is_tried_again_and_a_refused_one_is_not() {
        let with = |connection| Failure { connection: Some(connection), ..Failure::default() };
        assert!(again(&with(Connection::Broken)));
        assert!(!again(&with(Connection::Impossible)));
        assert!(!again(&Failure::default()));
    }

    #[test]
    fn delays_double_within_their_half_and_stop_growing_at_the_maximum() {
        let wait = |attempt, jitter| {
            let policy = Policy { max_retries: 20, ..POLICY };
            match decide(&policy, &status(503), attempt, jitter, None) {
                Decision::Again { wait, .. } => wait,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(wait(1, 0.0), Duration::from_millis(500));
        assert_eq!(wait(1, 1.0), Duration::from_secs(1));
        assert_eq!(wait(3, 1.0), Duration::from_secs(4));
        assert_eq!(wait(20, 1.0), Duration::from_secs(60));
    }

    #[test]
    fn each_stop_has_its_reason() {
        assert_eq!(decide(&POLICY, &status(503), 3, 0.0, None), Decision::Stop(Some(Stopped::MaxRetries)));
        let asks = |secs| Failure { retry_after: Some(Duration::from_secs(secs)), ..status(429) };
        assert_eq!(decide(&POLICY, &asks(61), 1, 0.0, None), Decision::Stop(Some(Stopped::RetryAfter)));
        assert_eq!(
            decide(&POLICY, &asks(60), 1, 0.0, None),
            Decision::Again { wait: Duration::from_secs(60), reason: Reason::Status }
        );
        let left = Some(Duration::from_secs(60));
        assert_eq!(decide(&POLICY, &asks(60), 1, 0.0, left), Decision::Stop(Some(Stopped::Deadline)));
    }

    #[test]
    fn an_asked_wait_is_read_in_all_its_forms() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let secs = Duration::from_secs_f64;
        for (ms, header, expected) in [
            (Some("1500"), Some("9"), Some(secs(1.5))),
            (None, Some("9"), Some(secs(9.0))),
            (None, Some(" 0.5 "), Some(secs(0.5))),
            (Some("soon"), Some("3"), Some(secs(3.0))),
            (None, Some("Sun, 06 Nov 1994 08:49:47 GMT"), Some(secs(10.0))),
            (None, Some("Sun, 06 Nov 1994 08:00:00 GMT"), Some(secs(0.0))),
            (None, Some("-1"), None),
            (None, Some("1e400"), None),
            (None, Some("NaN"), None),
            (None, Some("next week"), None),
            (None, None, None),
        ] {
            assert_eq!(asked_wait(ms, header, now), expected, "{ms:?} {header:?}");
        }
    }

    #[test]
    fn only_a_call_that_may_have_been_served_is_charged() {
        assert!(Failure::default().is_charged());
        assert!(Failure { status: Some(200), ..Failure::default() }.is_charged());
        assert!(!status(503).is_charged());
        assert!(!Failure { connection: Some(Connection::Broken), ..Failure::default() }.is_charged());
    }
}
