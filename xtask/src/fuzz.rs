//! `cargo xtask fuzz`: the readers of outside bytes, under cargo-fuzz.
//!
//! What is committed under `tests/fuzz/corpus` is where the fuzzer starts, and runs in the ordinary suite. What it finds on
//! the way is kept beside the build; `--keep` adds the part of it that reaches code the committed corpus does not. An input
//! that breaks a reader is added at once, so that the suite fails until the reader is corrected.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Outcome, sh};

/// How long each target runs unless told otherwise.
const SECONDS: u64 = 30;

/// Longest input that is kept: the corpus is read by people too.
const LONGEST: u64 = 4096;

/// Fuzzes one target, or each for a short while, with one processor and behind everything else that runs.
pub fn fuzz(arguments: &[&str]) -> Outcome {
    let keep = arguments.contains(&"--keep");
    let words: Vec<&str> = arguments.iter().filter(|word| **word != "--keep").copied().collect();
    let (targets, seconds) = match words.as_slice() {
        [] => (targets()?, SECONDS),
        [target] => (vec![(*target).to_owned()], SECONDS),
        [target, seconds] => {
            let seconds = seconds.parse().map_err(|_| format!("'{seconds}' is no number of seconds"))?;
            (vec![(*target).to_owned()], seconds)
        }
        _ => return Err("usage: cargo xtask fuzz [TARGET [SECONDS]] [--keep]".to_owned()),
    };
    sh::have("cargo-fuzz")?;
    let toolchain = Toolchain::find();
    sh::say(toolchain.account());
    for target in targets {
        Target::new(&target)?.fuzz(&toolchain, seconds, keep)?;
    }
    Ok(())
}

fn folder() -> PathBuf {
    sh::root().join("tests/fuzz")
}

/// Every target, by name.
fn targets() -> Outcome<Vec<String>> {
    let entries = fs::read_dir(folder().join("fuzz_targets")).map_err(|fault| fault.to_string())?;
    let stem = |entry: fs::DirEntry| entry.path().file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let mut found: Vec<String> = entries.flatten().filter_map(stem).collect();
    found.sort();
    Ok(found)
}

/// Which compiler takes the sanitizer's flags.
enum Toolchain {
    Nightly,
    /// The stable one, told to take them.
    Bootstrap,
}

impl Toolchain {
    fn find() -> Self {
        let nightly = sh::text_of(Command::new("rustc").args(["+nightly", "--print", "sysroot"]));
        if nightly.is_some() { Self::Nightly } else { Self::Bootstrap }
    }

    fn account(&self) -> &'static str {
        match self {
            Self::Nightly => "with the nightly toolchain",
            Self::Bootstrap => "there is no nightly toolchain: RUSTC_BOOTSTRAP=1 with this one",
        }
    }

    /// cargo-fuzz, at the lowest priority.
    fn cargo_fuzz(&self) -> Command {
        let mut command = Command::new("nice");
        command.args(["-n", "19", "cargo"]).current_dir(folder());
        // rustup's name for the toolchain that runs this would win over the one asked for.
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
        match self {
            Self::Nightly => command.arg("+nightly"),
            Self::Bootstrap => command.env("RUSTC_BOOTSTRAP", "1"),
        };
        command.arg("fuzz");
        command
    }
}

/// One target and its folders.
struct Target {
    name: String,
    /// What is committed.
    corpus: PathBuf,
    /// What was found.
    found: PathBuf,
    /// What broke it.
    broken: PathBuf,
}

impl Target {
    fn new(name: &str) -> Outcome<Self> {
        if !folder().join("fuzz_targets").join(format!("{name}.rs")).is_file() {
            return Err(format!("there is no fuzz target '{name}'; there are: {}", targets()?.join(", ")));
        }
        let place = sh::target().join("fuzz");
        let target = Self {
            name: name.to_owned(),
            corpus: folder().join("corpus").join(name),
            found: place.join("found").join(name),
            broken: place.join("broken").join(name),
        };
        for one in [&target.corpus, &target.found, &target.broken] {
            sh::folder(one)?;
        }
        Ok(target)
    }

    fn fuzz(&self, toolchain: &Toolchain, seconds: u64, keep: bool) -> Outcome {
        sh::say(&format!("fuzzing {} for {seconds} s", self.name));
        let outcome = self.run(toolchain, &[&self.found, &self.corpus], &[&format!("-max_total_time={seconds}")]);
        if outcome.is_err() {
            let kept = self.keep_broken()?;
            if kept > 0 {
                return Err(format!(
                    "{kept} inputs break '{}'; they are now in {}, where the suite 'corpus' runs them",
                    self.name,
                    self.corpus.display()
                ));
            }
            return outcome;
        }
        if keep {
            let before = count(&self.corpus);
            self.run(toolchain, &[&self.corpus, &self.found], &["-merge=1", &format!("-max_len={LONGEST}")])?;
            sh::say(&format!("{} inputs were added to {}", count(&self.corpus) - before, self.corpus.display()));
        }
        Ok(())
    }

    fn run(&self, toolchain: &Toolchain, folders: &[&PathBuf], options: &[&str]) -> Outcome {
        let mut command = toolchain.cargo_fuzz();
        command.args(["run", "--fuzz-dir", ".", "--target-dir"]).arg(sh::target().join("fuzz/build")).arg(&self.name);
        command.args(folders).arg("--").args(options);
        command.arg(format!("-artifact_prefix={}/", self.broken.display()));
        sh::run(&mut command)
    }

    /// Adds what broke the target to the corpus.
    fn keep_broken(&self) -> Outcome<usize> {
        let entries = fs::read_dir(&self.broken).map_err(|fault| fault.to_string())?;
        let mut kept = 0;
        for entry in entries.flatten() {
            kept += usize::from(sh::copy(&entry.path(), &self.corpus.join(entry.file_name()), 0o644)?);
        }
        Ok(kept)
    }
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, |entries| entries.flatten().count())
}
