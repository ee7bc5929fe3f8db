//! Compiled forms: machine code of components, kept under `~/.murmur/compiled` and handed to workers as read-only
//! descriptors.

use std::os::fd::OwnedFd;

use super::name::Digest;
use super::store::Verified;
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::paths::MurmurHome;

/// One component as machine code for the engine of this binary.
#[derive(Debug)]
pub struct CompiledForm {
    /// Read-only descriptor of it.
    pub fd: OwnedFd,
    /// SHA-256 of the machine code.
    pub digest: Digest,
    /// Names of the component's imports, sorted.
    pub imports: Vec<String>,
    /// Names of the component's exports, sorted.
    pub exports: Vec<String>,
}

/// The compiled form of a component's bytes; `name` is the artifact as messages name it. Blocks, for as long as a
/// compilation takes when the cache has none.
pub fn compiled_form(home: &MurmurHome, component: &[u8], name: &str) -> Result<CompiledForm> {
    let _ = (home, component);
    Err(Diagnostic::new(codes::E_RUN_001, format!("'{name}' cannot be compiled yet")))
}

/// The compiled form of a wasm artifact that was read from a store. With a warm cache nothing is inflated.
pub fn compiled_form_of(home: &MurmurHome, artifact: &Verified) -> Result<CompiledForm> {
    let _ = home;
    Err(Diagnostic::new(codes::E_RUN_001, format!("'{}' cannot be compiled yet", artifact.found.name)))
}
