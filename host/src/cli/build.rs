//! `mur build`.

use std::path::PathBuf;

use crate::artifacts::{build, skill};
use crate::cli::Outcome;
use crate::diagnostics::{Diagnostic, codes, output};

/// Flags of `mur build`.
#[derive(clap::Args)]
pub struct Args {
    /// The artifact's directory (with --skill also a .zip)
    #[arg(default_value = ".")]
    source: PathBuf,
    /// Where the archive goes: a directory, or a file that ends in .mur.zip
    #[arg(short, long, value_name = "PATH", conflicts_with = "skill")]
    output: Option<PathBuf>,
    /// Pack a folder or .zip that has a SKILL.md; a value with a slash or a leading dot is the input path
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    skill: Option<String>,
    /// The skill's version when its folder has no murmur.yaml
    #[arg(long, value_name = "VERSION", requires = "skill")]
    version: Option<String>,
    /// The skill's description
    #[arg(long, value_name = "TEXT", requires = "skill")]
    summary: Option<String>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let built = match args.skill {
        None => build::build(&args.source, args.output.as_deref())?,
        Some(name) => {
            let cwd = std::env::current_dir()
                .map_err(|error| Diagnostic::new(codes::E_IO_001, format!("the current directory: {error}")))?;
            let options = skill::SkillOptions { name, version: args.version, summary: args.summary };
            skill::build_skill(&args.source, &options, &cwd)?
        }
    };
    for warning in &built.warnings {
        output::stderr_line(&build::warning_text(warning));
    }
    output::stdout_line(&built.line());
    Ok(0)
}
