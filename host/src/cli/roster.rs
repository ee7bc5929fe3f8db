//! `mur roster`: shows a roster, and explains whether one member may call another.

use std::path::PathBuf;

use clap::Subcommand;

use crate::cli::Outcome;
use crate::diagnostics::{Result, output};
use crate::formation::project::{Project, ROSTER_FILE};
use crate::roster::admit::survey_in_child;
use crate::roster::explain::Explanation;
use crate::roster::survey::Survey;
use crate::roster::view::{Format, View};
use crate::roster::{self, Roster};

/// Flags of `mur roster`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show members, calls, doors and warnings of a roster, whether or not it is admitted
    Show {
        /// The directory of a roster.yaml, or the file
        #[arg(default_value = ".")]
        path: PathBuf,
        /// How
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Say whether one member may call another, by which rule, and what else a call needs
    Explain {
        /// The calling member
        from: String,
        /// The called member
        to: String,
        /// The directory of a roster.yaml, or the file
        #[arg(default_value = ".")]
        path: PathBuf,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
}

/// The status of `mur roster explain` for "no".
const NO: u8 = 3;

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    match args.command {
        Command::Show { path, format } => {
            let (file, roster, survey) = open(&path)?;
            let text = View { file: &file, roster: &roster, survey: &survey }.render(format)?;
            let _ = output::stdout_text(&text);
            survey.refusal.map_or(Ok(0), Err)
        }
        Command::Explain { from, to, path, json } => {
            let (_, roster, survey) = open(&path)?;
            let explanation = Explanation::of(&roster, &survey, &from, &to)?;
            let text = if json { format!("{}\n", explanation.json()) } else { explanation.text() };
            let _ = output::stdout_text(&text);
            let status = if explanation.can_call() { 0 } else { NO };
            survey.refusal.map_or(Ok(status), Err)
        }
    }
}

/// The structure here, the stores in the child that admission asks too.
fn open(path: &std::path::Path) -> Result<(PathBuf, Roster, Survey)> {
    let project = Project::open(path)?;
    let roster = roster::parse(&project.text)?;
    roster.check()?;
    let survey = survey_in_child(&project.dir, &project.text)?;
    Ok((project.dir.join(ROSTER_FILE), roster, survey))
}
