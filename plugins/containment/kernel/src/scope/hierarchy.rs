//! Where this process stands in each cgroup hierarchy, and where a controller is kept.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::step::StepError;

/// Which interface a directory speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy of its own for each controller.
    One,
    /// The unified tree.
    Two,
}

/// What the v2 tree is asked to pass on to the session's directory.
const PASSED_ON: [&str; 3] = ["memory", "pids", "cpu"];

/// Where processes of the maker's go when the kernel wants a directory with controllers to hold none.
const SUPERVISOR: &str = "murmur-supervisor";

/// How long the move is tried.
const MOVING: Duration = Duration::from_secs(2);

/// This process's own directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies {
    two: Option<PathBuf>,
    one: Vec<(Vec<String>, PathBuf)>,
}

impl Hierarchies {
    /// Reads what the kernel says of the calling process.
    pub fn of_this_process() -> Result<Self, StepError> {
        let read =
            |path: &str| fs::read_to_string(path).map_err(|error| StepError::new(format!("reading {path}"), error));
        let found = Self::parse(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        if found == Self::default() {
            return Err(StepError::new("finding a cgroup hierarchy", Errno::ENOENT));
        }
        Ok(found)
    }

    fn parse(mounts: &str, cgroups: &str) -> Self {
        let mut found = Self::default();
        let lines = cgroups.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?, parts.next()?))
        });
        let own: Vec<(&str, &str)> = lines.collect();
        for line in mounts.lines() {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let mut before = before.split(' ').skip(3);
            let (Some(root), Some(point)) = (before.next(), before.next()) else { continue };
            let mut after = after.split(' ');
            let (kind, options) = (after.next().unwrap_or_default(), after.nth(1).unwrap_or_default());
            let place = |path: &str| {
                let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
                PathBuf::from(point).join(below.trim_start_matches('/'))
            };
            match kind {
                "cgroup2" => {
                    let path = own.iter().find(|(controllers, _)| controllers.is_empty());
                    if let (None, Some((_, path))) = (&found.two, path) {
                        found.two = Some(place(path));
                    }
                }
                "cgroup" => {
                    let mounted: Vec<&str> = options.split(',').collect();
                    let same = |names: &str| !names.is_empty() && names.split(',').all(|name| mounted.contains(&name));
                    if let Some((names, path)) = own.iter().find(|(names, _)| same(names)) {
                        let names = names.split(',').map(str::to_owned).collect();
                        if !found.one.iter().any(|(known, _)| *known == names) {
                            found.one.push((names, place(path)));
                        }
                    }
                }
                _ => {}
            }
        }
        // A process that was moved aside stands where its base is.
        if let Some(two) = &found.two
            && two.file_name().is_some_and(|name| name == SUPERVISOR)
        {
            found.two = two.parent().map(Path::to_owned);
        }
        found
    }

    /// This process's directory of the v2 tree, made to pass on what controllers it has.
    pub fn unified(&self) -> Result<Option<PathBuf>, StepError> {
        let Some(base) = &self.two else { return Ok(None) };
        let wanted: String = PASSED_ON
            .iter()
            .filter(|name| self.legacy(name).is_none() && lists(base, "cgroup.controllers", name))
            .filter(|name| !lists(base, "cgroup.subtree_control", name))
            .map(|name| format!("+{name} "))
            .collect();
        if !wanted.is_empty() {
            pass_on(base, wanted.trim_end())?;
        }
        Ok(Some(base.clone()))
    }

    /// The directory in whose children a controller's limits can be set.
    pub fn place_of(&self, controller: &str) -> Option<(PathBuf, Version)> {
        if let Some(base) = self.legacy(controller) {
            return Some((base.to_owned(), Version::One));
        }
        let base = self.two.as_ref()?;
        lists(base, "cgroup.subtree_control", controller).then(|| (base.clone(), Version::Two))
    }

    /// The same for reading and writing, which may be missing: the v2 tree is asked to pass it on, and may refuse.
    pub fn place_of_io(&self) -> Option<(PathBuf, Version)> {
        if let Some(base) = self.legacy("blkio") {
            return Some((base.to_owned(), Version::One));
        }
        let base = self.two.as_ref()?;
        if !lists(base, "cgroup.subtree_control", "io") {
            fs::write(base.join("cgroup.subtree_control"), "+io").ok()?;
        }
        Some((base.clone(), Version::Two))
    }

    /// This process's directory of a v1 hierarchy.
    pub fn legacy(&self, controller: &str) -> Option<&Path> {
        let found = self.one.iter().find(|(names, _)| names.iter().any(|name| name == controller));
        found.map(|(_, base)| base.as_path())
    }
}

fn lists(base: &Path, file: &str, name: &str) -> bool {
    fs::read_to_string(base.join(file)).is_ok_and(|text| text.split_whitespace().any(|word| word == name))
}

/// Passes controllers on to children. The kernel refuses where the directory holds processes: then this process and the
/// session's, its parent, move aside.
fn pass_on(base: &Path, wanted: &str) -> Result<(), StepError> {
    let control = base.join("cgroup.subtree_control");
    let failed = |error| StepError::new(format!("passing controllers on: {}", control.display()), error);
    let Err(first) = fs::write(&control, wanted) else { return Ok(()) };
    if first.raw_os_error() != Some(libc::EBUSY) {
        return Err(failed(first));
    }
    let aside = base.join(SUPERVISOR);
    match fs::create_dir(&aside) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    // SAFETY: no arguments.
    let (own, session) = unsafe { (libc::getpid(), libc::getppid()) };
    for pid in [session, own] {
        fs::write(aside.join("cgroup.procs"), pid.to_string()).map_err(failed)?;
    }
    let until = Instant::now() + MOVING;
    loop {
        match fs::write(&control, wanted) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() >= until => return Err(failed(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        33 30 0:29 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n\
        34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,name=systemd\n";

    #[test]
    fn every_hierarchy_has_a_path_of_its_own() {
        let own = "4:memory:/a/b\n3:cpu,cpuacct:/\n1:name=systemd:/\n0::/c\n";
        let found = Hierarchies::parse(HYBRID, own);
        assert_eq!(found.two.as_deref(), Some(Path::new("/sys/fs/cgroup/unified/c")));
        assert_eq!(found.legacy("memory"), Some(Path::new("/sys/fs/cgroup/memory/a/b")));
        assert_eq!(found.legacy("cpu"), found.legacy("cpuacct"));
        assert_eq!(found.legacy("pids"), None);
    }

    #[test]
    fn a_mount_of_a_part_of_the_tree_is_taken_off_the_path() {
        let mounts = "40 30 0:29 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        let found = Hierarchies::parse(mounts, "0::/docker/x/y\n");
        assert_eq!(found.two.as_deref(), Some(Path::new("/sys/fs/cgroup/y")));
        // Moved aside by an earlier session of the same base.
        let found = Hierarchies::parse(mounts, "0::/docker/x/y/murmur-supervisor\n");
        assert_eq!(found.two.as_deref(), Some(Path::new("/sys/fs/cgroup/y")));
    }

    #[test]
    fn what_is_no_hierarchy_is_none() {
        assert_eq!(Hierarchies::parse("1 2 0:1 / /proc rw - proc proc rw\nx\n", "junk\n"), Hierarchies::default());
    }
}
