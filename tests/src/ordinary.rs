//! A user who is not root: the owner of a world, and of a place in the cgroup tree where one is given.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::{Invocation, World, wait_until};

/// `nobody`, on every Linux.
pub const NOBODY: u32 = 65534;

/// Makes a folder and what is below it the user's.
///
/// # Panics
/// When it cannot be given.
pub fn hand_over(path: &Path) {
    chown(path, Some(NOBODY), Some(NOBODY)).expect("root gives what is its own");
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        hand_over(&entry.path());
    }
}

/// Makes a world the user's.
///
/// # Panics
/// When this does not run as root, which alone can act for another.
pub fn own(world: &World) {
    assert!(geteuid().is_root(), "this suite acts for another user, so it must start as root");
    hand_over(world.home());
    hand_over(world.project());
    let folder = world.home().parent().expect("a home lies in a folder");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// Every hierarchy of this host that a scope takes part in: its root.
///
/// # Panics
/// Without `/proc`.
pub fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc");
    let wanted = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let options = after.split(' ').nth(2)?;
        let controllers = ["memory", "pids", "cpu", "freezer", "cpuacct"];
        let mine = after.starts_with("cgroup2 ")
            || (after.starts_with("cgroup ") && options.split(',').any(|option| controllers.contains(&option)));
        mine.then(|| before.split(' ').nth(4).map(PathBuf::from)).flatten()
    };
    let mut found: Vec<PathBuf> = mounts.lines().filter_map(wanted).collect();
    found.dedup();
    found
}

/// Does what starting a delegated scope means: a directory that is the user's, in every hierarchy, with the processes in it.
///
/// # Errors
/// In words, when one cannot be made or joined.
pub fn delegate(unit: &str, pids: &[u32]) -> Result<(), String> {
    for root in hierarchies() {
        let _ = fs::write(root.join("cgroup.subtree_control"), "+memory +pids +cpu");
        let scope = root.join(unit);
        fs::create_dir(&scope).map_err(|error| error.to_string())?;
        for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks"] {
            let _ = chown(scope.join(name), Some(NOBODY), Some(NOBODY));
        }
        for pid in pids {
            fs::write(scope.join("cgroup.procs"), pid.to_string()).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Takes down what [`delegate`] made, as systemd does when nobody is left in it.
pub fn collect(unit: &str) {
    for root in hierarchies() {
        let scope = root.join(unit);
        wait_until("the scope is empty and gone", || {
            for entry in fs::read_dir(&scope).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(entry.path());
            }
            fs::remove_dir(&scope).is_ok() || !scope.exists()
        });
    }
}

/// A place in the cgroup tree that is the user's; gone when the test ends.
pub struct Place(String);

impl Place {
    /// Makes it under a name of its own.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(name: &str) -> Self {
        let name = format!("mur-test-{name}-{}.scope", std::process::id());
        delegate(&name, &[]).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        Self(name)
    }

    /// The same command line, run by the user from within the place.
    pub fn run(&self, invocation: Invocation) -> Invocation {
        let join: Vec<String> = hierarchies()
            .iter()
            .map(|root| format!("echo $$ > '{}' &&", root.join(&self.0).join("cgroup.procs").display()))
            .collect();
        let script = format!(
            "{} exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --inh-caps=-all -- \"$@\"",
            join.join(" ")
        );
        invocation.through(&["sh", "-c", &script, "sh"])
    }

    /// Processes anywhere below it.
    pub fn processes(&self) -> Vec<i32> {
        let mut found = Vec::new();
        let mut folders: Vec<PathBuf> = hierarchies().iter().map(|root| root.join(&self.0)).collect();
        while let Some(folder) = folders.pop() {
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            folders.extend(below(&folder));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Cgroups that somebody made in it, in any hierarchy.
    pub fn groups(&self) -> Vec<PathBuf> {
        hierarchies().iter().flat_map(|root| below(&root.join(&self.0))).collect()
    }
}

fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

impl Drop for Place {
    fn drop(&mut self) {
        for pid in self.processes() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        // A test that fails already says why; a second panic would end the whole suite.
        if !std::thread::panicking() {
            collect(&self.0);
        }
    }
}
