//! The full check of a capsule's project.

use std::path::Path;

use mur_plugin_api::IoStatus;

use super::surroundings::Surroundings;
use super::{Report, artifacts, host, leftovers, models, roster};
use crate::artifacts::lock::Lock;
use crate::artifacts::name::LOCAL_SCOPE;
use crate::artifacts::source::SourceDir;
use crate::artifacts::store::Stores;
use crate::artifacts::{ArtifactName, Version, build};
use crate::config::Config;
use crate::containment::{Class, InForce, Prober};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::door::{CapsuleFacts, exposure_warning};
use crate::manifest::{self, Acceptance, Capsule, Role, gateway_warnings, read_capsule};
use crate::paths::{MurmurHome, resolve_through_existing};
use crate::plugins::Registry;
use crate::session::environment::check_allow;
use crate::session::staging::{declared_for_commands, judge_programs, refusals};
use crate::session::{explain, grants};

/// Checks everything and reports all of it.
pub(super) fn check(
    dir: &Path,
    with_roster: bool,
    bind: &str,
    home: Result<MurmurHome>,
    report: &mut Report,
) -> Result<()> {
    let path = dir.join(manifest::FILE_NAME);
    let text = manifest::read_file(&path)?;
    let (capsule, unknown) = read_capsule(&text, &path.display().to_string())?;
    for warning in &unknown {
        report.warning(warning);
    }
    for note in &capsule.notes {
        report.err(note.clone());
    }
    declared(&capsule, report);
    packing(&text, report);
    door(&capsule, bind, report);
    let home = match home.and_then(|home| usable(&home).map(|()| home)) {
        Ok(home) => home,
        Err(refusal) => {
            for heading in ["Runtime directory", "Records directory"] {
                report.block(heading, [format!("  path:      unavailable — {}", refusal.message())]);
            }
            return Err(refusal);
        }
    };
    let around = Surroundings::read(dir, &home, report);
    gateways(&capsule, &around, report);
    let registry = Registry::new(&home, &around.config.plugins);
    let mut prober = Prober::new(&registry);
    let in_force = class(&capsule, &around, &mut prober, report);
    programs(&capsule, in_force.as_ref(), report);
    host::blocks(&mut prober, report);
    drop(prober);
    host::murmur_home(&home, report);
    preopens(&capsule, report);
    if with_roster {
        roster::block(dir, Some(&around), report);
    }
    stored(&capsule, in_force.as_ref(), dir, &home, &around.config, report);
    folders(&capsule, in_force.as_ref(), dir, &home, report);
    leftovers::block(&home, report);
    Ok(())
}

/// Whether `~/.murmur` could be used, without making anything.
fn usable(home: &MurmurHome) -> Result<()> {
    let refused = |why: String| {
        Diagnostic::new(codes::E_IO_004, why).hint("set HOME to an absolute path that you own and can write")
    };
    let root = home.root();
    for dir in [root.to_owned(), home.sessions(), home.records()] {
        match std::fs::metadata(&dir) {
            Ok(meta) if !meta.is_dir() => return Err(refused(format!("{} is not a directory", dir.display()))),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(format!("{}: {error}", dir.display()))),
        }
    }
    let nearest = root.ancestors().find(|dir| dir.is_dir()).unwrap_or(root);
    nix::unistd::access(nearest, nix::unistd::AccessFlags::W_OK)
        .map_err(|errno| refused(format!("{} cannot be written: {}", nearest.display(), errno.desc())))
}

/// What the manifest alone gives reason to warn of.
fn declared(capsule: &Capsule, report: &mut Report) {
    declared_warnings(capsule).iter().for_each(|warning| report.warning(warning));
    for refusal in refusals(capsule) {
        report.prediction(&refusal);
    }
}

