//! `cargo xtask soak`: what the suite does in small, at length.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::process::Command;

use crate::dist::{self, Profile};
use crate::{Outcome, sh};

/// Launches in a row unless `--launches` says otherwise.
const LAUNCHES: u64 = 200;
/// Minutes a formation is held unless `--minutes` says otherwise.
const MINUTES: u64 = 30;

/// Builds, holds one formation under tasks, then launches in a row. Fails when something grows or is left.
pub fn soak(arguments: &[&str]) -> Outcome {
    let (mut launches, mut minutes, mut profile) = (LAUNCHES, MINUTES, Profile::Debug);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut number =
            || rest.next().and_then(|number| number.parse().ok()).ok_or(format!("{argument} needs a number"));
        match *argument {
            "--launches" => launches = number()?,
            "--minutes" => minutes = number()?,
            "--release" => profile = Profile::Release,
            _ => return Err("usage: cargo xtask soak [--launches N] [--minutes M] [--release]".to_owned()),
        }
    }
    let dist = dist::dist(profile)?;
    let mut build = sh::cargo(&sh::root());
    build.args(["build", "--workspace", "--exclude", "xtask", "--example", "soak"]);
    if profile == Profile::Release {
        build.arg("--release");
    }
    sh::run(&mut build)?;
    sh::say(&format!("a formation under tasks for {minutes} minutes, then {launches} launches"));
    let mut command = Command::new(sh::target().join(profile.name()).join("examples/soak"));
    sh::run(command.args([launches, minutes * 60].map(|number| number.to_string())).env("MUR_DIST", &dist.root))
}
