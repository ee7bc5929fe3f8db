//! Containment classes in the host: floors, the class in force, and the request handed to a backend.

pub mod closure;
pub mod enclosure;

pub mod enter;
pub mod host;

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

/// What this build can back at most: the libraries of `scoped` and `sealed` are not part of it.
const STRONGEST: Class = Class::Advisory;

/// The value of `--containment` (`E-IO-003`).
pub fn parse_flag(text: &str) -> Result<Class> {
    text.parse().map_err(|_| {
        Diagnostic::new(
            codes::E_IO_003,
            format!("--containment must be one of: unconfined, advisory, scoped, sealed; got '{text}'"),
        )
        .hint("name one of the four classes")
    })
}

/// The class in force, or `E-CAP-003` when the strongest declared floor cannot be met. Nothing ever falls back to a weaker
/// class, and `unconfined` is in force only when a source says it and none says anything stronger.
pub fn class_in_force(floors: &Floors) -> Result<InForce> {
    let declared = [floors.manifest, floors.config, floors.flag].into_iter().flatten().max().unwrap_or(Class::Advisory);
    let class = declared.min(STRONGEST);
    let capped = floors.workdir_exec || floors.records_in_workdir;
    let achieved = if capped { class.min(Class::Advisory) } else { class };
    if achieved < declared {
        return Err(unmet(floors, declared, achieved));
    }
    let enforcement_tier = if class == Class::Unconfined { "none" } else { "seccomp-only" };
    Ok(InForce { declared, class, achieved, host: STRONGEST, enforcement_tier })
}

/// The causes in the order in which they are looked at; the hint follows the cause.
fn unmet(floors: &Floors, declared: Class, achieved: Class) -> Diagnostic {
    let lower = match (floors.flag, floors.config) {
        (Some(flag), _) if flag == declared => "--containment",
        (_, Some(config)) if config == declared => "containment in config.yaml",
        _ => "capabilities.containment in murmur.yaml",
    };
    let (reason, hint) = if floors.workdir_exec {
        (
            "capabilities.filesystem.workdir_exec lets the capsule run programs it wrote itself".to_owned(),
            format!("remove workdir_exec, or lower {lower}"),
        )
    } else if floors.records_in_workdir {
        (
            "~/.murmur lies inside the work folder, where commands can change it".to_owned(),
            "run the capsule in a folder that does not hold ~/.murmur".to_owned(),
        )
    } else {
        (
            format!("this build of mur has no containment library for class '{declared}'"),
            format!("lower {lower} to 'advisory', or use a mur that has the class"),
        )
    };
    Diagnostic::new(
        codes::E_CAP_003,
        format!(
            "declared containment class '{declared}' is not achievable on this host (achieved: '{achieved}'): {reason}"
        ),
    )
    .hint(hint)
}

/// What a launch says about a class that holds little: once each, on stderr.
pub fn warnings(in_force: &InForce) -> Vec<Diagnostic> {
    // What holds for the host as a whole is said by the launcher, once for all its members.
    warnings_as(in_force.class, nix::unistd::geteuid().is_root() && !host::reported())
}

/// What a launcher says for all its members, once: about the class they run under and, where they may call each other,
/// about what that class leaves open between them.
pub fn formation_warnings(flag: Option<Class>, has_edges: bool) -> Vec<Diagnostic> {
    let class = flag.unwrap_or(STRONGEST).min(STRONGEST);
    let mut warnings = warnings_as(class, nix::unistd::geteuid().is_root());
    warnings.retain(|warning| warning.code() == codes::W_SEC_035);
    if has_edges && class < Class::Scoped {
        warnings.push(Diagnostic::new(
            codes::W_SEC_036,
            format!(
                "the members of this roster run under class '{class}': any process that runs as you can read other \
                 members' door tokens in ~/.murmur/running"
            ),
        ));
    }
    warnings
}

