//! `cargo xtask fuzz`: the readers of outside bytes, under cargo-fuzz.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use crate::{Outcome, sh};

/// Fuzzes one target, or each for a short while.
pub fn fuzz(arguments: &[&str]) -> Outcome {
    if sh::which("cargo-fuzz").is_none() {
        return Err(
            "cargo-fuzz is not installed: cargo install cargo-fuzz (the committed corpus runs in the suite)".into()
        );
    }
    let folder = sh::root().join("tests/fuzz");
    let targets: Vec<String> = match arguments.first() {
        Some(target) => vec![(*target).to_owned()],
        None => std::fs::read_dir(folder.join("fuzz_targets"))
            .map_err(|fault| fault.to_string())?
            .flatten()
            .filter_map(|entry| entry.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()))
            .collect(),
    };
    let seconds = arguments.get(1).map_or("30", |seconds| seconds);
    for target in targets {
        sh::say(&format!("fuzzing {target} for {seconds} s"));
        sh::run(
            sh::cargo(&folder)
                .env_remove("CARGO")
                .args(["+nightly", "fuzz", "run", "--fuzz-dir", "."])
                .arg(&target)
                .arg("--")
                .arg(format!("-max_total_time={seconds}")),
        )?;
    }
    Ok(())
}
