//! `cargo xtask deny`: what is depended on, under `deny.toml`.
//!
//! By hand, and not part of the suite: the advisories come from outside, and change without the project doing anything.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use crate::{Outcome, sh};

/// Every workspace of the project.
const WORKSPACES: [&str; 3] = [".", "plugins/guest", "tests/fuzz"];

/// Checks licences, bans and sources, and then the advisories unless told not to.
pub fn deny(arguments: &[&str]) -> Outcome {
    let advisories = match arguments {
        [] => true,
        ["--no-advisories"] => false,
        _ => return Err("usage: cargo xtask deny [--no-advisories]".to_owned()),
    };
    sh::have("cargo-deny")?;
    for workspace in WORKSPACES {
        sh::say(&format!("licences, bans and sources of {workspace}"));
        check(workspace, &["bans", "licenses", "sources"])?;
    }
    if !advisories {
        return Ok(());
    }
    sh::say("advisories, from the RustSec database");
    check(".", &["advisories"])
        .map_err(|fault| format!("{fault}\nwhere the database cannot be reached: cargo xtask deny --no-advisories"))
}

fn check(workspace: &str, checks: &[&str]) -> Outcome {
    let mut command = sh::cargo(&sh::root().join(workspace));
    command.args(["deny", "--config"]).arg(sh::root().join("deny.toml")).arg("check");
    // Two versions of a crate are listed only when somebody asks cargo-deny itself, and one file serves three workspaces.
    command.args(["--allow", "duplicate", "--allow", "license-exception-not-encountered"]);
    sh::run(command.args(checks))
}
