//! Which plugins are pinned: the lock beside the first-party libraries, and the operator's own.

use std::path::{Path, PathBuf};

use mur_plugin_api::lock::{self, LOCK_FILE, MAX_LOCK, Pin};
use mur_plugin_api::{HeaderInfo, Kind};

use super::trust;
use crate::diagnostics::{Diagnostic, Result, codes};

/// A pinned library and the lock that pins it.
#[derive(Clone, Debug)]
pub struct Pinned {
    /// The pin.
    pub pin: Pin,
    /// The library, absolute.
    pub path: PathBuf,
    /// The lock file.
    pub lock: PathBuf,
}

/// The pins of one lock; none when there is no lock.
pub(super) fn read(lock_path: &Path) -> Result<Vec<Pinned>> {
    let Some(opened) = trust::open_lock(lock_path)? else { return Ok(Vec::new()) };
    let pins = lock::parse(&opened.read_small(MAX_LOCK)?).map_err(|error| {
        Diagnostic::new(codes::E_PLG_007, format!("plugin lock {} cannot be read: {error}", lock_path.display()))
            .hint("correct or remove that line; 'mur plugin trust FILE' pins a library again")
    })?;
    let dir = lock_path.parent().unwrap_or(Path::new("/"));
    let pinned = |pin: Pin| Pinned { path: dir.join(&pin.path), lock: lock_path.to_owned(), pin };
    Ok(pins.into_iter().map(pinned).collect())
}

/// The lock of a directory of libraries.
pub(super) fn lock_in(dir: &Path) -> PathBuf {
    dir.join(LOCK_FILE)
}

impl Pinned {
    /// `E-PLG-001`: the library is another than the pinned one.
    pub(super) fn changed(&self, found: &str) -> Diagnostic {
        Diagnostic::new(
            codes::E_PLG_001,
            format!(
                "plugin library {} is not the one pinned in {}: its SHA-256 is {found}, the pin says {}",
                self.path.display(),
                self.lock.display(),
                self.pin.sha256
            ),
        )
        .hint("if you replaced it yourself, pin it again with 'mur plugin trust FILE'")
    }

    /// Whether the library's header says what the pin says.
    pub(super) fn check(&self, header: &HeaderInfo) -> Result<()> {
        if (header.kind, header.name.as_str()) == (self.pin.kind, self.pin.name.as_str()) {
            return Ok(());
        }
        Err(Diagnostic::new(
            codes::E_PLG_007,
            format!(
                "plugin lock {} pins {} as {} '{}', but the library says it is {} '{}'",
                self.lock.display(),
                self.path.display(),
                self.pin.kind,
                self.pin.name,
                header.kind,
                header.name
            ),
        )
        .hint("pin it again with 'mur plugin trust FILE'"))
    }
}

/// `E-PLG-006`: nobody pinned a plugin of that name.
pub(super) fn unknown(kind: Kind, name: &str) -> Diagnostic {
    Diagnostic::new(codes::E_PLG_006, format!("no {kind} plugin '{name}' is pinned")).hint(
        "see what is pinned with 'mur plugin list'; pin a library with 'mur plugin trust FILE', or name a signed one by \
         its absolute path",
    )
}
