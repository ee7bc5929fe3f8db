//! What this host says of itself: whether a program may make user namespaces, and since which policy.

use std::fs;

pub use mur_containment_kernel::probe::userns_grant;

use super::Short;
use crate::diagnostics::{Diagnostic, codes};

/// Set by a launcher that has already told the operator about the host.
pub const REPORTED: &str = "MURMUR_HOST_WARNINGS_REPORTED";

/// Why a host does not back a class, with what it says of itself.
pub fn reason(short: &Short) -> String {
    format!("{} The probe's {}. {}", short.cause, short.failure(), readings())
}

/// What decides no refusal but explains many.
pub fn readings() -> String {
    let restriction = match userns_grant() {
        "apparmor_absent" => "AppArmor not enabled",
        "restriction_disabled_host_wide" => "kernel.apparmor_restrict_unprivileged_userns=0",
        _ => "kernel.apparmor_restrict_unprivileged_userns=1",
    };
    let profile = word("/proc/self/attr/current").map(|text| text.split(" (").next().unwrap_or_default().to_owned());
    let profile = profile.filter(|name| !name.is_empty()).unwrap_or_else(|| "not reported".to_owned());
    format!("Host readings: {restriction}; AppArmor profile confining mur: {profile}.")
}

/// The warning about a host on which every program may make user namespaces (`W-SEC-013`).
pub fn warning() -> Option<Diagnostic> {
    (userns_grant() == "restriction_disabled_host_wide").then(|| {
        Diagnostic::new(
            codes::W_SEC_013,
            "AppArmor is on and lets every program of this host make user namespaces, not mur alone",
        )
        .hint("set kernel.apparmor_restrict_unprivileged_userns=1 and load a profile for mur")
    })
}

/// The same, for the process the operator started: once, and not where a launcher has said it.
pub fn warning_once() -> Option<Diagnostic> {
    if reported() { None } else { warning() }
}

/// Whether a launcher has already said what holds for the host as a whole.
pub fn reported() -> bool {
    std::env::var_os(REPORTED).is_some_and(|value| value == "1")
}

/// A kernel file's word, without its ends.
pub fn word(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_matches(['\0', '\n', ' ']).to_owned())
}
