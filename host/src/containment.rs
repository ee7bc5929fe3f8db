//! Containment classes in the host: floors, the class in force, and the request handed to a backend.

pub mod closure;
pub mod commands;
mod delegation;
pub mod enclosure;
pub mod enter;
pub mod helper;
pub mod host;
mod message;
mod prober;
mod wrapped;

pub use commands::{Command, CommandProfile, Commands, Ended, StartError};
pub use helper::{Helper, Prepared};
pub use message::{Report, Short};
pub use mur_plugin_api::Class;
pub use prober::Prober;

use mur_plugin_api::ProcessLimits;

use crate::diagnostics::{Diagnostic, Result, codes};

/// What a composed root shows of the host's programs without any grant.
pub const RUNTIME_TREE: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// The class a session runs under, and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// The strongest floor anybody declared; `advisory` when nobody did.
    pub declared: Class,
    /// The class whose library runs.
    pub class: Class,
    /// The class the run may claim: `class`, capped by what weakens it.
    pub achieved: Class,
    /// What the host could back; not asked for `unconfined`.
    pub host: Option<Class>,
    /// What the host backs of the class in force and of what a session shares; nothing is asked for `unconfined`.
    pub report: Option<Report>,
    /// Why the run may claim less than was declared; a launch is refused then.
    pub unmet: Option<Unmet>,
}

/// Why a declared floor cannot be met here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// What is in the way, with the step that failed and what the host says of itself.
    pub reason: String,
    /// What can be done about it.
    pub hint: String,
}

/// Who is asked what this host backs.
pub trait Host {
    /// Tries what the host backs of a class. Nothing that is made for it stays.
    fn probe(&mut self, class: Class) -> Result<Report>;

    /// The same of a class the session is to run under: the session's enclosure may be made at once, as the best proof.
    fn take(&mut self, class: Class) -> Result<Report> {
        self.probe(class)
    }
}

impl InForce {
    /// Wire name of the mechanism, as `enforcement_tier` shows it.
    pub fn enforcement_tier(&self) -> &str {
        self.report.as_ref().map_or("none", |report| report.mechanism.as_str())
    }
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

impl Floors {
    fn declared(&self) -> Class {
        [self.manifest, self.config, self.flag].into_iter().flatten().max().unwrap_or(Class::Advisory)
    }