/// The warnings of it.
pub(super) fn declared_warnings(capsule: &Capsule) -> Vec<Diagnostic> {
    let capabilities = &capsule.capabilities;
    // What a check of calls does not see through is said by the launch that makes them.
    let mut warnings = declared_for_commands(capsule);
    warnings.retain(|warning| warning.code() != codes::W_SEC_017);
    let strip = capabilities.shell.as_ref().map(|shell| shell.strip_env.as_slice()).unwrap_or_default();
    warnings.extend(check_allow(&capabilities.env.allow, strip).unwrap_or_default());
    warnings
}

/// What `mur build` would refuse or warn of in a manifest that says what it is packed as; a launch reads less of it.
fn packing(text: &[u8], report: &mut Report) {
    match build::check_packing(text) {
        Ok(warnings) => warnings.iter().for_each(|warning| report.warning(warning)),
        Err(refusal) => {
            report.err(format!("[mur doctor] warning: mur build refuses this manifest: {}", refusal.message()));
            report.count_warning(refusal.hint_text().unwrap_or(refusal.message()));
        }
    }
}

fn door(capsule: &Capsule, bind: &str, report: &mut Report) {
    match &capsule.network.authentication {
        Some(authentication) => {
            let declared = authentication.credentials.iter();
            let shown: Vec<String> = declared
                .map(|credential| format!(", {} ({})", credential.name, credential.scopes.join(", ")))
                .collect();
            report.out(format!("door: bearer — operator{}", shown.concat()));
        }
        None => {
            report.out("door: public (no network.authentication)");
            let tools = capsule.artifacts.iter().filter(|entry| entry.runtime.visible());
            let facts = CapsuleFacts {
                name: capsule.name.clone(),
                version: capsule.version.clone(),
                tools: tools.map(|entry| entry.bare().to_owned()).collect(),
                shell: capsule.capabilities.shell.is_some(),
                network: !capsule.capabilities.network.allow.is_empty(),
                exports_files: capsule.exports.files.is_some(),
                exports_peer_files: capsule.exports.peer_files.is_some(),
            };
            let accepts = capsule.lifecycle.task_acceptance != Acceptance::None;
            if let Some(warning) = exposure_warning(bind, &facts, accepts) {
                report.warning(&warning);
            }
        }
    }
    report.out("");
}

/// Keys, and rules that name a gateway's host.
fn gateways(capsule: &Capsule, around: &Surroundings, report: &mut Report) {
    let (refusals, warnings) = around.keys(capsule);
    for warning in gateway_warnings(capsule).iter().chain(&warnings) {
        report.warning(warning);
    }
    for refusal in &refusals {
        report.prediction(refusal);
    }
}

/// The class a launch would have on this host.
fn class(capsule: &Capsule, around: &Surroundings, prober: &mut Prober<'_>, report: &mut Report) -> Option<InForce> {
    let (in_force, refusals) = around.class(capsule, prober);
    for refusal in &refusals {
        report.prediction(refusal);
    }
    for warning in in_force.iter().flat_map(crate::containment::warnings) {
        report.warning(&warning);
    }
    in_force
}

/// The programs of `shell.allow` on this host.
fn programs(capsule: &Capsule, in_force: Option<&InForce>, report: &mut Report) {
    let class = in_force.map_or(Class::Unconfined, |in_force| in_force.class);
    let (refusal, warnings) = judge_programs(capsule, class);
    if let Some(refusal) = refusal {
        report.prediction(&refusal);
    }
    for warning in &warnings {
        report.warning(warning);
    }
}

