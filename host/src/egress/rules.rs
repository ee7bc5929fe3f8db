//! Where an artifact may connect: the capsule's list, narrowed by the artifact's own entry.

use std::sync::Arc;

use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{ArtifactEntry, Capabilities, NetworkRule, Role};

/// The rules of one artifact: an empty set lets nothing through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet(Arc<[NetworkRule]>);

impl RuleSet {
    /// Lets nothing through.
    pub fn none() -> Self {
        Self::default()
    }

    /// These rules.
    pub fn new(rules: impl IntoIterator<Item = NetworkRule>) -> Self {
        Self(rules.into_iter().collect())
    }

    /// The capsule-wide list.
    ///
    /// # Errors
    /// `E-CAP-001` naming the first entry that cannot be parsed.
    pub fn of_capsule(capabilities: &Capabilities) -> Result<Self> {
        capabilities.network_rules().map(Self::new)
    }

    /// The rules of one entry: a hook has its own list and nothing else; any other artifact has the capsule's, or what
    /// of its own list the capsule's covers. Each entry that is not covered is dropped with `W-SEC-007`.
    ///
    /// # Errors
    /// `E-CAP-001` naming the first entry that cannot be parsed.
    pub fn of_entry(capabilities: &Capabilities, entry: &ArtifactEntry) -> Result<(Self, Vec<Diagnostic>)> {
        let ceiling = capabilities.network_rules()?;
        let own = entry.capabilities.as_ref().and_then(|own| own.network_allow.as_ref());
        if entry.runtime == Role::Hook {
            let own = own.map(Vec::as_slice).unwrap_or_default();
            return Ok((Self::new(parse(own)?), Vec::new()));
        }
        let Some(own) = own else { return Ok((Self::new(ceiling), Vec::new())) };
        let (mut kept, mut warnings) = (Vec::new(), Vec::new());
        for (text, rule) in own.iter().zip(parse(own)?) {
            if ceiling.iter().any(|wide| wide.covers(&rule)) {
                kept.push(rule);
            } else {
                warnings.push(dropped(&entry.name.to_string(), text));
            }
        }
        Ok((Self::new(kept), warnings))
    }

    /// The rules themselves.
    pub fn rules(&self) -> &[NetworkRule] {
        &self.0
    }

    /// Whether a request to this scheme, host and port is let through.
    pub fn allow(&self, scheme: &str, host: &str, port: u16) -> bool {
        self.0.iter().any(|rule| rule.matches(scheme, host, port))
    }

    /// Whether a plain connection to a host and port is let through: a scheme was folded into its rule's port.
    pub fn allow_connection(&self, host: &str, port: u16) -> bool {
        self.0.iter().any(|rule| rule.matches_address(host, port))
    }
}

fn parse(entries: &[String]) -> Result<Vec<NetworkRule>> {
    entries.iter().map(|entry| NetworkRule::parse(entry)).collect()
}

fn dropped(artifact: &str, entry: &str) -> Diagnostic {
    let message = format!(
        "'{artifact}' lists '{entry}' under its own capabilities.network.allow, and the capsule's list does not cover \
         it: the entry is dropped"
    );
    Diagnostic::new(codes::W_SEC_007, message).hint("an artifact's list only narrows; widen the capsule's own list")
}