fn warnings_as(class: Class, root: bool) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    if class == Class::Unconfined {
        warnings.push(Diagnostic::new(
            codes::W_SEC_034,
            "containment class 'unconfined' is in force: nothing holds a capsule's commands and workers, they run as \
             the invoking user",
        ));
    }
    if root && class <= Class::Advisory {
        warnings.push(Diagnostic::new(
            codes::W_SEC_035,
            format!(
                "containment class '{class}' runs as root here: user 0 without capabilities still opens every file that \
                 belongs to root; run mur as another user, or under a stronger class"
            ),
        ));
    }
    warnings
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

/// The bytes a worker hands to `enter()` of its class's library: one JSON object.
pub fn worker_request(class: Class, limits: &WorkerLimits) -> Vec<u8> {
    if class == Class::Unconfined {
        return b"{}".to_vec();
    }
    let settings = mur_containment_kernel::Settings {
        open_files: limits.open_files,
        file_size: limits.file_size,
        cpu_seconds: None,
        address_space: None,
    };
    // Four integers: serialising them cannot fail.
    serde_json::to_vec(&settings).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floors(manifest: Option<Class>, config: Option<Class>, flag: Option<Class>) -> Floors {
        Floors { manifest, config, flag, ..Floors::default() }
    }

    #[test]
    fn the_strongest_source_is_the_floor_and_none_means_advisory() {
        use Class::{Advisory, Unconfined};
        let in_force = |floors| class_in_force(&floors).unwrap();
        assert_eq!(in_force(floors(None, None, None)).class, Advisory);
        assert_eq!(in_force(floors(None, None, Some(Unconfined))).class, Unconfined);
        assert_eq!(in_force(floors(None, Some(Unconfined), None)).achieved, Unconfined);
        assert_eq!(in_force(floors(Some(Advisory), None, Some(Unconfined))).class, Advisory);
        assert_eq!(in_force(floors(None, Some(Advisory), Some(Unconfined))).declared, Advisory);
    }

    #[test]
    fn a_floor_that_cannot_be_met_is_refused_with_its_cause() {
        let host = class_in_force(&floors(Some(Class::Scoped), None, None)).unwrap_err();
        assert_eq!(host.code(), codes::E_CAP_003);
        assert!(host.message().contains("'scoped' is not achievable on this host (achieved: 'advisory')"), "{host}");
        assert!(host.hint_text().unwrap().contains("murmur.yaml"));
        let flag = class_in_force(&floors(None, None, Some(Class::Sealed))).unwrap_err();
        assert!(flag.hint_text().unwrap().contains("--containment"), "{flag}");
        let exec = Floors { workdir_exec: true, ..floors(Some(Class::Sealed), None, None) };
        assert!(class_in_force(&exec).unwrap_err().message().contains("workdir_exec"));
        // Below that floor the cap changes nothing that was promised.
        let exec = Floors { workdir_exec: true, ..floors(None, None, None) };
        assert_eq!(class_in_force(&exec).unwrap().achieved, Class::Advisory);
    }

    #[test]
    fn a_weak_class_warns_and_root_once_more() {
        let in_force = |class| class_in_force(&floors(None, None, Some(class))).unwrap();
        let codes =
            |class, root| warnings_as(in_force(class).class, root).iter().map(Diagnostic::code).collect::<Vec<_>>();
        assert_eq!(codes(Class::Advisory, false), []);
        assert_eq!(codes(Class::Advisory, true), [codes::W_SEC_035]);
        assert_eq!(codes(Class::Unconfined, true), [codes::W_SEC_034, codes::W_SEC_035]);
    }

    #[test]
    fn a_worker_request_is_what_the_class_reads() {
        let limits = WorkerLimits { open_files: 64, file_size: 4096 };
        let settings: mur_containment_kernel::Settings =
            serde_json::from_slice(&worker_request(Class::Advisory, &limits)).unwrap();
        assert_eq!((settings.open_files, settings.file_size, settings.cpu_seconds), (64, 4096, None));
    }
}
