//! Why a class cannot be had, by the step that failed, and the one thing to do about it.

use std::fs;

use mur_plugin_api::Shortfall;

use crate::step::StepError;

/// The step of an attempt that could not be made at all.
pub(super) const PROBE_ITSELF: &str = "starting the probe";

/// What stands in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// AppArmor grants user namespaces to profiled programs only, and `mur` has none.
    AppArmorProfileMissing,
    /// A user namespace may not be made.
    NamespaceCreationDenied,
    /// Its id maps may not be written.
    IdMapDenied,
    /// Nothing may be mounted in it.
    MountDenied,
    /// Its root may not be changed.
    PivotRootDenied,
    /// The kernel does not have it, or has no more of it.
    KernelUnsupported,
    /// No usable Landlock.
    LandlockUnavailable,
    /// A later step of the session's namespaces.
    NetworkNamespaceUnavailable,
    /// The probe could not run.
    ProbeUnavailable,
}

impl Blocker {
    /// What stands in the way of a session's namespaces.
    pub fn of_namespaces(error: &StepError) -> Self {
        let denied = matches!(error.errno(), libc::EPERM | libc::EACCES);
        let unprofiled = denied && userns_grant() == "withheld";
        let begins = |name: &str| error.step.starts_with(name);
        match error.errno() {
            _ if begins("starting the creator") => Self::ProbeUnavailable,
            // It lets a program without a profile make the namespace, and gives it no right in it.
            _ if unprofiled => Self::AppArmorProfileMissing,
            _ if begins("unshare(") && is_absent(error) => Self::KernelUnsupported,
            _ if begins("unshare(CLONE_NEWUSER") => Self::NamespaceCreationDenied,
            _ if begins("writing uid_map") => Self::IdMapDenied,
            _ => Self::NetworkNamespaceUnavailable,
        }
    }

    /// What stands in the way of a composed root.
    pub fn of_root(error: &StepError) -> Self {
        let begins = |names: &[&str]| names.iter().any(|name| error.step.starts_with(name));
        if begins(&[PROBE_ITSELF]) {
            Self::ProbeUnavailable
        } else if begins(&["unshare("]) && is_absent(error) {
            Self::KernelUnsupported
        } else if begins(&["joining"]) {
            Self::NetworkNamespaceUnavailable
        } else if begins(&["creating the old root", "pivot_root", "detaching"]) {
            Self::PivotRootDenied
        } else {
            Self::MountDenied
        }
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AppArmorProfileMissing => "app_armor_profile_missing",
            Self::NamespaceCreationDenied => "namespace_creation_denied",
            Self::IdMapDenied => "id_map_denied",
            Self::MountDenied => "mount_denied",
            Self::PivotRootDenied => "pivot_root_denied",
            Self::KernelUnsupported => "kernel_unsupported",
            Self::LandlockUnavailable => "landlock_unavailable",
            Self::NetworkNamespaceUnavailable => "network_namespace_unavailable",
            Self::ProbeUnavailable => "probe_unavailable",
        }
    }

    fn cause(self) -> &'static str {
        match self {
            Self::AppArmorProfileMissing => {
                "AppArmor lets only profiled programs use user namespaces, and mur runs without a profile."
            }
            Self::NamespaceCreationDenied => {
                "This host does not let mur make a user namespace, as in a container without the right to."
            }
            Self::IdMapDenied => "This host lets mur make a user namespace but not write its id maps.",
            Self::MountDenied => "This host lets mur make a namespace but mount nothing in it.",
            Self::PivotRootDenied => "This host lets mur mount a root but not enter it.",
            Self::KernelUnsupported => "This kernel has no user namespace to give.",
            Self::LandlockUnavailable => "This kernel has no usable Landlock.",
            Self::NetworkNamespaceUnavailable => "A network and process namespace for the session cannot be made.",
            Self::ProbeUnavailable => "This host could not be tried.",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::AppArmorProfileMissing => {
                "install and load the profile mur-sealed (apparmor_parser -r /etc/apparmor.d/mur-sealed); as a last \
                 resort: sysctl kernel.apparmor_restrict_unprivileged_userns=0"
            }
            Self::NamespaceCreationDenied => {
                "start the container with --cap-add SYS_ADMIN and without a system call filter, or run mur outside of it"
            }
            Self::IdMapDenied => "raise user.max_user_namespaces, or relax the security module that refuses the maps",
            Self::MountDenied => {
                "reload the AppArmor profile mur-sealed, or start the container with --cap-add SYS_ADMIN"
            }
            Self::PivotRootDenied => {
                "reload the AppArmor profile mur-sealed, or let the container's system call filter pass pivot_root"
            }
            Self::KernelUnsupported => "raise user.max_user_namespaces, or use a kernel with CONFIG_USER_NS",
            Self::LandlockUnavailable => {
                "use a kernel of 5.13 or later that has Landlock among its security modules (lsm=landlock,...)"
            }
            Self::NetworkNamespaceUnavailable => {
                "run mur on the host itself, or start its container with --cap-add SYS_ADMIN --cap-add NET_ADMIN"
            }
            Self::ProbeUnavailable => "relieve the limit on processes or memory that mur runs under, and try again",
        }
    }

    /// The account of it.
    pub fn shortfall(self, error: &StepError) -> Shortfall {
        let this = if error.step.starts_with(PROBE_ITSELF) { Self::ProbeUnavailable } else { self };
        Shortfall {
            blocker: this.as_str().into(),
            step: error.step.as_str().into(),
            errno: error.errno(),
            cause: this.cause().into(),
            remedy: match limit_of(&error.step).filter(|_| this == Self::KernelUnsupported) {
                Some(limit) => format!("raise user.{limit}, or use a kernel with CONFIG_USER_NS").into(),
                None => this.remedy().into(),
            },
        }
    }
}

