//! Which suites a machine runs, and the building of their programs.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use super::Built;
use crate::{Outcome, sh};

/// How a suite is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A test program.
    Tests,
    /// The escape-conformance harness, once a class.
    Harness,
}

/// A suite of the workspace.
pub struct Suite {
    /// What `--suite` calls it.
    pub name: &'static str,
    /// How it is run.
    pub kind: Kind,
    /// Its program, as cargo and the machine call it.
    program: &'static str,
}

const fn tests(name: &'static str) -> Suite {
    Suite { name, kind: Kind::Tests, program: name }
}

/// The suites that the kernel decides. Who runs them is the machine's: `root.sh` and `user.sh`.
pub const SUITES: [Suite; 5] = [
    tests("confined"),
    tests("lifecycle"),
    tests("containment"),
    tests("delegation"),
    Suite { name: "escape", kind: Kind::Harness, program: "escape-conformance" },
];

/// Builds the programs of suites.
pub fn build(suites: &[&Suite]) -> Outcome<Vec<Built>> {
    sh::say("building the test programs");
    let mut built = Vec::new();
    for (kind, command, flag) in
        [(Kind::Tests, &["test", "--no-run"][..], "--test"), (Kind::Harness, &["build"][..], "--bin")]
    {
        let programs: Vec<&str> = suites.iter().filter(|suite| suite.kind == kind).map(|suite| suite.program).collect();
        if !programs.is_empty() {
            built.extend(programs_of(command, flag, &programs)?);
        }
    }
    Ok(built)
}

/// One call of cargo; cargo itself tells what it made.
fn programs_of(words: &[&str], flag: &str, programs: &[&str]) -> Outcome<Vec<Built>> {
    let mut command = sh::cargo(&sh::root());
    command.args(words).args(["--workspace", "--exclude", "xtask", "--message-format=json-render-diagnostics"]);
    for program in programs {
        command.args([flag, program]);
    }
    command.stderr(Stdio::inherit());
    let output = sh::output(&mut command)?;
    if !output.status.success() {
        return Err(format!("{} ended with {}", sh::line(&command), output.status));
    }
    let mut built: Vec<Built> = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let target = &message["target"]["name"];
        let name = programs.iter().find(|program| *target == **program);
        if let (Some(name), Some(path)) = (name, message["executable"].as_str()) {
            built.push(Built { name: (*name).to_owned(), path: PathBuf::from(path) });
        }
    }
    match programs.iter().find(|program| !built.iter().any(|built| built.name == **program)) {
        None => Ok(built),
        Some(missing) => Err(format!("cargo built no program '{missing}'")),
    }
}
