//! `mur new`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::config::Config;
use crate::diagnostics::{Diagnostic, codes, output};
use crate::paths::{self, MurmurHome};
use crate::roster::scaffold::{MEMBER_VERSION, MEMBERS, Origin, Request, Scaffold};

/// Flags of `mur new`.
#[derive(clap::Args)]
pub struct Args {
    /// Write a formation of two members into ./<NAME>
    #[arg(long, value_name = "NAME", required = true)]
    roster: String,
    /// An index file to take the driver's version from, instead of the drivers that come with mur
    #[arg(long, value_name = "PATH|URL")]
    index: Option<String>,
    /// scripted (no key, no network), anthropic or openai; otherwise inference.provider of the configuration
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<String>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let home = MurmurHome::from_env()?;
    let config = Config::load_global(&home)?;
    let parent = std::env::current_dir().map_err(|error| {
        Diagnostic::new(codes::E_IO_003, format!("the current directory cannot be read: {error}"))
    })?;
    let bundled: Option<PathBuf> = paths::install_dir().ok().map(|dir| dir.join("artifacts"));
    let request = Request { name: args.roster, index: args.index, provider: args.provider };
    let scaffold = Scaffold::plan(&request, &config.inference, &parent, &home, bundled.as_deref())?;
    scaffold.write(&parent)?;
    for line in report(&scaffold) {
        output::stdout_line(&line);
    }
    Ok(0)
}

/// What was written and what comes next.
fn report(scaffold: &Scaffold) -> Vec<String> {
    let name = &scaffold.name;
    let [lead, worker] = MEMBERS;
    let files = [
        (format!("{name}/roster.yaml"), format!("{lead} is the entry member; {lead} may call {worker}")),
        (format!("{name}/{lead}/murmur.yaml"), format!("capsule local/{}@{MEMBER_VERSION}", scaffold.capsule(lead))),
        (
            format!("{name}/{worker}/murmur.yaml"),
            format!("capsule local/{}@{MEMBER_VERSION}, serves peers", scaffold.capsule(worker)),
        ),
    ];
    let width = files.iter().map(|(path, _)| path.len()).max().unwrap_or(0);
    let mut lines = vec![format!("Scaffolded formation '{name}' in ./{name}")];
    lines.extend(files.iter().map(|(path, what)| format!("  {path:<width$}   {what}")));
    let driver = format!("{}@{}", scaffold.driver, scaffold.version);
    let origin = match &scaffold.origin {
        Origin::Bundled => "bundled with this mur".to_owned(),
        Origin::Installed => "installed in the global store".to_owned(),
        Origin::Index(source) => format!("the newest that fits this mur in {source}"),
    };
    lines.push(format!("  Driver: {driver}, {origin}"));
    lines.extend([String::new(), "Next:".to_owned()]);
    if let Some(key) = scaffold.provider.key() {
        lines.push(format!("  mur config set -g credentials.{key} <your key>"));
    }
    if matches!(scaffold.origin, Origin::Index(_)) {
        lines.push(format!("  mur install -g {driver}"));
    }
    for member in MEMBERS {
        let capsule = scaffold.capsule(member);
        lines.push(format!(
            "  mur build {name}/{member} && mur install -g {name}/{member}/{capsule}-{MEMBER_VERSION}.mur.zip"
        ));
    }
    lines.push(format!("  mur run --roster {name} --task \"<your task>\""));
    lines
}
