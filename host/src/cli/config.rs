//! `mur config`.

use clap::Subcommand;

use crate::cli::Outcome;
use crate::config::set::{API_KEY, Target, set};
use crate::diagnostics::{Diagnostic, codes, output};
use crate::paths::MurmurHome;

/// Flags of `mur config`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set one value: inference.provider, inference.model, inference.endpoint, credentials.<NAME>, …
    Set {
        /// The key, for example credentials.ANTHROPIC_API_KEY
        key: String,
        /// The value; it is never printed
        value: String,
        /// Write ~/.murmur/config.yaml instead of ./.murmur/config.yaml
        #[arg(short, long)]
        global: bool,
    },
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let Command::Set { key, value, global } = args.command;
    let shown = if global {
        set(Target::Global(&MurmurHome::from_env()?), &key, &value)?
    } else {
        let cwd = std::env::current_dir().map_err(|error| {
            Diagnostic::new(codes::E_IO_003, format!("the current directory cannot be read: {error}"))
        })?;
        set(Target::Project(&cwd), &key, &value)?
    };
    output::stdout_line(&format!("Set {key} in {shown}"));
    if !global && key.starts_with("inference.") {
        output::stderr_line("note: mur new reads inference from ~/.murmur/config.yaml only: set it there with -g");
    }
    if key == API_KEY {
        output::stderr_line(
            "note: mur run does not read inference.api_key; a capsule's key is credentials.<NAME>, which its gateway names",
        );
    }
    Ok(0)
}
