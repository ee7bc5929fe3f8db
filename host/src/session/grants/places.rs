//! The part of the effective grants that says how the session's folders are held from its commands: read from what the
//! class installs, so that neither can say what the other does not do.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Facts;
use crate::containment::{Class, InForce};
use crate::paths::{MurmurHome, resolve_through_existing};

/// Stands for the session's id, which is not known beforehand.
const SESSION: &str = "<session-id>";

/// From this version on Landlock holds `truncate`.
const HOLDS_TRUNCATE: i64 = 3;

/// How `/tmp` and `TMPDIR` of a command are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// `/tmp` is the session's own folder, by a root that is composed anyway.
    ComposedRoot,
    /// By a mount of the command's own.
    MountNamespace,
    /// `/tmp` is the host's, or denied; `TMPDIR` names the session's folder itself. In words, why.
    Not(&'static str),
}

impl Mapping {
    /// Of a session under the class in force.
    pub fn of(in_force: &InForce, work_root: &Path) -> Self {
        let report = in_force.report.as_ref();
        match in_force.class {
            Class::Unconfined => Self::Not("nothing is mounted under class 'unconfined'"),
            Class::Sealed => Self::ComposedRoot,
            Class::Scoped | Class::Advisory if work_root == Path::new("/tmp") => {
                Self::Not("the work folder is /tmp itself")
            }
            Class::Scoped | Class::Advisory if report.is_some_and(|report| report.maps_tmp == Some(true)) => {
                Self::MountNamespace
            }
            Class::Scoped => Self::Not("no mount namespace is made under class 'scoped', and /tmp is not granted"),
            Class::Advisory => Self::Not("no mount namespace is made under class 'advisory', and /tmp is the host's"),
        }
    }

    /// Whether a command finds the session's folder at `/tmp`.
    pub fn is_mapped(self) -> bool {
        !matches!(self, Self::Not(_))
    }
}

/// Runtime directory, records directory and folder for temporary files of a session to come.
pub fn folders(home: &MurmurHome, work_root: &Path) -> [PathBuf; 3] {
    let records = home.records_group(work_root).join(SESSION);
    let tmp = records.join("tmp");
    [home.sessions().join(SESSION).join("runtime"), records, tmp]
}

/// `io_max`, `filesystem_boundary` and the three folders.
pub(super) fn places(facts: &Facts<'_>) -> Value {
    let in_force = facts.in_force;
    let [runtime, records, tmp] = folders(facts.home, facts.work_root);
    let restriction = match in_force.class {
        Class::Sealed => "absent",
        Class::Scoped => "enforced",
        Class::Advisory | Class::Unconfined => "advisory",
    };
    let held = |path: &Path, kept: &Path| folder(in_force, path, lies_in(kept, facts.work_root));
    json!({
        "io_max": io_max(facts),
        "filesystem_boundary": { "restriction": restriction, "not_protected": not_protected(facts) },
        "runtime_dir": held(&runtime, &facts.home.sessions()),
        "records_dir": held(&records, &facts.home.records()),
        "temp_dir": temp_dir(&tmp, Mapping::of(in_force, facts.work_root)),
    })
}

fn io_max(facts: &Facts<'_>) -> Value {
    let resources = &facts.capsule.capabilities.resources;
    let mut shown = json!({
        "declared_bytes_per_sec": resources.cgroup_io_bytes_per_sec,
        "status": facts.io.status,
    });
    if let Some(reason) = &facts.io.reason {
        shown["reason"] = json!(reason);
    }
    shown
}

fn lies_in(dir: &Path, work_root: &Path) -> bool {
    resolve_through_existing(dir).starts_with(work_root)
}

fn folder(in_force: &InForce, path: &Path, in_work_folder: bool) -> Value {
    let abi = in_force.report.as_ref().and_then(|report| report.landlock_abi).unwrap_or_default();
    let (by, why) = match in_force.class {
        _ if in_work_folder => (None, Some("it lies inside the work folder, which commands can change")),
        Class::Sealed => (Some("mountns+landlock"), None),
        Class::Scoped if abi < HOLDS_TRUNCATE => (None, Some("this kernel's Landlock does not hold truncation")),
        Class::Scoped => (Some("landlock"), None),
        Class::Advisory | Class::Unconfined => (None, Some("no kernel mechanism holds files under this class")),
    };
    json!({
        "path": path.to_string_lossy(),
        "read_only_to_commands": by.is_some(),
        "enforced_by": by,
        "not_protected_because": why,
    })
}

fn temp_dir(path: &Path, mapping: Mapping) -> Value {
    let (by, why) = match mapping {
        Mapping::ComposedRoot => (Some("composed-root"), None),
        Mapping::MountNamespace => (Some("mount-namespace"), None),
        Mapping::Not(why) => (None, Some(why)),
    };
    let tmpdir = if mapping.is_mapped() { Path::new("/tmp") } else { path };
    json!({
        "path": path.to_string_lossy(),
        "tmpdir": tmpdir.to_string_lossy(),
        "tmp_mapped": mapping.is_mapped(),
        "mapped_by": by,
        "not_mapped_because": why,
    })
}

/// What the class does not hold from commands and workers, one sentence each.
fn not_protected(facts: &Facts<'_>) -> Vec<String> {
    let in_force = facts.in_force;
    let mut statements = Vec::new();
    let mut say = |statement: &str| statements.push(statement.to_owned());
    match in_force.class {
        Class::Sealed => {}
        Class::Scoped => {
            say("names, sizes and modes of files outside the grants can be seen, though the files cannot be opened");
            let abi = in_force.report.as_ref().and_then(|report| report.landlock_abi).unwrap_or_default();
            if abi < HOLDS_TRUNCATE {
                say("files can be truncated wherever you may: this kernel's Landlock does not hold truncation");
            }
            if facts.capsule.capabilities.filesystem.workdir_exec {
                say("programs the capsule wrote into its work folder can be executed");
            }
        }
        Class::Advisory => {
            say("files: commands, and code that leaves its WebAssembly sandbox, open whatever you can open");
            say("programs: capabilities.shell.allow is decided by mur alone, and what runs may execute anything");
        }
        Class::Unconfined => {
            say("files: commands, and code that leaves its WebAssembly sandbox, open whatever you can open");
            say("programs: capabilities.shell.allow is decided by mur alone, and what runs may execute anything");
            say("network: capabilities.network.allow holds components only, commands reach whatever you can reach");
            say("processes and resources: what a command leaves running or uses up is not bounded");
        }
    }
    for (dir, name) in [(facts.home.sessions(), "runtime"), (facts.home.records(), "records")] {
        if lies_in(&dir, facts.work_root) {
            say(&format!("the {name} directory lies inside the work folder, so that commands can change it"));
        }
    }
    statements
}
