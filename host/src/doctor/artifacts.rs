//! The artifact checklist, the WIT level of what is installed, and what an old layout left in the stores.

use std::fs;
use std::path::Path;

use super::Report;
use crate::artifacts::level::{PACKAGES, SERVED};
use crate::artifacts::lock::Lock;
use crate::artifacts::name::{check_part, how_to_get};
use crate::artifacts::store::{Found, Place, Stores, Verified};
use crate::artifacts::{ArtifactName, Platform, Version};
use crate::containment::Class;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::{ArtifactEntry, ArtifactManifest, Capsule, Execution, FILE_NAME};
use crate::paths::MurmurHome;
use crate::session::staging::judge_native;

/// The `WIT level` block: what is served, and how what is installed fits.
pub(super) fn wit_level(stores: &Stores, capsule: &Capsule, report: &mut Report) {
    let width = PACKAGES.iter().map(|(package, _)| package.len()).max().unwrap_or(0);
    let mut lines = vec![format!("  served: {SERVED}"), format!("  {:<width$}  VERSION", "PACKAGE")];
    lines.extend(PACKAGES.iter().map(|(package, version)| format!("  {package:<width$}  {version}")));
    let mut misfits = Vec::new();
    let mut rows = Vec::new();
    for place in [Place::Project, Place::Global] {
        for found in stores.list(&place).unwrap_or_default() {
            row(stores, &found, capsule, &mut rows, &mut misfits);
        }
    }
    if !rows.is_empty() {
        lines.push("  installed:".to_owned());
        lines.extend(rows);
    }
    report.block("WIT level", lines);
    for misfit in misfits {
        report.warning(&misfit);
    }
}

fn row(stores: &Stores, found: &Found, capsule: &Capsule, rows: &mut Vec<String>, misfits: &mut Vec<Diagnostic>) {
    let Some(interfaces) = stores.read(found).ok().and_then(|artifact| artifact.interfaces()) else { return };
    let built = found.metadata().get("built_at_level").and_then(serde_json::Value::as_u64);
    let built = built.map_or("no level recorded".to_owned(), |level| format!("built at {level}"));
    let fits = match interfaces.level() {
        Some(level) => format!("fits level {level}"),
        None => format!("does not fit level {SERVED}"),
    };
    rows.push(format!("    {}   {}   {built}   {fits}", found.reference(), found.place.as_str()));
    let unserved: Vec<String> = interfaces.misfits().into_iter().map(|misfit| misfit.interface).collect();
    rows.extend(unserved.iter().map(|interface| format!("      ⚠  {interface} is not served")));
    // A declared one fails its line of the checklist instead.
    let declared = capsule.artifacts.iter().any(|entry| entry.reference() == found.reference());
    if !unserved.is_empty() && !declared {
        let message = format!("{} names {}, which this mur does not serve", found.reference(), unserved.join(", "));
        misfits.push(Diagnostic::new(codes::W_REG_003, message).hint("rebuild it, or install a version that fits"));
    }
}

/// The `Artifact stores` block: entries of the layout without scopes, which nothing reads.
pub(super) fn old_layout(home: &MurmurHome, project: &Path, report: &mut Report) {
    let mut lines = Vec::new();
    for root in [project.join(".murmur/artifacts"), home.artifacts()] {
        let Ok(entries) = fs::read_dir(&root) else { continue };
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        names.sort();
        lines.extend(
            names.iter().filter(|path| is_old(path)).map(|path| {
                format!("  {}: the layout without scopes, read by nothing, safe to delete", path.display())
            }),
        );
    }
    if !lines.is_empty() {
        report.block("Artifact stores", lines);
    }
}

