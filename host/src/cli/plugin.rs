//! `mur plugin`: which plugins are pinned, signed and found, whether they work, and trusting one or its publisher.

mod publisher;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use serde_json::json;

use crate::cli::Outcome;
use crate::config::Config;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::paths::MurmurHome;
use crate::plugins::{Registry, Trusted};
use crate::process::{Exit, Spawn, Stream};

/// One plugin's whole check, its process included.
const CHECK_LIMIT: Duration = Duration::from_secs(150);

/// Flags of `mur plugin`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the plugins that are pinned or found, and why any would not be loaded
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Load a trusted plugin in a process of its own and run the conformance kit against it
    Check {
        /// The library; every plugin that is listed when absent
        file: Option<PathBuf>,
        /// Check a library that you have not decided to trust: ITS CODE THEN RUNS AS YOU, with all you may do, this once
        #[arg(long, requires = "file")]
        run_untrusted_code: bool,
        /// The configuration to try it with, one JSON object; otherwise its schema's first example
        #[arg(long, value_name = "JSON", requires = "file")]
        config: Option<String>,
        /// This process is the one that loads it, with this empty directory to try it in
        #[arg(long, hide = true, requires = "file", value_name = "DIR")]
        here: Option<PathBuf>,
    },
    /// Pin a library in ~/.murmur/plugins.lock: from then on it is trusted as mur itself
    Trust {
        /// The library
        file: PathBuf,
    },
    /// Trust, list and remove publishers, whose signed plugins need no pin
    #[command(subcommand)]
    Publisher(publisher::Command),
    /// Make a key to sign plugins of your own with; prints its public half
    Keygen {
        /// Where the secret half is written: a new file, readable by you alone
        file: PathBuf,
    },
    /// Sign a library of your own: writes FILE.sig beside it
    Sign {
        /// The library
        file: PathBuf,
        /// The key that `mur plugin keygen` wrote
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    match args.command {
        Command::List { json } => list(&registry()?, json),
        Command::Check { file: Some(file), config, here: Some(scratch), run_untrusted_code } => {
            check_here(&registry()?, &file, &scratch, config, run_untrusted_code)
        }
        Command::Check { file, config, run_untrusted_code, .. } => {
            check(&registry()?, file, config.as_deref(), run_untrusted_code)
        }
        Command::Trust { file } => trust(&registry()?, &file),
        Command::Publisher(command) => publisher::run(command, &registry()?),
        // An author needs no ~/.murmur.
        Command::Keygen { file } => publisher::keygen(&file),
        Command::Sign { file, key } => publisher::sign(&file, &key),
    }
}

fn registry() -> Result<Registry> {
    let home = MurmurHome::from_env()?;
    let config = Config::load_global(&home)?;
    Ok(Registry::new(&home, &config.plugins))
}

