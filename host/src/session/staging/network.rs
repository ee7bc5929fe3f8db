//! Where each artifact may send, and the gateways with their keys.

use std::collections::BTreeMap;

use super::{ByName, Part};
use crate::config::Config;
use crate::diagnostics::{Diagnostic, Result};
use crate::egress::{RuleSet, Secret};
use crate::manifest::Capsule;
use crate::paths::MurmurHome;
use crate::session::context::ArtifactNetwork;
use crate::session::environment::HostEnvironment;
use crate::trace::records::GatewayView;

/// The network side of a session.
pub struct Networks {
    /// By artifact.
    pub senders: ByName<ArtifactNetwork>,
    /// Of the capsule as a whole.
    pub capsule: RuleSet,
    /// Every key the session holds.
    pub secrets: Vec<Secret>,
    /// As `session_start` shows them, the driver's first.
    pub gateways: Vec<GatewayView>,
    /// Where the driver's key came from.
    pub credential_source: String,
}

/// Settles rules and gateways.
pub fn plan(
    _capsule: &Capsule,
    _parts: &[Part],
    _config: &Config,
    _home: &MurmurHome,
    _host: &HostEnvironment,
    _warnings: &mut Vec<Diagnostic>,
) -> Result<Networks> {
    Ok(Networks {
        senders: BTreeMap::new(),
        capsule: RuleSet::none(),
        secrets: Vec::new(),
        gateways: Vec::new(),
        credential_source: "none".to_owned(),
    })
}
