//! Pinning a library by the operator's own decision.

use std::fs::File;
use std::path::Path;

use mur_plugin_api::lock::{self, Pin};

use super::approve::check_name;
use super::catalog::{self, Pinned};
use super::trust;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::paths::{MurmurHome, make_private, write_atomic};

/// Pins a library in `~/.murmur/plugins.lock`, replacing an older pin of the same kind and name. Reads the file and its
/// header; runs none of it.
pub(super) fn pin(home: &MurmurHome, first_party: &[Pinned], file: &Path) -> Result<Pinned> {
    let path = std::fs::canonicalize(file).map_err(|error| {
        Diagnostic::new(codes::E_PLG_003, format!("plugin library {} cannot be read: {error}", file.display()))
            .hint("name the library that was built")
    })?;
    let opened = trust::open_library(&path)?;
    let header = opened.header()?;
    let text = path.to_str().filter(|text| !text.contains(char::is_control)).ok_or_else(|| {
        Diagnostic::new(codes::E_PLG_007, format!("{} cannot be written into a plugin lock", path.display()))
            .hint("move the library to a path of plain UTF-8 text")
    })?;
    check_name(first_party, &path, &header)?;
    let pin = Pin::new(&header, opened.digest()?, text.to_owned());
    record(home, pin.clone())?;
    Ok(Pinned { pin, path, lock: home.plugins_lock() })
}

fn record(home: &MurmurHome, pin: Pin) -> Result<()> {
    let lock_path = home.plugins_lock();
    let fault = |error: std::io::Error| {
        Diagnostic::new(codes::E_PLG_007, format!("plugin lock {} cannot be written: {error}", lock_path.display()))
    };
    make_private(home.root()).map_err(fault)?;
    // Two `mur plugin trust` at once must not lose each other's pin.
    let guard = File::open(home.root()).map_err(fault)?;
    guard.lock().map_err(fault)?;
    let mut pins: Vec<Pin> = catalog::read(&lock_path)?.into_iter().map(|known| known.pin).collect();
    pins.retain(|known| known.kind != pin.kind || known.name != pin.name);
    pins.push(pin);
    write_atomic(&lock_path, lock::render(&pins).as_bytes(), 0o600).map_err(fault)
}
