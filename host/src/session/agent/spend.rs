//! Spend ceilings, of the session and of the machine: a call is admitted before it is sent, and settled with what it
//! really cost.

use crate::diagnostics::Diagnostic;
use crate::session::ledger::Ledger;

/// Token spend of one session.
#[derive(Debug)]
pub struct Spend {
    ceiling: Option<u64>,
    used: u64,
    machine: Option<(u64, Ledger)>,
    /// A refusal holds for the rest of the session.
    latched: Option<Limit>,
}

/// Which ceiling refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `inference.max_session_tokens`.
    Session,
    /// `spend.machine_tokens_per_day`.
    Machine,
}

impl Limit {
    /// The word of the trace.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Machine => "machine",
        }
    }
}

/// A call that does not fit under a ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which.
    pub limit: Limit,
    /// Its height.
    pub ceiling: u64,
    /// Spent so far.
    pub used: u64,
    /// What the call would have reserved.
    pub requested: u64,
}

impl Spend {
    /// Under the session's ceiling and the machine's, each if there is one.
    pub fn new(ceiling: Option<u64>, machine: Option<(u64, Ledger)>) -> Self {
        Self { ceiling, used: 0, machine, latched: None }
    }

    /// Whether calls need an exact estimate before they are sent.
    pub fn has_ceiling(&self) -> bool {
        self.ceiling.is_some() || self.machine.is_some()
    }

    /// Admits a call that may use `input` tokens and up to `output` more. An error means that the machine's ledger cannot
    /// be used, so nothing may be sent.
    pub fn admit(&mut self, input: u64, output: u64) -> Result<Result<(), Refused>, Diagnostic> {
        let requested = input.saturating_add(output);
        if let Some(ceiling) = self.ceiling {
            let over = self.used.saturating_add(requested) > ceiling;
            if over || self.latched == Some(Limit::Session) {
                self.latched = Some(Limit::Session);
                return Ok(Err(Refused { limit: Limit::Session, ceiling, used: self.used, requested }));
            }
        }
        if let Some((ceiling, ledger)) = &mut self.machine {
            let used = ledger.used()?;
            if used.saturating_add(requested) > *ceiling {
                return Ok(Err(Refused { limit: Limit::Machine, ceiling: *ceiling, used, requested }));
            }
        }
        Ok(Ok(()))
    }

    /// Adds what an admitted call cost.
    pub fn settle(&mut self, input: u64, output: u64) -> Result<(), Diagnostic> {
        self.used = self.used.saturating_add(input).saturating_add(output);
        match &mut self.machine {
            Some((_, ledger)) if input > 0 || output > 0 => ledger.add(input, output),
            _ => Ok(()),
        }
    }

    /// Spent so far in this session.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The session's ceiling.
    pub fn ceiling(&self) -> Option<u64> {
        self.ceiling
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;
    use crate::paths::MurmurHome;

    #[test]
    fn a_call_that_does_not_fit_is_refused_and_so_is_every_later_one() {
        let mut spend = Spend::new(Some(100), None);
        assert_eq!(spend.admit(40, 60), Ok(Ok(())));
        spend.settle(30, 20).unwrap();
        let refused = Refused { limit: Limit::Session, ceiling: 100, used: 50, requested: 51 };
        assert_eq!(spend.admit(10, 41), Ok(Err(refused)));
        assert!(spend.admit(1, 1).unwrap().is_err(), "latched");
    }

    #[test]
    fn without_a_ceiling_everything_is_admitted() {
        let mut spend = Spend::new(None, None);
        spend.settle(u64::MAX, 1).unwrap();
        assert_eq!(spend.admit(u64::MAX, u64::MAX), Ok(Ok(())));
    }

    #[test]
    fn the_machines_ceiling_holds_for_all_sessions_together() {
        let dir = tempfile::tempdir().unwrap();
        let home = MurmurHome::at(dir.path().to_owned());
        let session = || Spend::new(None, Some((100, Ledger::new(&home, &SessionId::mint()))));
        let (mut one, mut other) = (session(), session());
        one.settle(60, 10).unwrap();
        assert_eq!(other.admit(10, 20), Ok(Ok(())));
        let refused = Refused { limit: Limit::Machine, ceiling: 100, used: 70, requested: 31 };
        assert_eq!(other.admit(11, 20), Ok(Err(refused)));
    }
}
