//! `mur precompile`.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::artifacts::compiled::{Forms, Outcome as Compiled};
use crate::artifacts::install::read_file;
use crate::artifacts::name::LOCAL_SCOPE;
use crate::artifacts::{Verified, archive};
use crate::cli::Outcome;
use crate::diagnostics::{Result, output};
use crate::paths::MurmurHome;

/// Flags of `mur precompile`.
#[derive(clap::Args)]
pub struct Args {
    /// Archives whose components are compiled for this machine
    #[arg(required = true, value_name = "ZIP")]
    archives: Vec<PathBuf>,
    /// The workdir of the launch to come; nothing is kept when ~/.murmur lies inside it
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// One JSON object on one line
    #[arg(long)]
    json: bool,
}

struct Row {
    path: PathBuf,
    name: Option<(String, String)>,
    outcome: &'static str,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let home = MurmurHome::from_env()?;
    let forms = Forms::open(&home, args.workdir.as_deref());
    let mut rows = Vec::new();
    for path in &args.archives {
        rows.push(precompile(&forms, path));
    }
    let failed = rows.iter().any(|row| row.outcome == "failed");
    if args.json {
        output::stdout_line(&as_json(&rows));
    } else {
        for row in &rows {
            let what = match &row.name {
                Some((name, version)) => format!("{name}@{version}"),
                None => row.path.display().to_string(),
            };
            output::stdout_line(&format!("{:<14}  {what}", row.outcome.replace('_', " ")));
        }
    }
    Ok(u8::from(failed))
}

fn precompile(forms: &Forms, path: &Path) -> Row {
    let mut row = Row { path: path.to_owned(), name: None, outcome: "failed" };
    match outcome(forms, path, &mut row.name) {
        Ok(outcome) => row.outcome = outcome,
        Err(refusal) => output::error(&refusal),
    }
    row
}

fn outcome(forms: &Forms, path: &Path, name: &mut Option<(String, String)>) -> Result<&'static str> {
    let artifact = Verified::of_file(read_file(path)?, LOCAL_SCOPE, &path.display().to_string())?;
    *name = Some((artifact.manifest.name.clone(), artifact.manifest.version.clone()));
    if !artifact.is_wasm() || artifact.manifest.runtime == "capsule" {
        return Ok("not_wasm");
    }
    Ok(match forms.of_with_outcome(&artifact)?.1 {
        Compiled::Compiled => "compiled",
        Compiled::AlreadyStored => "already_stored",
    })
}

fn as_json(rows: &[Row]) -> String {
    let artifacts: Vec<_> = rows
        .iter()
        .map(|row| {
            let (name, version) = row.name.clone().unzip();
            json!({ "path": row.path.to_string_lossy(), "name": name, "version": version, "outcome": row.outcome })
        })
        .collect();
    json!({
        "mur_version": env!("CARGO_PKG_VERSION"),
        "decompression_ceiling": archive::ceiling(),
        "artifacts": artifacts,
    })
    .to_string()
}
