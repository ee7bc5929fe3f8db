//! The commands: flags, printing and exit statuses. One file a command; no logic worth testing alone.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};

use crate::diagnostics::{self, output};
use crate::process::limits;

/// What a command returns: its exit status, or the diagnostic that is printed before exiting with 1.
pub type Outcome = diagnostics::Result<u8>;

#[derive(Parser)]
#[command(
    name = "mur",
    version,
    about = "Runs AI-agent capsules and formations of capsules",
    propagate_version = false
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

macro_rules! commands {
    ($($(#[$doc:meta])* $variant:ident $module:ident;)*) => {
        $(pub mod $module;)*

        #[derive(Subcommand)]
        #[allow(clippy::large_enum_variant, reason = "one value a process")]
        enum Command {
            $($(#[$doc])* $variant($module::Args),)*
        }

        impl Command {
            fn run(self) -> Outcome {
                match self {
                    $(Self::$variant(args) => $module::run(args),)*
                }
            }
        }
    };
}

commands! {
    /// Run a capsule, or launch a formation with --roster
    Run run;
    /// Check a capsule project or a roster and what this host can back
    Doctor doctor;
    /// Show a roster, or explain whether one member may call another
    Roster roster;
    /// Write a new roster with its member sources
    New new;
    /// Pack an artifact into a .mur.zip
    Build build;
    /// Install artifacts into the project or the global store
    Install install;
    /// List installed artifacts
    List list;
    /// Compile the WASM payloads of archives ahead of time
    Precompile precompile;
    /// List running capsules
    Ps ps;
    /// End a running session or formation
    Stop stop;
    /// Cancel one task of a running session
    Cancel cancel;
    /// Print a door token of a running session
    Token token;
    /// Read what sessions and formations recorded
    Trace trace;
    /// Write a configuration value
    Config config;
    /// List, check and trust plugins
    Plugin plugin;
    /// Print the JSON Schema of roster.yaml, murmur.yaml or config.yaml, for editors
    Schema schema;
    /// Print the version and the WIT packages served
    Version version;
}

/// The whole command line, for what is checked against it.
pub fn command() -> clap::Command {
    Cli::command()
}

/// How long the last lines may take to be written where whoever reads standard error has stopped reading.
const SETTLING: Duration = Duration::from_secs(2);

/// The status of a command whose work is done: 1 in place of 0 when stdout refused what it had to say.
fn ended(status: u8) -> u8 {
    match output::refusal() {
        Some(diagnostic) => {
            output::error(&diagnostic);
            status.max(1)
        }
        None => status,
    }
}

/// Flags whose value is a text in the user's own words.
const TEXTS: [&str; 2] = ["--task", "--system-prompt"];

/// The arguments, a text that begins with a dash and is plainly no flag put behind its own flag's `=`: a list's first line
/// is a task like any other. A single word that could be a flag stays one, and the parser says what it misses.
fn with_texts(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut out: Vec<OsString> = Vec::new();
    for arg in args {
        match out.last_mut() {
            Some(flag) if TEXTS.iter().any(|text| flag == text) && is_dashed_text(&arg) => {
                flag.push("=");
                flag.push(arg);
            }
            _ => out.push(arg),
        }
    }
    out
}

/// A flag has a letter after its dashes and no blank in it.
fn is_dashed_text(arg: &OsStr) -> bool {
    let bytes = arg.as_bytes();
    let word = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-"));
    word.is_some_and(|word| {
        let flag_like = word.first().is_none_or(u8::is_ascii_alphabetic);
        !flag_like || bytes.iter().any(u8::is_ascii_whitespace)
    })
}

/// Parses the command line and runs it. Usage errors print the parser's text and exit 2.
pub fn main() -> u8 {
    let cli = match Cli::try_parse_from(with_texts(std::env::args_os())) {
        Ok(cli) => cli,
        Err(error) => {
            if error.use_stderr() {
                // It repeats arguments, which are outside bytes: written out like those of any message.
                output::stderr_line(error.render().to_string().trim_end());
            } else if let Err(cause) = error.print() {
                output::note_refusal(&cause);
            }
            return ended(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    // What is read of a session or a formation may not hold it up.
    if matches!(cli.command, Command::Run(_)) {
        output::behind::start();
    }
    let status = match limits::require_open_files(limits::COMMAND, "mur").and_then(|()| cli.command.run()) {
        Ok(status) => ended(status),
        Err(diagnostic) => {
            output::error(&diagnostic);
            1
        }
    };
    output::behind::settle(SETTLING);
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_begins_with_a_dash_stays_a_value_and_a_flag_a_flag() {
        let joined = |args: &[&str]| with_texts(args.iter().map(OsString::from));
        for text in ["- x", "-- x", "--- a\nb", "-5", "--task me", "-x y"] {
            assert_eq!(joined(&["run", "--task", text, "-v"]), ["run", &format!("--task={text}"), "-v"], "{text}");
        }
        for word in ["--json", "-v", "--", "-", "x", ""] {
            assert_eq!(joined(&["run", "--task", word]), ["run", "--task", word], "{word}");
        }
        assert_eq!(joined(&["run", "--workdir", "- x"]), ["run", "--workdir", "- x"]);
    }
}
