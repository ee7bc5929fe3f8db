//! Where artifacts come from: the project's store, the global one, configured ones, and what is bundled beside the
//! binary. Every store is a plugin and none is believed: the host hashes every byte.

use bytes::Bytes;

use super::archive::{Archive, Packaging};
use super::name::{ArtifactName, Digest, Platform, Version};
use crate::diagnostics::{Diagnostic, Result, codes};

/// The stores of one command, in search order.
pub struct Stores {
    _private: (),
}

/// An artifact a store says it has.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its full name.
    pub name: ArtifactName,
    /// Its version.
    pub version: Version,
    /// What the store says its bytes hash to.
    pub sha256: Digest,
    /// Which store it is in: `project`, `global`, the name of a configured one, or `bundled`.
    pub store: String,
    /// The platform its payload is tagged with.
    pub platform: Option<Platform>,
}

/// An artifact whose bytes were read and hash to what was said.
#[derive(Clone, Debug)]
pub struct Verified {
    /// What was found.
    pub found: Found,
    /// The archive's bytes.
    pub bytes: Bytes,
    /// Their hash, by the host.
    pub sha256: Digest,
    /// The archive, guards passed.
    pub archive: Archive,
    /// How it is packaged, by its packed manifest.
    pub packaging: Packaging,
}

impl Stores {
    /// The first store that has the artifact; only "not there" falls through to the next.
    pub fn find(&self, name: &ArtifactName, version: &Version) -> Result<Option<Found>> {
        let _ = (name, version);
        Err(Diagnostic::new(codes::E_IO_003, "stores cannot be read yet"))
    }

    /// Reads what was found and checks every byte: `E-REG-002` when it is something else.
    pub fn read(&self, found: &Found) -> Result<Verified> {
        let _ = found;
        Err(Diagnostic::new(codes::E_IO_003, "stores cannot be read yet"))
    }
}