    fn capped(&self) -> bool {
        self.workdir_exec || self.records_in_workdir
    }
}

/// A question is enough where nothing is to be made.
impl<F: FnMut(Class) -> Result<Report>> Host for F {
    fn probe(&mut self, class: Class) -> Result<Report> {
        self(class)
    }
}

/// The class in force: the strongest class the host backs, but no composed root unless it is asked for. Nothing ever falls
/// back below a declared floor ([`check_floor`]), and `unconfined` is in force only when a source says it and none says
/// anything stronger.
pub fn class_in_force(floors: &Floors, host: &mut dyn Host) -> Result<InForce> {
    let declared = floors.declared();
    if declared == Class::Unconfined {
        let in_force = InForce { declared, class: declared, achieved: declared, host: None, report: None, unmet: None };
        return Ok(in_force);
    }
    let wanted = declared.max(Class::Scoped);
    // The library of the class that is wanted must be there; the other class is asked for the record only.
    let asked = host.take(wanted)?;
    let backed = asked.class.is_none();
    let other = if wanted == Class::Sealed { Class::Scoped } else { Class::Sealed };
    let other_backed = match asked.backs_sealed {
        // Seen while the session's own enclosure was made.
        Some(backs) if other == Class::Sealed => backs,
        _ if backed && other == Class::Scoped => true,
        _ => host.probe(other).is_ok_and(|report| report.class.is_none()),
    };
    let (sealed, scoped) = if wanted == Class::Sealed { (backed, other_backed) } else { (other_backed, backed) };
    let of_host = match (sealed, scoped) {
        (true, _) => Class::Sealed,
        (false, true) => Class::Scoped,
        (false, false) => Class::Advisory,
    };
    let class = if backed { wanted } else { of_host.min(declared.max(Class::Advisory)) };
    let achieved = if floors.capped() { class.min(Class::Advisory) } else { class };
    let unmet = (achieved < declared).then(|| unmet(floors, declared, achieved, asked.class.as_ref()));
    let report = if class == wanted {
        asked
    } else if unmet.is_some() {
        // Nothing runs, so nothing of it is made.
        host.probe(class)?
    } else {
        host.take(class)?
    };
    Ok(InForce { declared, class, achieved, host: Some(of_host), report: Some(report), unmet })
}

/// Refuses a launch whose floor is not met (`E-CAP-003`).
pub fn check_floor(in_force: &InForce) -> Result<()> {
    let Some(unmet) = &in_force.unmet else { return Ok(()) };
    Err(Diagnostic::new(
        codes::E_CAP_003,
        format!(
            "declared containment class '{}' is not achievable on this host (achieved: '{}'): {}",
            in_force.declared, in_force.achieved, unmet.reason
        ),
    )
    .hint(unmet.hint.clone()))
}

/// The causes in the order in which they are looked at; the hint follows the cause.
fn unmet(floors: &Floors, declared: Class, achieved: Class, short: Option<&Short>) -> Unmet {
    let lower = match (floors.flag, floors.config) {
        (Some(flag), _) if flag == declared => "--containment",
        (_, Some(config)) if config == declared => "containment in config.yaml",
        _ => "capabilities.containment in murmur.yaml",
    };
    if floors.workdir_exec {
        return Unmet {
            reason: "capabilities.filesystem.workdir_exec lets the capsule run programs it wrote itself".to_owned(),
            hint: format!("remove workdir_exec, or lower {lower}"),
        };
    }
    if floors.records_in_workdir {
        return Unmet {
            reason: "~/.murmur lies inside the work folder, where commands can change it".to_owned(),
            hint: "run the capsule in a folder that does not hold ~/.murmur".to_owned(),
        };
    }
    let remedy = short.map(|short| format!("{}; or ", short.remedy)).unwrap_or_default();
    Unmet {
        reason: short.map_or_else(|| "this host cannot back it".to_owned(), host::reason),
        hint: format!("{remedy}lower {lower} to '{achieved}', or use another host"),
    }
}

/// Whether a host can give a session's processes namespaces of their own (`E-CAP-005`).
pub fn check_namespaces(in_force: &InForce) -> Result<()> {
    let Some(short) = in_force.report.as_ref().and_then(|report| report.namespaces.as_ref()) else { return Ok(()) };
    Err(Diagnostic::new(
        codes::E_CAP_005,
        format!(
            "this host cannot give the capsule's subprocess tree its own network namespace, so \
             capabilities.network.allow cannot be enforced for it: {}. {} {}",
            short.failure(),
            short.cause,
            host::readings()
        ),
    )
    .hint(short.remedy.clone()))
}

/// Whether a host can give a session a cgroup scope (`E-RUN-012`).
pub fn check_cgroup(in_force: &InForce) -> Result<()> {
    let Some(short) = in_force.report.as_ref().and_then(|report| report.scope.as_ref()) else { return Ok(()) };
    Err(Diagnostic::new(
        codes::E_RUN_012,
        format!(
            "this capsule can spawn native subprocesses but no cgroup scope could be created to bound them ({})",
            short.failure()
        ),
    )
    .hint(short.remedy.clone()))
}

/// What a launch says about a class that holds little: once each, on stderr.
pub fn warnings(in_force: &InForce) -> Vec<Diagnostic> {
    // What holds for the host as a whole is said by the launcher, once for all its members.
    warnings_as(in_force.class, nix::unistd::geteuid().is_root() && !host::reported())
}

/// What a launcher says for all its members, once: about the class they run under and, where they may call each other,
/// about what that class leaves open between them.
pub fn formation_warnings(flag: Option<Class>, has_edges: bool) -> Vec<Diagnostic> {
    // The launcher loads no library: that the kernel has Landlock says enough for a warning.
    let usual = match mur_containment_kernel::landlock::kernel_abi() {
        Some(_) => Class::Scoped,
        None => Class::Advisory,
    };
    let class = match flag {
        Some(Class::Unconfined) => Class::Unconfined,
        Some(floor) => floor.max(usual),
        None => usual,
    };
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

impl From<WorkerLimits> for ProcessLimits {
    fn from(limits: WorkerLimits) -> Self {
        Self { open_files: limits.open_files, file_size: limits.file_size, cpu_seconds: None, address_space: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floors(manifest: Option<Class>, config: Option<Class>, flag: Option<Class>) -> Floors {
        Floors { manifest, config, flag, ..Floors::default() }
    }

    /// A host that backs every class up to one.
    fn backing(most: Class) -> impl FnMut(Class) -> Result<Report> {
        move |class| {
            let short = || Short {
                blocker: "mount_denied".into(),
                step: "pivot_root(2)".into(),
                errno: libc::EPERM,
                cause: "It is not allowed.".into(),
                remedy: "allow it".into(),
            };
            Ok(Report { mechanism: class.to_string(), class: (class > most).then(short), ..Report::default() })
        }
    }

    #[test]
    fn the_strongest_source_is_the_floor_and_the_host_gives_scoped_unasked() {
        use Class::{Advisory, Scoped, Sealed, Unconfined};
        let on = |most, floors| class_in_force(&floors, &mut backing(most)).unwrap();
        let none = on(Sealed, floors(None, None, None));
        assert_eq!((none.declared, none.class, none.achieved, none.host), (Advisory, Scoped, Scoped, Some(Sealed)));
        assert_eq!(none.enforcement_tier(), "scoped");
        assert_eq!(on(Advisory, floors(None, None, None)).class, Advisory);
        assert_eq!(on(Sealed, floors(Some(Advisory), None, None)).class, Scoped);
        assert_eq!(on(Sealed, floors(None, Some(Sealed), None)).class, Sealed);
        let unconfined = on(Sealed, floors(None, None, Some(Unconfined)));
        assert_eq!((unconfined.class, unconfined.host, unconfined.enforcement_tier()), (Unconfined, None, "none"));
        assert_eq!(on(Sealed, floors(None, Some(Unconfined), None)).achieved, Unconfined);
        assert_eq!(on(Sealed, floors(Some(Advisory), None, Some(Unconfined))).class, Scoped);
    }

    #[test]
    fn a_floor_that_cannot_be_met_is_refused_with_its_cause() {
        let refused = |most, floors| {
            let in_force = class_in_force(&floors, &mut backing(most)).unwrap();
            check_floor(&in_force).unwrap_err()
        };
        let host = refused(Class::Advisory, floors(Some(Class::Scoped), None, None));
        assert_eq!(host.code(), codes::E_CAP_003);
        assert!(host.message().contains("'scoped' is not achievable on this host (achieved: 'advisory')"), "{host}");
        assert!(host.message().contains("pivot_root(2) failed with EPERM (Operation not permitted)"), "{host}");
        assert!(host.hint_text().unwrap().contains("allow it; or lower capabilities.containment in murmur.yaml"));
        let sealed = refused(Class::Scoped, floors(None, None, Some(Class::Sealed)));
        assert!(sealed.message().contains("(achieved: 'scoped')"), "{sealed}");
        assert!(sealed.hint_text().unwrap().contains("--containment to 'scoped'"), "{sealed}");
        let exec = Floors { workdir_exec: true, ..floors(Some(Class::Sealed), None, None) };
        assert!(refused(Class::Sealed, exec).message().contains("workdir_exec"));
        // Below that floor the cap changes nothing that was promised, and the class that runs stays.
        let exec = Floors { workdir_exec: true, ..floors(None, None, None) };
        let capped = class_in_force(&exec, &mut backing(Class::Sealed)).unwrap();
        assert_eq!((capped.class, capped.achieved), (Class::Scoped, Class::Advisory));
    }

    #[test]
    fn a_library_that_cannot_be_had_is_no_reason_for_a_weaker_class() {
        let gone = |missing| {
            move |class| match class == missing {
                true => Err(Diagnostic::new(codes::E_PLG_001, "no library")),
                false => backing(Class::Sealed)(class),
            }
        };
        let refused = class_in_force(&floors(None, None, None), &mut gone(Class::Scoped)).unwrap_err();
        assert_eq!(refused.code(), codes::E_PLG_001);
        let without = class_in_force(&floors(None, None, None), &mut gone(Class::Sealed)).unwrap();
        assert_eq!((without.class, without.host), (Class::Scoped, Some(Class::Scoped)));
    }

    #[test]
    fn what_was_seen_while_the_enclosure_was_made_is_not_tried_again() {
        for (seen, host) in [(true, Class::Sealed), (false, Class::Scoped)] {
            let mut asked = |class| {
                assert_eq!(class, Class::Scoped);
                Ok(Report { backs_sealed: Some(seen), ..Report::default() })
            };
            let in_force = class_in_force(&floors(None, None, None), &mut asked).unwrap();
            assert_eq!((in_force.class, in_force.host, in_force.unmet), (Class::Scoped, Some(host), None));
        }
    }

    #[test]
    fn what_a_session_needs_of_the_host_is_refused_with_step_and_remedy() {
        let short = Short {
            blocker: "x".into(),
            step: "bringing lo up".into(),
            errno: libc::EPERM,
            cause: "Because.".into(),
            remedy: "do it".into(),
        };
        let mut in_force = class_in_force(&floors(None, None, None), &mut backing(Class::Sealed)).unwrap();
        assert!(check_namespaces(&in_force).is_ok() && check_cgroup(&in_force).is_ok());
        in_force.report = Some(Report { namespaces: Some(short.clone()), scope: Some(short), ..Report::default() });
        let (namespaces, scope) = (check_namespaces(&in_force).unwrap_err(), check_cgroup(&in_force).unwrap_err());
        assert_eq!((namespaces.code(), scope.code()), (codes::E_CAP_005, codes::E_RUN_012));
        assert!(namespaces.message().contains("bringing lo up failed with EPERM (Operation not permitted). Because."));
        assert_eq!((namespaces.hint_text(), scope.hint_text()), (Some("do it"), Some("do it")));
    }

    #[test]
    fn a_weak_class_warns_and_root_once_more() {
        let codes = |class, root| warnings_as(class, root).iter().map(Diagnostic::code).collect::<Vec<_>>();
        assert_eq!(codes(Class::Scoped, true), []);
        assert_eq!(codes(Class::Advisory, false), []);
        assert_eq!(codes(Class::Advisory, true), [codes::W_SEC_035]);
        assert_eq!(codes(Class::Unconfined, true), [codes::W_SEC_034, codes::W_SEC_035]);
    }
}
