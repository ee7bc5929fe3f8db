//! Running programs, saying what happens, and writing files only where they change.

// xtask is no part of mur: it starts cargo and the built binary as a shell script would.
#![allow(clippy::disallowed_methods)]

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::Outcome;

/// The workspace's root: that of the cargo that runs this, since a build folder may have been copied from another checkout.
pub fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().expect("xtask lies in the workspace").to_owned()
}

/// Where everything that is built goes.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Says something to whoever watches.
pub fn say(text: &str) {
    let mut stderr = std::io::stderr().lock();
    for line in text.lines() {
        // A closed stderr changes nothing about the work.
        let _ = writeln!(stderr, "[xtask] {line}");
    }
}

/// Prints a result.
pub fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// The cargo that runs this, from outside of what cargo set up for this.
pub fn cargo(directory: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(directory);
    // Set for xtask's own build and run; in another build they would mean something else.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let own = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
        if own.iter().any(|prefix| text.starts_with(prefix)) || text == "CARGO_PRIMARY_PACKAGE" {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command whose output belongs to the operator.
pub fn run(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|fault| format!("{}: {fault}", line(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", line(command))) }
}

/// Runs a command and takes what it prints.
pub fn output(command: &mut Command) -> Outcome<Output> {
    command.stdin(Stdio::null());
    command.output().map_err(|fault| format!("{}: {fault}", line(command)))
}

/// What a command printed, if it went well.
pub fn text_of(command: &mut Command) -> Option<String> {
    let output = output(command).ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A command as one would type it.
pub fn line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    if let Some(name) = Path::new(&words[0]).file_name() {
        words[0] = name.to_string_lossy().into_owned();
    }
    words.join(" ")
}

/// A program on the path whose file is really there.
pub fn which(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name.as_ref())).find(|file| file.is_file())
}

/// A program of cargo's, installed where it is not there.
pub fn have(program: &str) -> Outcome {
    if which(program).is_some() {
        return Ok(());
    }
    say(&format!("{program} is not installed: cargo install --locked {program}"));
    run(cargo(&root()).args(["install", "--locked", program]))?;
    match which(program) {
        Some(_) => Ok(()),
        None => Err(format!("{program} was installed and is not on the path: put ~/.cargo/bin there")),
    }
}

/// Writes a file unless it already has this content, by a rename, and with a mode that shuts out others' writing.
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> Outcome<bool> {
    let say = |fault: std::io::Error| format!("{}: {fault}", path.display());
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(false);
    }
    folder(path.parent().expect("a file lies in a folder"))?;
    let scratch = path.with_extension(format!("tmp-{}", std::process::id()));
    fs::write(&scratch, bytes).map_err(say)?;
    fs::set_permissions(&scratch, fs::Permissions::from_mode(mode)).map_err(say)?;
    fs::rename(&scratch, path).map_err(say)?;
    Ok(true)
}

/// Copies a file unless the copy is as long and as old.
pub fn copy(from: &Path, to: &Path, mode: u32) -> Outcome<bool> {
    let say = |fault: std::io::Error| format!("{} to {}: {fault}", from.display(), to.display());
    let source = fs::metadata(from).map_err(say)?;
    let stamp = source.modified().map_err(say)?;
    if let Ok(old) = fs::metadata(to)
        && old.len() == source.len()
        && old.modified().is_ok_and(|old| old == stamp)
    {
        return Ok(false);
    }
    folder(to.parent().expect("a file lies in a folder"))?;
    let scratch = to.with_extension(format!("tmp-{}", std::process::id()));
    fs::copy(from, &scratch).map_err(say)?;
    fs::set_permissions(&scratch, fs::Permissions::from_mode(mode)).map_err(say)?;
    fs::File::options().write(true).open(&scratch).and_then(|file| file.set_modified(stamp)).map_err(say)?;
    fs::rename(&scratch, to).map_err(say)?;
    Ok(true)
}

/// Makes a folder, and shuts out others' writing.
pub fn folder(path: &Path) -> Outcome {
    let say = |fault: std::io::Error| format!("{}: {fault}", path.display());
    fs::create_dir_all(path).map_err(say)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(say)
}
