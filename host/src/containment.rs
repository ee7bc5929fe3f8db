//! Containment classes in the host: floors, the class in force, and the request handed to a backend.

pub mod enclosure;

pub mod enter;

pub use mur_plugin_api::Class;

use crate::diagnostics::{Diagnostic, Result, codes};

/// The class a session runs under, and how it came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InForce {
    /// The strongest floor anybody declared; `advisory` when nobody did.
    pub declared: Class,
    /// The class whose library runs.
    pub class: Class,
    /// The class the run may claim: `class`, capped by what weakens it.
    pub achieved: Class,
    /// What the host could back.
    pub host: Class,
    /// Wire name of the mechanism, as `enforcement_tier` shows it.
    pub enforcement_tier: &'static str,
}

/// Who declared which floor. Absent sources contribute nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floors {
    /// `capabilities.containment` of the manifest.
    pub manifest: Option<Class>,
    /// `containment` of the configuration, global and project merged strongest-wins.
    pub config: Option<Class>,
    /// `--containment`.
    pub flag: Option<Class>,
    /// `capabilities.filesystem.workdir_exec`: the run may claim `advisory` at most.
    pub workdir_exec: bool,
    /// `~/.murmur/sessions` or the records directory lies inside the work folder: the same cap.
    pub records_in_workdir: bool,
}

/// The class in force, or `E-CAP-003` when the floor cannot be met.
pub fn class_in_force(floors: &Floors) -> Result<InForce> {
    let declared = [floors.manifest, floors.config, floors.flag].into_iter().flatten().max().unwrap_or(Class::Advisory);
    let host = Class::Advisory;
    let class = declared.min(host);
    if declared > class {
        return Err(Diagnostic::new(
            codes::E_CAP_003,
            format!("declared containment class '{declared}' is not achievable on this host (achieved: '{class}')"),
        ));
    }
    let enforcement_tier = "none";
    Ok(InForce { declared, class, achieved: class, host, enforcement_tier })
}

/// Limits a worker runs under (`capabilities.resources`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Open files.
    pub open_files: u64,
    /// Size of any file it writes, in bytes.
    pub file_size: u64,
}

impl Default for WorkerLimits {
    fn default() -> Self {
        Self { open_files: 1024, file_size: 4_294_967_296 }
    }
}

/// The bytes a worker hands to `enter()` of its class's library.
pub fn worker_request(_class: Class, limits: &WorkerLimits) -> Vec<u8> {
    serde_json::json!({ "open_files": limits.open_files, "file_size": limits.file_size }).to_string().into_bytes()
}
