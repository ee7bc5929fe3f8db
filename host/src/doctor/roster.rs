//! The `Roster` block: the roster of a directory, admitted or not.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::Report;
use super::project::declared_warnings;
use super::surroundings::Surroundings;
use crate::artifacts::source::{SourceDir, beside, stale as unlike};
use crate::artifacts::{ArtifactName, Stores, Version};
use crate::containment::Prober;
use crate::diagnostics::{Diagnostic, codes};
use crate::formation::launch;
use crate::formation::project::Project;
use crate::manifest::{gateway_warnings, read_capsule};
use crate::plugins::Registry;
use crate::roster::FILE_NAME;
use crate::roster::admission::{Admitted, Reach};
use crate::roster::admit::survey_in_child;
use crate::roster::survey::Survey;
use crate::session::staging::{doors_out_of_reach, refusals};

/// Most edges that are listed.
const MAX_EDGES: usize = 500;

/// Admits the roster of a directory and shows what came of it, then what the launch of each member would be refused for.
pub(super) fn block(dir: &Path, around: Option<&Surroundings>, report: &mut Report) {
    let file = dir.join(FILE_NAME);
    report.out("Roster");
    report.out(format!("  file: {}", file.display()));
    let surveyed = Project::open(dir).and_then(|project| survey_in_child(&project.dir, &project.text));
    let survey = match surveyed {
        Ok(survey) => survey,
        Err(refusal) => {
            refused(&refusal, report);
            return report.out("");
        }
    };
    match &survey.refusal {
        None => show(&survey.seen, report),
        Some(refusal) => refused(refusal, report),
    }
    report.out("");
    if let Some(around) = around {
        members(&survey, around, report);
        whole(dir, &survey, report);
        stale(dir, &survey, around, report);
    }
}

fn refused(refusal: &Diagnostic, report: &mut Report) {
    for (index, line) in refusal.message().lines().enumerate() {
        report.out(format!("  {}  {line}", if index == 0 { "✗" } else { " " }));
    }
    report.error(refusal);
}

/// What each capsule's own launch would be refused or warned of, once for members that run the same.
fn members(survey: &Survey, around: &Surroundings, report: &mut Report) {
    let registry = Registry::new(&around.home, &around.config.plugins);
    let mut prober = Prober::new(&registry);
    // The host is asked once for each kind of floor.
    let mut classes = HashMap::new();
    let mut seen = HashSet::new();
    for (index, (member, declared)) in survey.seen.members.iter().zip(&survey.declared).enumerate() {
        let Ok(declared) = declared else { continue };
        let callees: Vec<&str> = survey.seen.callees(index).map(|to| survey.seen.members[to].name.as_str()).collect();
        if !callees.is_empty() && !declared.reaches_doors {
            let hint = "add localhost to capabilities.network.allow of its capsule, build it and install it again";
            report.warning(&doors_out_of_reach(&member.name, &callees).hint(hint));
        }
        if !seen.insert((&member.capsule, &member.version)) {
            continue;
        }
        // It was read once already, so it reads.
        let file = format!("{} of member '{}'", crate::manifest::FILE_NAME, member.name);
        let Ok((capsule, unknown)) = read_capsule(declared.manifest.as_bytes(), &file) else { continue };
        for warning in &unknown {
            report.warning(warning);
        }
        let about = format!("member '{}' ({}@{}): ", member.name, member.capsule, member.version);
        let (keys, warnings) = around.keys(&capsule);
        let granted = &capsule.capabilities;
        let kind = (granted.containment, granted.filesystem.workdir_exec, capsule.starts_processes());
        let lacking = classes.entry(kind).or_insert_with(|| around.class(&capsule, &mut prober).1);
        for refusal in refusals(&capsule).into_iter().chain(keys).chain(lacking.iter().cloned()) {
            report.prediction(&refusal.prefixed(&about));
        }
        for warning in declared_warnings(&capsule).into_iter().chain(gateway_warnings(&capsule)).chain(warnings) {
            report.warning(&warning.prefixed(&about));
        }
    }
}

/// What the launcher says of the formation as a whole.
fn whole(dir: &Path, survey: &Survey, report: &mut Report) {
    for warning in launch::warnings(None, dir, survey.seen.has_edges()) {
        report.warning(&warning);
    }
}

/// What is installed and is not what lies in the project: a launch runs the installed one.
fn stale(dir: &Path, survey: &Survey, around: &Surroundings, report: &mut Report) {
    let mut registry = Registry::new(&around.home, &around.config.plugins);
    // What cannot be opened was said where the roster was admitted.
    let Ok(stores) = Stores::open(&around.home, Some(dir), &around.config, &mut registry) else { return };
    let sources = beside(dir);
    let mut seen = HashSet::new();
    for member in survey.seen.members.iter().filter(|member| seen.insert((&member.capsule, &member.version))) {
        let (Ok(name), Ok(version)) = (ArtifactName::parse(&member.capsule), Version::parse(&member.version)) else {
            continue;
        };
        for source in sources.iter().filter(|source| source.is_of(&name, &version)) {
            compare(source, &name, &version, &stores, report);
        }
    }
}

/// Compares a directory with what is installed under its name.
pub(super) fn compare(
    source: &SourceDir,
    name: &ArtifactName,
    version: &Version,
    stores: &Stores,
    report: &mut Report,
) {
    let Ok(Some(found)) = stores.find(name, version) else { return };
    let Ok(installed) = stores.read(&found) else { return };
    match source.unlike(&installed.archive) {
        Ok(None) => {}
        Ok(Some(file)) => report.warning(&unlike(name, version, &found.place, &source.dir, &file)),
        Err(refusal) => {
            let why =
                format!("{} cannot be compared with {name}@{version}: {}", source.dir.display(), refusal.message());
            report.warning(&Diagnostic::new(codes::W_REG_004, why).hint(format!("mur build {}", source.dir.display())));
        }
    }
}

fn show(admitted: &Admitted, report: &mut Report) {
    let coordinates: Vec<String> =
        admitted.members.iter().map(|member| format!("{}@{}", member.capsule, member.version)).collect();
    let names = admitted.members.iter().map(|member| member.name.len()).max().unwrap_or(0);
    let width = coordinates.iter().map(|coordinate| coordinate.chars().count()).max().unwrap_or(0);
    for (member, coordinate) in admitted.members.iter().zip(&coordinates) {
        report.out(format!(
            "  {:<names$}   {coordinate:<width$}   {:<5}   {}   {}",
            member.name,
            if member.entry { "entry" } else { "" },
            if member.serves_peers { "serves peers " } else { "refuses peers" },
            if member.authenticated { "authenticated door" } else { "public door" },
        ));
    }
    report.out(reachability(admitted));
    if let Some(notice) = admitted.left_out(|_| true) {
        report.out(format!("  {notice}"));
    }
    for crowded in &admitted.warnings {
        let warning = Diagnostic::new(codes::W_ROS_001, crowded.message.clone());
        report.out(format!("  {}", warning.warning_line()));
        report.count_warning(&crowded.fix);
    }
}

fn reachability(admitted: &Admitted) -> String {
    let name = |index: usize| admitted.members[index].name.as_str();
    let mut edges = admitted.edges();
    let shown: Vec<String> =
        edges.by_ref().take(MAX_EDGES).map(|(from, to)| format!("{} → {}", name(from), name(to))).collect();
    if shown.is_empty() {
        return "  reachability: none".to_owned();
    }
    let kind = if matches!(admitted.reach, Reach::All) { " (all)" } else { "" };
    let more = match edges.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("  reachability{kind}: {}{more}", shown.join(", "))
}
