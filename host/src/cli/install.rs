//! `mur install`.

use std::path::Path;

use crate::artifacts::install::{Fetched, Installer, Reference, Target, no_releases};
use crate::artifacts::project::holds;
use crate::artifacts::{ArtifactName, Stores, Version};
use crate::cli::Outcome;
use crate::config::Config;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::manifest;
use crate::paths::MurmurHome;
use crate::plugins::Registry;

/// Flags of `mur install`.
#[derive(clap::Args)]
pub struct Args {
    /// A .mur.zip file, <scope>/<name>[@<version>] or github:<owner>/<repo>@<tag>; without it, all of murmur.yaml
    #[arg(value_name = "REF")]
    reference: Option<String>,
    /// Install into the global store; murmur.lock is left alone
    #[arg(short, long)]
    global: bool,
    /// Install every platform's payload into the global store
    #[arg(long)]
    all_platforms: bool,
    /// Leave compiling to the first launch
    #[arg(long)]
    no_precompile: bool,
    /// Retired
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    registry: Option<String>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if args.registry.is_some() {
        output::stderr_line("error: unexpected argument '--registry' found\n");
        output::stderr_line("  hint: installs look in the project store, the global store and what this mur brings along");
        return Ok(2);
    }
    let reference = args.reference.as_deref().map(Reference::parse).transpose()?;
    if args.all_platforms {
        return all_platforms(reference);
    }
    let target = Target::of(args.global)?;
    let declared = match (&reference, target.project()) {
        (None, Some(project)) => declared(project)?,
        (None, None) => {
            return Err(Diagnostic::new(codes::E_IO_003, "-g needs something to install")
                .hint("name a .mur.zip file, or <scope>/<name>@<version>"));
        }
        (Some(_), _) => Vec::new(),
    };
    if reference.is_none() && declared.is_empty() {
        output::stdout_line("No artifacts in manifest.");
        return Ok(0);
    }
    let home = MurmurHome::from_env()?;
    let cwd = std::env::current_dir().unwrap_or_default();
    let config = Config::load(&home, target.project().unwrap_or(&cwd))?;
    let mut registry = Registry::new(&home, &config.plugins);
    let stores = Stores::open(&home, target.project(), &config, &mut registry)?;
    let installer = Installer { home: &home, stores: &stores, target: &target, precompile: !args.no_precompile };
    let lines = match reference {
        None => return install_declared(&installer, &declared),
        Some(Reference::File(path)) => installer.file(&path)?,
        Some(Reference::Exact(name, version)) => installer.named(&name, Some(&version))?,
        Some(Reference::Newest(name)) => installer.named(&name, None)?,
        Some(Reference::Release { repo, tag }) => return Err(no_releases(&repo, &tag)),
    };
    lines.iter().for_each(|line| output::stdout_line(line));
    Ok(0)
}

fn all_platforms(reference: Option<Reference>) -> Outcome {
    match reference {
        Some(Reference::Exact(name, version)) => Err(Diagnostic::new(
            codes::E_REG_006,
            format!("the payloads of '{name}@{version}' for other platforms are with its source, and this mur asks none"),
        )
        .hint("install each platform's .mur.zip by path")),
        _ => Err(Diagnostic::new(codes::E_IO_003, "--all-platforms needs <scope>/<name>@<version>")),
    }
}

/// The artifacts of the project's manifest that come from stores.
fn declared(project: &Path) -> Result<Vec<(ArtifactName, Version)>> {
    let path = project.join("murmur.yaml");
    if !holds(project, "murmur.yaml") {
        return Err(Diagnostic::new(codes::E_IO_001, format!("no murmur.yaml in {}", project.display()))
            .hint("a formation directory has nothing to install by itself: install its members' .mur.zip files"));
    }
    let (capsule, warnings) = manifest::read_capsule(&manifest::read_file(&path)?, "murmur.yaml")?;
    for warning in warnings {
        output::stderr_line(&format!("[murmur-artifact] {}", warning.warning_line()));
    }
    let stored = capsule.artifacts.iter().filter(|entry| entry.source.is_none());
    stored
        .map(|entry| {
            let fault = |what: String| Diagnostic::new(codes::E_MAN_003, format!("murmur.yaml: artifacts: {what}"));
            let name = ArtifactName::parse(&entry.name).map_err(|error| fault(error.message()))?;
            let version = Version::parse(&entry.version).map_err(|error| fault(error.message()))?;
            Ok((name, version))
        })
        .collect()
}

fn install_declared(installer: &Installer<'_>, declared: &[(ArtifactName, Version)]) -> Outcome {
    let mut failures = Vec::new();
    let (mut installed, mut copied) = (0_usize, 0_u64);
    for (name, version) in declared {
        match installer.declared(name, version) {
            Ok((fetched, lines)) => {
                installed += 1;
                if let Fetched::Copied(bytes) = fetched {
                    copied += bytes;
                }
                lines.iter().for_each(|line| output::stdout_line(line));
            }
            Err(refusal) => failures.push((format!("{name}@{version}"), refusal)),
        }
    }
    if failures.is_empty() {
        return Ok(0);
    }
    let noun = if declared.len() == 1 { "artifact" } else { "artifacts" };
    output::stdout_line("");
    output::stdout_line(&format!("{} of {} {noun} failed to install:", failures.len(), declared.len()));
    for (reference, refusal) in &failures {
        output::stdout_line(&format!("\n  {reference}"));
        for line in refusal.to_string().lines() {
            output::stdout_line(&format!("    {line}"));
        }
    }
    if installed > 0 {
        let size = if copied == 0 { "all cached".to_owned() } else { human_size(copied) };
        let noun = if installed == 1 { "artifact" } else { "artifacts" };
        output::stdout_line(&format!("installed {installed} {noun}  {size}"));
    }
    Ok(1)
}

fn human_size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    match bytes {
        ..KIB => format!("{bytes} B"),
        KIB..MIB => format!("{} KiB", bytes / KIB),
        _ => format!("{}.{} MiB", bytes / MIB, bytes % MIB * 10 / MIB),
    }
}
