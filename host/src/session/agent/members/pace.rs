//! How long a call waits between offers and between looks at an answer.

use std::time::Duration;

/// Before the second offer.
const FIRST_REST: Duration = Duration::from_secs(1);
/// Longest rest between two offers, jitter aside.
const LONGEST_REST: Duration = Duration::from_secs(8);
/// Spread of a rest, so that callers of one member do not come at once.
const JITTER: Duration = Duration::from_millis(250);
/// Before the first look at an answer.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// Longest rest between two looks.
const LONGEST_LOOK: Duration = Duration::from_millis(500);

/// The rest after offer `offer` (from 1); `jitter` is uniform in `[0, 1)`.
pub fn rest_after(offer: u32, jitter: f64) -> Duration {
    let doubled = FIRST_REST.saturating_mul(1_u32.checked_shl(offer.saturating_sub(1)).unwrap_or(u32::MAX));
    doubled.min(LONGEST_REST) + JITTER.mul_f64(jitter.clamp(0.0, 1.0))
}

/// Rests between looks at an answer, without end.
pub fn looks() -> impl Iterator<Item = Duration> + Send {
    std::iter::successors(Some(FIRST_LOOK), |last| Some((*last * 2).min(LONGEST_LOOK)))
}

/// A number in `[0, 1)`.
pub fn jitter() -> f64 {
    let mut seed = [0_u8; 4];
    // Without randomness callers come at once, which is no fault.
    let _ = getrandom::fill(&mut seed);
    f64::from(u32::from_ne_bytes(seed)) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_rest_longer_up_to_eight_seconds() {
        let rests: Vec<u64> = (1..=6).map(|offer| rest_after(offer, 0.0).as_secs()).collect();
        assert_eq!(rests, [1, 2, 4, 8, 8, 8]);
        assert_eq!(rest_after(1, 1.0), Duration::from_millis(1250));
        assert_eq!(rest_after(u32::MAX, 0.0), LONGEST_REST);
    }

    #[test]
    fn looks_double_up_to_half_a_second() {
        let looks: Vec<u128> = looks().take(8).map(|look| look.as_millis()).collect();
        assert_eq!(looks, [10, 20, 40, 80, 160, 320, 500, 500]);
    }

    #[test]
    fn jitter_is_below_one() {
        assert!((0..1000).map(|_| jitter()).all(|j| (0.0..1.0).contains(&j)));
    }
}
