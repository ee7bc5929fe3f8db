//! `cargo xtask test`: everything that must hold.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::process::Command;
use std::time::Instant;

use crate::dist::{self, Profile};
use crate::{Outcome, demo, packages, sh};

/// Runs every step, the cheapest first, and stops at the first that fails.
pub fn test() -> Outcome {
    let root = sh::root();
    let guest = root.join("plugins/guest");
    let guest_target = sh::target().join("guest-host");
    let lints = ["--", "-D", "warnings"];
    let mut steps = Steps::default();
    steps.run("format", || sh::run(sh::cargo(&root).args(["fmt", "--all", "--", "--check"])))?;
    steps.run("format of the guests", || sh::run(sh::cargo(&guest).args(["fmt", "--all", "--", "--check"])))?;
    steps.run("lints", || {
        sh::run(
            sh::cargo(&root).args(["clippy", "-q", "--workspace", "--exclude", "xtask", "--all-targets"]).args(lints),
        )
    })?;
    steps.run("lints of xtask", || {
        sh::run(sh::cargo(&root).args(["clippy", "-q", "-p", "xtask", "--all-targets"]).args(lints))
    })?;
    steps.run("lints of the guests", || {
        sh::run(
            sh::cargo(&guest)
                .args(["clippy", "-q", "--workspace", "--all-targets"])
                .args(lints)
                .env("CARGO_TARGET_DIR", &guest_target),
        )
    })?;
    steps.run("tests of the guests", || {
        sh::run(sh::cargo(&guest).args(["test", "-q", "--workspace"]).env("CARGO_TARGET_DIR", &guest_target))
    })?;
    steps.run("tests of xtask", || sh::run(sh::cargo(&root).args(["test", "-q", "-p", "xtask"])))?;
    let mut assembled = None;
    steps.run("dist", || {
        assembled = Some(dist::dist(Profile::Debug)?);
        Ok(())
    })?;
    let assembled = assembled.ok_or("nothing was assembled")?;
    steps.run("dist with the escape probe", || dist::escape_probe().map(|_| ()))?;
    steps.run("programs of the suites", packages::of_the_suites)?;
    steps.run("suites", || {
        sh::run(
            sh::cargo(&root)
                .args(["test", "--workspace", "--exclude", "xtask", "--no-fail-fast"])
                .env("MUR_DIST", &assembled.root),
        )
    })?;
    // Ignored by default, since they need what dist just built.
    steps.run("guests in a worker", || {
        sh::run(
            sh::cargo(&root)
                .args(["test", "--workspace", "--exclude", "xtask", "--test", "guests", "--", "--include-ignored"])
                .env("MUR_DIST", &assembled.root),
        )
    })?;
    steps.run("dependencies", || match sh::which("cargo-deny") {
        Some(deny) => {
            sh::run(Command::new(deny).args(["--offline", "check", "licenses", "bans", "sources"]).current_dir(&root))
        }
        None => {
            sh::say("cargo-deny is not installed: deny.toml is not checked");
            Ok(())
        }
    })?;
    steps.run("demo", || demo::demo(&[]))?;
    steps.close();
    Ok(())
}

#[derive(Default)]
struct Steps {
    passed: usize,
}

impl Steps {
    fn run(&mut self, name: &str, step: impl FnOnce() -> Outcome) -> Outcome {
        let start = Instant::now();
        sh::say(&format!("── {name}"));
        step().map_err(|fault| format!("{name}: {fault}"))?;
        sh::say(&format!("── {name}: passed in {:.1} s", start.elapsed().as_secs_f64()));
        self.passed += 1;
        Ok(())
    }

    fn close(&self) {
        sh::print(&format!("steps: {} passed, 0 failed\n", self.passed));
    }
}
