//! Where an artifact may connect.

/// The rules of one artifact: an empty set lets nothing through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {}

impl RuleSet {
    /// Lets nothing through.
    pub fn none() -> Self {
        Self::default()
    }
}
