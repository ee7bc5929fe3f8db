//! Debian packages: what the build and the suites need of the system, installed where that is possible.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::process::Command;

use crate::{Outcome, sh};

/// Programs that the suites run, and the packages that bring them.
const OF_THE_SUITES: &[(&str, &str)] = &[
    ("bwrap", "bubblewrap"),
    ("curl", "curl"),
    ("git", "git"),
    ("mount", "mount"),
    ("perl", "perl"),
    ("python3", "python3"),
    ("unshare", "util-linux"),
];

/// Whether packages can be installed: Debian's tool is there, and this is root.
pub fn can_install() -> bool {
    sh::which("apt-get").is_some() && sh::text_of(Command::new("id").arg("-u")).as_deref() == Some("0")
}

/// Installs packages, saying which.
pub fn install(packages: &[&str]) -> Outcome {
    sh::say(&format!("installing {} with apt-get", packages.join(", ")));
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        apt
    };
    // An outdated list is the usual reason for a failure; a fresh one costs seconds.
    let _ = sh::run(apt().args(["update", "-q"]));
    sh::run(apt().args(["install", "-y", "-q", "--no-install-recommends"]).args(packages))
}

/// Sees to it that every program the suites run is there.
pub fn of_the_suites() -> Outcome {
    let missing: Vec<&str> =
        OF_THE_SUITES.iter().filter(|(program, _)| sh::which(program).is_none()).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if can_install() {
        return install(&missing);
    }
    Err(format!("the suites need more programs: apt-get install {}   (Debian and Ubuntu, as root)", missing.join(" ")))
}
