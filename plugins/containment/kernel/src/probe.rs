//! What this host can back, found by trying: each attempt runs in a process of its own, so that the one that asks enters
//! no domain and no namespace. No version is read, nothing is remembered.

mod blocker;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

use mur_plugin_api::{HostReport, ScopeLimits, Shortfall};

use crate::entry::{Entering, Entry};
use crate::namespaces::{self, Namespaces, Wanted};
use crate::root::{COMPOSE, COVER, RootPlan, TmpPlan};
use crate::scope::Scope;
use crate::step::{StepError, run};
use crate::{Tier, landlock, process};
pub use blocker::{Blocker, userns_grant};

/// Bounds of a scope that is made only to see whether one can be.
const TRIAL: ScopeLimits = ScopeLimits { memory: 64 << 20, pids: 16, cpu_percent: 100 };

/// Tries what a class needs, and what every session needs.
pub fn probe(tier: Tier) -> HostReport {
    let landlocked = if tier == Tier::Advisory { Ok(()) } else { try_landlock() };
    let scope = try_scope();
    let made = namespaces::create(&[], None, &Wanted { ports: vec![0], names: true });
    let rehearsed = match (&made, tier) {
        (Ok(namespaces), Tier::Sealed) => rehearse(namespaces),
        _ => Ok(()),
    };
    let class =
        landlocked.map_err(|error| Blocker::LandlockUnavailable.shortfall(&error)).and_then(|()| match (tier, &made) {
            (Tier::Sealed, Err(error)) => Err(Blocker::of_namespaces(error).shortfall(error)),
            _ => rehearsed.map_err(|error| Blocker::of_root(&error).shortfall(&error)),
        });
    let tmp = tier != Tier::Sealed && made.as_ref().is_ok_and(private_tmp);
    let readings = serde_json::json!({
        "maps_tmp": (tier != Tier::Sealed).then_some(tmp),
        "landlock_abi": landlock::kernel_abi(),
        "userns_grant": userns_grant(),
    });
    HostReport {
        class: class.err().into(),
        namespaces: made.err().map(|error| Blocker::of_namespaces(&error).shortfall(&error)).into(),
        scope: scope.err().map(|error| scope_shortfall(&error)).into(),
        readings: readings.to_string().into(),
    }
}

/// Parts of a root without which it would be empty, and composed all the same.
const FURNISHING: [&str; 4] =
    ["opening what the root is made of", "making /dev", "writing /etc", "attaching the folders"];

/// Tries in the namespaces of a session that have just been made what its class needs beside them, and gives the readings.
/// Where a root is not the class's own it is composed empty, for the record, if that is asked for.
pub fn while_opening(tier: Tier, namespaces: &Namespaces, rehearse_root: bool) -> Result<String, StepError> {
    let backs_sealed = match tier {
        Tier::Advisory => None,
        Tier::Scoped => {
            let mut backs = false;
            // One process for both: it leaves for a domain once its own child has tried the root.
            in_a_child_saying(&mut backs, || {
                let backs = rehearse_root && namespaces.join_all().is_ok() && compose(&FURNISHING).is_ok();
                enter_domain().map(|()| backs)
            })?;
            rehearse_root.then_some(backs)
        }
        Tier::Sealed => {
            try_landlock()?;
            rehearse(namespaces)?;
            Some(true)
        }
    };
    Ok(serde_json::json!({
        "landlock_abi": landlock::kernel_abi(),
        "userns_grant": userns_grant(),
        "backs_sealed": backs_sealed,
        "maps_tmp": (tier != Tier::Sealed).then(|| private_tmp(namespaces)),
    })
    .to_string())
}

fn scope_shortfall(error: &StepError) -> Shortfall {
    Shortfall {
        blocker: "cgroup_scope_unavailable".into(),
        step: error.step.as_str().into(),
        errno: error.errno(),
        cause: "No directory below mur's own place in the cgroup tree can be made and limited.".into(),
        remedy:
            "run mur in a delegated scope: systemd-run --user --scope --property=Delegate=yes mur run ..., or as root"
                .into(),
    }
}

fn try_scope() -> Result<(), StepError> {
    // Several may be tried at a time by one process.
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let count = TRIED.fetch_add(1, Ordering::Relaxed);
    let scope = Scope::create(&format!("murmur-probe-{}-{count}", std::process::id()), &TRIAL)?;
    scope.directories().take_down(std::time::Duration::from_secs(2));
    Ok(())
}

/// A process that enters a domain in which nothing may be opened.
fn try_landlock() -> Result<(), StepError> {
    in_a_child(enter_domain)
}