/// `<root>/<name>/<version>/<file>.mur.zip`, where a scope would hold a name that holds a version.
fn is_old(dir: &Path) -> bool {
    let archives = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_string_lossy().ends_with(".mur.zip"))
    };
    let versions = fs::read_dir(dir).into_iter().flatten().flatten();
    dir.file_name().and_then(|name| name.to_str()).is_some_and(|name| check_part(name).is_ok())
        && versions.into_iter().any(|version| version.path().is_dir() && archives(&version.path()))
}

/// What a line of the checklist says.
enum Verdict {
    Pass(String),
    Warned(String, Diagnostic),
    Fault(String, String),
}

/// The checklist. Returns the driver's manifest when the driver is there.
pub(super) fn checklist(
    capsule: &Capsule,
    class: Class,
    dir: &Path,
    stores: &Stores,
    lock: &Result<Option<Lock>>,
    report: &mut Report,
) -> Option<ArtifactManifest> {
    report.out(format!("Checking {} for {}...", dir.join(FILE_NAME).display(), Platform::host()));
    if let Err(fault) = lock {
        report.error(fault);
    }
    let lock = lock.as_ref().ok().and_then(Option::as_ref);
    let width = capsule.artifacts.iter().map(|entry| entry.reference().chars().count()).max().unwrap_or(0);
    let mut driver = None;
    for entry in &capsule.artifacts {
        let (verdict, found) = judge(entry, class, dir, stores, lock);
        let is_driver = capsule.inference.as_ref().is_some_and(|inference| inference.driver.artifact == entry.name);
        driver = driver.or(found.filter(|_| is_driver));
        let reference = entry.reference();
        match verdict {
            Verdict::Pass(rest) => {
                report.out(format!("  ✓  {reference:<width$}   {rest}"));
                report.pass();
            }
            Verdict::Warned(rest, warning) => {
                report.out(format!("  ⚠  {reference:<width$}   {rest}"));
                report.pass();
                report.count_warning(warning.hint_text().unwrap_or(warning.message()));
            }
            Verdict::Fault(rest, fix) => {
                report.out(format!("  ✗  {reference:<width$}   {rest}"));
                report.count_error(&fix);
            }
        }
    }
    if capsule.artifacts.is_empty() {
        report.out("  no artifacts are declared");
    }
    report.out("");
    driver
}

fn judge(
    entry: &ArtifactEntry,
    class: Class,
    dir: &Path,
    stores: &Stores,
    lock: Option<&Lock>,
) -> (Verdict, Option<ArtifactManifest>) {
    let platform = Platform::host();
    if let Some(source) = &entry.source {
        return (local_source(source, dir), None);
    }
    let install = format!("mur install {}", entry.reference());
    let (Ok(name), Ok(version)) = (ArtifactName::parse(&entry.name), Version::parse(&entry.version)) else {
        let rest = format!("— '{}' is not a version", entry.version);
        return (Verdict::Fault(rest, "name one exact version in murmur.yaml".to_owned()), None);
    };
    if let Some(conflict) = lock.and_then(|lock| version_conflict(lock, &name, &version)) {
        return (Verdict::Fault(conflict, "mur install".to_owned()), None);
    }
    let found = match stores.find(&name, &version) {
        Ok(Some(found)) => found,
        Ok(None) => return (Verdict::Fault(format!("{platform}   — missing"), remedy(stores, &name, &version)), None),
        Err(fault) => return (Verdict::Fault(format!("{platform}   — {}", fault.message()), install), None),
    };
    if found.place != Place::Bundled && lock.is_some_and(|lock| lock.pin(&name).is_none()) {
        let rest = format!("{platform}   — murmur.lock missing artifact entry for '{name}'");
        return (Verdict::Fault(rest, "mur install".to_owned()), None);
    }
    let artifact = match stores.read(&found) {
        Ok(artifact) => artifact,
        Err(fault) => return (Verdict::Fault(format!("— {}", fault.message()), install), None),
    };
    if let Some(Err(conflict)) = lock.map(|lock| lock.agrees(&artifact.bound())) {
        return (Verdict::Fault(format!("— {}", conflict.message()), "mur install".to_owned()), None);
    }
    let verdict = fitting(&artifact, class, &install);
    (verdict, Some(artifact.manifest))
}

