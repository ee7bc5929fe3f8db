//! `mur run`: one capsule, or a formation with `--roster`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::cli::Outcome;
use crate::formation;
use crate::process::limits;
use crate::session::deadline::{MAX_SECONDS, Start};
use crate::session::request::{Place, Resume, RunRequest, Source};
use crate::session;

/// Flags that make no sense of a whole formation.
const NOT_WITH_ROSTER: [&str; 19] = [
    "manifest",
    "capsule",
    "capsule_version",
    "capsule_sha256",
    "store_root",
    "spawn_grant_stdin",
    "system_prompt",
    "context",
    "resume",
    "resume_mode",
    "forget_session",
    "lifecycle_task_acceptance",
    "lifecycle_after_task",
    "workdir",
    "bind",
    "explain_scope",
    "readiness_tokens",
    "workdir_identity",
    "inherited_deadline",
];

/// Flags of `mur run`.
#[derive(clap::Args)]
pub struct Args {
    /// The capsule's manifest; its directory is the project
    #[arg(long, value_name = "PATH", default_value = "./murmur.yaml", conflicts_with = "capsule")]
    manifest: PathBuf,
    /// Run an installed capsule, named <scope>/<name>
    #[arg(long, value_name = "NAME", requires = "capsule_version")]
    capsule: Option<String>,
    /// The installed capsule's version
    #[arg(long, value_name = "VERSION", requires = "capsule")]
    capsule_version: Option<String>,
    /// Launch the formation of a roster: a directory, or a file named roster.yaml
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "roster.yaml",
          conflicts_with_all = NOT_WITH_ROSTER)]
    roster: Option<PathBuf>,
    /// The task: a text, or the path of a file that holds it
    #[arg(long, value_name = "TASK")]
    task: Option<OsString>,
    /// Replaces the manifest's system prompt for this launch; empty clears it
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    /// Ends the session this many seconds after it started
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    deadline: Option<u64>,
    /// The context this launch's tasks belong to
    #[arg(long, value_name = "ID")]
    context: Option<String>,
    /// Go on with the conversation of a recorded session: @N, an id, a suffix or a path
    #[arg(long, value_name = "SESSION", num_args = 0..=1, default_missing_value = "@1")]
    resume: Option<String>,
    /// How a resumed conversation is loaded: full, or compact by the capsule's hook
    #[arg(long, value_name = "MODE", value_parser = ["full", "compact"], requires = "resume")]
    resume_mode: Option<String>,
    /// Start the context's harness session afresh
    #[arg(long, requires = "context", conflicts_with = "resume")]
    forget_session: bool,
    /// Replaces lifecycle.task_acceptance: none, single or queue
    #[arg(long, value_name = "MODE")]
    lifecycle_task_acceptance: Option<String>,
    /// Replaces lifecycle.after_task: exit or sleep
    #[arg(long, value_name = "MODE")]
    lifecycle_after_task: Option<String>,
    /// The work folder itself, an existing directory
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// The address the door is bound to
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind: IpAddr,
    /// The containment class: unconfined, advisory, scoped or sealed; a stronger one that is declared stays in force
    #[arg(long, value_name = "CLASS")]
    containment: Option<String>,
    /// Report what the capsule could reach, and run nothing
    #[arg(long)]
    explain_scope: bool,
    /// Print the readiness line as JSON, and nothing else on stdout
    #[arg(long)]
    json: bool,
    /// Print more about the start
    #[arg(long, short)]
    verbose: bool,
    /// Do not read the project's .env
    #[arg(long)]
    no_env_file: bool,
    /// Read the spawn approval from stdin
    #[arg(long)]
    spawn_grant_stdin: bool,

    #[arg(long, hide = true, value_name = "HEX", requires = "capsule")]
    capsule_sha256: Option<String>,
    #[arg(long, hide = true, value_name = "DIR", requires = "capsule", requires = "workdir")]
    store_root: Option<PathBuf>,
    #[arg(long, hide = true, value_name = "UNIX_MS")]
    inherited_deadline: Option<u64>,
    #[arg(long, hide = true, requires = "json")]
    readiness_tokens: bool,
    #[arg(long, hide = true, value_name = "DEV:INO", requires = "workdir")]
    workdir_identity: Option<String>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let start = Start::now();
    limits::require_open_files(limits::SESSION, "mur run")?;
    if let Some(path) = args.roster {
        return formation::launch::run(formation::launch::Request {
            path,
            task: args.task,
            deadline: args.deadline,
            json: args.json,
            verbose: args.verbose,
            no_env_file: args.no_env_file,
            containment: args.containment,
        });
    }
    let source = match (args.capsule, args.capsule_version) {
        (Some(name), Some(version)) => {
            Source::Capsule { name, version, sha256: args.capsule_sha256, store_root: args.store_root }
        }
        _ => Source::Manifest(args.manifest),
    };
    session::run(RunRequest {
        start,
        source,
        task: args.task,
        system_prompt: args.system_prompt,
        deadline: args.deadline,
        inherited_deadline: args.inherited_deadline,
        context: args.context,
        resume: args.resume.map(|address| Resume { address, compact: args.resume_mode.as_deref() == Some("compact") }),
        forget_session: args.forget_session,
        task_acceptance: args.lifecycle_task_acceptance,
        after_task: args.lifecycle_after_task,
        place: args.workdir.map(|dir| Place { dir, identity: args.workdir_identity }),
        bind: args.bind,
        containment: args.containment,
        explain_scope: args.explain_scope,
        json: args.json,
        verbose: args.verbose,
        no_env_file: args.no_env_file,
        spawn_grant_stdin: args.spawn_grant_stdin,
        readiness_tokens: args.readiness_tokens,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Line::try_parse_from(std::iter::once("run").chain(line.split_whitespace())).map(|line| line.args)
    }

    #[test]
    fn flags_that_need_or_exclude_each_other_are_usage_errors() {
        for bad in [
            "--capsule local/a",
            "--capsule-version 1",
            "--capsule local/a --capsule-version 1 --manifest m.yaml",
            "--deadline 0",
            "--deadline 315360001",
            "--deadline x",
            "--resume-mode full",
            "--forget-session",
            "--forget-session --context c --resume @1",
            "--readiness-tokens",
            "--workdir-identity 1:2",
            "--capsule-sha256 00",
            "--store-root /x --capsule local/a --capsule-version 1",
            "--bind nowhere",
            "--roster --workdir .",
            "--roster --resume",
            "--roster . --inherited-deadline 5",
            "--roster . --bind 127.0.0.1",
            "--roster . --manifest ./murmur.yaml",
            "surplus",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bare_roster_is_the_file_in_the_current_directory() {
        let args = parse("--roster --task x --deadline 3 --json -v --no-env-file --containment scoped").unwrap();
        assert_eq!(args.roster, Some(PathBuf::from("roster.yaml")));
        assert_eq!(parse("--roster dir").unwrap().roster, Some(PathBuf::from("dir")));
        assert_eq!(parse("").unwrap().roster, None);
        assert_eq!(parse("--resume").unwrap().resume.as_deref(), Some("@1"));
    }
}
