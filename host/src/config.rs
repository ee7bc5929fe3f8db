//! Configuration files: `~/.murmur/config.yaml` and `<cwd>/.murmur/config.yaml`, merged.
//!
//! A project file comes with whatever was cloned: it can never set plugins, stores, sinks, `host_paths`, credentials or
//! the class `unconfined`. What it tries of these is ignored with a warning that names the file and no value.

pub mod keys;
mod read;
pub mod set;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use mur_plugin_api::Class;
use zeroize::Zeroizing;

use crate::diagnostics::{Diagnostic, Result};
use crate::paths::MurmurHome;
use crate::plugins;

/// A configuration file larger than this is refused before it is read.
pub const MAX_BYTES: u64 = 1 << 20;

/// The project's file, below the current directory.
pub const PROJECT_FILE: &str = ".murmur/config.yaml";

/// The merged configuration.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Keys by name, from the global file only.
    pub credentials: BTreeMap<String, Secret>,
    /// The strongest floor either file sets.
    pub containment: Option<Class>,
    /// `plugins:` of the global file.
    pub plugins: plugins::Settings,
    /// `stores:` of the global file, asked after the directory stores, in their order.
    pub stores: Vec<PluginConfig>,
    /// `sinks:` of the global file, beside `jsonl`.
    pub sinks: Vec<PluginConfig>,
    /// Host folders every tool sees, from the global file only.
    pub host_paths: Vec<HostPath>,
    /// `spend.machine_tokens_per_day`, the lowest of both files.
    pub machine_tokens_per_day: Option<u64>,
    /// `inference:` of the global file: what `mur new --roster` writes.
    pub inference: InferenceDefaults,
    /// Lines for stderr, complete.
    pub warnings: Vec<String>,
    /// Keys that nothing reads, for `mur doctor`: a launch ignores them silently. Complete lines.
    pub unknown: Vec<String>,
    /// `W-SEC-028` when the global file holds credentials and others may read it.
    pub readable_by_others: Option<Diagnostic>,
}

/// A secret read from a file: wiped when dropped, never printed.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a text over.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One entry of `stores:` or `sinks:`.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginConfig {
    /// The pinned plugin's name, or the absolute path of a pinned or signed library.
    pub plugin: String,
    /// Handed to it as a JSON object.
    pub config: serde_json::Value,
}

/// One entry of `host_paths:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath {
    /// Absolute, exists, does not overlap `~/.murmur`.
    pub path: PathBuf,
    /// Writable too.
    pub write: bool,
}

/// `inference:` of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InferenceDefaults {
    /// `anthropic`, `openai`.
    pub provider: Option<String>,
    /// The model written into scaffolds.
    pub model: Option<String>,
    /// The endpoint written into scaffolds.
    pub endpoint: Option<String>,
}

impl Config {
    /// Reads and merges both files; an absent file is an empty one. `cwd` is the current directory: there is no walk
    /// upwards.
    ///
    /// # Errors
    /// `E-IO-003` naming the file that cannot be read, parsed or used.
    pub fn load(home: &MurmurHome, cwd: &Path) -> Result<Self> {
        let mut config = Self::load_global(home)?;
        let project = cwd.join(PROJECT_FILE);
        // In the home directory both names are one file, and it is the operator's.
        if !same_file(&project, &home.config()) {
            read::add_project(&mut config, &project)?;
        }
        Ok(config)
    }

    /// Reads the global file alone.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_global(home: &MurmurHome) -> Result<Self> {
        read::global(home)
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.dev() == b.dev() && a.ino() == b.ino(),
        _ => a == b,
    }
}

/// Reads one credential of the global file again, as it stands now: `None` when it is gone, blank or unreadable.
pub fn credential_now(home: &MurmurHome, name: &str) -> Option<Secret> {
    let mut config = Config::load_global(home).ok()?;
    config.credentials.remove(name)
}

/// Entry of the fuzz target: no bytes make the reader panic.
pub fn fuzz(bytes: &[u8]) {
    read::fuzz(bytes);
}

#[cfg(test)]
mod tests;