/// What to do about an artifact no store has at this version.
fn remedy(stores: &Stores, name: &ArtifactName, version: &Version) -> String {
    let get = how_to_get(name, version);
    match stores.versions(name).last() {
        Some(there) => format!("name a version of {name} that is there, such as {there}, in murmur.yaml, or {get}"),
        None => format!("{name}@{version}: {get}"),
    }
}

fn local_source(source: &str, dir: &Path) -> Verdict {
    let path = dir.join(source);
    let holds_skill = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_string_lossy().eq_ignore_ascii_case("skill.md"))
    };
    if path.is_file() || holds_skill(&path) {
        return Verdict::Pass("local source".to_owned());
    }
    let rest = format!("— no skill.md at {}", path.display());
    Verdict::Fault(rest, format!("put a skill.md at {source}, or correct source in murmur.yaml"))
}

/// A lock that pins another version than the manifest asks for. The pinned one is what would run, so this is said whether
/// or not the other is in a store.
fn version_conflict(lock: &Lock, name: &ArtifactName, version: &Version) -> Option<String> {
    let pinned = &lock.pin(name)?.version;
    (pinned != version).then(|| {
        format!("— murmur.lock version mismatch for '{name}': manifest requested {version}, lock pinned {pinned}")
    })
}

fn fitting(artifact: &Verified, class: Class, install: &str) -> Verdict {
    let misfits = artifact.interfaces().map(|interfaces| interfaces.misfits()).unwrap_or_default();
    if !misfits.is_empty() {
        let names: Vec<String> = misfits.into_iter().map(|misfit| misfit.interface).collect();
        let rest = format!("— built against {}", names.join(", "));
        return Verdict::Fault(rest, format!("rebuild {} or install a version that fits", artifact.reference()));
    }
    if artifact.manifest.execution == Execution::Native {
        match judge_native(artifact, class) {
            Err(refusal) => {
                let rest = format!("— {} ({})", refusal.message(), refusal.code());
                return Verdict::Fault(rest, refusal.hint_text().unwrap_or(install).to_owned());
            }
            Ok(Some(warning)) => {
                let rest = format!("— {} (warning[{}])", warning.message(), warning.code());
                return Verdict::Warned(rest, warning);
            }
            Ok(None) => {}
        }
    }
    if let Some(warning) = artifact.untagged_native() {
        let rest = format!("{}   — native artifact with no recorded platform (warning[W-REG-001])", Platform::host());
        return Verdict::Warned(rest, warning.hint(install));
    }
    match (artifact.manifest.execution, artifact.platform) {
        (Execution::Native, Some(platform)) => Verdict::Pass(platform.to_string()),
        (Execution::Native, None) => Verdict::Pass("platform unverified".to_owned()),
        _ => Verdict::Pass("platform-independent".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_pins_another_version_is_said_whether_or_not_that_is_there() {
        let digest = "a".repeat(64);
        let text = format!(
            "lock_version: 3\nartifacts:\n- name: local/x\n  resolved_version: '1.0'\n  sha256: {{any: {digest}}}\n  origin: \
             operator\n"
        );
        let lock = Lock::parse(text.as_bytes()).unwrap();
        let name = |text: &str| ArtifactName::parse(text).unwrap();
        let version = |text: &str| Version::parse(text).unwrap();
        assert_eq!(
            version_conflict(&lock, &name("local/x"), &version("1.1")).unwrap(),
            "— murmur.lock version mismatch for 'local/x': manifest requested 1.1, lock pinned 1.0"
        );
        assert_eq!(version_conflict(&lock, &name("local/x"), &version("1.0")), None);
        assert_eq!(version_conflict(&lock, &name("local/y"), &version("1.1")), None);
    }
}
