//! What this host says of itself: whether a program may make user namespaces, and since which policy.

use std::fs;

use crate::diagnostics::{Diagnostic, codes};

/// Set by a launcher that has already told the operator about the host.
pub const REPORTED: &str = "MURMUR_HOST_WARNINGS_REPORTED";

/// How this host grants user namespaces to `mur`: `apparmor_absent`, `restriction_disabled_host_wide`,
/// `profile_confining` or `withheld`.
pub fn userns_grant() -> &'static str {
    let enabled = is_on("/sys/module/apparmor/parameters/enabled");
    if !enabled {
        return "apparmor_absent";
    }
    let restricted = is_on("/sys/module/apparmor/parameters/restrict_unprivileged_userns")
        || is_on("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
    let confined = word("/proc/self/attr/current").is_some_and(|profile| profile.starts_with("mur-sealed"));
    match (restricted, confined) {
        (false, _) => "restriction_disabled_host_wide",
        (true, true) => "profile_confining",
        (true, false) => "withheld",
    }
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

fn is_on(path: &str) -> bool {
    word(path).is_some_and(|text| matches!(text.as_str(), "Y" | "1"))
}

/// A kernel file's word, without its ends.
pub fn word(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_matches(['\0', '\n', ' ']).to_owned())
}
