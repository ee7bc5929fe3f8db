//! The installed form of `mur`, assembled under `target/dist/<profile>`:
//! `bin/mur`, `lib/mur/plugins/{*.so, plugins.lock}`, `lib/mur/artifacts/murmur/…`.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use mur_plugin_api::{elf, lock};
use serde_json::Value;

use crate::{Outcome, bundle, guests, sh};

/// How it is built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Quick to build, checks on.
    Debug,
    /// What is measured and installed.
    Release,
}

impl Profile {
    /// Its folder's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// An assembled `mur`.
pub struct Dist {
    /// Its prefix.
    pub root: PathBuf,
    /// The binary in it.
    pub mur: PathBuf,
}

/// Builds everything and assembles it; quick when nothing changed.
pub fn dist(profile: Profile) -> Outcome<Dist> {
    assemble(profile, profile.name(), &[])
}

/// The same with a `mur` that holds the probe of the escape-conformance harness, in a prefix of its own. The packages and
/// the profile are those of [`dist`], so that cargo builds the package `mur` and the probe once more, and nothing else.
pub fn escape_probe() -> Outcome<Dist> {
    let dist = assemble(Profile::Debug, "probe", &["--features", "mur/escape-probe"])?;
    // For the routes of commands: the probe as a library and as a program, of the same build.
    let folder = dist.root.join("lib/mur/probe");
    sh::folder(&folder)?;
    for file in ["libmur_escape_probe.so", "escape-probe"] {
        sh::copy(&sh::target().join("debug").join(file), &folder.join(file), 0o755)?;
    }
    broken(&dist)?;
    Ok(dist)
}

/// Beside that prefix, the libraries of the kernel's classes built such that they leave out what a file names, with their
/// pins: the harness puts them in place of the whole ones, to show that what each step holds is held by it.
fn broken(dist: &Dist) -> Outcome {
    let feature = ["-p", "mur-containment-scoped", "-p", "mur-containment-sealed", "--features"];
    let built = libraries(&[&feature[..], &["mur-containment-kernel/leave-out"]].concat())?;
    let folder = sh::target().join("dist/broken");
    sh::folder(&folder)?;
    let whole = dist.root.join("lib/mur/plugins");
    let say = |fault: std::io::Error| format!("{}: {fault}", whole.display());
    // The others as they are: a prefix has them all.
    let mut all: Vec<PathBuf> = fs::read_dir(&whole).map_err(say)?.flatten().map(|entry| entry.path()).collect();
    all.retain(|path| path.extension().is_some_and(|ending| ending == "so"));
    all.retain(|path| built.iter().all(|broken| broken.file_name() != path.file_name()));
    all.extend(built);
    all.sort();
    plugins(&folder, &all)
}

fn assemble(profile: Profile, name: &str, flags: &[&str]) -> Outcome<Dist> {
    let built = build(profile, flags)?;
    let guests = guests::build()?;
    let root = sh::target().join("dist").join(name);
    let library = root.join("lib/mur");
    for folder in [&root, &root.join("bin"), &root.join("lib"), &library, &library.join("plugins")] {
        sh::folder(folder)?;
    }
    plugins(&library.join("plugins"), &built.plugins)?;
    artifacts(&library.join("artifacts"), &guests)?;
    let mur = root.join("bin/mur");
    sh::copy(&built.mur, &mur, 0o755)?;
    Ok(Dist { root, mur })
}

struct Built {
    mur: PathBuf,
    plugins: Vec<PathBuf>,
}

/// One cargo call for the whole workspace but xtask, which runs; cargo itself tells what it made.
fn build(profile: Profile, flags: &[&str]) -> Outcome<Built> {
    sh::say(&format!("building mur and its plugins ({})", profile.name()));
    let mut words = vec!["--workspace", "--exclude", "xtask"];
    words.extend(flags);
    if profile == Profile::Release {
        words.push("--release");
    }
    let messages = messages(&words)?;
    let mur = messages.iter().find(|message| message["target"]["name"] == "mur" && message["executable"].is_string());
    let mur = mur.and_then(|message| message["executable"].as_str()).map(PathBuf::from);
    Ok(Built { mur: mur.ok_or("cargo built no 'mur'")?, plugins: plugins_of(&messages) })
}

/// The plugins' libraries of another build.
fn libraries(words: &[&str]) -> Outcome<Vec<PathBuf>> {
    sh::say("building libraries that leave steps out");
    messages(words).map(|messages| plugins_of(&messages))
}

/// What cargo tells of what it built.
fn messages(words: &[&str]) -> Outcome<Vec<Value>> {
    let mut command = sh::cargo(&sh::root());
    command.args(["build", "--message-format=json-render-diagnostics"]).args(words);
    command.stderr(Stdio::inherit());
    let output = sh::output(&mut command)?;
    if !output.status.success() {
        return Err(format!("{} ended with {}", sh::line(&command), output.status));
    }
    let read = |line: &str| serde_json::from_str::<Value>(line).ok();
    let messages = String::from_utf8_lossy(&output.stdout).lines().filter_map(read).collect::<Vec<_>>();
    Ok(messages.into_iter().filter(|message| message["reason"] == "compiler-artifact").collect())
}

/// The libraries among them that are plugins.
fn plugins_of(messages: &[Value]) -> Vec<PathBuf> {
    let mut plugins: Vec<PathBuf> = Vec::new();
    for message in messages {
        let package = message["manifest_path"].as_str().unwrap_or_default();
        let files = message["filenames"].as_array().cloned().unwrap_or_default();
        let library = message["target"]["crate_types"].as_array().is_some_and(|types| types.contains(&"cdylib".into()));
        if library && Path::new(package).starts_with(sh::root().join("plugins")) {
            plugins
                .extend(files.iter().filter_map(Value::as_str).filter(|file| file.ends_with(".so")).map(PathBuf::from));
        }
    }
    plugins.sort();
    plugins
}

/// Copies the libraries and pins exactly them.
fn plugins(folder: &Path, libraries: &[PathBuf]) -> Outcome {
    let mut pins = Vec::new();
    let mut names = Vec::new();
    for library in libraries {
        let name = library.file_name().expect("a library has a name").to_string_lossy().into_owned();
        let copy = folder.join(&name);
        sh::copy(library, &copy, 0o755)?;
        names.push(name.clone());
        let bytes = fs::read(&copy).map_err(|fault| format!("{}: {fault}", copy.display()))?;
        match elf::read_header(bytes.as_slice(), bytes.len() as u64) {
            Ok(header) => pins.push(lock::Pin::new(&header, bundle::sha256(&bytes), name)),
            Err(fault) => sh::say(&format!("{name} is left unpinned: {fault}")),
        }
    }
    sh::write(&folder.join(lock::LOCK_FILE), lock::render(&pins).as_bytes(), 0o644)?;
    names.push(lock::LOCK_FILE.to_owned());
    sweep(folder, &names)
}

/// Files the guests in the bundled store and removes what it held of older ones.
fn artifacts(root: &Path, guests: &[guests::Guest]) -> Outcome {
    let mut names = Vec::new();
    for guest in guests {
        if bundle::store(root, "murmur", guest)? {
            sh::say(&format!("bundled murmur/{}@{}", guest.name, guest.version));
        }
        sweep(&root.join("murmur").join(&guest.name), std::slice::from_ref(&guest.version))?;
        names.push(guest.name.clone());
    }
    sweep(&root.join("murmur"), &names)
}

/// Removes from a folder of ours whatever is not among `keep`.
fn sweep(folder: &Path, keep: &[String]) -> Outcome {
    let say = |fault: std::io::Error| format!("{}: {fault}", folder.display());
    for entry in fs::read_dir(folder).map_err(say)?.flatten() {
        if keep.iter().any(|name| entry.file_name() == name.as_str()) {
            continue;
        }
        let path = entry.path();
        if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.map_err(say)?;
    }
    Ok(())
}
