//! What this host offers, as it reports it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::Report;
use crate::containment::host::{userns_grant, warning, word};
use crate::containment::{Class, Prober};
use crate::diagnostics::{Diagnostic, codes};
use crate::paths::MurmurHome;

/// The host blocks of a full check.
pub(super) fn blocks(prober: &mut Prober<'_>, report: &mut Report) {
    app_armor(report);
    landlock(report);
    classes(prober, report);
}

/// Which classes this host backs, and the one thing to do about what it does not.
fn classes(prober: &mut Prober<'_>, report: &mut Report) {
    let mut lines = Vec::new();
    let mut shared = None;
    for class in [Class::Sealed, Class::Scoped, Class::Advisory] {
        match prober.report(class) {
            Err(fault) => lines.push(format!("  {class}: cannot be asked — {}", fault.message())),
            Ok(found) => {
                match &found.class {
                    None => lines.push(format!("  {class}: yes ({})", found.mechanism)),
                    Some(short) => lines.extend([
                        format!("  {class}: no — {} ({})", short.failure(), short.cause),
                        format!("    do: {}", short.remedy),
                    ]),
                }
                shared = Some(found);
            }
        }
    }
    lines.push("  unconfined: yes (nothing is held)".to_owned());
    let shared = shared
        .iter()
        .flat_map(|found| [("session namespaces", &found.namespaces), ("session cgroup scope", &found.scope)]);
    for (what, short) in shared {
        match short {
            None => lines.push(format!("  {what}: yes")),
            Some(short) => lines.extend([
                format!("  {what}: no — {} ({})", short.failure(), short.cause),
                format!("    do: {}", short.remedy),
                "    every class but unconfined needs it".to_owned(),
            ]),
        }
    }
    report.block("Containment classes", lines);
}

fn app_armor(report: &mut Report) {
    let profile = word("/proc/self/attr/current").map(|text| text.split(" (").next().unwrap_or_default().to_owned());
    let grant = userns_grant();
    let binary = fs::read_link("/proc/self/exe").map_or("unknown".to_owned(), |path| path.display().to_string());
    let namespaces = word("/proc/sys/user/max_user_namespaces").unwrap_or_else(|| "not reported".to_owned());
    report.block(
        "AppArmor / user namespaces",
        [
            format!("  this binary:       {binary}"),
            format!(
                "  profile attached:  {}",
                profile.filter(|name| !name.is_empty()).unwrap_or_else(|| "not reported".into())
            ),
            format!("  userns grant:      {grant}"),
            format!("  namespaces a user: {namespaces}"),
        ],
    );
    if let Some(warning) = warning() {
        report.warning(&warning);
    }
}

fn landlock(report: &mut Report) {
    let lines = match mur_containment_kernel::landlock::kernel_abi() {
        Some(abi) => {
            let mut lines = vec![format!("  kernel ABI: {abi}")];
            if abi < 2 {
                lines.push("  below ABI 2: moving a file between two granted folders is refused".to_owned());
            }
            if abi < 3 {
                lines.push("  below ABI 3: truncating a file is not held".to_owned());
            }
            lines
        }
        None => vec!["  kernel ABI: none (no Landlock in this kernel, or not enabled at boot)".to_owned()],
    };
    report.block("Landlock", lines);
}

/// What lies in `~/.murmur`: name, what it holds, whether it may go, whether it is the owner's alone.
const ENTRIES: [(&str, &str, bool, bool); 10] = [
    ("config.yaml", "configuration and credentials", false, true),
    ("plugins.lock", "which plugins are trusted", false, false),
    ("artifacts", "the global artifact store", false, false),
    ("compiled", "compiled forms of components", true, true),
    ("conversations", "conversation records", false, true),
    ("formations", "directories of formation members", false, true),
    ("records", "traces and results of sessions", false, true),
    ("running", "what runs, and its tokens", false, true),
    ("sessions", "folders of running sessions", false, true),
    ("state", "state stores of artifacts", false, true),
];

/// The `Murmur home` block.
pub(super) fn murmur_home(home: &MurmurHome, report: &mut Report) {
    let root = home.root();
    let mut lines = Vec::new();
    let mut wide = Vec::new();
    if let Some(mode) = mode(root).filter(|mode| mode & 0o077 != 0) {
        wide.push((root.to_owned(), mode));
    }
    for (name, holds, safe, private) in ENTRIES {
        let path = root.join(name);
        let state = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "absent".to_owned(),
            Err(error) => format!("unreadable ({error})"),
            Ok(meta) => {
                let mode = meta.permissions().mode() & 0o7777;
                if private && mode & 0o077 != 0 && !meta.file_type().is_symlink() {
                    wide.push((path.clone(), mode));
                }
                format!("{mode:04o}")
            }
        };
        let safe = if safe { ", safe to delete" } else { "" };
        let private = if private { ", expected owner-only" } else { "" };
        lines.push(format!("  {name}: {state} — {holds}{safe}{private}"));
    }
    report.block(&format!("Murmur home ({})", root.display()), lines);
    // Below an owner-only directory nobody reaches what is wider.
    let shielded = mode(root).is_some_and(|mode| mode & 0o077 == 0);
    for (path, mode) in wide.into_iter().filter(|(path, _)| !shielded || path == root || is_config(path)) {
        let shown = path.display();
        let right = if path.is_dir() { "700" } else { "600" };
        report.warning(
            &Diagnostic::new(
                codes::W_SEC_028,
                format!("{shown} holds secrets and has mode {mode:04o}: chmod {right} {shown}"),
            )
            .hint(format!("chmod {right} {shown}")),
        );
    }
}

fn is_config(path: &Path) -> bool {
    path.ends_with("config.yaml")
}

fn mode(path: &Path) -> Option<u32> {
    fs::metadata(path).ok().map(|meta| meta.mode() & 0o7777)
}