/// Which folder each component sees.
fn preopens(capsule: &Capsule, report: &mut Report) {
    let whole = capsule.capabilities.filesystem.scope.as_deref().unwrap_or("the work folder");
    let components = capsule.artifacts.iter().filter(|entry| entry.runtime != Role::Skill);
    let lines: Vec<String> = components
        .map(|entry| {
            let grants = entry.capabilities.as_ref();
            let scope = grants.and_then(|grants| grants.filesystem_scope.as_deref());
            let dot = match (entry.runtime, scope, grants.is_some_and(|grants| grants.filesystem_records)) {
                (Role::Hook, _, true) => "the records folder's hooks/",
                (Role::Hook, None, false) => "nothing",
                (_, Some(scope), _) => scope,
                (_, None, _) => whole,
            };
            let state = grants.and_then(|grants| grants.state.as_ref());
            let state = state.map(|state| format!("; state: {}", state.store)).unwrap_or_default();
            format!("  - {} ({}): {dot}{state}", entry.name, entry.runtime.as_str())
        })
        .collect();
    if !lines.is_empty() {
        report.block("Filesystem preopens", lines);
    }
    if !capsule.capabilities.filesystem.read_only.is_empty() {
        let paths = capsule.capabilities.filesystem.read_only.iter();
        report.block("Read-only paths", paths.map(|path| format!("  - {path}")).collect::<Vec<_>>());
    }
    if let Some(install) = &capsule.capabilities.install {
        let show = |patterns: &[String]| if patterns.is_empty() { "none".to_owned() } else { patterns.join(", ") };
        report.block(
            "Install grant",
            [
                format!("  skill: {}", show(&install.skill)),
                format!("  tool:  {}", show(&install.tool)),
                format!("  from:  {}", if install.from_sources { "stores, sources" } else { "stores" }),
            ],
        );
    }
    let resources = &capsule.capabilities.resources;
    report.block(
        "Memory bound",
        [format!("  memory.max: {}", resources.cgroup_memory_bytes), "  memory.swap.max: 0".to_owned()],
    );
}

/// What the stores hold of what is declared.
fn stored(
    capsule: &Capsule,
    in_force: Option<&InForce>,
    dir: &Path,
    home: &MurmurHome,
    config: &Config,
    report: &mut Report,
) {
    // Where the host backs no class, what one would keep from a tool is not known.
    let class = in_force.map_or(Class::Unconfined, |in_force| in_force.class);
    let mut registry = Registry::new(home, &config.plugins);
    let stores = match Stores::open(home, Some(dir), config, &mut registry) {
        Ok(stores) => stores,
        Err(fault) => return report.error(&fault),
    };
    installed_alike(capsule, dir, &stores, report);
    artifacts::wit_level(&stores, capsule, report);
    artifacts::old_layout(home, dir, report);
    let driver = artifacts::checklist(capsule, class, dir, &stores, &Lock::read(dir), report);
    models::block(capsule, driver.as_ref(), report);
}

/// Whether what is installed under the capsule's own name is what lies here.
fn installed_alike(capsule: &Capsule, dir: &Path, stores: &Stores, report: &mut Report) {
    let (Ok(name), Ok(version)) = (ArtifactName::new(LOCAL_SCOPE, &capsule.name), Version::parse(&capsule.version))
    else {
        return;
    };
    if let Some(source) = SourceDir::at(dir.to_owned()).filter(|source| source.is_of(&name, &version)) {
        roster::compare(&source, &name, &version, stores, report);
    }
}

/// Where a session would keep what it makes, and how that is held from its commands.
fn folders(capsule: &Capsule, in_force: Option<&InForce>, dir: &Path, home: &MurmurHome, report: &mut Report) {
    let work_root = &resolve_through_existing(&dir.join("workdir"));
    let Some(in_force) = in_force else {
        // Which class there would be is not known; the fault is said.
        let [runtime, records, tmp] = grants::folders(home, work_root);
        for (heading, path) in
            [("Runtime directory", runtime), ("Records directory", records), ("Temporary folder", tmp)]
        {
            report.block(heading, [format!("  path:      {}", path.display())]);
        }
        return;
    };
    let io = IoStatus::default();
    let object = grants::effective(&grants::Facts { capsule, in_force, home, work_root, closure: None, io: &io });
    for (heading, lines) in explain::folders(&object) {
        report.block(heading, lines);
    }
}
