//! Where each artifact may send, and the gateways with their keys.

use std::sync::Arc;

use super::{ByName, Part};
use crate::config::Config;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::egress::gateway::read_from;
use crate::egress::{Gateway, KeySource, RuleSet};
use crate::manifest::{Capsule, Role, UpstreamAuth};
use crate::paths::MurmurHome;
use crate::session::context::ArtifactNetwork;
use crate::session::environment::HostEnvironment;
use crate::trace::records::GatewayView;

/// The network side of a session.
pub struct Networks {
    /// By bare name.
    pub senders: ByName<ArtifactNetwork>,
    /// Of the capsule as a whole.
    pub capsule: RuleSet,
    /// As `session_start` shows them, the driver's first.
    pub gateways: Vec<GatewayView>,
    /// Where the driver's key came from.
    pub credential_source: String,
}

/// Settles rules and gateways of every artifact that can send.
pub fn plan(
    capsule: &Capsule,
    parts: &[Part],
    config: &Config,
    home: &MurmurHome,
    host: &HostEnvironment,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Networks> {
    let driver = capsule.inference.as_ref().map(|inference| &inference.driver.artifact);
    let mut networks = Networks {
        senders: ByName::new(),
        capsule: RuleSet::of_capsule(&capsule.capabilities)?,
        gateways: Vec::new(),
        credential_source: "none".to_owned(),
    };
    for part in parts.iter().filter(|part| part.entry.runtime != Role::Skill) {
        let entry = &part.entry;
        let (rules, dropped) = RuleSet::of_entry(&capsule.capabilities, entry)?;
        warnings.extend(dropped);
        let gateway = gateway(part, config, home, host, warnings)?;
        if let Some(gateway) = &gateway {
            let is_driver = driver.is_some_and(|driver| *driver == entry.name);
            let view = view(part, gateway, is_driver);
            if is_driver {
                networks.credential_source.clone_from(&view.credential_source);
                networks.gateways.insert(0, view);
            } else {
                networks.gateways.push(view);
            }
        }
        let network = ArtifactNetwork { rules, gateway: gateway.map(Arc::new) };
        networks.senders.insert(entry.bare().to_owned(), network);
    }
    if networks.gateways.iter().any(|gateway| gateway.credential_source == "config") {
        warnings.extend(config.readable_by_others.clone());
    }
    Ok(networks)
}

fn gateway(
    part: &Part,
    config: &Config,
    home: &MurmurHome,
    host: &HostEnvironment,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Option<Gateway>> {
    let Some(block) = &part.entry.gateway else { return Ok(None) };
    let name = part.entry.name.to_string();
    let read = read_from(home.clone());
    let (source, warning) = KeySource::find(&name, &block.api_key, &config.credentials, |key| host.find(key), read)?;
    warnings.extend(warning);
    let auth = upstream_auth(part, &source)?;
    Gateway::new(&name, block.clone(), auth, source).map(Some)
}

/// What the artifact says of its provider's header; nothing is needed where no key is sent.
fn upstream_auth<'a>(part: &'a Part, source: &KeySource) -> Result<Option<&'a UpstreamAuth>> {
    if matches!(source, KeySource::Keyless) {
        return Ok(None);
    }
    let unusable = |why: &str| {
        Err(Diagnostic::new(
            codes::E_RUN_025,
            format!("'{}' has a gateway with a key, and {why}", part.entry.reference()),
        )
        .hint("install a newer release of the artifact, or remove gateway: from its entry"))
    };
    if part.inference_auth {
        return unusable("it still declares inference_auth, which upstream_auth replaced");
    }
    match &part.upstream_auth {
        None => Ok(None),
        Some(Ok(auth)) => Ok(Some(auth)),
        Some(Err(why)) => unusable(&format!("its upstream_auth cannot be used: {why}")),
    }
}

fn view(part: &Part, gateway: &Gateway, is_driver: bool) -> GatewayView {
    let source = match gateway.source() {
        KeySource::Keyless => "keyless",
        KeySource::Literal(_) => "manifest",
        KeySource::Environment { .. } => "environment",
        KeySource::Configured { .. } => "config",
    };
    GatewayView {
        artifact: part.entry.name.to_string(),
        host: gateway.endpoint().authority(),
        credential_source: source.to_owned(),
        metered: is_driver,
    }
}
