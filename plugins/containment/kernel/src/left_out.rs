//! Only in a build with the feature `leave-out`, which no distribution has: steps that are not made, so that the
//! escape-conformance harness can show that what they hold is held by them.
//!
//! The names lie in `lib/mur/left-out` of the binary's prefix, one a line. They are read once, before anything is entered.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Whether a step is among them.
pub(crate) fn is(step: &str) -> bool {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    NAMES.get_or_init(read).iter().any(|name| name == step)
}

fn read() -> Vec<String> {
    let text = file().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn file() -> Option<PathBuf> {
    let binary = fs::read_link("/proc/self/exe").ok()?;
    Some(binary.parent()?.parent()?.join("lib/mur/left-out"))
}
