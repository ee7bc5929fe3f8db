//! What a launch finds around a capsule: the configuration, and the variables that keys are looked up in.

use std::path::Path;
use std::sync::Arc;

use super::Report;
use crate::config::Config;
use crate::containment::{Floors, InForce, Prober, check_cgroup, check_floor, check_namespaces, class_in_force};
use crate::diagnostics::Diagnostic;
use crate::egress::KeySource;
use crate::manifest::Capsule;
use crate::paths::MurmurHome;
use crate::session::environment::HostEnvironment;

/// Read once, its own faults reported.
pub(super) struct Surroundings {
    /// Both files, merged; the defaults when one cannot be used.
    pub(super) config: Config,
    /// The operator's.
    pub(super) home: MurmurHome,
    variables: HostEnvironment,
}

impl Surroundings {
    /// What lies around a directory.
    pub(super) fn read(dir: &Path, home: &MurmurHome, report: &mut Report) -> Self {
        let config = Config::load(home, dir).unwrap_or_else(|fault| {
            report.error(&fault);
            Config::default()
        });
        for line in &config.warnings {
            report.err(line.clone());
        }
        for line in &config.unknown {
            report.err(format!("[mur doctor] warning: {line}"));
            report.count_warning(&format!("correct or remove it: {line}"));
        }
        let variables = HostEnvironment::with_file_near(dir).unwrap_or_else(|fault| {
            report.error(&fault);
            HostEnvironment::default()
        });
        Self { config, home: home.clone(), variables }
    }

    /// Looks up the key of every gateway: what is refused, then what is warned of.
    pub(super) fn keys(&self, capsule: &Capsule) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
        let (mut refusals, mut warnings) = (Vec::new(), Vec::new());
        for entry in &capsule.artifacts {
            let Some(gateway) = &entry.gateway else { continue };
            let never = Arc::new(|_: &str| None);
            let credentials = &self.config.credentials;
            match KeySource::find(&entry.name, &gateway.api_key, credentials, |name| self.variables.find(name), never) {
                Ok((_, warning)) => warnings.extend(warning),
                Err(refusal) => refusals.push(refusal),
            }
        }
        (refusals, warnings)
    }

    /// The class a launch without flags would have, and what the host lacks for it.
    pub(super) fn class(&self, capsule: &Capsule, prober: &mut Prober<'_>) -> (Option<InForce>, Vec<Diagnostic>) {
        let floors = Floors {
            manifest: capsule.capabilities.containment,
            config: self.config.containment,
            workdir_exec: capsule.capabilities.filesystem.workdir_exec,
            ..Floors::default()
        };
        let in_force = match class_in_force(&floors, prober) {
            Ok(in_force) => in_force,
            Err(refusal) => return (None, vec![refusal]),
        };
        let mut refusals: Vec<Diagnostic> = check_floor(&in_force).err().into_iter().collect();
        if capsule.starts_processes() {
            refusals.extend(check_namespaces(&in_force).err());
            refusals.extend(check_cgroup(&in_force).err());
        }
        (Some(in_force), refusals)
    }
}
