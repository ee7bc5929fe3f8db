//! The WASM toolchain: found, or installed, saying which.
//!
//! Any of these serves, in this order: the target `wasm32-unknown-unknown` of the running toolchain; a rustc with the
//! sources of its standard library, which is then built along (Debian's `rustc-web` and `rust-web-src`); the target from
//! rustup; the Debian packages from apt.

// As in `sh`.
#![allow(clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Outcome, packages, sh};

/// The one target of all guests.
pub const TARGET: &str = "wasm32-unknown-unknown";

/// A way to build guests.
pub enum Toolchain {
    /// The target is installed: plain cargo.
    Target,
    /// The standard library is built along, by this rustc and with this linker.
    Sources { rustc: PathBuf, library: PathBuf, linker: PathBuf },
}

/// Finds a toolchain, or installs one.
pub fn find() -> Outcome<Toolchain> {
    if has_target() {
        return Ok(Toolchain::Target);
    }
    if let Some(found) = from_sources() {
        return Ok(found);
    }
    if let Some(rustup) = sh::which("rustup") {
        sh::say(&format!("no WASM target yet: rustup target add {TARGET}"));
        if sh::run(Command::new(rustup).args(["target", "add", TARGET])).is_ok() && has_target() {
            return Ok(Toolchain::Target);
        }
        sh::say("rustup cannot add it");
    }
    if packages::can_install() {
        packages::install(&["rustc-web", "rust-web-src", "lld"])?;
        if let Some(found) = from_sources() {
            return Ok(found);
        }
    }
    Err(format!(
        "there is no toolchain for WASM here. Install one of:\n  rustup target add {TARGET}\n  \
         apt-get install rustc-web rust-web-src lld   (Debian and Ubuntu, as root)"
    ))
}

fn has_target() -> bool {
    let libraries = sh::text_of(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]));
    let Some(folder) = libraries else { return false };
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-"))
}

fn from_sources() -> Option<Toolchain> {
    // Debian's compiler first: it and its sources come in one version, while a rustup toolchain rarely has sources.
    let candidates = [Some(PathBuf::from("/usr/bin/rustc")), sh::which("rustc")];
    let (rustc, library) = candidates.into_iter().flatten().find_map(|rustc| {
        let sysroot = sh::text_of(Command::new(&rustc).args(["--print", "sysroot"]))?;
        let library = Path::new(&sysroot).join("lib/rustlib/src/rust/library");
        library.join("Cargo.lock").is_file().then_some((rustc, library))
    })?;
    let linker = linker()?;
    Some(Toolchain::Sources { rustc, library, linker })
}

fn linker() -> Option<PathBuf> {
    let rustc = |what: &str| sh::text_of(Command::new("rustc").args(["--print", what]));
    let host = sh::text_of(Command::new("rustc").arg("-vV"))
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("host: ").map(str::to_owned)));
    let bundled = rustc("sysroot")
        .zip(host)
        .map(|(sysroot, host)| Path::new(&sysroot).join("lib/rustlib").join(host).join("bin/rust-lld"));
    let versions = (10..40).rev().map(|version| format!("wasm-ld-{version}"));
    bundled
        .filter(|file| file.is_file())
        .or_else(|| sh::which("rust-lld"))
        .or_else(|| sh::which("wasm-ld"))
        .or_else(|| versions.into_iter().find_map(sh::which))
}

impl Toolchain {
    /// One line about it.
    pub fn describe(&self) -> String {
        match self {
            Self::Target => format!("the installed target {TARGET}"),
            Self::Sources { rustc, library, .. } => {
                format!("{} with the standard library's sources in {}", rustc.display(), library.display())
            }
        }
    }

    /// Sets a cargo call up to build with it.
    pub fn apply(&self, command: &mut Command, root: &Path) {
        command.args(["--release", "--target", TARGET]);
        let mut remaps = vec![(root.to_owned(), "/mur".to_owned())];
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
        if let Some(home) = home {
            remaps.push((home.join("registry/src"), "/registry".to_owned()));
        }
        if let Self::Sources { rustc, library, linker } = self {
            command.args(["-Z", "build-std=std,panic_abort"]);
            command.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
            command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
            remaps.push((library.clone(), "/rust/library".to_owned()));
            if let Ok(real) = library.canonicalize() {
                remaps.push((real, "/rust/library".to_owned()));
            }
        } else {
            command.env_remove("RUSTC");
        }
        // No path of this machine is left inside a component, so its bytes are the same wherever it was built.
        let flags: Vec<String> =
            remaps.iter().map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())).collect();
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}")).env_remove("RUSTFLAGS");
        for name in ["CARGO_BUILD_TARGET", "CARGO_BUILD_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
            command.env_remove(name);
        }
    }
}
