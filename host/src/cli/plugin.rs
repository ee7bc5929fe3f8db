//! `mur plugin`: which plugins are pinned and found, whether they work, and pinning one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use serde_json::json;

use crate::cli::Outcome;
use crate::config::Config;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::paths::MurmurHome;
use crate::plugins::{Listed, Registry};
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
    /// Load a pinned plugin in a process of its own and run the conformance kit against it
    Check {
        /// The library; every pinned plugin when absent
        file: Option<PathBuf>,
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
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let home = MurmurHome::from_env()?;
    let config = Config::load_global(&home)?;
    let registry = Registry::new(&home, &config.plugins);
    match args.command {
        Command::List { json } => list(&registry, json),
        Command::Check { file: Some(file), config, here: Some(scratch) } => {
            check_here(&registry, &file, &scratch, config)
        }
        Command::Check { file, config, .. } => check(&registry, file, config.as_deref()),
        Command::Trust { file } => trust(&registry, &file),
    }
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
                "trusted": one.refused.is_none(),
                "code": one.refused.as_ref().map(|why| why.code().as_str()),
                "reason": one.refused.as_ref().map(Diagnostic::message),
            });
            output::stdout_line(&line.to_string());
            continue;
        }
        let (name, version) = (or_dash(&one.name), or_dash(&one.version));
        let class = if one.class.is_empty() { String::new() } else { format!("  class {}", one.class) };
        output::stdout_line(&format!("{kind:<12} {name:<16} {version:<10} {}{class}", trusted(one)));
        output::stdout_line(&format!("  {}", one.path.display()));
        if let Some(why) = &one.refused {
            output::stdout_line(&format!("  {}: {}", why.code(), why.message()));
        }
    }
    Ok(0)
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

fn trusted(one: &Listed) -> &'static str {
    match (&one.refused, one.first_party) {
        (Some(_), _) => "not trusted",
        (None, true) => "trusted (part of mur)",
        (None, false) => "trusted (pinned by you)",
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
fn check(registry: &Registry, file: Option<PathBuf>, config: Option<&str>) -> Outcome {
    let files = match file {
        Some(file) => vec![file],
        None => registry.list()?.into_iter().map(|one| one.path).collect(),
    };
    let mut failed = 0_usize;
    for file in &files {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        match check_in_child(&file, config)? {
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

fn check_in_child(file: &Path, config: Option<&str>) -> Result<Exit> {
    let fault = |error: std::io::Error| {
        Diagnostic::new(codes::E_IO_003, format!("the process that checks a plugin: {error}"))
    };
    let scratch = Scratch::new().map_err(fault)?;
    let mut spawn = Spawn::mur().args(["plugin", "check", "--here"]).arg(&scratch.0).inherit_env(&[]);
    if let Some(config) = config {
        spawn = spawn.args(["--config", config]);
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

fn check_here(registry: &Registry, file: &Path, scratch: &Path, config: Option<String>) -> Outcome {
    let (info, checks) = registry.check(file, scratch, config)?;
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