fn enter_domain() -> Result<(), StepError> {
    let ruleset = landlock::ruleset(mur_plugin_api::ProcessKind::Worker, &[])
        .map_err(|ungranted| StepError::new("landlock_create_ruleset", ungranted.error))?;
    process::no_new_privileges().map_err(|error| StepError::new("no_new_privs", error))?;
    landlock::restrict(ruleset.as_fd()).map_err(|error| StepError::new("landlock_restrict_self", error))?;
    // What is denied must be denied, or nothing was enforced.
    match File::open("/") {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(()),
        _ => Err(StepError::new("denying a path", nix::errno::Errno::EOPNOTSUPP)),
    }
}

/// A composed root without grants, as a worker would enter it, but for the steps named.
fn rehearse(namespaces: &Namespaces) -> Result<(), StepError> {
    in_a_child(|| {
        namespaces.join_all().map_err(|error| StepError::new("joining the session's namespaces", error))?;
        compose(&[])
    })
}

/// Composes a root in a child of a process that has joined the namespaces: the process namespace holds for children, and
/// a fresh `/proc` can be mounted from inside only.
fn compose(without: &[&str]) -> Result<(), StepError> {
    in_a_child(|| {
        let mut entry = Entry::of(mur_plugin_api::ProcessLimits {
            open_files: 64,
            file_size: 1 << 20,
            cpu_seconds: None,
            address_space: None,
        });
        entry.root = Some(RootPlan::default());
        let entry: &'static Entry = Box::leak(Box::new(entry));
        let entering = Entering::new(entry, &[]);
        let mut entering = entering.ok_or_else(|| StepError::new("the plan", nix::errno::Errno::EINVAL))?;
        for step in COMPOSE.iter().filter(|step| !without.contains(&step.name)) {
            run(std::slice::from_ref(step), &mut entering)?;
        }
        Ok(())
    })
}

/// Whether a process of the session can be given a `/tmp` of its own: some folder is mounted over it, in a child.
pub(crate) fn private_tmp(namespaces: &Namespaces) -> bool {
    in_a_child(|| {
        namespaces.join_all().map_err(|error| StepError::new("joining the session's namespaces", error))?;
        let mut entry = Entry::of(mur_plugin_api::ProcessLimits {
            open_files: 64,
            file_size: 1 << 20,
            cpu_seconds: None,
            address_space: None,
        });
        entry.tmp = TmpPlan::new(&[], std::path::Path::new("/usr"), None, true)?;
        let entry: &'static Entry = Box::leak(Box::new(entry));
        let entering = Entering::new(entry, &[]);
        let mut entering = entering.ok_or_else(|| StepError::new("the plan", nix::errno::Errno::EINVAL))?;
        run(COVER, &mut entering).map(drop)
    })
    .is_ok()
}

/// Runs an attempt in a forked child and learns how it went.
pub(crate) fn in_a_child(attempt: impl FnOnce() -> Result<(), StepError>) -> Result<(), StepError> {
    in_a_child_saying(&mut false, || attempt().map(|()| false))
}

/// The same, with one word of the child's.
fn in_a_child_saying(said: &mut bool, attempt: impl FnOnce() -> Result<bool, StepError>) -> Result<(), StepError> {
    let unavailable = |error: std::io::Error| StepError::new(blocker::PROBE_ITSELF, error);
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(|error| unavailable(error.into()))?;
    let pid = process::fork().map_err(unavailable)?;
    if pid == 0 {
        drop(read);
        let account = match attempt() {
            Ok(word) => vec![1, u8::from(word)],
            Err(error) => [&[0][..], &error.errno().to_le_bytes(), error.step.as_bytes()].concat(),
        };
        let _ = File::from(write).write_all(&account);
        process::leave(0);
    }
    drop(write);
    let mut account = Vec::new();
    let read = File::from(read).read_to_end(&mut account);
    let _ = process::reap(pid);
    read.map_err(unavailable)?;
    match account.split_first() {
        Some((1, word)) => {
            *said = word == [1];
            Ok(())
        }
        Some((_, rest)) if rest.len() >= 4 => {
            let (number, step) = rest.split_at(4);
            let number = i32::from_le_bytes([number[0], number[1], number[2], number[3]]);
            let step = String::from_utf8_lossy(step).into_owned();
            Err(StepError::new(step, std::io::Error::from_raw_os_error(number)))
        }
        _ => Err(unavailable(std::io::Error::from_raw_os_error(libc::ECHILD))),
    }
}
