//! For tests of this crate: a registry over the first-party libraries as cargo builds them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mur_plugin_api::lock::{self, Pin};

use super::{Registry, Settings, catalog, trust};
use crate::paths::MurmurHome;

const LIBRARIES: [&str; 6] = [
    "libmur_store_directory.so",
    "libmur_sink_jsonl.so",
    "libmur_containment_unconfined.so",
    "libmur_containment_advisory.so",
    "libmur_containment_scoped.so",
    "libmur_containment_sealed.so",
];

/// Where cargo puts the libraries.
pub(crate) fn built(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("a test has an executable");
    let dir = exe.ancestors().nth(2).expect("cargo's target directory").to_owned();
    let path = dir.join(name);
    assert!(path.exists(), "{} is not built: cargo build --workspace --exclude xtask", path.display());
    path
}

/// Copies libraries into a directory and pins them there.
pub(crate) fn install(dir: &Path, names: &[&str]) {
    fs::create_dir_all(dir).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).unwrap();
    let mut pins = Vec::new();
    for name in names {
        let path = dir.join(name);
        fs::copy(built(name), &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let opened = trust::open_library(&path).unwrap();
        pins.push(Pin::new(&opened.header().unwrap(), opened.digest().unwrap(), (*name).to_owned()));
    }
    let lock_path = catalog::lock_in(dir);
    fs::write(&lock_path, lock::render(&pins)).unwrap();
    fs::set_permissions(&lock_path, fs::Permissions::from_mode(0o644)).unwrap();
}

/// A registry with every first-party plugin, installed under `home`.
pub(crate) fn registry(home: &Path) -> Registry {
    let dir = home.join("lib");
    install(&dir, &LIBRARIES);
    Registry::with_dir(&MurmurHome::at(home.to_owned()), &Settings::default(), Some(dir))
}
