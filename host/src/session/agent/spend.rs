//! The session's spend ceiling: a call is admitted before it is sent, and settled with what it really cost.

/// Token spend of one session.
#[derive(Debug)]
pub struct Spend {
    ceiling: Option<u64>,
    used: u64,
    /// A refusal holds for the rest of the session.
    latched: bool,
}

/// A call that does not fit under the ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// `inference.max_session_tokens`.
    pub ceiling: u64,
    /// Spent so far.
    pub used: u64,
    /// What the call would have reserved.
    pub requested: u64,
}

impl Spend {
    /// Under a ceiling, if there is one.
    pub fn new(ceiling: Option<u64>) -> Self {
        Self { ceiling, used: 0, latched: false }
    }

    /// Whether calls need an exact estimate before they are sent.
    pub fn has_ceiling(&self) -> bool {
        self.ceiling.is_some()
    }

    /// Admits a call that may use `input` tokens and up to `output` more.
    pub fn admit(&mut self, input: u64, output: u64) -> Result<(), Refused> {
        let Some(ceiling) = self.ceiling else { return Ok(()) };
        let requested = input.saturating_add(output);
        if self.latched || self.used.saturating_add(requested) > ceiling {
            self.latched = true;
            return Err(Refused { ceiling, used: self.used, requested });
        }
        Ok(())
    }

    /// Adds what an admitted call cost.
    pub fn settle(&mut self, tokens: u64) {
        self.used = self.used.saturating_add(tokens);
    }

    /// Spent so far.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The ceiling.
    pub fn ceiling(&self) -> Option<u64> {
        self.ceiling
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_fit_is_refused_and_so_is_every_later_one() {
        let mut spend = Spend::new(Some(100));
        assert_eq!(spend.admit(40, 60), Ok(()));
        spend.settle(50);
        assert_eq!(spend.admit(10, 41), Err(Refused { ceiling: 100, used: 50, requested: 51 }));
        assert!(spend.admit(1, 1).is_err(), "latched");
    }

    #[test]
    fn without_a_ceiling_everything_is_admitted() {
        let mut spend = Spend::new(None);
        spend.settle(u64::MAX);
        spend.settle(1);
        assert_eq!(spend.admit(u64::MAX, u64::MAX), Ok(()));
    }
}