fn list(registry: &Registry, json: bool) -> Outcome {
    let listed = registry.list()?;
    if listed.is_empty() && !json {
        output::stdout_line("No plugins.");
    }
    for one in &listed {
        let kind = one.kind.map_or("-", |kind| kind.as_str());
        if json {
            let line = json!({
                "kind": one.kind.map(|kind| kind.as_str()),
                "name": one.name,
                "version": one.version,
                "class": Some(&one.class).filter(|class| !class.is_empty()),
                "path": one.path.to_string_lossy(),
                "first_party": one.first_party,
                "trusted": one.trusted.is_ok(),
                "publisher": match &one.trusted { Ok(Trusted::Signed(name)) => Some(name), _ => None },
                "code": one.trusted.as_ref().err().map(|why| why.code().as_str()),
                "reason": one.trusted.as_ref().err().map(Diagnostic::message),
            });
            output::stdout_line(&line.to_string());
            continue;
        }
        let (name, version) = (or_dash(&one.name), or_dash(&one.version));
        let class = if one.class.is_empty() { String::new() } else { format!("  class {}", one.class) };
        output::stdout_line(&format!("{kind:<12} {name:<16} {version:<10} {}{class}", trusted(&one.trusted)));
        output::stdout_line(&format!("  {}", one.path.display()));
        if let Err(why) = &one.trusted {
            output::stdout_line(&format!("  {}: {}", why.code(), why.message()));
        }
    }
    Ok(0)
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

fn trusted(judged: &Result<Trusted>) -> String {
    match judged {
        Err(_) => "not trusted".to_owned(),
        Ok(Trusted::FirstParty) => "trusted (part of mur)".to_owned(),
        Ok(Trusted::Pinned) => "trusted (pinned by you)".to_owned(),
        Ok(Trusted::Signed(publisher)) => format!("trusted (signed by {publisher})"),
    }
}

fn trust(registry: &Registry, file: &Path) -> Outcome {
    let pinned = registry.trust(file)?;
    let pin = &pinned.pin;
    output::stdout_line(&format!("Pinned {} '{}' {} (sha256 {})", pin.kind, pin.name, pin.version, pin.sha256));
    output::stdout_line(&format!("  {} in {}", pinned.path.display(), pinned.lock.display()));
    Ok(0)
}

/// A plugin that crashes must not take this command with it: each is checked in a child.
fn check(registry: &Registry, file: Option<PathBuf>, config: Option<&str>, anyway: bool) -> Outcome {
    let files = match file {
        Some(file) => vec![file],
        None => registry.list()?.into_iter().map(|one| one.path).collect(),
    };
    let mut failed = 0_usize;
    for file in &files {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        if anyway {
            let what = file.display();
            output::stderr_line(&format!("[mur] warning: the code of {what} runs as you now, trusted or not"));
        }
        match check_in_child(&file, config, anyway)? {
            Exit::Status(0) => {}
            Exit::Status(_) => failed += 1,
            Exit::Signal(signal) => {
                failed += 1;
                let what = format!("plugin library {} ended its process by signal {signal}", file.display());
                output::error(&Diagnostic::new(codes::E_PLG_005, what).hint("this is the plugin's own fault"));
            }
        }
    }
    Ok(u8::from(failed > 0))
}

fn check_in_child(file: &Path, config: Option<&str>, anyway: bool) -> Result<Exit> {
    let fault = |error: std::io::Error| {
        Diagnostic::new(codes::E_IO_003, format!("the process that checks a plugin: {error}"))
    };
    let scratch = Scratch::new().map_err(fault)?;
    let mut spawn = Spawn::mur().args(["plugin", "check", "--here"]).arg(&scratch.0).inherit_env(&[]);
    if let Some(config) = config {
        spawn = spawn.args(["--config", config]);
    }
    if anyway {
        spawn = spawn.arg("--run-untrusted-code");
    }
    let spawn = spawn.arg("--").arg(file).stdio(Stream::Null, Stream::Inherit, Stream::Inherit);
    let child = spawn.spawn().map_err(fault)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fault)?;
    let ended = runtime.block_on(async { tokio::time::timeout(CHECK_LIMIT, child.pidfd.wait()).await });
    match ended {
        Ok(exit) => exit.map_err(fault),
        Err(_) => {
            let _ = child.pidfd.signal(nix::sys::signal::Signal::SIGKILL);
            child.pidfd.reap().map_err(fault)
        }
    }
}

fn check_here(registry: &Registry, file: &Path, scratch: &Path, config: Option<String>, anyway: bool) -> Outcome {
    let (info, checks) = registry.check(file, scratch, config, anyway)?;
    let failed = checks.iter().filter(|check| check.outcome.is_err()).count();
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    output::stdout_line(&format!("{} '{}' {}: {verdict} ({} checks)", info.kind, info.name, info.version, checks.len()));
    for check in &checks {
        if let Err(why) = &check.outcome {
            output::stdout_line(&format!("  {}: {why}", check.rule));
        }
    }
    Ok(u8::from(failed > 0))
}

/// An empty directory, gone at the end whatever became of the process that used it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> std::io::Result<Self> {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| std::io::Error::other(error.to_string()))?;
        let path = std::env::temp_dir().join(format!("mur-plugin-check-{:016x}", u64::from_ne_bytes(seed)));
        crate::paths::make_new_private(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
