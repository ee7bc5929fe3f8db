//! Which suites a machine runs, and the building of their programs.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use super::Built;
use crate::{Outcome, sh};

/// A test program of the workspace.
pub struct Suite {
    /// Its name as `cargo test --test` takes it; the machine runs it by this name.
    pub name: &'static str,
}

/// The suites that the kernel decides. Who runs them is the machine's: `root.sh` and `user.sh`.
pub const SUITES: [Suite; 4] = [
    Suite { name: "confined" },
    Suite { name: "lifecycle" },
    Suite { name: "containment" },
    Suite { name: "delegation" },
];

/// Builds the test programs.
pub fn build(suites: &[&Suite]) -> Outcome<Vec<Built>> {
    sh::say("building the test programs");
    let mut command = sh::cargo(&sh::root());
    command.args(["test", "--workspace", "--exclude", "xtask", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    for suite in suites {
        command.args(["--test", suite.name]);
    }
    command.stderr(Stdio::inherit());
    let output = sh::output(&mut command)?;
    if !output.status.success() {
        return Err(format!("{} ended with {}", sh::line(&command), output.status));
    }
    let mut built = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let test = message["target"]["kind"].as_array().is_some_and(|kinds| kinds.contains(&"test".into()));
        if let (true, Some(name), Some(path)) =
            (test, message["target"]["name"].as_str(), message["executable"].as_str())
        {
            built.push(Built { name: name.to_owned(), path: PathBuf::from(path) });
        }
    }
    for suite in suites {
        if !built.iter().any(|built| built.name == suite.name) {
            return Err(format!("cargo built no program of the suite '{}'", suite.name));
        }
    }
    Ok(built)
}