/// Whether the kernel does not have a namespace to give, rather than refuse it to this process.
fn is_absent(error: &StepError) -> bool {
    matches!(error.errno(), libc::ENOSPC | libc::EINVAL | libc::ENOSYS | libc::EUSERS)
}

/// The switch that allows no namespace of a kind that a step makes.
fn limit_of(step: &str) -> Option<&'static str> {
    const LIMITS: [(&str, &str); 5] = [
        ("CLONE_NEWUSER", "max_user_namespaces"),
        ("CLONE_NEWNET", "max_net_namespaces"),
        ("CLONE_NEWNS", "max_mnt_namespaces"),
        ("CLONE_NEWIPC", "max_ipc_namespaces"),
        ("CLONE_NEWPID", "max_pid_namespaces"),
    ];
    let made = LIMITS.into_iter().filter(|(kind, _)| step.contains(kind)).map(|(_, limit)| limit);
    made.into_iter().find(|limit| word(&format!("/proc/sys/user/{limit}")).as_deref() == Some("0"))
}

/// How this host grants user namespaces to `mur`: `apparmor_absent`, `restriction_disabled_host_wide`,
/// `profile_confining` or `withheld`. It chooses words only.
pub fn userns_grant() -> &'static str {
    if !is_on("/sys/module/apparmor/parameters/enabled") {
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

fn is_on(path: &str) -> bool {
    word(path).is_some_and(|text| matches!(text.as_str(), "Y" | "1"))
}

/// A kernel file's word, without its ends.
fn word(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_matches(['\0', '\n', ' ']).to_owned())
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn the_step_and_its_error_decide_the_blocker() {
        let namespaces = |step: &str, errno| Blocker::of_namespaces(&StepError::new(step, errno)).as_str();
        let made = "unshare(CLONE_NEWUSER | CLONE_NEWNET)";
        assert_eq!(namespaces(made, Errno::ENOSPC), "kernel_unsupported");
        assert_eq!(namespaces("bringing lo up", Errno::EPERM), "network_namespace_unavailable");
        assert_eq!(namespaces("starting the creator of the namespaces", Errno::EAGAIN), "probe_unavailable");
        let denied =
            if userns_grant() == "withheld" { "app_armor_profile_missing" } else { "namespace_creation_denied" };
        assert_eq!(namespaces(made, Errno::EPERM), denied);
        let root = |step: &str| Blocker::of_root(&StepError::new(step, Errno::EPERM)).as_str();
        assert_eq!(root("mounting /proc"), "mount_denied");
        assert_eq!(root("pivot_root(2)"), "pivot_root_denied");
        assert_eq!(root("joining the session's namespaces"), "network_namespace_unavailable");
        let shortfall = Blocker::MountDenied.shortfall(&StepError::new(PROBE_ITSELF, Errno::EAGAIN));
        assert_eq!(shortfall.blocker.as_str(), "probe_unavailable");
    }
}
